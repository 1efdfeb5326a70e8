//! The errors of lists and watches.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Why a list or a watch failed. Each variant is a case that the reflector treats differently.
#[derive(Debug)]
pub enum Error {
    /// The server no longer has the requested version: list again. Upstream: `IsResourceExpired`.
    Expired,
    /// The requested version is newer than the server's: list again, at any version.
    /// Upstream: `IsTooLargeResourceVersion`.
    TooLarge,
    /// The server asks to wait.
    Busy {
        /// The least delay before the next request.
        after: Duration,
    },
    /// The server does not support `sendInitialEvents`: list without it.
    Unsupported,
    /// The server refused or ended the watch with an error: it cannot be resumed, so relist.
    EndedByServer(Box<dyn StdError + Send + Sync>),
    /// The connection is refused: the server is down, or starting.
    Unreachable(Box<dyn StdError + Send + Sync>),
    /// Any other failure, with its cause.
    Failed(Box<dyn StdError + Send + Sync>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Expired => f.write_str("the resource version is too old"),
            Error::TooLarge => f.write_str("the resource version is newer than the server's"),
            Error::Busy { after } => write!(f, "the server is busy for {after:?}"),
            Error::Unsupported => f.write_str("the server does not support the request"),
            Error::EndedByServer(cause) | Error::Unreachable(cause) | Error::Failed(cause) => {
                fmt::Display::fmt(cause, f)
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::EndedByServer(cause) | Error::Unreachable(cause) | Error::Failed(cause) => {
                cause.source()
            }
            _ => None,
        }
    }
}

/// An object or a list that cannot be decoded as its kind.
#[derive(Debug)]
pub struct DecodeError {
    /// What was being read: `pods default/web-1`, `list of pods`.
    pub what: String,
    /// Why it cannot be decoded.
    pub cause: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot be decoded: {}", self.what, self.cause)
    }
}

impl StdError for DecodeError {}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error {
        Error::Failed(Box::new(error))
    }
}

impl Error {
    /// Returns whether the answer cannot be decoded: the same answer would fail again.
    pub(crate) fn is_decode(&self) -> bool {
        matches!(self, Error::Failed(cause) if cause.is::<DecodeError>())
    }
}
