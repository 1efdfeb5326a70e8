//! The pages of the ports: pods, metrics, configuration, health, debug pages.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::List;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::metrics;
use kube_controller_manager::options::{flag_values, git_version, version_info};
use kube_controller_manager::server::health::HealthChecks;
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::{
    Handler, Request, Response, debug_flags, handler, profiling, zpages,
};
use serde_json::{Value, json};

use super::containers;
use super::node_logs;
use super::stats;
use super::stream::StreamLimits;
use crate::causes::chain;
use crate::cri::{self, api};
use crate::kubelet::Kubelet;
use crate::kuberuntime::Node;
use crate::metrics::PROBES;
use crate::options::configuration::Configuration;
use crate::options::{FLAGS, Settings};
use crate::pod::Pod;
use crate::runtime::labels;

/// Builds the health checks: `ping`, `log`, and `syncloop`, which fails when the loop hangs or the
/// runtime does not answer. Upstream has the last one on its other ports only; here 10248 may be
/// the only port.
pub fn checks(kubelet: &Arc<Kubelet>) -> HealthChecks {
    let checks = HealthChecks::new();
    checks.add("ping", Arc::new(|| Ok(())));
    // Lines are written at once, so that there is nothing to hang.
    checks.add("log", Arc::new(|| Ok(())));
    let kubelet = kubelet.clone();
    checks.add("syncloop", Arc::new(move || kubelet.health()));
    checks
}

/// Builds the routes of the health check's port.
pub fn health_routes(checks: &HealthChecks) -> Routes {
    let routes = Routes::new();
    let checks = checks.clone();
    let answer = move |request: &Request| checks.answer("healthz", request);
    routes.add_tree("/healthz", handler(answer));
    routes
}

/// Builds the routes of the read-only port.
pub fn read_only_routes(kubelet: &Arc<Kubelet>, checks: &HealthChecks, node: &Node) -> Routes {
    let routes = shared_routes(kubelet, checks);
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
    routes
}

/// Builds the routes that the read-only port and the port with authentication have in common.
/// Upstream: `InstallAuthNotRequiredHandlers`.
fn shared_routes(kubelet: &Arc<Kubelet>, checks: &HealthChecks) -> Routes {
    let routes = health_routes(checks);
    let results = checks.results().clone();
    routes.add_unlisted("/metrics/slis", handler(move |request| results.answer(request)));
    let of_pods = kubelet.clone();
    let pods = super::only(&["GET"], handler(move |_: &Request| pod_list(of_pods.pods())));
    for path in ["/pods", "/pods/"] {
        routes.add(path, pods.clone());
    }
    let of_volumes = kubelet.clone();
    let page: Handler = Arc::new(move |request: Request| {
        let kubelet = of_volumes.clone();
        Box::pin(async move {
            let volumes = kubelet.volume_metrics().await;
            let mut page = crate::metrics::render(kubelet.manager().clock.now());
            page.extend(volumes);
            page.extend(kubelet.certificate_metrics());
            page.extend(kubelet.log_metrics().await);
            Response::new(200, metrics::CONTENT_TYPE, page).gzipped_for(&request)
        })
    });
    routes.add("/metrics", page);
    routes.add(
        "/metrics/probes",
        handler(|request: &Request| {
            let page = PROBES.render();
            Response::new(200, metrics::CONTENT_TYPE, page).gzipped_for(request)
        }),
    );
    stats::install(&routes, kubelet);
    routes
}

/// Answers with a list of pods.
fn pod_list(items: Vec<Pod>) -> Response {
    let list: List<Pod> = List { items, ..Default::default() };
    match serde_json::to_vec(&list) {
        Ok(body) => Response::new(200, "application/json", body),
        Err(error) => Response::text(500, format!("{error}\n")),
    }
}

/// Sets the verbosity of the log: its answer, or why it is refused.
pub type SetVerbosity = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// What the pages of the port with authentication show and need.
pub struct SecurePages<'a> {
    pub kubelet: &'a Arc<Kubelet>,
    pub checks: &'a HealthChecks,
    pub settings: &'a Settings,
    pub set_verbosity: SetVerbosity,
    pub limits: StreamLimits,
}

impl SecurePages<'_> {
    /// Builds the routes of the port with authentication. Without `enableDebuggingHandlers`, those
    /// that the read-only port does not have are refused or missing. Upstream: `NewServer`.
    pub fn routes(&self) -> Routes {
        let configuration = &self.settings.configuration;
        let routes = shared_routes(self.kubelet, self.checks);
        if !configuration.enable_debugging_handlers {
            let disabled = refused("Debug endpoints are disabled.\n");
            for path in [
                "/run",
                "/exec",
                "/attach",
                "/portForward",
                "/containerLogs",
                "/runningpods",
                "/debug/pprof",
                "/logs",
            ] {
                routes.add_unlisted(path, disabled.clone());
            }
            return routes;
        }
        containers::install(&routes, self.kubelet, &self.limits);
        let running = super::only(&["GET"], running_pods(self.kubelet));
        for path in ["/runningpods", "/runningpods/"] {
            routes.add(path, running.clone());
        }
        let shown = configz(configuration);
        routes.add("/configz", handler(move |_: &Request| Response::json(200, &shown)));
        match configuration.enable_system_log_handler {
            true => routes.add_unlisted("/logs", node_log_handler()),
            false => routes.add_unlisted("/logs", refused("logs endpoint is disabled.\n")),
        }
        match configuration.enable_profiling_handler {
            true => profiling::install(&routes, self.limits.clock.clone()),
            false => {
                routes.add_unlisted("/debug/pprof", refused("profiling endpoint is disabled.\n"));
            }
        }
        let set = self.set_verbosity.clone();
        match configuration.enable_debug_flags_handler {
            true => debug_flags::install(&routes, move |text| set(text)),
            false => {
                routes.add_unlisted("/debug/flags/v", refused("flags endpoint is disabled.\n"));
            }
        }
        zpages::install_flagz(&routes, COMPONENT, &flags(self.settings));
        install_statusz(&routes, &self.limits.clock);
        routes
    }
}

const COMPONENT: &str = "kubelet";

/// What a list shows in place of the values of headers with credentials.
const MASKED: &str = "<masked>";

/// Returns a handler that refuses all requests, with upstream's status.
fn refused(text: &'static str) -> Handler {
    handler(move |_: &Request| Response::text(405, text))
}

fn node_log_handler() -> Handler {
    Arc::new(|request| {
        Box::pin(async move { node_logs::answer(&request, Path::new(node_logs::FOLDER)).await })
    })
}

/// Returns the flags with their values, without the headers' secrets.
fn flags(settings: &Settings) -> Vec<(String, String)> {
    let mut flags = flag_values(FLAGS, settings);
    let secret = flags.iter_mut().find(|(name, _)| name == "manifest-url-header");
    if let Some((_, value)) = secret.filter(|(_, value)| !value.is_empty()) {
        *value = MASKED.to_owned();
    }
    flags
}

/// Adds the page `/statusz`, with the version of this program.
fn install_statusz(routes: &Routes, clock: &SharedClock) {
    let versions = || {
        let version = git_version().trim_start_matches('v').to_owned();
        let info = version_info();
        let part = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
        (version, format!("{}.{}", part("major"), part("minor")))
    };
    let build = zpages::Build { component: COMPONENT.into(), versions };
    zpages::install_statusz(routes, build, clock.clone());
}

/// Builds the page of the configuration, without the headers' secrets. Upstream: `initConfigz`.
fn configz(configuration: &Configuration) -> Value {
    let mut shown = serde_json::to_value(configuration).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    if let Some(headers) = shown["staticPodURLHeader"].as_object_mut() {
        headers.values_mut().for_each(|values| *values = json!([MASKED]));
    }
    json!({ "kubeletconfig": shown })
}

/// Builds the handler that lists the pods with running containers, as the runtime reports them.
/// Upstream: `GetRunningPods`.
fn running_pods(kubelet: &Arc<Kubelet>) -> Handler {
    let kubelet = kubelet.clone();
    Arc::new(move |_| {
        let kubelet = kubelet.clone();
        Box::pin(async move {
            let runtime = &kubelet.manager().runtime;
            let is_running = api::ContainerState::ContainerRunning as i32;
            let state = Some(api::ContainerStateValue { state: is_running });
            let filter = Some(api::ContainerFilter { state, ..Default::default() });
            match runtime.list_containers(api::ListContainersRequest { filter }).await {
                Ok(listed) => pod_list(pods_of(listed.containers)),
                Err(error) => failed(&error),
            }
        })
    })
}

/// Answers with the runtime's error.
fn failed(error: &cri::Error) -> Response {
    Response::text(500, chain(error))
}

/// Groups containers to pods: their names, uids, containers and images.
fn pods_of(containers: Vec<api::Container>) -> Vec<Pod> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for container in containers {
        let Some(uid) = labels::pod_uid(&container.labels) else { continue };
        let label = |name: &str| container.labels.get(name).cloned();
        let pod = pods.entry(uid.to_string()).or_insert_with(|| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_string());
            pod.metadata.name = label(labels::POD_NAME);
            pod.metadata.namespace = label(labels::POD_NAMESPACE);
            pod
        });
        pod.spec.get_or_insert_default().containers.push(core::Container {
            name: label(labels::CONTAINER_NAME).unwrap_or_default(),
            image: Some(container.image_ref).filter(|image| !image.is_empty()),
            ..Default::default()
        });
    }
    pods.into_values().collect()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_shown_without_secrets() {
        let mut configuration = Configuration::default();
        let headers = &mut configuration.static_pod_url_header.0;
        headers.insert("Authorization".to_owned(), vec!["Bearer x".to_owned()]);
        let shown = configz(&configuration);
        let shown = &shown["kubeletconfig"];
        assert_eq!(shown["staticPodURLHeader"], json!({"Authorization": [MASKED]}));
        assert_eq!(
            shown["authentication"]["webhook"],
            json!({"enabled": true, "cacheTTL": "2m0s"})
        );
        assert_eq!(shown["port"], 10250);
        assert!(shown.get("enableServer").is_none(), "{shown}");
        let settings = Settings { configuration, ..Settings::default() };
        let flags = flags(&settings);
        assert!(flags.contains(&("manifest-url-header".to_owned(), MASKED.to_owned())));
    }

    #[test]
    fn containers_of_one_pod_are_one_pod() {
        let container = |uid: &str, name: &str| api::Container {
            labels: [
                (labels::POD_UID, uid),
                (labels::POD_NAME, "p"),
                (labels::POD_NAMESPACE, "ns"),
                (labels::CONTAINER_NAME, name),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            image_ref: "image".to_owned(),
            ..Default::default()
        };
        let foreign = api::Container::default();
        let pods =
            pods_of(vec![container("u", "a"), foreign, container("v", "a"), container("u", "b")]);
        let names = |pod: &Pod| -> Vec<String> {
            pod.spec.iter().flat_map(|spec| &spec.containers).map(|one| one.name.clone()).collect()
        };
        assert_eq!(pods.iter().map(names).collect::<Vec<_>>(), [vec!["a", "b"], vec!["a"]]);
    }
}
