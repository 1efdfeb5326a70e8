//! The conditions of a namespace's status, from the findings of a pass.
//! Upstream: `deletion.namespaceConditionUpdater`.

use std::collections::BTreeMap;

use super::content::Content;
use crate::objects::{Condition, Istr, ResourceType, Timestamp};

/// The findings of a pass over the content of a namespace: empty when nothing failed and no objects
/// remain.
#[derive(Debug, Default)]
pub struct Findings {
    /// Why discovery did not name everything.
    pub discovery: Option<String>,
    /// A malformed group version.
    pub group_version: Option<String>,
    /// Why content could not be deleted, one text an attempt.
    pub failures: Vec<String>,
    /// The number of remaining objects, by `plural.group`.
    resources: Vec<(String, usize)>,
    /// The number of objects with each finalizer.
    finalizers: BTreeMap<Istr, usize>,
}

impl Findings {
    /// Records the objects of a resource that remain.
    pub fn add_remaining(&mut self, resource: &ResourceType, content: Content) {
        if content.count > 0 {
            let name = format!("{}.{}", resource.plural, resource.group);
            self.resources.push((name, content.count));
        }
        for (finalizer, count) in content.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
    }

    /// Updates the conditions of a namespace from the findings of a pass. Returns whether that
    /// changed any of them.
    pub fn update_conditions(&self, conditions: &mut Vec<Condition>, now: Timestamp) -> bool {
        let mut changed = false;
        for kind in &CONDITION_KINDS {
            let (status, reason, message) = match (kind.message_if_true)(self) {
                Some(message) => ("True", kind.bad_reason, message),
                None => ("False", kind.good_reason, kind.good_message.to_owned()),
            };
            let old = conditions.iter_mut().find(|old| old.type_ == kind.name);
            let Some(old) = old else {
                conditions.push(Condition {
                    type_: kind.name.to_owned(),
                    status: status.to_owned(),
                    last_transition_time: Some(now.truncate_to_secs()),
                    reason: Some(reason.to_owned()),
                    message: Some(message),
                    ..Condition::default()
                });
                changed = true;
                continue;
            };
            if old.status != status {
                old.status = status.to_owned();
                old.last_transition_time = Some(now.truncate_to_secs());
                changed = true;
            }
            if old.reason.as_deref() != Some(reason)
                || old.message.as_deref() != Some(message.as_str())
            {
                old.reason = Some(reason.to_owned());
                old.message = Some(message);
                changed = true;
            }
        }
        changed
    }
}

/// One of the conditions that this controller keeps.
struct ConditionKind {
    name: &'static str,
    good_reason: &'static str,
    good_message: &'static str,
    bad_reason: &'static str,
    /// The message of the condition; `None` where it is false.
    message_if_true: fn(&Findings) -> Option<String>,
}

/// The conditions, in the order in which they are added.
const CONDITION_KINDS: [ConditionKind; 5] = [
    ConditionKind {
        name: "NamespaceDeletionDiscoveryFailure",
        good_reason: "ResourcesDiscovered",
        good_message: "All resources successfully discovered",
        bad_reason: "DiscoveryFailed",
        message_if_true: |found| found.discovery.clone(),
    },
    ConditionKind {
        name: "NamespaceDeletionGroupVersionParsingFailure",
        good_reason: "ParsedGroupVersions",
        good_message: "All legacy kube types successfully parsed",
        bad_reason: "GroupVersionParsingFailed",
        message_if_true: |found| found.group_version.clone(),
    },
    ConditionKind {
        name: "NamespaceDeletionContentFailure",
        good_reason: "ContentDeleted",
        good_message: "All content successfully deleted, may be waiting on finalization",
        bad_reason: "ContentDeletionFailed",
        message_if_true: |found| {
            let count = found.failures.len();
            let texts = join_sorted(found.failures.iter().cloned())?;
            Some(format!("Failed to delete all resource types, {count} remaining: {texts}"))
        },
    },
    ConditionKind {
        name: "NamespaceContentRemaining",
        good_reason: "ContentRemoved",
        good_message: "All content successfully removed",
        bad_reason: "SomeResourcesRemain",
        message_if_true: |found| {
            let describe =
                |(name, count): &(String, usize)| format!("{name} has {count} resource instances");
            let texts = join_sorted(found.resources.iter().map(describe))?;
            Some(format!("Some resources are remaining: {texts}"))
        },
    },
    ConditionKind {
        name: "NamespaceFinalizersRemaining",
        good_reason: "ContentHasNoFinalizers",
        good_message: "All content-preserving finalizers finished",
        bad_reason: "SomeFinalizersRemain",
        message_if_true: |found| {
            let describe = |(name, count): (&Istr, &usize)| {
                format!("{} in {count} resource instances", name.as_str())
            };
            let texts = join_sorted(found.finalizers.iter().map(describe))?;
            Some(format!("Some content in the namespace has finalizers remaining: {texts}"))
        },
    },
];

/// Joins the texts, sorted so that the result is stable; `None` if there are none.
fn join_sorted(texts: impl Iterator<Item = String>) -> Option<String> {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    if texts.is_empty() { None } else { Some(texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(count: usize, finalizers: &[(&str, usize)]) -> Content {
        let finalizers = finalizers.iter().map(|(name, count)| (Istr::new(name), *count)).collect();
        Content { count, finalizers, ..Content::default() }
    }

    /// Type, status, reason and message of the conditions that are true.
    fn true_conditions(found: &Findings) -> Vec<[String; 3]> {
        let mut conditions = Vec::new();
        assert!(found.update_conditions(&mut conditions, Timestamp::from_secs(1)));
        assert_eq!(conditions.len(), 5);
        let wrong = conditions.into_iter().filter(|condition| condition.status == "True");
        wrong.map(|c| [c.type_, c.reason.unwrap(), c.message.unwrap()]).collect()
    }

    #[test]
    fn each_fault_has_its_condition() {
        assert!(true_conditions(&Findings::default()).is_empty());
        let mut found = Findings {
            discovery: Some("away".into()),
            group_version: Some("unexpected GroupVersion string: a/b/c".into()),
            failures: vec!["b failed".into(), "a failed".into()],
            ..Findings::default()
        };
        let pods = ResourceType::fixed("", "v1", "Pod", "pods", true);
        let jobs = ResourceType::fixed("batch", "v1", "Job", "jobs", true);
        found.add_remaining(&pods, content(2, &[("x.example/b", 2), ("x.example/a", 1)]));
        found.add_remaining(&jobs, content(1, &[("x.example/a", 1)]));
        let text = |parts: [&str; 3]| parts.map(str::to_owned);
        assert_eq!(
            true_conditions(&found),
            [
                text(["NamespaceDeletionDiscoveryFailure", "DiscoveryFailed", "away"]),
                text([
                    "NamespaceDeletionGroupVersionParsingFailure",
                    "GroupVersionParsingFailed",
                    "unexpected GroupVersion string: a/b/c",
                ]),
                text([
                    "NamespaceDeletionContentFailure",
                    "ContentDeletionFailed",
                    "Failed to delete all resource types, 2 remaining: a failed, b failed",
                ]),
                text([
                    "NamespaceContentRemaining",
                    "SomeResourcesRemain",
                    "Some resources are remaining: jobs.batch has 1 resource instances, pods. has 2 resource instances",
                ]),
                text([
                    "NamespaceFinalizersRemaining",
                    "SomeFinalizersRemain",
                    "Some content in the namespace has finalizers remaining: x.example/a in 2 resource instances, x.example/b in 2 resource instances",
                ]),
            ]
        );
    }

    #[test]
    fn a_condition_moves_only_when_it_changes() {
        let mut conditions = Vec::new();
        let at = Timestamp::from_secs;
        let failing = |text: &str| Findings { discovery: Some(text.into()), ..Findings::default() };
        assert!(failing("a").update_conditions(&mut conditions, at(1)));
        assert!(!failing("a").update_conditions(&mut conditions, at(2)));
        assert!(failing("b").update_conditions(&mut conditions, at(3)));
        assert_eq!(conditions[0].message.as_deref(), Some("b"));
        assert_eq!(conditions[0].last_transition_time, Some(at(1)), "still failing");
        assert!(Findings::default().update_conditions(&mut conditions, at(4)));
        assert_eq!(conditions[0].last_transition_time, Some(at(4)));
        assert_eq!(conditions[0].reason.as_deref(), Some("ResourcesDiscovered"));
        assert_eq!(conditions[1].last_transition_time, Some(at(1)));
    }
}
