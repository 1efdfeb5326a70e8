//! Gives the files of a volume to the pod's group. Upstream: `VolumeOwnership`.

use std::ffi::CStr;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::FutureExt;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, openat, statat,
};
use rustix::path::Arg;

use super::manager::Inner;
use crate::events;
use crate::files::tree;
use crate::pod::Pod;

/// When a change of many files has its first event, and the period of those that follow. Upstream:
/// `firstEventReportDuration`, `progressReportDuration`.
const FIRST_REPORT: Duration = Duration::from_secs(30);
const NEXT_REPORTS: Duration = Duration::from_secs(60);
/// The page of upstream's message.
const PAGE: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
                    #configure-volume-permission-and-ownership-change-policy-for-pods";

const READ_WRITE: u32 = 0o660;
const ENTER: u32 = 0o110;
/// New files of a folder have its group.
const SET_GID: u32 = 0o2000;

/// How many files of a volume have been given to a group so far. Clones are one number.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(super) fn files(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add_file(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// Runs work that gives the files of a pod's volume to a group, with events if it takes long.
    /// Upstream: `AddProgressNotifier`.
    pub(super) async fn with_progress<T>(
        &self,
        pod: &Pod,
        volume: &Path,
        progress: &Progress,
        work: impl Future<Output = T>,
    ) -> T {
        let volume = volume.strip_prefix(self.folders.pods()).unwrap_or(volume).display();
        let report = async {
            self.clock.sleep(FIRST_REPORT).await;
            let mut message = format!(
                "Setting volume ownership for {volume} is taking longer than expected, consider \
                 using OnRootMismatch - {PAGE}"
            );
            loop {
                // What has taken so long may be the step before.
                if progress.files() > 0 {
                    events::warning(pod, None, "VolumePermissionChangeInProgress", message);
                }
                self.clock.sleep(NEXT_REPORTS).await;
                let files = progress.files();
                message =
                    format!("Setting volume ownership for {volume}, processed {files} files.");
            }
        };
        work.or(report).await
    }
}

/// Changes the group of all files of a volume, and lets the group write them; `only_if_needed`:
/// does nothing when the volume's own folder has the group and mode already. Containers of other
/// pods may change the volume meanwhile, so no link is followed. A file that cannot be changed is
/// in the log alone, as upstream: a server may refuse it, or a part of the volume may be read-only.
/// `progress` counts the files. Blocks.
///
/// # Errors
/// The first folder or file that cannot be read; the rest is done beside it.
pub(super) fn apply(
    volume: &Path,
    group: u32,
    only_if_needed: bool,
    progress: &Progress,
) -> io::Result<()> {
    let root = statat(CWD, volume, AtFlags::empty())?;
    if only_if_needed && !is_needed(&root, group) {
        return Ok(());
    }
    let change = |at: BorrowedFd<'_>, name: &CStr| {
        change_one(volume, at, name, group);
        progress.add_file();
    };
    let mut enter = |at: BorrowedFd<'_>, name: &CStr, status: &Stat| {
        // A folder changes after what is in it, in `leave`. True: walk through the folder.
        match tree::is_folder(status) {
            true => Ok(true),
            false => {
                change(at, name);
                Ok(false)
            }
        }
    };
    let mut leave = |at: BorrowedFd<'_>, name: &CStr| {
        change(at, name);
        Ok(())
    };
    tree::walk(volume, &mut enter, &mut leave)?;
    // The root comes last: it shows that all is done, see `is_needed`.
    change_one(volume, CWD, volume, group);
    Ok(())
}

/// Returns whether the volume's root does not yet belong to the group with the needed rights.
/// Upstream: `requiresPermissionChange`.
fn is_needed(root: &Stat, group: u32) -> bool {
    let wanted = READ_WRITE | ENTER;
    root.st_gid != group
        || FileType::from_raw_mode(root.st_mode) != FileType::Directory
        || root.st_mode & wanted != wanted
        || root.st_mode & SET_GID == 0
}

/// Changes the group of one file, and logs a failure. Upstream: `changeFilePermission`.
fn change_one(volume: &Path, at: impl AsFd, name: impl Arg + Copy + Debug, group: u32) {
    if let Err(error) = try_change(at, name, group) {
        log::error!("{name:?} of volume {} has not got its group: {error}", volume.display());
    }
}

/// Gives one file or folder to the group, which may then read and write it. A link keeps its mode.
fn try_change(at: impl AsFd, name: impl Arg, group: u32) -> io::Result<()> {
    // A link in place of the file is not followed.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(at, name, flags, Mode::empty())?;
    let status = fstat(&file)?;
    chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    let mode = match FileType::from_raw_mode(status.st_mode) {
        FileType::Symlink => return Ok(()),
        FileType::Directory => READ_WRITE | ENTER | SET_GID,
        _ => READ_WRITE,
    };
    let mode = Mode::from_raw_mode((status.st_mode & 0o7777) | mode);
    Ok(chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::pin::pin;

    use futures_lite::future::{block_on, pending, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;
    use crate::volumes::{Folders, VolumeManager};

    #[test]
    fn change_that_takes_long_has_events() {
        let pod = serde_json::json!({"metadata": {"name": "many-files", "namespace": "n"}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let root = std::env::temp_dir().join(format!("kubelet-progress-{}", std::process::id()));
        let mut manager = VolumeManager::for_tests(Folders { logs: root.join("logs"), root });
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let inner = Arc::get_mut(&mut manager.0).expect("the only one");
        inner.clock = clock.clone();
        let (progress, volume) = (Progress::default(), inner.folders.pods().join("u/volumes/v"));
        let work = pending::<()>();
        let mut work = pin!(inner.with_progress(&pod, &volume, &progress, work));
        let mut events = |seconds| {
            clock.advance(Duration::from_secs(seconds));
            assert!(block_on(poll_once(&mut work)).is_none());
            crate::events::testing::about("many-files")
        };
        assert!(events(0).is_empty());
        progress.add_file();
        assert!(events(29).is_empty());
        let first = "Warning VolumePermissionChangeInProgress Setting volume ownership for \
                     u/volumes/v is taking longer than expected, consider using OnRootMismatch - \
                     https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
                     #configure-volume-permission-and-ownership-change-policy-for-pods";
        assert_eq!(events(1), [first]);
        progress.add_file();
        assert_eq!(events(59).len(), 1);
        let second = "Warning VolumePermissionChangeInProgress Setting volume ownership for \
                      u/volumes/v, processed 2 files.";
        assert_eq!(events(1), [first, second]);
    }

    #[test]
    fn a_file_that_cannot_be_changed_does_not_keep_the_volume_from_the_pod() {
        // Not even root changes the modes of what is in `/proc`.
        assert!(try_change(CWD, "/proc/self/fdinfo/0", 4242).is_err());
        let apply = |path: &str| apply(Path::new(path), 4242, false, &Progress::default());
        apply("/proc/self/fdinfo").expect("no error");
        assert!(apply("/none/at/all").is_err());
    }

    #[test]
    fn files_belong_to_the_group_and_links_are_not_followed() {
        let base = std::env::temp_dir().join(format!("kubelet-ownership-{}", std::process::id()));
        let volume = base.join("volume");
        fs::create_dir_all(volume.join("a/b")).expect("folders");
        fs::write(volume.join("a/file"), "x").expect("a file");
        fs::write(base.join("outside"), "x").expect("a file");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        set(&volume.join("a/file"), 0o700);
        set(&base.join("outside"), 0o600);
        symlink(base.join("outside"), volume.join("link")).expect("a link");
        let shown = |path: &Path| {
            let status = fs::symlink_metadata(path).expect("a file");
            (status.gid(), status.mode() & 0o7777)
        };
        let own = shown(&base.join("outside"));
        // Only root may give files to any group.
        let group = if rustix::process::geteuid().is_root() { 4242 } else { own.0 };
        let progress = Progress::default();
        let apply = |only_if_needed| apply(&volume, group, only_if_needed, &progress);
        for turn in 1..3 {
            apply(false).expect("changed");
            assert_eq!(progress.files(), 4 * turn, "two folders, a file, a link");
            assert_eq!(shown(&volume), (group, 0o2775));
            assert_eq!(shown(&volume.join("a/b")), (group, 0o2775));
            assert_eq!(shown(&volume.join("a/file")), (group, 0o760));
            assert_eq!(shown(&base.join("outside")), own);
        }
        // What a container has changed stays when the root is as it has to be.
        set(&volume.join("a/file"), 0o700);
        apply(true).expect("nothing to do");
        assert_eq!(shown(&volume.join("a/file")), (group, 0o700));
        set(&volume, 0o2755);
        apply(true).expect("changed");
        assert_eq!(shown(&volume.join("a/file")), (group, 0o760));
        fs::remove_dir_all(base).expect("removed");
    }
}
