//! The rules of profiles of seccomp and AppArmor. Their types are checked with the other fields that
//! have a set of values. Upstream: `validateSeccompProfileField`, `ValidateAppArmorProfileField`,
//! `ValidateAppArmorPodAnnotations`.

use super::validate::leads_out;
use crate::pod::{APP_ARMOR, Pod, PodExt};

/// Lists the faults of a pod's profiles, each with its field.
pub fn faults(pod: &Pod) -> Vec<String> {
    let of_pod = pod.spec().security_context.as_ref();
    let mut profiles = vec![(
        "spec".to_owned(),
        of_pod.and_then(|context| context.seccomp_profile.as_ref()),
        of_pod.and_then(|context| context.app_armor_profile.as_ref()),
    )];
    for (list, containers) in
        [("initContainers", pod.init_containers()), ("containers", &pod.spec().containers[..])]
    {
        profiles.extend(containers.iter().enumerate().map(|(at, container)| {
            let own = container.security_context.as_ref();
            let seccomp = own.and_then(|own| own.seccomp_profile.as_ref());
            let app_armor = own.and_then(|own| own.app_armor_profile.as_ref());
            (format!("spec.{list}[{at}]"), seccomp, app_armor)
        }));
    }
    let mut faults = Vec::new();
    for (at, seccomp, app_armor) in profiles {
        if let Some(profile) = seccomp {
            let field = format!("{at}.securityContext.seccompProfile.localhostProfile");
            let name = profile.localhost_profile.as_deref();
            faults.extend(fault_of_name(&field, &profile.type_, name));
            if name.is_some_and(leads_out) {
                faults.push(format!("{field}: must be a relative path without '..'"));
            }
        }
        if let Some(profile) = app_armor {
            let field = format!("{at}.securityContext.appArmorProfile.localhostProfile");
            let name = profile.localhost_profile.as_deref();
            faults.extend(fault_of_name(&field, &profile.type_, name));
        }
    }
    for (key, profile) in pod.metadata.annotations.iter().flatten() {
        let is_known = matches!(profile.as_str(), "" | "runtime/default" | "unconfined")
            || profile.starts_with("localhost/");
        if key.starts_with(APP_ARMOR) && !is_known {
            faults.push(format!(
                "metadata.annotations[{key}]: Invalid value: {profile:?}: not an AppArmor profile"
            ));
        }
    }
    faults
}

/// Returns the fault in the name of a profile: a local profile must have a name, others must not.
fn fault_of_name(field: &str, kind: &str, name: Option<&str>) -> Option<String> {
    match (kind, name) {
        ("Localhost", None | Some("")) => {
            Some(format!("{field}: Required value: must be set when type is Localhost"))
        }
        ("Localhost", Some(_)) | (_, None) => None,
        (_, Some(_)) => Some(format!("{field}: can only be set when type is Localhost")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn profiles_have_a_local_name_if_they_are_local() {
        let seccomp = |profile: Value| json!({"seccompProfile": profile});
        let app_armor = |profile: Value| json!({"appArmorProfile": profile});
        let local = |path: &str| json!({"type": "Localhost", "localhostProfile": path});
        for (context, has_fault) in [
            (seccomp(json!({"type": "RuntimeDefault"})), false),
            (seccomp(local("a/b.json")), false),
            (seccomp(local("/etc/x")), true),
            (seccomp(local("../x")), true),
            (seccomp(local("")), true),
            (seccomp(json!({"type": "Localhost"})), true),
            (seccomp(json!({"type": "Unconfined", "localhostProfile": "x"})), true),
            (app_armor(local("x")), false),
            (app_armor(json!({"type": "Localhost"})), true),
            (app_armor(json!({"type": "RuntimeDefault", "localhostProfile": "x"})), true),
        ] {
            let container = json!({"name": "a", "securityContext": context});
            for spec in [
                json!({"securityContext": context, "containers": []}),
                json!({"containers": [container]}),
                json!({"containers": [], "initContainers": [container]}),
            ] {
                let pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
                assert_eq!(faults(&pod).len(), usize::from(has_fault), "{spec}");
            }
        }
    }

    #[test]
    fn annotations_name_a_profile() {
        for (profile, is_fine) in
            [("runtime/default", true), ("localhost/x", true), ("", true), ("unconfind", false)]
        {
            let annotations = json!({format!("{APP_ARMOR}a"): profile, "other": "x"});
            let pod = json!({"metadata": {"annotations": annotations}});
            let faults = faults(&serde_json::from_value(pod).expect("a pod"));
            assert_eq!(faults.is_empty(), is_fine, "{profile}: {faults:?}");
        }
    }
}
