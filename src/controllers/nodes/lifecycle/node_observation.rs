//! The observation of a node in a pass, and the decisions that follow.

use super::Unmarked;
use super::health::Ready;
use crate::controllers::nodes::taints::{self, Swap};
use crate::objects::{NO_EXECUTE, Node, NodeCondition};

/// The observation of a node in a pass.
pub struct NodeObservation {
    /// The condition Ready as the node has it; Unknown without one.
    pub observed: Ready,
    /// The same after the pass; `None` if the node has no condition Ready.
    pub current: Option<Ready>,
    /// The conditions to write first.
    pub write: Option<Vec<NodeCondition>>,
    /// Whether nothing was heard of the node for its grace period.
    pub is_silent: bool,
}

impl NodeObservation {
    /// Drops the decision: the node stays as it is in this pass.
    pub fn suspend(&mut self, node: &Node) {
        (self.current, self.write, self.is_silent) = (Ready::of_node(node), None, false);
    }

    /// Returns whether the node was ready until this pass.
    pub fn is_lost(&self) -> bool {
        self.observed == Ready::True && self.current.is_some_and(|ready| ready != Ready::True)
    }

    /// Returns whether pods of the node may still say Ready and are to be marked: the node was lost
    /// in this pass, or an earlier attempt is due. Otherwise a node that is alive marks its pods
    /// itself.
    pub(super) fn has_ready_pods(&self, unmarked: Unmarked) -> bool {
        let waits = match unmarked {
            Unmarked::No => false,
            Unmarked::Failed => true,
            Unmarked::Inherited => self.is_silent,
        };
        let is_unready = self.current.is_some_and(|ready| ready != Ready::True);
        self.is_lost() || waits && is_unready && self.observed != Ready::True
    }

    /// Returns what is known of the node's pods after the pass. `has_failed`: not all of them could
    /// be marked.
    pub(super) fn unmarked_after(&self, before: Unmarked, has_failed: bool) -> Unmarked {
        match before {
            _ if has_failed => Unmarked::Failed,
            // Its grace period under this manager has not ended.
            Unmarked::Inherited if self.current == Some(Ready::Unknown) && !self.is_silent => {
                before
            }
            _ => Unmarked::No,
        }
    }

    /// Returns the change of taints if the node has one that it must not have: what to remove, and
    /// what to add in its place.
    pub fn swap(&self, node: &Node) -> Option<Swap<'static>> {
        let has = |key: &&'static str| taints::has_taint(node, key, NO_EXECUTE);
        let (add, remove) = match self.current? {
            Ready::True => (None, vec![taints::UNREACHABLE, taints::NOT_READY]),
            Ready::False => (Some(taints::NOT_READY), vec![taints::UNREACHABLE]),
            Ready::Unknown => (Some(taints::UNREACHABLE), vec![taints::NOT_READY]),
        };
        let remove: Vec<&str> = remove.into_iter().filter(has).collect();
        let add = add.into_iter().collect();
        (!remove.is_empty()).then_some(Swap { effect: NO_EXECUTE, add, remove })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_taint_for_eviction_is_swapped_when_the_condition_changes() {
        use Ready::{False, True, Unknown};
        let (not_ready, unreachable) = (taints::NOT_READY, taints::UNREACHABLE);
        for (current, has, add, remove) in [
            (Some(True), &[][..], &[][..], &[][..]),
            (Some(True), &[not_ready], &[], &[not_ready]),
            (Some(True), &[not_ready, unreachable], &[], &[unreachable, not_ready]),
            (Some(False), &[unreachable], &[not_ready], &[unreachable]),
            (Some(Unknown), &[not_ready], &[unreachable], &[not_ready]),
            // The queue of the zone adds these.
            (Some(False), &[], &[], &[]),
            (Some(Unknown), &[], &[], &[]),
            (Some(False), &[not_ready], &[], &[]),
            (Some(Unknown), &[unreachable], &[], &[]),
            (None, &[not_ready], &[], &[]),
        ] {
            let of = |key: &&str| json!({ "key": key, "effect": NO_EXECUTE });
            let taints: Vec<Value> = has.iter().map(of).collect();
            let node: Node =
                serde_json::from_value(json!({ "spec": { "taints": taints } })).unwrap();
            let look =
                NodeObservation { observed: Unknown, current, write: None, is_silent: false };
            let (add, remove) = (add.to_vec(), remove.to_vec());
            let expected = (!remove.is_empty()).then_some(Swap { effect: NO_EXECUTE, add, remove });
            assert_eq!(look.swap(&node), expected, "{current:?} {has:?}");
        }
    }

    #[test]
    fn pods_are_marked_when_their_node_is_lost_and_not_when_it_reports_by_itself() {
        use Ready::{False, True, Unknown};
        use Unmarked::{Failed, Inherited, No};
        for (observed, current, is_silent, unmarked, marked) in [
            (True, Some(True), false, No, false),
            (True, Some(Unknown), true, No, true),
            (Unknown, Some(Unknown), true, No, false),
            // A kubelet that says that it is not ready, under a new manager too.
            (False, Some(False), false, No, false),
            (False, Some(False), false, Inherited, false),
            // Lost under another manager, which may have died before it marked the pods.
            (Unknown, Some(Unknown), true, Inherited, true),
            (Unknown, Some(Unknown), false, Inherited, false),
            (Unknown, Some(Unknown), true, Failed, true),
            (False, Some(False), false, Failed, true),
            (True, Some(True), false, Failed, false),
            (Unknown, None, false, Failed, false),
        ] {
            let look = NodeObservation { observed, current, write: None, is_silent };
            assert_eq!(
                look.has_ready_pods(unmarked),
                marked,
                "{observed:?} {current:?} {is_silent} {unmarked:?}"
            );
        }
    }

    #[test]
    fn pods_of_a_node_that_was_lost_before_are_remembered_for_its_grace_period() {
        use Ready::{False, True, Unknown};
        use Unmarked::{Failed, Inherited, No};
        for (current, is_silent, before, has_failed, after) in [
            (Unknown, false, Inherited, false, Inherited),
            (Unknown, true, Inherited, false, No),
            (Unknown, true, Inherited, true, Failed),
            (False, false, Inherited, false, No),
            (True, false, Inherited, false, No),
            (Unknown, false, Failed, false, No),
            (Unknown, true, No, true, Failed),
        ] {
            let look = NodeObservation {
                observed: Unknown,
                current: Some(current),
                write: None,
                is_silent,
            };
            let found = look.unmarked_after(before, has_failed);
            assert_eq!(found, after, "{current:?} {is_silent} {before:?} {has_failed}");
        }
    }
}
