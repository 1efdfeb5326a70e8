//! Notices in the log about accepted flags whose effect differs from the Go manager's.

use crate::options::{Count, Options, Release};

/// Gates that upstream's manager reads and this build does not. Gates that are locked in every
/// release are left out, and those that only other components read.
const WITHOUT_EFFECT: &[&str] = &[
    "AllowParsingUserUIDFromCertAuth",
    "AtomicFIFO",
    "CSIVolumeHealth",
    "ClientsAllowCARotation",
    "ClientsAllowCBOR",
    "ClientsAllowTLSCacheGC",
    "ClientsPreferCBOR",
    "ContextualLogging",
    "DRAAdminAccess",
    "EvictionRequestAPI",
    "HPAOptimizedSelectorStore",
    "InOrderInformersBatchProcess",
    "InPlacePodVerticalScaling",
    "JobManagedBy",
    "NativeHistograms",
    "PreferSameTrafficDistribution",
    "StatefulSetRecreateStrategy",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnlockWhileProcessingFIFO",
];

/// Returns the warnings that the log shows at the start about the given flags, a line each.
pub fn lines(o: &Options) -> Vec<String> {
    let mut notices = o.feature_gates.warnings();
    let mut notice = |when: bool, line: String| {
        if when {
            notices.push(line);
        }
    };
    let changed: Vec<&str> =
        o.feature_gates.changed().filter(|name| WITHOUT_EFFECT.contains(name)).collect();
    notice(
        !changed.is_empty(),
        format!("feature gates without effect in this build: {}", changed.join(", ")),
    );
    notice(
        o.release() >= Release::V1_37 && o.feature_gates.enabled("WorkloadWithJob"),
        "the feature gate WorkloadWithJob has no effect in this build with 1.37: Jobs with \
         spec.scheduling get no Workloads"
            .into(),
    );
    notice(
        o.release() >= Release::V1_37 && o.concurrent_service_syncs != Count::new(1),
        "--concurrent-service-syncs has no effect: 1.37 does not have this flag".into(),
    );
    notice(
        !o.allow_metric_labels.0.is_empty() || !o.allow_metric_labels_manifest.is_empty(),
        "--allow-metric-labels has no effect in this build: label values are not filtered".into(),
    );
    notice(
        o.contention_profiling,
        "--contention-profiling has no effect in this build: it records no profiles".into(),
    );
    notice(
        o.leader_elect
            && o.feature_gates.value_given("ControllerManagerReleaseLeaderElectionLockOnExit")
                == Some(false),
        "the lease is not released on exit, as the feature gates say: the next leader waits \
         until it expires"
            .into(),
    );
    notices
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::options::feature_gates;

    #[test]
    fn notices_name_the_given_flags() {
        assert_eq!(lines(&Options::default()), Vec::<String>::new());
        let noticed = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            lines(&options).join("\n")
        };
        type Change = fn(&mut Options);
        let table: &[(Change, &str)] = &[
            (
                |o| {
                    o.feature_gates.given.push(("ClientsAllowCBOR".into(), true));
                    o.feature_gates.given.push(("AtomicFIFO".into(), true));
                },
                "feature gates without effect in this build: ClientsAllowCBOR",
            ),
            (|o| o.contention_profiling = true, "--contention-profiling "),
        ];
        for (change, start) in table {
            assert!(noticed(*change).starts_with(start), "{}", noticed(*change));
        }
    }

    #[test]
    fn notices_of_1_37_name_what_is_not_built_of_it() {
        let gates = |names: &[&str]| {
            let given = names.iter().map(|name| ((*name).to_owned(), true)).collect::<Vec<_>>();
            let mut options = Options::default();
            options.feature_gates.given = given;
            options
        };
        let service_syncs =
            Options { concurrent_service_syncs: Count::new(2), ..Options::default() };
        let with_job = gates(&["GenericWorkload", "WorkloadWithJob"]);
        let strategy = gates(&["StatefulSetRecreateStrategy"]);
        for (release, options, start) in [
            (Release::V1_36, &service_syncs, None),
            (Release::V1_37, &service_syncs, Some("--concurrent-service-syncs has no effect")),
            (Release::V1_36, &with_job, None),
            (Release::V1_37, &with_job, Some("the feature gate WorkloadWithJob has no effect")),
            (
                Release::V1_37,
                &strategy,
                Some("feature gates without effect in this build: StatefulSetRecreateStrategy"),
            ),
        ] {
            let mut options = options.clone();
            options.follow(release).expect("the gates are known");
            let found = lines(&options);
            let found = found.first().map(String::as_str);
            assert_eq!(found.is_some(), start.is_some(), "{release}: {found:?}");
            assert!(found.unwrap_or_default().starts_with(start.unwrap_or_default()), "{found:?}");
        }
    }

    /// Gates that upstream's manager reads, its libraries included, where a release does not lock
    /// them, and those that turn a controller on or off. From the calls of `Enabled` under
    /// `cmd/kube-controller-manager`, `pkg/controller`, `pkg/quota`, `client-go`, `component-base`
    /// and the parts of `apiserver` that serve the secure port.
    const READ_UPSTREAM: &[&str] = &[
        "APIServerIdentity",
        "AllowParsingUserUIDFromCertAuth",
        "AtomicFIFO",
        "CSIVolumeHealth",
        "ClientsAllowCARotation",
        "ClientsAllowCBOR",
        "ClientsAllowTLSCacheGC",
        "ClientsPreferCBOR",
        "ClusterTrustBundle",
        "ComponentFlagz",
        "ComponentStatusz",
        "ContextualLogging",
        "ControllerManagerReleaseLeaderElectionLockOnExit",
        "CoordinatedLeaderElection",
        "DRAAdminAccess",
        "DRADeviceTaintRules",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPrioritizedList",
        "DRAResourcePoolStatus",
        "DRAWorkloadResourceClaims",
        "DeploymentReplicaSetTerminatingReplicas",
        "DynamicResourceAllocation",
        "EvictionRequestAPI",
        "GenericWorkload",
        "HPAConfigurableTolerance",
        "HPAGeneration",
        "HPAOptimizedSelectorStore",
        "HPAScaleToZero",
        "InOrderInformersBatchProcess",
        "InPlacePodVerticalScaling",
        "InformerResourceVersion",
        "JobManagedBy",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
        "MaxUnavailableStatefulSet",
        "MutableSchedulingDirectivesForSuspendedJobs",
        "NativeHistograms",
        "NodeControllerLeaseCircuitBreaker",
        "PersistentVolumeClaimUnusedSinceTime",
        "PodCertificateRequest",
        "PodDeletionCost",
        "PodLevelResources",
        "PreferSameTrafficDistribution",
        "RemoteRequestHeaderUID",
        "SELinuxChangePolicy",
        "SeparateTaintEvictionController",
        "StaleControllerConsistencyDaemonSet",
        "StaleControllerConsistencyHPA",
        "StaleControllerConsistencyJob",
        "StaleControllerConsistencyReplicaSet",
        "StaleControllerConsistencyStatefulSet",
        "StatefulSetRecreateStrategy",
        "StatefulSetSemanticRevisionComparison",
        "StorageVersionAPI",
        "StorageVersionMigrator",
        "TaintTolerationComparisonOperators",
        "UnauthenticatedHTTP2DOSMitigation",
        "UnlockWhileProcessingFIFO",
        "VolumeAttributesClass",
        "WatchListClient",
        "WorkloadWithJob",
    ];

    /// The text below `folder`, without tests, this file and those of the gates.
    fn source(folder: &Path, text: &mut String) {
        let tables = ["notices.rs", "feature_gates.rs", "feature_gate_table.rs"];
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                source(&path, text);
            } else if !tables.iter().any(|name| path.ends_with(name)) {
                let file = std::fs::read_to_string(&path).expect("a source file");
                text.push_str(file.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
            }
        }
    }

    #[test]
    fn every_gate_that_upstream_reads_is_read_or_has_a_notice() {
        let mut text = String::new();
        source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
        let known: Vec<_> =
            [Release::V1_36, Release::V1_37].into_iter().flat_map(feature_gates).collect();
        for gate in READ_UPSTREAM {
            assert!(known.iter().any(|(name, _)| name == gate), "{gate}");
            let is_read = text.contains(&format!("\"{gate}\""));
            let is_listed = WITHOUT_EFFECT.contains(gate);
            assert_ne!(is_read, is_listed, "{gate}: read {is_read}, in WITHOUT_EFFECT {is_listed}");
        }
        assert!(WITHOUT_EFFECT.iter().all(|gate| READ_UPSTREAM.contains(gate)));
    }
}
