//! The errors of the files that keep resources of pods.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a checkpoint cannot be read or written.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read or written.
    Path { path: PathBuf, source: io::Error },
    /// The file is no checkpoint.
    Malformed { path: PathBuf, source: serde_json::Error },
    /// Its content is not what was written.
    Corrupt { path: PathBuf },
    /// What has to be written cannot be serialized.
    Serialize(serde_json::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Path { path, .. } => path.display().fmt(f),
            Error::Malformed { path, .. } | Error::Corrupt { path } => write!(
                f,
                "could not restore state from checkpoint{}, please drain this node and delete pod \
                 resource information checkpoint file {path:?} before restarting Kubelet",
                if matches!(self, Error::Corrupt { .. }) {
                    ": checkpoint is corrupted"
                } else {
                    ""
                }
            ),
            Error::Serialize(_) => f.write_str("failed to create checkpoint"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Path { source, .. } => Some(source),
            Error::Malformed { source, .. } | Error::Serialize(source) => Some(source),
            Error::Corrupt { .. } => None,
        }
    }
}
