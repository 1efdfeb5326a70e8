//! The feature gates of a release and their states.
//! Upstream: `pkg/features`, `component-base/featuregate`.

use super::feature_gate_table::{GATES, GateSpec, GateState, ON_IF_COMPATIBLE, Stage};
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
        self.value_given(name).or(all).unwrap_or_else(|| self.default_of(name, spec))
    }

    /// Returns the oldest release of other components: by default the one before the own release.
    pub fn min_compatible(&self) -> Release {
        self.min_compatibility.unwrap_or_else(|| self.release.before())
    }

    /// Returns the default of a gate, which may depend on the oldest release of other components.
    fn default_of(&self, name: &str, spec: GateSpec) -> bool {
        let least = on_if_compatible(name);
        spec.default || least.is_some_and(|least| self.min_compatible() >= least)
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
        let gates = Gates { release, ..self.clone() };
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
                gates.min_compatible()
            )),
        };
        let mut problems: Vec<String> = self.given.iter().filter_map(problem).collect();
        if !problems.is_empty() {
            return problems;
        }
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
            .filter(|(name, spec)| self.enabled(name) != self.default_of(name, *spec))
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

/// Returns the release that other components must have at least for the gate to be on by default;
/// `None` if its default does not depend on them.
pub(super) fn on_if_compatible(name: &str) -> Option<Release> {
    ON_IF_COMPATIBLE.iter().find(|(gate, _)| *gate == name).map(|(_, least)| *least)
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
    use crate::options::{Command, Options, parse, validate};

    fn gates(pairs: &[(&str, bool)]) -> Gates {
        gates_of(Release::V1_36, pairs)
    }

    fn gates_of(release: Release, pairs: &[(&str, bool)]) -> Gates {
        let given = pairs.iter().map(|(name, on)| (name.to_string(), *on)).collect();
        Gates { given, release, ..Gates::default() }
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

    /// The gates that 1.37 has otherwise than 1.36, in both releases, with upstream's pull request
    /// where its release notes name one.
    #[rustfmt::skip]
    const CHANGES: &[(&str, &str, &str)] = &[
        ("APIServerTracing", "GA, locked", "–"), // 138907
        ("APIServerWebhookAuthenticationToken", "–", "alpha, off"), // 140113
        ("AllowUnsafeMalformedObjectDeletion", "alpha, off", "beta, on"), // 140785
        ("AnonymousAuthConfigurableEndpoints", "GA, locked", "–"),
        ("AnyVolumeDataSource", "GA, locked", "–"), // 135336
        ("AtomicWriteVolumeUserFields", "–", "alpha, off"), // 139764
        ("AuthorizeNodeWithSelectors", "GA, locked", "–"),
        ("AuthorizeWithSelectors", "GA, locked", "–"),
        ("BtreeWatchCache", "GA, locked", "–"), // 138907
        ("ClusterTrustBundle", "beta, off", "GA, on"), // 139437
        ("ClusterTrustBundleProjection", "beta, off", "GA, on"), // 139437
        ("CompositePodGroup", "–", "alpha, off"), // 139407
        ("ConcurrentWatchObjectDecode", "beta, off", "beta, on"), // 139679
        ("ConsistentListFromCache", "GA, locked", "–"), // 138907
        ("ConsistentListFromCacheSkipTimeoutFallback", "–", "alpha, off"), // 138701
        ("DRADerivedAttributes", "–", "alpha, off"),
        ("DRADeviceCompatibilityGroups", "–", "alpha, off"), // 139795
        ("DRADeviceTaintRules", "beta, off", "GA, on"), // 138676
        ("DRADeviceTaints", "beta, on", "GA, on"), // 138676
        ("DRAExtendedResource", "beta, on", "GA, locked"), // 138488
        ("DRAFractionalCapacityRange", "–", "beta, off"),
        ("DRAOptionalNodeOperations", "–", "alpha, off"), // 139933
        ("DRAPartitionableDevicesType", "–", "alpha, off"),
        ("DRAPrioritizedList", "GA, on", "GA, locked"), // 139110
        ("DRAResourceClaimDeviceStatus", "beta, on", "GA, locked"), // 137546
        ("DRAWorkloadResourceClaims", "alpha, off", "beta, off"), // 140334
        ("DeclarativeValidationTakeover", "deprecated, off", "deprecated, locked"), // 139212
        ("DefaultPodSysctls", "–", "alpha, off"), // 140052
        ("DisableCPUQuotaWithExclusiveCPUs", "deprecated, on", "deprecated, locked"),
        ("EmptyDirVolumeMode", "–", "alpha, off"),
        ("EtcdRangeStream", "–", "beta, on"), // 140085
        ("EvictionRequestAPI", "–", "alpha, off"), // 137050
        ("ExcludeAdmissionWebhookVirtualResources", "–", "beta, on"), // 140019
        ("GRPCContainerProbeTLS", "–", "alpha, off"), // 137762
        ("GangScheduling", "alpha, off", "–"), // 139520
        ("GenericWorkload", "alpha, off", "beta, off"), // 140334
        ("H2CContainerProbe", "–", "alpha, off"), // 139429
        ("HPAConfigurableTolerance", "beta, on", "GA, locked"), // 140107
        ("HPAGeneration", "–", "beta, on"), // 138228
        ("HPAOptimizedSelectorStore", "–", "beta, on"), // 139142
        ("HPAScaleToZero", "alpha, off", "beta, on"), // 139648
        ("HostnameOverride", "beta, on", "GA, locked"), // 139116
        ("HugepageAwareEviction", "–", "beta, on"), // 138127
        ("InPlacePodVerticalScalingInitContainers", "beta, on", "GA, locked"), // 140728
        ("InPlacePodVerticalScalingMemoryBackedVolumes", "–", "alpha, off"), // 139425
        ("InPlacePodVerticalScalingSchedulerPreemption", "–", "alpha, off"), // 140000
        ("InterPodAffinityHostnameFastPath", "–", "alpha, off"), // 138198
        ("JobBackoffLimitPerIndex", "GA, locked", "–"), // 138759
        ("JobPodReplacementPolicy", "GA, locked", "–"), // 138759
        ("JobSuccessPolicy", "GA, locked", "–"), // 138759
        ("KubeProxyIPVS", "–", "deprecated, on"), // 139397
        ("KubeProxyNFTablesLocalhostNodePorts", "–", "alpha, off"), // 138427
        ("KubeletAllocatedPodsEndpoint", "–", "alpha, off"), // 140856
        ("KubeletInUserNamespace", "alpha, off", "beta, on"), // 134639
        ("LogarithmicScaleDown", "GA, locked", "–"),
        ("ManifestBasedAdmissionControlConfig", "alpha, off", "beta, on"), // 140559
        ("MaxUnavailableStatefulSet", "beta, off", "beta, on"), // 139466
        ("MemoryQoS", "alpha, off", "beta, on"), // 140007
        ("NFTablesNetlink", "–", "beta, on"), // 137536
        ("NativeHistograms", "alpha, off", "beta, on"), // 140124
        ("NodeControllerLeaseCircuitBreaker", "–", "beta, on"), // 138698
        ("NodeDeclaredFeatures", "beta, on", "GA, locked"), // 139763
        ("NodeLifecycleConditions", "–", "alpha, off"),
        ("OrderedNamespaceDeletion", "GA, locked", "–"), // 138907
        ("PLEGOnDemandRelist", "beta, on", "GA, locked"), // 140805
        ("PersistentVolumeClaimUnusedSinceTime", "alpha, off", "beta, on"), // 139620
        ("PodAndContainerStatsFromCRI", "alpha, off", "beta, off"), // 140081
        ("PodCertificateRequest", "beta, off", "GA, on"), // 139579
        ("PodGroupPreemptionPolicy", "–", "alpha, off"), // 140359
        ("PodLevelResourceManagers", "alpha, off", "beta, off"), // 141209
        ("PodLevelResourcesFixDefaulting", "–", "beta, on"),
        ("PodLevelResourcesFixKubeletQOSClass", "–", "beta, on"),
        ("PodLifecycleSleepAction", "GA, locked", "–"),
        ("PodLifecycleSleepActionAllowZero", "GA, locked", "–"),
        ("PodReadyToStartContainersCondition", "beta, on", "GA, locked"), // 140488
        ("PodsAPI", "alpha, off", "beta, on"), // 140286
        ("PreventStaticPodAPIReferences", "beta, on", "–"), // 140226
        ("RelaxedDNSSearchValidation", "GA, locked", "–"), // 139217
        ("RelaxedServiceNameValidation", "beta, on", "GA, locked"), // 139282
        ("ResilientWatchCacheInitialization", "GA, locked", "–"), // 138907
        ("RetryGenerateName", "GA, locked", "–"), // 138907
        ("SELinuxMount", "beta, off", "GA, on"), // 139956
        ("SchedulerPreQueueingHints", "–", "alpha, off"), // 140959
        ("SchedulerQueueingHints", "GA, locked", "–"),
        ("SidecarContainers", "GA, locked", "–"), // 137755
        ("StaleControllerConsistencyHPA", "–", "beta, on"), // 139025
        ("StatefulSetRecreateStrategy", "–", "alpha, off"), // 137187
        ("StorageCapacityScoring", "alpha, off", "beta, on"),
        ("StorageVersionMigrator", "beta, off", "GA, on"), // 138560
        ("StreamingCollectionEncodingToJSON", "GA, locked", "–"), // 138907
        ("StreamingCollectionEncodingToProtobuf", "GA, locked", "–"), // 138907
        ("StructuredAuthenticationConfiguration", "GA, locked", "–"),
        ("VolumeBindMountOptions", "–", "alpha, off"), // 140013
        ("VolumeLimitScaling", "alpha, off", "beta, on"), // 140612
        ("WatchCacheInitializationPostStartHook", "beta, on", "GA, locked"), // 139452
        ("WatchListCompression", "–", "beta, on"), // 139308
        ("WebhookRoundTripLoadBalancing", "–", "beta, on"), // 139237
        ("WorkloadAwarePreemption", "alpha, off", "–"), // 139520
    ];

    /// Returns what a gate is in a release, as the page of gates shows it.
    fn shown(name: &str, release: Release) -> String {
        let Some(GateSpec { stage, default, locked }) = spec(name, release) else {
            return "–".to_owned();
        };
        let stage = match stage {
            Stage::Ga => "GA".to_owned(),
            _ => stage.name().to_lowercase(),
        };
        let value = match (locked, default) {
            (true, _) => "locked",
            (false, true) => "on",
            (false, false) => "off",
        };
        format!("{stage}, {value}")
    }

    #[test]
    fn gates_differ_between_1_36_and_1_37_as_upstreams() {
        let states = |name| [Release::V1_36, Release::V1_37].map(|release| shown(name, release));
        let all = GATES.iter().map(|(name, _)| (*name, states(name)));
        let found: Vec<_> = all.filter(|(_, [before, since])| before != since).collect();
        let expected = |(name, before, since): &(&'static str, &str, &str)| {
            (*name, [(*before).to_owned(), (*since).to_owned()])
        };
        assert_eq!(found, CHANGES.iter().map(expected).collect::<Vec<_>>());
    }

    /// Returns the options of a command line, and their faults.
    fn given(args: &[&str]) -> (Options, Vec<String>) {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let Ok(Command::Run(options)) = parse(&args) else { panic!("{args:?}") };
        let problems = validate(&options, &|_| true);
        (options, problems)
    }

    #[test]
    fn gates_locked_or_gone_since_1_37_are_refused_there_alone() {
        let none: &[String] = &[];
        for (gate, fault) in [
            (
                "HPAConfigurableTolerance=false",
                "cannot set feature gate HPAConfigurableTolerance to false, feature is locked to \
                 true",
            ),
            (
                "DRAExtendedResource=false",
                "cannot set feature gate DRAExtendedResource to false, feature is locked to true",
            ),
            ("SidecarContainers=true", "unrecognized feature gate: SidecarContainers"),
            (
                "PreventStaticPodAPIReferences=false",
                "unrecognized feature gate: PreventStaticPodAPIReferences",
            ),
        ] {
            let gate = format!("--feature-gates={gate}");
            let faults = [format!("--feature-gates: {fault}")];
            assert_eq!(given(&[&gate, "--emulated-version=1.36"]).1, none, "{gate}");
            assert_eq!(given(&[&gate, "--emulated-version=1.37"]).1, faults);
            // Refused once the API server has said that it is of 1.37.
            let (mut options, problems) = given(&[&gate]);
            assert_eq!(problems, none, "{gate}");
            assert_eq!(options.follow(Release::V1_36), Ok(()), "{gate}");
            assert_eq!(options.follow(Release::V1_37), Err(faults.into()));
        }
    }

    #[test]
    fn oldest_version_of_others_decides_about_gates() {
        let fault = |least| {
            format!(
                "--feature-gates: cannot set feature gate AtomicFIFO to false, feature is PreAlpha \
                 at emulated version 1.35, min compatibility version {least}"
            )
        };
        let flags = ["--feature-gates=AtomicFIFO=false", "--emulated-version=1.35"];
        assert_eq!(given(&flags).1, [fault("1.34")]);
        let all = [&flags[..], &["--min-compatibility-version=1.35"]].concat();
        assert_eq!(given(&all).1, [fault("1.35")]);

        const GATE: &str = "DRAFractionalCapacityRange";
        for (flags, is_on) in [
            (&["--emulated-version=1.37"][..], false),
            (&["--emulated-version=1.37", "--min-compatibility-version=1.36"][..], false),
            (&["--emulated-version=1.37", "--min-compatibility-version=1.37"][..], true),
            (
                &[
                    "--emulated-version=1.37",
                    "--min-compatibility-version=1.37",
                    "--feature-gates=DRAFractionalCapacityRange=false",
                ][..],
                false,
            ),
        ] {
            let (options, problems) = given(flags);
            assert_eq!(problems, Vec::<String>::new());
            let gates = &options.feature_gates;
            assert_eq!(gates.enabled(GATE), is_on, "{flags:?}");
            let is_changed = gates.changed().any(|name| name == GATE);
            assert_eq!(is_changed, flags.len() == 3, "{flags:?}");
        }
    }

    /// The columns of each row after the names.
    #[test]
    fn page_of_gates_has_the_states_of_every_release() {
        let page = include_str!("../../docs/feature-gates.md");
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
                for (cell, release) in cells[1..].iter().zip(Release::ALL) {
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
