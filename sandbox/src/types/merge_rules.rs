//! How strategic merge treats the fields of the built-in types.

/// How one field merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRule {
    /// `merge`, `retainKeys`, `replace` or several, as `x-kubernetes-patch-strategy` has them.
    pub strategy: &'static str,
    /// The member that identifies the items of a list; empty for lists of plain values.
    pub key: &'static str,
}

/// Returns the rule of a field of a type (`io.k8s.api.core.v1.PodSpec`). `None`: lists are
/// replaced, objects merged.
pub fn merge_rule(type_name: &str, field: &str) -> Option<MergeRule> {
    let short = ["io.k8s.api.", "io.k8s.apimachinery.pkg.apis."]
        .into_iter()
        .find_map(|prefix| type_name.strip_prefix(prefix))
        .unwrap_or(type_name);
    RULES
        .iter()
        .find(|(name, of, ..)| *name == short && *of == field)
        .map(|&(_, _, strategy, key)| MergeRule { strategy, key })
}

/// Type, field, strategy, merge key.
const RULES: &[(&str, &str, &str, &str)] = &[
    ("admissionregistration.v1.MutatingAdmissionPolicySpec", "matchConditions", "merge", "name"),
    ("admissionregistration.v1.MutatingWebhook", "matchConditions", "merge", "name"),
    ("admissionregistration.v1.MutatingWebhookConfiguration", "webhooks", "merge", "name"),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "matchConditions", "merge", "name"),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "variables", "merge", "name"),
    ("admissionregistration.v1.ValidatingWebhook", "matchConditions", "merge", "name"),
    ("admissionregistration.v1.ValidatingWebhookConfiguration", "webhooks", "merge", "name"),
    ("apps.v1.DaemonSetStatus", "conditions", "merge", "type"),
    ("apps.v1.DeploymentSpec", "strategy", "retainKeys", ""),
    ("apps.v1.DeploymentStatus", "conditions", "merge", "type"),
    ("apps.v1.ReplicaSetStatus", "conditions", "merge", "type"),
    ("apps.v1.StatefulSetStatus", "conditions", "merge", "type"),
    ("autoscaling.v2.HorizontalPodAutoscalerStatus", "conditions", "merge", "type"),
    ("batch.v1.JobStatus", "conditions", "merge", "type"),
    ("core.v1.ComponentStatus", "conditions", "merge", "type"),
    ("core.v1.Container", "env", "merge", "name"),
    ("core.v1.Container", "ports", "merge", "containerPort"),
    ("core.v1.Container", "volumeDevices", "merge", "devicePath"),
    ("core.v1.Container", "volumeMounts", "merge", "mountPath"),
    ("core.v1.ContainerStatus", "allocatedResourcesStatus", "merge", "name"),
    ("core.v1.ContainerStatus", "volumeMounts", "merge", "mountPath"),
    ("core.v1.EphemeralContainer", "env", "merge", "name"),
    ("core.v1.EphemeralContainer", "ports", "merge", "containerPort"),
    ("core.v1.EphemeralContainer", "volumeDevices", "merge", "devicePath"),
    ("core.v1.EphemeralContainer", "volumeMounts", "merge", "mountPath"),
    ("core.v1.NamespaceStatus", "conditions", "merge", "type"),
    ("core.v1.NodeSpec", "podCIDRs", "merge", ""),
    ("core.v1.NodeStatus", "addresses", "merge", "type"),
    ("core.v1.NodeStatus", "conditions", "merge", "type"),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", "merge", "type"),
    ("core.v1.PodSpec", "containers", "merge", "name"),
    ("core.v1.PodSpec", "ephemeralContainers", "merge", "name"),
    ("core.v1.PodSpec", "hostAliases", "merge", "ip"),
    ("core.v1.PodSpec", "imagePullSecrets", "merge", "name"),
    ("core.v1.PodSpec", "initContainers", "merge", "name"),
    ("core.v1.PodSpec", "resourceClaims", "merge,retainKeys", "name"),
    ("core.v1.PodSpec", "schedulingGates", "merge", "name"),
    ("core.v1.PodSpec", "topologySpreadConstraints", "merge", "topologyKey"),
    ("core.v1.PodSpec", "volumes", "merge,retainKeys", "name"),
    ("core.v1.PodStatus", "conditions", "merge", "type"),
    ("core.v1.PodStatus", "hostIPs", "merge", "ip"),
    ("core.v1.PodStatus", "podIPs", "merge", "ip"),
    ("core.v1.PodStatus", "resourceClaimStatuses", "merge,retainKeys", "name"),
    ("core.v1.ReplicationControllerStatus", "conditions", "merge", "type"),
    ("core.v1.ServiceAccount", "secrets", "merge", "name"),
    ("core.v1.ServiceSpec", "ports", "merge", "port"),
    ("core.v1.ServiceStatus", "conditions", "merge", "type"),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "x-kubernetes-validations",
        "merge",
        "rule",
    ),
    (
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIServiceStatus",
        "conditions",
        "merge",
        "type",
    ),
    ("meta.v1.ObjectMeta", "finalizers", "merge", ""),
    ("meta.v1.ObjectMeta", "ownerReferences", "merge", "uid"),
    ("networking.v1.ServiceCIDRStatus", "conditions", "merge", "type"),
    ("policy.v1.PodDisruptionBudgetSpec", "selector", "replace", ""),
    ("policy.v1.PodDisruptionBudgetStatus", "conditions", "merge", "type"),
    ("resource.v1.ResourceClaimStatus", "reservedFor", "merge", "uid"),
    ("storage.v1.CSINodeSpec", "drivers", "merge", "name"),
];
