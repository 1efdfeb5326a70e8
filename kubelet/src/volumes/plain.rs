//! Volumes that need this machine and objects alone: emptyDir, hostPath, and those whose files the
//! kubelet writes. Upstream: `pkg/volume/emptydir`, `hostpath`, `configmap` and those beside it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Quantity;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::manager::Mounted;
use super::{CLOSED, Error, Folders, OPEN, atomic, fs_group, in_tree, make_all, nfs, payload};
use crate::cgroups::Resources;
use crate::metrics;
use crate::objects::PodObjects;
use crate::pod::{Pod, PodExt};
use crate::runtime::environment::DownwardInputs;

/// The folders of these kinds among a pod's volumes.
pub(super) const FOLDERS: [&str; 5] = [
    "kubernetes.io~empty-dir",
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~downward-api",
    "kubernetes.io~projected",
];
/// That of folders and devices that PersistentVolumes name.
pub(super) const LOCAL: &str = "kubernetes.io~local-volume";

/// The plugin of such volumes, in metrics.
pub(super) const LOCAL_PLUGIN: &str = "kubernetes.io/local-volume";
pub(super) const HOST_PATH_PLUGIN: &str = "kubernetes.io/host-path";
/// That of a volume whose plugin is not known, or missing here.
pub(super) const NO_PLUGIN: &str = "N/A";

/// Returns the name of a volume's plugin, for metrics. `None`: it has a claim, a driver or an
/// unknown kind.
pub(super) fn plugin(volume: &core::Volume) -> Option<&'static str> {
    let kinds = [
        (volume.empty_dir.is_some(), "kubernetes.io/empty-dir"),
        (volume.host_path.is_some(), HOST_PATH_PLUGIN),
        (volume.config_map.is_some(), "kubernetes.io/configmap"),
        (volume.secret.is_some(), "kubernetes.io/secret"),
        (volume.downward_api.is_some(), "kubernetes.io/downward-api"),
        (volume.projected.is_some(), "kubernetes.io/projected"),
        (volume.image.is_some(), "kubernetes.io/image"),
        (volume.nfs.is_some(), nfs::PLUGIN),
    ];
    kinds.into_iter().find_map(|(is_it, plugin)| is_it.then_some(plugin))
}

/// Returns whether a volume has neither a claim nor a driver nor a server.
pub(super) fn is_plain(volume: &core::Volume) -> bool {
    volume.persistent_volume_claim.is_none()
        && volume.ephemeral.is_none()
        && volume.csi.is_none()
        && volume.nfs.is_none()
}

/// A volume's name, and whether it is set up.
pub(super) type Outcome = (String, Result<Mounted, Error>);

/// Makes the folders of a pod and the volumes that its containers use; what exists already stays as
/// it is, but files that the kubelet writes follow their objects. `mounted`: the volumes that were
/// set up before; their host paths are not checked any more. `time`: for the names of folders;
/// `clock`: for metrics. Returns the outcome of each volume, with an error that names it. Blocks.
///
/// # Errors
/// A folder of the pod itself cannot be made.
pub(super) fn set_up(
    folders: &Folders,
    pod: &Pod,
    mounted: &BTreeSet<String>,
    inputs: DownwardInputs<'_>,
    objects: &PodObjects,
    time: &str,
    clock: &SharedClock,
) -> Result<Vec<Outcome>, Error> {
    let uid = pod.uid();
    let make = |path: PathBuf, mode| make_all(&path, mode).map_err(Error::at(path));
    make(folders.pod(&uid).join("volumes"), CLOSED)?;
    make(folders.pod_logs(pod), OPEN)?;
    let ephemeral = pod.ephemeral_containers().iter().map(|ephemeral| &ephemeral.name);
    for name in pod.all_containers().map(|container| &container.name).chain(ephemeral) {
        make(folders.pod(&uid).join("containers").join(name), CLOSED)?;
        make(folders.pod_logs(pod).join(name), OPEN)?;
    }
    let set_up_one = |volume: &core::Volume| -> Result<PathBuf, Error> {
        if let Some(empty) = &volume.empty_dir {
            let path = folders.volume(&uid, "empty-dir", &volume.name);
            let size = memory_size(pod, empty.size_limit.as_ref(), inputs);
            set_up_empty(&path, empty, fs_group(pod), size).map_err(Error::EmptyDir)?;
            Ok(path)
        } else if let Some(host) = &volume.host_path {
            if !mounted.contains(&volume.name) {
                check_host_path(host)?;
            }
            Ok(PathBuf::from(&host.path))
        } else if volume.image.is_some() {
            // The runtime mounts it.
            Ok(PathBuf::new())
        } else if let Some(written) = payload::build(pod, volume, objects, inputs)? {
            let path = folders.volume(&uid, written.kind, &volume.name);
            let size = memory_size(pod, None, inputs);
            set_up_written(&path, &written, pod, &volume.name, size, time)?;
            Ok(path)
        } else if let Some((kind, driver)) = in_tree::inline(volume) {
            Err(Error::InTree { kind, driver })
        } else {
            Err(Error::UnsupportedKind)
        }
    };
    let is_used = |volume: &&core::Volume| is_plain(volume) && pod.uses_volume(&volume.name);
    let plain = pod.spec().volumes.iter().flatten().filter(is_used);
    let volumes = plain.map(|volume| {
        let name = volume.name.clone();
        let read_only = payload::kind_of(volume).is_some() || volume.image.is_some();
        let begin = clock.monotonic();
        let done = set_up_one(volume);
        // What is set up already is only checked, but for the files that the kubelet writes.
        let is_operation = !mounted.contains(&name) || payload::kind_of(volume).is_some();
        if let Some(plugin) = plugin(volume).filter(|_| is_operation) {
            let took = clock.monotonic().saturating_sub(begin);
            metrics::observe_storage(plugin, "volume_mount", done.is_ok(), false, took);
        }
        let done = done.map(|path| Mounted {
            path,
            read_only,
            is_device: false,
            group: None,
            persistent: None,
        });
        (name.clone(), done.map_err(Error::in_step("MountVolume.SetUp failed", &name)))
    });
    Ok(volumes.collect())
}

/// Sets up an emptyDir: a folder to which all users may write, or a file system in memory, which is
/// mounted again after a restart of the machine. One that is there stays as it is.
fn set_up_empty(
    path: &Path,
    empty: &core::EmptyDirVolumeSource,
    group: Option<u32>,
    size: Option<i64>,
) -> io::Result<()> {
    match empty.medium.as_deref() {
        Some("Memory") => {
            make_all(path, CLOSED)?;
            if is_mount_point(path)? {
                return Ok(());
            }
            mount_memory(path, &memory_options(size, group))
        }
        None | Some("") if path.exists() => Ok(()),
        None | Some("") => {
            // It has another name until it is complete. No volume has a dot in its name.
            let new = path.with_extension("new");
            make_all(&new, CLOSED)?;
            if group.is_some() {
                chown(&new, None, group)?;
            }
            fs::set_permissions(&new, fs::Permissions::from_mode(mode_of(group, false)))?;
            fs::rename(new, path)
        }
        Some(other) => Err(io::Error::other(format!("medium {other:?} is not supported"))),
    }
}

/// Returns the mode of a volume's folder. `group`: the pod's `fsGroup`, which new files get too. In
/// memory, users cannot remove the files of others.
fn mode_of(group: Option<u32>, in_memory: bool) -> u32 {
    let for_group = if group.is_some() { 0o2000 } else { 0 };
    let sticky = if in_memory { 0o1000 } else { 0 };
    0o777 | for_group | sticky
}

/// Returns the size in bytes of a volume in memory: the smallest of its own limit, the pod's limit
/// of memory and the memory that the node has for pods; `None`: none of them is known. Upstream:
/// `calculateEmptyDirMemorySize`.
fn memory_size(pod: &Pod, limit: Option<&ApiQuantity>, inputs: DownwardInputs<'_>) -> Option<i64> {
    let own = limit.and_then(|limit| limit.0.parse::<Quantity>().ok()).map(Quantity::value);
    let of_node = inputs.node.allocatable("memory").value();
    let limits = [Some(of_node), Resources::of_pod(pod).memory, own];
    limits.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// Builds the options for the mount of a volume in memory. Without a size the kernel's default
/// counts.
fn memory_options(size: Option<i64>, group: Option<u32>) -> String {
    let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
    let gid = group.map(|group| format!(",gid={group}")).unwrap_or_default();
    format!("mode={:o}{gid}{size}", mode_of(group, true))
}

/// Mounts a file system in memory that is never swapped to disk. Where the kernel lacks that option
/// (`noswap`), it may be swapped.
fn mount_memory(path: &Path, options: &str) -> io::Result<()> {
    let mount = |options: &str| {
        let options = CString::new(options)?;
        let flags = MountFlags::empty();
        Ok(rustix::mount::mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()))?)
    };
    match mount(&format!("{options},noswap")) {
        // Before Linux 6.4, and in a user namespace.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => mount(options),
        done => done,
    }
}

/// Checks that a host path is of the type that the pod names, and makes it first if the type ends
/// in `OrCreate`.
pub(super) fn check_host_path(host: &core::HostPathVolumeSource) -> Result<(), Error> {
    let (path, kind) = (Path::new(&host.path), host.type_.as_deref().unwrap_or_default());
    let fault = |source| Error::HostPath { path: host.path.clone(), source };
    let is = |check: fn(&fs::FileType) -> bool| {
        fs::metadata(path).is_ok_and(|data| check(&data.file_type()))
    };
    let is_fine = match kind {
        "" => true,
        "DirectoryOrCreate" => {
            if !path.exists() {
                make_all(path, OPEN).map_err(fault)?;
            }
            is(fs::FileType::is_dir)
        }
        "Directory" => is(fs::FileType::is_dir),
        "FileOrCreate" => {
            if !path.exists() {
                let mut options = fs::File::options();
                options.write(true).create_new(true).mode(0o644).open(path).map_err(fault)?;
            }
            is(fs::FileType::is_file)
        }
        "File" => is(fs::FileType::is_file),
        "Socket" => is(FileTypeExt::is_socket),
        "CharDevice" => is(FileTypeExt::is_char_device),
        "BlockDevice" => is(FileTypeExt::is_block_device),
        other => return Err(Error::UnknownHostPathType(other.to_owned())),
    };
    match is_fine {
        true => Ok(()),
        false => Err(Error::HostPathType { path: host.path.clone(), wanted: kind.to_owned() }),
    }
}

/// Sets up a volume whose files the kubelet writes: its folder, in memory where that is wanted, the
/// mount points in it, and the files.
fn set_up_written(
    path: &Path,
    written: &payload::Written,
    pod: &Pod,
    volume: &str,
    size: Option<i64>,
    time: &str,
) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        make_all(path, CLOSED)?;
        let is_new = !is_mount_point(path)?;
        if written.in_memory && is_new {
            mount_memory(path, &memory_options(size, fs_group(pod)))?;
        }
        chown(path, None, fs_group(pod))?;
        let mode = mode_of(fs_group(pod), written.in_memory);
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        for folder in payload::nested(pod, volume) {
            make_all(&path.join(folder), OPEN)?;
        }
        Ok(())
    };
    make().map_err(Error::at(path))?;
    atomic::write(path, &written.files, fs_group(pod), time)
}

/// Returns whether a folder is a mount point: its device is not that of its parent.
fn is_mount_point(path: &Path) -> io::Result<bool> {
    let parent = path.parent().unwrap_or(path);
    Ok(fs::metadata(path)?.dev() != fs::metadata(parent)?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::own::OwnNode;

    #[test]
    fn an_empty_volume_is_complete_or_not_there() {
        let folder = std::env::temp_dir().join(format!("kubelet-empty-{}", std::process::id()));
        let (path, empty) = (folder.join("a/data"), core::EmptyDirVolumeSource::default());
        // A kubelet before this one ended half-way.
        fs::create_dir_all(path.with_extension("new")).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        set_up_empty(&path, &empty, None, None).unwrap();
        assert_eq!(mode(), 0o777);
        assert!(!path.with_extension("new").exists());
        // What a container has changed stays.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        set_up_empty(&path, &empty, None, None).unwrap();
        assert_eq!(mode(), 0o700);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn options_of_a_volume_in_memory() {
        for (size, group, options) in [
            (None, None, "mode=1777"),
            (Some(67_108_864), None, "mode=1777,size=67108864"),
            (Some(1000), Some(7), "mode=3777,gid=7,size=1000"),
        ] {
            assert_eq!(memory_options(size, group), options);
        }
    }

    #[test]
    fn volumes_in_memory_have_at_most_the_memory_of_pod_and_node() {
        let limits = |limits: &[Option<&str>]| {
            let container = |(at, limit): (usize, &Option<&str>)| {
                serde_json::json!({"name": at.to_string(), "resources": {
                    "requests": {"memory": "1"}, "limits": {"memory": limit.unwrap_or("0")}}})
            };
            limits.iter().enumerate().map(container).collect::<Vec<_>>()
        };
        for (of_containers, of_volume, node, expected) in [
            (&[None][..], None, 1000, 1000),
            (&[None], Some("2k"), 1000, 1000),
            (&[None], Some("500"), 1000, 500),
            (&[None], Some("0"), 1000, 1000),
            (&[Some("100"), Some("200")], None, 1000, 300),
            (&[Some("100"), Some("200")], Some("299"), 1000, 299),
            (&[Some("100"), Some("200")], Some("301"), 1000, 300),
            (&[Some("2k")], None, 1000, 1000),
            // One of them has no limit.
            (&[Some("100"), None], None, 1000, 1000),
            (&[None], None, 0, 0),
        ] {
            let spec = serde_json::json!({"spec": {"containers": limits(of_containers)}});
            let pod: Pod = serde_json::from_value(spec).expect("a pod");
            let own = OwnNode::for_tests("1", &node.to_string(), "");
            let inputs = DownwardInputs { node: &own, pod_ips: &[] };
            let limit = of_volume.map(|limit| ApiQuantity(limit.to_owned()));
            let size = memory_size(&pod, limit.as_ref(), inputs);
            assert_eq!(size.unwrap_or(0), expected, "{of_containers:?} {of_volume:?} {node}");
        }
    }

    #[test]
    fn host_paths_are_checked_by_type() {
        let folder = std::env::temp_dir().join(format!("kubelet-volumes-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name).display().to_string();
        fs::write(folder.join("file"), "x").expect("a file");
        for (name, kind, is_fine) in [
            ("none", "", true),
            ("none", "Directory", false),
            ("none", "File", false),
            ("file", "File", true),
            ("file", "Directory", false),
            ("file", "DirectoryOrCreate", false),
            ("new", "DirectoryOrCreate", true),
            ("new", "Directory", true),
            ("made", "FileOrCreate", true),
            ("made", "File", true),
            ("file", "Socket", false),
            ("file", "Pipe", false),
        ] {
            let host =
                core::HostPathVolumeSource { path: path(name), type_: Some(kind.to_owned()) };
            assert_eq!(check_host_path(&host).is_ok(), is_fine, "{name} {kind}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
