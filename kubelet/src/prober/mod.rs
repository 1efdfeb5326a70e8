//! Probes of running containers: [`Probes`] has their results, `worker` repeats each probe, and
//! `attempt` does one. Upstream: `pkg/kubelet/prober`.

mod attempt;
mod grpc;
mod results;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, Latch, StopToken};
use parking_lot::Mutex;

pub use self::attempt::{PortError, send, target};
use self::results::{Known, SavedResults, Table};
use self::worker::Worker;
pub use self::worker::remove_metrics;
use crate::cri::RuntimeService;
use crate::node::own::OwnNode;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::runtime::actions::ProbeResults;
use crate::volumes::Folders;

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Startup, Kind::Liveness, Kind::Readiness];

    fn name(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }

    pub fn of(self, container: &Container) -> Option<&core::Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// Where a pod's containers are reached.
#[derive(Clone, Debug)]
pub enum Ip {
    OfPod(String),
    /// It may change while they run.
    OfNode(OwnNode),
}

impl Ip {
    /// Returns the present address: that of a node may change.
    fn now(&self) -> String {
        match self {
            Ip::OfPod(ip) => ip.clone(),
            Ip::OfNode(node) => node.address_or_loopback(),
        }
    }
}

/// Returns the status of a pod that the API server has; of a static pod, that of its mirror pod.
pub type Reported<'a> = dyn Fn() -> Option<core::PodStatus> + Sync + 'a;

/// A running container.
#[derive(Clone, Copy)]
pub struct Running<'a> {
    pub definition: &'a Container,
    pub id: &'a str,
    /// By the clock of the machine.
    pub started_at: Timestamp,
}

/// The probes of all containers. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    table: Arc<Mutex<Table>>,
    /// Held while a file of results is written.
    writing: Arc<async_lock::Mutex<()>>,
    runtime: RuntimeService,
    folders: Folders,
    clock: SharedClock,
    /// When this agent started.
    since: Duration,
    changed: Sender<Uid>,
    stop: StopToken,
}

impl Probes {
    /// Creates the probes of no containers yet. `changed` gets the pods whose results have changed.
    pub fn new(
        runtime: RuntimeService,
        folders: Folders,
        clock: SharedClock,
        changed: Sender<Uid>,
        stop: StopToken,
    ) -> Probes {
        let (table, writing, since) = (Arc::default(), Arc::default(), clock.monotonic());
        Probes { table, writing, runtime, folders, clock, since, changed, stop }
    }

    /// Returns the result of a probe; `None`: it has none yet.
    pub fn result(&self, id: &str, kind: Kind) -> Option<bool> {
        self.table.lock().result(id, kind)
    }

    /// Returns the results that decide whether a container is restarted.
    pub fn results(&self, id: &str) -> ProbeResults {
        ProbeResults {
            startup: self.result(id, Kind::Startup),
            liveness: self.result(id, Kind::Liveness),
        }
    }

    /// Starts the probes of a pod's `running` containers, unless they run already, with the results
    /// of the agent before this one; stops those of its other containers. `reported`: the status
    /// that the API server has.
    pub async fn update(
        &self,
        pod: &Arc<Pod>,
        running: &[Running<'_>],
        ip: &Ip,
        reported: &Reported<'_>,
    ) {
        self.retain(&pod.uid(), &running.iter().map(|container| container.id.to_owned()).collect());
        let is_new =
            |id: &str, kind| !self.table.lock().running.contains_key(&(id.to_owned(), kind));
        let all = running.iter().flat_map(|one| Kind::ALL.map(|kind| (one, kind)));
        let new: Vec<_> = all
            .filter_map(|(one, kind)| Some((one, kind, kind.of(one.definition)?)))
            .filter(|(one, kind, _)| is_new(one.id, *kind))
            .collect();
        if new.is_empty() {
            return;
        }
        let saved = self.load_saved(pod, reported).await;
        // All of the pod's results are known before the first probe: its end writes them.
        let mut table = self.table.lock();
        for (container, kind, probe) in new {
            let key = (container.id.to_owned(), kind);
            let saved = saved.get(container.id).copied().unwrap_or_default();
            let result = match kind {
                Kind::Startup => saved.started,
                Kind::Readiness => saved.ready,
                // It is not saved: the probe decides again.
                Kind::Liveness => false,
            };
            if result {
                table.results.insert(key.clone(), true);
            }
            let latch = Latch::default();
            table.running.insert(key, (pod.uid(), latch.clone()));
            // A container starts once.
            if kind == Kind::Startup && result {
                continue;
            }
            let worker = Worker {
                probes: self.clone(),
                pod: pod.clone(),
                container: container.definition.clone(),
                probe: probe.clone(),
                kind,
                id: container.id.to_owned(),
                started_at: container.started_at,
                ip: ip.clone(),
            };
            drop(task::spawn(async move {
                worker.run().or(latch.opened()).or(worker.probes.stop.stopped()).await;
            }));
        }
    }

    /// Returns what an agent before this one has saved, with what the API server's status has once
    /// the file is read: other agents save nothing. Callers use it at once, without an await, so
    /// that [`Self::adopt`] takes over each status that comes later.
    async fn load_saved(
        &self,
        pod: &Pod,
        reported: &Reported<'_>,
    ) -> BTreeMap<String, SavedResults> {
        let file = self.folders.probes_file(&pod.uid());
        let of_file = task::blocking(move || results::read(&file)).await.unwrap_or_else(|error| {
            log::warn!("pod {}: the results of its probes: {error}", pod.display_name());
            Known::default()
        });
        let reported = reported().as_ref().map(results::reported);
        of_file.with_reported(reported.unwrap_or_default())
    }

    /// Takes over results from a status that the API server has, for probes without a result. It is
    /// for a status that is known only after the probes have begun, as that of a mirror pod may be.
    pub fn adopt(&self, pod: &str, reported: &core::PodStatus) {
        let Known { results: reported, .. } = results::reported(reported);
        let Table { results, running } = &mut *self.table.lock();
        for (key, (_, latch)) in running.iter().filter(|(_, (of, _))| **of == *pod) {
            let reported = reported.get(&key.0).copied().unwrap_or_default();
            let result = match key.1 {
                Kind::Startup => reported.started,
                Kind::Readiness => reported.ready,
                Kind::Liveness => false,
            };
            if !result || results.contains_key(key) {
                continue;
            }
            results.insert(key.clone(), true);
            // A container starts once.
            if key.1 == Kind::Startup {
                latch.open();
            }
        }
    }

    /// Returns whether a status of a pod shows the results that its probes have now.
    pub fn are_shown(&self, pod: &str, status: &core::PodStatus) -> bool {
        let Known { results: shown, .. } = results::reported(status);
        let table = self.table.lock();
        let mut running = table.running.iter().filter(|(_, (of, _))| **of == *pod);
        running.all(|((id, kind), _)| {
            let shown = shown.get(id).copied().unwrap_or_default();
            let result = table.result(id, *kind) == Some(true);
            match kind {
                Kind::Startup => shown.started == result,
                // A container that has not started is not shown as ready.
                Kind::Readiness => shown.ready == (shown.started && result),
                Kind::Liveness => true,
            }
        })
    }

    /// Records the result of a probe that runs. When it has changed, the pod is synced again, and
    /// the result is saved unless it is of a liveness probe.
    async fn set(&self, pod: &Pod, id: &str, kind: Kind, result: bool) {
        let key = (id.to_owned(), kind);
        let before = {
            let mut table = self.table.lock();
            if !table.running.contains_key(&key) {
                return;
            }
            table.results.insert(key, result)
        };
        if before != Some(result) {
            // Closed only when the kubelet stops. It waits for no disk.
            let _ = self.changed.send(pod.uid()).await;
            if kind != Kind::Liveness {
                self.save(pod).await;
            }
        }
    }

    /// Writes the results of a pod's containers to its file.
    async fn save(&self, pod: &Pod) {
        // The newest results are written last.
        let guard = self.writing.lock_arc().await;
        let (file, saved) =
            (self.folders.probes_file(&pod.uid()), self.table.lock().saved(&pod.uid()));
        // The work holds the guard: it continues when this future does not.
        let written = task::blocking(move || {
            let _guard = guard;
            results::write(&file, &saved)
        });
        if let Err(error) = written.await {
            log::warn!("pod {}: the results of its probes: {error}", pod.display_name());
        }
    }

    /// Stops the probes of a pod's containers that are not in `running`, and forgets their results.
    /// The runtime may have lost such a container.
    pub fn retain(&self, pod: &str, running: &BTreeSet<String>) {
        let mut table = self.table.lock();
        let Table { results, running: probes } = &mut *table;
        probes.retain(|key, (of, latch)| {
            let stays = **of != *pod || running.contains(&key.0);
            if !stays {
                latch.open();
                results.remove(key);
            }
            stays
        });
    }

    /// Stops all but the readiness probes of a pod that ends. Their results stay.
    /// Upstream: `StopLivenessAndStartup`.
    pub fn stop_liveness_and_startup(&self, pod: &str) {
        for ((_, kind), (of, latch)) in &self.table.lock().running {
            if **of == *pod && *kind != Kind::Readiness {
                latch.open();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use serde_json::{Value, json};

    use super::*;
    use crate::cri;

    /// The agents of a machine, one after the other.
    struct Machine {
        root: PathBuf,
    }

    impl Machine {
        fn new(test: &str) -> Machine {
            let root = std::env::temp_dir().join(format!("kubelet-{test}-{}", std::process::id()));
            fs::create_dir_all(root.join("pods/u")).expect("a folder");
            Machine { root }
        }

        /// An agent that starts at this time, in seconds.
        fn agent(&self, time: i64) -> Probes {
            let clock = FakeClock::new(Timestamp::from_secs(time));
            let runtime = RuntimeService::new(
                cri::channel(Path::new("/nowhere"), clock.clone()),
                Duration::from_secs(1),
            );
            let folders = Folders { root: self.root.clone(), logs: self.root.clone() };
            let changed = async_channel::unbounded().0;
            Probes::new(runtime, folders, clock, changed, StopToken::new())
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    /// A container with probes that do nothing before the test has ended.
    fn container() -> Container {
        let probe = json!({ "exec": { "command": ["x"] }, "initialDelaySeconds": 9999 });
        let [startup, liveness, readiness] = [&probe; 3];
        serde_json::from_value(json!({ "name": "a",
            "startupProbe": startup, "livenessProbe": liveness, "readinessProbe": readiness }))
        .expect("a container")
    }

    fn pod(uid: &str, status: Value) -> Arc<Pod> {
        let metadata = json!({ "uid": uid, "name": uid, "namespace": "n" });
        let pod = json!({ "metadata": metadata, "status": status });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    /// The probes of the containers with these ids, which have started at 1000 s.
    async fn update(probes: &Probes, pod: &Arc<Pod>, ids: &[&str]) {
        let (definition, started_at) = (&container(), Timestamp::from_secs(1000));
        let running: Vec<_> = ids.iter().map(|id| Running { definition, id, started_at }).collect();
        let (ip, reported) = (Ip::OfPod("127.0.0.1".to_owned()), || pod.status.clone());
        probes.update(pod, &running, &ip, &reported).await;
    }

    /// They end also if the runtime does not have the container any more.
    #[test]
    fn probes_end_with_their_container() {
        let machine = Machine::new("ends");
        let probes = machine.agent(2000);
        block_on(async {
            let (u, v) = (pod("u", json!(null)), pod("v", json!(null)));
            update(&probes, &u, &["first", "second"]).await;
            update(&probes, &v, &["other"]).await;
            for (pod, id) in [(&u, "first"), (&u, "second"), (&v, "other")] {
                probes.set(pod, id, Kind::Readiness, true).await;
            }
            update(&probes, &u, &["second"]).await;
        });
        let result = |id| probes.result(id, Kind::Readiness);
        assert_eq!(["first", "second", "other"].map(result), [None, Some(true), Some(true)]);
        let running: BTreeSet<String> =
            probes.table.lock().running.keys().map(|(id, _)| id.clone()).collect();
        assert_eq!(running, ["other", "second"].map(str::to_owned).into());
    }

    /// Also when the clock has stepped back behind the start of the containers, or far ahead.
    #[test]
    fn next_agent_has_the_results_of_the_last_one() {
        for time in [0, 1001, 1 << 32] {
            let machine = Machine::new("next");
            let of_api = |ready| {
                json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "",
                "restartCount": 0, "containerID": "x://unready", "started": true, "ready": ready}]})
            };
            block_on(async {
                let ids = ["up", "starting", "unready", "unknown"];
                let (last, u) = (machine.agent(1001), pod("u", json!(null)));
                update(&last, &u, &ids[..3]).await;
                for (id, kind, result) in [
                    ("up", Kind::Startup, true),
                    ("up", Kind::Readiness, true),
                    ("up", Kind::Liveness, true),
                    ("starting", Kind::Readiness, false),
                    ("unready", Kind::Startup, true),
                    ("unready", Kind::Readiness, true),
                    ("unready", Kind::Readiness, false),
                ] {
                    last.set(&u, id, kind, result).await;
                }
                let next = machine.agent(time);
                // The API server has an older state.
                update(&next, &pod("u", of_api(true)), &ids).await;
                let is = |id, kind| next.result(id, kind) == Some(true);
                let all = ids.map(|id| (is(id, Kind::Startup), is(id, Kind::Readiness)));
                assert_eq!(all, [(true, true), (false, false), (true, false), (false, false)]);
            });
        }
    }

    /// A static pod's mirror pod may be seen after the pod.
    #[test]
    fn status_that_is_seen_later_counts_for_probes_without_a_result() {
        let machine = Machine::new("later");
        let probes = machine.agent(2000);
        let status = |id: &str| {
            json!({"name": id, "image": "", "imageID": "", "restartCount": 0,
                   "containerID": format!("x://{id}"), "started": true, "ready": true})
        };
        let ids = ["new", "failed", "unknown"];
        let (u, v) = (pod("u", json!(null)), pod("v", json!(null)));
        let reported = json!({"containerStatuses": [status("new"), status("failed")]});
        let reported: core::PodStatus = serde_json::from_value(reported).expect("a status");
        block_on(async {
            update(&probes, &u, &ids).await;
            update(&probes, &v, &["other"]).await;
            probes.set(&u, "failed", Kind::Readiness, false).await;
        });
        for of in ["v", "w"] {
            probes.adopt(of, &reported);
            assert_eq!(probes.result("new", Kind::Readiness), None);
        }
        probes.adopt("u", &reported);
        let all = ids.map(|id| Kind::ALL.map(|kind| probes.result(id, kind)));
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(all, [[yes, None, yes], [yes, None, no], [None, None, None]]);
    }

    #[test]
    fn status_that_is_older_than_a_result_does_not_show_it() {
        let machine = Machine::new("shown");
        let (probes, u) = (machine.agent(2000), pod("u", json!(null)));
        let are_shown = |started: bool, ready: bool| {
            let status = json!({"containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "restartCount": 0,
                 "containerID": "x://id", "started": started, "ready": ready}]});
            probes.are_shown("u", &serde_json::from_value(status).expect("a status"))
        };
        let all = || [are_shown(false, false), are_shown(true, false), are_shown(true, true)];
        block_on(update(&probes, &u, &["id"]));
        assert_eq!(all(), [true, false, false]);
        block_on(probes.set(&u, "id", Kind::Startup, true));
        assert_eq!(all(), [false, true, false]);
        block_on(probes.set(&u, "id", Kind::Readiness, true));
        assert_eq!(all(), [false, false, true]);
        assert!(probes.are_shown("v", &core::PodStatus::default()), "it has no probes");
    }

    /// A mirror pod that is seen while the file is read counts.
    #[test]
    fn file_is_read_before_the_reported_status() {
        let machine = Machine::new("order");
        let (probes, u) = (machine.agent(2000), pod("u", json!(null)));
        let file = machine.root.join("pods/u/probes");
        let reported = || -> Option<core::PodStatus> {
            fs::write(&file, r#"{"a": {"started": true, "ready": true}}"#).expect("a file");
            None
        };
        let (definition, started_at) = (&container(), Timestamp::from_secs(1000));
        let running = [Running { definition, id: "a", started_at }];
        let ip = Ip::OfPod("127.0.0.1".to_owned());
        block_on(probes.update(&u, &running, &ip, &reported));
        assert!(file.exists());
        assert_eq!(probes.result("a", Kind::Readiness), None);
    }

    #[test]
    fn results_do_not_wait_for_the_disk() {
        let machine = Machine::new("slow");
        let (changed, results) = async_channel::unbounded();
        let probes = Probes { changed, ..machine.agent(2000) };
        let u = pod("u", json!(null));
        block_on(async {
            update(&probes, &u, &["a"]).await;
            let _slow = probes.writing.lock().await;
            let set = poll_once(probes.set(&u, "a", Kind::Readiness, true)).await;
            assert!(set.is_none(), "written in spite of the lock");
        });
        assert_eq!(results.try_recv().as_deref(), Ok("u"));
    }

    #[test]
    fn state_of_the_api_server_counts_where_nothing_is_kept() {
        let machine = Machine::new("reported");
        let probes = machine.agent(2000);
        let status = |id: &str, started, ready| {
            json!({"name": id, "image": "", "imageID": "",
            "restartCount": 0, "containerID": format!("x://{id}"), "started": started, "ready": ready})
        };
        let of_api = json!({
            "initContainerStatuses": [status("sidecar", true, true)],
            "containerStatuses": [status("main", true, false), status("other", false, false)],
        });
        let ids = ["sidecar", "main", "other"];
        let seen = || {
            let is = |id, kind| probes.result(id, kind) == Some(true);
            ids.map(|id| (is(id, Kind::Startup), is(id, Kind::Readiness)))
        };
        let reported = [(true, true), (true, false), (false, false)];
        block_on(update(&probes, &pod("u", of_api.clone()), &ids));
        assert_eq!(seen(), reported);
        // A file that was cut off says nothing.
        fs::write(machine.root.join("pods/u/probes"), "{\"main\": {").expect("a file");
        block_on(update(&probes, &pod("u", json!(null)), &[]));
        assert_eq!(seen(), [(false, false); 3]);
        block_on(update(&probes, &pod("u", of_api), &ids));
        assert_eq!(seen(), reported);
    }
}
