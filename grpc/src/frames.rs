//! Requests and answers of one message, as HTTP/2 carries them. Upstream: gRPC over HTTP/2.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response};
use kube_controller_manager::percent;

use crate::error::{Code, Error, retry_delay};

/// The largest answer, as upstream's `maxMsgSize`.
const MAX_ANSWER: usize = 16 << 20;

/// Builds the request of a call of one message. `origin`: `http://localhost`.
///
/// # Errors
/// When the URL or a header is not valid.
pub fn request(
    origin: &str,
    method: &str,
    message: &[u8],
    deadline: Option<Duration>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::post(format!("{origin}/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if let Some(deadline) = deadline {
        request = request.header("grpc-timeout", timeout(deadline));
    }
    request.body(Full::new(frame(message)))
}

/// Returns a message in its frame, not compressed.
pub fn frame(message: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(message.len() + 5);
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

/// Returns a deadline as gRPC writes it: at most eight digits and a unit.
fn timeout(deadline: Duration) -> String {
    match deadline.as_millis() {
        millis @ ..100_000_000 => format!("{millis}m"),
        millis => format!("{}S", (millis / 1000).min(99_999_999)),
    }
}

/// Reads the answer of a call, and returns its one message. `method`: its name in errors.
///
/// # Errors
/// See [`Error`].
pub async fn answer(method: &'static str, response: Response<Incoming>) -> Result<Bytes, Error> {
    let malformed = |fault: String| Error::Malformed { method, fault };
    let (head, mut body) = response.into_parts();
    if !head.status.is_success() {
        return Err(malformed(format!("HTTP status {}", head.status)));
    }
    // An error may come as trailers alone, which HTTP/2 shows as headers.
    let mut has_status = status_of(method, &head.headers)?;
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::Lost { method, source: error.into() })?;
        match frame.into_data() {
            Ok(data) if content.len() + data.len() > MAX_ANSWER => {
                return Err(malformed(format!("the answer has more than {MAX_ANSWER} bytes")));
            }
            Ok(data) => content.extend_from_slice(&data),
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    has_status |= status_of(method, &trailers)?;
                }
            }
        }
    }
    if !has_status {
        return Err(malformed("the answer has no grpc-status".to_owned()));
    }
    message_of(content.into()).map_err(malformed)
}

/// Returns whether the headers have a `grpc-status`, which must be that of success. `false`: it
/// comes later, in the trailers. Errors: another status, or a malformed one.
fn status_of(method: &'static str, headers: &HeaderMap) -> Result<bool, Error> {
    let text = |key: &str| headers.get(key).and_then(|value| value.to_str().ok());
    let Some(status) = text("grpc-status") else { return Ok(false) };
    match status.parse() {
        Err(_) => Err(Error::Malformed { method, fault: format!("grpc-status {status:?}") }),
        Ok(0) => Ok(true),
        Ok(code) => {
            let message = percent::decode(text("grpc-message").unwrap_or_default());
            let details = headers.get("grpc-status-details-bin");
            let retry_after = details.and_then(|details| retry_delay(details.as_bytes()));
            Err(Error::Status { method, code: Code::from(code), message, retry_after })
        }
    }
}

/// Takes the one message out of a body.
///
/// # Errors
/// Why the body is not one message: the `fault` of [`Error::Malformed`].
pub fn message_of(content: Bytes) -> Result<Bytes, String> {
    let Some((&[flag, a, b, c, d], message)) = content.split_first_chunk() else {
        return Err("the answer ends within its first message".to_owned());
    };
    let length = u32::from_be_bytes([a, b, c, d]);
    if flag != 0 {
        return Err("the answer is compressed".to_owned());
    }
    if usize::try_from(length) != Ok(message.len()) {
        return Err(format!("a message of {length} bytes has {}", message.len()));
    }
    Ok(content.slice(5..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_at_most_eight_digits() {
        for (deadline, text) in [
            (Duration::from_millis(1500), "1500m"),
            (Duration::from_secs(99_999), "99999000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(timeout(deadline), text);
        }
    }

    #[test]
    fn messages_are_cut_out_of_their_frame() {
        let frame = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
        assert_eq!(message_of(frame.clone().into()).as_deref(), Ok(&b"abc"[..]));
        for end in 0..frame.len() {
            assert!(message_of(frame[..end].to_vec().into()).is_err(), "{end}");
        }
        // The answer to a call that was answered twice.
        assert!(message_of([&frame[..], &frame[..]].concat().into()).is_err());
        assert!(message_of(vec![1, 0, 0, 0, 0].into()).is_err());
        assert_eq!(message_of(vec![0; 5].into()).as_deref(), Ok(&b""[..]));
    }
}
