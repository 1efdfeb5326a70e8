//! The work under the lease: waits for the API server, creates the context, builds the controllers,
//! starts the informers, runs until stopped.
//! Upstream: `CreateControllerContext`, `BuildControllers`, `RunControllers`.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;

use super::Program;
use super::client_builder::{ServiceAccountClients, SimpleClients};
use super::component_metrics::RunningControllers;
use super::connect::{Connection, user_agent};
use super::controller_table::{Descriptor, TOKEN_CONTROLLER};
use super::leader_migration::{LeaderMigration, Lease};
use super::pipeline::Pipeline;
use super::served_versions::SERVED_VERSIONS;
use super::service_accounts;
use crate::cache::{Outages, SharedInformerFactory, VersionLosses};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::{
    ClientBuilder, Controller, ControllerContext, ControllerContextParts, DebugHandler,
    DebugRequest, Watcher,
};
use crate::leaderelection::Work;
use crate::options::{Options, show_duration};
use crate::server::health::HealthChecks;
use crate::server::routes::Routes;
use crate::server::{Handler, Request, Response, handler};
use crate::shadow::Shadow;
use crate::task::{Failure, Latch, StopToken, TaskGroup, caught};

/// How long the start waits for a healthy API server, and the time between two questions.
/// Upstream: `WaitForAPIServer`.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(10);
const API_SERVER_RETRY: Duration = Duration::from_secs(1);
/// The period of [`reset_discovery`].
const DISCOVERY_RESET: Duration = Duration::from_secs(30);
/// The time between two choices of the served versions: while some are not known, and afterwards.
/// Those that are served no longer are found at once, by requests that fail.
const VERSIONS_RETRY: Duration = Duration::from_secs(5);
const VERSIONS_PERIOD: Duration = Duration::from_secs(5 * 60);
/// After an outage of the API server failed keys are retried within this time.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// The longest wait for all controllers to run: the caches of some may never sync.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// The name of the client that creates accounts and their tokens.
const ACCOUNTS: &str = "token-requests";
/// A controller starts after the start interval and up to as much again.
const START_JITTER: f64 = 1.0;

/// The parts that start-up creates before it takes the lease.
#[derive(Clone)]
pub struct RunContext {
    pub program: Arc<dyn Program>,
    pub options: Arc<Options>,
    pub connection: Arc<dyn Connection>,
    pub health: HealthChecks,
    /// The served paths; the controllers add their debug handlers.
    pub routes: Routes,
    /// Shows what runs.
    pub pipeline: Pipeline,
    pub clock: SharedClock,
    pub migration: Option<LeaderMigration>,
    /// The lease that is held. It decides which controllers run.
    pub lease: Lease,
    /// Opens when controllers have been started under the main lease.
    pub running: Latch,
    /// The losses of versions that the caches and the election notice.
    pub history: VersionLosses,
    /// In shadow mode: compares this manager with the manager in charge.
    pub shadow: Option<Shadow>,
}

impl RunContext {
    /// Returns whether the controller runs under this lease, by the leader migration.
    fn runs(&self, row: &Descriptor) -> bool {
        let lease = self.migration.as_ref().map_or(Lease::Main, |m| m.lease_of(row.name()));
        lease == self.lease
    }
}

/// The reason why the controllers do not run, or did not end in order.
#[derive(Debug, PartialEq)]
pub struct Failed {
    pub error: String,
    /// Whether controllers may still write.
    pub work: Work,
}

impl Failed {
    /// Makes the failure of a run in which no controller runs any more.
    fn ended(error: String) -> Failed {
        Failed { error, work: Work::Ended }
    }
}

/// Runs the controllers of one lease until `stop`, or until a controller or an informer fails.
///
/// # Errors
/// When the API server is not healthy in time, when a controller or an informer fails, or when
/// controllers do not end in their time.
pub async fn run(started: RunContext, stop: StopToken) -> Result<(), Failed> {
    // Stops when a controller or an informer fails, too.
    let (stop, failure) = (stop.child(), Failure::new());
    let RunContext { program, options, connection, health, routes, clock, .. } = &started;
    let Some(healthy) = stop.unless_stopped(wait_for_api_server(&**connection, clock)).await else {
        return Ok(());
    };
    healthy.map_err(|error| {
        Failed::ended(format!("failed to wait for apiserver being healthy: {error}"))
    })?;

    // A sync under way may have hundreds of requests left, at a few in a second.
    let connection = &connection.stopped_by(stop.clone());
    let tasks = TaskGroup::new();
    tasks.spawn(reset_discovery(connection.clone(), clock.clone(), stop.clone()));
    let streams = options.feature_gates.enabled("WatchListClient");
    let reader = connection.client(&user_agent(options.program, "shared-informers"));
    let are_known = stop.unless_stopped(choose_versions(&reader)).await == Some(true);
    tasks.spawn(follow_versions(reader.clone(), clock.clone(), stop.clone(), are_known));
    let source = connection.source(reader, streams);
    let source = match &started.shadow {
        Some(shadow) => shadow.tap(source),
        None => source,
    };
    let (resync, history) = (resync_period(options), started.history.clone());
    let factory = SharedInformerFactory::with_history(source, clock.clone(), resync, history);
    let context = ControllerContext::new(ControllerContextParts {
        options: options.clone(),
        factory: factory.clone(),
        clients: clients(options, connection, clock),
        clock: clock.clone(),
        extension: program.extension(),
    });

    if let Some(shadow) = &started.shadow {
        context.supervise(shadow.supervisor());
    }
    let mut controllers = match started.lease {
        Lease::Main => program.further_controllers(&context).map_err(Failed::ended)?,
        Lease::Migration | Lease::Others => Vec::new(),
    };
    let runs = |row: &&Descriptor| row.exists_in(options.release()) && started.runs(row);
    let rows = program.controllers().iter().filter(runs);
    controllers.extend(build(rows, options, &context).map_err(Failed::ended)?);
    for controller in &controllers {
        if let Some(debug) = controller.debug_handler() {
            routes.add_debug(controller.name(), http_handler(debug));
        }
    }
    let watchers: Vec<Watcher> = controllers.iter().map(Controller::watcher).collect();
    let accounts = accounts(&**program, &controllers);
    let _registration = started.pipeline.show(&factory, watchers.clone());
    factory.start(&stop);
    if let Some(outages) = factory.outages() {
        tasks.spawn(retry_after_outages(outages.clone(), watchers.clone(), stop.clone()));
    }
    let running = Arc::new(Mutex::new(BTreeSet::new()));
    for controller in controllers {
        tasks.spawn(run_one(controller, options, health, &running, clock, &stop, &failure));
    }
    if started.lease == Lease::Main {
        started.running.open();
    }
    let all_run = all_run(watchers.clone(), clock.clone());
    if let Some(shadow) = started.shadow.clone() {
        let stop = stop.clone();
        tasks.spawn(async move {
            // The garbage collector's monitors do not see a write before their watches begin.
            if stop.unless_stopped(all_run).await.is_some() {
                shadow.begin(watchers);
                shadow.run(&stop).await;
            }
        });
    } else if options.use_service_account_credentials {
        let client = connection.client(&user_agent(options.program, ACCOUNTS));
        let (clock, stop) = (clock.clone(), stop.clone());
        tasks.spawn(async move {
            // Not earlier: the start must not wait for accounts that are not needed yet.
            if stop.unless_stopped(all_run).await.is_some() {
                service_accounts::create_all(client, accounts, clock, stop).await;
            }
        });
    }
    let informers = async { failure.report(factory.failed().await) };
    stop.unless_stopped(failure.reported().or(informers)).await;
    stop.stop();

    let waiting = log_running(&running, options, clock);
    let timeout = options.controller_shutdown_timeout;
    let (events, informers) = (context.shutdown_events(), factory.shutdown());
    let ended = shut_down(clock, timeout, tasks.join().or(waiting), events, informers).await;
    let running = running.lock().clone();
    let work = match ended {
        Some(()) if running.is_empty() => Work::Ended,
        _ => Work::Unfinished,
    };
    if ended.is_none() {
        let timeout = show_duration(timeout);
        log::info!("Controller shutdown timeout {timeout} reached, still running: {running:?}");
    }
    match (failure.get(), ended) {
        (Some(failure), _) => Err(Failed { error: failure.to_owned(), work }),
        (None, Some(())) => Ok(()),
        (None, None) => Err(Failed { error: "controller shutdown timeout reached".into(), work }),
    }
}

/// Waits until all controllers run, or for [`START_PATIENCE`].
async fn all_run(watchers: Vec<Watcher>, clock: SharedClock) {
    let run = async {
        for watcher in &watchers {
            watcher.runs().await;
        }
    };
    run.or(clock.sleep(START_PATIENCE)).await;
}

/// Returns the service accounts of these controllers. The token controller has none: it runs under
/// the manager's own credentials.
fn accounts(program: &dyn Program, controllers: &[Controller]) -> BTreeSet<&'static str> {
    let runs =
        |row: &&Descriptor| controllers.iter().any(|controller| controller.name() == row.name());
    let rows = program.controllers().iter().filter(runs);
    rows.filter(|row| row.name() != TOKEN_CONTROLLER).map(|row| row.profile.account).collect()
}

/// Logs from time to time which controllers have not ended yet. Never resolves.
async fn log_running<T>(
    running: &Mutex<BTreeSet<&'static str>>,
    options: &Options,
    clock: &SharedClock,
) -> T {
    let period = match options.controller_shutdown_timeout / 3 {
        // Zero: the shutdown has no limit.
        Duration::ZERO => Duration::from_secs(5),
        third => third,
    };
    loop {
        clock.sleep(period).await;
        let running = running.lock().clone();
        log::info!("Still waiting for some controllers to terminate: {running:?}");
    }
}

/// Waits until the API server is healthy; fails with its last answer after a time limit.
/// Upstream: `genericcontrollermanager.WaitForAPIServer`.
async fn wait_for_api_server(
    connection: &dyn Connection,
    clock: &SharedClock,
) -> Result<(), String> {
    let deadline = clock.monotonic() + API_SERVER_TIMEOUT;
    loop {
        match connection.healthz().await {
            Ok(()) => return Ok(()),
            Err(error) if clock.monotonic() >= deadline => return Err(error),
            Err(error) => {
                log::warn!("APIServer isn't healthy yet: {error}. Waiting a little while.");
            }
        }
        clock.sleep(API_SERVER_RETRY).await;
    }
}

/// Asks the API server in which of their versions the resources of [`SERVED_VERSIONS`] are served.
/// Returns whether all are known now.
async fn choose_versions(reader: &Client) -> bool {
    match reader.choose_versions(SERVED_VERSIONS).await {
        Ok(are_known) => are_known,
        Err(error) => {
            log::warn!("the served versions cannot be read: {error}");
            false
        }
    }
}

/// Chooses the versions again from time to time, until the stop. `are_known`: whether the first
/// choice has found all.
async fn follow_versions(reader: Client, clock: SharedClock, stop: StopToken, mut are_known: bool) {
    loop {
        let period = if are_known { VERSIONS_PERIOD } else { VERSIONS_RETRY };
        if stop.unless_stopped(clock.sleep(period)).await.is_none() {
            return;
        }
        // Once known they stay in use while they cannot be read.
        are_known |= stop.unless_stopped(choose_versions(&reader)).await == Some(true);
    }
}

/// Drops the result of discovery from time to time, so that new kinds are noticed.
async fn reset_discovery(connection: Arc<dyn Connection>, clock: SharedClock, stop: StopToken) {
    while stop.unless_stopped(clock.sleep(DISCOVERY_RESET)).await.is_some() {
        connection.reset_discovery();
    }
}

/// Makes failed keys retry soon after each outage of the API server. Such a key may otherwise wait
/// for minutes, and no event queues it: a list passes unchanged objects to no handler.
async fn retry_after_outages(outages: Outages, watchers: Vec<Watcher>, stop: StopToken) {
    let mut known = outages.ended();
    while stop.unless_stopped(outages.more_than(known)).await.is_some() {
        known = outages.ended();
        watchers.iter().for_each(|watcher| watcher.advance_retries(RETRY_PERIOD));
    }
}

/// Returns how the controllers get their clients: all as one user, or each as its account.
fn clients(
    options: &Options,
    connection: &Arc<dyn Connection>,
    clock: &SharedClock,
) -> Arc<dyn ClientBuilder> {
    let (program, connection) = (options.program, connection.clone());
    if !options.use_service_account_credentials {
        return Arc::new(SimpleClients { program, connection });
    }
    let root = connection.client(&user_agent(program, ACCOUNTS));
    Arc::new(ServiceAccountClients { program, connection, root, clock: clock.clone() })
}

/// Constructs the controllers of `rows`, except those that are disabled or have no work.
fn build<'a>(
    rows: impl Iterator<Item = &'a Descriptor>,
    options: &Options,
    context: &Arc<ControllerContext>,
) -> Result<Vec<Controller>, String> {
    let mut controllers = Vec::new();
    for row in rows {
        if let Some(reason) = row.skip_reason(options) {
            log::info!("Warning: {reason}: {}", row.name());
            continue;
        }
        let controller = row.construct(context)?;
        match controller.is_idle() {
            true => log::info!("Warning: skipping controller: {}", row.name()),
            false => controllers.push(controller),
        }
    }
    Ok(controllers)
}

/// Returns a random time between once and twice `--min-resync-period`, so that managers do not
/// resync together.
/// Upstream: `ResyncPeriod`.
fn resync_period(options: &Options) -> Duration {
    options.min_resync_period.mul_f64(1.0 + fastrand::f64())
}

/// Converts a controller's debug handler into one of the HTTP server.
fn http_handler(debug: DebugHandler) -> Handler {
    handler(move |request: &Request| {
        let query = request.query_pairs().collect();
        match debug(&DebugRequest { path: &request.path, query }) {
            Some(answer) => Response::new(200, answer.content_type, answer.body),
            // As Go's `http.Error` with an empty text.
            None => Response::text(404, "\n"),
        }
    })
}

/// Runs a controller after a jittered start interval, until it ends. Its failure, and an end before
/// the stop, are reported to `failure`. A controller that panics stays in `running`: its tasks are
/// no longer joined.
fn run_one(
    controller: Controller,
    options: &Options,
    health: &HealthChecks,
    running: &Arc<Mutex<BTreeSet<&'static str>>>,
    clock: &SharedClock,
    stop: &StopToken,
    failure: &Failure,
) -> impl Future<Output = ()> + Send + use<> {
    let (name, own_failure) = (controller.name(), controller.failure());
    let seen = own_failure.clone();
    let check = move || seen.get().map_or(Ok(()), |failure| Err(failure.to_owned()));
    health.add(name, Arc::new(check));
    let wait = options.controller_start_interval.mul_f64(1.0 + START_JITTER * fastrand::f64());
    let (running, clock, stop) = (running.clone(), clock.clone(), stop.clone());
    let (failure, manager) = (failure.clone(), options.program);
    async move {
        if stop.unless_stopped(clock.sleep(wait)).await.is_none() {
            return;
        }
        log::info!("Controller starting: {name}");
        running.lock().insert(name);
        RunningControllers::set(manager, name, true);
        let work = async {
            let ended = caught(controller.run(stop.clone())).await;
            match &ended {
                Err(panic) => own_failure.report(format!("{name} panicked: {panic}")),
                Ok(()) if !stop.is_stopped() => own_failure.report(format!("{name} has ended")),
                Ok(()) => (),
            }
            ended.is_ok()
        };
        // A failed controller may take long to end; the process does not wait for it.
        let failed = async {
            own_failure.reported().await;
            failure.report(own_failure.get().unwrap_or(name).to_owned());
            std::future::pending().await
        };
        let is_over = work.or(failed).await;
        if let Some(reported) = own_failure.get() {
            log::error!("{reported}");
            failure.report(reported.to_owned());
        }
        if is_over {
            running.lock().remove(name);
        }
        RunningControllers::set(manager, name, false);
        log::info!("Controller terminated: {name}");
    }
}

/// Waits for the controllers, then for their events and the informers. `None`: the controllers took
/// longer than `timeout`. Events have a limit of their own, and informers only read: a process that
/// is slow, or has few pages of memory, ends in order without them.
async fn shut_down(
    clock: &SharedClock,
    timeout: Duration,
    controllers: impl Future<Output = ()>,
    events: impl Future<Output = ()>,
    informers: impl Future<Output = ()>,
) -> Option<()> {
    within(clock, timeout, controllers).await?;
    log::info!("All controllers terminated");
    events.await;
    if within(clock, timeout, informers).await.is_none() {
        log::info!("Some informers have not ended within {}", show_duration(timeout));
    }
    Some(())
}

/// Returns `future`'s output, or `None` when it takes longer than `timeout`. A `timeout` of zero
/// does not limit it.
async fn within<T>(
    clock: &SharedClock,
    timeout: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    if timeout.is_zero() {
        return Some(future.await);
    }
    let late = async {
        clock.sleep(timeout).await;
        None
    };
    async { Some(future.await) }.or(late).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_lite::future::{Boxed, block_on, poll_once};

    use super::*;
    use crate::app::connect::TokenSource;
    use crate::app::program::KubeControllerManager;
    use crate::cache::Source;
    use serde_json::{Value, json};

    use crate::client::{self, Guard, Interceptor};
    use crate::clock::FakeClock;
    use crate::controllers::DebugAnswer;
    use crate::objects::{DeviceTaintRule, Resource, ResourceType, Timestamp};

    /// An API server that becomes healthy after this number of checks.
    struct Sick(AtomicUsize);

    impl Connection for Sick {
        fn client(&self, _: &str) -> Client {
            unreachable!("health is asked without a client")
        }
        fn client_with_tokens(&self, _: &str, _: Arc<dyn TokenSource>) -> Result<Client, String> {
            unreachable!("health is asked without a client")
        }
        fn guarded(&self, _: Guard) -> Arc<dyn Connection> {
            unreachable!("health is asked without a client")
        }
        fn stopped_by(&self, _: StopToken) -> Arc<dyn Connection> {
            unreachable!("health is asked without a client")
        }
        fn intercepted(&self, _: Arc<dyn Interceptor>) -> Arc<dyn Connection> {
            unreachable!("health is asked without a client")
        }
        fn source(&self, _: Client, _: bool) -> Arc<dyn Source> {
            unreachable!("health is asked without a client")
        }
        fn version(&self) -> Boxed<client::Result<Value>> {
            unreachable!("health is asked for alone")
        }
        fn healthz(&self) -> Boxed<Result<(), String>> {
            let left = self.0.fetch_sub(1, Ordering::SeqCst);
            Box::pin(async move { if left == 0 { Ok(()) } else { Err(format!("{left} left")) } })
        }
        fn reset_discovery(&self) {}
    }

    #[test]
    fn the_api_server_has_ten_seconds() {
        let wait = |questions: usize| {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let shared: SharedClock = clock.clone();
            let sick = Sick(AtomicUsize::new(questions));
            let mut waiting = Box::pin(wait_for_api_server(&sick, &shared));
            let mut seconds = 0;
            loop {
                match block_on(poll_once(&mut waiting)) {
                    Some(result) => return (seconds, result),
                    None => clock.advance(API_SERVER_RETRY),
                }
                seconds += 1;
            }
        };
        assert_eq!(wait(0), (0, Ok(())));
        assert_eq!(wait(3), (3, Ok(())));
        assert_eq!(wait(10), (10, Ok(())));
        assert_eq!(wait(12), (10, Err("2 left".into())));
    }

    /// The first answer lacks the group of one resource.
    #[test]
    fn versions_are_chosen_again_soon_while_unknown_and_then_from_time_to_time() {
        const RULES: ResourceType = DeviceTaintRule::RESOURCE;
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let answer = move |line: &str| {
            if line.starts_with("GET /api ") {
                return (404, json!({}));
            }
            let kind = json!({
                "resource": RULES.plural, "scope": "Cluster",
                "responseKind": { "kind": RULES.kind },
            });
            let version = match counted.fetch_add(1, Ordering::SeqCst) {
                0 => json!({ "version": "v1", "freshness": "Stale" }),
                1 => json!({ "version": "v1beta2", "resources": [kind] }),
                _ => json!({ "version": "v1", "resources": [kind] }),
            };
            let group = json!({ "metadata": { "name": RULES.group }, "versions": [version] });
            (200, json!({ "kind": "APIGroupDiscoveryList", "items": [group] }))
        };
        let (clock, stop) = (FakeClock::new(Timestamp::from_secs(0)), StopToken::new());
        block_on(async {
            let reader = client::testing::answering(answer).await;
            let are_known = choose_versions(&reader).await;
            assert!(!are_known);
            let follows = follow_versions(reader.clone(), clock.clone(), stop.clone(), are_known);
            let mut follows = Box::pin(follows);
            assert!(poll_once(&mut follows).await.is_none());
            for (wait, version) in [(VERSIONS_RETRY, "v1beta2"), (VERSIONS_PERIOD, "v1")] {
                const LITTLE: Duration = Duration::from_millis(1);
                let before = reads.load(Ordering::SeqCst);
                clock.advance(wait - LITTLE);
                assert!(poll_once(&mut follows).await.is_none());
                assert_eq!(clock.sleepers(), 1, "it still waits");
                clock.advance(LITTLE);
                // Until it waits again.
                while reads.load(Ordering::SeqCst) == before || clock.sleepers() == 0 {
                    assert!(poll_once(&mut follows).await.is_none());
                }
                assert_eq!(reads.load(Ordering::SeqCst), before + 1);
                assert_eq!(reader.served(&RULES).version, version);
            }
            stop.stop();
            follows.await;
        });
    }

    /// Panics when it is asked for anything.
    struct Broken;

    impl Connection for Broken {
        fn client(&self, _: &str) -> Client {
            panic!("as the test asks")
        }
        fn client_with_tokens(&self, _: &str, _: Arc<dyn TokenSource>) -> Result<Client, String> {
            panic!("as the test asks")
        }
        fn guarded(&self, _: Guard) -> Arc<dyn Connection> {
            panic!("as the test asks")
        }
        fn stopped_by(&self, _: StopToken) -> Arc<dyn Connection> {
            panic!("as the test asks")
        }
        fn intercepted(&self, _: Arc<dyn Interceptor>) -> Arc<dyn Connection> {
            panic!("as the test asks")
        }
        fn source(&self, _: Client, _: bool) -> Arc<dyn Source> {
            panic!("as the test asks")
        }
        fn version(&self) -> Boxed<client::Result<Value>> {
            panic!("as the test asks")
        }
        fn healthz(&self) -> Boxed<Result<(), String>> {
            panic!("as the test asks")
        }
        fn reset_discovery(&self) {}
    }

    #[test]
    fn a_panic_during_the_start_is_an_error_of_the_process() {
        let started = RunContext {
            program: Arc::new(KubeControllerManager),
            options: Arc::default(),
            connection: Arc::new(Broken),
            health: HealthChecks::new(),
            routes: Routes::new(),
            pipeline: Pipeline::new(),
            clock: FakeClock::new(Timestamp::from_secs(0)),
            migration: None,
            lease: Lease::Main,
            running: Latch::new(),
            history: VersionLosses::default(),
            shadow: None,
        };
        let ended = block_on(crate::app::run_controllers(started, StopToken::new()));
        let error = "the start of the controllers panicked: as the test asks".to_owned();
        assert_eq!(ended, Err(Failed { error, work: Work::Unfinished }));
    }

    #[test]
    fn a_failed_controller_fails_its_health_check_and_the_process() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut controller = Controller::for_test("test-fails", 1, clock.clone());
        controller.background(|_| async { panic!("as the test asks") });
        let (health, failure) = (HealthChecks::new(), Failure::new());
        let (options, running) = (Options::default(), Arc::default());
        let (clock, stop): (SharedClock, _) = (clock, StopToken::new());
        block_on(run_one(controller, &options, &health, &running, &clock, &stop, &failure));
        let expected = "test-fails: a task of the controller panicked";
        assert_eq!(failure.get(), Some(expected));
        let check = health.answer("healthz", &Request::get("/healthz/test-fails"));
        assert_eq!(check.status, 500);
        assert!(running.lock().is_empty());
    }

    #[test]
    fn a_controller_that_panics_outside_of_its_tasks_may_still_work() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut controller = Controller::for_test("test-panics", 1, clock.clone());
        controller.background(|_| -> std::future::Ready<()> { panic!("as the test asks") });
        let (health, failure) = (HealthChecks::new(), Failure::new());
        let (options, running) = (Options::default(), Arc::default());
        let (clock, stop): (SharedClock, _) = (clock, StopToken::new());
        block_on(run_one(controller, &options, &health, &running, &clock, &stop, &failure));
        assert_eq!(failure.get(), Some("test-panics panicked: as the test asks"));
        assert_eq!(*running.lock(), ["test-panics"].into());
    }

    #[test]
    fn the_resync_period_is_jittered() {
        let min_resync_period = Duration::from_secs(100);
        let options = Options { min_resync_period, ..Options::default() };
        let periods: BTreeSet<Duration> = (0..50).map(|_| resync_period(&options)).collect();
        assert!(periods.iter().all(|p| (min_resync_period..2 * min_resync_period).contains(p)));
        assert!(periods.len() > 1);
        let options = Options { min_resync_period: Duration::ZERO, ..Options::default() };
        assert_eq!(resync_period(&options), Duration::ZERO);
    }

    #[test]
    fn debug_handlers_answer_under_the_name_of_their_controller() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let mut controller = Controller::for_test("gc", 1, clock);
        controller.debug(|request: &DebugRequest<'_>| {
            let body = format!("{:?}", request.query);
            (request.path == "/graph").then_some(DebugAnswer { content_type: "text/dot", body })
        });
        let routes = Routes::new();
        routes.add_debug("gc", http_handler(controller.debug_handler().expect("it was set")));
        let ask = |path: &str| block_on(routes.answer(Request::get(path)));
        let page = ask("/debug/controllers/gc/graph?uid=a&b&uid=c");
        assert_eq!(page.content(), br#"[("uid", "a"), ("b", ""), ("uid", "c")]"#);
        assert_eq!((page.status, page.headers[0].1.as_bytes()), (200, b"text/dot".as_slice()));
        assert_eq!(ask("/debug/controllers/gc/graph").content(), b"[]");
        for path in ["/debug/controllers/gc", "/debug/controllers/gc/x"] {
            assert_eq!((ask(path).status, ask(path).content()), (404, b"\n".as_slice()), "{path}");
        }
    }

    #[test]
    fn only_controllers_that_do_not_end_are_a_failure() {
        let limit = Duration::from_secs(10);
        // Which of controllers, events and informers take longer than the limit.
        for (controllers, events, informers, expected) in [
            (false, false, false, Some(())),
            (true, false, false, None),
            (false, true, false, Some(())),
            (false, false, true, Some(())),
            (false, true, true, Some(())),
        ] {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let shared: SharedClock = clock.clone();
            let part = |is_slow: bool| {
                let time = if is_slow { limit + Duration::from_secs(1) } else { Duration::ZERO };
                shared.sleep(time)
            };
            let parts = (part(controllers), part(events), part(informers));
            let mut ending = Box::pin(shut_down(&shared, limit, parts.0, parts.1, parts.2));
            let mut seconds = 0;
            let ended = loop {
                match block_on(poll_once(&mut ending)) {
                    Some(ended) => break ended,
                    None => clock.advance(Duration::from_secs(1)),
                }
                seconds += 1;
                assert!(seconds < 100, "it ends");
            };
            assert_eq!(ended, expected, "{controllers} {events} {informers}");
        }
    }

    #[test]
    fn the_end_has_its_time_and_zero_is_no_limit() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let shared: SharedClock = clock.clone();
        let limit = Duration::from_secs(10);
        assert_eq!(block_on(within(&shared, limit, async { 1 })), Some(1));
        let mut late = Box::pin(within(&shared, limit, std::future::pending::<()>()));
        assert_eq!(block_on(poll_once(&mut late)), None);
        clock.advance(limit);
        assert_eq!(block_on(poll_once(&mut late)), Some(None));
        let mut endless = Box::pin(within(&shared, Duration::ZERO, std::future::pending::<()>()));
        assert_eq!(block_on(poll_once(&mut endless)), None);
        clock.advance(limit);
        assert_eq!(block_on(poll_once(&mut endless)), None);
    }
}
