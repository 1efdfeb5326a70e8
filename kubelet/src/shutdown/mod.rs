//! Ends pods when the machine shuts down, as far as logind lets the kubelet delay that.
//! Upstream: `pkg/kubelet/nodeshutdown`.

mod error;
pub mod groups;
mod logind;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::Boxed;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::{self, StopToken};
use serde::{Deserialize, Serialize};

pub use self::error::Error;
use self::groups::Group;
use self::logind::Logind;
use crate::causes::chain;
use crate::concurrent::join_all;
use crate::dbus::SYSTEM_BUS;
use crate::events;
use crate::kubelet::{EvictionCause, Kubelet};
use crate::metrics;
use crate::pod::{Pod, PodExt};

/// After the connection to the bus has ended. Upstream: `dbusReconnectPeriod`.
const RECONNECT: Duration = Duration::from_secs(1);
/// logind's configuration.
const DROP_INS: &str = "/etc/systemd/logind.conf.d";
/// The first delay until logind's new configuration is looked for; each other is twice as long.
const FIRST_POLL: Duration = Duration::from_millis(100);
const POLLS: u32 = 5;
/// The reason and message of a pod's status. Upstream: `nodeShutdownReason`.
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Below the root folder. Upstream: `localStorageStateFile`.
const STATE: &str = "graceful_node_shutdown_state";

/// What has to happen to the node's pods.
pub trait Pods: Send + Sync {
    /// Returns the pods that run.
    fn active(&self) -> Vec<Arc<Pod>>;

    /// Sets whether new pods are refused and the Node is not ready, from now on.
    fn set_shutting_down(&self, is_shutting_down: bool);

    /// Ends a pod, with this grace in seconds. Resolves when it holds nothing any more.
    fn end(&self, pod: Arc<Pod>, grace: i64) -> Boxed<()>;
}

/// The pods of a kubelet.
pub struct NodePods(pub Arc<Kubelet>);

impl Pods for NodePods {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.0.active_pods()
    }

    fn set_shutting_down(&self, is_shutting_down: bool) {
        self.0.set_shutting_down(is_shutting_down);
    }

    fn end(&self, pod: Arc<Pod>, grace: i64) -> Boxed<()> {
        let kubelet = self.0.clone();
        Box::pin(async move {
            kubelet.evict(&pod, grace, REASON, MESSAGE, EvictionCause::NodeShutdown);
            kubelet.ended_in_time(&pod, grace).await;
            kubelet.finished(&pod.uid()).await;
        })
    }
}

/// Follows logind.
pub struct Shutdown {
    pub pods: Arc<dyn Pods>,
    /// Not empty.
    pub groups: Vec<Group>,
    pub node: String,
    pub clock: SharedClock,
    pub paths: Paths,
}

/// Where files are.
pub struct Paths {
    socket: PathBuf,
    drop_ins: PathBuf,
    state: PathBuf,
}

impl Paths {
    /// Returns the usual paths. `root`: the kubelet's folder.
    pub fn new(root: &Path) -> Paths {
        Paths { socket: SYSTEM_BUS.into(), drop_ins: DROP_INS.into(), state: root.join(STATE) }
    }
}

/// When the last shutdown began and ended, as upstream's kubelet keeps it.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct State {
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<Timestamp>,
}

impl State {
    /// Reads the state of an earlier run; without a file nothing is known.
    fn read(file: &Path) -> io::Result<State> {
        match fs::read(file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(error),
        }
    }

    /// Writes the state to its file. Readers see the old state or the new one.
    fn write(&self, file: &Path) -> io::Result<()> {
        let new = file.with_extension("new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, file)
    }

    /// Shows the times of the last shutdown in the metrics.
    fn measure(&self) {
        // Upstream writes the year 1 for none.
        let seconds = |time: &Option<Timestamp>| {
            time.map_or(0.0, |time| time.to_jiff().as_second().max(0) as f64)
        };
        metrics::set_shutdown(seconds(&self.start_time), seconds(&self.end_time));
    }
}

impl Shutdown {
    /// Follows logind until stopped; not at all where it is missing at the start.
    pub async fn run(self, stop: StopToken) {
        stop.unless_stopped(self.follow()).await;
    }

    /// Follows logind's announcements of a shutdown, and connects again when the connection ends.
    /// Gives up if the first attempt fails.
    async fn follow(&self) {
        match State::read(&self.paths.state) {
            Ok(state) => state.measure(),
            Err(error) => log::error!("Failed to load graceful shutdown state: {error}"),
        }
        match self.begin().await {
            Ok((logind, lock)) => self.watch(logind, lock).await,
            Err(error) => {
                log::error!("Failed to start node shutdown manager: {}", chain(&error));
                return;
            }
        }
        loop {
            self.clock.sleep(RECONNECT).await;
            log::debug!("Restarting watch for node shutdown events");
            match self.begin().await {
                Ok((logind, lock)) => self.watch(logind, lock).await,
                Err(error) => {
                    let error = chain(&error);
                    log::error!("Unable to watch the node for shutdown events: {error}");
                }
            }
        }
    }

    /// Connects to logind and takes the lock that delays shutdowns by the time that pods need.
    /// Upstream: `managerImpl.start`.
    async fn begin(&self) -> Result<(Logind, OwnedFd), Error> {
        let wanted = groups::total(&self.groups);
        let (socket, folder) = (self.paths.socket.clone(), self.paths.drop_ins.clone());
        let open = move || {
            let mut logind = Logind::open(&socket)?;
            let mut delay = logind.max_delay()?;
            if delay < wanted {
                logind.set_max_delay(&folder, wanted)?;
                delay = logind.max_delay()?;
            }
            Ok::<_, Error>((logind, delay))
        };
        let (mut logind, mut delay) = task::blocking(open).await?;
        for poll in 0..POLLS {
            if delay >= wanted {
                break;
            }
            self.clock.sleep(FIRST_POLL * 2_u32.pow(poll)).await;
            let ask = move || logind.max_delay().map(|delay| (logind, delay));
            (logind, delay) = task::blocking(ask).await?;
        }
        if delay < wanted {
            return Err(Error::DelayStaysShort { wanted, delay });
        }
        let lock_and_subscribe = move || {
            let lock = logind.inhibit()?;
            logind.subscribe()?;
            Ok((logind, lock))
        };
        task::blocking(lock_and_subscribe).await
    }

    /// Handles the shutdowns that logind announces, until the connection ends. `lock`: delays the
    /// shutdown until it is dropped.
    async fn watch(&self, mut logind: Logind, lock: OwnedFd) {
        let mut lock = Some(lock);
        loop {
            let next = move || {
                let next = logind.next();
                (logind, next)
            };
            let (back, next) = task::blocking(next).await;
            logind = back;
            let begins = match next {
                Ok(begins) => begins,
                Err(error) => {
                    let error = chain(&error);
                    log::error!("Ended to watching the node for shutdown events: {error}");
                    return;
                }
            };
            let what = if begins { "event" } else { "cancellation" };
            let message = format!("Shutdown manager detected shutdown {what}");
            events::node_normal(&self.node, "Shutdown", message);
            self.pods.set_shutting_down(begins);
            if begins {
                self.end_pods().await;
                // Without the lock the machine shuts down.
                lock = None;
                continue;
            }
            let inhibit = move || {
                let lock = logind.inhibit();
                (logind, lock)
            };
            let (back, again) = task::blocking(inhibit).await;
            logind = back;
            match again {
                Ok(again) => lock = Some(again),
                Err(error) => log::error!("the next shutdown is not delayed: {}", chain(&error)),
            }
            log::debug!("shutdowns are delayed: {}", lock.is_some());
        }
    }

    /// Ends all pods, one group after the other, each within its grace period. Upstream:
    /// `processShutdownEvent`, `killPods`.
    async fn end_pods(&self) {
        let mut state = State { start_time: Some(self.clock.now()), end_time: None };
        self.store_state(&state);
        for (group, pods) in groups::split(&self.groups, self.pods.active()) {
            if pods.is_empty() {
                continue;
            }
            let ends = pods.into_iter().map(|pod| {
                let grace = groups::grace_of(&pod, group);
                log::info!("pod {} ends, as the node shuts down", pod.display_name());
                self.pods.end(pod, grace)
            });
            let ended = async {
                join_all(ends.collect()).await;
            };
            let late = async {
                self.clock.sleep(Duration::from_secs(group.grace.unsigned_abs())).await;
                log::warn!("Shutdown manager pod killing time out: priority {}", group.priority);
            };
            ended.or(late).await;
        }
        state.end_time = Some(self.clock.now());
        self.store_state(&state);
        log::info!(
            "Shutdown manager completed processing shutdown event, node will shutdown shortly"
        );
    }

    /// Writes the state to its file, and shows it in the metrics.
    fn store_state(&self, state: &State) {
        if let Err(error) = state.write(&self.paths.state) {
            log::error!("Failed to store graceful shutdown state: {error}");
        }
        state.measure();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_channel::{Receiver, Sender};
    use kube_controller_manager::clock::FakeClock;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::dbus::testing::{Answer, FakeBus, Sent};
    use crate::dbus::wire::{Argument, Value};

    /// What happens to pods, in order. Pods named `slow` never end.
    struct Node {
        pods: Vec<Arc<Pod>>,
        seen: Sender<String>,
    }

    impl Pods for Node {
        fn active(&self) -> Vec<Arc<Pod>> {
            self.pods.clone()
        }

        fn set_shutting_down(&self, is_shutting_down: bool) {
            let _ = self.seen.try_send(format!("shutting down: {is_shutting_down}"));
        }

        fn end(&self, pod: Arc<Pod>, grace: i64) -> Boxed<()> {
            let _ = self.seen.try_send(format!("{} {grace}", pod.name()));
            let is_slow = pod.name() == "slow";
            Box::pin(async move {
                if is_slow {
                    std::future::pending().await
                }
            })
        }
    }

    fn pod(name: &str, priority: i32) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
                         "spec": {"priority": priority, "containers": []}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    /// A logind with this delay in seconds, which reads its new one when it is asked to.
    fn logind(delay: u64, after: u64, locks: &Arc<Mutex<Vec<std::io::PipeReader>>>) -> FakeBus {
        let (delay, locks) = (AtomicU64::new(delay), locks.clone());
        FakeBus::start(move |member, _| {
            let answer = match member {
                "Get" => {
                    let micros = delay.load(Ordering::SeqCst) * 1_000_000;
                    Answer::Return(vec![Argument::Variant(Value::Unsigned(micros))])
                }
                "KillUnit" => {
                    delay.store(after, Ordering::SeqCst);
                    Answer::Return(Vec::new())
                }
                "Inhibit" => {
                    let (reader, writer) = std::io::pipe().expect("a pipe");
                    locks.lock().push(reader);
                    Answer::Descriptor(OwnedFd::from(writer))
                }
                _ => Answer::Failure("org.freedesktop.DBus.Error.UnknownMethod"),
            };
            (answer, Vec::new())
        })
    }

    fn prepare(begins: bool) -> Sent {
        let (path, interface) = ("/org/freedesktop/login1", "org.freedesktop.login1.Manager");
        (path, interface, "PrepareForShutdown", vec![Argument::Bool(begins)])
    }

    struct Test {
        bus: FakeBus,
        folder: PathBuf,
        seen: Receiver<String>,
        clock: Arc<FakeClock>,
        shutdown: Shutdown,
        locks: Arc<Mutex<Vec<std::io::PipeReader>>>,
    }

    fn test(name: &str, delay: u64, after: u64) -> Test {
        let locks = Arc::default();
        let bus = logind(delay, after, &locks);
        let folder = std::env::temp_dir().join(format!("kubelet-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (sender, seen) = async_channel::unbounded();
        let pods = vec![pod("plain", 0), pod("slow", 10), pod("critical", 2_000_000_000)];
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let group = |priority, grace| Group { priority, grace };
        let shutdown = Shutdown {
            pods: Arc::new(Node { pods, seen: sender }),
            groups: vec![group(0, 20), group(2_000_000_000, 10)],
            node: name.to_owned(),
            clock: clock.clone(),
            paths: Paths {
                socket: bus.socket.clone(),
                drop_ins: folder.join("conf"),
                state: folder.join("state"),
            },
        };
        Test { bus, folder, seen, clock, shutdown, locks }
    }

    #[test]
    fn pods_end_by_groups_and_the_shutdown_waits_for_them() {
        task::run(1, async {
            let Test { bus, folder, seen, clock, shutdown, locks } = test("shutdown", 5, 30);
            assert!(events::testing::about("shutdown").is_empty());
            let stop = StopToken::new();
            let state = shutdown.paths.state.clone();
            let running = task::spawn(shutdown.run(stop.clone()));
            // Each lock is a connection's: the watch begins after it.
            let is_locked = async |count: usize| {
                while locks.lock().len() < count {
                    clock.advance(FIRST_POLL);
                    task::blocking(std::thread::yield_now).await;
                }
            };
            is_locked(1).await;
            let drop_in = fs::read_to_string(folder.join("conf").join(logind::DROP_IN));
            assert!(drop_in.expect("a file").ends_with("InhibitDelayMaxSec=30\n"));
            bus.send(prepare(true));
            let next = async || seen.recv().await.expect("something");
            assert_eq!(next().await, "shutting down: true");
            let mut first = [next().await, next().await];
            first.sort();
            assert_eq!(first, ["plain 20", "slow 20"]);
            assert!(State::read(&state).expect("a state").end_time.is_none());
            // One that is late does not delay the others.
            let critical = async {
                loop {
                    clock.advance(Duration::from_secs(20));
                    task::blocking(std::thread::yield_now).await;
                    if let Ok(seen) = seen.try_recv() {
                        return seen;
                    }
                }
            };
            assert_eq!(critical.await, "critical 10");
            // The lock is given up: its other end sees it.
            let reader = locks.lock().remove(0);
            let ended = task::blocking(move || std::io::read_to_string(reader)).await;
            assert_eq!(ended.expect("an end"), "");
            let kept = State::read(&state).expect("a state");
            assert!(kept.start_time.is_some() && kept.end_time >= kept.start_time);
            // A cancelled one is delayed again.
            bus.send(prepare(false));
            assert_eq!(next().await, "shutting down: false");
            let said = ["event", "cancellation"]
                .map(|what| format!("Normal Shutdown Shutdown manager detected shutdown {what}"));
            assert_eq!(events::testing::about("shutdown"), said);
            is_locked(1).await;
            // The watch comes back when the bus does.
            bus.cut();
            is_locked(2).await;
            stop.stop();
            running.await;
            bus.cut();
            fs::remove_dir_all(&folder).expect("removed");
        });
    }

    #[test]
    fn delay_that_stays_short_is_an_error() {
        task::run(1, async {
            let Test { bus, folder, clock, shutdown, locks, .. } = test("delay", 5, 29);
            let time = async {
                loop {
                    clock.advance(Duration::from_secs(2));
                    task::blocking(std::thread::yield_now).await;
                }
            };
            let begun = shutdown.begin().or(time).await;
            let text = begun.expect_err("too short").to_string();
            assert!(text.contains("30s") && text.contains("29s"), "{text}");
            assert!(locks.lock().is_empty());
            bus.cut();
            fs::remove_dir_all(&folder).expect("removed");
        });
    }
}
