//! The resources of a 1.36 cluster that common controllers use.

use serde_json::Value;

use super::json::drop_nulls;
use super::metadata::NameRule;
use super::rules::Rules;
use super::{
    Kind, Subresource, columns, core, devices, other_groups, pod, pod_rules, rbac, views, workloads,
};
use crate::status::Cause;
use kube_controller_manager::objects::ResourceType;

/// The `field` of a kind whose objects cannot be selected by fields of their own.
fn no_field(_: &Value, _: &str) -> Option<String> {
    None
}

/// Builds a kind with plain rules: it drops nulls and checks the metadata.
pub(super) fn kind(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &[&str],
    namespaced: bool,
) -> Kind {
    // Autoscalers are stored as version 2; `views` serves version 1 of them.
    let version = if group == "autoscaling" { "v2" } else { "v1" };
    Kind {
        resource: ResourceType::fixed(group, version, kind, plural, namespaced),
        singular: kind.to_lowercase(),
        short_names: short_names.iter().map(|name| (*name).to_owned()).collect(),
        categories: Vec::new(),
        subresources: Vec::new(),
        has_generation: false,
        default_grace: |_| None,
        default: Box::new(drop_nulls),
        prepare_create: Box::new(|_| {}),
        prepare_update: Box::new(|_, _| {}),
        validate_create: Box::new(|_| Vec::new()),
        validate_update: Box::new(|_, _| Vec::new()),
        checks_status: false,
        field: no_field,
        columns: columns::of(group, plural),
        schema: None,
        storage_version: None,
        view: None,
    }
    .rules(Rules::named(NameRule::Subdomain))
}

impl Kind {
    pub(super) fn category(mut self, name: &str) -> Kind {
        self.categories.push(name.to_owned());
        self
    }

    /// Gives the kind a status of its own, which the main endpoint leaves alone.
    pub(super) fn status(mut self, new: fn(&mut Value)) -> Kind {
        self.subresources.push(Subresource::Status);
        self.prepare_create = Box::new(new);
        self.prepare_update = Box::new(workloads::keep_status);
        self
    }

    fn on_update(mut self, update: fn(&mut Value, &Value)) -> Kind {
        self.prepare_update = Box::new(update);
        self
    }

    fn sub(mut self, subresources: impl IntoIterator<Item = Subresource>) -> Kind {
        self.subresources.extend(subresources);
        self
    }

    /// Adds the subresource `scale` with the usual paths of the replicas.
    fn scale(self, selector: Option<&str>) -> Kind {
        self.sub([Subresource::Scale {
            replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: selector.map(str::to_owned),
        }])
    }

    pub(super) fn generation(mut self) -> Kind {
        self.has_generation = true;
        self
    }

    pub(super) fn default(mut self, default: fn(&mut Value)) -> Kind {
        self.default = Box::new(default);
        self
    }

    /// Sets the rules that validate new objects and updates.
    fn check(
        mut self,
        create: fn(&Value) -> Vec<Cause>,
        update: fn(&Value, &Value) -> Vec<Cause>,
    ) -> Kind {
        self.validate_create = Box::new(create);
        self.validate_update = Box::new(update);
        self
    }

    /// Applies the rules to updates of the status as well.
    fn checked_status(mut self) -> Kind {
        self.checks_status = true;
        self
    }

    /// Validates new objects and updates by these rules.
    pub(super) fn rules(mut self, rules: Rules) -> Kind {
        self.validate_create = Box::new(move |object| rules.check_new(object));
        self.validate_update = Box::new(move |new, old| rules.check_change(new, old));
        self
    }

    pub(super) fn fields(mut self, field: fn(&Value, &str) -> Option<String>) -> Kind {
        self.field = field;
        self
    }
}

/// Returns all built-in kinds, in the order in which discovery shows them within each group.
pub fn builtin() -> Vec<Kind> {
    let mut kinds = core_kinds();
    kinds.extend(workload_kinds());
    kinds.extend(cluster_kinds());
    kinds
}

/// Lists the kinds of the core group, with their rules and subresources.
fn core_kinds() -> Vec<Kind> {
    const G: &str = "";
    let mut pods = kind(G, "Pod", "pods", &["po"], true)
        .category("all")
        .generation()
        .status(pod::prepare_create)
        .default(pod::default)
        .check(pod_rules::check, pod_rules::check_update)
        .fields(pod::field)
        .sub([
            Subresource::Binding,
            Subresource::EphemeralContainers,
            Subresource::Eviction,
            Subresource::Log,
            Subresource::Resize,
            Subresource::Connect("attach"),
            Subresource::Connect("exec"),
            Subresource::Connect("portforward"),
            Subresource::Connect("proxy"),
        ]);
    pods.default_grace = pod::grace;
    let mut namespaces = kind(G, "Namespace", "namespaces", &["ns"], false)
        .status(core::prepare_namespace)
        .default(core::default_namespace)
        .rules(Rules::named(NameRule::Dns1123Label))
        .fields(core::namespace_field)
        .sub([Subresource::Finalize]);
    namespaces.prepare_update = Box::new(core::prepare_namespace_update);
    let mut services = kind(G, "Service", "services", &["svc"], true)
        .category("all")
        .status(core::prepare_service)
        .default(core::default_service)
        .check(core::check_service, core::update_service)
        .fields(core::service_field)
        .sub([Subresource::Connect("proxy")]);
    services.prepare_update = Box::new(core::prepare_service_update);
    let named_like_plural = |mut endpoints: Kind| {
        endpoints.singular = "endpoints".to_owned();
        endpoints
    };
    vec![
        kind(G, "Binding", "bindings", &[], true),
        kind(G, "ComponentStatus", "componentstatuses", &["cs"], false),
        kind(G, "ConfigMap", "configmaps", &["cm"], true)
            .check(core::check_config_map, core::update_config_map),
        named_like_plural(kind(G, "Endpoints", "endpoints", &["ep"], true))
            .default(core::default_endpoints),
        kind(G, "Event", "events", &["ev"], true)
            .check(core::check_event, core::update_event)
            .fields(core::event_field),
        kind(G, "LimitRange", "limitranges", &["limits"], true).default(core::default_limits),
        namespaces,
        kind(G, "Node", "nodes", &["no"], false)
            .status(core::prepare_node)
            .default(core::default_node)
            .check(core::check_node, core::update_node)
            .fields(core::node_field)
            .sub([Subresource::Connect("proxy")]),
        kind(G, "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], true)
            .status(core::prepare_claim)
            .default(core::default_claim)
            .check(core::check_claim, core::update_claim),
        kind(G, "PersistentVolume", "persistentvolumes", &["pv"], false)
            .status(core::prepare_volume)
            .default(core::default_volume)
            .check(core::check_volume, core::update_volume),
        pods,
        kind(G, "PodTemplate", "podtemplates", &[], true)
            .generation()
            .default(core::default_pod_template),
        kind(G, "ReplicationController", "replicationcontrollers", &["rc"], true)
            .category("all")
            .generation()
            .status(workloads::zero_replicas)
            .scale(Some(".spec.selector"))
            .default(workloads::default_replica_set)
            .check(workloads::check_controller, workloads::check_controller_update)
            .fields(workloads::replicas_field),
        kind(G, "ResourceQuota", "resourcequotas", &["quota"], true)
            .status(workloads::no_status)
            .default(core::default_quota),
        kind(G, "Secret", "secrets", &[], true)
            .default(core::default_secret)
            .check(core::check_secret, core::update_secret)
            .fields(core::secret_field),
        kind(G, "ServiceAccount", "serviceaccounts", &["sa"], true).sub([Subresource::Token]),
        services,
    ]
}

/// Lists the kinds of the groups apps, batch, autoscaling and policy.
fn workload_kinds() -> Vec<Kind> {
    let workload = |group, name, plural, short: &[&str]| {
        kind(group, name, plural, short, true).category("all").generation()
    };
    let selector = Some(".spec.selector");
    vec![
        kind("apps", "ControllerRevision", "controllerrevisions", &[], true)
            .rules(Rules::named(NameRule::Subdomain).fixed(&["/data"])),
        workload("apps", "DaemonSet", "daemonsets", &["ds"])
            .status(workloads::prepare_daemon_set)
            .on_update(workloads::prepare_daemon_set_update)
            .default(workloads::default_daemon_set)
            .check(workloads::check_daemon_set, workloads::check_daemon_set_update),
        workload("apps", "Deployment", "deployments", &["deploy"])
            .status(workloads::no_status)
            .scale(selector)
            .default(workloads::default_deployment)
            .check(workloads::check_deployment, workloads::check_deployment_update),
        workload("apps", "ReplicaSet", "replicasets", &["rs"])
            .status(workloads::zero_replicas)
            .scale(selector)
            .default(workloads::default_replica_set)
            .check(workloads::check_replica_set, workloads::check_replica_set_update),
        workload("apps", "StatefulSet", "statefulsets", &["sts"])
            .status(workloads::zero_stateful)
            .scale(selector)
            .default(workloads::default_stateful_set)
            .check(workloads::check_stateful_set, workloads::check_stateful_set_update),
        workload("batch", "CronJob", "cronjobs", &["cj"])
            .status(workloads::no_status)
            .default(workloads::default_cron_job)
            .check(workloads::check_new_cron_job, workloads::check_cron_job_update),
        workload("batch", "Job", "jobs", &[])
            .status(workloads::prepare_job)
            .default(workloads::default_job)
            .check(workloads::check_job, workloads::check_job_update)
            .checked_status()
            .fields(workloads::job_field),
        kind("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"], true)
            .category("all")
            .status(other_groups::hpa_status)
            .default(other_groups::default_hpa)
            .check(other_groups::check_new_hpa, other_groups::update_hpa),
        {
            // Version 1 is a view of the autoscalers, which are stored as version 2.
            let mut of_v1 = kind(
                "autoscaling",
                "HorizontalPodAutoscaler",
                "horizontalpodautoscalers",
                &["hpa"],
                true,
            )
            .category("all");
            of_v1.resource.version = "v1".into();
            of_v1.subresources.push(Subresource::Status);
            of_v1.view = Some(views::AUTOSCALER);
            of_v1
        },
        kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"], true)
            .generation()
            .status(other_groups::budget_status)
            .rules(Rules::of(other_groups::budget_faults)),
    ]
}

/// Lists the kinds of the other groups: network, RBAC, storage, devices, admission and reviews.
fn cluster_kinds() -> Vec<Kind> {
    const NET: &str = "networking.k8s.io";
    const RBAC: &str = "rbac.authorization.k8s.io";
    const STORAGE: &str = "storage.k8s.io";
    const FLOW: &str = "flowcontrol.apiserver.k8s.io";
    const DEVICES: &str = "resource.k8s.io";
    const AUTHN: &str = "authentication.k8s.io";
    const AUTHZ: &str = "authorization.k8s.io";
    const ADMISSION: &str = "admissionregistration.k8s.io";
    let role = |name, plural, namespaced| {
        kind(RBAC, name, plural, &[], namespaced)
            .default(rbac::default_role)
            .check(rbac::check_role, rbac::update_role)
    };
    let binding = |name, plural, namespaced| {
        kind(RBAC, name, plural, &[], namespaced)
            .default(rbac::default_binding)
            .check(rbac::check_binding, rbac::update_binding)
    };
    let extension = |group, name, plural, short: &[&str]| {
        kind(group, name, plural, short, false).category("api-extensions").generation()
    };
    let mut requests = kind(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        &["csr"],
        false,
    )
    .status(workloads::no_status)
    .sub([Subresource::Approval])
    .default(other_groups::default_csr)
    .fields(other_groups::csr_field)
    .rules(Rules::named(NameRule::PathSegment));
    requests.prepare_update = Box::new(other_groups::keep_spec_and_status);
    vec![
        kind(NET, "IngressClass", "ingressclasses", &[], false).generation(),
        kind(NET, "Ingress", "ingresses", &["ing"], true)
            .generation()
            .status(other_groups::ingress_status)
            .rules(Rules::of(other_groups::ingress_faults)),
        kind(NET, "IPAddress", "ipaddresses", &["ip"], false)
            .rules(Rules::named(NameRule::Address)),
        kind(NET, "NetworkPolicy", "networkpolicies", &["netpol"], true)
            .generation()
            .default(other_groups::default_policy),
        kind(NET, "ServiceCIDR", "servicecidrs", &[], false).status(workloads::no_status),
        {
            let mut events =
                kind("events.k8s.io", "Event", "events", &["ev"], true).fields(views::event_field);
            events.view = Some(views::EVENT);
            events
        },
        kind("discovery.k8s.io", "EndpointSlice", "endpointslices", &[], true)
            .generation()
            .default(other_groups::default_slice)
            .rules(Rules::of(other_groups::slice_faults).fixed(&["/addressType"])),
        kind("coordination.k8s.io", "Lease", "leases", &[], true)
            .rules(Rules::of(other_groups::lease_faults)),
        binding("ClusterRoleBinding", "clusterrolebindings", false),
        role("ClusterRole", "clusterroles", false),
        binding("RoleBinding", "rolebindings", true),
        role("Role", "roles", true),
        kind(STORAGE, "CSIDriver", "csidrivers", &[], false)
            .default(other_groups::default_csi_driver),
        kind(STORAGE, "CSINode", "csinodes", &[], false),
        kind(STORAGE, "CSIStorageCapacity", "csistoragecapacities", &[], true),
        kind(STORAGE, "StorageClass", "storageclasses", &["sc"], false)
            .default(other_groups::default_storage_class)
            .rules(Rules::of(other_groups::class_faults).fixed(&[
                "/provisioner",
                "/parameters",
                "/reclaimPolicy",
                "/volumeBindingMode",
            ])),
        kind(STORAGE, "VolumeAttachment", "volumeattachments", &[], false)
            .status(other_groups::attachment_status),
        kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", &["pc"], false)
            .generation()
            .default(other_groups::default_priority_class)
            .rules(Rules::named(NameRule::Subdomain).fixed(&["/value", "/preemptionPolicy"])),
        kind(STORAGE, "VolumeAttributesClass", "volumeattributesclasses", &["vac"], false),
        kind(FLOW, "FlowSchema", "flowschemas", &[], false)
            .generation()
            .status(workloads::no_status),
        kind(FLOW, "PriorityLevelConfiguration", "prioritylevelconfigurations", &[], false)
            .generation()
            .status(workloads::no_status),
        kind(DEVICES, "DeviceClass", "deviceclasses", &[], false).generation(),
        kind(DEVICES, "ResourceClaim", "resourceclaims", &[], true)
            .default(devices::default_claim)
            .status(workloads::no_status),
        kind(DEVICES, "ResourceClaimTemplate", "resourceclaimtemplates", &[], true)
            .default(devices::default_claim_template),
        kind(DEVICES, "ResourceSlice", "resourceslices", &[], false)
            .generation()
            .default(devices::default_slice),
        kind(AUTHN, "SelfSubjectReview", "selfsubjectreviews", &[], false),
        kind(AUTHN, "TokenReview", "tokenreviews", &[], false),
        kind(AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews", &[], true),
        kind(AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[], false),
        kind(AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews", &[], false),
        kind(AUTHZ, "SubjectAccessReview", "subjectaccessreviews", &[], false),
        kind("node.k8s.io", "RuntimeClass", "runtimeclasses", &[], false),
        extension(ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", &[]),
        extension(
            ADMISSION,
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            &[],
        ),
        extension(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", &[])
            .default(other_groups::default_webhooks),
        extension(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", &[])
            .status(workloads::no_status)
            .default(other_groups::default_admission_policy)
            .check(other_groups::policy_faults, |new, _| other_groups::policy_faults(new)),
        extension(
            ADMISSION,
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            &[],
        )
        .default(other_groups::default_admission_policy_binding),
        extension(
            ADMISSION,
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            &[],
        )
        .default(other_groups::default_webhooks),
        requests,
        extension(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            &["crd", "crds"],
        )
        .status(other_groups::accept_crd)
        .default(other_groups::default_crd)
        .rules(Rules::of(other_groups::crd_faults).fixed(&[
            "/spec/group",
            "/spec/scope",
            "/spec/names/plural",
            "/spec/names/kind",
        ])),
        {
            let mut services =
                kind("apiregistration.k8s.io", "APIService", "apiservices", &[], false)
                    .category("api-extensions")
                    .rules(Rules::named(NameRule::PathSegment))
                    .status(workloads::no_status);
            services.default = Box::new(drop_nulls);
            services
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of an object that was sent to a real 1.36.2 server, and the object that it stored.
    const GOLDEN: &str = include_str!("golden.json");

    #[test]
    fn objects_are_stored_as_by_a_real_server() {
        let pairs: Vec<(Value, Value)> = serde_json::from_str(GOLDEN).unwrap();
        let kinds = builtin();
        assert!(pairs.len() > 20);
        for (mut object, stored) in pairs {
            let name = object["kind"].as_str().unwrap().to_owned();
            let kind = kinds.iter().find(|k| k.resource.kind == name && k.view.is_none()).unwrap();
            (kind.default)(&mut object);
            (kind.prepare_create)(&mut object);
            assert_eq!(object, stored, "{name}");
            assert_eq!((kind.validate_create)(&object), [], "{name}");
            (kind.default)(&mut object);
            assert_eq!(object, stored, "{name} filled twice");
            assert_eq!((kind.validate_update)(&object, &stored), [], "{name}");
        }
    }
}
