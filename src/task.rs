//! Tasks that are joined, the token that asks them to stop, and what tasks wait for.
//! Upstream: `context.Context` cancellation and `sync.WaitGroup`.
//!
//! [`main`] is the start of a program, [`spawn`] starts a task, and a [`TaskGroup`] joins several. A
//! [`StopToken`] asks them to end: nothing is interrupted. [`stop_on_signal`] is the program's own.
//!
//! ```
//! use kube_controller_manager::task::{self, StopToken};
//!
//! task::run(1, async {
//!     let stop = StopToken::new();
//!     let child = stop.child();
//!     let work = task::spawn(async move {
//!         child.stopped().await;
//!         "ended"
//!     });
//!     stop.stop();
//!     assert_eq!(work.await, "ended");
//! });
//! ```

#![warn(missing_docs)]

pub(crate) mod panics;
mod run;
mod signals;
mod task_counts;

use std::fmt::Display;
use std::future::Future;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use async_global_executor::GlobalExecutorConfig;
use event_listener::Event;
use futures_lite::future::block_on;
use parking_lot::Mutex;
use pin_project::pin_project;

pub(crate) use run::{SyncScope, current_scope, in_scope};
pub use signals::stop_on_signal;
use task_counts::Counted;
pub use task_counts::{Place, running};

/// A running task. Dropping it does not stop the task; `await` joins it and returns its output, or
/// passes on its panic.
pub type Task<T> = async_std::task::JoinHandle<T>;

/// Starts `future` as a task, which runs whether or not its handle is awaited. A task that is
/// spawned in a `SyncScope` belongs to it. [`running`] counts the task at the caller's place in the
/// source until it ends.
#[track_caller]
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    spawn_boxed(Box::pin(future), Location::caller())
}

/// Spawns a boxed future, as part of the current sync if there is one.
fn spawn_boxed<T: Send + 'static>(
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    place: &'static Location<'static>,
) -> Task<T> {
    let future = match current_scope() {
        None => future,
        Some(scope) => Box::pin(in_scope(scope.child(), future)),
    };
    async_std::task::spawn(Counted::new(future, place))
}

/// Runs a program's future on `threads` threads to its end, and all that it spawns beside it;
/// `ASYNC_STD_THREAD_COUNT` in the environment overrides the number. Call it once, at the start of
/// the program. Tasks that still run when `future` ends are not joined.
///
/// The calling thread only waits. If it polled too, it would receive every other event of the
/// sockets in place of the thread whose tasks wait for them, and would have to wake that thread.
///
/// # Panics
/// When `future` panics.
pub fn run<T: Send + 'static>(
    threads: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    start_helper();
    let config = GlobalExecutorConfig::default()
        .with_env_var("ASYNC_STD_THREAD_COUNT")
        .with_min_threads(threads)
        .with_thread_name_fn(|| "executor".to_owned());
    async_global_executor::init_with_config(config);
    block_on(spawn(future))
}

/// Runs a program's future on one thread, as [`run`] does, for the function `main`. An error is
/// printed to stderr in a line, and is exit code 1.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use kube_controller_manager::task;
///
/// fn main() -> ExitCode {
///     task::main(async {
///         let stop = task::stop_on_signal()?;
///         stop.stopped().await;
///         Ok::<(), std::io::Error>(())
///     })
/// }
/// ```
///
/// # Panics
/// When `program` panics.
pub fn main<E: Display + Send + 'static>(
    program: impl Future<Output = Result<(), E>> + Send + 'static,
) -> ExitCode {
    match run(1, program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How late the timers of async-io's own thread may be, and so those of the executor too, whose
/// sockets and timers it polls at times.
const HELPER_SLACK: Duration = Duration::from_millis(1);

/// Starts the thread with which async-io polls sockets and timers while no other thread does.
///
/// While the executor is busy it sleeps briefly, polls the executor's sockets, and wakes the
/// executor, which then does the same to it: half of all system calls. With late timers it polls
/// less often, but it still polls when the executor's threads are stuck in a task.
fn start_helper() {
    let starter = std::thread::Builder::new().name("starter".to_owned()).spawn(|| {
        let slack = u64::try_from(HELPER_SLACK.as_nanos()).ok().and_then(NonZeroU64::new);
        if let Err(error) = rustix::thread::set_current_timer_slack(slack) {
            log::debug!("the timer slack cannot be set: {error}");
        }
        // The helper inherits the slack of the thread that starts it, which is the first to block.
        async_io::block_on(std::future::ready(()));
    });
    if let Ok(starter) = starter {
        let _ = starter.join();
    }
}

/// Runs blocking work (files, child processes) on a thread pool, away from the executor's threads.
/// Work that has begun cannot be cancelled: when this future is dropped, the work continues and its
/// output is lost.
///
/// # Panics
/// When `work` panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (slot, result) = async_channel::bounded(1);
    let work: Box<dyn FnOnce() + Send> = Box::new(move || {
        let _ = slot.try_send(work());
    });
    // One type of work, so that the pool's code is compiled once.
    async_std::task::spawn_blocking(work).await;
    result.recv().await.expect("it has ended, without a panic")
}

/// Wakes all listeners. `Event::notify` would allocate a list of listeners even when there are
/// none, and there are several events for each watched resource. Changes that the caller made
/// before are visible to each task that is woken, and to each that starts to listen afterwards.
pub fn notify_all(event: &Event) {
    // A task that starts to listen now sees the changes that were made before.
    fence(Ordering::SeqCst);
    if event.total_listeners() > 0 {
        event.notify(usize::MAX);
    }
}

/// Opens once and stays open; any number of tasks wait for it. Cheap to clone: clones are one
/// latch. Upstream: a channel that is closed.
#[derive(Clone, Default)]
pub struct Latch {
    state: Arc<LatchState>,
}

/// The state of a [`Latch`], and of other things that happen once.
#[derive(Default)]
struct LatchState {
    open: AtomicBool,
    opened: Event,
}

impl LatchState {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        notify_all(&self.opened);
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until the latch is open.
    async fn opened(&self) {
        while !self.is_open() {
            let opened = self.opened.listen();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }
}

impl Latch {
    /// Makes a closed latch.
    pub fn new() -> Latch {
        Latch::default()
    }

    /// Opens the latch and wakes all who wait. Opening an open latch does nothing.
    pub fn open(&self) {
        self.state.open();
    }

    /// Returns whether it has been opened. What was done before the opening is visible to the
    /// caller then.
    pub fn is_open(&self) -> bool {
        self.state.is_open()
    }

    /// Resolves once open, at once if it is open already. May be dropped at any time.
    pub async fn opened(&self) {
        self.state.opened().await;
    }
}

/// The first failure that any of several tasks reports. Cheap to clone: clones are one failure.
/// Upstream: the cancel cause of a `context.Context`.
#[derive(Clone, Default)]
pub struct Failure {
    state: Arc<FailureState>,
}

#[derive(Default)]
struct FailureState {
    first: OnceLock<String>,
    reported: LatchState,
}

impl Failure {
    /// Nothing is reported yet.
    pub fn new() -> Failure {
        Failure::default()
    }

    /// Reports the failure `what`, a text for the log. Only the first report is kept, so a caller
    /// that may not be the first must also log its failure itself.
    pub fn report(&self, what: String) {
        let _ = self.state.first.set(what);
        self.state.reported.open();
    }

    /// Returns the first report; `None` before it.
    pub fn get(&self) -> Option<&str> {
        self.state.first.get().map(String::as_str)
    }

    /// Resolves once a failure is reported. May be dropped at any time.
    pub async fn reported(&self) {
        self.state.reported.opened().await;
    }
}

/// Returns the output of `future`, or the message of its panic. State that the future shared with
/// others may be inconsistent after a panic: nothing repairs it, but locks are released and not
/// poisoned.
pub fn caught<F: Future>(future: F) -> Caught<F> {
    Caught { future }
}

/// The future that [`caught`] returns. After a panic it must not be polled again. An `async` block
/// would store the inner future twice.
#[pin_project]
pub struct Caught<F> {
    #[pin]
    future: F,
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    /// Polls the future; a panic in it becomes the message as an error.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => {
                let message = panic.downcast_ref::<String>().map(String::as_str);
                let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
                Poll::Ready(Err(message.unwrap_or("no message").to_owned()))
            }
        }
    }
}

/// Asks its holders to stop. Clones are one token. A child stops with its parent; the parent does
/// not stop with a child. A stop is final, and nothing is interrupted: the holders end their work
/// themselves. Upstream: `context.WithCancel`, or a `stopCh`.
#[derive(Clone, Default)]
pub struct StopToken {
    state: Arc<StopState>,
}

#[derive(Default)]
struct StopState {
    stopped: LatchState,
    /// The tokens that stop with this one, unless they are dropped before.
    children: Mutex<Vec<Weak<StopState>>>,
}

impl StopState {
    /// Stops this token, and then its children without its lock.
    fn stop(&self) {
        let children = {
            let mut children = self.children.lock();
            self.stopped.open();
            std::mem::take(&mut *children)
        };
        children.iter().filter_map(Weak::upgrade).for_each(|child| child.stop());
    }
}

impl StopToken {
    /// Makes a token without a parent: it stops only by [`stop`](StopToken::stop).
    pub fn new() -> StopToken {
        StopToken::default()
    }

    /// Returns a token that stops with this one or alone. It is stopped already if this one is.
    pub fn child(&self) -> StopToken {
        let child = StopToken::new();
        let mut children = self.state.children.lock();
        if self.is_stopped() {
            child.stop();
        } else {
            if children.len() == children.capacity() {
                children.retain(|child| child.strong_count() > 0);
            }
            children.push(Arc::downgrade(&child.state));
        }
        drop(children);
        child
    }

    /// Stops the token and its children, and wakes all who wait for them. Does not wait for the
    /// holders. A second call does nothing.
    pub fn stop(&self) {
        self.state.stop();
    }

    /// Returns whether the token, or a token that it is a child of, has been stopped.
    pub fn is_stopped(&self) -> bool {
        self.state.stopped.is_open()
    }

    /// Waits until the token is stopped; returns at once if it is stopped already. May be dropped
    /// at any time.
    pub async fn stopped(&self) {
        self.state.stopped.opened().await;
    }

    /// Returns the output of `future`, or `None` when the stop comes first: `future` is then
    /// dropped with this one. After a stop `future` is not polled, so no more work begins.
    pub fn unless_stopped<F: Future>(
        &self,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + use<'_, F> {
        UnlessStopped { stopped: self.stopped(), future }
    }
}

/// See [`StopToken::unless_stopped`]. An `async` block would store the future twice.
#[pin_project]
struct UnlessStopped<S, F> {
    #[pin]
    stopped: S,
    #[pin]
    future: F,
}

impl<S: Future<Output = ()>, F: Future> Future for UnlessStopped<S, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.stopped.poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => this.future.poll(context).map(Some),
        }
    }
}

/// Tasks that end together: the owner spawns them and joins them. A finished task leaves nothing
/// behind. Dropping the group does not stop its tasks. Upstream: `sync.WaitGroup`.
#[derive(Default)]
pub struct TaskGroup {
    running: Arc<Running>,
}

/// The tasks of a [`TaskGroup`] that have not ended.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ended: Event,
}

/// One task of a group. Dropped when the task ends, also by a panic.
struct Member(Arc<Running>);

impl Drop for Member {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            notify_all(&self.0.ended);
        }
    }
}

impl TaskGroup {
    /// Makes a group without tasks: joining it takes no time.
    pub fn new() -> TaskGroup {
        TaskGroup::default()
    }

    /// Starts `future` as a task of the group. Its panic ends only the task and is not reported:
    /// wrap the future in [`caught`] to learn of it.
    #[track_caller]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(future));
    }

    /// Starts a boxed future as a task of the group. Has one type for all tasks: a task's code is
    /// compiled once, and its future is stored once.
    #[track_caller]
    fn spawn_boxed(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.running.count.fetch_add(1, Ordering::SeqCst);
        let member = Member(self.running.clone());
        drop(spawn(async move {
            let _member = member;
            future.await;
        }));
    }

    /// Waits for every task, those spawned meanwhile included. A task that panicked has ended. May
    /// be dropped at any time and called again.
    pub async fn join(&self) {
        while self.running.count.load(Ordering::SeqCst) > 0 {
            let ended = self.running.ended.listen();
            if self.running.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{poll_once, yield_now};

    use super::*;

    #[test]
    fn a_latch_wakes_all_its_waiters_and_stays_open() {
        let latch = Latch::new();
        let mut waiters = [latch.clone(), latch.clone()]
            .map(|latch| Box::pin(async move { latch.opened().await }));
        assert!(waiters.iter_mut().all(|waiter| block_on(poll_once(waiter)).is_none()));
        latch.open();
        assert!(waiters.iter_mut().all(|waiter| block_on(poll_once(waiter)).is_some()));
        assert!(latch.is_open());
        block_on(latch.opened());
    }

    #[test]
    fn a_child_stops_with_its_parent_and_not_the_other_way_round() {
        let parent = StopToken::new();
        let (alone, with_parent) = (parent.child(), parent.child());
        let grandchild = with_parent.child();
        alone.stop();
        assert!(alone.is_stopped() && !parent.is_stopped() && !with_parent.is_stopped());
        let mut waiting = Box::pin(grandchild.stopped());
        assert!(block_on(poll_once(&mut waiting)).is_none());
        parent.stop();
        block_on(waiting);
        assert!(with_parent.is_stopped() && parent.child().is_stopped());
    }

    #[test]
    fn a_parent_forgets_dropped_children() {
        let parent = StopToken::new();
        for _ in 0..1_000 {
            parent.child();
        }
        assert!(parent.state.children.lock().len() < 10);
    }

    #[test]
    fn the_first_failure_is_kept() {
        let failure = Failure::new();
        assert_eq!(failure.get(), None);
        failure.report("first".into());
        failure.report("second".into());
        block_on(failure.reported());
        assert_eq!(failure.get(), Some("first"));
    }

    #[test]
    fn a_panic_is_caught_with_its_message() {
        let panics = |text: Option<String>| async move {
            match text {
                Some(text) => panic!("{text}"),
                None => panic!("as the test asks"),
            }
        };
        assert_eq!(block_on(caught(async { 1 })), Ok(1));
        assert_eq!(block_on(caught(panics(None))), Err::<(), _>("as the test asks".into()));
        assert_eq!(block_on(caught(panics(Some("x".into())))), Err("x".into()));
    }

    #[test]
    fn a_group_forgets_tasks_that_ended_and_waits_for_the_others() {
        let group = TaskGroup::new();
        let (release, released) = async_channel::bounded::<()>(1);
        for _ in 0..100 {
            group.spawn(async {});
        }
        group.spawn(async { panic!("as the test asks") });
        group.spawn(async move {
            let _ = released.recv().await;
        });
        block_on(async {
            while group.running.count.load(Ordering::SeqCst) > 1 {
                yield_now().await;
            }
            let mut joining = Box::pin(group.join());
            assert!(poll_once(&mut joining).await.is_none());
            release.try_send(()).expect("it has room");
            joining.await;
        });
        // A task ends the wait a moment before it releases its reference.
        for _ in 0..60_000 {
            if Arc::strong_count(&group.running) == 1 {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&group.running), 1);
    }
}
