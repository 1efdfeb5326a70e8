//! A cluster whose node runs containers, as `sandbox --containers` makes it, with controllers of
//! the manager in this process, and its `kubectl`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use kube_controller_manager::options::Options;
use sandbox::containers::{self, ContainerNode};

use super::api::PATIENCE;
use super::cluster_server::ClusterServer;
use super::registration::Folder;

pub struct ContainerCluster {
    pub server: ClusterServer,
    pub kubectl: Kubectl,
    /// The folder of the driver's volumes.
    pub volumes: PathBuf,
    node: ContainerNode,
    folder: Folder,
}

impl ContainerCluster {
    /// Starts the cluster with these controllers. `assets`: the folder with the programs of a real
    /// API server; without it the embedded one runs. Returns `None` if this machine cannot run
    /// containers, or has no `kubectl`; the reason is printed.
    pub async fn start(
        assets: Option<&Path>,
        controllers: &[&str],
        options: Options,
    ) -> Option<ContainerCluster> {
        if !has_kubectl() {
            eprintln!("skipped: kubectl is missing");
            return None;
        }
        let folder = Folder::make();
        let (dir, volumes) = (&folder.0, folder.0.join("volumes"));
        let server = match assets {
            None => ClusterServer::embedded(dir, &volumes, controllers, options).await,
            Some(assets) => ClusterServer::real(assets, dir, &volumes, controllers, options).await,
        };
        let program = Path::new(env!("CARGO_BIN_EXE_kubelet-demo"));
        let mut node = ContainerNode::start(program, &server.node_kubeconfig).expect("a program");
        match node.ready(&server.client, &server.clock, PATIENCE).await {
            Err(containers::Error::Missing) => {
                server.stop().await;
                return None;
            }
            ready => ready.expect("a node"),
        }
        let kubectl = Kubectl { kubeconfig: server.kubeconfig.clone(), home: folder.0.clone() };
        Some(ContainerCluster { server, kubectl, volumes, node, folder })
    }

    pub async fn stop(self) {
        self.node.stop(&self.server.clock).await.expect("an end");
        self.server.stop().await;
        drop(self.folder);
    }
}

/// Killed when dropped.
pub struct Running {
    child: Child,
    /// Open until then: a program dies of a pipe that nothing reads.
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stderr(Stdio::inherit()).spawn().expect("a program");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, output }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    pub home: PathBuf,
}

impl Kubectl {
    pub fn command(&self, args: &[&str]) -> Command {
        self.by("kubectl", args)
    }

    fn by(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The outputs of a command, and whether it has succeeded.
    pub fn end(mut command: Command, input: &str) -> (bool, String) {
        let mut child = command.spawn().expect("kubectl");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input.as_bytes()).expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("an end");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    pub fn feed(&self, args: &[&str], input: &str) -> String {
        let (is_good, text) = Kubectl::end(self.command(args), input);
        assert!(is_good, "kubectl {args:?}: {text}");
        text
    }

    pub fn run(&self, args: &[&str]) -> String {
        self.feed(args, "")
    }

    pub fn fail(&self, args: &[&str]) -> String {
        let (is_good, text) = Kubectl::end(self.command(args), "");
        assert!(!is_good, "kubectl {args:?}: {text}");
        text
    }

    /// Runs a command on a terminal, and types each text once another is shown; all that it shows.
    pub fn on_terminal(&self, command: &str, steps: &[(&str, &str)]) -> String {
        let mut running = Running::start(self.by("script", &["-qec", command, "/dev/null"]));
        let mut keyboard = running.child.stdin.take().expect("a pipe");
        let (mut shown, mut byte) = (Vec::new(), [0]);
        for (awaited, typed) in steps {
            while !shown.ends_with(awaited.as_bytes()) {
                let count = running.output.read(&mut byte).expect("output");
                assert!(count > 0, "no {awaited:?}: {}", String::from_utf8_lossy(&shown));
                shown.push(byte[0]);
            }
            keyboard.write_all(typed.as_bytes()).expect("typed");
        }
        running.output.read_to_end(&mut shown).expect("output");
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Waits for `count` lines of a command's output that contain a text; the last of them, and the
    /// command, which runs on.
    pub fn lines(&self, args: &[&str], text: &str, count: usize) -> (String, Running) {
        let mut running = Running::start(self.command(args));
        let mut found = 0;
        loop {
            let mut line = String::new();
            let read = running.output.read_line(&mut line).expect("text");
            assert!(read > 0, "kubectl {args:?} ends without {text:?}");
            found += usize::from(line.contains(text));
            if found == count {
                return (line.trim_end().to_owned(), running);
            }
        }
    }
}

fn has_kubectl() -> bool {
    let found = Command::new("kubectl").args(["version", "--client"]).output();
    found.is_ok_and(|output| output.status.success())
}
