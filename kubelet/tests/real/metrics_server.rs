//! A stand-in for metrics-server: the requests that it sends to kubelets, what it computes of the
//! answers, and the API that it serves. Upstream: `sigs.k8s.io/metrics-server`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::client::{Client, Config, Credentials, ListOptions};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Labels, ObjectKey, ResourceType, Selector, Timestamp};
use kube_controller_manager::server::http::{Request, Response, Server, handler};
use kube_controller_manager::server::tls::{Tls, TlsOptions};
use kube_controller_manager::task::{self, StopToken, Task};
use parking_lot::Mutex;
use sandbox::demo;
use serde_json::{Value, json};

use super::cluster_server::ClusterServer;
use super::secure;

const NODES: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);
const PODS: ResourceType = ResourceType::fixed("", "v1", "Pod", "pods", true);
const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);
const SERVICES: ResourceType = ResourceType::fixed("", "v1", "Service", "services", true);
const API_SERVICES: ResourceType =
    ResourceType::fixed("apiregistration.k8s.io", "v1", "APIService", "apiservices", false);

/// Shorter than upstream's least `--metric-resolution`, which is 10s.
const PERIOD: Duration = Duration::from_secs(2);
const NAMESPACE: &str = "kube-system";
const NAME: &str = "metrics-server";
const API: &str = "/apis/metrics.k8s.io/v1beta1";

/// Its account with the rights that upstream's manifests give it, as far as it uses them here.
const RIGHTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: 'system:metrics-server'}
rules:
- {apiGroups: [''], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [''], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: 'system:metrics-server'}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:metrics-server'}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
";

/// What was used until a time. Upstream: `storage.MetricsPoint`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    /// Seconds since 1970; 0 for a node.
    started: f64,
    /// Milliseconds since 1970.
    millis: i64,
    cpu_seconds: f64,
    memory_bytes: f64,
}

/// Namespace and name of a pod.
type PodName = (String, String);

/// What one kubelet says. Upstream: `storage.MetricsBatch`.
#[derive(Clone, Debug, Default)]
struct Batch {
    node: Point,
    /// The containers of each pod.
    pods: BTreeMap<PodName, BTreeMap<String, Point>>,
}

/// What one node has said last, and the point before of all that has not started again since.
#[derive(Debug, Default)]
struct Scraped {
    last: Batch,
    before: Batch,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Scraped>,
    pods: BTreeMap<PodName, Labels>,
}

/// The server and its scrapes.
pub struct MetricsServer {
    server: Server,
    scraping: Task<()>,
    stop: StopToken,
}

impl MetricsServer {
    /// Starts it, and registers it with the API server.
    pub async fn start(api: &ClusterServer) -> MetricsServer {
        let clock = &api.clock;
        for object in demo::parse("the rights", RIGHTS).expect("objects") {
            demo::create(&api.client, &object).await.expect("created");
        }
        let token = token(&api.client).await;
        let own = Config::from_kubeconfig(&api.kubeconfig, None, None);
        let mut own = own.expect("a configuration");
        (own.tls.certificate, own.tls.key) = (None, None);
        own.credentials = Credentials::Token(token.clone());
        let client = Client::new(own, clock.clone()).expect("a client");

        let state = Arc::new(Mutex::new(State::default()));
        let (any, stop) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), StopToken::new());
        let tls = Tls::new(TlsOptions::default()).expect("a certificate");
        let served = state.clone();
        let answer = handler(move |request| served.lock().answer(request));
        let server = Server::start(any, Some(tls), answer, clock.clone(), stop.clone());
        let server = server.await.expect("a server");
        register(&api.client, server.address().port()).await;
        let scraping = task::spawn(scrape_all(client, token, clock.clone(), state, stop.clone()));
        MetricsServer { server, scraping, stop }
    }

    pub async fn stop(self) {
        self.stop.stop();
        self.scraping.await;
        self.server.join().await;
    }
}

/// A token of its account.
async fn token(client: &Client) -> String {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "metadata": {"name": NAME}, "spec": {"expirationSeconds": 3600},
    });
    let tokens = client.resource(&ACCOUNTS).subresource("token");
    let answer = tokens.create_for(&ObjectKey::new(NAMESPACE, NAME), &request).await;
    let answer: Value = answer.expect("a token");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// Makes the API server pass requests of the group on to this port of the loopback address.
async fn register(client: &Client, port: u16) {
    let service = json!({
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    let api = json!({
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
            "service": {"namespace": NAMESPACE, "name": NAME, "port": port},
            "groupPriorityMinimum": 100, "versionPriority": 100,
        },
    });
    let created = client.resource(&SERVICES).create(NAMESPACE, &service).await;
    let _: Value = created.expect("created");
    let created = client.resource(&API_SERVICES).create("", &api).await;
    let _: Value = created.expect("created");
}

/// Asks the kubelets again and again. A kubelet that does not answer keeps its last points.
async fn scrape_all(
    client: Client,
    token: String,
    clock: SharedClock,
    state: Arc<Mutex<State>>,
    stop: StopToken,
) {
    while stop.unless_stopped(clock.sleep(PERIOD)).await.is_some() {
        let all = ListOptions::default();
        let pods = client.resource(&PODS).list::<Value>(None, &all).await;
        let nodes = client.resource(&NODES).list::<Value>(None, &all).await;
        let (pods, nodes) = match (pods, nodes) {
            (Ok(pods), Ok(nodes)) => (pods.items, nodes.items),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("metrics-server: {error}");
                continue;
            }
        };
        state.lock().pods = pods.iter().map(|pod| (pod_name(pod), labels(pod))).collect();
        for node in &nodes {
            let name = text(&node["metadata"]["name"]);
            let (address, token) = (address(node), token.clone());
            // The kubelet asks the API server about the token, which is in this process.
            match task::blocking(move || scrape(address, &token)).await {
                Ok(page) => {
                    state.lock().nodes.entry(name).or_default().store(parse(&page));
                }
                Err(error) => eprintln!("metrics-server: node {name}: {error}"),
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pod_name(pod: &Value) -> PodName {
    (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]))
}

fn labels(pod: &Value) -> Labels {
    let pairs = pod["metadata"]["labels"].as_object();
    let pairs = pairs.into_iter().flatten();
    pairs.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())).collect()
}

/// Where the kubelet is, by `--kubelet-preferred-address-types=InternalIP` and
/// `--kubelet-use-node-status-port`.
fn address(node: &Value) -> SocketAddr {
    let status = &node["status"];
    let mut addresses = status["addresses"].as_array().into_iter().flatten();
    let internal = addresses.find(|address| address["type"] == "InternalIP");
    let internal = text(&internal.expect("an address")["address"]);
    let ip: IpAddr = internal.parse().expect("an address");
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    SocketAddr::new(ip, port.and_then(|port| port.try_into().ok()).expect("a port"))
}

/// Reads the kubelet's page as upstream's `resource.kubeletClient` does, with
/// `--kubelet-insecure-tls`: without the header `Accept`. Go's client would take it gzipped too.
fn scrape(kubelet: SocketAddr, token: &str) -> io::Result<String> {
    let stream = TcpStream::connect(kubelet)?;
    let connection = secure::connect_to_any(stream, &kubelet.ip().to_string())?;
    let headers = format!(
        "User-Agent: metrics-server/v0.0.0 (linux/amd64) kubernetes/$Format\r\n\
         Authorization: Bearer {token}\r\n"
    );
    match secure::ask(connection, "GET", "/metrics/resource", &headers)? {
        (200, page) => Ok(page),
        (status, page) => Err(io::Error::other(format!("{status}: {page}"))),
    }
}

/// Upstream: `resource.decodeBatch`. A pod with an incomplete container is left out.
fn parse(page: &str) -> Batch {
    let mut batch = Batch::default();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, rest) = match line.split_once("} ") {
            Some(parts) => parts,
            None => line.split_once(' ').expect("a value"),
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut numbers = rest.split(' ');
        let value: f64 = numbers.next().and_then(|text| text.parse().ok()).expect("a value");
        let millis: Option<i64> = numbers.next().and_then(|text| text.parse().ok());
        let millis = || millis.unwrap_or_else(|| panic!("no time: {line}"));
        match name {
            "node_cpu_usage_seconds_total" => {
                (batch.node.cpu_seconds, batch.node.millis) = (value, millis());
            }
            "node_memory_working_set_bytes" => {
                (batch.node.memory_bytes, batch.node.millis) = (value, millis());
            }
            "container_cpu_usage_seconds_total" => {
                let point = batch.container(labels);
                (point.cpu_seconds, point.millis) = (value, millis());
            }
            "container_memory_working_set_bytes" => {
                let point = batch.container(labels);
                (point.memory_bytes, point.millis) = (value, millis());
            }
            "container_start_time_seconds" => batch.container(labels).started = value,
            _ => {}
        }
    }
    batch.pods.retain(|_, containers| containers.values().all(Point::is_complete));
    batch
}

impl Batch {
    /// The container of these labels.
    fn container(&mut self, labels: &str) -> &mut Point {
        let label = |key: &str| {
            let found = labels.split_once(&format!("{key}=\""));
            let (_, rest) = found.unwrap_or_else(|| panic!("no {key}: {labels}"));
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let containers = self.pods.entry((label("namespace"), label("pod"))).or_default();
        containers.entry(label("container")).or_default()
    }
}

impl Point {
    fn is_complete(&self) -> bool {
        self.cpu_seconds > 0.0 && self.memory_bytes > 0.0
    }

    /// The usage since the point before; `None` when the counter has gone back. Upstream:
    /// `resourceUsage`.
    fn usage(&self, before: &Point) -> Option<Value> {
        let nanos = (self.cpu_seconds - before.cpu_seconds) * 1e9 / self.seconds_since(before);
        (nanos >= 0.0).then(|| {
            json!({
                "cpu": format!("{}n", nanos as u64),
                "memory": format!("{}Ki", self.memory_bytes as u64 / 1024),
            })
        })
    }

    fn seconds_since(&self, before: &Point) -> f64 {
        (self.millis - before.millis) as f64 / 1e3
    }

    /// Describes when the usage was measured, and over which time.
    fn measured(&self, before: &Point, metadata: Value) -> Value {
        json!({
            "metadata": metadata,
            "timestamp": Timestamp::from_micros(self.millis * 1000),
            "window": format!("{}s", self.seconds_since(before)),
        })
    }
}

impl Scraped {
    /// Upstream: `podStorage.Store`, `nodeStorage.Store`.
    fn store(&mut self, new: Batch) {
        if new.node.millis <= self.last.node.millis {
            return;
        }
        let last = std::mem::take(&mut self.last);
        let mut before = Batch { node: last.node, pods: BTreeMap::new() };
        for (pod, containers) in &new.pods {
            let Some(known) = last.pods.get(pod) else { continue };
            let points = containers.iter().filter_map(|(name, point)| {
                let last = known.get(name)?;
                let has_continued = point.started * 1e3 < last.millis as f64;
                has_continued.then(|| (name.clone(), *last))
            });
            before.pods.insert(pod.clone(), points.collect());
        }
        *self = Scraped { last: new, before };
    }

    fn of_node(&self, name: &str) -> Option<Value> {
        let (last, before) = (&self.last.node, &self.before.node);
        if before.millis == 0 {
            return None;
        }
        let mut node = last.measured(before, json!({"name": name}));
        node["usage"] = last.usage(before)?;
        Some(node)
    }

    fn of_pod(&self, pod: &PodName, labels: &Labels) -> Option<Value> {
        let containers = self.last.pods.get(pod)?;
        let before = self.before.pods.get(pod)?;
        if !containers.keys().all(|name| before.contains_key(name)) {
            return None;
        }
        let (name, first) = containers.first_key_value()?;
        let (namespace, pod) = pod;
        let metadata = json!({"name": pod, "namespace": namespace, "labels": labels});
        let mut measured = first.measured(&before[name], metadata);
        let usages = containers.iter().filter_map(|(name, point)| {
            Some(json!({"name": name, "usage": point.usage(&before[name])?}))
        });
        measured["containers"] = usages.collect();
        Some(measured)
    }
}

impl State {
    fn answer(&self, request: &Request) -> Response {
        // The API server says who asks.
        if request.header("x-remote-user").is_none() {
            return Response::status(401, "Unauthorized", "Unauthorized");
        }
        let Some(path) = request.path.strip_prefix(API) else {
            return Response::status(404, "NotFound", "not found");
        };
        let mut query = url::form_urlencoded::parse(request.query.as_bytes());
        let selector = query.find(|(key, _)| key == "labelSelector");
        let selector = selector.map(|(_, value)| value.into_owned()).unwrap_or_default();
        let selector = match selector.parse::<Selector>() {
            Ok(selector) => selector,
            Err(error) => return Response::status(400, "BadRequest", &error.to_string()),
        };
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match parts.as_slice() {
            [] => Response::json(200, &resources()),
            ["nodes"] => list("NodeMetricsList", self.nodes("")),
            ["nodes", name] => one("NodeMetrics", self.nodes(name)),
            ["pods"] => list("PodMetricsList", self.pods("", "", &selector)),
            ["namespaces", namespace, "pods"] => {
                list("PodMetricsList", self.pods(namespace, "", &selector))
            }
            ["namespaces", namespace, "pods", name] => {
                one("PodMetrics", self.pods(namespace, name, &selector))
            }
            _ => Response::status(404, "NotFound", "not found"),
        }
    }

    /// The nodes, or the one of a name.
    fn nodes(&self, name: &str) -> Vec<Value> {
        let nodes = self.nodes.iter().filter(|(node, _)| name.is_empty() || *node == name);
        nodes.filter_map(|(node, scraped)| scraped.of_node(node)).collect()
    }

    /// The pods of a namespace, or of all; one of a name, or all that are selected.
    fn pods(&self, namespace: &str, name: &str, selector: &Selector) -> Vec<Value> {
        let pods = self.pods.iter().filter(|((its_namespace, its_name), labels)| {
            (namespace.is_empty() || its_namespace == namespace)
                && (name.is_empty() || its_name == name)
                && selector.matches(labels)
        });
        let usages = pods.filter_map(|(pod, labels)| {
            self.nodes.values().find_map(|node| node.of_pod(pod, labels))
        });
        usages.collect()
    }
}

fn list(kind: &str, items: Vec<Value>) -> Response {
    let version = "metrics.k8s.io/v1beta1";
    let list = json!({"kind": kind, "apiVersion": version, "metadata": {}, "items": items});
    Response::json(200, &list)
}

fn one(kind: &str, mut items: Vec<Value>) -> Response {
    let Some(mut one) = items.pop() else {
        return Response::status(404, "NotFound", "not found");
    };
    one["kind"] = kind.into();
    one["apiVersion"] = "metrics.k8s.io/v1beta1".into();
    Response::json(200, &one)
}

fn resources() -> Value {
    let resource = |name: &str, kind: &str, is_namespaced: bool| {
        json!({
            "name": name, "singularName": "", "namespaced": is_namespaced, "kind": kind,
            "verbs": ["get", "list"],
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1",
        "resources": [
            resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true),
        ],
    })
}
