//! What can go wrong between the API and the cache.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What a list or a watch can fail with, in the cache's own terms.
#[derive(Debug)]
pub enum Error {
    /// The version asked for is gone: list again.
    Expired,
    /// The version asked for is newer than the server's: list again, from anywhere.
    TooLarge,
    /// The server asks to wait.
    Busy { after: Duration },
    /// The server cannot do it this way (no `sendInitialEvents`): do it another way.
    Unsupported,
    /// The server refused or ended the watch with an error: it cannot be resumed, so relist.
    EndedByServer(Box<dyn StdError + Send + Sync>),
    /// The connection is refused: the server is down, or starting.
    Unreachable(Box<dyn StdError + Send + Sync>),
    /// Anything else, kept whole.
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

/// What the server sent is not what its kind promises.
#[derive(Debug)]
pub struct DecodeError {
    /// What was being read: `pods default/web-1`, `list of pods`.
    pub what: String,
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
    /// What came cannot be understood, and will not be when it comes again.
    pub(crate) fn is_decode(&self) -> bool {
        matches!(self, Error::Failed(cause) if cause.is::<DecodeError>())
    }
}
