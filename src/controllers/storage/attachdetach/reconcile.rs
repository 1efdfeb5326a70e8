//! The decision about one volume: what to detach, what to attach, and when to check again. No I/O.
//! Upstream: `reconciler.go`, one volume at a time, when something about it has changed.

use std::sync::Arc;
use std::time::Duration;

use super::operations::{Begin, Kind, Lag, Operation, PodRef, Stage};
use super::state_of_world::{StateOfWorld, attachment_of};
use crate::controllers::storage::volume_specs::Spec;
use crate::objects::{Istr, VolumeAttachment};

/// Upstream: `ReconcilerMaxWaitForUnmountDuration`.
const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);
/// The time between two checks of a volume whose FlexVolume driver does not exist.
pub const DRIVER_PATIENCE: Duration = Duration::from_secs(3 * 60);

/// The settings from flags.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub force_detach_on_timeout: bool,
    /// How long after an attachment was found not to be attached the volume counts as detached;
    /// `None`: never.
    pub verify_after: Option<Duration>,
}

/// The relevant state of a node. A deleted node has the default state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub ready: bool,
    pub out_of_service: bool,
}

/// What a decision reads besides the [`StateOfWorld`].
pub struct Observed<'a> {
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

/// A step with I/O, which `carry_out` takes.
#[derive(Debug, PartialEq)]
pub enum Act {
    Attach {
        node: Istr,
        spec: Arc<Spec>,
    },
    Detach {
        node: Istr,
        /// Whether to read the live node first.
        verify: bool,
    },
    /// The pods of a node cannot have the volume, because it is attached to other nodes.
    RefuseMultiAttach {
        spec: Arc<Spec>,
        pods: Vec<PodRef>,
        /// The pods that use it there.
        users: Vec<PodRef>,
    },
    /// Read an attachment that the cache lacks from the API server.
    Verify {
        node: Istr,
        attachment: Istr,
    },
    /// Ask a FlexVolume driver whether its volume is still attached.
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

/// The result of a decision about one volume.
#[derive(Debug, Default)]
pub struct Plan {
    pub ended: Vec<Ended>,
    pub acts: Vec<Act>,
    /// When to check again, unless something changes before.
    pub wake_at: Option<Duration>,
}

impl Plan {
    /// Adds a detach to the plan. A forced one is counted and does not read the node first.
    fn detach(&mut self, node: &Istr, forced: Forced) {
        self.acts.extend(forced.map(Act::CountForcedDetach));
        self.acts.push(Act::Detach { node: node.clone(), verify: forced.is_none() });
    }

    /// Sets the time of the next check, if it is before the one that is set.
    fn recheck_at(&mut self, at: Option<Duration>) {
        self.wake_at = self.wake_at.into_iter().chain(at).min();
    }
}

/// Why a detach does not wait for the node; `None`: the node has let the volume go.
type Forced = Option<&'static str>;

/// The next step for a volume on one node. A time is that of the next check, unless something
/// changes before.
#[derive(Debug, PartialEq)]
enum Step {
    /// It is wanted there or not attached, or an operation comes first.
    Wait(Option<Duration>),
    /// No pod wants it, but the node still uses it.
    InUse(Option<Duration>),
    /// The node lists it again: the detach that waits for its report does not begin.
    CancelDetach(Option<Duration>),
    NoPlugin,
    /// Take it from the node's report; detach it once that is written.
    Begin(Forced),
    /// Its report is written.
    Request(Forced),
}

/// Decides whether a volume that no pod has wanted on a node since `since` may be detached from it.
/// `Ok` says why it is forced, if it is. `Err`: the node uses it; the time at which that is
/// ignored, if ever.
fn may_detach(
    is_in_use: bool,
    since: Duration,
    health: Health,
    settings: Settings,
    now: Duration,
) -> Result<Forced, Option<Duration>> {
    let timeout = since + MAX_WAIT_FOR_UNMOUNT;
    let forces = settings.force_detach_on_timeout;
    let timed_out = now >= timeout && forces;
    let is_lost = health.out_of_service || (timed_out && !health.ready);
    if is_in_use && !is_lost {
        return Err((now < timeout && forces).then_some(timeout));
    }
    Ok(match timed_out {
        // As upstream, also if the node is ready and does not use it.
        true => Some("timeout"),
        false => health.out_of_service.then_some("out-of-service"),
    })
}

/// Returns whether the volume may be attached to one node at most.
fn is_exclusive(spec: Option<&Spec>) -> bool {
    spec.is_some_and(|spec| !spec.multi_attach)
}

impl StateOfWorld {
    /// Plans what to do about a volume: takes the answers of drivers, then starts the operations
    /// that can start. Detaches come first, so that a volume of pods that moved is free before it
    /// is attached again.
    pub fn reconcile(&mut self, volume: &Istr, observed: &Observed<'_>) -> Plan {
        let mut plan = Plan::default();
        self.take_answers(volume, observed, &mut plan);
        self.verify_attached(volume, observed, &mut plan);
        self.detach_unwanted(volume, observed, &mut plan);
        self.attach_wanted(volume, observed, &mut plan);
        plan
    }

    /// Ends the operations whose driver has answered or is too late, and sets the time of the next
    /// check of the others.
    fn take_answers(&mut self, name: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let mut answers = Vec::new();
        for operation in volume.operations.iter() {
            let Stage::Waiting { attachment, .. } = &operation.stage else { continue };
            let found = (observed.attachment)(attachment);
            match operation.progress(found.as_deref(), observed.seen, observed.now) {
                Ok(result) => answers.push((operation.node.clone(), result)),
                Err(until) => plan.recheck_at(Some(until)),
            }
        }
        for (node, result) in answers {
            let result = result.map(|()| Istr::default());
            plan.ended.extend(self.end(name, &node, result, observed.now));
        }
    }

    /// Ends the operation under way on `node` and records its result in the state of world. `Ok` of
    /// an attach is the path of the device.
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
        self.remove_idle_volume(name);
        Some(Ended { operation, result: result.map(drop) })
    }

    /// Marks the operation on `node` as one that the driver works on from now on.
    pub fn wait(&mut self, name: &Istr, node: &Istr, lag: Lag, now: Duration) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(operation) = volume.operations.running_on(node) else { return };
        let attachment = attachment_of(operation.spec.as_deref(), name, node);
        let Some(attachment) = attachment else { return };
        operation.stage = Stage::Waiting { attachment: attachment.clone(), since: now, lag };
        self.expect_attachment(&attachment, name);
    }

    /// Looks for attachments that do not say "attached" any more. If that lasts for the configured
    /// time, the volume counts as detached; the API server is asked if the cache lacks the object.
    /// Upstream: `GenerateVolumesAreAttachedFunc`, every `--attach-detach-reconcile-sync-period`.
    fn verify_attached(&mut self, name: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
        let Some(after) = observed.settings.verify_after else { return };
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let Some(spec) = volume.spec.clone() else { return };
        if spec.flex.is_some() {
            return self.ask_driver(name, &spec, after, observed.now, plan);
        }
        let Some(csi) = &spec.csi else { return };
        let mut lost = Vec::new();
        for (node, attached) in &mut volume.attached {
            if !attached.confirmed || volume.operations.running_on(node).is_some() {
                continue;
            }
            let Some(attachment) = attachment_of(Some(&spec), name, node) else { continue };
            let found = (observed.attachment)(&attachment);
            // A driver that does not attach has no attachments.
            let is_well = found.as_ref().is_some_and(|found| found.status.attached)
                || !(observed.attaches)(&csi.driver);
            if is_well {
                attached.verify_at = None;
                continue;
            }
            let due = *attached.verify_at.get_or_insert(observed.now + after);
            if observed.now < due {
                plan.recheck_at(Some(due));
            } else if found.is_some() {
                lost.push(node.clone());
            } else {
                // The question may remain without an answer.
                attached.verify_at = Some(observed.now + after);
                plan.acts.push(Act::Verify { node: node.clone(), attachment });
            }
        }
        for node in lost {
            log::debug!("volume {name} is no longer attached to node {node}");
            self.remove_attached(name, &node);
        }
    }

    /// Plans to ask the driver of a FlexVolume, once in each period, whether it is attached.
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
            if !attached.confirmed || volume.operations.running_on(node).is_some() {
                continue;
            }
            let due = *attached.verify_at.get_or_insert(now + period);
            if now >= due {
                attached.verify_at = Some(now + period);
                plan.acts.push(Act::Ask { node: node.clone(), spec: spec.clone() });
            }
            plan.recheck_at(attached.verify_at);
        }
    }

    /// Detaches the volume from nodes on which no pod wants it.
    fn detach_unwanted(&mut self, name: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let nodes: Vec<Istr> = volume.attached.keys().cloned().collect();
        for node in nodes {
            self.detach(name, &node, observed, plan);
        }
    }

    /// Takes the next step towards the detach of a volume on `node`, as `detach_step` decides.
    fn detach(&mut self, name: &Istr, node: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
        let (step, now) = (self.detach_step(name, node, observed), observed.now);
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let is_unwanted = matches!(step, Step::InUse(_) | Step::NoPlugin | Step::Begin(_));
        if let Some(attached) = volume.attached.get_mut(node).filter(|_| is_unwanted) {
            attached.unwanted_since.get_or_insert(now);
        }
        match step {
            Step::Wait(until) | Step::InUse(until) => plan.recheck_at(until),
            Step::CancelDetach(until) => {
                volume.operations.end(node, None);
                self.report(name, node);
                plan.recheck_at(until);
            }
            Step::NoPlugin => {
                log::warn!("no plugin can detach volume {name} from node {node}");
                plan.recheck_at(Some(now + DRIVER_PATIENCE));
            }
            Step::Request(forced) => {
                if let Some(operation) = volume.operations.running_on(node) {
                    (operation.stage, operation.started) = (Stage::Requesting, now);
                }
                plan.detach(node, forced);
            }
            Step::Begin(forced) => {
                let spec = volume.spec.clone();
                let exclusive = is_exclusive(spec.as_deref());
                let change = self.unreport(name, node);
                let stage = if self.is_written(node, change) {
                    plan.detach(node, forced);
                    Stage::Requesting
                } else {
                    Stage::Reporting(change)
                };
                let (kind, node, pods) = (Kind::Detach, node.clone(), Vec::new());
                let begin = Begin { kind, node, exclusive, stage, spec, pods };
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.operations.begin(begin.started_at(now));
                }
            }
        }
    }

    /// Decides what to do about the volume on a node that it is, or may be, attached to.
    fn detach_step(&self, name: &Istr, node: &Istr, observed: &Observed<'_>) -> Step {
        let Some(volume) = self.volumes.get(name) else { return Step::Wait(None) };
        let is_wanted = volume.wanted.contains_key(node);
        let attached = volume.attached.get(node);
        let now = observed.now;
        let may_detach = || {
            let since = attached.and_then(|attached| attached.unwanted_since).unwrap_or(now);
            let is_in_use = self.is_in_use(name, node);
            may_detach(is_in_use, since, (observed.health)(node), observed.settings, now)
        };
        if let Some(change) = volume.operations.reporting(node) {
            if is_wanted {
                // The detach has not begun yet.
                return Step::CancelDetach(None);
            }
            if !self.is_written(node, change) {
                return Step::Wait(None);
            }
            // In use: the node came back while its status could not be written.
            return match may_detach() {
                Ok(forced) => Step::Request(forced),
                Err(until) => Step::CancelDetach(until),
            };
        }
        let spec = volume.spec.as_deref();
        let operation = volume.operations.find(node, is_exclusive(spec));
        let retry_at = operation.and_then(|operation| operation.retry_at(Kind::Detach, now));
        if is_wanted || operation.is_some_and(Operation::is_pending) {
            return Step::Wait(None);
        }
        if retry_at.is_some() || attached.is_none() {
            return Step::Wait(retry_at);
        }
        match may_detach() {
            Err(until) => Step::InUse(until),
            Ok(_) if !(observed.detaches)(spec, name) => Step::NoPlugin,
            Ok(forced) => Step::Begin(forced),
        }
    }

    /// Returns whether the node's report has been written with this change.
    fn is_written(&self, node: &str, change: u64) -> bool {
        change <= self.nodes.get(node).map_or(0, |node| node.written)
    }

    /// Attaches the volume to nodes on which a pod wants it.
    fn attach_wanted(&mut self, name: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
        let Some(volume) = self.volumes.get(name) else { return };
        let nodes: Vec<Istr> = volume.wanted.keys().cloned().collect();
        for node in nodes {
            self.attach(name, &node, observed, plan);
        }
    }

    /// Plans the attach of a wanted volume, unless an operation or another node prevents it.
    fn attach(&mut self, name: &Istr, node: &Istr, observed: &Observed<'_>, plan: &mut Plan) {
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
        if let Some(at) = before.and_then(|before| before.retry_at(Kind::Attach, observed.now)) {
            return plan.recheck_at(Some(at));
        }
        plan.acts.push(Act::Attach { node: node.clone(), spec: spec.clone() });
        let (kind, node, stage) = (Kind::Attach, node.clone(), Stage::Requesting);
        let begin = Begin { kind, node, exclusive, stage, spec: Some(spec), pods };
        volume.operations.begin(begin.started_at(observed.now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_in_use_is_released_by_force_alone() {
        let ready = Health { ready: true, out_of_service: false };
        let silent = Health { ready: false, out_of_service: false };
        let out = Health { ready: false, out_of_service: true };
        let (since, second) = (Duration::from_secs(100), Duration::from_secs(1));
        let timeout = since + MAX_WAIT_FOR_UNMOUNT;
        let early = timeout - second;
        let (busy, wait) = (Err(None), Err(Some(timeout)));
        // The node, whether it uses the volume, and the results before and at the timeout, with the
        // flag and without it.
        for (health, in_use, forcing, never) in [
            (ready, true, [wait, busy], [busy, busy]),
            (silent, true, [wait, Ok(Some("timeout"))], [busy, busy]),
            (
                out,
                true,
                [Ok(Some("out-of-service")), Ok(Some("timeout"))],
                [Ok(Some("out-of-service")); 2],
            ),
            (ready, false, [Ok(None), Ok(Some("timeout"))], [Ok(None), Ok(None)]),
            (silent, false, [Ok(None), Ok(Some("timeout"))], [Ok(None), Ok(None)]),
        ] {
            for (force_detach_on_timeout, expected) in [(true, forcing), (false, never)] {
                let settings = Settings { force_detach_on_timeout, verify_after: None };
                let found =
                    [early, timeout].map(|now| may_detach(in_use, since, health, settings, now));
                assert_eq!(found, expected, "{health:?} {in_use} {force_detach_on_timeout}");
            }
        }
    }
}
