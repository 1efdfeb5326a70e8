//! Labels and taints that a kubelet gives its Node by its flags.
//! Upstream: `ValidateKubeletFlags`, `kubeletapis.IsKubeletLabel`, `taints.ParseTaints`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::{
    is_label_key, is_label_value, label_key_fault, label_value_fault,
};
use serde::{Deserialize, Serialize};

use super::Error;

pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const OS: &str = "kubernetes.io/os";
pub const ARCHITECTURE: &str = "kubernetes.io/arch";
pub const BETA_OS: &str = "beta.kubernetes.io/os";
pub const BETA_ARCHITECTURE: &str = "beta.kubernetes.io/arch";

/// The labels in Kubernetes' domains that a kubelet may give its own Node.
/// Upstream: `kubeletLabels`.
const ALLOWED: [&str; 11] = [
    BETA_ARCHITECTURE,
    "beta.kubernetes.io/instance-type",
    BETA_OS,
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    ARCHITECTURE,
    HOSTNAME,
    OS,
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Domains that it may use, with those below them. Upstream: `kubeletLabelNamespaces`.
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The labels of an existing Node that take the kubelet's values. Upstream: `updateDefaultLabels`.
pub const RECONCILED: [&str; 11] = ALLOWED;

/// Checks `--node-labels`.
///
/// # Errors
/// Some of them are not allowed, or are no labels.
pub fn check(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    let is_unknown = |key: &&String| is_kubernetes(key) && !is_allowed(key);
    let unknown: Vec<String> = labels.keys().filter(is_unknown).cloned().collect();
    if !unknown.is_empty() {
        return Err(Error::ForbiddenLabels {
            labels: unknown,
            domains: ALLOWED_DOMAINS.join(", "),
            allowed: ALLOWED.join(", "),
        });
    }
    let mut faults = Vec::new();
    for (key, value) in labels {
        if !is_label_key(key) {
            faults.push((key.clone(), label_key_fault(key)));
        }
        if !is_label_value(value) {
            faults.push((value.clone(), label_value_fault(value)));
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Error::Labels(faults)),
    }
}

fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

fn is_or_is_below(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_kubernetes(key: &str) -> bool {
    ["kubernetes.io", "k8s.io"].into_iter().any(|parent| is_or_is_below(domain(key), parent))
}

fn is_allowed(key: &str) -> bool {
    ALLOWED.contains(&key)
        || ALLOWED_DOMAINS.into_iter().any(|parent| is_or_is_below(domain(key), parent))
}

/// A taint of `registerWithTaints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: String,
}

impl Taint {
    /// Parses a taint as `KEY=VALUE:EFFECT`, `KEY:EFFECT`. Upstream: `taints.parseTaint`.
    ///
    /// # Errors
    /// It does not have this form, or is refused by [`Taint::check`].
    pub fn parse(text: &str) -> Result<Taint, Error> {
        let fault = || Error::Taint(text.to_owned());
        let (front, effect) = text.split_once(':').ok_or_else(fault)?;
        let (key, value) = front.split_once('=').unwrap_or((front, ""));
        if effect.contains(':') || value.contains('=') {
            return Err(fault());
        }
        let taint =
            Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() };
        taint.check()?;
        Ok(taint)
    }

    /// Checks the key, the value and the effect of the taint.
    ///
    /// # Errors
    /// Its key, value or effect is invalid.
    pub fn check(&self) -> Result<(), Error> {
        let Taint { key, value, effect } = self;
        if !is_label_key(key) {
            let fault = label_key_fault(key);
            return Err(Error::TaintKey { key: key.clone(), fault });
        }
        if !is_label_value(value) {
            let fault = label_value_fault(value);
            return Err(Error::TaintValue { value: value.clone(), fault });
        }
        match effect.as_str() {
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => Ok(()),
            other => Err(Error::TaintEffect(other.to_owned())),
        }
    }

    /// Returns the taint as a Node has it.
    pub fn of_node(&self) -> core::Taint {
        core::Taint {
            key: self.key.clone(),
            value: Some(self.value.clone()).filter(|value| !value.is_empty()),
            effect: self.effect.clone(),
            time_added: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_in_kubernetes_domains_are_limited() {
        for (key, value, fault) in [
            ("example.com/a", "b", ""),
            ("a", "b", ""),
            ("node.kubernetes.io/x", "", ""),
            ("x.node.kubernetes.io/x", "", ""),
            ("topology.kubernetes.io/zone", "z", ""),
            ("xnode.kubernetes.io/x", "", "unknown 'kubernetes.io' or 'k8s.io' labels"),
            (
                "node-role.kubernetes.io/control-plane",
                "",
                "[node-role.kubernetes.io/control-plane]",
            ),
            ("k8s.io/x", "", "unknown 'kubernetes.io' or 'k8s.io' labels"),
            ("a b", "c", "invalid node labels: 'a b' - "),
            ("a", "b c", "invalid node labels: 'b c' - "),
        ] {
            let outcome = check(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
            match fault {
                "" => assert_eq!(outcome, Ok(()), "{key}"),
                fault => {
                    let text = outcome.expect_err(key).to_string();
                    assert!(text.contains(fault), "{text}");
                }
            }
        }
    }

    #[test]
    fn taints_are_keys_values_and_effects() {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        };
        for (text, expected) in [
            ("a=b:NoSchedule", Some(taint("a", "b", "NoSchedule"))),
            ("x.io/a:NoExecute", Some(taint("x.io/a", "", "NoExecute"))),
            ("a=:PreferNoSchedule", Some(taint("a", "", "PreferNoSchedule"))),
            ("a", None),
            ("a=b", None),
            ("a=b:Never", None),
            ("a=b=c:NoSchedule", None),
            ("a:b:NoSchedule", None),
            ("=b:NoSchedule", None),
        ] {
            assert_eq!(Taint::parse(text).ok(), expected, "{text}");
        }
    }
}
