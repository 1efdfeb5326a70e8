//! The floor of a load: what every manager has to do for it, and nothing else. It creates the pods
//! of each Deployment of the load's namespace, receives and decodes their events, writes each status
//! once when the pods exist and once when they are ready, and empties the namespace when that is
//! deleted. It keeps no cache and decides nothing. Its CPU is what the same client costs under the
//! same load; the rest of a manager's CPU is the manager's own. [`Floor::Fresh`] shows what it costs
//! that users see the numbers change.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{FutureExt, StreamExt};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{NAMESPACE, NAMESPACES, POLL, Result};
use crate::cluster::Floor;
use kube_controller_manager::app;
use kube_controller_manager::app::connect::user_agent;
use kube_controller_manager::client::{Client, Config, Delete, ListOptions, Patch, WatchStream};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{
    ArcStr, Deployment, Form, Istr, Namespace, Object, ObjectKey, Pod, ReplicaSet, Resource, Uid,
    WatchEvent,
};
use kube_controller_manager::options::{self, Command};
use kube_controller_manager::task::{self, StopToken};

/// ReplicaSets whose pods are created at the same time, as many as a manager has workers for them.
const SETS_AT_ONCE: usize = 5;
/// Requests that are under way for one ReplicaSet.
const PODS_AT_ONCE: usize = 100;
/// The timeout of the watches: longer than any load.
const WATCH: Duration = Duration::from_secs(6 * 3600);
/// How long a status may be wrong until [`Floor::Fresh`] writes it again: as long as the manager's in a
/// storm.
const FRESH: Duration = Duration::from_secs(2);
/// A label that sets the pods of a ReplicaSet apart.
const HASH: &str = "pod-template-hash";

/// Runs until SIGTERM. `args`: the flags of a manager, of which those of the connection are read.
pub fn run(kind: Floor, args: &[String]) -> ExitCode {
    let options = match options::parse(args) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help | Command::Version(_)) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = task::run(app::THREADS, async move {
        let mut config = Config::load(Some(options.kubeconfig.as_ref()), None)?;
        config.qps = options.kube_api_qps.into();
        config.burst = u32::try_from(options.kube_api_burst)?;
        serve(kind, config, stop()?).await
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Works for one API server until `stop`.
///
/// # Errors
/// A connection that cannot be made, or a watch that ended.
pub async fn serve(kind: Floor, mut config: Config, stop: StopToken) -> Result<()> {
    config.form = Form::Protobuf;
    config.user_agent = user_agent("floor");
    let clock = SystemClock::shared();
    let client = Client::new(config, clock.clone())?;
    let work = Arc::new(Work { kind, client, clock, sets: Mutex::default() });
    stop.unless_stopped(work.run()).await.unwrap_or(Ok(()))
}

fn stop() -> Result<StopToken> {
    use async_signal::{Signal, Signals};
    let (stop, mut signals) = (StopToken::new(), Signals::new([Signal::Term, Signal::Int])?);
    let stopped = stop.clone();
    drop(task::spawn(async move {
        signals.next().await;
        stopped.stop();
    }));
    Ok(stop)
}

struct Work {
    kind: Floor,
    client: Client,
    clock: SharedClock,
    /// By the names of the ReplicaSets.
    sets: Mutex<HashMap<Istr, Set>>,
}

/// The pods of a ReplicaSet.
#[derive(Default)]
struct Set {
    deployment: ArcStr,
    wanted: usize,
    /// The pods that exist, and how each counts.
    pods: HashMap<Uid, Counts>,
    now: Counts,
    /// The numbers in the last status.
    written: Counts,
    /// Since when the numbers are others than those, in monotonic time.
    wrong_since: Option<Duration>,
    /// Whether a write is under way: a second one could arrive before it.
    is_writing: bool,
}

/// The pods that exist and are not being deleted, and those of them that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    pods: usize,
    ready: usize,
}

impl Set {
    fn see(&mut self, pod: &Pod, is_gone: bool) {
        let is_active = !is_gone && !pod.meta.is_being_deleted();
        let is_ready = is_active && pod.status.is_ready == Some(true);
        let after = Counts { pods: usize::from(is_active), ready: usize::from(is_ready) };
        let before = match is_gone {
            true => self.pods.remove(&pod.meta.uid),
            false => self.pods.insert(pod.meta.uid.clone(), after),
        };
        let before = before.unwrap_or_default();
        self.now.pods = self.now.pods + after.pods - before.pods;
        self.now.ready = self.now.ready + after.ready - before.ready;
    }

    /// The numbers to write at `now`: when all pods exist, when all are ready, and for a fresh floor
    /// when the last ones have been wrong for long.
    fn due(&mut self, kind: Floor, now: Duration) -> Option<Counts> {
        let all = |count| count == self.wanted;
        let exist = all(self.now.pods) && !all(self.written.pods);
        let ready = all(self.now.ready) && !all(self.written.ready);
        let is_wrong = self.now != self.written;
        self.wrong_since = is_wrong.then(|| self.wrong_since.unwrap_or(now));
        let is_old = self.wrong_since.is_some_and(|since| now >= since + FRESH);
        let is_due = exist || ready || (kind == Floor::Fresh && is_old);
        (is_due && !self.is_writing).then(|| {
            (self.written, self.wrong_since, self.is_writing) = (self.now, None, true);
            self.now
        })
    }
}

impl Work {
    /// Ends when the first of the watches does.
    async fn run(self: Arc<Self>) -> Result<()> {
        let (deployments, pods) = (self.clone().deployments(), self.clone().pods());
        deployments.or(pods).or(self.namespace()).await
    }

    async fn watch<T: Object + Resource>(&self, namespace: Option<&str>) -> Result<WatchStream> {
        let form = if T::MESSAGE.is_some() { Form::Protobuf } else { Form::Json };
        let verbs = self.client.resource(&T::RESOURCE).accepting(form);
        Ok(verbs.watch(namespace, &ListOptions::default(), false, WATCH).await?)
    }

    /// Creates the pods of each new Deployment.
    async fn deployments(self: Arc<Self>) -> Result<()> {
        let (queue, waiting) = async_channel::unbounded::<Deployment>();
        for _ in 0..SETS_AT_ONCE {
            let (this, waiting) = (self.clone(), waiting.clone());
            drop(task::spawn(async move {
                while let Ok(deployment) = waiting.recv().await {
                    if let Err(error) = this.deploy(&deployment).await {
                        eprintln!("{}: {error}", deployment.meta.name);
                    }
                }
            }));
        }
        let mut watch = self.watch::<Deployment>(Some(NAMESPACE)).await?;
        while let Some(event) = watch.next().await {
            if let WatchEvent::Added(object) = event? {
                queue.send(object.decode()?).await?;
            }
        }
        Err("the watch of Deployments has ended".into())
    }

    async fn deploy(self: &Arc<Self>, deployment: &Deployment) -> Result<()> {
        let wanted = usize::try_from(deployment.replicas())?;
        if wanted == 0 {
            let status = json!({ "observedGeneration": deployment.meta.generation });
            return self.write::<Deployment>(&deployment.meta.name, status).await;
        }
        let set: ReplicaSet = self.client.create(NAMESPACE, &replica_set(deployment)).await?;
        let name = Istr::new(&set.meta.name);
        let deployment = deployment.meta.name.clone();
        let counted = Set { deployment, wanted, ..Set::default() };
        self.sets.lock().insert(name, counted);
        let body: Arc<RawValue> = serde_json::value::to_raw_value(&pod_of(&set))?.into();
        for from in (0..wanted).step_by(PODS_AT_ONCE) {
            let create = |_| {
                let (client, body) = (self.client.clone(), body.clone());
                task::spawn(async move {
                    client.resource(&Pod::RESOURCE).create_for_metadata(NAMESPACE, &body).await
                })
            };
            let batch: Vec<_> = (from..wanted.min(from + PODS_AT_ONCE)).map(create).collect();
            for created in batch {
                created.await?;
            }
        }
        Ok(())
    }

    /// Counts the pods of each ReplicaSet, and writes the statuses that are due. Events gather as
    /// in the storm of a manager, so that the thread wakes rarely.
    async fn pods(self: Arc<Self>) -> Result<()> {
        let mut watch = self.watch::<Pod>(None).await?;
        loop {
            let mut event = watch.next().await;
            loop {
                let (object, is_gone) = match event.ok_or("the watch of pods has ended")?? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(_) => break,
                };
                let pod: Pod = object.decode()?;
                let owner = pod.meta.controller().map(|owner| owner.name.clone());
                if let Some(set) = self.sets.lock().get_mut(&*owner.unwrap_or_default()) {
                    set.see(&pod, is_gone);
                }
                match futures_lite::future::poll_once(watch.next()).await {
                    None => break,
                    Some(next) => event = next,
                }
            }
            self.write_due().await?;
            self.clock.sleep(Pod::GATHERED).await;
        }
    }

    async fn write_due(self: &Arc<Self>) -> Result<()> {
        let due: Vec<(Istr, ArcStr, Counts)> = {
            let (mut sets, now) = (self.sets.lock(), self.clock.monotonic());
            let due = sets.iter_mut().filter_map(|(name, set)| {
                set.due(self.kind, now).map(|counts| (name.clone(), set.deployment.clone(), counts))
            });
            due.collect()
        };
        for (set, deployment, counts) in due {
            let this = self.clone();
            drop(task::spawn(async move {
                let mut next = Some(counts);
                while let Some(counts) = next {
                    let written = this.write_counts(&set, &deployment, counts).await;
                    written.unwrap_or_else(|error| eprintln!("{set}: {error}"));
                    next = this.sets.lock().get_mut(&set).and_then(|set| {
                        set.is_writing = false;
                        set.due(this.kind, this.clock.monotonic())
                    });
                }
            }));
        }
        Ok(())
    }

    async fn write_counts(&self, set: &str, deployment: &str, counts: Counts) -> Result<()> {
        let Counts { pods, ready } = counts;
        let of_set = json!({
            "replicas": pods, "fullyLabeledReplicas": pods, "readyReplicas": ready,
            "availableReplicas": ready, "observedGeneration": 1,
        });
        let of_deployment = json!({
            "replicas": pods, "updatedReplicas": pods, "readyReplicas": ready,
            "availableReplicas": ready, "unavailableReplicas": pods - ready,
            "observedGeneration": 1,
        });
        self.write::<ReplicaSet>(set, of_set).await?;
        self.write::<Deployment>(deployment, of_deployment).await
    }

    async fn write<T: Resource>(&self, name: &str, status: Value) -> Result<()> {
        let verbs = self.client.resource(&T::RESOURCE).subresource("status");
        let patch = Patch::Merge(json!({ "status": status }));
        match verbs.patch_for_metadata(&ObjectKey::new(NAMESPACE, name), &patch).await {
            // It went with its namespace.
            Err(error) if error.is_not_found() => Ok(()),
            written => written.map(drop).map_err(Into::into),
        }
    }

    /// Empties the namespace when it is deleted, and lets it go.
    async fn namespace(self: Arc<Self>) -> Result<()> {
        let mut watch = self.watch::<Namespace>(None).await?;
        while let Some(event) = watch.next().await {
            let WatchEvent::Modified(object) = event? else { continue };
            let namespace: Namespace = object.decode()?;
            let ends = &*namespace.meta.name == NAMESPACE && namespace.meta.is_being_deleted();
            if ends && !namespace.spec.finalizers.is_empty() {
                self.empty().await?;
            }
        }
        Err("the watch of namespaces has ended".into())
    }

    async fn empty(&self) -> Result<()> {
        let discovery = self.client.discovery().await?;
        let deletable = discovery.preferred().filter(|api| {
            api.resource.namespaced && api.supports(&["delete", "deletecollection", "list"])
        });
        for api in deletable {
            let verbs = self.client.resource(&api.resource);
            // A server may give up on thousands of objects; the pods are deleted further below.
            if let Err(error) =
                verbs.delete_collection(Some(NAMESPACE), Delete::background(), &every()).await
                && !error.is_method_not_supported()
            {
                eprintln!("{}: {error}", api.resource);
            }
        }
        let left =
            |sets: &HashMap<Istr, Set>| -> usize { sets.values().map(|set| set.pods.len()).sum() };
        let mut before = usize::MAX;
        loop {
            let now = left(&self.sets.lock());
            if now == 0 {
                break;
            }
            if now == before {
                let pods = self.client.resource(&Pod::RESOURCE);
                let delete = Delete::background();
                let again = pods.delete_collection(Some(NAMESPACE), delete, &every()).await;
                again.unwrap_or_else(|error| eprintln!("pods: {error}"));
            }
            before = now;
            self.clock.sleep(POLL * 10).await;
        }
        let key = ObjectKey::cluster(NAMESPACE);
        let mut live: Value = self.client.resource(&NAMESPACES).get(&key).await?;
        live["spec"]["finalizers"] = json!([]);
        let finalize = self.client.resource(&NAMESPACES).subresource("finalize");
        finalize.update::<Value>(&key, &live).await?;
        self.sets.lock().clear();
        Ok(())
    }
}

fn every() -> ListOptions {
    ListOptions::default()
}

fn replica_set(deployment: &Deployment) -> Value {
    let name = &deployment.meta.name;
    let mut template = deployment.spec.template.to_value();
    template["metadata"]["labels"][HASH] = "floor".into();
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{name}-floor"), "labels": template["metadata"]["labels"],
            "ownerReferences": [owner(&Deployment::RESOURCE.kind, &deployment.meta)],
        },
        "spec": {
            "replicas": deployment.replicas(), "template": template,
            "selector": { "matchLabels": template["metadata"]["labels"] },
        },
    })
}

fn pod_of(set: &ReplicaSet) -> Value {
    let mut pod = set.spec.template.to_value();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["generateName"] = format!("{}-", set.meta.name).into();
    pod["metadata"]["ownerReferences"] = json!([owner(&ReplicaSet::RESOURCE.kind, &set.meta)]);
    pod
}

fn owner(kind: &str, meta: &kube_controller_manager::objects::Meta) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "name": meta.name, "uid": meta.uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, is_ready: bool) -> Pod {
        let status = if is_ready { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": "p", "uid": uid },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_status_is_due_when_all_pods_exist_and_when_all_are_ready() {
        let uid = |n: u8| format!("5f0c0001-7a3e-4d21-9b68-00000000000{n}");
        let mut set = Set { wanted: 2, ..Set::default() };
        let counts = |pods, ready| Some(Counts { pods, ready });
        for (n, is_ready, is_gone, due) in [
            (1, false, false, None),
            (2, false, false, counts(2, 0)),
            (1, true, false, None),
            (1, true, false, None),
            (2, true, false, counts(2, 2)),
            (2, true, false, None),
            (2, true, true, None),
        ] {
            set.see(&pod(&uid(n), is_ready), is_gone);
            let seen = set.due(Floor::Bare, 2 * FRESH);
            set.is_writing = false;
            assert_eq!(seen, due, "pod {n}, ready {is_ready}, gone {is_gone}");
        }
        assert_eq!((set.pods.len(), set.now), (1, Counts { pods: 1, ready: 1 }));
    }

    #[test]
    fn a_fresh_floor_writes_what_has_been_wrong_for_long() {
        let mut set = Set { wanted: 2, ..Set::default() };
        let one = Counts { pods: 1, ready: 0 };
        assert_eq!(set.due(Floor::Fresh, FRESH), None, "nothing has changed");
        set.see(&pod("5f0c0001-7a3e-4d21-9b68-000000000001", false), false);
        assert_eq!(set.due(Floor::Fresh, 2 * FRESH), None);
        assert_eq!(set.due(Floor::Fresh, 3 * FRESH - Duration::from_millis(1)), None);
        assert_eq!(set.due(Floor::Fresh, 3 * FRESH), Some(one));
        set.see(&pod("5f0c0001-7a3e-4d21-9b68-000000000001", true), false);
        assert_eq!(set.due(Floor::Fresh, 4 * FRESH), None);
        assert_eq!(set.due(Floor::Fresh, 5 * FRESH), None, "the last write is under way");
        set.is_writing = false;
        assert_eq!(set.due(Floor::Fresh, 5 * FRESH), Some(Counts { pods: 1, ready: 1 }));
        set.is_writing = false;
        assert_eq!(set.due(Floor::Fresh, 9 * FRESH), None, "nothing has changed");
    }
}
