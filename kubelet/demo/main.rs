//! The kubelet's demo: makes a machine that runs containers, starts the agent on
//! `fixtures/static-pods/`, shows the pods until each has shown what it is there for, and removes
//! the machine. With a kubeconfig, the machine is a node of that API server instead, until a signal.

mod cluster;
mod table;

// The tests' machine. The demo kills no runtime and reads no log that it does not show.
#[path = "../tests/real/machine.rs"]
mod machine;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::task::{self, StopToken, stop_on_signal};
use kubelet::app;
use kubelet::pod::Pod;
use serde::Deserialize;

use cluster::Server;
use machine::{Error, Machine};
use table::{Row, Screen};

const USAGE: &str = "Shows the kubelet with real containers, on a machine that is made for it.

Usage:
  kubelet-demo [--keep] [--pods FOLDER]
  kubelet-demo --kubeconfig FILE

Flags:
  --keep          continue until Ctrl-C, after each pod has shown what it is there for
  --pods FOLDER   other static pods; their images are on the machine or can be pulled
  --kubeconfig FILE
                  runs no static pods: the machine becomes the node \"machine\" of the API server at
                  127.0.0.1 of which FILE is an administrator's kubeconfig, until SIGTERM, Ctrl-C
                  or the end of the program that has started it.
                  Its images are those of fixtures/demo.yaml and node.test/busybox:1

Exit codes: 0 when each pod has shown what its annotation kubelet-demo/shows names; 77 where
containers cannot run, with a line that says what is missing; 1 for all else.
";

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/static-pods");

/// As few calls as the eye needs.
const PERIOD: Duration = Duration::from_millis(400);

/// How long all pods together may take.
const PATIENCE: Duration = Duration::from_secs(300);

const CONFIGURATION: &str = "readOnlyPort: 10255\naddress: 127.0.0.1\n";

/// The end of static pods' names.
const NODE: &str = "demo";

struct Settings {
    keeps: bool,
    pods: PathBuf,
    kubeconfig: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // The agent is this binary too, as the demo may be built alone.
    if let Some(("kubelet", rest)) = args.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return app::main(rest);
    }
    match parse(&args) {
        Ok(Some(settings)) => task::run(1, demo(settings)),
        Ok(None) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("Error: {error}");
    ExitCode::FAILURE
}

fn parse(args: &[String]) -> Result<Option<Settings>, String> {
    let mut settings = Settings { keeps: false, pods: FIXTURES.into(), kubeconfig: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--keep" => settings.keeps = true,
            "--pods" => {
                settings.pods = args.next().ok_or("flag needs an argument: --pods")?.into();
            }
            "--kubeconfig" => {
                let file = args.next().ok_or("flag needs an argument: --kubeconfig")?;
                settings.kubeconfig = Some(file.into());
            }
            other => return Err(format!("unknown argument {other:?}: see kubelet-demo --help")),
        }
    }
    Ok(Some(settings))
}

/// Makes a machine, runs the demo on it until it ends or is stopped, and removes the machine. With
/// a kubeconfig, the machine becomes a node of that cluster.
async fn demo(settings: Settings) -> ExitCode {
    let stop = match stop_on_signal() {
        Ok(stop) => stop,
        Err(error) => return failed(&format!("signals: {error}")),
    };
    let server = match settings.kubeconfig.as_deref().map(Server::of).transpose() {
        Ok(server) => server,
        Err(error) => return failed(&error),
    };
    let is_node = server.is_some();
    let parent = rustix::process::getppid();
    let folder = PathBuf::from(format!("/tmp/kubelet-demo-{}", std::process::id()));
    say("making a machine: containerd, a network and two images, in namespaces of their own");
    let make = move || match is_node {
        // The API server reaches the kubelet, and people the pods.
        true => Machine::start_with(folder, &["linked"]),
        false => Machine::start(folder),
    };
    let machine = match task::blocking(make).await {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => {
            eprintln!("{line}");
            return ExitCode::from(machine::SKIPPED);
        }
        Err(error) => return failed(&error.to_string()),
    };
    let outcome = match &server {
        Some(server) => cluster::run(&machine, server, parent, &stop).await,
        None => run(&machine, &settings, &stop).await,
    };
    if outcome.is_err() {
        eprintln!("{}", machine.log());
    }
    say("removing the machine with all that ran on it");
    task::blocking(move || drop(machine)).await;
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn say(line: &str) {
    // A reader that closes early (`| head`) is not an error.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn run(machine: &Machine, settings: &Settings, stop: &StopToken) -> Result<(), String> {
    let expected = copy(&settings.pods, &machine.pods())
        .map_err(|error| format!("--pods {}: {error}", settings.pods.display()))?;
    let agent = start_agent(machine).map_err(|error| format!("the agent: {error}"))?;
    say(&format!("the agent starts on {expected} static pods\n"));
    let outcome = show(machine, expected, settings.keeps, stop).await;
    if outcome.is_ok()
        && !stop.is_stopped()
        && let Some(page) = machine.get("127.0.0.1:8088", "/")
    {
        let page = page.trim();
        say(&format!("\nGET http://127.0.0.1:8088/, the pod web by its hostPort: {page}\n"));
    }
    drop(agent);
    outcome
}

/// Copies manifests; returns how many.
fn copy(from: &Path, to: &Path) -> std::io::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(from)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "yaml" || extension == "json") {
            std::fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
            count += 1;
        }
    }
    Ok(count)
}

fn start_agent(machine: &Machine) -> std::io::Result<Agent> {
    let program = std::env::current_exe()?;
    let mut agent = machine.agent(&[&program, Path::new("kubelet")], CONFIGURATION)?;
    agent.arg(format!("--hostname-override={NODE}")).arg("--resolv-conf=");
    agent.spawn().map(Agent)
}

#[derive(Deserialize)]
struct Pods {
    items: Vec<Pod>,
}

/// Shows the pods until each has shown what it is there for, and, with `keeps`, until stopped.
async fn show(
    machine: &Machine,
    expected: usize,
    keeps: bool,
    stop: &StopToken,
) -> Result<(), String> {
    let clock: SharedClock = SystemClock::shared();
    let begin = clock.monotonic();
    let mut screen = Screen::new(std::io::stdout().is_terminal());
    loop {
        let after = clock.monotonic() - begin;
        let mut is_done = false;
        if let Some(answer) = machine.get("127.0.0.1:10255", "/pods") {
            let pods: Pods =
                serde_json::from_str(&answer).map_err(|error| format!("/pods: {error}"))?;
            let mut rows: Vec<Row> = pods.items.iter().map(Row::of).collect();
            rows.sort_by(|a, b| a.name.cmp(&b.name));
            screen.show(&rows, after);
            is_done = rows.len() == expected && rows.iter().all(|row| screen.has_shown(row));
        }
        if is_done && !keeps {
            return Ok(());
        }
        if !is_done && after > PATIENCE {
            return Err(format!("some pods have not shown what they are there for in {after:?}"));
        }
        if stop.unless_stopped(clock.sleep(PERIOD)).await.is_none() {
            return Ok(());
        }
    }
}
