//! The controllers of 1.36: one row each, and which of them `--controllers` asks for.
//! Upstream: `cmd/kube-controller-manager/app/controller_descriptor.go`.

use crate::controllers::{self, Controller, ControllerContext};
use crate::options::{Gates, Options};

/// Makes a controller; it starts to work when it is run.
pub type Constructor = fn(&ControllerContext) -> Controller;

/// As [`Constructor`], where there may be nothing to make (`Ok(None)`, and the log says why), or
/// something it needs is broken: then no controller starts.
pub type ConditionalConstructor = fn(&ControllerContext) -> Result<Option<Controller>, String>;

/// How a row's controller is made.
#[derive(Clone, Copy)]
pub enum Build {
    Always(Constructor),
    Conditionally(ConditionalConstructor),
}

impl Build {
    pub fn make(self, context: &ControllerContext) -> Result<Option<Controller>, String> {
        match self {
            Build::Always(constructor) => Ok(Some(constructor(context))),
            Build::Conditionally(constructor) => constructor(context),
        }
    }
}

/// A row of [`CONTROLLERS`].
#[derive(Clone, Copy)]
pub struct Descriptor {
    pub name: &'static str,
    /// Names it had in older releases, or none.
    pub alias: Option<&'static str>,
    /// All of them must be on.
    pub gates: &'static [&'static str],
    pub on_by_default: bool,
    /// Run by a cloud controller manager, never by this one.
    pub cloud: bool,
    /// `None`: known, but not available in this build.
    pub build: Option<Build>,
}

const fn row(name: &'static str) -> Descriptor {
    let (alias, gates, build) = (None, &[], None);
    Descriptor { name, alias, gates, on_by_default: true, cloud: false, build }
}

impl Descriptor {
    const fn alias(self, alias: &'static str) -> Descriptor {
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
    const fn built(self, build: Constructor) -> Descriptor {
        Descriptor { build: Some(Build::Always(build)), ..self }
    }
    const fn built_if(self, build: ConditionalConstructor) -> Descriptor {
        Descriptor { build: Some(Build::Conditionally(build)), ..self }
    }

    fn is(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// Whether `list`, the value of `--controllers`, asks for it. The first item about it decides.
    pub fn enabled(&self, list: &[String]) -> bool {
        let decided = list.iter().find_map(|item| match item.strip_prefix('-') {
            Some(name) => self.is(name).then_some(false),
            None => self.is(item).then_some(true),
        });
        decided.unwrap_or(self.on_by_default && list.iter().any(|item| item == "*"))
    }

    /// Whether the gates let it run.
    pub fn gated_on(&self, gates: &Gates) -> bool {
        self.gates.iter().all(|gate| gates.enabled(gate))
    }
}

/// What is to become of a row when the controllers start.
#[derive(Clone, Copy)]
pub enum Start {
    Run(Build),
    /// Why not, for the log.
    Skip(&'static str),
}

impl Descriptor {
    pub fn start(&self, options: &Options) -> Start {
        match self.build {
            // The token controller is run whatever `--controllers` says, as upstream.
            _ if self.name != TOKEN_CONTROLLER && !self.enabled(&options.controllers) => {
                Start::Skip("controller is disabled")
            }
            _ if !self.gated_on(&options.feature_gates) => {
                Start::Skip("controller is disabled by a feature gate")
            }
            _ if self.cloud => Start::Skip("skipping a cloud provider controller"),
            None => Start::Skip("controller is not available in this build"),
            Some(build) => Start::Run(build),
        }
    }
}

/// Whether `--controllers` may name it.
pub fn is_known(name: &str) -> bool {
    CONTROLLERS.iter().any(|row| row.is(name))
}

/// The names that `--controllers` may name, sorted; and those of them that are off by default.
pub fn names() -> (Vec<&'static str>, Vec<&'static str>) {
    let sorted = |rows: &mut dyn Iterator<Item = &Descriptor>| {
        let mut names: Vec<&str> = rows.map(|row| row.name).collect();
        names.sort_unstable();
        names
    };
    let off = sorted(&mut CONTROLLERS.iter().filter(|row| !row.on_by_default));
    (sorted(&mut CONTROLLERS.iter()), off)
}

/// `list` with the names that its items have today in place of older ones.
pub fn canonical(list: &[String]) -> Vec<String> {
    let today = |item: &String| {
        let (sign, name) = item.strip_prefix('-').map_or(("", item.as_str()), |name| ("-", name));
        match CONTROLLERS.iter().find(|row| row.is(name)) {
            Some(row) => format!("{sign}{}", row.name),
            None => item.clone(),
        }
    };
    list.iter().map(today).collect()
}

/// Started first: it makes the tokens that other controllers may need.
pub const TOKEN_CONTROLLER: &str = "serviceaccount-token-controller";

/// In the order in which they are started.
pub const CONTROLLERS: &[Descriptor] = &[
    row(TOKEN_CONTROLLER)
        .alias("serviceaccount-token")
        .built_if(controllers::accounts::serviceaccount::tokens::controller),
    row("endpoints-controller")
        .alias("endpoint")
        .built(controllers::services::endpoint::controller),
    row("endpointslice-controller")
        .alias("endpointslice")
        .built(controllers::services::endpointslice::controller),
    row("endpointslice-mirroring-controller")
        .alias("endpointslicemirroring")
        .built(controllers::services::endpointslicemirroring::controller),
    row("replicationcontroller-controller")
        .alias("replicationcontroller")
        .built(controllers::workloads::replicaset::replication_controller),
    row("pod-garbage-collector-controller")
        .alias("podgc")
        .built(controllers::cluster::podgc::controller),
    row("resourcequota-controller")
        .alias("resourcequota")
        .built(controllers::cluster::resourcequota::controller),
    row("namespace-controller")
        .alias("namespace")
        .built(controllers::cluster::namespace::controller),
    row("serviceaccount-controller")
        .alias("serviceaccount")
        .built(controllers::accounts::serviceaccount::accounts::controller),
    row("garbage-collector-controller")
        .alias("garbagecollector")
        .built(controllers::cluster::garbagecollector::controller),
    row("daemonset-controller").alias("daemonset"),
    row("job-controller").alias("job"),
    row("podgroup-protection-controller").gates(&["GenericWorkload"]),
    row("deployment-controller")
        .alias("deployment")
        .built(controllers::workloads::deployment::controller),
    row("replicaset-controller")
        .alias("replicaset")
        .built(controllers::workloads::replicaset::controller),
    row("horizontal-pod-autoscaler-controller").alias("horizontalpodautoscaling"),
    row("disruption-controller").alias("disruption"),
    row("statefulset-controller").alias("statefulset"),
    row("cronjob-controller").alias("cronjob"),
    row("certificatesigningrequest-signing-controller").alias("csrsigning"),
    row("certificatesigningrequest-approving-controller").alias("csrapproving"),
    row("certificatesigningrequest-cleaner-controller").alias("csrcleaner"),
    row("podcertificaterequest-cleaner-controller").gates(&["PodCertificateRequest"]),
    row("ttl-controller").alias("ttl").built(controllers::nodes::ttl::controller),
    row("bootstrap-signer-controller").alias("bootstrapsigner").off(),
    row("token-cleaner-controller").alias("tokencleaner").off(),
    row("node-ipam-controller").alias("nodeipam"),
    row("node-lifecycle-controller").alias("nodelifecycle"),
    row("service-lb-controller").alias("service").cloud(),
    row("node-route-controller").alias("route").cloud(),
    row("cloud-node-lifecycle-controller").alias("cloud-node-lifecycle").cloud(),
    row("persistentvolume-binder-controller").alias("persistentvolume-binder"),
    row("persistentvolume-attach-detach-controller").alias("attachdetach"),
    row("persistentvolume-expander-controller").alias("persistentvolume-expander"),
    row("clusterrole-aggregation-controller")
        .alias("clusterrole-aggregation")
        .built(controllers::accounts::clusterroleaggregation::controller),
    row("persistentvolumeclaim-protection-controller").alias("pvc-protection"),
    row("persistentvolume-protection-controller").alias("pv-protection"),
    row("volumeattributesclass-protection-controller").gates(&["VolumeAttributesClass"]),
    row("ttl-after-finished-controller").alias("ttl-after-finished"),
    row("root-ca-certificate-publisher-controller")
        .alias("root-ca-cert-publisher")
        .built_if(controllers::certificates::rootcacertpublisher::controller),
    row("kube-apiserver-serving-clustertrustbundle-publisher-controller")
        .gates(&["ClusterTrustBundle"]),
    row("ephemeral-volume-controller").alias("ephemeral-volume"),
    row("storageversion-garbage-collector-controller")
        .alias("storage-version-gc")
        .gates(&["APIServerIdentity", "StorageVersionAPI"]),
    row("resourceclaim-controller")
        .alias("resource-claim-controller")
        .gates(&["DynamicResourceAllocation"]),
    row("resourcepoolstatusrequest-controller").gates(&["DRAResourcePoolStatus"]),
    row("device-taint-eviction-controller")
        .gates(&["DynamicResourceAllocation", "DRADeviceTaints"]),
    row("legacy-serviceaccount-token-cleaner-controller")
        .alias("legacy-service-account-token-cleaner")
        .built_if(controllers::accounts::serviceaccount::cleaner::controller),
    row("validatingadmissionpolicy-status-controller")
        .built(controllers::cluster::validatingadmissionpolicystatus::controller),
    row("taint-eviction-controller").gates(&["SeparateTaintEvictionController"]),
    row("service-cidr-controller")
        .gates(&["MultiCIDRServiceAllocator"])
        .built(controllers::services::servicecidrs::controller),
    row("storage-version-migrator-controller").alias("svm").gates(&["StorageVersionMigrator"]),
    row("selinux-warning-controller").off().gates(&["SELinuxChangePolicy"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{FEATURE_GATES, validate};

    fn running(list: &[&str]) -> Vec<&'static str> {
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        CONTROLLERS.iter().filter(|row| row.enabled(&list)).map(|row| row.name).collect()
    }

    #[test]
    fn what_the_list_asks_for() {
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
            canonical(&list),
            ["*", "bootstrap-signer-controller", "-pod-garbage-collector-controller"]
        );
        let (all, off) = names();
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
    fn names_are_told_apart_and_gates_exist() {
        let mut names: Vec<&str> = CONTROLLERS.iter().map(|row| row.name).collect();
        names.extend(CONTROLLERS.iter().filter_map(|row| row.alias));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let known = |gate: &&str| FEATURE_GATES.iter().any(|group| group.names.contains(gate));
        for row in CONTROLLERS {
            assert!(row.gates.iter().all(known), "{}", row.name);
        }
    }

    #[test]
    fn kubeadms_list_is_valid_and_an_unknown_name_is_not() {
        let mut options = Options::default();
        options.controllers.extend(["bootstrapsigner".into(), "-token-cleaner-controller".into()]);
        assert!(validate(&options, &is_known).is_empty());
        options.controllers.push("-nope".into());
        assert_eq!(validate(&options, &is_known).len(), 1);
    }

    #[test]
    fn a_row_without_a_constructor_is_skipped_with_its_reason() {
        let reason = |row: &Descriptor, options: &Options| match row.start(options) {
            Start::Run(_) => "runs",
            Start::Skip(reason) => reason,
        };
        let options = Options::default();
        assert_eq!(reason(&row("x"), &options), "controller is not available in this build");
        assert_eq!(reason(&row("x").off(), &options), "controller is disabled");
        assert_eq!(reason(&row("x").cloud(), &options), "skipping a cloud provider controller");
        let gated = row("x").gates(&["ClusterTrustBundle"]);
        assert_eq!(reason(&gated, &options), "controller is disabled by a feature gate");
        let build: Constructor = |_| Controller::new("x");
        assert_eq!(reason(&row("x").built(build), &options), "runs");
    }
}
