//! The metrics APIs, which metrics-server and adapters serve on a cluster. Annotations set the
//! values: see `docs/sandbox.md`.

use serde_json::{Value, json};

use crate::failures;
use crate::request::call::{Query, ResourcePath};
use crate::status::ApiResult;
use crate::storage::registry::Registry;
use crate::storage::store::{Store, Stored};
use kube_controller_manager::objects::{Labels, Quantity, Selector, Timestamp};
use std::sync::Arc;

const RESOURCE: &str = "metrics.k8s.io";
const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";

/// Each group with its versions, the preferred one first.
const GROUPS: [(&str, &[&str]); 3] =
    [(RESOURCE, &["v1beta1"]), (CUSTOM, &["v1beta2", "v1beta1"]), (EXTERNAL, &["v1beta1"])];

/// The usage of a pod: of all its containers, or `NAME=AMOUNT,...`. `none`: the pod has no metrics.
/// The usage of a node.
const CPU: &str = "sandbox/cpu";
const MEMORY: &str = "sandbox/memory";
/// The rest of the annotation's name is the name of a custom metric of the object.
const METRIC: &str = "sandbox/metric.";
/// The ConfigMap of a namespace's external metrics.
const EXTERNAL_METRICS: &str = "sandbox-external-metrics";

/// The usage of a container without an annotation.
const IDLE_CPU: &str = "1m";
const IDLE_MEMORY: &str = "1Mi";
/// The period of a measurement. Values are exact, so it is short.
const WINDOW: &str = "1s";

/// The metrics APIs over the objects of a store.
pub struct Metrics<'a> {
    pub store: &'a Store,
    pub registry: &'a Registry,
    pub now: Timestamp,
}

impl Metrics<'_> {
    /// Answers a request of one of the groups; `None` for others.
    pub fn answer(&self, verb: &str, at: &ResourcePath, query: &Query) -> Option<ApiResult<Value>> {
        let (_, versions) = GROUPS.into_iter().find(|(group, _)| *group == at.group)?;
        if !versions.contains(&&*at.version) {
            return Some(Err(failures::no_such_path()));
        }
        if !matches!(verb, "get" | "list") {
            return Some(Err(failures::method_not_allowed()));
        }
        Some(match &*at.group {
            RESOURCE => self.resource(at, query),
            CUSTOM => self.custom(at, query),
            _ => self.external(at, query),
        })
    }

    /// Lists the stored objects of a table, in one namespace or in all.
    fn objects(&self, table: &str, namespace: &str) -> Vec<Arc<Stored>> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let page = self.store.list(table, &prefix, None, usize::MAX, None, &|_| true);
        page.map(|page| page.items).unwrap_or_default()
    }

    /// Answers a request for the usage of pods or nodes: all that the selector matches, or the
    /// named one.
    fn resource(&self, at: &ResourcePath, query: &Query) -> ApiResult<Value> {
        type Usage<'a> = fn(&Metrics<'a>, &Stored) -> Option<Value>;
        let (kind, usage): (&str, Usage<'_>) = match &*at.resource {
            "pods" => ("PodMetrics", Self::pod_metrics),
            "nodes" => ("NodeMetrics", Self::node_metrics),
            _ => return Err(failures::no_such_resource()),
        };
        let version = format!("{RESOURCE}/{}", at.version);
        let selector = selector(query.get("labelSelector"))?;
        let found = self.objects(&at.resource, &at.namespace).into_iter().filter(|stored| {
            (at.name.is_empty() || stored.value["metadata"]["name"] == *at.name)
                && selector.matches(&stored.labels)
        });
        let mut items: Vec<Value> = found.filter_map(|stored| usage(self, &stored)).collect();
        if at.name.is_empty() {
            return Ok(json!({
                "kind": format!("{kind}List"), "apiVersion": version, "metadata": {},
                "items": items,
            }));
        }
        let mut one = items.pop().ok_or_else(|| {
            let plural = at.resource.clone();
            let resource = kube_controller_manager::objects::ResourceType {
                group: RESOURCE.into(),
                version: at.version.clone().into(),
                kind: kind.to_owned().into(),
                plural: plural.into(),
                namespaced: kind == "PodMetrics",
            };
            failures::not_found(&resource, &at.name)
        })?;
        one["kind"] = kind.into();
        one["apiVersion"] = version.into();
        Ok(one)
    }

    /// Builds the part that the measurements of a pod and of a node have in common: metadata, time
    /// and window.
    fn common_part(&self, of: &Stored) -> Value {
        let metadata = &of.value["metadata"];
        let mut measured = json!({
            "metadata": {
                "name": metadata["name"], "creationTimestamp": self.now, "labels": of.labels,
            },
            "timestamp": self.now, "window": WINDOW,
        });
        if metadata["namespace"].is_string() {
            measured["metadata"]["namespace"] = metadata["namespace"].clone();
        }
        measured
    }

    /// Computes the usage of a pod; `None` when it does not run, or has no metrics by its
    /// annotation.
    fn pod_metrics(&self, pod: &Stored) -> Option<Value> {
        if pod.value["status"]["phase"] != "Running" {
            return None;
        }
        let containers = pod.value["spec"]["containers"].as_array()?;
        let count = containers.len();
        let usage = |container: &Value| {
            let name = container["name"].as_str()?;
            let cpu = share(annotation(pod, CPU), name, count, IDLE_CPU)?;
            let memory = share(annotation(pod, MEMORY), name, count, IDLE_MEMORY)?;
            Some(json!({ "name": name, "usage": { "cpu": cpu, "memory": memory } }))
        };
        let containers: Option<Vec<Value>> = containers.iter().map(usage).collect();
        let mut measured = self.common_part(pod);
        measured["containers"] = containers?.into();
        Some(measured)
    }

    /// Computes the usage of a node: by its annotations, or the sum of its pods. Unlike a pod, a
    /// node always has one.
    fn node_metrics(&self, node: &Stored) -> Option<Value> {
        let name = &node.value["metadata"]["name"];
        let pods = self.objects("pods", "");
        let pods = pods.iter().filter(|pod| pod.value["spec"]["nodeName"] == *name);
        let pods: Vec<Value> = pods.filter_map(|pod| self.pod_metrics(pod)).collect();
        let sum = |resource: &str, annotated: Option<&str>| {
            let annotated = annotated.and_then(|text| text.parse::<Quantity>().ok());
            let containers = pods.iter().flat_map(|pod| pod["containers"].as_array()).flatten();
            let used = containers.filter_map(|container| {
                container["usage"][resource].as_str()?.parse::<Quantity>().ok()
            });
            annotated.unwrap_or_else(|| used.fold(Quantity::ZERO, |sum, used| sum + used))
        };
        let mut measured = self.common_part(node);
        measured["usage"] = json!({
            "cpu": sum("cpu", annotation(node, CPU)),
            "memory": sum("memory", annotation(node, MEMORY)),
        });
        Some(measured)
    }

    /// Answers a request for a custom metric of objects: `RESOURCE/NAME/METRIC`, with `*` for all
    /// of them, or `metrics/METRIC` for the namespace.
    fn custom(&self, at: &ResourcePath, query: &Query) -> ApiResult<Value> {
        let of_namespace = at.resource == "metrics" && at.subresource.is_empty();
        let (plural, group, name, metric) = match at.resource.split_once('.') {
            _ if of_namespace => ("namespaces", "", &at.namespace, &at.name),
            Some((plural, group)) => (plural, group, &at.name, &at.subresource),
            None => (at.resource.as_str(), "", &at.name, &at.subresource),
        };
        let kinds = self.registry.all();
        let kind = kinds
            .iter()
            .map(|kind| &kind.resource)
            .find(|resource| resource.plural == plural && resource.group == group)
            .filter(|_| !metric.is_empty())
            .ok_or_else(failures::no_such_resource)?;
        let selector = selector(query.get("labelSelector"))?;
        let metric_selector = self::selector(query.get("metricLabelSelector"))?;
        let namespace = if kind.namespaced { at.namespace.as_str() } else { "" };
        let value = |stored: &Arc<Stored>| {
            let object = &stored.value["metadata"]["name"];
            let is_asked = name == "*" && selector.matches(&stored.labels) || *object == **name;
            let value: Quantity = annotation(stored, &format!("{METRIC}{metric}"))?.parse().ok()?;
            let mut item = json!({
                "describedObject": {
                    "kind": kind.kind, "apiVersion": kind.api_version(), "name": object,
                },
                "timestamp": self.now, "value": value,
            });
            if kind.namespaced {
                item["describedObject"]["namespace"] = namespace.into();
            }
            match &*at.version {
                "v1beta1" => item["metricName"] = metric.as_str().into(),
                _ => item["metric"] = json!({ "name": metric }),
            }
            // The values have no labels.
            (is_asked && metric_selector.matches(&Labels::default())).then_some(item)
        };
        let items: Vec<Value> =
            self.objects(&kind.to_string(), namespace).iter().filter_map(value).collect();
        if items.is_empty() {
            let what = format!("the server could not find the metric {metric} for {plural} {name}");
            return Err(crate::status::ApiError::new(404, "NotFound", what));
        }
        Ok(json!({
            "kind": "MetricValueList", "apiVersion": format!("{CUSTOM}/{}", at.version),
            "metadata": {}, "items": items,
        }))
    }

    /// Answers a request for an external metric with the lines of the ConfigMap's entry: `AMOUNT`,
    /// or `AMOUNT LABEL=VALUE,...`.
    fn external(&self, at: &ResourcePath, query: &Query) -> ApiResult<Value> {
        let selector = selector(query.get("labelSelector"))?;
        let key = format!("{}/{EXTERNAL_METRICS}", at.namespace);
        let stored = self.store.get("configmaps", &key);
        let lines = stored.as_ref().and_then(|stored| stored.value["data"][&at.resource].as_str());
        let item = |line: &str| {
            let (value, labels) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let value: Quantity = value.parse().ok()?;
            let pairs = labels.split(',').filter_map(|pair| pair.trim().split_once('='));
            let labels: Labels = pairs.collect();
            selector.matches(&labels).then(|| {
                json!({
                    "metricName": at.resource, "metricLabels": labels, "timestamp": self.now,
                    "value": value,
                })
            })
        };
        let items: Vec<Value> = lines.unwrap_or_default().lines().filter_map(item).collect();
        Ok(json!({
            "kind": "ExternalMetricValueList", "apiVersion": format!("{EXTERNAL}/{}", at.version),
            "metadata": {}, "items": items,
        }))
    }
}

fn annotation<'a>(stored: &'a Stored, name: &str) -> Option<&'a str> {
    stored.value["metadata"]["annotations"][name].as_str()
}

fn selector(text: &str) -> ApiResult<Selector> {
    text.parse().map_err(|error| failures::bad_request(format!("unable to parse: {error}")))
}

/// Computes the usage of a container, by the annotation of its pod; `None` when it has no metrics.
fn share(annotated: Option<&str>, container: &str, count: usize, idle: &str) -> Option<Quantity> {
    let idle = || idle.parse().ok();
    let Some(annotated) = annotated.filter(|annotated| !annotated.is_empty()) else {
        return idle();
    };
    if annotated.contains('=') {
        let mut pairs = annotated.split(',').filter_map(|pair| pair.trim().split_once('='));
        return match pairs.find(|(name, _)| *name == container) {
            Some((_, amount)) => amount.parse().ok(),
            None => idle(),
        };
    }
    let whole: Quantity = annotated.parse().ok()?;
    let count = i64::try_from(count).ok()?.max(1);
    Some(Quantity::from_milli(whole.milli_value() / count, whole.format()))
}

/// Lists the resources of a group, for discovery: name, kind, whether it is namespaced, and verbs.
fn resources(
    group: &str,
) -> &'static [(&'static str, &'static str, bool, &'static [&'static str])] {
    match group {
        RESOURCE => &[
            ("nodes", "NodeMetrics", false, &["get", "list"]),
            ("pods", "PodMetrics", true, &["get", "list"]),
        ],
        // Any name can be the name of a metric.
        _ => &[],
    }
}

/// Builds the discovery document at `path`; `None` for those of other groups.
pub fn document(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let known = |name: &str| GROUPS.into_iter().find(|(group, _)| *group == name);
    match parts.as_slice() {
        ["apis", group] => {
            let (group, versions) = known(group)?;
            let mut document = api_group(group, versions);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Some(document)
        }
        ["apis", group, version] => {
            known(group).filter(|(_, versions)| versions.contains(version))?;
            let resource = |(name, kind, namespaced, verbs): &(&str, &str, bool, &[&str])| {
                json!({
                    "name": name, "singularName": "", "namespaced": namespaced, "kind": kind,
                    "verbs": verbs,
                })
            };
            let resources: Vec<Value> = resources(group).iter().map(resource).collect();
            Some(json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": format!("{group}/{version}"), "resources": resources,
            }))
        }
        _ => None,
    }
}

/// Builds the discovery entry of a group. The first version is the preferred one.
fn api_group(name: &str, versions: &[&str]) -> Value {
    let group_version =
        |version: &&str| json!({ "groupVersion": format!("{name}/{version}"), "version": version });
    json!({
        "name": name, "versions": versions.iter().map(group_version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(group_version),
    })
}

/// Adds the groups to the answer to `/apis`, in its legacy or its aggregated form.
pub fn add_groups(document: &mut Value, aggregated: bool) {
    let list = if aggregated { "items" } else { "groups" };
    let Some(groups) = document[list].as_array_mut() else { return };
    for (name, versions) in GROUPS {
        if !aggregated {
            groups.push(api_group(name, versions));
            continue;
        }
        let resource = |(plural, kind, namespaced, verbs): &(&str, &str, bool, &[&str])| {
            json!({
                "resource": plural, "responseKind": { "group": "", "version": "", "kind": kind },
                "scope": if *namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": "", "verbs": verbs,
            })
        };
        let resources: Vec<Value> = resources(name).iter().map(resource).collect();
        let version = |version: &&str| json!({ "version": version, "resources": resources, "freshness": "Current" });
        let versions: Vec<Value> = versions.iter().map(version).collect();
        groups.push(json!({ "metadata": { "name": name }, "versions": versions }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn usage_is_shared_by_the_containers() {
        for (said, container, count, share_of) in [
            (None, "a", 2, Some("1m")),
            (Some(""), "a", 2, Some("1m")),
            (Some("500m"), "a", 1, Some("500m")),
            (Some("500m"), "b", 2, Some("250m")),
            (Some("a=100m, b=2"), "b", 2, Some("2")),
            (Some("a=100m"), "b", 2, Some("1m")),
            (Some("none"), "a", 1, None),
            (Some("a=none"), "a", 1, None),
        ] {
            let found = share(said, container, count, IDLE_CPU).map(|amount| amount.to_string());
            assert_eq!(found.as_deref(), share_of, "{said:?} {container}");
        }
    }

    #[test]
    fn values_are_those_that_were_set() {
        let (store, registry) = (Store::new(100), Registry::new(builtin()));
        let now = Timestamp::from_secs(1000);
        let metrics = Metrics { store: &store, registry: &registry, now };
        let put = |table: &str, key: &str, object: Value| {
            store.create(table, key, object).expect("it is new");
        };
        let pod = |name: &str, cpu: &str, phase: &str| {
            json!({
                "metadata": {
                    "name": name, "namespace": "ns", "labels": { "app": name },
                    "annotations": { CPU: cpu, "sandbox/metric.queue": "1500m" },
                },
                "spec": { "nodeName": "n", "containers": [{ "name": "main" }] },
                "status": { "phase": phase },
            })
        };
        put("pods", "ns/a", pod("a", "300m", "Running"));
        put("pods", "ns/b", pod("b", "none", "Running"));
        put("pods", "ns/c", pod("c", "300m", "Pending"));
        put("nodes", "n", json!({ "metadata": { "name": "n" } }));
        let data = json!({ "jobs": "3 queue=a\n4 queue=b,zone=z\nfive" });
        let map = json!({ "metadata": { "name": EXTERNAL_METRICS }, "data": data });
        put("configmaps", &format!("ns/{EXTERNAL_METRICS}"), map);

        let ask = |path: &str, query: &str| {
            let at = ResourcePath::parse(path).expect("a path");
            metrics.answer("list", &at, &Query::parse(query)).expect("of these groups")
        };
        let count =
            |path: &str, query: &str| ask(path, query).unwrap()["items"].as_array().unwrap().len();
        let of_pods = "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods";
        let pods = ask(of_pods, "").unwrap();
        assert_eq!(pods["items"].as_array().unwrap().len(), 1, "{pods}");
        assert_eq!(
            pods["items"][0]["containers"][0]["usage"],
            json!({ "cpu": "300m", "memory": "1Mi" })
        );
        assert_eq!(count(of_pods, "labelSelector=app%3Db"), 0);
        assert_eq!(ask(&format!("{of_pods}/a"), "").unwrap()["kind"], "PodMetrics");
        assert_eq!(ask(&format!("{of_pods}/c"), "").unwrap_err().code, 404);
        let nodes = ask("/apis/metrics.k8s.io/v1beta1/nodes", "").unwrap();
        assert_eq!(nodes["items"][0]["usage"]["cpu"], "300m");

        let custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/queue";
        assert_eq!(count(custom, ""), 3);
        assert_eq!(count(custom, "labelSelector=app%3Da"), 1);
        let one =
            ask("/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/pods/b/queue", "").unwrap();
        assert_eq!(
            (&one["items"][0]["value"], &one["items"][0]["metricName"]),
            (&json!("1500m"), &json!("queue"))
        );
        assert_eq!(ask(&custom.replace("queue", "other"), "").unwrap_err().code, 404);

        let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/jobs";
        assert_eq!(count(external, ""), 2);
        assert_eq!(count(external, "labelSelector=zone%3Dz"), 1);
        assert_eq!(count(&external.replace("jobs", "none"), ""), 0);
        let at = ResourcePath::parse("/apis/apps/v1/deployments").unwrap();
        assert!(metrics.answer("list", &at, &Query::default()).is_none());
    }

    #[test]
    fn discovery_names_the_groups() {
        for aggregated in [true, false] {
            let mut document = json!({ "items": [], "groups": [] });
            add_groups(&mut document, aggregated);
            let list = if aggregated { "items" } else { "groups" };
            assert_eq!(document[list].as_array().unwrap().len(), 3);
        }
        let custom = document("/apis/custom.metrics.k8s.io").unwrap();
        assert_eq!(custom["preferredVersion"]["version"], "v1beta2");
        assert!(document("/apis/metrics.k8s.io/v1beta1").is_some());
        assert!(document("/apis/metrics.k8s.io/v1").is_none() && document("/apis/apps").is_none());
    }
}
