//! The errors of the start.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::{enforce, requirements};
use crate::{
    allocation, cgroups, cri, images, node, options, server, shutdown, upkeep, user_namespaces,
    volumes,
};

/// Why the kubelet does not start.
#[derive(Debug)]
pub enum Error {
    Signals(io::Error),
    /// What a setting names cannot be used. `setting`: its flag, and its value where the cause does
    /// not have it.
    Setting {
        setting: String,
        source: Box<dyn StdError + Send + Sync>,
    },
    /// An endpoint is not the path of a socket.
    NotSocket {
        flag: &'static str,
        endpoint: String,
    },
    UnknownDriver(String),
    /// The machine is not as the configuration wants it.
    Requirement(requirements::Error),
    ScoreOutOfRange(i32),
    /// A setting of the node is refused.
    Node(node::Error),
    /// What is enforced, and how it is not: by upstream's texts.
    Enforcement(enforce::Error),
    Options(options::Error),
    /// A field of the verification of images is refused, or its records cannot be kept.
    Images(images::Error),
    /// A call to the container runtime has failed.
    Runtime(cri::Error),
    RuntimeTooOld,
    /// A signal came before the runtime's first answer.
    Stopped,
    /// The client certificate is lost while the kubelet runs, and why.
    IdentityLost(&'static str),
    Cgroups(cgroups::Error),
    /// The ids of pods with user namespaces cannot be used.
    UserNamespaces(user_namespaces::Error),
    /// What the pods of an earlier kubelet have is not known.
    Allocation(allocation::Error),
    Volumes(volumes::Error),
    Upkeep(upkeep::Error),
    Server(server::Error),
    Shutdown(shutdown::Error),
}

impl Error {
    /// Converts an error about a setting, for `map_err`.
    pub(super) fn of<E: Into<Box<dyn StdError + Send + Sync>>>(
        setting: impl Into<String>,
    ) -> impl FnOnce(E) -> Error {
        let setting = setting.into();
        move |error| Error::Setting { setting, source: error.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Signals(_) => f.write_str("signals"),
            Error::Setting { setting, .. } => f.write_str(setting),
            Error::NotSocket { flag, endpoint } => {
                write!(f, "--{flag}: {endpoint:?} is not unix:///PATH")
            }
            Error::UnknownDriver(driver) => {
                write!(f, "cgroupDriver (--cgroup-driver) {driver:?}: not cgroupfs or systemd")
            }
            Error::Requirement(error) => error.fmt(f),
            Error::ScoreOutOfRange(score) => write!(
                f,
                "oomScoreAdj (--oom-score-adj) {score} must be between range [-1000, 1000]"
            ),
            Error::Node(error) => error.fmt(f),
            Error::Enforcement(error) => error.fmt(f),
            Error::Options(error) => error.fmt(f),
            Error::Images(error) => error.fmt(f),
            Error::Runtime(error) => error.fmt(f),
            Error::RuntimeTooOld => f.write_str("the container runtime does not speak CRI v1"),
            Error::Stopped => f.write_str("stopped while waiting for the container runtime"),
            Error::IdentityLost(why) => f.write_str(why),
            Error::Cgroups(error) => error.fmt(f),
            Error::UserNamespaces(error) => write!(f, "create user namespace manager: {error}"),
            Error::Allocation(error) => error.fmt(f),
            Error::Volumes(error) => error.fmt(f),
            Error::Upkeep(error) => error.fmt(f),
            Error::Server(error) => error.fmt(f),
            Error::Shutdown(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Signals(error) => Some(error),
            Error::Setting { source, .. } => Some(&**source),
            Error::Requirement(error) => error.source(),
            Error::Options(error) => error.source(),
            Error::Images(error) => error.source(),
            Error::Node(error) => error.source(),
            Error::Enforcement(error) => error.source(),
            Error::Runtime(error) => error.source(),
            Error::Cgroups(error) => error.source(),
            Error::UserNamespaces(error) => error.source(),
            Error::Allocation(error) => error.source(),
            Error::Volumes(error) => error.source(),
            Error::Upkeep(error) => error.source(),
            Error::Server(error) => error.source(),
            Error::Shutdown(error) => error.source(),
            _ => None,
        }
    }
}

impl From<cri::Error> for Error {
    fn from(error: cri::Error) -> Error {
        Error::Runtime(error)
    }
}

impl From<enforce::Error> for Error {
    fn from(error: enforce::Error) -> Error {
        Error::Enforcement(error)
    }
}

impl From<requirements::Error> for Error {
    fn from(error: requirements::Error) -> Error {
        Error::Requirement(error)
    }
}

impl From<upkeep::Error> for Error {
    fn from(error: upkeep::Error) -> Error {
        Error::Upkeep(error)
    }
}

impl From<server::Error> for Error {
    fn from(error: server::Error) -> Error {
        Error::Server(error)
    }
}
