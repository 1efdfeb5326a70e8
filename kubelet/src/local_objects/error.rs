//! The errors of local objects.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::Utf8Error;

use super::{Kind, MAX_BYTES};

/// There is no such object. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    pub kind: Kind,
    pub name: String,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = match self.kind {
            Kind::ConfigMap => "configmap",
            Kind::Secret => "secret",
            Kind::RuntimeClass => "runtimeclass.node.k8s.io",
        };
        write!(f, "{resource} {:?} not found", self.name)
    }
}

impl StdError for NotFound {}

/// Why the folder cannot be read, or a file of it has no object.
#[derive(Debug)]
pub enum Error {
    Folder {
        path: PathBuf,
        source: io::Error,
    },
    /// The file cannot be read.
    File(io::Error),
    TooLarge,
    NotUtf8(Utf8Error),
    /// The file is neither JSON nor YAML.
    Syntax(serde_yaml_ng::Error),
    UnknownKind {
        kind: String,
        version: String,
    },
    /// A field of the object has another type.
    Field {
        kind: String,
        source: serde_json::Error,
    },
    /// A field has to have a value.
    Required {
        field: &'static str,
    },
    /// The name of a content.
    InvalidKey(String),
    /// A content is in both maps of a ConfigMap.
    DuplicateKey(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Folder { path, .. } => write!(f, "{}", path.display()),
            Error::File(error) => error.fmt(f),
            Error::TooLarge => write!(f, "it has more than {MAX_BYTES} bytes"),
            Error::NotUtf8(_) => f.write_str("not UTF-8"),
            Error::Syntax(error) => error.fmt(f),
            Error::UnknownKind { kind, version } => {
                let kinds = "a v1 ConfigMap, a v1 Secret or a node.k8s.io/v1 RuntimeClass";
                write!(f, "{version} {kind} is not {kinds}")
            }
            Error::Field { kind, .. } => write!(f, "invalid {kind}"),
            Error::Required { field } => write!(f, "{field}: Required value"),
            Error::InvalidKey(key) => write!(f, "data[{key}]: Invalid value: not a valid key"),
            Error::DuplicateKey(key) => {
                write!(f, "data[{key}]: Invalid value: duplicate of key present in binaryData")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Folder { source, .. } => Some(source),
            Error::File(error) => error.source(),
            Error::NotUtf8(error) => Some(error),
            Error::Syntax(error) => error.source(),
            Error::Field { source, .. } => Some(source),
            _ => None,
        }
    }
}
