//! pprof's format: the message `Profile` of `profile.proto`, gzipped. Upstream: `runtime/pprof`.

use std::collections::HashMap;
use std::time::Duration;

use crate::gzip;
use crate::maps::Mapping;
use crate::sampler::{PERIOD, Stacks};
use crate::symbols::Symbols;

/// The data of a profile.
pub struct Profile<'a> {
    /// The names and units of a sample's values.
    values: &'a [(&'a str, &'a str)],
    /// The name, the unit and the size of the sampling period.
    period: (&'a str, &'a str, i64),
    /// Since 1970.
    began: Duration,
    lasted: Duration,
    mappings: &'a [Mapping],
    samples: Vec<(Vec<Frame>, Vec<i64>)>,
    /// Whether the names of functions are known.
    named: bool,
}

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// 0: known only by name.
    pub address: u64,
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// A count at a place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub file: String,
    pub line: u32,
    pub count: u64,
}

impl<'a> Profile<'a> {
    /// Builds a profile of CPU time; each sample stands for [`PERIOD`]. `began`: since 1970.
    pub fn of_cpu(
        stacks: &Stacks,
        mappings: &'a [Mapping],
        symbols: Option<&Symbols>,
        began: Duration,
        lasted: Duration,
    ) -> Profile<'a> {
        let named = symbols.is_some_and(|symbols| !symbols.is_empty());
        let mut names: HashMap<usize, String> = HashMap::new();
        let mut frame = |(depth, address): (usize, &usize)| {
            // A caller's address is that of its next instruction, which may be of another line.
            let address = if depth == 0 { *address } else { address.saturating_sub(1) };
            let find = || symbols.and_then(|s| s.name(address, mappings)).unwrap_or_default();
            let function = names.entry(address).or_insert_with(find).clone();
            Frame { address: address as u64, function, ..Frame::default() }
        };
        let period = PERIOD.as_nanos() as i64;
        let sample = |(stack, count): (&Vec<usize>, &u64)| {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            let frames = stack.iter().enumerate().map(&mut frame).collect();
            (frames, vec![count, count.saturating_mul(period)])
        };
        let mut samples: Vec<_> = stacks.iter().map(sample).collect();
        samples.sort_by(|(_, a), (_, b)| b.cmp(a));
        Profile {
            values: &[("samples", "count"), ("cpu", "nanoseconds")],
            period: ("cpu", "nanoseconds", period),
            began,
            lasted,
            mappings,
            samples,
            named,
        }
    }

    /// Builds a profile of the things that exist now, by the place in the source that created them.
    /// `what`: the name and the unit of the count. `now`: since 1970.
    pub fn of_counts(
        what: &'a [(&'a str, &'a str)],
        counts: &[Counted],
        now: Duration,
    ) -> Profile<'a> {
        let sample = |counted: &Counted| {
            let Counted { file, line, count } = counted;
            let function = format!("{file}:{line}");
            let frame = Frame { address: 0, function, file: file.clone(), line: *line };
            (vec![frame], vec![i64::try_from(*count).unwrap_or(i64::MAX)])
        };
        Profile {
            values: what,
            period: what.first().map_or(("", "", 1), |(name, unit)| (name, unit, 1)),
            began: now,
            lasted: Duration::ZERO,
            mappings: &[],
            samples: counts.iter().map(sample).collect(),
            named: true,
        }
    }

    /// Returns the gzipped message.
    pub fn encoded(&self) -> Vec<u8> {
        gzip(&self.message())
    }

    /// Encodes the profile as protobuf.
    fn message(&self) -> Vec<u8> {
        // The numbers are those of the fields in `profile.proto`, whose first string must be empty.
        let mut strings = Strings::default();
        strings.id("");
        let mut out = Message::default();
        for (name, unit) in self.values {
            let value = value_type(&mut strings, name, unit);
            out.message(1, &value);
        }
        let mut locations: HashMap<&Frame, u64> = HashMap::new();
        let mut found: Vec<&Frame> = Vec::new();
        for (frames, values) in &self.samples {
            let ids = frames.iter().map(|frame| {
                *locations.entry(frame).or_insert_with(|| {
                    found.push(frame);
                    found.len() as u64
                })
            });
            let mut sample = Message::default();
            sample.packed(1, ids);
            sample.packed(2, values.iter().map(|value| *value as u64));
            out.message(2, &sample);
        }
        for (id, mapping) in (1..).zip(self.mappings) {
            let mut message = Message::default();
            message.number(1, id);
            message.number(2, mapping.start as u64);
            message.number(3, mapping.end as u64);
            message.number(4, mapping.offset as u64);
            message.number(5, strings.id(&mapping.file));
            message.number(7, self.named.into());
            out.message(3, &message);
        }
        if self.mappings.is_empty() {
            // Addresses are left out: with a binary at hand, a reader would look them up in it.
            let mut message = Message::default();
            message.number(1, 1);
            for has_functions_files_and_lines in 7..=9 {
                message.number(has_functions_files_and_lines, 1);
            }
            out.message(3, &message);
        }
        let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
        let mut named_functions = Vec::new();
        for (id, frame) in (1..).zip(found) {
            let mut location = Message::default();
            location.number(1, id);
            let within = |mapping: &Mapping| {
                (mapping.start as u64..mapping.end as u64).contains(&frame.address)
            };
            let at = self.mappings.iter().position(within);
            if let Some(at) = at.or_else(|| self.mappings.is_empty().then_some(0)) {
                location.number(2, at as u64 + 1);
            }
            location.number(3, frame.address);
            if !frame.function.is_empty() {
                let key = (frame.function.as_str(), frame.file.as_str());
                let function = *functions.entry(key).or_insert_with(|| {
                    named_functions.push(key);
                    named_functions.len() as u64
                });
                let mut line = Message::default();
                line.number(1, function);
                line.number(2, frame.line.into());
                location.message(4, &line);
            }
            out.message(4, &location);
        }
        for (id, (name, file)) in (1..).zip(named_functions) {
            let mut function = Message::default();
            function.number(1, id);
            // Both the same: the reader demangles the name.
            function.number(2, strings.id(name));
            function.number(3, strings.id(name));
            function.number(4, strings.id(file));
            out.message(5, &function);
        }
        let (name, unit, period) = self.period;
        let period_type = value_type(&mut strings, name, unit);
        for string in &strings.list {
            out.bytes(6, string.as_bytes());
        }
        out.number(9, self.began.as_nanos() as u64);
        out.number(10, self.lasted.as_nanos() as u64);
        out.message(11, &period_type);
        out.number(12, period as u64);
        out.0
    }
}

/// Returns the message `ValueType`.
fn value_type(strings: &mut Strings, name: &str, unit: &str) -> Message {
    let mut value = Message::default();
    value.number(1, strings.id(name));
    value.number(2, strings.id(unit));
    value
}

/// The table of strings; each has an index.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    ids: HashMap<String, u64>,
}

impl Strings {
    /// Returns the position of a string in the table, to which it is added.
    fn id(&mut self, text: &str) -> u64 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.list.len() as u64;
        self.list.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}

/// A protobuf message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Writes an integer of seven bits a byte, the lowest first.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Writes a number; it is left out when zero, the default.
    fn number(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.varint(field << 3);
            self.varint(number);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint((field << 3) | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    /// Writes a repeated field of numbers.
    fn packed(&mut self, field: u64, numbers: impl Iterator<Item = u64>) {
        let mut inner = Message::default();
        numbers.for_each(|number| inner.varint(number));
        self.message(field, &inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the fields of a message: (number, varint) and (number, bytes).
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let varint = |bytes: &mut &[u8]| {
            let (mut number, mut shift) = (0, 0);
            loop {
                let (first, rest) = bytes.split_first().expect("a byte");
                *bytes = rest;
                number |= u64::from(first & 0x7f) << shift;
                shift += 7;
                if first & 0x80 == 0 {
                    return number;
                }
            }
        };
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let number = varint(&mut bytes);
            match tag & 7 {
                0 => found.push((tag >> 3, number, vec![])),
                _ => {
                    let (inner, rest) = bytes.split_at(number as usize);
                    bytes = rest;
                    found.push((tag >> 3, 0, inner.to_vec()));
                }
            }
        }
        found
    }

    #[test]
    fn stacks_become_samples_locations_and_mappings() {
        let mapping =
            Mapping { start: 0x1000, end: 0x3000, offset: 0, file: "/manager".to_owned() };
        let stacks =
            Stacks::from([(vec![0x1010, 0x2021], 3), (vec![0x1010, 0x2041], 300), (vec![0x9], 1)]);
        let mappings = [mapping];
        let lasted = Duration::from_secs(5);
        let profile = Profile::of_cpu(&stacks, &mappings, None, Duration::ZERO, lasted);
        let message = fields(&profile.message());
        let all = |field: u64| -> Vec<&Vec<u8>> {
            message.iter().filter(|(number, ..)| *number == field).map(|(.., b)| b).collect()
        };
        let strings: Vec<String> =
            all(6).into_iter().map(|s| String::from_utf8(s.clone()).expect("text")).collect();
        assert_eq!(strings, ["", "samples", "count", "cpu", "nanoseconds", "/manager"]);
        let samples: Vec<_> = all(2).into_iter().map(|sample| fields(sample)).collect();
        assert_eq!(samples.len(), 3);
        // 300 samples of 10 ms at locations 1 and 2.
        assert_eq!(samples[0][0], (1, 0, vec![1, 2]));
        assert_eq!(samples[0][1], (2, 0, vec![0xac, 2, 0x80, 0xbc, 0xc1, 0x96, 0x0b]));
        assert_eq!(samples[1][0].2, [1, 3]);
        let locations: Vec<_> = all(4).into_iter().map(|location| fields(location)).collect();
        assert_eq!(locations[0], [(1, 1, vec![]), (2, 1, vec![]), (3, 0x1010, vec![])]);
        assert_eq!(locations[1][2].1, 0x2040, "the call, not the instruction after it");
        assert_eq!(locations[3], [(1, 4, vec![]), (3, 9, vec![])], "outside of all mappings");
        assert!(message.contains(&(10, 5_000_000_000, vec![])));
        assert!(message.contains(&(12, 10_000_000, vec![])));
    }

    #[test]
    fn counts_are_named_by_their_place() {
        let counted = |line| Counted { file: "src/a.rs".into(), line, count: 7 };
        let counts = [counted(1), counted(2)];
        let profile = Profile::of_counts(&[("goroutine", "count")], &counts, Duration::ZERO);
        let message = fields(&profile.message());
        let functions = message.iter().filter(|(number, ..)| *number == 5).count();
        assert_eq!(functions, 2);
        assert!(message.iter().any(|(number, _, b)| *number == 6 && b == b"src/a.rs:2"));
    }
}
