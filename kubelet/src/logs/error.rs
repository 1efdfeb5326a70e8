//! The errors of logs.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cri;

/// Why a log is not read. The texts are upstream's, where it has one.
#[derive(Debug)]
pub enum Error {
    /// A parameter of the query has another type.
    Query,
    /// A value is out of its range, or excludes another one.
    Options,
    /// The log is not below the folder of its pod.
    Elsewhere(PathBuf),
    Open {
        path: PathBuf,
        source: io::Error,
    },
    Read {
        path: PathBuf,
        source: io::Error,
    },
    /// The first line has another format, with its beginning.
    Format(String),
    /// The runtime does not say whether the container still runs.
    Runtime(cri::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Query => f.write_str("{\"message\": \"Unable to decode query.\"}"),
            Error::Options => f.write_str("{\"message\": \"Invalid request.\"}"),
            Error::Elsewhere(path) => {
                write!(f, "log file {:?} is not in the folder of its pod's logs", path)
            }
            Error::Open { path, .. } => write!(f, "failed to open log file {path:?}"),
            Error::Read { path, .. } => write!(f, "failed to read log file {path:?}"),
            Error::Format(line) => {
                write!(f, "failed to get parse function: unsupported log format: {line:?}")
            }
            Error::Runtime(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Open { source, .. } | Error::Read { source, .. } => Some(source),
            Error::Runtime(error) => error.source(),
            Error::Query | Error::Options | Error::Elsewhere(_) | Error::Format(_) => None,
        }
    }
}
