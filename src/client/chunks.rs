//! The chunked transfer coding (RFC 9112, 7.1) of a body that arrives in pieces of any size.

/// The place in the coding of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size {
        value: u64,
        digits: u8,
    },
    /// A chunk extension: skipped.
    Extension {
        value: u64,
    },
    SizeLf {
        value: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    LastLf,
    Done,
}

/// Finds the data of a body between the bytes of its coding, in place: it holds and copies no
/// bytes. Never waits. Upstream: `net/http/internal.NewChunkedReader`.
///
/// For each input, call [`next`](ChunkDecoder::next), pass over the coding, use the data, and call
/// [`consume`](ChunkDecoder::consume) with the number of bytes used.
#[derive(Debug)]
pub struct ChunkDecoder {
    state: State,
}

/// The coding is malformed. The connection cannot be used again.
#[derive(Debug, PartialEq, Eq)]
pub struct BadChunk;

impl std::fmt::Display for BadChunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed chunked body")
    }
}

impl std::error::Error for BadChunk {}

/// The number of bytes of coding at the front of the input, and of data after them.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes to pass over.
    pub coding: usize,
    /// Bytes of data that follow; fewer than the chunk has where the input ends in it.
    pub data: usize,
}

impl Default for ChunkDecoder {
    fn default() -> ChunkDecoder {
        ChunkDecoder { state: State::Size { value: 0, digits: 0 } }
    }
}

impl ChunkDecoder {
    /// Makes a decoder at the start of a body.
    pub fn new() -> ChunkDecoder {
        ChunkDecoder::default()
    }

    /// Returns whether the last chunk and the trailers have been read. Further bytes belong to the
    /// next message.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Reads the coding at the front of `input`, which begins where the last data ended. The data
    /// after the coding counts as read only with [`ChunkDecoder::consume`]. Without data all of
    /// `input` was coding, or the body ends.
    ///
    /// # Errors
    /// [`BadChunk`] at a byte that is not allowed there. Sizes of more than 16 digits are
    /// malformed.
    pub fn next(&mut self, input: &[u8]) -> Result<Piece, BadChunk> {
        let mut coding = 0;
        while let Some(byte) = input.get(coding)
            && self.state != State::Done
        {
            if let State::Data { left } = self.state {
                let data = left.min((input.len() - coding) as u64) as usize;
                return Ok(Piece { coding, data });
            }
            self.state = next_state(self.state, *byte)?;
            coding += 1;
        }
        Ok(Piece { coding, data: 0 })
    }

    /// Records that `count` bytes of the data that was found last have been used.
    pub fn consume(&mut self, count: usize) {
        if let State::Data { left } = self.state {
            let left = left.saturating_sub(count as u64);
            self.state = if left == 0 { State::DataCr } else { State::Data { left } };
        }
    }
}

/// Returns the state after one byte that is not data.
fn next_state(state: State, byte: u8) -> Result<State, BadChunk> {
    let after_size =
        |value| if value == 0 { State::TrailerStart } else { State::Data { left: value } };
    Ok(match (state, byte) {
        (State::Size { value, digits }, _) if byte.is_ascii_hexdigit() => {
            if digits == 16 {
                return Err(BadChunk);
            }
            let digit = (byte as char).to_digit(16).map_or(0, u64::from);
            State::Size { value: value << 4 | digit, digits: digits + 1 }
        }
        (State::Size { digits: 0, .. }, _) => return Err(BadChunk),
        (State::Size { value, .. }, b';' | b' ' | b'\t') => State::Extension { value },
        (State::Size { value, .. } | State::Extension { value }, b'\r') => State::SizeLf { value },
        (
            State::Size { value, .. } | State::Extension { value } | State::SizeLf { value },
            b'\n',
        ) => after_size(value),
        (State::Extension { value }, _) => State::Extension { value },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataCr | State::DataLf, b'\n') => State::Size { value: 0, digits: 0 },
        (State::TrailerStart, b'\r') => State::LastLf,
        (State::TrailerStart | State::LastLf, b'\n') => State::Done,
        (State::TrailerStart, _) => State::Trailer,
        (State::Trailer, b'\n') => State::TrailerStart,
        (State::Trailer, _) => State::Trailer,
        _ => return Err(BadChunk),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `pieces` one after the other, `room` bytes of output at a time.
    fn decode(pieces: &[&[u8]], room: usize) -> Result<(Vec<u8>, usize, bool), BadChunk> {
        let mut decoder = ChunkDecoder::new();
        let (mut body, mut left) = (Vec::new(), 0);
        for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() && !decoder.is_done() {
                let Piece { coding, data } = decoder.next(piece)?;
                piece = &piece[coding..];
                let (taken, rest) = piece.split_at(data.min(room));
                body.extend_from_slice(taken);
                decoder.consume(taken.len());
                piece = rest;
            }
            left += piece.len();
        }
        Ok((body, left, decoder.is_done()))
    }

    #[test]
    fn a_body_may_be_cut_at_every_byte() {
        let text = b"4;name=\"v\"\r\nWiki\r\n5\r\npedia\r\n0A \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nNEXT";
        for cut in 0..=text.len() {
            for room in [1, 3, 64] {
                let (a, b) = text.split_at(cut);
                let (body, left, done) = decode(&[a, b], room).unwrap();
                assert_eq!(body, b"Wikipedia0123456789", "cut at {cut}");
                assert_eq!((left, done), (4, true), "cut at {cut}");
            }
        }
    }

    #[test]
    fn malformed_coding_is_refused() {
        for text in ["\r\n", "x\r\n", "4\r\nWikiX", "11111111111111111\r\n", "0\r\n\rX", "1\rX"] {
            assert_eq!(decode(&[text.as_bytes()], 8), Err(BadChunk), "{text:?}");
        }
        let (_, _, done) = decode(&[b"4\r\nWiki\r\n0\r\n\r"], 8).unwrap();
        assert!(!done, "the last line feed has not arrived");
    }
}
