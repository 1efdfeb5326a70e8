//! Heads of HTTP/1.1: a request's is written, an answer's is read.

use std::io;

use futures_lite::AsyncBufReadExt;
use futures_lite::io::AsyncBufRead;
use http_client::Request;
use http_client::http_types::{Method, StatusCode};

use super::proxy::Proxy;
use crate::client::chunks::ChunkDecoder;
use crate::objects::protobuf;

/// The longest head that is accepted, in bytes.
const HEAD_LIMIT: usize = 64 << 10;

/// Appends the head of a request whose body has `length` bytes. `forwarding`: the proxy that gets
/// the request itself, without a tunnel.
pub(super) fn write_head(
    request: &Request,
    length: usize,
    forwarding: Option<&Proxy>,
    head: &mut Vec<u8>,
) -> io::Result<()> {
    let url = request.url();
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let mut push =
        |parts: &[&str]| parts.iter().for_each(|part| head.extend_from_slice(part.as_bytes()));
    push(&[request.method().as_ref(), " "]);
    if forwarding.is_some() {
        push(&[url.scheme(), "://", host, &port]);
    }
    push(&[url.path()]);
    if let Some(query) = url.query() {
        push(&["?", query]);
    }
    push(&[" HTTP/1.1\r\nhost: ", host, &port, "\r\n"]);
    if let Some(value) = forwarding.and_then(Proxy::authorization) {
        push(&["proxy-authorization: ", &value, "\r\n"]);
    }
    for (name, values) in request.iter() {
        // http-types gives even an empty body a type, and the API server refuses it for discovery.
        if length == 0 && name.as_str() == "content-type" {
            continue;
        }
        for value in values {
            if value.as_str().contains(['\r', '\n']) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("header {name}")));
            }
            push(&[name.as_str(), ": ", value.as_str(), "\r\n"]);
        }
    }
    // These have a length even without a body.
    let may_have_body = matches!(request.method(), Method::Post | Method::Put | Method::Patch);
    if length > 0 || may_have_body {
        push(&["content-length: ", &length.to_string(), "\r\n"]);
    }
    push(&["\r\n"]);
    Ok(())
}

/// How the end of a body is found.
#[derive(Debug)]
pub enum Framing {
    /// By the number of its bytes.
    Length(u64),
    /// By its coding.
    Chunked(ChunkDecoder),
    /// By the end of the connection.
    UntilClose,
}

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// The code of the status, from 200 to 599.
    pub code: u16,
    /// The same code, or the first of its class where `http_types` does not know it.
    pub status: StatusCode,
    /// The value of `Retry-After`, the one header that callers read.
    pub retry_after: Option<String>,
    /// How the body ends.
    pub framing: Framing,
    /// The type of the body. JSON and other types are not distinguished.
    pub is_protobuf: bool,
    /// A text of any kind, or a body without a type. Upstream: `isTextResponse`.
    pub is_text: bool,
    /// Whether the connection can be used again after the body.
    pub keep_alive: bool,
}

/// Reads the head of an answer, and nothing beyond it.
///
/// # Errors
/// When the connection ends before the head does, and when the head is malformed or too long.
pub async fn read_head(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Head> {
    loop {
        let head = read_one_head(io).await?;
        // Informational answers (1xx) come before the answer itself.
        if !matches!(head.code, 100..=199) {
            return Ok(head);
        }
    }
}

/// Reads one head, which may be an interim one.
async fn read_one_head(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Head> {
    // The beginning of a head that arrives in pieces; most come in one.
    let mut before = Vec::new();
    loop {
        let arrived = io.fill_buf().await?;
        if arrived.is_empty() {
            let what = if before.is_empty() {
                "closed before an answer came"
            } else {
                "closed in the answer's head"
            };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let (seen, count) = (before.len(), arrived.len());
        if seen > 0 {
            before.extend_from_slice(arrived);
        }
        let parsed = parse_head(if seen > 0 { &before } else { arrived })?;
        match parsed {
            Some((head, length)) => {
                io.consume(length - seen);
                return Ok(head);
            }
            None if seen + count > HEAD_LIMIT => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the answer's head is too long",
                ));
            }
            None => {
                if seen == 0 {
                    before.extend_from_slice(arrived);
                }
                io.consume(count);
            }
        }
    }
}

/// Parses a head and returns it with its length; `None` when it is not complete yet.
fn parse_head(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let bad =
        |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("bad answer: {what}"));
    let mut headers = [httparse::EMPTY_HEADER; 96];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes).map_err(|error| bad(error.to_string()))? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let code = response.code.unwrap_or_default();
    // http-types does not know every code: an unknown one counts as the first of its class.
    let status = StatusCode::try_from(code).or_else(|_| match code / 100 {
        2 => Ok(StatusCode::Ok),
        4 => Ok(StatusCode::BadRequest),
        5 => Ok(StatusCode::InternalServerError),
        _ => Err(bad(format!("status {code}"))),
    })?;
    let find = |name: &str| {
        let mut all =
            response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        all.next().map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
    };
    let framing = match (find("transfer-encoding"), find("content-length")) {
        (Some(coding), _) if coding.ends_with("chunked") => Framing::Chunked(ChunkDecoder::new()),
        // Without a length, or with another coding, the body ends with the connection.
        (Some(_), _) | (None, None) => Framing::UntilClose,
        (None, Some(length)) => {
            Framing::Length(length.parse().map_err(|_| bad(format!("content-length {length}")))?)
        }
    };
    let closes = find("connection").is_some_and(|value| value.contains("close"));
    let keep_alive =
        response.version == Some(1) && !closes && !matches!(framing, Framing::UntilClose);
    let retry_after = find("retry-after").filter(|value| value.is_ascii());
    let mut types =
        response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-type"));
    let content_type = types.next().map(|header| header.value);
    let is_protobuf =
        content_type.is_some_and(|value| value.starts_with(protobuf::MEDIA_TYPE.as_bytes()));
    let is_text = content_type
        .is_none_or(|value| value.get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/")));
    let head = Head { code, status, retry_after, framing, is_protobuf, is_text, keep_alive };
    Ok(Some((head, length)))
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use futures_lite::{AsyncReadExt, io};

    use super::*;

    #[test]
    fn bytes_after_a_head_are_kept() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
        for cut in 0..text.len() {
            block_on(async {
                let (before, after) = text.split_at(cut);
                let mut io = io::BufReader::with_capacity(text.len(), before.chain(after));
                let head = read_head(&mut io).await.unwrap();
                assert!(matches!(head.framing, Framing::Length(4)), "cut at {cut}");
                let mut rest = String::new();
                io.read_to_string(&mut rest).await.unwrap();
                assert_eq!(rest, "body", "cut at {cut}");
            });
        }
    }

    #[test]
    fn heads_are_read_whole_or_not_at_all() {
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n5\r\n";
        let end = text.len() - 3;
        for cut in 0..end {
            assert!(parse_head(&text[..cut]).unwrap().is_none(), "cut at {cut}");
        }
        let (head, length) = parse_head(text).unwrap().unwrap();
        assert_eq!((head.code, length), (200, end));
        assert!(head.keep_alive && matches!(head.framing, Framing::Chunked(_)));
        for (text, keep) in [
            ("HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            let (head, _) = parse_head(text.as_bytes()).unwrap().unwrap();
            assert_eq!(head.keep_alive, keep, "{text}");
        }
        assert!(parse_head(b"NONSENSE\r\n\r\n").is_err());
    }

    #[test]
    fn the_type_of_a_body_is_a_text_protobuf_or_another() {
        for (header, is_text, is_protobuf) in [
            ("", true, false),
            ("Content-Type: text/plain; charset=utf-8\r\n", true, false),
            ("content-type:Text/HTML\r\n", true, false),
            ("Content-Type: text\r\n", false, false),
            ("Content-Type: application/json\r\n", false, false),
            ("Content-Type: application/vnd.kubernetes.protobuf\r\n", false, true),
        ] {
            let text = format!("HTTP/1.1 500 No\r\n{header}Content-Length: 2\r\n\r\n");
            let (head, _) = parse_head(text.as_bytes()).unwrap().unwrap();
            assert_eq!((head.is_text, head.is_protobuf), (is_text, is_protobuf), "{header}");
        }
    }
}
