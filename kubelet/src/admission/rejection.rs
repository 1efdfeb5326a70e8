//! Why a pod is not admitted.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use super::preemption::Needs;
use super::resources::Shortage;
use crate::eviction;
use crate::node::pressure::Pressure;

/// Why a pod is not admitted: [`reason`](Rejection::reason) is that of its status and event, the
/// text their message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The machine shuts down.
    NodeShutdown,
    /// The node has these conditions.
    Pressure(Vec<Pressure>),
    /// What the allowlist says of a sysctl.
    Sysctl(String),
    /// The pod's label `kubernetes.io/os` names another system.
    OsLabel,
    /// `spec.os` names another system.
    Os,
    /// The runtime does not have `supplementalGroupsPolicy: Strict`.
    SupplementalGroups,
    /// The node has too little of a resource.
    Insufficient(Shortage),
    /// The node is not the one that the pod asks for.
    Misfit { predicate: &'static str, why: &'static str },
    /// The pod is critical, but the end of all pods that it may preempt leaves these needs.
    NothingToPreempt(Needs),
    /// The machine does not have AppArmor.
    AppArmor,
    /// Upstream's names of the features that the pod needs and this kubelet does not have.
    Features(Vec<&'static str>),
}

impl Rejection {
    /// Returns upstream's reason.
    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Rejection::Insufficient(shortage) => format!("OutOf{}", shortage.resource).into(),
            Rejection::NodeShutdown => "NodeShutdown".into(),
            Rejection::Pressure(_) => eviction::REASON.into(),
            Rejection::Sysctl(_) => "SysctlForbidden".into(),
            Rejection::OsLabel => "PodOSSelectorNodeLabelDoesNotMatch".into(),
            Rejection::Os => "PodOSNotSupported".into(),
            Rejection::SupplementalGroups => "SupplementalGroupsPolicyNotSupported".into(),
            Rejection::Misfit { predicate, .. } => (*predicate).into(),
            Rejection::NothingToPreempt(_) => "UnexpectedAdmissionError".into(),
            Rejection::AppArmor => "AppArmor".into(),
            Rejection::Features(_) => "PodFeatureUnsupported".into(),
        }
    }

    /// Returns the reason in upstream's metric, which names known reasons only. Upstream's list has
    /// no predicates. Upstream: `recordAdmissionRejection`.
    pub fn metric_label(&self) -> Cow<'static, str> {
        match self {
            Rejection::Misfit { .. } => "Other".into(),
            Rejection::Insufficient(shortage) if !shortage.is_of_node() => {
                "OutOfExtendedResources".into()
            }
            known => known.reason(),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::NodeShutdown => {
                f.write_str("Pod was rejected as the node is shutting down.")
            }
            Rejection::Pressure(conditions) => {
                let names: Vec<&str> = conditions.iter().map(|one| condition(*one)).collect();
                write!(f, "The node had condition: [{}]. ", names.join(" "))
            }
            Rejection::Sysctl(why) => write!(f, "forbidden sysctl: {why}"),
            Rejection::OsLabel => f.write_str(
                "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
            ),
            Rejection::Os => {
                f.write_str("Failed to admit pod as the OS field doesn't match node OS")
            }
            Rejection::SupplementalGroups => {
                f.write_str("SupplementalGroupsPolicy=Strict is not supported in this node")
            }
            Rejection::Insufficient(Shortage { resource, requested, used, capacity }) => write!(
                f,
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
                 capacity: {capacity}"
            ),
            Rejection::Misfit { predicate, why } => {
                write!(f, "Predicate {predicate} failed: {why}")
            }
            Rejection::NothingToPreempt(needs) => {
                f.write_str(
                    "Unexpected error while attempting to recover from admission failure: \
                     preemption: error finding a set of pods to preempt: no set of running pods \
                     found to reclaim resources: [",
                )?;
                for (resource, amount) in needs {
                    write!(f, "(res: {resource}, q: {amount}), ")?;
                }
                f.write_str("]")
            }
            Rejection::AppArmor => {
                f.write_str("Cannot enforce AppArmor: AppArmor is not enabled on the host")
            }
            Rejection::Features(names) => {
                let names = names.join(", ");
                write!(f, "Pod requires node features that are not available: {names}")
            }
        }
    }
}

impl Error for Rejection {}

/// Returns the type of the node's condition.
fn condition(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::Memory => "MemoryPressure",
        Pressure::Disk => "DiskPressure",
        Pressure::Pid => "PIDPressure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_has_a_fixed_set_of_reasons() {
        let out_of = |resource: &str| {
            let (requested, used, capacity) = (1, 0, 0);
            Rejection::Insufficient(Shortage {
                resource: resource.to_owned(),
                requested,
                used,
                capacity,
            })
        };
        for (rejection, label) in [
            (out_of("cpu"), "OutOfcpu"),
            (out_of("ephemeral-storage"), "OutOfephemeral-storage"),
            (out_of("example.com/gpu"), "OutOfExtendedResources"),
            (out_of("hugepages-2Mi"), "OutOfExtendedResources"),
            (Rejection::Misfit { predicate: "NodeAffinity", why: "x" }, "Other"),
            (Rejection::Os, "PodOSNotSupported"),
        ] {
            assert_eq!(rejection.metric_label(), label);
        }
    }

    #[test]
    fn messages_are_upstreams() {
        for (rejection, message) in [
            (
                Rejection::Pressure(vec![Pressure::Memory, Pressure::Disk]),
                "The node had condition: [MemoryPressure DiskPressure]. ",
            ),
            (Rejection::Misfit { predicate: "NodeName", why: "w" }, "Predicate NodeName failed: w"),
            (
                Rejection::Features(vec!["A", "B"]),
                "Pod requires node features that are not available: A, B",
            ),
        ] {
            assert_eq!(rejection.to_string(), message);
        }
    }
}
