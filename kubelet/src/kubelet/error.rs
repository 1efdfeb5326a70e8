//! The errors of the work of pods' workers.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::pod::Uid;
use crate::{cgroups, cri, images, kuberuntime, volumes};

/// Why a worker's work has failed, or the usage of pods is not known.
#[derive(Debug)]
pub enum Error {
    /// A call to the runtime has failed.
    Runtime(cri::Error),
    /// An action in the runtime has failed.
    Action(kuberuntime::Error),
    /// Containers have not ended with their grace period.
    StillRunning { pod: String },
    /// The volumes of a pod that has ended are still there. `pod`: its name, or its uid.
    Volumes { pod: String, source: volumes::Error },
    /// The folders of a pod that has ended cannot be removed.
    Folders { pod: String, source: io::Error },
    /// Those of a pod of which only the uid is known.
    OrphanFolders { uid: Uid, source: io::Error },
    /// The use of images is not known.
    Images(images::Error),
    /// The cgroups of the machine are not known.
    Cgroups(cgroups::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Runtime(error) => error.fmt(f),
            Error::Action(error) => error.fmt(f),
            Error::StillRunning { pod } => write!(f, "pod {pod}: containers still run"),
            Error::Volumes { pod, .. } => write!(f, "the volumes of pod {pod}"),
            Error::Folders { pod, .. } => write!(f, "pod {pod}"),
            Error::OrphanFolders { uid, .. } => write!(f, "the folders of pod {uid}"),
            Error::Images(error) => error.fmt(f),
            Error::Cgroups(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Runtime(error) => error.source(),
            Error::Action(error) => error.source(),
            Error::StillRunning { .. } => None,
            Error::Volumes { source, .. } => Some(source),
            Error::Folders { source, .. } | Error::OrphanFolders { source, .. } => Some(source),
            Error::Images(error) => error.source(),
            Error::Cgroups(error) => error.source(),
        }
    }
}

impl From<cri::Error> for Error {
    fn from(error: cri::Error) -> Error {
        Error::Runtime(error)
    }
}

impl From<kuberuntime::Error> for Error {
    fn from(error: kuberuntime::Error) -> Error {
        Error::Action(error)
    }
}
