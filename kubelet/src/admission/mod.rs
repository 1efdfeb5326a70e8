//! Decides whether a pod that a source has added may run on the node. A pod that may not fails with
//! upstream's reason and message. Decisions are without I/O: [`admit`] takes the pod, the Node, and
//! the pods that the node has already. Upstream: `pkg/kubelet/lifecycle`, `pkg/kubelet/preemption`,
//! `pkg/kubelet/sysctl`.

mod app_armor;
mod features;
mod predicates;
mod preemption;
mod pressure;
mod rejection;
mod resources;
mod sysctls;

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

pub use self::rejection::Rejection;
pub use self::resources::Shortage;
pub use self::sysctls::{Allowlist, Error, KernelVersion, kernel_version};

use crate::eviction::is_critical;
use crate::node::pressure::Pressure;
use crate::pod::Pod;

/// What the kubelet permits, from its start on.
#[derive(Clone, Debug)]
pub struct Rules {
    pub sysctls: Allowlist,
    /// Whether the machine has AppArmor.
    pub has_app_armor: bool,
}

/// What a decision depends on beside the pod.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub rules: &'a Rules,
    /// As the API server has it, or as this kubelet would register it.
    pub node: &'a core::Node,
    /// The pods that were admitted and have not ended. The pod itself may be among them.
    pub active: &'a [Arc<Pod>],
    /// The resources of which the node has too little.
    pub pressure: &'a [Pressure],
}

/// How a pod is admitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admitted {
    /// The pods that have to end before it starts.
    pub preempted: Vec<Arc<Pod>>,
    /// The resource that they have too much of; empty: there are none.
    pub resource: String,
}

/// Decides whether a pod may run, by upstream's checks in upstream's order. One difference: pods
/// end for a critical pod only if no later check rejects it.
///
/// # Errors
/// The first check that rejects the pod.
pub fn admit(pod: &Pod, inputs: &Inputs<'_>) -> Result<Admitted, Rejection> {
    pressure::check(pod, inputs.pressure)?;
    inputs.rules.sysctls.check(pod)?;
    predicates::check_system(pod, inputs.node)?;
    let others: Vec<Arc<Pod>> = inputs
        .active
        .iter()
        .filter(|other| other.metadata.uid != pod.metadata.uid)
        .cloned()
        .collect();
    let admitted = make_room(pod, predicates::misfits(pod, inputs.node, &others), &others)?;
    app_armor::check(pod, inputs.rules.has_app_armor)?;
    features::check(pod)?;
    Ok(admitted)
}

/// Chooses other pods that end for a critical pod that lacks only resources. A pod that is not
/// critical is rejected by its first misfit. Upstream: `HandleAdmissionFailure`.
fn make_room(
    pod: &Pod,
    misfits: Vec<Rejection>,
    others: &[Arc<Pod>],
) -> Result<Admitted, Rejection> {
    let mut misfits = misfits.into_iter();
    if !is_critical(pod) {
        return misfits.next().map_or(Ok(Admitted::default()), Err);
    }
    let mut missing = Vec::new();
    for misfit in misfits {
        match misfit {
            Rejection::Insufficient(shortage) => missing.push(shortage),
            misfit => return Err(misfit),
        }
    }
    let resource = missing.first().map(|shortage| shortage.resource.clone()).unwrap_or_default();
    let preempted = preemption::choose(pod, others, &missing)?;
    Ok(Admitted { preempted, resource })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, more: Value, spec: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": spec,
                             "status": {"phase": "Pending"}});
        if pod["spec"].get("containers").is_none() {
            pod["spec"]["containers"] = json!([]);
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn requesting(uid: &str, cpu: &str, priority: i32) -> Arc<Pod> {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        pod(uid, json!({}), json!({"priority": priority, "containers": [container]}))
    }

    fn node() -> core::Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "3"}},
        }))
        .expect("a node")
    }

    const CRITICAL: i32 = 2_000_000_000;

    #[derive(Default)]
    struct Case {
        active: Vec<Arc<Pod>>,
        pressure: Vec<Pressure>,
        has_app_armor: bool,
    }

    impl Case {
        fn admit(&self, pod: &Pod) -> Result<Vec<String>, (String, String)> {
            let sysctls = Allowlist::new(&[], (6, 0)).expect("an allowlist");
            let rules = Rules { sysctls, has_app_armor: self.has_app_armor };
            let (active, pressure) = (&*self.active, &*self.pressure);
            let admitted = admit(pod, &Inputs { rules: &rules, node: &node(), active, pressure });
            let uids = |pods: Vec<Arc<Pod>>| {
                pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
            };
            admitted
                .map(|admitted| uids(admitted.preempted))
                .map_err(|rejection| (rejection.reason().into_owned(), rejection.to_string()))
        }
    }

    #[test]
    fn checks_reject_in_upstreams_order() {
        let app_armor = json!({"appArmorProfile": {"type": "RuntimeDefault"},
                               "sysctls": [{"name": "kernel.msgmax", "value": "1"}]});
        let claims = json!([{"name": "x"}]);
        let mut spec = json!({"resourceClaims": claims, "securityContext": app_armor,
                              "nodeName": "other", "os": {"name": "windows"}});
        let mut case = Case { pressure: vec![Pressure::Disk], ..Case::default() };
        let mut reasons = Vec::new();
        let mut reject = |case: &Case, spec: &Value| {
            let (reason, _) = case.admit(&pod("p", json!({}), spec.clone())).expect_err("rejected");
            reasons.push(reason);
        };
        reject(&case, &spec);
        case.pressure.clear();
        reject(&case, &spec);
        spec["securityContext"]["sysctls"] = json!([]);
        reject(&case, &spec);
        spec["os"]["name"] = json!("linux");
        reject(&case, &spec);
        spec["nodeName"] = json!("n");
        reject(&case, &spec);
        case.has_app_armor = true;
        reject(&case, &spec);
        let expected = [
            "Evicted",
            "SysctlForbidden",
            "PodOSNotSupported",
            "NodeName",
            "AppArmor",
            "PodFeatureUnsupported",
        ];
        assert_eq!(reasons, expected);
        spec["resourceClaims"] = json!([]);
        assert_eq!(case.admit(&pod("p", json!({}), spec)), Ok(vec![]));
    }

    #[test]
    fn only_critical_pods_preempt_and_only_for_resources() {
        let case = Case {
            active: vec![requesting("a", "600m", 0), requesting("b", "400m", 0)],
            ..Case::default()
        };
        let message =
            "Node didn't have enough resource: cpu, requested: 500, used: 1000, capacity: 1000";
        let out_of_cpu = Err(("OutOfcpu".to_owned(), message.to_owned()));
        assert_eq!(case.admit(&requesting("p", "500m", 0)), out_of_cpu);
        assert_eq!(case.admit(&requesting("p", "500m", CRITICAL)), Ok(vec!["a".to_owned()]));
        // Too large for the node itself.
        let (reason, message) = case.admit(&requesting("p", "2", CRITICAL)).expect_err("too large");
        assert_eq!(reason, "UnexpectedAdmissionError");
        assert_eq!(
            message,
            "Unexpected error while attempting to recover from admission failure: preemption: error \
             finding a set of pods to preempt: no set of running pods found to reclaim resources: \
             [(res: cpu, q: 1000), ]"
        );
        // No pod ends for one that is rejected for another reason.
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "500m"}}});
        let elsewhere = json!({"priority": CRITICAL, "nodeName": "m", "containers": [container]});
        let rejected = case.admit(&pod("p", json!({}), elsewhere));
        assert_eq!(rejected.map_err(|(reason, _)| reason), Err("NodeName".to_owned()));
        let claims = json!([{"name": "x"}]);
        let unsupported =
            json!({"priority": CRITICAL, "resourceClaims": claims, "containers": [container]});
        let rejected = case.admit(&pod("p", json!({}), unsupported));
        assert_eq!(rejected.map_err(|(reason, _)| reason), Err("PodFeatureUnsupported".to_owned()));
    }

    #[test]
    fn a_pod_does_not_compete_with_itself() {
        let pod = requesting("p", "1", 0);
        let case = Case { active: vec![pod.clone()], ..Case::default() };
        assert_eq!(case.admit(&pod), Ok(vec![]));
    }
}
