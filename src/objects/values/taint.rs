//! Taints of nodes and the tolerations of pods. Upstream: `v1.Taint`, `v1.Toleration`.

use serde::{Deserialize, Serialize};

use crate::objects::{Istr, Timestamp};

pub const NO_SCHEDULE: &str = "NoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: Istr,
    pub value: Istr,
    pub effect: Istr,
    pub time_added: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    #[serde(skip_serializing_if = "is_empty")]
    pub key: Istr,
    #[serde(skip_serializing_if = "is_empty")]
    pub operator: Istr,
    #[serde(skip_serializing_if = "is_empty")]
    pub value: Istr,
    #[serde(skip_serializing_if = "is_empty")]
    pub effect: Istr,
    /// Absent: forever. Read with the effect NoExecute only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

fn is_empty(text: &Istr) -> bool {
    text.is_empty()
}

impl Toleration {
    /// Returns whether this toleration tolerates a taint. `comparison`: the gate
    /// TaintTolerationComparisonOperators. Without it, `Lt` and `Gt` tolerate nothing. Upstream:
    /// `Toleration.ToleratesTaint`.
    pub fn tolerates(&self, taint: &Taint, comparison: bool) -> bool {
        let covers = |own: &Istr, other: &Istr| own.is_empty() || own == other;
        covers(&self.effect, &taint.effect)
            && covers(&self.key, &taint.key)
            && match self.operator.as_str() {
                "" | "Equal" => self.value == taint.value,
                "Exists" => true,
                "Lt" if comparison => self.compares(taint, |taint, own| taint < own),
                "Gt" if comparison => self.compares(taint, |taint, own| taint > own),
                _ => false,
            }
    }

    /// Returns whether both values are whole numbers for which `test` holds.
    fn compares(&self, taint: &Taint, test: fn(i64, i64) -> bool) -> bool {
        match (decimal_integer(&self.value), decimal_integer(&taint.value)) {
            (Some(own), Some(taint)) => test(taint, own),
            _ => false,
        }
    }

    /// Returns whether two tolerations differ at most in their seconds. Upstream:
    /// `Toleration.MatchToleration`.
    pub fn is_like(&self, other: &Toleration) -> bool {
        (&self.key, &self.operator, &self.value, &self.effect)
            == (&other.key, &other.operator, &other.value, &other.effect)
    }
}

/// Returns the first of `taints` with one of `effects` that no toleration covers. `comparison`: as
/// for [`Toleration::tolerates`].
/// Upstream: `FindMatchingUntoleratedTaint`.
pub fn untolerated<'t, 'a>(
    taints: &'t [Taint],
    effects: &[&str],
    tolerations: impl IntoIterator<Item = &'a Toleration> + Clone,
    comparison: bool,
) -> Option<&'t Taint> {
    let tolerates = |taint: &Taint| {
        tolerations.clone().into_iter().any(|toleration| toleration.tolerates(taint, comparison))
    };
    let mut counted = taints.iter().filter(|taint| effects.contains(&taint.effect.as_str()));
    counted.find(|taint| !tolerates(taint))
}

/// Parses an integer without leading zeros, plus sign or minus zero. Upstream:
/// `content.IsDecimalInteger`.
fn decimal_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_canonical = digits.bytes().all(|c| c.is_ascii_digit()) && !digits.starts_with('0');
    if is_canonical || text == "0" { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into(), time_added: None }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations_cover_taints_by_key_value_and_effect() {
        for (own, other, covered) in [
            (("k", "Exists", "", "NoSchedule"), ("k", "v", "NoSchedule"), true),
            (("k", "Exists", "", ""), ("k", "v", "NoExecute"), true),
            (("", "Exists", "", ""), ("k", "v", "NoExecute"), true),
            (("", "Exists", "", "NoSchedule"), ("k", "v", "NoExecute"), false),
            (("k", "Equal", "v", "NoSchedule"), ("k", "v", "NoSchedule"), true),
            (("k", "", "v", "NoSchedule"), ("k", "v", "NoSchedule"), true),
            (("k", "", "", "NoSchedule"), ("k", "", "NoSchedule"), true),
            (("k", "Equal", "v", "NoSchedule"), ("k", "w", "NoSchedule"), false),
            (("k", "Equal", "v", "NoSchedule"), ("l", "v", "NoSchedule"), false),
            (("k", "Near", "v", "NoSchedule"), ("k", "v", "NoSchedule"), false),
        ] {
            let ((k, o, v, e), (tk, tv, te)) = (own, other);
            for comparison in [false, true] {
                let tolerates = toleration(k, o, v, e).tolerates(&taint(tk, tv, te), comparison);
                assert_eq!(tolerates, covered, "{own:?} {other:?}");
            }
        }
    }

    #[test]
    fn numbers_are_compared_behind_the_gate() {
        for (operator, own, other, covered) in [
            ("Gt", "750", "950", true),
            ("Gt", "950", "950", false),
            ("Lt", "950", "750", true),
            ("Lt", "-5", "-7", true),
            ("Lt", "0", "-1", true),
            ("Gt", "0750", "950", false),
            ("Gt", "-0", "950", false),
            ("Gt", "+7", "950", false),
            ("Gt", "", "950", false),
            ("Gt", "-", "950", false),
            ("Gt", "7", "9.5", false),
            ("Lt", "99999999999999999999", "1", false),
        ] {
            let (own, other) =
                (toleration("k", operator, own, ""), taint("k", other, "NoSchedule"));
            assert_eq!(own.tolerates(&other, true), covered, "{own:?} {other:?}");
            assert!(!own.tolerates(&other, false), "{own:?} {other:?}");
        }
    }

    #[test]
    fn first_untolerated_taint_of_the_effects_is_found() {
        let taints = [
            taint("a", "", "PreferNoSchedule"),
            taint("b", "", NO_SCHEDULE),
            taint("c", "", NO_EXECUTE),
        ];
        let found = |effects: &[&str], tolerations: &[Toleration]| {
            untolerated(&taints, effects, tolerations, false).map(|taint| taint.key.to_string())
        };
        let both = [NO_SCHEDULE, NO_EXECUTE];
        assert_eq!(found(&both, &[]).as_deref(), Some("b"));
        assert_eq!(found(&[NO_EXECUTE], &[]).as_deref(), Some("c"));
        assert_eq!(found(&both, &[toleration("b", "Exists", "", "")]).as_deref(), Some("c"));
        assert_eq!(found(&both, &[toleration("", "Exists", "", "")]), None);
    }

    #[test]
    fn seconds_do_not_make_another_toleration() {
        let own = toleration("k", "", "v", NO_EXECUTE);
        let timed = Toleration { toleration_seconds: Some(3), ..own.clone() };
        assert!(own.is_like(&timed));
        assert!(!own.is_like(&toleration("k", "Equal", "v", NO_EXECUTE)));
    }
}
