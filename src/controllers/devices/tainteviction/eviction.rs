//! The time at which a pod is evicted because of the taints of its devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::objects::{
    AllocatedDevice, ArcStr, DeviceSelector, DeviceTaint, DeviceTaintRule, DeviceToleration, Istr,
    ResourceSlice, SliceDevice, Timestamp, Uid,
};

/// Upstream: `DeviceTaintEffectNoExecute`.
pub const NO_EXECUTE: &str = "NoExecute";

/// The time from which a pod is evicted, and all the taints that ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub when: Timestamp,
    pub reasons: BTreeSet<Reason>,
}

/// The object that sets a taint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Rule { name: ArcStr, uid: Uid },
    Slice { driver: Istr, pool: Istr, device: Istr, taint: usize },
}

impl Reason {
    pub fn of_rule(rule: &DeviceTaintRule) -> Reason {
        Reason::Rule { name: rule.meta.name.clone(), uid: rule.meta.uid.clone() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule { name, .. } => write!(f, "DeviceTaintRule {name}"),
            Reason::Slice { driver, pool, device, taint } => {
                write!(f, "ResourceSlice {driver}/{pool}/{device} taint #{taint}")
            }
        }
    }
}

impl Eviction {
    /// Merges two evictions: the earlier time, with the reasons of both.
    pub fn merge(mut self, other: Option<Eviction>) -> Eviction {
        if let Some(other) = other {
            self.when = self.when.min(other.when);
            self.reasons.extend(other.reasons);
        }
        self
    }

    /// Formats the reasons for the log.
    pub fn reasons_text(&self) -> String {
        let reasons: Vec<String> = self.reasons.iter().map(Reason::to_string).collect();
        reasons.join(", ")
    }
}

/// How long the tolerations of a device tolerate a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TolerationPeriod {
    NotTolerated,
    For(Duration),
    Forever,
}

/// Returns how long `tolerations` tolerate a taint. One without an end is sufficient; among those
/// with an end the shortest counts.
fn toleration_period(taint: &DeviceTaint, tolerations: &[DeviceToleration]) -> TolerationPeriod {
    let matching = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
    let mut result = TolerationPeriod::NotTolerated;
    for toleration in matching {
        let Some(seconds) = toleration.toleration_seconds else { return TolerationPeriod::Forever };
        let period = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        result = match result {
            TolerationPeriod::For(shortest) => TolerationPeriod::For(shortest.min(period)),
            _ => TolerationPeriod::For(period),
        };
    }
    result
}

/// Returns whether a toleration matches a taint. It must name the effect NoExecute.
/// Upstream: `ToleratesTaint`.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let value_matches = match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        "Exists" => true,
        _ => false,
    };
    toleration.effect == NO_EXECUTE
        && (toleration.key.is_empty() || toleration.key == taint.key)
        && value_matches
}

/// Returns when and why the users of an allocated device are evicted because of these taints;
/// `None` if they tolerate them. Taints with other effects do not count.
/// Upstream: `claimEvictionTime`.
pub fn eviction_by_taints<'a>(
    device: &AllocatedDevice,
    taints: impl Iterator<Item = (Reason, &'a DeviceTaint)>,
) -> Option<Eviction> {
    let mut eviction = None;
    for (reason, taint) in taints.filter(|(_, taint)| taint.effect == NO_EXECUTE) {
        // The API server sets the time.
        let Some(added) = taint.time_added else { continue };
        let when = match toleration_period(taint, &device.tolerations) {
            TolerationPeriod::NotTolerated => added,
            TolerationPeriod::For(period) => added + period,
            TolerationPeriod::Forever => continue,
        };
        eviction = Some(Eviction { when, reasons: [reason].into() }.merge(eviction));
    }
    eviction
}

/// Returns whether the selector of a rule matches a device. An absent field matches all, an absent
/// selector nothing.
/// Upstream: `ruleMatchesDevice`.
pub fn selector_matches(
    selector: Option<&DeviceSelector>,
    driver: &str,
    pool: &str,
    device: &str,
) -> bool {
    let matches = |field: &Option<Istr>, name: &str| match field {
        Some(field) => *field == *name,
        None => true,
    };
    selector.is_some_and(|selector| {
        matches(&selector.driver, driver)
            && matches(&selector.pool, pool)
            && matches(&selector.device, device)
    })
}

/// Returns the slices of a pool that have its highest generation.
pub fn newest_slices(slices: &[Arc<ResourceSlice>]) -> impl Iterator<Item = &Arc<ResourceSlice>> {
    let generation = slices.iter().map(|slice| slice.spec.pool.generation).max();
    slices.iter().filter(move |slice| Some(slice.spec.pool.generation) == generation)
}

/// Returns the taints of effect NoExecute of the devices in the newest of these slices, by the
/// device's name.
pub fn evicting_taints(slices: &[Arc<ResourceSlice>]) -> BTreeMap<Istr, Vec<DeviceTaint>> {
    let mut found: BTreeMap<Istr, Vec<DeviceTaint>> = BTreeMap::new();
    for SliceDevice { name, taints } in newest_slices(slices).flat_map(|slice| &slice.spec.devices)
    {
        let evicting = taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
        for taint in evicting {
            found.entry(name.clone()).or_default().push(taint.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    fn taint(effect: &str, second: i64) -> DeviceTaint {
        DeviceTaint {
            key: "k".into(),
            value: "v".into(),
            effect: effect.into(),
            time_added: Some(at(second)),
        }
    }

    fn reason(n: usize) -> Reason {
        let [driver, pool, device] = ["d", "p", "x"].map(Istr::new);
        Reason::Slice { driver, pool, device, taint: n }
    }

    #[test]
    fn a_device_evicts_at_the_end_of_the_shortest_toleration_of_its_first_taint() {
        let exists = |seconds: Option<i64>| {
            let mut toleration = json!({ "operator": "Exists", "effect": "NoExecute" });
            if let Some(seconds) = seconds {
                toleration["tolerationSeconds"] = json!(seconds);
            }
            toleration
        };
        let with = |change: &[(&str, &str)]| {
            let mut toleration = json!({ "key": "k", "value": "v", "effect": "NoExecute" });
            for (field, value) in change {
                toleration[*field] = json!(value);
            }
            toleration
        };
        let one = vec![taint(NO_EXECUTE, 100)];
        let two = vec![taint(NO_EXECUTE, 100), taint(NO_EXECUTE, 50)];
        let others = vec![taint("NoSchedule", 1), taint("None", 1), taint("Later", 1)];
        type Case = (Vec<DeviceTaint>, Value, Option<(i64, Vec<usize>)>);
        let cases: Vec<Case> = vec![
            (vec![], json!([]), None),
            (others, json!([]), None),
            (one.clone(), json!([]), Some((100, vec![0]))),
            (two.clone(), json!([]), Some((50, vec![0, 1]))),
            (two.clone(), json!([exists(None)]), None),
            (one.clone(), json!([exists(Some(30))]), Some((130, vec![0]))),
            (one.clone(), json!([exists(Some(0))]), Some((100, vec![0]))),
            (one.clone(), json!([exists(Some(-5))]), Some((100, vec![0]))),
            (one.clone(), json!([exists(Some(30)), exists(Some(10))]), Some((110, vec![0]))),
            (one.clone(), json!([exists(Some(30)), exists(None)]), None),
            (two, json!([exists(Some(30))]), Some((80, vec![0, 1]))),
            (one.clone(), json!([with(&[])]), None),
            (one.clone(), json!([with(&[("operator", "Equal")])]), None),
            (one.clone(), json!([with(&[("value", "w")])]), Some((100, vec![0]))),
            (one.clone(), json!([with(&[("value", "w"), ("operator", "Exists")])]), None),
            (one.clone(), json!([with(&[("operator", "Later")])]), Some((100, vec![0]))),
            (one.clone(), json!([with(&[("key", "j")])]), Some((100, vec![0]))),
            (one.clone(), json!([with(&[("effect", "NoSchedule")])]), Some((100, vec![0]))),
            (one, json!([with(&[("effect", "")])]), Some((100, vec![0]))),
        ];
        for (taints, tolerations, expected) in cases {
            let device: AllocatedDevice =
                serde_json::from_value(json!({ "tolerations": tolerations })).unwrap();
            let taints = taints.iter().enumerate().map(|(n, taint)| (reason(n), taint));
            let expected = expected.map(|(second, reasons)| Eviction {
                when: at(second),
                reasons: reasons.into_iter().map(reason).collect(),
            });
            assert_eq!(eviction_by_taints(&device, taints), expected, "{tolerations}");
        }
    }

    #[test]
    fn joined_evictions_have_the_earlier_time_and_all_reasons() {
        let eviction = |second, n| Eviction { when: at(second), reasons: [reason(n)].into() };
        let joined = eviction(5, 1).merge(Some(eviction(3, 0))).merge(None);
        assert_eq!((joined.when, joined.reasons.len()), (at(3), 2));
        assert_eq!(
            joined.reasons_text(),
            "ResourceSlice d/p/x taint #0, ResourceSlice d/p/x taint #1"
        );
    }

    #[test]
    fn a_rule_selects_devices_that_match_all_its_fields() {
        for (selector, selected) in [
            (json!({}), true),
            (json!({ "driver": "d" }), true),
            (json!({ "driver": "d", "pool": "p", "device": "x" }), true),
            (json!({ "driver": "e" }), false),
            (json!({ "driver": "d", "pool": "q" }), false),
            (json!({ "device": "y" }), false),
        ] {
            let selector = Some(serde_json::from_value(selector).unwrap());
            assert_eq!(
                selector_matches(selector.as_ref(), "d", "p", "x"),
                selected,
                "{selector:?}"
            );
        }
        assert!(!selector_matches(None, "d", "p", "x"));
    }

    #[test]
    fn only_the_newest_slices_of_a_pool_count() {
        let slice = |name: &str, generation: i64, device: &str, effect: &str| {
            let taint = json!({ "key": "k", "effect": effect });
            let slice = json!({
                "metadata": { "name": name },
                "spec": {
                    "driver": "d", "pool": { "name": "p", "generation": generation },
                    "devices": [{ "name": device, "taints": [taint] }],
                },
            });
            Arc::new(serde_json::from_value::<ResourceSlice>(slice).unwrap())
        };
        let devices = |slices: &[Arc<ResourceSlice>]| -> Vec<String> {
            evicting_taints(slices).keys().map(ToString::to_string).collect()
        };
        let (old, new) = (slice("a", 1, "x", NO_EXECUTE), slice("b", 2, "y", NO_EXECUTE));
        let (same, other) = (slice("c", 2, "z", NO_EXECUTE), slice("d", 2, "w", "NoSchedule"));
        assert_eq!(devices(std::slice::from_ref(&old)), ["x"]);
        assert_eq!(devices(&[old.clone(), new.clone()]), ["y"]);
        assert_eq!(devices(&[old, new, same, other]), ["y", "z"]);
        assert!(devices(&[]).is_empty());
    }
}
