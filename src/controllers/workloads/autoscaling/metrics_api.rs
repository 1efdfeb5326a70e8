//! Reads the metrics APIs. Upstream: `podautoscaler/metrics`, `k8s.io/metrics/pkg/client`.

use parking_lot::Mutex;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::calculator::{PodMetric, PodMetrics};
use crate::client::{self, ApiPath, Call, Client, Error, Failure, FailureBody, Scales};
use crate::clock::SharedClock;
use crate::objects::{
    CrossVersionObjectReference, Quantity, ResourceList, Selector, Timestamp, null_as_default,
};
use crate::options::parse_duration;

const RESOURCE_METRICS: &str = "metrics.k8s.io";
const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";
const EXTERNAL_METRICS: &str = "external.metrics.k8s.io";
/// The versions of custom metrics that can be read.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// The window of a custom metric that has none. Upstream: `metricServerDefaultMetricWindow`.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

/// The metrics APIs. Errors are texts for conditions and events.
pub(super) struct MetricsApi {
    pub client: Client,
    pub scales: Scales,
    pub clock: SharedClock,
    /// How long the version of custom metrics is kept.
    pub period: Duration,
    /// The version of custom metrics, and when it was read.
    pub custom_version: Mutex<Option<(Duration, &'static str)>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Items<T> {
    #[serde(deserialize_with = "null_as_default", bound = "T: Deserialize<'de>")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OfPod {
    #[serde(deserialize_with = "null_as_default")]
    metadata: Named,
    timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default")]
    window: String,
    #[serde(deserialize_with = "null_as_default")]
    containers: Vec<OfContainer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OfContainer {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
    #[serde(deserialize_with = "null_as_default")]
    usage: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricValue {
    #[serde(deserialize_with = "null_as_default")]
    described_object: Named,
    timestamp: Option<Timestamp>,
    /// In v1beta1 its name is `window`.
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    #[serde(deserialize_with = "null_as_default")]
    value: Quantity,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Group {
    #[serde(deserialize_with = "null_as_default")]
    versions: Vec<Version>,
    #[serde(deserialize_with = "null_as_default")]
    preferred_version: Version,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    #[serde(deserialize_with = "null_as_default")]
    version: String,
}

impl OfPod {
    /// Returns the usage of one container or, if `container` is empty, of all. In thousandths;
    /// `None` when a container lacks the resource, or there is no container.
    fn value(&self, resource: &str, container: &str) -> Option<i128> {
        let usage_of = |found: &OfContainer| Some(found.usage.get(resource)?.milli_value().into());
        if !container.is_empty() {
            return usage_of(self.containers.iter().find(|found| found.name == container)?);
        }
        let values: Option<Vec<i128>> = self.containers.iter().map(usage_of).collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some(values.into_iter().sum())
    }
}

impl MetricValue {
    /// The time over which the usage was measured.
    fn window(&self) -> Duration {
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.window_seconds.map_or(DEFAULT_WINDOW, seconds)
    }
}

/// Returns `timestamp`, or the oldest possible time if it is absent.
fn or_oldest(timestamp: Option<Timestamp>) -> Timestamp {
    timestamp.unwrap_or(Timestamp::from_secs(0))
}

impl MetricsApi {
    /// Reads the usage of a resource by the selected pods; those without a value are left out.
    /// Upstream: `GetResourceMetric`.
    pub async fn resource_metric(
        &self,
        resource: &str,
        namespace: &str,
        selector: &Selector,
        container: &str,
    ) -> Result<PodMetrics, String> {
        let path =
            || ApiPath::new(RESOURCE_METRICS, "v1beta1").namespace(namespace)?.resource("pods");
        let found: Items<OfPod> = self
            .fetch(path(), &[("labelSelector", selector)], "pods.metrics.k8s.io")
            .await
            .map_err(|error| unable_to_fetch("resource", &error))?;
        if found.items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        let metric = |pod: OfPod| {
            let value = pod.value(resource, container)?;
            let window = parse_duration(&pod.window).unwrap_or_default();
            let metric = PodMetric { value, timestamp: or_oldest(pod.timestamp), window };
            Some((pod.metadata.name.into(), metric))
        };
        Ok(found.items.into_iter().filter_map(metric).collect())
    }

    /// Reads a custom metric of the selected pods.
    /// Upstream: `GetRawMetric`.
    pub async fn pods_metric(
        &self,
        metric: &str,
        namespace: &str,
        selector: &Selector,
        metric_selector: &Selector,
    ) -> Result<PodMetrics, String> {
        let path = |path: ApiPath| {
            path.namespace(namespace)?.resource("pods")?.name("*")?.subresource(metric)
        };
        let selectors = [("labelSelector", selector), ("metricLabelSelector", metric_selector)];
        let found = self
            .fetch_custom(path, &selectors, "pods.custom.metrics.k8s.io *")
            .await
            .map_err(|error| unable_to_fetch("custom", &error))?;
        if found.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        let metric = |found: MetricValue| {
            let window = found.window();
            let timestamp = or_oldest(found.timestamp);
            let metric = PodMetric { value: found.value.milli_value().into(), timestamp, window };
            (found.described_object.name.into(), metric)
        };
        Ok(found.into_iter().map(metric).collect())
    }

    /// Reads a custom metric of one object, in thousandths.
    /// Upstream: `GetObjectMetric`.
    pub async fn object_metric(
        &self,
        metric: &str,
        namespace: &str,
        object: &CrossVersionObjectReference,
        metric_selector: &Selector,
    ) -> Result<i64, String> {
        let found = self.fetch_object_metric(metric, namespace, object, metric_selector).await;
        found.map_err(|error| unable_to_fetch("custom", &error))
    }

    /// Reads the metric for [`Self::object_metric`], with the errors as the API server or the
    /// discovery has them.
    async fn fetch_object_metric(
        &self,
        metric: &str,
        namespace: &str,
        object: &CrossVersionObjectReference,
        metric_selector: &Selector,
    ) -> Result<i64, String> {
        let group = match object.api_version.split_once('/') {
            Some((group, _version)) => group,
            None => "",
        };
        let selectors = [("metricLabelSelector", metric_selector)];
        let found = match (group, object.kind.as_str()) {
            // The autoscaler's own namespace is meant, with any name.
            ("", "Namespace") => {
                let path =
                    |path: ApiPath| path.namespace(namespace)?.resource("metrics")?.name(metric);
                let what = format!("metrics.custom.metrics.k8s.io {metric}");
                self.fetch_custom(path, &selectors, &what).await?
            }
            (group, kind) => {
                let found = match self.scales.resources_of(group, kind, None).await {
                    Ok(resources) => match resources.first() {
                        Some(resource) => Ok(resource.to_string()),
                        None => Err(format!("no matches for kind {kind:?} in group {group:?}")),
                    },
                    Err(error) => Err(error_text(&error, "get", "")),
                };
                let kind =
                    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
                let resource = found
                    .map_err(|cause| format!("unable to map kind {kind} to resource: {cause}"))?;
                let path = |path: ApiPath| {
                    let path = path.namespace(namespace)?.resource(&resource)?;
                    path.name(&object.name)?.subresource(metric)
                };
                let what = format!("{resource}.custom.metrics.k8s.io {}", object.name);
                self.fetch_custom(path, &selectors, &what).await?
            }
        };
        match found.as_slice() {
            [one] => Ok(one.value.milli_value()),
            other => Err(format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                other.len()
            )),
        }
    }

    /// Reads the values of an external metric, in thousandths.
    /// Upstream: `GetExternalMetric`.
    pub async fn external_metric(
        &self,
        metric: &str,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<i64>, String> {
        let path =
            || ApiPath::new(EXTERNAL_METRICS, "v1beta1").namespace(namespace)?.resource(metric);
        let what = format!("{metric}.external.metrics.k8s.io");
        let found: Items<MetricValue> = self
            .fetch(path(), &[("labelSelector", selector)], &what)
            .await
            .map_err(|error| unable_to_fetch("external", &error))?;
        if found.items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(found.items.iter().map(|found| found.value.milli_value()).collect())
    }

    /// Reads custom metrics in the version that the server has. `path` completes the path of the
    /// group version; `what` names the resource in errors.
    async fn fetch_custom(
        &self,
        path: impl FnOnce(ApiPath) -> client::Result<ApiPath>,
        selectors: &[(&'static str, &Selector)],
        what: &str,
    ) -> Result<Vec<MetricValue>, String> {
        let version = self.custom_version().await?;
        let path = path(ApiPath::new(CUSTOM_METRICS, version));
        let found: Items<MetricValue> = self.fetch(path, selectors, what).await?;
        Ok(found.items)
    }

    /// Returns the version of the custom metrics API, which is read at most once in a period.
    /// Upstream: `AvailableAPIsGetter`.
    async fn custom_version(&self) -> Result<&'static str, String> {
        let now = self.clock.monotonic();
        if let Some((since, version)) = *self.custom_version.lock()
            && now.saturating_sub(since) < self.period
        {
            return Ok(version);
        }
        let group =
            match self.client.fetch(&Call::new("GET", format!("/apis/{CUSTOM_METRICS}"))).await {
                Ok(group) => group,
                Err(error) if error.is_not_found() => {
                    return Err(format!("no custom metrics API ({CUSTOM_METRICS}) registered"));
                }
                Err(error) => return Err(error_text(&error, "get", "")),
            };
        let version = known_version(&group)
            .ok_or_else(|| "no known available metric versions found".to_owned())?;
        *self.custom_version.lock() = Some((now, version));
        Ok(version)
    }

    /// Sends a GET of `path`, with the selectors as parameters. `what` names the resource in
    /// errors.
    async fn fetch<T: DeserializeOwned>(
        &self,
        path: client::Result<ApiPath>,
        selectors: &[(&'static str, &Selector)],
        what: &str,
    ) -> Result<T, String> {
        let fetched = async {
            let mut call = path?.call("GET");
            for (name, selector) in selectors {
                call.query_some(name, &Some(selector.to_string()));
            }
            self.client.fetch(&call).await
        };
        fetched.await.map_err(|error| error_text(&error, "get", what))
    }
}

/// Returns the version that the server prefers, if this build can read it, else the first that it
/// can read.
fn known_version(group: &Group) -> Option<&'static str> {
    let preferred = std::iter::once(&group.preferred_version);
    for version in preferred.chain(&group.versions) {
        if let Some(known) = CUSTOM_VERSIONS.into_iter().find(|known| *known == version.version) {
            return Some(known);
        }
    }
    None
}

fn unable_to_fetch(api: &str, error: &str) -> String {
    format!("unable to fetch metrics from {api} metrics API: {error}")
}

/// Returns the text of an error in client-go's words. For an answer that carries no Status these
/// depend on the HTTP code, `verb` and `what`: the resource, and the name of the object; empty for
/// a path.
/// Upstream: `Request.transformResponse`.
pub(super) fn error_text(error: &Error, verb: &str, what: &str) -> String {
    let Some(Failure { code, body, status, .. }) = error.failure() else {
        return error.to_string();
    };
    let said = match body {
        FailureBody::Status => return status.message.clone(),
        FailureBody::Text => &status.message,
        FailureBody::Other => UNKNOWN,
    };
    let text = generic_response(*code, said);
    if what.is_empty() { text } else { format!("{text} ({verb} {what})") }
}

/// Client-go's message for a body that is not a text.
const UNKNOWN: &str = "unknown";

/// Returns client-go's text for an answer without a Status, by its code.
/// Upstream: `NewGenericServerResponse`.
fn generic_response(code: u16, said: &str) -> String {
    let text = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if said.is_empty() || said == UNKNOWN => {
            "the server was unable to respond with a content type that the client supports"
        }
        403 | 406 | 415 => said,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be \
             processing the request"
        }
        500.. => {
            return format!(
                "an error on the server ({said:?}) has prevented the request from succeeding"
            );
        }
        _ => {
            return format!(
                "the server responded with the status code {code} but did not return more \
                 information"
            );
        }
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::Status;

    #[test]
    fn the_usage_of_a_pod_is_the_sum_of_its_containers() {
        let pod = |containers: Value| -> OfPod {
            serde_json::from_value(json!({
                "metadata": { "name": "p" }, "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
                "containers": containers,
            }))
            .unwrap()
        };
        let two = pod(json!([
            { "name": "a", "usage": { "cpu": "100m", "memory": "1Mi" } },
            { "name": "b", "usage": { "cpu": "1500u" } },
        ]));
        for (resource, container, value) in [
            ("cpu", "", Some(102)),
            ("cpu", "a", Some(100)),
            ("cpu", "b", Some(2)),
            ("memory", "", None),
            ("memory", "a", Some(1024 * 1024 * 1000)),
            ("memory", "b", None),
            ("cpu", "c", None),
        ] {
            assert_eq!(two.value(resource, container), value, "{resource} {container}");
        }
        assert_eq!(pod(Value::Null).value("cpu", ""), None);
        let large = json!({ "name": "a", "usage": { "cpu": format!("{}m", i64::MAX) } });
        assert_eq!(pod(json!([large, large])).value("cpu", ""), Some(2 * i128::from(i64::MAX)));
    }

    /// An adapter need not be written in Go, nor send what upstream's types send.
    #[test]
    fn one_malformed_value_does_not_hide_the_others() {
        let found: Items<MetricValue> = serde_json::from_value(json!({ "items": [
            {
                "describedObject": null, "timestamp": null, "windowSeconds": null, "value": null,
            },
            {
                "describedObject": { "name": null }, "timestamp": "9999-12-31T23:59:59Z",
                "windowSeconds": -1, "value": "-1e40",
            },
            { "describedObject": { "name": "p" }, "window": 30, "value": "1500m" },
        ]}))
        .unwrap();
        let values = found.items.iter().map(|it| (it.window().as_secs(), it.value.milli_value()));
        assert_eq!(values.collect::<Vec<_>>(), [(60, 0), (0, i64::MIN), (30, 1500)]);
        let found: Items<OfPod> = serde_json::from_value(json!({ "items": [
            { "metadata": null, "timestamp": null, "window": null, "containers": null },
            { "metadata": { "name": "p" }, "containers": [{ "name": null, "usage": null }] },
        ]}))
        .unwrap();
        assert_eq!(found.items[1].metadata.name, "p");
    }

    #[test]
    fn a_version_of_custom_metrics_is_chosen() {
        let group = |preferred: &str, versions: &[&str]| -> Group {
            let of = |version: &&str| json!({ "version": version });
            serde_json::from_value(json!({
                "preferredVersion": of(&preferred),
                "versions": versions.iter().map(of).collect::<Vec<_>>(),
            }))
            .unwrap()
        };
        for (preferred, versions, known) in [
            ("v1beta2", &["v1beta2", "v1beta1"] as &[&str], Some("v1beta2")),
            ("v1beta1", &["v1beta2", "v1beta1"], Some("v1beta1")),
            ("v3", &["v3", "v1beta1"], Some("v1beta1")),
            ("v3", &["v3"], None),
            ("", &[], None),
        ] {
            assert_eq!(known_version(&group(preferred, versions)), known, "{preferred}");
        }
    }

    fn answered(code: u16, body: FailureBody, message: &str) -> Error {
        let status = Status { message: message.to_owned(), ..Status::default() };
        let request = "GET /x".to_owned();
        Error::Status(Box::new(Failure { request, code, retry_after: None, body, status }))
    }

    #[test]
    fn the_message_of_a_status_is_used_as_it_is() {
        for (code, reason, message) in [
            (500, "", "no trigger named queue"),
            (500, "InternalError", "Internal error occurred: no"),
            (404, "NotFound", "deployments.apps \"web\" not found"),
            (403, "", ""),
        ] {
            let mut error = answered(code, FailureBody::Status, message);
            if let Error::Status(failure) = &mut error {
                failure.status.reason = reason.to_owned();
            }
            assert_eq!(error_text(&error, "get", "jobs.external.metrics.k8s.io"), message);
        }
        let unsent = Error::GuardRefused { request: "GET /x".to_owned() };
        assert_eq!(error_text(&unsent, "get", "x"), unsent.to_string());
    }

    #[test]
    fn an_answer_that_is_no_status_is_described_in_upstreams_words() {
        use FailureBody::{Other, Text};
        let more = |code: u16| {
            format!(
                "the server responded with the status code {code} but did not return more \
                 information"
            )
        };
        let failed = |said: &str| {
            format!("an error on the server ({said:?}) has prevented the request from succeeding")
        };
        let plain = str::to_owned;
        let unsupported =
            "the server was unable to respond with a content type that the client supports";
        let late = "the server was unable to return a response in the time allotted, but may still \
                    be processing the request";
        for (code, body, said, text) in [
            (400, Text, "x", plain("the server rejected our request for an unknown reason")),
            (401, Text, "x", plain("the server has asked for the client to provide credentials")),
            (403, Text, "no \"x\"", plain("no \"x\"")),
            (403, Text, "", plain("")),
            (403, Other, "{}", plain("unknown")),
            (404, Text, "x", plain("the server could not find the requested resource")),
            (
                405,
                Text,
                "x",
                plain("the server does not allow this method on the requested resource"),
            ),
            (406, Text, "only XML", plain("only XML")),
            (406, Text, "", plain(unsupported)),
            (406, Other, "{}", plain(unsupported)),
            (409, Text, "x", plain("the server reported a conflict")),
            (410, Text, "x", more(410)),
            (415, Text, "only XML", plain("only XML")),
            (415, Other, "{}", plain("unknown")),
            (
                422,
                Text,
                "x",
                plain("the server rejected our request due to an error in our request"),
            ),
            (
                429,
                Text,
                "x",
                plain(
                    "the server has received too many requests and has asked us to try again later",
                ),
            ),
            (302, Text, "x", more(302)),
            (500, Text, "no \"x\"", failed("no \"x\"")),
            (500, Text, "", failed("")),
            (502, Other, "{}", failed("unknown")),
            (503, Text, "x", plain("the server is currently unable to handle the request")),
            (504, Text, "x", plain(late)),
        ] {
            let error = answered(code, body, said);
            assert_eq!(error_text(&error, "get", ""), text, "{code}");
            let found = error_text(&error, "put", "deployments web");
            assert_eq!(found, format!("{text} (put deployments web)"), "{code}");
        }
    }
}
