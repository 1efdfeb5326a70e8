//! Lists and watches as they arrive.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use futures_lite::future::poll_fn;
use futures_lite::{AsyncBufRead, AsyncBufReadExt};
use http_client::http_types;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::{Status, undecoded};
use super::frames::{self, ListFrames, WatchFrames};
use super::request::transport_error;
use super::split::{DocumentSplitter, ListPiece, ListSplitter};
use super::{Error, Result};
use crate::buffer_pool;
use crate::objects::{Bookmark, Encoded, ListPart, WatchEvent, messages, protobuf};

type Body = Box<dyn AsyncBufRead + Unpin + Send + Sync + 'static>;

/// A list's body, item by item: it is never in memory as a whole. Dropping it before its end closes
/// the connection.
pub struct ListStream {
    request: String,
    body: Body,
    splitter: Lists,
    found: VecDeque<ListPiece>,
    meta: ListMeta,
}

/// The metadata of a list. Upstream: `metav1.ListMeta`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

/// The splitter of a list's body, by its form.
enum Lists {
    Json(ListSplitter),
    Protobuf(ListFrames),
}

/// Returns whether a body has the media type of protobuf.
fn is_protobuf(body: &http_types::Body) -> bool {
    body.mime().essence() == protobuf::MEDIA_TYPE
}

impl ListStream {
    /// Makes the stream of a list. `request`: what `body` answers, for errors.
    pub fn new(request: String, body: http_types::Body) -> ListStream {
        let splitter = match is_protobuf(&body) {
            true => Lists::Protobuf(ListFrames::default()),
            false => Lists::Json(ListSplitter::default()),
        };
        let (body, found, meta) = (body.into_reader(), VecDeque::new(), ListMeta::default());
        ListStream { request, body, splitter, found, meta }
    }

    /// Returns the next part; the last one is `End`. After that, and after an error, the stream
    /// must not be read. May be dropped at any time: what has been read is kept for the next call.
    ///
    /// # Errors
    /// [`Error::Transport`] when the body is cut off or late, [`Error::Decode`] when it is not a
    /// list. The items themselves are not decoded here.
    pub async fn next(&mut self) -> Result<ListPart<Encoded>> {
        loop {
            match self.found.pop_front() {
                Some(ListPiece::Item(bytes)) => {
                    return Ok(ListPart::Item(match self.splitter {
                        Lists::Json(_) => Encoded::json(bytes),
                        Lists::Protobuf(_) => Encoded::protobuf(bytes),
                    }));
                }
                Some(ListPiece::Metadata(meta)) => {
                    self.meta = match self.splitter {
                        Lists::Json(_) => self.decode(&meta)?,
                        Lists::Protobuf(_) => protobuf::from_slice(&messages::LIST_META, &meta)
                            .map_err(undecoded(&self.request))?,
                    }
                }
                Some(ListPiece::End) => {
                    self.drain().await;
                    let ListMeta { resource_version, r#continue } = std::mem::take(&mut self.meta);
                    let continue_token = Some(r#continue).filter(|token| !token.is_empty());
                    return Ok(ListPart::End { resource_version, continue_token });
                }
                None => self.read_more().await?,
            }
        }
    }

    /// Reads the body to its end, so that the connection can be used again.
    async fn drain(&mut self) {
        while let Ok(count @ 1..) = self.body.fill_buf().await.map(<[u8]>::len) {
            self.body.consume(count);
        }
    }

    /// Reads the first item and decodes it; `None` of an empty list. The rest of the list is not
    /// read.
    pub async fn first<O: DeserializeOwned>(mut self) -> Result<Option<O>> {
        match self.next().await? {
            ListPart::Item(item) => self.decode(&item.bytes).map(Some),
            ListPart::End { .. } => Ok(None),
        }
    }

    /// Reads what has arrived, and splits it into pieces of the list.
    async fn read_more(&mut self) -> Result<()> {
        let bytes =
            self.body.fill_buf().await.map_err(|error| transport_error(&self.request, error))?;
        if bytes.is_empty() {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the list is cut off");
            return Err(transport_error(&self.request, error));
        }
        let (count, found) = (bytes.len(), &mut self.found);
        let mut found = |piece| found.push_back(piece);
        match &mut self.splitter {
            Lists::Json(splitter) => splitter.feed(bytes, &mut found),
            Lists::Protobuf(frames) => {
                frames.feed(bytes, &mut found).map_err(undecoded(&self.request))?;
            }
        }
        self.body.consume(count);
        Ok(())
    }

    /// Decodes an item that came in JSON.
    ///
    /// # Errors
    /// [`Error::Decode`], with the request in it.
    pub fn decode<O: DeserializeOwned>(&self, json: &[u8]) -> Result<O> {
        serde_json::from_slice(json).map_err(undecoded(&self.request))
    }
}

/// The splitter of a watch's body, by its form.
enum Events {
    Json(DocumentSplitter),
    Protobuf(WatchFrames),
}

impl Events {
    /// Returns whether the bytes so far end with a whole event.
    fn is_between(&self) -> bool {
        match self {
            Events::Json(splitter) => splitter.is_between(),
            Events::Protobuf(frames) => frames.is_between(),
        }
    }
}

/// A watch's body, event by event. Dropping it ends the watch and closes the connection. Upstream:
/// `watch.StreamWatcher`.
pub struct WatchStream {
    request: String,
    body: Body,
    splitter: Events,
    found: VecDeque<Result<WatchEvent<Encoded>>>,
}

/// An event of a JSON watch. Upstream: `metav1.WatchEvent`.
#[derive(Deserialize)]
struct Envelope<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl WatchStream {
    /// Makes the stream of a watch. `request`: what `body` answers, for errors.
    pub fn new(request: String, body: http_types::Body) -> WatchStream {
        let splitter = match is_protobuf(&body) {
            true => Events::Protobuf(WatchFrames::default()),
            false => Events::Json(DocumentSplitter::default()),
        };
        WatchStream { request, body: body.into_reader(), splitter, found: VecDeque::new() }
    }

    /// Returns the next event, in the server's order; `None` when the server has ended the watch,
    /// as it does after the timeout. After `None` or an error the stream is at its end. May be
    /// dropped at any time: no event is lost.
    ///
    /// # Errors
    /// [`Error::Status`] of an ERROR event, with the Status in it; [`Error::Transport`] when the
    /// connection broke, [`Error::Decode`] for an event that is not one.
    pub async fn next(&mut self) -> Option<Result<WatchEvent<Encoded>>> {
        loop {
            if let Some(event) = self.found.pop_front() {
                return Some(event);
            }
            if let Err(error) = self.wait_for_bytes().await {
                return Some(Err(transport_error(&self.request, error)));
            }
            let bytes = match self.body.fill_buf().await {
                Err(error) => return Some(Err(transport_error(&self.request, error))),
                Ok([]) if self.splitter.is_between() => return None,
                Ok([]) => {
                    let kind = io::ErrorKind::UnexpectedEof;
                    let error = io::Error::new(kind, "the watch is cut off in an event");
                    return Some(Err(transport_error(&self.request, error)));
                }
                Ok(bytes) => bytes,
            };
            let (count, found, request) = (bytes.len(), &mut self.found, &self.request);
            match &mut self.splitter {
                Events::Json(splitter) => splitter.feed(bytes, &mut |document| {
                    found.push_back(json_event(request, document));
                }),
                Events::Protobuf(frames) => {
                    let fed = frames.feed(bytes, &mut |frame| {
                        found.push_back(protobuf_event(request, frame));
                    });
                    if let Err(error) = fed {
                        found.push_back(Err(undecoded(request)(error)));
                    }
                }
            }
            self.body.consume(count);
        }
    }

    /// Waits for bytes. A watch that is silent holds no memory for events.
    async fn wait_for_bytes(&mut self) -> io::Result<()> {
        poll_fn(|context| match Pin::new(&mut self.body).poll_fill_buf(context) {
            Poll::Ready(filled) => Poll::Ready(filled.map(drop)),
            Poll::Pending => {
                self.shrink();
                Poll::Pending
            }
        })
        .await
    }

    /// Frees the memory that holds no event and no part of one.
    fn shrink(&mut self) {
        self.found.shrink_to_fit();
        match &mut self.splitter {
            Events::Json(splitter) => splitter.shrink(),
            Events::Protobuf(frames) => frames.shrink(),
        }
    }
}

/// Splits an event into its type and its object, in the form that every API server writes, without
/// another pass over the object: two fields, the type first (`metav1.WatchEvent`). With a third
/// field the object would not decode. `None`: the event has another form.
fn split_event(document: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = document.strip_prefix(br#"{"type":""#)?;
    let (kind, rest) = rest.split_at_checked(rest.iter().position(|byte| *byte == b'"')?)?;
    let object = rest.strip_prefix(br#"","object":"#)?.strip_suffix(b"}")?;
    if !object.starts_with(b"{") || !object.ends_with(b"}") {
        return None;
    }
    Some((kind, object))
}

/// Decodes an event of a JSON watch.
fn json_event(request: &str, document: &[u8]) -> Result<WatchEvent<Encoded>> {
    let (kind, json) = match split_event(document) {
        Some(parts) => parts,
        None => {
            let Envelope { r#type, object } =
                serde_json::from_slice(document).map_err(undecoded(request))?;
            (r#type.as_bytes(), object.get().as_bytes())
        }
    };
    event(request, kind, json, || Ok(Encoded::json(buffer_pool::copied(json))))
}

/// Decodes an event of a protobuf watch.
fn protobuf_event(request: &str, frame: &[u8]) -> Result<WatchEvent<Encoded>> {
    let (kind, object) = frames::event(frame).map_err(undecoded(request))?;
    event(request, kind, object, || {
        let message = protobuf::open(object).map_err(undecoded(request))?;
        Ok(Encoded::protobuf(buffer_pool::copied(message)))
    })
}

/// Makes an event from its type and its object; an ERROR event becomes an error. `encoded`: the
/// object as it arrived, which may be a Status.
fn event(
    request: &str,
    kind: &[u8],
    encoded: &[u8],
    object: impl FnOnce() -> Result<Encoded>,
) -> Result<WatchEvent<Encoded>> {
    Ok(match kind {
        b"ADDED" => WatchEvent::Added(object()?),
        b"MODIFIED" => WatchEvent::Modified(object()?),
        b"DELETED" => WatchEvent::Deleted(object()?),
        b"BOOKMARK" => {
            WatchEvent::Bookmark(Bookmark::decode(&object()?).map_err(undecoded(request))?)
        }
        // ERROR, whose object is a Status. Any other type is treated in the same way.
        _ => {
            let code = Status::parse(encoded).map_or(500, |status| status.code);
            return Err(Error::from_answer(request.to_owned(), code, None, false, encoded));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Result<WatchEvent<Encoded>>> {
        events(http_types::Body::from_string(text.to_owned()))
    }

    fn events(body: http_types::Body) -> Vec<Result<WatchEvent<Encoded>>> {
        let mut watch = WatchStream::new("GET /x".to_owned(), body);
        futures_lite::future::block_on(async {
            let mut events = Vec::new();
            while let Some(event) = watch.next().await {
                let last = event.is_err();
                events.push(event);
                if last {
                    break;
                }
            }
            events
        })
    }

    #[test]
    fn an_event_in_any_valid_form_is_split() {
        let object = br#"{"a":{"type":"x"}}"#;
        for text in [
            r#"{"type":"MODIFIED","object":{"a":{"type":"x"}}}"#,
            r#"{ "type": "MODIFIED", "object": {"a":{"type":"x"}} }"#,
            r#"{"object":{"a":{"type":"x"}},"type":"MODIFIED"}"#,
        ] {
            let event = json_event("GET /x", text.as_bytes()).unwrap();
            assert_eq!(event, WatchEvent::Modified(Encoded::json(object)), "{text}");
        }
        for text in [r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":}"#, r#"{"type":"ADDED""#] {
            assert!(json_event("GET /x", text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn events_and_errors_keep_their_order() {
        let events = all(
            "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n{\"object\":{\"metadata\":{\"resourceVersion\":\"4\"}},\"type\":\"BOOKMARK\"}\n\
             {\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n",
        );
        assert_eq!(events[0].as_ref().unwrap(), &WatchEvent::Added(Encoded::json(b"{\"a\":1}")));
        let bookmark = Bookmark { version: 4, initial_events_end: false };
        assert_eq!(events[1].as_ref().unwrap(), &WatchEvent::Bookmark(bookmark));
        assert!(events[2].as_ref().unwrap_err().is_expired());
        let cut = all("{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n{\"type\":\"AD");
        assert!(cut[1].as_ref().unwrap_err().is_transport());
    }

    /// A server may write "no further page" as an empty token.
    #[test]
    fn the_end_of_a_list_has_its_version_and_the_token_of_the_next_page() {
        for (token, expected) in [("", None), ("next", Some("next".to_owned()))] {
            let metadata = format!(r#"{{"resourceVersion":"7","continue":"{token}"}}"#);
            let list = format!(r#"{{"metadata":{metadata},"items":[{{"a":1}}]}}"#);
            let body = http_types::Body::from_string(list);
            let mut list = ListStream::new("GET /x".to_owned(), body);
            let mut next = || futures_lite::future::block_on(list.next()).unwrap();
            assert_eq!(next(), ListPart::Item(Encoded::json(br#"{"a":1}"#)));
            let resource_version = "7".to_owned();
            assert_eq!(next(), ListPart::End { resource_version, continue_token: expected });
        }
    }

    #[test]
    fn protobuf_events_equal_json_events() {
        let read = |bytes: &[u8]| {
            let mut body = http_types::Body::from_bytes(bytes.to_vec());
            body.set_mime(protobuf::MEDIA_TYPE);
            events(body)
        };
        let added = b"\0\0\0\x13\x0a\x05ADDED\x12\x0a\x0a\x08k8s\0\x12\x02\x0a\0";
        // kube-apiserver sends it in this form.
        let expired =
            b"\0\0\0\x63\x0a\x05ERROR\x12\x5a\x0a\x58k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x40\
            \x0a\x06\x0a\0\x12\0\x1a\0\x12\x07Failure\x1a\x21too old resource version: 2 (213)\
            \x22\x07Expired\x30\x9a\x03\x1a\0\x22\0";
        let busy = b"\0\0\0\x4a\x0a\x05ERROR\x12\x41\x0a\x3fk8s\0\x12\x39\x22\x07Timeout\x2a\x2b\
            \x22\x27\x0a\x17ResourceVersionTooLarge\x12\x0cToo large RV\x28\x01\x30\xf8\x03";
        let events = read(&[&added[..], added, expired].concat());
        assert_eq!(events.len(), 3);
        assert_eq!(events[1].as_ref().unwrap(), &WatchEvent::Added(Encoded::protobuf(b"\x0a\0")));
        let error = events[2].as_ref().unwrap_err();
        assert_eq!((error.is_expired(), error.code()), (true, Some(410)));
        assert_eq!(error.to_string(), "too old resource version: 2 (213)");
        let events = read(busy);
        let error = events[0].as_ref().unwrap_err();
        assert!(error.is_too_large_resource_version(), "{error:?}");
        assert_eq!(error.retry_after(), Some(std::time::Duration::from_secs(1)));
        let events = read(&[&added[..], &added[..9]].concat());
        assert!(events[1].as_ref().unwrap_err().is_transport(), "it is cut off");
        let events = read(&[&added[..], &[0xff; 4]].concat());
        assert!(matches!(events[1], Err(Error::Decode { .. })), "it is too long");
    }
}
