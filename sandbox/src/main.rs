//! Runs the demo, the lesson, a load or a soak: an embedded API server with nodes, and the controller manager.

use std::error::Error;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use argh::FromArgs;
use futures_lite::StreamExt;
use kube_controller_manager::app;
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::options::{self, Command};
use kube_controller_manager::task::{self, StopToken};
use sandbox::SandboxOptions;
use sandbox::cluster::{EMBEDDED, ManagerProgram, administrator};
use sandbox::containers;
use sandbox::demo::Demo;
use sandbox::lesson::{Lesson, Part, Screen};
use sandbox::load::{self, Bytes, Density, Latency, Load, Nodes, Outage, Size, SmallestLimit};
use sandbox::nodes::{NodeOptions, StandIns};
use sandbox::soak::Soak;
use serde::Serialize;

/// The changes that each resource keeps where many come for long: under a load of nodes twenty seconds
/// of all leases. More would fill the memory with old pods.
const LONG_LOAD_HISTORY: usize = 10_000;
/// How close the smallest memory limit is found.
const LIMIT_STEP: Bytes = Bytes(1_000_000);
/// The exit status where containers cannot run.
const NO_CONTAINERS: u8 = 77;

/// Starts an API server, a scheduler and nodes in this process and a controller manager beside it,
/// applies a fixture and shows the rollout.
#[derive(FromArgs)]
struct Args {
    /// end when the fixture has rolled out: exit status 0, or 1 with the reason
    #[argh(switch)]
    once: bool,
    /// walk through the life of one change, a broken watch, 410, 409 and a lost lease, step by step
    #[argh(switch)]
    lesson: bool,
    /// with --lesson: only this part: change, dropped-watch, gone, conflict or lost-lease
    #[argh(option)]
    part: Option<Part>,
    /// real containers: one node with a kubelet, on a machine that is made and removed (as root)
    #[argh(switch)]
    containers: bool,
    /// how many nodes (3; 100 under a load)
    #[argh(option)]
    nodes: Option<usize>,
    /// load the manager and print what it costs: deployments=100,replicas=100 or job=5000 or
    /// daemonsets=1 or claims=5000; with storm=500 more pods at once; scale=1000 for a cluster of
    /// that number of pods (with namespaces=N, services=N, jobs=N over minutes=N); or
    /// nodes=5000,pods-per-node=30, of which a third dies
    #[argh(option)]
    load: Option<Shape>,
    /// measure how long single changes take, in this number of rounds: medians, 99th percentiles
    #[argh(option)]
    latency: Option<usize>,
    /// with --latency: the replicas of one more, large Deployment in each round (0: none)
    #[argh(option, default = "0")]
    large: usize,
    /// with --load: run the manager in a memory cgroup with this limit (24M, 24Mi), or find the
    /// smallest limit that holds (smallest)
    #[argh(option)]
    memory_limit: Option<MemoryLimit>,
    /// measure this number of managers at rest, each beside an empty API server of its own
    #[argh(option)]
    density: Option<usize>,
    /// run two managers under faults and work for this number of seconds, and check what must hold
    #[argh(option)]
    soak: Option<u64>,
    /// with --soak: determines what happens at which second (random)
    #[argh(option)]
    seed: Option<u64>,
    /// with --soak: the folder with etcd and kube-apiserver, to run them in place of the embedded
    /// API server
    #[argh(option)]
    real_server: Option<PathBuf>,
    /// with --load: ConfigMaps of 10 KB (0)
    #[argh(option, default = "0")]
    configmaps: usize,
    /// with --load, --density: seconds to watch idle managers (20)
    #[argh(option, default = "20")]
    idle: u64,
    /// an administrator's kubeconfig of another API server than the embedded one, to load it, or,
    /// without --load, to give it a scheduler and nodes and nothing else
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
    /// with --load: print the address of the manager's pipeline page, at a cost to the figures
    #[argh(switch)]
    pages: bool,
    /// with --load, --latency, --density, --soak: print JSON
    #[argh(switch)]
    json: bool,
    /// seconds that the fixture may take to roll out or a step of the lesson to come (120), the
    /// final state of a soak (600), or a phase of a load (1800)
    #[argh(option)]
    timeout: Option<u64>,
    /// YAML to apply instead of the built-in demo
    #[argh(option)]
    fixture: Option<PathBuf>,
    /// where certificates, kubeconfig and logs go (a new folder among the temporary ones)
    #[argh(option)]
    dir: Option<PathBuf>,
    /// port of the API server (any free one)
    #[argh(option, default = "0")]
    port: u16,
    /// serve the kinds behind gates and --runtime-config as well
    #[argh(switch)]
    all_versions: bool,
    /// the minor version of Kubernetes 1 to be: 36 or 37 (default: 36)
    #[argh(option, default = "36")]
    minor: u32,
    /// a controller manager to run instead of the embedded one
    #[argh(option)]
    manager: Option<PathBuf>,
    /// flags for the controller manager, after --
    #[argh(positional)]
    manager_flags: Vec<String>,
}

impl Args {
    /// Returns whether the demo runs, because no option asks for another mode.
    fn is_demo(&self) -> bool {
        let others = [
            self.latency.is_some(),
            self.lesson,
            self.density.is_some(),
            self.soak.is_some(),
            self.load.is_some(),
            self.kubeconfig.is_some(),
        ];
        !others.contains(&true)
    }

    /// Checks that the options fit together.
    fn check(&self) -> Result<(), &'static str> {
        let is_of_workloads = matches!(self.load, Some(Shape::Workloads(_)));
        match () {
            () if self.memory_limit.is_some() && !is_of_workloads => {
                Err("--memory-limit: needs --load with Deployments, Jobs, claims or a scale")
            }
            () if self.part.is_some() && !self.lesson => Err("--part: needs --lesson"),
            () if self.seed.is_some() && self.soak.is_none() => Err("--seed: needs --soak"),
            () if self.real_server.is_some() && self.soak.is_none() => {
                Err("--real-server: needs --soak")
            }
            () if self.containers && !self.is_demo() => {
                Err("--containers: for the demo alone, with --once and --fixture")
            }
            () if self.containers && self.nodes.is_some() => {
                Err("--nodes: with --containers there is one")
            }
            () if self.density == Some(0) => Err("--density: at least 1"),
            () if !matches!(self.minor, 36 | 37) => Err("--minor: 36 or 37"),
            () => Ok(()),
        }
    }
}

/// What a load is made of.
enum Shape {
    Workloads(Size),
    Nodes(Nodes),
}

/// The memory cgroup of a load's manager.
enum MemoryLimit {
    Of(Bytes),
    Smallest,
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        match text {
            "smallest" => Ok(MemoryLimit::Smallest),
            _ => text.parse().map(MemoryLimit::Of),
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        match text.starts_with("nodes=") {
            true => text.parse().map(Shape::Nodes),
            false => text.parse().map(Shape::Workloads),
        }
    }
}

/// How a mode ends.
type Ended = Result<(), Box<dyn Error + Send + Sync>>;

/// Runs the mode that the options ask for. With `EMBEDDED` as its first argument, the binary is the
/// controller manager itself.
fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    // A sandbox starts its manager as this binary with this word.
    if args.next_if(|first| first == EMBEDDED).is_some() {
        return manager(&args.collect::<Vec<String>>());
    }
    let args: Args = argh::from_env();
    if let Err(fault) = args.check() {
        eprintln!("Error: {fault}");
        return ExitCode::FAILURE;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    match task::run(threads, run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        // The program that makes the machine has said it.
        Err(error) if matches!(error.downcast_ref(), Some(containers::Error::Missing)) => {
            ExitCode::from(NO_CONTAINERS)
        }
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the mode that the options ask for; without any, the demo.
async fn run(mut args: Args) -> Ended {
    let stop = StopToken::new();
    stop_on_signals(&stop)?;
    if let Some(rounds) = args.latency {
        return measure_latency(args, rounds, stop).await;
    }
    if args.lesson {
        return run_lesson(args, stop).await;
    }
    if let Some(managers) = args.density {
        return measure_density(args, managers, stop).await;
    }
    if let Some(seconds) = args.soak {
        return run_soak(args, seconds, stop).await;
    }
    match args.load.take() {
        Some(Shape::Workloads(size)) => return load_workloads(args, size, stop).await,
        Some(Shape::Nodes(size)) => return load_nodes(args, size, stop).await,
        None => {}
    }
    match args.kubeconfig.take() {
        Some(kubeconfig) => stand_in(&kubeconfig, args.nodes(3), &stop).await,
        None => run_demo(args, stop).await,
    }
}

/// What several modes need.
impl Args {
    /// Returns the options of the embedded API server. Without `--dir` its folder is a temporary
    /// one.
    fn sandbox(&self) -> SandboxOptions {
        let temporary =
            || std::env::temp_dir().join(format!("kube-sandbox-{}", std::process::id()));
        let mut sandbox = SandboxOptions::new(self.dir.clone().unwrap_or_else(temporary));
        sandbox.address.set_port(self.port);
        sandbox.all_versions = self.all_versions;
        sandbox.minor = self.minor;
        sandbox
    }

    fn manager(&self) -> ManagerProgram {
        self.manager.clone().map_or(ManagerProgram::Embedded, ManagerProgram::Path)
    }

    fn nodes(&self, default_count: usize) -> NodeOptions {
        NodeOptions { count: self.nodes.unwrap_or(default_count), ..NodeOptions::default() }
    }

    fn patience(&self, default_seconds: u64) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(default_seconds))
    }

    fn idle(&self) -> Duration {
        Duration::from_secs(self.idle)
    }
}

/// Measures the latencies of a manager, and prints them.
async fn measure_latency(args: Args, rounds: usize, stop: StopToken) -> Ended {
    let latency = Latency {
        sandbox: args.sandbox(),
        nodes: args.nodes(3),
        rounds,
        large: args.large,
        manager: args.manager(),
        patience: args.patience(120),
        kubeconfig: args.kubeconfig,
        manager_flags: args.manager_flags,
    };
    Ok(print(&latency.run(stop).await?, args.json)?)
}

/// Runs the lesson, or the part of it that `--part` names.
async fn run_lesson(args: Args, stop: StopToken) -> Ended {
    let lesson = Lesson {
        sandbox: args.sandbox(),
        nodes: args.nodes(3),
        manager: args.manager(),
        patience: args.patience(120),
        parts: args.part.map_or_else(|| Part::ALL.to_vec(), |part| vec![part]),
        manager_flags: args.manager_flags,
    };
    lesson.run(Screen::stdout(), stop).await
}

/// Measures many idle managers, and prints the figures of one.
async fn measure_density(args: Args, managers: usize, stop: StopToken) -> Ended {
    let density = Density {
        dir: args.sandbox().dir,
        managers,
        idle: args.idle(),
        manager: args.manager(),
        manager_flags: args.manager_flags,
    };
    Ok(print(&density.run(stop).await?, args.json)?)
}

/// Runs the soak and prints its report. Errors: the soak has findings.
async fn run_soak(args: Args, seconds: u64, stop: StopToken) -> Ended {
    let soak = Soak {
        sandbox: args.sandbox(),
        length: Duration::from_secs(seconds),
        seed: args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..))),
        manager: args.manager(),
        patience: args.patience(600),
        assets: args.real_server,
        manager_flags: args.manager_flags,
    };
    let report = soak.run(stop).await?;
    print(&report, args.json)?;
    match report.is_sound() {
        true => Ok(()),
        false => Err(format!("{} findings", report.breaches.len()).into()),
    }
}

/// Runs a load of workloads, or the search for its smallest memory limit, and prints the report.
async fn load_workloads(args: Args, size: Size, stop: StopToken) -> Ended {
    let is_search = matches!(args.memory_limit, Some(MemoryLimit::Smallest));
    let mut sandbox = args.sandbox();
    if is_search || size.is_spread() {
        sandbox.history = LONG_LOAD_HISTORY;
    }
    let load = Load {
        sandbox,
        nodes: args.nodes(size.nodes()),
        size,
        config_maps: args.configmaps,
        idle: args.idle(),
        manager: args.manager(),
        pages: args.pages,
        patience: args.patience(1800),
        quiet: load::QUIET,
        limit: match args.memory_limit {
            Some(MemoryLimit::Of(limit)) => Some(limit),
            Some(MemoryLimit::Smallest) | None => None,
        },
        kubeconfig: args.kubeconfig,
        manager_flags: args.manager_flags,
    };
    match is_search {
        true => {
            let search = SmallestLimit { load, step: LIMIT_STEP };
            Ok(print(&search.run(stop).await?, args.json)?)
        }
        false => Ok(print(&load.run(stop).await?, args.json)?),
    }
}

/// Runs a load of nodes of which a third dies, and prints the report.
async fn load_nodes(args: Args, size: Nodes, stop: StopToken) -> Ended {
    let mut sandbox = args.sandbox();
    sandbox.history = LONG_LOAD_HISTORY;
    let load = Outage {
        sandbox,
        size,
        idle: args.idle(),
        manager: args.manager(),
        patience: args.patience(1800),
        manager_flags: args.manager_flags,
    };
    Ok(print(&load.run(stop).await?, args.json)?)
}

/// Runs the demo, until the stop or with `--once` until the rollout is complete.
async fn run_demo(args: Args, stop: StopToken) -> Ended {
    let demo = Demo {
        sandbox: args.sandbox(),
        nodes: args.nodes(3),
        manager: args.manager(),
        // The packages of the machine are fetched at the first start.
        patience: args.patience(if args.containers { 600 } else { 120 }),
        containers: args.containers.then(containers::program).transpose()?,
        once: args.once,
        fixture: args.fixture,
        manager_flags: args.manager_flags,
    };
    demo.run(stop).await
}

/// Gives an API server a scheduler and nodes, until `stop`.
async fn stand_in(kubeconfig: &Path, nodes: NodeOptions, stop: &StopToken) -> Ended {
    let clock = SystemClock::shared();
    let client = administrator(kubeconfig, "sandbox", &clock)?;
    let stand_ins = StandIns::start(&client, &clock, nodes);
    stop.stopped().await;
    stand_ins.stop().await;
    Ok(())
}

fn print(report: &(impl Serialize + Display), as_json: bool) -> serde_json::Result<()> {
    match as_json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{report}"),
    }
    Ok(())
}

/// Stops the sandbox at the first SIGTERM or SIGINT.
fn stop_on_signals(stop: &StopToken) -> std::io::Result<()> {
    use async_signal::{Signal, Signals};
    let mut signals = Signals::new([Signal::Term, Signal::Int])?;
    let stop = stop.clone();
    drop(task::spawn(async move {
        signals.next().await;
        stop.stop();
    }));
    Ok(())
}

/// Runs this binary as the controller manager.
fn manager(args: &[String]) -> ExitCode {
    match options::parse(args) {
        Ok(Command::Run(options)) => {
            task::run(app::THREADS, app::run(options, app::connect::connect))
        }
        // Only the sandbox starts a manager this way, and it asks for neither.
        Ok(Command::Help | Command::Version(_)) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}
