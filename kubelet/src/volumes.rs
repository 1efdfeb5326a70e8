//! The folders and files that pods mount: emptyDir, hostPath and downwardAPI.
//! Upstream: `pkg/volume`, `pkg/kubelet/kubelet_pods.go`.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::cri::api;
use crate::pod::{Container, Pod, PodExt};
use crate::runtime::environment::{NodeFacts, expand, pod_field};

/// The folders of pods. Upstream: `kubelet_getters.go`.
#[derive(Clone, Debug)]
pub struct Folders {
    /// `--root-dir`.
    pub root: PathBuf,
    /// `podLogsDir`.
    pub logs: PathBuf,
}

impl Folders {
    /// The folder of all pods' folders.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
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

    /// The folder of an emptyDir.
    pub fn empty_dir(&self, uid: &str, name: &str) -> PathBuf {
        self.volume(uid, "empty-dir", name)
    }

    fn volume(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{kind}")).join(name)
    }

    /// The file for a container's last message; a new one for each start.
    pub fn message_file(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod(uid).join("containers").join(container).join(attempt.to_string())
    }

    pub fn hosts_file(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }
}

/// Makes the folders of a pod and its volumes; what exists already stays as it is. Blocks.
///
/// # Errors
/// One line that names the volume.
pub fn set_up(folders: &Folders, pod: &Pod, facts: NodeFacts<'_>) -> Result<(), String> {
    let uid = pod.uid();
    let make = |path: PathBuf| {
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    make(folders.pod(&uid).join("volumes"))?;
    make(folders.pod_logs(pod))?;
    for container in pod.all_containers() {
        make(folders.pod(&uid).join("containers").join(&container.name))?;
        make(folders.pod_logs(pod).join(&container.name))?;
    }
    for volume in pod.spec().volumes.iter().flatten() {
        let fault = |fault: String| format!("volume {:?}: {fault}", volume.name);
        if let Some(empty) = &volume.empty_dir {
            let path = folders.volume(&uid, "empty-dir", &volume.name);
            set_up_empty(&path, empty, fs_group(pod)).map_err(|error| fault(error.to_string()))?;
        } else if let Some(host) = &volume.host_path {
            check_host_path(host).map_err(fault)?;
        } else if let Some(items) = downward_items(volume) {
            let path = folders.volume(&uid, "downward-api", &volume.name);
            write_items(&path, pod, items, facts).map_err(fault)?;
        } else {
            return Err(fault("its kind is not supported".to_owned()));
        }
    }
    Ok(())
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec().security_context.as_ref().and_then(|context| context.fs_group)?;
    u32::try_from(group).ok()
}

fn set_up_empty(
    path: &Path,
    empty: &core::EmptyDirVolumeSource,
    group: Option<u32>,
) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    match empty.medium.as_deref() {
        Some("Memory") => {
            let limit = empty.size_limit.as_ref().and_then(|limit| {
                let bytes: kube_controller_manager::objects::Quantity = limit.0.parse().ok()?;
                Some(format!("size={}", bytes.value()))
            });
            let options = std::ffi::CString::new(limit.unwrap_or_default())?;
            let flags = MountFlags::empty();
            rustix::mount::mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()))?;
        }
        None | Some("") => {}
        Some(other) => {
            return Err(io::Error::other(format!("medium {other:?} is not supported")));
        }
    }
    if group.is_some() {
        chown(path, None, group)?;
    }
    let set_group = if group.is_some() { 0o2000 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(0o777 | set_group))
}

/// Checks a host path by its type, and makes it where the type asks for that.
fn check_host_path(host: &core::HostPathVolumeSource) -> Result<(), String> {
    let (path, kind) = (Path::new(&host.path), host.type_.as_deref().unwrap_or_default());
    let text = |error: io::Error| format!("hostPath {}: {error}", host.path);
    let is = |check: fn(&fs::FileType) -> bool| {
        fs::metadata(path).is_ok_and(|data| check(&data.file_type()))
    };
    let is_fine = match kind {
        "" => true,
        "DirectoryOrCreate" => {
            if !path.exists() {
                fs::create_dir_all(path).map_err(text)?;
            }
            is(fs::FileType::is_dir)
        }
        "Directory" => is(fs::FileType::is_dir),
        "FileOrCreate" => {
            if !path.exists() {
                fs::File::create_new(path).map_err(text)?;
            }
            is(fs::FileType::is_file)
        }
        "File" => is(fs::FileType::is_file),
        "Socket" => is(FileTypeExt::is_socket),
        "CharDevice" => is(FileTypeExt::is_char_device),
        "BlockDevice" => is(FileTypeExt::is_block_device),
        other => return Err(format!("hostPath type {other:?} is unknown")),
    };
    match is_fine {
        true => Ok(()),
        false => Err(format!("hostPath type check failed: {} is not a {kind}", host.path)),
    }
}

/// The items of a downwardAPI volume; of a projected one only if all its sources are such.
fn downward_items(volume: &core::Volume) -> Option<Vec<&core::DownwardAPIVolumeFile>> {
    if let Some(downward) = &volume.downward_api {
        return Some(downward.items.iter().flatten().collect());
    }
    let mut all = Vec::new();
    for source in volume.projected.as_ref()?.sources.iter().flatten() {
        all.extend(source.downward_api.as_ref()?.items.iter().flatten());
    }
    Some(all)
}

fn write_items(
    path: &Path,
    pod: &Pod,
    items: Vec<&core::DownwardAPIVolumeFile>,
    facts: NodeFacts<'_>,
) -> Result<(), String> {
    for item in items {
        let field = item.field_ref.as_ref();
        let field = field.ok_or_else(|| format!("{}: only fields are supported", item.path))?;
        let content = pod_field(pod, &field.field_path, facts)?;
        if item.path.starts_with('/') || item.path.split('/').any(|part| part == "..") {
            return Err(format!("{:?} is not a path within the volume", item.path));
        }
        let file = path.join(&item.path);
        let write = || {
            fs::create_dir_all(file.parent().unwrap_or(path))?;
            // Readers see the old content or the new.
            let new = file.with_extension("new");
            fs::write(&new, content)?;
            fs::rename(&new, &file)
        };
        write().map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// The mounts of a container.
///
/// # Errors
/// One line that names the mount: what it refers to is not supported.
pub fn mounts(
    folders: &Folders,
    pod: &Pod,
    container: &Container,
    environment: &std::collections::HashMap<String, String>,
) -> Result<Vec<api::Mount>, String> {
    let uid = pod.uid();
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let fault = |fault: &str| format!("volume mount {:?}: {fault}", mount.name);
        let mut volumes = pod.spec().volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name);
        let volume = volume.ok_or_else(|| fault("no such volume"))?;
        let source = if let Some(host) = &volume.host_path {
            PathBuf::from(&host.path)
        } else if volume.empty_dir.is_some() {
            folders.volume(&uid, "empty-dir", &volume.name)
        } else {
            folders.volume(&uid, "downward-api", &volume.name)
        };
        let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (_, Some(text)) if !text.is_empty() => expand(text, environment),
            (Some(path), _) => path.clone(),
            _ => String::new(),
        };
        if !sub_path.is_empty() {
            // A link inside the volume could lead out of it.
            return Err(fault("subPath is not supported yet"));
        }
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => api::MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => api::MountPropagation::PropagationBidirectional,
            _ => api::MountPropagation::PropagationPrivate,
        };
        mounts.push(api::Mount {
            container_path: mount.mount_path.clone(),
            host_path: source.display().to_string(),
            readonly: mount.read_only.unwrap_or_default(),
            propagation: propagation as i32,
            ..Default::default()
        });
    }
    Ok(mounts)
}

/// Removes the folders of a pod, and unmounts what lies below. Blocks. Logs stay until the pod's
/// containers are removed.
///
/// # Errors
/// The first failure; what could be removed is removed.
pub fn tear_down(folders: &Folders, uid: &str) -> io::Result<()> {
    let folder = folders.pod(uid);
    let memory = folder.join("volumes/kubernetes.io~empty-dir");
    for entry in fs::read_dir(&memory).into_iter().flatten().flatten() {
        // Fails where nothing is mounted.
        let _ = rustix::mount::unmount(entry.path(), UnmountFlags::DETACH);
    }
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the logs of a pod of which only the uid is known. Blocks.
///
/// # Errors
/// The first failure.
pub fn remove_logs(folders: &Folders, uid: &str) -> io::Result<()> {
    let end = format!("_{uid}");
    for entry in fs::read_dir(&folders.logs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(&end) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The content of a pod's `/etc/hosts`. Upstream: `managedHostsFileContent`.
pub fn hosts(pod: &Pod, ips: &[String], hostname: &str) -> String {
    let mut text = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
                    ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                    fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
        .to_owned();
    for ip in ips {
        text.push_str(&format!("{ip}\t{hostname}\n"));
    }
    let aliases = pod.spec().host_aliases.iter().flatten();
    for (at, alias) in aliases.enumerate() {
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
