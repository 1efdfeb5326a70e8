//! The errors of CSI.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use grpc::Code;
use kube_controller_manager::client;

/// Why something that needs a driver has failed. The texts are upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    NotRegistered(String),
    /// A call to a driver has failed.
    Call(grpc::Error),
    /// A file or a folder cannot be read, written or removed.
    Path {
        path: PathBuf,
        source: io::Error,
    },
    /// A file of the kubelet's own has another content.
    Data {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The CSIDriver objects are not known yet.
    CsiDriversNotYet,
    /// A driver with statistics has none of a volume.
    NoUsage,
    /// A driver's name for the node.
    NoNodeId,
    /// A label of the Node has another value than the driver says.
    TopologyCollision {
        key: String,
        reported: String,
        existing: String,
    },
    /// An annotation of the Node is not a map of drivers.
    Annotation(serde_json::Error),
    /// A request to the API server has failed.
    Request(client::Error),
    /// The Node is not registered yet.
    NoNode,
    /// The CSINode is that of an earlier Node of this name; it was deleted.
    OtherOwner,
    /// A plugin does not say which versions it supports, or none that is supported here.
    Versions {
        driver: String,
        versions: Vec<String>,
    },
    /// A driver of this name is registered by another socket.
    OtherSocket(String),
    /// A plugin of another kind.
    UnknownType {
        kind: String,
        socket: PathBuf,
    },
}

impl Error {
    /// Converts an error at a path, for `map_err`.
    pub fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path { path, source }
    }

    /// Returns whether the driver has certainly not carried out the call, and does not any more.
    /// False also for a failure before the call: an earlier call may still be under way. Upstream:
    /// `isFinalError`.
    pub fn is_final(&self) -> bool {
        let Error::Call(error) = self else { return false };
        let uncertain = [
            Code::Canceled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ];
        error.code().is_some_and(|code| !uncertain.contains(&code))
    }

    /// Returns the gRPC code of the driver's answer, if it is an error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Call(error) => error.code(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotRegistered(name) => {
                write!(f, "driver name {name} not found in the list of registered CSI drivers")
            }
            // As upstream shows it.
            Error::Call(grpc::Error::Status { code, message, .. }) => {
                write!(f, "rpc error: code = {code} desc = {message}")
            }
            Error::Call(error) => error.fmt(f),
            Error::Path { path, .. } | Error::Data { path, .. } => write!(f, "{}", path.display()),
            Error::NoUsage => f.write_str("failed to get usage from response. usage is nil"),
            Error::CsiDriversNotYet => f.write_str("CSIDriver objects are not known yet"),
            Error::NoNodeId => {
                f.write_str("error adding CSI driver node info: driverNodeID must not be empty")
            }
            Error::TopologyCollision { key, reported, existing } => write!(
                f,
                "detected topology value collision: driver reported {key:?}:{reported:?} but \
                 existing label is {key:?}:{existing:?}"
            ),
            Error::Annotation(_) => f.write_str("failed to parse node's annotation of drivers"),
            Error::Request(error) => error.fmt(f),
            Error::NoNode => f.write_str("the Node is not registered yet"),
            Error::OtherOwner => f.write_str("CSINode was owned by a different node, deleted it"),
            Error::Versions { driver, versions } => write!(
                f,
                "{}: CSI driver {driver:?} failed. None of the versions specified {versions:?} \
                 are supported",
                super::PLUGIN
            ),
            Error::OtherSocket(driver) => write!(
                f,
                "{}: CSI driver {driver:?} failed. Another driver with the same name is already \
                 registered",
                super::PLUGIN
            ),
            Error::UnknownType { kind, socket } => write!(
                f,
                "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {}",
                socket.display()
            ),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Call(grpc::Error::Status { .. }) => None,
            Error::Call(error) => error.source(),
            Error::Path { source, .. } => Some(source),
            Error::Data { source, .. } | Error::Annotation(source) => Some(source),
            Error::Request(error) => error.source(),
            _ => None,
        }
    }
}

impl From<grpc::Error> for Error {
    fn from(error: grpc::Error) -> Error {
        Error::Call(error)
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Error {
        Error::Request(error)
    }
}
