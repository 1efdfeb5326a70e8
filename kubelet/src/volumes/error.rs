//! The errors of volumes.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use kube_controller_manager::client;

use crate::causes::chain;
use crate::csi;
use crate::objects::{Kind, Unavailable};
use crate::runtime;

/// Why a volume is not set up, or a container has no definition of its mounts. The texts are
/// upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    /// A file or a folder cannot be made, read or changed.
    Path {
        path: PathBuf,
        source: io::Error,
    },
    /// An emptyDir cannot be made.
    EmptyDir(io::Error),
    /// The path of a hostPath cannot be made.
    HostPath {
        path: String,
        source: io::Error,
    },
    /// The path of a hostPath is of another type.
    HostPathType {
        path: String,
        wanted: String,
    },
    UnknownHostPathType(String),
    UnsupportedKind,
    /// A volume of an in-tree plugin in a pod itself, and the driver that has taken it over.
    InTree {
        kind: &'static str,
        driver: &'static str,
    },
    /// The PersistentVolume of an in-tree plugin, which its driver does not have.
    Migration(String),
    /// A source of a projected volume that has none of the known kinds.
    UnsupportedSource,
    /// A container of the downward API does not exist.
    NoContainer(String),
    /// A field of the pod or a variable that a volume or a mount refers to has no value.
    NoValue(runtime::Error),
    NoObject(Unavailable),
    /// An object has no such key.
    NoKey {
        kind: Kind,
        key: String,
    },
    /// The path of a file in a volume.
    InvalidPath(String),
    /// Several sources of a projected volume.
    Several(Vec<Error>),
    /// A step of the set-up of a volume, or of its end.
    Step {
        step: &'static str,
        name: String,
        cause: Box<Error>,
    },
    /// The volume needs an API server, which is missing.
    NoServer,
    /// A claim, or what it is bound to.
    Claim {
        namespace: String,
        name: String,
        cause: Box<Error>,
    },
    FetchClaim(client::Error),
    FetchVolume {
        name: String,
        source: client::Error,
    },
    ClaimDeleted,
    ClaimNotBound,
    ClaimWithoutVolume,
    /// The claim of an ephemeral volume is not the pod's.
    ClaimOfOther {
        claim: String,
        pod: String,
    },
    VolumeNotBound(String),
    VolumeOfOther {
        name: String,
        found: String,
        wanted: String,
    },
    /// A volume of files is a device of a container, or the reverse. `list`: the container's field.
    WrongMode {
        volume: String,
        mode: String,
        list: &'static str,
    },
    /// The volume is for other nodes.
    NodeAffinity,
    LocalNotFolder(String),
    LocalNotDevice(String),
    LocalPath(String),
    /// The program `mount` has failed: how it ended, and what it says.
    MountCommand(String),
    /// A mount option of a local volume.
    MountOption(String),
    Csi(csi::Error),
    /// The driver has no such volumes.
    Lifecycle(String),
    /// The Node does not say yet that the volume is in use.
    NotInUse,
    /// The Node does not say yet that the volume is attached.
    NotAttached(String),
    FetchAttachment {
        volume: String,
        attachment: String,
        source: Box<client::Error>,
    },
    AttachmentDeleted,
    AttachFailed(String),
    /// The attachment exists, but the volume is not attached.
    AttachmentPending {
        volume: String,
        attachment: String,
    },
    /// The node has as many volumes as it may have: a volume of the pod cannot be attached.
    AttachLimit {
        unmounted: Vec<String>,
        unattached: Vec<String>,
        unprocessed: Vec<String>,
    },
    /// `enableControllerAttachDetach` is off.
    AttachesItself,
    /// A Secret for the driver.
    FetchSecret {
        what: &'static str,
        namespace: String,
        name: String,
        source: Box<client::Error>,
    },
    /// The status of a claim after an expansion.
    WriteClaim {
        name: String,
        source: client::Error,
    },
    /// Another pod has a volume that only one may have.
    UsedByOther,
    /// The files cannot be given to the pod's group.
    Ownership {
        volume: String,
        source: io::Error,
    },
    /// Something is mounted in the pod's folder that is of no known volume.
    UnknownMount(PathBuf),
    /// A folder of a volume of an unknown kind.
    UnknownVolume(PathBuf),
    /// A variable refers to a file in a volume that the pod does not have.
    NoVolumeOfVariable {
        name: String,
    },
    /// A variable refers to a file that cannot be read. The log has the cause, which may say
    /// something about the host's files.
    VariableFile,
    /// A mount refers to a volume that the pod does not have.
    NoVolumeOfMount {
        volume: String,
        container: String,
    },
    /// A part of a volume cannot be mounted. The log has the cause, as above.
    SubPath {
        step: &'static str,
        volume: String,
        container: String,
    },
    AbsoluteSubPath(String),
    SubPathOutside(String),
    UnknownPropagation(String),
    RecursiveReadOnly(String),
}

impl Error {
    /// Converts an error at a path, for `map_err`.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path { path, source }
    }

    /// Converts an error in a step of a volume, for `map_err`.
    pub(super) fn in_step(step: &'static str, name: &str) -> impl Fn(Error) -> Error + use<> {
        let name = name.to_owned();
        move |cause| Error::Step { step, name: name.clone(), cause: cause.into() }
    }

    /// Returns the reason of the event that reports this error, by its step.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Error::Step { step, .. } if step.starts_with("Map") => "FailedMapVolume",
            Error::Step { step, .. } if step.starts_with("NodeExpand") => "VolumeResizeFailed",
            _ => "FailedMount",
        }
    }

    /// Returns whether the volume only waits for the Node or for CSIDriver objects. Their change
    /// starts the next attempt, so there is no retry before, and no event about the wait.
    pub(super) fn is_wait(&self) -> bool {
        match self {
            Error::NotInUse | Error::NotAttached(_) | Error::Csi(csi::Error::CsiDriversNotYet) => {
                true
            }
            Error::Step { cause, .. } => cause.is_wait(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Path { path, .. } => write!(f, "{}", path.display()),
            Error::EmptyDir(error) => error.fmt(f),
            Error::HostPath { path, .. } => write!(f, "hostPath {path}"),
            Error::HostPathType { path, wanted } => {
                write!(f, "hostPath type check failed: {path} is not a {wanted}")
            }
            Error::UnknownHostPathType(other) => write!(f, "hostPath type {other:?} is unknown"),
            Error::UnsupportedKind => f.write_str("its kind is not supported"),
            Error::InTree { kind, driver } => write!(
                f,
                "{kind} in a pod is not supported: a claim of a volume of the CSI driver {driver} is"
            ),
            Error::Migration(fault) => write!(f, "failed to translate in-tree pv to CSI: {fault}"),
            Error::UnsupportedSource => {
                f.write_str("a source of the projected volume is not supported")
            }
            Error::NoContainer(name) => write!(f, "no container {name:?}"),
            Error::NoValue(error) => error.fmt(f),
            Error::NoObject(error) => error.fmt(f),
            Error::InvalidPath(text) => f.write_str(text),
            Error::NoKey { kind: Kind::ConfigMap, key } => {
                write!(f, "configmap references non-existent config key: {key}")
            }
            // No volume is of a RuntimeClass.
            Error::NoKey { kind: Kind::Secret | Kind::RuntimeClass, key } => {
                write!(f, "references non-existent secret key: {key}")
            }
            Error::Several(errors) => {
                let texts: Vec<String> = errors.iter().map(|error| chain(error)).collect();
                match &texts[..] {
                    [text] => f.write_str(text),
                    texts => write!(f, "[{}]", texts.join(", ")),
                }
            }
            // The cause follows after a colon, with upstream's space before it.
            Error::Step { step, name, .. } => write!(f, "{step} for volume {name:?} "),
            Error::NoServer => f.write_str("it needs an API server"),
            Error::Claim { namespace, name, .. } => {
                write!(f, "error processing PVC {namespace}/{name}")
            }
            Error::FetchClaim(_) => f.write_str("failed to fetch PVC from API server"),
            Error::FetchVolume { name, .. } => {
                write!(f, "failed to fetch PV {name} from API server")
            }
            Error::ClaimDeleted => f.write_str("PVC is being deleted"),
            Error::ClaimNotBound => f.write_str("PVC is not bound"),
            Error::ClaimWithoutVolume => f.write_str("PVC has empty pvc.Spec.VolumeName"),
            Error::ClaimOfOther { claim, pod } => {
                write!(f, "PVC {claim} was not created for pod {pod} (pod is not owner)")
            }
            Error::VolumeNotBound(name) => write!(
                f,
                "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not \
                 yet bound to the claim"
            ),
            Error::VolumeOfOther { name, found, wanted } => write!(
                f,
                "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to \
                 claim.UID {wanted}"
            ),
            Error::WrongMode { volume, mode, list } => {
                write!(f, "volume {volume} has volumeMode {mode}, but is specified in {list}")
            }
            Error::NodeAffinity => f.write_str("no matching NodeSelectorTerms"),
            Error::LocalNotFolder(path) => write!(
                f,
                "{path} is not a folder: a device that has to be formatted is not supported"
            ),
            Error::LocalNotDevice(path) => write!(f, "{path} is not a block device"),
            Error::LocalPath(path) => write!(f, "invalid path: {path} must not contain '..'"),
            Error::MountCommand(fault) => write!(f, "mount failed: {fault}"),
            Error::MountOption(option) => {
                write!(f, "mount option {option:?} of a local volume is not supported")
            }
            Error::Csi(error) => error.fmt(f),
            Error::Lifecycle(text) => f.write_str(text),
            Error::NotInUse => f.write_str(
                "Volume has not been added to the list of VolumesInUse in the node's volume status",
            ),
            Error::NotAttached(name) => {
                write!(f, "volume {name} is not yet in node's status")
            }
            Error::FetchAttachment { volume, attachment, .. } => {
                write!(f, "volume {volume} has GET error for volume attachment {attachment}")
            }
            Error::AttachmentDeleted => f.write_str("volume attachment is being deleted"),
            Error::AttachFailed(text) => f.write_str(text),
            Error::AttachmentPending { volume, attachment } => {
                write!(f, "volume {volume} is not attached for volume attachment {attachment}")
            }
            Error::AttachLimit { unmounted, unattached, unprocessed } => write!(
                f,
                "Node has reached its volume attachment limit, rejecting pod. unmounted \
                 volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]: context \
                 deadline exceeded",
                unmounted.join(" "),
                unattached.join(" "),
                unprocessed.join(" ")
            ),
            Error::AttachesItself => {
                f.write_str("attaching volumes from the kubelet is not supported")
            }
            Error::FetchSecret { what, namespace, name, .. } => {
                write!(f, "fetching {what} {namespace}/{name} failed")
            }
            Error::WriteClaim { name, .. } => {
                write!(f, "patchPVCStatus failed to patch PVC {name:?}")
            }
            Error::UsedByOther => f.write_str(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
            ),
            Error::Ownership { volume, .. } => write!(f, "applyFSGroup failed for vol {volume}"),
            Error::UnknownMount(path) => write!(
                f,
                "{} is mounted, by something that is no volume of the kubelet: it stays, and the \
                 pod's folder with it",
                path.display()
            ),
            Error::UnknownVolume(path) => {
                write!(f, "{} is a volume of an unknown kind: it stays", path.display())
            }
            Error::NoVolumeOfVariable { name } => {
                write!(f, "cannot find the volume {name:?} referenced by FileKeyRef")
            }
            Error::VariableFile => f.write_str("couldn't parse env file"),
            Error::NoVolumeOfMount { volume, container } => {
                write!(f, "cannot find volume {volume:?} to mount into container {container:?}")
            }
            Error::SubPath { step, volume, container } => {
                write!(f, "failed to {step} for volumeMount {volume:?} of container {container:?}")
            }
            Error::AbsoluteSubPath(path) => {
                write!(f, "error SubPath `{path}` must not be an absolute path")
            }
            Error::SubPathOutside(path) => {
                write!(f, "unable to provision SubPath `{path}`: must not contain '..'")
            }
            Error::UnknownPropagation(other) => {
                write!(f, "invalid MountPropagation mode: {other:?}")
            }
            Error::RecursiveReadOnly(fault) => {
                write!(f, "failed to resolve recursive read-only mode: {fault}")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Path { source, .. }
            | Error::HostPath { source, .. }
            | Error::Ownership { source, .. } => Some(source),
            Error::FetchClaim(source)
            | Error::FetchVolume { source, .. }
            | Error::WriteClaim { source, .. } => Some(source),
            Error::FetchAttachment { source, .. } | Error::FetchSecret { source, .. } => {
                Some(&**source)
            }
            Error::Csi(error) => error.source(),
            Error::EmptyDir(error) => error.source(),
            Error::NoValue(error) => error.source(),
            Error::Step { cause, .. } | Error::Claim { cause, .. } => Some(&**cause),
            _ => None,
        }
    }
}

impl From<csi::Error> for Error {
    fn from(error: csi::Error) -> Error {
        Error::Csi(error)
    }
}
