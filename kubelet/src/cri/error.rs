//! The errors of calls to the container runtime.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why a call has no answer. Upstream: a gRPC status.
#[derive(Debug)]
pub enum Error {
    /// The socket cannot be connected to: the call has not been sent.
    Unreachable { socket: PathBuf, source: Box<dyn StdError + Send + Sync> },
    /// The connection broke while the call was under way: the runtime may have carried it out.
    Lost { method: &'static str, source: Box<dyn StdError + Send + Sync> },
    /// No answer in time: the runtime may have carried it out.
    DeadlineExceeded { method: &'static str, after: Duration },
    /// The runtime's answer is an error.
    Status { method: &'static str, code: Code, message: String },
    /// The answer does not follow the protocol.
    Malformed { method: &'static str, fault: String },
}

/// The codes of gRPC that change what the caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    NotFound,
    Unimplemented,
    /// Any other one, by its number.
    Other(u32),
}

impl Code {
    /// The code of the header `grpc-status`.
    pub(crate) fn parse(text: &str) -> Option<Option<Code>> {
        match text.parse().ok()? {
            0 => Some(None),
            5 => Some(Some(Code::NotFound)),
            12 => Some(Some(Code::Unimplemented)),
            other => Some(Some(Code::Other(other))),
        }
    }
}

impl Error {
    /// Whether the object of the call does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Status { code: Code::NotFound, .. })
    }

    /// Whether the runtime, or this client, gave up after the call's time.
    pub fn is_deadline_exceeded(&self) -> bool {
        matches!(self, Error::Status { code: Code::Other(4), .. } | Error::DeadlineExceeded { .. })
    }

    /// Whether the runtime does not have the method.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Error::Status { code: Code::Unimplemented, .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { socket, .. } => {
                write!(f, "the container runtime at {} cannot be reached", socket.display())
            }
            Error::Lost { method, .. } => write!(f, "{method}: the connection was lost"),
            Error::DeadlineExceeded { method, after } => {
                write!(f, "{method}: no answer within {after:?}")
            }
            Error::Status { method, message, .. } => write!(f, "{method}: {message}"),
            Error::Malformed { method, fault } => write!(f, "{method}: {fault}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Unreachable { source, .. } | Error::Lost { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_matter_are_known() {
        for (text, code) in [
            ("0", Some(None)),
            ("5", Some(Some(Code::NotFound))),
            ("12", Some(Some(Code::Unimplemented))),
            ("14", Some(Some(Code::Other(14)))),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(Code::parse(text), code, "{text}");
        }
    }
}
