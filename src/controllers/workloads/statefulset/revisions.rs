//! The current and the update revision of a StatefulSet.
//! Upstream: `getStatefulSetRevisions`, `truncateHistory`.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::StatefulSets;
use super::plan::revision;
use crate::controllers::Error;
use crate::controllers::workloads::history::{self, Limit, NewRevision};
use crate::objects::{
    ArcStr, ControllerRevision, Pod, RawObject, StatefulSet, Template, from_json,
};

/// A version of the template.
#[derive(Clone, Debug)]
pub struct Revision {
    pub name: ArcStr,
    pub template: Template,
}

/// The versions of which the pods of a set are, and its collision count.
#[derive(Clone, Debug)]
pub struct Revisions {
    pub current: Revision,
    /// The spec's template.
    pub update: Revision,
    pub collision_count: i32,
}

/// The revision for the template of a set's spec.
#[derive(Debug, PartialEq)]
enum TemplateRevision {
    /// This is the newest revision.
    Newest(usize),
    /// A rollback: this revision becomes the newest.
    Older(usize),
    Unknown,
}

/// Finds the revision that has the version of `new`. `is_equal`: whether a revision holds the
/// version of `new`. `semantically`: whether the newest one may have other bytes.
/// Upstream: the feature gate `StatefulSetSemanticRevisionComparison`.
fn find(
    new: &NewRevision,
    sorted: &[Arc<ControllerRevision>],
    is_equal: impl Fn(&ControllerRevision) -> bool,
    semantically: bool,
) -> TemplateRevision {
    // Without revisions no position equals this one.
    let newest = sorted.len().wrapping_sub(1);
    match sorted.iter().rposition(|known| is_equal(known)) {
        Some(at) if at == newest => TemplateRevision::Newest(at),
        Some(at) => TemplateRevision::Older(at),
        None if semantically && sorted.last().is_some_and(|known| new.is_equivalent(known)) => {
            TemplateRevision::Newest(newest)
        }
        None => TemplateRevision::Unknown,
    }
}

/// Reads the template that a revision holds.
/// Upstream: `ApplyRevision`.
fn template_of(revision: &ControllerRevision) -> Result<Template, Error> {
    #[derive(Deserialize)]
    struct Data {
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Spec {
        template: Box<RawValue>,
    }
    let read = || -> Result<Template, serde_json::Error> {
        let data: Data = from_json(revision.data.as_str())?;
        let mut template = RawObject::parse(data.spec.template.get())?;
        // The data is a patch: a directive in it says that the template is replaced.
        template.remove("$patch");
        from_json(&template.to_string())
    };
    read().map_err(|error| {
        Error::other(format!("the data of revision {} is malformed: {error}", revision.meta.name))
    })
}

/// Returns the revisions that are not in use and beyond the limit, oldest first.
fn beyond_limit(
    set: &StatefulSet,
    sorted: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
    revisions: &Revisions,
) -> Vec<Arc<ControllerRevision>> {
    let used: HashSet<&str> = pods
        .iter()
        .map(|pod| revision(pod))
        .chain([&*revisions.current.name, &*revisions.update.name])
        .collect();
    let is_used = |revision: &ControllerRevision| used.contains(&*revision.meta.name);
    let limit = set.spec.revision_history_limit.unwrap_or(DEFAULT_LIMIT);
    history::beyond_limit(sorted, is_used, Limit::Unused, limit)
}

/// The API server's default.
const DEFAULT_LIMIT: i32 = 10;

impl StatefulSets {
    /// Makes the spec's template the newest revision, and returns the current and the update
    /// revision.
    pub(super) async fn revisions(
        &self,
        set: &StatefulSet,
        sorted: &[Arc<ControllerRevision>],
    ) -> Result<Revisions, Error> {
        let mut collision_count = set.status.collision_count.unwrap_or(0);
        let new = NewRevision::of_stateful_set::<StatefulSet>(
            &set.meta,
            &set.spec.template,
            history::next_revision(sorted),
            collision_count,
        )?;
        let changed = &self.changed_revisions;
        let is_equal = |known: &ControllerRevision| changed.is_equal(&set.meta, new.data(), known);
        let update = match find(&new, sorted, is_equal, self.compares_semantically) {
            TemplateRevision::Newest(at) => sorted[at].meta.name.clone(),
            TemplateRevision::Older(at) => {
                let (client, clock) = (&self.client, &*self.clock);
                history::renumber(client, clock, &sorted[at], new.revision()).await?.meta.name
            }
            TemplateRevision::Unknown => {
                let client = &self.client;
                let (created, count) =
                    new.create_under_free_name(client, set, changed, collision_count).await?;
                collision_count = count;
                created.meta.name
            }
        };
        let update = Revision { name: update, template: set.spec.template.clone() };
        let current = sorted.iter().find(|known| set.status.current_revision == *known.meta.name);
        let current = match current {
            Some(current) if current.meta.name != update.name => {
                Revision { name: current.meta.name.clone(), template: template_of(current)? }
            }
            // As upstream also where the revision of the status is gone.
            _ => update.clone(),
        };
        Ok(Revisions { current, update, collision_count })
    }

    /// Deletes revisions beyond the limit. Upstream: `truncateHistory`.
    pub(super) async fn truncate_history(
        &self,
        set: &StatefulSet,
        sorted: &[Arc<ControllerRevision>],
        pods: &[Arc<Pod>],
        revisions: &Revisions,
    ) -> Result<(), Error> {
        for revision in beyond_limit(set, sorted, pods, revisions) {
            history::delete(&self.client, &revision).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::golang::complete_pod_template;

    fn stored(name: &str, number: i64, data: &str) -> Arc<ControllerRevision> {
        let text =
            format!(r#"{{"metadata":{{"name":"{name}"}},"revision":{number},"data":{data}}}"#);
        Arc::new(serde_json::from_str(&text).unwrap())
    }

    fn set(template: Value) -> StatefulSet {
        let json = json!({"metadata": {"name": "web"},
            "spec": {"template": template, "revisionHistoryLimit": 1}});
        serde_json::from_value(json).unwrap()
    }

    fn new(set: &StatefulSet) -> NewRevision {
        NewRevision::of_stateful_set::<StatefulSet>(&set.meta, &set.spec.template, 9, 0).unwrap()
    }

    /// The data that the manager writes for a set.
    fn data(set: &StatefulSet) -> String {
        serde_json::to_value(new(set)).unwrap()["data"].to_string()
    }

    #[test]
    fn a_template_is_the_newest_revision_an_older_one_or_a_new_one() {
        let image = |image: &str| {
            let mut template = json!({"spec": {"containers": [{"image": image}]}});
            complete_pod_template(&mut template);
            set(template)
        };
        let (a, b) = (image("a"), image("b"));
        let (of_a, of_b) = (data(&a), data(&b));
        // Written by a manager that knows a field more.
        let of_newer = of_a.replace(r#""spec":{"containers""#, r#""spec":{"new":1,"containers""#);
        // Written when the API had no such default.
        let of_older = of_a.replace(r#""dnsPolicy":"ClusterFirst","#, "");
        assert!(of_newer != of_a && of_older != of_a);
        for (history, semantically, known) in [
            (vec![&of_older], true, TemplateRevision::Newest(0)),
            (vec![&of_older], false, TemplateRevision::Unknown),
            (vec![], true, TemplateRevision::Unknown),
            (vec![&of_a], true, TemplateRevision::Newest(0)),
            (vec![&of_b], true, TemplateRevision::Unknown),
            (vec![&of_a, &of_b], true, TemplateRevision::Older(0)),
            (vec![&of_a, &of_b, &of_a], true, TemplateRevision::Newest(2)),
            (vec![&of_newer], true, TemplateRevision::Newest(0)),
            (vec![&of_newer], false, TemplateRevision::Unknown),
            (vec![&of_newer, &of_b], true, TemplateRevision::Unknown),
            (vec![&of_a, &of_newer], true, TemplateRevision::Older(0)),
        ] {
            let sorted: Vec<_> = history
                .iter()
                .enumerate()
                .map(|(at, data)| stored(&at.to_string(), at as i64, data))
                .collect();
            let new = new(&a);
            let found =
                find(&new, &sorted, |known| new.data() == known.data.as_str(), semantically);
            assert_eq!(found, known, "{history:?}");
        }
    }

    #[test]
    fn the_template_of_a_revision_is_restored() {
        let text = r#"{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"a":"b"}},"spec":{"n":1.50}}}}"#;
        let template = template_of(&stored("r", 1, text)).unwrap();
        assert_eq!(template.json(), r#"{"metadata":{"labels":{"a":"b"}},"spec":{"n":1.50}}"#);
        assert_eq!(template.labels.get("a"), Some("b"));
        for text in ["null", "{}", r#"{"spec":{"template":7}}"#] {
            assert!(template_of(&stored("r", 1, text)).is_err(), "{text}");
        }
    }

    #[test]
    fn revisions_in_use_are_kept() {
        let set = set(json!({}));
        let sorted: Vec<_> = ["a", "b", "c", "d", "e"]
            .iter()
            .enumerate()
            .map(|(at, name)| stored(name, at as i64, "{}"))
            .collect();
        let revision = |name: &str| Revision { name: name.into(), template: Template::default() };
        let revisions =
            Revisions { current: revision("d"), update: revision("e"), collision_count: 0 };
        let pod = |revision: &str| -> Arc<Pod> {
            let labels = json!({"controller-revision-hash": revision});
            Arc::new(serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap())
        };
        for (pods, gone) in [(vec![], vec!["a", "b"]), (vec![pod("a")], vec!["b"])] {
            let found = beyond_limit(&set, &sorted, &pods, &revisions);
            let names: Vec<&str> = found.iter().map(|revision| &*revision.meta.name).collect();
            assert_eq!(names, gone);
        }
    }
}
