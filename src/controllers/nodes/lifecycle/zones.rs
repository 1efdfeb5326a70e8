//! How fast nodes may be tainted for eviction: the states of zones, and their rates.

use std::collections::HashMap;

use crate::objects::{Istr, Node};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    Initial,
    Normal,
    /// No node is ready.
    FullDisruption,
    PartialDisruption,
}

impl ZoneState {
    fn is_full(&self) -> bool {
        *self == ZoneState::FullDisruption
    }
}

/// The nodes of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub ready: usize,
    pub not_ready: usize,
}

impl Count {
    pub fn size(&self) -> usize {
        self.ready + self.not_ready
    }

    /// Returns the state of a zone with these numbers of ready and not ready nodes.
    /// Upstream: `ComputeZoneState`.
    fn state(&self, unhealthy_threshold: f32) -> ZoneState {
        if self.ready == 0 && self.not_ready > 0 {
            ZoneState::FullDisruption
        } else if self.not_ready > 2
            && self.not_ready as f32 / self.size() as f32 >= unhealthy_threshold
        {
            ZoneState::PartialDisruption
        } else {
            ZoneState::Normal
        }
    }
}

/// Nodes a second, by flags.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// `--node-eviction-rate`
    pub normal: f32,
    /// `--secondary-node-eviction-rate`
    pub secondary: f32,
    /// `--large-cluster-size-threshold`
    pub large: i32,
    /// `--unhealthy-zone-threshold`
    pub unhealthy: f32,
}

impl Rates {
    /// Returns the nodes a second that may be tainted in a zone of `size` nodes; `None`: the rate
    /// stays as it is. A small zone that is disrupted in part gets no evictions.
    fn eviction_rate(&self, state: ZoneState, size: usize) -> Option<f32> {
        let is_large = i32::try_from(size).unwrap_or(i32::MAX) > self.large;
        match state {
            ZoneState::Initial => None,
            ZoneState::Normal | ZoneState::FullDisruption => Some(self.normal),
            ZoneState::PartialDisruption if is_large => Some(self.secondary),
            ZoneState::PartialDisruption => Some(0.0),
        }
    }
}

/// The consequence of the zones' states after a pass.
#[derive(Debug, PartialEq)]
pub enum Disruption {
    /// New rates of zones.
    Rates(Vec<(Istr, f32)>),
    /// No node of the cluster is ready any more: it is more likely that the manager is cut off. All
    /// evictions stop.
    Stop,
    /// Nodes are ready again: all nodes count as just heard of, and evictions have these rates.
    Resume(Vec<(Istr, f32)>),
}

/// Returns whether all zones are in full disruption: the last pass found nodes, none of them ready,
/// and evictions have stopped.
pub fn are_all_full(states: &HashMap<Istr, ZoneState>) -> bool {
    !states.is_empty() && states.values().all(ZoneState::is_full)
}

/// Updates the states of the zones, and returns the rates that change with them. Zones without
/// nodes in `counts` are forgotten.
/// Upstream: `handleDisruption`.
pub fn update(
    states: &mut HashMap<Istr, ZoneState>,
    counts: &HashMap<Istr, Count>,
    rates: &Rates,
) -> Disruption {
    let new: HashMap<&Istr, ZoneState> =
        counts.iter().map(|(zone, count)| (zone, count.state(rates.unhealthy))).collect();
    for zone in counts.keys() {
        states.entry(zone.clone()).or_insert(ZoneState::Initial);
    }
    states.retain(|zone, _| counts.contains_key(zone));
    // Both are true without zones: then nothing changes.
    let all_are_full = new.values().all(ZoneState::is_full);
    let all_were_full = states.values().all(ZoneState::is_full);
    if all_are_full && all_were_full {
        return Disruption::Rates(Vec::new());
    }
    let mut changed = Vec::new();
    for (zone, state) in states.iter_mut() {
        let next = new[zone];
        if all_were_full || *state != next {
            let rate = rates.eviction_rate(next, counts[zone].size());
            changed.extend(rate.map(|rate| (zone.clone(), rate)));
        }
        *state = next;
    }
    match (all_are_full, all_were_full) {
        (true, _) => Disruption::Stop,
        (_, true) => Disruption::Resume(changed),
        _ => Disruption::Rates(changed),
    }
}

/// Returns the key of a node's zone, from its region and zone; empty if it has neither label.
/// Upstream: `GetZoneKey`.
pub fn zone_of(node: &Node) -> Istr {
    let label = |beta: &str, stable: &str| {
        let labels = &node.meta.labels;
        labels.get(beta).or_else(|| labels.get(stable)).unwrap_or_default()
    };
    let zone = label("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let region = label("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");
    if zone.is_empty() && region.is_empty() {
        return Istr::default();
    }
    Istr::new(&format!("{region}:\0:{zone}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RATES: Rates = Rates { normal: 0.1, secondary: 0.01, large: 50, unhealthy: 0.55 };

    #[test]
    fn a_zone_has_a_state_by_its_ready_nodes() {
        use ZoneState::*;
        for (ready, not_ready, state) in [
            (1, 0, Normal),
            (0, 1, FullDisruption),
            (0, 3, FullDisruption),
            (1, 2, Normal),
            (2, 3, PartialDisruption),
            (45, 54, Normal),
            (45, 55, PartialDisruption),
            (0, 0, Normal),
        ] {
            let count = Count { ready, not_ready };
            assert_eq!(count.state(RATES.unhealthy), state, "{count:?}");
        }
    }

    fn counts(zones: &[(&str, usize, usize)]) -> HashMap<Istr, Count> {
        let count = |&(zone, ready, not_ready)| (Istr::new(zone), Count { ready, not_ready });
        zones.iter().map(count).collect()
    }

    /// Taints are taken back only then, not where a disrupted zone is stopped.
    #[test]
    fn all_zones_are_full_when_no_node_is_ready() {
        for (zones, expected) in [
            (&[("a", 0, 1), ("b", 0, 2)][..], true),
            (&[("a", 0, 1), ("b", 1, 4)], false),
            (&[("a", 4, 5)], false),
            (&[], false),
        ] {
            let mut states = HashMap::new();
            update(&mut states, &counts(zones), &RATES);
            assert_eq!(are_all_full(&states), expected, "{zones:?}");
        }
    }

    #[test]
    fn states_decide_rates() {
        // Upstream: TestMonitorNodeHealthEvictPodsWithDisruption. Zones of each pass, and what is
        // asked for after it.
        type Pass<'a> = (&'a [(&'a str, usize, usize)], &'a str);
        let cases: &[&[Pass]] = &[
            &[(&[("a", 1, 0)], "a=0.1"), (&[("a", 1, 0)], ""), (&[("a", 0, 1)], "stop")],
            // All dead from the start, and then some are ready.
            &[
                (&[("a", 0, 1), ("b", 0, 1)], "stop"),
                (&[("a", 0, 1), ("b", 0, 1)], ""),
                (&[("a", 0, 1), ("b", 1, 0)], "resume a=0.1 b=0.1"),
                (&[("a", 0, 1), ("b", 1, 0)], ""),
                (&[("a", 0, 1), ("b", 0, 1)], "stop"),
            ],
            // A full disruption of one zone evicts at the normal rate.
            &[(&[("a", 1, 0), ("b", 1, 0)], "a=0.1 b=0.1"), (&[("a", 0, 1), ("b", 1, 0)], "a=0.1")],
            // A partial disruption stops a small zone and slows a large one down.
            &[
                (&[("a", 5, 0), ("b", 60, 0)], "a=0.1 b=0.1"),
                (&[("a", 2, 3), ("b", 20, 40)], "a=0 b=0.01"),
                (&[("a", 3, 2), ("b", 20, 40)], "a=0.1"),
                (&[("b", 20, 40)], ""),
                (&[("a", 3, 2), ("b", 20, 40)], "a=0.1"),
            ],
            &[(&[], "")],
        ];
        for passes in cases {
            let mut states = HashMap::new();
            for (zones, expected) in *passes {
                let mut words = Vec::new();
                let rates = match update(&mut states, &counts(zones), &RATES) {
                    Disruption::Rates(rates) => rates,
                    Disruption::Stop => {
                        words.push("stop".to_owned());
                        Vec::new()
                    }
                    Disruption::Resume(rates) => {
                        words.push("resume".to_owned());
                        rates
                    }
                };
                let mut rates: Vec<String> =
                    rates.iter().map(|(zone, rate)| format!("{}={rate}", &**zone)).collect();
                rates.sort();
                words.extend(rates);
                assert_eq!(words.join(" "), *expected, "{zones:?}");
            }
        }
    }

    #[test]
    fn zones_are_told_apart_by_region_and_zone() {
        for (labels, key) in [
            (json!({}), ""),
            (json!({"topology.kubernetes.io/zone": "z"}), ":\0:z"),
            (
                json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"}),
                "r:\0:z",
            ),
            (
                json!({
                    "failure-domain.beta.kubernetes.io/zone": "b",
                    "topology.kubernetes.io/zone": "z",
                    "topology.kubernetes.io/region": "r",
                }),
                "r:\0:b",
            ),
        ] {
            let node: Node =
                serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap();
            assert_eq!(&*zone_of(&node), key);
        }
    }
}
