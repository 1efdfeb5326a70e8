//! Lists the runtime's pods again and again: changes give workers work, and pods that no source has
//! are ended. Upstream: `GenericPLEG.Relist`, `HandlePodCleanups`.

use std::fs::DirEntry;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::task;

use super::Kubelet;
use super::measure::measure_runtime;
use super::pleg::Snapshot;
use crate::causes::chain;
use crate::metrics;
use crate::pod::Uid;

/// Upstream: `genericPlegRelistPeriod`.
const RELIST: Duration = Duration::from_secs(1);
/// The waits between attempts at the volumes of former pods.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(122);
/// The period of searches for folders of former pods, after one that has left none.
const CHECK: Duration = Duration::from_secs(600);
/// The period while there is no pod; upstream always relists each second.
const IDLE_RELIST: Duration = Duration::from_secs(5);

impl Kubelet {
    /// Lists the runtime's pods each second, less often while there are none, and handles what has
    /// changed since the last list. Runs for ever.
    pub(super) async fn relist(&self) {
        let mut last = Snapshot::default();
        loop {
            let changed = self.dispatcher.changed();
            let begin = self.clock.monotonic();
            self.health.enter(begin);
            metrics::LAST_SEEN.set(self.clock.now().to_jiff().as_second());
            match Snapshot::read(&self.manager.runtime).await {
                Ok(snapshot) => {
                    let now = self.clock.monotonic();
                    metrics::RELIST.observe((now - begin).as_secs_f64());
                    self.observe(&snapshot, &last, now).await;
                    if self.has_seen_all() {
                        // From now on, what runs of an unknown pod has a worker.
                        self.listed.open();
                    }
                    last = snapshot;
                }
                Err(error) => {
                    self.health.record_failure(chain(&error));
                    self.measure_pods();
                }
            }
            self.clock.sleep(RELIST).await;
            if self.is_idle(&last) {
                self.clock.sleep(IDLE_RELIST.saturating_sub(RELIST)).or(changed).await;
            }
        }
    }

    /// Returns whether there is no pod: all sources have been read, the runtime answers, and
    /// neither they nor a worker have one.
    fn is_idle(&self, snapshot: &Snapshot) -> bool {
        self.has_seen_all()
            && self.health.answers()
            && self.store.uids().is_empty()
            && self.dispatcher.is_empty()
            && snapshot.pods().next().is_none()
    }

    /// Gives work to the workers of pods that have changed since the `last` snapshot, ends pods
    /// that are not known, and forgets pods that have ended. Sets the gauges of pods.
    async fn observe(&self, snapshot: &Snapshot, last: &Snapshot, now: Duration) {
        metrics::RELIST_INTERVAL.observe(self.health.record_relist(now).as_secs_f64());
        self.dispatcher.requeue(&snapshot.changed_since(last));
        if self.has_seen_all() {
            self.end_unknown(snapshot);
        }
        self.forget_ended().await;
        self.measure_pods();
        measure_runtime(snapshot);
    }

    /// Ends pods of the runtime that neither a source nor a worker knows.
    fn end_unknown(&self, snapshot: &Snapshot) {
        for uid in snapshot.pods() {
            if !self.dispatcher.knows(uid) && !self.store.contains(uid) {
                log::info!("pod {uid} is not known: its containers are ended");
                self.dispatcher.end_orphan(uid.clone());
                metrics::ORPHANED_PODS.inc();
            }
        }
    }

    /// Ends the volumes of former pods and removes their folders: of pods that ended while no
    /// kubelet ran, and of those that had ended before their sources removed them. Retries with
    /// back-off what could not be removed, and searches again when another pod is forgotten. Runs
    /// for ever. Upstream: `cleanupOrphanedPodDirs`.
    pub(super) async fn end_old_volumes(&self) {
        self.listed.opened().await;
        let mut wait = FIRST_WAIT;
        loop {
            let volumes = &self.manager.volumes;
            let changed = volumes.driver_changed();
            let forgotten = self.forgotten.listen();
            let pods = self.manager.folders.pods();
            let found = task::blocking(move || {
                let entries = std::fs::read_dir(pods).into_iter().flatten().flatten();
                let uid = |entry: DirEntry| Uid::parse(&entry.file_name().to_string_lossy());
                entries.filter_map(uid).collect::<Vec<_>>()
            });
            let (mut cleaned, mut failed) = (0, 0);
            for uid in found.await {
                if self.dispatcher.knows(&uid) || !self.is_gone(&uid) {
                    continue;
                }
                match volumes.tear_down(&uid).await {
                    Ok(()) => {
                        cleaned += 1;
                        self.manager.user_namespaces.release(&uid);
                        log::info!("removed the folder of the former pod {uid}");
                    }
                    Err(error) => {
                        failed += 1;
                        log::error!("the folder of pod {uid}: {}", chain(&error));
                    }
                }
            }
            volumes.release_unused();
            // Upstream counts all of them in the first gauge.
            metrics::ORPHANS_CLEANED.set(cleaned + failed);
            metrics::ORPHANS_NOT_CLEANED.set(failed);
            if failed == 0 {
                wait = FIRST_WAIT;
                self.clock.sleep(CHECK).or(forgotten).await;
                continue;
            }
            self.clock.sleep(wait).or(changed).or(forgotten).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }
}
