//! The metrics of the program.

use std::process::{Child, Command, Stdio};

use kube_controller_manager::client::{Client, Config};
use sandbox::cluster::free_port;
use serde_json::json;

use crate::env::Env;
use crate::reference::Reference;

/// Killed on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Upstream's names, and those of its providers. The count of reconciliations has labels since
/// 1.37, and the node lifecycle controller has metrics.
#[test]
fn metrics_have_the_names_and_labels_of_the_release() {
    for (minor, reconciled) in [
        (36, "route_controller_route_sync_total 1"),
        (37, "route_controller_route_sync_total{outcome=\"noop\",trigger=\"periodic\"} 1"),
    ] {
        Env::run_as_minor(&format!("metrics-{minor}"), minor, async |env| {
            let reference = Reference::start();
            reference.plan(json!({ "GetInstance": { "fault": "error", "code": 14 } }));
            env.create_node("n1", json!({})).await;
            let config = env.write("grpc.yaml", &reference.config("120s"));
            let port = free_port().expect("a port");
            let mut command = Command::new(env!("CARGO_BIN_EXE_cloud-controller-manager"));
            command.stderr(Stdio::null()).args([
                "--cloud-provider=grpc".to_owned(),
                format!("--cloud-config={}", config.display()),
                format!("--kubeconfig={}", env.administrator().display()),
                format!("--secure-port={port}"),
                "--leader-elect=false".to_owned(),
                "--cluster-cidr=10.244.0.0/16".to_owned(),
                "--authorization-always-allow-paths=/metrics".to_owned(),
                // One reconciliation, and not a second one while the test lasts.
                "--route-reconciliation-period=1h".to_owned(),
            ]);
            let _program = Program(command.spawn().expect("it starts"));
            let mut config = Config::new(format!("https://127.0.0.1:{port}"));
            config.tls.insecure = true;
            let probe = Client::new(config, env.clock.clone()).expect("a client");
            let wanted = [
                reconciled,
                "service_controller_loadbalancer_sync_total 0",
                "service_controller_nodesync_error_total 0",
                "service_controller_nodesync_latency_seconds_count ",
                "service_controller_update_loadbalancer_host_latency_seconds_count 0",
                "node_controller_cloud_provider_taint_removal_delay_seconds_count 0",
                "node_controller_initial_node_sync_delay_seconds_count 0",
                "cloudprovider_grpc_api_request_duration_seconds_count{request=\"Describe\"} 1",
                "cloudprovider_grpc_api_request_duration_seconds_count{request=\"ListRoutes\"} 1",
            ];
            env.eventually("the metrics", || async {
                let text = probe.get_path("/metrics").await.map_err(|error| error.to_string())?;
                let text = String::from_utf8(text).expect("UTF-8");
                let is_served = |start: &&&str| text.lines().any(|line| line.starts_with(**start));
                match wanted.iter().find(|start| !is_served(start)) {
                    Some(missing) => Err(format!("{missing} is missing: {text}")),
                    None => Ok(()),
                }
            })
            .await;
            // A call that fails is an error.
            env.set_ready(&kube_controller_manager::objects::ObjectKey::cluster("n1"), "False")
                .await;
            let passes = "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds_count ";
            let calls = "cloud_node_lifecycle_controller_cloud_provider_calls_total\
                         {operation=\"instance_exists\",result=\"error\"} ";
            env.eventually("the error", || async {
                let text = probe.get_path("/metrics").await.map_err(|error| error.to_string())?;
                let text = String::from_utf8(text).expect("UTF-8");
                let name = "cloudprovider_grpc_api_request_errors{request=\"GetInstance\"} ";
                let lifecycle = [passes, calls].map(|name| text.contains(name));
                match text.contains(name) && lifecycle == [minor >= 37; 2] {
                    true => Ok(()),
                    false => Err(text),
                }
            })
            .await;
        });
    }
}
