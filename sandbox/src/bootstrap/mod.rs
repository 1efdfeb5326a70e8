//! Creates the objects that every cluster starts with: namespaces, roles, priorities, classes and
//! the records of the server itself.

mod flow;
mod own_service;
mod roles;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub use self::own_service::own_service;
use crate::api::Api;
use crate::api::write::Part;
use crate::auth::legacy_tokens;
use crate::nodes::DRIVER;
use crate::object::uuid;
use crate::request::call::Call;
use crate::status::ApiResult;

/// The served API versions: group, version, and the priorities of both.
const LOCAL: [(&str, &str, i32, i32); 21] = [
    ("", "v1", 18_000, 1),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("apps", "v1", 17_800, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("resource.k8s.io", "v1", 16_200, 21),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("autoscaling", "v2", 17_500, 30),
];

/// The API server's own name.
const SERVER: &str = "apiserver-sandbox";

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message })
}

/// Creates the system's PriorityClasses, if the kind is served. Upstream:
/// `pkg/apis/scheduling/v1.SystemPriorityClasses`.
fn system_priorities(api: &Api) -> ApiResult<()> {
    const GROUP: &str = "scheduling.k8s.io";
    if api.registry.find(GROUP, "v1", "priorityclasses").is_none() {
        return Ok(());
    }
    for (name, value, what) in [
        ("system-node-critical", 2_000_001_000, "must not be moved from their current node."),
        (
            "system-cluster-critical",
            2_000_000_000,
            "must run in the cluster, but can be moved to another node if necessary.",
        ),
    ] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": value,
            "description": format!("Used for system critical pods that {what}"),
        });
        api.create_value(GROUP, "priorityclasses", class)?;
    }
    Ok(())
}

/// Creates the objects of every cluster.
pub fn first_objects(api: &Api) -> ApiResult<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        api.create_value("", "namespaces", namespace)?;
    }
    roles::create(api)?;
    track_legacy_tokens(api)?;
    system_priorities(api)?;
    local_services(api)?;
    first_subnet(api)?;
    first_classes(api)?;
    flow::create(api)?;
    identity(api)
}

/// Creates the lease that shows that this server lives, for readers of its storage versions, if
/// these are served. It is not renewed here. Upstream: `pkg/controlplane/apiserver.Server`.
fn identity(api: &Api) -> ApiResult<()> {
    if api.registry.find("internal.apiserver.k8s.io", "v1alpha1", "storageversions").is_none() {
        return Ok(());
    }
    let now = api.clock.now().to_micro_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": SERVER, "namespace": "kube-system",
            "labels": { "apiserver.kubernetes.io/identity": "kube-apiserver" },
        },
        "spec": {
            "holderIdentity": format!("{SERVER}_{}", uuid()), "leaseDurationSeconds": 3600,
            "renewTime": now,
        },
    });
    api.create_value("coordination.k8s.io", "leases", lease).map(drop)
}

/// Creates the settings with which other servers of the control plane authenticate their clients,
/// if ConfigMaps are served.
/// Upstream: `pkg/controlplane/controller/clusterauthenticationtrust`.
///
/// `front_proxy_ca` signs the certificates of proxies that name a user in headers.
pub fn authentication_settings(api: &Api, client_ca: &str, front_proxy_ca: &str) -> ApiResult<()> {
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "extension-apiserver-authentication", "namespace": "kube-system",
        },
        "data": {
            "client-ca-file": client_ca,
            "requestheader-allowed-names": r#"["front-proxy-client"]"#,
            "requestheader-client-ca-file": front_proxy_ca,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-uid-headers": "[]",
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
        },
    });
    if api.registry.find("", "v1", "configmaps").is_some() {
        api.create_value("", "configmaps", settings)?;
    }
    Ok(())
}

/// Creates the ConfigMap with which a joining node finds and trusts the cluster, if ConfigMaps are
/// served. Upstream: `kubeadm init`.
pub fn cluster_info(api: &Api, server: &str, ca: &str) -> ApiResult<()> {
    let cluster = json!({
        "certificate-authority-data": STANDARD.encode(ca), "server": server,
    });
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "",
        "clusters": [{ "cluster": cluster, "name": "" }], "contexts": null, "users": null,
    });
    let info = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "cluster-info", "namespace": "kube-public" },
        "data": { "kubeconfig": serde_yaml_ng::to_string(&kubeconfig).unwrap_or_default() },
    });
    if api.registry.find("", "v1", "configmaps").is_some() {
        api.create_value("", "configmaps", info)?;
    }
    Ok(())
}

/// Creates the APIServices of the groups that this server serves. Upstream:
/// `kube-aggregator/pkg/controllers/autoregister`.
fn local_services(api: &Api) -> ApiResult<()> {
    let kinds = api.registry.all();
    let is_served = |group: &str| kinds.iter().any(|kind| kind.resource.group == group);
    for (group, version, group_priority, priority) in LOCAL {
        if !is_served(group) {
            continue;
        }
        let name = format!("{version}.{group}");
        let mut spec = json!({
            "version": version, "groupPriorityMinimum": group_priority,
            "versionPriority": priority,
        });
        if !group.is_empty() {
            spec["group"] = group.into();
        }
        api.register(&name, "onstart", spec)?;
    }
    Ok(())
}

/// Records the date since which the last use of legacy tokens is tracked, if ConfigMaps are served.
/// Upstream: `pkg/controlplane/controller/legacytokentracking`.
fn track_legacy_tokens(api: &Api) -> ApiResult<()> {
    if api.registry.find("", "v1", "configmaps").is_none() {
        return Ok(());
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "kube-apiserver-legacy-service-account-token-tracking",
            "namespace": "kube-system",
        },
        "data": { "since": legacy_tokens::date(api.clock.now()) },
    });
    api.create_value("", "configmaps", map).map(drop)
}

/// Creates the StorageClasses of the stand-in driver, if the kind is served: the default one, and
/// one that waits for a consumer.
fn first_classes(api: &Api) -> ApiResult<()> {
    const GROUP: &str = "storage.k8s.io";
    if api.registry.find(GROUP, "v1", "storageclasses").is_none() {
        return Ok(());
    }
    for (name, mode, is_default) in
        [("standard", "Immediate", "true"), ("local", "WaitForFirstConsumer", "false")]
    {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {
                "name": name,
                "annotations": { "storageclass.kubernetes.io/is-default-class": is_default },
            },
            "provisioner": DRIVER, "volumeBindingMode": mode, "allowVolumeExpansion": true,
        });
        api.create_value(GROUP, "storageclasses", class)?;
    }
    Ok(())
}

/// Creates the range of Service addresses, if the kind is served. Upstream:
/// `pkg/controlplane/controller/defaultservicecidr`.
fn first_subnet(api: &Api) -> ApiResult<()> {
    const GROUP: &str = "networking.k8s.io";
    if api.registry.find(GROUP, "v1", "servicecidrs").is_none() {
        return Ok(());
    }
    let subnet = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" }, "spec": { "cidrs": ["10.96.0.0/16"] },
    });
    api.create_value(GROUP, "servicecidrs", subnet)?;
    let ready = condition("Ready", "True", "", "Kubernetes default Service CIDR is ready");
    set_conditions(api, GROUP, "servicecidrs", "kubernetes", ready)
}

/// Replaces the conditions of a cluster-scoped object with this one. Does nothing if the kind is
/// not served.
fn set_conditions(
    api: &Api,
    group: &str,
    resource: &str,
    name: &str,
    mut condition: Value,
) -> ApiResult<()> {
    let Some(kind) = api.registry.find(group, "v1", resource) else { return Ok(()) };
    condition["lastTransitionTime"] = api.clock.now().to_string().into();
    let call = Call { subresource: "status".to_owned(), ..Call::of(kind, "", name) };
    let written = api.modify(&call, Part::Raw, &|old| {
        let mut new = old.clone();
        new["status"] = json!({ "conditions": [condition] });
        Ok(new)
    });
    written.map(drop)
}
