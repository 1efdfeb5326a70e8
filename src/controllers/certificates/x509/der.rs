//! ASN.1 in its distinguished encoding: elements read one after another, and written from the
//! inside out. Upstream: Go's `encoding/asn1`, `cryptobyte`.

pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const NULL: u8 = 0x05;
pub const OBJECT_IDENTIFIER: u8 = 0x06;
pub const UTF8_STRING: u8 = 0x0c;
pub const PRINTABLE_STRING: u8 = 0x13;
pub const UTC_TIME: u8 = 0x17;
pub const GENERALIZED_TIME: u8 = 0x18;
pub const BOOLEAN: u8 = 0x01;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;

/// A whole one.
pub const EMPTY_SEQUENCE: &[u8] = &[SEQUENCE, 0];

/// The tag of an implicit field with this number: primitive.
pub const fn context(number: u8) -> u8 {
    0x80 | number
}

/// The tag of a field with this number that holds elements.
pub const fn constructed(number: u8) -> u8 {
    0xa0 | number
}

/// The bytes are not the DER that is expected at that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "asn1: malformed {}", self.0)
    }
}

pub struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    /// With tag and length.
    pub whole: &'a [u8],
}

/// Elements, one after another.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element, of any tag. Lengths must be as short as they can be.
    pub fn any(&mut self, what: &'static str) -> Result<Element<'a>, Malformed> {
        let element = self.element().ok_or(Malformed(what))?;
        self.0 = &self.0[element.whole.len()..];
        Ok(element)
    }

    fn element(&self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        // Numbers above 30 take more than one byte; nothing here has them.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(first) {
            short @ ..0x80 => (short, rest),
            long => {
                let (digits, rest) = rest.split_at_checked(long - 0x80)?;
                if digits.is_empty() || digits.len() > 4 || digits[0] == 0 {
                    return None;
                }
                let length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
                (length, (length >= 0x80).then_some(rest)?)
            }
        };
        let content = rest.get(..length)?;
        let whole = &self.0[..self.0.len() - rest.len() + length];
        Some(Element { tag, content, whole })
    }

    pub fn expect(&mut self, tag: u8, what: &'static str) -> Result<Element<'a>, Malformed> {
        let before = *self;
        let element = self.any(what)?;
        if element.tag != tag {
            *self = before;
            return Err(Malformed(what));
        }
        Ok(element)
    }

    /// The elements of the next one, which has this tag.
    pub fn nested(&mut self, tag: u8, what: &'static str) -> Result<Reader<'a>, Malformed> {
        Ok(Reader(self.expect(tag, what)?.content))
    }

    /// The bytes of a BIT STRING that has whole bytes.
    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        match self.expect(BIT_STRING, what)?.content {
            [0, bytes @ ..] => Ok(bytes),
            _ => Err(Malformed(what)),
        }
    }

    pub fn end(&self, what: &'static str) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed(what)) }
    }
}

pub fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits = &length[length.iter().take_while(|digit| **digit == 0).count()..];
    let mut out = Vec::with_capacity(content.len() + 2 + digits.len());
    out.push(tag);
    match digits {
        [] => out.push(0),
        [short @ ..0x80] => out.push(*short),
        digits => {
            // No more than eight.
            out.push(0x80 | u8::try_from(digits.len()).unwrap_or_default());
            out.extend_from_slice(digits);
        }
    }
    out.extend_from_slice(content);
    out
}

pub fn sequence(parts: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let parts: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
    element(SEQUENCE, &parts.concat())
}

/// Of these bytes: the most significant first, no sign.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let start = bytes.iter().take_while(|byte| **byte == 0).count().min(bytes.len() - 1);
    let mut content = Vec::with_capacity(bytes.len() + 1);
    if bytes[start] >= 0x80 {
        content.push(0);
    }
    content.extend_from_slice(&bytes[start..]);
    element(INTEGER, &content)
}

/// `content` as a BIT STRING whose last `unused` bits do not count.
pub fn bit_string(content: &[u8], unused: u8) -> Vec<u8> {
    element(BIT_STRING, &[&[unused], content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_as_they_are_written() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000] {
            let content = vec![7; length];
            let written = [element(OCTET_STRING, &content), element(NULL, &[])].concat();
            let mut reader = Reader::new(&written);
            let read = reader.expect(OCTET_STRING, "text").unwrap();
            assert_eq!((read.content, read.whole.len()), (&*content, written.len() - 2));
            assert_eq!(reader.expect(OCTET_STRING, "x").err(), Some(Malformed("x")));
            assert_eq!(reader.any("null").unwrap().tag, NULL);
            assert_eq!(reader.end("end"), Ok(()));
            assert!(reader.any("more").is_err());
            for cut in 0..written.len() - 2 {
                assert!(Reader::new(&written[..cut]).any("cut").is_err(), "{cut} of {length}");
            }
        }
    }

    #[test]
    fn lengths_that_are_not_the_shortest_are_refused() {
        let bad: [&[u8]; 6] = [
            &[0x04, 0x81, 0x01, 0x00],
            &[0x04, 0x82, 0x00, 0x80],
            &[0x04, 0x80, 0x00],
            &[0x04, 0x85, 1, 0, 0, 0, 0],
            &[0x1f, 0x01, 0x00],
            &[0x04, 0xff],
        ];
        for bytes in bad {
            assert!(Reader::new(bytes).any("bad").is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn integers_are_positive_and_short() {
        for (bytes, content) in [
            (&[0_u8, 0][..], &[0_u8][..]),
            (&[0, 1], &[1]),
            (&[0x7f], &[0x7f]),
            (&[0x80], &[0, 0x80]),
            (&[0, 0xff, 0], &[0, 0xff, 0]),
        ] {
            assert_eq!(unsigned(bytes), element(INTEGER, content));
        }
    }
}
