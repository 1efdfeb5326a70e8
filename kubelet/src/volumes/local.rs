//! Folders of this machine that PersistentVolumes stand for. Upstream: `pkg/volume/local`,
//! `pkg/volume/hostpath`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use super::mounts_below::{is_mounted, mounts_below};
use super::{CLOSED, Error, make_all, ownership};

/// Mounts the folder of a local volume for a pod, and gives it to the pod's group. What is mounted
/// already stays as it is. Blocks.
///
/// # Errors
/// The path is no folder, or cannot be mounted.
pub(super) fn mount(
    volume: &core::PersistentVolumeSpec,
    source: &str,
    target: &Path,
    read_only: bool,
    group: Option<(u32, bool)>,
    pods: &Path,
) -> Result<(), Error> {
    let from = checked(source)?;
    let kind = fs::metadata(&from).map_err(Error::at(&from))?.file_type();
    if !kind.is_dir() {
        return Err(Error::LocalNotFolder(source.to_owned()));
    }
    if let Some(option) = volume.mount_options.iter().flatten().next() {
        return Err(Error::MountOption(option.clone()));
    }
    if is_mounted(target).map_err(Error::at(target))? {
        return Ok(());
    }
    // The first pod sets the owner.
    let is_used = is_used(&from, pods).map_err(Error::at(pods))?;
    make_all(target, CLOSED).map_err(Error::at(target))?;
    let bind = || -> rustix::io::Result<()> {
        mount_bind(&from, target)?;
        if read_only {
            let remounted = mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"");
            if let Err(error) = remounted {
                let _ = unmount(target, UnmountFlags::NOFOLLOW);
                return Err(error);
            }
        }
        Ok(())
    };
    if let Err(error) = bind().map_err(|error: rustix::io::Errno| Error::at(target)(error.into())) {
        // Only an empty one goes.
        let _ = fs::remove_dir(target);
        return Err(error);
    }
    match group {
        Some((group, only_if_needed)) if !read_only && !is_used => {
            ownership::apply(target, group, only_if_needed).map_err(Error::at(target))
        }
        _ => Ok(()),
    }
}

/// The path of a local volume that containers have as a device. Blocks.
///
/// # Errors
/// It is no block device.
pub(super) fn device(source: &str) -> Result<PathBuf, Error> {
    use std::os::unix::fs::FileTypeExt;
    let path = checked(source)?;
    match fs::metadata(&path).map_err(Error::at(&path))?.file_type().is_block_device() {
        true => Ok(path),
        false => Err(Error::LocalNotDevice(source.to_owned())),
    }
}

/// Upstream: `ValidatePathNoBacksteps`.
fn checked(source: &str) -> Result<PathBuf, Error> {
    let path = Path::new("/").join(source);
    match !source.is_empty() && source.split('/').all(|part| part != "..") {
        true => Ok(path),
        false => Err(Error::LocalPath(source.to_owned())),
    }
}

/// Whether another pod has the folder mounted: its file system and its own number are the same.
fn is_used(source: &Path, pods: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = fs::metadata(source)?;
    let is_it = |point: &PathBuf| {
        fs::symlink_metadata(point)
            .is_ok_and(|other| (other.dev(), other.ino()) == (own.dev(), own.ino()))
    };
    Ok(mounts_below(pods)?.iter().any(is_it))
}
