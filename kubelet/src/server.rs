//! The health check's port and the read-only port. Upstream: `pkg/kubelet/server`.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use k8s_openapi::List;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::metrics;
use kube_controller_manager::server::health::HealthChecks;
use kube_controller_manager::server::http::{Guard, Server};
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::{Handler, Request, Response, handler};
use kube_controller_manager::task::StopToken;
use serde_json::json;

use crate::causes::chain;
use crate::kubelet::Kubelet;
use crate::kuberuntime::Node;
use crate::metrics::PROBES;
use crate::pod::Pod;
use crate::stats;

/// The checks: `ping`, and `syncloop`, which fails when the loop hangs or the runtime does not
/// answer. Upstream has the second one on its other ports only; here 10248 may be the only port.
pub fn checks(kubelet: &Arc<Kubelet>) -> HealthChecks {
    let checks = HealthChecks::new();
    checks.add("ping", Arc::new(|| Ok(())));
    let kubelet = kubelet.clone();
    checks.add("syncloop", Arc::new(move || kubelet.health()));
    checks
}

/// The routes of the health check's port.
pub fn health_routes(checks: &HealthChecks) -> Routes {
    let routes = Routes::new();
    let checks = checks.clone();
    let answer = move |request: &Request| checks.answer("healthz", request);
    routes.add_tree("/healthz", handler(answer));
    routes
}

/// The routes of the read-only port.
pub fn read_only_routes(kubelet: &Arc<Kubelet>, checks: &HealthChecks, node: &Node) -> Routes {
    let routes = health_routes(checks);
    let of_pods = kubelet.clone();
    routes.add(
        "/pods",
        handler(move |_: &Request| {
            let list: List<Pod> = List { items: of_pods.pods(), ..Default::default() };
            match serde_json::to_vec(&list) {
                Ok(body) => Response::new(200, "application/json", body),
                Err(error) => Response::text(500, format!("{error}\n")),
            }
        }),
    );
    let machine = json!({
        "num_cores": node.cpus,
        "memory_capacity": node.memory_bytes,
        "machine_id": read("/etc/machine-id"),
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
    });
    let body = machine.to_string().into_bytes();
    routes.add_tree(
        "/spec",
        handler(move |_: &Request| Response::new(200, "application/json", body.clone())),
    );
    let clock = kubelet.manager().clock.clone();
    routes.add(
        "/metrics",
        handler(move |request: &Request| {
            let page = crate::metrics::render(clock.now());
            Response::new(200, metrics::CONTENT_TYPE, page).gzipped_for(request)
        }),
    );
    routes.add(
        "/metrics/probes",
        handler(|request: &Request| {
            let page = PROBES.render();
            Response::new(200, metrics::CONTENT_TYPE, page).gzipped_for(request)
        }),
    );
    for (path, is_metrics) in [("/stats/summary", false), ("/metrics/resource", true)] {
        routes.add(path, usage_handler(kubelet, is_metrics));
    }
    routes
}

/// Measures the usage of pods for each request.
fn usage_handler(kubelet: &Arc<Kubelet>, is_metrics: bool) -> Handler {
    let kubelet = kubelet.clone();
    Arc::new(move |request: Request| {
        let kubelet = kubelet.clone();
        Box::pin(async move {
            let only = is_metrics
                || request
                    .query_values("only_cpu_and_memory")
                    .any(|value| matches!(value, "true" | "1"));
            let now = kubelet.manager().clock.now();
            let response = match kubelet.usage(only).await {
                Err(error) => Response::text(500, chain(&error) + "\n"),
                Ok(usage) if is_metrics => {
                    let text = stats::resource_metrics(&usage, now);
                    Response::new(200, metrics::CONTENT_TYPE, text)
                }
                Ok(usage) => match serde_json::to_vec(&usage) {
                    Ok(body) => Response::new(200, "application/json", body),
                    Err(error) => Response::text(500, format!("{error}\n")),
                },
            };
            response.gzipped_for(&request)
        })
    })
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// Why a port is not served.
#[derive(Debug)]
pub enum Error {
    NotAddress { flag: &'static str, text: String },
    Listen { flag: &'static str, address: SocketAddr, source: io::Error },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAddress { flag, text } => write!(f, "--{flag}: {text:?} is not an address"),
            Error::Listen { flag, address, .. } => {
                write!(f, "--{flag}: failed to listen on {address}")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::NotAddress { .. } => None,
            Error::Listen { source, .. } => Some(source),
        }
    }
}

/// Serves on a port until stopped; port 0: not at all.
pub fn serve(
    flag: &'static str,
    address: &str,
    port: u16,
    routes: Routes,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<Option<Server>, Error> {
    if port == 0 {
        return Ok(None);
    }
    let ip: IpAddr =
        address.parse().map_err(|_| Error::NotAddress { flag, text: address.to_owned() })?;
    let address = SocketAddr::new(ip, port);
    let (handler, guard) = (routes.handler(), Guard::UNTRUSTED);
    let server = TcpListener::bind(address).and_then(|listener| {
        Server::on(listener, None, handler, guard, clock.clone(), stop.clone())
    });
    server.map(Some).map_err(|source| Error::Listen { flag, address, source })
}
