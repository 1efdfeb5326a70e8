//! What each build of the manager must do, however it was linked: `deploy/static-binaries` runs
//! this file against them. A build that cannot unwind its stack fails here.

use std::process::Command;

use futures_lite::future::zip;
use kube_controller_manager::client::Call;
use kube_controller_manager::objects::Deployment;
use sandbox::cluster::ManagerProgram;
use serde_json::json;

use crate::election::holder;
use crate::env::*;
use crate::metrics::Serving;

/// A manager without an election: on a slow machine it would lose its lease.
fn start(env: &TestCluster, program: &ManagerProgram) -> Serving {
    let flags = [
        "--leader-elect=false",
        "--authorization-always-allow-paths=/healthz,/metrics,/debug/pprof/profile",
    ];
    Serving::start(env, "manager", program, &flags)
}

/// Asserts that the process runs and works: a Deployment gets its pods.
async fn works(env: &TestCluster, serving: &mut Serving, replicas: i32) {
    merge::<Deployment>(&env.client, "web", json!({ "spec": { "replicas": replicas } })).await;
    rolled_out(&env.client, &env.clock, "web").await;
    let ended = serving.manager.ended().expect("a process");
    assert_eq!(ended, None, "{}", log_of(serving));
}

fn log_of(serving: &Serving) -> String {
    std::fs::read_to_string(&serving.manager.log).expect("a log")
}

#[test]
fn a_panic_in_a_sync_a_handler_or_a_reflector_is_caught() {
    Env::run("binary-panics", async |env| {
        let folder = Folder::new("binary-panics-script");
        let stations = [
            "reflector of deployments.apps",
            "sync of deployment-controller",
            "handler deployment-controller of replicasets.apps",
        ];
        let setup = format!("export KCM_TEST_PANIC='{}'", stations.join(","));
        let mut serving = start(env, &manager_after(&folder, &setup));
        let series = [
            "informer_panics_total{informer=\"deployments.apps\"} 1",
            "controller_panics_total{controller=\"deployment-controller\"} 1",
            "informer_handler_panics_total{handler=\"deployment-controller\",\
             informer=\"replicasets.apps\"} 1",
        ];
        // Only a new list shows the Deployment, and only a retry syncs its key.
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let is_counted =
            |text: &str| series.iter().all(|series| text.lines().any(|line| line == *series));
        serving.metrics(env, "each panic is counted", is_counted).await;
        let log = log_of(&serving);
        for (station, caught) in stations.iter().zip([
            "deployments.apps: the informer panicked, it lists again",
            "deployment-controller: Observed a panic",
            "event handler deployment-controller of replicasets.apps: panicked",
        ]) {
            for line in [format!("{station}: as KCM_TEST_PANIC asks"), caught.to_owned()] {
                assert!(log.contains(&line), "no {line:?} in {log}");
            }
        }
        works(env, &mut serving, 3).await;
    });
}

/// The number of requests without an answer.
fn failures(metrics: &str) -> u64 {
    let failed = "rest_client_requests_total{code=\"<error>\",";
    let failed = metrics.lines().filter(|line| line.starts_with(failed));
    failed.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn an_outage_of_the_api_server_is_survived_where_errors_have_backtraces() {
    Env::run("binary-outage", async |env| {
        let folder = Folder::new("binary-outage-script");
        let program = manager_after(&folder, "export RUST_BACKTRACE=1");
        let mut serving = start(env, &program);
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let faults = env.cluster.sandbox.faults();
        let before = failures(&serving.metrics(env, "metrics are served", |_| true).await);
        faults.cut_all();
        serving.metrics(env, "requests fail", |text| failures(text) > before).await;
        faults.come_back();
        works(env, &mut serving, 3).await;
    });
}

#[test]
fn sigterm_stops_it_in_order() {
    Env::run("binary-ends", async |env| {
        let manager = env.candidate("manager", &[]);
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let status = manager.stop(&env.clock, PATIENCE).await.expect("a process");
        assert!(status.success(), "{status}");
        assert_eq!(holder(env).await.expect("the lease"), "", "the lease is released");
    });
}

/// The number of samples in a CPU profile.
fn samples(env: &TestCluster, profile: &[u8]) -> usize {
    let file = env.kubeconfig.with_file_name("profile.gz");
    std::fs::write(&file, profile).expect("written");
    let raw = Command::new("gzip").arg("-dc").arg(&file).output().expect("gzip");
    assert!(raw.status.success(), "{raw:?}");
    let (mut rest, mut count) = (&raw.stdout[..], 0);
    // Fields are numbers, or have a length; `sample` is number 2.
    while !rest.is_empty() {
        let (tag, value) = (varint(&mut rest), varint(&mut rest));
        match tag & 7 {
            0 => (),
            2 => rest = &rest[value..],
            other => panic!("wire type {other}"),
        }
        count += usize::from(tag >> 3 == 2);
    }
    count
}

fn varint(bytes: &mut &[u8]) -> usize {
    let length = bytes.iter().position(|byte| *byte < 0x80).expect("it ends") + 1;
    let (varint, rest) = bytes.split_at(length);
    *bytes = rest;
    varint.iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f))
}

#[test]
fn a_cpu_profile_is_recorded_while_it_works() {
    Env::run("binary-profile", async |env| {
        let mut serving = start(env, &manager_program());
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let mut call = Call::new("GET", "/debug/pprof/profile");
        call.query("seconds", "3");
        let profile = async { serving.client.send(&call).await.expect("a profile") };
        let work = async {
            merge::<Deployment>(&env.client, "web", json!({ "spec": { "replicas": 100 } })).await;
            rolled_out(&env.client, &env.clock, "web").await;
        };
        let (profile, ()) = zip(profile, work).await;
        assert!(samples(env, &profile) > 0, "100 pods take CPU time");
        works(env, &mut serving, 3).await;
    });
}
