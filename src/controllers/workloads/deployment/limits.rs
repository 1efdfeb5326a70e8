//! `maxSurge` and `maxUnavailable` as numbers of pods.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::controllers::workloads::percent::{resolve_rounding_down, resolve_rounding_up};
use crate::objects::{Deployment, RollingUpdate};

/// How far a rollout may go above and below the wanted number of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub max_surge: i32,
    /// At most the wanted number.
    pub max_unavailable: i32,
}

impl Limits {
    /// Computes the limits of a rollout: both 0 unless the strategy is `RollingUpdate`. A value
    /// that validation would refuse counts as 0. Upstream: `MaxSurge`, `MaxUnavailable`.
    pub fn new(deployment: &Deployment) -> Limits {
        if !is_rolling_update(deployment) {
            return Limits::default();
        }
        let desired = deployment.replicas();
        let none = RollingUpdate::default();
        let rolling = deployment.spec.strategy.rolling_update.as_ref().unwrap_or(&none);
        let (max_surge, max_unavailable) = resolve_fenceposts(
            rolling.max_surge.as_ref(),
            rolling.max_unavailable.as_ref(),
            desired,
        )
        .unwrap_or_default();
        Limits { max_surge, max_unavailable: max_unavailable.min(desired) }
    }

    /// Returns the most pods that a Deployment of `desired` may have at a time. Any number is valid
    /// as a surge; where the sum is too large it wraps, as upstream's does, and the rollout stands
    /// still.
    pub fn max_replicas(self, desired: i32) -> i32 {
        desired.wrapping_add(self.max_surge)
    }
}

pub(super) fn is_rolling_update(deployment: &Deployment) -> bool {
    deployment.spec.strategy.r#type == "RollingUpdate"
}

/// Returns maxSurge, rounded up, and maxUnavailable, rounded down, as numbers of pods. If both are
/// 0 the rollout could never move, so one pod may then be unavailable. Upstream:
/// `ResolveFenceposts`.
fn resolve_fenceposts(
    max_surge: Option<&IntOrString>,
    max_unavailable: Option<&IntOrString>,
    desired: i32,
) -> Result<(i32, i32), String> {
    let surge = max_surge.map_or(Ok(0), |value| resolve_rounding_up(value, desired))?;
    let unavailable =
        max_unavailable.map_or(Ok(0), |value| resolve_rounding_down(value, desired))?;
    Ok((surge, if surge == 0 && unavailable == 0 { 1 } else { unavailable }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenceposts() {
        let value = |text: &str| match text.parse() {
            Ok(number) => IntOrString::Int(number),
            Err(_) => IntOrString::String(text.into()),
        };
        // maxSurge, maxUnavailable, desired, and the pair they come to
        for (surge, unavailable, desired, resolved) in [
            ("0", "0", 0, Some((0, 1))),
            ("25%", "25%", 10, Some((3, 2))),
            ("25%", "25%", 1, Some((1, 0))),
            ("0%", "1%", 2, Some((0, 1))),
            ("1%", "25%", 2, Some((1, 0))),
            ("3", "2", 10, Some((3, 2))),
            ("100%", "100%", 7, Some((7, 7))),
            ("50%", "0%", 0, Some((0, 1))),
            ("50", "x", 5, None),
            ("5x%", "0", 5, None),
        ] {
            let got = resolve_fenceposts(Some(&value(surge)), Some(&value(unavailable)), desired);
            assert_eq!(got.ok(), resolved, "{surge} {unavailable} {desired}");
        }
    }

    #[test]
    fn limits_follow_the_strategy() {
        let limits = |json: serde_json::Value| {
            let deployment: Deployment = serde_json::from_value(json).unwrap();
            let Limits { max_surge, max_unavailable } = Limits::new(&deployment);
            (max_surge, max_unavailable)
        };
        let with = |kind: &str, replicas: i32| {
            serde_json::json!({"spec": {"replicas": replicas, "strategy": {"type": kind,
                "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 4}}}})
        };
        assert_eq!(limits(with("RollingUpdate", 10)), (5, 4));
        assert_eq!(limits(with("RollingUpdate", 3)), (2, 3));
        assert_eq!(limits(with("RollingUpdate", 0)), (0, 0));
        assert_eq!(limits(with("Recreate", 10)), (0, 0));
        for (max_surge, most) in
            [(0, 3), (2, 5), (i32::MAX - 3, i32::MAX), (i32::MAX, i32::MIN + 2)]
        {
            assert_eq!(Limits { max_surge, max_unavailable: 0 }.max_replicas(3), most);
        }
    }
}
