//! The feature gates of 1.36 and their states.
//! Upstream: `pkg/features`, `component-base/featuregate`.

use super::feature_gate_table::{GROUPS, Group, Stage};
use super::values::Gates;

impl Gates {
    /// Whether a gate is on. Unknown gates are off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(group) = group_of(name) else { return false };
        if group.locked {
            return group.default;
        }
        let all = match group.stage {
            Stage::Alpha => self.given("AllAlpha"),
            Stage::Beta => self.given("AllBeta"),
            Stage::Ga | Stage::Deprecated => None,
        };
        self.given(name).or(all).unwrap_or(group.default)
    }

    /// The faults of the given gates, a line each.
    pub(super) fn problems(&self) -> Vec<String> {
        let problem = |(name, on): &(String, bool)| match group_of(name) {
            _ if matches!(name.as_str(), "AllAlpha" | "AllBeta") => None,
            None => Some(format!("--feature-gates: unrecognized feature gate: {name}")),
            Some(group) if group.locked && group.default != *on => Some(format!(
                "--feature-gates: cannot set feature gate {name} to {on}, feature is locked to {}",
                group.default
            )),
            Some(_) => None,
        };
        let mut problems: Vec<String> = self.0.iter().filter_map(problem).collect();
        for (gate, needed) in DEPENDENCIES.iter().filter(|(gate, _)| self.enabled(gate)) {
            let off: Vec<&str> =
                needed.iter().copied().filter(|gate| !self.enabled(gate)).collect();
            if !off.is_empty() {
                let off = off.join(" ");
                problems.push(format!(
                    "--feature-gates: {gate} is enabled, but depends on features that are \
                     disabled: [{off}]"
                ));
            }
        }
        problems
    }
}

/// The gates that a gate depends on, where they can be off. Sorted.
/// Upstream: `defaultKubernetesFeatureGateDependencies`.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("DRADeviceBindingConditions", &["DRAResourceClaimDeviceStatus"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRAResourceClaimGranularStatusAuthorization", &["DRAResourceClaimDeviceStatus"]),
    ("DRAWorkloadResourceClaims", &["GenericWorkload"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("InPlacePodLevelResourcesVerticalScaling", &["PodLevelResources", "NodeDeclaredFeatures"]),
    ("InPlacePodVerticalScalingInitContainers", &["NodeDeclaredFeatures"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("StaleControllerConsistencyDaemonSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyJob", &["AtomicFIFO"]),
    ("StaleControllerConsistencyReplicaSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyStatefulSet", &["AtomicFIFO"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["NodeDeclaredFeatures"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

impl Gates {
    /// Warnings about the given gates, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |(name, on): &(String, bool)| {
            let stage = match group_of(name)?.stage {
                Stage::Ga => "GA",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => return None,
            };
            Some(format!(
                "Warning: setting {stage} feature gate {name}={on}. It will be removed in a future \
                 release."
            ))
        };
        self.0.iter().filter_map(warning).collect()
    }

    /// The value of a gate on the command line.
    pub fn given(&self, name: &str) -> Option<bool> {
        self.0.iter().rev().find(|(n, _)| n == name).map(|&(_, on)| on)
    }
}

/// Every gate's name, stage and default, with the gates that stand for a whole stage. Sorted by
/// name.
pub fn all() -> Vec<(&'static str, Stage, bool)> {
    let stages = [("AllAlpha", Stage::Alpha, false), ("AllBeta", Stage::Beta, false)];
    let rows = GROUPS
        .iter()
        .flat_map(|group| group.names.iter().map(|name| (*name, group.stage, group.default)));
    let mut all: Vec<_> = rows.chain(stages).collect();
    all.sort_by_key(|(name, ..)| *name);
    all
}

fn group_of(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(pairs: &[(&str, bool)]) -> Gates {
        Gates(pairs.iter().map(|(name, on)| (name.to_string(), *on)).collect())
    }

    #[test]
    fn single_gate_takes_precedence_over_its_stage() {
        const BETA: &str = "StaleControllerConsistencyReplicaSet";
        const ALPHA: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";
        let ga = "DynamicResourceAllocation";
        type Given = &'static [(&'static str, bool)];
        let table: &[(Given, bool, bool)] = &[
            (&[], true, false),
            (&[("AllBeta", false)], false, false),
            (&[("AllBeta", false), (BETA, true)], true, false),
            (&[("AllAlpha", true)], true, true),
            (&[(ALPHA, false), ("AllAlpha", true)], true, false),
            (&[(ALPHA, false), (ALPHA, true)], true, true),
        ];
        for (given, beta_on, alpha_on) in table {
            let gates = gates(given);
            assert_eq!(
                (gates.enabled(BETA), gates.enabled(ALPHA)),
                (*beta_on, *alpha_on),
                "{given:?}"
            );
            assert!(gates.enabled(ga));
        }
    }

    #[test]
    fn gate_needs_its_dependencies() {
        let problems = |given: &[(&str, bool)]| gates(given).problems();
        assert_eq!(
            problems(&[("WorkloadAwarePreemption", true), ("PodLevelResources", false)]),
            [
                "--feature-gates: InPlacePodLevelResourcesVerticalScaling is enabled, but depends \
                 on features that are disabled: [PodLevelResources]",
                "--feature-gates: WorkloadAwarePreemption is enabled, but depends on features that \
                 are disabled: [GangScheduling]",
            ]
        );
        let none: &[String] = &[];
        for all in ["AllAlpha", "AllBeta"] {
            assert_eq!(problems(&[(all, true)]), none);
            assert_eq!(problems(&[(all, false)]), none);
        }
        assert!(DEPENDENCIES.is_sorted());
        let names = DEPENDENCIES.iter().flat_map(|(gate, needed)| [&[*gate][..], needed].concat());
        for name in names {
            assert!(group_of(name).is_some_and(|group| !group.locked), "{name}");
        }
    }

    #[test]
    fn gates_to_be_removed_have_a_warning() {
        let gates = gates(&[("DRAPrioritizedList", true), ("KMSv1", true), ("AtomicFIFO", true)]);
        let warnings = gates.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].starts_with("Warning: setting GA feature gate DRAPrioritizedList=true.")
        );
        assert!(warnings[1].starts_with("Warning: setting deprecated feature gate KMSv1=true."));
    }

    #[test]
    fn unknown_and_locked_gates_are_refused() {
        let gates = gates(&[
            ("Nope", true),
            ("DynamicResourceAllocation", false),
            ("InOrderInformers", true),
            ("GitRepoVolumeDriver", false),
            ("AllBeta", true),
        ]);
        assert_eq!(
            gates.problems(),
            [
                "--feature-gates: unrecognized feature gate: Nope",
                "--feature-gates: cannot set feature gate DynamicResourceAllocation to false, feature is locked to true",
            ]
        );
    }
}
