//! The reference provider as a process of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cloud::grpc;
use cloud::provider::{Cloud, Settings};
use futures_lite::future::block_on;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use sandbox::certs::{Authority, Pair};
use serde_json::Value;

/// How long the process may take to do something before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// The reference provider in a folder of its own.
pub struct Reference {
    folder: PathBuf,
    /// Where it serves TLS; `None`: it serves a socket.
    address: Option<SocketAddr>,
    child: Option<Child>,
    clock: SharedClock,
}

impl Reference {
    /// One that serves a socket.
    pub fn start() -> Reference {
        let mut this = Reference::new();
        this.restart();
        this
    }

    /// One that serves TLS, with a certificate of `authority` and to its clients alone.
    pub fn start_tls(authority: &Authority) -> Reference {
        let mut this = Reference::new();
        this.set_certificate(authority);
        this.write("client-ca.crt", &authority.certificate);
        this.address = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        this.restart();
        this
    }

    fn new() -> Reference {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(format!("remote-{unique}"));
        // That of a process of the same number, which was killed.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        Reference { folder, address: None, child: None, clock: SystemClock::shared() }
    }

    /// Starts the process, after its end. With TLS it has the same port again.
    pub fn restart(&mut self) {
        let listens =
            self.folder.join(if self.address.is_some() { "address" } else { "provider.sock" });
        let _ = fs::remove_file(&listens);
        let mut command = Command::new(env!("CARGO_BIN_EXE_reference-cloud-provider"));
        command.arg(&self.folder).args(self.address.map(|address| address.to_string()));
        self.child = Some(command.spawn().expect("it starts"));
        // A socket is in its folder a moment before it listens.
        self.wait("it listens", || match self.address {
            Some(_) => listens.exists(),
            None => UnixStream::connect(&listens).is_ok(),
        });
        if let Some(address) = &mut self.address {
            let text = fs::read_to_string(listens).expect("an address");
            *address = text.parse().expect("an address");
        }
    }

    pub fn wait(&self, what: &str, is_done: impl Fn() -> bool) {
        let give_up = self.clock.monotonic() + PATIENCE;
        while !is_done() {
            assert!(self.clock.monotonic() < give_up, "{what}");
            block_on(self.clock.sleep(Duration::from_millis(5)));
        }
    }

    pub fn wait_for_end(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.wait().expect("its end");
    }

    /// A certificate for connections from now on.
    pub fn set_certificate(&self, authority: &Authority) {
        let Pair { certificate, key } =
            authority.serving(Ipv4Addr::LOCALHOST.into()).expect("a certificate");
        self.write("tls.crt", &certificate);
        self.write("tls.key", &key);
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (new, path) = (self.folder.join(format!("{name}.new")), self.folder.join(name));
        fs::write(&new, text).expect("a file");
        fs::rename(new, &path).expect("a new name");
        path
    }

    pub fn plan(&self, plan: Value) {
        self.write("plan.json", &plan.to_string());
    }

    pub fn set_machines(&self, machines: Value) {
        self.write("machines.json", &machines.to_string());
    }

    /// Before its first call: what is in the cloud already.
    pub fn set_cloud(&self, cloud: Value) {
        self.write("cloud.json", &cloud.to_string());
    }

    /// Its load balancers and routes.
    pub fn cloud(&self) -> Value {
        let text = fs::read_to_string(self.folder.join("cloud.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub fn balancers(&self) -> usize {
        self.cloud()["loadBalancers"].as_object().map_or(0, serde_json::Map::len)
    }

    /// The Nodes and destinations of its routes, in order.
    pub fn routes(&self) -> Vec<(String, String)> {
        let cloud = self.cloud();
        let routes = cloud["routes"].as_object().cloned().unwrap_or_default();
        let shown = routes.values().map(|route| {
            let text = |field: &str| route[field].as_str().unwrap_or_default().to_owned();
            (text("node"), text("destination"))
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown
    }

    pub fn calls(&self, method: &str) -> usize {
        let calls = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.split(' ').next() == Some(method)).count()
    }

    /// A configuration for the socket.
    pub fn config(&self, timeout: &str) -> String {
        let socket = self.folder.join("provider.sock").display().to_string();
        format!("{{name: example, endpoint: \"unix://{socket}\", timeout: {timeout}}}")
    }

    /// A client with this deadline.
    pub fn client(&self, timeout: &str) -> Arc<dyn Cloud> {
        self.open(timeout, &self.config(timeout))
    }

    /// A client by TLS, that trusts the servers of `trusted`. `identity`: who has signed its own
    /// certificate; `None`: it has no certificate.
    pub fn tls_client(
        &self,
        name: &str,
        trusted: &Authority,
        identity: Option<&Authority>,
    ) -> Arc<dyn Cloud> {
        let address = self.address.expect("it serves TLS");
        let file = |kind: &str, text: &str| self.write(&format!("{name}.{kind}"), text);
        let mut tls = format!("ca: {}", file("ca", &trusted.certificate).display());
        if let Some(authority) = identity {
            let Pair { certificate, key } = authority.client("manager", &[]).expect("signed");
            let (certificate, key) = (file("crt", &certificate), file("key", &key));
            tls += &format!(", certificate: {}, key: {}", certificate.display(), key.display());
        }
        self.open(
            name,
            &format!(
                "{{name: example, endpoint: \"tls://{address}\", timeout: 120s, tls: {{{tls}}}}}"
            ),
        )
    }

    fn open(&self, name: &str, config: &str) -> Arc<dyn Cloud> {
        let file = self.write(&format!("config-{name}.yaml"), config);
        let settings = Settings { config: Some(file), cluster_name: "test".to_owned() };
        grpc::open(&settings).expect("a provider")
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
