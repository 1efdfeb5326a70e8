//! How long the parts of the start of a new node take. Upstream: `NodeStartupLatencyTracker`.

use kube_controller_manager::objects::Timestamp;

use crate::metrics;

/// Measures the start of a node whose Node this kubelet creates. One whose Node exists already has
/// been started before: nothing is measured.
#[derive(Debug)]
pub struct NodeStartup {
    /// When the machine was started; `None`: that is not known.
    boot: Option<Timestamp>,
    /// When the kubelet was started.
    begin: Timestamp,
    stage: Stage,
}

/// How far the start of a new node is, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Started,
    Registering(Timestamp),
    Registered(Timestamp),
    Ready,
}

impl NodeStartup {
    pub fn new(boot: Option<Timestamp>, begin: Timestamp) -> NodeStartup {
        NodeStartup { boot, begin, stage: Stage::Started }
    }

    /// Records that the Node is to be registered. Only the first call counts, as of all that
    /// follow.
    pub fn registers(&mut self, now: Timestamp) {
        if self.stage == Stage::Started {
            self.stage = Stage::Registering(now);
        }
    }

    /// Records that the Node was created.
    pub fn is_registered(&mut self, now: Timestamp) {
        let Stage::Registering(since) = self.stage else { return };
        self.stage = Stage::Registered(now);
        if let Some(boot) = self.boot {
            metrics::set_seconds(&metrics::STARTUP_PRE_KUBELET, self.begin.duration_since(boot));
        }
        let before = since.duration_since(self.begin);
        metrics::set_seconds(&metrics::STARTUP_PRE_REGISTRATION, before);
        metrics::set_seconds(&metrics::STARTUP_REGISTRATION, now.duration_since(since));
    }

    /// Records that the API server has a status by which the node is ready.
    pub fn is_ready(&mut self, now: Timestamp) {
        let Stage::Registered(since) = self.stage else { return };
        self.stage = Stage::Ready;
        metrics::set_seconds(&metrics::STARTUP_POST_REGISTRATION, now.duration_since(since));
        if let Some(boot) = self.boot {
            metrics::set_seconds(&metrics::STARTUP, now.duration_since(boot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_new_node_is_measured_once() {
        let parts = || {
            [
                &metrics::STARTUP_PRE_KUBELET,
                &metrics::STARTUP_PRE_REGISTRATION,
                &metrics::STARTUP_REGISTRATION,
                &metrics::STARTUP_POST_REGISTRATION,
                &metrics::STARTUP,
            ]
            .map(|gauge| gauge.with_label_values(&[] as &[&str]).get())
        };
        let (boot, at) = (Some(Timestamp::from_secs(100)), Timestamp::from_secs);
        // The Node exists already.
        let mut known = NodeStartup::new(boot, at(110));
        known.registers(at(111));
        known.is_ready(at(112));
        assert_eq!(parts(), [0.0; 5]);

        let mut unknown_boot = NodeStartup::new(None, at(110));
        unknown_boot.registers(at(111));
        unknown_boot.is_registered(at(113));
        unknown_boot.is_ready(at(114));
        assert_eq!(parts(), [0.0, 1.0, 2.0, 1.0, 0.0]);

        let mut new = NodeStartup::new(boot, at(110));
        new.is_ready(at(111));
        new.registers(at(112));
        new.registers(at(113));
        new.is_registered(at(116));
        assert_eq!(parts(), [10.0, 2.0, 4.0, 1.0, 0.0], "it is not ready");
        new.is_ready(at(124));
        new.is_ready(at(200));
        new.is_registered(at(201));
        assert_eq!(parts(), [10.0, 2.0, 4.0, 8.0, 24.0]);
    }
}
