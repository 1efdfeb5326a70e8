//! Start-up in the order of the original: check the flags, log, configure the client, serve, take
//! the lease, and under it the controllers. Upstream: `cmd/kube-controller-manager/app`.

pub mod client_builder;
mod configz;
pub mod connect;
pub mod controllers;
mod leader_election;
mod logging;
pub mod process_metrics;
pub mod serving;
mod signals;
pub mod source;
pub mod start;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::Guard;
use crate::clock::SystemClock;
use crate::leaderelection::{Ended, HealthzAdaptor};
use crate::options::{Options, VERSION, validate};
use crate::server::health::HealthChecks;
use crate::task::{StopToken, TaskGroup};

use connect::{Connect, Target, user_agent};
use start::Started;

/// How long past its lease's end a leader that can't renew counts as healthy.
const ELECTION_TOLERANCE: Duration = Duration::from_secs(20);

/// What all tasks of the manager run on. One thread does the work of a large cluster with time to
/// spare, and a second one costs a fifth more CPU: see `docs/performance.md`.
pub const THREADS: usize = 1;

/// Runs the manager with `options` until a signal, a lost lease or an error; errors are told on
/// stderr, a line each.
pub async fn run(options: Options, connect: Connect) -> ExitCode {
    let problems = validate(&options, &controllers::is_known);
    let ended = match problems.is_empty() {
        true => run_until_stopped(options, connect).await,
        false => Err(problems),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            for error in errors {
                eprintln!("Error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run_until_stopped(options: Options, connect: Connect) -> Result<(), Vec<String>> {
    let clock = SystemClock::shared();
    logging::init(&options, clock.clone());
    process_metrics::register();
    if options.v.0 >= 1 {
        for (name, value) in options.pairs() {
            log::info!("FLAG: --{name}={value:?}");
        }
    }
    log::info!("Starting version {VERSION}");
    let stop = signals::stop_on_signal().map_err(|error| vec![format!("signals: {error}")])?;
    let options = Arc::new(options);
    if options.enable_leader_migration {
        log::warn!("--enable-leader-migration: no controller migrates in this build");
    }

    let target = Target {
        kubeconfig: &options.kubeconfig,
        master: &options.master,
        qps: options.kube_api_qps,
        burst: options.kube_api_burst,
    };
    let connection = connect(&target).map_err(|error| vec![error])?;

    let health = HealthChecks::new();
    let election = Arc::new(HealthzAdaptor::new(ELECTION_TOLERANCE));
    if options.leader_elect {
        let election = election.clone();
        health.add(HealthzAdaptor::NAME, Arc::new(move || election.check()));
    }
    let (serving, tasks) = (StopToken::new(), TaskGroup::new());
    let routes = serving::routes(&options, &health, &clock);
    serving::serve(&options, &routes, connect, clock.clone(), &tasks, &serving)
        .await
        .map_err(|error| vec![error])?;

    let client = connection.client(&user_agent("leader-election"));
    let started =
        Started { options: options.clone(), connection, health, routes, clock: clock.clone() };
    if !options.leader_elect {
        let ended = start::run(started, stop).await;
        serving.stop();
        tasks.join().await;
        return ended.map_err(|error| vec![error]);
    }

    // Stops with the signal, and when the work ends by itself.
    let leading = stop.child();
    let failure = Arc::new(Mutex::new(None));
    let (over, told) = (leading.clone(), failure.clone());
    let work = move |stop: StopToken, guard: Guard| async move {
        let connection = started.connection.guarded(guard);
        if let Err(error) = start::run(Started { connection, ..started }, stop).await {
            log::error!("{error}");
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        over.stop();
    };
    let ended = leader_election::lead(&options, &client, &election, clock, &leading, work).await;
    match ended {
        Err(error) => return Err(vec![error]),
        Ok(Ended::Lost) => {
            log::error!("leaderelection lost");
            return Err(vec!["leaderelection lost".into()]);
        }
        Ok(Ended::NeverLed | Ended::Stopped) => log::info!("Requested to terminate. Exiting."),
    }
    serving.stop();
    tasks.join().await;
    match failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(vec![error]),
        None => Ok(()),
    }
}
