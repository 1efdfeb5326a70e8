//! A machine that runs containers, made by the script `tests/node`. The tests and the demo use it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node");

/// The exit status of a script that cannot do its work on this machine.
pub const SKIPPED: u8 = 77;

/// Why there is no machine.
#[derive(Debug)]
pub enum Error {
    /// Containers cannot run here: the script's line says what is missing.
    Missing(String),
    /// The script has failed, with this text.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(line) | Error::Failed(line) => f.write_str(line),
        }
    }
}

/// Stopped and removed when dropped.
pub struct Machine {
    pub folder: PathBuf,
    /// Of its namespaces and of the parent of its pods' cgroups.
    pub name: String,
}

impl Machine {
    /// Makes a machine in `folder`, whose path has at most 60 bytes: a socket lies below it.
    pub fn start(folder: PathBuf) -> Result<Machine, Error> {
        Machine::start_with(folder, &[])
    }

    /// As [`Machine::start`]. `how`: the script's further arguments.
    pub fn start_with(folder: PathBuf, how: &[&str]) -> Result<Machine, Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("{SCRIPT}: {error}"));
        let mut script = Command::new(SCRIPT);
        let output = script.arg("start").arg(&folder).args(how).output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.code() == Some(SKIPPED.into()) {
            return Err(Error::Missing(text));
        }
        if !output.status.success() {
            return Err(Error::Failed(text));
        }
        let mut machine = Machine { folder, name: String::new() };
        machine.name = machine.variable("name").map_err(failed)?;
        fs::create_dir_all(machine.pods()).map_err(failed)?;
        Ok(machine)
    }

    /// A variable of the script.
    pub fn variable(&self, name: &str) -> std::io::Result<String> {
        let env = fs::read_to_string(self.folder.join("env"))?;
        let value = env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        Ok(value.unwrap_or_default().to_owned())
    }

    /// The runtime's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// The folder of static pods.
    pub fn pods(&self) -> PathBuf {
        self.folder.join("pods")
    }

    /// A command of the script, for this machine.
    pub fn script(&self, command: &str) -> Command {
        let mut script = Command::new(SCRIPT);
        script.arg(command).arg(&self.folder);
        script
    }

    /// The kubelet of `program` in the machine's namespaces, for its static pods. It logs to
    /// `kubelet.log`. `configuration`: fields beside those for the machine's files.
    pub fn agent(&self, program: &[&Path], configuration: &str) -> std::io::Result<Command> {
        // The Go kubelet asks an API server about each client of its own port otherwise.
        let open =
            "authentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";
        self.agent_as(program, &format!("{open}{configuration}"))
    }

    /// As [`Machine::agent`], where `configuration` says too who may use its port.
    pub fn agent_as(&self, program: &[&Path], configuration: &str) -> std::io::Result<Command> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let log = fs::File::options().append(true).create(true).open(path("kubelet.log"))?;
        // Most tests must not depend on how full the disk is.
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    evictionHard: {}\nimageGCHighThresholdPercent: 100\n";
        let logs = path("podlogs");
        fs::write(path("config"), format!("{head}podLogsDir: {logs}\n{configuration}"))?;
        let mut agent = self.script("run");
        agent
            .args(program)
            .arg(format!("--config={}", path("config")))
            .arg(format!("--container-runtime-endpoint=unix://{}", self.socket().display()))
            .arg(format!("--pod-manifest-path={}", self.pods().display()))
            .arg(format!("--root-dir={}", path("kubelet")))
            .arg(format!("--cgroup-root=/{}", self.name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(agent)
    }

    /// What the agent has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("kubelet.log")).unwrap_or_default()
    }

    /// A GET in the machine's network; `None`: no answer, or not a good one.
    pub fn get(&self, address: &str, path: &str) -> Option<String> {
        let (host, port) = address.split_once(':')?;
        let script =
            "exec 3<>/dev/tcp/$0/$1 && printf 'GET %s HTTP/1.0\\r\\n\\r\\n' $2 >&3 && cat <&3";
        let output = self
            .script("run")
            .args(["timeout", "60", "bash", "-c", script, host, port, path])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200").then(|| body.to_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.script("stop").status();
    }
}
