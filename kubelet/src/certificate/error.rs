//! Why there is no certificate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kube_controller_manager::client;

/// A failure of the kubelet's identity.
#[derive(Debug)]
pub enum Error {
    /// A file or folder cannot be read or written.
    File { path: PathBuf, source: io::Error },
    /// The store's link is a file.
    NoLink(PathBuf),
    /// A certificate and key that cannot be used together.
    Pair { from: String, fault: String },
    /// One of a certificate and its key is there, this file is not.
    HalfPair(PathBuf),
    /// A private key that cannot be used.
    Key { from: String, fault: String },
    /// A key or request could not be made.
    Make { what: &'static str, source: rcgen::Error },
    /// A kubeconfig, or what it refers to.
    Kubeconfig { which: &'static str, source: client::Error },
    /// There is nothing to ask a certificate for: the node has no address.
    NoTemplate,
    /// The API server did not take the request, or could not be asked.
    Request { doing: &'static str, source: client::Error },
    /// A request of this name exists, but is not ours.
    Incompatible { name: String, fault: String },
    /// The request was refused, and why.
    Refused { verdict: &'static str, reason: String, message: String },
    /// The request of this name is gone.
    Deleted(String),
    /// Another request has the name.
    Replaced(String),
    /// No certificate was issued in time.
    TimedOut,
    /// Another certificate is needed by now.
    Outdated,
}

impl Error {
    /// Converts a failure at `path`, for `map_err`.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + use<'_> {
        move |source| Error::File { path: path.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, .. } => write!(f, "{}", path.display()),
            Error::NoLink(path) => {
                write!(f, "expected {path:?} to be a symlink but it is a file")
            }
            Error::Pair { from, fault } => {
                write!(f, "could not convert data from {from} into cert/key pair: {fault}")
            }
            Error::HalfPair(path) => write!(
                f,
                "error reading {}, certificate and key must be supplied as a pair",
                path.display()
            ),
            Error::Key { from, fault } => write!(f, "private key in {from}: {fault}"),
            Error::Make { what, .. } => write!(f, "unable to make {what}"),
            Error::Kubeconfig { which, .. } => write!(f, "unable to load {which}"),
            Error::NoTemplate => f.write_str("no certificate to ask for: no address of the node"),
            Error::Request { doing, .. } => write!(f, "cannot {doing}"),
            Error::Incompatible { name, fault } => {
                write!(f, "retrieved csr {name:?} is not compatible: {fault}")
            }
            Error::Refused { verdict, reason, message } => write!(
                f,
                "certificate signing request {verdict}, reason: {reason}, message: {message}"
            ),
            Error::Deleted(name) => write!(f, "csr {name:?} was deleted"),
            Error::Replaced(name) => write!(f, "csr {name:?} changed UIDs"),
            Error::TimedOut => f.write_str("timed out waiting for the certificate"),
            Error::Outdated => f.write_str("the certificate that was asked for is outdated"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            Error::Make { source, .. } => Some(source),
            Error::Kubeconfig { source, .. } | Error::Request { source, .. } => Some(source),
            _ => None,
        }
    }
}
