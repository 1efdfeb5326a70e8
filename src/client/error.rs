//! Failures of requests.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::objects::{messages, protobuf};

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// The cause of an error, which clones of the error share. Its text is part of the error's own
/// text.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Cause {
    fn from(error: E) -> Cause {
        Cause(error.into().into())
    }
}

impl Cause {
    /// Returns the cause as a boxed error, to become the cause of another room's error.
    pub fn into_error(self) -> Box<dyn std::error::Error + Send + Sync> {
        Box::new(Shared(self.0))
    }
}

/// [`Cause`] does not implement `Error`, for then it could not be made from every error.
#[derive(Debug)]
struct Shared(Arc<dyn std::error::Error + Send + Sync>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl Deref for Cause {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a request failed. It can be cloned, so that several tasks that wait for one request share
/// its failure. Upstream: `apierrors` for `Status`, errors of `net/http` for the others.
///
/// `request` is the method and path, such as `GET /api/v1/pods`, without parameters and body.
#[derive(Clone, Debug)]
pub enum Error {
    /// The server answered with a status other than 2xx, or with an ERROR event of a watch.
    Status(Box<Failure>),
    /// No whole answer came: DNS, connection, TLS, a broken or late response. A write may have been
    /// carried out.
    Transport {
        /// Method and path.
        request: String,
        /// Mostly an [`io::Error`].
        source: Cause,
    },
    /// An answer came that does not decode. A write may have been carried out.
    Decode {
        /// Method and path.
        request: String,
        /// The fault in the answer.
        source: Cause,
    },
    /// The request could not be built, such as from a body that does not serialize. Nothing was
    /// sent.
    Request {
        /// Method and path.
        request: String,
        /// The fault in the request.
        source: Cause,
    },
    /// A name in the path, or a namespace, is missing or would address another path. Nothing was
    /// sent.
    Path(String),
    /// The client's [`Guard`](super::Guard) did not pass the write: no byte of it was sent.
    GuardRefused {
        /// Method and path.
        request: String,
    },
    /// The request was still waiting when the client was stopped: no byte of it was sent.
    Stopped {
        /// Method and path.
        request: String,
    },
    /// The client may only read: no byte of the request was sent.
    Shadowed {
        /// Method and path.
        request: String,
    },
    /// A Scale came whose selector is no label selector, with upstream's reason.
    Scale(String),
    /// There are no credentials to show: a credential plugin or a token provider failed.
    Credentials(Cause),
    /// A kubeconfig, a certificate or the Pod's environment is incomplete or malformed.
    Config(String),
}

/// Returns a function that makes the error for an answer to `request` that cannot be understood.
pub(super) fn undecoded<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    request: &str,
) -> impl Fn(E) -> Error + use<'_, E> {
    move |source| Error::Decode { request: request.to_owned(), source: Cause::from(source) }
}

/// A failure that the server reports. Upstream: `apierrors.StatusError`.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Method and path: `GET /api/v1/pods`.
    pub request: String,
    /// The HTTP status code; of an ERROR event that of the Status.
    pub code: u16,
    /// How long the server asks to wait, by the header `Retry-After` or else by the Status.
    pub retry_after: Option<Duration>,
    /// The kind of the body.
    pub body: FailureBody,
    /// The Status in the body. If the body is something else, the fields that can be read as those
    /// of a Status; with neither message nor reason, the message is the text of the body, cut at
    /// 2,048 bytes.
    pub status: Status,
}

/// The kind of a failed answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureBody {
    /// A Status that reports a failure, even without a reason or a message.
    Status,
    /// A text by its content type, or a body without a content type.
    Text,
    /// Something else, such as JSON that is not a Status.
    Other,
}

impl FailureBody {
    /// Classifies a failed answer's body by `status`, what can be read of it, and by its content
    /// type. Upstream: `Result.Error`.
    fn from_status(status: &Status, is_text: bool) -> FailureBody {
        match (status.kind.as_str(), status.status.as_str()) {
            ("Status", "Failure") => FailureBody::Status,
            _ if is_text => FailureBody::Text,
            _ => FailureBody::Other,
        }
    }
}

/// The body of a failed answer. Absent fields are empty. Upstream: `metav1.Status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// `Status`
    pub kind: String,
    /// `Success` or `Failure`
    pub status: String,
    /// For people; its text may change between versions of the server.
    pub message: String,
    /// A word for programs: `NotFound`, `Conflict`, or one of the kind's own.
    pub reason: String,
    /// The status code in the body, which is mostly that of the answer.
    pub code: u16,
    /// More about the failure.
    pub details: Details,
}

/// Details of a [`Status`]. Upstream: `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// How long to wait before another try; 0: the server does not say.
    pub retry_after_seconds: u64,
    /// Each fault of a request, mostly of an invalid object.
    pub causes: Vec<StatusCause>,
}

/// One fault of a request. Upstream: `metav1.StatusCause`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// A word for programs, such as `NamespaceTerminating`.
    pub reason: String,
    /// The text for people.
    pub message: String,
    /// The path of the field that is at fault, or empty.
    pub field: String,
}

impl Status {
    /// Reads a body or a watch's event, in JSON or in a protobuf envelope; `None` if it does not
    /// decode.
    pub(super) fn parse(body: &[u8]) -> Option<Status> {
        if protobuf::is_enveloped(body) {
            let message = protobuf::open(body).ok()?;
            let status: Status = protobuf::from_slice(&messages::STATUS, message).ok()?;
            return Some(Status { kind: protobuf::kind(body).to_owned(), ..status });
        }
        serde_json::from_slice(body).ok()
    }
}

impl Error {
    /// Makes the error of a failed answer. The beginning of a body that is no `Status` becomes the
    /// message; the answer's header decides the wait before that of the `Status`. `is_text`: by its
    /// content type.
    pub(super) fn from_answer(
        request: String,
        code: u16,
        retry_after: Option<u64>,
        is_text: bool,
        body: &[u8],
    ) -> Error {
        let mut status = Status::parse(body).unwrap_or_default();
        let kind = FailureBody::from_status(&status, is_text);
        if kind != FailureBody::Status && status.message.is_empty() && status.reason.is_empty() {
            let shown = &body[..body.len().min(SHOWN_BYTES)];
            status.message = String::from_utf8_lossy(shown).trim().to_owned();
        }
        let seconds = retry_after.or(Some(status.details.retry_after_seconds).filter(|s| *s > 0));
        let retry_after = seconds.map(Duration::from_secs);
        Error::Status(Box::new(Failure { request, code, retry_after, body: kind, status }))
    }

    /// Returns the failure that the server reports, if it answered.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::Status(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns whether the server reports the failure `reason`: by the Status's reason where
    /// upstream knows that, else by the code. Upstream: `reasonAndCodeForError`.
    fn has_reason_or_code(&self, reason: &str, code: u16) -> bool {
        self.failure().is_some_and(|failure| {
            failure.status.reason == reason
                || (failure.code == code
                    && !KNOWN_REASONS.contains(&failure.status.reason.as_str()))
        })
    }

    /// Returns whether the object, its kind or its namespace does not exist (404). Upstream:
    /// `apierrors.IsNotFound`.
    pub fn is_not_found(&self) -> bool {
        self.has_reason_or_code("NotFound", 404)
    }

    /// Returns whether the object to be created exists. By its reason alone, since a conflict has
    /// the same code (409). Upstream: `apierrors.IsAlreadyExists`.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == Some("AlreadyExists")
    }

    /// Returns whether the object has changed since it was read, or does not meet the preconditions
    /// (409). Upstream: `apierrors.IsConflict`.
    pub fn is_conflict(&self) -> bool {
        self.has_reason_or_code("Conflict", 409)
    }

    /// Returns whether it is a conflict because the object of this name has another uid than the
    /// request asks for. Only the text distinguishes it from other conflicts: a webhook may answer
    /// with this code as well.
    pub fn is_of_another_uid(&self) -> bool {
        self.is_conflict() && self.message().is_some_and(|text| text.contains("UID in"))
    }

    /// Returns whether the version asked for is no longer kept (410, `Gone` or `Expired`): list
    /// again. Upstream: `apierrors.IsResourceExpired`, `IsGone`.
    pub fn is_expired(&self) -> bool {
        self.reason() == Some("Expired") || self.has_reason_or_code("Gone", 410)
    }

    /// Returns whether the object does not pass validation (422); the causes name the fields.
    /// Upstream: `apierrors.IsInvalid`.
    pub fn is_invalid(&self) -> bool {
        self.has_reason_or_code("Invalid", 422)
    }

    /// Returns whether the user may not do it, or admission denied it (403). Upstream:
    /// `apierrors.IsForbidden`.
    pub fn is_forbidden(&self) -> bool {
        self.has_reason_or_code("Forbidden", 403)
    }

    /// Returns whether the resource does not have this verb (405). Upstream:
    /// `apierrors.IsMethodNotSupported`.
    pub fn is_method_not_supported(&self) -> bool {
        self.has_reason_or_code("MethodNotAllowed", 405)
    }

    /// Returns whether the server is busy, or a disruption budget forbids an eviction now (429).
    /// Upstream: `apierrors.IsTooManyRequests`.
    pub fn is_too_many_requests(&self) -> bool {
        self.has_reason_or_code("TooManyRequests", 429)
    }

    /// Returns whether the server's own time ran out (504), or it asks for another try. A write may
    /// have been carried out. Upstream: `apierrors.IsTimeout`, `IsServerTimeout`.
    pub fn is_timeout(&self) -> bool {
        self.has_reason_or_code("Timeout", 504) || self.reason() == Some("ServerTimeout")
    }

    /// Returns whether the server failed (500). Upstream: `apierrors.IsInternalError`.
    pub fn is_internal(&self) -> bool {
        self.is_generic("InternalError", 500)
    }

    /// Returns whether the server, or one behind it, cannot answer now (503). Upstream:
    /// `apierrors.IsServiceUnavailable`.
    pub fn is_unavailable(&self) -> bool {
        self.is_generic("ServiceUnavailable", 503)
    }

    /// Returns whether the server reports the failure `reason`: by the Status's reason; only an
    /// answer without a Status counts by its code. Upstream: `ReasonForError`,
    /// `NewGenericServerResponse`.
    fn is_generic(&self, reason: &str, code: u16) -> bool {
        self.failure().is_some_and(|Failure { status, code: answered, body, .. }| {
            status.reason == reason || (*answered == code && *body != FailureBody::Status)
        })
    }

    /// Returns whether an object cannot be created because its namespace is being deleted.
    /// Upstream: `apierrors.HasStatusCause` with `NamespaceTerminating`.
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause("NamespaceTerminating")
    }

    /// Returns whether the version asked for is newer than any the server has.
    pub fn is_too_large_resource_version(&self) -> bool {
        self.is_timeout() && self.has_cause("ResourceVersionTooLarge")
    }

    /// Returns whether a cause in the Status has this reason.
    fn has_cause(&self, reason: &str) -> bool {
        self.failure()
            .is_some_and(|f| f.status.details.causes.iter().any(|cause| cause.reason == reason))
    }

    /// Returns whether no whole answer came: [`Error::Transport`].
    pub fn is_transport(&self) -> bool {
        matches!(self, Error::Transport { .. })
    }

    /// Returns whether the server does not listen, or closed the connection: it restarts, or does
    /// not exist. Upstream: `utilnet.IsConnectionRefused`.
    pub fn is_refused(&self) -> bool {
        self.is_reset() || self.kind() == Some(ErrorKind::ConnectionRefused)
    }

    /// Returns whether the connection was closed before there was an answer. Upstream:
    /// `utilnet.IsConnectionReset`, `IsProbableEOF`.
    pub fn is_reset(&self) -> bool {
        matches!(self.kind(), Some(ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof))
    }

    /// Returns the kind of the I/O error because of which no answer came.
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Error::Transport { source, .. } => {
                source.downcast_ref::<io::Error>().map(io::Error::kind)
            }
            _ => None,
        }
    }

    /// Returns whether a write that failed in this way may have been carried out. Only a 4xx answer
    /// is a sure refusal: servers and proxies answer 5xx also after the write.
    pub fn is_unsure(&self) -> bool {
        match self {
            Error::Status(failure) => !(400..500).contains(&failure.code),
            Error::Transport { .. } | Error::Decode { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the same request may succeed later without any change of an object: no whole
    /// answer came, or the server is too busy or failed; or there were no credentials for it.
    pub fn may_pass(&self) -> bool {
        let is_before_answer = matches!(self, Error::Transport { .. } | Error::Credentials(_));
        is_before_answer || self.code().is_some_and(|code| code == 429 || code >= 500)
    }

    /// Returns whether the client only reads, and the request was a write: [`Error::Shadowed`].
    pub fn is_shadowed(&self) -> bool {
        matches!(self, Error::Shadowed { .. })
    }

    /// Returns the HTTP status code, when the server answered.
    pub fn code(&self) -> Option<u16> {
        self.failure().map(|failure| failure.code)
    }

    /// Returns `Status.reason`, when the server sent a Status with one.
    pub fn reason(&self) -> Option<&str> {
        self.failure().map(|failure| failure.status.reason.as_str()).filter(|r| !r.is_empty())
    }

    /// Returns `Status.message`, when the server sent one.
    pub fn message(&self) -> Option<&str> {
        self.failure().map(|failure| failure.status.message.as_str()).filter(|m| !m.is_empty())
    }

    /// Returns how long the server asks to wait before another try; `None`: it does not say.
    pub fn retry_after(&self) -> Option<Duration> {
        self.failure().and_then(|failure| failure.retry_after)
    }
}

/// The number of bytes that are kept of a body that is not a Status. Upstream:
/// `maxUnstructuredResponseTextBytes`.
const SHOWN_BYTES: usize = 2048;

/// The reasons that upstream knows: with any other one the status code decides. Upstream:
/// `knownReasons`.
const KNOWN_REASONS: &[&str] = &[
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Gone",
    "Invalid",
    "ServerTimeout",
    "StoreReadError",
    "Timeout",
    "TooManyRequests",
    "BadRequest",
    "MethodNotAllowed",
    "NotAcceptable",
    "RequestEntityTooLarge",
    "UnsupportedMediaType",
    "InternalError",
    "Expired",
    "ServiceUnavailable",
];

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Status(failure) => match failure.status.message.as_str() {
                "" => write!(f, "{}: the server answered {}", failure.request, failure.code),
                message => f.write_str(message),
            },
            Error::Transport { request, source } => write!(f, "{request}: {source}"),
            Error::Decode { request, source } => write!(f, "{request}: bad answer: {source}"),
            Error::Request { request, source } => write!(f, "{request}: {source}"),
            Error::GuardRefused { request } => {
                write!(f, "{request}: not sent: the lease is no longer held")
            }
            Error::Stopped { request } => write!(f, "{request}: not sent: stopping"),
            Error::Shadowed { request } => write!(f, "{request}: not sent: shadow mode only reads"),
            Error::Credentials(source) => write!(f, "credentials: {source}"),
            Error::Scale(why) => write!(
                f,
                "received an object from a /scale endpoint which was not convertible to autoscaling \
                 Scale: {why}"
            ),
            Error::Path(what) | Error::Config(what) => f.write_str(what),
        }
    }
}

/// The text of the cause is part of this error's own, so the source is what lies below the cause.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Transport { source, .. }
            | Error::Request { source, .. }
            | Error::Decode { source, .. }
            | Error::Credentials(source) => source.source(),
            Error::Status(_)
            | Error::Path(_)
            | Error::Scale(_)
            | Error::GuardRefused { .. }
            | Error::Stopped { .. }
            | Error::Shadowed { .. }
            | Error::Config(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_counts_before_the_code() {
        let error = |code, body: &str| {
            Error::from_answer("GET /x".into(), code, None, true, body.as_bytes())
        };
        let exists = error(409, r#"{"reason":"AlreadyExists","message":"m"}"#);
        assert!(exists.is_already_exists() && !exists.is_conflict());
        assert!(error(409, r#"{"reason":"Conflict"}"#).is_conflict());
        assert!(error(409, "").is_conflict());
        for (message, is_of_another_uid) in [
            ("Precondition failed: UID in precondition: a, UID in object meta: b", true),
            ("the UID in the precondition (a) does not match the UID in record (b)", true),
            ("admission webhook x denied the request: not now", false),
        ] {
            let body = format!(r#"{{"reason":"Conflict","message":"{message}"}}"#);
            assert_eq!(error(409, &body).is_of_another_uid(), is_of_another_uid, "{message}");
        }
        assert!(error(404, "404 page not found\n").is_not_found());
        let busy = error(429, r#"{"reason":"TooManyRequests","details":{"retryAfterSeconds":7}}"#);
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
        let ending = error(
            403,
            r#"{"reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating"}]}}"#,
        );
        assert!(ending.is_namespace_terminating() && ending.is_forbidden());
        assert_eq!(error(503, "").to_string(), "GET /x: the server answered 503");
        assert!(error(503, "").is_unavailable() && error(500, "no Status").is_internal());
        assert!(error(500, r#"{"code":500,"reason":"InternalError"}"#).is_internal());
        let unknown = r#"{"kind":"Status","status":"Failure","message":"unknown"}"#;
        assert!(!error(500, unknown).is_internal());
    }

    #[test]
    fn only_a_refusal_says_that_nothing_was_written() {
        for (code, is_unsure) in [
            (400, false),
            (403, false),
            (404, false),
            (409, false),
            (422, false),
            (429, false),
            (500, true),
            (502, true),
            (503, true),
            (504, true),
        ] {
            let error = Error::from_answer("PUT /x".into(), code, None, true, b"");
            assert_eq!(error.is_unsure(), is_unsure, "{code}");
            assert_eq!(error.may_pass(), is_unsure || code == 429, "{code}");
        }
    }

    #[test]
    fn a_body_is_a_status_a_text_or_something_else() {
        let protobuf = "k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x0c\x12\x07Failure\x1a\x01m";
        let failure = r#"{"kind":"Status","status":"Failure","message":"m","code":500}"#;
        let wordless = r#"{"kind":"Status","status":"Failure"}"#;
        let success = r#"{"kind":"Status","status":"Success","message":"m"}"#;
        for (is_text, body, kind, message) in [
            (false, failure, FailureBody::Status, "m"),
            (true, wordless, FailureBody::Status, ""),
            (false, protobuf, FailureBody::Status, "m"),
            (false, success, FailureBody::Other, "m"),
            (false, r#"{"code":500}"#, FailureBody::Other, r#"{"code":500}"#),
            (true, " no\n", FailureBody::Text, "no"),
            (true, "", FailureBody::Text, ""),
        ] {
            let body = body.as_bytes();
            let error = Error::from_answer("GET /x".into(), 500, None, is_text, body);
            let failure = error.failure().unwrap();
            assert_eq!((failure.body, &*failure.status.message), (kind, message), "{failure:?}");
        }
    }

    #[test]
    fn a_cause_is_shown_once_and_keeps_its_kind() {
        let failed = |kind: ErrorKind| Error::Transport {
            request: "GET /x".into(),
            source: io::Error::new(kind, "refused").into(),
        };
        let error = failed(ErrorKind::ConnectionRefused);
        assert_eq!(error.to_string(), "GET /x: refused");
        assert!(std::error::Error::source(&error).is_none());
        assert!(error.is_refused() && !error.is_reset() && error.may_pass());
        for gone in [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof] {
            assert!(failed(gone).is_refused() && failed(gone).is_reset(), "{gone}");
        }
        assert!(!failed(ErrorKind::TimedOut).is_refused());
        let held_back = Error::GuardRefused { request: "PUT /x".into() };
        assert!(!held_back.is_refused() && !held_back.is_transport() && !held_back.is_unsure());
    }
}
