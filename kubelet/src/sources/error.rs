//! The errors of sources.

use std::error::Error as StdError;
use std::fmt;
use std::str::Utf8Error;
use std::time::Duration;

use hyper::StatusCode;

use super::decode::MAX_BYTES;
use crate::http;

/// Why a source has no pods.
#[derive(Debug)]
pub enum Error {
    /// The URL did not answer.
    Http(http::Error),
    /// The URL did not answer in this time.
    Late(Duration),
    /// The URL's answer is not a success.
    Status(StatusCode),
    /// The URL's answer has no bytes.
    Empty,
    /// An answer, or a file, has more than [`MAX_BYTES`].
    TooLarge {
        what: &'static str,
    },
    /// The manifest is not text.
    NotUtf8(Utf8Error),
    /// The manifest is neither JSON nor YAML, or has several documents.
    Syntax(serde_yaml_ng::Error),
    NotAnObject,
    NoKind,
    UnknownKind {
        kind: String,
        version: String,
    },
    /// A file may only have a pod.
    NotAPod {
        kind: String,
    },
    /// A URL may have a pod or a list of pods.
    NotPods {
        kind: String,
    },
    NoItems,
    /// A field of the pod has another type.
    Field(serde_json::Error),
    NoName,
    /// Rules that the pod breaks, with their fields.
    Invalid(Vec<String>),
    /// A static pod refers to an object of the API server.
    Reference {
        resource: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Http(error) => error.fmt(f),
            Error::Late(after) => write!(f, "no answer within {after:?}"),
            Error::Status(status) => write!(f, "the answer's status is {status}"),
            Error::Empty => f.write_str("the answer is empty"),
            Error::TooLarge { what } => write!(f, "{what} has more than {MAX_BYTES} bytes"),
            Error::NotUtf8(_) => f.write_str("not UTF-8"),
            Error::Syntax(error) => error.fmt(f),
            Error::NotAnObject => f.write_str("the document is not an object"),
            Error::NoKind => f.write_str("Object 'Kind' is missing"),
            Error::UnknownKind { kind, version } => {
                write!(f, "no kind {kind:?} is registered for version {version:?}")
            }
            Error::NotAPod { kind } => {
                write!(f, "invalid pod: the document's kind is {kind:?}")
            }
            Error::NotPods { kind } => {
                write!(f, "the document's kind is {kind:?}, not Pod or PodList")
            }
            Error::NoItems => f.write_str("invalid pods list: it has no items"),
            Error::Field(_) => f.write_str("invalid pod"),
            Error::NoName => f.write_str("invalid pod: name is needed for the pod"),
            Error::Invalid(faults) => write!(f, "invalid pod: {}", faults.join(", ")),
            Error::Reference { resource } => {
                write!(f, "static pods may not reference {resource}")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Http(error) => error.source(),
            Error::NotUtf8(error) => Some(error),
            Error::Syntax(error) => error.source(),
            Error::Field(error) => Some(error),
            _ => None,
        }
    }
}
