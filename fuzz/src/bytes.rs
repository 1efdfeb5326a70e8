//! Inputs in pieces, as a connection delivers them.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::{AsyncBufRead, AsyncRead};

/// Returns the first byte of an input, and the rest; the parameters of an empty input are zero.
pub fn parameters(input: &[u8]) -> (u8, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (*first, rest))
}

/// Returns whether a text has a character by which the sandbox stores a byte that is not UTF-8:
/// other readers of its JSON do not know them.
pub fn has_raw_bytes(text: &str) -> bool {
    text.contains(|c| ('\u{10ff80}'..='\u{10ffff}').contains(&c))
}

/// Cuts `bytes` into pieces, of sizes that follow from `seed`; none is empty.
pub fn cut(seed: u8, mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut random = fastrand::Rng::with_seed(seed.into());
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let most = bytes.len().min(1 << random.u32(0..12));
        let (piece, rest) = bytes.split_at(random.usize(1..=most));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// A body that arrives in these pieces.
pub struct Pieces(VecDeque<Vec<u8>>);

impl Pieces {
    pub fn new(pieces: &[&[u8]]) -> Pieces {
        Pieces(pieces.iter().map(|piece| piece.to_vec()).collect())
    }
}

impl AsyncBufRead for Pieces {
    fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Poll::Ready(Ok(self.get_mut().0.front().map_or(&[], Vec::as_slice)))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        let Some(mut piece) = self.0.pop_front() else { return };
        if count < piece.len() {
            piece.drain(..count);
            self.0.push_front(piece);
        }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(read) = self.as_mut().poll_fill_buf(context) else { return Poll::Pending };
        let there = read?;
        let count = there.len().min(output.len());
        output[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}
