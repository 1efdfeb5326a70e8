//! Answers of a server, as the client reads their heads. However an answer is cut, it has the same
//! head, and no byte after the head is lost.

use futures_lite::AsyncReadExt;
use futures_lite::future::block_on;
use kube_controller_manager::client::read_head;

use crate::bytes::{Pieces, cut, parameters};

/// Reads the head, and the bytes after it.
fn read(pieces: &[&[u8]]) -> Option<(String, Vec<u8>)> {
    block_on(async {
        let mut body = Pieces::new(pieces);
        let head = read_head(&mut body).await.ok()?;
        assert!((200..600).contains(&head.code), "{head:?}");
        let mut rest = Vec::new();
        body.read_to_end(&mut rest).await.ok()?;
        Some((format!("{head:?}"), rest))
    })
}

/// Checks that a head is read the same, however the answer is cut.
pub fn target(input: &[u8]) {
    let (seed, answer) = parameters(input);
    let whole = read(&[answer]);
    assert_eq!(read(&cut(seed, answer)), whole);
    if let Some((_, rest)) = whole {
        assert!(answer.ends_with(&rest));
    }
}
