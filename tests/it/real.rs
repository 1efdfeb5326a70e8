//! A real kube-apiserver and its etcd, as envtest runs them.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;

use kube_controller_manager::clock::SharedClock;
use parking_lot::{Mutex, MutexGuard};
use sandbox::certs::{Authority, Pair};
use sandbox::cluster::administrator;
use serde_json::json;

use crate::env::eventually;

/// The folder that holds the binaries. Where it is not set, prints that once.
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

/// An API server that runs until dropped. Only one runs at a time: they are heavy.
pub struct ApiServer {
    /// The kubeconfig of an administrator.
    pub admin: PathBuf,
    /// The kubeconfig of `system:kube-controller-manager`.
    pub kubeconfig: PathBuf,
    folder: PathBuf,
    clock: SharedClock,
    /// etcd and the API server.
    programs: [Program; 2],
    processes: Mutex<Vec<Child>>,
    _turn: MutexGuard<'static, ()>,
}

/// A program and its flags.
struct Program {
    path: PathBuf,
    flags: Vec<String>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let copy = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy_folder(&path, &copy),
            false => drop(fs::copy(&path, &copy).expect("copied")),
        }
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its number").port()
}

fn write_pair(folder: &Path, name: &str, pair: &Pair) {
    fs::write(folder.join(format!("{name}.crt")), &pair.certificate).expect("written");
    fs::write(folder.join(format!("{name}.key")), &pair.key).expect("written");
}

fn spawn(Program { path, flags }: &Program, folder: &Path) -> Child {
    let name = path.file_name().expect("a program").to_string_lossy().into_owned();
    let log = fs::File::create(folder.join(format!("{name}.log"))).expect("a log file");
    Command::new(path)
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the log file"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl ApiServer {
    /// Starts etcd and the API server, with all their files in `folder`.
    /// `extra`: further flags of the API server.
    pub async fn start(
        assets: &Path,
        folder: &Path,
        extra: &[&str],
        clock: &SharedClock,
    ) -> ApiServer {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock();
        let authority = Authority::new(clock.now()).expect("a CA");
        let file = |name: &str| folder.join(name).display().to_string();
        fs::write(folder.join("ca.crt"), &authority.certificate).expect("written");
        fs::write(folder.join("ca.key"), authority.key()).expect("written");
        let serving = authority.serving(Ipv4Addr::LOCALHOST.into()).expect("signed");
        write_pair(folder, "apiserver", &serving);
        // One key signs tokens and TLS handshakes; the certificate's public key verifies both.
        fs::write(folder.join("sa.key"), &serving.key).expect("written");
        let admin = authority.client("admin", &["system:masters"]).expect("signed");
        write_pair(folder, "admin", &admin);
        let manager = authority.client("system:kube-controller-manager", &[]).expect("signed");
        write_pair(folder, "manager", &manager);

        let [etcd, peer, port] = [free_port(), free_port(), free_port()];
        let (etcd, peer) = (format!("http://127.0.0.1:{etcd}"), format!("http://127.0.0.1:{peer}"));
        let store = vec![
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={etcd}"),
            format!("--advertise-client-urls={etcd}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".into(),
        ];
        let mut flags = vec![
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
            // As envtest: pods need no service account.
            "--disable-admission-plugins=ServiceAccount".into(),
        ];
        flags.extend(extra.iter().map(ToString::to_string));
        let [admin, kubeconfig] = ["admin", "manager"].map(|user| {
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "real",
                "clusters": [{ "name": "real", "cluster": {
                    "server": format!("https://127.0.0.1:{port}"),
                    "certificate-authority": file("ca.crt"),
                }}],
                "users": [{ "name": user, "user": {
                    "client-certificate": file(&format!("{user}.crt")),
                    "client-key": file(&format!("{user}.key")),
                }}],
                "contexts": [{ "name": "real", "context": { "cluster": "real", "user": user } }],
            });
            let path = folder.join(format!("{user}.conf"));
            fs::write(&path, config.to_string()).expect("written");
            path
        });
        let programs = [("etcd", store), ("kube-apiserver", flags)]
            .map(|(name, flags)| Program { path: assets.join(name), flags });
        let (folder, clock, processes) = (folder.to_owned(), clock.clone(), Mutex::default());
        let server =
            ApiServer { admin, kubeconfig, folder, clock, programs, processes, _turn: turn };
        server.run().await;
        server
    }

    async fn run(&self) {
        let started = self.programs.iter().map(|program| spawn(program, &self.folder));
        self.processes.lock().extend(started);
        let client = administrator(&self.admin, "tests", &self.clock).expect("a client");
        eventually(&self.clock, "the API server is ready", || async {
            let log = fs::read_to_string(self.folder.join("kube-apiserver.log"));
            let log = log.unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            client.get_path("/readyz").await.map_err(|error| format!("{error}: {last}"))
        })
        .await;
    }

    /// Stops the API server before its etcd.
    fn stop(&self) {
        for mut process in self.processes.lock().drain(..).rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Restarts both programs, and copies the data of etcd meanwhile.
    pub async fn backup(&self) -> PathBuf {
        let backup = self.folder.join("etcd-backup");
        self.stop();
        copy_folder(&self.folder.join("etcd"), &backup);
        self.run().await;
        backup
    }

    /// Restarts both programs with the data of a backup.
    pub async fn restore(&self, backup: &Path) {
        let data = self.folder.join("etcd");
        self.stop();
        fs::remove_dir_all(&data).expect("removed");
        copy_folder(backup, &data);
        self.run().await;
    }
}
