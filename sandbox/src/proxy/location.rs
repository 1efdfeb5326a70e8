//! Where a request is passed on to: the kubelet of a pod's node, a node, a pod or an endpoint of a
//! service. Upstream: `pkg/registry/core/{pod,node,service}`.

use std::net::IpAddr;

use serde_json::Value;

use super::backend::Address;
use super::unknown;
use crate::failures::{self, bad_request, forbidden_field, invalid_value, not_found};
use crate::object::{list, text};
use crate::request::call::{Query, ResourcePath};
use crate::status::{ApiError, ApiResult, Cause};
use crate::storage::store::{Store, Stored};
use kube_controller_manager::objects::{ResourceType, Timestamp};
use std::sync::Arc;

const POD: ResourceType = ResourceType::fixed("", "v1", "Pod", "pods", true);
const NODE: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);
const SERVICE: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);

/// kubeadm's `--kubelet-preferred-address-types`.
const ADDRESS_TYPES: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];
/// The kubelet's port if the Node has none.
const KUBELET_PORT: u16 = 10250;
/// The scheme of the container runtime that the sandbox's own nodes report.
const STAND_IN: &str = "none://";

/// Where a request goes.
#[derive(Debug)]
pub struct Location {
    pub address: Address,
    /// The path, and for kubelets' streams the query; encoded.
    pub target: String,
    /// Reached over TLS as the API server.
    pub is_kubelet: bool,
    /// Reached over TLS.
    pub is_https: bool,
}

impl Location {
    fn kubelet(address: Address, path: String, query: &[(&str, String)]) -> Location {
        let query = encode(query);
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        Location { address, target, is_kubelet: true, is_https: true }
    }
}

/// Returns the location of a container's logs; `None`: the pod has no node yet.
pub fn logs(store: &Store, at: &ResourcePath, query: &Query) -> ApiResult<Option<Location>> {
    let options = log_options(query, &at.name)?;
    let pod = pod(store, at, &at.name)?;
    let container = container(query.get("container"), &pod.value)?;
    let Some(kubelet) = kubelet_of(store, at, &pod.value)? else { return Ok(None) };
    let path = format!("/containerLogs/{}/{}/{container}", at.namespace, at.name);
    Ok(Some(Location::kubelet(kubelet, path, &options)))
}

/// Returns the location of the streams of `exec`, `attach` and `portforward`.
pub fn streams(store: &Store, at: &ResourcePath, query: &Query) -> ApiResult<Location> {
    let pod = pod(store, at, &at.name)?;
    let is_ports = at.subresource == "portforward";
    let container = match is_ports {
        true => String::new(),
        false => format!("/{}", container(query.get("container"), &pod.value)?),
    };
    let Some(kubelet) = kubelet_of(store, at, &pod.value)? else {
        return Err(bad_request(format!("pod {} does not have a host assigned", at.name)));
    };
    let what = if is_ports { "portForward" } else { &at.subresource };
    let path = format!("/{what}/{}/{}{container}", at.namespace, at.name);
    Ok(Location::kubelet(kubelet, path, &stream_options(&at.subresource, query)))
}

/// Returns the location behind the subresource `proxy`; `rest` is the path there, encoded.
pub fn proxied(store: &Store, at: &ResourcePath, rest: &str) -> ApiResult<Location> {
    let what = at.resource.strip_suffix('s').unwrap_or(&at.resource);
    let invalid = || bad_request(format!("invalid {what} request {:?}", at.name));
    let (scheme, name, port) = split_id(&at.name).ok_or_else(invalid)?;
    let target = format!("/{rest}");
    let is_https = scheme == "https";
    let number = |port: &str| port.parse::<u16>().map_err(|_| invalid());
    match at.resource.as_str() {
        "nodes" => {
            let node = store.get("nodes", name).ok_or_else(|| not_found(&NODE, name))?;
            let kubelet = kubelet(at, &node.value)?;
            let port = if port.is_empty() { kubelet.port } else { number(port)? };
            let is_kubelet = port == kubelet.port;
            let is_allowed = match kubelet.host.parse::<IpAddr>() {
                // Kubelets beside this server have its own address.
                Ok(ip) => is_global_unicast(ip) || is_kubelet && ip.to_canonical().is_loopback(),
                // A name may lead anywhere.
                Err(_) => is_kubelet,
            };
            if !is_allowed {
                return Err(bad_request("address not allowed"));
            }
            let address = Address { port, ..kubelet };
            Ok(Location { address, target, is_kubelet, is_https: is_https || is_kubelet })
        }
        "pods" => {
            let pod = pod(store, at, name)?;
            refuse_stand_in(store, at, &pod.value)?;
            let ports = list(&pod.value, "/spec/containers").iter();
            let first = ports.flat_map(|container| list(container, "/ports")).next();
            let first = first.and_then(|port| u16::try_from(port["containerPort"].as_u64()?).ok());
            let port = match (port, first) {
                ("", Some(first)) => first,
                ("", None) if is_https => 443,
                ("", None) => 80,
                (port, _) => number(port)?,
            };
            let host = text(&pod.value, "/status/podIPs/0/ip").to_owned();
            if !host.parse().is_ok_and(is_global_unicast) {
                return Err(bad_request("address not allowed"));
            }
            Ok(Location { address: Address { host, port }, target, is_kubelet: false, is_https })
        }
        _ => {
            let (address, pod) = endpoint(store, &at.namespace, name, port, &at.name)?;
            refuse_stand_in(store, at, &pod.value)?;
            Ok(Location { address, target, is_kubelet: false, is_https })
        }
    }
}

/// Rewrites the new place that an answer names, so that it leads through the proxy at `prefix`.
/// `hosts` are the backend's names; other places stay. Upstream: `proxy.Transport`.
pub fn rewrite_redirect(to: &str, prefix: &str, hosts: &[String]) -> String {
    let absolute = to.split_once("://").map(|(_, rest)| rest);
    let path = match absolute.or_else(|| to.strip_prefix("//")) {
        None => to,
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !hosts.iter().any(|known| known == host) {
                return to.to_owned();
            }
            path
        }
    };
    if !path.starts_with('/') || path.starts_with(prefix) {
        return path.to_owned();
    }
    format!("{prefix}{path}")
}

fn pod(store: &Store, at: &ResourcePath, name: &str) -> ApiResult<Arc<Stored>> {
    let pod = store.get("pods", &format!("{}/{name}", at.namespace));
    pod.ok_or_else(|| not_found(&POD, name))
}

/// Returns the container that a request is for: the one asked for, or the pod's only one.
fn container(asked: &str, pod: &Value) -> ApiResult<String> {
    let name = text(pod, "/metadata/name");
    let members = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
    let all = members.iter().flat_map(|member| list(pod, member));
    let all: Vec<&str> = all.map(|container| text(container, "/name")).collect();
    if !asked.is_empty() {
        return match all.contains(&asked) {
            true => Ok(asked.to_owned()),
            false => Err(bad_request(format!("container {asked} is not valid for pod {name}"))),
        };
    }
    match list(pod, "/spec/containers") {
        [one] => Ok(text(one, "/name").to_owned()),
        [] => Err(bad_request(format!("a container name must be specified for pod {name}"))),
        _ => Err(bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

/// Returns the kubelet of a pod's node; `None` before the pod has one.
fn kubelet_of(store: &Store, at: &ResourcePath, pod: &Value) -> ApiResult<Option<Address>> {
    let name = text(pod, "/spec/nodeName");
    if name.is_empty() {
        return Ok(None);
    }
    let node = store.get("nodes", name).ok_or_else(|| not_found(&NODE, name))?;
    kubelet(at, &node.value).map(Some)
}

/// Returns the address of a node's kubelet: the first of the preferred types, with the port that
/// the node reports, or the usual one. A stand-in has no kubelet.
fn kubelet(at: &ResourcePath, node: &Value) -> ApiResult<Address> {
    if is_stand_in(node) {
        return Err(no_containers(at));
    }
    let addresses = list(node, "/status/addresses");
    let of_type = |wanted: &str| addresses.iter().find(|address| address["type"] == wanted);
    let Some(found) = ADDRESS_TYPES.into_iter().find_map(of_type) else {
        let known = addresses.iter();
        let known =
            known.map(|one| format!("{{{} {}}}", text(one, "/type"), text(one, "/address")));
        let known: Vec<String> = known.collect();
        let why = format!("no preferred addresses found; known addresses: [{}]", known.join(" "));
        return Err(unknown(why));
    };
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port");
    let port = port.and_then(|port| u16::try_from(port.as_u64()?).ok()).filter(|port| *port > 0);
    let host = text(found, "/address").to_owned();
    Ok(Address { host, port: port.unwrap_or(KUBELET_PORT) })
}

fn is_stand_in(node: &Value) -> bool {
    text(node, "/status/nodeInfo/containerRuntimeVersion").starts_with(STAND_IN)
}

/// Refuses a pod of a stand-in node, where nothing answers.
fn refuse_stand_in(store: &Store, at: &ResourcePath, pod: &Value) -> ApiResult<()> {
    let node = store.get("nodes", text(pod, "/spec/nodeName"));
    match node.is_some_and(|node| is_stand_in(&node.value)) {
        true => Err(no_containers(at)),
        false => Ok(()),
    }
}

/// Builds the error for requests that only a real kubelet or container can answer.
fn no_containers(at: &ResourcePath) -> ApiError {
    let kind = match at.resource.as_str() {
        "pods" => "Pod",
        "nodes" => "Node",
        _ => "Service",
    };
    let message = format!(
        "{kind} {:?} has no {} here: the sandbox's nodes are stand-ins that run no containers",
        at.name, at.subresource
    );
    ApiError::new(501, "NotImplemented", message)
}

/// Returns a random ready endpoint of a service and its pod. `port` is the number or name of a
/// service port; `asked` is the service as the request has it. Upstream takes Endpoints, this
/// EndpointSlices.
fn endpoint(
    store: &Store,
    namespace: &str,
    service: &str,
    port: &str,
    asked: &str,
) -> ApiResult<(Address, Arc<Stored>)> {
    let unavailable = |why: String| ApiError::new(503, "ServiceUnavailable", why);
    let found = store.get("services", &format!("{namespace}/{service}"));
    let found = found.ok_or_else(|| not_found(&SERVICE, service))?;
    let name = match port.parse::<u64>() {
        Err(_) => port,
        Ok(number) => {
            let mut ports = list(&found.value, "/spec/ports").iter();
            let known = ports.find(|known| known["port"] == number);
            text(
                known.ok_or_else(|| {
                    unavailable(format!("no service port {number} found for service {service:?}"))
                })?,
                "/name",
            )
        }
    };
    let mut endpoints = Vec::new();
    for (address, endpoint) in ready_endpoints(store, namespace, service, name) {
        let target = &endpoint["targetRef"];
        if target["kind"] != "Pod" || target["namespace"] != namespace {
            continue;
        }
        let pod = store.get("pods", &format!("{namespace}/{}", text(target, "/name")));
        // Writers of EndpointSlices could otherwise reach all that this server reaches.
        let is_its = |pod: &Arc<Stored>| {
            list(&pod.value, "/status/podIPs").iter().any(|known| known["ip"] == *address.host)
        };
        endpoints.extend(pod.filter(is_its).map(|pod| (address, pod)));
    }
    fastrand::shuffle(&mut endpoints);
    endpoints
        .pop()
        .ok_or_else(|| unavailable(format!("no endpoints available for service {asked:?}")))
}

/// Lists the ready endpoints of a service at the port of this name, with their addresses.
fn ready_endpoints(
    store: &Store,
    namespace: &str,
    service: &str,
    port: &str,
) -> Vec<(Address, Value)> {
    let of_service =
        |slice: &Stored| slice.labels.get("kubernetes.io/service-name") == Some(service);
    let (table, prefix) = ("endpointslices.discovery.k8s.io", format!("{namespace}/"));
    let slices = store.list(table, &prefix, None, usize::MAX, None, &of_service);
    let mut ready = Vec::new();
    for slice in slices.map(|page| page.items).unwrap_or_default() {
        let mut ports = list(&slice.value, "/ports").iter();
        let number = ports.find(|known| text(known, "/name") == port);
        let number = number.and_then(|port| u16::try_from(port["port"].as_u64()?).ok());
        let Some(port) = number else { continue };
        for endpoint in list(&slice.value, "/endpoints") {
            let host = text(endpoint, "/addresses/0").to_owned();
            if endpoint["conditions"]["ready"] != false && !host.is_empty() {
                ready.push((Address { host, port }, endpoint.clone()));
            }
        }
    }
    ready
}

/// Returns a random ready address of a service's port; `None` when it is not served. Upstream:
/// `kube-aggregator/pkg/apiserver.ServiceResolver` with endpoints.
pub fn address_of_service(
    store: &Store,
    namespace: &str,
    name: &str,
    port: u64,
) -> Option<Address> {
    let service = store.get("services", &format!("{namespace}/{name}"))?;
    if service.value["spec"]["type"] == "ExternalName" {
        let host = text(&service.value, "/spec/externalName").to_owned();
        return Some(Address { host, port: u16::try_from(port).ok()? });
    }
    let found = list(&service.value, "/spec/ports").iter().find(|known| known["port"] == port)?;
    let mut ready = ready_endpoints(store, namespace, name, text(found, "/name"));
    fastrand::shuffle(&mut ready);
    ready.pop().map(|(address, _)| address)
}

/// Splits `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT` into scheme, name and port; `None` for any
/// other form, an empty name or another scheme than HTTP and HTTPS.
fn split_id(id: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    (!name.is_empty() && matches!(scheme, "" | "http" | "https")).then_some((scheme, name, port))
}

/// Returns whether the address may be proxied to, by Go's `net.IP.IsGlobalUnicast`.
fn is_global_unicast(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Reads the options of logs, in the form of a kubelet's query. Upstream:
/// `validation.ValidatePodLogOptions`.
fn log_options(query: &Query, pod: &str) -> ApiResult<Vec<(&'static str, String)>> {
    const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];
    let mut causes = Vec::new();
    let tail = query.number::<i64>("tailLines")?;
    if let Some(tail) = tail.filter(|tail| *tail < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(invalid_value("tailLines", &tail.into(), why));
    }
    let mut positive = |key: &str| -> ApiResult<Option<i64>> {
        let number = query.number::<i64>(key)?;
        if let Some(number) = number.filter(|number| *number < 1) {
            causes.push(invalid_value(key, &number.into(), "must be greater than 0"));
        }
        Ok(number)
    };
    let limit = positive("limitBytes")?;
    let seconds = positive("sinceSeconds")?;
    let time = match query.get("sinceTime") {
        "" => None,
        text => Some(text.parse::<Timestamp>().map_err(|_| {
            bad_request(format!("unable to decode query: sinceTime={text:?} is no time"))
        })?),
    };
    if seconds.is_some() && time.is_some() {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.push(forbidden_field("", why));
    }
    let stream = if query.has("stream") { query.get("stream") } else { STREAMS[0] };
    if !STREAMS.contains(&stream) {
        causes.push(Cause {
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {stream:?}: supported values: \"All\", \"Stderr\", \"Stdout\""
            ),
            field: "stream".to_owned(),
        });
    }
    if stream != STREAMS[0] && tail.is_some() {
        let why = "`tailLines` and specific `stream` are mutually exclusive for now";
        causes.push(forbidden_field("", why));
    }
    if !causes.is_empty() {
        return Err(failures::invalid("", "PodLogOptions", pod, &causes));
    }
    let set = |key: &'static str| (key, query.is(key).then(|| "true".to_owned()));
    let number =
        |key: &'static str, value: Option<i64>| (key, value.map(|value| value.to_string()));
    let options = [
        set("follow"),
        number("limitBytes", limit),
        set("previous"),
        number("sinceSeconds", seconds),
        ("sinceTime", time.map(|time| time.to_string())),
        ("stream", Some(stream.to_owned())),
        number("tailLines", tail),
        set("timestamps"),
    ];
    Ok(options.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
}

/// Translates the options of streams into a kubelet's query.
fn stream_options(what: &str, query: &Query) -> Vec<(&'static str, String)> {
    if what == "portforward" {
        let ports: Vec<&str> = query.values("ports").collect();
        let ports = ports.join(",");
        return if ports.is_empty() { Vec::new() } else { vec![("port", ports)] };
    }
    let mut options = Vec::new();
    if what == "exec" {
        options.extend(query.values("command").map(|word| ("command", word.to_owned())));
    }
    for (asked, key) in
        [("stderr", "error"), ("stdin", "input"), ("stdout", "output"), ("tty", "tty")]
    {
        if query.is(asked) {
            options.push((key, "1".to_owned()));
        }
    }
    options
}

/// Encodes parameters as the query of a URL. Upstream: `url.Values.Encode`.
fn encode(pairs: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    text.push(byte.into());
                }
                b' ' => text.push('+'),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOGS: &str = "/api/v1/namespaces/ns/pods/p/log";

    fn store() -> Store {
        let store = Store::new(100);
        let put = |table: &str, key: &str, object: Value| {
            store.create(table, key, object).expect("it is new");
        };
        let node = |runtime: &str, port: u16, addresses: Value| {
            json!({ "status": {
                "addresses": addresses, "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
                "nodeInfo": { "containerRuntimeVersion": runtime },
            } })
        };
        let address = |of: &str, address: &str| json!({ "type": of, "address": address });
        let real = json!([address("Hostname", "real"), address("InternalIP", "fd00::1")]);
        put("nodes", "real", node("containerd://2.1", 10251, real));
        put("nodes", "named", node("containerd://2.1", 0, json!([address("Hostname", "named")])));
        put("nodes", "odd", node("containerd://2.1", 0, json!([address("InternalDNS", "odd")])));
        put(
            "nodes",
            "near",
            node("containerd://2.1", 0, json!([address("InternalIP", "127.0.0.1")])),
        );
        put(
            "nodes",
            "cloud",
            node("containerd://2.1", 80, json!([address("InternalIP", "169.254.1.1")])),
        );
        put("nodes", "fake", node("none://0", 0, json!([address("InternalIP", "192.0.2.1")])));
        let pod = |name: &str, node: &str, containers: Value| {
            let ports = json!([{ "name": "a", "ports": [{ "containerPort": 8080 }] }]);
            let containers = if containers.is_null() { ports } else { containers };
            let mut pod = json!({
                "metadata": { "name": name, "namespace": "ns" },
                "spec": { "containers": containers },
                "status": { "podIPs": [{ "ip": "10.1.2.3" }] },
            });
            if !node.is_empty() {
                pod["spec"]["nodeName"] = node.into();
            }
            put("pods", &format!("ns/{name}"), pod);
        };
        pod("p", "real", Value::Null);
        pod("waiting", "", Value::Null);
        pod("on-fake", "fake", Value::Null);
        pod("on-named", "named", Value::Null);
        pod("on-odd", "odd", Value::Null);
        pod("lost", "gone", Value::Null);
        pod("two", "real", json!([{ "name": "a" }, { "name": "b" }]));
        let ports = json!([{ "name": "web", "port": 80 }]);
        put("services", "ns/s", json!({ "spec": { "ports": ports } }));
        put("services", "ns/empty", json!({ "spec": { "ports": ports } }));
        let of_pod = |namespace: &str, name: &str| json!({ "kind": "Pod", "namespace": namespace, "name": name });
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "s" } },
            "ports": [{ "name": "web", "port": 8080 }],
            "endpoints": [
                { "addresses": ["10.1.2.3"], "targetRef": of_pod("ns", "p") },
                { "addresses": ["10.1.2.4"], "targetRef": of_pod("ns", "gone") },
                { "addresses": ["10.1.2.5"] },
                {
                    "addresses": ["10.1.2.6"], "targetRef": of_pod("ns", "two"),
                    "conditions": { "ready": false },
                },
            ],
        });
        put("endpointslices.discovery.k8s.io", "ns/s-1", slice);
        put("services", "ns/forged", json!({ "spec": { "ports": ports } }));
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "forged" } },
            "ports": [{ "name": "web", "port": 8080 }],
            "endpoints": [
                { "addresses": ["10.0.0.1"], "targetRef": of_pod("ns", "p") },
                { "addresses": ["10.1.2.3"], "targetRef": of_pod("other", "p") },
                { "addresses": ["10.1.2.3"], "targetRef": { "kind": "Pod", "name": "p" } },
            ],
        });
        put("endpointslices.discovery.k8s.io", "ns/forged-1", slice);
        store
    }

    fn shown(found: ApiResult<Location>) -> String {
        match found {
            Err(error) => format!("{} {}", error.code, error.message),
            Ok(location) => {
                let scheme = if location.is_https { "https" } else { "http" };
                let who = if location.is_kubelet { "kubelet " } else { "" };
                format!("{who}{scheme}://{}{}", location.address, location.target)
            }
        }
    }

    #[test]
    fn logs_are_those_of_the_pods_kubelet() {
        let store = store();
        let of = |pod: &str, query: &str| {
            let at = ResourcePath::parse(&LOGS.replace("/p/", &format!("/{pod}/"))).unwrap();
            match logs(&store, &at, &Query::parse(query)) {
                Ok(None) => "nothing".to_owned(),
                Ok(Some(location)) => shown(Ok(location)),
                Err(error) => shown(Err(error)),
            }
        };
        let all = "container=a&follow=1&previous=true&timestamps=true&tailLines=0&limitBytes=1\
            &sinceTime=2026-01-02T03:04:05%2B01:00&insecureSkipTLSVerifyBackend=true";
        for (pod, query, expected) in [
            ("p", "", "kubelet https://[fd00::1]:10251/containerLogs/ns/p/a?stream=All"),
            (
                "p",
                all,
                "kubelet https://[fd00::1]:10251/containerLogs/ns/p/a?follow=true&limitBytes=1\
                 &previous=true&sinceTime=2026-01-02T02%3A04%3A05Z&stream=All&tailLines=0\
                 &timestamps=true",
            ),
            (
                "on-named",
                "sinceSeconds=5&stream=Stderr&follow=false",
                "kubelet https://named:10250/containerLogs/ns/on-named/a?sinceSeconds=5&stream=Stderr",
            ),
            ("waiting", "", "nothing"),
            ("none", "", "404 pods \"none\" not found"),
            ("lost", "", "404 nodes \"gone\" not found"),
            ("p", "container=x", "400 container x is not valid for pod p"),
            ("two", "", "400 a container name must be specified for pod two, choose one of: [a b]"),
            (
                "on-odd",
                "",
                "500 no preferred addresses found; known addresses: [{InternalDNS odd}]",
            ),
            (
                "on-fake",
                "",
                "501 Pod \"on-fake\" has no log here: the sandbox's nodes are stand-ins that run \
                 no containers",
            ),
        ] {
            assert_eq!(of(pod, query), expected);
        }
        for (query, part) in [
            ("tailLines=-1", "tailLines: Invalid value: -1"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0"),
            ("sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", "at most one of `sinceTime`"),
            ("stream=both", "stream: Unsupported value: \"both\""),
            ("stream=Stdout&tailLines=1", "mutually exclusive"),
        ] {
            let refused = of("p", query);
            assert!(refused.starts_with("422 ") && refused.contains(part), "{refused}");
        }
        assert!(of("p", "tailLines=x").starts_with("400 "));
        assert!(of("p", "sinceTime=x").starts_with("400 "));
    }

    #[test]
    fn streams_have_the_options_of_kubelets() {
        let store = store();
        let of = |path: &str, query: &str| {
            let at = ResourcePath::parse(&format!("/api/v1/namespaces/ns/pods/{path}")).unwrap();
            shown(streams(&store, &at, &Query::parse(query)))
        };
        for (path, query, expected) in [
            (
                "p/exec",
                "command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=true&tty=false",
                "kubelet https://[fd00::1]:10251/exec/ns/p/a?command=sh&command=-c\
                 &command=echo+a%26b&input=1&output=1",
            ),
            (
                "two/attach",
                "container=b&stderr=1&tty=1",
                "kubelet https://[fd00::1]:10251/attach/ns/two/b?error=1&tty=1",
            ),
            ("two/portforward", "", "kubelet https://[fd00::1]:10251/portForward/ns/two"),
            (
                "p/portforward",
                "ports=80&ports=81",
                "kubelet https://[fd00::1]:10251/portForward/ns/p?port=80%2C81",
            ),
            ("waiting/exec", "", "400 pod waiting does not have a host assigned"),
            ("p/exec", "container=b", "400 container b is not valid for pod p"),
        ] {
            assert_eq!(of(path, query), expected);
        }
        assert!(of("on-fake/exec", "").starts_with("501 "));
    }

    #[test]
    fn the_subresource_proxy_leads_to_nodes_pods_and_services() {
        let store = store();
        let of = |path: &str, rest: &str| {
            let at = ResourcePath::parse_prefix(&format!("/api/v1/{path}/proxy/{rest}")).unwrap();
            shown(proxied(&store, &at, rest))
        };
        for (path, rest, expected) in [
            ("nodes/real", "pods", "kubelet https://[fd00::1]:10251/pods"),
            ("nodes/real:10251", "", "kubelet https://[fd00::1]:10251/"),
            ("nodes/http:real:9100", "a%20b/", "http://[fd00::1]:9100/a%20b/"),
            ("nodes/near", "", "kubelet https://127.0.0.1:10250/"),
            ("nodes/near:10250", "", "kubelet https://127.0.0.1:10250/"),
            ("nodes/near:6443", "", "400 address not allowed"),
            ("nodes/cloud", "", "400 address not allowed"),
            ("nodes/named", "", "kubelet https://named:10250/"),
            ("nodes/named:80", "", "400 address not allowed"),
            ("nodes/none", "", "404 nodes \"none\" not found"),
            ("nodes/ftp:real:1", "", "400 invalid node request \"ftp:real:1\""),
            ("nodes/real:x", "", "400 invalid node request \"real:x\""),
            ("namespaces/ns/pods/p", "", "http://10.1.2.3:8080/"),
            ("namespaces/ns/pods/https:two:", "x", "https://10.1.2.3:443/x"),
            ("namespaces/ns/pods/two", "x", "http://10.1.2.3:80/x"),
            ("namespaces/ns/pods/p:1234", "x", "http://10.1.2.3:1234/x"),
            ("namespaces/ns/services/s:web", "x", "http://10.1.2.3:8080/x"),
            ("namespaces/ns/services/https:s:80", "x", "https://10.1.2.3:8080/x"),
            ("namespaces/ns/services/none", "", "404 services \"none\" not found"),
            ("namespaces/ns/services/s:81", "", "503 no service port 81 found for service \"s\""),
            (
                "namespaces/ns/services/forged:web",
                "",
                "503 no endpoints available for service \"forged:web\"",
            ),
            (
                "namespaces/ns/services/empty:web",
                "",
                "503 no endpoints available for service \"empty:web\"",
            ),
        ] {
            assert_eq!(of(path, rest), expected);
        }
        assert!(of("nodes/fake", "").starts_with("501 Node \"fake\" has no proxy here"));
        assert!(of("namespaces/ns/pods/on-fake", "").starts_with("501 "));
        for (ip, allowed) in [
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_global_unicast(ip.parse().unwrap()), allowed, "{ip}");
        }
    }

    #[test]
    fn a_service_of_an_api_is_served_by_its_endpoints() {
        let store = store();
        let external = json!({ "spec": { "type": "ExternalName", "externalName": "far.test" } });
        store.create("services", "ns/far", external).unwrap();
        let of = |name: &str, port: u64| {
            address_of_service(&store, "ns", name, port).map(|address| address.to_string())
        };
        let served = of("s", 80).unwrap();
        let ready = ["10.1.2.3:8080", "10.1.2.4:8080", "10.1.2.5:8080"];
        assert!(ready.contains(&served.as_str()), "{served}");
        assert_eq!(of("far", 443).as_deref(), Some("far.test:443"));
        assert_eq!((of("s", 81), of("empty", 80), of("none", 80)), (None, None, None));
    }

    #[test]
    fn new_places_are_seen_through_the_proxy() {
        let hosts = ["10.1.2.3:80".to_owned(), "server".to_owned()];
        for (to, expected) in [
            ("/a", "/p/proxy/a"),
            ("/p/proxy/a", "/p/proxy/a"),
            ("a/b", "a/b"),
            ("http://10.1.2.3:80/a?b", "/p/proxy/a?b"),
            ("https://server/a", "/p/proxy/a"),
            ("https://elsewhere/a", "https://elsewhere/a"),
            ("//elsewhere/a", "//elsewhere/a"),
        ] {
            assert_eq!(rewrite_redirect(to, "/p/proxy", &hosts), expected);
        }
    }
}
