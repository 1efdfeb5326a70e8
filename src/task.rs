//! Tasks that are joined, and the token that asks them to stop.
//! Upstream: `context.Context` cancellation and `sync.WaitGroup`.

use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_global_executor::GlobalExecutorConfig;
use event_listener::Event;
use futures_lite::FutureExt;
use futures_lite::future::block_on;

/// A running task. Dropping it lets the task go on; `await` joins it.
pub type Task<T> = async_std::task::JoinHandle<T>;

pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    async_std::task::spawn(future)
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

/// Asks whoever holds a clone to stop. A child stops with its parent, never the other way round.
#[derive(Clone, Default)]
pub struct StopToken {
    state: Arc<StopState>,
}

#[derive(Default)]
struct StopState {
    stopped: AtomicBool,
    event: Event,
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
        self.state.stopped.store(true, Ordering::SeqCst);
        self.state.event.notify(usize::MAX);
    }

    pub fn is_stopped(&self) -> bool {
        self.state.stopped.load(Ordering::SeqCst)
            || self.state.parent.as_ref().is_some_and(StopToken::is_stopped)
    }

    /// Resolves once stopped.
    pub async fn stopped(&self) {
        let own = async {
            loop {
                let event = self.state.event.listen();
                if self.state.stopped.load(Ordering::SeqCst) {
                    return;
                }
                event.await;
            }
        };
        match &self.state.parent {
            Some(parent) => own.or(Box::pin(parent.stopped())).await,
            None => own.await,
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

/// Tasks that end together: who spawns joins.
#[derive(Default)]
pub struct TaskGroup {
    tasks: Mutex<Vec<Task<()>>>,
}

impl TaskGroup {
    pub fn new() -> TaskGroup {
        TaskGroup::default()
    }

    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().push(spawn(future));
    }

    /// Waits for every task, those spawned meanwhile included.
    pub async fn join(&self) {
        loop {
            let task = self.tasks.lock().pop();
            match task {
                Some(task) => task.await,
                None => return,
            }
        }
    }
}
