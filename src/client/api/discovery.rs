//! The resources that the server serves. Upstream: client-go's `discovery` and `restmapper`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::client::call::Call;
use crate::client::error::undecoded;
use crate::client::{Client, Result};
use crate::objects::{Istr, ResourceType, null_as_default};

/// The media types of aggregated discovery, with plain JSON for servers that do not know it.
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// One resource that the server serves, without its subresources. Upstream: `metav1.APIResource`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResource {
    /// Group, version, kind, plural name and scope.
    pub resource: ResourceType,
    /// The verbs that the server names, such as `list`; a user may still not be allowed to use
    /// them.
    pub verbs: Vec<Istr>,
    /// Whether its version is the one that the server prefers, among those of its group that have
    /// the resource.
    pub preferred: bool,
}

impl ApiResource {
    /// Returns whether all of `verbs` are among those of the resource. Upstream:
    /// `discovery.SupportsAllVerbs`.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|known| known == verb))
    }
}

/// The resources of all groups: a snapshot. Upstream: `RESTMapper`, `ServerPreferredResources`.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Each resource in each version that serves it; within a group, the server's preferred version
    /// comes first.
    pub resources: Vec<ApiResource>,
    /// Group versions that could not be read, such as `metrics.k8s.io/v1beta1`, and why. Their
    /// resources are not known: absence from `resources` does not mean that they are not served.
    pub failures: BTreeMap<String, String>,
}

impl Discovery {
    /// Returns the resource of a kind in a version; `None` if none is known. Upstream:
    /// `RESTMapping`.
    pub fn resource_for(&self, group: &str, version: &str, kind: &str) -> Option<ResourceType> {
        let matches = |found: &&ApiResource| {
            let resource = &found.resource;
            resource.version == version && resource.is_of_kind(group, kind)
        };
        self.resources.iter().find(matches).map(|found| found.resource.clone())
    }

    /// Returns whether a version of `group` could not be read.
    pub fn has_failure_in(&self, group: &str) -> bool {
        let is_of_group =
            |version: &String| version.rsplit_once('/').is_some_and(|(of, _)| of == group);
        self.failures.keys().any(is_of_group)
    }

    /// Returns the failures in one text, in a stable order; `None` without one. Upstream:
    /// `ErrGroupDiscoveryFailed`.
    pub fn failure(&self) -> Option<String> {
        let mut texts: Vec<String> =
            self.failures.iter().map(|(version, why)| format!("{version}: {why}")).collect();
        texts.sort();
        let all = texts.join(", ");
        (!texts.is_empty())
            .then(|| format!("unable to retrieve the complete list of server APIs: {all}"))
    }

    /// Returns each resource once, in its preferred version. Upstream: `ServerPreferredResources`.
    pub fn preferred(&self) -> impl Iterator<Item = &ApiResource> {
        self.resources.iter().filter(|found| found.preferred)
    }
}

impl ResourceType {
    /// Returns whether its objects are of this kind, which may also be in lower case. Upstream:
    /// `restmapper.NewDiscoveryRESTMapper`.
    pub(super) fn is_of_kind(&self, group: &str, kind: &str) -> bool {
        let is_lower = || !kind.bytes().any(|byte| byte.is_ascii_uppercase());
        let is_kind = self.kind == kind || (self.kind.eq_ignore_ascii_case(kind) && is_lower());
        is_kind && self.group == group
    }
}

/// The answer of aggregated discovery. Upstream: `apidiscovery.APIGroupDiscoveryList`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedList {
    kind: String,
    #[serde(deserialize_with = "null_as_default")]
    items: Vec<AggregatedGroup>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedGroup {
    metadata: Named,
    #[serde(deserialize_with = "null_as_default")]
    versions: Vec<AggregatedVersion>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedVersion {
    version: String,
    freshness: String,
    #[serde(deserialize_with = "null_as_default")]
    resources: Vec<AggregatedResource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AggregatedResource {
    resource: String,
    response_kind: Option<Kind>,
    scope: String,
    #[serde(deserialize_with = "null_as_default")]
    verbs: Vec<Istr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kind {
    kind: String,
}

/// The legacy answer to `/api`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiVersions {
    #[serde(deserialize_with = "null_as_default")]
    versions: Vec<String>,
}

/// The legacy answer to `/apis`. Upstream: `metav1.APIGroupList`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupList {
    #[serde(deserialize_with = "null_as_default")]
    groups: Vec<LegacyGroup>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LegacyGroup {
    name: String,
    #[serde(deserialize_with = "null_as_default")]
    versions: Vec<LegacyVersion>,
    preferred_version: LegacyVersion,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LegacyVersion {
    version: String,
}

/// The legacy answer about one group version. Upstream: `metav1.APIResourceList`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourceList {
    #[serde(deserialize_with = "null_as_default")]
    resources: Vec<LegacyResource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LegacyResource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(deserialize_with = "null_as_default")]
    verbs: Vec<Istr>,
}

impl Client {
    /// Reads the served resources from the server, at each call: two requests, or one for each
    /// group version where the server does not know aggregated discovery. May be dropped at any
    /// time.
    ///
    /// # Errors
    /// When `/apis` cannot be read, or `/api` for another reason than 404. A group version that
    /// cannot be read is in [`Discovery::failures`].
    pub async fn discover(&self) -> Result<Discovery> {
        let mut found = Discovery::default();
        for (path, core) in [("/api", true), ("/apis", false)] {
            let mut call = Call::new("GET", path);
            call.accept = AGGREGATED;
            let body = match self.send(&call).await {
                // A server that serves only groups.
                Err(error) if core && error.is_not_found() => continue,
                body => body?,
            };
            // A server without aggregated discovery answers in another form, which decodes as an
            // empty list of another kind.
            let list: AggregatedList =
                serde_json::from_slice(&body).map_err(undecoded(&call.to_string()))?;
            if list.kind == "APIGroupDiscoveryList" {
                found.add_aggregated(list.items);
            } else if core {
                let ApiVersions { versions } =
                    serde_json::from_slice(&body).map_err(undecoded(&call.to_string()))?;
                let version = |version| LegacyVersion { version };
                let versions: Vec<LegacyVersion> = versions.into_iter().map(version).collect();
                let preferred_version = versions.first().cloned().unwrap_or_default();
                let group = LegacyGroup { name: String::new(), versions, preferred_version };
                self.add_legacy(&mut found, group).await;
            } else {
                let groups: GroupList =
                    serde_json::from_slice(&body).map_err(undecoded(&call.to_string()))?;
                for group in groups.groups {
                    self.add_legacy(&mut found, group).await;
                }
            }
        }
        found.mark_preferred();
        self.inner.served.observe(&found);
        Ok(found)
    }

    /// Adds the resources of a group, with one request for each version, the preferred version
    /// first.
    async fn add_legacy(&self, found: &mut Discovery, group: LegacyGroup) {
        let first = group.preferred_version.version.clone();
        let mut versions = group.versions;
        versions.sort_by_key(|version| version.version != first);
        for LegacyVersion { version } in versions {
            let path = match group.name.as_str() {
                "" => format!("/api/{version}"),
                name => format!("/apis/{name}/{version}"),
            };
            match self.fetch::<ResourceList>(&Call::new("GET", path)).await {
                Ok(list) => {
                    for resource in list.resources {
                        let LegacyResource { name, kind, namespaced, verbs } = resource;
                        found.add_resource(&group.name, &version, name, kind, namespaced, verbs);
                    }
                }
                // Tolerated, as upstream: a server may have no core group.
                Err(error) if group.name.is_empty() && error.is_not_found() => {}
                Err(error) => found.add_failure(&group.name, &version, |_| error.to_string()),
            }
        }
    }
}

impl Discovery {
    /// Adds the resources of an answer in the aggregated form; a stale version counts as a failure.
    fn add_aggregated(&mut self, groups: Vec<AggregatedGroup>) {
        for AggregatedGroup { metadata: Named { name: group }, versions } in groups {
            for AggregatedVersion { version, freshness, resources } in versions {
                if freshness == "Stale" {
                    self.add_failure(&group, &version, |name| {
                        format!("stale GroupVersion discovery: {name}")
                    });
                    continue;
                }
                for resource in resources {
                    let AggregatedResource { resource, response_kind, scope, verbs } = resource;
                    let kind = response_kind.unwrap_or_default().kind;
                    self.add_resource(
                        &group,
                        &version,
                        resource,
                        kind,
                        scope == "Namespaced",
                        verbs,
                    );
                }
            }
        }
    }

    /// Adds a resource; subresources and entries without a kind are left out.
    fn add_resource(
        &mut self,
        group: &str,
        version: &str,
        plural: String,
        kind: String,
        namespaced: bool,
        verbs: Vec<Istr>,
    ) {
        if plural.contains('/') || kind.is_empty() {
            return;
        }
        let resource = ResourceType {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            kind: kind.into(),
            plural: plural.into(),
            namespaced,
        };
        self.resources.push(ApiResource { resource, verbs, preferred: false });
    }

    /// Records why a group version could not be read. `why` gets its name, such as `apps/v1`.
    fn add_failure(&mut self, group: &str, version: &str, why: impl FnOnce(&str) -> String) {
        let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let why = why(&name);
        self.failures.insert(name, why);
    }

    /// Marks each resource in the version that comes first: the server names a group's preferred
    /// version first.
    fn mark_preferred(&mut self) {
        let mut seen = std::collections::HashSet::new();
        for found in &mut self.resources {
            let name = (found.resource.group.clone(), found.resource.plural.clone());
            found.preferred = seen.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_preferred_and_stale_ones_are_failures() {
        let list: AggregatedList = serde_json::from_str(
            r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"batch"},"versions":[
            {"version":"v1","freshness":"Current","resources":[
              {"resource":"jobs","responseKind":{"kind":"Job"},"scope":"Namespaced","verbs":["list","watch"]}]},
            {"version":"v1beta1","freshness":"Current","resources":[
              {"resource":"jobs","responseKind":{"kind":"Job"},"scope":"Namespaced","verbs":[]}]}]},
            {"metadata":{"name":"metrics"},"versions":[{"version":"v1","freshness":"Stale"}]}]}"#,
        )
        .unwrap();
        let mut found = Discovery::default();
        found.add_aggregated(list.items);
        found.mark_preferred();
        let preferred: Vec<String> =
            found.preferred().map(|found| found.resource.api_version()).collect();
        assert_eq!(preferred, ["batch/v1"]);
        assert!(found.resources[0].supports(&["list"]) && !found.resources[0].supports(&["get"]));
        assert!(found.resource_for("batch", "v1beta1", "Job").is_some());
        assert!(found.resource_for("batch", "v2", "Job").is_none());
        assert_eq!(found.failures.keys().collect::<Vec<_>>(), ["metrics/v1"]);
        assert_eq!(
            found.failure().as_deref(),
            Some(
                "unable to retrieve the complete list of server APIs: metrics/v1: stale GroupVersion discovery: metrics/v1"
            )
        );
        assert_eq!(Discovery::default().failure(), None);
    }
}
