//! The decision about one volume: what to detach, what to attach, and when to look again. No I/O.
//! Upstream: `reconciler.go`, one volume at a time, when something about it has changed.

use std::sync::Arc;
use std::time::Duration;

use super::operations::{Begin, Kind, Lag, Operation, PodRef, Stage};
use super::state_of_world::{StateOfWorld, attachment_of};
use crate::controllers::storage::volume_specs::Spec;
use crate::objects::{Istr, VolumeAttachment};

/// Upstream: `ReconcilerMaxWaitForUnmountDuration`.
const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);
/// When a volume is looked at again whose FlexVolume driver is not there.
pub const DRIVER_PATIENCE: Duration = Duration::from_secs(3 * 60);

/// What the flags say.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub force_detach_on_timeout: bool,
    /// How long after an attachment is found amiss the volume counts as detached; `None`: never.
    pub verify_after: Option<Duration>,
}

/// The state of a node, as far as it matters. That of a node that is gone is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub ready: bool,
    pub out_of_service: bool,
}

/// What a decision reads besides the [`StateOfWorld`].
pub struct Facts<'a> {
    pub attachment: &'a dyn Fn(&str) -> Option<Arc<VolumeAttachment>>,
    /// The version that the cache of attachments had seen before it is read.
    pub seen: u64,
    pub health: &'a dyn Fn(&str) -> Health,
    /// Whether a driver attaches its volumes.
    pub attaches: &'a dyn Fn(&str) -> bool,
    /// Whether there is a plugin that detaches a volume: by its spec, or else by its unique name.
    pub detaches: &'a dyn Fn(Option<&Spec>, &str) -> bool,
    pub settings: Settings,
    pub now: Duration,
}

#[derive(Debug, PartialEq)]
pub enum Act {
    Attach {
        node: Istr,
        spec: Arc<Spec>,
    },
    Detach {
        node: Istr,
        /// Ask the live node first.
        verify: bool,
    },
    /// The pods of a node cannot have the volume, because it is attached to other nodes.
    RefuseMultiAttach {
        spec: Arc<Spec>,
        pods: Vec<PodRef>,
        /// The pods that use it there.
        users: Vec<PodRef>,
    },
    /// The cache has no attachment; the API server may.
    Verify {
        node: Istr,
        attachment: Istr,
    },
    /// A FlexVolume driver knows whether its volume is attached.
    Ask {
        node: Istr,
        spec: Arc<Spec>,
    },
    CountForcedDetach(&'static str),
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Ended {
    pub operation: Operation,
    pub result: Result<(), String>,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub ended: Vec<Ended>,
    pub acts: Vec<Act>,
    /// When to look again, unless something changes before.
    pub wake_at: Option<Duration>,
}

impl Plan {
    /// Detaches without a look at the driver's answer where the node may not have unmounted.
    fn detach(&mut self, node: &Istr, timed_out: bool, out_of_service: bool) {
        let verify = !timed_out && !out_of_service;
        if !verify {
            let reason = if timed_out { "timeout" } else { "out-of-service" };
            self.acts.push(Act::CountForcedDetach(reason));
        }
        self.acts.push(Act::Detach { node: node.clone(), verify });
    }

    fn come_again_at(&mut self, at: Duration) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

impl StateOfWorld {
    /// Takes the answers of drivers, then starts what can start. Detaches come first, so that a
    /// volume of pods that moved is free before it is attached again.
    pub fn reconcile(&mut self, volume: &Istr, facts: &Facts<'_>) -> Plan {
        let mut plan = Plan::default();
        self.take_answers(volume, facts, &mut plan);
        self.verify_attached(volume, facts, &mut plan);
        self.detach_unwanted(volume, facts, &mut plan);
        self.attach_wanted(volume, facts, &mut plan);
        plan
    }

    fn take_answers(&mut self, name: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let mut answers = Vec::new();
        for operation in volume.operations.iter() {
            let Stage::Waiting { attachment, .. } = &operation.stage else { continue };
            let found = (facts.attachment)(attachment);
            match operation.progress(found.as_deref(), facts.seen, facts.now) {
                Ok(result) => answers.push((operation.node.clone(), result)),
                Err(until) => plan.come_again_at(until),
            }
        }
        for (node, result) in answers {
            let result = result.map(|()| Istr::default());
            plan.ended.extend(self.end(name, &node, result, facts.now));
        }
    }

    /// Ends the operation under way; that of an attach may know the path of the device.
    /// Upstream: `GenerateAttachVolumeFunc`, `GenerateDetachVolumeFunc`.
    pub fn end(
        &mut self,
        name: &Istr,
        node: &Istr,
        result: Result<Istr, String>,
        now: Duration,
    ) -> Option<Ended> {
        let operations = &mut self.volumes.get_mut(name)?.operations;
        let operation = operations.end(node, result.is_err().then_some(now))?;
        let spec = operation.spec.clone();
        match (operation.kind, &result) {
            (Kind::Attach, Ok(path)) => self.add_attached(name, spec, node, path.clone(), true),
            (Kind::Detach, Ok(_)) => self.remove_attached(name, node),
            // Whether it is attached is not known. A later attach or detach settles that.
            (_, Err(_)) => self.add_attached(name, spec, node, Istr::default(), false),
        }
        self.tidy(name);
        Some(Ended { operation, result: result.map(drop) })
    }

    /// The driver works on the operation from now on.
    pub fn wait(&mut self, name: &Istr, node: &Istr, lag: Lag, now: Duration) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(operation) = volume.operations.on(node) else { return };
        let attachment = attachment_of(operation.spec.as_deref(), name, node);
        let Some(attachment) = attachment else { return };
        operation.stage = Stage::Waiting { attachment: attachment.clone(), since: now, lag };
        self.expect_attachment(&attachment, name);
    }

    /// Finds attachments that do not say "attached" any more.
    /// Upstream: `GenerateVolumesAreAttachedFunc`, every `--attach-detach-reconcile-sync-period`.
    fn verify_attached(&mut self, name: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let Some(after) = facts.settings.verify_after else { return };
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(spec) = volume.spec.clone() else { return };
        if spec.flex.is_some() {
            return self.ask_driver(name, &spec, after, facts.now, plan);
        }
        let Some(csi) = &spec.csi else { return };
        let mut lost = Vec::new();
        for (node, attached) in &mut volume.attached {
            if !attached.confirmed || volume.operations.on(node).is_some() {
                continue;
            }
            let Some(attachment) = attachment_of(Some(&spec), name, node) else { continue };
            let found = (facts.attachment)(&attachment);
            let is_well = found.as_ref().is_some_and(|found| found.status.attached)
                || !(facts.attaches)(&csi.driver);
            if is_well {
                attached.verify_at = None;
                continue;
            }
            let due = *attached.verify_at.get_or_insert(facts.now + after);
            if facts.now < due {
                plan.come_again_at(due);
            } else if found.is_some() {
                lost.push(node.clone());
            } else {
                // In case nothing comes of the question.
                attached.verify_at = Some(facts.now + after);
                plan.acts.push(Act::Verify { node: node.clone(), attachment });
            }
        }
        for node in lost {
            log::debug!("volume {name} is no longer attached to node {node}");
            self.remove_attached(name, &node);
        }
    }

    /// Asks the driver of a FlexVolume about it in each period.
    fn ask_driver(
        &mut self,
        name: &Istr,
        spec: &Arc<Spec>,
        period: Duration,
        now: Duration,
        plan: &mut Plan,
    ) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        for (node, attached) in &mut volume.attached {
            if !attached.confirmed || volume.operations.on(node).is_some() {
                continue;
            }
            let due = *attached.verify_at.get_or_insert(now + period);
            if now >= due {
                attached.verify_at = Some(now + period);
                plan.acts.push(Act::Ask { node: node.clone(), spec: spec.clone() });
            }
            plan.come_again_at(attached.verify_at.unwrap_or(due));
        }
    }

    fn detach_unwanted(&mut self, name: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let nodes: Vec<Istr> = volume.attached.keys().cloned().collect();
        for node in nodes {
            self.detach(name, &node, facts, plan);
        }
    }

    fn detach(&mut self, name: &Istr, node: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let (now, health) = (facts.now, (facts.health)(node));
        let is_in_use = self.is_in_use(name, node);
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let is_wanted = volume.wanted.contains_key(node);
        let written = self.nodes.get(node).map_or(0, |node| node.written);
        if let Some(operation) = volume.operations.on(node)
            && let Stage::Reporting(change) = operation.stage
        {
            if is_wanted {
                // Not begun yet.
                volume.operations.end(node, None);
                self.report(name, node);
            } else if change <= written {
                let since = volume.attached.get(node).and_then(|attached| attached.unwanted_since);
                let timeout = since.unwrap_or(now) + MAX_WAIT_FOR_UNMOUNT;
                let timed_out = now >= timeout && facts.settings.force_detach_on_timeout;
                let forced = timed_out && !health.ready;
                if is_in_use && !forced && !health.out_of_service {
                    // The node came back while its status could not be written.
                    volume.operations.end(node, None);
                    self.report(name, node);
                    if now < timeout && facts.settings.force_detach_on_timeout {
                        plan.come_again_at(timeout);
                    }
                    return;
                }
                operation.stage = Stage::Requesting;
                operation.started = now;
                plan.detach(node, timed_out, health.out_of_service);
            }
            return;
        }
        let spec = volume.spec.clone();
        let exclusive = spec.as_ref().is_some_and(|spec| !spec.multi_attach);
        if is_wanted {
            return;
        }
        if let Some(operation) = volume.operations.find(node, exclusive) {
            if operation.is_pending() {
                return;
            }
            if let Some(at) = operation.retry_at(Kind::Detach, now) {
                return plan.come_again_at(at);
            }
        }
        let Some(attached) = volume.attached.get_mut(node) else { return };
        let timeout = *attached.unwanted_since.get_or_insert(now) + MAX_WAIT_FOR_UNMOUNT;
        let timed_out = now >= timeout && facts.settings.force_detach_on_timeout;
        let forced = timed_out && !health.ready;
        if is_in_use && !forced && !health.out_of_service {
            if now < timeout && facts.settings.force_detach_on_timeout {
                plan.come_again_at(timeout);
            }
            return;
        }
        if !(facts.detaches)(spec.as_deref(), name) {
            log::warn!("no plugin can detach volume {name} from node {node}");
            return plan.come_again_at(now + DRIVER_PATIENCE);
        }
        let change = self.unreport(name, node);
        let stage = match change <= self.nodes.get(node).map_or(0, |node| node.written) {
            true => {
                plan.detach(node, timed_out, health.out_of_service);
                Stage::Requesting
            }
            false => Stage::Reporting(change),
        };
        let (kind, node, pods) = (Kind::Detach, node.clone(), Vec::new());
        let begin = Begin { kind, node, exclusive, stage, spec, pods };
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.operations.begin(begin.at(now));
        }
    }

    fn attach_wanted(&mut self, name: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let nodes: Vec<Istr> = volume.wanted.keys().cloned().collect();
        for node in nodes {
            self.attach(name, &node, facts, plan);
        }
    }

    fn attach(&mut self, name: &Istr, node: &Istr, facts: &Facts<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(wanted) = volume.wanted.get_mut(node) else { return };
        let spec = wanted.spec.clone();
        let exclusive = !spec.multi_attach;
        let before = volume.operations.find(node, exclusive);
        if before.is_some_and(Operation::is_pending) {
            return;
        }
        if let Some(attached) = volume.attached.get_mut(node).filter(|attached| attached.confirmed)
        {
            attached.unwanted_since = None;
            return;
        }
        let pods: Vec<PodRef> = wanted.pods.iter().cloned().collect();
        let elsewhere =
            volume.attached.iter().filter(|(_, attached)| exclusive && attached.confirmed);
        let others: Vec<Istr> = elsewhere.map(|(node, _)| node.clone()).collect();
        if !others.is_empty() {
            if !std::mem::replace(&mut wanted.multi_attach_reported, true) {
                let users = self.pods_on(name, &others);
                plan.acts.push(Act::RefuseMultiAttach { spec, pods, users });
            }
            return;
        }
        if let Some(at) = before.and_then(|before| before.retry_at(Kind::Attach, facts.now)) {
            return plan.come_again_at(at);
        }
        plan.acts.push(Act::Attach { node: node.clone(), spec: spec.clone() });
        let (kind, node, stage) = (Kind::Attach, node.clone(), Stage::Requesting);
        let begin = Begin { kind, node, exclusive, stage, spec: Some(spec), pods };
        volume.operations.begin(begin.at(facts.now));
    }
}
