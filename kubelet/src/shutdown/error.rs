//! The errors of node shutdown.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::dbus;

/// Why shutdowns are not delayed.
#[derive(Debug)]
pub enum Error {
    CriticalIsLonger {
        critical: Duration,
        all: Duration,
    },
    TooShort {
        field: &'static str,
        period: Duration,
    },
    /// Grace periods are given in two ways.
    Both,
    Bus(dbus::Error),
    File {
        file: PathBuf,
        source: io::Error,
    },
    /// logind does not take the delay that pods need.
    DelayStaysShort {
        wanted: Duration,
        delay: Duration,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::CriticalIsLonger { critical, all } => write!(
                f,
                "shutdownGracePeriodCriticalPods {critical:?} must be <= shutdownGracePeriod {all:?}"
            ),
            Error::TooShort { field, period } => {
                write!(f, "{field} {period:?} must be either zero or otherwise >= 1 sec")
            }
            Error::Both => f.write_str(
                "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at \
                 the same time",
            ),
            Error::Bus(error) => error.fmt(f),
            Error::File { file, .. } => write!(f, "{}", file.display()),
            Error::DelayStaysShort { wanted, delay } => write!(
                f,
                "logind's InhibitDelayMaxSec stays {delay:?}, and shutdownGracePeriod is {wanted:?}"
            ),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Bus(error) => error.source(),
            Error::File { source, .. } => Some(source),
            _ => None,
        }
    }
}
