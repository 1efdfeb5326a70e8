//! Profiles of AppArmor need a machine that enforces them. Upstream: `pkg/security/apparmor`.

use k8s_openapi::api::core::v1::AppArmorProfile;

use super::Rejection;
use crate::pod::{APP_ARMOR, Pod, PodExt};

/// Checks that a pod's AppArmor profile can be applied.
///
/// # Errors
/// A pod that has not started names a profile, and the machine does not have AppArmor.
pub fn check(pod: &Pod, has_app_armor: bool) -> Result<(), Rejection> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let has_started = phase.is_some_and(|phase| phase != "Pending");
    match has_app_armor || has_started || !is_required(pod) {
        true => Ok(()),
        false => Err(Rejection::AppArmor),
    }
}

/// Returns whether the pod names a profile other than the unconfined one, in a field or in an old
/// annotation. Ephemeral containers are added only after a pod's admission. Upstream: `isRequired`.
fn is_required(pod: &Pod) -> bool {
    let of_pod = pod.spec().security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.app_armor_profile.as_ref());
    let of_containers = pod.all_containers().filter_map(|container| {
        let context = container.security_context.as_ref();
        context.and_then(|context| context.app_armor_profile.as_ref())
    });
    let is_confined = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let mut annotations = pod.metadata.annotations.iter().flatten();
    of_pod.into_iter().chain(of_containers).any(is_confined)
        || annotations.any(|(key, value)| key.starts_with(APP_ARMOR) && value != "unconfined")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn profiles_need_app_armor() {
        let of_pod = |kind: &str| {
            json!({"containers": [],
            "securityContext": {"appArmorProfile": {"type": kind}}})
        };
        let of_container = |list: &str, kind: &str| {
            let mut spec = json!({"containers": []});
            spec[list] = json!([{"name": "c", "securityContext": {"appArmorProfile":
                {"type": kind, "localhostProfile": "x"}}}]);
            spec
        };
        let none = json!({"containers": []});
        let annotated = |profile: &str| json!({format!("{APP_ARMOR}c"): profile});
        for (spec, annotations, phase, needs_it) in [
            (none.clone(), json!({}), json!("Pending"), false),
            (of_pod("RuntimeDefault"), json!({}), json!("Pending"), true),
            (of_pod("RuntimeDefault"), json!({}), Value::Null, true),
            (of_pod("RuntimeDefault"), json!({}), json!("Running"), false),
            (of_pod("Unconfined"), json!({}), json!("Pending"), false),
            (of_container("containers", "Localhost"), json!({}), json!("Pending"), true),
            (of_container("initContainers", "RuntimeDefault"), json!({}), json!("Pending"), true),
            (of_container("containers", "Unconfined"), json!({}), json!("Pending"), false),
            (none.clone(), annotated("localhost/x"), json!("Pending"), true),
            (none.clone(), annotated("runtime/default"), json!("Pending"), true),
            (none, annotated("unconfined"), json!("Pending"), false),
        ] {
            let pod = json!({"metadata": {"annotations": annotations}, "spec": spec,
                             "status": {"phase": phase}});
            let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
            assert_eq!(check(&pod, false).is_err(), needs_it, "{spec} {annotations} {phase}");
            assert_eq!(check(&pod, true), Ok(()));
        }
    }
}
