//! The ranges of all nodes, of one family or two.

use std::collections::HashMap;

use super::cidr::Cidr;
use super::cidr_set::CidrSet;
use super::config::Config;
use crate::objects::{ArcStr, Node, Uid};

pub struct Ranges {
    sets: Vec<CidrSet>,
    /// Ranges that the cache does not show with their nodes yet. A node of the same name with
    /// another uid has its own.
    allocated: HashMap<ArcStr, Allocated>,
}

/// The ranges that were taken for a node, and whether they are written to it.
struct Allocated {
    uid: Uid,
    ranges: Vec<Cidr>,
    state: WriteState,
}

#[derive(Clone, Copy, PartialEq)]
enum WriteState {
    /// No attempt to write them has ended yet.
    Unwritten,
    /// An attempt may have been carried out. A later refusal says nothing about it, so they stay
    /// the node's, and the next attempt is with the same ones.
    Unsure,
    /// The API server has taken them.
    Written,
}

impl Ranges {
    /// Makes the sets of the cluster's ranges, with those of services taken.
    /// Upstream: `NewCIDRRangeAllocator`.
    ///
    /// # Errors
    /// When a set cannot be made.
    pub fn new(config: &Config) -> Result<Ranges, String> {
        let mut sets = Vec::new();
        for (cluster, prefix) in &config.clusters {
            let mut set = CidrSet::new(*cluster, *prefix)?;
            for service in config.services.iter().filter(|service| service.overlaps(cluster)) {
                if let Err(error) = set.occupy(service) {
                    log::error!("Error filtering out service cidr {service}: {error}");
                }
            }
            sets.push(set);
        }
        Ok(Ranges { sets, allocated: HashMap::new() })
    }

    /// Takes ranges for a node that has none, one of each family, or returns the ones that it got
    /// before. They are the node's until they are [`mark_refused`](Ranges::mark_refused) or the
    /// node is gone. `None`: they are written to it, and the cache lags.
    ///
    /// # Errors
    /// When none is free.
    pub fn allocate(&mut self, node: &Node) -> Result<Option<Vec<Cidr>>, String> {
        let allocated =
            self.allocated.get(&node.meta.name).filter(|allocated| allocated.uid == node.meta.uid);
        if let Some(allocated) = allocated {
            return Ok((allocated.state != WriteState::Written).then(|| allocated.ranges.clone()));
        }
        let mut ranges = Vec::new();
        for index in 0..self.sets.len() {
            match self.sets[index].allocate() {
                Ok(range) => ranges.push(range),
                Err(error) => {
                    self.release(&ranges);
                    return Err(format!(
                        "failed to allocate cidr from cluster cidr at idx:{index}: {error}"
                    ));
                }
            }
        }
        let (uid, state) = (node.meta.uid.clone(), WriteState::Unwritten);
        let allocated = Allocated { uid, ranges: ranges.clone(), state };
        // A node of the same name, which is gone, had these ranges.
        if let Some(older) = self.allocated.insert(node.meta.name.clone(), allocated) {
            self.release(&older.ranges);
        }
        Ok(Some(ranges))
    }

    /// Records that the API server has taken the ranges that [`Ranges::allocate`] gave.
    pub fn mark_written(&mut self, node: &Node) {
        self.set_write_state(node, WriteState::Written);
    }

    /// Records that the API server may have taken them: the answer is lost.
    pub fn mark_outcome_unknown(&mut self, node: &Node) {
        self.set_write_state(node, WriteState::Unsure);
    }

    /// Sets the state of the node with this uid, not of another node of its name.
    fn set_write_state(&mut self, node: &Node, state: WriteState) {
        let allocated = self.allocated.get_mut(&node.meta.name);
        if let Some(allocated) = allocated.filter(|allocated| allocated.uid == node.meta.uid) {
            allocated.state = state;
        }
    }

    /// Frees the ranges that the API server has refused. They stay the node's if an earlier attempt
    /// is unsure.
    pub fn mark_refused(&mut self, node: &Node) {
        let allocated = self.allocated.get(&node.meta.name);
        if allocated.is_some_and(|allocated| allocated.state != WriteState::Unsure) {
            self.release_allocated(node);
        }
    }

    /// Frees the ranges that [`Ranges::allocate`] gave to this node, not to another of its name.
    fn release_allocated(&mut self, node: &Node) {
        let allocated = self.allocated.get(&node.meta.name);
        if allocated.is_some_and(|allocated| allocated.uid == node.meta.uid)
            && let Some(allocated) = self.allocated.remove(&node.meta.name)
        {
            self.release(&allocated.ranges);
        }
    }

    /// Frees the ranges, one in the set of each family.
    fn release(&mut self, ranges: &[Cidr]) {
        for (set, range) in self.sets.iter_mut().zip(ranges) {
            if let Err(error) = set.release(range) {
                log::error!("Error when releasing CIDR {range}: {error}");
            }
        }
    }

    /// Takes the ranges that a node has, frees others that [`Ranges::allocate`] gave to its name, and
    /// returns those that lie outside of the cluster's.
    /// Upstream: `occupyCIDRs`, which fails at the first of them.
    pub fn occupy(&mut self, node: &Node) -> Vec<String> {
        let pod_cidrs = &node.spec.pod_cidrs;
        if pod_cidrs.is_empty() {
            return Vec::new();
        }
        if let Some(allocated) = self.allocated.remove(&node.meta.name) {
            for (set, range) in self.sets.iter_mut().zip(&allocated.ranges) {
                let text = range.to_string();
                if !pod_cidrs.iter().any(|cidr| **cidr == *text)
                    && let Err(error) = set.release(range)
                {
                    log::error!("Error when releasing CIDR {range}: {error}");
                }
            }
        }
        let mut foreign = Vec::new();
        for text in pod_cidrs {
            // At most one family can hold it.
            let is_occupied = match Cidr::parse(text) {
                Some(range) => self.sets.iter_mut().any(|set| set.occupy(&range).is_ok()),
                None => false,
            };
            if !is_occupied {
                foreign.push(text.to_string());
            }
        }
        foreign
    }

    /// Frees the ranges of a node that is gone, except those that `successor` has, a node of the
    /// same name. Upstream: `ReleaseCIDR`.
    pub fn release_node(&mut self, node: &Node, successor: Option<&Node>) {
        self.release_allocated(node);
        let successors_ranges = successor.map(|node| &*node.spec.pod_cidrs).unwrap_or_default();
        let freed = node.spec.pod_cidrs.iter().filter(|text| !successors_ranges.contains(text));
        for range in freed.filter_map(|text| Cidr::parse(text)) {
            // At most one family holds it.
            self.sets.iter_mut().any(|set| set.release(&range).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ranges(clusters: &[(&str, u8)], services: &[&str]) -> Ranges {
        let cidr = |text: &str| Cidr::parse(text).unwrap();
        Ranges::new(&Config {
            clusters: clusters.iter().map(|(text, prefix)| (cidr(text), *prefix)).collect(),
            services: services.iter().map(|text| cidr(text)).collect(),
        })
        .unwrap()
    }

    fn node(name: &str, cidrs: &[&str]) -> Node {
        let json = json!({ "metadata": { "name": name }, "spec": { "podCIDRs": cidrs } });
        serde_json::from_value(json).unwrap()
    }

    /// What the next node of another name gets.
    fn allocate_for_next_node(ranges: &mut Ranges) -> String {
        let name = format!("new-{}", ranges.allocated.len());
        match ranges.allocate(&node(&name, &[])) {
            Ok(found) => {
                found.expect("a new node").iter().map(Cidr::to_string).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error,
        }
    }

    #[test]
    fn services_and_nodes_keep_their_ranges() {
        // Upstream: TestAllocateOrOccupyCIDRSuccess, TestOccupyPreExistingCIDR.
        for (clusters, services, nodes, allocated) in [
            (&[("127.123.234.0/24", 30)][..], &[][..], &[][..], "127.123.234.0/30"),
            (&[("127.123.234.0/24", 30)], &["127.123.234.0/26"], &[], "127.123.234.64/30"),
            (
                &[("127.123.234.0/24", 30)],
                &["127.123.234.0/26"],
                &[&["127.123.234.64/30"][..], &["127.123.234.68/30"]],
                "127.123.234.72/30",
            ),
            (
                &[("127.123.234.0/8", 24), ("ace:cab:deca::/48", 64)],
                &["127.0.0.0/16"],
                &[&["127.1.0.0/24", "ace:cab:deca::/64"]],
                "127.1.1.0/24 ace:cab:deca:1::/64",
            ),
            (
                &[("10.0.0.0/16", 24)],
                &["fd00::/112", "10.0.0.0/8"],
                &[],
                "failed to allocate cidr from cluster cidr at idx:0: CIDR allocation failed; there \
                 are no remaining CIDRs left to allocate in the accepted range",
            ),
        ] {
            let mut ranges = ranges(clusters, services);
            for cidrs in nodes {
                assert!(ranges.occupy(&node("old", cidrs)).is_empty());
            }
            assert_eq!(allocate_for_next_node(&mut ranges), allocated);
        }
    }

    #[test]
    fn ranges_that_the_cluster_does_not_hold_are_left_alone() {
        // The ranges of a node, those of them that are foreign, and the next one that is allocated.
        for (cidrs, foreign, allocated) in [
            (&["10.0.0.0/24"][..], &[][..], "10.0.1.0/24"),
            (&["x"], &["x"], "10.0.0.0/24"),
            (&["172.10.1.0/24"], &["172.10.1.0/24"], "10.0.0.0/24"),
            (&["10.0.0.0/24", "fd00::/64"], &["fd00::/64"], "10.0.1.0/24"),
            (&["fd00::/64", "10.0.0.0/24"], &["fd00::/64"], "10.0.1.0/24"),
        ] {
            let mut ranges = ranges(&[("10.0.0.0/16", 24)], &[]);
            let odd = node("n", cidrs);
            assert_eq!(ranges.occupy(&odd), foreign, "{cidrs:?}");
            assert_eq!(allocate_for_next_node(&mut ranges), allocated, "{cidrs:?}");
            ranges.release_node(&odd, None);
            assert_eq!(ranges.occupy(&odd), foreign, "{cidrs:?}");
        }
    }

    #[test]
    fn a_range_is_taken_from_the_family_that_holds_it() {
        let mut ranges = ranges(&[("fd00::/48", 64), ("10.0.0.0/16", 24)], &[]);
        let older = node("n", &["10.0.0.0/24", "fd00::/64"]);
        assert!(ranges.occupy(&older).is_empty());
        assert_eq!(allocate_for_next_node(&mut ranges), "fd00:0:0:1::/64 10.0.1.0/24");
    }

    #[test]
    fn a_family_without_free_ranges_costs_the_other_none() {
        let mut ranges = ranges(&[("10.0.0.0/23", 24), ("fd00::/64", 64)], &[]);
        assert_eq!(allocate_for_next_node(&mut ranges), "10.0.0.0/24 fd00::/64");
        for _ in 0..5 {
            assert!(
                allocate_for_next_node(&mut ranges)
                    .starts_with("failed to allocate cidr from cluster cidr at idx:1")
            );
        }
        ranges.release_node(&node("first", &["10.0.0.0/24", "fd00::/64"]), None);
        assert!(allocate_for_next_node(&mut ranges).ends_with(" fd00::/64"));
    }

    #[test]
    fn a_range_stays_with_its_node_or_its_successor() {
        let mut ranges = ranges(&[("10.0.0.0/23", 24)], &[]);
        let old = node("n", &["10.0.0.0/24"]);
        assert!(ranges.occupy(&old).is_empty());
        ranges.release_node(&old, Some(&node("n", &["10.0.0.0/24"])));
        assert_eq!(allocate_for_next_node(&mut ranges), "10.0.1.0/24");
        // A write with an unsure end: the node gets the same range again.
        let x = node("x", &[]);
        ranges.release_node(&node("new-0", &[]), None);
        let allocated = ranges.allocate(&x).unwrap();
        assert!(allocated.is_some());
        assert_eq!(ranges.allocate(&x).unwrap(), allocated);
        ranges.mark_written(&x);
        assert_eq!(ranges.allocate(&x), Ok(None), "until the cache shows it");
        assert!(allocate_for_next_node(&mut ranges).starts_with("failed"));
        assert!(ranges.occupy(&node("x", &["10.0.1.0/24"])).is_empty());
        ranges.mark_refused(&x);
        assert!(
            allocate_for_next_node(&mut ranges).starts_with("failed"),
            "it is not the node's to refuse any more"
        );
        // A node got another one in the meantime, was refused, or is gone.
        ranges.release_node(&old, None);
        let y = node("y", &[]);
        assert!(ranges.allocate(&y).unwrap().is_some());
        assert!(ranges.occupy(&node("y", &["10.0.1.0/24"])).is_empty());
        assert!(ranges.allocate(&y).unwrap().is_some());
        ranges.mark_refused(&y);
        assert!(ranges.allocate(&y).unwrap().is_some());
        ranges.release_node(&y, None);
        assert_eq!(allocate_for_next_node(&mut ranges), "10.0.0.0/24");
    }

    #[test]
    fn a_refusal_after_a_lost_answer_frees_nothing() {
        let mut ranges = ranges(&[("10.0.0.0/24", 24)], &[]);
        let (x, y) = (node("x", &[]), node("y", &[]));
        let allocated = ranges.allocate(&x).unwrap();
        ranges.mark_outcome_unknown(&x);
        ranges.mark_refused(&x);
        assert!(ranges.allocate(&y).is_err(), "the only range may be the node's");
        assert_eq!(ranges.allocate(&x).unwrap(), allocated);
        ranges.release_node(&x, None);
        assert_eq!(ranges.allocate(&y).unwrap(), allocated);
    }
}
