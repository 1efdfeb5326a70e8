//! A whole small cluster: API server, scheduler, nodes, and a controller manager beside them.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::nodes::{NodeOptions, StandIns, Steering};
use crate::server::{Sandbox, SandboxOptions};
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SharedClock;

/// Creates an administrator's client without a rate limit. `name`: the User-Agent.
pub fn administrator(
    kubeconfig: &Path,
    name: &str,
    clock: &SharedClock,
) -> kube_controller_manager::client::Result<Client> {
    let mut config = Config::from_kubeconfig(kubeconfig, None, None)?;
    config.qps = -1.0;
    config.user_agent = name.to_owned();
    Client::new(config, clock.clone())
}

/// The ports of [`free_port`]: below Linux's default range of ephemeral ports.
const PORTS: std::ops::Range<u32> = 20_000..30_000;

/// Returns a port of the loopback address that is not in use, for a process that is started later.
/// The system does not assign it meanwhile, neither to a listener on port 0 nor to a connection.
/// Calls of one process return different ports, until all in the range have been tried.
///
/// # Errors
/// The error of the last port if all are in use.
pub fn free_port() -> std::io::Result<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes with neighbouring ids begin far from each other.
    let first = std::process::id().wrapping_mul(617);
    let mut last = None;
    for _ in PORTS {
        let at = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % count;
        let port = (PORTS.start + at) as u16;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there are ports"))
}

/// A running sandbox with its scheduler and nodes.
pub struct Cluster {
    pub sandbox: Sandbox,
    /// An administrator's client without a rate limit.
    pub client: Client,
    pub steering: Steering,
    clock: SharedClock,
    stand_ins: StandIns,
    manager_kubeconfig: PathBuf,
}

impl Cluster {
    /// Starts everything except a controller manager. Files (certificates, kubeconfig) go to
    /// `options.dir`.
    pub async fn start(
        options: SandboxOptions,
        node_options: NodeOptions,
    ) -> Result<Cluster, Box<dyn std::error::Error + Send + Sync>> {
        let (all_versions, clock) = (options.all_versions, options.clock.clone());
        let sandbox = Sandbox::start(options).await?;
        let client = administrator(&sandbox.kubeconfig(), "sandbox", &clock)?;
        let manager_kubeconfig = sandbox.kubeconfig_for("system:kube-controller-manager", &[])?;
        let stand_ins = StandIns::start(&client, &clock, node_options);
        if all_versions {
            stand_ins.coordinate_elections(&client, &clock);
        }
        let steering = stand_ins.steering.clone();
        Ok(Cluster { sandbox, client, steering, clock, stand_ins, manager_kubeconfig })
    }

    pub fn clock(&self) -> SharedClock {
        self.clock.clone()
    }

    /// Returns the kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.sandbox.kubeconfig()
    }

    /// Returns the kubeconfig of a controller manager, with its default rights.
    pub fn manager_kubeconfig(&self) -> PathBuf {
        self.manager_kubeconfig.clone()
    }

    pub async fn stop(self) {
        self.stand_ins.stop().await;
        self.sandbox.stop().await;
    }
}

/// A controller manager in a process of its own.
pub struct Manager {
    child: Child,
    pub log: PathBuf,
}

impl Manager {
    /// Starts `program` with the flags of kubeadm's manifest that fit a manager beside the tests,
    /// then `extra`. The folder of `kubeconfig` holds the CA (`ca.crt`, and `ca.key` where the
    /// manager signs) and the key of service-account tokens (`sa.key`); the output is written there
    /// as `<name>.log`.
    pub fn spawn(
        program: &ManagerProgram,
        kubeconfig: &Path,
        name: &str,
        extra: &[String],
    ) -> std::io::Result<Manager> {
        Manager::launch(&program.launch()?, kubeconfig, name, extra)
    }

    /// Starts the manager's process as [`Manager::spawn`] does, by `launch`, which may put it into
    /// a cgroup.
    pub fn launch(
        launch: &Launch,
        kubeconfig: &Path,
        name: &str,
        extra: &[String],
    ) -> std::io::Result<Manager> {
        let beside = |name: &str| kubeconfig.with_file_name(name);
        let log = beside(&format!("{name}.log"));
        let file = std::fs::File::create(&log)?;
        let mut command = launch.command();
        if beside("ca.key").exists() {
            command
                .arg(format!("--cluster-signing-cert-file={}", beside("ca.crt").display()))
                .arg(format!("--cluster-signing-key-file={}", beside("ca.key").display()));
        }
        let child = command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--root-ca-file={}", beside("ca.crt").display()))
            .arg(format!("--service-account-private-key-file={}", beside("sa.key").display()))
            .args(["--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=true"])
            .arg("--use-service-account-credentials=true")
            .args(extra)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Manager { child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if it has ended.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends SIGTERM, then SIGKILL if it still runs after `patience`.
    pub async fn stop(
        mut self,
        clock: &SharedClock,
        patience: Duration,
    ) -> std::io::Result<ExitStatus> {
        terminate(&mut self.child, clock, patience).await
    }
}

/// Sends SIGTERM, then SIGKILL if the process still runs after `patience`.
pub(crate) async fn terminate(
    child: &mut Child,
    clock: &SharedClock,
    patience: Duration,
) -> std::io::Result<ExitStatus> {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    let give_up = clock.monotonic() + patience;
    while clock.monotonic() < give_up {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    child.kill()?;
    child.wait()
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first argument with which the sandbox's binary runs as a controller manager.
pub const EMBEDDED: &str = "kube-controller-manager";

/// The controller manager to run.
#[derive(Clone)]
pub enum ManagerProgram {
    /// This binary itself, called with [`EMBEDDED`] as its first argument.
    Embedded,
    Path(PathBuf),
}

impl ManagerProgram {
    /// Returns how the program is started, outside any cgroup of its own.
    pub fn launch(&self) -> std::io::Result<Launch> {
        match self {
            ManagerProgram::Embedded => {
                let path = std::env::current_exe()?;
                Ok(Launch { path, argument: Some(EMBEDDED), processes: None })
            }
            ManagerProgram::Path(path) => {
                Ok(Launch { path: path.clone(), argument: None, processes: None })
            }
        }
    }
}

impl fmt::Display for ManagerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManagerProgram::Embedded => f.write_str("embedded"),
            ManagerProgram::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How a program is started as a controller manager.
#[derive(Clone, Debug)]
pub struct Launch {
    pub path: PathBuf,
    pub argument: Option<&'static str>,
    /// The file of a cgroup to which the process's id is written before the program begins.
    pub processes: Option<PathBuf>,
}

impl Launch {
    /// Builds the command that starts the manager. With a file for processes, a shell first writes
    /// its process id there, and then becomes the manager.
    fn command(&self) -> Command {
        let mut command = match &self.processes {
            None => Command::new(&self.path),
            Some(file) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(file).arg(&self.path);
                shell
            }
        };
        command.args(self.argument);
        command
    }
}
