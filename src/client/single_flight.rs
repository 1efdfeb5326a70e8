//! A cached value that at most one task at a time computes.

use parking_lot::Mutex;
use std::sync::Arc;

use event_listener::Event;

use super::{Error, Result};
use crate::task;

/// Makes a value in a task of its own and keeps it.
///
/// All callers that ask while the value is being made wait for the same run and share its failure,
/// which is not kept. A run continues when its callers give up: futures of [`Self::get`] may be
/// dropped at any time. A run that began before a reset answers only callers that asked before the
/// reset. Upstream: `singleflight.Group`.
pub(super) struct SingleFlight<T> {
    state: Arc<Mutex<State<T>>>,
}

enum State<T> {
    /// There is no value, and none is being made.
    Empty,
    Running(Arc<Run<T>>),
    /// The value of the last run.
    Known(T),
}

/// A value that is being made, for all callers that wait for it.
struct Run<T> {
    result: Mutex<Option<Result<T>>>,
    ended: Event,
}

/// Publishes the result of a run when it ends, also when it panics.
struct Ending<T: Clone> {
    run: Arc<Run<T>>,
    state: Arc<Mutex<State<T>>>,
    result: Option<Result<T>>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> SingleFlight<T> {
        SingleFlight { state: Arc::new(Mutex::new(State::Empty)) }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Returns the value, if it is there and `is_current`; else the result of the run under way, or
    /// of `make`.
    pub async fn get<F>(
        &self,
        is_current: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let run = {
            let mut state = self.state.lock();
            match &*state {
                State::Known(value) if is_current(value) => return Ok(value.clone()),
                State::Running(run) => run.clone(),
                State::Known(_) | State::Empty => {
                    let run = Arc::new(Run { result: Mutex::new(None), ended: Event::new() });
                    *state = State::Running(run.clone());
                    let state = self.state.clone();
                    let ending = Ending { run: run.clone(), state, result: None };
                    let work = make();
                    task::spawn(async move { ending.finish(work.await) });
                    run
                }
            }
        };
        run.result().await
    }

    /// Forgets the value, or the run under way.
    pub fn reset(&self) {
        *self.state.lock() = State::Empty;
    }

    /// Forgets the value if `is_stale`.
    pub fn reset_if(&self, is_stale: impl FnOnce(&T) -> bool) {
        let mut state = self.state.lock();
        if matches!(&*state, State::Known(value) if is_stale(value)) {
            *state = State::Empty;
        }
    }
}

impl<T: Clone> Run<T> {
    /// Waits for the end of the run, and returns its result.
    async fn result(&self) -> Result<T> {
        loop {
            let ended = self.ended.listen();
            if let Some(result) = &*self.result.lock() {
                return result.clone();
            }
            ended.await;
        }
    }
}

impl<T: Clone> Ending<T> {
    /// Ends the run with `result`: the drop at the end of this call publishes it.
    fn finish(mut self, result: Result<T>) {
        self.result = Some(result);
    }
}

impl<T: Clone> Drop for Ending<T> {
    /// Ends the run with its result; a run that has panicked ends with an error.
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| {
            let request = "a task of the client".to_owned();
            Err(Error::Request { request, source: "it has panicked".into() })
        });
        let mut state = self.state.lock();
        if matches!(&*state, State::Running(run) if Arc::ptr_eq(run, &self.run)) {
            *state = match &result {
                Ok(value) => State::Known(value.clone()),
                Err(_) => State::Empty,
            };
        }
        drop(state);
        *self.run.result.lock() = Some(result);
        self.run.ended.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use async_channel::{Receiver, Sender, bounded};
    use futures_lite::future::{block_on, poll_once, zip};

    use super::*;

    type Runs = Arc<Mutex<Vec<Sender<Result<u32>>>>>;

    /// Asks for a value that the test makes through `runs`, one sender a run.
    async fn ask(flight: &SingleFlight<u32>, runs: &Runs) -> Result<u32> {
        let make = || {
            let (sender, made): (_, Receiver<Result<u32>>) = bounded(1);
            runs.lock().push(sender);
            async move { made.recv().await.expect("the test answers each run") }
        };
        flight.get(|value| *value != 0, make).await
    }

    fn answer(runs: &Runs, run: usize, result: Result<u32>) {
        runs.lock()[run].try_send(result).unwrap();
    }

    #[test]
    fn a_run_is_shared_and_outlives_those_who_wait() {
        let (flight, runs) = (SingleFlight::default(), Runs::default());
        block_on(async {
            assert!(poll_once(Box::pin(ask(&flight, &runs))).await.is_none());
            let (mut one, mut two) = (Box::pin(ask(&flight, &runs)), Box::pin(ask(&flight, &runs)));
            assert!(poll_once(&mut one).await.is_none() && poll_once(&mut two).await.is_none());
            answer(&runs, 0, Ok(7));
            let (one, two) = zip(one, two).await;
            assert_eq!((one.unwrap(), two.unwrap()), (7, 7));
            assert_eq!(ask(&flight, &runs).await.unwrap(), 7);
            assert_eq!(runs.lock().len(), 1);
        });
    }

    #[test]
    fn a_failure_is_shared_and_not_kept() {
        let (flight, runs) = (SingleFlight::default(), Runs::default());
        block_on(async {
            let (mut one, mut two) = (Box::pin(ask(&flight, &runs)), Box::pin(ask(&flight, &runs)));
            assert!(poll_once(&mut one).await.is_none() && poll_once(&mut two).await.is_none());
            answer(&runs, 0, Err(Error::Config("broken".to_owned())));
            let (one, two) = zip(one, two).await;
            assert_eq!(one.unwrap_err().to_string(), two.unwrap_err().to_string());
            let mut again = Box::pin(ask(&flight, &runs));
            assert!(poll_once(&mut again).await.is_none());
            answer(&runs, 1, Ok(1));
            assert_eq!(again.await.unwrap(), 1);
        });
    }

    #[test]
    fn after_a_reset_the_run_under_way_does_not_answer_later_callers() {
        let (flight, runs) = (SingleFlight::default(), Runs::default());
        block_on(async {
            let (mut early, mut late) =
                (Box::pin(ask(&flight, &runs)), Box::pin(ask(&flight, &runs)));
            assert!(poll_once(&mut early).await.is_none());
            flight.reset();
            assert!(poll_once(&mut late).await.is_none());
            answer(&runs, 1, Ok(2));
            assert_eq!(late.await.unwrap(), 2);
            answer(&runs, 0, Ok(1));
            assert_eq!(early.await.unwrap(), 1);
            assert_eq!(ask(&flight, &runs).await.unwrap(), 2);
            flight.reset_if(|value| *value == 1);
            assert_eq!(ask(&flight, &runs).await.unwrap(), 2);
            flight.reset_if(|value| *value == 2);
            let mut again = Box::pin(ask(&flight, &runs));
            assert!(poll_once(&mut again).await.is_none());
            // A value that is not current is made again.
            answer(&runs, 2, Ok(0));
            assert_eq!(again.await.unwrap(), 0);
            let mut again = Box::pin(ask(&flight, &runs));
            assert!(poll_once(&mut again).await.is_none());
            answer(&runs, 3, Ok(4));
            assert_eq!(again.await.unwrap(), 4);
        });
    }

    #[test]
    fn a_run_that_panics_is_a_failure() {
        let flight = SingleFlight::<u32>::default();
        block_on(async {
            let error = flight.get(|_| true, || async { panic!("on purpose") }).await.unwrap_err();
            assert!(error.to_string().contains("panicked"), "{error}");
            assert_eq!(flight.get(|_| true, || async { Ok(1) }).await.unwrap(), 1);
        });
    }
}
