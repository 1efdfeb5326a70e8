//! The smallest memory limits under which a manager holds a load: for each of its stages, found by
//! halving.

use std::fmt;
use std::time::Duration;

use futures_lite::FutureExt;
use serde::Serialize;
use serde_json::json;

use super::cgroup::{Bytes, Counts, MemoryGroup};
use super::manager_process::{IdleCriteria, ManagerProcess};
use super::size::Size;
use super::{Load, Memory, NAMESPACE, Result, Run};
use kube_controller_manager::client::{Delete, Patch};
use kube_controller_manager::objects::{Deployment, ObjectKey};
use kube_controller_manager::task::StopToken;

/// The search also ends when limits that hold and limits that do not are closer than this part of
/// the limit.
const PART: u64 = 50;
/// How much longer than without a limit the work may take, and the error of its measurement.
const TOLERATED_SLOWDOWN: f64 = 1.1;
const TOLERANCE: Duration = Duration::from_millis(200);
/// What a stage may take besides its work, such as a start on the full cluster before a storm.
const TIME_FOR_OTHER_STEPS: Duration = Duration::from_secs(60);
/// The state between the parts of a stage.
const QUIET: IdleCriteria = IdleCriteria {
    poll: Duration::from_millis(500),
    quiet_polls: 4,
    at_most: Duration::from_secs(60),
    memory: 0.01,
    cpu: 0.1,
};

/// The search. The load's own limit is ignored.
pub struct SmallestLimit {
    pub load: Load,
    /// The search ends when limits that hold and limits that do not are so close.
    pub step: Bytes,
}

/// The limits that were found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SmallestReport {
    pub manager: String,
    #[serde(flatten)]
    pub size: Size,
    pub nodes: usize,
    /// Why nothing was searched.
    pub skipped: Option<String>,
    pub stages: Vec<Found>,
}

/// The smallest limit of a stage.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub stage: Stage,
    pub limit_bytes: Bytes,
    /// How often the limit was met; `None`: this kernel does not count it.
    pub hits: Option<u64>,
    /// The pages of files that were reclaimed and read again.
    pub refaults: u64,
    /// The time of the stage's work under the limit, and in the run without one with which it was
    /// compared.
    pub seconds: f64,
    pub unlimited_seconds: f64,
    /// The anonymous memory at the end of the stage in the same two runs.
    pub anonymous_bytes: u64,
    pub unlimited_anonymous_bytes: u64,
    /// The highest memory in the first run without a limit.
    pub unlimited_peak_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// A start on the empty cluster, to the first write.
    Empty,
    /// The creation of all pods until they are ready, and the deletion of their namespace.
    Pods,
    /// A start on the full cluster, to the first write.
    Start,
    /// The storm on the full cluster, until its pods are gone.
    Storm,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Empty => "empty cluster",
            Stage::Pods => "pods made and deleted",
            Stage::Start => "start on the full cluster",
            Stage::Storm => "storm on the full cluster",
        })
    }
}

impl fmt::Display for SmallestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SmallestReport { manager, size, nodes, skipped, stages } = self;
        let Size { deployments, replicas, storm, .. } = size;
        writeln!(f, "manager {manager}")?;
        if let Some(why) = skipped {
            return writeln!(f, "smallest memory limits: skipped, {why}");
        }
        writeln!(
            f,
            "{deployments} Deployments of {replicas} replicas, a storm of {storm} pods, {nodes} nodes\n"
        )?;
        writeln!(
            f,
            "{:<26} {:>9} {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8}",
            "SMALLEST LIMIT OF",
            "LIMIT MB",
            "HITS",
            "REREAD",
            "SECONDS",
            "ANON MB",
            "SECONDS",
            "ANON MB",
            "PEAK MB"
        )?;
        let mega = |bytes: u64| bytes as f64 / 1e6;
        for found in stages {
            writeln!(
                f,
                "{:<26} {:>9.1} {:>8} {:>8} {:>8.2} {:>8.1} | {:>8.2} {:>8.1} {:>8.1}",
                found.stage,
                mega(found.limit_bytes.0),
                found.hits.map_or_else(|| "?".to_owned(), |hits| hits.to_string()),
                found.refaults,
                found.seconds,
                mega(found.anonymous_bytes),
                found.unlimited_seconds,
                mega(found.unlimited_anonymous_bytes),
                mega(found.unlimited_peak_bytes),
            )?;
        }
        writeln!(
            f,
            "(HITS ?: not counted by this kernel; REREAD: pages of files reclaimed and read again; \
             behind the bar: without a limit)"
        )
    }
}

/// What a manager did in one stage.
#[derive(Clone, Copy, Debug)]
struct Measured {
    seconds: f64,
    counts: Counts,
    anonymous_bytes: u64,
}

impl SmallestLimit {
    /// Runs each stage without a limit, then under limits, each with a new manager. A limit under
    /// which a stage was slower is compared once more, with a run of its own without a limit.
    ///
    /// # Errors
    /// What could not be started, or a stage that did not end without a limit.
    pub async fn run(self, stop: StopToken) -> Result<SmallestReport> {
        let SmallestLimit { load, step } = self;
        let mut report = SmallestReport {
            manager: load.manager.to_string(),
            size: load.size,
            nodes: load.nodes.count,
            skipped: None,
            stages: Vec::new(),
        };
        if let Err(why) = MemoryGroup::new(None) {
            report.skipped = Some(why);
            return Ok(report);
        }
        let mut run = Run::start(Load { limit: None, ..load }, stop).await?;
        let ended = run.search(step, &mut report.stages).await;
        run.stop(ended).await?;
        Ok(report)
    }
}

impl Run {
    /// Finds the smallest sufficient memory of each stage in turn; between them, the cluster is
    /// filled by a manager without a limit.
    async fn search(&mut self, step: Bytes, stages: &mut Vec<Found>) -> Result<()> {
        self.create_namespace(NAMESPACE).await?;
        stages.push(self.find_smallest(Stage::Empty, step).await?);
        if self.size.pods() == 0 {
            return Ok(());
        }
        stages.push(self.find_smallest(Stage::Pods, step).await?);
        self.memory = Memory::Here;
        let mut manager = self.start_manager()?;
        self.first_write(&mut manager).await?;
        self.create_pods(&mut manager).await?;
        self.end(manager).await?;
        stages.push(self.find_smallest(Stage::Start, step).await?);
        if self.size.storm > 0 {
            stages.push(self.find_smallest(Stage::Storm, step).await?);
        }
        self.memory = Memory::Here;
        self.clear(Stage::Pods).await
    }

    /// Searches the smallest memory limit under which a stage still holds, by bisection from its
    /// peak without a limit down to `step`.
    async fn find_smallest(&mut self, stage: Stage, Bytes(step): Bytes) -> Result<Found> {
        let patience = self.patience;
        let free = self.run_stage(stage, None, patience).await?;
        let peak = free.counts.peak_bytes;
        // The highest limit that is too small, and the lowest that holds, with the figures under it
        // and those without a limit.
        let (mut fails, mut holds) = (0, (peak, free, free));
        while holds.0 - fails > step.max(holds.0 / PART) {
            let limit = fails.midpoint(holds.0);
            match self.try_limit(stage, Bytes(limit), free).await? {
                Some((held, free)) => holds = (limit, held, free),
                None => fails = limit,
            }
        }
        let (limit, held, free) = holds;
        Ok(Found {
            stage,
            limit_bytes: Bytes(limit),
            hits: held.counts.hits,
            refaults: held.counts.refaults,
            seconds: held.seconds,
            unlimited_seconds: free.seconds,
            anonymous_bytes: held.anonymous_bytes,
            unlimited_anonymous_bytes: free.anonymous_bytes,
            unlimited_peak_bytes: peak,
        })
    }

    /// Runs a stage under a limit. Returns its figures, and those without a limit with which they
    /// were compared; `None` if the limit is too small. A stage that was only slower than `free` is
    /// repeated once, after another run without a limit: the server may be slower than it was.
    async fn try_limit(
        &mut self,
        stage: Stage,
        limit: Bytes,
        mut free: Measured,
    ) -> Result<Option<(Measured, Measured)>> {
        let patience = self.patience;
        for repeated in [false, true] {
            if repeated {
                free = self.run_stage(stage, None, patience).await?;
            }
            let allowed = Duration::from_secs_f64(free.seconds * TOLERATED_SLOWDOWN) + TOLERANCE;
            self.patience = patience.min(allowed + TIME_FOR_OTHER_STEPS);
            let ended = self.run_stage(stage, Some(limit), allowed).await;
            self.patience = patience;
            let error = match ended {
                Ok(measured) => return Ok(Some((measured, free))),
                Err(error) => error,
            };
            eprintln!("{stage} under {limit}: {error}");
            if self.stop.is_stopped() {
                return Err(error);
            }
            self.clear(stage).await?;
            if !error.is::<TooSlow>() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Runs a stage with a new manager. Errors: [`TooSlow`], or what ended it.
    async fn run_stage(
        &mut self,
        stage: Stage,
        limit: Option<Bytes>,
        allowed: Duration,
    ) -> Result<Measured> {
        self.memory = Memory::Apart(limit);
        self.phase(&match limit {
            None => format!("{stage}, without a limit"),
            Some(limit) => format!("{stage} under {limit}"),
        });
        if stage == Stage::Start {
            self.respecify().await?;
        }
        let mut begun = self.clock.monotonic();
        let mut manager = self.start_manager()?;
        if matches!(stage, Stage::Pods | Stage::Storm) {
            self.first_write(&mut manager).await?;
            manager.wait_until_settled(&QUIET, &self.clock, &self.stop).await?;
            begun = self.clock.monotonic();
        }
        let timeout = self.clock.sleep(allowed);
        let late = async {
            timeout.await;
            Err(TooSlow(allowed).into())
        };
        self.run_timed_part(stage, &mut manager).or(late).await?;
        let seconds = (self.clock.monotonic() - begun).as_secs_f64();
        manager.wait_until_settled(&QUIET, &self.clock, &self.stop).await?;
        self.check_alive(&mut manager)?;
        let mut counts = manager.process.group_counts().unwrap_or_default();
        // Where the kernel does not keep the peak of a group.
        counts.peak_bytes = counts.peak_bytes.max(manager.process.read()?.peak_bytes as u64);
        let anonymous_bytes = manager.process.private_bytes()?;
        self.end(manager).await?;
        if stage == Stage::Pods {
            // This stage has deleted it.
            self.create_namespace(NAMESPACE).await?;
        }
        Ok(Measured { seconds, counts, anonymous_bytes })
    }

    /// Runs the part of a stage whose time counts.
    async fn run_timed_part(&mut self, stage: Stage, manager: &mut ManagerProcess) -> Result<()> {
        match stage {
            Stage::Empty => self.first_write(manager).await,
            Stage::Pods => {
                self.create_pods(manager).await?;
                self.delete_namespace(manager).await
            }
            Stage::Start => self.wait_for_status(manager, &self.deployment_key(0)).await,
            Stage::Storm => {
                self.begin_storm(manager).await?;
                self.end_storm(manager).await
            }
        }
    }

    /// Gives the first Deployment a spec that no manager has observed, and that changes no pod.
    async fn respecify(&mut self) -> Result<()> {
        let patch = json!({ "spec": { "progressDeadlineSeconds": 600 + self.started } });
        let key = self.deployment_key(0);
        self.client.patch::<Deployment>(&key, &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Brings the cluster into the state before a stage that failed.
    async fn clear(&mut self, stage: Stage) -> Result<()> {
        let (memory, patience) = (self.memory, self.patience);
        self.memory = Memory::Here;
        self.patience = patience.max(Duration::from_secs(600));
        let cleared = self.clear_with_manager(stage).await;
        (self.memory, self.patience) = (memory, patience);
        cleared
    }

    /// Deletes what a stage has made, so that it can run again. A manager without a limit does it
    /// where needed.
    async fn clear_with_manager(&mut self, stage: Stage) -> Result<()> {
        match stage {
            Stage::Start => return Ok(()),
            Stage::Empty => {
                let probe = ObjectKey::new(NAMESPACE, "probe");
                let deleted = self.client.delete::<Deployment>(&probe, Delete::background()).await;
                return match deleted {
                    Err(error) if !error.is_not_found() => Err(error.into()),
                    _ => Ok(()),
                };
            }
            Stage::Pods | Stage::Storm => {}
        }
        let mut manager = self.start_manager()?;
        match stage {
            Stage::Storm => self.end_storm(&mut manager).await?,
            _ => self.delete_namespace(&mut manager).await?,
        }
        self.end(manager).await?;
        self.create_namespace(NAMESPACE).await
    }
}

/// The work of a stage took longer than allowed.
#[derive(Debug)]
struct TooSlow(Duration);

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not done after {:.1} s", self.0.as_secs_f64())
    }
}

impl std::error::Error for TooSlow {}
