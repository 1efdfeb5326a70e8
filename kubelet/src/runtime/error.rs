//! The errors of definitions for the runtime.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::dns::MAX_FQDN;
use crate::objects::{Kind, Unavailable};

/// Why a pod, or a container of it, has no definition for the runtime, or a variable no value. The
/// texts are upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    /// The machine's file of its resolver cannot be read.
    ResolvConf {
        path: PathBuf,
        source: io::Error,
    },
    /// The pod's name with its domain is too long for the kernel.
    LongName(String),
    NoObject(Unavailable),
    /// An object has no such key.
    NoKey {
        kind: Kind,
        object: String,
        key: String,
    },
    NoContainer(String),
    /// A file in a volume cannot be read.
    VolumeFile(Box<dyn StdError + Send + Sync>),
    /// A file of variables is malformed. The log has the fault, which may say something about the
    /// host's files.
    VariableFile,
    /// A file of variables has no such key.
    NoKeyInFile {
        key: String,
        path: PathBuf,
    },
    UnsupportedSource,
    UnsupportedField(String),
    UnsupportedResource(String),
    /// The node has no address yet.
    NoNodeAddress,
    /// The value of a variable in this text is not text.
    NotUtf8(String),
    /// Variables without a value.
    NoValues(Vec<String>),
    ImageRunsAsRoot,
    /// The user of the image has no number.
    ImageUserUnknown,
    NoLocalhostProfile,
    /// The type of a profile is not known: the container must not run without protection.
    UnknownProfileType {
        field: &'static str,
        kind: String,
    },
    /// That of the annotation.
    UnknownAppArmorProfile(String),
    /// The machine does not have it.
    NoAppArmor,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ResolvConf { path, .. } => {
                write!(f, "resolvConf (--resolv-conf) {}", path.display())
            }
            Error::LongName(full) => write!(
                f,
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too \
                 long ({MAX_FQDN} characters is the max, {} characters requested)",
                full.len()
            ),
            Error::NoObject(error) => error.fmt(f),
            Error::NoKey { kind, object, key } => {
                write!(f, "couldn't find key {key} in {kind:?} {object}")
            }
            Error::NoContainer(name) => write!(f, "no container {name}"),
            Error::VolumeFile(error) => error.fmt(f),
            Error::VariableFile => f.write_str("couldn't parse env file"),
            Error::NoKeyInFile { key, path } => {
                write!(f, "environment variable key {key:?} not found in file {path:?}")
            }
            Error::UnsupportedSource => f.write_str("its source is not supported"),
            Error::UnsupportedField(path) => write!(f, "unsupported fieldPath: {path}"),
            Error::UnsupportedResource(name) => {
                write!(f, "unsupported container resource: {name}")
            }
            Error::NoNodeAddress => f.write_str("can't get ip address of node"),
            Error::NotUtf8(text) => {
                write!(f, "the value of a variable in {text:?} is not UTF-8")
            }
            Error::NoValues(names) => write!(f, "missing value for {}", names.join(", ")),
            Error::ImageRunsAsRoot => {
                f.write_str("container has runAsNonRoot and image will run as root")
            }
            Error::ImageUserUnknown => {
                f.write_str("container has runAsNonRoot and image has non-numeric user")
            }
            Error::NoLocalhostProfile => {
                f.write_str("localhostProfile must be set if seccompProfile type is Localhost.")
            }
            Error::UnknownProfileType { field, kind } => {
                write!(f, "{field} type {kind:?} is unknown")
            }
            Error::UnknownAppArmorProfile(profile) => {
                write!(f, "AppArmor profile {profile:?} is unknown")
            }
            Error::NoAppArmor => {
                f.write_str("Cannot enforce AppArmor: AppArmor is not enabled on the host")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::ResolvConf { source, .. } => Some(source),
            Error::VolumeFile(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Unavailable> for Error {
    fn from(error: Unavailable) -> Error {
        Error::NoObject(error)
    }
}
