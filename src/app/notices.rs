//! What the log is told about flags that parse but do not do here what they do elsewhere: none is
//! passed over in silence.

use crate::options::{Options, emulated, git_version};

/// A line each.
pub fn of(o: &Options) -> Vec<String> {
    let mut notices = o.feature_gates.warnings();
    let mut tell = |when: bool, notice: String| {
        if when {
            notices.push(notice);
        }
    };
    tell(
        o.feature_gates.enabled("CoordinatedLeaderElection"),
        "feature gate CoordinatedLeaderElection is on, but this build makes no LeaseCandidate: it \
         takes its lease by itself, as with the gate off"
            .into(),
    );
    tell(
        !o.feature_gates.enabled("PodLevelResources"),
        "feature gate PodLevelResources is off, but has no effect in this build: quotas charge a \
         pod's own resources wherever the API server stores them"
            .into(),
    );
    let emulated = emulated(o);
    let own = git_version().split('.').nth(1).and_then(|minor| minor.parse().ok());
    tell(
        own.is_some_and(|own: u32| emulated < own),
        format!(
            "--emulated-version=1.{emulated} is reported, but feature gates keep the defaults of {}",
            git_version()
        ),
    );
    tell(
        !o.allow_metric_labels.0.is_empty() || !o.allow_metric_labels_manifest.is_empty(),
        "--allow-metric-labels has no effect in this build: labels have the values they have"
            .into(),
    );
    tell(
        o.contention_profiling,
        "--contention-profiling has no effect in this build: it records no profiles".into(),
    );
    tell(
        o.leader_elect
            && o.feature_gates.given("ControllerManagerReleaseLeaderElectionLockOnExit")
                == Some(false),
        "the lease is not given back on exit, as the feature gates say: the next leader waits \
         until it has run out"
            .into(),
    );
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_is_told_of() {
        assert_eq!(of(&Options::default()), Vec::<String>::new());
        let told = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            of(&options).join("\n")
        };
        type Change = fn(&mut Options);
        let table: &[(Change, &str)] = &[
            (
                |o| o.feature_gates.0.push(("CoordinatedLeaderElection".into(), true)),
                "feature gate CoordinatedLeaderElection is on",
            ),
            (
                |o| o.feature_gates.0.push(("AllBeta".into(), true)),
                "feature gate CoordinatedLeaderElection is on",
            ),
            (|o| o.emulated_version = vec!["kube=1.35".into()], "--emulated-version=1.35 "),
            (|o| o.contention_profiling = true, "--contention-profiling "),
            (
                |o| o.feature_gates.0.push(("PodLevelResources".into(), false)),
                "feature gate PodLevelResources is off",
            ),
        ];
        for (change, start) in table {
            assert!(told(*change).starts_with(start), "{}", told(*change));
        }
    }
}
