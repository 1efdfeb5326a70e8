//! Which mounts the runtime gives the container's SELinux label: those of the kubelet's own
//! volumes, where the machine has SELinux. Elsewhere no label is asked for.
//! Upstream: `go-selinux`, `GetSELinuxSupport`, `Attributes.SELinuxRelabel`.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use super::csi;
use super::manager::Mounted;
use super::mounts_below::mount_point;
use super::{Folders, plain};
use crate::pod::Uid;

const TABLE: &str = "/proc/self/mountinfo";

/// Returns whether the machine has SELinux. Blocks at the first call. Upstream:
/// `selinux.GetEnabled`.
pub fn has_selinux() -> bool {
    static HAS_SELINUX: LazyLock<bool> = LazyLock::new(|| {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        is_enabled(&read(TABLE), &read("/proc/self/attr/current"))
    });
    *HAS_SELINUX
}

/// Returns whether SELinux is enabled: its file system is mounted writable and a policy is loaded.
/// `label`: that of this process; it is `kernel` while the kernel has no policy.
fn is_enabled(mounts: &str, label: &str) -> bool {
    let is_writable = |line: &&str| {
        let options = line.split(' ').nth(5).unwrap_or_default();
        !options.split(',').any(|option| option == "ro")
    };
    let mut found = mounts.lines().filter(|line| line.contains(" - selinuxfs "));
    found.any(|line| is_writable(&line)) && label.trim_end_matches(['\0', '\n']) != "kernel"
}

/// Returns whether the runtime has to relabel a volume for its containers. Blocks where the machine
/// has SELinux.
pub(super) fn relabels(folders: &Folders, uid: &Uid, volume: &Mounted) -> bool {
    has_selinux()
        && may_relabel(folders, uid, volume, &fs::read_to_string(TABLE).unwrap_or_default())
}

/// Returns whether the kind of a volume allows a relabel. Those that the kubelet fills do; local
/// volumes and those of CSI drivers only if they are writable. Volumes of hosts and images keep
/// their labels. `mounts`: the text of a mountinfo.
fn may_relabel(folders: &Folders, uid: &Uid, volume: &Mounted, mounts: &str) -> bool {
    let below = volume.path.strip_prefix(folders.pod(uid).join("volumes")).ok();
    let kind = below.and_then(|below| below.components().next());
    let kind = kind.and_then(|kind| kind.as_os_str().to_str()).unwrap_or_default();
    match kind {
        kind if plain::FOLDERS.contains(&kind) => true,
        plain::LOCAL => !volume.read_only,
        csi::FOLDER => !volume.read_only && has_labels(mounts, &volume.path),
        _ => false,
    }
}

/// Returns whether files at a path can have labels, by the mount options of its file system.
/// Upstream: `GetSELinux`.
fn has_labels(mounts: &str, path: &Path) -> bool {
    let at = |line: &str| line.split(' ').nth(4).map(mount_point);
    let holds = |&line: &&str| at(line).is_some_and(|point| path.starts_with(point));
    let depth = |&line: &&str| at(line).map_or(0, |point| point.components().count());
    // Of several at one point, the last one counts.
    let line = mounts.lines().filter(holds).max_by_key(depth).unwrap_or_default();
    line.split([' ', ',']).any(|option| option == "seclabel")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const SELINUX: &str = "30 1 0:20 / /sys/fs/selinux rw,noexec - selinuxfs selinuxfs rw\n";

    #[test]
    fn selinux_is_a_file_system_and_a_policy() {
        let read_only = SELINUX.replace("rw,noexec", "ro,noexec");
        let other = "1 1 8:1 / / rw - ext4 /dev/sda1 rw,seclabel\n";
        for (mounts, label, expected) in [
            (SELINUX, "system_u:system_r:kubelet_t:s0\0", true),
            (SELINUX, "kernel\0", false),
            (SELINUX, "", true),
            (&*read_only, "", false),
            (other, "system_u:system_r:kubelet_t:s0\0", false),
        ] {
            assert_eq!(is_enabled(mounts, label), expected, "{mounts} {label}");
        }
    }

    #[test]
    fn own_volumes_are_relabelled_and_those_of_hosts_are_not() {
        let root = PathBuf::from("/r");
        let folders = Folders { logs: root.join("logs"), root };
        let uid = Uid::parse("u").expect("a uid");
        let mounts = "1 1 8:1 / / rw - ext4 /dev/sda1 rw,seclabel\n\
                      2 1 8:2 / /r/pods/u/volumes/kubernetes.io~csi/nfs/mount rw - nfs4 s:/ rw\n";
        let volume = |path: &str, read_only| Mounted {
            path: path.into(),
            read_only,
            is_device: false,
            group: None,
            persistent: None,
        };
        let below = |kind: &str| format!("/r/pods/u/volumes/kubernetes.io~{kind}");
        for (path, read_only, expected) in [
            (below("empty-dir/v"), false, true),
            (below("configmap/v"), true, true),
            (below("local-volume/pv"), false, true),
            (below("local-volume/pv"), true, false),
            (below("csi/pv/mount"), false, true),
            (below("csi/pv/mount"), true, false),
            // A file system without labels.
            (below("csi/nfs/mount"), false, false),
            ("/etc".to_owned(), false, false),
            ("/r/pods/other/volumes/kubernetes.io~empty-dir/v".to_owned(), false, false),
            // An image.
            (String::new(), true, false),
        ] {
            let volume = volume(&path, read_only);
            assert_eq!(may_relabel(&folders, &uid, &volume, mounts), expected, "{volume:?}");
        }
    }
}
