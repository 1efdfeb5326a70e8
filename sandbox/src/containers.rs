//! A node with real containers: the program `kubelet-demo` makes a machine and runs a kubelet on it.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use kube_controller_manager::client::{self, Client};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use serde_json::Value;

use crate::cluster::terminate;

/// The program, which is built with the kubelet.
const PROGRAM: &str = "kubelet-demo";
/// The Node that it registers.
pub const NODE: &str = "machine";
/// Its exit status where containers cannot run. It has printed what is missing.
const MISSING: i32 = 77;
/// How long the removal of the machine may take.
const REMOVAL: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
const NODES: ResourceType = ResourceType::fixed("", "v1", "Node", "nodes", false);

#[derive(Debug)]
pub enum Error {
    /// There is no program beside this one.
    NoProgram(PathBuf),
    /// Containers cannot run on this machine; the program has printed why.
    Missing,
    Start(PathBuf, io::Error),
    /// The program has ended early.
    Ended(ExitStatus),
    Late(Duration),
    Api(client::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoProgram(path) => {
                write!(f, "{} is missing: build it with `cargo build -p kubelet`", path.display())
            }
            Error::Missing => f.write_str("containers cannot run on this machine"),
            Error::Start(path, _) => write!(f, "cannot start {}", path.display()),
            Error::Ended(status) => write!(f, "the node ended early: {status}"),
            Error::Late(patience) => write!(f, "the node is not ready within {patience:?}"),
            Error::Api(_) => f.write_str("cannot read the node"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Start(_, source) => Some(source),
            Error::Api(source) => Some(source),
            Error::NoProgram(_) | Error::Missing | Error::Ended(_) | Error::Late(_) => None,
        }
    }
}

/// Returns the program that lies beside this one.
///
/// # Errors
/// [`Error::NoProgram`] says how it is built.
pub fn program() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|error| Error::Start(PROGRAM.into(), error))?;
    let path = own.with_file_name(PROGRAM);
    if path.exists() { Ok(path) } else { Err(Error::NoProgram(path)) }
}

/// The machine with its kubelet. Dropped, it is asked to end, and waited for.
pub struct ContainerNode(Child);

impl ContainerNode {
    /// Starts the program for the API server of an administrator's `kubeconfig`, on a loopback address.
    ///
    /// # Errors
    /// [`Error::Start`].
    pub fn start(program: &Path, kubeconfig: &Path) -> Result<ContainerNode, Error> {
        let child = Command::new(program)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdin(Stdio::null())
            // Ctrl-C must not end what removes the machine: it is asked to, once.
            .process_group(0)
            .spawn();
        child.map(ContainerNode).map_err(|error| Error::Start(program.to_owned(), error))
    }

    /// Fails if the program has ended.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Ended`].
    pub fn check(&mut self) -> Result<(), Error> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) if status.code() == Some(MISSING) => Err(Error::Missing),
            Ok(Some(status)) => Err(Error::Ended(status)),
            Err(error) => Err(Error::Start(PROGRAM.into(), error)),
        }
    }

    /// Waits until the Node is ready.
    ///
    /// # Errors
    /// As [`ContainerNode::check`], [`Error::Late`] and [`Error::Api`].
    pub async fn ready(
        &mut self,
        client: &Client,
        clock: &SharedClock,
        patience: Duration,
    ) -> Result<(), Error> {
        let end = clock.monotonic() + patience;
        loop {
            self.check()?;
            let node: client::Result<Value> =
                client.resource(&NODES).get(&ObjectKey::cluster(NODE)).await;
            match node {
                Ok(node) if is_ready(&node) => return Ok(()),
                Err(error) if !error.is_not_found() => return Err(Error::Api(error)),
                _ if clock.monotonic() > end => return Err(Error::Late(patience)),
                _ => clock.sleep(POLL).await,
            }
        }
    }

    /// Removes the machine.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn stop(mut self, clock: &SharedClock) -> io::Result<()> {
        terminate(&mut self.0, clock, REMOVAL).await.map(|_| ())
    }
}

impl Drop for ContainerNode {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
            let _ = self.0.wait();
        }
    }
}

fn is_ready(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
}
