//! The environment of a container, with the downward API. Upstream: `makeEnvironmentVariables`,
//! `third_party/forked/golang/expansion`.

use std::collections::HashMap;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Quantity;

use crate::pod::{Container, Pod, PodExt, quantity};

/// What the downward API needs beside the pod.
#[derive(Clone, Copy)]
pub struct NodeFacts<'a> {
    pub host_ip: &'a str,
    pub pod_ips: &'a [String],
    /// The node's CPUs and bytes of memory: the limits of a container that has none.
    pub cpus: i64,
    pub memory_bytes: i64,
}

/// The variables in the order of the definition.
///
/// # Errors
/// One line that names the variable whose source does not exist.
pub fn variables(
    pod: &Pod,
    container: &Container,
    facts: NodeFacts<'_>,
) -> Result<Vec<(String, String)>, String> {
    let mut variables: Vec<(String, String)> = Vec::new();
    let mut values: HashMap<String, String> = HashMap::new();
    for env in container.env.iter().flatten() {
        let value = match (&env.value, &env.value_from) {
            (Some(value), _) => expand(value, &values),
            (None, None) => String::new(),
            (None, Some(from)) => source(pod, container, from, facts)
                .map_err(|fault| format!("environment variable {}: {fault}", env.name))?,
        };
        values.insert(env.name.clone(), value.clone());
        variables.retain(|(name, _)| *name != env.name);
        variables.push((env.name.clone(), value));
    }
    Ok(variables)
}

fn source(
    pod: &Pod,
    container: &Container,
    from: &core::EnvVarSource,
    facts: NodeFacts<'_>,
) -> Result<String, String> {
    if let Some(field) = &from.field_ref {
        return pod_field(pod, &field.field_path, facts);
    }
    if let Some(resource) = &from.resource_field_ref {
        let of = match resource.container_name.as_deref().filter(|name| !name.is_empty()) {
            None => container,
            Some(name) => pod.container(name).ok_or_else(|| format!("no container {name}"))?,
        };
        return resource_field(of, resource, facts);
    }
    Err("its source is not supported".to_owned())
}

/// A field of the pod. Upstream: `fieldpath.ExtractFieldPathAsString`,
/// `podFieldSelectorRuntimeValue`.
pub fn pod_field(pod: &Pod, path: &str, facts: NodeFacts<'_>) -> Result<String, String> {
    let key = |prefix: &str| {
        path.strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix("['"))
            .and_then(|rest| rest.strip_suffix("']"))
    };
    let lines = |map: &Option<std::collections::BTreeMap<String, String>>| {
        let lines = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    if let Some(key) = key("metadata.annotations") {
        return Ok(pod.annotation(key).unwrap_or_default().to_owned());
    }
    if let Some(key) = key("metadata.labels") {
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        return Ok(label.cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_string(),
        "metadata.labels" => lines(&pod.metadata.labels),
        "metadata.annotations" => lines(&pod.metadata.annotations),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => facts.host_ip.to_owned(),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        other => return Err(format!("unsupported fieldPath: {other}")),
    })
}

/// A request or limit, in units of its divisor, rounded up.
fn resource_field(
    container: &Container,
    field: &core::ResourceFieldSelector,
    facts: NodeFacts<'_>,
) -> Result<String, String> {
    let (list, resource) = field
        .resource
        .split_once('.')
        .filter(|(list, _)| ["limits", "requests"].contains(list))
        .ok_or_else(|| format!("unsupported container resource: {}", field.resource))?;
    let resources = container.resources.as_ref();
    let lists = resources.map(|resources| (resources.limits.as_ref(), resources.requests.as_ref()));
    let (limits, requests) = lists.unwrap_or_default();
    let own = if list == "limits" { limits } else { requests };
    let own = own.and_then(|list| quantity(list, resource)).filter(|amount| !amount.is_zero());
    let node = match (list, resource) {
        ("limits", "cpu") => Quantity::new(facts.cpus),
        ("limits", "memory") => Quantity::new(facts.memory_bytes),
        _ => Quantity::ZERO,
    };
    let amount = own.unwrap_or(node);
    let divisor = field.divisor.as_ref().and_then(|divisor| divisor.0.parse::<Quantity>().ok());
    let divisor = divisor.filter(|divisor| divisor.is_positive()).unwrap_or(Quantity::ONE);
    let (amount, divisor) = match resource {
        "cpu" => (amount.milli_value(), divisor.milli_value()),
        _ => (amount.value(), divisor.value()),
    };
    Ok((amount / divisor + i64::from(amount % divisor > 0)).to_string())
}

/// Replaces `$(NAME)` by the value of a known variable; `$$` is a dollar sign.
pub fn expand(text: &str, values: &HashMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            match values.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_expanded_once() {
        let values =
            HashMap::from([("A".to_owned(), "a".to_owned()), ("B".to_owned(), "$(A)".to_owned())]);
        for (text, expanded) in [
            ("", ""),
            ("$(A)-$(B)", "a-$(A)"),
            ("$$(A)", "$(A)"),
            ("$(C) $A $", "$(C) $A $"),
            ("$(A", "$(A"),
            ("$$$(A)", "$a"),
        ] {
            assert_eq!(expand(text, &values), expanded, "{text}");
        }
    }

    #[test]
    fn downward_api_fills_variables() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
            "spec": {"nodeName": "host", "containers": [{"name": "c", "env": [
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MI", "valueFrom": {"resourceFieldRef":
                    {"resource": "requests.memory", "divisor": "1Mi"}}},
                {"name": "BOTH", "value": "$(NAME)/$(LABEL)"},
            ], "resources": {"requests": {"memory": "1500Ki"}}}]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let ips = ["10.0.0.1".to_owned()];
        let facts = NodeFacts { host_ip: "1.2.3.4", pod_ips: &ips, cpus: 2, memory_bytes: 1 };
        let variables = variables(&pod, &pod.spec().containers[0], facts).expect("variables");
        let values: Vec<&str> = variables.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["p", "b", "10.0.0.1", "2", "2", "p/b"]);
        let fault = pod_field(&pod, "spec.x", facts);
        assert_eq!(fault, Err("unsupported fieldPath: spec.x".to_owned()));
    }
}
