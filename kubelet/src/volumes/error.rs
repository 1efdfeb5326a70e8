//! The errors of volumes.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::causes::chain;
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
    /// A source of a projected volume that has none of the known kinds.
    UnsupportedSource,
    /// A source of a projected volume whose gate is off in 1.36.
    TrustBundle,
    PodCertificate,
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
    /// What concerns one volume.
    Volume {
        name: String,
        cause: Box<Error>,
    },
    /// A volume cannot be set up.
    SetUp {
        name: String,
        cause: Box<Error>,
    },
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
    /// For `map_err` of the errors of a path.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path { path, source }
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
            Error::UnsupportedSource => {
                f.write_str("a source of the projected volume is not supported")
            }
            Error::TrustBundle => {
                f.write_str("ClusterTrustBundle projection is not supported in static kubelet mode")
            }
            Error::PodCertificate => f.write_str("unimplemented"),
            Error::NoContainer(name) => write!(f, "no container {name:?}"),
            Error::NoValue(error) => error.fmt(f),
            Error::NoObject(error) => error.fmt(f),
            Error::InvalidPath(text) => f.write_str(text),
            Error::NoKey { kind: Kind::ConfigMap, key } => {
                write!(f, "configmap references non-existent config key: {key}")
            }
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
            Error::Volume { name, .. } => write!(f, "volume {name:?}"),
            // The cause follows after a colon.
            Error::SetUp { name, .. } => {
                write!(f, "MountVolume.SetUp failed for volume {name:?} ")
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
            Error::Path { source, .. } | Error::HostPath { source, .. } => Some(source),
            Error::EmptyDir(error) => error.source(),
            Error::NoValue(error) => error.source(),
            Error::Volume { cause, .. } | Error::SetUp { cause, .. } => Some(&**cause),
            _ => None,
        }
    }
}
