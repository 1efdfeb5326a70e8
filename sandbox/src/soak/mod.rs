//! A soak: two managers under faults and work of every kind. What must hold is checked on the way,
//! on every change, and in the end, when the faults have stopped.

mod audit;
mod clock;
mod etcd;
mod faults;
mod invariants;
mod managers;
mod observer;
mod outcome;
mod plan;
mod proxy;
mod report;
mod server;
mod webhook;
mod work;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::zip;
use parking_lot::Mutex;

use self::audit::Audit;
use self::clock::SteppedClock;
use self::faults::FaultInjector;
pub use self::invariants::Breach;
use self::managers::{Managers, Memory, SEATS};
use self::observer::Observer;
use self::outcome::Snapshot;
use self::plan::{Action, Fault, NODES, Work, plan};
pub use self::report::{MemoryReport, SoakReport};
use self::server::Server;
use self::work::{Administrator, Outcome};
use crate::cluster::ManagerProgram;
use crate::nodes::NodeOptions;
use crate::server::SandboxOptions;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The pause between two checks of what is new.
const TICK: Duration = Duration::from_millis(100);
/// The pause between two checks of all objects.
const POLL: Duration = Duration::from_millis(500);
/// How long managers are left in peace before their memory is read.
const REST: Duration = Duration::from_secs(3);
/// How often the leader's memory is tried.
const READINGS: usize = 40;
/// The findings that are shown of objects that are not as their specs say.
const SHOWN: usize = 20;

/// The soak to run.
pub struct Soak {
    pub sandbox: SandboxOptions,
    /// The folder with `etcd` and `kube-apiserver`, to run them in place of the embedded server.
    pub assets: Option<PathBuf>,
    /// How long faults and work come.
    pub length: Duration,
    pub seed: u64,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// How long the first rollout may take, and the way to the final state.
    pub patience: Duration,
}

struct Run {
    injector: FaultInjector,
    administrator: Administrator,
    clock: SharedClock,
    patience: Duration,
    stop: StopToken,
    report: Mutex<SoakReport>,
}

impl Soak {
    /// Runs all of it, with a line on stderr for each fault and each finding.
    ///
    /// # Errors
    /// What could not be started, or a first rollout that did not end in time. Findings are no
    /// errors: see [`SoakReport::is_sound`].
    pub async fn run(self, stop: StopToken) -> Result<SoakReport> {
        let clock = self.sandbox.clock.clone();
        let nodes = NodeOptions {
            count: NODES,
            start_delay: Duration::from_millis(300),
            stop_delay: Duration::from_millis(700),
            heartbeat: Duration::from_secs(2),
            events: false,
            real_volumes: None,
        };
        let report = SoakReport {
            manager: self.manager.to_string(),
            seed: self.seed,
            seconds: self.length.as_secs(),
            ..SoakReport::default()
        };
        eprintln!("seed {}", self.seed);
        let stepped = Arc::new(SteppedClock::new(clock.clone()));
        let mut options = self.sandbox;
        options.clock = stepped.clone();
        let server = Server::start(options, self.assets.as_deref(), nodes).await?;
        let (audit, flags) = (Arc::new(Audit::default()), self.manager_flags);
        let managers = Managers::new(&server, &audit, self.manager, flags, &clock).await?;
        let observer = Arc::new(Observer::new(&server, &audit, &clock));
        let administrator = Administrator { client: server.client().clone(), clock: clock.clone() };
        let injector = FaultInjector {
            server: Arc::new(server),
            clock: clock.clone(),
            stepped,
            managers: Arc::new(Mutex::new(managers)),
            observer,
            tasks: Arc::default(),
            stop: stop.child(),
        };
        let run = Run {
            injector,
            administrator,
            clock,
            patience: self.patience,
            stop,
            report: Mutex::new(report),
        };
        let (watched, until) = (run.injector.clone(), StopToken::new());
        let ends = until.clone();
        let watching = task::spawn(async move { watch(&watched, &ends).await });
        let ended = run.phases(plan(self.seed, self.length)).await;
        run.injector.end().await;
        until.stop();
        let odd = watching.await;
        run.finish(odd);
        let Run { injector, report, .. } = run;
        if let Some(managers) = Arc::into_inner(injector.managers) {
            managers.into_inner().stop().await;
        }
        if let Some(server) = Arc::into_inner(injector.server) {
            server.stop().await;
        }
        ended?;
        Ok(report.into_inner())
    }
}

/// Checks new changes and writes, and starts managers that have ended, again and again until
/// `stop`. Returns the ends that no fault explains.
async fn watch(injector: &FaultInjector, stop: &StopToken) -> Vec<Breach> {
    let (observer, mut odd) = (&injector.observer, Vec::new());
    let print = |breach: Breach| {
        eprintln!("FAILED {breach}");
        breach
    };
    loop {
        observer.check_new_changes().into_iter().for_each(|breach| drop(print(breach)));
        let ends = injector.managers.lock().restart_ended();
        let ends = ends.unwrap_or_else(|error| vec![error.to_string()]);
        odd.extend(ends.into_iter().map(|seen| {
            print(finding("managers end for a reason", observer.second(), "manager", seen))
        }));
        if stop.unless_stopped(injector.clock.sleep(TICK)).await.is_none() {
            return odd;
        }
    }
}

fn finding(invariant: &'static str, second: f64, object: &str, seen: String) -> Breach {
    Breach { invariant, second, object: object.to_owned(), seen }
}

impl Run {
    fn say(&self, what: &str) {
        eprintln!("{:>7.1} s  {what}", self.injector.observer.second());
    }

    /// Runs the soak: a first rollout, the work and the faults at their times, then the wait until
    /// all objects are as their specs say. Reports what differs, and the memory.
    async fn phases(&self, steps: Vec<plan::Step>) -> Result<()> {
        self.say("first rollout ...");
        self.administrator.prepare().await?;
        self.restore().await?;
        if let Some(faults) = self.settle().await? {
            return Err(format!("the first rollout has not ended: {}", faults.join("; ")).into());
        }
        let first = self.leaders_memory().await?;
        self.report.lock().memory.first_bytes = first.anonymous_bytes;

        let (mut work, mut faults) = (Vec::new(), Vec::new());
        for step in steps {
            match step.action {
                Action::Work(it) => work.push((step.at, it)),
                Action::Fault(it) => faults.push((step.at, it)),
            }
        }
        let begun = self.clock.monotonic();
        zip(self.work(begun, work), self.faults(begun, faults)).await;
        self.say("faults end ...");
        self.injector.end().await;
        let ended = self.clock.monotonic();
        self.restore().await?;
        let mut left = self.settle().await?;
        if left.is_none() {
            self.report.lock().settled_seconds = (self.clock.monotonic() - ended).as_secs_f64();
            self.say("Jobs are deleted ...");
            self.administrator.delete_jobs().await?;
            left = self.settle().await?;
        }
        let second = self.injector.observer.second();
        for seen in left.into_iter().flatten().take(SHOWN) {
            let breach = finding("each object as its spec says in the end", second, "", seen);
            eprintln!("FAILED {breach}");
            self.report.lock().breaches.push(breach);
        }
        self.clock.sleep(REST).await;
        self.read_memory(second);
        Ok(())
    }

    /// Reads the memory of a leader that has led for a while.
    async fn leaders_memory(&self) -> Result<Memory> {
        let leader = || self.injector.observer.leader();
        for _ in 0..READINGS {
            let before = leader();
            if self.stop.unless_stopped(self.clock.sleep(REST)).await.is_none() {
                break;
            }
            let Some(same) = leader().filter(|leader| before == Some(*leader)) else { continue };
            if let Some(memory) = self.injector.managers.lock().memory_of(same) {
                return Ok(memory);
            }
        }
        Err("no manager leads for long".into())
    }

    /// Adds the managers' memory to the report, and a finding if it has grown too much since the
    /// beginning.
    fn read_memory(&self, second: f64) {
        let managers = self.injector.managers.lock();
        let mut report = self.report.lock();
        let last = (0..SEATS).filter_map(|seat| managers.memory(seat));
        report.memory.last =
            last.map(|memory| (memory.anonymous_bytes, memory.age.as_secs_f64())).collect();
        report.memory.peak_bytes = managers.peak_bytes();
        report.managers = managers.started();
        if let Some(bytes) = report.memory.excess() {
            let seen = format!("{bytes} bytes, {} at first", report.memory.first_bytes);
            report.breaches.push(finding("memory as at the beginning", second, "manager", seen));
        }
    }

    /// Waits until the time `at` after `begun`. Returns false if the soak is stopped before.
    async fn wait_for_step(&self, begun: Duration, at: Duration) -> bool {
        let wait = (begun + at).saturating_sub(self.clock.monotonic());
        self.stop.unless_stopped(self.clock.sleep(wait)).await.is_some()
    }

    /// Carries out the administrator's changes, each at its time, and counts their outcomes. Ends
    /// early at the stop.
    async fn work(&self, begun: Duration, steps: Vec<(Duration, Work)>) {
        for (at, work) in steps {
            if !self.wait_for_step(begun, at).await {
                return;
            }
            let outcome = self.administrator.carry_out(&work).await;
            let mut report = self.report.lock();
            let counts = report.work.entry(work.change.name()).or_default();
            counts[usize::from(outcome == Outcome::Refused)] += 1;
        }
    }

    /// Begins the planned faults, each at its time. Ends early at the stop.
    async fn faults(&self, begun: Duration, steps: Vec<(Duration, Fault)>) {
        for (at, fault) in steps {
            if !self.wait_for_step(begun, at).await {
                return;
            }
            self.say(&format!("{}: {fault:?}", fault.name()));
            *self.report.lock().faults.entry(fault.name()).or_default() += 1;
            self.injector.begin(fault);
        }
    }

    /// Brings the objects to the state of the beginning, as soon as that is possible: a namespace
    /// or a part may still be on its way out.
    async fn restore(&self) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            match self.administrator.restore().await {
                Ok(true) => break,
                Err(error) if self.clock.monotonic() > give_up => return Err(error.into()),
                // The final state shows what is still being deleted.
                Ok(false) if self.clock.monotonic() > give_up => break,
                Ok(false) | Err(_) => (),
            }
            if self.stop.unless_stopped(self.clock.sleep(POLL)).await.is_none() {
                return Err("stopped".into());
            }
        }
        Ok(())
    }

    /// Waits until all objects are as their specs say. Returns what is not, if it takes too long.
    async fn settle(&self) -> Result<Option<Vec<String>>> {
        let give_up = self.clock.monotonic() + self.patience;
        loop {
            let is_late = self.clock.monotonic() > give_up;
            match Snapshot::read(&self.administrator.client).await {
                Ok(snapshot) => match snapshot.faults() {
                    faults if faults.is_empty() => return Ok(None),
                    faults if is_late => return Ok(Some(faults)),
                    _ => {}
                },
                Err(error) if is_late => return Err(error),
                // A connection may have died with the server before.
                Err(error) => log::debug!("{error}"),
            }
            if self.stop.unless_stopped(self.clock.sleep(POLL)).await.is_none() {
                return Err("stopped".into());
            }
        }
    }

    /// Completes the report.
    fn finish(&self, odd: Vec<Breach>) {
        let observer = &self.injector.observer;
        let panics = self.injector.managers.lock().panics();
        let second = observer.second();
        let panics =
            panics.into_iter().map(|line| finding("no manager panics", second, "log", line));
        let checked = observer.checked();
        let mut report = self.report.lock();
        let found: Vec<Breach> = observer.breaches().into_iter().chain(odd).chain(panics).collect();
        report.breaches.splice(0..0, found);
        report.changes = checked.changes;
        report.checked = checked.by_invariant;
        report.writes = checked.writes;
    }
}
