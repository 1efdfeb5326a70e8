//! Faults between the manager and the API server. After each of them the final state is correct,
//! and no pod was created twice.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube_controller_manager::client::{Client, Config, Delete, Guard, Patch};
use kube_controller_manager::clock::{Clock, Sleep, SystemClock};
use kube_controller_manager::objects::{
    ArcStr, DaemonSet, Deployment, Job, Namespace, Node, ObjectKey, PersistentVolume, Pod,
    ReplicaSet, Resource, Timestamp,
};
use sandbox::faults::{Fault, Faults, Target};
use sandbox::store::Store;
use serde_json::{Value, json};

use crate::crashes::{job, set_of_pods};
use crate::env::*;
use crate::kinds::{CONFIG_MAPS, wait_until_exists};
use crate::rollouts::populate_namespace;

/// The uids of all pods ever created, by their owner's uid.
#[derive(Default)]
pub struct Births {
    seen: u64,
    uids: BTreeMap<String, HashSet<String>>,
}

impl Births {
    /// Adds the pods created since the last call. The store must still have that history.
    pub fn look(&mut self, store: &Store) {
        let news =
            store.changes("pods", self.seen, usize::MAX, true).expect("the history is there");
        self.seen = news.version;
        for change in news.changes {
            let text = |at: &str| {
                let found = change.new.value.pointer(at).and_then(Value::as_str);
                found.unwrap_or_default().to_owned()
            };
            let owner = text("/metadata/ownerReferences/0/uid");
            self.uids.entry(owner).or_default().insert(text("/metadata/uid"));
        }
    }

    /// The number of pods created for each owner.
    pub fn counts(&self) -> Vec<usize> {
        self.uids.values().map(HashSet::len).collect()
    }
}

/// Cuts every list and watch of `resource` until the faults are cleared.
pub fn cut_lists_and_watches(faults: &Faults, resource: &str) {
    for verb in ["watch", "list"] {
        faults.next(usize::MAX, verb, resource, Fault::Cut);
    }
    faults.cut_watches();
}

/// Creates the Deployment `web` of six pods, changes its image and scales it down, with `trouble`
/// before each step.
async fn rollout_in_trouble(env: &Env, mut trouble: impl FnMut(&Env, usize)) -> Births {
    let (client, clock) = (&env.client, &env.clock);
    let store = &env.cluster.sandbox.api().store;
    let mut births = Births::default();
    trouble(env, 0);
    create(client, deployment("web", 6, "web:1")).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    trouble(env, 1);
    merge::<Deployment>(client, "web", set_image("web:2")).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    trouble(env, 2);
    merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 2 } })).await;
    rolled_out(client, clock, "web").await;
    births.look(store);
    births
}

#[test]
fn a_watch_that_breaks_inside_an_object_loses_nothing() {
    Env::run("cut", async |env| {
        let _manager = env.manager("manager", &[]);
        let births = rollout_in_trouble(env, |env, step| {
            let faults = env.cluster.sandbox.faults();
            faults.cut_watches();
            for resource in ["pods", "replicasets", "deployments"] {
                // Inside the first object, and later. More cuts would only add delays between the
                // retries.
                let bytes = [10, 700, 1700][step];
                faults.next(1, "watch", resource, Fault::CutAfter(bytes));
            }
        })
        .await;
        assert_eq!(births.counts(), [6, 6]);
    });
}

#[test]
fn a_watch_may_expire_at_any_time() {
    Env::run("expired", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let sandbox = &env.cluster.sandbox;
        let mut births = Births::default();
        let mut expire = || {
            let store = &sandbox.api().store;
            births.look(store);
            // The history must hold all changes since the last call.
            while !store.compact_at(births.seen) {
                births.look(store);
            }
            sandbox.faults().expire_watches();
            births.counts()
        };
        create(client, deployment("web", 6, "web:1")).await;
        expire();
        rolled_out(client, clock, "web").await;

        // No later watch delivers a deletion that the server has compacted.
        let lost = list::<Pod>(client).await.remove(0).meta;
        cut_lists_and_watches(sandbox.faults(), "pods");
        client.delete::<Pod>(&lost.key(), Delete::new().grace_period(0)).await.expect("delete");
        expire();
        sandbox.faults().clear();
        eventually(clock, "the lost pod is replaced", || async {
            let pods = env.pods().await;
            let found = pods.len();
            let is_lost = pods.iter().any(|pod| pod.meta.uid == lost.uid);
            if found == 6 && !is_lost { Ok(()) } else { Err(format!("{found}, {is_lost}")) }
        })
        .await;
        rolled_out(client, clock, "web").await;
        merge::<Deployment>(client, "web", set_image("web:2")).await;
        eventually(clock, "a second ReplicaSet has pods", || {
            // Repeated while pods of both are created and deleted.
            let counts = expire();
            async move { if counts.len() == 2 { Ok(()) } else { Err(format!("{counts:?}")) } }
        })
        .await;
        rolled_out(client, clock, "web").await;
        let mut counts = expire();
        counts.sort_unstable();
        assert_eq!(counts, [6, 7]);
    });
}

/// The creation of a pod counts, although the first list that shows the pod shows it in deletion.
#[test]
fn a_pod_that_is_first_seen_in_deletion_is_replaced() {
    Env::run("first-seen", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock, sandbox) = (&env.client, &env.clock, &env.cluster.sandbox);
        let store = &sandbox.api().store;
        create(client, deployment("web", 1, "web:1")).await;
        rolled_out(client, clock, "web").await;

        cut_lists_and_watches(sandbox.faults(), "pods");
        let mut held = deployment("held", 1, "held:1");
        held["spec"]["template"]["metadata"]["finalizers"] = json!(["example.com/held"]);
        create(client, held).await;
        let first = eventually(clock, "a pod is created", || async {
            let changes = store.changes("pods", 0, usize::MAX, true).expect("the history is there");
            let mut names =
                changes.changes.iter().map(|it| it.new.value["metadata"]["name"].as_str());
            let held = names.find_map(|name| name.filter(|name| name.starts_with("held-")));
            held.map(str::to_owned).ok_or_else(|| "none".to_owned())
        })
        .await;
        let key = ObjectKey::new("default", &first);
        client.delete::<Pod>(&key, Delete::new().grace_period(0)).await.expect("delete");
        // No watch can begin before that, so a list comes next.
        let mut births = Births::default();
        while !store.compact_at(births.seen) {
            births.look(store);
        }
        sandbox.faults().expire_watches();
        sandbox.faults().clear();
        eventually(clock, "the pod is seen in deletion", || async {
            let sets = list::<ReplicaSet>(client).await;
            let going: Vec<_> = sets.iter().map(|set| set.status.terminating_replicas).collect();
            if going.contains(&Some(1)) { Ok(()) } else { Err(format!("{going:?}")) }
        })
        .await;
        merge::<Pod>(client, &first, json!({ "metadata": { "finalizers": null } })).await;
        eventually(clock, "another pod is created", || async {
            let names: Vec<_> = env.pods().await.iter().map(|pod| pod.meta.name.clone()).collect();
            let is_other = |name: &&ArcStr| name.starts_with("held-") && ***name != *first;
            names.iter().find(is_other).map(drop).ok_or_else(|| format!("{names:?}"))
        })
        .await;
    });
}

/// The writes of a rollout and a scale-down.
const WRITES: [(&str, &str); 6] = [
    ("create", "replicasets"),
    ("patch", "replicasets"),
    ("update", "replicasets/status"),
    ("update", "deployments/status"),
    ("create", "pods"),
    ("delete", "pods"),
];

/// A rollout whose first writes of each kind meet `faults`; `trouble` may plan further faults.
fn failing_writes(name: &str, faults: &[Fault], trouble: impl Fn(&Env)) {
    Env::run(name, async |env| {
        let _manager = env.manager("manager", &[]);
        let births = rollout_in_trouble(env, |env, step| {
            if step == 0 {
                for (verb, resource) in WRITES {
                    for fault in faults {
                        env.cluster.sandbox.faults().next(1, verb, resource, fault.clone());
                    }
                }
            }
            trouble(env);
        })
        .await;
        assert_eq!(births.counts(), [6, 6]);
        // More faults may be planned for watches than there are watches.
        let mut pending = env.cluster.sandbox.faults().pending();
        pending.retain(|target| target.verb != "watch");
        assert_eq!(pending, [], "every fault of a write has hit");
    });
}

#[test]
fn refused_writes_are_retried() {
    failing_writes(
        "refused",
        &[
            Fault::code(409, None),
            Fault::code(500, None),
            Fault::code(429, Some(1)),
            Fault::code(503, None),
            Fault::code(504, None),
        ],
        |_| (),
    );
}

#[test]
fn writes_whose_answer_is_lost_create_nothing_twice() {
    failing_writes("lost", &[Fault::LoseAnswer, Fault::Cut, Fault::LoseAnswer], |env| {
        // The caches lag as well: those of the manager, the scheduler and the nodes.
        let faults = env.cluster.sandbox.faults();
        faults.next(3, "watch", "pods", Fault::Delay(Duration::from_secs(1)));
        faults.cut_watches();
    });
}

#[test]
fn repeated_and_reordered_events_do_no_harm() {
    Env::run("repeat_events", async |env| {
        env.cluster.sandbox.faults().repeat_events(true);
        let _manager = env.manager("manager", &[]);
        rollout_in_trouble(env, |_, _| ()).await;
        // A wrong state would stay: no further events come.
        env.cluster.sandbox.faults().repeat_events(false);
        rolled_out(&env.client, &env.clock, "web").await;
    });
}

#[test]
fn the_manager_catches_up_after_an_outage_of_the_api_server() {
    Env::run("away", async |env| {
        let mut manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let sandbox = &env.cluster.sandbox;
        let (store, faults) = (&sandbox.api().store, sandbox.faults());
        create(client, deployment("web", 4, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let before: Vec<Pod> = list(client).await;

        faults.cut_all();
        let tried = faults.count("*", "*");
        eventually(clock, "the manager tries while the server is away", || async {
            let tries = faults.count("*", "*") - tried;
            if tries > 20 { Ok(()) } else { Err(format!("{tries} tries")) }
        })
        .await;
        // Two pods vanish, with the history of their deletion.
        for pod in &before[..2] {
            let key = format!("default/{}", pod.meta.name);
            let stored = store.get("pods", &key).expect("the pod is there");
            store.delete("pods", &key, stored.version, None).expect("no other writer");
        }
        store.compact();
        faults.come_back();

        eventually(clock, "two pods are replaced", || async {
            let pods: Vec<Pod> = client
                .list(Some("default"), &Default::default())
                .await
                .map_err(|error| error.to_string())?;
            let kept = pods.iter().filter(|pod| before.iter().any(|b| b.meta.uid == pod.meta.uid));
            let (kept, all) = (kept.count(), pods.len());
            if (kept, all) == (2, 4) { Ok(()) } else { Err(format!("{kept} kept of {all}")) }
        })
        .await;
        rolled_out(client, clock, "web").await;
        let log = std::fs::read_to_string(&manager.log).expect("a log");
        // A connection that times out, as on a busy machine, is an error, as upstream.
        let is_loud =
            |line: &&str| line.contains("cannot be watched") && !line.contains("timed out");
        assert_eq!(log.lines().find(is_loud), None, "a refused connection is logged at debug");
        assert_eq!(manager.ended().unwrap(), None, "it did not restart");
    });
}

/// Delays that have doubled in outages before do not outlast the next one.
#[test]
fn each_of_several_outages_ends_all_delays() {
    Env::run("outages", async |env| {
        let manager = env.manager("manager", &["--vmodule=reflector=4"]);
        let (client, clock) = (&env.client, &env.clock);
        let faults = env.cluster.sandbox.faults();
        create(client, deployment("web", 1, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let recovered = || {
            let log = std::fs::read_to_string(&manager.log).expect("a log");
            log.matches("ended: Recovered").count()
        };
        for outage in 1..=3 {
            faults.cut_all();
            let (asked, before) = (faults.count("get", "/readyz"), recovered());
            eventually(clock, "it is asked often whether the server is ready", || async {
                let times = faults.count("get", "/readyz") - asked;
                // A broken connection makes three of one question.
                if times > 50 { Ok(()) } else { Err(format!("{times} times")) }
            })
            .await;
            faults.come_back();
            let name = format!("web-{outage}");
            create(client, deployment(&name, 1, "web:1")).await;
            rolled_out(client, clock, &name).await;
            eventually(clock, "its end has ended waits", || async {
                if recovered() > before { Ok(()) } else { Err(format!("outage {outage}")) }
            })
            .await;
        }
    });
}

#[test]
fn failed_reads_are_repeated() {
    Env::run("reads", async |env| {
        let faults = env.cluster.sandbox.faults();
        for resource in [Deployment::RESOURCE, ReplicaSet::RESOURCE, Pod::RESOURCE] {
            for verb in ["watch", "list"] {
                faults.next(1, verb, &resource.plural, Fault::code(500, None));
                faults.next(1, verb, &resource.plural, Fault::code(429, Some(1)));
                faults.next(1, verb, &resource.plural, Fault::CutAfter(30));
            }
            // A cut watch is opened again; after a refused watch the reflector lists.
            faults.next(1, "watch", &resource.plural, Fault::code(500, None));
        }
        let _manager = env.manager("manager", &[]);
        create(&env.client, deployment("web", 3, "web:1")).await;
        let key = ObjectKey::new("default", "web");
        eventually(&env.clock, "the deployment is observed", || async {
            let web: Deployment = env.client.get(&key).await.map_err(|error| error.to_string())?;
            if web.status.updated_replicas == Some(3) { Ok(()) } else { Err("not yet".into()) }
        })
        .await;
        assert_eq!(faults.pending(), [], "every fault has hit");
    });
}

/// The system's clock, but waits of exactly these lengths pass at once; it counts them.
struct SkippingClock {
    waits: [Duration; 3],
    passed: Mutex<Vec<Duration>>,
}

impl Clock for SkippingClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() + self.passed.lock().unwrap().iter().sum::<Duration>()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        if !self.waits.contains(&duration) {
            return SystemClock.sleep(duration);
        }
        self.passed.lock().unwrap().push(duration);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn retry_after_is_honoured() {
    Env::run("retry-after", async |env| {
        let faults = env.cluster.sandbox.faults();
        let cases = [(429, 7), (503, 20), (500, 1)];
        let waits = cases.map(|(_, after)| Duration::from_secs(after));
        let clock = Arc::new(SkippingClock { waits, passed: Mutex::default() });
        let admin = env.cluster.kubeconfig();
        let config = Config::from_kubeconfig(&admin, None, None).unwrap();
        let client = Client::new(config, clock.clone()).unwrap();
        for (code, after) in cases {
            faults.next(2, "create", "configmaps", Fault::code(code, Some(after)));
            let asked = faults.count("create", "configmaps");
            let waited = clock.passed.lock().unwrap().len();
            let name = format!("after-{after}");
            let body = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            });
            let made = client.resource(&CONFIG_MAPS).create::<Value>("default", &body).await;
            made.expect("the third try succeeds");
            assert_eq!(faults.count("create", "configmaps") - asked, 3);
            let passed = &clock.passed.lock().unwrap()[waited..];
            assert_eq!(passed, [Duration::from_secs(after); 2]);
        }
        // Without Retry-After the client returns the error; the queue retries.
        faults.next(1, "create", "configmaps", Fault::code(500, None));
        let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "no" } });
        let refused = client.resource(&CONFIG_MAPS).create::<Value>("default", &body).await;
        assert_eq!(refused.unwrap_err().code(), Some(500));
    });
}

fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "v" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
            "hostPath": { "path": "/tmp/none" },
        },
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "c", "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

#[test]
fn every_controller_retries_refused_writes() {
    // The writes for a namespace, a Service, a token, a quota, a DaemonSet and their deletion, and
    // the number of the faults below that each write meets: few where each failure doubles a delay
    // of a second, or where one key makes several of these writes.
    const ALL: [(&str, &str, usize); 20] = [
        ("create", "controllerrevisions", 6),
        ("update", "daemonsets/status", 3),
        ("create", "serviceaccounts", 6),
        ("create", "configmaps", 6),
        ("create", "endpoints", 3),
        ("update", "endpoints", 3),
        ("create", "endpointslices", 3),
        ("update", "endpointslices", 3),
        ("update", "secrets", 6),
        ("update", "resourcequotas/status", 6),
        ("patch", "nodes", 6),
        ("update", "jobs/status", 2),
        ("patch", "pods", 2),
        ("deletecollection", "configmaps", 2),
        ("update", "namespaces/status", 2),
        ("update", "namespaces/finalize", 2),
        ("update", "persistentvolumeclaims", 2),
        ("update", "persistentvolumeclaims/status", 2),
        ("update", "persistentvolumes", 2),
        ("update", "persistentvolumes/status", 2),
    ];
    Env::run("all-refused", async |env| {
        let faults = env.cluster.sandbox.faults();
        let kinds = [
            Fault::code(500, None),
            Fault::code(409, None),
            Fault::code(429, Some(1)),
            Fault::code(503, None),
            Fault::Cut,
            Fault::LoseAnswer,
        ];
        for (verb, resource, count) in ALL {
            for fault in &kinds[..count] {
                // A conflict on a Secret is retried when the watch brings its new version; here
                // there is no new version.
                if resource != "secrets" || *fault != Fault::code(409, None) {
                    faults.next(1, verb, resource, fault.clone());
                }
            }
        }
        let _manager = env.manager("manager", &[]);
        env.client
            .resource(&PersistentVolume::RESOURCE)
            .create::<Value>("", &volume())
            .await
            .unwrap();
        create(&env.client, claim()).await;
        populate_namespace(env, "ns").await;
        let mut agent = deployment("agent", 0, "agent:1");
        agent["kind"] = json!("DaemonSet");
        agent["metadata"]["namespace"] = json!("ns");
        agent["spec"].as_object_mut().expect("a spec").remove("replicas");
        env.client.create::<DaemonSet>("ns", &agent).await.expect("create");
        eventually(&env.clock, "the daemons run", || async {
            let key = ObjectKey::new("ns", "agent");
            let set: DaemonSet = env.client.get(&key).await.map_err(|error| error.to_string())?;
            let [wanted, ready] = [set.status.desired_number_scheduled, set.status.number_ready];
            if wanted > 0 && ready == wanted { Ok(()) } else { Err(format!("{ready} of {wanted}")) }
        })
        .await;
        // Where the faults delayed the creation of the endpoints until every pod ran, nothing has
        // updated them yet: a third pod does.
        let three = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
        let scaled = ObjectKey::new("ns", "ns");
        env.client.patch::<Deployment>(&scaled, &three).await.expect("patch");
        eventually(&env.clock, "every fault but those of the end has hit", || async {
            let is_of_end = |fault: &Target| {
                fault.verb == "deletecollection" || fault.resource.starts_with("namespaces/")
            };
            let pending = faults.pending();
            if pending.iter().all(is_of_end) { Ok(()) } else { Err(format!("{pending:?}")) }
        })
        .await;
        let key = ObjectKey::cluster("ns");
        env.client.delete::<Namespace>(&key, Delete::new()).await.expect("delete");
        eventually(&env.clock, "the namespace goes", || async {
            match env.client.get::<Namespace>(&key).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        eventually(&env.clock, "every fault has hit", || async {
            let pending = faults.pending();
            if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) }
        })
        .await;
    });
}

#[test]
fn a_pod_whose_creation_was_not_answered_is_created_once() {
    Env::run("unanswered", async |env| {
        let manager = env.manager("manager", &["-v=4"]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 2, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let faults = env.cluster.sandbox.faults();
        // Watches of pods break; reads still work.
        faults.next(usize::MAX, "watch", "pods", Fault::Cut);
        faults.cut_watches();
        faults.next(1, "create", "pods", Fault::LoseAnswer);
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 3 } })).await;
        eventually(clock, "the sync waits for its cache", || async {
            let log = std::fs::read_to_string(&manager.log).unwrap();
            let waits = log.lines().any(|line| {
                line.contains("replicaset-controller: Error syncing default/web-")
                    && line.contains("for group resource pods")
            });
            if waits { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        faults.clear();
        rolled_out(client, clock, "web").await;
        let mut births = Births::default();
        births.look(&env.cluster.sandbox.api().store);
        assert_eq!(births.counts(), [3]);
    });
}

#[test]
fn jobs_and_daemon_sets_wait_for_a_stale_cache() {
    Env::run("stale-workloads", async |env| {
        let manager = env.manager("manager", &["-v=4"]);
        let (client, clock) = (&env.client, &env.clock);
        let choose = async |node: &str| {
            let key = ObjectKey::cluster(node);
            wait_until_exists(env, &Node::RESOURCE, &key, |_| true).await;
            let patch = Patch::Merge(json!({ "metadata": { "labels": { "chosen": "yes" } } }));
            client.patch::<Node>(&key, &patch).await.expect("patch");
        };
        choose("node-0").await;
        let mut agent = set_of_pods("DaemonSet", "agent", json!({}));
        agent["spec"]["template"]["spec"]["nodeSelector"] = json!({ "chosen": "yes" });
        create(client, agent).await;
        let runs = json!({ "sandbox/run": "sleep inf" });
        create(client, job("work", json!({ "completions": 3, "parallelism": 1 }), runs)).await;
        let at = |name: &str| ObjectKey::new("default", name);
        let ready = async |daemons: i64, pods: i64| {
            wait_until_exists(env, &DaemonSet::RESOURCE, &at("agent"), |it| {
                it["status"]["numberReady"] == daemons
            })
            .await;
            wait_until_exists(env, &Job::RESOURCE, &at("work"), |it| it["status"]["ready"] == pods)
                .await;
        };
        ready(1, 1).await;
        let faults = env.cluster.sandbox.faults();
        let made = faults.count("create", "pods");
        let creates = async |count: u64| {
            eventually(clock, &format!("{count} pods are created"), || async {
                let now = faults.count("create", "pods") - made;
                if now == count { Ok(()) } else { Err(now.to_string()) }
            })
            .await;
        };
        // Watches of pods break; reads still work.
        cut_lists_and_watches(faults, "pods");
        choose("node-1").await;
        merge::<Job>(client, "work", json!({ "spec": { "parallelism": 2 } })).await;
        creates(2).await;
        // Syncs that would create more wait for what these have created.
        choose("node-2").await;
        merge::<Job>(client, "work", json!({ "spec": { "parallelism": 3 } })).await;
        for waiting in [
            "daemonset-controller: Error syncing default/agent:",
            "job-controller: Error syncing default/work:",
        ] {
            eventually(clock, waiting, || async {
                let log = std::fs::read_to_string(&manager.log).unwrap();
                let waits = log
                    .lines()
                    .any(|line| line.contains(waiting) && line.contains("for group resource pods"));
                if waits { Ok(()) } else { Err("not yet".to_owned()) }
            })
            .await;
        }
        creates(2).await;
        faults.clear();
        ready(3, 3).await;
        let mut births = Births::default();
        births.look(&env.cluster.sandbox.api().store);
        assert_eq!(births.counts(), [3, 3]);
    });
}

#[test]
fn a_pod_whose_deletion_was_not_answered_is_the_only_one_deleted() {
    Env::run("undeleted", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        create(client, deployment("web", 3, "web:1")).await;
        rolled_out(client, clock, "web").await;
        let set = list::<ReplicaSet>(client).await.remove(0).meta.name;
        let faults = env.cluster.sandbox.faults();
        // Watches of pods break, those of the nodes too.
        faults.next(usize::MAX, "watch", "pods", Fault::Cut);
        faults.cut_watches();
        faults.next(2, "delete", "pods", Fault::LoseAnswer);
        let asked = faults.count("delete", "pods");
        merge::<Deployment>(client, "web", json!({ "spec": { "replicas": 2 } })).await;
        has_event(env, &set, "SuccessfulDelete", "").await;
        assert_eq!(faults.count("delete", "pods") - asked, 3, "the same pod each time");
        faults.clear();
        rolled_out(client, clock, "web").await;
        let mut births = Births::default();
        births.look(&env.cluster.sandbox.api().store);
        assert_eq!(births.counts(), [3]);
    });
}

#[test]
fn nothing_is_written_without_the_lease() {
    Env::run("guarded", async |env| {
        let faults = env.cluster.sandbox.faults();
        let is_held = Arc::new(AtomicBool::new(true));
        let lease = is_held.clone();
        let client = env.client.guarded(Guard::new(move || lease.load(Ordering::SeqCst)));
        let client = client.named("a controller");
        let made = create(&client, deployment("web", 1, "web:1")).await;
        is_held.store(false, Ordering::SeqCst);
        let heard = || faults.count("*", "deployments");
        let before = heard();
        let key = ObjectKey::new("default", "web");
        let deployments = client.resource(&Deployment::RESOURCE);
        let body = Patch::Merge(set_image("web:2"));
        for refused in [
            deployments.create::<Value>("default", &made).await.map(drop),
            deployments.update::<Value>(&key, &made).await.map(drop),
            deployments.patch::<Value>(&key, &body).await.map(drop),
            deployments.delete(&key, Delete::new()).await,
        ] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("the lease is no longer held"), "{refused}");
        }
        assert_eq!(heard(), before, "no write reached the server");
        assert!(deployments.get::<Value>(&key).await.is_ok(), "reads are allowed");
    });
}
