//! Lists and watches in protobuf, cut into their pieces as they arrive.

use super::split::ListPiece;
use crate::objects::protobuf::{self, Short, Wire};

/// The longest event that is accepted, in bytes, as in client-go's decoder.
const LONGEST_EVENT: usize = 16 << 20;

/// The part of a list's body to which the next byte belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Magic,
    Envelope,
    /// The list, and the number of its bytes that are not read yet.
    List(u64),
    End,
}

/// A list's body: in the envelope's second field a message of the list's metadata and the items.
#[derive(Debug, Default)]
pub struct ListFrames {
    inside: Inside,
    /// The beginning of a piece whose end has not arrived.
    held: Vec<u8>,
}

impl ListFrames {
    /// Takes further `bytes` of the body, and calls `found` with each piece that is whole now,
    /// items in their order. Bytes after the list are skipped: the envelope's other fields.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        found: &mut dyn FnMut(ListPiece),
    ) -> Result<(), protobuf::Error> {
        self.held.extend_from_slice(bytes);
        let mut held = self.held.as_slice();
        while self.inside != Inside::End {
            let mut ahead = held;
            match step(&mut self.inside, &mut ahead, found) {
                Ok(()) => held = ahead,
                Err(Short::CutOff) => break,
                Err(short) => return Err(short.into()),
            }
        }
        if self.inside == Inside::End {
            held = &[];
        }
        let done = self.held.len() - held.len();
        if done > 0 {
            self.held.drain(..done);
            self.held.shrink_to(64 << 10);
        }
        Ok(())
    }
}

/// Takes the next part before the list's end from the front of `from`, and passes it to `found` if it
/// is a piece of the list. `Err(Short::CutOff)`: the end of the part has not arrived.
fn step(
    inside: &mut Inside,
    from: &mut &[u8],
    found: &mut dyn FnMut(ListPiece),
) -> Result<(), Short> {
    match *inside {
        Inside::Magic => {
            let (magic, rest) = from.split_at_checked(4).ok_or(Short::CutOff)?;
            if !protobuf::is_enveloped(magic) {
                return Err(Short::Malformed);
            }
            (*from, *inside) = (rest, Inside::Envelope);
        }
        Inside::Envelope => {
            let mut ahead = *from;
            // The second field, a message: the list. Other fields are skipped.
            if protobuf::tag(&mut ahead)? == (2, 2) {
                *inside = Inside::List(protobuf::varint(&mut ahead)?);
                *from = ahead;
            } else {
                protobuf::field(from)?;
            }
        }
        Inside::List(0) => {
            found(ListPiece::End);
            *inside = Inside::End;
        }
        Inside::List(left) => {
            let before = from.len() as u64;
            let piece = match protobuf::field(from) {
                // The list is here to its end, so no field of it may be cut off.
                Err(Short::CutOff) if before >= left => return Err(Short::Malformed),
                piece => piece?,
            };
            match piece {
                Some((1, Wire::Bytes(metadata))) => found(ListPiece::Metadata(metadata.into())),
                Some((2, Wire::Bytes(item))) => found(ListPiece::Item(item.into())),
                Some(_) => {}
                None => return Err(Short::CutOff),
            }
            let taken = before - from.len() as u64;
            *inside = Inside::List(left.checked_sub(taken).ok_or(Short::Malformed)?);
        }
        Inside::End => {}
    }
    Ok(())
}

/// A watch's body: each event after its length in four bytes, the highest first.
/// Upstream: `framer.NewLengthDelimitedFrameReader`.
#[derive(Debug, Default)]
pub struct WatchFrames {
    /// The beginning of an event whose end has not arrived.
    held: Vec<u8>,
}

impl WatchFrames {
    /// Takes further `bytes` of the body, and calls `found` with each event that is whole now.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<(), protobuf::Error> {
        if self.held.is_empty() {
            let rest = frames(bytes, found)?;
            self.held.extend_from_slice(rest);
            return Ok(());
        }
        self.held.extend_from_slice(bytes);
        let rest = frames(&self.held, found)?.len();
        self.held.drain(..self.held.len() - rest);
        Ok(())
    }

    /// Returns whether no part of an event is held.
    pub fn is_between(&self) -> bool {
        self.held.is_empty()
    }

    /// Frees the memory that holds no part of an event.
    pub fn shrink(&mut self) {
        self.held.shrink_to_fit();
    }
}

/// Calls `found` with each whole event; returns the bytes after the last of them.
fn frames<'a>(mut bytes: &'a [u8], found: &mut dyn FnMut(&[u8])) -> Result<&'a [u8], Short> {
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > LONGEST_EVENT {
            return Err(Short::Malformed);
        }
        let Some((event, rest)) = rest.split_at_checked(length) else { break };
        found(event);
        bytes = rest;
    }
    Ok(bytes)
}

/// Splits an encoded event into its type and its object in an envelope.
/// Upstream: `metav1.WatchEvent`.
pub fn event(mut event: &[u8]) -> Result<(&[u8], &[u8]), protobuf::Error> {
    let (mut kind, mut object): (&[u8], &[u8]) = (&[], &[]);
    while let Some((number, wire)) = protobuf::field(&mut event)? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => kind = text,
            // A RawExtension, whose only field is the object.
            (2, Wire::Bytes(raw)) => object = protobuf::find(raw, 1)?,
            _ => {}
        }
    }
    Ok((kind, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        let length = u8::try_from(bytes.len()).unwrap();
        field.extend(if length < 128 { vec![length] } else { vec![length | 0x80, 1] });
        field.extend_from_slice(bytes);
        field
    }

    fn list() -> Vec<u8> {
        let items = [field(2, &[b'a'; 200]), field(2, b""), field(2, b"c")].concat();
        let list = [field(1, b"meta"), field(7, b"?"), items].concat();
        [&b"k8s\0"[..], &field(1, b"type"), &field(2, &list), &field(3, b""), &field(4, b"")]
            .concat()
    }

    #[test]
    fn lists_are_cut_at_every_byte() {
        let whole = list();
        let pieces = [
            ListPiece::Metadata(b"meta".to_vec()),
            ListPiece::Item(vec![b'a'; 200]),
            ListPiece::Item(vec![]),
            ListPiece::Item(b"c".to_vec()),
            ListPiece::End,
        ];
        for cut in 0..=whole.len() {
            let (mut frames, mut found) = (ListFrames::default(), Vec::new());
            for part in [&whole[..cut], &whole[cut..]] {
                frames.feed(part, &mut |piece| found.push(piece)).unwrap();
            }
            assert_eq!(found, pieces, "cut at {cut}");
            frames.feed(&whole, &mut |piece| panic!("{piece:?} after the end")).unwrap();
            assert!(frames.held.is_empty(), "cut at {cut}: no byte after the end is kept");
        }
    }

    #[test]
    fn malformed_lists_are_refused() {
        let overlong = [&b"k8s\0"[..], &[0x12, 3], &field(2, b"four")].concat();
        for bytes in [&b"{\"items\":[]}"[..], &overlong, b"k8s\0\x0f"] {
            assert!(ListFrames::default().feed(bytes, &mut |_| {}).is_err(), "{bytes:?}");
        }
        let (mut frames, mut ended) = (ListFrames::default(), false);
        let whole = list();
        frames.feed(&whole[..whole.len() - 5], &mut |p| ended |= p == ListPiece::End).unwrap();
        assert!(!ended, "it is cut off");
    }

    #[test]
    fn watches_are_cut_at_every_byte() {
        let object = field(1, b"k8s\0...");
        let first = [field(1, b"ADDED"), field(2, &object), field(3, b"?")].concat();
        let second = field(1, b"BOOKMARK");
        let mut whole = Vec::new();
        for event in [&first, &second] {
            whole.extend(u32::try_from(event.len()).unwrap().to_be_bytes());
            whole.extend(event);
        }
        for cut in 0..=whole.len() {
            let (mut frames, mut found) = (WatchFrames::default(), Vec::new());
            for part in [&whole[..cut], &whole[cut..]] {
                frames.feed(part, &mut |event| found.push(event.to_vec())).unwrap();
            }
            assert_eq!(found, [first.clone(), second.clone()], "cut at {cut}");
            assert!(frames.is_between());
        }
        assert_eq!(event(&first).unwrap(), (&b"ADDED"[..], &b"k8s\0..."[..]));
        assert_eq!(event(&second).unwrap(), (&b"BOOKMARK"[..], &b""[..]));
        assert!(event(&first[..9]).is_err());
        assert!(WatchFrames::default().feed(&[1, 0, 0, 1], &mut |_| {}).is_err(), "too long");
    }
}
