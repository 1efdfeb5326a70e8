//! Writes the statuses of pods to the API server, keeps a mirror pod for each static pod there, and
//! deletes pods that have ended and are asked to go.
//! Upstream: `pkg/kubelet/status.manager`, `fastStaticPodsRegistration`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use event_listener::EventListener;
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_controller_manager::client::{Client, Delete, Error, Patch};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{self, ObjectKey, Resource};
use kube_controller_manager::task::StopToken;

use super::merge::{merged, patch};
use super::mirror::{self, Step};
use super::settle::is_same;
use super::terminate::is_terminal;
use super::{Change, Pods, Report};
use crate::metrics;
use crate::node::own::OwnNode;
use crate::pod::{Pod, PodExt, Uid};

/// After a failed write, and before a status is written again that another writer has changed.
/// Upstream: `syncPeriod`.
const RETRY: Duration = Duration::from_secs(10);

/// Writes what [`Pods`] says to an API server.
pub struct Manager {
    pub pods: Arc<dyn Pods>,
    pub client: Client,
    pub node: OwnNode,
    pub clock: SharedClock,
}

/// What waits, and what was written.
#[derive(Default)]
struct State {
    /// With the time of the first change that waits.
    due: BTreeMap<Change, Duration>,
    /// These are due again at this time.
    later: BTreeSet<Change>,
    retry_at: Option<Duration>,
    /// Mirror pods that need the registered Node.
    unregistered: BTreeSet<String>,
    written: BTreeMap<Uid, Written>,
}

/// The last report that the server has of a pod. Upstream: `apiStatusVersions`.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    /// The uid of the pod there.
    api: Uid,
    version: u64,
    is_terminated: bool,
    is_deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    No,
    Now,
    /// Another writer has changed the status: it is written again in a while.
    Later,
}

/// Decides whether a report has to be written, without a request. Upstream: `needsUpdate`,
/// `needsReconcile`.
fn due(report: &Report, written: Option<&Written>, now: &Time) -> Due {
    let Some(api) = &report.api else { return Due::No };
    let written = written.filter(|written| written.api == api.uid());
    let is_deleted = written.is_some_and(|written| written.is_deleted);
    if !is_deleted && has_to_go(report, api) {
        return Due::Now;
    }
    let is_current = written.is_some_and(|written| {
        (written.version, written.is_terminated) == (report.version, report.is_terminated)
    });
    // The kubelet's own status has changed since it was written.
    if written.is_some() && !is_current {
        return Due::Now;
    }
    let live = api.status.clone().unwrap_or_default();
    match (is_same(&live, &merged(&live, report, now)), is_current) {
        (true, _) => Due::No,
        (false, true) => Due::Later,
        (false, false) => Due::Now,
    }
}

/// Returns whether nothing of the pod is left, and the server waits for that. Mirror pods are not
/// deleted so.
fn has_to_go(report: &Report, live: &Pod) -> bool {
    report.is_finished && live.metadata.deletion_timestamp.is_some() && !live.is_mirror()
}

/// Returns whether the pod may be deleted from the API server. Upstream: `canBeDeleted`.
fn may_delete(report: &Report, live: &Pod) -> bool {
    let phase = live.status.as_ref().and_then(|status| status.phase.as_deref());
    has_to_go(report, live) && is_terminal(phase)
}

impl State {
    /// Puts a change off until the next retry.
    fn postpone(&mut self, change: Change, now: Duration) {
        self.later.insert(change);
        self.retry_at.get_or_insert(now.saturating_add(RETRY));
    }

    /// Adds changes that are due; one that waits already keeps its time.
    fn add(&mut self, changes: impl IntoIterator<Item = Change>, now: Duration) {
        for change in changes {
            self.due.entry(change).or_insert(now);
        }
    }
}

impl Manager {
    /// Writes the statuses and mirror pods that `changes` names to the API server, until stopped.
    pub async fn run(self, changes: Receiver<Change>, stop: StopToken) {
        let mut state = State::default();
        loop {
            let registered = self.node.registration();
            if self.node.registered().is_some() {
                let names = std::mem::take(&mut state.unregistered);
                state.add(names.into_iter().map(Change::Mirror), self.clock.monotonic());
            }
            while let Some((change, since)) = state.due.pop_first() {
                let work = self.carry_out(change, since, false, &mut state);
                if stop.unless_stopped(work).await.is_none() {
                    return;
                }
                let new = std::iter::from_fn(|| changes.try_recv().ok());
                state.add(new, self.clock.monotonic());
            }
            let Some(change) = self.wait(&changes, registered, &state, &stop).await else { return };
            let now = self.clock.monotonic();
            state.add(change, now);
            if state.retry_at.is_some_and(|at| at <= now) {
                state.retry_at = None;
                for change in std::mem::take(&mut state.later) {
                    let work = self.carry_out(change, now, true, &mut state);
                    if stop.unless_stopped(work).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for a change, the registration of the Node, or the next retry, both of which are
    /// `Some(None)`; `None`: it is stopped, or no change can follow.
    async fn wait(
        &self,
        changes: &Receiver<Change>,
        registered: EventListener,
        state: &State,
        stop: &StopToken,
    ) -> Option<Option<Change>> {
        let change = async { changes.recv().await.ok().map(Some) };
        let registered = async {
            registered.await;
            Some(None)
        };
        let retry = async {
            let now = self.clock.monotonic();
            let delay = state.retry_at.map_or(Duration::MAX, |at| at.saturating_sub(now));
            self.clock.sleep(delay).await;
            Some(None)
        };
        stop.unless_stopped(change.or(registered).or(retry)).await.flatten()
    }

    /// Carries out one change: writes a pod's status, or keeps its mirror pod. What fails is
    /// postponed. `is_retry`: what another writer has changed is written too.
    async fn carry_out(&self, change: Change, since: Duration, is_retry: bool, state: &mut State) {
        match &change {
            Change::Status(uid) => {
                let Some(report) = self.pods.report(uid) else {
                    state.written.remove(uid);
                    return;
                };
                match due(&report, state.written.get(uid), &self.now()) {
                    Due::No => return,
                    Due::Later if !is_retry => {
                        return state.postpone(change, self.clock.monotonic());
                    }
                    Due::Later | Due::Now => {}
                }
                let outcome = self.write(&report, since, state).await;
                if let Err(error) = outcome {
                    let pod = report.pod.display_name();
                    log::error!("Failed to update status for pod {pod}: {error}");
                    state.postpone(change, self.clock.monotonic());
                }
            }
            Change::Mirror(name) => {
                let Some(step) = self.pods.mirror_step(name) else { return };
                let is_deletion = matches!(step, Step::Delete(_));
                if let Err(error) = self.keep_mirror(name, step, state).await {
                    log::error!("the mirror pod {name}: {error}");
                    // The others are repeated with the next sync of their pods.
                    if is_deletion {
                        state.postpone(change, self.clock.monotonic());
                    }
                }
            }
        }
    }

    /// Carries out one step for a static pod's mirror pod. A mirror pod is created only once the
    /// Node is registered.
    async fn keep_mirror(&self, name: &str, step: Step, state: &mut State) -> Result<(), Error> {
        let pod = match &step {
            Step::Create(pod) => pod,
            Step::Replace(mirror, pod) => match mirror::delete(&self.client, mirror).await? {
                true => pod,
                // The watch shows what there is now.
                false => return Ok(()),
            },
            Step::Delete(mirror) => return mirror::delete(&self.client, mirror).await.map(drop),
        };
        match self.node.registered() {
            Some(node) => mirror::create(&self.client, pod, &node).await,
            None => {
                log::debug!("the mirror pod {name} waits until the Node is registered");
                state.unregistered.insert(name.to_owned());
                Ok(())
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.now().to_jiff())
    }

    /// Writes the kubelet's status of a pod to the server, and then deletes the pod there if
    /// `may_delete` allows it. Does nothing if the server no longer has the pod, or has another
    /// one of its name. Upstream: `manager.syncPod`.
    async fn write(
        &self,
        report: &Report,
        since: Duration,
        state: &mut State,
    ) -> Result<(), Error> {
        let Some(api) = &report.api else { return Ok(()) };
        let pods = || self.client.resource(&objects::Pod::RESOURCE);
        let key = ObjectKey::new(report.pod.namespace(), report.pod.name());
        let mut live: core::Pod = match pods().get(&key).await {
            Ok(live) => live,
            // Its source is about to lose it too.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut written = Written {
            api: api.uid(),
            version: report.version,
            is_terminated: report.is_terminated,
            is_deleted: false,
        };
        if live.metadata.uid != api.metadata.uid {
            log::debug!("pod {}: another pod has its name now", report.pod.display_name());
            state.written.insert(report.pod.uid(), written);
            return Ok(());
        }
        let old = live.status.take().unwrap_or_default();
        let new = merged(&old, report, &self.now());
        match patch(&written.api, &old, &new) {
            Some(patch) => {
                let patch = Patch::StrategicMerge(patch);
                live = pods().subresource("status").patch(&key, &patch).await?;
            }
            None => live.status = Some(old),
        }
        let took = self.clock.monotonic().saturating_sub(since);
        metrics::STATUS_SYNC.observe(took.as_secs_f64());
        state.written.insert(report.pod.uid(), written.clone());
        if !may_delete(report, &live) {
            return Ok(());
        }
        let delete = Delete::new().grace_period(0).uid((&*written.api).into());
        match pods().delete(&key, delete).await {
            Err(error) if !error.is_not_found() && !error.is_of_another_uid() => Err(error),
            _ => {
                let pod = report.pod.display_name();
                log::info!("Pod {pod} fully terminated and removed from etcd");
                written.is_deleted = true;
                state.written.insert(report.pod.uid(), written);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::objects::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::CONFIG_MIRROR;

    fn report(api: Value, phase: &str, version: u64, is_finished: bool) -> Report {
        let pod = |value: Value| Arc::new(serde_json::from_value::<Pod>(value).expect("a pod"));
        let status = serde_json::from_value(json!({"phase": phase})).expect("a status");
        Report {
            pod: pod(json!({"metadata": {"name": "p", "uid": "u"}})),
            api: (!api.is_null()).then(|| pod(api)),
            status: Arc::new(status),
            version,
            is_terminated: is_finished,
            is_finished,
        }
    }

    fn live(phase: &str, metadata: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "status": {"phase": phase}});
        for (field, value) in metadata.as_object().into_iter().flatten() {
            pod["metadata"][field] = value.clone();
        }
        pod
    }

    #[test]
    fn reports_are_written_once_for_each_version() {
        let uid = |text: &str| Uid::parse(text).expect("a uid");
        let written = |version, is_terminated, is_deleted| {
            Some(Written { api: uid("u"), version, is_terminated, is_deleted })
        };
        let elsewhere = Some(Written { api: uid("v"), ..written(1, false, false).expect("one") });
        let runs = || live("Running", json!({}));
        let goes = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let mut mirror = goes.clone();
        mirror["annotations"] = json!({CONFIG_MIRROR: "h"});
        for (name, report, written, expected) in [
            (
                "static without a mirror pod",
                report(json!(null), "Running", 1, false),
                None,
                Due::No,
            ),
            ("first", report(live("Pending", json!({})), "Running", 1, false), None, Due::Now),
            ("already there", report(runs(), "Running", 1, false), None, Due::No),
            ("written", report(runs(), "Running", 1, false), written(1, false, false), Due::No),
            ("newer", report(runs(), "Running", 2, false), written(1, false, false), Due::Now),
            ("terminated", report(runs(), "Failed", 1, true), written(1, false, false), Due::Now),
            (
                "changed by another",
                report(live("Pending", json!({})), "Running", 1, false),
                written(1, false, false),
                Due::Later,
            ),
            (
                "another pod's",
                report(live("Pending", json!({})), "Running", 1, false),
                elsewhere,
                Due::Now,
            ),
            (
                "not finished",
                report(live("Failed", goes.clone()), "Failed", 1, false),
                None,
                Due::No,
            ),
            (
                "finished",
                report(live("Failed", goes.clone()), "Failed", 1, true),
                written(1, true, false),
                Due::Now,
            ),
            (
                "finished and kept",
                report(live("Failed", json!({})), "Failed", 1, true),
                written(1, true, false),
                Due::No,
            ),
            (
                "deleted, with finalizers",
                report(live("Failed", goes), "Failed", 1, true),
                written(1, true, true),
                Due::No,
            ),
            (
                "mirror pod",
                report(live("Failed", mirror), "Failed", 1, true),
                written(1, true, false),
                Due::No,
            ),
        ] {
            let now = Time(Timestamp::from_secs(0).to_jiff());
            assert_eq!(due(&report, written.as_ref(), &now), expected, "{name}");
        }
    }

    #[test]
    fn pod_is_deleted_once_it_is_finished_terminal_and_asked_to_go() {
        let time = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (phase, metadata, is_finished, expected) in [
            ("Failed", time.clone(), true, true),
            ("Failed", time.clone(), false, false),
            ("Running", time, true, false),
            ("Failed", json!({}), true, false),
        ] {
            let report = report(live(phase, metadata.clone()), phase, 1, is_finished);
            let live = report.api.clone().expect("a pod");
            assert_eq!(may_delete(&report, &live), expected, "{phase} {metadata} {is_finished}");
        }
    }
}
