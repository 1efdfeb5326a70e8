//! The controllers of 1.36 and 1.37, one row each, and the selection by `--controllers`.
//! Upstream: `cmd/kube-controller-manager/app/controller_descriptor.go`.

use std::sync::Arc;

use crate::controllers::{self, Controller, ControllerContext, Profile, Workers};
use crate::objects::{ReplicaSet, ReplicationController};
use crate::options::{Count, Gates, Options, Release};

/// Wires a new controller up. A constructor that adds no work leaves the controller idle, and the
/// log says why; an idle controller is not started.
///
/// # Errors
/// When something that the controller needs is broken: then no controller starts.
pub type Constructor = fn(&mut Controller) -> Result<(), String>;

/// A row of [`CONTROLLERS`].
#[derive(Clone, Copy)]
pub struct Descriptor {
    pub profile: Profile,
    /// The section and the member of `/configz` with the number of workers, if a flag gives it.
    pub configured_workers: Option<(&'static str, &'static str)>,
    /// The name in older releases, if it was renamed.
    pub alias: Option<&'static str>,
    /// All of them must be on.
    pub gates: &'static [&'static str],
    pub on_by_default: bool,
    /// Run by a cloud controller manager, never by this one; unknown since 1.37.
    pub cloud: bool,
    /// `None`: known, but not available in this build.
    pub constructor: Option<Constructor>,
}

/// Returns a row that only has a name; the methods add to it.
pub const fn row(name: &'static str) -> Descriptor {
    Descriptor {
        profile: Profile::new(name),
        configured_workers: None,
        alias: None,
        gates: &[],
        on_by_default: true,
        cloud: false,
        constructor: None,
    }
}

impl Descriptor {
    pub const fn alias(self, alias: &'static str) -> Descriptor {
        Descriptor { alias: Some(alias), ..self }
    }
    const fn gates(self, gates: &'static [&'static str]) -> Descriptor {
        Descriptor { gates, ..self }
    }
    const fn off(self) -> Descriptor {
        Descriptor { on_by_default: false, ..self }
    }
    const fn cloud(self) -> Descriptor {
        Descriptor { cloud: true, ..self }
    }
    /// The service account and the source of events, where they differ from the name.
    pub const fn account(self, account: &'static str) -> Descriptor {
        let profile = Profile { account, event_source: account, ..self.profile };
        Descriptor { profile, ..self }
    }
    /// The source of events, where it differs from the service account.
    pub const fn event_source(self, event_source: &'static str) -> Descriptor {
        Descriptor { profile: Profile { event_source, ..self.profile }, ..self }
    }
    pub const fn queue(self, queue: &'static str) -> Descriptor {
        Descriptor { profile: Profile { queue, ..self.profile }, ..self }
    }
    const fn workers(self, count: i32) -> Descriptor {
        let workers = Workers::Fixed(Count::new(count));
        Descriptor { profile: Profile { workers, ..self.profile }, ..self }
    }
    /// Takes the number of workers from a flag. `/configz` shows it at `section` and `member`.
    pub const fn workers_from_flag(
        self,
        section: &'static str,
        member: &'static str,
        flag: fn(&Options) -> Count,
    ) -> Descriptor {
        let profile = Profile { workers: Workers::Flag(flag), ..self.profile };
        Descriptor { profile, configured_workers: Some((section, member)), ..self }
    }
    pub const fn built(self, constructor: Constructor) -> Descriptor {
        Descriptor { constructor: Some(constructor), ..self }
    }

    pub fn name(&self) -> &'static str {
        self.profile.name
    }

    /// Returns the controller, wired up. It has no queue where the options give it nothing to do.
    ///
    /// # Errors
    /// As the [`Constructor`]'s, and when the controller is not available in this build.
    pub fn construct(&self, context: &Arc<ControllerContext>) -> Result<Controller, String> {
        let missing = || format!("{}: not available in this build", self.name());
        let mut controller = Controller::new(self.profile, context)?;
        self.constructor.ok_or_else(missing)?(&mut controller)?;
        Ok(controller)
    }

    /// Returns whether it has this name, or had it once.
    pub fn has_name(&self, name: &str) -> bool {
        self.name() == name || self.alias == Some(name)
    }

    /// Returns whether the manager of this release has the controller.
    pub fn exists_in(&self, release: Release) -> bool {
        // Pull request 138002.
        !self.cloud || release < Release::V1_37
    }

    /// Returns whether `list`, the value of `--controllers`, enables the controller. The first item
    /// about it decides.
    pub fn enabled(&self, list: &[String]) -> bool {
        let decided = list.iter().find_map(|item| match item.strip_prefix('-') {
            Some(name) => self.has_name(name).then_some(false),
            None => self.has_name(item).then_some(true),
        });
        decided.unwrap_or(self.on_by_default && list.iter().any(|item| item == "*"))
    }

    /// Returns whether the feature gates permit the controller.
    pub fn gated_on(&self, gates: &Gates) -> bool {
        self.gates.iter().all(|gate| gates.enabled(gate))
    }
}

impl Descriptor {
    /// Returns the reason, for the log, why the options do not let the controller run; `None` if it
    /// runs.
    pub fn skip_reason(&self, options: &Options) -> Option<&'static str> {
        // The token controller runs even if `--controllers` excludes it, as upstream.
        if self.name() != TOKEN_CONTROLLER && !self.enabled(&options.controllers) {
            return Some("controller is disabled");
        }
        if !self.gated_on(&options.feature_gates) {
            return Some("controller is disabled by a feature gate");
        }
        if self.cloud {
            return Some("skipping a cloud provider controller");
        }
        self.constructor.is_none().then_some("controller is not available in this build")
    }
}

/// Returns the row of this name or alias.
pub fn find(name: &str) -> Option<&'static Descriptor> {
    CONTROLLERS.iter().find(|row| row.has_name(name))
}

/// Returns whether `--controllers` may name a controller of the table in one of the releases.
pub fn is_known(table: &[Descriptor], name: &str, releases: &[Release]) -> bool {
    let named = table.iter().find(|row| row.has_name(name));
    named.is_some_and(|row| releases.iter().any(|release| row.exists_in(*release)))
}

/// Returns the names of a table that `--controllers` may name, sorted; and those of them that are
/// off by default.
pub fn names(table: &[Descriptor]) -> (Vec<&'static str>, Vec<&'static str>) {
    let sorted = |rows: &mut dyn Iterator<Item = &Descriptor>| {
        let mut names: Vec<&str> = rows.map(Descriptor::name).collect();
        names.sort();
        names
    };
    let off = sorted(&mut table.iter().filter(|row| !row.on_by_default));
    (sorted(&mut table.iter()), off)
}

/// Returns `list` with the current names of a table in place of older ones.
pub fn canonical(table: &[Descriptor], list: &[String]) -> Vec<String> {
    let with_current_name = |item: &String| {
        let (sign, name) = item.strip_prefix('-').map_or(("", item.as_str()), |name| ("-", name));
        match table.iter().find(|row| row.has_name(name)) {
            Some(row) => format!("{sign}{}", row.name()),
            None => item.clone(),
        }
    };
    list.iter().map(with_current_name).collect()
}

/// The section of `/configz` that only 1.37 has.
pub const DISRUPTION_SECTION: &str = "DisruptionController";

/// Starts first: it creates the tokens that other controllers may need.
pub const TOKEN_CONTROLLER: &str = "serviceaccount-token-controller";

/// The controllers, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    row(TOKEN_CONTROLLER)
        .alias("serviceaccount-token")
        .queue("serviceaccount_tokens_service")
        .workers_from_flag("SAController", "ConcurrentSATokenSyncs", |o| {
            o.concurrent_serviceaccount_token_syncs
        })
        .built(controllers::accounts::serviceaccount::tokens::controller),
    row("endpoints-controller")
        .alias("endpoint")
        .account("endpoint-controller")
        .queue("endpoint")
        .workers_from_flag("EndpointController", "ConcurrentEndpointSyncs", |o| {
            o.concurrent_endpoint_syncs
        })
        .built(controllers::services::endpoint::controller),
    row("endpointslice-controller")
        .alias("endpointslice")
        .event_source("endpoint-slice-controller")
        .queue("endpoint_slice")
        .workers_from_flag("EndpointSliceController", "ConcurrentServiceEndpointSyncs", |o| {
            o.concurrent_service_endpoint_syncs
        })
        .built(controllers::services::endpointslice::controller),
    row("endpointslice-mirroring-controller")
        .alias("endpointslicemirroring")
        .account("endpointslicemirroring-controller")
        .event_source("endpoint-slice-mirroring-controller")
        .queue("endpoint_slice_mirroring")
        .workers_from_flag(
            "EndpointSliceMirroringController",
            "MirroringConcurrentServiceEndpointSyncs",
            |o| o.mirroring_concurrent_service_endpoint_syncs,
        )
        .built(controllers::services::endpointslicemirroring::controller),
    row("replicationcontroller-controller")
        .alias("replicationcontroller")
        .account("replication-controller")
        .queue("replicationmanager")
        .workers_from_flag("ReplicationController", "ConcurrentRCSyncs", |o| o.concurrent_rc_syncs)
        .built(controllers::workloads::replicaset::controller::<ReplicationController>),
    row("pod-garbage-collector-controller")
        .alias("podgc")
        .account("pod-garbage-collector")
        .built(controllers::cleanup::podgc::controller),
    row("resourcequota-controller")
        .alias("resourcequota")
        .queue("resourcequota_primary")
        .workers_from_flag("ResourceQuotaController", "ConcurrentResourceQuotaSyncs", |o| {
            o.concurrent_resource_quota_syncs
        })
        .built(controllers::resourcequota::controller),
    row("namespace-controller")
        .alias("namespace")
        .queue("namespace")
        .workers_from_flag("NamespaceController", "ConcurrentNamespaceSyncs", |o| {
            o.concurrent_namespace_syncs
        })
        .built(controllers::cleanup::namespace::controller),
    row("serviceaccount-controller")
        .alias("serviceaccount")
        .account("service-account-controller")
        .queue("serviceaccount")
        .built(controllers::accounts::serviceaccount::accounts::controller),
    row("garbage-collector-controller")
        .alias("garbagecollector")
        .account("generic-garbage-collector")
        .event_source("garbage-collector-controller")
        .workers_from_flag("GarbageCollectorController", "ConcurrentGCSyncs", |o| {
            o.concurrent_gc_syncs
        })
        .built(controllers::cleanup::garbagecollector::controller),
    row("daemonset-controller")
        .alias("daemonset")
        .account("daemon-set-controller")
        .event_source("daemonset-controller")
        .queue("daemonset")
        .workers_from_flag("DaemonSetController", "ConcurrentDaemonSetSyncs", |o| {
            o.concurrent_daemonset_syncs
        })
        .built(controllers::workloads::daemonset::controller),
    row("job-controller")
        .alias("job")
        .workers_from_flag("JobController", "ConcurrentJobSyncs", |o| o.concurrent_job_syncs)
        .queue("job")
        .built(controllers::workloads::job::controller),
    row("podgroup-protection-controller")
        .queue("podgroupprotection")
        .gates(&["GenericWorkload"])
        .built(controllers::workloads::podgroupprotection::controller),
    row("deployment-controller")
        .alias("deployment")
        .queue("deployment")
        .workers_from_flag("DeploymentController", "ConcurrentDeploymentSyncs", |o| {
            o.concurrent_deployment_syncs
        })
        .built(controllers::workloads::deployment::controller),
    row("replicaset-controller")
        .alias("replicaset")
        .queue("replicaset")
        .workers_from_flag("ReplicaSetController", "ConcurrentRSSyncs", |o| {
            o.concurrent_replicaset_syncs
        })
        .built(controllers::workloads::replicaset::controller::<ReplicaSet>),
    row("horizontal-pod-autoscaler-controller")
        .alias("horizontalpodautoscaling")
        .account("horizontal-pod-autoscaler")
        .queue("horizontalpodautoscaler")
        .workers_from_flag("HPAController", "ConcurrentHorizontalPodAutoscalerSyncs", |o| {
            o.concurrent_horizontal_pod_autoscaler_syncs
        })
        .built(controllers::workloads::autoscaling::controller),
    row("disruption-controller")
        .alias("disruption")
        .event_source("controllermanager")
        .queue("disruption")
        .workers_from_flag(DISRUPTION_SECTION, "ConcurrentDisruptionSyncs", |o| {
            o.concurrent_disruption_syncs
        })
        .built(controllers::workloads::disruption::controller),
    row("statefulset-controller")
        .alias("statefulset")
        .queue("statefulset")
        .workers_from_flag("StatefulSetController", "ConcurrentStatefulSetSyncs", |o| {
            o.concurrent_statefulset_syncs
        })
        .built(controllers::workloads::statefulset::controller),
    row("cronjob-controller")
        .alias("cronjob")
        .workers_from_flag("CronJobController", "ConcurrentCronJobSyncs", |o| {
            o.concurrent_cron_job_syncs
        })
        .queue("cronjob")
        .built(controllers::workloads::cronjob::controller),
    row("certificatesigningrequest-signing-controller")
        .alias("csrsigning")
        .account("certificate-controller")
        .queue("certificate")
        .built(controllers::certificates::signing::controller),
    row("certificatesigningrequest-approving-controller")
        .alias("csrapproving")
        .account("certificate-controller")
        .queue("certificate")
        .workers(5)
        .built(controllers::certificates::approving::controller),
    row("certificatesigningrequest-cleaner-controller")
        .alias("csrcleaner")
        .account("certificate-controller")
        .built(controllers::certificates::cleaner::controller),
    row("podcertificaterequest-cleaner-controller")
        .account("podcertificaterequestcleaner")
        .gates(&["PodCertificateRequest"])
        .built(controllers::certificates::podcertificaterequests::controller),
    row("ttl-controller")
        .alias("ttl")
        .queue("ttlcontroller")
        .workers(5)
        .built(controllers::nodes::ttl::controller),
    row("bootstrap-signer-controller")
        .alias("bootstrapsigner")
        .account("bootstrap-signer")
        .queue("bootstrap_signer_queue")
        .off()
        .built(controllers::bootstrap::signer::controller),
    row("token-cleaner-controller")
        .alias("tokencleaner")
        .account("token-cleaner")
        .queue("token_cleaner")
        .off()
        .built(controllers::bootstrap::tokencleaner::controller),
    row("node-ipam-controller")
        .alias("nodeipam")
        .account("node-controller")
        .event_source("cidrAllocator")
        .queue("cidrallocator_node")
        .workers(30)
        .built(controllers::nodes::ipam::controller),
    row("node-lifecycle-controller")
        .alias("nodelifecycle")
        .account("node-controller")
        .queue("node_lifecycle_controller")
        .built(controllers::nodes::lifecycle::controller),
    row("service-lb-controller")
        .alias("service")
        .workers_from_flag("ServiceController", "ConcurrentServiceSyncs", |o| {
            o.concurrent_service_syncs
        })
        .cloud(),
    row("node-route-controller").alias("route").cloud(),
    row("cloud-node-lifecycle-controller").alias("cloud-node-lifecycle").cloud(),
    row("persistentvolume-binder-controller")
        .alias("persistentvolume-binder")
        .account("persistent-volume-binder")
        .event_source("persistentvolume-controller")
        .queue("claims")
        .built(controllers::storage::binder::controller),
    row("persistentvolume-attach-detach-controller")
        .alias("attachdetach")
        .account("attachdetach-controller")
        .queue("pvcs")
        .built(controllers::storage::attachdetach::controller),
    row("persistentvolume-expander-controller")
        .alias("persistentvolume-expander")
        .account("expand-controller")
        .event_source("volume_expand")
        .queue("volume_expand")
        .workers(10)
        .built(controllers::storage::expander::controller),
    row("clusterrole-aggregation-controller")
        .alias("clusterrole-aggregation")
        .queue("ClusterRoleAggregator")
        .workers(5)
        .built(controllers::accounts::clusterroleaggregation::controller),
    row("persistentvolumeclaim-protection-controller")
        .alias("pvc-protection")
        .account("pvc-protection-controller")
        .queue("pvcprotection")
        .built(controllers::storage::pvcprotection::controller),
    row("persistentvolume-protection-controller")
        .alias("pv-protection")
        .account("pv-protection-controller")
        .queue("pvprotection")
        .built(controllers::storage::pvprotection::controller),
    row("volumeattributesclass-protection-controller")
        .gates(&["VolumeAttributesClass"])
        .queue("vacprotection")
        .built(controllers::storage::vacprotection::controller),
    row("ttl-after-finished-controller")
        .alias("ttl-after-finished")
        .workers_from_flag("TTLAfterFinishedController", "ConcurrentTTLSyncs", |o| {
            o.concurrent_ttl_after_finished_syncs
        })
        .queue("ttl_jobs_to_delete")
        .built(controllers::workloads::ttlafterfinished::controller),
    row("root-ca-certificate-publisher-controller")
        .alias("root-ca-cert-publisher")
        .account("root-ca-cert-publisher")
        .queue("root_ca_cert_publisher")
        .built(controllers::certificates::rootcacertpublisher::controller),
    row("kube-apiserver-serving-clustertrustbundle-publisher-controller")
        .account("kube-apiserver-serving-clustertrustbundle-publisher")
        .queue("ca_cert_publisher_cluster_trust_bundles")
        .gates(&["ClusterTrustBundle"])
        .built(controllers::certificates::trustbundle::controller),
    row("ephemeral-volume-controller")
        .alias("ephemeral-volume")
        .event_source("ephemeral_volume")
        .workers_from_flag("EphemeralVolumeController", "ConcurrentEphemeralVolumeSyncs", |o| {
            o.concurrent_ephemeralvolume_syncs
        })
        .queue("ephemeral_volume")
        .built(controllers::storage::ephemeral::controller),
    row("storageversion-garbage-collector-controller")
        .alias("storage-version-gc")
        .account("storage-version-garbage-collector")
        .gates(&["APIServerIdentity", "StorageVersionAPI"])
        .built(controllers::apiserver::storageversiongc::controller),
    row("resourceclaim-controller")
        .alias("resource-claim-controller")
        .account("resource-claim-controller")
        .event_source("resource_claim")
        .queue("resource_claim")
        .workers_from_flag("ResourceClaimController", "ConcurrentSyncs", |o| {
            o.concurrent_resourceclaim_syncs
        })
        .gates(&["DynamicResourceAllocation"])
        .built(controllers::devices::resourceclaim::controller),
    row("resourcepoolstatusrequest-controller")
        .queue("")
        .gates(&["DRAResourcePoolStatus"])
        .built(controllers::devices::poolstatus::controller),
    row("device-taint-eviction-controller")
        .queue("device-taint-eviction-controller")
        .workers_from_flag("DeviceTaintEvictionController", "ConcurrentSyncs", |o| {
            o.concurrent_device_taint_eviction_syncs
        })
        .gates(&["DynamicResourceAllocation", "DRADeviceTaints"])
        .built(controllers::devices::tainteviction::controller),
    row("legacy-serviceaccount-token-cleaner-controller")
        .alias("legacy-service-account-token-cleaner")
        .account("legacy-service-account-token-cleaner")
        .built(controllers::accounts::serviceaccount::cleaner::controller),
    row("validatingadmissionpolicy-status-controller")
        .queue("validatingadmissionpolicy-status")
        .workers_from_flag(
            "ValidatingAdmissionPolicyStatusController",
            "ConcurrentPolicySyncs",
            |o| o.concurrent_validating_admission_policy_status_syncs,
        )
        .built(controllers::apiserver::validatingadmissionpolicystatus::controller),
    row("taint-eviction-controller")
        .account("node-controller")
        .event_source("taint-eviction-controller")
        .gates(&["SeparateTaintEvictionController"])
        .built(controllers::nodes::tainteviction::controller),
    row("service-cidr-controller")
        .account("service-cidrs-controller")
        .event_source("service-cidr-controller")
        .queue("ipaddresses")
        .workers(5)
        .gates(&["MultiCIDRServiceAllocator"])
        .built(controllers::services::servicecidrs::controller),
    row("storage-version-migrator-controller")
        .alias("svm")
        .gates(&["StorageVersionMigrator"])
        .built(controllers::apiserver::storageversionmigrator::controller),
    row("selinux-warning-controller")
        .event_source("selinux_warning")
        .queue("selinux_warning")
        .off()
        .gates(&["SELinuxChangePolicy"])
        .built(controllers::storage::selinuxwarning::controller),
];

#[cfg(test)]
mod tests {
    use super::super::program::{KubeControllerManager, Program};
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;
    use crate::options::{Command, FLAGS, FlagInfo, feature_gates, parse};

    fn running(list: &[&str]) -> Vec<&'static str> {
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        CONTROLLERS.iter().filter(|row| row.enabled(&list)).map(Descriptor::name).collect()
    }

    #[test]
    fn the_list_enables_and_disables_controllers() {
        let off = ["bootstrap-signer-controller", "token-cleaner-controller"];
        let star = running(&["*"]);
        assert_eq!(star.len(), CONTROLLERS.len() - 3);
        assert!(off.iter().all(|name| !star.contains(name)));
        let kubeadm = running(&["*", "bootstrapsigner", "tokencleaner"]);
        assert_eq!(kubeadm.len(), star.len() + 2);
        assert_eq!(
            running(&["deployment", "replicaset-controller"]),
            ["deployment-controller", "replicaset-controller"]
        );
        assert!(!running(&["*", "-deployment"]).contains(&"deployment-controller"));
        assert!(
            !running(&["-deployment-controller", "deployment"]).contains(&"deployment-controller")
        );
        assert_eq!(running(&[]), Vec::<&str>::new());
    }

    #[test]
    fn older_names_become_todays() {
        let list: Vec<String> = ["*", "bootstrapsigner", "-podgc"].map(String::from).into();
        assert_eq!(
            canonical(CONTROLLERS, &list),
            ["*", "bootstrap-signer-controller", "-pod-garbage-collector-controller"]
        );
        let (all, off) = names(CONTROLLERS);
        assert!(all.is_sorted() && all.len() == CONTROLLERS.len());
        assert_eq!(
            off,
            [
                "bootstrap-signer-controller",
                "selinux-warning-controller",
                "token-cleaner-controller"
            ]
        );
    }

    #[test]
    fn names_are_unique_and_gates_exist() {
        let mut names: Vec<&str> = CONTROLLERS.iter().map(Descriptor::name).collect();
        names.extend(CONTROLLERS.iter().filter_map(|row| row.alias));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let all = || [Release::V1_36, Release::V1_37].into_iter().flat_map(feature_gates);
        let known = |gate: &&str| all().any(|(name, _)| name == *gate);
        for row in CONTROLLERS {
            assert!(row.gates.iter().all(known), "{}", row.name());
        }
    }

    #[test]
    fn every_flag_of_a_number_of_workers_is_that_of_one_row() {
        let flags = FLAGS.iter().map(FlagInfo::name).filter(|name| name.contains("concurrent-"));
        for flag in flags {
            let arguments = [format!("--{flag}=77")];
            let Ok(Command::Run(options)) = parse(&arguments) else { panic!("--{flag}") };
            let has = |row: &&Descriptor| row.profile.workers.resolve(&options) == 77;
            assert_eq!(CONTROLLERS.iter().filter(has).count(), 1, "--{flag}");
        }
    }

    /// The options of these flags, for a manager that follows `release`.
    fn options(release: Release, flags: &[&str]) -> Options {
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let Ok(Command::Run(mut options)) = parse(&flags) else { panic!("{flags:?}") };
        options.follow(release).expect("no gate is given");
        options
    }

    /// Pull request 140014. The Go manager of 1.36 has one worker and no flag.
    #[test]
    fn budgets_have_the_workers_of_their_flag() {
        for (release, flags, workers) in [
            (Release::V1_36, &[][..], 1),
            (Release::V1_37, &[][..], 1),
            (Release::V1_36, &["--concurrent-disruption-syncs=5"][..], 5),
            (Release::V1_37, &["--concurrent-disruption-syncs=5"][..], 5),
        ] {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let context = ControllerContext::for_test(options(release, flags), clock);
            let row = find("disruption-controller").expect("its row");
            let controller = row.construct(&context).expect("it needs nothing");
            // The queue of stale pods has one of its own.
            assert_eq!(controller.worker_count_of_all(), workers + 1, "{release} {flags:?}");
        }
    }

    /// Pull requests 138560, 139437 and 139579.
    #[test]
    fn three_controllers_run_by_default_since_1_37() {
        let running = |release: Release| -> Vec<&str> {
            let options = options(release, &[]);
            let runs = |row: &&Descriptor| row.skip_reason(&options).is_none();
            CONTROLLERS.iter().filter(runs).map(Descriptor::name).collect()
        };
        let (before, since) = (running(Release::V1_36), running(Release::V1_37));
        assert!(before.iter().all(|name| since.contains(name)), "{before:?}");
        let new: Vec<&str> = since.into_iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(
            new,
            [
                "podcertificaterequest-cleaner-controller",
                "kube-apiserver-serving-clustertrustbundle-publisher-controller",
                "storage-version-migrator-controller",
            ]
        );
    }

    #[test]
    fn kubeadms_list_is_valid_and_an_unknown_name_is_not() {
        let mut options = Options::default();
        options.controllers.extend(["bootstrapsigner".into(), "-token-cleaner-controller".into()]);
        let problems = |options: &Options| KubeControllerManager.problems(options);
        assert_eq!(problems(&options), Vec::<String>::new());
        options.controllers.push("-nope".into());
        assert_eq!(problems(&options).len(), 1);
    }

    /// Pull request 138002.
    #[test]
    fn controllers_of_clouds_are_unknown_to_1_37() {
        for name in [
            "service-lb-controller",
            "service",
            "node-route-controller",
            "route",
            "cloud-node-lifecycle-controller",
            "cloud-node-lifecycle",
        ] {
            let fault = format!("--controllers: {name:?} is not in the list of known controllers");
            let mut options = Options::default();
            options.controllers.push(format!("-{name}"));
            for (version, faults) in
                [(None, vec![]), (Some("1.36"), vec![]), (Some("1.37"), vec![fault])]
            {
                options.emulated_version = version.map(String::from).into_iter().collect();
                assert_eq!(KubeControllerManager.problems(&options), faults, "{name} {version:?}");
            }
        }
    }

    #[test]
    fn a_row_without_a_constructor_is_skipped_with_its_reason() {
        let reason =
            |row: &Descriptor, options: &Options| row.skip_reason(options).unwrap_or("runs");
        let options = Options::default();
        assert_eq!(reason(&row("x"), &options), "controller is not available in this build");
        assert_eq!(reason(&row("x").off(), &options), "controller is disabled");
        assert_eq!(reason(&row("x").cloud(), &options), "skipping a cloud provider controller");
        let gated = row("x").gates(&["ClusterTrustBundle"]);
        assert_eq!(reason(&gated, &options), "controller is disabled by a feature gate");
        assert_eq!(reason(&row("x").built(|_| Ok(())), &options), "runs");
    }
}
