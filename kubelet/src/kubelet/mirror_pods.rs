//! The mirror pods among the pods of the API server. Upstream: the cases `wasMirror` of
//! `HandlePodAdditions` and those beside it.

use std::sync::Arc;

use super::Kubelet;
use crate::pod::{Pod, PodExt};
use crate::sources::{Op, PodUpdate, Source};

impl Kubelet {
    /// Takes the mirror pods out of an update of the API server, and records them: they are not
    /// run.
    pub(super) fn take_mirrors(&self, update: &mut PodUpdate) {
        if update.source != Source::Api {
            return;
        }
        let (mirrors, pods) = update.pods.drain(..).partition(|pod| pod.is_mirror());
        update.pods = pods;
        for mirror in &mirrors {
            self.take_mirror(update.op, mirror);
        }
    }

    /// Records a mirror pod that has come, changed or gone, and has the status of its static pod
    /// written. If the kubelet has restarted, the static pod continues the status of the mirror
    /// pod.
    fn take_mirror(&self, op: Op, mirror: &Arc<Pod>) {
        self.store.set_mirror(mirror, op != Op::Remove);
        let full_name = mirror.full_name();
        if let Some(pod) = self.store.static_pod(&full_name) {
            let uid = pod.uid();
            let late = self.store.late_report(&pod).filter(|_| self.dispatcher.is_syncing(&uid));
            match late {
                // The pod's status is written once it continues this one.
                Some(status) => {
                    self.manager.probes.adopt(&uid, &status);
                    self.continue_mirror(&pod);
                    self.dispatcher.requeue([&uid]);
                }
                None => self.store.notify(&pod),
            }
        }
        self.store.notify_mirror(full_name);
    }

    /// Makes the last status of a static pod continue that of its mirror pod, and has it written
    /// now: the sync that runs may take long. A status that lacks results of probes waits for the
    /// next sync, as the pod would not be ready.
    fn continue_mirror(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let last = self.store.status(&uid);
        if last.is_some_and(|last| self.manager.probes.are_shown(&uid, &last))
            && let Some(change) = self.store.continue_mirror(pod, self.clock.now())
        {
            self.announce_status(pod, change);
        }
    }

    /// Requests a check of all mirror pods. Called when a source was read: once all have been, the
    /// mirror pods of static pods that are gone are deleted.
    pub(super) fn notify_mirrors(&self) {
        for full_name in self.store.mirrors() {
            self.store.notify_mirror(full_name);
        }
    }
}
