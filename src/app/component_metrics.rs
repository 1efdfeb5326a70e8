//! Metrics about the build, its version and its feature gates.
//! Upstream: `component-base/metrics/prometheus/{version,feature}`, `component-base/compatibility`,
//! `component-base/metrics/prometheus/controllers`.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntGauge, IntGaugeVec, Opts};

use crate::metrics::metrics;
use crate::options::{Gates, Options, model_version, version_info};
use crate::task;

/// Registers the metrics of this module. Another call in the same process changes nothing.
pub fn register(options: &Options) {
    match try_register(options) {
        Ok(()) | Err(prometheus::Error::AlreadyReg) => (),
        Err(error) => log::error!("metrics: {error}"),
    }
}

fn try_register(options: &Options) -> prometheus::Result<()> {
    register_build_info()?;
    register_version(options)?;
    prometheus::register(Box::new(FeatureGates::new(options.feature_gates.clone())?))?;
    prometheus::register(Box::new(Tasks::new()?))
}

/// Registers the metric `kubernetes_build_info`.
fn register_build_info() -> prometheus::Result<()> {
    let info = version_info();
    let names = ["build_date", "compiler", "git_commit", "git_tree_state", "git_version"];
    let more = ["go_version", "major", "minor", "platform"];
    let fields = ["buildDate", "compiler", "gitCommit", "gitTreeState", "gitVersion"];
    let more_fields = ["goVersion", "major", "minor", "platform"];
    let labels: Vec<&str> = names.into_iter().chain(more).collect();
    let values: Vec<&str> = fields
        .into_iter()
        .chain(more_fields)
        .map(|field| info[field].as_str().unwrap_or_default())
        .collect();
    let help = "[BETA] A metric with a constant '1' value labeled by major, minor, git version, \
                git commit, git tree state, build date, Go version, and compiler from which \
                Kubernetes was built, and platform on which it is running.";
    let gauge = GaugeVec::new(Opts::new("kubernetes_build_info", help), &labels)?;
    gauge.with_label_values(&values).set(1.0);
    prometheus::register(Box::new(gauge))
}

/// Registers the metric `version_info`: the binary's version, the emulated one and the oldest
/// compatible one.
fn register_version(options: &Options) -> prometheus::Result<()> {
    let help = "[ALPHA] Provides the compatibility version info of the component. The component \
                label is the name of the component, usually kube, but is relevant for \
                aggregated-apiservers.";
    let labels = ["binary", "component", "emulation", "min_compat"];
    let gauge = GaugeVec::new(Opts::new("version_info", help), &labels)?;
    let gates = &options.feature_gates;
    let (emulated, least) = (gates.release.to_string(), gates.min_compatible().to_string());
    let values = [model_version().trim_start_matches('v'), "kube", &emulated, &least];
    gauge.with_label_values(&values).set(1.0);
    prometheus::register(Box::new(gauge))
}

/// Collects the gates at each scrape, so that hundreds of series take no memory between two
/// scrapes.
struct FeatureGates {
    gates: Gates,
    desc: Desc,
}

impl FeatureGates {
    const NAME: &str = "kubernetes_feature_enabled";
    const HELP: &str =
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.";
    const LABELS: [&str; 2] = ["name", "stage"];

    fn new(gates: Gates) -> prometheus::Result<FeatureGates> {
        let labels = Self::LABELS.map(String::from).into();
        let desc = Desc::new(Self::NAME.into(), Self::HELP.into(), labels, Default::default())?;
        Ok(FeatureGates { gates, desc })
    }
}

impl Collector for FeatureGates {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    /// Returns a series for each feature gate, with the value 1 if it is on.
    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(gauge) = IntGaugeVec::new(Opts::new(Self::NAME, Self::HELP), &Self::LABELS) else {
            return Vec::new();
        };
        for (name, stage, on) in self.gates.all() {
            gauge.with_label_values(&[name, stage.name()]).set(on.into());
        }
        gauge.collect()
    }
}

/// The number of running tasks, under the name of Go's goroutines, which dashboards use.
struct Tasks(IntGauge);

impl Tasks {
    fn new() -> prometheus::Result<Tasks> {
        let help = "Number of tasks that currently run; a Go program counts its goroutines.";
        IntGauge::new("go_goroutines", help).map(Tasks)
    }
}

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let count: u64 = task::running().iter().map(|(_, count)| count).sum();
        self.0.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.0.collect()
    }
}

/// The metric of the controllers that may run in more than one manager: whether each runs here.
pub struct RunningControllers;

metrics! {
    static RUNNING: IntGaugeVec["manager", "name"] = "running_managed_controllers",
        "[BETA] Indicates where instances of a controller are currently running";
}

impl RunningControllers {
    /// The names of these controllers, here and in the metric.
    const NAMES: &[(&str, &str)] = &[
        ("node-ipam-controller", "nodeipam"),
        ("service-lb-controller", "service"),
        ("node-route-controller", "route"),
        ("cloud-node-controller", "cloud-node"),
        ("cloud-node-lifecycle-controller", "cloud-node-lifecycle"),
    ];

    /// Sets whether a controller of `NAMES` runs in this manager; others have no such metric.
    pub fn set(manager: &str, controller: &str, runs: bool) {
        let entry = Self::NAMES.iter().find(|(name, _)| *name == controller);
        if let Some((_, name)) = entry {
            RUNNING.with_label_values(&[manager, name]).set(runs.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_has_its_stage_and_whether_it_is_on() {
        let given = vec![("HPAScaleToZero".to_string(), true)];
        let gates = Gates { given, ..Gates::default() };
        let families = FeatureGates::new(gates).expect("a description").collect();
        let text = prometheus::TextEncoder::new().encode_to_string(&families).expect("text");
        for line in [
            "kubernetes_feature_enabled{name=\"HPAScaleToZero\",stage=\"ALPHA\"} 1\n",
            "kubernetes_feature_enabled{name=\"AllBeta\",stage=\"BETA\"} 0\n",
            "kubernetes_feature_enabled{name=\"KMSv1\",stage=\"DEPRECATED\"} 0\n",
            "kubernetes_feature_enabled{name=\"DynamicResourceAllocation\",stage=\"\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }
}
