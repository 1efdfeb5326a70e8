//! Points in time as integers.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::fmt::temporal::Pieces;
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// Microseconds since 1970. Written as `metav1.Time` (whole seconds); [`micro_time`] writes
/// `metav1.MicroTime`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(
    /// Moved up by 2^63, so that an `Option` takes no more room.
    NonZeroU64,
);

const SIGN: u64 = 1 << 63;

/// Maps a number to one that is not zero, and keeps the order. The very least of all numbers is taken
/// for the one after it.
const fn moved(number: i64) -> NonZeroU64 {
    match NonZeroU64::new(number.cast_unsigned() ^ SIGN) {
        Some(moved) => moved,
        None => NonZeroU64::MIN,
    }
}

const fn moved_back(number: NonZeroU64) -> i64 {
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

#[derive(Debug)]
pub struct ParseTimestampError {
    text: String,
    source: jiff::Error,
}

impl fmt::Display for ParseTimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an RFC 3339 time: {:?}", self.text)
    }
}

impl std::error::Error for ParseTimestampError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(moved(micros))
    }

    pub const fn from_secs(secs: i64) -> Timestamp {
        Timestamp::from_micros(secs.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> i64 {
        moved_back(self.0)
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn as_secs(self) -> i64 {
        self.as_micros().div_euclid(1_000_000)
    }

    /// Without the part below a second, as the API stores `metav1.Time`.
    pub const fn truncate_to_secs(self) -> Timestamp {
        Timestamp::from_secs(self.as_secs())
    }

    /// The time from `earlier` to here; zero when `earlier` is later.
    pub fn duration_since(self, earlier: Timestamp) -> Duration {
        let micros = self.as_micros().saturating_sub(earlier.as_micros());
        Duration::from_micros(micros.max(0).cast_unsigned())
    }

    /// As `k8s-openapi`'s types want it.
    pub fn to_api(self) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.truncate_to_secs().to_jiff())
    }

    /// The nearest time that jiff has: the last day of the year 9999 is cut off.
    pub fn to_jiff(self) -> jiff::Timestamp {
        let micros = self.as_micros();
        let nearest = if micros < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        jiff::Timestamp::from_microsecond(micros).unwrap_or(nearest)
    }

    /// `2006-01-02T15:04:05.000000Z`
    pub fn to_micro_string(self) -> String {
        self.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    }

    fn strftime(self, format: &'static str) -> strtime::Display<'static> {
        match jiff::Timestamp::from_microsecond(self.as_micros()) {
            Ok(time) => time.strftime(format),
            Err(_) => {
                let since = SignedDuration::from_micros(self.as_micros());
                EPOCH.saturating_add(since).strftime(format)
            }
        }
    }
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Reads a time of the last day of the year 9999. The API has it, jiff's `Timestamp` ends before it.
fn on_the_last_day(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    let offset = SignedDuration::from_secs(pieces.to_numeric_offset()?.seconds().into());
    let since = local.duration_since(EPOCH).checked_sub(offset)?;
    i64::try_from(since.as_micros()).ok().map(Timestamp::from_micros)
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

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;
    fn from_str(text: &str) -> Result<Timestamp, ParseTimestampError> {
        match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(time.into()),
            Err(source) => on_the_last_day(text)
                .ok_or_else(|| ParseTimestampError { text: text.to_owned(), source }),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                text.parse().map_err(E::custom)
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
            /// From protobuf, which has no text of it.
            fn visit_i64<E: de::Error>(self, micros: i64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_micros(micros))
            }
        }
        deserializer.deserialize_newtype_struct("Timestamp", Either)
    }
}

/// Whole seconds; an `Option` takes no more room.
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
        Seconds(moved(seconds))
    }
}

impl From<Seconds> for i64 {
    fn from(seconds: Seconds) -> i64 {
        moved_back(seconds.0)
    }
}

impl From<Seconds> for Duration {
    /// Zero for negative seconds.
    fn from(seconds: Seconds) -> Duration {
        Duration::from_secs(i64::from(seconds).max(0).cast_unsigned())
    }
}

/// `#[serde(with = "micro_time")]` for fields of type `Option<Timestamp>` that are `metav1.MicroTime`.
pub mod micro_time {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.serialize_str(&time.to_micro_string()),
            None => to.serialize_none(),
        }
    }

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
            ("0001-01-01T00:00:00Z", -62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000_000, "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59.999999+02:00", 253_402_293_599_999_999, "9999-12-31T21:59:59Z"),
            // In the year 10000.
            ("9999-12-31T23:59:59-02:00", 253_402_307_999_000_000, "9999-12-31T23:59:59Z"),
        ] {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(time.as_micros(), micros, "{text}");
            assert_eq!(time.to_string(), written);
        }
        assert_eq!(Timestamp::from_micros(1).to_micro_string(), "1970-01-01T00:00:00.000001Z");
        let last = Timestamp::from_micros(253_402_300_799_999_999);
        assert_eq!(last.to_micro_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(last.to_jiff(), jiff::Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(i64::MIN).to_jiff(), jiff::Timestamp::MIN);
        for text in ["yesterday", "9999-12-31", "9999-12-31T23:59:59", "9999-12-32T00:00:00Z"] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
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
