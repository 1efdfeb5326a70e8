//! The errors of a pod's actions in the runtime.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::objects::Unavailable;
use crate::pod::Uid;
use crate::{allocation, cri, runtime, user_namespaces, volumes};

/// Why an action of a pod has failed. The texts are upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    /// A call to the runtime has failed.
    Runtime(cri::Error),
    /// The pod or a container has no definition for the runtime.
    Definition(runtime::Error),
    Volumes(volumes::Error),
    /// The pod's class, or the Services for its variables, are not known.
    NoObject(Unavailable),
    /// The runtime ignores `supplementalGroupsPolicy`.
    NoStrictGroups,
    /// The runtime has no user namespaces for pods of this handler.
    NoUserNamespaces {
        handler: String,
    },
    UserNamespace(user_namespaces::Error),
    /// The container that an ephemeral one looks into does not exist.
    NoTarget(String),
    /// The runtime ignores that mounts within a mount are read-only.
    NoRecursiveReadOnly,
    /// A file cannot be made, removed or renamed.
    Path {
        path: PathBuf,
        source: io::Error,
    },
    /// The log was renamed, but the runtime does not open it again.
    Reopen(cri::Error),
    /// The pod's cgroup cannot be made.
    MakeCgroup {
        uid: Uid,
        source: io::Error,
    },
    /// The resources that the pod was given cannot be recorded.
    Record(allocation::Error),
    /// The pod's cgroup cannot be removed.
    RemoveCgroup {
        uid: Uid,
        source: io::Error,
    },
}

impl Error {
    /// Converts an error at a path, for `map_err`.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path { path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Runtime(error) => error.fmt(f),
            Error::Definition(error) => error.fmt(f),
            Error::Volumes(error) => error.fmt(f),
            Error::NoObject(error) => error.fmt(f),
            Error::NoStrictGroups => {
                f.write_str("the runtime does not support supplementalGroupsPolicy Strict")
            }
            Error::NoUserNamespaces { handler } if handler.is_empty() => f.write_str(
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
            ),
            Error::NoUserNamespaces { handler } => write!(
                f,
                "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not \
                 support user namespaces"
            ),
            Error::UserNamespace(error) => error.fmt(f),
            Error::NoTarget(name) => write!(f, "unable to find target container {name}"),
            Error::NoRecursiveReadOnly => f.write_str(
                "failed to resolve recursive read-only mode: the runtime does not support \
                 recursive read-only mounts",
            ),
            Error::Path { path, .. } => write!(f, "{}", path.display()),
            Error::Reopen(_) => f.write_str("failed to reopen container log"),
            Error::MakeCgroup { uid, .. } => write!(
                f,
                "failed to ensure that the pod: {uid} cgroups exist and are correctly applied"
            ),
            Error::Record(error) => error.fmt(f),
            Error::RemoveCgroup { uid, .. } => write!(f, "the cgroup of pod {uid}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Runtime(error) => error.source(),
            Error::Definition(error) => error.source(),
            Error::Volumes(error) => error.source(),
            Error::Record(error) => error.source(),
            Error::UserNamespace(error) => error.source(),
            Error::Reopen(error) => Some(error),
            Error::Path { source, .. }
            | Error::MakeCgroup { source, .. }
            | Error::RemoveCgroup { source, .. } => Some(source),
            Error::NoObject(_)
            | Error::NoStrictGroups
            | Error::NoUserNamespaces { .. }
            | Error::NoTarget(_)
            | Error::NoRecursiveReadOnly => None,
        }
    }
}

impl From<cri::Error> for Error {
    fn from(error: cri::Error) -> Error {
        Error::Runtime(error)
    }
}

impl From<runtime::Error> for Error {
    fn from(error: runtime::Error) -> Error {
        Error::Definition(error)
    }
}

impl From<volumes::Error> for Error {
    fn from(error: volumes::Error) -> Error {
        Error::Volumes(error)
    }
}
