//! Leader election: two managers and one lease.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Deployment, ObjectKey, ResourceType, Timestamp};
use sandbox::cluster::{Manager, ManagerProgram};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::faults::Births;
use crate::real;

const LEASES: ResourceType =
    ResourceType::fixed("coordination.k8s.io", "v1", "Lease", "leases", true);

pub async fn holder(env: &Env) -> Result<String, String> {
    holder_of(env, "kube-controller-manager").await
}

async fn holder_of(env: &Env, lease: &str) -> Result<String, String> {
    let key = ObjectKey::new("kube-system", lease);
    let lease: Value =
        env.client.resource(&LEASES).get(&key).await.map_err(|error| error.to_string())?;
    Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the lease has a new holder.
async fn new_holder(env: &Env, before: &str) -> String {
    eventually(&env.clock, "the lease has a new holder", || async {
        let now = holder(env).await?;
        if now.is_empty() || now == before { Err(format!("held by {now:?}")) } else { Ok(now) }
    })
    .await
}

fn signal(manager: &Manager, name: &str) {
    let status = Command::new("kill").args([name, &manager.id().to_string()]).status();
    assert!(status.unwrap().success());
}

async fn ended(env: &Env, manager: &mut Manager) -> ExitStatus {
    eventually(&env.clock, "the manager ends", || {
        let ended = manager.ended().unwrap();
        async move { ended.ok_or("it still runs".to_owned()) }
    })
    .await
}

async fn births(env: &Env) -> Vec<usize> {
    let mut births = Births::default();
    births.look(&env.cluster.sandbox.api().store);
    let mut counts = births.counts();
    counts.sort_unstable();
    counts
}

#[test]
fn killed_leader_is_replaced_during_a_rollout() {
    Env::run("killed", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let first = env.candidate("first", &[]);
        let leader = new_holder(env, "").await;
        let second = env.candidate("second", &[]);
        create(client, deployment("web", 6, "web:1")).await;
        rolled_out(client, clock, "web").await;

        env.cluster.steering.hold(true);
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        eventually(clock, "the rollout has begun", || async {
            let counts = births(env).await;
            if counts.len() == 2 { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
        drop(first);
        env.cluster.steering.hold(false);
        new_holder(env, &leader).await;
        rolled_out(client, clock, "web").await;
        assert_eq!(births(env).await, [6, 6]);

        let status = second.stop(clock, PATIENCE).await.unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(holder(env).await.unwrap(), "", "the lease is released");
    });
}

#[test]
fn suspended_leader_ends_without_writing() {
    Env::run("stopped", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let mut first = env.candidate("first", &[]);
        let leader = new_holder(env, "").await;
        let second = env.candidate("second", &[]);
        create(client, deployment("web", 6, "web:1")).await;
        rolled_out(client, clock, "web").await;

        // The process resumes later, in the middle of its work.
        signal(&first, "-STOP");
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        new_holder(env, &leader).await;
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 4 } })).await;
        signal(&first, "-CONT");
        let status = ended(env, &mut first).await;
        assert!(!status.success(), "a manager that lost its lease fails: {status}");
        rolled_out(client, clock, "web").await;
        let counts = births(env).await;
        assert!(counts[0] <= 6 && counts[1] == 6, "{counts:?}");
        drop(second);
    });
}

#[test]
fn leader_without_an_api_server_ends_and_its_successor_continues() {
    Env::run("cutoff", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let faults = env.cluster.sandbox.faults();
        let mut first = env.candidate("first", &[]);
        create(client, deployment("web", 3, "web:1")).await;
        rolled_out(client, clock, "web").await;
        faults.cut_all();
        let status = ended(env, &mut first).await;
        assert!(!status.success(), "{status}");
        let log = std::fs::read_to_string(&first.log).unwrap();
        assert!(log.contains("leaderelection lost"), "{log}");
        faults.come_back();
        let second = env.candidate("second", &[]);
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 5 } })).await;
        rolled_out(client, clock, "web").await;
        assert_eq!(births(env).await, [5]);
        drop(second);
    });
}

#[test]
fn leader_that_cannot_renew_ends_before_another_may_lead() {
    const LEASE: Duration = Duration::from_secs(60);
    // Each API server fails renewals in its own way; all but the last serve all other requests.
    let refusals: [(&str, Option<Fault>); 5] = [
        ("refused", Some(Fault::code(500, None))),
        ("conflict", Some(Fault::code(409, None))),
        ("unheard", Some(Fault::Cut)),
        ("unanswered", Some(Fault::Hold)),
        ("away", None),
    ];
    let names = refusals.each_ref().map(|(name, _)| *name);
    Env::run_several(&names, async |sites| {
        let lease = format!("--leader-elect-lease-duration={}s", LEASE.as_secs());
        let managers = sites.iter().map(|env| env.candidate("manager", &[&lease]));
        let managers: Vec<Manager> = managers.collect();
        for ((env, manager), (_, refusal)) in sites.iter().zip(&managers).zip(&refusals) {
            new_holder(env, "").await;
            // A manager whose API server goes before that ends for want of it.
            eventually(&env.clock, "controllers run", async || {
                let log = std::fs::read_to_string(&manager.log).unwrap();
                if log.contains("Controller starting: ") { Ok(()) } else { Err(log) }
            })
            .await;
            let faults = env.cluster.sandbox.faults();
            match refusal {
                Some(fault) => faults.next(usize::MAX, "update", "leases", fault.clone()),
                None => faults.cut_all(),
            }
        }
        for ((env, mut manager), (_, refusal)) in sites.iter().zip(managers).zip(&refusals) {
            let status = ended(env, &mut manager).await;
            let now = env.clock.now();
            assert_eq!(status.code(), Some(1), "{refusal:?}");
            let log = std::fs::read_to_string(&manager.log).unwrap();
            assert!(log.contains("leaderelection lost"), "{refusal:?}: {log}");

            let faults = env.cluster.sandbox.faults();
            faults.clear();
            faults.come_back();
            let key = ObjectKey::new("kube-system", "kube-controller-manager");
            let lease: Value = env.client.resource(&LEASES).get(&key).await.expect("the lease");
            assert_ne!(lease["spec"]["holderIdentity"], "", "it cannot be released: {refusal:?}");
            let renewed = lease["spec"]["renewTime"].as_str().expect("a time");
            let renewed: Timestamp = renewed.parse().expect("a time");
            assert!(now < renewed + LEASE, "{refusal:?}: {now:?}, renewed {renewed:?}");
        }
    });
}

/// Waits until the server has received the write for which [`Fault::Hold`] is planned.
async fn is_held(env: &Env) {
    let faults = env.cluster.sandbox.faults();
    eventually(&env.clock, "a write is under way", || async {
        let pending = faults.pending();
        if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) }
    })
    .await;
}

#[test]
fn leader_that_ends_with_a_write_under_way_keeps_its_lease() {
    Env::run("under-way", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let faults = env.cluster.sandbox.faults();
        let mut first = env.candidate("first", &["--controller-shutdown-timeout=1s"]);
        let leader = new_holder(env, "").await;
        faults.next(1, "create", "pods", Fault::Hold);
        create(client, deployment("web", 1, "web:1")).await;
        is_held(env).await;
        signal(&first, "-TERM");
        assert_eq!(ended(env, &mut first).await.code(), Some(1));
        assert_eq!(holder(env).await.expect("the lease"), leader, "the API server may create it");

        // The API server creates the pod only now; the next leader, which waits, counts it.
        let second = env.candidate("second", &[]);
        faults.clear();
        new_holder(env, &leader).await;
        rolled_out(client, clock, "web").await;
        assert_eq!(births(env).await, [1]);
        let status = second.stop(clock, PATIENCE).await.expect("a process");
        assert!(status.success(), "{status}");
        assert_eq!(holder(env).await.expect("the lease"), "", "its work has ended");
    });
}

/// The limiter has a token for each of the first 300 requests, and the next one in a quarter of an
/// hour.
#[test]
fn leader_that_is_stopped_while_requests_wait_for_the_limiter_releases_its_lease() {
    Env::run("rate-limited", async |env| {
        let manager = env.candidate("manager", &["--kube-api-qps=0.001", "--kube-api-burst=300"]);
        create(&env.client, deployment("web", 800, "web:1")).await;
        // Each batch is twice as large as the one before. This one needs more tokens than remain.
        eventually(&env.clock, "a batch waits", || async {
            let made = env.pods().await.len();
            if made > 255 { Ok(()) } else { Err(format!("{made} pods")) }
        })
        .await;
        let status = manager.stop(&env.clock, PATIENCE).await.expect("a process");
        assert!(status.success(), "{status}");
        assert_eq!(holder(env).await.expect("the lease"), "", "its work has ended");
    });
}

/// Writes a migration of the deployment controller to the lease `moving`; returns the flag.
fn migration(env: &Env) -> String {
    let file = env.kubeconfig.with_file_name("migration.yaml");
    let configuration = "apiVersion: controllermanager.config.k8s.io/v1\n\
         kind: LeaderMigrationConfiguration\n\
         leaderName: moving\n\
         controllerLeaders:\n\
         - { name: deployment-controller, component: '*' }\n\
         - { name: garbage-collector-controller, component: cloud-controller-manager }\n";
    std::fs::write(&file, configuration).unwrap();
    format!("--leader-migration-config={}", file.display())
}

async fn holder_of_both(env: &Env) -> String {
    eventually(&env.clock, "one manager holds both leases", || async {
        let main = holder(env).await?;
        let moving = holder_of(env, "moving").await?;
        let one = !main.is_empty() && main == moving;
        if one { Ok(main) } else { Err(format!("{main:?} and {moving:?}")) }
    })
    .await
}

#[test]
fn each_lease_of_a_migration_is_kept_for_the_writes_under_it() {
    Env::run_several(&["under-way-moving", "under-way-main"], async |sites| {
        for (env, (held, main_is_kept)) in
            sites.iter().zip([("replicasets", false), ("pods", true)])
        {
            let flag = migration(env);
            // The held write makes it run out; it is long enough for the controllers under the other
            // lease.
            let flags = ["--enable-leader-migration", &flag, "--controller-shutdown-timeout=15s"];
            let mut manager = env.candidate("manager", &flags);
            let leader = holder_of_both(env).await;
            env.cluster.sandbox.faults().next(1, "create", held, Fault::Hold);
            create(&env.client, deployment("web", 1, "web:1")).await;
            is_held(env).await;
            signal(&manager, "-TERM");
            assert_eq!(ended(env, &mut manager).await.code(), Some(1), "{held}");
            let main = holder(env).await.expect("the lease");
            let moving = holder_of(env, "moving").await.expect("the lease");
            let (kept, released) = if main_is_kept { (main, moving) } else { (moving, main) };
            assert_eq!((kept, released.as_str()), (leader, ""), "{held}");
            env.cluster.sandbox.faults().clear();
        }
    });
}

#[test]
fn both_leases_of_a_migration_are_held_by_one_manager() {
    Env::run("migration", async |env| {
        let (client, clock) = (&env.client, &env.clock);
        let flag = migration(env);
        let flags = ["--enable-leader-migration", flag.as_str()];
        let both = async || holder_of_both(env).await;

        let mut first = env.candidate("first", &flags);
        let leader = both().await;
        let mut second = env.candidate("second", &flags);
        // Deployments are synced under one lease, their ReplicaSets under the other.
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;

        signal(&first, "-TERM");
        assert!(ended(env, &mut first).await.success());
        let next = both().await;
        assert_ne!(next, leader);
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        rolled_out(client, clock, "web").await;

        // A manager that loses one of the leases must stop the controllers under both.
        let key = ObjectKey::new("kube-system", "moving");
        let stolen = json!({ "spec": { "holderIdentity": "thief" } });
        let leases = client.resource(&LEASES);
        leases.patch::<Value>(&key, &Patch::Merge(stolen)).await.unwrap();
        assert_eq!(ended(env, &mut second).await.code(), Some(1));
    });
}

const CANDIDATES: ResourceType = ResourceType::fixed(
    "coordination.k8s.io",
    "v1beta1",
    "LeaseCandidate",
    "leasecandidates",
    true,
);
/// The flags of an API server and of a manager with coordinated elections.
const COORDINATING: [&str; 2] = [
    "--feature-gates=CoordinatedLeaderElection=true",
    "--runtime-config=coordination.k8s.io/v1beta1=true",
];
const COORDINATED: &str = "--feature-gates=CoordinatedLeaderElection=true";
/// Longer than an API server waits for candidates that do not answer.
const COORDINATED_ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=20s",
    "--leader-elect-renew-deadline=17s",
    "--leader-elect-retry-period=500ms",
];

/// The lease's spec, once `is` holds.
pub async fn lease_that(site: &TestCluster, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let (key, is) = (ObjectKey::new("kube-system", "kube-controller-manager"), &is);
    eventually(&site.clock, what, || async {
        let lease: Result<Value, _> = site.client.resource(&LEASES).get(&key).await;
        let spec = lease.map_err(|error| error.to_string())?["spec"].take();
        if is(&spec) { Ok(spec) } else { Err(spec.to_string()) }
    })
    .await
}

fn held_by(spec: &Value) -> String {
    spec["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// The spec of the candidate `name`, once it exists.
async fn candidate(site: &TestCluster, name: &str) -> Value {
    let key = ObjectKey::new("kube-system", name);
    let read: Value = site.client.resource(&CANDIDATES).get(&key).await.expect("the candidate");
    read["spec"].clone()
}

#[test]
fn coordinated_election_prefers_the_oldest_emulated_version() {
    everywhere_with_gates("coordinated", &COORDINATING, async |site: &TestCluster| {
        let (client, clock) = (&site.client, &site.clock);
        let flags =
            |more: &[&'static str]| [&[COORDINATED][..], &COORDINATED_ELECTION, more].concat();
        let mut first = site.candidate("first", &flags(&[]));
        let led = lease_that(site, "the first manager leads", |spec| !held_by(spec).is_empty());
        let led = led.await;
        assert_eq!(led["strategy"], "OldestEmulationVersion");
        let leader = held_by(&led);
        let spec = candidate(site, &leader).await;
        assert_eq!(spec["leaseName"], "kube-controller-manager");
        assert_eq!(spec["binaryVersion"], site.release.version()[1..]);
        assert_eq!(spec["emulationVersion"], format!("{}.0", site.release));
        assert_eq!(spec["strategy"], "OldestEmulationVersion");
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;

        // The first manager's term ends: it is asked to give up the lease, and does not renew it.
        let second = site.candidate("second", &flags(&["--emulated-version=1.35"]));
        let next = lease_that(site, "the second manager leads", |spec| {
            let holder = held_by(spec);
            !holder.is_empty() && holder != leader
        });
        let next = held_by(&next.await);
        assert_eq!(candidate(site, &next).await["emulationVersion"], "1.35.0");
        let status = eventually(clock, "the first manager ends", || {
            let ended = first.ended().expect("a process");
            async move { ended.ok_or("it still runs".to_owned()) }
        });
        assert_eq!(status.await.code(), Some(1));
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        rolled_out(client, clock, "web").await;

        // It releases the lease. The next leader depends on timing, because candidates that have
        // ended stay for some time.
        let status = second.stop(clock, PATIENCE).await.expect("a process");
        assert!(status.success(), "{status}");
    });
}

#[test]
fn coordinated_election_hands_over_to_and_from_the_go_manager() {
    on_real_server("coordinated-go", &COORDINATING, async |site: &TestCluster| {
        let go = real::assets().map(|assets| assets.join("kube-controller-manager"));
        let Some(go) = go.filter(|path| path.exists()) else { return };
        let start = |name: &str, program: &ManagerProgram, more: &[&str]| {
            let flags = [&[COORDINATED][..], &COORDINATED_ELECTION, more].concat();
            let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
            Manager::spawn(program, &site.kubeconfig, name, &flags).expect("the manager starts")
        };
        let (go, ours) = (ManagerProgram::Path(go), manager_program());
        let leads = async |before: &str| {
            let next = lease_that(site, "the next manager leads", |spec| {
                let holder = held_by(spec);
                !holder.is_empty() && holder != before
            });
            held_by(&next.await)
        };
        let _first = start("go", &go, &[]);
        let of_go = leads("").await;
        let second = start("ours", &ours, &["--emulated-version=1.35"]);
        let of_ours = leads(&of_go).await;
        let (go_spec, our_spec) = (candidate(site, &of_go).await, candidate(site, &of_ours).await);
        for field in ["leaseName", "strategy", "binaryVersion"] {
            assert_eq!(go_spec[field], our_spec[field], "{field}");
        }
        assert_eq!(
            (&go_spec["emulationVersion"], &our_spec["emulationVersion"]),
            (&json!("1.36.0"), &json!("1.35.0"),)
        );
        let _third = start("go-again", &go, &["--emulated-version=1.34"]);
        let of_third = leads(&of_ours).await;
        assert_eq!(candidate(site, &of_third).await["emulationVersion"], "1.34.0");
        drop(second);
    });
}
