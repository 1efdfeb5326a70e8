//! Discovery documents: the legacy lists and the aggregated form. Upstream:
//! `apidiscovery.k8s.io/v2`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::kinds::{Kind, Subresource};

/// A subresource: the kind of its answers, and its verbs.
struct Sub {
    name: &'static str,
    /// Group, version and kind; the two first are empty when they are the resource's own.
    kind: (&'static str, &'static str, String),
    verbs: &'static [&'static str],
}

const READ_WRITE: &[&str] = &["get", "patch", "update"];

/// Lists the subresources of a kind with their kinds and verbs, sorted by name.
fn subresources(kind: &Kind) -> Vec<Sub> {
    let same_kind = || ("", "", kind.resource.kind.to_string());
    let mut subs: Vec<Sub> = kind
        .subresources
        .iter()
        .map(|sub| {
            let (kind, verbs): (_, &'static [&'static str]) = match sub {
                Subresource::Scale { .. } => {
                    (("autoscaling", "v1", "Scale".to_owned()), READ_WRITE)
                }
                Subresource::Eviction => (("policy", "v1", "Eviction".to_owned()), &["create"]),
                Subresource::Binding => (("", "", "Binding".to_owned()), &["create"]),
                Subresource::Token => {
                    (("authentication.k8s.io", "v1", "TokenRequest".to_owned()), &["create"])
                }
                Subresource::Finalize => (same_kind(), &["update"]),
                Subresource::Log => (same_kind(), &["get"]),
                Subresource::Connect(what) => {
                    let of = match *what {
                        "attach" => "Attach",
                        "exec" => "Exec",
                        "portforward" => "PortForward",
                        _ => "Proxy",
                    };
                    let kind = ("", "", format!("{}{of}Options", kind.resource.kind));
                    match *what {
                        "proxy" => (kind, &["create", "delete", "get", "patch", "update"]),
                        _ => (kind, &["create", "get"]),
                    }
                }
                Subresource::Status
                | Subresource::Approval
                | Subresource::EphemeralContainers
                | Subresource::Resize => (same_kind(), READ_WRITE),
            };
            Sub { name: sub.name(), kind, verbs }
        })
        .collect();
    subs.sort_by_key(|sub| sub.name);
    subs
}

/// Returns the answer to `/api`.
pub fn api_versions() -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })
}

/// Lists the groups but for the core one, each with its versions, in order of their first
/// appearance.
fn groups(kinds: &[Arc<Kind>]) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for kind in kinds.iter().filter(|kind| !kind.resource.group.is_empty()) {
        let (group, version) = (kind.resource.group.as_ref(), kind.resource.version.to_string());
        match groups.iter_mut().find(|(name, _)| name == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group.to_owned(), vec![version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    }
    groups
}

/// Ranks a version: v2 before v1 before v1beta2 before v1alpha1 before other names. Upstream:
/// `version.CompareKubeAwareVersionStrings`.
fn priority(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let (rank, minor) = match &rest[digits..] {
            "" => (3, 0),
            rest => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (2, minor.parse().ok()?),
                (_, Some(minor)) => (1, minor.parse().ok()?),
                _ => return None,
            },
        };
        Some((rank, major, minor))
    };
    parse().unwrap_or((0, 0, 0))
}

fn api_group(name: &str, versions: &[String]) -> Value {
    let group_version = |version: &String| json!({ "groupVersion": format!("{name}/{version}"), "version": version });
    json!({
        "name": name, "versions": versions.iter().map(group_version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(group_version),
    })
}

/// Returns the answer to `/apis`.
pub fn api_groups(kinds: &[Arc<Kind>]) -> Value {
    let groups: Vec<Value> =
        groups(kinds).iter().map(|(name, versions)| api_group(name, versions)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// Returns the answer to `/apis/GROUP`; null when the group is not served.
pub fn group(kinds: &[Arc<Kind>], name: &str) -> Value {
    let Some((_, versions)) = groups(kinds).into_iter().find(|(group, _)| group == name) else {
        return Value::Null;
    };
    let mut group = api_group(name, &versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

/// Returns the kinds of this version of this group.
fn of_version<'a>(
    kinds: &'a [Arc<Kind>],
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Kind> {
    kinds
        .iter()
        .map(Arc::as_ref)
        .filter(move |kind| kind.resource.group == group && kind.resource.version == version)
}

/// Builds the answer to `/api/v1` and `/apis/GROUP/VERSION`; null when the version is not served.
pub fn resources_legacy(kinds: &[Arc<Kind>], group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for kind in of_version(kinds, group, version) {
        let resource = &kind.resource;
        let mut entry = json!({
            "name": resource.plural, "singularName": kind.singular,
            "namespaced": resource.namespaced, "kind": resource.kind, "verbs": kind.verbs(),
        });
        for (key, names) in [("shortNames", &kind.short_names), ("categories", &kind.categories)] {
            if !names.is_empty() {
                entry[key] = json!(names);
            }
        }
        resources.push(entry);
        for sub in subresources(kind) {
            let (group, version, name) = sub.kind;
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": name, "verbs": sub.verbs,
            });
            if !group.is_empty() {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            resources.push(entry);
        }
    }
    if resources.is_empty() {
        return Value::Null;
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
        "resources": resources,
    })
}

/// Builds the aggregated answer (`APIGroupDiscoveryList`) to `/api` (`core`) or `/apis`.
pub fn aggregated(kinds: &[Arc<Kind>], core: bool) -> Value {
    let groups = match core {
        true => vec![(String::new(), vec!["v1".to_owned()])],
        false => groups(kinds),
    };
    let items: Vec<Value> = groups
        .iter()
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        of_version(kinds, name, version).map(aggregated_resource).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({ "name": name }) };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items,
    })
}

/// Adds the version of an APIService of another server to the aggregated form. `resources` is that
/// server's list; without it the version is stale.
pub fn add_service(groups: &mut Value, service: &Value, resources: Option<&Value>) {
    let spec = &service["spec"];
    let entry = json!({
        "version": spec["version"],
        "resources": resources.map(aggregated_resources).unwrap_or_default(),
        "freshness": if resources.is_some() { "Current" } else { "Stale" },
    });
    let Some(groups) = groups["items"].as_array_mut() else { return };
    match groups.iter_mut().find(|group| group["metadata"]["name"] == spec["group"]) {
        Some(group) => {
            let Some(versions) = group["versions"].as_array_mut() else { return };
            match versions.iter_mut().find(|known| known["version"] == spec["version"]) {
                Some(known) => *known = entry,
                None => versions.push(entry),
            }
        }
        None => groups.push(json!({
            "metadata": { "name": spec["group"] }, "versions": [entry],
        })),
    }
}

/// Converts the resources of a legacy list to the aggregated form. Upstream:
/// `endpoints/discovery/aggregated.ConvertGroupVersionIntoToDiscovery`.
fn aggregated_resources(list: &Value) -> Vec<Value> {
    let resources = list["resources"].as_array();
    let mut converted: Vec<Value> = Vec::new();
    for resource in resources.into_iter().flatten() {
        let part = |key: &str| resource[key].as_str().unwrap_or_default();
        let kind = json!({
            "group": part("group"), "version": part("version"), "kind": part("kind"),
        });
        let verbs = &resource["verbs"];
        let Some((of, sub)) = part("name").split_once('/') else {
            let mut entry = json!({
                "resource": part("name"), "responseKind": kind, "verbs": verbs,
                "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
                "singularResource": part("singularName"),
            });
            for key in ["shortNames", "categories"] {
                if resource[key].is_array() {
                    entry[key] = resource[key].clone();
                }
            }
            converted.push(entry);
            continue;
        };
        let Some(known) = converted.iter_mut().find(|known| known["resource"] == of) else {
            continue;
        };
        let sub = json!({ "subresource": sub, "responseKind": kind, "verbs": verbs });
        match known["subresources"].as_array_mut() {
            Some(subs) => subs.push(sub),
            None => known["subresources"] = json!([sub]),
        }
    }
    converted
}

/// Adds the group of an APIService of another server to the answer to `/apis`.
pub fn add_group_of(document: &mut Value, service: &Value) {
    let spec = &service["spec"];
    let (Some(name), Some(version)) = (spec["group"].as_str(), spec["version"].as_str()) else {
        return;
    };
    let groups = document.get_mut("groups").and_then(Value::as_array_mut);
    let Some(groups) = groups else { return };
    let Some(group) = groups.iter_mut().find(|group| group["name"] == name) else {
        groups.push(api_group(name, &[version.to_owned()]));
        return;
    };
    let Some(versions) = group["versions"].as_array_mut() else { return };
    if !versions.iter().any(|known| known["version"] == version) {
        let named = format!("{name}/{version}");
        versions.push(json!({ "groupVersion": named, "version": version }));
    }
}

/// Builds the answer to `/apis/GROUP` for a group of other servers.
pub fn group_of<'a>(services: impl Iterator<Item = &'a Value>, path: &str) -> Option<Value> {
    let name = path.trim_end_matches('/').strip_prefix("/apis/")?;
    let own = services.filter(|service| service["spec"]["group"] == name);
    let versions = own.filter_map(|service| service["spec"]["version"].as_str());
    let mut versions: Vec<String> = versions.map(str::to_owned).collect();
    versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    if versions.is_empty() {
        return None;
    }
    let mut group = api_group(name, &versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// Builds the entry of a kind in the aggregated form, with its subresources.
fn aggregated_resource(kind: &Kind) -> Value {
    let resource = &kind.resource;
    let response_kind = |group: &str, version: &str, name: &str| {
        // Custom kinds name theirs in full, built-in ones leave group and version out.
        let (group, version) = match (kind.is_custom(), group) {
            (true, "") => (resource.group.as_ref(), resource.version.as_ref()),
            _ => (group, version),
        };
        json!({ "group": group, "version": version, "kind": name })
    };
    let mut entry = json!({
        "resource": resource.plural, "responseKind": response_kind("", "", &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": kind.verbs(),
    });
    for (key, names) in [("shortNames", &kind.short_names), ("categories", &kind.categories)] {
        if !names.is_empty() {
            entry[key] = json!(names);
        }
    }
    let subs: Vec<Value> = subresources(kind)
        .into_iter()
        .map(|sub| {
            let (group, version, name) = sub.kind;
            json!({
                "subresource": sub.name, "responseKind": response_kind(group, version, &name),
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subs.is_empty() {
        entry["subresources"] = subs.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn discovery_shows_served_kinds_in_both_forms() {
        let kinds: Vec<Arc<Kind>> = builtin().into_iter().map(Arc::new).collect();
        let apps = resources_legacy(&kinds, "apps", "v1");
        let names: Vec<&str> = apps["resources"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|r| r["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "controllerrevisions",
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/scale",
                "deployments/status",
                "replicasets",
                "replicasets/scale",
                "replicasets/status",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status"
            ]
        );
        assert_eq!(resources_legacy(&kinds, "apps", "v2"), Value::Null);
        assert_eq!(group(&kinds, "apps")["preferredVersion"]["groupVersion"], "apps/v1");
        let core = aggregated(&kinds, true);
        let pods = core["items"][0]["versions"][0]["resources"].as_array().unwrap();
        let pods = pods.iter().find(|r| r["resource"] == "pods").unwrap();
        assert_eq!(
            pods["subresources"][3]["responseKind"],
            json!({"group": "policy", "version": "v1", "kind": "Eviction"})
        );
        assert_eq!(pods["shortNames"], json!(["po"]));
    }

    #[test]
    fn the_resources_of_other_servers_are_shown() {
        let service = json!({ "spec": {
            "group": "metrics.test", "version": "v1", "service": { "name": "s" },
        } });
        let list = json!({ "resources": [
            {
                "name": "pods", "singularName": "pod", "namespaced": true, "kind": "PodMetrics",
                "verbs": ["get"], "shortNames": ["p"],
            },
            { "name": "pods/log", "namespaced": true, "kind": "Log", "verbs": ["get"] },
        ] });
        let mut groups = json!({ "items": [] });
        add_service(&mut groups, &service, None);
        let version = &groups["items"][0]["versions"][0];
        assert_eq!((&version["freshness"], &version["resources"]), (&json!("Stale"), &json!([])));
        add_service(&mut groups, &service, Some(&list));
        assert_eq!(groups["items"][0]["versions"].as_array().unwrap().len(), 1);
        let version = &groups["items"][0]["versions"][0];
        assert_eq!(version["freshness"], "Current");
        let pods = &version["resources"][0];
        assert_eq!(pods["responseKind"]["kind"], "PodMetrics");
        assert_eq!((&pods["scope"], &pods["shortNames"]), (&json!("Namespaced"), &json!(["p"])));
        assert_eq!(pods["subresources"][0]["subresource"], "log");
        let mut document = json!({ "groups": [] });
        for _ in 0..2 {
            add_group_of(&mut document, &service);
        }
        assert_eq!(document["groups"][0]["versions"].as_array().unwrap().len(), 1);
        let group = group_of([&service].into_iter(), "/apis/metrics.test").unwrap();
        assert_eq!(group["preferredVersion"]["groupVersion"], "metrics.test/v1");
        let mut other = group.clone();
        add_group_of(&mut other, &service);
        assert_eq!(other, group, "only the list of groups has one more");
        assert_eq!(group_of([&service].into_iter(), "/apis/other"), None);
    }

    #[test]
    fn versions_rank_as_upstream() {
        let mut versions = ["foo", "v1alpha1", "v1beta2", "v1", "v11", "v2", "v1beta1"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v11", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }
}
