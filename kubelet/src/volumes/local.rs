//! Folders of this machine that PersistentVolumes stand for. Upstream: `pkg/volume/local`,
//! `pkg/volume/hostpath`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use super::mounts_below::{is_mounted, mount_point};
use super::ownership::{self, Progress};
use super::{CLOSED, Error, make_all};

/// Mounts the folder of a local volume for a pod, and gives it to the pod's group. What is mounted
/// already stays as it is. Blocks. `group`: the group, and whether files change only if the folder
/// itself has another group or mode (`OnRootMismatch`); `pods`: the folder of all pods. Returns the
/// folder's group if another pod keeps it from getting the pod's own. `progress` counts files that
/// get the pod's.
///
/// # Errors
/// The path is no folder, the volume has mount options, or the folder cannot be mounted or given to
/// the group.
pub(super) fn mount(
    volume: &core::PersistentVolumeSpec,
    source: &str,
    target: &Path,
    read_only: bool,
    group: Option<(u32, bool)>,
    pods: &Path,
    progress: &Progress,
) -> Result<Option<u32>, Error> {
    let from = absolute_path(source)?;
    let status = fs::metadata(&from).map_err(Error::at(&from))?;
    if !status.is_dir() {
        return Err(Error::LocalNotFolder(source.to_owned()));
    }
    if let Some(option) = volume.mount_options.iter().flatten().next() {
        return Err(Error::MountOption(option.clone()));
    }
    if is_mounted(target).map_err(Error::at(target))? {
        return Ok(None);
    }
    // As upstream, only the first pod that uses the folder changes the group of its files.
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
        // Fails where the folder is not empty: its files stay.
        let _ = fs::remove_dir(target);
        return Err(error);
    }
    let Some((group, only_if_needed)) = group else { return Ok(None) };
    if is_used {
        return Ok(Some(status.gid()).filter(|owner| *owner != group));
    }
    if !read_only {
        ownership::apply(target, group, only_if_needed, progress).map_err(|error| {
            // The next attempt would take a mount for a volume that is set up.
            let _ = unmount(target, UnmountFlags::NOFOLLOW);
            let _ = fs::remove_dir(target);
            Error::at(target)(error)
        })?;
    }
    Ok(None)
}

/// Returns the path of a local volume that containers have as a device. Blocks.
///
/// # Errors
/// It is no block device.
pub(super) fn device(source: &str) -> Result<PathBuf, Error> {
    use std::os::unix::fs::FileTypeExt;
    let path = absolute_path(source)?;
    match fs::metadata(&path).map_err(Error::at(&path))?.file_type().is_block_device() {
        true => Ok(path),
        false => Err(Error::LocalNotDevice(source.to_owned())),
    }
}

/// Returns the absolute path of a local volume, which must not contain `..`. Upstream:
/// `ValidatePathNoBacksteps`.
fn absolute_path(source: &str) -> Result<PathBuf, Error> {
    let path = Path::new("/").join(source);
    match !source.is_empty() && source.split('/').all(|part| part != "..") {
        true => Ok(path),
        false => Err(Error::LocalPath(source.to_owned())),
    }
}

/// Returns whether another pod has the folder mounted. Reads only the kernel's table of mounts: to
/// open the folder would hang where its file system's server is gone. Upstream: `GetMountRefs`.
fn is_used(source: &Path, pods: &Path) -> io::Result<bool> {
    is_mounted_below(&fs::read_to_string("/proc/self/mountinfo")?, source, pods)
}

/// Returns whether the folder `source` is also mounted somewhere below `pods`. `table`: the text of
/// a mountinfo.
fn is_mounted_below(table: &str, source: &Path, pods: &Path) -> io::Result<bool> {
    let (source, pods) = (source.canonicalize()?, pods.canonicalize()?);
    // The device, the part of it that is mounted, and where.
    let mounts = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').take(5).collect();
        let [_, _, device, root, point] = fields[..] else { return None };
        Some((device, mount_point(root), mount_point(point)))
    });
    let mounts: Vec<_> = mounts.collect();
    // Where `source` lies: a device and a path on it. A later mount lies on top of an earlier one.
    let location = mounts.iter().rev().find_map(|(device, root, point)| {
        let below = source.strip_prefix(point).ok()?;
        Some((*device, root.join(below)))
    });
    let Some((device, part)) = location else { return Ok(false) };
    let is_it = |(of, root, point): &(&str, PathBuf, PathBuf)| {
        *of == device && *root == part && point.starts_with(&pods)
    };
    Ok(mounts.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_keeps_the_group_that_it_has_while_another_pod_uses_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("local volumes: only root mounts");
        }
        let base = std::env::temp_dir().join(format!("kubelet-groups-{}", std::process::id()));
        let (folder, pods) = (base.join("folder"), base.join("pods"));
        fs::create_dir_all(&folder).expect("a folder");
        let source = folder.to_str().expect("a path");
        let (volume, mut targets) = (core::PersistentVolumeSpec::default(), Vec::new());
        for (pod, group, expected) in [
            ("a", Some(4242), None),
            ("a", Some(4343), None),
            ("b", Some(4242), None),
            ("c", None, None),
            ("d", Some(4343), Some(4242)),
        ] {
            let target = pods.join(pod);
            fs::create_dir_all(&target).expect("a folder");
            let group = group.map(|group| (group, false));
            let progress = Progress::default();
            let kept = mount(&volume, source, &target, false, group, &pods, &progress);
            assert_eq!(kept.expect("mounted"), expected, "{pod} {group:?}");
            targets.push(target);
        }
        assert_eq!(fs::metadata(&folder).expect("a folder").gid(), 4242);
        targets.dedup();
        for target in targets {
            unmount(&target, UnmountFlags::NOFOLLOW).expect("unmounted");
        }
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn the_first_pod_that_mounts_a_folder_is_found_by_the_table() {
        let base = std::env::temp_dir().join(format!("kubelet-local-{}", std::process::id()));
        let (disk, pods) = (base.join("disk"), base.join("pods"));
        for folder in [disk.join("a"), disk.join("b"), pods.clone()] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let base = base.canonicalize().expect("a folder");
        let text = |line: &str| line.replace("BASE", &base.display().to_string());
        let table = "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 /part BASE/disk rw - ext4 d rw\n";
        for (line, of_a, of_disk) in [
            ("", false, false),
            ("3 1 8:2 /part/a BASE/pods/u/volumes/v rw - ext4 d rw", true, false),
            ("3 1 8:2 /part BASE/pods/u/volumes/v rw - ext4 d rw", false, true),
            ("3 1 8:3 /part/a BASE/pods/u/volumes/v rw - ext4 d rw", false, false),
            ("3 1 8:2 /part/a BASE/elsewhere rw - ext4 d rw", false, false),
        ] {
            let table = text(&format!("{table}{line}\n"));
            let is_used = |source: &Path| is_mounted_below(&table, source, &pods).expect("folders");
            assert_eq!(is_used(&disk.join("a")), of_a, "{line}");
            assert_eq!(is_used(&disk), of_disk, "{line}");
            assert!(!is_used(&disk.join("b")), "{line}");
        }
        fs::remove_dir_all(base).expect("removed");
    }
}
