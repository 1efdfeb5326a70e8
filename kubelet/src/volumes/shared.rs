//! Makes mounts below the root folder visible in containers whose mounts ask for propagation.

use std::io;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use super::{mount_point, mounted_below};

/// Makes a folder a shared mount, unless it lies on one: else runtimes refuse mounts of volumes with
/// `mountPropagation`. Blocks. Upstream: `MakeRShared`.
///
/// # Errors
/// The table of mounts cannot be read, or the folder cannot be mounted.
pub fn make_shared(folder: &Path) -> io::Result<()> {
    let folder = folder.canonicalize()?;
    if is_shared(&std::fs::read_to_string("/proc/self/mountinfo")?, &folder) {
        return Ok(());
    }
    if !mounted_below(&folder)?.is_empty() {
        // A mount on top would hide volumes of running pods.
        log::warn!("{} is not shared: no volume can propagate mounts", folder.display());
        return Ok(());
    }
    mount_bind(&folder, &folder)?;
    mount_change(&folder, MountPropagationFlags::SHARED | MountPropagationFlags::REC)?;
    Ok(())
}

/// Whether the mount on which a folder lies is shared, by the content of `mountinfo`.
fn is_shared(table: &str, folder: &Path) -> bool {
    let lines = table.lines().map(|line| line.split(' '));
    // A later mount lies on top of an earlier one.
    let of_folder = lines.rev().find(|fields| {
        let point = fields.clone().nth(4).map(mount_point);
        point.is_some_and(|point| folder.starts_with(point))
    });
    let mut optional = of_folder.into_iter().flatten().skip(6).take_while(|field| *field != "-");
    optional.any(|field| field.starts_with("shared:"))
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
        for (folder, expected) in [
            ("/", false),
            ("/lib", false),
            ("/var", true),
            ("/var/lib/kubelet", true),
            ("/variant", false),
            ("/var/priv ate/kubelet", false),
            ("/twice/kubelet", false),
        ] {
            assert_eq!(is_shared(table, Path::new(folder)), expected, "{folder}");
        }
        assert!(!is_shared("", Path::new("/")));
    }
}
