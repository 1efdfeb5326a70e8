//! Tasks that are joined, the token that asks them to stop, and what tasks wait for.
//! Upstream: `context.Context` cancellation and `sync.WaitGroup`.

mod census;

use std::future::Future;
use std::panic::{AssertUnwindSafe, Location};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use async_global_executor::GlobalExecutorConfig;
use event_listener::Event;
use futures_lite::FutureExt;
use futures_lite::future::block_on;

use census::Counted;
pub use census::{Place, running};

/// A running task. Dropping it lets the task go on; `await` joins it.
pub type Task<T> = async_std::task::JoinHandle<T>;

#[track_caller]
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    async_std::task::spawn(Counted::new(future, Location::caller()))
}

/// Runs a program's future on `threads` threads to its end, and all that it spawns beside it;
/// `ASYNC_STD_THREAD_COUNT` in the environment overrides the number.
///
/// The calling thread only waits: were it to poll too, it would take every other event of the
/// sockets away from the thread whose tasks wait for it, and then have to wake that one.
pub fn run<T: Send + 'static>(
    threads: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let config = GlobalExecutorConfig::default()
        .with_env_var("ASYNC_STD_THREAD_COUNT")
        .with_min_threads(threads)
        .with_thread_name_fn(|| "executor".to_owned());
    async_global_executor::init_with_config(config);
    block_on(spawn(future))
}

/// Runs blocking work (files, child processes) away from the executor's threads.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    async_std::task::spawn_blocking(work).await
}

/// Opens once and stays open; any number of tasks wait for it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Latch {
    state: Arc<LatchState>,
}

#[derive(Default)]
struct LatchState {
    open: AtomicBool,
    opened: Event,
}

impl LatchState {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.opened.notify(usize::MAX);
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

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
    pub fn new() -> Latch {
        Latch::default()
    }

    /// Opening an open latch does nothing.
    pub fn open(&self) {
        self.state.open();
    }

    pub fn is_open(&self) -> bool {
        self.state.is_open()
    }

    /// Resolves once open.
    pub async fn opened(&self) {
        self.state.opened().await;
    }
}

/// The first failure that any of several tasks reports. Cheap to clone.
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
    pub fn new() -> Failure {
        Failure::default()
    }

    /// Later reports are dropped: the caller logs its own failure.
    pub fn report(&self, what: String) {
        let _ = self.state.first.set(what);
        self.state.reported.open();
    }

    pub fn get(&self) -> Option<&str> {
        self.state.first.get().map(String::as_str)
    }

    /// Resolves once a failure is reported.
    pub async fn reported(&self) {
        self.state.reported.opened().await;
    }
}

/// The output of `future`, or the message of its panic.
///
/// # Errors
/// When `future` panics. Nothing that it shared with others is repaired.
pub async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        message.unwrap_or("no message").to_owned()
    })
}

/// Asks its holders to stop. A child stops with its parent; the parent does not stop with a child.
#[derive(Clone, Default)]
pub struct StopToken {
    state: Arc<StopState>,
}

#[derive(Default)]
struct StopState {
    own: LatchState,
    parent: Option<StopToken>,
}

impl StopToken {
    pub fn new() -> StopToken {
        StopToken::default()
    }

    pub fn child(&self) -> StopToken {
        let state = StopState { parent: Some(self.clone()), ..StopState::default() };
        StopToken { state: Arc::new(state) }
    }

    pub fn stop(&self) {
        self.state.own.open();
    }

    pub fn is_stopped(&self) -> bool {
        self.state.own.is_open() || self.state.parent.as_ref().is_some_and(StopToken::is_stopped)
    }

    /// Resolves once stopped.
    pub async fn stopped(&self) {
        match &self.state.parent {
            Some(parent) => self.state.own.opened().or(Box::pin(parent.stopped())).await,
            None => self.state.own.opened().await,
        }
    }

    /// `future`'s output, or `None` (the future dropped) when the stop comes first.
    pub async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        async {
            self.stopped().await;
            None
        }
        .or(async { Some(future.await) })
        .await
    }
}

/// Tasks that end together: the owner spawns them and joins them. A finished task leaves nothing
/// behind. Upstream: `sync.WaitGroup`.
#[derive(Default)]
pub struct TaskGroup {
    running: Arc<Running>,
}

#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ended: Event,
}

/// One task of a group; dropped when the task ends, by a panic as well.
struct Member(Arc<Running>);

impl Drop for Member {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify(usize::MAX);
        }
    }
}

impl TaskGroup {
    pub fn new() -> TaskGroup {
        TaskGroup::default()
    }

    #[track_caller]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.running.count.fetch_add(1, Ordering::SeqCst);
        let member = Member(self.running.clone());
        // One type for all: the task's code is compiled once, and the future is stored once.
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        drop(spawn(async move {
            let _member = member;
            future.await;
        }));
    }

    /// Waits for every task, those spawned meanwhile included. A task that panicked has ended.
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
        assert_eq!(Arc::strong_count(&group.running), 1);
    }
}
