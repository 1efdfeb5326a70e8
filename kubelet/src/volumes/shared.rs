//! Makes mounts below the root folder visible in containers whose mounts ask for propagation.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use super::mounts_below::{mount_point, mounts_below};

/// Makes a folder a shared mount, unless it lies on one: else runtimes refuse mounts of volumes with
/// `mountPropagation`. One that is no mount yet stays as it is, with a warning, if something is
/// mounted below it. Blocks. Upstream: `MakeRShared`.
///
/// # Errors
/// The table of mounts cannot be read, or the folder cannot be mounted.
pub fn make_shared(folder: &Path) -> io::Result<()> {
    let folder = folder.canonicalize()?;
    let mount = mount_of(&std::fs::read_to_string("/proc/self/mountinfo")?, &folder);
    if mount.as_ref().is_some_and(|mount| mount.is_shared) {
        return Ok(());
    }
    if mount.is_none_or(|mount| mount.point != folder) {
        if !mounts_below(&folder)?.is_empty() {
            // A mount on top would hide volumes of running pods.
            log::warn!("{} is not shared: no volume can propagate mounts", folder.display());
            return Ok(());
        }
        mount_bind(&folder, &folder)?;
    }
    mount_change(&folder, MountPropagationFlags::SHARED | MountPropagationFlags::REC)?;
    Ok(())
}

/// A mount of the kernel's table.
struct Mount {
    point: PathBuf,
    is_shared: bool,
}

/// Finds the mount on which a folder lies, by the content of `mountinfo`.
fn mount_of(table: &str, folder: &Path) -> Option<Mount> {
    // A later mount lies on top of an earlier one.
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let point = mount_point(fields.nth(4)?);
        let mut optional = fields.skip(1).take_while(|field| *field != "-");
        let is_shared = optional.any(|field| field.starts_with("shared:"));
        folder.starts_with(&point).then_some(Mount { point, is_shared })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_a_folder_is_the_last_one_above_it() {
        let table = "1 0 0:1 / / rw - overlay o rw\n\
                     2 1 0:2 / /var rw shared:7 - ext4 d rw\n\
                     3 2 0:3 / /var/priv\\040ate rw master:7 - tmpfs t rw\n\
                     4 1 0:4 / /twice rw shared:8 - tmpfs t rw\n\
                     5 1 0:5 / /twice rw - tmpfs shared:9 rw\n";
        for (folder, point, is_shared) in [
            ("/", "/", false),
            ("/lib", "/", false),
            ("/var", "/var", true),
            ("/var/lib/kubelet", "/var", true),
            ("/variant", "/", false),
            ("/var/priv ate", "/var/priv ate", false),
            ("/var/priv ate/kubelet", "/var/priv ate", false),
            ("/twice/kubelet", "/twice", false),
        ] {
            let mount = mount_of(table, Path::new(folder)).expect("a mount");
            assert_eq!((mount.point, mount.is_shared), (point.into(), is_shared), "{folder}");
        }
        assert!(mount_of("", Path::new("/")).is_none());
    }
}
