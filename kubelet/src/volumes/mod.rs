//! The folders and files that pods mount: emptyDir, hostPath, and those whose files the kubelet
//! writes.
//! Upstream: `pkg/volume`, `pkg/kubelet/kubelet_pods.go`.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown,
};
use std::path::{Path, PathBuf};

mod atomic;
mod error;
mod payload;
mod shared;
mod subpath;

pub use self::error::Error;
pub use self::shared::make_shared;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::objects::Quantity;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::cgroups::Resources;
use crate::cri::api;
use crate::files::tree;
use crate::objects::PodObjects;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::runtime::dns::PodName;
use crate::runtime::environment::{DownwardInputs, Values, expand_known};

/// The mode of the kubelet's folders: no other user sees what is below them.
const CLOSED: u32 = 0o750;
/// The mode of folders that every user may enter.
const OPEN: u32 = 0o755;

/// Makes a folder and its missing parents. Upstream: `os.MkdirAll`.
fn make_all(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// The folders of pods. Upstream: `kubelet_getters.go`.
#[derive(Clone, Debug)]
pub struct Folders {
    /// `--root-dir`.
    pub root: PathBuf,
    /// `podLogsDir`.
    pub logs: PathBuf,
}

impl Folders {
    /// Makes the folders of all pods. Blocks. Upstream: `setupDataDirs`, `initializeModules`.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn make(&self) -> Result<(), Error> {
        let (pods, links) = (self.pods(), self.links());
        for (path, mode) in
            [(&self.root, CLOSED), (&self.logs, CLOSED), (&pods, CLOSED), (&links, OPEN)]
        {
            make_all(path, mode).map_err(Error::at(path))?;
        }
        // Earlier versions made it for all users.
        fs::set_permissions(&pods, fs::Permissions::from_mode(CLOSED)).map_err(Error::at(&pods))
    }

    /// The folder of all pods' folders.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub fn pod(&self, uid: &Uid) -> PathBuf {
        self.pods().join(&**uid)
    }

    /// The folder of a pod's logs, which has one folder a container.
    pub fn pod_logs(&self, pod: &Pod) -> PathBuf {
        self.logs.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
    }

    /// The folder of links to all containers' logs, beside that of pods' logs.
    /// Upstream: `ContainerLogsDir`.
    pub fn links(&self) -> PathBuf {
        self.logs.with_file_name("containers")
    }

    /// The folder of a volume of a kind such as `empty-dir`.
    pub fn volume(&self, uid: &Uid, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{kind}")).join(name)
    }

    /// The file for a container's last message; a new one for each start.
    pub fn message_file(&self, uid: &Uid, container: &str, attempt: u32) -> PathBuf {
        self.pod(uid).join("containers").join(container).join(attempt.to_string())
    }

    /// The file for the results of a pod's probes.
    pub fn probes_file(&self, uid: &Uid) -> PathBuf {
        self.pod(uid).join("probes")
    }

    pub fn hosts_file(&self, uid: &Uid) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }
}

/// A volume's name, and whether it is set up.
pub type Outcome = (String, Result<(), Error>);

/// Makes the folders of a pod and its volumes; what exists already stays as it is, but files that the
/// kubelet writes follow their objects. `mounted`: the volumes that were set up before; their host paths
/// are not checked any more. `time`: for the names of folders. Returns the outcome of each volume, with
/// an error that names it. Blocks.
///
/// # Errors
/// A folder of the pod itself cannot be made.
pub fn set_up(
    folders: &Folders,
    pod: &Pod,
    mounted: &BTreeSet<String>,
    inputs: DownwardInputs<'_>,
    objects: &PodObjects,
    time: &str,
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
    let set_up_one = |volume: &core::Volume| {
        if let Some(empty) = &volume.empty_dir {
            let path = folders.volume(&uid, "empty-dir", &volume.name);
            let size = memory_size(pod, empty.size_limit.as_ref(), inputs);
            set_up_empty(&path, empty, fs_group(pod), size).map_err(Error::EmptyDir)
        } else if let Some(host) = &volume.host_path {
            if mounted.contains(&volume.name) { Ok(()) } else { check_host_path(host) }
        } else if volume.image.is_some() {
            // The runtime mounts it.
            Ok(())
        } else if let Some(written) = payload::of(pod, volume, objects, inputs)? {
            let path = folders.volume(&uid, written.kind, &volume.name);
            let size = memory_size(pod, None, inputs);
            set_up_written(&path, &written, pod, &volume.name, size, time)
        } else {
            Err(Error::UnsupportedKind)
        }
    };
    let volumes = pod.spec().volumes.iter().flatten().map(|volume| {
        let name = volume.name.clone();
        let done = set_up_one(volume);
        (name.clone(), done.map_err(|cause| Error::SetUp { name, cause: cause.into() }))
    });
    Ok(volumes.collect())
}

fn of_volume(volume: &core::Volume, cause: Error) -> Error {
    Error::Volume { name: volume.name.clone(), cause: cause.into() }
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec().security_context.as_ref().and_then(|context| context.fs_group)?;
    u32::try_from(group).ok()
}

/// Makes an empty folder of all users, or a memory file system that the machine may have lost since.
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

/// The mode of a volume of a pod with this group of files. In memory, users cannot remove the files
/// of others.
fn mode_of(group: Option<u32>, in_memory: bool) -> u32 {
    let for_group = if group.is_some() { 0o2000 } else { 0 };
    let sticky = if in_memory { 0o1000 } else { 0 };
    0o777 | for_group | sticky
}

/// The bytes of a volume in memory: at most the memory of the pod, and of all pods of the node.
/// Upstream: `calculateEmptyDirMemorySize`.
fn memory_size(pod: &Pod, limit: Option<&ApiQuantity>, inputs: DownwardInputs<'_>) -> Option<i64> {
    let own = limit.and_then(|limit| limit.0.parse::<Quantity>().ok()).map(Quantity::value);
    let of_node = inputs.node.allocatable("memory").value();
    let limits = [Some(of_node), Resources::of_pod(pod).memory, own];
    limits.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// The options of the mount of a volume in memory. Without a size it is the kernel's default.
fn memory_options(size: Option<i64>, group: Option<u32>) -> String {
    let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
    let gid = group.map(|group| format!(",gid={group}")).unwrap_or_default();
    format!("mode={:o}{gid}{size}", mode_of(group, true))
}

/// Mounts a file system in memory, which stays there where the kernel can promise that.
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

/// Checks a host path by its type, and makes it where the type asks for that.
fn check_host_path(host: &core::HostPathVolumeSource) -> Result<(), Error> {
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

/// Makes the files of a volume that the kubelet writes.
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

/// Whether something is mounted there.
fn is_mount_point(path: &Path) -> io::Result<bool> {
    let parent = path.parent().unwrap_or(path);
    Ok(fs::metadata(path)?.dev() != fs::metadata(parent)?.dev())
}

/// Where a volume is on this machine; `None`: it is of another kind.
fn path_of(folders: &Folders, pod: &Pod, volume: &core::Volume) -> Option<PathBuf> {
    if let Some(host) = &volume.host_path {
        return Some(PathBuf::from(&host.path));
    }
    let empty_dir = || volume.empty_dir.as_ref().map(|_| "empty-dir");
    let kind = payload::kind_of(volume).or_else(empty_dir)?;
    Some(folders.volume(&pod.uid(), kind, &volume.name))
}

fn volume<'a>(pod: &'a Pod, name: &str) -> Option<&'a core::Volume> {
    pod.spec().volumes.iter().flatten().find(|volume| volume.name == name)
}

/// The path and the text of a file in a volume, for a variable. Blocks.
///
/// # Errors
/// Upstream's messages.
pub fn variable_file(
    folders: &Folders,
    pod: &Pod,
    key: &core::FileKeySelector,
) -> Result<(PathBuf, String), Error> {
    let name = &key.volume_name;
    let folder = volume(pod, name).and_then(|volume| path_of(folders, pod, volume));
    let folder = folder.ok_or_else(|| Error::NoVolumeOfVariable { name: name.clone() })?;
    let below = Path::new(key.path.trim_start_matches('/'));
    let text = subpath::read(&folder, below).map_err(|error| {
        log::error!("pod {}: {} in volume {name}: {error}", pod.display_name(), key.path);
        Error::VariableFile
    })?;
    Ok((folder.join(below), text))
}

/// The mounts of a container. Parts of volumes are mounted below the pod's folder for them. Blocks.
/// `images`: those of its image volumes, by volume.
///
/// # Errors
/// One that names the mount.
pub fn mounts(
    folders: &Folders,
    pod: &Pod,
    container: &Container,
    environment: &Values,
    images: &HashMap<String, api::ImageSpec>,
) -> Result<Vec<api::Mount>, Error> {
    let uid = pod.uid();
    let mut mounts = Vec::new();
    for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volume = volume(pod, &mount.name).ok_or_else(|| Error::NoVolumeOfMount {
            volume: mount.name.clone(),
            container: container.name.clone(),
        })?;
        let image = images.get(&mount.name).cloned();
        let path = path_of(folders, pod, volume).or(image.as_ref().map(|_| PathBuf::new()));
        let mut source = path.ok_or_else(|| of_volume(volume, Error::UnsupportedKind))?;
        let sub_path = sub_path(mount, environment)?;
        if image.is_none() && !sub_path.is_empty() {
            let folder = folders.pod(&uid).join(subpath::FOLDER);
            let target = folder.join(&volume.name).join(&container.name).join(at.to_string());
            subpath::bind(&source, Path::new(&sub_path), &target).map_err(|fault| {
                log::warn!("pod {}: {}", pod.display_name(), fault.cause);
                let (volume, container) = (mount.name.clone(), container.name.clone());
                Error::SubPath { step: fault.step, volume, container }
            })?;
            source = target;
        }
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => api::MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => api::MountPropagation::PropagationBidirectional,
            Some("None") | None => api::MountPropagation::PropagationPrivate,
            Some(other) => return Err(Error::UnknownPropagation(other.to_owned())),
        };
        mounts.push(api::Mount {
            container_path: mount.mount_path.clone(),
            host_path: source.display().to_string(),
            recursive_read_only: is_recursive(mount)?,
            readonly: mount.read_only.unwrap_or_default()
                || payload::kind_of(volume).is_some()
                || image.is_some(),
            image_sub_path: if image.is_some() { sub_path } else { String::new() },
            image,
            propagation: propagation as i32,
            ..Default::default()
        });
    }
    Ok(mounts)
}

/// Whether what is mounted in the volume is read-only too. Upstream: `resolveRecursiveReadOnly`.
fn is_recursive(mount: &core::VolumeMount) -> Result<bool, Error> {
    let fault = |fault: &str| Error::RecursiveReadOnly(fault.to_owned());
    match mount.recursive_read_only.as_deref() {
        // `IfPossible` is not enforced: it would need a question to the runtime for each start.
        None | Some("Disabled" | "IfPossible") => Ok(false),
        Some("Enabled") if mount.read_only != Some(true) => Err(fault(&format!(
            "volume {:?} requested recursive read-only mode, but it is not \
                                read-only",
            mount.name
        ))),
        Some("Enabled") if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") => {
            Err(fault(&format!(
                "volume {:?} requested recursive read-only mode, but it is not \
                                compatible with propagation",
                mount.name
            )))
        }
        Some("Enabled") => Ok(true),
        Some(other) => Err(fault(&format!("unknown recursive read-only mode {other:?}"))),
    }
}

/// The part of its volume that a mount asks for; empty: all of it.
fn sub_path(mount: &core::VolumeMount, environment: &Values) -> Result<String, Error> {
    let path = match mount.sub_path_expr.as_deref().unwrap_or_default() {
        "" => mount.sub_path.clone().unwrap_or_default(),
        expression => expand_known(expression, environment).map_err(Error::NoValue)?,
    };
    if path.starts_with('/') {
        return Err(Error::AbsoluteSubPath(path));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(Error::SubPathOutside(path));
    }
    Ok(path)
}

/// Removes the folders of a pod, and unmounts what lies below. Blocks. Logs stay until the pod's
/// containers are removed.
///
/// # Errors
/// The first failure; what could be removed is removed.
pub fn tear_down(folders: &Folders, uid: &Uid) -> io::Result<()> {
    let folder = folders.pod(uid);
    // The newest first: it may lie on another one.
    for mounted in mounted_below(&folder)?.iter().rev() {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let unmounted = rustix::mount::unmount(mounted, flags);
        unmounted.map_err(|error| {
            io::Error::other(format!("{} cannot be unmounted: {error}", mounted.display()))
        })?;
    }
    // What is still mounted, by a container for instance, would be emptied.
    if let Some(mounted) = mounted_below(&folder)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", mounted.display())));
    }
    tree::remove(&folder)
}

/// The points below a pod's folder where something is mounted, the oldest first. A link in place of the
/// folder is not followed; links may lead to the folder of all pods.
fn mounted_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(pods), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(Vec::new());
    };
    let folder = match pods.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        pods => pods?.join(name),
    };
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(mount_point);
    Ok(points.filter(|point| *point != folder && point.starts_with(&folder)).collect())
}

/// The path of a field of the kernel's table, which has some characters as octal numbers.
fn mount_point(field: &str) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Removes the logs of a pod of which only the uid is known. Blocks.
///
/// # Errors
/// The first failure.
pub fn remove_logs(folders: &Folders, uid: &Uid) -> io::Result<()> {
    for entry in fs::read_dir(&folders.logs).into_iter().flatten().flatten() {
        if pod_of_logs(&entry.file_name().to_string_lossy()).as_ref() == Some(uid) {
            tree::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// The pod of a folder of logs, by the name of the folder: NAMESPACE_NAME_UID. `None`: it is another
/// program's.
pub fn pod_of_logs(folder: &str) -> Option<Uid> {
    folder.splitn(3, '_').nth(2).and_then(Uid::parse)
}

/// The content of a pod's `/etc/hosts`. Upstream: `managedHostsFileContent`.
pub fn hosts(pod: &Pod, ips: &[String], name: &PodName) -> String {
    let mut text = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
                    ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                    fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
        .to_owned();
    let PodName { host, domain } = name;
    for ip in ips {
        text.push_str(&match domain.is_empty() {
            true => format!("{ip}\t{host}\n"),
            false => format!("{ip}\t{host}.{domain}\t{host}\n"),
        });
    }
    text + &aliases(pod)
}

/// The content of `/etc/hosts` in a pod with the host's network: the host's, and the pod's aliases.
/// Blocks.
///
/// # Errors
/// When the host's file cannot be read.
pub fn host_hosts(pod: &Pod) -> Result<String, Error> {
    let of_host = match fs::read_to_string("/etc/hosts") {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Error::at("/etc/hosts")(error)),
    };
    let header = "# Kubernetes-managed hosts file (host network).\n";
    Ok(format!("{header}{of_host}{}", aliases(pod)))
}

/// Writes a pod's `/etc/hosts`. It is mounted in containers, so the file stays the same. Blocks.
pub fn write_hosts(file: &Path, text: &str) -> io::Result<()> {
    fs::write(file, text)?;
    // Without the process's mask.
    fs::set_permissions(file, fs::Permissions::from_mode(0o644))
}

fn aliases(pod: &Pod) -> String {
    let mut text = String::new();
    for (at, alias) in pod.spec().host_aliases.iter().flatten().enumerate() {
        if at == 0 {
            text.push_str("\n# Entries added by HostAliases.\n");
        }
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
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

    /// Folders in a folder of the test.
    fn folders(test: &str) -> (PathBuf, Folders) {
        let base = std::env::temp_dir().join(format!("kubelet-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let folders = Folders { root: base.join("kubelet"), logs: base.join("log/pods") };
        (base, folders)
    }

    #[test]
    fn other_users_enter_no_folder_of_the_kubelet() {
        let (base, folders) = folders("modes");
        // As an earlier version made it.
        make_all(&folders.pods(), 0o755).unwrap();
        folders.make().unwrap();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "containers": [{"name": "c"}],
                "volumes": [
                    {"name": "data", "emptyDir": {}},
                    {"name": "labels", "downwardAPI": {"items": [
                        {"path": "a/b", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    {"name": "host", "hostPath": {
                        "path": base.join("host/new"), "type": "DirectoryOrCreate"}},
                    {"name": "file", "hostPath": {
                        "path": base.join("file"), "type": "FileOrCreate"}},
                ],
            },
        }))
        .unwrap();
        let node = OwnNode::for_tests("1", "1", "");
        let inputs = DownwardInputs { node: &node, pod_ips: &[] };
        let outcomes =
            set_up(&folders, &pod, &BTreeSet::new(), inputs, &PodObjects::default(), "t").unwrap();
        assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()), "{outcomes:?}");
        let uid = pod.uid();
        write_hosts(&folders.hosts_file(&uid), "").unwrap();
        let of_pod = folders.pod(&uid);
        for (path, mode) in [
            (folders.pods(), 0o750),
            (of_pod.clone(), 0o750),
            (of_pod.join("volumes"), 0o750),
            (of_pod.join("volumes/kubernetes.io~empty-dir"), 0o750),
            (of_pod.join("volumes/kubernetes.io~empty-dir/data"), 0o777),
            (of_pod.join("volumes/kubernetes.io~downward-api"), 0o750),
            (of_pod.join("volumes/kubernetes.io~downward-api/labels"), 0o777),
            (of_pod.join("volumes/kubernetes.io~downward-api/labels/..data"), 0o755),
            (of_pod.join("volumes/kubernetes.io~downward-api/labels/a"), 0o755),
            (of_pod.join("containers"), 0o750),
            (of_pod.join("containers/c"), 0o750),
            (of_pod.join("etc-hosts"), 0o644),
            (folders.logs.clone(), 0o750),
            (folders.pod_logs(&pod), 0o755),
            (folders.pod_logs(&pod).join("c"), 0o755),
            (folders.links(), 0o755),
            (base.join("host/new"), 0o755),
            (base.join("file"), 0o644),
        ] {
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(format!("{found:o}"), format!("{mode:o}"), "{}", path.display());
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_new_root_is_closed_to_other_users() {
        let (base, folders) = folders("root");
        folders.make().unwrap();
        let mode = fs::metadata(&folders.root).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o750);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_link_in_place_of_a_pods_folder_is_not_followed() {
        let (base, folders) = folders("link");
        // The folder of all pods may be reached by a link.
        make_all(&base.join("disk"), OPEN).unwrap();
        std::os::unix::fs::symlink("disk", &folders.root).unwrap();
        folders.make().unwrap();
        let uid = Uid::parse("u").unwrap();
        let link = folders.pod(&uid);
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(mounted_below(&link).unwrap().is_empty());
        fs::remove_file(&link).unwrap();
        let outside = base.join("outside");
        make_all(&outside.join("kept"), OPEN).unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        tear_down(&folders, &uid).unwrap();
        assert!(fs::symlink_metadata(&link).is_err() && outside.join("kept").exists());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn folders_of_logs_name_their_pod() {
        for (folder, uid) in [
            ("default_web-n_0123", Some("0123")),
            ("default_web-n_a_b", None),
            ("default_web-n_", None),
            ("default_web-n_..", None),
            ("web_0123", None),
            ("foreign", None),
        ] {
            assert_eq!(pod_of_logs(folder).as_deref(), uid, "{folder}");
        }
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
    fn points_of_the_mount_table_are_decoded() {
        for (field, path) in [
            ("/a/b", "/a/b"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/a\9", r"/a\9"),
            (r"/a\04", r"/a\04"),
            (r"/a\777", r"/a\777"),
        ] {
            assert_eq!(mount_point(field), Path::new(path), "{field}");
        }
    }

    #[test]
    fn parts_of_volumes_are_named_by_path_or_expression() {
        let values = [("A", "x"), ("UP", ".."), ("ROOT", "/etc")];
        let values = values.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        let values = Values::from(values);
        for (path, expression, expected) in [
            (None, None, Ok("")),
            (Some("a/b"), None, Ok("a/b")),
            (Some("$(A)"), None, Ok("$(A)")),
            (None, Some("$(A)/y"), Ok("x/y")),
            (None, Some("$(B)"), Err("missing value for B")),
            (None, Some("$(ROOT)"), Err("error SubPath `/etc` must not be an absolute path")),
            (
                None,
                Some("$(A)/$(UP)/$(UP)"),
                Err("unable to provision SubPath `x/../..`: must not contain '..'"),
            ),
        ] {
            let mount = core::VolumeMount {
                sub_path: path.map(str::to_owned),
                sub_path_expr: expression.map(str::to_owned),
                ..Default::default()
            };
            let result = sub_path(&mount, &values).map_err(|error| error.to_string());
            assert_eq!(result.as_deref().map_err(String::as_str), expected, "{mount:?}");
        }
    }

    #[test]
    fn recursive_read_only_needs_a_read_only_mount() {
        let mount = |mode: &str, read_only, propagation: Option<&str>| core::VolumeMount {
            recursive_read_only: Some(mode.to_owned()),
            read_only: Some(read_only),
            mount_propagation: propagation.map(str::to_owned),
            ..Default::default()
        };
        for (mount, expected) in [
            (core::VolumeMount::default(), Some(false)),
            (mount("Disabled", true, None), Some(false)),
            (mount("IfPossible", true, None), Some(false)),
            (mount("Enabled", true, None), Some(true)),
            (mount("Enabled", true, Some("None")), Some(true)),
            (mount("Enabled", false, None), None),
            (mount("Enabled", true, Some("HostToContainer")), None),
            (mount("Maybe", true, None), None),
        ] {
            assert_eq!(is_recursive(&mount).ok(), expected, "{mount:?}");
        }
    }

    #[test]
    fn hosts_name_the_pod_and_its_aliases() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}))
        .expect("a pod");
        let ips = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
        let name = |domain: &str| PodName { host: "h".to_owned(), domain: domain.to_owned() };
        let text = hosts(&pod, &ips, &name(""));
        assert!(text.contains("\n10.0.0.1\th\nfd00::1\th\n\n# Entries added"), "{text}");
        assert!(text.ends_with("\n1.2.3.4\ta\tb\n"), "{text}");
        let text = hosts(&pod, &ips, &name("s.n.svc.c"));
        assert!(text.contains("\n10.0.0.1\th.s.n.svc.c\th\n"), "{text}");
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
