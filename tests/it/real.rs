//! A real kube-apiserver and its etcd for a test.

use std::fs;
use std::path::{Path, PathBuf};

use kube_controller_manager::clock::SharedClock;
use parking_lot::{Mutex, MutexGuard};
pub use sandbox::real_server::assets;
use sandbox::real_server::{RealOptions, RealServer};

/// Held while a real server runs. Only one runs at a time: they are heavy.
pub struct Turn {
    _guard: MutexGuard<'static, ()>,
}

pub fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    Turn { _guard: TURN.lock() }
}

/// An API server that runs until dropped.
pub struct ApiServer {
    pub server: RealServer,
    _turn: Turn,
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

impl ApiServer {
    /// Starts etcd and the API server, with all their files in `dir`. `extra`: further flags of
    /// the API server.
    pub async fn start(
        assets: &Path,
        dir: &Path,
        extra: &[&str],
        clock: &SharedClock,
    ) -> ApiServer {
        let turn = turn();
        // As envtest: pods need no service account.
        let api_flags = [&["--disable-admission-plugins=ServiceAccount"], extra].concat();
        let etcd_flags = &["--unsafe-no-fsync"];
        let options = RealOptions { assets, dir, etcd_flags, api_flags: &api_flags };
        let server = RealServer::start(options, clock).await;
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        ApiServer { server, _turn: turn }
    }

    async fn run(&self) {
        self.server.run().await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Restarts both programs, and copies the data of etcd meanwhile.
    pub async fn backup(&self) -> PathBuf {
        let backup = self.server.dir().join("etcd-backup");
        self.server.stop();
        copy_folder(&self.server.dir().join("etcd"), &backup);
        self.run().await;
        backup
    }

    /// Restarts both programs with the data of a backup.
    pub async fn restore(&self, backup: &Path) {
        let data = self.server.dir().join("etcd");
        self.server.stop();
        fs::remove_dir_all(&data).expect("removed");
        copy_folder(backup, &data);
        self.run().await;
    }
}
