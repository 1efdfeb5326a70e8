//! The node affinity of in-tree volumes, by the labels that CSI drivers give to their nodes.
//! Upstream: `csi-translation-lib`, `translateTopologyFromInTreeToCSI`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;

/// Kubernetes' labels of a zone and of a region.
const GA: (&str, &str) = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region");
const BETA: (&str, &str) =
    ("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region");

/// The labels of a driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topology {
    zone: &'static str,
    /// `None`: the driver has the regions of Kubernetes.
    region: Option<&'static str>,
}

impl Topology {
    /// Returns the labels of a driver whose volumes may be in several zones.
    pub(super) const fn of_zones(zone: &'static str) -> Topology {
        Topology { zone, region: None }
    }

    /// Returns the labels of a driver whose volumes are in one zone and one region.
    pub(super) const fn of_regions(zone: &'static str, region: &'static str) -> Topology {
        Topology { zone, region: Some(region) }
    }

    /// Returns the node affinity of a volume with the driver's labels in place of Kubernetes'
    /// labels of zones and regions. A zone or region that only the volume's own labels name is
    /// added.
    pub(super) fn affinity(
        self,
        volume: &core::PersistentVolume,
    ) -> Option<core::VolumeNodeAffinity> {
        let mut affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.clone());
        let required = affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        let mut terms =
            required.map(|required| required.node_selector_terms.clone()).unwrap_or_default();
        let labels = volume.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
        let (zone, region) = keys(&terms, |key| label(key).is_some());
        if !replace(&mut terms, zone, self.zone) {
            let zones = label(zone).unwrap_or_default();
            match self.region {
                None => add(&mut terms, self.zone, zones.split("__")),
                Some(_) => add(&mut terms, self.zone, [zones]),
            }
        }
        // A driver without a label of regions gets the GA one: newer nodes have no beta labels.
        let is_replaced = replace(&mut terms, region, self.region.unwrap_or(GA.1));
        if let (false, Some(own)) = (is_replaced, self.region) {
            add(&mut terms, own, label(region));
        }
        if !terms.is_empty() {
            let affinity = affinity.get_or_insert_default();
            affinity.required.get_or_insert_default().node_selector_terms = terms;
        }
        affinity
    }
}

/// Returns the labels of a zone and a region that a volume uses, in its affinity or else in its own
/// labels. Upstream: `getTopologyLabel`.
fn keys(
    terms: &[core::NodeSelectorTerm],
    has_label: impl Fn(&str) -> bool,
) -> (&'static str, &'static str) {
    let has_key = |key: &str| {
        let mut expressions = terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
        expressions.any(|expression| expression.key == key)
    };
    let by_affinity = [GA, BETA].into_iter().find(|(zone, _)| has_key(zone));
    let by_labels = || [GA, BETA].into_iter().find(|(zone, _)| has_label(zone));
    by_affinity.or_else(by_labels).unwrap_or(GA)
}

/// Replaces a key. Returns false if it is missing or has no values: then nothing changes.
/// Upstream: `getTopologyValues`, `replaceTopology`.
fn replace(terms: &mut [core::NodeSelectorTerm], old: &str, new: &str) -> bool {
    let expressions = terms.iter_mut().flat_map(|term| term.match_expressions.iter_mut().flatten());
    let found: Vec<&mut core::NodeSelectorRequirement> =
        expressions.filter(|expression| expression.key == old).collect();
    let has_values = found.iter().any(|found| found.values.iter().flatten().next().is_some());
    if has_values {
        for expression in found {
            expression.key = new.to_owned();
        }
    }
    has_values
}

/// Adds the requirement that `key` has one of `values` to all terms, or makes the first term of it.
/// Does nothing without values.
/// Upstream: `addTopology`.
fn add<'a>(
    terms: &mut Vec<core::NodeSelectorTerm>,
    key: &str,
    values: impl IntoIterator<Item = &'a str>,
) {
    let values = values.into_iter().map(str::trim).filter(|value| !value.is_empty());
    let values: BTreeSet<&str> = values.collect();
    if values.is_empty() {
        return;
    }
    if terms.is_empty() {
        terms.push(core::NodeSelectorTerm::default());
    }
    for term in terms {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        term.match_expressions.get_or_insert_default().push(core::NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(values),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ZONES: Topology = Topology::of_zones("d/zone");
    const REGIONS: Topology = Topology::of_regions("d/zone", "d/region");

    /// An expression of a node affinity.
    fn with(key: &str, values: &[&str]) -> Value {
        json!({"key": key, "operator": "In", "values": values})
    }

    #[test]
    fn affinity_has_the_labels_of_the_driver() {
        let other = with("other", &["o"]);
        let driver = with("d/zone", &["a", "b"]);
        let own = json!({GA.0: " b__a__", GA.1: "r"});
        let beta = json!({BETA.0: "b__a", BETA.1: "r"});
        for (topology, labels, before, expected) in [
            (ZONES, json!({}), vec![], vec![]),
            (ZONES, json!({}), vec![vec![other.clone()]], vec![vec![other.clone()]]),
            // The affinity counts before the labels.
            (
                ZONES,
                own.clone(),
                vec![vec![other.clone(), with(GA.0, &["z"])], vec![with(GA.0, &["y"])]],
                vec![vec![other.clone(), with("d/zone", &["z"])], vec![with("d/zone", &["y"])]],
            ),
            (
                ZONES,
                own.clone(),
                vec![vec![with(BETA.0, &["z"]), with(BETA.1, &["r"])]],
                vec![vec![with("d/zone", &["z"]), with(GA.1, &["r"])]],
            ),
            // Without the zone, a region stays as it is.
            (ZONES, json!({}), vec![vec![with(BETA.1, &["r"])]], vec![vec![with(BETA.1, &["r"])]]),
            (ZONES, own.clone(), vec![], vec![vec![driver.clone()]]),
            (ZONES, beta, vec![vec![other.clone()]], vec![vec![other, driver.clone()]]),
            (ZONES, json!({GA.0: "__"}), vec![], vec![]),
            (
                REGIONS,
                json!({GA.0: "z__y", GA.1: "r"}),
                vec![],
                vec![vec![with("d/zone", &["z__y"]), with("d/region", &["r"])]],
            ),
            (
                REGIONS,
                json!({}),
                vec![vec![with(BETA.0, &["z"]), with(BETA.1, &["r"])]],
                vec![vec![with("d/zone", &["z"]), with("d/region", &["r"])]],
            ),
        ] {
            let affinity = |terms: &[Vec<Value>]| {
                let terms = terms.iter().map(|term| json!({"matchExpressions": term}));
                let terms: Vec<Value> = terms.collect();
                match terms.is_empty() {
                    true => Value::Null,
                    false => json!({"required": {"nodeSelectorTerms": terms}}),
                }
            };
            let volume = json!({
                "metadata": {"labels": labels},
                "spec": {"nodeAffinity": affinity(&before)},
            });
            let parsed: core::PersistentVolume =
                serde_json::from_value(volume.clone()).expect("a volume");
            let found = serde_json::to_value(topology.affinity(&parsed)).expect("JSON");
            assert_eq!(found, affinity(&expected), "{topology:?} {volume}");
        }
    }
}
