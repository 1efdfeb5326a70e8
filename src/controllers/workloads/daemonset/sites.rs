//! The nodes with the pods that a DaemonSet has there, and the order of these pods.

use std::cmp::Ordering;
use std::sync::Arc;

use hashbrown::HashMap;

use super::fit::Fit;
use crate::controllers::workloads::history::REVISION_LABEL;
use crate::objects::{ArcStr, Pod, Timestamp};

/// A pod of an old manager names its version by this label. Upstream:
/// `DaemonSetTemplateGenerationKey`.
pub(super) const GENERATION_LABEL: &str = "pod-template-generation";
/// Upstream: `DeprecatedTemplateGeneration`.
pub(super) const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";

/// A node, and the set's pods on it.
#[derive(Clone, Debug)]
pub(super) struct NodePods {
    pub node: ArcStr,
    /// `None`: there is no such node.
    pub fit: Option<Fit>,
    pub pods: Vec<Arc<Pod>>,
}

impl NodePods {
    /// Whether the set wants a pod on this node.
    pub fn should_run(&self) -> bool {
        self.fit.is_some_and(|fit| fit.should_run)
    }
}

/// The version of a set's template, as pods name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version<'a> {
    pub hash: &'a str,
    /// The generation in the annotation of a set that an older API wrote.
    pub generation: Option<i64>,
}

impl Version<'_> {
    /// Returns whether `pod` is of this version: by its hash or, of an old manager, its generation.
    /// Upstream: `IsPodUpdated`.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let labels = &pod.meta.labels;
        let by_hash = !self.hash.is_empty() && labels.get(REVISION_LABEL) == Some(self.hash);
        let by_generation = || {
            let generation = self.generation?.to_string();
            Some(labels.get(GENERATION_LABEL) == Some(&*generation))
        };
        by_hash || by_generation().unwrap_or(false)
    }
}

/// The rule by which a pod is available.
#[derive(Clone, Copy, Debug)]
pub(super) struct Availability {
    pub min_ready_seconds: i32,
    pub now: Timestamp,
}

impl Availability {
    /// Returns whether `pod` has been ready for `minReadySeconds`.
    pub fn is_available(&self, pod: &Pod) -> bool {
        pod.is_available(self.min_ready_seconds, self.now)
    }
}

/// Groups `pods` by the nodes that they run on or are meant for; pods without one are left out. The
/// nodes that exist come first, also those without pods; missing nodes that pods name follow.
/// Upstream: `getNodesToDaemonPods`.
pub(super) fn group_by_node(nodes: &[(ArcStr, Fit)], pods: &[Arc<Pod>]) -> Vec<NodePods> {
    let mut by_node: HashMap<&str, Vec<Arc<Pod>>> = HashMap::new();
    for pod in pods {
        // The kubelet and the garbage collector care for a pod that is finished and being deleted.
        if pod.is_terminal() && pod.meta.is_being_deleted() {
            continue;
        }
        if let Some(node) = pod.target_node() {
            by_node.entry(node).or_default().push(pod.clone());
        }
    }
    let mut sites: Vec<NodePods> = Vec::with_capacity(nodes.len());
    for (node, fit) in nodes {
        let pods = by_node.remove(&**node).unwrap_or_default();
        sites.push(NodePods { node: node.clone(), fit: Some(*fit), pods });
    }
    let strays = by_node.into_iter();
    sites.extend(strays.map(|(node, pods)| NodePods { node: node.into(), fit: None, pods }));
    sites
}

/// Returns whether a pod runs on a node, or is meant for one.
pub(super) fn has_target(pod: &Pod) -> bool {
    pod.target_node().is_some()
}

/// Compares two pods: scheduled ones come first, then the oldest. Upstream:
/// `podByCreationTimestampAndPhase`.
pub(super) fn order(one: &Pod, other: &Pod) -> Ordering {
    let key = |pod: &Pod| (pod.spec.node_name.is_empty(), pod.meta.creation_timestamp);
    key(one).cmp(&key(other)).then_with(|| one.meta.name.cmp(&other.meta.name))
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::{Value, json};

    use super::*;

    pub const NOW: Timestamp = Timestamp::from_secs(1_000_000);
    pub const RUNS: Fit = Fit { should_run: true, may_stay: true };
    pub const STAYS: Fit = Fit { should_run: false, may_stay: true };
    pub const GOES: Fit = Fit { should_run: false, may_stay: false };

    /// A pod from words: `new` or `old`; `ready` (for 100 seconds) or not; `going`; a phase;
    /// `waits` for a node.
    pub fn pod(name: &str, words: &str) -> Arc<Pod> {
        let has = |word: &str| words.split(' ').any(|other| other == word);
        let at = |seconds: i64| Timestamp::from_secs(NOW.as_secs() - seconds).to_string();
        let node = name.split('-').next();
        let phase = ["Failed", "Succeeded", "Pending"].into_iter().find(|phase| has(phase));
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": name, "creationTimestamp": at(1000),
                "labels": {"controller-revision-hash": if has("new") { "h" } else { "g" }},
            },
            "spec": {"nodeName": if has("waits") { None } else { node }},
            "status": {
                "phase": phase.unwrap_or("Running"),
                "conditions": [{
                    "type": "Ready", "status": if has("ready") { "True" } else { "False" },
                    "lastTransitionTime": at(100),
                }],
            },
        });
        if has("waits") {
            pod["spec"]["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}});
        }
        if has("going") {
            pod["metadata"]["deletionTimestamp"] = Value::from(at(0));
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Nodes with a fit each, and pods as [`pod`] makes them; the part of a pod's name before the
    /// dash is its node.
    pub fn sites(nodes: &[(&str, Fit)], pods: &[(&str, &str)]) -> Vec<NodePods> {
        let nodes: Vec<_> = nodes.iter().map(|(name, fit)| (ArcStr::from(*name), *fit)).collect();
        let pods: Vec<_> = pods.iter().map(|(name, words)| pod(name, words)).collect();
        group_by_node(&nodes, &pods)
    }

    pub fn names(pods: &[Arc<Pod>]) -> Vec<String> {
        let mut names: Vec<String> = pods.iter().map(|pod| pod.meta.name.to_string()).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{RUNS, names, pod, sites};
    use super::*;

    #[test]
    fn pods_belong_to_their_node_or_to_the_one_in_their_affinity() {
        let mut found = sites(
            &[("a", RUNS), ("b", RUNS)],
            &[
                ("a-1", "new"),
                ("a-2", "new waits"),
                ("gone-1", "new"),
                ("b-1", "Failed going"),
                ("b-2", "Failed"),
                ("-3", "new"),
            ],
        );
        found.sort_by(|one, other| one.node.cmp(&other.node));
        let found: Vec<_> =
            found.iter().map(|site| (&*site.node, site.fit.is_some(), names(&site.pods))).collect();
        assert_eq!(
            found,
            [
                ("a", true, vec!["a-1".to_owned(), "a-2".to_owned()]),
                ("b", true, vec!["b-2".to_owned()]),
                ("gone", false, vec!["gone-1".to_owned()]),
            ]
        );
    }

    #[test]
    fn the_version_of_a_pod_is_its_hash_or_generation() {
        let labelled = |key: &str, value: &str| {
            let mut pod = Pod::default();
            pod.meta.labels = [(key, value)].into_iter().collect();
            pod
        };
        let (hash, generation) = (labelled(REVISION_LABEL, "h"), labelled(GENERATION_LABEL, "3"));
        for (version, by_hash, by_generation) in [
            (Version { hash: "h", generation: None }, true, false),
            (Version { hash: "g", generation: Some(3) }, false, true),
            (Version { hash: "h", generation: Some(4) }, true, false),
            (Version { hash: "", generation: None }, false, false),
        ] {
            assert_eq!(
                (version.is_of(&hash), version.is_of(&generation)),
                (by_hash, by_generation)
            );
        }
        assert!(!Version { hash: "", generation: None }.is_of(&Pod::default()));
    }

    #[test]
    fn scheduled_pods_come_first_then_older_ones() {
        let mut pods = [pod("n-4", "waits"), pod("n-3", ""), pod("n-2", ""), pod("n-1", "waits")];
        let mut older = (*pods[1]).clone();
        older.meta.creation_timestamp = Some(Timestamp::from_secs(1));
        pods[1] = Arc::new(older);
        pods.sort_by(|one, other| order(one, other));
        let ordered: Vec<&str> = pods.iter().map(|pod| &*pod.meta.name).collect();
        assert_eq!(ordered, ["n-3", "n-2", "n-1", "n-4"]);
    }
}
