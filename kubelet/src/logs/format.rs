//! Lines of CRI's log format, `TIME STREAM TAG TEXT`: which of them are shown, and how. Bytes are taken
//! as they come, so a line may be of any length. Upstream: `parseCRILog`, `logWriter`.

use std::io::Write;

use super::options::{LogOptions, Streams};

/// The longest beginning of a line, up to its text.
const MAX_HEAD: usize = 256;

/// A time with its nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Since 1970.
    seconds: i64,
    nanos: u32,
}

impl Stamp {
    pub const fn of(seconds: i64, nanos: u32) -> Stamp {
        Stamp { seconds, nanos }
    }

    pub fn minus(self, seconds: i64) -> Stamp {
        Stamp { seconds: self.seconds.saturating_sub(seconds), ..self }
    }

    /// Parses a time as RFC 3339 has it; `None`: it is malformed.
    pub fn parse(text: &[u8]) -> Option<Stamp> {
        let number = |from: usize, to: usize| -> Option<i64> {
            text.get(from..to)?.iter().try_fold(0, |sum, byte| {
                byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0'))
            })
        };
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        let has_form = separators.iter().all(|(at, byte)| text.get(*at) == Some(byte));
        let in_range = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !has_form || !in_range {
            return None;
        }
        let (nanos, end) = fraction(text)?;
        let offset = match text.get(end..)? {
            [b'Z'] => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let (hours, minutes) = (number(end + 1, end + 3)?, number(end + 4, end + 6)?);
                let offset = hours * 3600 + minutes * 60;
                if *sign == b'+' { offset } else { -offset }
            }
            _ => return None,
        };
        let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Stamp { seconds: seconds - offset, nanos })
    }
}

/// Parses the nanoseconds after the seconds of a time, and returns where they end; without a dot
/// they are 0. `None`: the dot has no digits after it, or more than nine.
fn fraction(text: &[u8]) -> Option<(u32, usize)> {
    // The length of `2006-01-02T15:04:05`.
    const AT: usize = 19;
    if text.get(AT) != Some(&b'.') {
        return Some((0, AT));
    }
    let digits = text[AT + 1..].iter().take_while(|byte| byte.is_ascii_digit());
    let count = digits.clone().count();
    if !(1..=9).contains(&count) {
        return None;
    }
    let value = digits.fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
    Some((value * 10_u32.pow(9 - u32::try_from(count).ok()?), AT + 1 + count))
}

/// Returns the days from 1970 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last one.
    let year = if month > 2 { year } else { year - 1 };
    let (era, month) = (year.div_euclid(400), (month + 9) % 12);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The first line has another format; its beginning.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownFormat(pub Vec<u8>);

/// Takes the bytes of a log, and gives those that are shown.
#[derive(Debug)]
pub struct Decoder {
    since: Option<Stamp>,
    timestamps: bool,
    streams: Streams,
    /// Bytes that may still be shown.
    bytes: Option<u64>,
    /// Lines of the file that may still be read.
    lines: Option<u64>,
    state: State,
    /// The beginning of a line that is not complete.
    head: Vec<u8>,
    /// Whether the last text ended with its line: the next one has its time in front.
    is_new_line: bool,
    has_format: bool,
    is_done: bool,
}

/// Where in the file the decoder is.
#[derive(Debug)]
enum State {
    Head,
    Text {
        is_shown: bool,
        /// The line continues in the next one of the file.
        is_partial: bool,
        is_empty: bool,
    },
    /// The rest of a malformed line.
    Malformed,
}

/// The parts of a line before its text.
struct Head<'a> {
    time: &'a [u8],
    stamp: Stamp,
    is_stderr: bool,
    is_partial: bool,
    length: usize,
}

/// The head of a line, if the bytes so far have one.
enum Parsed<'a> {
    Head(Head<'a>),
    Incomplete,
    Malformed,
}

impl Decoder {
    /// Creates the decoder of a log, before any of its bytes.
    pub fn new(options: &LogOptions) -> Decoder {
        // A followed log has more lines than those at its end.
        let lines = options.tail_lines.filter(|_| !options.follow);
        Decoder {
            since: options.since,
            timestamps: options.timestamps,
            streams: options.streams,
            bytes: options.limit_bytes,
            lines,
            state: State::Head,
            head: Vec::new(),
            is_new_line: true,
            has_format: false,
            is_done: lines == Some(0),
        }
    }

    /// Returns whether nothing more will be shown.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Prepares for bytes of another file: an incomplete beginning of a line is dropped.
    pub fn start_file(&mut self) {
        self.head.clear();
        self.state = State::Head;
    }

    /// Takes the next bytes of the file and appends what is shown to `out`: hardly more than the
    /// input, since a line's time is at most two bytes longer than the head that it replaces. The
    /// beginning of that head may be from the call before.
    ///
    /// # Errors
    /// The first line has another format. Later ones are skipped.
    pub fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), UnknownFormat> {
        while !input.is_empty() && !self.is_done {
            input = match self.state {
                State::Head => self.take_head(input, out)?,
                State::Text { is_shown, is_partial, is_empty } => {
                    self.take_text(input, out, is_shown, is_partial, is_empty)
                }
                State::Malformed => match memchr::memchr(b'\n', input) {
                    Some(end) => {
                        self.state = State::Head;
                        &input[end + 1..]
                    }
                    None => &[],
                },
            };
        }
        Ok(())
    }

    /// Takes the head of a line from the input, and returns what follows it. A head that is cut off
    /// is kept for the next input.
    fn take_head<'a>(
        &mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<&'a [u8], UnknownFormat> {
        let mut kept = std::mem::take(&mut self.head);
        let before = kept.len();
        // Most lines come whole, and are not copied.
        let line: &[u8] = if before == 0 {
            input
        } else {
            kept.extend_from_slice(&input[..input.len().min(MAX_HEAD - before)]);
            &kept
        };
        match parse(line) {
            Parsed::Head(head) => {
                self.begin(&head, out);
                Ok(&input[head.length - before..])
            }
            Parsed::Incomplete => {
                self.head = line.to_vec();
                Ok(&[])
            }
            Parsed::Malformed if self.has_format => {
                log::debug!("malformed line in a log: {:?}", text(line));
                self.state = State::Malformed;
                Ok(input)
            }
            Parsed::Malformed => {
                let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
                Err(UnknownFormat(line[..line.len().min(MAX_HEAD)].to_vec()))
            }
        }
    }

    /// Begins the text of a line: decides whether it is shown, and writes its time if wanted.
    fn begin(&mut self, head: &Head<'_>, out: &mut Vec<u8>) {
        self.has_format = true;
        let is_shown = self.since.is_none_or(|since| head.stamp >= since)
            && self.streams.contains(head.is_stderr);
        if is_shown && self.timestamps && self.is_new_line {
            // As upstream writes times (`RFC3339NanoFixed`): nine digits of the fraction, and `Z`
            // for UTC. The first 19 bytes are the time to its seconds; the parser has seen a zone.
            let mut time = Vec::with_capacity(40);
            let zone = head.time.iter().skip(19).position(|byte| b"Z+-".contains(byte));
            time.extend_from_slice(&head.time[..19]);
            // Nine digits: a write to memory does not fail.
            let _ = write!(time, ".{:09}", head.stamp.nanos);
            time.extend_from_slice(match &head.time[19 + zone.unwrap_or_default()..] {
                b"+00:00" | b"-00:00" => b"Z",
                zone => zone,
            });
            time.push(b' ');
            self.show(&time, out);
        }
        self.state = State::Text { is_shown, is_partial: head.is_partial, is_empty: true };
    }

    /// Takes the text of a line from the input, shows it if `is_shown`, and returns what follows
    /// it. `is_partial`: the text continues in the next line; `is_empty`: none of it has been taken
    /// yet.
    fn take_text<'a>(
        &mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
        is_shown: bool,
        is_partial: bool,
        is_empty: bool,
    ) -> &'a [u8] {
        let end = memchr::memchr(b'\n', input);
        let length = match end {
            Some(end) if is_partial => end,
            Some(end) => end + 1,
            None => input.len(),
        };
        if is_shown {
            self.show(&input[..length], out);
        }
        let is_empty = is_empty && length == 0;
        let Some(end) = end else {
            self.state = State::Text { is_shown, is_partial, is_empty };
            return &[];
        };
        self.state = State::Head;
        // As upstream: an empty part ends its line.
        self.is_new_line = !is_partial || is_empty;
        if let Some(lines) = &mut self.lines {
            *lines -= 1;
            self.is_done |= *lines == 0;
        }
        &input[end + 1..]
    }

    /// Appends bytes to `out`, as many as the limit still allows. At the limit the decoder is done.
    fn show(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(left) = &mut self.bytes else { return out.extend_from_slice(bytes) };
        let length = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        out.extend_from_slice(&bytes[..length]);
        *left -= length as u64;
        self.is_done |= *left == 0;
    }
}

/// Parses the head of a line; `line` may end before or after it. One without its end in the first
/// [`MAX_HEAD`] bytes is malformed.
fn parse(line: &[u8]) -> Parsed<'_> {
    let (mut ends, mut found) = ([0; 3], 0);
    let window = &line[..line.len().min(MAX_HEAD)];
    for (at, byte) in window.iter().enumerate() {
        match byte {
            b' ' => {
                ends[found] = at;
                found += 1;
                if found == ends.len() {
                    break;
                }
            }
            b'\n' => return Parsed::Malformed,
            _ => {}
        }
    }
    if found < ends.len() {
        return if window.len() < MAX_HEAD { Parsed::Incomplete } else { Parsed::Malformed };
    }
    let [time, stream, tag] = [0..ends[0], ends[0] + 1..ends[1], ends[1] + 1..ends[2]];
    let (time, stream, tag) = (&line[time], &line[stream], &line[tag]);
    let Some(stamp) = Stamp::parse(time) else { return Parsed::Malformed };
    let is_stderr = match stream {
        b"stdout" => false,
        b"stderr" => true,
        _ => return Parsed::Malformed,
    };
    let is_partial = tag.split(|byte| *byte == b':').next() == Some(b"P");
    Parsed::Head(Head { time, stamp, is_stderr, is_partial, length: ends[2] + 1 })
}

/// Returns the beginning of a line, for a message.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_HEAD)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01T00:00:00.5Z stdout F one\n\
                       2026-01-01T00:00:01.123456789Z stderr F two\n\
                       2026-01-01T00:00:02Z stdout P thr\n\
                       2026-01-01T00:00:02.1Z stdout F ee\n\
                       not a line\n\
                       2026-01-01T02:00:03+02:00 stdout F:x \n";

    /// What is shown of a log that comes in parts of this size.
    fn shown(log: &[u8], options: &LogOptions, part: usize) -> String {
        let (mut decoder, mut out) = (Decoder::new(options), Vec::new());
        for part in log.chunks(part) {
            decoder.feed(part, &mut out).expect("the format");
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lines_are_picked_wherever_they_are_cut() {
        let since = |text: &str| Some(Stamp::parse(text.as_bytes()).expect("a time"));
        let default = LogOptions::default;
        for (options, expected) in [
            (default(), "one\ntwo\nthree\n\n"),
            (LogOptions { streams: Streams::Stderr, ..default() }, "two\n"),
            (LogOptions { streams: Streams::Stdout, ..default() }, "one\nthree\n\n"),
            (
                LogOptions { since: since("2026-01-01T00:00:01.123456789Z"), ..default() },
                "two\nthree\n\n",
            ),
            (
                LogOptions { since: since("2026-01-01T00:00:01.123456790Z"), ..default() },
                "three\n\n",
            ),
            (LogOptions { since: since("2026-01-01T00:00:03Z"), ..default() }, "\n"),
            (LogOptions { limit_bytes: Some(5), ..default() }, "one\nt"),
            (LogOptions { limit_bytes: Some(4), ..default() }, "one\n"),
            (LogOptions { tail_lines: Some(3), ..default() }, "one\ntwo\nthr"),
            (LogOptions { tail_lines: Some(0), ..default() }, ""),
            (LogOptions { tail_lines: Some(1), follow: true, ..default() }, "one\ntwo\nthree\n\n"),
            (
                LogOptions { timestamps: true, ..default() },
                "2026-01-01T00:00:00.500000000Z one\n\
                 2026-01-01T00:00:01.123456789Z two\n\
                 2026-01-01T00:00:02.000000000Z three\n\
                 2026-01-01T02:00:03.000000000+02:00 \n",
            ),
            (LogOptions { timestamps: true, limit_bytes: Some(10), ..default() }, "2026-01-01"),
        ] {
            for part in 1..=LOG.len() {
                assert_eq!(shown(LOG.as_bytes(), &options, part), expected, "{options:?} {part}");
            }
        }
    }

    #[test]
    fn a_time_of_utc_is_shown_with_z() {
        let options = LogOptions { timestamps: true, ..LogOptions::default() };
        for (zone, expected) in [
            ("Z", "Z"),
            ("+00:00", "Z"),
            ("-00:00", "Z"),
            ("+00:30", "+00:30"),
            ("-01:00", "-01:00"),
        ] {
            let log = format!("2026-01-01T00:00:00.5{zone} stdout F x\n");
            let expected = format!("2026-01-01T00:00:00.500000000{expected} x\n");
            assert_eq!(shown(log.as_bytes(), &options, log.len()), expected);
        }
    }

    #[test]
    fn first_line_decides_about_the_format() {
        for (log, is_known) in [
            ("2026-01-01T00:00:00Z stdout F x\nnot a line\n", true),
            ("not a line\n2026-01-01T00:00:00Z stdout F x\n", false),
            ("2026-01-01T00:00:00Z stdin F x\n", false),
            ("2026-01-01T00:00:00Z stdout F\n", false),
            ("{\"log\":\"x\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}\n", false),
            (&"x".repeat(1000), false),
            ("2026-01-01T00:00:00Z std", true),
        ] {
            for part in [1, log.len()] {
                let (mut decoder, mut out) = (Decoder::new(&LogOptions::default()), Vec::new());
                let mut parts = log.as_bytes().chunks(part);
                let fault = parts.find_map(|part| decoder.feed(part, &mut out).err());
                assert_eq!(fault.is_none(), is_known, "{log}");
                assert!(fault.is_none_or(|fault| fault.0.len() <= MAX_HEAD), "{log}");
            }
        }
    }

    #[test]
    fn long_lines_take_no_memory() {
        let mut decoder = Decoder::new(&LogOptions { timestamps: true, ..LogOptions::default() });
        let mut out = Vec::new();
        decoder.feed(b"2026-01-01T00:00:00Z stdout F ", &mut out).expect("the format");
        let (part, mut total) = (vec![b'x'; 64 << 10], 0);
        for _ in 0..256 {
            out.clear();
            decoder.feed(&part, &mut out).expect("the format");
            total += out.len();
            assert!(out.capacity() <= 2 * part.len() && decoder.head.capacity() <= 2 * MAX_HEAD);
        }
        assert_eq!(total, 16 << 20);
        out.clear();
        decoder.feed(b"\n2026-01-01T00:00:01Z stdout F y\n", &mut out).expect("the format");
        assert_eq!(out, b"\n2026-01-01T00:00:01.000000000Z y\n");
    }

    #[test]
    fn times_have_nanoseconds_and_zones() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some((0, 0))),
            ("1970-01-01T00:00:00.000000001Z", Some((0, 1))),
            ("2000-02-29T12:34:56.5Z", Some((951_827_696, 500_000_000))),
            ("2027-01-15T08:00:00Z", Some((1_800_000_000, 0))),
            ("2027-01-15T09:30:00+01:30", Some((1_800_000_000, 0))),
            ("2027-01-15T07:00:00-01:00", Some((1_800_000_000, 0))),
            ("1969-12-31T23:59:59Z", Some((-1, 0))),
            ("2027-01-15T08:00:00", None),
            ("2027-01-15T08:00:00.Z", None),
            ("2027-01-15T08:00:00.1234567890Z", None),
            ("2027-13-15T08:00:00Z", None),
            ("2027-01-15 08:00:00Z", None),
            ("2027-01-15T24:00:00Z", None),
            ("+027-01-15T08:00:00Z", None),
            ("2027-01-15T08:00:00+1:00", None),
            ("", None),
        ] {
            let expected = expected.map(|(seconds, nanos)| Stamp::of(seconds, nanos));
            assert_eq!(Stamp::parse(text.as_bytes()), expected, "{text}");
        }
    }
}
