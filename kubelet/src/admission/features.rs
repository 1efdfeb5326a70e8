//! What a pod asks for and this kubelet does not have: without it the pod would run in another way
//! than its author wants. Upstream: `declaredFeaturesAdmitHandler`, `nodedeclaredfeatures`.

use super::Rejection;
use crate::pod::{Container, Pod, PodExt};

/// Checks that this kubelet has all features that the pod needs.
///
/// # Errors
/// The names of upstream's features that the pod needs and this kubelet does not have, in the order of
/// the alphabet.
pub fn check(pod: &Pod) -> Result<(), Rejection> {
    let spec = pod.spec();
    let has = |asks: fn(&Container) -> bool| pod.all_containers().any(asks);
    let has_claims = |container: &Container| {
        container.resources.as_ref().is_some_and(|lists| lists.claims.is_some())
    };
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let status = pod.status.as_ref();
    let extended = status.is_some_and(|status| status.extended_resource_claim_status.is_some());
    let own_users = spec.host_users == Some(false);
    let features = [
        ("ContainerStopSignals", has(has_stop_signal)),
        ("DynamicResourceAllocation", claims || extended || has(has_claims)),
        // It would show the pod the host's `/proc`, which only a user namespace guards.
        ("ProcMountType", has(is_unmasked) && !own_users),
        ("UserNamespacesHostNetworkSupport", own_users && pod.is_host_network()),
    ];
    let missing: Vec<&str> =
        features.into_iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| name).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Rejection::Features(missing)),
    }
}

fn has_stop_signal(container: &Container) -> bool {
    container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.stop_signal.is_some())
}

fn is_unmasked(container: &Container) -> bool {
    let own = container.security_context.as_ref();
    own.and_then(|own| own.proc_mount.as_deref()) == Some("Unmasked")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_name_the_features_that_they_need() {
        let container = |more: Value| {
            let mut container = json!({"name": "c"});
            for (key, value) in more.as_object().into_iter().flatten() {
                container[key] = value.clone();
            }
            json!({"containers": [], "initContainers": [container]})
        };
        let unmasked = json!({"securityContext": {"procMount": "Unmasked"}});
        let mut guarded = container(unmasked.clone());
        guarded["hostUsers"] = json!(false);
        let restart = json!({"restartPolicyRules": [{"action": "RestartAllContainers"}]});
        for (spec, missing) in [
            (json!({"containers": []}), ""),
            (json!({"containers": [], "hostUsers": true}), ""),
            (json!({"containers": [], "hostUsers": false}), ""),
            (
                json!({"containers": [], "hostUsers": false, "hostNetwork": true}),
                "UserNamespacesHostNetworkSupport",
            ),
            (container(unmasked), "ProcMountType"),
            (guarded, ""),
            (container(json!({"securityContext": {"procMount": "Default"}})), ""),
            (container(json!({"lifecycle": {"stopSignal": "SIGINT"}})), "ContainerStopSignals"),
            (
                container(json!({"resources": {"claims": [{"name": "x"}]}})),
                "DynamicResourceAllocation",
            ),
            (
                json!({"containers": [], "resourceClaims": [{"name": "x"}]}),
                "DynamicResourceAllocation",
            ),
            // This one is there.
            (container(restart), ""),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
            let found = check(&pod).err();
            let names = match found {
                Some(Rejection::Features(names)) => names.join(", "),
                _ => String::new(),
            };
            assert_eq!(names, missing, "{spec}");
        }
        let claimed = json!({"spec": {"containers": []}, "status": {"extendedResourceClaimStatus":
            {"requestMappings": [], "resourceClaimName": "c"}}});
        let claimed: Pod = serde_json::from_value(claimed).expect("a pod");
        assert!(check(&claimed).is_err());
    }
}
