//! The parameters of an election, checked before it begins.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Lock;

/// Waits between attempts to take the lock are prolonged by up to this factor of the retry period.
pub(super) const JITTER_FACTOR: f64 = 1.2;

/// The parameters of an election. [`LeaderElector::new`](super::LeaderElector::new) checks them.
/// Upstream: `LeaderElectionConfig`.
pub struct Config {
    /// What is contended for, under the identity of this contender.
    pub lock: Arc<dyn Lock>,
    /// How long other contenders respect our last write; longer than `renew_deadline`. Whole
    /// seconds are written into the lock. Upstream: 15 s.
    pub lease_duration: Duration,
    /// How long we try to renew before we stop working; longer than 1.2 times `retry_period`.
    /// Upstream: 10 s.
    pub renew_deadline: Duration,
    /// The wait from one attempt to the next. Attempts to take the lock wait up to 2.2 times as
    /// long, at random. Upstream: 2 s.
    pub retry_period: Duration,
    /// Release the lock after a stop, so that another contender can take it at once. Upstream:
    /// `ReleaseOnCancel`.
    pub release_on_cancel: bool,
    /// The API server picks the leader among the candidates: this contender renews a lock that it
    /// was given, and takes none. Upstream: `Coordinated`.
    pub coordinated: bool,
    /// The label of the metrics, and the name in the health check. Upstream: `Name`.
    pub name: String,
}

impl Config {
    /// Makes a configuration with upstream's times, 15 s, 10 s and 2 s, for a lock that is released
    /// after a stop. `name`: see [`Config::name`].
    pub fn new(name: impl Into<String>, lock: Arc<dyn Lock>) -> Config {
        Config {
            lock,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_cancel: true,
            coordinated: false,
            name: name.into(),
        }
    }

    /// Returns the first fault of the configuration as an error.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.lease_duration <= self.renew_deadline {
            return Err(ConfigError::LeaseNotLongerThanRenewDeadline);
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER_FACTOR) {
            return Err(ConfigError::RenewDeadlineTooShortForRetryPeriod);
        }
        if self.retry_period.is_zero() {
            return Err(ConfigError::RetryPeriodIsZero);
        }
        if self.lock.identity().is_empty() {
            return Err(ConfigError::EmptyIdentity);
        }
        Ok(())
    }
}

/// The fault of a [`Config`]. Texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Two leaders could work at once: the lease would run out before its holder gives up.
    LeaseNotLongerThanRenewDeadline,
    /// There would be no time for a second attempt to renew.
    RenewDeadlineTooShortForRetryPeriod,
    /// Attempts would follow each other without a pause.
    RetryPeriodIsZero,
    /// An empty holder means a released lock.
    EmptyIdentity,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigError::LeaseNotLongerThanRenewDeadline => {
                "leaseDuration must be greater than renewDeadline"
            }
            ConfigError::RenewDeadlineTooShortForRetryPeriod => {
                "renewDeadline must be greater than retryPeriod*JitterFactor"
            }
            ConfigError::RetryPeriodIsZero => "retryPeriod must be greater than zero",
            ConfigError::EmptyIdentity => "Lock identity is empty",
        })
    }
}

impl std::error::Error for ConfigError {}
