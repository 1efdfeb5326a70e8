//! The feature gates of a release and their states.
//! Upstream: `pkg/features`, `component-base/featuregate`.

use super::feature_gate_table::{GATES, GateSpec, GateState, Stage};
use super::release::Release;
use super::values::Gates;

impl Gates {
    /// Returns whether a gate is on. One that the release does not have is off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(spec) = spec(name, self.release) else { return false };
        if spec.locked {
            return spec.default;
        }
        let all = match spec.stage {
            Stage::Alpha => self.value_given("AllAlpha"),
            Stage::Beta => self.value_given("AllBeta"),
            Stage::Ga | Stage::Deprecated => None,
        };
        self.value_given(name).or(all).unwrap_or(spec.default)
    }

    /// Returns the faults that the given gates have in all of these releases, a line each: one
    /// release in which a gate is accepted suffices.
    pub(super) fn problems(&self, releases: &[Release]) -> Vec<String> {
        let mut releases = releases.iter().map(|release| self.problems_in(*release));
        let first = releases.next().unwrap_or_default();
        releases.fold(first, |mut common, next| {
            common.retain(|problem| next.contains(problem));
            common
        })
    }

    /// Returns the faults of the given gates at this release: unknown and locked ones; if there are
    /// none of these, the gates that are on while one that they depend on is off.
    fn problems_in(&self, release: Release) -> Vec<String> {
        let problem = |(name, on): &(String, bool)| match state(name, release) {
            _ if matches!(name.as_str(), "AllAlpha" | "AllBeta") => None,
            GateState::Gone => Some(format!("--feature-gates: unrecognized feature gate: {name}")),
            GateState::Known(spec) if spec.locked && spec.default != *on => Some(format!(
                "--feature-gates: cannot set feature gate {name} to {on}, feature is locked to {}",
                spec.default
            )),
            GateState::Known(_) => None,
            // The binary of 1.36 does not know the gates of 1.37.
            GateState::Later if state(name, Release::V1_36) == GateState::Later => {
                Some(format!("--feature-gates: unrecognized feature gate: {name}"))
            }
            GateState::Later => Some(format!(
                "--feature-gates: cannot set feature gate {name} to {on}, feature is PreAlpha at \
                 emulated version {release}, min compatibility version {}",
                release.before()
            )),
        };
        let mut problems: Vec<String> = self.given.iter().filter_map(problem).collect();
        if !problems.is_empty() {
            return problems;
        }
        let gates = Gates { given: self.given.clone(), release };
        for (gate, needed) in DEPENDENCIES.iter().filter(|(gate, _)| gates.enabled(gate)) {
            let off: Vec<&str> = needed
                .iter()
                .copied()
                .filter(|needed| spec(needed, release).is_some() && !gates.enabled(needed))
                .collect();
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

/// The gates that a gate depends on, where they can be off in one of the releases. Sorted.
/// Upstream: `defaultKubernetesFeatureGateDependencies`.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("CompositePodGroup", &["GenericWorkload", "TopologyAwareWorkloadScheduling"]),
    ("DRAAdminAccess", &["DynamicResourceAllocation"]),
    ("DRAConsumableCapacity", &["DynamicResourceAllocation"]),
    ("DRADerivedAttributes", &["DynamicResourceAllocation"]),
    ("DRADeviceBindingConditions", &["DRAResourceClaimDeviceStatus", "DynamicResourceAllocation"]),
    ("DRADeviceCompatibilityGroups", &["DRAPartitionableDevices", "DynamicResourceAllocation"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRADeviceTaints", &["DynamicResourceAllocation"]),
    ("DRAExtendedResource", &["DynamicResourceAllocation"]),
    ("DRAFractionalCapacityRange", &["DRAConsumableCapacity"]),
    ("DRAListTypeAttributes", &["DynamicResourceAllocation"]),
    ("DRANodeAllocatableResources", &["DynamicResourceAllocation"]),
    ("DRAOptionalNodeOperations", &["DynamicResourceAllocation", "NodeDeclaredFeatures"]),
    ("DRAPartitionableDevices", &["DynamicResourceAllocation"]),
    (
        "DRAPartitionableDevicesType",
        &["DRAPartitionableDevices", "DRAResourcePoolStatus", "DynamicResourceAllocation"],
    ),
    ("DRAPrioritizedList", &["DynamicResourceAllocation"]),
    (
        "DRAResourceClaimGranularStatusAuthorization",
        &["DRAResourceClaimDeviceStatus", "DynamicResourceAllocation"],
    ),
    ("DRAResourcePoolStatus", &["DynamicResourceAllocation"]),
    ("DRASchedulerFilterTimeout", &["DynamicResourceAllocation"]),
    ("DRAWorkloadResourceClaims", &["DynamicResourceAllocation", "GenericWorkload"]),
    ("DeclarativeValidationBeta", &["DeclarativeValidation"]),
    ("DeclarativeValidationTakeover", &["DeclarativeValidation"]),
    ("DisableAllocatorDualWrite", &["MultiCIDRServiceAllocator"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("H2CContainerProbe", &["NodeDeclaredFeatures"]),
    ("ImageVolumeWithDigest", &["ImageVolume"]),
    (
        "InPlacePodLevelResourcesVerticalScaling",
        &["InPlacePodVerticalScaling", "NodeDeclaredFeatures", "PodLevelResources"],
    ),
    ("InPlacePodVerticalScalingExclusiveCPUs", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingExclusiveMemory", &["InPlacePodVerticalScaling"]),
    (
        "InPlacePodVerticalScalingInitContainers",
        &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"],
    ),
    (
        "InPlacePodVerticalScalingMemoryBackedVolumes",
        &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"],
    ),
    ("InPlacePodVerticalScalingSchedulerPreemption", &["InPlacePodVerticalScaling"]),
    ("KubeletAllocatedPodsEndpoint", &["InPlacePodVerticalScaling"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("NodeControllerLeaseCircuitBreaker", &["AtomicFIFO"]),
    ("PodGroupPreemptionPolicy", &["GenericWorkload"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("PodLevelResourcesFixDefaulting", &["PodLevelResources"]),
    ("PodLevelResourcesFixKubeletQOSClass", &["PodLevelResources"]),
    ("ProcMountType", &["UserNamespacesSupport"]),
    ("ResourceHealthStatus", &["DynamicResourceAllocation"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("ServiceAccountTokenNodeBinding", &["ServiceAccountTokenNodeBindingValidation"]),
    ("StaleControllerConsistencyDaemonSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyHPA", &["AtomicFIFO"]),
    ("StaleControllerConsistencyJob", &["AtomicFIFO"]),
    ("StaleControllerConsistencyReplicaSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyStatefulSet", &["AtomicFIFO"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["NodeDeclaredFeatures", "UserNamespacesSupport"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

impl Gates {
    /// Returns the warnings about the given gates, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |(name, on): &(String, bool)| {
            let stage = match spec(name, self.release)?.stage {
                Stage::Ga => "GA",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => return None,
            };
            Some(format!(
                "Warning: setting {stage} feature gate {name}={on}. It will be removed in a future \
                 release."
            ))
        };
        self.given.iter().filter_map(warning).collect()
    }

    /// Returns the value of a gate on the command line.
    pub fn value_given(&self, name: &str) -> Option<bool> {
        self.given.iter().rev().find(|(n, _)| n == name).map(|&(_, on)| on)
    }

    /// Returns every gate of the release with its stage and whether it is on, also the gates that
    /// stand for a whole stage. Sorted by name.
    pub fn all(&self) -> Vec<(&'static str, Stage, bool)> {
        let stages = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];
        let stages =
            stages.map(|(name, stage)| (name, stage, self.value_given(name) == Some(true)));
        let known = specs(self.release).map(|(name, spec)| (name, spec.stage, self.enabled(name)));
        let mut all: Vec<_> = known.chain(stages).collect();
        all.sort_by_key(|(name, ..)| *name);
        all
    }

    /// Returns the given gates that are not as the release has them by default.
    pub fn changed(&self) -> impl Iterator<Item = &'static str> {
        specs(self.release)
            .filter(|(name, spec)| self.enabled(name) != spec.default)
            .map(|(name, _)| name)
    }
}

/// Returns the gates of a release, sorted by name.
pub fn specs(release: Release) -> impl Iterator<Item = (&'static str, GateSpec)> {
    GATES.iter().filter_map(move |(name, states)| match states[release.column()] {
        GateState::Known(spec) => Some((*name, spec)),
        GateState::Later | GateState::Gone => None,
    })
}

/// Returns what a gate is in a release. A gate that no release has is like one that is gone.
fn state(name: &str, release: Release) -> GateState {
    let at = GATES.binary_search_by_key(&name, |(known, _)| known);
    at.map_or(GateState::Gone, |at| GATES[at].1[release.column()])
}

/// Returns the gate in this release; `None` if it does not exist there.
fn spec(name: &str, release: Release) -> Option<GateSpec> {
    match state(name, release) {
        GateState::Known(spec) => Some(spec),
        GateState::Later | GateState::Gone => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(pairs: &[(&str, bool)]) -> Gates {
        gates_of(Release::V1_36, pairs)
    }

    fn gates_of(release: Release, pairs: &[(&str, bool)]) -> Gates {
        Gates { given: pairs.iter().map(|(name, on)| (name.to_string(), *on)).collect(), release }
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
    fn table_is_sorted_and_complete() {
        assert!(GATES.is_sorted_by_key(|(name, _)| name));
        let count = |release| specs(release).count();
        // Upstream's manager lists as many, with those of its libraries.
        assert_eq!(Release::ALL.map(count), [189, 210, 240, 252]);
        for (name, states) in GATES {
            let later = states.iter().take_while(|state| **state == GateState::Later).count();
            let rest = states[later..].iter().skip_while(|state| **state != GateState::Gone);
            assert!(rest.clone().all(|state| *state == GateState::Gone), "{name}");
            assert!(!states[later..].contains(&GateState::Later), "{name}");
        }
    }

    /// What 1.37 has on by default, by upstream's pull requests.
    #[test]
    fn gates_have_the_defaults_of_their_release() {
        for (name, in_36, in_37) in [
            ("MaxUnavailableStatefulSet", false, true),     // 139466
            ("HPAScaleToZero", false, true),                // 139648
            ("StaleControllerConsistencyHPA", false, true), // 139025
            ("HPAOptimizedSelectorStore", false, true),     // 139142
            ("HPAGeneration", false, true),                 // 138228
            ("NodeControllerLeaseCircuitBreaker", false, true), // 138698
            ("PersistentVolumeClaimUnusedSinceTime", false, true), // 139620
            ("NativeHistograms", false, true),              // 140124
            ("StorageVersionMigrator", false, true),        // 138560
            ("PodCertificateRequest", false, true),         // 139579
            ("ClusterTrustBundle", false, true),            // 139437
            ("DRADeviceTaintRules", false, true),           // 138676
            ("GenericWorkload", false, false),              // 140334
            ("DRAWorkloadResourceClaims", false, false),    // 140334
            ("StatefulSetRecreateStrategy", false, false),  // 137187
            ("EvictionRequestAPI", false, false),           // 137050
            ("HPAConfigurableTolerance", true, true),       // 140107
            ("SidecarContainers", true, false),             // 137755, gone
        ] {
            assert_eq!(gates(&[]).enabled(name), in_36, "{name} in 1.36");
            assert_eq!(gates_of(Release::V1_37, &[]).enabled(name), in_37, "{name} in 1.37");
        }
    }

    /// The second and third column of each row.
    #[test]
    fn page_of_gates_has_the_states_of_both_releases() {
        let page = include_str!("../../docs/feature-gates.md");
        let shown = |name: &str, release| {
            let Some(GateSpec { stage, default, locked }) = spec(name, release) else {
                return "–".to_owned();
            };
            let stage = match stage {
                Stage::Ga => "GA".to_owned(),
                _ => stage.name().to_lowercase(),
            };
            let value = if locked {
                "locked"
            } else if default {
                "on"
            } else {
                "off"
            };
            format!("{stage}, {value}")
        };
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        assert!(rows.clone().count() > 30);
        for row in rows {
            let cells: Vec<&str> = row.split(" | ").collect();
            let names = cells[0]
                .split('`')
                .skip(1)
                .step_by(2)
                .map(|name| name.replace('…', "StaleControllerConsistency"));
            for name in names {
                for (cell, release) in [(cells[1], Release::V1_36), (cells[2], Release::V1_37)] {
                    let state = shown(&name, release);
                    assert!(cell.split("; ").any(|one| one == state), "{name}: {state}: {row}");
                }
            }
        }
    }

    #[test]
    fn gate_needs_its_dependencies() {
        let problems = |given: &[(&str, bool)]| gates(given).problems(&[Release::V1_36]);
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
        for release in Release::ALL {
            assert_eq!(gates_of(release, &[]).problems(&[release]), none, "{release}");
        }
        assert!(DEPENDENCIES.is_sorted());
        let names = DEPENDENCIES.iter().flat_map(|(gate, needed)| [&[*gate][..], needed].concat());
        for name in names {
            assert!(GATES.iter().any(|(known, _)| *known == name), "{name}");
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
            ("HPAGeneration", true),
            ("AllBeta", true),
        ]);
        assert_eq!(
            gates.problems(&[Release::V1_36]),
            [
                "--feature-gates: unrecognized feature gate: Nope",
                "--feature-gates: cannot set feature gate DynamicResourceAllocation to false, \
                 feature is locked to true",
                "--feature-gates: unrecognized feature gate: HPAGeneration",
            ]
        );
        assert_eq!(
            gates_of(Release::V1_35, &[("AtomicFIFO", false)]).problems(&[Release::V1_35]),
            ["--feature-gates: cannot set feature gate AtomicFIFO to false, feature is PreAlpha \
              at emulated version 1.35, min compatibility version 1.34"]
        );
        // Before the release is chosen only what all of them refuse is a fault.
        assert_eq!(
            gates.problems(&[Release::V1_34, Release::V1_36, Release::V1_37]),
            ["--feature-gates: unrecognized feature gate: Nope"]
        );
    }
}
