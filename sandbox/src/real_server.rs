//! A real kube-apiserver and its etcd, as envtest runs them.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::auth::certs::{Authority, Pair};
use crate::cluster::{administrator, free_port};
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long the API server may take to become ready.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

/// Returns the folder of the programs for tests on a real API server, from `KUBEBUILDER_ASSETS`.
/// Where it is not set, prints once that these tests are skipped.
pub fn assets() -> Option<PathBuf> {
    static PRINTED: Once = Once::new();
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty());
    if assets.is_none() {
        // Not by a macro: the test harness would capture the text.
        let text = "skipped on a real kube-apiserver: KUBEBUILDER_ASSETS is not set\n";
        PRINTED.call_once(|| std::io::stderr().write_all(text.as_bytes()).unwrap_or_default());
    }
    assets.map(PathBuf::from)
}

/// Where the servers' programs and files are, and their further flags.
pub struct RealOptions<'a> {
    /// The folder that holds `etcd` and `kube-apiserver`.
    pub assets: &'a Path,
    /// The folder of certificates, data and logs; created when missing.
    pub dir: &'a Path,
    pub etcd_flags: &'a [&'a str],
    pub api_flags: &'a [&'a str],
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Etcd,
    ApiServer,
}

/// An API server and its etcd. They are killed on drop.
pub struct RealServer {
    /// The kubeconfig of an administrator.
    pub admin: PathBuf,
    /// The kubeconfig of `system:kube-controller-manager`.
    pub kubeconfig: PathBuf,
    pub address: SocketAddr,
    /// The address of etcd, without TLS.
    pub etcd: String,
    dir: PathBuf,
    clock: SharedClock,
    authority: Authority,
    client: Client,
    programs: [Program; 2],
    processes: Mutex<[Option<Child>; 2]>,
}

/// A program and its flags.
struct Program {
    path: PathBuf,
    flags: Vec<String>,
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes a certificate and its key to `NAME.crt` and `NAME.key`.
fn write_pair(dir: &Path, name: &str, pair: &Pair) -> Result<()> {
    fs::write(dir.join(format!("{name}.crt")), &pair.certificate)?;
    Ok(fs::write(dir.join(format!("{name}.key")), &pair.key)?)
}

/// Starts a program in `dir`, with its output appended to a log there.
fn spawn(Program { path, flags }: &Program, dir: &Path) -> Result<Child> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let log = dir.join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(path);
    command.args(flags).current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().map_err(|error| format!("{}: {error}", path.display()).into())
}

impl RealServer {
    /// Starts both and waits until the API server is ready.
    ///
    /// # Errors
    /// What cannot be written or started, and an API server that does not become ready in time.
    pub async fn start(options: RealOptions<'_>, clock: &SharedClock) -> Result<RealServer> {
        let RealOptions { assets, dir, etcd_flags, api_flags } = options;
        fs::create_dir_all(dir)?;
        let dir = std::path::absolute(dir)?;
        let file = |name: &str| dir.join(name).display().to_string();
        let authority = Authority::new(clock.now())?;
        fs::write(dir.join("ca.crt"), &authority.certificate)?;
        fs::write(dir.join("ca.key"), authority.key())?;
        let serving = authority.serving(Ipv4Addr::LOCALHOST.into())?;
        write_pair(&dir, "apiserver", &serving)?;
        // One key signs tokens and TLS handshakes; the certificate's public key verifies both.
        fs::write(dir.join("sa.key"), &serving.key)?;
        write_pair(&dir, "admin", &authority.client("admin", &["system:masters"])?)?;
        write_pair(&dir, "manager", &authority.client("system:kube-controller-manager", &[])?)?;

        let [etcd, peer, port] = [free_port()?, free_port()?, free_port()?];
        let (etcd, peer) = (format!("http://127.0.0.1:{etcd}"), format!("http://127.0.0.1:{peer}"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let store = vec![
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={etcd}"),
            format!("--advertise-client-urls={etcd}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        let api = vec![
            format!("--etcd-servers={etcd}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=192.0.2.1".into(),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-key-file={}", file("apiserver.crt")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--authorization-mode=RBAC".into(),
            "--enable-bootstrap-token-auth=true".into(),
        ];
        let own = |flags: &[&str]| flags.iter().map(ToString::to_string).collect::<Vec<String>>();
        let programs = [("etcd", store, own(etcd_flags)), ("kube-apiserver", api, own(api_flags))];
        let programs = programs.map(|(name, flags, more)| Program {
            path: assets.join(name),
            flags: flags.into_iter().chain(more).collect(),
        });
        let [admin, kubeconfig] = ["admin", "manager"].map(|user| {
            let certificate = file(&format!("{user}.crt"));
            let credentials =
                json!({ "client-certificate": certificate, "client-key": file(&format!("{user}.key")) });
            write_kubeconfig(&dir, user, address, &credentials)
        });
        let (admin, kubeconfig) = (admin?, kubeconfig?);
        let client = administrator(&admin, "sandbox", clock)?;
        let (clock, processes) = (clock.clone(), Mutex::default());
        let server = RealServer {
            admin,
            kubeconfig,
            address,
            etcd,
            dir,
            clock,
            authority,
            client,
            programs,
            processes,
        };
        server.run().await?;
        Ok(server)
    }

    /// The folder of certificates, data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An administrator's client without a rate limit.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Writes a kubeconfig for a user with a token, who connects to `address`.
    pub fn kubeconfig_for(&self, user: &str, address: SocketAddr, token: &str) -> Result<PathBuf> {
        write_kubeconfig(&self.dir, user, address, &json!({ "token": token }))
    }

    /// Writes a kubeconfig for a user with a certificate of its own.
    pub fn kubeconfig_with_certificate(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        write_pair(&self.dir, user, &self.authority.client(user, groups)?)?;
        let file = |kind: &str| self.dir.join(format!("{user}.{kind}"));
        let credentials = json!({ "client-certificate": file("crt"), "client-key": file("key") });
        write_kubeconfig(&self.dir, user, self.address, &credentials)
    }

    /// Starts what does not run, and waits until the API server is ready.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn run(&self) -> Result<()> {
        let give_up = self.clock.monotonic() + PATIENCE;
        loop {
            // An API server ends by itself if it does not reach etcd at its start.
            self.start_missing()?;
            let Err(error) = self.client.get_path("/readyz").await else { return Ok(()) };
            if self.clock.monotonic() > give_up {
                return Err(self.not_ready(&error).into());
            }
            self.clock.sleep(POLL).await;
        }
    }

    /// Starts etcd and the API server, those of them that do not run.
    fn start_missing(&self) -> Result<()> {
        for (process, program) in self.processes.lock().iter_mut().zip(&self.programs) {
            if process.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None))) {
                *process = Some(spawn(program, &self.dir)?);
            }
        }
        Ok(())
    }

    /// Formats the error for an API server that does not become ready, with the last line of its
    /// log.
    fn not_ready(&self, error: &dyn Display) -> String {
        let log = fs::read_to_string(self.dir.join("kube-apiserver.log")).unwrap_or_default();
        let last = log.lines().last().unwrap_or_default();
        format!("the API server is not ready: {error}: {last}")
    }

    /// Kills a part, without a chance to write anything.
    pub fn kill(&self, part: Part) {
        if let Some(mut process) = self.processes.lock()[part as usize].take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills the API server, and then its etcd.
    pub fn stop(&self) {
        self.kill(Part::ApiServer);
        self.kill(Part::Etcd);
    }
}

/// Writes the kubeconfig of a user of the real API server, and returns its path.
fn write_kubeconfig(
    dir: &Path,
    user: &str,
    server: SocketAddr,
    credentials: &Value,
) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "real",
        "clusters": [{ "name": "real", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": dir.join("ca.crt"),
        } }],
        "users": [{ "name": user, "user": credentials }],
        "contexts": [{ "name": "real", "context": { "cluster": "real", "user": user } }],
    });
    let path = dir.join(format!("{user}.conf"));
    fs::write(&path, config.to_string())?;
    Ok(path)
}
