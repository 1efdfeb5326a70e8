//! A small metrics-server: it asks the kubelet for usage as upstream's does, and serves it to
//! `kubectl top` behind an APIService.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Handler, Response, Server};
use kube_controller_manager::server::tls::Tls;
use kube_controller_manager::task::StopToken;
use sandbox::containers::NODE;
use sandbox::demo;
use serde_json::{Value, json};

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// Opens the port, and registers it with the API server of `client`, an administrator's.
pub async fn start(client: &Client, clock: &SharedClock, stop: &StopToken) -> Server {
    let key = rcgen::KeyPair::generate().expect("a key");
    let own = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
    let tls = Tls::from_pem(own.pem().as_bytes(), key.serialize_pem().as_bytes());
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let first = Usage::ask(client).await.expect("usage");
    let handler = handler(client.clone(), clock.clone(), first);
    let tls = Some(tls.expect("a certificate"));
    let server = Server::start(any, tls, handler, clock.clone(), stop.clone()).await;
    let server = server.expect("a port");
    let port = server.address().port();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "metrics-server", "namespace": "kube-system"},
        "spec": {
            "type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}],
        },
    });
    let api = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{VERSION}.{GROUP}")},
        "spec": {
            "group": GROUP, "version": VERSION,
            "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": {"namespace": "kube-system", "name": "metrics-server", "port": port},
        },
    });
    for object in [service, api] {
        demo::create(client, &object).await.expect("created");
    }
    server
}

/// Each answer is the usage since the first page.
fn handler(client: Client, clock: SharedClock, first: Usage) -> Handler {
    let state = Arc::new((client, clock, first));
    Arc::new(move |request| {
        let state = state.clone();
        Box::pin(async move {
            let (client, clock, first) = &*state;
            let root = format!("/apis/{GROUP}/{VERSION}");
            let Some(path) = request.path.strip_prefix(&root) else {
                return Response::text(404, "not found");
            };
            if path.is_empty() {
                return Response::json(200, &resources());
            }
            let now = loop {
                match Usage::ask(client).await {
                    Err(error) => return Response::text(500, error),
                    Ok(now) if now.time > first.time => break now,
                    Ok(_) => clock.sleep(Duration::from_millis(200)).await,
                }
            };
            let at = json!({"timestamp": clock.now(), "window": "1s"});
            let parts: Vec<&str> = path.split('/').skip(1).collect();
            match parts.as_slice() {
                ["nodes"] => Response::json(200, &now.nodes(first, &at)),
                ["namespaces", namespace, "pods"] => {
                    Response::json(200, &now.pods(first, namespace, &at))
                }
                _ => Response::text(404, "not found"),
            }
        })
    })
}

fn resources() -> Value {
    let resource = |plural: &str, kind: &str, namespaced: bool| {
        json!({
            "name": plural, "singularName": "", "namespaced": namespaced, "kind": kind,
            "verbs": ["get", "list"],
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [
            resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true),
        ],
    })
}

/// A page of the kubelet.
struct Usage {
    /// The time of the node's values, in milliseconds.
    time: f64,
    /// The values of series, with their times.
    series: BTreeMap<String, (f64, f64)>,
}

impl Usage {
    /// Reads the page that metrics-server reads.
    async fn ask(client: &Client) -> Result<Usage, String> {
        let path = format!("/api/v1/nodes/{NODE}/proxy/metrics/resource");
        let page = client.get_path(&path).await.map_err(|error| error.to_string())?;
        let page = String::from_utf8(page).map_err(|error| error.to_string())?;
        // SERIES VALUE TIME
        let series = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let mut words = line.rsplitn(3, ' ');
            let mut number = || words.next()?.parse::<f64>().ok();
            let (time, value) = (number()?, number()?);
            Some((words.next()?.to_owned(), (value, time)))
        });
        let series: BTreeMap<String, (f64, f64)> = series.collect();
        let of_node = series.get("node_cpu_usage_seconds_total").ok_or("no usage of the node")?;
        Ok(Usage { time: of_node.1, series })
    }

    /// The usage of a node or container. `labels`: with their braces. `None`: it was not there at
    /// the first page.
    fn of(&self, first: &Usage, subject: &str, labels: &str) -> Option<Value> {
        let cpu = format!("{subject}_cpu_usage_seconds_total{labels}");
        let ((before, from), (after, to)) = (first.series.get(&cpu)?, self.series.get(&cpu)?);
        let cores = (after - before) * 1000.0 / (to - from);
        let (bytes, _) = self.series.get(&format!("{subject}_memory_working_set_bytes{labels}"))?;
        let cpu = format!("{}n", (cores * 1e9).round() as i64);
        Some(json!({"cpu": cpu, "memory": format!("{bytes}")}))
    }

    fn nodes(&self, first: &Usage, at: &Value) -> Value {
        let items = self.of(first, "node", "").map(|usage| {
            let mut node = at.clone();
            node["metadata"] = json!({"name": NODE});
            node["usage"] = usage;
            node
        });
        list("NodeMetrics", items.into_iter().collect())
    }

    fn pods(&self, first: &Usage, namespace: &str, at: &Value) -> Value {
        let mut pods = BTreeMap::<&str, Vec<Value>>::new();
        for series in self.series.keys() {
            let labels = series.strip_prefix("container_cpu_usage_seconds_total");
            let Some(labels) = labels else { continue };
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                rest.split('"').next()
            };
            let (Some(pod), Some(container)) = (label("pod"), label("container")) else {
                continue;
            };
            if label("namespace") == Some(namespace)
                && let Some(usage) = self.of(first, "container", labels)
            {
                pods.entry(pod).or_default().push(json!({"name": container, "usage": usage}));
            }
        }
        let items = pods.into_iter().map(|(name, containers)| {
            let mut pod = at.clone();
            pod["metadata"] = json!({"name": name, "namespace": namespace});
            pod["containers"] = containers.into();
            pod
        });
        list("PodMetrics", items.collect())
    }
}

fn list(kind: &str, items: Vec<Value>) -> Value {
    json!({
        "kind": format!("{kind}List"), "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {}, "items": items,
    })
}
