//! The errors of credential providers.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::{TIMEOUT, VERSIONS};
use crate::objects::Unavailable;

/// Why a configuration of credential providers is invalid, or a program has no answer. The texts are
/// upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    /// A file or a folder cannot be read.
    Path {
        path: PathBuf,
        source: io::Error,
    },
    /// A folder has no configuration.
    NoFiles(PathBuf),
    /// What concerns one file.
    File {
        path: PathBuf,
        cause: Box<Error>,
    },
    Syntax(serde_yaml_ng::Error),
    UnknownKind {
        kind: String,
        version: String,
    },
    NoProviders,
    /// What concerns one provider.
    Provider {
        name: String,
        cause: Box<Error>,
    },
    NotFileName,
    UnknownVersion,
    NoImages,
    NoDuration,
    /// What the configuration says of tokens is invalid.
    TokenAttributes(String),
    /// The account of the pod cannot be read.
    Account(Unavailable),
    /// The token of that account cannot be fetched.
    Token(Unavailable),
    /// A program has returned the token that it was given.
    ReturnedToken,
    Duplicate(String),
    /// A program does not exist, or is not executable.
    NoProgram(PathBuf),
    /// A program cannot be started, or read.
    Run(io::Error),
    Failed {
        status: ExitStatus,
        /// What it has written to stderr.
        text: String,
    },
    Late,
    /// The cause would quote the answer, which has secrets.
    Malformed,
    OtherVersion {
        expected: String,
        actual: String,
    },
}

impl Error {
    /// Converts an error at a path, for `map_err`.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path { path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Path { path, .. } | Error::File { path, .. } => write!(f, "{}", path.display()),
            Error::NoFiles(folder) => {
                write!(f, "no configuration files found in directory {}", folder.display())
            }
            Error::Syntax(error) => error.fmt(f),
            Error::UnknownKind { kind, version } => {
                write!(f, "no kind {kind:?} is registered for version {version:?}")
            }
            Error::NoProviders => f.write_str("providers: at least 1 item in plugins is required"),
            Error::Provider { name, .. } => write!(f, "provider {name:?}"),
            Error::NotFileName => f.write_str("it is not the name of a file"),
            Error::UnknownVersion => {
                write!(f, "apiVersion is not one of {}", VERSIONS.join(", "))
            }
            Error::NoImages => f.write_str("at least 1 item in matchImages is required"),
            Error::NoDuration => f.write_str("defaultCacheDuration is required"),
            Error::TokenAttributes(fault) => write!(f, "tokenAttributes: {fault}"),
            Error::Account(error) => write!(f, "failed to get service account: {error}"),
            Error::Token(error) => write!(f, "failed to get service account token: {error}"),
            Error::ReturnedToken => f.write_str(
                "credential provider plugin returned the service account token as the password \
                 which is not allowed when service account cache type is not set to 'Token'",
            ),
            Error::Duplicate(name) => write!(f, "duplicate provider name {name:?}"),
            Error::NoProgram(program) => {
                write!(f, "plugin binary executable {} did not exist", program.display())
            }
            Error::Run(error) => error.fmt(f),
            Error::Failed { status, text } => write!(f, "{status}: {text}"),
            Error::Late => write!(f, "no answer within {TIMEOUT:?}"),
            Error::Malformed => {
                f.write_str("error decoding credential provider plugin response from stdout")
            }
            Error::OtherVersion { expected, actual } => write!(
                f,
                "apiVersion from credential plugin response did not match expected \
                 apiVersion:{expected}, actual apiVersion:{actual}"
            ),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Path { source, .. } => Some(source),
            Error::File { cause, .. } | Error::Provider { cause, .. } => Some(&**cause),
            Error::Syntax(error) => error.source(),
            Error::Run(error) => error.source(),
            _ => None,
        }
    }
}
