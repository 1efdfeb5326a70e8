//! The Scales of objects of any kind. Upstream: client-go's `scale`, `restmapper`.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::{ApiResource, Discovery, Dynamic};
use crate::client::{ApiPath, Client, Error, Result};
use crate::objects::{ObjectKey, ResourceType, Scale, null_as_default};

/// The shortest time between two reads of discovery for kinds that it did not know.
/// Upstream: the period of `restMapper.Reset`.
const REFRESH: Duration = Duration::from_secs(30);

/// Reads and writes the Scales of objects, by the kinds that discovery names. Cheap to clone.
/// Errors and dropped futures are as those of [`Dynamic`]. Upstream: `scale.ScalesGetter`.
#[derive(Clone)]
pub struct Scales {
    client: Client,
    /// When discovery was last read again, on the monotonic clock.
    refreshed: Arc<Mutex<Option<Duration>>>,
}

impl Scales {
    /// Scales that are read and written with `client`.
    pub fn new(client: Client) -> Scales {
        Scales { client, refreshed: Arc::default() }
    }

    /// Returns the resources of a kind, each in the version that the server prefers; with
    /// `version`, those that are served in it. Empty when none is known. A kind that is not known
    /// may be new, so discovery is read again for it, at most every 30 seconds.
    /// Upstream: `RESTMapper.RESTMappings`.
    pub async fn resources_of(
        &self,
        group: &str,
        kind: &str,
        version: Option<&str>,
    ) -> Result<Vec<ResourceType>> {
        let known = self.client.discovery().await?;
        let found = known.resources_of(group, kind, version);
        if !found.is_empty() || !self.may_refresh() {
            return Ok(found);
        }
        self.client.reset_discovery();
        Ok(self.client.discovery().await?.resources_of(group, kind, version))
    }

    /// Returns whether discovery may be read again, and notes the time if so: at most once in
    /// [`REFRESH`].
    fn may_refresh(&self) -> bool {
        let now = self.client.inner.clock.monotonic();
        let mut refreshed = self.refreshed.lock();
        if let Some(last) = *refreshed
            && now.saturating_sub(last) < REFRESH
        {
            return false;
        }
        *refreshed = Some(now);
        true
    }

    /// Reads the Scale of an object; not found (404) where the object or the subresource is
    /// missing. An object of the whole cluster is not found, since the path has a namespace.
    pub async fn get(&self, resource: &ResourceType, key: &ObjectKey) -> Result<Scale> {
        let scale: Scale = self.scale_of(resource, key).get(key).await?;
        scale.converted().map_err(Error::Scale)
    }

    /// Returns the verbs on the Scale of an object. The path always has the namespace, so an object
    /// of the whole cluster is not found. Otherwise a user of one namespace could scale it.
    fn scale_of(&self, resource: &ResourceType, key: &ObjectKey) -> Dynamic {
        let namespaced = !key.namespace.is_empty();
        let resource = ResourceType { namespaced, ..resource.clone() };
        self.client.resource(&resource).subresource("scale")
    }

    /// Replaces a Scale by one that asks for `replicas`. A conflict (409) when `scale` is not the
    /// newest.
    pub async fn update(
        &self,
        resource: &ResourceType,
        key: &ObjectKey,
        scale: &Scale,
        replicas: i32,
    ) -> Result<Scale> {
        let body = scale.with_replicas(replicas).map_err(|source| Error::Request {
            request: format!("PUT {resource} {key} scale"),
            source: source.into(),
        })?;
        let updated: Scale = self.scale_of(resource, key).update(key, &body).await?;
        updated.converted().map_err(Error::Scale)
    }

    /// Returns whether objects of a resource have a Scale at all. Asks the server each time.
    pub async fn are_served(&self, resource: &ResourceType) -> Result<bool> {
        let path = ApiPath::new(&resource.group, &resource.version);
        let served: Served = self.client.fetch(&path.call("GET")).await?;
        let name = format!("{}/scale", resource.plural);
        Ok(served.resources.iter().any(|found| found.name == name && found.kind == "Scale"))
    }
}

/// The resources of a group version, subresources included. Upstream: `metav1.APIResourceList`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Served {
    #[serde(deserialize_with = "null_as_default")]
    resources: Vec<ServedResource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServedResource {
    name: String,
    kind: String,
}

impl Discovery {
    /// Returns the discovered resources of a kind, each in its preferred version; with `version`,
    /// only those that are served in it as well. For [`Scales::resources_of`].
    fn resources_of(&self, group: &str, kind: &str, version: Option<&str>) -> Vec<ResourceType> {
        let of_kind = |found: &&ApiResource| found.resource.is_of_kind(group, kind);
        let is_served_in = |plural: &str, version: &str| {
            let mut all = self.resources.iter().filter(of_kind).map(|found| &found.resource);
            all.any(|resource| resource.plural == plural && resource.version == version)
        };
        let mut resources = Vec::new();
        for ApiResource { resource, .. } in self.preferred().filter(of_kind) {
            if version.is_none_or(|version| is_served_in(&resource.plural, version)) {
                resources.push(resource.clone());
            }
        }
        resources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_in_the_preferred_version() {
        let served = |version: &'static str, preferred| ApiResource {
            resource: ResourceType::fixed("example.com", version, "Cache", "caches", true),
            verbs: Vec::new(),
            preferred,
        };
        let resources = vec![served("v2", true), served("v1", false)];
        let discovery = Discovery { resources, ..Discovery::default() };
        for (group, kind, version, found) in [
            ("example.com", "Cache", None, Some("v2")),
            ("example.com", "Cache", Some("v1"), Some("v2")),
            ("example.com", "Cache", Some("v3"), None),
            ("example.com", "cache", None, Some("v2")),
            ("example.com", "CACHE", None, None),
            ("example.com", "Door", None, None),
            ("", "Cache", None, None),
        ] {
            let resources = discovery.resources_of(group, kind, version);
            let versions: Vec<&str> = resources.iter().map(|found| &*found.version).collect();
            assert_eq!(versions.first().copied(), found, "{group} {kind} {version:?}");
        }
    }
}
