//! Starts the probes of containers that run, and ends those of the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube_controller_manager::objects::Timestamp;

use super::Manager;
use crate::pod::{Pod, PodExt};
use crate::prober::{Ip, Reported, Running};
use crate::runtime::status::{PodStatus, State};

impl Manager {
    /// Starts probes of what runs in a pod, and ends those of what does not. `reported`: the status
    /// that the API server has.
    pub async fn update_probes(&self, pod: &Arc<Pod>, status: &PodStatus, reported: &Reported<'_>) {
        let ip = match pod.is_host_network() {
            true => Some(Ip::OfNode(self.node.own.clone())),
            false => status.ips().first().cloned().map(Ip::OfPod),
        };
        let running = status.containers.iter().filter(|c| c.state == State::Running);
        let running = running.filter_map(|status| {
            let started_at = Timestamp::from_micros(status.started_at / 1000);
            Some(Running { definition: pod.container(&status.name)?, id: &status.id, started_at })
        });
        let running: Vec<_> = running.collect();
        match ip {
            Some(ip) => self.probes.update(pod, &running, &ip, reported).await,
            // Nothing can be probed in a pod without an address.
            None => self.probes.retain(&pod.uid(), &BTreeSet::new()),
        }
    }
}
