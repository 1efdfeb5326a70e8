//! The results of a sync.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::client;

/// What happens to a key after a sync that did not fail. Each variant except `Backoff` forgets the
/// failures of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until an event adds it.
    Done,
    /// It is added after this time, at least a millisecond; events may add it sooner.
    After(Duration),
    /// It is retried with back-off, as after a failure, but nothing is logged and the key is never
    /// dropped.
    Backoff,
}

/// What a sync returns for its key.
pub type SyncResult = Result<Next, Error>;

/// Why a sync failed. The key is retried with back-off after every error but `Terminal`, as often
/// as its queue's [`QueuePolicy`](super::QueuePolicy) says.
#[derive(Debug)]
pub enum Error {
    /// A request failed.
    Api(client::Error),
    /// A retry would fail the same way. Logged; the key is not retried.
    Terminal(Box<Error>),
    /// The cache lags behind our own writes. Logged at debug, not counted as a failure, and retried
    /// after 100 ms, doubling to 5 s.
    Stale(String),
    /// Expected for an unknown time, such as a kind that is not served. Logged at debug, retried
    /// with back-off as any other.
    NotYet(String),
    /// It may not be done yet. Logged at debug, not counted as a failure; the key is added after
    /// this time, events may add it sooner.
    Wait {
        /// The time from now on.
        after: Duration,
        /// The reason for the wait, as conditions and events show it.
        why: String,
    },
    /// Any other failure, with its text.
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// Several failures of one sync. Upstream: `utilerrors.NewAggregate`.
    Many(Vec<Error>),
    /// A failure with the step that failed. Upstream: `fmt.Errorf("doing: %w", cause)`.
    While {
        /// The step, in the words that conditions and events show.
        doing: Cow<'static, str>,
        /// Why it failed.
        cause: Box<Error>,
    },
}

impl Error {
    /// An [`Error::Other`] with this text.
    pub fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into().into())
    }

    /// An [`Error::While`]; its text is `doing: cause`.
    pub fn during(doing: impl Into<Cow<'static, str>>, cause: impl Into<Error>) -> Error {
        Error::While { doing: doing.into(), cause: Box::new(cause.into()) }
    }

    /// Joins `errors` into one error: `None` without any, the error itself if it is the only one.
    pub fn many(mut errors: Vec<Error>) -> Option<Error> {
        match errors.len() {
            0 | 1 => errors.pop(),
            _ => Some(Error::Many(errors)),
        }
    }

    /// Returns the API's error, also inside of `Terminal` and `While`; `None` for any other error,
    /// and for `Many`.
    pub fn api(&self) -> Option<&client::Error> {
        match self {
            Error::Api(error) => Some(error),
            Error::Terminal(error) | Error::While { cause: error, .. } => error.api(),
            _ => None,
        }
    }

    /// Returns the text of the error as conditions and events show it: of an answer of the API
    /// server the message alone, without the request.
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
            Error::Stale(_) | Error::NotYet(_) | Error::Wait { .. } | Error::Other(_) => {
                self.to_string()
            }
        }
    }

    /// Returns whether one of its errors is the API server's and may pass, so that a later retry
    /// may succeed: see [`client::Error::may_pass`].
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Api(error) => error.may_pass(),
            Error::Terminal(cause) | Error::While { cause, .. } => cause.may_pass(),
            Error::Many(errors) => errors.iter().any(Error::may_pass),
            _ => false,
        }
    }

    /// Returns whether it is [`Error::Terminal`], perhaps with steps around it: the key is not
    /// retried. Not so in `Many`, whose other errors may need a retry.
    pub(super) fn is_terminal(&self) -> bool {
        match self {
            Error::Terminal(_) => true,
            Error::While { cause, .. } => cause.is_terminal(),
            _ => false,
        }
    }

    /// Returns whether it is [`Error::Stale`] and nothing else.
    pub(super) fn is_stale(&self) -> bool {
        self.is_each(|error| matches!(error, Error::Stale(_)))
    }

    /// Returns whether it is [`Error::Stale`], [`Error::NotYet`] or [`Error::Wait`] and nothing
    /// else.
    pub(super) fn is_expected(&self) -> bool {
        self.is_each(|error| {
            matches!(error, Error::Stale(_) | Error::NotYet(_) | Error::Wait { .. })
        })
    }

    /// Returns the shortest wait of an error that is [`Error::Wait`] and nothing else; `None` for
    /// any other error.
    pub fn wait(&self) -> Option<Duration> {
        match self {
            Error::Wait { after, .. } => Some(*after),
            Error::While { cause, .. } => cause.wait(),
            Error::Many(errors) => {
                let waits: Option<Vec<Duration>> = errors.iter().map(Error::wait).collect();
                waits?.into_iter().min()
            }
            _ => None,
        }
    }

    /// Returns whether `like` holds for each of its errors, inside of `While`, `Terminal` and
    /// `Many`.
    fn is_each(&self, like: fn(&Error) -> bool) -> bool {
        match self {
            Error::While { cause, .. } | Error::Terminal(cause) => cause.is_each(like),
            Error::Many(errors) => errors.iter().all(|error| error.is_each(like)),
            error => like(error),
        }
    }
}

/// Joins texts as upstream does: a single error as it is; several in brackets, each text once.
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
            Error::Stale(what) | Error::NotYet(what) | Error::Wait { why: what, .. } => {
                f.write_str(what)
            }
            Error::Other(error) => error.fmt(f),
            Error::Many(errors) => f.write_str(&aggregate(errors.iter().map(Error::to_string))),
            Error::While { doing, cause } => write!(f, "{doing}: {cause}"),
        }
    }
}

/// The text of the inner error is this error's own text, so the source is the inner error's source.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Api(error) => error.source(),
            Error::Terminal(error) | Error::While { cause: error, .. } => error.source(),
            Error::Other(error) => error.source(),
            Error::Stale(_) | Error::NotYet(_) | Error::Wait { .. } | Error::Many(_) => None,
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

/// An error and all its causes, for the log.
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

    #[test]
    fn an_error_is_a_wait_if_all_of_it_is() {
        let wait = |seconds| {
            let after = Duration::from_secs(seconds);
            Error::during("x", Error::Wait { after, why: "later".into() })
        };
        let seconds = |error: Error| error.wait().map(|wait| wait.as_secs());
        assert_eq!(wait(7).message(), "x: later");
        assert_eq!(seconds(wait(7)), Some(7));
        assert_eq!(seconds(Error::Many(vec![wait(7), wait(3)])), Some(3));
        assert_eq!(seconds(Error::Many(vec![wait(7), Error::other("a")])), None);
        assert_eq!(seconds(Error::Stale("behind".into())), None);
    }

    #[test]
    fn an_error_of_the_api_server_may_pass_wherever_it_is() {
        let refused = || {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
            Error::Api(client::Error::Transport { request: "GET /x".into(), source })
        };
        let several = || Error::Many(vec![Error::other("a"), refused()]);
        for error in [refused(), several(), Error::during("x", several())] {
            assert!(error.may_pass(), "{error}");
        }
        for error in [Error::other("a"), Error::during("x", Error::Many(Vec::new()))] {
            assert!(!error.may_pass(), "{error}");
        }
    }
}
