//! The versions of the resources that servers of different releases serve in different versions.

use std::borrow::Cow;

use parking_lot::RwLock;

use super::api::Discovery;
use crate::objects::ResourceType;

/// A resource with the versions in which this program reads and writes it, the best one first.
pub type Versions = (ResourceType, &'static [&'static str]);

/// The versions to use, of the resources that [`Client::choose_versions`](super::Client) names.
#[derive(Default)]
pub(super) struct ServedVersions {
    choices: RwLock<Choices>,
}

#[derive(Default)]
struct Choices {
    /// The resources of which versions are chosen.
    known: &'static [Versions],
    /// The resources to use in place of those in `known` that name another version.
    others: Vec<ResourceType>,
    /// The resources in `known` of which the server served a version when they were chosen last.
    served: Vec<&'static ResourceType>,
}

impl Choices {
    /// Returns whether the version of `resource` is chosen.
    fn knows(&self, resource: &ResourceType) -> bool {
        self.known.iter().any(|(known, _)| known == resource)
    }
}

/// Returns whether both are the same resource, in any version.
fn is_same(one: &ResourceType, other: &ResourceType) -> bool {
    one.group == other.group && one.plural == other.plural
}

impl ServedVersions {
    /// Sets the resources of which versions are chosen. Drops the choices that were made among
    /// others.
    pub fn set_known(&self, known: &'static [Versions]) {
        let mut choices = self.choices.write();
        if choices.known != known {
            *choices = Choices { known, ..Choices::default() };
        }
    }

    /// Chooses the versions again by what a server serves. A resource stays as it is if the server
    /// does not serve it in a known version, or if a better version than that cannot be read.
    pub fn observe(&self, found: &Discovery) {
        let mut choices = self.choices.write();
        choices.served.clear();
        for (resource, versions) in choices.known {
            let group = &resource.group;
            let is_served =
                |version: &&&str| found.resource_for(group, version, &resource.kind).is_some();
            let is_unread =
                |version: &str| found.failures.contains_key(&format!("{group}/{version}"));
            let best = versions.iter().find(|version| is_served(version) || is_unread(version));
            let Some(version) = best.filter(is_served) else { continue };
            choices.served.push(resource);
            let before = choices.others.iter().position(|other| is_same(other, resource));
            let before = before.map(|at| choices.others.swap_remove(at).version);
            let before = before.as_ref().unwrap_or(&resource.version);
            if *before != *version {
                log::info!("{resource}: version {version} is used, in place of {before}");
            }
            if resource.version != *version {
                let version = Cow::Borrowed(*version);
                choices.others.push(ResourceType { version, ..resource.clone() });
            }
        }
    }

    /// Returns whether to choose again after an answer that `resource` is not served: if it was when
    /// the versions were chosen last. Until they are chosen again, or [`ServedVersions::failed`],
    /// all other such answers return false: the versions of all resources are chosen together.
    pub fn begin_again(&self, resource: &ResourceType) -> bool {
        let mut choices = self.choices.write();
        let begins = choices.served.contains(&resource);
        if begins {
            choices.served.clear();
        }
        begins
    }

    /// Lets the next answer that a resource is not served choose again, as the last try has failed.
    pub fn failed(&self) {
        let mut choices = self.choices.write();
        choices.served = choices.known.iter().map(|(resource, _)| resource).collect();
    }

    /// Returns the resource in the version that was chosen for it. It stays as it is if none was
    /// chosen, or if it names another version than the known resource.
    pub fn resolve(&self, resource: &ResourceType) -> ResourceType {
        let choices = self.choices.read();
        // Few, or none at all: each request comes here.
        let other = choices.others.iter().find(|other| is_same(other, resource));
        other.filter(|_| choices.knows(resource)).unwrap_or(resource).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ApiResource;
    use super::*;

    const RULES: ResourceType = ResourceType::fixed(
        "resource.k8s.io",
        "v1beta2",
        "DeviceTaintRule",
        "devicetaintrules",
        false,
    );
    const CLAIMS: ResourceType =
        ResourceType::fixed("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", true);

    fn serving(versions: &[&'static str]) -> Discovery {
        let served = |version: &&'static str| ApiResource {
            resource: ResourceType { version: Cow::Borrowed(*version), ..RULES },
            verbs: Vec::new(),
            preferred: false,
        };
        Discovery { resources: versions.iter().map(served).collect(), ..Discovery::default() }
    }

    #[test]
    fn best_version_that_is_served_is_used() {
        let versions = ServedVersions::default();
        versions.set_known(const { &[(RULES, &["v1", "v1beta2"])] });
        for (served, expected) in [
            (&["v1beta2"][..], "v1beta2"),
            (&["v1beta2", "v1"], "v1"),
            // What is not served at all, or cannot be read now, stays.
            (&[], "v1"),
            (&["v2"], "v1"),
            (&["v1beta2"], "v1beta2"),
        ] {
            versions.observe(&serving(served));
            assert_eq!(versions.resolve(&RULES).version, expected, "{served:?}");
            assert_eq!(versions.resolve(&CLAIMS), CLAIMS);
        }
        // A better version that cannot be read may still be served.
        versions.observe(&serving(&["v1"]));
        let mut found = serving(&["v1beta2"]);
        found.failures.insert("resource.k8s.io/v1".into(), "it is stale".into());
        versions.observe(&found);
        assert_eq!(versions.resolve(&RULES).version, "v1");
        // Only the version that the code names stands for all of them.
        versions.observe(&serving(&["v1"]));
        let other = ResourceType { version: "v1beta1".into(), ..RULES };
        assert_eq!(versions.resolve(&other), other);
    }
}
