//! The attach and detach operations of one volume, and their back-off.
//! Upstream: `operationexecutor`, `nestedpendingoperations`, `exponentialbackoff`.

use std::sync::Arc;
use std::time::Duration;

use crate::controllers::storage::volume_specs::Spec;
use crate::objects::{Istr, ObjectKey, Uid, VolumeAttachment};

/// The delay after a first failure; it doubles with each one. Upstream:
/// `initialDurationBeforeRetry`.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Upstream: `maxDurationBeforeRetry`.
const MAX_DELAY: Duration = Duration::from_secs(122);
/// The delay before an operation of another kind than the one that failed. Without it a failing
/// attach and a failing detach would alternate without a pause. Upstream: `ReconcilerLoopPeriod`.
const OTHER_KIND_DELAY: Duration = Duration::from_millis(100);
/// How long a driver may take. Upstream: `csiTimeout`.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(120);
/// An error in a VolumeAttachment may be that of an earlier attempt: the driver has this time to
/// replace it. Upstream: the first interval in `waitForVolumeAttachDetachStatusWithLister`.
const ERROR_GRACE: Duration = Duration::from_millis(500);

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Attach,
    Detach,
}

impl Kind {
    /// Returns its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Attach => "volume_attach",
            Kind::Detach => "volume_detach",
        }
    }
}

/// A pod that events are recorded about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    pub key: ObjectKey,
    pub uid: Uid,
}

/// An attach or a detach of a volume on one node. It is created by `Begin::started_at` and held by
/// [`Operations`].
#[derive(Clone, Debug)]
pub struct Operation {
    pub kind: Kind,
    pub node: Istr,
    /// Whether it excludes operations of the volume on all nodes, not on this one alone.
    exclusive: bool,
    pub stage: Stage,
    /// `None`: a volume that was attached before the start and that no pod uses.
    pub spec: Option<Arc<Spec>>,
    /// The pods that waited for the volume when the operation began.
    pub pods: Vec<PodRef>,
    pub started: Duration,
    last_failure: Duration,
    delay: Duration,
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// The last attempt failed.
    Failed,
    /// A detach waits until the status of the node no longer lists the volume, which is written
    /// with this change.
    Reporting(u64),
    /// Requests are under way.
    Requesting,
    /// The driver works on it.
    Waiting { attachment: Istr, since: Duration, lag: Lag },
}

/// How the cache of VolumeAttachments is known to lag behind the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Lag {
    None,
    /// The attachment of this uid is gone, though the cache may still hold it.
    Gone(Uid),
    /// The attachment exists, though the cache may not hold it before it has seen this version.
    Unseen(u64),
}

impl Operation {
    /// Returns whether the operation is under way: one that ended is forgotten, one that failed
    /// waits.
    /// Upstream: `IsOperationPending`.
    pub fn is_pending(&self) -> bool {
        self.stage != Stage::Failed
    }

    /// Returns when an operation of `kind` may begin after this one, which has failed; `None` if it
    /// may begin now. Upstream: `SafeToRetry`.
    pub fn retry_at(&self, kind: Kind, now: Duration) -> Option<Duration> {
        let delay = if self.kind == kind { self.delay } else { OTHER_KIND_DELAY };
        let at = self.last_failure + delay;
        (now < at).then_some(at)
    }

    /// Marks the operation as failed, and doubles the delay before the next attempt.
    fn fail(&mut self, now: Duration) {
        self.stage = Stage::Failed;
        self.last_failure = now;
        self.delay = if self.delay.is_zero() { FIRST_DELAY } else { self.delay * 2 }.min(MAX_DELAY);
    }

    /// Checks an operation that the driver works on. `Ok` is its end, a success or the driver's
    /// error. `Err` is the time at which to check again, unless the attachment changes before;
    /// `Duration::MAX` for an operation at another stage. `seen`: the version that the cache had
    /// seen before the attachment was read from it.
    pub fn progress(
        &self,
        found: Option<&VolumeAttachment>,
        seen: u64,
        now: Duration,
    ) -> Result<Result<(), String>, Duration> {
        let Stage::Waiting { since, lag, .. } = &self.stage else { return Err(Duration::MAX) };
        let (deadline, patience) = (*since + DRIVER_TIMEOUT, *since + ERROR_GRACE);
        let error = match (self.kind, found) {
            (Kind::Attach, None) => None,
            (Kind::Attach, Some(va)) if va.meta.is_being_deleted() => {
                Some("volume attachment is being deleted")
            }
            (Kind::Attach, Some(va)) if va.status.attached => return Ok(Ok(())),
            (Kind::Attach, Some(va)) => {
                va.status.attach_error.as_ref().map(|error| &*error.message)
            }
            (Kind::Detach, None) => match lag {
                // The cache may never show the attachment, and then no event comes.
                Lag::Unseen(version) if seen < *version && now < deadline => {
                    return Err(deadline.min(now + ERROR_GRACE));
                }
                Lag::Unseen(version) if seen < *version => None,
                _ => return Ok(Ok(())),
            },
            (Kind::Detach, Some(va)) => match lag {
                Lag::Gone(uid) if *uid != va.meta.uid => return Ok(Ok(())),
                // The cache will show the deletion.
                Lag::Gone(_) => None,
                _ => va.status.detach_error.as_ref().map(|error| &*error.message),
            },
        };
        match error {
            Some(error) if now >= patience => Ok(Err(error.to_owned())),
            _ if now >= deadline => Ok(Err(self.timed_out())),
            Some(_) => Err(patience),
            None => Err(deadline),
        }
    }

    /// Returns the error of an operation that the driver has not ended in time.
    fn timed_out(&self) -> String {
        let csi = self.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let handle = csi.map_or("", |csi| &csi.handle);
        let (driver, verb) = match self.kind {
            Kind::Attach => (csi.map_or("unknown", |csi| &csi.driver), "attach"),
            // Upstream names no driver here.
            Kind::Detach => ("unknown", "detach"),
        };
        format!(
            "timed out waiting for external-attacher of {driver} CSI driver to {verb} volume {handle}"
        )
    }
}

/// The operations of one volume: at most one for a node or for all nodes, the failed ones included.
#[derive(Debug, Default)]
pub struct Operations(Vec<Operation>);

impl Operations {
    /// Returns the operation that excludes one on `node`, or on any node if `exclusive`; one that
    /// is under way before one that failed. Upstream: `isOperationExists`.
    pub fn find(&self, node: &str, exclusive: bool) -> Option<&Operation> {
        self.position(node, exclusive).map(|at| &self.0[at])
    }

    /// Returns the index of the operation for [`Self::find`]: a pending one, else that of this
    /// node, else the first that excludes it.
    fn position(&self, node: &str, exclusive: bool) -> Option<usize> {
        let (mut first, mut exact) = (None, None);
        for (position, op) in self.0.iter().enumerate() {
            let excludes = exclusive || op.exclusive || op.node == *node;
            if !excludes {
                continue;
            }
            if op.is_pending() {
                return Some(position);
            }
            let is_same = op.exclusive == exclusive && (exclusive || op.node == *node);
            if is_same && exact.is_none() {
                exact = Some(position);
            }
            if first.is_none() {
                first = Some(position);
            }
        }
        exact.or(first)
    }

    /// Begins an operation, in place of a failed one, whose back-off it keeps if it is of the same
    /// kind.
    pub fn begin(&mut self, mut begun: Operation) {
        match self.position(&begun.node, begun.exclusive) {
            Some(at) => {
                let failed = &self.0[at];
                if failed.kind == begun.kind {
                    (begun.last_failure, begun.delay) = (failed.last_failure, failed.delay);
                }
                self.0[at] = begun;
            }
            None => self.0.push(begun),
        }
    }

    /// Returns the change of the node's report whose writing a detach on `node` waits for; `None`
    /// if no detach waits.
    pub fn reporting(&self, node: &str) -> Option<u64> {
        let mut pending = self.0.iter().filter(|op| op.node == *node && op.is_pending());
        pending.next().and_then(|op| match op.stage {
            Stage::Reporting(change) => Some(change),
            _ => None,
        })
    }

    /// Returns the operation that is under way on `node`.
    pub fn running_on(&mut self, node: &str) -> Option<&mut Operation> {
        self.0.iter_mut().find(|op| op.node == *node && op.is_pending())
    }

    /// Ends the operation under way on `node`, and returns it. Forgets it, or keeps it for its
    /// back-off if it `failed` at this time.
    pub fn end(&mut self, node: &str, failed: Option<Duration>) -> Option<Operation> {
        let at = self.0.iter().position(|op| op.node == *node && op.is_pending())?;
        let Some(now) = failed else { return Some(self.0.swap_remove(at)) };
        let ended = self.0[at].clone();
        self.0[at].fail(now);
        Some(ended)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.0.iter()
    }

    pub fn any_pending(&self) -> bool {
        self.0.iter().any(Operation::is_pending)
    }
}

/// An operation that is about to begin.
pub struct Begin {
    pub kind: Kind,
    pub node: Istr,
    pub exclusive: bool,
    pub stage: Stage,
    pub spec: Option<Arc<Spec>>,
    pub pods: Vec<PodRef>,
}

impl Begin {
    /// Makes the operation, without a failure so far.
    pub fn started_at(self, started: Duration) -> Operation {
        let Begin { kind, node, exclusive, stage, spec, pods } = self;
        let (last_failure, delay) = (Duration::ZERO, Duration::ZERO);
        Operation { kind, node, exclusive, stage, spec, pods, started, last_failure, delay }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn operation(kind: Kind, node: &str, exclusive: bool) -> Operation {
        let stage = Stage::Requesting;
        let (spec, pods) = (None, Vec::new());
        Begin { kind, node: node.into(), exclusive, stage, spec, pods }.started_at(secs(0))
    }

    #[test]
    fn operations_exclude_each_other_by_volume_or_by_node() {
        // What runs, what is to begin, and whether the first excludes the second.
        for (running, begun, excluded) in [
            (("a", false), ("a", false), true),
            (("a", false), ("b", false), false),
            (("a", true), ("b", false), true),
            (("a", false), ("b", true), true),
            (("a", true), ("b", true), true),
        ] {
            let mut operations = Operations::default();
            operations.begin(operation(Kind::Attach, running.0, running.1));
            let found = operations.find(begun.0, begun.1).is_some();
            assert_eq!(found, excluded, "{running:?} {begun:?}");
        }
    }

    #[test]
    fn delays_double_and_belong_to_a_kind() {
        let mut operations = Operations::default();
        let mut now = secs(0);
        let mut delays = Vec::new();
        for _ in 0..10 {
            operations.begin(operation(Kind::Attach, "a", true));
            operations.running_on("a").unwrap().fail(now);
            let failed = operations.find("b", true).unwrap();
            assert!(!failed.is_pending());
            assert_eq!(failed.retry_at(Kind::Detach, now), Some(now + OTHER_KIND_DELAY));
            let at = failed.retry_at(Kind::Attach, now).unwrap();
            assert_eq!(failed.retry_at(Kind::Attach, at), None);
            delays.push((at - now).as_millis());
            now = at;
        }
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122000, 122000]);
        operations.begin(operation(Kind::Detach, "a", true));
        operations.running_on("a").unwrap().fail(now);
        let at = operations.find("a", true).unwrap().retry_at(Kind::Detach, now).unwrap();
        assert_eq!(at - now, FIRST_DELAY, "another kind begins with the first delay");
    }

    #[test]
    fn a_driver_answers_by_the_attachment() {
        let now = secs(10);
        let later = now + secs(1);
        let late = now + DRIVER_TIMEOUT;
        let attached = json!({ "status": { "attached": true } });
        let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "attached": true } });
        let refused = json!({ "status": { "attachError": { "message": "no" } } });
        let kept = json!({ "status": { "detachError": { "message": "busy" } } });
        let plain = json!({ "metadata": { "uid": "u" } });
        let timeout = |verb| {
            Ok(Err(format!(
                "timed out waiting for external-attacher of unknown CSI driver to {verb} volume "
            )))
        };
        let error = |text: &str| Ok(Err(text.to_owned()));
        let wait = |until: Duration| Err(until);
        type Expected = Result<Result<(), String>, Duration>;
        type Case<'a> = (Kind, Option<&'a Value>, Lag, Duration, Expected);
        let gone = |uid: &str| Lag::Gone(Uid::new(uid));
        let table: Vec<Case> = vec![
            (Kind::Attach, None, Lag::None, later, wait(late)),
            (Kind::Attach, None, Lag::None, late, timeout("attach")),
            (Kind::Attach, Some(&attached), Lag::None, now, Ok(Ok(()))),
            (
                Kind::Attach,
                Some(&deleted),
                Lag::None,
                later,
                error("volume attachment is being deleted"),
            ),
            (Kind::Attach, Some(&refused), Lag::None, now, wait(now + ERROR_GRACE)),
            (Kind::Attach, Some(&refused), Lag::None, later, error("no")),
            (Kind::Attach, Some(&plain), Lag::None, later, wait(late)),
            (Kind::Detach, None, Lag::None, now, Ok(Ok(()))),
            (Kind::Detach, Some(&deleted), Lag::None, later, wait(late)),
            (Kind::Detach, Some(&kept), Lag::None, later, error("busy")),
            (Kind::Detach, Some(&plain), gone("u"), later, wait(late)),
            (Kind::Detach, Some(&plain), gone("older"), later, Ok(Ok(()))),
            (Kind::Detach, Some(&plain), Lag::None, late, timeout("detach")),
            // The cache had seen version 7.
            (Kind::Detach, None, Lag::Unseen(8), now, wait(now + ERROR_GRACE)),
            (Kind::Detach, None, Lag::Unseen(8), late - ERROR_GRACE / 2, wait(late)),
            (Kind::Detach, None, Lag::Unseen(8), late, timeout("detach")),
            (Kind::Detach, None, Lag::Unseen(7), now, Ok(Ok(()))),
            (Kind::Detach, Some(&kept), Lag::Unseen(8), later, error("busy")),
            (Kind::Detach, Some(&plain), Lag::Unseen(7), later, wait(late)),
        ];
        for (kind, found, lag, at, expected) in table {
            let mut waiting = operation(kind, "n", true);
            waiting.stage = Stage::Waiting { attachment: "va".into(), since: now, lag };
            let found: Option<VolumeAttachment> =
                found.map(|found| serde_json::from_value(found.clone()).unwrap());
            assert_eq!(waiting.progress(found.as_ref(), 7, at), expected, "{kind:?} {found:?}");
        }
    }
}
