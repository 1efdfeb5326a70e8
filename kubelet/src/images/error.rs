//! The errors of images.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::credentials::Malformed;
use super::gc::{Disk, format_size};
use super::pull_error;
use crate::causes::chain;
use crate::cri;

/// Why images are not known, or cannot be removed or pulled. The texts are upstream's.
#[derive(Debug)]
pub enum Error {
    /// A call to the runtime has failed.
    Runtime(cri::Error),
    /// The runtime names no filesystem of images.
    NoFilesystem,
    /// The filesystem that the runtime names cannot be read.
    Filesystem {
        path: String,
        source: io::Error,
    },
    /// The filesystem of images has no size.
    NoCapacity,
    /// Images could not be removed. `wanted`: what their removal was for.
    NotRemoved {
        wanted: String,
        causes: Vec<cri::Error>,
    },
    /// All unused images together are too small.
    NotEnough {
        disk: Disk,
        freed_bytes: u64,
    },
    PullSecret {
        name: String,
        source: Malformed,
    },
    /// An image could not be pulled, with each of the credentials.
    NotPulled(Vec<cri::Error>),
    /// A file of pull records, or their folder, cannot be read or written.
    Record {
        path: PathBuf,
        source: io::Error,
    },
    /// The name of an image is malformed.
    ImageName {
        image: String,
        fault: &'static str,
    },
    /// A field of the verification policy is set, and its feature gate is off.
    GateIsOff(&'static str),
    UnknownVerificationPolicy(String),
    /// The list is set, and the policy does not read it.
    AllowlistWithoutPolicy,
    /// A pattern of the list is malformed, and why.
    AllowlistPattern(String),
}

impl Error {
    /// Converts an error about a file of pull records, for `map_err`.
    pub(super) fn record(path: &Path) -> impl Fn(io::Error) -> Error {
        move |source| Error::Record { path: path.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Runtime(error) => error.fmt(f),
            Error::NoFilesystem => f.write_str("the runtime names no filesystem of images"),
            Error::Filesystem { path, .. } => write!(f, "the image filesystem {path}"),
            Error::NoCapacity => f.write_str("invalid capacity 0 on image filesystem"),
            Error::NotRemoved { wanted, causes } => {
                let causes: Vec<String> = causes.iter().map(|cause| chain(cause)).collect();
                write!(f, "{wanted} in image deletion: {}", causes.join(", "))
            }
            Error::NotEnough { disk, freed_bytes } => write!(
                f,
                "Insufficient free disk space on the node's image filesystem ({}% of {} used). \
                 Failed to free sufficient space by deleting unused images (freed {freed_bytes} \
                 bytes). Investigate disk usage, as it could be used by active images, logs, \
                 volumes, or other data.",
                disk.used_percent(),
                format_size(disk.capacity),
            ),
            Error::PullSecret { name, .. } => write!(f, "pull secret {name:?}"),
            Error::NotPulled(causes) => {
                let mut texts: Vec<String> = causes.iter().map(pull_error).collect();
                texts.dedup();
                match &texts[..] {
                    [text] => f.write_str(text),
                    texts => write!(f, "[{}]", texts.join(", ")),
                }
            }
            Error::Record { path, .. } => write!(f, "the image pull record {}", path.display()),
            Error::ImageName { image, fault } => write!(f, "invalid image name {image:?}: {fault}"),
            Error::GateIsOff(field) => write!(
                f,
                "`{field}` must not be set if KubeletEnsureSecretPulledImages feature gate is not \
                 enabled"
            ),
            Error::UnknownVerificationPolicy(policy) => write!(
                f,
                "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid \
                 options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \
                 \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
            ),
            // The second name is misspelt upstream too.
            Error::AllowlistWithoutPolicy => f.write_str(
                "can't set `preloadedImagesVerificationAllowlist` if \
                 `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
            ),
            Error::AllowlistPattern(fault) => write!(
                f,
                "invalid image pattern in `preloadedImagesVerificationAllowlist`: {fault}"
            ),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Runtime(error) => error.source(),
            Error::Filesystem { source, .. } => Some(source),
            Error::PullSecret { source, .. } => Some(source),
            Error::Record { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<cri::Error> for Error {
    fn from(error: cri::Error) -> Error {
        Error::Runtime(error)
    }
}
