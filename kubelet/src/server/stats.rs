//! What the node and its pods use: `/stats/summary`, `/metrics/resource`,
//! `/metrics/cadvisor`.

use std::sync::Arc;

use kube_controller_manager::metrics;
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::{Handler, Request, Response};

use crate::causes::chain;
use crate::kubelet::Kubelet;
use crate::stats;

/// Adds the routes of what the node and its pods use.
pub fn install(routes: &Routes, kubelet: &Arc<Kubelet>) {
    routes.add("/stats/summary", super::only(&["GET", "POST"], usage_handler(kubelet, false)));
    routes.add("/metrics/resource", usage_handler(kubelet, true));
    let of_cgroups = kubelet.clone();
    let cadvisor: Handler = Arc::new(move |request: Request| {
        let kubelet = of_cgroups.clone();
        Box::pin(async move {
            let response = match kubelet.cadvisor_metrics().await {
                Err(error) => Response::text(500, chain(&error) + "\n"),
                Ok(text) => Response::new(200, metrics::CONTENT_TYPE, text),
            };
            response.gzipped_for(&request)
        })
    });
    routes.add("/metrics/cadvisor", cadvisor);
}

/// Returns the handler of `/metrics/resource` (`is_metrics`), or else of `/stats/summary`. It
/// measures the usage for each request.
fn usage_handler(kubelet: &Arc<Kubelet>, is_metrics: bool) -> Handler {
    let kubelet = kubelet.clone();
    Arc::new(move |request: Request| {
        let kubelet = kubelet.clone();
        Box::pin(async move {
            let only = is_metrics
                || request
                    .query_values("only_cpu_and_memory")
                    .any(|value| matches!(value, "true" | "1"));
            let usage = match only {
                true => kubelet.usage(true).await,
                false => kubelet.summary().await,
            };
            let response = match usage {
                Err(error) if is_metrics => {
                    let error = chain(&error);
                    log::error!(
                        "Error getting summary for resourceMetric prometheus endpoint: {error}"
                    );
                    // As upstream: the failure is a metric of the page.
                    Response::new(200, metrics::CONTENT_TYPE, stats::scrape_error(true))
                }
                Err(error) => Response::text(500, chain(&error) + "\n"),
                Ok(usage) if is_metrics => {
                    let text = stats::resource_metrics(&usage);
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
