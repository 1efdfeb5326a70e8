//! A machine that runs containers, and a kubelet on it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, SystemClock};
use serde_json::Value;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node");

/// The exit status of a script that cannot do its work on this machine.
const SKIPPED: i32 = 77;

/// Removed when dropped.
pub struct Node {
    pub folder: PathBuf,
    /// What the script has unpacked and built.
    pub packages: PathBuf,
    kubelet: Option<Child>,
    /// Of its namespaces and of the parent of its pods' cgroups.
    pub name: String,
}

impl Node {
    /// `None`: this machine cannot run containers; the script has printed why.
    pub fn start(test: &str) -> Option<Node> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        // Short, since the path of a socket has at most 107 bytes.
        let folder = PathBuf::from(format!("/tmp/kn{}x{number}", std::process::id()));
        let output = Command::new(SCRIPT).arg("start").arg(&folder).output().expect("the script");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(SKIPPED) {
            eprintln!("{test}: {}", text.trim());
            return None;
        }
        assert!(output.status.success(), "{text}");
        let env = fs::read_to_string(folder.join("env")).expect("the script's variables");
        let value = |key: &str| {
            let line = env.lines().find_map(|line| line.strip_prefix(key));
            line.expect("a variable of the script").to_owned()
        };
        fs::create_dir_all(folder.join("pods")).expect("a folder");
        fs::create_dir_all(folder.join("conf.d")).expect("a folder");
        let (packages, name) = (value("packages=").into(), value("name="));
        Some(Node { folder, packages, kubelet: None, name })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    fn script(&self, command: &str) -> Command {
        let mut script = Command::new(SCRIPT);
        script.arg(command).arg(&self.folder);
        script
    }

    /// Kills the runtime; the containers continue.
    pub fn kill_runtime(&self) {
        assert!(self.script("kill").status().expect("the script").success());
    }

    pub fn resume_runtime(&self) {
        assert!(self.script("resume").status().expect("the script").success());
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
        let path = |name: &str| self.folder.join(name).display().to_string();
        let log = fs::File::options().append(true).create(true).open(path("kubelet.log"));
        fs::write(path("config"), CONFIGURATION.replace("LOGS", &path("podlogs"))).expect("a file");
        let child = self
            .script("run")
            .arg(env!("CARGO_BIN_EXE_kubelet"))
            .arg(format!("--config={}", path("config")))
            .arg(format!("--config-dir={}", path("conf.d")))
            .arg(format!("--container-runtime-endpoint=unix://{}", self.socket().display()))
            .arg(format!("--pod-manifest-path={}", path("pods")))
            .arg(format!("--root-dir={}", path("kubelet")))
            .arg(format!("--cgroup-root=/{}", self.name))
            .args(["--hostname-override=n", "--resolv-conf=", "-v=4"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn();
        self.kubelet = Some(child.expect("the kubelet"));
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

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("kubelet.log")).unwrap_or_default()
    }

    /// Writes a manifest, as an editor does: under another name first.
    pub fn write(&self, name: &str, manifest: &str) {
        let new = self.folder.join("pods").join(format!(".{name}"));
        fs::write(&new, manifest).expect("a file");
        fs::rename(new, self.folder.join("pods").join(name)).expect("a new name");
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.folder.join("pods").join(name)).expect("a file");
    }

    /// A GET in the machine's network; `None`: no answer, or not a good one.
    pub fn get(&self, address: &str, path: &str) -> Option<String> {
        let (host, port) = address.split_once(':').expect("HOST:PORT");
        let script =
            "exec 3<>/dev/tcp/$0/$1 && printf 'GET %s HTTP/1.0\\r\\n\\r\\n' $2 >&3 && cat <&3";
        let output = self
            .script("run")
            .args(["timeout", "5", "bash", "-c", script, host, port, path])
            .stderr(Stdio::null())
            .output()
            .expect("bash");
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200").then(|| body.to_owned())
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
        let _ = self.script("stop").status();
    }
}

/// Whether a condition comes true within two minutes.
pub fn wait(mut condition: impl FnMut() -> bool) -> bool {
    let clock = Arc::new(SystemClock);
    for _ in 0..600 {
        if condition() {
            return true;
        }
        block_on(clock.sleep(Duration::from_millis(200)));
    }
    false
}

const CONFIGURATION: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
readOnlyPort: 10255
address: 127.0.0.1
podLogsDir: LOGS
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
";
