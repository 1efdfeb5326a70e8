//! Lists and watches in JSON and protobuf. However a body is cut, it has the same parts; and the
//! parts of well-formed JSON are those that serde_json finds.

use futures_lite::future::block_on;
use http_client::http_types::Body;
use kube_controller_manager::client::{DocumentSplitter, ListStream, WatchStream};
use kube_controller_manager::objects::{Encoded, ListPart, WatchEvent, protobuf};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::bytes::{Pieces, cut, parameters};

fn body(pieces: &[&[u8]], is_protobuf: bool) -> Body {
    let mut body = Body::from_reader(Pieces::new(pieces), None);
    let media = if is_protobuf { protobuf::MEDIA_TYPE } else { "application/json" };
    body.set_mime(media);
    body
}

/// Reads the parts of a list, and whether it ends well.
fn list(body: Body) -> (Vec<ListPart<Encoded>>, bool) {
    let (mut stream, mut parts) = (ListStream::new("LIST".to_owned(), body), Vec::new());
    loop {
        match block_on(stream.next()) {
            Err(_) => return (parts, false),
            Ok(part) => parts.push(part),
        }
        if matches!(parts.last(), Some(ListPart::End { .. })) {
            return (parts, true);
        }
    }
}

/// Reads the events of a watch, and whether it ends well.
fn watch(body: Body) -> (Vec<WatchEvent<Encoded>>, bool) {
    let (mut stream, mut events) = (WatchStream::new("WATCH".to_owned(), body), Vec::new());
    loop {
        match block_on(stream.next()) {
            None => return (events, true),
            Some(Err(_)) => return (events, false),
            Some(Ok(event)) => events.push(event),
        }
    }
}

/// Checks that the parts of a whole and of a cut text agree. An error may hide parts that arrived
/// together with it.
fn assert_same<P: PartialEq + std::fmt::Debug>(whole: (Vec<P>, bool), cut: (Vec<P>, bool)) {
    assert_eq!(whole.1, cut.1, "{whole:?} {cut:?}");
    if whole.1 {
        assert_eq!(whole.0, cut.0);
    } else {
        assert!(cut.0.starts_with(&whole.0), "{whole:?} {cut:?}");
    }
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
    metadata: Option<ListMeta>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: Option<String>,
}

/// Compares the stream's parts of a list with those that serde_json reads.
fn compare_list(json: &[u8], parts: &(Vec<ListPart<Encoded>>, bool)) {
    let Ok(List { items, metadata: Some(meta) }) = serde_json::from_slice(json) else { return };
    // The cutter takes names as they are written, and only objects for items.
    if json.contains(&b'\\') || !items.iter().all(|item| item.get().starts_with('{')) {
        return;
    }
    let items = items.iter().map(|item| ListPart::Item(Encoded::json(item.get())));
    let end = ListPart::End {
        resource_version: meta.resource_version,
        continue_token: meta.r#continue.filter(|token| !token.is_empty()),
    };
    assert_eq!(*parts, (items.chain([end]).collect(), true));
}

/// Splits `json` into its documents with serde_json; `None`: it is malformed, or one of them is
/// neither an object nor an array.
fn documents(json: &[u8]) -> Option<Vec<&RawValue>> {
    let documents = serde_json::Deserializer::from_slice(json).into_iter::<&RawValue>();
    let documents = documents.collect::<Result<Vec<_>, _>>().ok()?;
    documents.iter().all(|document| document.get().starts_with(['{', '['])).then_some(documents)
}

/// Checks that the splitter finds these documents in their pieces.
fn compare_documents(documents: &[&RawValue], pieces: &[&[u8]]) {
    // Line ends between tokens are lost.
    let plain = |text: &[u8]| text.iter().copied().filter(|byte| *byte != b'\n').collect();
    let expected: Vec<Vec<u8>> =
        documents.iter().map(|document| plain(document.get().as_bytes())).collect();
    let (mut splitter, mut found) = (DocumentSplitter::default(), Vec::new());
    for piece in pieces {
        splitter.feed(piece, &mut |document| found.push(plain(document.trim_ascii_end())));
    }
    assert_eq!(found, expected);
    assert!(splitter.is_between());
}

/// Checks that lists and watches are read the same, however their bytes are cut.
pub fn target(input: &[u8]) {
    let (seed, bytes) = parameters(input);
    let pieces = cut(seed, bytes);
    for is_protobuf in [false, true] {
        let whole = list(body(&[bytes], is_protobuf));
        if !is_protobuf {
            compare_list(bytes, &whole);
        }
        assert_same(whole, list(body(&pieces, is_protobuf)));
        let (whole, cut) = (watch(body(&[bytes], is_protobuf)), watch(body(&pieces, is_protobuf)));
        // The splitter recognizes whole lines without reading them, so where text is malformed it
        // depends on the pieces what is cut out of it.
        if is_protobuf || documents(bytes).is_some() {
            assert_same(whole, cut);
        }
    }
    if let Some(documents) = documents(bytes) {
        compare_documents(&documents, &pieces);
    }
}
