//! One metric of an autoscaler: from its source to a proposal and an item of the status.
//! Upstream: `computeReplicasForMetric` and the functions that it calls.

use serde_json::{Value, json};

use super::calculator::{Calculator, Proposal, Replicas, by_share};
use super::metrics_api::MetricsApi;
use crate::objects::{Format, LabelSelector, MetricSource, MetricSpec, Quantity, Selector, golang};

/// The proposal of a metric.
#[derive(Debug, PartialEq)]
pub(super) struct Computed {
    pub replicas: i32,
    /// The metric's description in the reason for a change.
    pub name: String,
    /// An item of `status.currentMetrics`.
    pub status: Value,
}

/// Why a metric has no proposal.
#[derive(Debug, PartialEq)]
pub(super) struct Failed {
    /// The reason used in both, condition and event.
    pub reason: &'static str,
    /// The message in the condition and the event.
    pub cause: String,
    /// The cause, with its context.
    pub error: String,
    /// Whether the spec is at fault.
    pub is_spec: bool,
}

impl Failed {
    /// Makes a failure that is not the spec's fault. `error` makes the text of the whole error from
    /// `cause`.
    fn new(reason: &'static str, cause: String, error: impl FnOnce(&str) -> String) -> Failed {
        let error = error(&cause);
        Failed { reason, cause, error, is_spec: false }
    }
}

/// The target of an autoscaler.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub namespace: &'a str,
    pub selector: &'a Selector,
    pub replicas: Replicas,
}

/// The kind of metric for a source of type Resource or ContainerResource.
struct ResourceKind {
    reason: &'static str,
    member: &'static str,
    percent_name: &'static str,
}

const RESOURCE: ResourceKind = ResourceKind {
    reason: "FailedGetResourceMetric",
    member: "resource",
    percent_name: "resource utilization (percentage of request)",
};
const CONTAINER_RESOURCE: ResourceKind = ResourceKind {
    reason: "FailedGetContainerResourceMetric",
    member: "containerResource",
    percent_name: "container resource utilization (percentage of request)",
};

/// Computes the replicas that one metric of the spec proposes, by the source that its type names.
pub(super) async fn compute(
    api: &MetricsApi,
    spec: &MetricSpec,
    target: Target<'_>,
    calculator: Calculator<'_>,
) -> Result<Computed, Failed> {
    let source = Source { api, target, calculator };
    let kind = spec.r#type.as_str();
    match (kind, spec) {
        ("Object", MetricSpec { object: Some(metric), .. }) => source.compute_object(metric).await,
        ("Pods", MetricSpec { pods: Some(metric), .. }) => source.compute_pods(metric).await,
        ("Resource", MetricSpec { resource: Some(metric), .. }) => {
            source.compute_resource(&RESOURCE, metric).await.map_err(|cause| {
                let name = &metric.name;
                Failed::new(RESOURCE.reason, cause, |cause| {
                    format!("failed to get {name} resource metric value: {cause}")
                })
            })
        }
        ("ContainerResource", MetricSpec { container_resource: Some(metric), .. }) => {
            source.compute_resource(&CONTAINER_RESOURCE, metric).await.map_err(|cause| {
                let name = &metric.container;
                Failed::new(CONTAINER_RESOURCE.reason, cause, |cause| {
                    format!("failed to get {name} container metric value: {cause}")
                })
            })
        }
        ("External", MetricSpec { external: Some(metric), .. }) => {
            source.compute_external(metric).await
        }
        _ => {
            let cause = format!("unknown metric source type {kind:?}");
            let error = cause.clone();
            Err(Failed { reason: "InvalidMetricSourceType", cause, error, is_spec: true })
        }
    }
}

/// The inputs of the computation of one metric.
#[derive(Clone, Copy)]
struct Source<'a> {
    api: &'a MetricsApi,
    target: Target<'a>,
    calculator: Calculator<'a>,
}

impl Source<'_> {
    /// Computes the replicas for a metric of one object: a value, or an average for each replica.
    /// Upstream: `computeStatusForObjectMetric`.
    async fn compute_object(self, source: &MetricSource) -> Result<Computed, Failed> {
        let Target { namespace, replicas, .. } = self.target;
        let MetricSource { described_object: object, metric, .. } = source;
        // `inner` makes the text behind the common prefix from the metric's name and the cause.
        let failed = |cause: String, inner: fn(&str, &str) -> String| {
            Failed::new("FailedGetObjectMetric", cause, |cause| {
                format!("failed to get object metric value: {}", inner(&metric.name, cause))
            })
        };
        let plain = |_: &str, cause: &str| cause.to_owned();
        let selector = selector(metric.selector.as_ref()).map_err(|cause| failed(cause, plain))?;
        let read = async || {
            self.api.object_metric(&metric.name, namespace, object, &selector).await.map_err(
                |error| {
                    let (name, of) =
                        (&metric.name, format!("{} {namespace}/{}", object.kind, object.name));
                    format!("unable to get metric {name} on {of}: {error}")
                },
            )
        };
        let status = |current: Value| {
            json!({ "type": "Object", "object": {
                "describedObject": object, "metric": metric, "current": current,
            } })
        };
        match (source.target.r#type.as_str(), source.target.value, source.target.average_value) {
            ("Value", Some(wanted), _) => {
                let proposed = async {
                    let usage = read().await?;
                    self.calculator.by_value(usage.into(), replicas.wanted, wanted.milli_value())
                };
                let proposal = proposed.await.map_err(|cause| failed(cause, plain))?;
                Ok(Computed {
                    replicas: proposal.replicas,
                    name: format!("{} metric {}", object.kind, metric.name),
                    status: status(json!({ "value": from_thousandths(proposal.usage) })),
                })
            }
            ("AverageValue", _, Some(wanted)) => {
                let usage = read().await.map_err(|cause| {
                    failed(cause, |name, cause| {
                        format!("failed to get {name} object metric: {cause}")
                    })
                })?;
                let tolerances = self.calculator.tolerances;
                let wanted = wanted.milli_value();
                let proposal = by_share(usage.into(), replicas, wanted, tolerances);
                Ok(Computed {
                    replicas: proposal.replicas,
                    // Upstream calls it external.
                    name: external_name(source),
                    status: status(json!({ "averageValue": from_thousandths(proposal.usage) })),
                })
            }
            _ => {
                let cause = "invalid object metric source: neither a value target nor an average \
                             value target was set";
                Err(failed(cause.to_owned(), plain))
            }
        }
    }

    /// Computes the replicas for the average of a metric of the pods.
    /// Upstream: `computeStatusForPodsMetric`.
    async fn compute_pods(self, source: &MetricSource) -> Result<Computed, Failed> {
        let metric = &source.metric;
        let proposed = async {
            let metric_selector = selector(metric.selector.as_ref())?;
            let wanted = source.target.average_value.ok_or("no average value target was set")?;
            let Target { namespace, selector, replicas, .. } = self.target;
            let found =
                self.api.pods_metric(&metric.name, namespace, selector, &metric_selector).await;
            let found =
                found.map_err(|error| format!("unable to get metric {}: {error}", metric.name))?;
            self.calculator.by_average(found, None, replicas.wanted, wanted.milli_value())
        };
        let proposal: Proposal = proposed.await.map_err(|cause: String| {
            Failed::new("FailedGetPodsMetric", cause, |cause| {
                format!("failed to get pods metric value: {cause}")
            })
        })?;
        let current = json!({ "averageValue": from_thousandths(proposal.usage) });
        Ok(Computed {
            replicas: proposal.replicas,
            name: format!("pods metric {}", metric.name),
            status: json!({ "type": "Pods", "pods": { "metric": metric, "current": current } }),
        })
    }

    /// Computes the replicas for the usage of a resource by the pods, or by one container of each.
    /// Upstream: `computeStatusForResourceMetricGeneric`.
    async fn compute_resource(
        self,
        kind: &ResourceKind,
        source: &MetricSource,
    ) -> Result<Computed, String> {
        let MetricSource { name: resource, container, target: wanted, .. } = source;
        let container = if kind.member == CONTAINER_RESOURCE.member { container } else { "" };
        let Target { namespace, selector, replicas } = self.target;
        let replicas = replicas.wanted;
        let read = async || {
            let found = self.api.resource_metric(resource, namespace, selector, container).await;
            found.map_err(|error| format!("unable to get metrics for resource {resource}: {error}"))
        };
        let amount = |usage: i64| match resource == "memory" {
            true => Quantity::from_milli(usage, Format::BinarySi),
            false => from_thousandths(usage),
        };
        let (proposal, name, current) = match (wanted.average_value, wanted.average_utilization) {
            (Some(average), _) => {
                let proposed = async {
                    let wanted = average.milli_value();
                    self.calculator.by_average(read().await?, Some(resource), replicas, wanted)
                };
                let proposal = proposed
                    .await
                    .map_err(|error| format!("failed to get {resource} usage: {error}"))?;
                let current = json!({ "averageValue": amount(proposal.usage) });
                (proposal, format!("{resource} resource"), current)
            }
            (None, Some(percent)) => {
                let proposed = async {
                    let found = read().await?;
                    self.calculator.by_utilization(found, resource, container, replicas, percent)
                };
                let proposal = proposed
                    .await
                    .map_err(|error| format!("failed to get {resource} utilization: {error}"))?;
                let current = json!({
                    "averageUtilization": proposal.utilization,
                    "averageValue": amount(proposal.usage),
                });
                (proposal, format!("{resource} {}", kind.percent_name), current)
            }
            (None, None) => {
                return Err(
                    "invalid resource metric source: neither an average utilization target \
                            nor an average value (usage) target was set"
                        .to_owned(),
                );
            }
        };
        let mut of_member = json!({ "name": resource, "current": current });
        let member = kind.member;
        let mut status = json!({ "type": "Resource" });
        if member == CONTAINER_RESOURCE.member {
            status["type"] = "ContainerResource".into();
            of_member["container"] = container.into();
        }
        status[member] = of_member;
        Ok(Computed { replicas: proposal.replicas, name, status })
    }

    /// Computes the replicas for an external metric: a value, or an average for each replica.
    /// Upstream: `computeStatusForExternalMetric`.
    async fn compute_external(self, source: &MetricSource) -> Result<Computed, Failed> {
        let metric = &source.metric;
        let (namespace, name) = (self.target.namespace, &metric.name);
        // `inner` makes the text behind the common prefix from the metric's name and the cause.
        let failed = |cause: String, inner: fn(&str, &str) -> String| {
            Failed::new("FailedGetExternalMetric", cause, |cause| {
                format!("failed to get {name} external metric value: {}", inner(name, cause))
            })
        };
        let read = async || {
            let selector = selector(metric.selector.as_ref())?;
            let found =
                self.api.external_metric(name, namespace, &selector).await.map_err(|error| {
                    let selector = golang::label_selector(metric.selector.as_ref());
                    format!("unable to get external metric {namespace}/{name}/{selector}: {error}")
                })?;
            Ok::<i128, String>(found.into_iter().map(i128::from).sum())
        };
        let status = |current: Value| json!({ "type": "External", "external": { "metric": metric, "current": current } });
        let (proposal, current) = match (source.target.average_value, source.target.value) {
            (Some(average), _) => {
                let usage = read().await.map_err(|cause| {
                    failed(cause, |name, cause| {
                        format!("failed to get {name} external metric: {cause}")
                    })
                })?;
                let (replicas, tolerances) = (self.target.replicas, self.calculator.tolerances);
                let proposal = by_share(usage, replicas, average.milli_value(), tolerances);
                let current = json!({ "averageValue": from_thousandths(proposal.usage) });
                (proposal, current)
            }
            (None, Some(value)) => {
                let proposed = async {
                    let (usage, replicas) = (read().await?, self.target.replicas.wanted);
                    self.calculator.by_value(usage, replicas, value.milli_value())
                };
                let proposal = proposed.await.map_err(|cause| {
                    failed(cause, |name, cause| {
                        format!("failed to get external metric {name}: {cause}")
                    })
                })?;
                let current = json!({ "value": from_thousandths(proposal.usage) });
                (proposal, current)
            }
            (None, None) => {
                let cause = "invalid external metric source: neither a value target nor an average \
                             value target was set";
                return Err(failed(cause.to_owned(), |_, cause| cause.to_owned()));
            }
        };
        Ok(Computed {
            replicas: proposal.replicas,
            name: external_name(source),
            status: status(current),
        })
    }
}

/// Returns the description of an external metric in the reason for a change.
fn external_name(source: &MetricSource) -> String {
    let selector = golang::label_selector(source.metric.selector.as_ref());
    format!("external metric {}({selector})", source.metric.name)
}

/// Returns `count` thousandths as a quantity.
fn from_thousandths(count: i64) -> Quantity {
    Quantity::from_milli(count, Format::DecimalSi)
}

/// Parses the selector of a metric. The query of an absent one is empty, so it asks the metrics API
/// for all, as an empty one does.
fn selector(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    Selector::try_from(selector).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_lite::future::block_on;
    use parking_lot::Mutex;

    use super::super::calculator::{Startup, Tolerances};
    use super::*;
    use crate::client::testing::answering;
    use crate::client::{Client, Config, Scales};
    use crate::clock::{FakeClock, SystemClock};
    use crate::objects::Timestamp;

    async fn compute_metric(client: Client, spec: &Value) -> Result<Computed, Failed> {
        let api = MetricsApi {
            scales: Scales::new(client.clone()),
            client,
            clock: FakeClock::new(Timestamp::from_secs(0)),
            period: Duration::ZERO,
            custom_version: Mutex::default(),
        };
        let selector = Selector::everything();
        let replicas = Replicas { wanted: 2, existing: 2 };
        let target = Target { namespace: "ns", selector: &selector, replicas };
        let (cpu_initialization, readiness_delay) = (Duration::ZERO, Duration::ZERO);
        let calculator = Calculator {
            pods: &[],
            tolerances: Tolerances { down: 0.1, up: 0.1 },
            startup: Startup { cpu_initialization, readiness_delay },
            now: Timestamp::from_secs(0),
            pod_level_resources: false,
        };
        let spec = serde_json::from_value(spec.clone()).unwrap();
        compute(&api, &spec, target, calculator).await
    }

    async fn failed(client: Client, spec: &Value) -> Failed {
        compute_metric(client, spec).await.unwrap_err()
    }

    /// Replicas and `status.currentMetrics` of a metric of the API group `group`, of these values
    /// in thousandths.
    fn replicas(spec: &Value, group: &str, values: &[i64]) -> (i32, Value) {
        let items =
            values.iter().map(|value| json!({ "value": format!("{value}m"), "window": -1 }));
        let (items, group) = (json!({ "items": items.collect::<Vec<_>>() }), group.to_owned());
        let client = answering(move |line| match line {
            line if line.contains(&format!("/apis/{group}.metrics.k8s.io/v1beta")) => {
                (200, items.clone())
            }
            _ => (200, json!({ "versions": [{ "version": "v1beta2" }] })),
        });
        block_on(async { compute_metric(client.await, spec).await })
            .map(|computed| (computed.replicas, computed.status))
            .unwrap()
    }

    #[test]
    fn an_external_metric_for_each_pod_may_be_negative_or_have_a_sum_beyond_64_bits() {
        const MAX: i64 = i64::MAX;
        let spec = json!({ "type": "External", "external": {
            "metric": { "name": "m" }, "target": { "type": "AverageValue", "averageValue": "1" },
        } });
        for (values, wanted, current) in [
            (&[5000][..], 5, "2500m"),
            (&[0], 0, "0"),
            (&[7000, -2000], 5, "2500m"),
            (&[-5000], -5, "-2500m"),
            (&[-2000, 7000], 5, "2500m"),
            (&[MAX, MAX, -MAX], i32::MAX, "4611686018427387904m"),
            (&[MAX, MAX, MAX], i32::MAX, "9223372036854775807m"),
        ] {
            let (replicas, status) = replicas(&spec, "external", values);
            let shown = &status["external"]["current"]["averageValue"];
            assert_eq!((replicas, shown), (wanted, &json!(current)), "{values:?}");
        }
    }

    #[test]
    fn a_negative_object_metric_for_each_pod_gives_a_negative_proposal() {
        let spec = json!({ "type": "Object", "object": {
            "describedObject": { "kind": "Namespace", "name": "ns" }, "metric": { "name": "m" },
            "target": { "type": "AverageValue", "averageValue": "1" },
        } });
        for (value, wanted, current) in [
            (5000, 5, "2500m"),
            (-5000, -5, "-2500m"),
            (i64::MAX, i32::MAX, "4611686018427387904m"),
            (i64::MIN, i32::MIN, "-4611686018427387904m"),
        ] {
            let (replicas, status) = replicas(&spec, "custom", &[value]);
            let shown = &status["object"]["current"]["averageValue"];
            assert_eq!((replicas, shown), (wanted, &json!(current)), "{value}");
        }
    }

    #[test]
    fn a_sum_that_is_too_large_for_a_value_is_the_nearest_number() {
        const MAX: i64 = i64::MAX;
        // Within the tolerance, so that no pods are asked for.
        for (target, values, sum) in [
            ("1", &[-4000, 5000][..], "1"),
            ("-1", &[-5000, 4000], "-1"),
            ("5m", &[MAX, 5, -MAX], "5m"),
            ("9223372036854775807m", &[MAX, 5], "9223372036854775807m"),
            ("-9223372036854775807m", &[-MAX, -MAX, MAX], "-9223372036854775807m"),
            ("-9223372036854775808m", &[-MAX, -5], "-9223372036854775808m"),
        ] {
            let spec = json!({ "type": "External", "external": {
                "metric": { "name": "m" }, "target": { "type": "Value", "value": target },
            } });
            let (replicas, status) = replicas(&spec, "external", values);
            let shown = &status["external"]["current"]["value"];
            assert_eq!((replicas, shown), (2, &json!(sum)), "{values:?}");
        }
    }

    #[test]
    fn an_invalid_selector_of_a_metric_fails_before_any_request() {
        let value = json!({ "type": "Value", "value": "1" });
        let average = json!({ "type": "AverageValue", "averageValue": "1" });
        let labels = json!({ "matchLabels": { "-": "v" } });
        let expressions = json!({ "matchExpressions": [{ "key": "k", "operator": "In" }] });
        let spec = |kind: &str, member: &str, selector: &Value, target: &Value| {
            json!({ "type": kind, member: {
                "describedObject": { "kind": "Service", "name": "s" },
                "metric": { "name": "m", "selector": selector },
                "target": target,
            } })
        };
        for (spec, cause, reason, error) in [
            (
                spec("Object", "object", &labels, &value),
                "key: Invalid value: \"-\": name part must consist of alphanumeric characters",
                "FailedGetObjectMetric",
                "failed to get object metric value: ",
            ),
            (
                spec("Object", "object", &expressions, &average),
                "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
                "FailedGetObjectMetric",
                "failed to get object metric value: ",
            ),
            (
                spec("Pods", "pods", &labels, &average),
                "key: Invalid value: \"-\": name part must consist of alphanumeric characters",
                "FailedGetPodsMetric",
                "failed to get pods metric value: ",
            ),
            (
                spec("External", "external", &labels, &average),
                "key: Invalid value: \"-\": name part must consist of alphanumeric characters",
                "FailedGetExternalMetric",
                "failed to get m external metric value: failed to get m external metric: ",
            ),
            (
                spec("External", "external", &expressions, &value),
                "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
                "FailedGetExternalMetric",
                "failed to get m external metric value: failed to get external metric m: ",
            ),
        ] {
            // No server listens at this address.
            let config = Config::new("http://127.0.0.1:1");
            let client = Client::new(config, SystemClock::shared()).unwrap();
            let found = block_on(failed(client, &spec));
            assert_eq!(found.reason, reason, "{spec}");
            assert!(found.cause.starts_with(cause), "{}", found.cause);
            assert_eq!(found.error, format!("{error}{}", found.cause));
        }
    }

    #[test]
    fn a_metric_shows_why_its_server_failed() {
        let spec = json!({ "type": "External", "external": {
            "metric": { "name": "m" }, "target": { "type": "Value", "value": "1" },
        } });
        for (answer, cause) in [
            (
                // As a server answers whose error has no reason.
                json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "no trigger named m", "code": 500 }),
                "no trigger named m",
            ),
            (
                json!({ "message": "no route", "code": 500 }),
                "an error on the server (\"unknown\") has prevented the request from succeeding \
                 (get m.external.metrics.k8s.io)",
            ),
        ] {
            let found = block_on(async {
                let client = answering(move |_| (500, answer.clone())).await;
                failed(client, &spec).await
            });
            let doing = "unable to get external metric ns/m/nil: unable to fetch metrics from \
                         external metrics API";
            assert_eq!(found.cause, format!("{doing}: {cause}"));
        }
    }

    #[test]
    fn the_error_of_an_object_metric_names_the_object_before_the_cause() {
        let spec = json!({ "type": "Object", "object": {
            "describedObject": { "kind": "Namespace", "name": "ns" }, "metric": { "name": "m" },
            "target": { "type": "Value", "value": "1" },
        } });
        let failure = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "no hits yet", "code": 500 });
        let found = block_on(async {
            let client = answering(move |line| match line {
                line if line.contains("/apis/custom.metrics.k8s.io/v1beta") => {
                    (500, failure.clone())
                }
                _ => (200, json!({ "versions": [{ "version": "v1beta2" }] })),
            });
            failed(client.await, &spec).await
        });
        let cause = "unable to get metric m on Namespace ns/ns: unable to fetch metrics from custom metrics \
                     API: no hits yet";
        assert_eq!(found.cause, cause);
    }
}
