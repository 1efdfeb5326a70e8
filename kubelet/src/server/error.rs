//! The errors of the ports.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a port is not served.
#[derive(Debug)]
pub enum Error {
    NotAddress {
        flag: &'static str,
        text: String,
    },
    Listen {
        flag: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
    /// A setting of TLS that does not fit together.
    Tls(String),
    /// The file with authorities of clients cannot be used.
    ClientCa(String),
    /// An API server is absent that has to review. `kind`: what.
    NoApiServer {
        kind: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAddress { flag, text } => write!(f, "--{flag}: {text:?} is not an address"),
            Error::Listen { flag, address, .. } => {
                write!(f, "--{flag}: failed to listen on {address}")
            }
            Error::Tls(fault) => f.write_str(fault),
            Error::ClientCa(fault) => {
                write!(f, "authentication.x509.clientCAFile (--client-ca-file): {fault}")
            }
            Error::NoApiServer { kind } => {
                write!(
                    f,
                    "no client provided, cannot use webhook {kind}: see docs/kubelet-server.md"
                )
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Listen { source, .. } => Some(source),
            Error::NotAddress { .. }
            | Error::Tls(_)
            | Error::ClientCa(_)
            | Error::NoApiServer { .. } => None,
        }
    }
}
