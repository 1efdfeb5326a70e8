//! The rules of a container's restart policy and hooks.
//! Upstream: `validateContainerRestartPolicy`, `validateLifecycle`.

use k8s_openapi::api::core::v1 as core;

/// Lists the faults of a container's hooks and restart policy, each with its field below `field`.
/// `grace`: the pod's grace period.
pub fn faults(field: &str, container: &core::Container, grace: Option<i64>) -> Vec<String> {
    let mut faults = restart_policy(field, container);
    let lifecycle = container.lifecycle.iter();
    let hooks = lifecycle.flat_map(|lifecycle| {
        [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)]
    });
    for (name, hook) in hooks {
        let Some(hook) = hook else { continue };
        let field = format!("{field}.lifecycle.{name}");
        let handlers = [
            hook.exec.is_some(),
            hook.http_get.is_some(),
            hook.tcp_socket.is_some(),
            hook.sleep.is_some(),
        ];
        match handlers.iter().filter(|is_set| **is_set).count() {
            0 => faults.push(format!("{field}: Required value: must specify a handler type")),
            1 => {}
            _ => {
                faults.push(format!("{field}: Forbidden: may not specify more than 1 handler type"))
            }
        }
        if hook.exec.as_ref().is_some_and(|exec| exec.command.iter().flatten().next().is_none()) {
            faults.push(format!("{field}.exec.command: Required value"));
        }
        if let (Some(sleep), Some(grace)) = (&hook.sleep, grace)
            && !(0..=grace).contains(&sleep.seconds)
        {
            faults.push(format!(
                "{field}.sleep: Invalid value: {}: must be non-negative and less than \
                 terminationGracePeriodSeconds ({grace})",
                sleep.seconds
            ));
        }
    }
    faults
}

/// Lists the faults of a container's restart rules. The limits of their numbers are upstream's.
fn restart_policy(field: &str, container: &core::Container) -> Vec<String> {
    let mut faults = Vec::new();
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if container.restart_policy.is_none() && !rules.is_empty() {
        faults.push(format!(
            "{field}.restartPolicy: Required value: must specify restartPolicy when restart rules \
             are used"
        ));
    }
    if rules.len() > 20 {
        faults.push(format!(
            "{field}.restartPolicyRules: Too many: {}: must have at most 20 items",
            rules.len()
        ));
    }
    for (at, rule) in rules.iter().enumerate() {
        let field = format!("{field}.restartPolicyRules[{at}]");
        let Some(codes) = &rule.exit_codes else {
            faults.push(format!("{field}.exitCodes: Required value: must be specified"));
            continue;
        };
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > 255 {
            faults.push(format!(
                "{field}.exitCodes.values: Too many: {count}: must have at most 255 items"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_name_their_field() {
        let exit = json!({"operator": "In", "values": [1]});
        for (container, fault) in [
            (json!({}), None),
            (
                json!({"restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": exit}]}),
                None,
            ),
            (
                json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": exit}]}),
                Some(
                    "c.restartPolicy: Required value: must specify restartPolicy when restart \
                      rules are used",
                ),
            ),
            (
                json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
                Some("c.restartPolicyRules[0].exitCodes: Required value: must be specified"),
            ),
            (
                json!({"lifecycle": {"preStop": {}}}),
                Some("c.lifecycle.preStop: Required value: must specify a handler type"),
            ),
            (
                json!({"lifecycle": {"postStart": {"sleep": {"seconds": 1},
                    "exec": {"command": ["a"]}}}}),
                Some("c.lifecycle.postStart: Forbidden: may not specify more than 1 handler type"),
            ),
            (
                json!({"lifecycle": {"postStart": {"exec": {}}}}),
                Some("c.lifecycle.postStart.exec.command: Required value"),
            ),
            (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}), None),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 6}}}}),
                Some(
                    "c.lifecycle.preStop.sleep: Invalid value: 6: must be non-negative and less \
                      than terminationGracePeriodSeconds (5)",
                ),
            ),
        ] {
            let mut named = json!({"name": "c"});
            for (key, value) in container.as_object().into_iter().flatten() {
                named[key] = value.clone();
            }
            let named: core::Container = serde_json::from_value(named).expect("a container");
            let expected: Vec<&str> = fault.into_iter().collect();
            assert_eq!(faults("c", &named, Some(5)), expected, "{container}");
        }
    }
}
