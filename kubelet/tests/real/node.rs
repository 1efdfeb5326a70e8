//! A machine with a kubelet on it.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuard};
use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, SystemClock};
use kubelet::cri::{self, RuntimeService, api};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use super::machine::{Error, Machine};

/// Machines that run at once: with more, two processors are busy with the start of containers until
/// tests give up.
static PLACES: Semaphore = Semaphore::new(3);

/// Waits for a place for one more machine. `None` without `LONG_TESTS`: a machine of containers takes
/// minutes.
pub fn place(test: &str) -> Option<SemaphoreGuard<'static>> {
    if std::env::var_os("LONG_TESTS").is_none_or(|value| value.is_empty()) {
        eprintln!("{test}: skipped without LONG_TESTS");
        return None;
    }
    Some(block_on(PLACES.acquire()))
}

/// Removed when dropped.
pub struct Node {
    machine: Machine,
    /// What the script has unpacked and built.
    pub packages: PathBuf,
    kubelet: Option<Child>,
    #[expect(dead_code, reason = "held for its drop, after that of the machine")]
    place: SemaphoreGuard<'static>,
}

impl std::ops::Deref for Node {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Node {
    /// `None`: this machine cannot run containers; the reason is printed.
    pub fn start(test: &str) -> Option<Node> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let place = place(test)?;
        // Short, since the path of a socket has at most 107 bytes.
        match Machine::start(format!("/tmp/kn{}x{number}", std::process::id()).into()) {
            Ok(machine) => {
                for below in ["conf.d", "objects", "host"] {
                    fs::create_dir_all(machine.folder.join(below)).expect("a folder");
                }
                let packages = machine.variable("packages").expect("the script's variables");
                Some(Node { machine, packages: packages.into(), kubelet: None, place })
            }
            Err(Error::Missing(line)) => {
                eprintln!("{test}: {line}");
                None
            }
            Err(Error::Failed(text)) => panic!("{text}"),
        }
    }

    /// Kills the runtime; the containers continue.
    pub fn kill_runtime(&self) {
        assert!(self.script("kill").status().expect("the script").success());
    }

    pub fn resume_runtime(&self) {
        assert!(self.script("resume").status().expect("the script").success());
        // It answers other clients before CRI has what it needs.
        let channel = cri::channel(&self.socket(), SystemClock::shared());
        let runtime = RuntimeService::new(channel, Duration::from_secs(60));
        let answers = || block_on(runtime.version(api::VersionRequest::default())).is_ok();
        assert!(wait(answers), "CRI does not answer");
    }

    /// Adds fields to the kubelet's configuration, which it reads at its next start.
    pub fn configure(&self, fields: &str) {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let file = self.folder.join("conf.d/50-test.conf");
        fs::write(file, format!("{head}{fields}\n")).expect("a file");
    }

    /// What a restart of the machine leaves: no process, no mount, no network device; the runtime
    /// has started again.
    pub fn restart_machine(&mut self) {
        self.kill_kubelet();
        assert!(self.script("reboot").status().expect("the script").success());
    }

    pub fn start_kubelet(&mut self) {
        self.start_kubelet_with(&[]);
    }

    /// Starts the kubelet with more flags, which win over the usual ones.
    pub fn start_kubelet_with(&mut self, flags: &[&str]) {
        self.start_kubelet_by(&[], flags);
    }

    /// Starts the kubelet by a program that runs it, with more flags.
    pub fn start_kubelet_by(&mut self, runner: &[&str], flags: &[&str]) {
        let program = kubelet();
        let words: Vec<&Path> = runner.iter().map(Path::new).chain([Path::new(&program)]).collect();
        let mut agent = self.agent(&words, CONFIGURATION).expect("a configuration");
        agent.arg(format!("--config-dir={}", self.folder.join("conf.d").display()));
        agent.args(["--hostname-override=n", "--resolv-conf=", "-v=4"]).args(flags);
        self.kubelet = Some(agent.spawn().expect("the kubelet"));
    }

    /// Starts the kubelet with the folder of [`Node::write_object`], which upstream's has not.
    pub fn start_kubelet_with_objects(&mut self) {
        let folder = self.folder.join("objects");
        self.start_kubelet_with(&[&format!("--local-objects-path={}", folder.display())]);
    }

    /// The process id of the kubelet.
    pub fn kubelet_id(&self) -> u32 {
        self.kubelet.as_ref().expect("a running kubelet").id()
    }

    /// Ends the kubelet with SIGKILL.
    pub fn kill_kubelet(&mut self) {
        if let Some(mut kubelet) = self.kubelet.take() {
            kubelet.kill().expect("a running kubelet");
            kubelet.wait().expect("an end");
        }
    }

    /// Writes a manifest, as an editor does: under another name first.
    pub fn write(&self, name: &str, manifest: &str) {
        let new = self.folder.join("pods").join(format!(".{name}"));
        fs::write(&new, manifest).expect("a file");
        fs::rename(new, self.folder.join("pods").join(name)).expect("a new name");
    }

    /// Writes a ConfigMap or Secret for the pods.
    pub fn write_object(&self, name: &str, manifest: &str) {
        let new = self.folder.join("objects").join(format!(".{name}"));
        fs::write(&new, manifest).expect("a file");
        fs::rename(new, self.folder.join("objects").join(name)).expect("a new name");
    }

    /// A folder of the machine that pods of a test mount, and its files.
    pub fn host_path(&self, name: &str) -> PathBuf {
        self.folder.join("host").join(name)
    }

    pub fn host_text(&self, name: &str) -> String {
        fs::read_to_string(self.host_path(name)).unwrap_or_default()
    }

    /// Runs a program in the machine's namespaces, until it ends or the machine is removed.
    pub fn spawn(&self, program: &str, args: &[&str], env: &[(&str, &str)]) -> Child {
        let mut command = self.script("run");
        command.arg(program).args(args).envs(env.iter().copied());
        command.stdin(Stdio::null()).spawn().expect("a program")
    }

    /// Listens at an address of the machine's network.
    pub fn listen(&self, address: &'static str) -> TcpListener {
        self.in_network(move || TcpListener::bind(address).expect("a port"))
    }

    /// Does some work in the machine's network.
    pub fn in_network<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = format!("/run/netns/{}", self.name);
        let namespace = fs::File::open(namespace).expect("a namespace");
        let inside = move || {
            // Only this thread changes its namespace; its sockets stay in it.
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the namespace");
            work()
        };
        std::thread::spawn(inside).join().expect("a result")
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.folder.join("pods").join(name)).expect("a file");
    }

    /// The status of a static pod, as `/pods` shows it; null: no such pod.
    pub fn pod(&self, name: &str) -> Value {
        let Some(text) = self.get("127.0.0.1:10255", "/pods") else { return Value::Null };
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mut found = items.into_iter().filter(|pod| pod["metadata"]["name"] == name);
        found.next().unwrap_or_default()
    }

    /// Waits until a pod is as it should be.
    pub fn eventually(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let is_so = wait(|| {
            last = self.pod(name);
            check(&last)
        });
        assert!(is_so, "{name} is not {what}: {last:#}\n{}", self.log());
        last
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_kubelet();
    }
}

/// The kubelet that is tested: `KUBELET` names another binary, such as the production build.
pub fn kubelet() -> std::ffi::OsString {
    std::env::var_os("KUBELET").unwrap_or_else(|| env!("CARGO_BIN_EXE_kubelet").into())
}

/// The folder of a controller's cgroups in version 1, or of all cgroups in version 2.
pub fn cgroups_of(controller: &str) -> PathBuf {
    let base = Path::new("/sys/fs/cgroup");
    match base.join("cgroup.controllers").exists() {
        true => base.to_owned(),
        false => base.join(controller),
    }
}

/// Whether a condition comes true within two minutes, or the seconds of `PATIENCE`.
pub fn wait(mut condition: impl FnMut() -> bool) -> bool {
    let clock = Arc::new(SystemClock);
    let seconds = std::env::var("PATIENCE").map_or(120, |text| text.parse().expect("seconds"));
    for _ in 0..5 * seconds {
        if condition() {
            return true;
        }
        block_on(clock.sleep(Duration::from_millis(200)));
    }
    false
}

const CONFIGURATION: &str = "
readOnlyPort: 10255
address: 127.0.0.1
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
";
