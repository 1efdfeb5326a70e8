//! Chunked bodies. However a body is cut, it has the same data and the same end; and a body that is
//! encoded is decoded to itself.

use kube_controller_manager::client::{BadChunk, ChunkDecoder, Piece};

use crate::bytes::{cut, parameters};

/// Decodes the data, and counts the bytes after the end; `None`: the end has not come.
fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, Option<usize>), BadChunk> {
    let (mut decoder, mut body, mut left) = (ChunkDecoder::new(), Vec::new(), 0);
    for mut piece in pieces.iter().copied() {
        while !piece.is_empty() && !decoder.is_done() {
            let Piece { coding, data } = decoder.next(piece)?;
            let (taken, rest) = piece[coding..].split_at(data);
            body.extend_from_slice(taken);
            decoder.consume(data);
            piece = rest;
        }
        left += piece.len();
    }
    Ok((body, decoder.is_done().then_some(left)))
}

/// Encodes these pieces as chunks of HTTP/1.1.
fn encode(pieces: &[&[u8]]) -> Vec<u8> {
    let mut coded = Vec::new();
    for piece in pieces {
        coded.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        coded.extend_from_slice(piece);
        coded.extend_from_slice(b"\r\n");
    }
    coded.extend_from_slice(b"0\r\n\r\n");
    coded
}

/// Checks that a body is decoded the same, however it is cut, and that an encoded one is decoded to
/// itself.
pub fn target(input: &[u8]) {
    let (seed, body) = parameters(input);
    assert_eq!(decode(&cut(seed, body)), decode(&[body]));
    let coded = encode(&cut(seed, body));
    assert_eq!(decode(&cut(!seed, &coded)), Ok((body.to_vec(), Some(0))));
}
