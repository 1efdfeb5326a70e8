//! The errors of the upkeep.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use kube_controller_manager::objects::QuantityError;

use crate::{eviction, images, kubelet};

/// Why a field of the configuration is invalid, or a round of evictions has failed. `field` has the
/// name of the flag too.
#[derive(Debug)]
pub enum Error {
    Percentage {
        field: &'static str,
        value: i32,
    },
    ImageThresholds {
        low: u64,
        high: u64,
    },
    ImageAges {
        min: Duration,
        max: Duration,
    },
    LogSize {
        text: String,
        source: QuantityError,
    },
    TooSmall {
        field: &'static str,
        value: i32,
        least: i32,
    },
    LogPeriod(Duration),
    MaxGrace(i32),
    /// The thresholds are invalid, or the machine cannot be observed.
    Eviction(eviction::Error),
    /// What pods use is not known.
    Usage(kubelet::Error),
    /// The disk of images is not known.
    Images(images::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Percentage { field, value } => {
                write!(f, "{field} {value} must be between 0 and 100, inclusive")
            }
            Error::ImageThresholds { low, high } => write!(
                f,
                "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
                 imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
            ),
            Error::ImageAges { min, max } => write!(
                f,
                "imageMaximumGCAge {max:?} must be greater than imageMinimumGCAge {min:?}"
            ),
            Error::LogSize { text, .. } => {
                write!(f, "containerLogMaxSize (--container-log-max-size) {text:?}")
            }
            Error::TooSmall { field, value, least } => {
                write!(f, "{field} {value} must be at least {least}")
            }
            Error::LogPeriod(period) => {
                write!(f, "containerLogMonitorInterval {period:?} must be at least 3s")
            }
            Error::MaxGrace(seconds) => write!(
                f,
                "evictionMaxPodGracePeriod (--eviction-max-pod-grace-period) {seconds} must be a \
                 positive value"
            ),
            Error::Eviction(error) => error.fmt(f),
            Error::Usage(error) => error.fmt(f),
            Error::Images(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::LogSize { source, .. } => Some(source),
            Error::Eviction(error) => error.source(),
            Error::Usage(error) => error.source(),
            Error::Images(error) => error.source(),
            _ => None,
        }
    }
}
