//! Start-up in upstream's order: check the flags, log, configure the client, serve, take the lease,
//! and run the controllers under it. Upstream: `cmd/kube-controller-manager/app`.

mod client_builder;
mod component_metrics;
pub mod configz;
pub mod connect;
pub mod controller_table;
mod delegated_auth;
mod follow;
mod leader_election;
pub mod leader_migration;
mod lease_candidate;
mod memory;
mod notices;
mod pipeline;
mod program;
mod served_versions;
mod service_accounts;
mod serving;
mod shadow;
mod start;
mod traces;

use parking_lot::Mutex;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::VersionLosses;
use crate::client::Guard;
use crate::clock::{SharedClock, SystemClock};
use crate::leaderelection::{Ended, HealthzAdaptor, Work, new_identity};
use crate::lines::escaped;
use crate::logging::{self, Verbosity};
use crate::open_files;
use crate::options::{self, Command, Manual, Options, PROGRAM};
use crate::server::health::HealthChecks;
use crate::shadow::Shadow;
use crate::task::{self, Latch, StopToken, TaskGroup, caught, panics, stop_on_signal};

use connect::{Connect, Connection, Target, user_agent};
use controller_table::is_known;
use futures_lite::future;
use leader_election::Contender;
use leader_migration::{LeaderMigration, Lease};
use lease_candidate::LeaseCandidate;
use pipeline::Pipeline;
use program::KubeControllerManager;
pub use program::Program;
pub use served_versions::SERVED_VERSIONS;
use start::{Failed, RunContext};

/// The first paragraph of `--help`.
const ABOUT: &str = "The Kubernetes controller manager watches the state of the cluster through \
                     the API server\nand makes changes that move it towards the state that is \
                     wanted.";

/// The name of the health check of the second lease.
const MIGRATION_CHECK: &str = "leaderMigration";

/// How long after its lease has expired a leader that cannot renew counts as healthy.
const ELECTION_TOLERANCE: Duration = Duration::from_secs(20);

/// The threads that run the manager's tasks. One thread suffices for a large cluster; a second one
/// costs a fifth more CPU: see `docs/performance.md`.
pub const THREADS: usize = 1;

/// Runs the program: does what its arguments ask for. Call it once, from no task.
pub fn main(args: &[String]) -> ExitCode {
    match options::parse(args) {
        Ok(Command::Run(options)) => task::run(THREADS, run(options, connect::connect)),
        Ok(Command::Help) => options::answer(Ok(usage())),
        Ok(Command::Version(how)) => options::answer(Ok(options::version(&how))),
        Err(error) => options::answer(Err(error)),
    }
}

/// Runs the manager with `options` until a signal, a lost lease or an error; errors are printed on
/// stderr, a line each.
pub async fn run(options: Options, connect: Connect) -> ExitCode {
    run_program(Arc::new(KubeControllerManager), options, connect).await
}

/// Runs another manager as [`run`] does: checks its options, then runs it until stopped.
pub async fn run_program(
    program: Arc<dyn Program>,
    options: Options,
    connect: Connect,
) -> ExitCode {
    let problems = program.problems(&options);
    let ended = match problems.is_empty() {
        true => run_until_stopped(program, options, connect).await,
        false => Err(problems),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            for error in errors {
                eprintln!("Error: {}", escaped(&error));
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns the text of `--help`.
pub fn usage() -> String {
    let (controllers, off) = controller_table::names(controller_table::CONTROLLERS);
    let manual = Manual { program: PROGRAM, about: ABOUT, controllers: &controllers, off: &off };
    options::usage(&manual, options::FLAGS, &Options::default())
}

/// Prepares, serves and then runs the controllers; a stop before the election ends it early.
async fn run_until_stopped(
    program: Arc<dyn Program>,
    options: Options,
    connect: Connect,
) -> Result<(), Vec<String>> {
    let prepared = prepare(program, options, connect)?;
    let Some(mut served) = serve(prepared, connect).await? else { return Ok(()) };
    if follow_release(&mut served).await? {
        return run_elected(served).await;
    }
    served.serving.stop();
    served.tasks.join().await;
    Ok(())
}

/// The parts of the process that exist before anything is served.
struct Prepared {
    program: Arc<dyn Program>,
    options: Arc<Options>,
    clock: SharedClock,
    verbosity: Verbosity,
    /// Stops with a signal.
    stop: StopToken,
    migration: Option<LeaderMigration>,
    connection: Arc<dyn Connection>,
    shadow: Option<Shadow>,
}

/// Sets up the log and the metrics, and creates the connection, the migration and the shadow: all
/// that needs no answer of the API server.
fn prepare(
    program: Arc<dyn Program>,
    options: Options,
    connect: Connect,
) -> Result<Prepared, Vec<String>> {
    let clock = SystemClock::shared();
    if options.version.0.starts_with('v') {
        options::report_version(&options.version.0);
    }
    let json = options.logging_format == "json";
    let log = logging::Settings {
        program: program.log_target(),
        json,
        split: if json { options.log_json_split_stream } else { options.log_text_split_stream },
        verbosity: options.v.0,
        modules: &options.vmodule.0,
    };
    let verbosity = logging::init(&log, clock.clone());
    crate::metrics::disable(&options.disabled_metrics);
    crate::metrics::process_stats::register();
    announce(&*program, &options);
    if !options.trace_object.0.is_empty() {
        traces::set(options.trace_object.0.clone(), &verbosity);
    }
    let options = Arc::new(if options.shadow { shadow::options(options) } else { options });
    let stop = stop_on_signal().map_err(|error| vec![format!("signals: {error}")])?;
    let migration = LeaderMigration::from_options(&options).map_err(|error| vec![error])?;
    let target = Target {
        kubeconfig: &options.kubeconfig,
        master: &options.master,
        qps: options.kube_api_qps,
        burst: options.kube_api_burst,
        content_type: &options.kube_api_content_type,
        read_only: options.shadow,
    };
    let mut connection = connect(&target).map_err(|error| match options.kubeconfig.as_str() {
        "" => vec![error],
        _ => vec![format!("--kubeconfig: {error}")],
    })?;
    let shadow = options.shadow.then(|| {
        let reader = connection.client(&user_agent(options.program, "shadow"));
        Shadow::new(&reader, clock.clone(), options.shadow_grace)
    });
    if let Some(shadow) = &shadow {
        connection = connection.intercepted(shadow.interceptor());
    }
    Ok(Prepared { program, options, clock, verbosity, stop, migration, connection, shadow })
}

/// Logs what starts, and how; raises the limit of open files.
fn announce(program: &dyn Program, options: &Options) {
    if options.v.0 >= 1 {
        for (name, value) in program.flags(options) {
            log::info!("FLAG: --{name}={value:?}");
        }
    }
    if let Some(stations) = panics::read_environment() {
        log::warn!("{} is set: it panics on purpose at {stations}", panics::VARIABLE);
    }
    open_files::raise_limit();
}

/// The parts of the process that exist before the lease is taken.
struct Served {
    context: RunContext,
    /// The health of the elections; `None`: without an election.
    main: Option<Arc<HealthzAdaptor>>,
    second: Option<Arc<HealthzAdaptor>>,
    stop: StopToken,
    /// The tasks beside the controllers, and what stops them.
    tasks: TaskGroup,
    serving: StopToken,
}

/// Serves health, metrics and the debug pages. Returns `None` if the process was stopped before.
async fn serve(prepared: Prepared, connect: Connect) -> Result<Option<Served>, Vec<String>> {
    let Prepared { program, options, clock, verbosity, stop, migration, connection, shadow } =
        prepared;
    let health = HealthChecks::new();
    let add_election_check = |name: &str| {
        let election = Arc::new(HealthzAdaptor::new(ELECTION_TOLERANCE));
        let asked = election.clone();
        health.add(name, Arc::new(move || asked.check()));
        election
    };
    let main = options.leader_elect.then(|| add_election_check(HealthzAdaptor::NAME));
    let second = migration.as_ref().map(|_| add_election_check(MIGRATION_CHECK));
    let (serving, tasks) = (StopToken::new(), TaskGroup::new());
    let pipeline = Pipeline::new();
    let routes =
        serving::routes(&program, &options, migration.as_ref(), &health, &verbosity, &clock);
    routes.add_unlisted("/debug/pipeline", pipeline.handler(&clock));
    if options.profiling {
        routes.add_unlisted(traces::PATH, traces::handler(&pipeline, &verbosity));
    }
    if let Some(shadow) = &shadow {
        routes.add_unlisted("/debug/shadow", shadow::served(shadow));
    }
    let served = serving::serve(&options, &routes, connect, clock.clone(), &tasks, &serving);
    // Serving starts with requests to the API server, which may not answer.
    match stop.unless_stopped(served).await {
        Some(served) => served.map_err(|error| vec![error])?,
        None => return Ok(None),
    }
    if cfg!(target_env = "musl") {
        tasks.spawn(memory::release_regularly(clock.clone(), serving.clone()));
    }
    let (lease, running) = (Lease::Main, Latch::new());
    let context = RunContext {
        program,
        options,
        connection,
        health,
        routes,
        pipeline,
        clock,
        migration,
        lease,
        running,
        history: VersionLosses::default(),
        shadow,
    };
    Ok(Some(Served { context, main, second, stop, tasks, serving }))
}

/// Chooses the release to follow, and adapts the options, the pages and the metrics to it. Returns
/// false if the process was stopped before.
///
/// # Errors
/// The given feature gates, `--min-compatibility-version` and controllers that the release does not
/// allow, a line each.
async fn follow_release(served: &mut Served) -> Result<bool, Vec<String>> {
    let Served { context, stop, .. } = served;
    let RunContext { program, options, connection, clock, routes, .. } = context;
    let release = follow::release(options, &**connection, clock);
    let Some(release) = stop.unless_stopped(release).await else { return Ok(false) };
    let options = Arc::make_mut(options);
    let mut problems = options.follow(release).err().unwrap_or_default();
    let is_known = |name: &str| is_known(program.controllers(), name, &[release]);
    problems.extend(options::controller_faults(&options.controllers, &is_known));
    if !problems.is_empty() {
        return Err(problems);
    }
    serving::remove_gated(routes, options);
    options::report_release(release);
    log::info!("Starting version {}", options::git_version());
    component_metrics::register(options);
    for notice in program.notices(options) {
        log::warn!("{notice}");
    }
    Ok(true)
}

/// Runs the controllers until stopped, under the lease if there is an election; then prints the
/// report of shadow mode, if it has begun. After a lost lease it returns at once: see
/// [`result_of_run`].
async fn run_elected(served: Served) -> Result<(), Vec<String>> {
    let failure = match &served.main {
        Some(main) => lead(&served, main).await?,
        None => run_without_lease(&served).await,
    };
    served.serving.stop();
    served.tasks.join().await;
    let ended = failure.map_or(Ok(()), |error| Err(vec![error]));
    match served.context.shadow.filter(Shadow::has_begun) {
        Some(shadow) => shadow::print_report(&served.context.options, &shadow, ended),
        None => ended,
    }
}

/// Runs the controllers until stopped; returns the error of their failure, if they failed.
async fn run_without_lease(served: &Served) -> Option<String> {
    let (context, stop) = (&served.context, served.stop.child());
    let timed = shadow::stop_after_shadow_for(
        &context.options,
        context.shadow.as_ref(),
        &context.clock,
        &stop,
    );
    let ended = future::or(run_controllers(context.clone(), stop.clone()), timed).await;
    ended.err().map(|failed| failed.error)
}

/// Takes the lease, and that of a leader migration, and runs the controllers of each while it is
/// held. Returns the error of the controllers, if they failed. `Err`: as [`result_of_run`], or a
/// coordinated election has no candidate.
async fn lead(served: &Served, main: &HealthzAdaptor) -> Result<Option<String>, Vec<String>> {
    let Served { context, second, stop, tasks, serving, .. } = served;
    let RunContext { options, connection, clock, health, history, .. } = context;
    // Stops with the signal, and when the work ends by itself.
    let leading = stop.child();
    let failure = Arc::new(Mutex::new(None));
    let work_under = |lease: Lease| {
        let (over, cause) = (leading.clone(), failure.clone());
        let context = RunContext { lease, ..context.clone() };
        move |stop: StopToken, guard: Guard| async move {
            let connection = context.connection.guarded(guard);
            let ended = run_controllers(RunContext { connection, ..context }, stop).await;
            let work = match ended {
                Ok(()) => Work::Ended,
                Err(Failed { error, work }) => {
                    log::error!("{error}");
                    *cause.lock() = Some(error);
                    work
                }
            };
            over.stop();
            work
        }
    };
    let client = &connection.client(&user_agent(options.program, "leader-election")).for_lease();
    let identity = &new_identity();
    let contender = Contender { options, client, clock, identity, history, stop: &leading };
    let coordinated = Contender::is_coordinated(options);
    if coordinated {
        let candidate = LeaseCandidate::new(options, connection, identity, clock)
            .map_err(|error| vec![error])?;
        health.add("informer-sync", candidate.check());
        tasks.spawn(candidate.run(serving.clone()));
    }
    // The election under the main lease, then that under the lease of the migration.
    let (name, work) = (&options.leader_elect_resource_name, work_under(Lease::Main));
    let led = async { result_of_run(contender.lead(name, coordinated, main, work).await) };
    let migrated = async {
        let (Some(migration), Some(health)) = (&context.migration, second) else { return Ok(()) };
        // The holder of the first lease takes the second too: two managers never hold one each.
        if leading.unless_stopped(context.running.opened()).await.is_none() {
            return Ok(());
        }
        let name = &migration.leader_name;
        // There is no candidate for the second lease, so the API server would give it to no one.
        result_of_run(contender.lead(name, false, health, work_under(Lease::Migration)).await)
    };
    future::try_zip(led, migrated).await?;
    log::info!("Requested to terminate. Exiting.");
    let failure = failure.lock().take();
    Ok(failure)
}

/// Runs the controllers as [`start::run`] does; a panic is an error too, so that no lease is held
/// without controllers.
async fn run_controllers(started: RunContext, stop: StopToken) -> Result<(), Failed> {
    let ended = caught(start::run(started, stop)).await;
    ended.unwrap_or_else(|panic| {
        let error = format!("the start of the controllers panicked: {panic}");
        Err(Failed { error, work: Work::Unfinished })
    })
}

/// Logs a lost lease, and returns whether the process may end in order. `Err`: it must end
/// immediately; contains the errors that are not printed yet.
fn result_of_run(ended: Result<Ended, String>) -> Result<(), Vec<String>> {
    match ended.map_err(|error| vec![error])? {
        Ended::NeverLed | Ended::Stopped => Ok(()),
        Ended::Lost => {
            log::error!("leaderelection lost");
            // Nothing remains to be printed: the loss is logged.
            Err(Vec::new())
        }
    }
}
