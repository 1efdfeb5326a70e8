//! The errors of evictions.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use kube_controller_manager::objects::QuantityError;

use super::Signal;
use crate::cgroups;

/// Why the thresholds of a configuration are invalid, or the machine cannot be observed. The texts
/// are upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    UnknownSignal(String),
    /// The value of a threshold is invalid.
    Threshold {
        signal: Signal,
        text: String,
        cause: AmountError,
    },
    /// A soft threshold has no grace period.
    NoGrace {
        signal: String,
    },
    /// A grace period is not a duration, or negative.
    Grace {
        signal: String,
        fault: String,
    },
    /// What has to be freed on top is invalid.
    MinReclaim {
        signal: String,
        text: String,
        cause: AmountError,
    },
    /// The disk of a folder cannot be observed.
    Disk {
        path: PathBuf,
        source: io::Error,
    },
    /// The cgroups of the machine are not known.
    Cgroups(cgroups::Error),
}

/// Why a text is not an amount.
#[derive(Debug)]
pub enum AmountError {
    NotPercentage,
    PercentageOutOfRange,
    NotQuantity(QuantityError),
    NotPositive,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownSignal(name) => write!(f, "unsupported eviction signal {name}"),
            Error::Threshold { signal, text, .. } => {
                write!(f, "eviction threshold {}: {text:?}", signal.name())
            }
            Error::NoGrace { signal } => {
                write!(f, "grace period must be specified for the soft eviction threshold {signal}")
            }
            Error::Grace { signal, fault } => {
                write!(f, "the eviction grace period of {signal}: {fault}")
            }
            Error::MinReclaim { signal, text, .. } => {
                write!(f, "eviction minimum reclaim {signal}: {text:?}")
            }
            Error::Disk { path, .. } => write!(f, "{}", path.display()),
            Error::Cgroups(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Threshold { cause, .. } | Error::MinReclaim { cause, .. } => Some(cause),
            Error::Disk { source, .. } => Some(source),
            Error::Cgroups(error) => error.source(),
            Error::UnknownSignal(_) | Error::NoGrace { .. } | Error::Grace { .. } => None,
        }
    }
}

impl fmt::Display for AmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AmountError::NotPercentage => f.write_str("not a percentage"),
            AmountError::PercentageOutOfRange => f.write_str("must be >= 0% and <= 100%"),
            AmountError::NotQuantity(error) => error.fmt(f),
            AmountError::NotPositive => f.write_str("must be positive"),
        }
    }
}

impl StdError for AmountError {}
