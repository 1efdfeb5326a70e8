//! The lesson: walks through the life of one change, station by station, and through what happens
//! when a watch, a version, a write or a lease is lost. Everything shown is a line of a manager's
//! trace (`--trace-object`); the faults are the sandbox's.

mod change;
mod faults;
mod lease;
mod screen;
mod stage;
mod trace_log;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use screen::Screen;
use stage::{Stage, WEB};

use crate::cluster::{Cluster, ManagerProgram};
use crate::nodes::NodeOptions;
use crate::server::SandboxOptions;
use kube_controller_manager::task::StopToken;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A part of the lesson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The life of one change: event, delta, index, handler, key, sync, write, echo.
    Change,
    /// A watch breaks and continues.
    DroppedWatch,
    /// The server answers a watch with 410.
    Gone,
    /// The server refuses a write with 409.
    Conflict,
    /// A leader cannot renew its lease.
    LostLease,
}

impl Part {
    pub const ALL: [Part; 5] =
        [Part::Change, Part::DroppedWatch, Part::Gone, Part::Conflict, Part::LostLease];

    /// Returns the name of the part on the command line.
    fn name(self) -> &'static str {
        match self {
            Part::Change => "change",
            Part::DroppedWatch => "dropped-watch",
            Part::Gone => "gone",
            Part::Conflict => "conflict",
            Part::LostLease => "lost-lease",
        }
    }

    /// Returns the heading that the screen shows above the part.
    fn title(self) -> &'static str {
        match self {
            Part::Change => "the life of one change",
            Part::DroppedWatch => "a watch breaks, and nothing is lost",
            Part::Gone => "410: the server has compacted what the watch missed",
            Part::Conflict => "409: a write from a stale cache",
            Part::LostLease => "a leader loses its lease, and another continues",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Part, String> {
        let found = Part::ALL.into_iter().find(|part| part.name() == text);
        found.ok_or_else(|| {
            let names = Part::ALL.map(Part::name).join(", ");
            format!("{text:?} is not one of {names}")
        })
    }
}

/// Settings of the lesson.
pub struct Lesson {
    pub sandbox: SandboxOptions,
    pub nodes: NodeOptions,
    pub manager: ManagerProgram,
    pub manager_flags: Vec<String>,
    /// The parts to show, in this order.
    pub parts: Vec<Part>,
    /// How long a station may take.
    pub patience: Duration,
}

impl Lesson {
    /// Shows the parts on `screen`, to their end or until `stop`.
    ///
    /// # Errors
    /// What could not be started, or the station that was not reached.
    pub async fn run(self, screen: Screen, stop: StopToken) -> Result<()> {
        let Lesson { sandbox, nodes, manager, manager_flags, parts, patience } = self;
        let cluster = Cluster::start(sandbox, nodes).await?;
        let mut stage = Stage {
            cluster,
            program: manager,
            flags: manager_flags,
            screen,
            stop: stop.clone(),
            patience,
        };
        let ended = show(&mut stage, &parts).await;
        stage.cluster.stop().await;
        // What a stop interrupts is no fault.
        if stop.is_stopped() { Ok(()) } else { ended }
    }
}

/// Creates a Deployment, and then shows these parts in turn, each once the Deployment is rolled
/// out.
async fn show(stage: &mut Stage, parts: &[Part]) -> Result<()> {
    stage.screen.say(&format!(
        "An API server, a scheduler and nodes run in this process, and a controller manager beside \
         it with --trace-object={WEB}. Each step is a line of its trace and names the place in the \
         source where it was written: open that file. The log and a kubeconfig are in {}.",
        stage.cluster.kubeconfig().with_file_name("").display()
    ))?;
    let mut manager = stage.manager("manager", &["--leader-elect=false"])?;
    stage.create_web(&mut manager).await?;
    for part in parts {
        stage.screen.part(part.name(), part.title())?;
        stage.wait_until_rolled_out(&mut manager).await?;
        manager.log.forget()?;
        match part {
            Part::Change => change::show(stage, &mut manager).await?,
            Part::DroppedWatch => faults::dropped_watch(stage, &mut manager).await?,
            Part::Gone => faults::gone(stage, &mut manager).await?,
            Part::Conflict => faults::conflict(stage, &mut manager).await?,
            Part::LostLease => manager = lease::show(stage, manager).await?,
        }
    }
    stage.stop_manager(manager).await
}
