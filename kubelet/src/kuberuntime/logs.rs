//! Rotates the logs of running containers. Upstream: `pkg/kubelet/logs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_lock::Mutex;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;

use super::Error;
use super::garbage::with_prefix;
use crate::causes::chain;
use crate::concurrent::join_all;
use crate::cri::{self, RuntimeService, api};

/// The suffixes of files that are complete, and that are not. Upstream: `compressSuffix`,
/// `tmpSuffix`.
const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

/// Compressed at once: so little memory is enough for each log.
const CHUNK: usize = 256 << 10;

/// When logs are rotated. Upstream: `LogRotatePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub max_bytes: u64,
    /// The files of a container, with that which is written to; at least 2.
    pub max_files: usize,
    /// How often sizes are read.
    pub period: Duration,
    /// How many logs are rotated at a time.
    pub workers: usize,
}

/// The steps before a log is rotated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Steps {
    remove: Vec<PathBuf>,
    compress: Vec<PathBuf>,
}

/// Decides what happens to the files that earlier rotations left. Upstream: `cleanupUnusedLogs`,
/// `removeExcessLogs`.
fn steps(rotated: &[PathBuf], max_files: usize) -> Steps {
    let ends = |file: &Path, suffix: &str| file.to_string_lossy().ends_with(suffix);
    let compressed = |file: &Path| PathBuf::from(format!("{}{COMPRESSED}", file.display()));
    // Unused: a compression that was cut off, and a log that is compressed already.
    let is_used = |file: &PathBuf| {
        !ends(file, UNFINISHED) && (ends(file, COMPRESSED) || !rotated.contains(&compressed(file)))
    };
    let (mut used, unused): (Vec<PathBuf>, Vec<PathBuf>) =
        rotated.iter().cloned().partition(is_used);
    // Their names end in their times.
    used.sort();
    // Two more files come: that which is rotated now, and the new one.
    let excess = used.len().saturating_sub(max_files.saturating_sub(2));
    let kept = used.split_off(excess);
    Steps {
        remove: unused.into_iter().chain(used).collect(),
        compress: kept.into_iter().filter(|file| !ends(file, COMPRESSED)).collect(),
    }
}

/// Rotates the logs of all containers.
pub struct Rotation {
    runtime: RuntimeService,
    clock: SharedClock,
    policy: Policy,
    /// The logs of running containers by their ids: a path does not change.
    paths: Mutex<BTreeMap<String, PathBuf>>,
}

impl Rotation {
    pub fn new(runtime: RuntimeService, clock: SharedClock, policy: Policy) -> Rotation {
        Rotation { runtime, clock, policy, paths: Mutex::default() }
    }

    /// Rotates logs that are too large, once a period, for ever.
    pub async fn run(&self) {
        loop {
            if let Err(error) = self.rotate_all().await {
                log::error!("Failed to rotate container logs: {}", chain(&error));
            }
            self.clock.sleep(self.policy.period).await;
        }
    }

    /// Rotates the logs of all running containers that are too large, with several workers.
    async fn rotate_all(&self) -> Result<(), cri::Error> {
        let state =
            api::ContainerStateValue { state: api::ContainerState::ContainerRunning as i32 };
        let filter = api::ContainerFilter { state: Some(state), ..Default::default() };
        let request = api::ListContainersRequest { filter: Some(filter) };
        let running = self.runtime.list_containers(request).await?.containers;
        let mut paths = self.paths.lock().await;
        paths.retain(|id, _| running.iter().any(|container| container.id == *id));
        for container in running {
            if !paths.contains_key(&container.id)
                && let Some(path) = self.path(&container.id).await
            {
                paths.insert(container.id, path);
            }
        }
        let max = self.policy.max_bytes;
        let all: Vec<(String, PathBuf)> =
            paths.iter().map(|(id, path)| (id.clone(), path.clone())).collect();
        drop(paths);
        let due = task::blocking(move || {
            all.into_iter().filter(|(_, path)| is_due(path, max)).collect::<Vec<_>>()
        });
        let queue = parking_lot::Mutex::new(due.await);
        let next = || queue.lock().pop();
        let work = || async {
            while let Some((id, path)) = next() {
                if let Err(error) = self.rotate(&id, &path).await {
                    let (path, error) = (path.display(), chain(&error));
                    log::error!("Failed to rotate log {path} of container {id}: {error}");
                }
            }
        };
        let workers: Vec<_> = (0..self.policy.workers).map(|_| Box::pin(work())).collect();
        join_all(workers).await;
        Ok(())
    }

    /// Asks the runtime where a container's log is. `None`: it does not say.
    async fn path(&self, id: &str) -> Option<PathBuf> {
        let request = api::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status = self.runtime.container_status(request).await.ok()?.status?;
        (!status.log_path.is_empty()).then(|| status.log_path.into())
    }

    /// Tidies the files of earlier rotations, renames a container's log, and lets the runtime open
    /// a new one. If the runtime cannot, the log gets its name back.
    async fn rotate(&self, id: &str, log: &Path) -> Result<(), Error> {
        let (path, max_files) = (log.to_owned(), self.policy.max_files);
        let exists = task::blocking(move || {
            let exists = path.exists();
            if exists {
                tidy(&path, max_files)?;
            }
            Ok::<bool, Error>(exists)
        });
        // The runtime only has to open a log that is gone.
        if !exists.await? {
            return self.reopen(id).await;
        }
        let rotated = PathBuf::from(format!("{}.{}", log.display(), suffix(self.clock.now())));
        fs::rename(log, &rotated).map_err(Error::at(&rotated))?;
        let outcome = self.reopen(id).await;
        if outcome.is_err() {
            // The runtime still writes to it. The next round rotates it.
            fs::rename(&rotated, log).map_err(Error::at(&rotated))?;
        }
        outcome
    }

    /// Lets the runtime open a new file for a container's log.
    async fn reopen(&self, id: &str) -> Result<(), Error> {
        let request = api::ReopenContainerLogRequest { container_id: id.to_owned() };
        let outcome = self.runtime.reopen_container_log(request).await;
        outcome.map(drop).map_err(Error::Reopen)
    }
}

/// Returns whether a log is too large, or absent: then the runtime opens it again.
fn is_due(log: &Path, max_bytes: u64) -> bool {
    match fs::metadata(log) {
        Ok(data) => data.len() >= max_bytes,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes and compresses the files of a log that earlier rotations left. Blocks.
fn tidy(log: &Path, max_files: usize) -> Result<(), Error> {
    let prefix = PathBuf::from(format!("{}.", log.display()));
    let steps = steps(&with_prefix(&prefix), max_files);
    for file in &steps.remove {
        fs::remove_file(file).map_err(Error::at(file))?;
    }
    for file in &steps.compress {
        compress(file).map_err(Error::at(file))?;
    }
    Ok(())
}

/// Compresses a log to a file beside it, and removes the log. Each chunk is a member of gzip;
/// several members are one valid file.
fn compress(log: &Path) -> io::Result<()> {
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}", log.display()));
    let mut from = fs::File::open(log)?;
    let mode = from.metadata()?.permissions().mode();
    let outcome = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&unfinished)
        .and_then(|mut to| {
            let mut chunk = Vec::with_capacity(CHUNK);
            loop {
                chunk.clear();
                (&mut from).take(CHUNK as u64).read_to_end(&mut chunk)?;
                if chunk.is_empty() {
                    return Ok(());
                }
                to.write_all(&process::gzip(&chunk))?;
            }
        })
        .and_then(|()| fs::rename(&unfinished, format!("{}{COMPRESSED}", log.display())));
    if outcome.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    outcome.and_then(|()| fs::remove_file(log))
}

/// Formats the time of a rotation, as its file's suffix. Upstream: `timestampFormat`.
fn suffix(now: Timestamp) -> String {
    now.to_jiff().strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_rotations_are_tidied() {
        let paths = |names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| PathBuf::from(format!("0.log.{name}"))).collect()
        };
        for (files, max, remove, compress) in [
            (&[][..], 5, &[][..], &[][..]),
            (&["1"], 5, &[], &["1"]),
            (&["1.gz", "2"], 5, &[], &["2"]),
            (&["1.gz", "1", "2.tmp", "2"], 5, &["1", "2.tmp"], &["2"]),
            (&["4", "3.gz", "2.gz", "1.gz"], 5, &["1.gz"], &["4"]),
            (&["1.gz", "2"], 2, &["1.gz", "2"], &[]),
            (&["1.gz", "2"], 3, &["1.gz"], &["2"]),
        ] {
            let expected = Steps { remove: paths(remove), compress: paths(compress) };
            assert_eq!(steps(&paths(files), max), expected, "{files:?} {max}");
        }
    }

    #[test]
    fn suffixes_sort_by_time() {
        let micros = 1_790_000_000_000_000;
        assert_eq!(suffix(Timestamp::from_micros(micros)), "20260921-141320");
    }

    #[test]
    fn logs_are_compressed_in_place() {
        let folder = std::env::temp_dir().join(format!("kubelet-logs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let log = folder.join("0.log");
        let rotated = folder.join("0.log.1");
        fs::write(&rotated, "line\n".repeat(CHUNK / 3)).expect("a file");
        fs::write(folder.join("0.log.0.tmp"), "").expect("a file");
        fs::write(folder.join("1.log.0.tmp"), "").expect("a file");
        tidy(&log, 3).expect("tidied");
        let mut names: Vec<_> = fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["0.log.1.gz", "1.log.0.tmp"]);
        // Two members.
        let bytes = fs::read(folder.join("0.log.1.gz")).expect("a file");
        let heads = bytes.windows(3).filter(|bytes| *bytes == [0x1f, 0x8b, 8]).count();
        assert_eq!(heads, 2);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
