//! What a sync ends with.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::client;

/// What is to happen to a key after a sync that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Forget its failures.
    Done,
    /// Forget its failures, look again after this long.
    After(Duration),
    /// Look again with backoff, without an error.
    Backoff,
}

pub type SyncResult = Result<Next, Error>;

/// What a sync failed with. Every error but `Terminal` is retried with backoff.
#[derive(Debug)]
pub enum Error {
    Api(client::Error),
    /// Not worth a retry: logged once, the key forgotten.
    Terminal(Box<Error>),
    /// Expected to be over in a moment (a cache that lags behind our own writes): logged at debug, and
    /// looked at again at once, however often it happens.
    Stale(String),
    /// Expected, for an unknown time (a kind that is not served): logged at debug, retried with
    /// backoff as any other.
    NotYet(String),
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// Several, of which none hides another. Upstream: `utilerrors.NewAggregate`.
    Many(Vec<Error>),
    /// What was being done when it failed, in the words that objects and events carry.
    While {
        doing: &'static str,
        cause: Box<Error>,
    },
}

impl Error {
    pub fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into().into())
    }

    /// `doing: cause`. Upstream: `fmt.Errorf("doing: %w", cause)`.
    pub fn during(doing: &'static str, cause: impl Into<Error>) -> Error {
        Error::While { doing, cause: Box::new(cause.into()) }
    }

    /// `None` of no error, the error itself of one.
    pub fn many(mut errors: Vec<Error>) -> Option<Error> {
        match errors.len() {
            0 | 1 => errors.pop(),
            _ => Some(Error::Many(errors)),
        }
    }

    /// The API's error, if that is what it is.
    pub fn api(&self) -> Option<&client::Error> {
        match self {
            Error::Api(error) => Some(error),
            Error::Terminal(error) | Error::While { cause: error, .. } => error.api(),
            _ => None,
        }
    }

    /// The error as conditions and events show it: of an answer of the API server its message alone.
    /// Upstream: `err.Error()`.
    pub fn message(&self) -> String {
        match self {
            Error::Api(error) => match error.message() {
                Some(message) => message.to_owned(),
                None => error.to_string(),
            },
            Error::Terminal(error) => error.message(),
            Error::While { doing, cause } => format!("{doing}: {}", cause.message()),
            Error::Many(errors) => aggregate(errors.iter().map(Error::message)),
            Error::Stale(_) | Error::NotYet(_) | Error::Other(_) => self.to_string(),
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        match self {
            Error::Terminal(_) => true,
            Error::While { cause, .. } => cause.is_terminal(),
            _ => false,
        }
    }

    /// Nothing but a cache that lags.
    pub(super) fn is_stale(&self) -> bool {
        self.is_all(|error| matches!(error, Error::Stale(_)))
    }

    /// Expected: logged at debug.
    pub(super) fn is_expected(&self) -> bool {
        self.is_all(|error| matches!(error, Error::Stale(_) | Error::NotYet(_)))
    }

    fn is_all(&self, like: fn(&Error) -> bool) -> bool {
        match self {
            Error::While { cause, .. } | Error::Terminal(cause) => cause.is_all(like),
            Error::Many(errors) => errors.iter().all(|error| error.is_all(like)),
            error => like(error),
        }
    }
}

/// One as it is, several in brackets, each text once.
fn aggregate(texts: impl Iterator<Item = String>) -> String {
    let texts: Vec<String> = texts.collect();
    let mut seen = HashSet::new();
    let once: Vec<&str> =
        texts.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    match once.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Api(error) => error.fmt(f),
            Error::Terminal(error) => error.fmt(f),
            Error::Stale(what) | Error::NotYet(what) => f.write_str(what),
            Error::Other(error) => error.fmt(f),
            Error::Many(errors) => f.write_str(&aggregate(errors.iter().map(Error::to_string))),
            Error::While { doing, cause } => write!(f, "{doing}: {cause}"),
        }
    }
}

/// The text of what is inside is this error's own text, so the source is what lies below that.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Api(error) => error.source(),
            Error::Terminal(error) | Error::While { cause: error, .. } => error.source(),
            Error::Other(error) => error.source(),
            Error::Stale(_) | Error::NotYet(_) | Error::Many(_) => None,
        }
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Error {
        Error::Api(error)
    }
}

impl From<crate::objects::SelectorError> for Error {
    fn from(error: crate::objects::SelectorError) -> Error {
        Error::Other(error.into())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error::Other(error.into())
    }
}

/// An error and all that caused it, for the log.
pub(super) struct Chain<'a>(pub &'a Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let mut source = std::error::Error::source(self.0);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_upstream() {
        let stale = || Error::Stale("behind".into());
        let during = Error::during("unable to delete pods", Error::other("no"));
        assert_eq!(during.to_string(), "unable to delete pods: no");
        assert_eq!(during.message(), "unable to delete pods: no");
        let twice = Error::Many(vec![Error::other("a"), Error::other("b"), Error::other("a")]);
        assert_eq!(twice.to_string(), "[a, b]");
        assert_eq!(Error::Many(vec![Error::other("a"), Error::other("a")]).to_string(), "a");
        assert!(Error::many(Vec::new()).is_none());
        assert!(matches!(Error::many(vec![stale()]), Some(Error::Stale(_))));
        assert!(Error::Many(vec![stale(), stale()]).is_stale());
        assert!(!Error::Many(vec![stale(), Error::other("a")]).is_stale());
        let mixed = Error::Many(vec![stale(), Error::NotYet("b".into())]);
        assert!(mixed.is_expected() && !mixed.is_stale());
        assert!(Error::during("x", Error::Terminal(Box::new(stale()))).is_terminal());
    }
}
