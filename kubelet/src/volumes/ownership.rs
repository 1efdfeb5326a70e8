//! Gives the files of a volume to the pod's group. Upstream: `VolumeOwnership`.

use std::ffi::CStr;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, openat, statat,
};
use rustix::path::Arg;

use crate::files::tree;

const READ_WRITE: u32 = 0o660;
const ENTER: u32 = 0o110;
/// New files of a folder have its group.
const SET_GID: u32 = 0o2000;

/// Changes the group of all files of a volume, and lets the group write them; `only_if_needed`:
/// does nothing when the volume's own folder has the group and mode already. Containers of other
/// pods may change the volume meanwhile, so no link is followed. A file that cannot be changed is
/// in the log alone, as upstream: a server may refuse it, or a part of the volume may be read-only.
/// Blocks.
///
/// # Errors
/// The first folder or file that cannot be read; the rest is done beside it.
pub(super) fn apply(volume: &Path, group: u32, only_if_needed: bool) -> io::Result<()> {
    let root = statat(CWD, volume, AtFlags::empty())?;
    if only_if_needed && !is_needed(&root, group) {
        return Ok(());
    }
    let mut enter = |at: BorrowedFd<'_>, name: &CStr, status: &Stat| {
        // A folder changes after what is in it, in `leave`. True: walk through the folder.
        match tree::is_folder(status) {
            true => Ok(true),
            false => {
                change(volume, at, name, group);
                Ok(false)
            }
        }
    };
    let mut leave = |at: BorrowedFd<'_>, name: &CStr| {
        change(volume, at, name, group);
        Ok(())
    };
    tree::walk(volume, &mut enter, &mut leave)?;
    // The root comes last: it shows that all is done, see `is_needed`.
    change(volume, CWD, volume, group);
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
fn change(volume: &Path, at: impl AsFd, name: impl Arg + Copy + Debug, group: u32) {
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

    use super::*;

    #[test]
    fn a_file_that_cannot_be_changed_does_not_keep_the_volume_from_the_pod() {
        // Not even root changes the modes of what is in `/proc`.
        assert!(try_change(CWD, "/proc/self/fdinfo/0", 4242).is_err());
        apply(Path::new("/proc/self/fdinfo"), 4242, false).expect("no error");
        assert!(apply(Path::new("/none/at/all"), 4242, false).is_err());
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
        for _ in 0..2 {
            apply(&volume, group, false).expect("changed");
            assert_eq!(shown(&volume), (group, 0o2775));
            assert_eq!(shown(&volume.join("a/b")), (group, 0o2775));
            assert_eq!(shown(&volume.join("a/file")), (group, 0o760));
            assert_eq!(shown(&base.join("outside")), own);
        }
        // What a container has changed stays when the root is as it has to be.
        set(&volume.join("a/file"), 0o700);
        apply(&volume, group, true).expect("nothing to do");
        assert_eq!(shown(&volume.join("a/file")), (group, 0o700));
        set(&volume, 0o2755);
        apply(&volume, group, true).expect("changed");
        assert_eq!(shown(&volume.join("a/file")), (group, 0o760));
        fs::remove_dir_all(base).expect("removed");
    }
}
