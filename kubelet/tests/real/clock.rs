//! A wall clock that is set forwards or backwards by an hour: what has a period or an age keeps it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, FakeClock, SystemClock};
use kube_controller_manager::objects::{Lease, Node, ObjectKey, Resource, Timestamp};
use kube_controller_manager::task::{self, StopToken};
use kubelet::node::heartbeat::Heartbeats;
use kubelet::node::lease::LeaseController;
use kubelet::objects::folder::LocalObjects;
use kubelet::objects::{Objects, Use};
use kubelet::pod::{Pod, PodExt};
use serde_json::{Value, json};

use super::api::{Agent, Server, sleeps};
use super::api_objects::pod;
use super::node::Node as Machine;
use super::pods::{condition, container, is_ready};

/// How long a state is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const HOUR: i64 = 3600;
const HALF_HOUR: Duration = Duration::from_secs(1800);
/// The clock is set by these seconds, one after the other.
const STEPS: [i64; 4] = [HOUR, -HOUR, -HOUR, HOUR];

fn set(clock: &FakeClock, by: i64) {
    clock.set(Timestamp::from_secs(clock.now().as_secs() + by));
}

#[test]
fn lease_is_renewed_on_time_with_the_time_of_a_clock_that_is_set() {
    block_on(async {
        let server = Server::start().await;
        let node = json!({"metadata": {"name": "n"}});
        server.client.create::<Node>("", &node).await.expect("created");
        let clock = FakeClock::new(SystemClock.now());
        let heartbeats = Heartbeats::new(&server.client, clock.clone(), Duration::from_secs(10));
        let controller = LeaseController::new(heartbeats, "n".to_owned(), 40);
        let stop = StopToken::new();
        let running = task::spawn(controller.run(stop.clone()));
        let key = ObjectKey::new("kube-node-lease", "n");
        // Moves the clock by less than the steps below until the lease has its time.
        let renewed = async |by: i64| {
            let leases = server.client.resource(&Lease::RESOURCE);
            let (end, mut passed) = (server.clock.monotonic() + PATIENCE, Duration::ZERO);
            loop {
                let lease = leases.get::<Value>(&key).await.unwrap_or_default();
                let time = lease["spec"]["renewTime"].as_str().unwrap_or_default();
                let time = time.parse::<Timestamp>().map_or(0, Timestamp::as_secs);
                if (clock.now().as_secs() - time).abs() < HOUR / 2 {
                    return;
                }
                assert!(server.clock.monotonic() < end, "{by}: {lease:#}");
                server.clock.sleep(Duration::from_millis(20)).await;
                if passed < HALF_HOUR && clock.sleepers() > 0 {
                    clock.advance(Duration::from_secs(1));
                    passed += Duration::from_secs(1);
                }
            }
        };
        renewed(0).await;
        for by in STEPS {
            set(&clock, by);
            renewed(by).await;
        }
        stop.stop();
        running.await;
        server.sandbox.stop().await;
    });
}

#[test]
fn tokens_are_renewed_by_their_age_though_the_clock_is_set() {
    block_on(async {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let clock = FakeClock::new(SystemClock.now());
        let (sender, _pods) = async_channel::unbounded();
        let stop = StopToken::new();
        let objects = Objects::new(LocalObjects::default(), clock.clone());
        let objects = objects.with_server(&server.client, sender, PATIENCE, &stop);
        let spec = json!({
            "serviceAccountName": "default",
            "containers": [{"name": "c"}],
            "volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}],
        });
        let own = pod(&server, "p", spec.clone()).await;
        objects.follow(&own);
        let source = own.spec().volumes.iter().flatten().next().expect("a volume");
        let source = source.projected.clone().and_then(|volume| volume.sources);
        let source = source.expect("sources").remove(0).service_account_token.expect("a token");
        let token_of = async |pod: &Pod| {
            let found = objects.read(pod, Use::Volumes).await;
            found.token(&source).expect("a token").to_owned()
        };
        let token = async || token_of(&own).await;
        // The number of requests so far. Another pod's is sent after those that are under way.
        let requests = async |other: &str| {
            token_of(&pod(&server, other, spec.clone()).await).await;
            server.sandbox.faults().count("create", "serviceaccounts/token")
        };
        let first = token().await;
        for (number, by) in (1_u64..).zip(STEPS) {
            set(&clock, by);
            for _ in 0..3 {
                assert_eq!(token().await, first, "{by}");
            }
            assert_eq!(requests(&format!("other-{number}")).await, 1 + number, "{by}");
        }
        // In its last fifth, on a clock that is an hour slow.
        set(&clock, -HOUR);
        clock.advance(Duration::from_secs(2_881));
        let end = server.clock.monotonic() + PATIENCE;
        let second = loop {
            let token = token().await;
            if token != first {
                break token;
            }
            assert!(server.clock.monotonic() < end, "it is not renewed");
            server.clock.sleep(Duration::from_millis(20)).await;
        };
        // And one that is two hours fast has it, though it would have expired.
        set(&clock, 3 * HOUR);
        for _ in 0..3 {
            assert_eq!(token().await, second);
        }
        // Two of this pod, and one of each other.
        assert_eq!(requests("last").await, 2 + 5);
        stop.stop();
        server.sandbox.stop().await;
    });
}

/// The wall clock of a kubelet's process: a library shows it another one than the machine's. The
/// runtime and the API server have the machine's.
struct Shift {
    library: PathBuf,
    /// The seconds by which it is shifted.
    file: PathBuf,
}

impl Shift {
    fn build(folder: &Path) -> Shift {
        let shift = Shift { library: folder.join("shift.so"), file: folder.join("shift") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shift.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shift.library).arg(source);
        assert!(compiler.status().expect("a compiler").success());
        shift.by(0);
        shift
    }

    fn by(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        fs::write(&new, seconds.to_string()).expect("a file");
        fs::rename(new, &self.file).expect("a new name");
    }

    fn agent(&self, machine: &Machine, server: &Server) -> Agent {
        let kubeconfig = format!("--kubeconfig={}", server.sandbox.kubeconfig().display());
        let lines = "crashLoopBackOff: {maxContainerRestartPeriod: 2s}\nsyncFrequency: 5s\n";
        let mut command = Agent::command(machine, &[&kubeconfig], lines);
        command.env("LD_PRELOAD", &self.library).env("CLOCK_SHIFT", &self.file);
        Agent::spawn(command)
    }
}

impl Server {
    async fn object<T: Resource>(&self, key: &ObjectKey) -> Value {
        self.client.resource(&T::RESOURCE).get(key).await.unwrap_or_default()
    }

    /// Waits until the node's lease has the time of a clock that is shifted.
    async fn leased_at(&self, shift: i64) {
        let (key, end) =
            (ObjectKey::new("kube-node-lease", "n"), self.clock.monotonic() + PATIENCE);
        loop {
            let lease = self.object::<Lease>(&key).await;
            let time = lease["spec"]["renewTime"].as_str().unwrap_or_default();
            let time = time.parse::<Timestamp>().map_or(0, Timestamp::as_secs);
            if (self.clock.now().as_secs() + shift - time).abs() < HOUR / 2 {
                return;
            }
            assert!(self.clock.monotonic() < end, "{shift}: {lease:#}");
            self.clock.sleep(Duration::from_millis(200)).await;
        }
    }
}

#[test]
fn pods_continue_while_the_clock_of_the_kubelet_is_set() {
    if std::env::var_os("KUBELET").is_some() {
        return eprintln!("clock: skipped: no library shifts the clock of a static program");
    }
    let Some(machine) = Machine::start("clock") else { return };
    block_on(async move {
        let server = Server::start_with(|options| options).await;
        server.make_account().await;
        let (shift, out) = (Shift::build(&machine.folder), machine.folder.join("out"));
        let exec = |command: Value, delay: u64| {
            json!({"exec": {"command": command}, "initialDelaySeconds": delay, "periodSeconds": 1,
                   "timeoutSeconds": 60, "failureThreshold": 1})
        };
        let mut steady = sleeps();
        steady["volumes"] = json!([{"name": "out", "hostPath": {"path": out}}]);
        let main = &mut steady["containers"][0];
        main["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
        main["readinessProbe"] = exec(json!(["test", "-e", "/out/ready"]), 0);
        main["livenessProbe"] = exec(json!(["true"]), 0);
        let mut crash = sleeps();
        crash["containers"][0]["command"] = json!(["false"]);
        let mut late = sleeps();
        late["containers"][0]["readinessProbe"] = exec(json!(["true"]), 2);
        fs::create_dir_all(&out).expect("a folder");
        fs::write(out.join("ready"), "").expect("a file");
        server.create("steady", "n", json!({}), steady).await;
        server.create("crash", "n", json!({}), crash).await;
        let agent = shift.agent(&machine, &server);
        let first = server.eventually("steady", "ready", is_ready).await;
        let restarts = |pod: &Value| container(pod)["restartCount"].as_u64().unwrap_or_default();
        server.eventually("crash", "backing off", |pod| restarts(pod) >= 2).await;
        for (number, by) in [HOUR, -HOUR, 0].into_iter().enumerate() {
            shift.by(by);
            server.leased_at(by).await;
            // Probes and back-offs keep their periods.
            fs::remove_file(out.join("ready")).expect("a file");
            server.eventually("steady", "unready", |pod| !is_ready(pod)).await;
            fs::write(out.join("ready"), "").expect("a file");
            server.eventually("steady", "ready again", is_ready).await;
            let before = restarts(&server.pod("crash").await);
            server.eventually("crash", "restarted", |pod| restarts(pod) >= before + 2).await;
            let name = format!("late-{number}");
            server.create(&name, "n", json!({}), late.clone()).await;
            server.eventually(&name, "ready", is_ready).await;
            let now = server.pod("steady").await;
            assert_eq!(container(&now)["containerID"], container(&first)["containerID"]);
            assert_eq!(restarts(&now), 0, "{by}: {}", machine.log());
            let node = server.object::<Node>(&ObjectKey::cluster("n")).await;
            assert_eq!(condition(&node, "Ready")["status"], "True", "{by}: {node:#}");
            // Of each pod one token, which lives for longer than this test.
            let tokens = server.sandbox.faults().count("create", "serviceaccounts/token");
            assert_eq!(tokens, 3 + number as u64, "{by}");
        }
        // A kubelet that starts with such a clock keeps what runs.
        shift.by(-HOUR);
        drop(agent);
        let agent = shift.agent(&machine, &server);
        server.leased_at(-HOUR).await;
        server.create("last", "n", json!({}), late).await;
        server.eventually("last", "ready", is_ready).await;
        let now = server.pod("steady").await;
        assert_eq!(container(&now)["containerID"], container(&first)["containerID"]);
        assert!(is_ready(&now) && restarts(&now) == 0, "{now:#}");
        drop(agent);
    });
}
