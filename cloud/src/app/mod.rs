//! The program: the start-up of all managers, with the controllers and the flags of this one.
//! Upstream: `cloud-provider/app`.

pub mod controller_table;

use std::any::Any;
use std::process::ExitCode;
use std::sync::Arc;

use kube_controller_manager::app::connect::{Connect, connect};
use kube_controller_manager::app::controller_table::{Descriptor, names};
use kube_controller_manager::app::leader_migration::LeaderMigration;
use kube_controller_manager::app::{Program, THREADS, configz, run_program};
use kube_controller_manager::controllers::{Controller, ControllerContext};
use kube_controller_manager::options::{
    Manual, Options, Release, answer, flag_values, show_duration, usage as usage_of, version,
};
use kube_controller_manager::task;
use serde_json::{Value, json};

use crate::controllers::Parts;
use crate::options::{CloudOptions, Command, FLAGS, PROGRAM, parse};
use crate::provider::{Cloud, Settings};
use crate::providers;

const ABOUT: &str = "The Cloud controller manager is a daemon that embeds the cloud specific control \
                     loops shipped with\nKubernetes.";

/// Parses the arguments and runs the manager, or prints the help, the version or the error. Call it
/// once, from no task.
pub fn main(args: &[String]) -> ExitCode {
    match parse(args) {
        Ok(Command::Run(options)) => task::run(THREADS, run(options, connect, providers::open)),
        Ok(Command::Help) => answer(Ok(usage())),
        Ok(Command::Version(how)) => answer(Ok(version(&how))),
        Err(error) => answer(Err(error)),
    }
}

/// Returns the text of `--help`.
pub fn usage() -> String {
    let rows = controller_table::controllers();
    let (controllers, off) = names(&rows);
    let manual = Manual { program: PROGRAM, about: ABOUT, controllers: &controllers, off: &off };
    usage_of(&manual, FLAGS, &CloudOptions::default())
}

/// Runs the manager until a signal, a lost lease or an error; errors are printed on stderr, a line
/// each. `open` opens the provider with a given name.
pub async fn run(
    options: CloudOptions,
    connect: Connect,
    open: impl FnOnce(&str, &Settings) -> Result<Arc<dyn Cloud>, String>,
) -> ExitCode {
    let controllers = controller_table::controllers();
    let problems = options.problems(&|name| controllers.iter().any(|row| row.has_name(name)));
    let opened = match problems.is_empty() {
        true => open_cloud(&options, open).map_err(|error| vec![error]),
        false => Err(problems),
    };
    match opened {
        Ok(cloud) => {
            let parts = Arc::new(Parts {
                cloud,
                node_status_update_frequency: options.node_status_update_frequency,
                concurrent_node_syncs: usize::try_from(options.concurrent_node_syncs).unwrap_or(1),
                concurrent_node_status_updates: options.node_status_workers(),
                concurrent_node_lifecycle_syncs: options.node_lifecycle_workers(),
            });
            let shared = options.shared.clone();
            let program = CloudControllerManager { options, controllers, parts };
            run_program(Arc::new(program), shared, connect).await
        }
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("Error: {problem}"));
            ExitCode::FAILURE
        }
    }
}

/// Opens the provider that `--cloud-provider` names, and checks that it has a cluster id or that
/// `--allow-untagged-cloud` is set.
fn open_cloud(
    options: &CloudOptions,
    open: impl FnOnce(&str, &Settings) -> Result<Arc<dyn Cloud>, String>,
) -> Result<Arc<dyn Cloud>, String> {
    let shared = &options.shared;
    let config = Some(&shared.cloud_config).filter(|file| !file.is_empty());
    let settings =
        Settings { config: config.map(Into::into), cluster_name: shared.cluster_name.clone() };
    let cloud = open(&shared.cloud_provider, &settings)
        .map_err(|error| format!("Cloud provider could not be initialized: {error}"))?;
    if !cloud.has_cluster_id() && !shared.allow_untagged_cloud {
        return Err("no ClusterID found.  A ClusterID is required for the cloud provider to \
                    function properly.  This check can be bypassed by setting the \
                    allow-untagged-cloud option"
            .into());
    }
    Ok(cloud)
}

struct CloudControllerManager {
    options: CloudOptions,
    controllers: Vec<Descriptor>,
    parts: Arc<Parts>,
}

impl Program for CloudControllerManager {
    fn log_target(&self) -> &'static str {
        env!("CARGO_CRATE_NAME")
    }

    fn controllers(&self) -> &[Descriptor] {
        &self.controllers
    }

    /// Returns no faults: `run` has refused them before it opened the provider.
    fn problems(&self, _: &Options) -> Vec<String> {
        Vec::new()
    }

    /// Returns the warnings of the start: those of the feature gates, and that the cluster has no
    /// id.
    fn notices(&self, options: &Options) -> Vec<String> {
        let mut notices = options.feature_gates.warnings();
        if !self.parts.cloud.has_cluster_id() {
            notices.push(
                "detected a cluster without a ClusterID.  A ClusterID will be required in the \
                 future.  Please tag your cluster to avoid any future issues"
                    .into(),
            );
        }
        notices
    }

    fn flags(&self, options: &Options) -> Vec<(String, String)> {
        flag_values(FLAGS, &CloudOptions { shared: options.clone(), ..self.options.clone() })
    }

    /// Returns the content of `/configz`: the shared configuration and the fields of this manager.
    fn configz(
        &self,
        options: &Options,
        migration: Option<&LeaderMigration>,
        release: Release,
    ) -> Value {
        let mut configuration = json!({
            "kind": "CloudControllerManagerConfiguration",
            "apiVersion": "cloudcontrollermanager.config.k8s.io/v1alpha1",
            "NodeController": {
                "ConcurrentNodeSyncs": self.options.concurrent_node_syncs,
                "ConcurrentNodeStatusUpdates": self.parts.concurrent_node_status_updates,
            },
            "ServiceController": {
                "ConcurrentServiceSyncs": options.concurrent_service_syncs.get(),
            },
            "NodeStatusUpdateFrequency": show_duration(self.options.node_status_update_frequency),
            "Webhook": { "Webhooks": self.options.webhook.names },
        });
        if let (Value::Object(all), Value::Object(shared)) =
            (&mut configuration, configz::shared(&self.controllers, options, migration))
        {
            all.extend(shared);
        }
        // The field has moved: pull request 137964.
        if release >= Release::V1_37
            && let Some(shared) = configuration["KubeCloudShared"].as_object_mut()
        {
            let period = shared.remove("NodeMonitorPeriod");
            configuration["NodeLifecycleController"] = json!({
                "NodeMonitorPeriod": period,
                "ConcurrentNodeLifecycleSyncs": self.options.concurrent_node_lifecycle_syncs,
            });
        }
        json!({ "cloudcontrollermanager.config.k8s.io": configuration })
    }

    fn extension(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.parts.clone())
    }

    fn further_controllers(
        &self,
        context: &Arc<ControllerContext>,
    ) -> Result<Vec<Controller>, String> {
        self.parts.cloud.initialize(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cloud with nothing.
    struct Empty;

    impl Cloud for Empty {
        fn provider_name(&self) -> &str {
            "empty"
        }

        fn has_cluster_id(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_cloud_without_a_cluster_id_needs_a_flag() {
        let open = |options: &CloudOptions| open_cloud(options, |_, _| Ok(Arc::new(Empty))).is_ok();
        let mut options = CloudOptions::default();
        assert!(!open(&options));
        options.shared.allow_untagged_cloud = true;
        assert!(open(&options));
    }

    #[test]
    fn configuration_and_flags_are_of_this_program() {
        let options = CloudOptions::default();
        let parts = Arc::new(Parts {
            cloud: Arc::new(Empty),
            node_status_update_frequency: options.node_status_update_frequency,
            concurrent_node_syncs: 1,
            concurrent_node_status_updates: options.node_status_workers(),
            concurrent_node_lifecycle_syncs: options.node_lifecycle_workers(),
        });
        let shared = options.shared.clone();
        let controllers = controller_table::controllers();
        let program = CloudControllerManager { options, controllers, parts };
        let all = program.configz(&shared, None, Release::default());
        let shown = &all["cloudcontrollermanager.config.k8s.io"];
        for (pointer, value) in [
            ("/kind", json!("CloudControllerManagerConfiguration")),
            ("/Generic/LeaderElection/resourceName", json!("cloud-controller-manager")),
            ("/KubeCloudShared/NodeMonitorPeriod", json!("5s")),
            ("/NodeController/ConcurrentNodeStatusUpdates", json!(1)),
            ("/NodeStatusUpdateFrequency", json!("5m0s")),
            ("/ServiceController/ConcurrentServiceSyncs", json!(1)),
        ] {
            assert_eq!(shown.pointer(pointer), Some(&value), "{pointer}");
        }
        assert!(shown.get("DeprecatedController").is_none(), "it is of the other manager");
        assert!(shown.get("NodeLifecycleController").is_none(), "it is of 1.37");
        let newer = program.configz(&shared, None, Release::V1_37);
        let shown = &newer["cloudcontrollermanager.config.k8s.io"];
        assert_eq!(shown.pointer("/KubeCloudShared/NodeMonitorPeriod"), None);
        assert_eq!(
            shown["NodeLifecycleController"],
            json!({ "NodeMonitorPeriod": "5s", "ConcurrentNodeLifecycleSyncs": 1 })
        );
        let flags = program.flags(&shared);
        assert!(flags.contains(&("secure-port".to_owned(), "10258".to_owned())));
        assert!(flags.iter().all(|(name, _)| name != "concurrent-job-syncs"));
    }
}
