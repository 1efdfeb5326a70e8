//! The errors of calls.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::Message;

/// Why a call has no answer. Upstream: a gRPC status.
#[derive(Debug)]
pub enum Error {
    /// The peer cannot be connected to: the call has not been sent.
    Unreachable {
        /// What the caller calls the peer.
        peer: &'static str,
        endpoint: String,
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The connection broke while the call was under way: the peer may have carried it out.
    Lost { method: &'static str, source: Box<dyn StdError + Send + Sync> },
    /// No answer in time: the peer may have carried it out.
    DeadlineExceeded { method: &'static str, after: Duration },
    /// The peer's answer is an error.
    Status {
        method: &'static str,
        code: Code,
        message: String,
        /// When the peer asks for the next attempt: the detail `google.rpc.RetryInfo`.
        retry_after: Option<Duration>,
    },
    /// The answer does not follow the protocol.
    Malformed { method: &'static str, fault: String },
}

/// Declares the codes of gRPC with their numbers. Upstream: `codes.Code`.
macro_rules! codes {
    ($($name:ident $number:literal,)+) => {
        /// A code of gRPC for errors. It is shown by its name in Go.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($name,)+
            /// A code that gRPC does not define.
            Other(u32),
        }

        impl From<u32> for Code {
            fn from(number: u32) -> Code {
                match number {
                    $($number => Code::$name,)+
                    other => Code::Other(other),
                }
            }
        }

        impl From<Code> for u32 {
            fn from(code: Code) -> u32 {
                match code {
                    $(Code::$name => $number,)+
                    Code::Other(number) => number,
                }
            }
        }
    };
}

codes! {
    Canceled 1,
    Unknown 2,
    InvalidArgument 3,
    DeadlineExceeded 4,
    NotFound 5,
    AlreadyExists 6,
    PermissionDenied 7,
    ResourceExhausted 8,
    FailedPrecondition 9,
    Aborted 10,
    OutOfRange 11,
    Unimplemented 12,
    Internal 13,
    Unavailable 14,
    DataLoss 15,
    Unauthenticated 16,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Other(number) => write!(f, "Code({number})"),
            known => write!(f, "{known:?}"),
        }
    }
}

impl Error {
    /// Returns the peer's code, if its answer is an error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns the text with its causes, in a line.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    /// Returns whether the object of the call does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Returns whether the peer, or this client, gave up after the call's time.
    pub fn is_deadline_exceeded(&self) -> bool {
        matches!(self, Error::DeadlineExceeded { .. })
            || self.code() == Some(Code::DeadlineExceeded)
    }

    /// Returns whether the peer does not have the method.
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { peer, endpoint, .. } => {
                write!(f, "the {peer} at {endpoint} cannot be reached")
            }
            Error::Lost { method, .. } => write!(f, "{method}: the connection was lost"),
            Error::DeadlineExceeded { method, after } => {
                write!(f, "{method}: no answer within {after:?}")
            }
            Error::Status { method, message, .. } => write!(f, "{method}: {message}"),
            Error::Malformed { method, fault } => write!(f, "{method}: {fault}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Unreachable { source, .. } | Error::Lost { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

/// `google.rpc.Status`, without the code and message, which headers have too.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RetryDelay>,
}

/// `google.protobuf.Duration`
#[derive(Clone, PartialEq, Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Senders may leave out the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the delay in the header `grpc-status-details-bin`. Details that cannot be read are
/// ignored: the error itself is in other headers.
pub(crate) fn retry_delay(header: &[u8]) -> Option<Duration> {
    let status = Status::decode(&*BASE64.decode(header).ok()?).ok()?;
    let mut details = status.details.iter();
    let info = details.find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay?;
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_numbers_and_names() {
        for (number, code, name) in [
            (1, Code::Canceled, "Canceled"),
            (4, Code::DeadlineExceeded, "DeadlineExceeded"),
            (5, Code::NotFound, "NotFound"),
            (12, Code::Unimplemented, "Unimplemented"),
            (16, Code::Unauthenticated, "Unauthenticated"),
            (17, Code::Other(17), "Code(17)"),
        ] {
            assert_eq!(Code::from(number), code);
            assert_eq!(u32::from(code), number);
            assert_eq!(code.to_string(), name);
        }
    }

    #[test]
    fn the_delay_of_retry_info_is_found_among_the_details() {
        let any =
            |kind: &str, value| Any { type_url: format!("type.googleapis.com/{kind}"), value };
        let info = |seconds, nanos| {
            let retry_delay = Some(RetryDelay { seconds, nanos });
            any("google.rpc.RetryInfo", RetryInfo { retry_delay }.encode_to_vec())
        };
        let other = any("google.rpc.DebugInfo", vec![0xff]);
        let header = |details| BASE64.encode(Status { details }.encode_to_vec());
        let half = Some(Duration::from_millis(2500));
        for (details, expected) in [
            (vec![info(2, 500_000_000)], half),
            (vec![other.clone(), info(2, 500_000_000)], half),
            (vec![other], None),
            (vec![info(-1, 0)], None),
            (vec![any("google.rpc.RetryInfo", vec![0xff])], None),
            (vec![], None),
        ] {
            let text = header(details);
            assert_eq!(retry_delay(text.as_bytes()), expected);
            assert_eq!(retry_delay(text.trim_end_matches('=').as_bytes()), expected);
        }
        assert_eq!(retry_delay(b"!"), None);
    }
}
