//! The folders, files and devices of pods. [`VolumeManager`] sets up their volumes, each kind in a
//! file of its own: `plain` those of this machine and of objects, `nfs` those of servers, `local`
//! and `csi` those behind claims. `tear_down` has the way back.
//! Upstream: `pkg/volume`, `pkg/kubelet/kubelet_pods.go`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

mod atomic;
mod backoff;
mod claim;
mod csi;
mod error;
mod expand;
mod in_tree;
mod in_use;
mod local;
mod loop_device;
mod manager;
mod mounts_below;
mod nfs;
mod ownership;
mod payload;
mod plain;
mod selinux;
mod set_up;
mod shared;
mod subpath;
mod tear_down;
mod topology;
mod usage;

pub use self::error::Error;
pub use self::in_use::VolumesInUse;
pub use self::manager::{Mounted, Parts, Server, VolumeManager, VolumeMap};
pub use self::selinux::has_selinux;
pub use self::shared::make_shared;
pub use self::usage::MeasuredVolume;

use k8s_openapi::api::core::v1 as core;

use crate::cri::api;
use crate::files::tree;
use crate::pod::{Container, Pod, PodExt, Uid};
use crate::runtime::dns::PodName;
use crate::runtime::environment::{Values, expand_known};

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
        let plugins = [self.root.join("plugins"), self.plugin_sockets()];
        for (path, mode) in [
            (&self.root, CLOSED),
            (&self.logs, CLOSED),
            (&pods, CLOSED),
            (&links, OPEN),
            (&plugins[0], CLOSED),
            (&plugins[1], CLOSED),
        ] {
            make_all(path, mode).map_err(Error::at(path))?;
        }
        // Earlier versions made it for all users.
        fs::set_permissions(&pods, fs::Permissions::from_mode(CLOSED)).map_err(Error::at(&pods))
    }

    /// Returns the folder of all pods' folders.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Returns the folder of the sockets by which plugins register.
    pub fn plugin_sockets(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// Returns the folder of a pod.
    pub fn pod(&self, uid: &Uid) -> PathBuf {
        self.pods().join(&**uid)
    }

    /// Returns the folder of a pod's logs, which has one folder a container.
    pub fn pod_logs(&self, pod: &Pod) -> PathBuf {
        self.logs.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
    }

    /// Returns the folder of links to all containers' logs, beside that of pods' logs. Upstream:
    /// `ContainerLogsDir`.
    pub fn links(&self) -> PathBuf {
        self.logs.with_file_name("containers")
    }

    /// Returns the folder of a volume of a kind such as `empty-dir`.
    pub fn volume(&self, uid: &Uid, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{kind}")).join(name)
    }

    /// Returns the folder of the last messages of a pod's containers.
    pub fn messages(&self, uid: &Uid) -> PathBuf {
        self.pod(uid).join("containers")
    }

    /// Returns the file for a container's last message; a new one for each start.
    pub fn message_file(&self, uid: &Uid, container: &str, attempt: u32) -> PathBuf {
        self.messages(uid).join(container).join(attempt.to_string())
    }

    /// Returns the file for the results of a pod's probes.
    pub fn probes_file(&self, uid: &Uid) -> PathBuf {
        self.pod(uid).join("probes")
    }

    /// Returns the file that containers of a pod have as `/etc/hosts`.
    pub fn hosts_file(&self, uid: &Uid) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }
}

/// Returns the pod's `fsGroup`: the group that owns the files of its volumes.
fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec().security_context.as_ref().and_then(|context| context.fs_group)?;
    u32::try_from(group).ok()
}

/// Reads the file of a volume that a variable refers to (`fileKeyRef`). Returns its path and its
/// text. Blocks.
///
/// # Errors
/// No volume of this name is set up, or the file cannot be read. The texts are upstream's.
pub fn variable_file(
    mounted: &VolumeMap,
    pod: &Pod,
    key: &core::FileKeySelector,
) -> Result<(PathBuf, String), Error> {
    let name = &key.volume_name;
    let folder = mounted.get(name).map(|volume| &volume.path);
    let folder = folder.ok_or_else(|| Error::NoVolumeOfVariable { name: name.clone() })?;
    let below = Path::new(key.path.trim_start_matches('/'));
    let text = subpath::read(folder, below).map_err(|error| {
        log::error!("pod {}: {} in volume {name}: {error}", pod.display_name(), key.path);
        Error::VariableFile
    })?;
    Ok((folder.join(below), text))
}

/// Builds the mounts of a container for the runtime. Mounts each `subPath` below the pod's folder
/// for them first. Blocks. `mounted`: the pod's volumes; `images`: the images of its image volumes,
/// by volume; `recursive`: whether the runtime can make what is mounted in a mount read-only too.
///
/// # Errors
/// One that names the mount.
pub fn mounts(
    folders: &Folders,
    pod: &Pod,
    mounted: &VolumeMap,
    container: &Container,
    environment: &Values,
    images: &HashMap<String, api::ImageSpec>,
    recursive: bool,
) -> Result<Vec<api::Mount>, Error> {
    let uid = pod.uid();
    let mut mounts = Vec::new();
    for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volume = mounted.get(&mount.name).filter(|volume| !volume.is_device);
        let volume = volume.ok_or_else(|| Error::NoVolumeOfMount {
            volume: mount.name.clone(),
            container: container.name.clone(),
        })?;
        let image = images.get(&mount.name).cloned();
        let mut source = volume.path.clone();
        let sub_path = sub_path(mount, environment)?;
        // The runtime itself mounts a part of an image.
        if image.is_none() && !sub_path.is_empty() {
            let folder = folders.pod(&uid).join(subpath::FOLDER);
            let volume_name = volume.persistent.as_ref().unwrap_or(&mount.name);
            let target = folder.join(volume_name).join(&container.name).join(at.to_string());
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
            recursive_read_only: is_recursive(mount, recursive)?,
            readonly: mount.read_only.unwrap_or_default() || volume.read_only,
            selinux_relabel: selinux::relabels(folders, &uid, volume),
            image_sub_path: if image.is_some() { sub_path } else { String::new() },
            image,
            propagation: propagation as i32,
            ..Default::default()
        });
    }
    Ok(mounts)
}

/// Builds the devices of a container from its volumes of blocks. Upstream: `makeBlockVolumes`.
///
/// # Errors
/// A volume is not set up, or is no device.
pub fn devices(mounted: &VolumeMap, container: &Container) -> Result<Vec<api::Device>, Error> {
    let device = |device: &core::VolumeDevice| {
        let volume = mounted.get(&device.name).filter(|volume| volume.is_device);
        let volume = volume.ok_or_else(|| Error::NoVolumeOfMount {
            volume: device.name.clone(),
            container: container.name.clone(),
        })?;
        Ok(api::Device {
            container_path: device.device_path.clone(),
            host_path: volume.path.display().to_string(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

/// Returns whether what is mounted in a read-only mount has to be read-only too. `is_possible`:
/// whether the runtime can do that. Errors: the mount is not read-only or propagates, or its mode
/// is unknown. Upstream: `resolveRecursiveReadOnly`.
fn is_recursive(mount: &core::VolumeMount, is_possible: bool) -> Result<bool, Error> {
    let fault = |fault: &str| Error::RecursiveReadOnly(fault.to_owned());
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => Ok(false),
        Some("Enabled" | "IfPossible") if mount.read_only != Some(true) => Err(fault(&format!(
            "volume {:?} requested recursive read-only mode, but it is not \
                                read-only",
            mount.name
        ))),
        Some("Enabled" | "IfPossible")
            if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") =>
        {
            Err(fault(&format!(
                "volume {:?} requested recursive read-only mode, but it is not \
                                compatible with propagation",
                mount.name
            )))
        }
        Some("Enabled") => Ok(true),
        Some("IfPossible") => Ok(is_possible),
        Some(other) => Err(fault(&format!("unknown recursive read-only mode {other:?}"))),
    }
}

/// Returns the path in its volume that a mount asks for (`subPath`, or `subPathExpr` with the
/// values of variables); empty: the whole volume. Errors: a variable has no value, or the path
/// leads out of the volume.
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

/// Returns the uid of the pod of a folder of logs, from the folder's name: NAMESPACE_NAME_UID.
/// `None`: the folder is another program's.
pub fn pod_of_logs(folder: &str) -> Option<Uid> {
    folder.splitn(3, '_').nth(2).and_then(Uid::parse)
}

/// Builds the content of a pod's `/etc/hosts`. Upstream: `managedHostsFileContent`.
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

/// Builds the content of `/etc/hosts` for a pod with the host's network: the host's own content, if
/// it has the file, and the pod's aliases. Blocks.
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

/// Writes a pod's `/etc/hosts` in place: a new file would not show in containers that have the old
/// one mounted. Blocks.
pub fn write_hosts(file: &Path, text: &str) -> io::Result<()> {
    fs::write(file, text)?;
    // A new file has the mode that the mask of the process leaves.
    fs::set_permissions(file, fs::Permissions::from_mode(0o644))
}

/// Builds the lines of `/etc/hosts` for the pod's `hostAliases`, below a comment; empty: it has no
/// aliases.
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
    use std::collections::BTreeSet;

    use kube_controller_manager::clock::SystemClock;

    use super::*;
    use crate::node::own::OwnNode;
    use crate::objects::PodObjects;
    use crate::runtime::environment::DownwardInputs;

    /// Folders in a folder of the test.
    fn folders(test: &str) -> (PathBuf, Folders) {
        let base = std::env::temp_dir().join(format!("kubelet-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let folders = Folders { root: base.join("kubelet"), logs: base.join("log/pods") };
        (base, folders)
    }

    /// Upstream's kubelet finds them by that name, and this one those of upstream's.
    #[test]
    fn folders_of_sub_paths_have_the_names_of_persistent_volumes() {
        let (base, folders) = folders("inner-names");
        let volume = base.join("volume");
        fs::create_dir_all(volume.join("part")).unwrap();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeMounts": [
                {"name": "v", "mountPath": "/v", "subPath": "part"}]}]},
        }))
        .unwrap();
        let container = &pod.spec().containers[0];
        for (persistent, expected) in [(None, "v"), (Some("pv".to_owned()), "pv")] {
            let (read_only, is_device, group) = (false, false, None);
            let path = volume.clone();
            let mounted = Mounted { path, read_only, is_device, group, persistent };
            let mounted = VolumeMap::from([("v".to_owned(), mounted)]);
            let (values, images) = (Values::default(), HashMap::new());
            let found = mounts(&folders, &pod, &mounted, container, &values, &images, false);
            let found = match found {
                Ok(found) => found,
                Err(error) if !rustix::process::geteuid().is_root() => {
                    eprintln!("folders_of_sub_paths_have_the_names_of_persistent_volumes: {error}");
                    break;
                }
                Err(error) => panic!("{error}"),
            };
            let target = folders.pod(&pod.uid()).join(subpath::FOLDER).join(expected).join("c/0");
            assert_eq!(found[0].host_path, target.display().to_string());
            rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn other_users_enter_no_folder_of_the_kubelet() {
        let (base, folders) = folders("modes");
        // As an earlier version made it.
        make_all(&folders.pods(), 0o755).unwrap();
        folders.make().unwrap();
        let mount = |name: &str| serde_json::json!({"name": name, "mountPath": "/v"});
        let mounts = ["data", "config", "host", "file"].map(mount);
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "containers": [{"name": "c", "volumeMounts": mounts}],
                "volumes": [
                    {"name": "data", "emptyDir": {}},
                    {"name": "config", "configMap": {
                        "name": "m", "items": [{"key": "k", "path": "a/b"}]}},
                    {"name": "host", "hostPath": {
                        "path": base.join("host/new"), "type": "DirectoryOrCreate"}},
                    {"name": "file", "hostPath": {
                        "path": base.join("file"), "type": "FileOrCreate"}},
                    // What no container uses does not have to exist.
                    {"name": "unused", "configMap": {"name": "none"}},
                ],
            },
        }))
        .unwrap();
        let node = OwnNode::for_tests("1", "1", "");
        let inputs = DownwardInputs { node: &node, pod_ips: &[] };
        let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
            "metadata": {"name": "m", "namespace": "n"}}"#;
        let (none, objects) = (BTreeSet::new(), PodObjects::for_tests(&pod, &[map]));
        let clock = SystemClock::shared();
        let outcomes = plain::set_up(&folders, &pod, &none, inputs, &objects, "t", &clock).unwrap();
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
            (of_pod.join("volumes/kubernetes.io~configmap"), 0o750),
            (of_pod.join("volumes/kubernetes.io~configmap/config"), 0o777),
            (of_pod.join("volumes/kubernetes.io~configmap/config/..data"), 0o755),
            (of_pod.join("volumes/kubernetes.io~configmap/config/a"), 0o755),
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
        for (mount, possible, expected) in [
            (core::VolumeMount::default(), true, Some(false)),
            (mount("Disabled", true, None), true, Some(false)),
            (mount("IfPossible", true, None), true, Some(true)),
            (mount("IfPossible", true, None), false, Some(false)),
            (mount("IfPossible", false, None), true, None),
            (mount("Enabled", true, None), false, Some(true)),
            (mount("Enabled", true, Some("None")), false, Some(true)),
            (mount("Enabled", false, None), false, None),
            (mount("Enabled", true, Some("HostToContainer")), false, None),
            (mount("Maybe", true, None), true, None),
        ] {
            assert_eq!(is_recursive(&mount, possible).ok(), expected, "{mount:?}");
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
}
