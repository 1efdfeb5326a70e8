//! The service accounts that controllers run under.

use kube_controller_manager::client::ListOptions;
use kube_controller_manager::objects::{Resource, ServiceAccount};
use kube_controller_manager::options::Release;
use sandbox::cluster::Manager;
use sandbox::faults::Fault;
use serde_json::Value;

use crate::env::*;
use crate::go_manager::handover::go_program;

/// The accounts of the controllers that run by default.
const DEFAULT: [&str; 35] = [
    "attachdetach-controller",
    "certificate-controller",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "device-taint-eviction-controller",
    "disruption-controller",
    "endpoint-controller",
    "endpointslice-controller",
    "endpointslicemirroring-controller",
    "ephemeral-volume-controller",
    "expand-controller",
    "generic-garbage-collector",
    "horizontal-pod-autoscaler",
    "job-controller",
    "legacy-service-account-token-cleaner",
    "namespace-controller",
    "node-controller",
    "persistent-volume-binder",
    "pod-garbage-collector",
    "pv-protection-controller",
    "pvc-protection-controller",
    "replicaset-controller",
    "replication-controller",
    "resource-claim-controller",
    "resourcequota-controller",
    "root-ca-cert-publisher",
    "service-account-controller",
    "service-cidrs-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
    "ttl-controller",
    "validatingadmissionpolicy-status-controller",
    "volumeattributesclass-protection-controller",
];

/// Those of the controllers that run by default since 1.37.
const SINCE_1_37: [&str; 3] = [
    "kube-apiserver-serving-clustertrustbundle-publisher",
    "podcertificaterequestcleaner",
    "storage-version-migrator-controller",
];

/// `accounts`, and `added` since 1.37; sorted.
fn by_release(
    env: &TestCluster,
    accounts: &[&'static str],
    added: &[&'static str],
) -> Vec<&'static str> {
    let mut all = accounts.to_vec();
    if env.release >= Release::V1_37 {
        all.extend(added);
    }
    all.sort_unstable();
    all
}

/// Waits until `kube-system` has these accounts, and its own, and no other.
async fn accounts_are(env: &TestCluster, wanted: &[&str]) {
    eventually(&env.clock, "the controllers have their accounts", || async {
        let accounts = env.client.resource(&ServiceAccount::RESOURCE);
        let found = accounts.list::<Value>(Some("kube-system"), &ListOptions::default()).await;
        let found = found.map_err(|error| error.to_string())?.items;
        let names = found.iter().filter_map(|account| account["metadata"]["name"].as_str());
        let mut names: Vec<&str> = names.filter(|name| *name != "default").collect();
        names.sort_unstable();
        if names == wanted { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
}

#[test]
fn each_controller_has_its_account_from_the_start() {
    everywhere("controller-accounts", async |env| {
        let _manager = env.manager("manager", &[]);
        accounts_are(env, &by_release(env, &DEFAULT, &SINCE_1_37)).await;
    });
}

#[test]
fn the_go_manager_makes_the_same_accounts() {
    let Some(program) = go_program() else { return };
    everywhere("accounts-of-go", async |env| {
        let flags = ["--leader-elect=false".to_owned()];
        let _manager = Manager::spawn(&program, &env.kubeconfig, "go", &flags).expect("it starts");
        accounts_are(env, &DEFAULT).await;
    });
}

#[test]
fn controllers_that_do_not_run_have_no_account() {
    everywhere("few-accounts", async |env| {
        // They are made in this order: the last one shows that the others could have been made.
        let list = "--controllers=bootstrapsigner,garbagecollector,selinux-warning-controller,\
                    podcertificaterequest-cleaner-controller,nodeipam,ttl";
        let _manager = env.manager("manager", &[list, "--enable-garbage-collector=false"]);
        let older = ["bootstrap-signer", "selinux-warning-controller", "ttl-controller"];
        accounts_are(env, &by_release(env, &older, &["podcertificaterequestcleaner"])).await;
    });
}

#[test]
fn a_refused_account_is_created_later() {
    Env::run("accounts-refused", async |env| {
        const TIMES: usize = 20;
        let faults = env.cluster.sandbox.faults();
        for code in [403, 409, 500] {
            faults.next(TIMES, "create", "serviceaccounts", Fault::code(code, None));
        }
        let _manager = env.manager("manager", &[]);
        // The controller does not wait for the accounts of others.
        create(&env.client, deployment("web", 1, "web:1")).await;
        rolled_out(&env.client, &env.clock, "web").await;
        let accounts = by_release(env, &DEFAULT, &SINCE_1_37);
        accounts_are(env, &accounts).await;
        let tries = faults.count("create", "serviceaccounts");
        assert!(tries >= (3 * TIMES + accounts.len()) as u64, "{tries}");
    });
}
