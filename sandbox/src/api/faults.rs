//! Planned failures and request counters: with them tests control the API server.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_lite::StreamExt;
use serde_json::Value;

use crate::api::response::failure;
use crate::status::ApiError;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Body, BodyStream, Response};

/// Selects requests: a verb (`create`, `watch` ... or `*`) and a resource (`pods`, `pods/status`,
/// `leases` ... or `*`).
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub verb: String,
    pub resource: String,
}

impl Target {
    pub fn new(verb: &str, resource: &str) -> Target {
        Target { verb: verb.to_owned(), resource: resource.to_owned() }
    }

    fn matches(&self, verb: &str, resource: &str) -> bool {
        (self.verb == "*" || self.verb == verb)
            && (self.resource == "*" || self.resource == resource)
    }
}

/// The fault that a request meets.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Answered with this failure; not executed.
    Fail(ApiError),
    /// Executed, but the connection is cut before the response.
    LoseAnswer,
    /// The connection is cut; not executed.
    Cut,
    /// Served after this delay.
    Delay(Duration),
    /// Served once the plans are cleared.
    Hold,
    /// A watch or list whose connection is cut after this number of bytes of the body.
    CutAfter(usize),
}

impl Fault {
    /// Builds a failure with the usual reason of `code`, and `Retry-After` when `retry_after`
    /// seconds are given.
    pub fn code(code: u16, retry_after: Option<u64>) -> Fault {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        let mut error = ApiError::new(code, reason, format!("fault on purpose: {reason}"));
        error.retry_after = retry_after;
        Fault::Fail(error)
    }
}

impl Fault {
    /// Returns what the caller of a served request gets.
    pub(crate) fn after(self, response: Response) -> Response {
        match self {
            Fault::LoseAnswer => Response::abort(),
            Fault::CutAfter(bytes) => cut_after(response, bytes),
            _ => response,
        }
    }
}

/// Sends the first `limit` bytes of the body, then cuts the connection; a body that is not longer
/// ends as usual.
fn cut_after(response: Response, limit: usize) -> Response {
    let cut = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    let body: BodyStream = match response.body {
        Body::Full(bytes) => Box::pin(futures_lite::stream::once(Ok(bytes))),
        Body::Stream(stream) => stream,
        Body::Abort => return response,
    };
    let body = futures_lite::stream::unfold((Some(body), limit), move |(body, left)| async move {
        let mut body = body?;
        if left == 0 {
            return Some((cut(), (None, 0)));
        }
        let mut chunk = match body.next().await? {
            Ok(chunk) => chunk,
            Err(error) => return Some((Err(error), (None, 0))),
        };
        let kept = chunk.len().min(left);
        Some((Ok(chunk.split_to(kept)), (Some(body), left - kept)))
    });
    Response { body: Body::Stream(Box::pin(body)), ..response }
}

struct Plan {
    target: Target,
    fault: Fault,
    times: usize,
}

/// Changes a new object of the resource of that name, as a mutating webhook does.
struct Rewrite {
    resource: String,
    change: Box<dyn Fn(&mut Value) + Send>,
}

/// How a program ends at the write after its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The write is not executed.
    Before,
    /// The write is executed, and its answer is lost.
    After,
}

/// The writes that a program may still make.
struct Allowance {
    left: usize,
    made: usize,
    death: Death,
    is_over: bool,
}

#[derive(Default)]
struct State {
    plans: Vec<Plan>,
    rewrites: Vec<Rewrite>,
    allowances: BTreeMap<String, Allowance>,
    counts: BTreeMap<(String, String), u64>,
    away: bool,
    repeat_events: bool,
    clears: u64,
    epoch: Epoch,
}

/// Counters that running watches compare with their last reading; a watch acts on each increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Cut the connection.
    pub cut: u64,
    /// Send 410 and end.
    pub expire: u64,
    /// Send a bookmark.
    pub bookmark: u64,
}

/// Shared by the API and the tests.
#[derive(Default)]
pub struct Faults {
    state: Mutex<State>,
    changed: Event,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify(usize::MAX);
    }

    /// Plans `fault` for the next `times` requests that match. Plans apply in the order they were
    /// made.
    pub fn next(&self, times: usize, verb: &str, resource: &str, fault: Fault) {
        let target = Target::new(verb, resource);
        self.lock().plans.push(Plan { target, fault, times });
    }

    /// Passes each new object of `resource` to `change`, before its defaults are set, until
    /// [`Self::clear`].
    pub fn rewrite(&self, resource: &str, change: impl Fn(&mut Value) + Send + 'static) {
        let (resource, change) = (resource.to_owned(), Box::new(change));
        self.lock().rewrites.push(Rewrite { resource, change });
    }

    /// Makes the planned changes to a new object of this resource.
    pub(crate) fn apply_rewrites(&self, resource: &str, object: &mut Value) {
        let state = self.lock();
        let rewrites = state.rewrites.iter().filter(|rewrite| rewrite.resource == resource);
        rewrites.for_each(|rewrite| (rewrite.change)(object));
    }

    /// Clears every plan and rewrite, and releases the held requests.
    pub fn clear(&self) {
        self.change(|state| {
            state.plans.clear();
            state.rewrites.clear();
            state.clears += 1;
        });
    }

    /// Returns how many times [`Self::clear`] was called.
    pub(crate) fn clears(&self) -> u64 {
        self.lock().clears
    }

    /// Waits until [`Self::clear`] has been called since [`Self::clears`] returned `before`.
    async fn await_clear(&self, before: u64) {
        loop {
            let changed = self.listen();
            if self.lock().clears != before {
                return;
            }
            changed.await;
        }
    }

    /// Carries out what the fault of a request does before the request is served: it waits, or
    /// returns the answer in place of the server's. `clears`: how many times the plans had been
    /// cleared before the fault was taken.
    pub(crate) async fn before(
        &self,
        fault: Option<&Fault>,
        clears: u64,
        clock: &SharedClock,
    ) -> Option<Response> {
        match fault? {
            Fault::Fail(error) => return Some(failure(error)),
            Fault::Cut => return Some(Response::abort()),
            Fault::Delay(delay) => clock.sleep(*delay).await,
            Fault::Hold => self.await_clear(clears).await,
            Fault::LoseAnswer | Fault::CutAfter(_) => (),
        }
        None
    }

    /// Cuts every connection, the current and all later ones, as if the API server were gone.
    pub fn cut_all(&self) {
        self.change(|state| {
            state.away = true;
            state.epoch.cut += 1;
        });
    }

    /// Accepts connections again after [`Self::cut_all`].
    pub fn come_back(&self) {
        self.change(|state| state.away = false);
    }

    /// Makes watches repeat each change and the state before it, while `on`. The old state comes
    /// last unless the change is a deletion.
    pub fn repeat_events(&self, on: bool) {
        self.lock().repeat_events = on;
    }

    pub fn repeats_events(&self) -> bool {
        self.lock().repeat_events
    }

    /// Returns the targets of the planned faults that have not occurred yet.
    pub fn pending(&self) -> Vec<Target> {
        self.lock().plans.iter().map(|plan| plan.target.clone()).collect()
    }

    /// Cuts every running watch.
    pub fn cut_watches(&self) {
        self.change(|state| state.epoch.cut += 1);
    }

    /// Ends every running watch with 410.
    pub fn expire_watches(&self) {
        self.change(|state| state.epoch.expire += 1);
    }

    /// Sends a bookmark on every running watch that requested them.
    pub fn bookmark(&self) {
        self.change(|state| state.epoch.bookmark += 1);
    }

    /// Returns the number of requests so far that match verb and resource, failed ones included.
    pub fn count(&self, verb: &str, resource: &str) -> u64 {
        let target = Target::new(verb, resource);
        let state = self.lock();
        state.counts.iter().filter(|((v, r), _)| target.matches(v, r)).map(|(_, n)| n).sum()
    }

    /// Returns every counter: verb and resource, with its number.
    pub fn counts(&self) -> BTreeMap<(String, String), u64> {
        self.lock().counts.clone()
    }

    pub fn is_away(&self) -> bool {
        self.lock().away
    }

    pub fn epoch(&self) -> Epoch {
        self.lock().epoch
    }

    /// Resolves when something changed after this call.
    pub fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Lets a program (the user agent up to its first `/`) make `writes` writes. It ends at its next
    /// one, as `death` says: from then on each of its connections is cut, as if it had died. Events,
    /// leases and reviews are not counted.
    pub fn allow_writes(&self, program: &str, writes: usize, death: Death) {
        let allowance = Allowance { left: writes, made: 0, death, is_over: false };
        self.lock().allowances.insert(program.to_owned(), allowance);
    }

    /// Returns the number of writes that the program has made since [`Self::allow_writes`].
    pub fn writes(&self, program: &str) -> usize {
        self.lock().allowances.get(program).map_or(0, |allowance| allowance.made)
    }

    /// Returns whether the program has made more writes than it may.
    pub fn has_died(&self, program: &str) -> bool {
        self.lock().allowances.get(program).is_some_and(|allowance| allowance.is_over)
    }

    /// Returns the fault with which a request of `program` ends it, or that it meets since then;
    /// `None`: it is served. A write is counted if an allowance limits the program: see
    /// [`Self::allow_writes`].
    pub(crate) fn end_of(&self, program: &str, verb: &str, resource: &str) -> Option<Fault> {
        let mut state = self.lock();
        let allowance = state.allowances.get_mut(program)?;
        if allowance.is_over {
            return Some(Fault::Cut);
        }
        let writes = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        let counts =
            writes && !matches!(resource, "events" | "leases") && !resource.ends_with("reviews");
        if !counts {
            return None;
        }
        if let Some(left) = allowance.left.checked_sub(1) {
            allowance.left = left;
            allowance.made += 1;
            return None;
        }
        allowance.is_over = true;
        Some(match allowance.death {
            Death::Before => Fault::Cut,
            Death::After => Fault::LoseAnswer,
        })
    }

    /// Counts a request, and returns the fault that is planned for it. A plan ends with its last
    /// fault.
    pub fn take_fault(&self, verb: &str, resource: &str) -> Option<Fault> {
        let mut state = self.lock();
        *state.counts.entry((verb.to_owned(), resource.to_owned())).or_default() += 1;
        let at = state.plans.iter().position(|plan| plan.target.matches(verb, resource))?;
        let plan = &mut state.plans[at];
        let fault = plan.fault.clone();
        plan.times = plan.times.saturating_sub(1);
        if plan.times == 0 {
            state.plans.remove(at);
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_dies_with_the_write_after_its_last() {
        for (death, last) in [(Death::Before, Fault::Cut), (Death::After, Fault::LoseAnswer)] {
            let faults = Faults::default();
            faults.allow_writes("a", 1, death);
            for (program, verb, resource, end) in [
                ("a", "list", "pods", None),
                ("a", "create", "pods", None),
                ("a", "create", "events", None),
                ("a", "update", "leases", None),
                ("a", "watch", "pods", None),
                ("b", "create", "pods", None),
                ("a", "patch", "pods/status", Some(last)),
                ("a", "list", "pods", Some(Fault::Cut)),
                ("a", "create", "events", Some(Fault::Cut)),
                ("a", "create", "pods", Some(Fault::Cut)),
                ("b", "create", "pods", None),
            ] {
                assert_eq!(faults.end_of(program, verb, resource), end, "{program} {verb}");
            }
            assert!(faults.has_died("a") && !faults.has_died("b"));
            assert_eq!((faults.writes("a"), faults.writes("b")), (1, 0));
        }
    }

    #[test]
    fn a_fault_is_repeated_the_given_number_of_times() {
        let faults = Faults::default();
        faults.next(2, "create", "pods", Fault::Cut);
        faults.next(1, "*", "*", Fault::LoseAnswer);
        let hits: Vec<Option<Fault>> = [("create", "pods"), ("get", "pods"), ("create", "pods")]
            .into_iter()
            .chain([("create", "pods")])
            .map(|(verb, resource)| faults.take_fault(verb, resource))
            .collect();
        assert_eq!(hits, [Some(Fault::Cut), Some(Fault::LoseAnswer), Some(Fault::Cut), None]);
        assert_eq!(faults.pending(), []);
        faults.rewrite("pods", |object| object["a"] = 1.into());
        let mut object = Value::Null;
        faults.apply_rewrites("nodes", &mut object);
        assert_eq!(object, Value::Null);
        faults.apply_rewrites("pods", &mut object);
        assert_eq!(object["a"], 1);
        faults.clear();
        faults.apply_rewrites("pods", &mut object["b"]);
        assert_eq!(object["b"], Value::Null);
        assert_eq!((faults.count("create", "*"), faults.count("*", "pods")), (3, 4));
    }
}
