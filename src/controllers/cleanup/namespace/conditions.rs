//! The conditions of a namespace's status, from the findings of a pass.
//! Upstream: `deletion.namespaceConditionUpdater`.

use std::collections::BTreeMap;

use super::content::Content;
use crate::objects::{Condition, Istr, ResourceType, Timestamp};

/// The findings of a pass: empty when nothing failed and no objects remain.
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
    pub fn remains(&mut self, resource: &ResourceType, content: Content) {
        if content.count > 0 {
            let name = format!("{}.{}", resource.plural, resource.group);
            self.resources.push((name, content.count));
        }
        for (finalizer, count) in content.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
    }

    /// Updates the conditions. Returns whether that changed anything.
    pub fn apply(&self, conditions: &mut Vec<Condition>, now: Timestamp) -> bool {
        let mut changed = false;
        for kind in &KINDS {
            let (status, reason, message) = match (kind.fault)(self) {
                Some(message) => ("True", kind.bad_reason, message),
                None => ("False", kind.good_reason, kind.good_message.to_owned()),
            };
            let known = conditions.iter_mut().find(|known| known.type_ == kind.name);
            let Some(known) = known else {
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
            if known.status != status {
                known.status = status.to_owned();
                known.last_transition_time = Some(now.truncate_to_secs());
                changed = true;
            }
            if known.reason.as_deref() != Some(reason)
                || known.message.as_deref() != Some(message.as_str())
            {
                known.reason = Some(reason.to_owned());
                known.message = Some(message);
                changed = true;
            }
        }
        changed
    }
}

/// One of the conditions that this controller keeps.
struct Kind {
    name: &'static str,
    good_reason: &'static str,
    good_message: &'static str,
    bad_reason: &'static str,
    /// The message of the condition, where it is true.
    fault: fn(&Findings) -> Option<String>,
}

/// In the order in which they are added.
const KINDS: [Kind; 5] = [
    Kind {
        name: "NamespaceDeletionDiscoveryFailure",
        good_reason: "ResourcesDiscovered",
        good_message: "All resources successfully discovered",
        bad_reason: "DiscoveryFailed",
        fault: |found| found.discovery.clone(),
    },
    Kind {
        name: "NamespaceDeletionGroupVersionParsingFailure",
        good_reason: "ParsedGroupVersions",
        good_message: "All legacy kube types successfully parsed",
        bad_reason: "GroupVersionParsingFailed",
        fault: |found| found.group_version.clone(),
    },
    Kind {
        name: "NamespaceDeletionContentFailure",
        good_reason: "ContentDeleted",
        good_message: "All content successfully deleted, may be waiting on finalization",
        bad_reason: "ContentDeletionFailed",
        fault: |found| {
            let count = found.failures.len();
            let texts = sorted(found.failures.iter().cloned())?;
            Some(format!("Failed to delete all resource types, {count} remaining: {texts}"))
        },
    },
    Kind {
        name: "NamespaceContentRemaining",
        good_reason: "ContentRemoved",
        good_message: "All content successfully removed",
        bad_reason: "SomeResourcesRemain",
        fault: |found| {
            let left =
                |(name, count): &(String, usize)| format!("{name} has {count} resource instances");
            let texts = sorted(found.resources.iter().map(left))?;
            Some(format!("Some resources are remaining: {texts}"))
        },
    },
    Kind {
        name: "NamespaceFinalizersRemaining",
        good_reason: "ContentHasNoFinalizers",
        good_message: "All content-preserving finalizers finished",
        bad_reason: "SomeFinalizersRemain",
        fault: |found| {
            let held = |(name, count): (&Istr, &usize)| {
                format!("{} in {count} resource instances", name.as_str())
            };
            let texts = sorted(found.finalizers.iter().map(held))?;
            Some(format!("Some content in the namespace has finalizers remaining: {texts}"))
        },
    },
];

/// The texts, always in the same order; `None` when there are none.
fn sorted(texts: impl Iterator<Item = String>) -> Option<String> {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(count: usize, finalizers: &[(&str, usize)]) -> Content {
        let finalizers = finalizers.iter().map(|(name, count)| (Istr::new(name), *count)).collect();
        Content { count, finalizers, ..Content::default() }
    }

    /// Type, status, reason and message of the conditions that are true.
    fn faults(found: &Findings) -> Vec<[String; 3]> {
        let mut conditions = Vec::new();
        assert!(found.apply(&mut conditions, Timestamp::from_secs(1)));
        assert_eq!(conditions.len(), 5);
        let wrong = conditions.into_iter().filter(|condition| condition.status == "True");
        wrong.map(|c| [c.type_, c.reason.unwrap(), c.message.unwrap()]).collect()
    }

    #[test]
    fn each_fault_has_its_condition() {
        assert!(faults(&Findings::default()).is_empty());
        let mut found = Findings {
            discovery: Some("away".into()),
            group_version: Some("unexpected GroupVersion string: a/b/c".into()),
            failures: vec!["b failed".into(), "a failed".into()],
            ..Findings::default()
        };
        let pods = ResourceType::fixed("", "v1", "Pod", "pods", true);
        let jobs = ResourceType::fixed("batch", "v1", "Job", "jobs", true);
        found.remains(&pods, content(2, &[("x.example/b", 2), ("x.example/a", 1)]));
        found.remains(&jobs, content(1, &[("x.example/a", 1)]));
        let text = |parts: [&str; 3]| parts.map(str::to_owned);
        assert_eq!(
            faults(&found),
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
        assert!(failing("a").apply(&mut conditions, at(1)));
        assert!(!failing("a").apply(&mut conditions, at(2)));
        assert!(failing("b").apply(&mut conditions, at(3)));
        assert_eq!(conditions[0].message.as_deref(), Some("b"));
        assert_eq!(conditions[0].last_transition_time, Some(at(1)), "still failing");
        assert!(Findings::default().apply(&mut conditions, at(4)));
        assert_eq!(conditions[0].last_transition_time, Some(at(4)));
        assert_eq!(conditions[0].reason.as_deref(), Some("ResourcesDiscovered"));
        assert_eq!(conditions[1].last_transition_time, Some(at(1)));
    }
}
