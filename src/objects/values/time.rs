//! Points in time as integers. A Kubernetes object may hold any time that Go can write, which
//! jiff's type cannot: `9999-12-31T23:59:59Z` is frequent.

#![warn(missing_docs)]

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// Microseconds since 1970. Written as `metav1.Time` (whole seconds); [`micro_time`] writes
/// `metav1.MicroTime`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(
    /// The microseconds plus 2^63, so that an `Option` has the same size.
    NonZeroU64,
);

/// The sign bit. Flipped, it makes the order of signed numbers that of unsigned ones.
const SIGN: u64 = 1 << 63;

/// Maps a number to a non-zero one, and keeps the order. The least number counts as the next one.
const fn to_nonzero(number: i64) -> NonZeroU64 {
    match NonZeroU64::new(number.cast_unsigned() ^ SIGN) {
        Some(moved) => moved,
        None => NonZeroU64::MIN,
    }
}

const fn from_nonzero(number: NonZeroU64) -> i64 {
    (number.get() ^ SIGN).cast_signed()
}

impl Default for Timestamp {
    fn default() -> Timestamp {
        Timestamp::from_micros(0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({})", self.as_micros())
    }
}

/// A text that is not a time of RFC 3339.
#[derive(Debug)]
pub struct ParseTimestampError {
    text: String,
}

impl fmt::Display for ParseTimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an RFC 3339 time: {:?}", self.text)
    }
}

impl std::error::Error for ParseTimestampError {}

impl Timestamp {
    /// The time this many microseconds after 1970 began, in UTC.
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(to_nonzero(micros))
    }

    /// The time this many seconds after 1970 began, in UTC.
    pub const fn from_secs(secs: i64) -> Timestamp {
        Timestamp::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since 1970 began, in UTC.
    pub const fn as_micros(self) -> i64 {
        from_nonzero(self.0)
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn as_secs(self) -> i64 {
        self.as_micros().div_euclid(1_000_000)
    }

    /// The time without fractions of a second, as the API stores `metav1.Time`.
    pub const fn truncate_to_secs(self) -> Timestamp {
        Timestamp::from_secs(self.as_secs())
    }

    /// Returns the time from `earlier` to here; zero when `earlier` is later.
    pub fn duration_since(self, earlier: Timestamp) -> Duration {
        let micros = self.as_micros().saturating_sub(earlier.as_micros());
        Duration::from_micros(micros.max(0).cast_unsigned())
    }

    /// Returns the closest time of jiff, whose range is from the year -9999 to
    /// `9999-12-30T22:00:00.999999999Z`. Only for values that are not written to objects.
    pub fn to_jiff(self) -> jiff::Timestamp {
        let (first, last) = (jiff::Timestamp::MIN, jiff::Timestamp::MAX);
        let end = if self.as_micros() < 0 { first } else { last };
        jiff::Timestamp::from_microsecond(self.as_micros()).unwrap_or(end)
    }

    /// `2006-01-02T15:04:05.000000Z`
    pub fn to_micro_string(self) -> String {
        format!("{}.{:06}Z", Civil::new(self), self.as_micros().rem_euclid(1_000_000))
    }
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Timestamp {
        Timestamp::from_micros(time.as_microsecond())
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, duration: Duration) -> Timestamp {
        Timestamp::from_micros(self.as_micros().saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, duration: Duration) -> Timestamp {
        Timestamp::from_micros(self.as_micros().saturating_sub(micros(duration)))
    }
}

/// `2006-01-02T15:04:05Z`
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Z", Civil::new(*self))
    }
}

/// The forms that Go accepts for RFC 3339: the hour may have one digit, the fraction any length.
/// There is no leap second. Upstream: `time.Parse(time.RFC3339, ...)`.
impl FromStr for Timestamp {
    type Err = ParseTimestampError;
    /// Refuses years with a sign or more than four digits, as Go does when it parses. Such years
    /// are accepted in JSON only, because Go can write them there.
    fn from_str(text: &str) -> Result<Timestamp, ParseTimestampError> {
        let has_four_digits = text.find('-') == Some(4);
        let time = if has_four_digits { parse_rfc3339(text) } else { None };
        time.ok_or_else(|| ParseTimestampError { text: text.to_owned() })
    }
}

/// Parses the forms that Go accepts or writes: a year has four digits, or more, or a sign. Returns
/// the closest time if it is out of range.
fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once('T')?;
    let unsigned = date.strip_prefix('-');
    let mut date = unsigned.unwrap_or(date).split('-');
    let year = date.next().filter(|year| year.len() >= 4)?;
    let year = match unsigned {
        Some(_) => -parse_digits(year)?,
        None => parse_digits(year)?,
    };
    let (month, day) = (two_digits(date.next()?)?, two_digits(date.next()?)?);
    if date.next().is_some()
        || !(1..=12).contains(&month)
        || !(1..=days_in_month(year, month)).contains(&day)
    {
        return None;
    }

    let (time, zone) = time.split_at(time.find(['Z', '+', '-'])?);
    let (time, fraction) = match time.split_once(['.', ',']) {
        Some((time, fraction)) => (
            time,
            parse_digits(&fraction[..fraction.floor_char_boundary(6)])
                .filter(|_| parse_digits(fraction).is_some())
                .map(|micros| micros * 10_i64.pow(6 - fraction.len().min(6) as u32))?,
        ),
        None => (time, 0),
    };
    let mut time = time.split(':');
    let hour = time.next()?;
    let hour = if hour.len() == 1 { parse_digits(hour)? } else { two_digits(hour)? };
    let (minute, second) = (two_digits(time.next()?)?, two_digits(time.next()?)?);
    if time.next().is_some() || hour > 23 || minute > 59 || second > 59 {
        return None;
    }

    let offset = match zone.strip_prefix(['+', '-']) {
        None if zone == "Z" => 0,
        None => return None,
        Some(offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
            // As Go, which accepts 24 and 60.
            if hours > 24 || minutes > 60 {
                return None;
            }
            let offset = hours * 3600 + minutes * 60;
            if zone.starts_with('-') { -offset } else { offset }
        }
    };
    let seconds = hour * 3600 + minute * 60 + second - offset;
    let seconds = i128::from(days_before(year, month, day)) * 86_400 + i128::from(seconds);
    let micros =
        (seconds * 1_000_000 + i128::from(fraction)).clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// Parses only digits; the result is at most 10^12, which is beyond the range of years.
fn parse_digits(digits: &str) -> Option<i64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().unwrap_or(i64::MAX).min(1_000_000_000_000))
}

fn two_digits(text: &str) -> Option<i64> {
    if text.len() == 2 { parse_digits(text) } else { None }
}

/// Returns the number of days of a month by the Gregorian calendar.
fn days_in_month(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The days of 400 years, after which the calendar repeats.
const CYCLE: i64 = 146_097;
/// The days from the first of March of the year 0 up to 1970.
const EPOCH: i64 = 719_468;

/// Returns the days from 1970 up to a date. Years begin in March here, so that a leap day ends one.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (cycle, in_cycle) = (year.div_euclid(400), year.rem_euclid(400));
    // Five months have 153 days, counted from March or from August.
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    cycle * CYCLE + in_cycle * 365 + in_cycle / 4 - in_cycle / 100 + in_year - EPOCH
}

/// A time by the calendar, in UTC, in whole seconds. Displayed as RFC 3339 without the zone.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    /// The second of the day.
    second: i64,
}

impl Civil {
    /// Converts a time to a date, as the inverse of [`days_before`].
    fn new(time: Timestamp) -> Civil {
        let (days, second) = (time.as_secs().div_euclid(86_400), time.as_secs().rem_euclid(86_400));
        let (cycle, day) = ((days + EPOCH).div_euclid(CYCLE), (days + EPOCH).rem_euclid(CYCLE));
        // The day of the cycle without the leap days before it.
        let plain = day - day / 1460 + day / 36_524 - day / 146_096;
        let in_cycle = plain / 365;
        let in_year = day - (365 * in_cycle + in_cycle / 4 - in_cycle / 100);
        let march = (5 * in_year + 2) / 153;
        let month = (march + 2) % 12 + 1;
        let year = cycle * 400 + in_cycle + i64::from(month <= 2);
        Civil { year, month, day: in_year - (153 * march + 2) / 5 + 1, second }
    }
}

/// A year beyond four digits is written as Go does.
impl fmt::Display for Civil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil { year, month, day, second } = *self;
        let (sign, year) = (if year < 0 { "-" } else { "" }, year.abs());
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{sign}{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    /// Reads an RFC 3339 time from JSON, or microseconds from protobuf.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                parse_rfc3339(text)
                    .ok_or_else(|| E::custom(ParseTimestampError { text: text.to_owned() }))
            }
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Text.expecting(f)
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Timestamp, D::Error> {
                deserializer.deserialize_str(Text)
            }
            /// Reads protobuf, where a time is a number.
            fn visit_i64<E: de::Error>(self, micros: i64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_micros(micros))
            }
        }
        deserializer.deserialize_newtype_struct("Timestamp", Either)
    }
}

/// Whole seconds; an `Option` has the same size.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "i64", into = "i64")]
pub struct Seconds(NonZeroU64);

impl fmt::Debug for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seconds({})", i64::from(*self))
    }
}

impl From<i64> for Seconds {
    fn from(seconds: i64) -> Seconds {
        Seconds(to_nonzero(seconds))
    }
}

impl From<Seconds> for i64 {
    fn from(seconds: Seconds) -> i64 {
        from_nonzero(seconds.0)
    }
}

impl From<Seconds> for Duration {
    /// Zero for negative seconds.
    fn from(seconds: Seconds) -> Duration {
        Duration::from_secs(i64::from(seconds).max(0).cast_unsigned())
    }
}

/// `#[serde(with = "micro_time")]` for fields of type `Option<Timestamp>` that are
/// `metav1.MicroTime`.
pub mod micro_time {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes JSON with microseconds.
    pub fn serialize<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.serialize_str(&time.to_micro_string()),
            None => to.serialize_none(),
        }
    }

    /// Reads JSON with any number of digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_the_api_does() {
        for (text, micros, written) in [
            ("1970-01-01T00:00:01Z", 1_000_000, "1970-01-01T00:00:01Z"),
            ("2026-05-01T10:00:00.123456Z", 1_777_629_600_123_456, "2026-05-01T10:00:00Z"),
            ("2026-05-01T12:00:00+02:00", 1_777_629_600_000_000, "2026-05-01T10:00:00Z"),
        ] {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(time.as_micros(), micros, "{text}");
            assert_eq!(time.to_string(), written);
        }
        assert_eq!(Timestamp::from_micros(1).to_micro_string(), "1970-01-01T00:00:00.000001Z");
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    #[test]
    fn texts_are_times_as_go_reads_them() {
        let base = 1_000_000_000; // 2001-09-09T01:46:40Z
        for (text, seconds) in [
            ("2001-09-09T01:46:40Z", Some(base)),
            ("2001-09-09T03:46:40+02:00", Some(base)),
            ("2001-09-08T23:46:40-02:00", Some(base)),
            ("2001-09-10T02:46:40+24:60", Some(base)),
            ("2001-09-09T01:46:40-24:61", None),
            ("2001-09-09T01:46:40+25:00", None),
            ("2001-09-09T01:46:40+2:00", None),
            ("2001-09-09T01:46:40z", None),
            ("2001-09-09T01:46:40", None),
            ("2001-09-09T01:46:40ZZ", None),
            ("2001-09-09T1:46:40Z", Some(base)),
            ("2001-09-09T24:46:40Z", None),
            ("2001-09-09T01:6:40Z", None),
            ("2001-09-09T01:60:40Z", None),
            ("2001-09-09T01:46:60Z", None),
            ("2001-09-09T01:46Z", None),
            ("2001-09-09T01:46:40:00Z", None),
            ("2001-09-09T01:46:40.Z", None),
            ("2001-09-09T01:46:40.5xZ", None),
            ("2001-09-09T01:46:40.5\u{fc}\u{fc}\u{fc}Z", None),
            ("2001-09-09T01:46:40.000000999999999999999999999Z", Some(base)),
            ("2001-09-09t01:46:40Z", None),
            ("2001-09-09 01:46:40Z", None),
            ("2001-9-09T01:46:40Z", None),
            ("2001-00-09T01:46:40Z", None),
            ("2001-13-09T01:46:40Z", None),
            ("2001-09-00T01:46:40Z", None),
            ("2001-09-31T01:46:40Z", None),
            ("2001-02-29T00:00:00Z", None),
            ("2000-02-29T00:00:00Z", Some(951_782_400)),
            ("1900-02-29T00:00:00Z", None),
            ("+001-09-09T01:46:40Z", None),
            ("-001-09-09T01:46:40Z", None),
            ("201-09-09T01:46:40Z", None),
            ("12001-09-09T01:46:40Z", None),
            ("0000-01-01T00:00:00Z", Some(-62_167_219_200)),
            ("0001-01-01T00:00:00Z", Some(-62_135_596_800)),
            ("9999-12-31T23:59:59Z", Some(253_402_300_799)),
            ("9999-12-31T23:59:59-24:60", Some(253_402_390_799)),
            ("T", None),
            ("", None),
        ] {
            let time = text.parse::<Timestamp>().ok();
            assert_eq!(time.map(Timestamp::as_secs), seconds, "{text}");
        }
        let half: Timestamp = "2001-09-09T01:46:40,50Z".parse().unwrap();
        assert_eq!(half.as_micros(), 1_000_000_000_500_000);
    }

    /// Protobuf can hold times whose JSON Go writes but cannot parse.
    #[test]
    fn every_time_that_go_writes_is_read_and_written_as_it_came() {
        for (text, seconds) in [
            ("9999-12-31T23:59:59Z", 253_402_300_799_i64),
            ("10000-01-01T00:00:00Z", 253_402_300_800),
            ("0000-12-31T23:59:59Z", -62_135_596_801),
            ("-0001-12-31T23:59:59Z", -62_167_219_201),
            ("-12345-06-07T08:09:10Z", -451_724_140_250),
            ("290000-02-28T00:00:00Z", 9_089_353_872_000),
        ] {
            let json = format!("{text:?}");
            let time: Timestamp = serde_json::from_str(&json).unwrap();
            assert_eq!(time.as_secs(), seconds, "{text}");
            assert_eq!(serde_json::to_string(&time).unwrap(), json);
            assert_eq!(time.to_micro_string(), text.replace('Z', ".000000Z"));
        }
        // Times that are out of range.
        let read = |text: &str| serde_json::from_str::<Timestamp>(text).unwrap().as_micros();
        assert_eq!(read(r#""292277026596-12-04T15:30:07Z""#), i64::MAX);
        assert_eq!(read(r#""-99999999999999999999-01-01T00:00:00Z""#), i64::MIN + 1);
    }

    #[test]
    fn the_calendar_is_jiffs() {
        let mut random = fastrand::Rng::with_seed(7);
        let range = jiff::Timestamp::MIN.as_second()..jiff::Timestamp::MAX.as_second();
        for _ in 0..10_000 {
            let seconds = random.i64(range.clone());
            let time = Timestamp::from_secs(seconds);
            let jiffs = jiff::Timestamp::from_second(seconds).unwrap();
            let text = time.to_string();
            if seconds >= -62_167_219_200 {
                assert_eq!(text, jiffs.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
                assert_eq!(text.parse::<Timestamp>().unwrap(), time);
            }
            assert_eq!(parse_rfc3339(&text), Some(time), "{text}");
            assert_eq!(time.to_jiff(), jiffs);
        }
    }

    #[test]
    fn a_time_beyond_jiffs_is_its_first_or_last() {
        let last: Timestamp = "9999-12-31T23:59:59Z".parse().unwrap();
        assert_eq!(last.to_jiff(), jiff::Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(i64::MIN).to_jiff(), jiff::Timestamp::MIN);
    }

    #[test]
    fn seconds_are_read_and_written_as_a_number() {
        assert_eq!(size_of::<Option<Seconds>>(), size_of::<i64>());
        for (number, time) in [(0, 0), (30, 30), (-1, 0), (i64::MAX, i64::MAX as u64)] {
            let text = number.to_string();
            let seconds: Seconds = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&seconds).unwrap(), text);
            assert_eq!(Duration::from(seconds), Duration::from_secs(time));
            assert_eq!(format!("{seconds:?}"), format!("Seconds({number})"));
        }
        assert_eq!(serde_json::from_str::<Option<Seconds>>("null").unwrap(), None);
    }

    #[test]
    fn every_number_keeps_its_place() {
        let all = [i64::MIN + 1, -1, 0, 1, i64::MAX].map(Timestamp::from_micros);
        assert!(all.is_sorted());
        assert_eq!(all.map(Timestamp::as_micros), [i64::MIN + 1, -1, 0, 1, i64::MAX]);
        assert_eq!(Timestamp::from_micros(i64::MIN), all[0]);
        assert_eq!(Timestamp::default().as_micros(), 0);
        assert_eq!(size_of::<Option<Timestamp>>(), 8);
    }
}
