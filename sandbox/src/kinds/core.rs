//! Rules of the core group without pods. Upstream: `pkg/apis/core`, `pkg/registry/core`.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::fault::{forbidden, invalid, required, unsupported};
use super::json::{
    drop_nulls, fill, int, list, list_mut, members, object, remove, set, text, truth,
};
use super::metadata::{self, NameRule};
use super::quantity::canonicalize;
use super::rules::Rules;
use crate::status::Cause;

/// The next free cluster address, counted up from 10.96.0.10 (below are the fixed ones).
static NEXT_ADDRESS: AtomicU32 = AtomicU32::new(10);
/// The next node port above 30000.
static NEXT_NODE_PORT: AtomicU32 = AtomicU32::new(0);

/// Fills the defaults of a service that depend on its type, and those of its ports.
pub fn default_service(service: &mut Value) {
    drop_nulls(service);
    let spec = object(service, "spec");
    fill(spec, "sessionAffinity", "None");
    fill(spec, "type", "ClusterIP");
    if text(spec, "/sessionAffinity") == "ClientIP" {
        let client = object(object(spec, "sessionAffinityConfig"), "clientIP");
        fill(client, "timeoutSeconds", 10_800);
    }
    for port in list_mut(spec, "/ports") {
        fill(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_else(|| 0.into());
        fill(port, "targetPort", number.clone());
        if port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = number;
        }
    }
    let kind = text(spec, "/type").to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        fill(spec, "internalTrafficPolicy", "Cluster");
    }
}

pub fn prepare_service(service: &mut Value) {
    set(service, "status", json!({ "loadBalancer": {} }));
    allocate(service);
}

/// Allocates the fields that a service lacks: cluster IP, IP families and node ports. An
/// `ExternalName` service has none of them.
fn allocate(service: &mut Value) {
    let spec = object(service, "spec");
    let kind = text(spec, "/type").to_owned();
    if kind == "ExternalName" {
        return;
    }
    if text(spec, "/clusterIP").is_empty() {
        // 10.96.0.0/16: more than 65536 services would wrap, and no sandbox has them.
        let [_, _, high, low] = NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let first = text(spec, "/clusterIPs/0").to_owned();
        let address = if first.is_empty() { format!("10.96.{high}.{low}") } else { first };
        set(spec, "clusterIP", address);
    }
    let address = spec["clusterIP"].clone();
    if list(spec, "/clusterIPs").is_empty() {
        set(spec, "clusterIPs", json!([address]));
    }
    // A headless service without a selector may get endpoints of either family.
    let is_open = address == "None" && members(spec, "/selector").next().is_none();
    fill(spec, "ipFamilies", if is_open { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) });
    fill(spec, "ipFamilyPolicy", if is_open { "RequireDualStack" } else { "SingleStack" });
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        for port in list_mut(spec, "/ports") {
            if int(port, "/nodePort").unwrap_or(0) == 0 {
                // Upstream allocates node ports from 30000 to 32767, which are 2768.
                let next = NEXT_NODE_PORT.fetch_add(1, Ordering::Relaxed) % 2768;
                set(port, "nodePort", 30_000 + next);
            }
        }
    }
}

/// Restores the allocated fields that an update of a service leaves out, and removes those that its
/// new type does not have.
pub fn prepare_service_update(service: &mut Value, old: &Value) {
    super::workloads::keep_status(service, old);
    let spec = object(service, "spec");
    if text(spec, "/type") != "ExternalName" && text(old, "/spec/type") != "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = old.pointer(&format!("/spec/{key}")) {
                fill(spec, key, value.clone());
            }
        }
    } else if text(spec, "/type") == "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            remove(spec, key);
        }
    }
    let exposed = matches!(text(spec, "/type"), "NodePort" | "LoadBalancer");
    for port in list_mut(spec, "/ports") {
        let same = list(old, "/spec/ports").iter().find(|before| {
            before.get("port") == port.get("port") && before.get("protocol") == port.get("protocol")
        });
        if exposed && let Some(node_port) = same.and_then(|before| before.get("nodePort")) {
            fill(port, "nodePort", node_port.clone());
        } else if !exposed {
            remove(port, "nodePort");
        }
    }
    allocate(service);
}

/// Validates a service: type, addresses, ports and selector.
pub fn check_service(service: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(service, NameRule::Dns1123Label);
    let spec = service.get("spec").unwrap_or(&Value::Null);
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    let kind = text(spec, "/type");
    if !kinds.contains(&kind) {
        faults.push(unsupported("spec.type", &kind.into(), &kinds));
    }
    let affinities = ["ClientIP", "None"];
    if !affinities.contains(&text(spec, "/sessionAffinity")) {
        let affinity = spec.get("sessionAffinity").unwrap_or(&Value::Null);
        faults.push(unsupported("spec.sessionAffinity", affinity, &affinities));
    }
    let ports = list(spec, "/ports");
    let headless = text(spec, "/clusterIP") == "None";
    for (n, address) in list(spec, "/clusterIPs").iter().enumerate() {
        let readable = address.as_str().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
        if address != "None" && address != "" && !readable {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.push(invalid(format!("spec.clusterIPs[{n}]"), address, detail));
        }
    }
    if ports.is_empty() && !headless && kind != "ExternalName" {
        faults.push(required("spec.ports", ""));
    }
    if kind == "ExternalName" && text(spec, "/externalName").is_empty() {
        faults.push(required("spec.externalName", ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for (n, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{n}]");
        let name = text(port, "/name");
        if name.is_empty() && ports.len() > 1 {
            faults.push(required(format!("{at}.name"), ""));
        } else if !name.is_empty() {
            if let Some(fault) = metadata::dns1123_label_fault(name) {
                faults.push(invalid(format!("{at}.name"), &name.into(), &fault));
            }
            if names.contains(&name) {
                faults.push(super::fault::duplicate(format!("{at}.name"), &name.into()));
            }
            names.push(name);
        }
        for part in ["port", "targetPort"] {
            let value = port.get(part).unwrap_or(&Value::Null);
            let named = part == "targetPort" && value.is_string();
            if !named && !value.as_i64().is_some_and(|number| (1..=65_535).contains(&number)) {
                let detail = "must be between 1 and 65535, inclusive";
                let shown = if value.is_null() { json!(0) } else { value.clone() };
                faults.push(invalid(format!("{at}.{part}"), &shown, detail));
            }
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = text(port, "/protocol");
        if !protocols.contains(&protocol) {
            faults.push(unsupported(format!("{at}.protocol"), &protocol.into(), &protocols));
        }
    }
    metadata::labels(spec, "/selector", "spec.selector", &mut faults);
    faults
}

/// Checks an update of a Service: a cluster IP must stay as it is, unless the type is or was
/// `ExternalName`.
pub fn update_service(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_service(new));
    let address = |service: &Value| service.pointer("/spec/clusterIP").cloned();
    let external = |service: &Value| text(service, "/spec/type") == "ExternalName";
    if !external(new) && !external(old) && address(new) != address(old) {
        let detail = "may not change once set";
        let list = new.pointer("/spec/clusterIPs").unwrap_or(&Value::Null);
        faults.push(invalid("spec.clusterIPs[0]", list, detail));
    }
    faults
}

/// Labels a namespace with its name, and drops nulls.
pub fn default_namespace(namespace: &mut Value) {
    drop_nulls(namespace);
    let name = text(namespace, "/metadata/name").to_owned();
    if !name.is_empty() {
        set(object(object(namespace, "metadata"), "labels"), "kubernetes.io/metadata.name", name);
    }
}

pub fn prepare_namespace(namespace: &mut Value) {
    set(namespace, "status", json!({ "phase": "Active" }));
    fill(object(namespace, "spec"), "finalizers", json!(["kubernetes"]));
}

/// Keeps the specification, which is the finalizers: only the subresource `finalize` changes them.
/// Keeps the status too.
pub fn prepare_namespace_update(new: &mut Value, old: &Value) {
    super::json::restore(new, old, "spec");
    super::workloads::keep_status(new, old);
}

/// Prepares a new Node for storage: it gets a specification, a status and the taint `not-ready`, if
/// it lacks them.
pub fn prepare_node(node: &mut Value) {
    fill(node, "spec", json!({}));
    fill(node, "status", json!({}));
    let not_ready = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    let spec = object(node, "spec");
    fill(spec, "taints", json!([]));
    if let Some(taints) = spec["taints"].as_array_mut()
        && !taints.iter().any(|taint| text(taint, "/key") == "node.kubernetes.io/not-ready")
    {
        taints.push(not_ready);
    }
}

/// Fills the fields of a node's status that are never absent, and writes its quantities
/// canonically.
pub fn default_node(node: &mut Value) {
    drop_nulls(node);
    let status = object(node, "status");
    fill(object(object(status, "daemonEndpoints"), "kubeletEndpoint"), "Port", 0);
    for key in [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ] {
        fill(object(status, "nodeInfo"), key, "");
    }
    for part in ["/status/capacity", "/status/allocatable"] {
        canonicalize(node.pointer_mut(part));
    }
    // Allocatable defaults to the capacity.
    if let Some(capacity) = node.pointer("/status/capacity").cloned() {
        fill(object(node, "status"), "allocatable", capacity);
    }
}

const NAMED: Rules = Rules::named(NameRule::Subdomain);

pub fn check_node(node: &Value) -> Vec<Cause> {
    NAMED.check_new(node)
}

/// Checks an update of a Node: its pod CIDRs may not change once they are set.
pub fn update_node(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = NAMED.check_change(new, old);
    let cidr = |node: &Value| node.pointer("/spec/podCIDRs").cloned();
    if cidr(old).is_some_and(|had| Some(&had) != cidr(new).as_ref()) {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        faults.push(forbidden("spec.podCIDRs", detail));
    }
    faults
}

pub fn node_field(node: &Value, path: &str) -> Option<String> {
    (path == "spec.unschedulable").then(|| truth(node, "/spec/unschedulable").to_string())
}

pub fn namespace_field(namespace: &Value, path: &str) -> Option<String> {
    (path == "status.phase").then(|| text(namespace, "/status/phase").to_owned())
}

/// Fills in the type of a Secret, and moves `stringData` into `data`.
pub fn default_secret(secret: &mut Value) {
    use base64::Engine as _;
    drop_nulls(secret);
    fill(secret, "type", "Opaque");
    let plain: Vec<(String, String)> = members(secret, "/stringData")
        .filter_map(|(key, value)| Some((key.to_owned(), value.as_str()?.to_owned())))
        .collect();
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value);
        set(object(secret, "data"), &key, encoded);
    }
    remove(secret, "stringData");
}

/// Checks the metadata and the keys of a ConfigMap or Secret.
fn check_keys(object: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(object, NameRule::Subdomain);
    for part in ["data", "binaryData"] {
        for (key, _) in members(object, &format!("/{part}")) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if key.is_empty() || !key.chars().all(plain) {
                let detail = "a valid config key must consist of alphanumeric characters, '-', '_' \
                    or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for \
                    validation is '[-._a-zA-Z0-9]+')";
                faults.push(invalid(format!("{part}[{key}]"), &key.into(), detail));
            }
        }
    }
    faults
}

/// Checks a ConfigMap: each key must be well-formed, and stand in `data` or `binaryData`, not in
/// both.
pub fn check_config_map(map: &Value) -> Vec<Cause> {
    let mut faults = check_keys(map);
    for (key, _) in members(map, "/binaryData") {
        if map.pointer("/data").and_then(|data| data.get(key)).is_some() {
            let detail = "duplicate of key present in binaryData";
            faults.push(invalid(format!("data[{key}]"), &key.into(), detail));
        }
    }
    faults
}

/// Checks a Secret: its keys must be well-formed, and its type determines which keys and annotation
/// it must have.
pub fn check_secret(secret: &Value) -> Vec<Cause> {
    let mut faults = check_keys(secret);
    let account = "/metadata/annotations/kubernetes.io~1service-account.name";
    if text(secret, "/type") == "kubernetes.io/service-account-token"
        && text(secret, account).is_empty()
    {
        faults.push(required("metadata.annotations[kubernetes.io/service-account.name]", ""));
    }
    let keys: &[&str] = match text(secret, "/type") {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    };
    for key in keys.iter().filter(|key| secret["data"].get(**key).is_none()) {
        faults.push(required(format!("data[{key}]"), ""));
    }
    faults
}

/// Checks an update of an immutable ConfigMap or Secret: the field `immutable` and the data may not
/// change.
fn frozen(new: &Value, old: &Value) -> Vec<Cause> {
    if !truth(old, "/immutable") {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let mut faults = Vec::new();
    if !truth(new, "/immutable") {
        faults.push(forbidden("immutable", detail));
    }
    for part in ["data", "binaryData"] {
        if new.get(part) != old.get(part) {
            faults.push(forbidden(part, detail));
        }
    }
    faults
}

pub fn update_config_map(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_config_map(new));
    faults.extend(frozen(new, old));
    faults
}

pub fn update_secret(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_secret(new));
    faults.extend(super::fault::immutable("type", new.get("type"), old.get("type")));
    faults.extend(frozen(new, old));
    faults
}

/// Returns the value of a field that a field selector for services may name; `None` for any other
/// field.
pub fn service_field(service: &Value, path: &str) -> Option<String> {
    let pointer = match path {
        "spec.clusterIP" => "/spec/clusterIP",
        "spec.type" => "/spec/type",
        _ => return None,
    };
    Some(text(service, pointer).to_owned())
}

pub fn secret_field(secret: &Value, path: &str) -> Option<String> {
    (path == "type").then(|| text(secret, "/type").to_owned())
}

/// Sets the defaults of a claim or claim template.
pub fn default_claim(claim: &mut Value) {
    drop_nulls(claim);
    let spec = object(claim, "spec");
    fill(spec, "volumeMode", "Filesystem");
    if let Some(resources) = spec.get_mut("resources") {
        super::pod::default_resources(resources);
    }
    canonicalize(claim.pointer_mut("/status/capacity"));
}

/// Sets the phase of a new object to `Pending`.
pub fn set_pending(object: &mut Value) {
    set(object, "status", json!({ "phase": "Pending" }));
}

/// Adds a finalizer to an object, unless it has it already.
fn add_finalizer(value: &mut Value, finalizer: &str) {
    let metadata = object(value, "metadata");
    fill(metadata, "finalizers", json!([]));
    if let Some(finalizers) = metadata["finalizers"].as_array_mut()
        && !finalizers.iter().any(|had| had == finalizer)
    {
        finalizers.push(finalizer.into());
    }
}

pub fn prepare_claim(claim: &mut Value) {
    set_pending(claim);
    add_finalizer(claim, "kubernetes.io/pvc-protection");
}

/// Checks a claim: it needs access modes and a request of storage.
pub fn check_claim(claim: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(claim, NameRule::Subdomain);
    if list(claim, "/spec/accessModes").is_empty() {
        faults.push(required("spec.accessModes", "at least 1 access mode is required"));
    }
    if text(claim, "/spec/resources/requests/storage").is_empty() {
        faults.push(required("spec.resources[storage]", ""));
    }
    faults
}

/// Checks an update of a claim. Of its spec only these parts may change: the size, the attributes
/// class, the storage class while it is unset, and the volume name while the claim is unbound.
pub fn update_claim(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_claim(new));
    let fixed = |claim: &Value| {
        let mut spec = claim.get("spec").cloned().unwrap_or_default();
        for free in ["resources", "volumeAttributesClassName"] {
            remove(&mut spec, free);
        }
        if text(old, "/spec/volumeName").is_empty() {
            remove(&mut spec, "volumeName");
        }
        if old.pointer("/spec/storageClassName").is_none() {
            remove(&mut spec, "storageClassName");
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let detail = "spec is immutable after creation except resources.requests and \
            volumeAttributesClassName for bound claims";
        faults.push(forbidden("spec", detail));
    }
    faults
}

/// Fills in the defaults of a PersistentVolume, and writes its capacity in canonical form.
pub fn default_volume(volume: &mut Value) {
    drop_nulls(volume);
    let spec = object(volume, "spec");
    fill(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill(spec, "volumeMode", "Filesystem");
    canonicalize(spec.get_mut("capacity"));
    if let Some(path) = spec.get_mut("hostPath") {
        fill(path, "type", "");
    }
}

/// Prepares a new volume for storage: it is pending since its creation, and has the finalizer that
/// protects a volume in use.
pub fn prepare_volume(volume: &mut Value) {
    set_pending(volume);
    if let Some(created) = volume.pointer("/metadata/creationTimestamp").cloned() {
        set(object(volume, "status"), "lastPhaseTransitionTime", created);
    }
    add_finalizer(volume, "kubernetes.io/pv-protection");
}

/// Checks only the metadata: the other rules for a new volume do not apply to an update.
pub fn update_volume(new: &Value, old: &Value) -> Vec<Cause> {
    NAMED.check_change(new, old)
}

/// Checks a PersistentVolume: it needs access modes and a capacity.
pub fn check_volume(volume: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(volume, NameRule::Subdomain);
    if list(volume, "/spec/accessModes").is_empty() {
        faults.push(required("spec.accessModes", ""));
    }
    if members(volume, "/spec/capacity").next().is_none() {
        faults.push(required("spec.capacity", ""));
    }
    faults
}

pub fn default_quota(quota: &mut Value) {
    drop_nulls(quota);
    for part in ["/spec/hard", "/status/hard", "/status/used"] {
        canonicalize(quota.pointer_mut(part));
    }
}

/// Fills in the defaults of a LimitRange. For containers, a missing default is the maximum, and a
/// missing default request is the default or else the minimum.
pub fn default_limits(range: &mut Value) {
    drop_nulls(range);
    for limit in list_mut(range, "/spec/limits") {
        for part in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            canonicalize(limit.get_mut(part));
        }
        if text(limit, "/type") != "Container" {
            continue;
        }
        for (from, to) in
            [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")]
        {
            let values: Vec<(String, Value)> = members(limit, &format!("/{from}"))
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect();
            for (name, value) in values {
                fill(object(limit, to), &name, value);
            }
        }
    }
}

/// Fills in the defaults of an Endpoints object: the protocol of its ports.
pub fn default_endpoints(endpoints: &mut Value) {
    drop_nulls(endpoints);
    for subset in list_mut(endpoints, "/subsets") {
        for port in list_mut(subset, "/ports") {
            fill(port, "protocol", "TCP");
        }
    }
}

pub fn default_pod_template(template: &mut Value) {
    drop_nulls(template);
    super::pod::default_template(template, "template");
}

/// Returns the value of a field that a field selector for Events may name; `None` for any other
/// field.
pub fn event_field(event: &Value, path: &str) -> Option<String> {
    let pointer = match path {
        "involvedObject.kind"
        | "involvedObject.namespace"
        | "involvedObject.name"
        | "involvedObject.uid"
        | "involvedObject.apiVersion"
        | "involvedObject.resourceVersion"
        | "involvedObject.fieldPath"
        | "reason"
        | "reportingComponent"
        | "type" => format!("/{}", path.replace('.', "/")),
        "source" => {
            let component = text(event, "/source/component");
            let reporting = text(event, "/reportingComponent");
            let source = if component.is_empty() { reporting } else { component };
            return Some(source.to_owned());
        }
        _ => return None,
    };
    Some(text(event, &pointer).to_owned())
}

/// Checks an Event: it must be in the namespace of the object that it is about.
pub fn check_event(event: &Value) -> Vec<Cause> {
    let mut faults = metadata::check(event, NameRule::Subdomain);
    let involved = text(event, "/involvedObject/namespace");
    let namespace = text(event, "/metadata/namespace");
    let fits = involved == namespace
        // An Event about an object without a namespace is in one of these.
        || (involved.is_empty() && matches!(namespace, "default" | "kube-system"));
    if !fits {
        let detail = "does not match event.namespace";
        faults.push(invalid("involvedObject.namespace", &involved.into(), detail));
    }
    faults
}

pub fn update_event(new: &Value, old: &Value) -> Vec<Cause> {
    let mut faults = metadata::check_update(new, old);
    faults.extend(check_event(new));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_keeps_its_allocated_fields() {
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        default_service(&mut service);
        prepare_service(&mut service);
        assert_eq!(check_service(&service), []);
        let port = &service["spec"]["ports"][0];
        assert_eq!((&port["targetPort"], &port["protocol"]), (&json!(80), &json!("TCP")));
        for no_port in [json!(0), json!("")] {
            let ports = json!([{ "port": 80, "targetPort": no_port }]);
            let mut given = json!({ "spec": { "ports": ports } });
            default_service(&mut given);
            assert_eq!(given["spec"]["ports"][0]["targetPort"], 80);
        }
        assert!(int(port, "/nodePort").is_some_and(|n| (30_000..32_768).contains(&n)));
        let address = text(&service, "/spec/clusterIP");
        assert!(address.starts_with("10.96.") && address == text(&service, "/spec/clusterIPs/0"));
        let mut update = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        default_service(&mut update);
        prepare_service_update(&mut update, &service);
        assert_eq!(update["spec"], service["spec"]);
        update["spec"]["clusterIP"] = json!("10.96.200.1");
        assert_eq!(update_service(&update, &service)[0].field, "spec.clusterIPs[0]");
    }

    #[test]
    fn an_immutable_map_stays_as_it_is() {
        let old = json!({"metadata": {"name": "m"}, "immutable": true, "data": {"a": "b"}});
        let new = json!({"metadata": {"name": "m"}, "data": {"a": "c"}});
        let fields: Vec<String> =
            update_config_map(&new, &old).into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["immutable", "data"]);
        let mut secret = json!({"metadata": {"name": "m"}, "stringData": {"a": "b"}});
        default_secret(&mut secret);
        assert_eq!(
            secret,
            json!({"metadata": {"name": "m"}, "data": {"a": "Yg=="}, "type": "Opaque"})
        );
    }
}
