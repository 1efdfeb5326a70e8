//! Creates claims from templates.

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{BY_OWNER, POD_CLAIM, metrics, owner_entry_value};
use crate::cache::{HistoryVersion, Lister};
use crate::client::Client;
use crate::controllers::Error;
use crate::objects::{
    ArcStr, Istr, Meta, ObjectKey, OwnerReference, RawObject, Resource, ResourceClaim,
    ResourceClaimSpec, ResourceClaimTemplate, Uid, from_json,
};

/// The longest prefix of a name: leaves room for a hyphen and five random characters in a name of
/// 63.
const MAX_BASE_LENGTH: usize = 57;

/// Finds the claims that were generated for an owner, and creates missing ones.
pub struct ClaimCreator {
    client: Client,
    claims: Lister<ResourceClaim>,
    templates: Lister<ResourceClaimTemplate>,
    /// The gate `DRAPrioritizedList`.
    allows_prioritized_lists: bool,
    /// New claims that the cache has not seen yet.
    unseen: Mutex<Vec<UnseenClaim>>,
}

/// A claim that was created and that the cache may lack.
struct UnseenClaim {
    owner: Uid,
    entry: Istr,
    name: ArcStr,
    version: HistoryVersion,
}

impl ClaimCreator {
    pub fn new(
        client: Client,
        claims: Lister<ResourceClaim>,
        templates: Lister<ResourceClaimTemplate>,
        allows_prioritized_lists: bool,
    ) -> ClaimCreator {
        ClaimCreator {
            client,
            claims,
            templates,
            allows_prioritized_lists,
            unseen: Mutex::default(),
        }
    }

    /// Returns the name of the claim that was generated for the owner's entry `entry`; `None` if it
    /// was not generated. The owner's status may lack it, if a manager ended between the two
    /// writes.
    pub fn find(&self, owner: &Uid, entry: &str) -> Option<ArcStr> {
        // Read before the index: a claim that is removed from `unseen` until then is in the index.
        let unseen = {
            let unseen = self.lock_unseen();
            let claim = unseen.iter().find(|claim| claim.owner == *owner && claim.entry == *entry);
            claim.map(|claim| claim.name.clone())
        };
        let cached = self.claims.by_index(&BY_OWNER, &owner_entry_value(owner, entry));
        let oldest =
            cached.iter().min_by_key(|claim| (claim.meta.creation_timestamp, &claim.meta.name));
        match oldest {
            Some(claim) => Some(claim.meta.name.clone()),
            None => unseen,
        }
    }

    /// Locks the list of new claims, and drops those that the cache has seen by now.
    fn lock_unseen(&self) -> parking_lot::MutexGuard<'_, Vec<UnseenClaim>> {
        let mut unseen = self.unseen.lock();
        let seen_version = self.claims.seen();
        unseen.retain(|claim| claim.version > seen_version);
        unseen
    }

    /// Creates the claim of an entry from its template, and returns the claim's name. The claim is
    /// remembered until the cache shows it.
    pub async fn create(
        &self,
        owner_meta: &Meta,
        owner: OwnerReference,
        entry: &Istr,
        template: &Istr,
    ) -> Result<ArcStr, Error> {
        let key = ObjectKey::new(&owner_meta.namespace, template);
        let Some(template) = self.templates.get(&key) else {
            let name = &key.name;
            return Err(Error::other(format!(
                "resource claim template \"{name}\": \
                 resourceclaimtemplate.resource.k8s.io \"{name}\" not found"
            )));
        };
        let body = RawObject::parse(template.spec.json())?;
        let spec: Option<ResourceClaimSpec> =
            body.get("spec").map(|spec| from_json(spec.get())).transpose()?;
        let spec = spec.unwrap_or_default();
        if spec.has_alternatives && !self.allows_prioritized_lists {
            return Err(Error::other(
                "template includes a prioritized list of subrequests, but the feature is disabled",
            ));
        }
        let uid = owner.uid.clone();
        let claim = NewClaim {
            api_version: ResourceClaim::RESOURCE.api_version(),
            kind: &ResourceClaim::RESOURCE.kind,
            metadata: claim_metadata(owner_meta, &owner, entry, &template),
            spec: body.get("spec"),
        };
        let claims = self.client.resource(&ResourceClaim::RESOURCE);
        let created = claims.create_for_metadata(&owner_meta.namespace, &claim).await;
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        metrics::count_creation(created.is_ok(), spec.admin_access, group, &owner.kind);
        let created = created.map_err(|error| {
            // Upstream names the claim, which has no name yet.
            Error::during("create ResourceClaim ", error)
        })?;
        let version = self.claims.written_at(created.meta.resource_version);
        let name = created.meta.name;
        let claim = UnseenClaim { owner: uid, entry: entry.clone(), name: name.clone(), version };
        self.lock_unseen().push(claim);
        Ok(name)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewClaim<'a> {
    api_version: String,
    kind: &'a str,
    metadata: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<&'a RawValue>,
}

/// Builds the metadata of a new claim for an owner's entry.
fn claim_metadata(
    owner_meta: &Meta,
    owner: &OwnerReference,
    entry: &str,
    template: &ResourceClaimTemplate,
) -> Value {
    let mut annotations = json!(template.spec.annotations);
    annotations[POD_CLAIM] = json!(entry);
    let mut metadata = json!({
        "generateName": generate_name(&owner_meta.name, entry),
        "ownerReferences": [owner],
        "annotations": annotations,
    });
    if !template.spec.labels.is_empty() {
        metadata["labels"] = json!(template.spec.labels);
    }
    metadata
}

/// Returns the prefix of a claim's name: the owner's and the entry's names. If they are too long
/// together, both are cut in proportion: the API server would cut only the end.
fn generate_name(owner: &str, entry: &str) -> String {
    let uncut = format!("{owner}-{entry}-");
    if uncut.len() <= MAX_BASE_LENGTH {
        return uncut;
    }
    let cut = |text: &str| {
        let end = text.len() * MAX_BASE_LENGTH / uncut.len();
        text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= end).map(|(_, c)| c).collect()
    };
    let (owner, entry): (String, String) = (cut(owner), cut(entry));
    // As upstream, without a hyphen at the end.
    format!("{owner}-{entry}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_in_proportion() {
        let (a, b) = ("a".repeat(63), "b".repeat(63));
        for (owner, entry, name) in [
            ("pod", "claim", "pod-claim-".to_owned()),
            (&a[..50], "claim", format!("{}-claim-", &a[..50])),
            (&a[..51], "claim", format!("{}-{}", &a[..50], &"claim"[..4])),
            (&a, &b, format!("{}-{}", &a[..28], &b[..28])),
        ] {
            assert_eq!(generate_name(owner, entry), name);
            assert!(name.len() <= MAX_BASE_LENGTH + 1);
        }
    }

    #[test]
    fn a_claim_has_the_content_of_its_template() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({ "spec": {
            "metadata": { "labels": { "a": "b" }, "annotations": { "x": "y" }, "name": "ignored" },
        } }))
        .unwrap();
        let owner_meta: Meta = serde_json::from_value(json!({ "name": "p", "uid": "u" })).unwrap();
        let owner = OwnerReference {
            kind: "Pod".into(),
            name: "p".into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let found = claim_metadata(&owner_meta, &owner, "c", &template);
        assert_eq!(
            found,
            json!({
                "generateName": "p-c-", "labels": { "a": "b" }, "ownerReferences": [owner],
                "annotations": { "x": "y", "resource.kubernetes.io/pod-claim-name": "c" },
            })
        );
        let plain = claim_metadata(&owner_meta, &owner, "c", &ResourceClaimTemplate::default());
        assert_eq!(plain["annotations"], json!({ "resource.kubernetes.io/pod-claim-name": "c" }));
        assert!(plain.get("labels").is_none());
    }
}
