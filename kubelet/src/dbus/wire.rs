//! The binary form of D-Bus messages: the types that systemd and logind need.
//! <https://dbus.freedesktop.org/doc/dbus-specification.html>

use super::Error;

/// The longest message that is read, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The part of a message whose length is always the same.
pub const PREFIX: usize = 16;

/// A value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Unsigned(u64),
    Text(String),
    Texts(Vec<String>),
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    Bool(bool),
    Int(i32),
    Unsigned(u32),
    Text(String),
    Path(String),
    Variant(Value),
    /// Names with their values.
    Properties(Vec<(&'static str, Value)>),
    /// An empty list of units with their properties.
    NoUnits,
}

impl Argument {
    pub fn text(text: &str) -> Argument {
        Argument::Text(text.to_owned())
    }

    /// Returns the argument's type as D-Bus writes it.
    fn signature(&self) -> &'static str {
        match self {
            Argument::Bool(_) => "b",
            Argument::Int(_) => "i",
            Argument::Unsigned(_) => "u",
            Argument::Text(_) => "s",
            Argument::Path(_) => "o",
            Argument::Variant(_) => "v",
            Argument::Properties(_) => "a(sv)",
            Argument::NoUnits => "a(sa(sv))",
        }
    }
}

/// What a message is. Replies name the serial of their call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Call {
        path: String,
        interface: String,
        member: String,
    },
    Return {
        of: u32,
    },
    Failure {
        of: u32,
        name: String,
    },
    Signal {
        path: String,
        interface: String,
        member: String,
    },
    /// A message of a type that is to be ignored.
    Other,
}

/// A message without its file descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub serial: u32,
    pub destination: String,
    pub signature: String,
    pub body: Body,
}

/// The arguments of a message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    bytes: Vec<u8>,
    at: usize,
    is_big_endian: bool,
}

const CALL: u8 = 1;
const RETURN: u8 = 2;
const FAILURE: u8 = 3;
const SIGNAL: u8 = 4;

/// The numbers of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    /// Appends a string: its length in four bytes, its content and a zero byte.
    fn text(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// Appends a signature: like a string, but its length is one byte.
    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// Writes an array with its length, to which the padding before the first member does not
    /// count.
    fn array(&mut self, align: usize, members: impl FnOnce(&mut Encoder)) {
        self.u32(0);
        let length = self.0.len() - 4;
        self.align(align);
        let begin = self.0.len();
        members(self);
        let bytes = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[length..length + 4].copy_from_slice(&bytes.to_le_bytes());
    }

    /// Writes a value after its own type.
    fn variant(&mut self, value: &Value) {
        match value {
            Value::Bool(value) => {
                self.signature("b");
                self.u32((*value).into());
            }
            Value::Unsigned(value) => {
                self.signature("t");
                self.align(8);
                self.0.extend(value.to_le_bytes());
            }
            Value::Text(text) => {
                self.signature("s");
                self.text(text);
            }
            Value::Texts(texts) => {
                self.signature("as");
                self.array(4, |list| texts.iter().for_each(|text| list.text(text)));
            }
        }
    }

    /// Writes an argument; its type stands in the message's header.
    fn argument(&mut self, argument: &Argument) {
        match argument {
            Argument::Bool(value) => self.u32((*value).into()),
            Argument::Int(value) => self.u32(value.cast_unsigned()),
            Argument::Unsigned(value) => self.u32(*value),
            Argument::Text(text) | Argument::Path(text) => self.text(text),
            Argument::Variant(value) => self.variant(value),
            Argument::Properties(all) => self.array(8, |list| {
                for (name, value) in all {
                    list.align(8);
                    list.text(name);
                    list.variant(value);
                }
            }),
            Argument::NoUnits => self.array(8, |_| {}),
        }
    }

    /// Writes a field of the header after its number and its type.
    fn field(&mut self, code: u8, signature: &str, value: impl FnOnce(&mut Encoder)) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
        value(self);
    }
}

/// Encodes a message.
pub fn encode(kind: &Kind, serial: u32, destination: &str, arguments: &[Argument]) -> Vec<u8> {
    let mut body = Encoder::default();
    arguments.iter().for_each(|argument| body.argument(argument));
    let signature: String = arguments.iter().map(Argument::signature).collect();
    let code = match kind {
        Kind::Call { .. } => CALL,
        Kind::Return { .. } => RETURN,
        Kind::Failure { .. } => FAILURE,
        Kind::Signal { .. } => SIGNAL,
        // Messages of other types are only read.
        Kind::Other => 0,
    };
    let mut message = Encoder(vec![b'l', code, 0, 1]);
    message.u32(u32::try_from(body.0.len()).unwrap_or(u32::MAX));
    message.u32(serial);
    message.array(8, |fields| {
        match kind {
            Kind::Call { path, interface, member } | Kind::Signal { path, interface, member } => {
                fields.field(PATH, "o", |field| field.text(path));
                fields.field(INTERFACE, "s", |field| field.text(interface));
                fields.field(MEMBER, "s", |field| field.text(member));
            }
            Kind::Return { of } => fields.field(REPLY_SERIAL, "u", |field| field.u32(*of)),
            Kind::Failure { of, name } => {
                fields.field(ERROR_NAME, "s", |field| field.text(name));
                fields.field(REPLY_SERIAL, "u", |field| field.u32(*of));
            }
            Kind::Other => {}
        }
        if !destination.is_empty() {
            fields.field(DESTINATION, "s", |field| field.text(destination));
        }
        if !signature.is_empty() {
            fields.field(SIGNATURE, "g", |field| field.signature(&signature));
        }
    });
    message.align(8);
    message.0.extend(body.0);
    message.0
}

/// Returns the length of a message, by its first [`PREFIX`] bytes.
///
/// # Errors
/// It is no message, or too long.
pub fn length(prefix: &[u8]) -> Result<usize, Error> {
    let mut reader = Body::new(prefix.to_vec(), prefix)?;
    // The lengths of the body and of the header's fields.
    reader.at = 4;
    let body = reader.u32()? as usize;
    reader.at = 12;
    let fields = reader.u32()? as usize;
    let length = PREFIX.saturating_add(fields).next_multiple_of(8).saturating_add(body);
    (length <= MAX_MESSAGE).then_some(length).ok_or(Error::Malformed("its message is too long"))
}

/// Decodes a whole message.
///
/// # Errors
/// It is malformed.
pub fn decode(bytes: &[u8]) -> Result<Message, Error> {
    let mut header = Body::new(bytes.to_vec(), bytes)?;
    // After the order of bytes, the type, the flags, the version and the length of the body.
    header.at = 8;
    let serial = header.u32()?;
    let end = header.u32()? as usize + PREFIX;
    let [mut path, mut interface, mut member, mut error, mut destination, mut signature] =
        [const { String::new() }; 6];
    let mut of = 0;
    while header.at < end {
        header.align(8);
        let code = header.byte()?;
        let kind = header.signature()?;
        match (code, kind.as_str()) {
            (PATH, "o") => path = header.text()?,
            (INTERFACE, "s") => interface = header.text()?,
            (MEMBER, "s") => member = header.text()?,
            (ERROR_NAME, "s") => error = header.text()?,
            (DESTINATION, "s") => destination = header.text()?,
            (SIGNATURE, "g") => signature = header.signature()?,
            (REPLY_SERIAL, "u") => of = header.u32()?,
            // Other fields are skipped, by their type.
            (_, "s" | "o") => drop(header.text()?),
            (_, "u") => drop(header.u32()?),
            (_, "g") => drop(header.signature()?),
            _ => return Err(Error::Malformed("a header field of an unknown type")),
        }
    }
    let body = bytes.get(end.next_multiple_of(8)..).unwrap_or_default();
    let kind = match bytes[1] {
        CALL => Kind::Call { path, interface, member },
        RETURN => Kind::Return { of },
        FAILURE => Kind::Failure { of, name: error },
        SIGNAL => Kind::Signal { path, interface, member },
        _ => Kind::Other,
    };
    let body = Body::new(body.to_vec(), bytes)?;
    Ok(Message { kind, serial, destination, signature, body })
}

impl Body {
    /// Creates a reader of the body. `message`: the bytes that say the order of bytes.
    fn new(bytes: Vec<u8>, message: &[u8]) -> Result<Body, Error> {
        match message.first() {
            Some(b'l') => Ok(Body { bytes, at: 0, is_big_endian: false }),
            Some(b'B') => Ok(Body { bytes, at: 0, is_big_endian: true }),
            _ => Err(Error::Malformed("its message has no order of bytes")),
        }
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    /// Takes the next bytes.
    fn take(&mut self, count: usize) -> Result<&[u8], Error> {
        let end = self.at.saturating_add(count);
        let found = self.bytes.get(self.at..end).ok_or(Error::Malformed("a message that ends"))?;
        self.at = end;
        Ok(found)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    /// Takes the next number of `SIZE` bytes, in the message's order of bytes.
    fn number<const SIZE: usize>(&mut self) -> Result<u64, Error> {
        self.align(SIZE);
        let is_big_endian = self.is_big_endian;
        let bytes = self.take(SIZE)?.iter();
        let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        Ok(if is_big_endian { bytes.fold(0, add) } else { bytes.rev().fold(0, add) })
    }

    /// Returns the next argument, of the type `u`, `b` or `h`.
    ///
    /// # Errors
    /// The message has no more.
    pub fn u32(&mut self) -> Result<u32, Error> {
        // It has no more bits.
        Ok(self.number::<4>()? as u32)
    }

    /// Returns the next argument, of the type `t`.
    ///
    /// # Errors
    /// The message has no more.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.number::<8>()
    }

    /// Returns the next argument, of the type `s` or `o`.
    ///
    /// # Errors
    /// The message has no more, or it is no text.
    pub fn text(&mut self) -> Result<String, Error> {
        let length = self.u32()? as usize;
        self.terminated(length)
    }

    /// Returns the next argument, of the type `g`.
    ///
    /// # Errors
    /// The message has no more, or it is no text.
    pub fn signature(&mut self) -> Result<String, Error> {
        let length = self.byte()?.into();
        self.terminated(length)
    }

    /// Takes a text of this length, and the zero after it.
    fn terminated(&mut self, length: usize) -> Result<String, Error> {
        let text = self.take(length)?.to_vec();
        self.byte()?;
        String::from_utf8(text).map_err(|_| Error::Malformed("a text that is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Kind {
        Kind::Call {
            path: "/org/freedesktop/DBus".to_owned(),
            interface: "org.freedesktop.DBus".to_owned(),
            member: "Hello".to_owned(),
        }
    }

    /// As other programs write it.
    #[test]
    fn bytes_are_those_of_the_specification() {
        let expected: &[u8] = b"l\x01\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x6d\x00\x00\x00\
            \x01\x01o\x00\x15\x00\x00\x00/org/freedesktop/DBus\x00\x00\x00\
            \x02\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00\
            \x03\x01s\x00\x05\x00\x00\x00Hello\x00\x00\x00\
            \x06\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00";
        let bytes = encode(&hello(), 1, "org.freedesktop.DBus", &[]);
        assert_eq!(bytes, expected);
        assert_eq!(length(&bytes).ok(), Some(bytes.len()));
    }

    #[test]
    fn properties_have_the_alignment_of_their_types() {
        let properties = Argument::Properties(vec![
            ("A", Value::Bool(true)),
            ("B", Value::Texts(vec!["x".to_owned()])),
            ("C", Value::Unsigned(7)),
        ]);
        let bytes = encode(&hello(), 1, "", &[Argument::text("u"), properties]);
        let message = decode(&bytes).expect("a message");
        assert_eq!(message.signature, "sa(sv)");
        let mut body = message.body;
        assert_eq!(body.text().expect("text"), "u");
        assert_eq!(body.u32().expect("a length"), 16 + 24 + 24);
        body.align(8);
        assert_eq!((body.text().expect("text"), body.signature().expect("one")), pair("A", "b"));
        assert_eq!(body.u32().expect("a bool"), 1);
        body.align(8);
        assert_eq!((body.text().expect("text"), body.signature().expect("one")), pair("B", "as"));
        assert_eq!(
            (body.u32().expect("a length"), body.text().expect("text")),
            (6, "x".to_owned())
        );
        body.align(8);
        assert_eq!((body.text().expect("text"), body.signature().expect("one")), pair("C", "t"));
        assert_eq!(body.u64().expect("a number"), 7);
        assert!(body.byte().is_err());
    }

    fn pair(name: &str, signature: &str) -> (String, String) {
        (name.to_owned(), signature.to_owned())
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_cut_ones_are_refused() {
        let signal = Kind::Signal {
            path: "/a".to_owned(),
            interface: "b.c".to_owned(),
            member: "D".to_owned(),
        };
        let failure = Kind::Failure { of: 3, name: "e.F".to_owned() };
        for kind in [hello(), signal, failure, Kind::Return { of: 9 }] {
            let bytes = encode(&kind, 5, "x.y", &[Argument::text("text"), Argument::Int(-1)]);
            assert_eq!(length(&bytes).ok(), Some(bytes.len()));
            let mut message = decode(&bytes).expect("a message");
            assert_eq!((&message.kind, message.serial), (&kind, 5));
            assert_eq!((&*message.destination, &*message.signature), ("x.y", "si"));
            assert_eq!(message.body.text().expect("text"), "text");
            assert_eq!(message.body.u32().expect("a number"), u32::MAX);
            for end in 0..bytes.len() {
                let cut = decode(&bytes[..end]);
                let mut rest = cut.map(|message| message.body);
                let is_refused = rest.as_mut().map(|body| (body.text(), body.u32()));
                assert!(!matches!(is_refused, Ok((Ok(_), Ok(_)))), "{kind:?} {end}");
            }
        }
        let big = b"B\x02\0\x01\0\0\0\x04\0\0\0\x01\0\0\0\x08\x05\x01u\0\0\0\0\x09\0\0\x01\0";
        let mut message = decode(big).expect("a message");
        assert_eq!(message.kind, Kind::Return { of: 9 });
        assert_eq!(message.body.u32().expect("a number"), 256);
        assert!(length(b"l\x02\0\x01\xff\xff\xff\xff\0\0\0\x01\0\0\0\0").is_err());
        assert!(length(b"x\x02\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0").is_err());
    }
}
