//! The machine as a node of an API server that listens on this machine's loopback address.

use std::fs::File;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_io::Async;
use futures_lite::{future, io};
use kube_controller_manager::client::{Config, Pem};
use kube_controller_manager::clock::{Clock, SystemClock};
use kube_controller_manager::task::{self, StopToken, TaskGroup};
use rustix::process::{Pid, getppid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use url::Url;

use super::machine::Machine;
use super::{Agent, PERIOD, say};

/// The Node's name.
const NODE: &str = "machine";

/// Serves a page that names the pod, and logs requests.
const WEB: &str = "trap 'exit 0' TERM; mkdir -p /tmp/www; \
                   echo hello from $(hostname) > /tmp/www/index.html; echo $(hostname) serves; \
                   httpd -f -v -p 8080 -h /tmp/www & wait $!";
/// Writes a line now and then.
const TICKS: &str = "trap 'exit 0' TERM; count=0; while true; do count=$((count + 1)); \
                     echo $(hostname) works: $count; sleep 5 & wait $!; done";
/// As `TICKS`, into a volume.
const WRITES: &str = "trap 'exit 0' TERM; while true; do date >> /data/starts; \
                      echo $(wc -l < /data/starts) lines in /data/starts; sleep 5 & wait $!; done";
/// For pods that have a command of their own.
const ENDS: &str = "true";

/// The images of `fixtures/demo.yaml`, with what they run.
const IMAGES: [(&str, &str); 6] = [
    ("registry.example/web:1.0", WEB),
    ("registry.example/worker:1.0", TICKS),
    ("registry.example/database:1.0", WRITES),
    ("registry.example/agent:1.0", TICKS),
    ("registry.example/import:1.0", ENDS),
    ("registry.example/report:1.0", ENDS),
];

/// What the machine needs of a kubeconfig.
pub struct Server {
    /// Absolute: the kubelet is in another folder.
    kubeconfig: PathBuf,
    port: u16,
    /// The authorities of clients, in PEM.
    authorities: Vec<u8>,
}

impl Server {
    pub fn of(kubeconfig: &Path) -> Result<Server, String> {
        let in_file = |error: String| format!("--kubeconfig {}: {error}", kubeconfig.display());
        let config = Config::from_kubeconfig(kubeconfig, None, None)
            .map_err(|error| format!("--kubeconfig: {error}"))?;
        let url = Url::parse(&config.host).map_err(|error| in_file(error.to_string()))?;
        // Its certificate is for this address, as which the machine reaches it too.
        let port = match url.host_str() {
            Some("127.0.0.1") => url.port_or_known_default(),
            _ => None,
        };
        let port = port.ok_or_else(|| {
            in_file(format!("{} is not at 127.0.0.1, where the machine looks for it", config.host))
        })?;
        let authorities = config.tls.ca.as_ref().map(Pem::read);
        let authorities = authorities.ok_or_else(|| in_file("it has no authority".to_owned()))?;
        let authorities = authorities.map_err(|error| in_file(error.to_string()))?;
        let kubeconfig = std::path::absolute(kubeconfig).map_err(|error| error.to_string())?;
        Ok(Server { kubeconfig, port, authorities })
    }
}

/// Runs a kubelet on the machine until `stop`, or the end of `parent`, which may be killed.
pub async fn run(
    machine: &Machine,
    server: &Server,
    parent: Option<Pid>,
    stop: &StopToken,
) -> Result<(), String> {
    add_images(machine)?;
    let listener = listen(&machine.name, server.port)
        .map_err(|error| format!("the machine's way to the API server: {error}"))?;
    let forwarding = task::spawn(forward(listener, server.port, stop.clone()));
    let mut agent =
        start_agent(machine, server).map_err(|error| format!("the kubelet: {error}"))?;
    say(&format!("the kubelet starts; its log: {}", machine.folder.join("kubelet.log").display()));
    let outcome = loop {
        let is_stopped = stop.unless_stopped(SystemClock.sleep(PERIOD)).await.is_none();
        // A signal at the parent's end would come once for each of its threads.
        if is_stopped || getppid() != parent {
            break Ok(());
        }
        match agent.0.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => break Err(format!("the kubelet has ended: {status}")),
            Err(error) => break Err(format!("the kubelet: {error}")),
        }
    };
    drop(agent);
    stop.stop();
    forwarding.await;
    outcome
}

/// Adds the images to the machine, all at once: each takes a second.
fn add_images(machine: &Machine) -> Result<(), String> {
    let failed = |name: &str, error: String| format!("the image {name}: {error}");
    let mut running = Vec::new();
    for (name, text) in IMAGES {
        let mut script = machine.script("image");
        script.args([name, text]).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = script.spawn().map_err(|error| failed(name, error.to_string()))?;
        running.push((name, child));
    }
    for (name, child) in running {
        let ended = child.wait_with_output().map_err(|error| failed(name, error.to_string()))?;
        if !ended.status.success() {
            return Err(failed(name, String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
        }
    }
    Ok(())
}

fn start_agent(machine: &Machine, server: &Server) -> std::io::Result<Agent> {
    let authorities = machine.folder.join("clients.crt");
    std::fs::write(&authorities, &server.authorities)?;
    let authorities = authorities.display();
    let configuration = format!("authentication: {{x509: {{clientCAFile: {authorities}}}}}\n");
    let program = std::env::current_exe()?;
    let mut agent = machine.agent_as(&[&program, Path::new("kubelet")], &configuration)?;
    agent
        .arg(format!("--kubeconfig={}", server.kubeconfig.display()))
        .arg(format!("--cert-dir={}", machine.folder.join("pki").display()))
        .arg(format!("--hostname-override={NODE}"))
        // Otherwise the name is looked up first, and no server of names can be reached.
        .arg(format!("--node-ip={}", machine.variable("address")?))
        .arg("--resolv-conf=");
    agent.spawn().map(Agent)
}

/// Listens on the loopback address in the network of this name.
fn listen(network: &str, port: u16) -> std::io::Result<TcpListener> {
    let network = File::open(format!("/run/netns/{network}"))?;
    let inside = move || {
        // Only this thread changes its namespace; the socket stays in it.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
    };
    match std::thread::spawn(inside).join() {
        Ok(listener) => listener,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Passes the listener's connections on to the same port of this network, until `stop`.
async fn forward(listener: TcpListener, port: u16, stop: StopToken) {
    /// The pause after a connection that could not be accepted.
    const PAUSE: Duration = Duration::from_millis(100);
    let listener = match Async::new(listener) {
        Ok(listener) => listener,
        Err(error) => return eprintln!("the API server cannot be reached: {error}"),
    };
    let connections = TaskGroup::new();
    while let Some(accepted) = stop.unless_stopped(listener.accept()).await {
        match accepted {
            Ok((near, _)) => {
                let stop = stop.clone();
                connections.spawn(async move {
                    stop.unless_stopped(pass_on(near, port)).await;
                });
            }
            Err(error) => {
                eprintln!("a connection to the API server: {error}");
                SystemClock.sleep(PAUSE).await;
            }
        }
    }
    connections.join().await;
}

async fn pass_on(near: Async<TcpStream>, port: u16) {
    match Async::<TcpStream>::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(far) => {
            future::zip(one_way(&near, &far), one_way(&far, &near)).await;
        }
        Err(error) => eprintln!("the API server: {error}"),
    }
}

/// Copies until the end of `from`, which `to` is shown; an error ends both ways.
async fn one_way(from: &Async<TcpStream>, to: &Async<TcpStream>) {
    let copied = io::copy(from, to).await;
    // A peer that is gone already needs no end.
    let _ = match copied {
        Ok(_) => to.get_ref().shutdown(Shutdown::Write),
        Err(_) => to.get_ref().shutdown(Shutdown::Both),
    };
    if copied.is_err() {
        let _ = from.get_ref().shutdown(Shutdown::Both);
    }
}
