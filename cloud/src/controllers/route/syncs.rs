//! Counts the reconciliations of routes. Upstream: `controllers/route/metrics.go`.

use kube_controller_manager::metrics::metrics;
use kube_controller_manager::options::{Release, followed};

metrics! {
    fn register_count;
    static STARTED: IntCounter = "route_controller_route_sync_total",
        "[ALPHA] A metric counting the amount of times routes have been synced with the cloud provider.";
}

metrics! {
    /// In place of the other from 1.37 on: pull requests 140147 and 140824.
    static ENDED: IntCounterVec["outcome", "trigger"] = "route_controller_route_sync_total",
        "[ALPHA] A metric counting the number of route reconciles with the cloud provider, labeled \
         by the trigger (periodic or node_change) and the outcome (changed if at least one route was \
         created or deleted, error if the reconcile failed, otherwise noop).";
}

/// What caused a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The period, or the resync of the cache where Nodes are watched.
    Periodic,
    NodeChange,
}

/// Returns the values of the labels `outcome` and `trigger`. `reconciled`: whether a route was made
/// or deleted; a reconciliation that failed in part is an error, as it is for the controller.
fn labels<E>(reconciled: &Result<bool, E>, trigger: Trigger) -> [&'static str; 2] {
    let outcome = match reconciled {
        Ok(true) => "changed",
        Ok(false) => "noop",
        Err(_) => "error",
    };
    let trigger = match trigger {
        Trigger::Periodic => "periodic",
        Trigger::NodeChange => "node_change",
    };
    [outcome, trigger]
}

/// Registers the counter of the releases before 1.37, which is served at zero too.
pub fn register() {
    if followed() < Release::V1_37 {
        register_count();
    }
}

/// Counts a reconciliation that starts.
pub fn started() {
    if followed() < Release::V1_37 {
        STARTED.inc();
    }
}

/// Counts a reconciliation that ended.
pub fn ended<E>(reconciled: &Result<bool, E>, trigger: Trigger) {
    if followed() >= Release::V1_37 {
        ENDED.with_label_values(&labels(reconciled, trigger)).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_and_trigger_are_labels() {
        for (reconciled, trigger, expected) in [
            (Ok(true), Trigger::Periodic, ["changed", "periodic"]),
            (Ok(false), Trigger::NodeChange, ["noop", "node_change"]),
            (Err(()), Trigger::Periodic, ["error", "periodic"]),
        ] {
            assert_eq!(labels(&reconciled, trigger), expected);
        }
    }
}
