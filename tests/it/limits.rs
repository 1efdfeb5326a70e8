//! A manager at the limit of its open files.

use std::fs;
use std::io::ErrorKind;

use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use sandbox::cluster::{Manager, free_port};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::DEFINITIONS;

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);

async fn define(env: &TestCluster, index: usize) {
    let (plural, kind) = (format!("things{index}"), format!("Thing{index}"));
    let definition = json!({
        "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    });
    env.client.resource(&DEFINITIONS).create::<Value>("", &definition).await.expect("create");
}

#[test]
fn lease_and_health_checks_go_on_when_watches_use_up_the_open_files() {
    const HARD: u32 = 200;
    Env::run("open-files", async |env| {
        let folder = Folder::new("open-files-script");
        for index in 0..HARD as usize {
            define(env, index).await;
        }
        let program = manager_after(&folder, &format!("ulimit -Sn 64; ulimit -Hn {HARD}"));
        let port = free_port().expect("a port");
        let mut flags = quick_election();
        flags.push(format!("--secure-port={port}"));
        let mut manager = Manager::spawn(&program, &env.kubeconfig, "manager", &flags).unwrap();
        let log = || fs::read_to_string(&manager.log).unwrap();
        for line in [
            "limit of open files raised from 64 to 200",
            "above 150 connections no watch is started",
            "kept for more urgent use",
        ] {
            eventually(&env.clock, line, || async {
                if log().contains(line) { Ok(()) } else { Err(log()) }
            })
            .await;
        }
        // The lease is still renewed.
        let key = ObjectKey::new("kube-system", "kube-controller-manager");
        let mut last = Value::Null;
        for _ in 0..10 {
            last = eventually(&env.clock, "the lease is renewed", || async {
                let lease: Value = env.client.resource(&LEASES).get(&key).await.unwrap();
                let renewed = lease["spec"]["renewTime"].clone();
                if renewed == last { Err(renewed.to_string()) } else { Ok(renewed) }
            })
            .await;
        }
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        config.tls.insecure = true;
        let probe = Client::new(config, env.clock.clone()).unwrap();
        assert_eq!(probe.get_path("/healthz").await.expect("descriptors are held back"), b"ok");
        let open = fs::read_dir(format!("/proc/{}/fd", manager.id())).unwrap().count();
        assert!(open < HARD as usize, "{open} open files");
        assert_eq!(manager.ended().unwrap(), None);
        let stopped = manager.stop(&env.clock, PATIENCE).await.unwrap();
        assert!(stopped.success(), "{stopped}");
    });
}

/// The name and the timer slack, in nanoseconds, of each thread. `Err`: others may not see it.
fn timer_slacks(process: u32) -> std::io::Result<Vec<(String, String)>> {
    let read = |path: String| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let mut slacks = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let id = task?.file_name().into_string().expect("a number");
        // A thread may have ended meanwhile.
        let Ok(name) = read(format!("/proc/{process}/task/{id}/comm")) else { continue };
        match read(format!("/proc/{id}/timerslack_ns")) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
            slack => slacks.extend(slack.map(|slack| (name, slack))),
        }
    }
    Ok(slacks)
}

#[test]
fn only_the_timers_of_the_helper_thread_may_be_late() {
    Env::run("timer-slack", async |env| {
        let manager = env.manager("manager", &["--controllers=ttl-controller"]);
        eventually(&env.clock, "both threads run", || async {
            let slacks = match timer_slacks(manager.id()) {
                Ok(slacks) => slacks,
                Err(error) => {
                    println!("skipped: {error}");
                    return Ok(());
                }
            };
            let of = |name: &str| slacks.iter().find(|(found, _)| found == name);
            let (Some((_, helper)), Some((_, executor))) = (of("async-io"), of("executor")) else {
                return Err(format!("{slacks:?}"));
            };
            assert_eq!((&helper[..], &executor[..]), ("1000000", "50000"));
            Ok(())
        })
        .await;
    });
}
