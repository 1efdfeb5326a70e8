//! Schedules as the API takes them. The fields, their ranges, the way days of the month and of the
//! week combine and what happens when clocks change are those of upstream's library, which differ
//! from one library to the next: the times at which Jobs start must not change with the manager.
//! Upstream: `github.com/robfig/cron/v3`.

use std::path::Path;
use std::time::Duration;

use jiff::Span;
use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::objects::Timestamp;
use crate::options::parse_duration;

/// Where a system keeps its time zones.
const ZONES: &str = "/usr/share/zoneinfo";

/// The times at which something happens, to the second.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// In a time zone.
    Fields(Box<Fields>, TimeZone),
    /// `@every`: whole seconds, at least one.
    Every(Duration),
}

/// The values of each field at which the schedule is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields {
    minute: Set,
    hour: Set,
    day_of_month: Set,
    month: Set,
    day_of_week: Set,
}

/// Numbers from 0 to 59.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Set {
    bits: u64,
    /// It was written with a star and no step.
    star: bool,
}

/// What one field may contain.
struct Bounds {
    min: u32,
    max: u32,
    /// From `min` on.
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS_OF_MONTH: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const DAYS_OF_WEEK: Bounds =
    Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// A schedule that is not due within this many years is never due.
const HORIZON_YEARS: i16 = 5;

/// Returns the time zone of this name, as the API names them: case matters, and the empty name is
/// UTC.
///
/// # Errors
/// In upstream's words, which events carry.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    match name {
        "" | "UTC" => return Ok(TimeZone::UTC),
        "Local" => return Ok(TimeZone::system()),
        _ => {}
    }
    // The system may lack single zones. Upstream: `time.LoadLocation`, with `time/tzdata`.
    let zone = zone_of([jiff::tz::db(), &TimeZoneDatabase::bundled()], name);
    zone.or_else(|| zone_of_file(name)).ok_or_else(|| format!("unknown time zone {name}"))
}

/// Reads a zone of the system that its database leaves out, such as `posix/Europe/Berlin`.
fn zone_of_file(name: &str) -> Option<TimeZone> {
    if name.starts_with(['/', '\\']) || name.contains("..") {
        return None;
    }
    let data = std::fs::read(Path::new(ZONES).join(name)).ok()?;
    TimeZone::tzif(name, &data).ok()
}

/// Returns the zone of exactly this name, from the first database that has it.
fn zone_of(databases: [&TimeZoneDatabase; 2], name: &str) -> Option<TimeZone> {
    let mut found = databases.into_iter().filter_map(|zones| zones.get(name).ok());
    found.find(|zone| zone.iana_name() == Some(name))
}

impl Schedule {
    /// Reads five fields or a descriptor such as `@daily`, behind `TZ=` or `CRON_TZ=` and a zone if
    /// there is one; otherwise in `zone`. Upstream: `cron.ParseStandard`.
    ///
    /// # Errors
    /// In upstream's words, which events carry.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Schedule, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let named = ["TZ=", "CRON_TZ="].into_iter().find_map(|prefix| text.strip_prefix(prefix));
        let (text, zone) = match named {
            None => (text, zone),
            Some(rest) => {
                let (name, rest) = rest
                    .split_once(' ')
                    .ok_or_else(|| "invalid schedule format: no fields".to_owned())?;
                let zone = time_zone(name)
                    .map_err(|error| format!("provided bad location {name}: {error}"))?;
                (rest.trim(), zone)
            }
        };
        if text.starts_with('@') {
            return parse_descriptor(text, zone);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day_of_month, month, day_of_week] = fields[..] else {
            let found = fields.len();
            let fields = fields.join(" ");
            return Err(format!("expected exactly 5 fields, found {found}: [{fields}]"));
        };
        let fields = Fields {
            minute: MINUTES.parse_field(minute)?,
            hour: HOURS.parse_field(hour)?,
            day_of_month: DAYS_OF_MONTH.parse_field(day_of_month)?,
            month: MONTHS.parse_field(month)?,
            day_of_week: DAYS_OF_WEEK.parse_field(day_of_week)?,
        };
        Ok(Schedule::Fields(Box::new(fields), zone))
    }

    /// Returns the first time after `time` at which the schedule is due; `None`: not within
    /// `HORIZON_YEARS`, or `time` is outside the calendar.
    pub fn next(&self, time: Timestamp) -> Option<Timestamp> {
        let seconds = time.as_secs();
        match self {
            Schedule::Every(delay) => Some(Timestamp::from_secs(seconds) + *delay),
            Schedule::Fields(_, _) if !CALENDAR.contains(&seconds) => None,
            Schedule::Fields(fields, zone) => {
                fields.next(&Zone(zone), seconds + 1).map(Timestamp::from_secs)
            }
        }
    }
}

/// Reads `@daily` and its like, and `@every` with a duration. Upstream: `parseDescriptor`.
fn parse_descriptor(text: &str, zone: TimeZone) -> Result<Schedule, String> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let every = text.strip_prefix("@every ");
            let every = every.ok_or_else(|| format!("unrecognized descriptor: {text}"))?;
            // An interval below a second, so also a negative one, counts as a second.
            let negated = every.strip_prefix('-').filter(|text| !text.starts_with(['-', '+']));
            let length = parse_duration(negated.unwrap_or(every))
                .map_err(|error| format!("failed to parse duration {text}: {error}"))?;
            let every = if negated.is_some() { Duration::ZERO } else { length };
            return Ok(Schedule::Every(Duration::from_secs(every.as_secs().max(1))));
        }
    };
    Schedule::parse(fields, zone)
}

impl Bounds {
    /// Parses a field, which is a list of ranges: `1,5-10/2,*/15`. Empty ranges are ignored, so `,`
    /// has no values. Upstream: `getField`.
    fn parse_field(&self, field: &str) -> Result<Set, String> {
        let mut set = Set::default();
        for range in field.split(',').filter(|range| !range.is_empty()) {
            let Set { bits, star } = self.parse_range(range)?;
            set = Set { bits: set.bits | bits, star: set.star || star };
        }
        Ok(set)
    }

    /// Parses `*`, a number or a range, with a step if there is one, to the set of its values.
    /// Upstream: `getRange`.
    fn parse_range(&self, text: &str) -> Result<Set, String> {
        let (range, step) = match text.split('/').collect::<Vec<_>>()[..] {
            [range] => (range, None),
            [range, step] => (range, Some(step)),
            _ => return Err(format!("too many slashes: {text}")),
        };
        let ends: Vec<&str> = range.split('-').collect();
        let mut star = matches!(ends[0], "*" | "?");
        let (start, mut end) = match ends[..] {
            _ if star => (self.min, self.max),
            [only] => self.parse_number(only).map(|only| (only, only))?,
            [start, end] => (self.parse_number(start)?, self.parse_number(end)?),
            _ => return Err(format!("too many hyphens: {text}")),
        };
        let step = match step {
            None => 1,
            Some(step) => {
                let step = parse_digits(step)?;
                if ends.len() == 1 {
                    // `N/step` runs to the end of the field.
                    end = self.max;
                }
                star &= step <= 1;
                step
            }
        };
        let Bounds { min, max, .. } = self;
        if start < *min {
            return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
        }
        if end > *max {
            return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
        }
        if start > end {
            return Err(format!(
                "beginning of range ({start}) beyond end of range ({end}): {text}"
            ));
        }
        if step == 0 {
            return Err(format!("step of range should be a positive number: {text}"));
        }
        let steps = (start..=end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        Ok(Set { bits: steps.fold(0, |bits, value| bits | 1 << value), star })
    }

    /// Parses a number, or one of the field's names. Upstream: `parseIntOrName`.
    fn parse_number(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().zip(self.min..);
        let named = named.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
        named.map_or_else(|| parse_digits(text), |(_, value)| Ok(value))
    }
}

/// Parses a decimal number that is not negative. The errors are in Go's words.
/// Upstream: `mustParseInt`.
fn parse_digits(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let quoted = format!("strconv.Atoi: parsing {text:?}: invalid syntax");
        return Err(format!("failed to parse int from {text}: {quoted}"));
    }
    let value: i64 = text.parse().map_err(|_| {
        let quoted = format!("strconv.Atoi: parsing {text:?}: value out of range");
        format!("failed to parse int from {text}: {quoted}")
    })?;
    if value < 0 {
        return Err(format!("negative number ({value}) not allowed: {text}"));
    }
    // Larger than every field's maximum.
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

impl Set {
    fn contains(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits & 1 << value != 0)
    }
}

/// From the year 1 up to 9990. jiff's calendar, which ends with 9999, has room for a search there.
const CALENDAR: std::ops::Range<i64> = -62_135_596_800..252_423_993_600;

/// A time zone, in seconds since 1970.
struct Zone<'a>(&'a TimeZone);

impl Zone<'_> {
    /// Returns the offset from UTC, in seconds, at a time in seconds since 1970.
    fn offset(&self, seconds: i64) -> i64 {
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        i64::from(self.0.to_offset(time).seconds())
    }

    /// Returns what clocks show at a time in seconds since 1970.
    fn local_time(&self, seconds: i64) -> DateTime {
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        self.0.to_datetime(time)
    }

    /// Returns the time, in seconds since 1970, at which clocks show `local`. A time that clocks
    /// skip, or show twice, is taken with the offset that Go takes. Upstream: `time.Date`.
    fn seconds(&self, local: DateTime) -> i64 {
        let utc = TimeZone::UTC.to_timestamp(local).map_or(0, jiff::Timestamp::as_second);
        utc - self.offset(utc - self.offset(utc))
    }
}

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

impl Fields {
    /// Returns whether the day matches: both fields of days if one of them is a star, otherwise
    /// either.
    fn day_matches(&self, local: DateTime) -> bool {
        let of_month = self.day_of_month.contains(local.day());
        let of_week = self.day_of_week.contains(local.weekday().to_sunday_zero_offset());
        if self.day_of_month.star || self.day_of_week.star {
            of_month && of_week
        } else {
            of_month || of_week
        }
    }

    /// Returns the first due second, `from` or later. Each field is advanced until it matches; one
    /// that starts again at its beginning takes the search back to the months.
    /// Upstream: `SpecSchedule.Next`.
    fn next(&self, zone: &Zone<'_>, from: i64) -> Option<i64> {
        // A field such as `,` has no values: the search would try every minute for years.
        if [self.minute, self.hour, self.month].iter().any(|set| set.bits == 0) {
            return None;
        }
        let last_year = zone.local_time(from).year() + HORIZON_YEARS;
        // A year of the calendar must be left to end the search in.
        if last_year >= Date::MAX.year() {
            return None;
        }
        let mut time = from;
        // Whether the smaller fields are at their beginning already.
        let mut advanced = false;
        'months: loop {
            let mut local = zone.local_time(time);
            if local.year() > last_year {
                return None;
            }
            while !self.month.contains(local.month()) {
                if !advanced {
                    advanced = true;
                    local = local.date().first_of_month().at(0, 0, 0, 0);
                }
                let next = next_month(local.date())?;
                time = zone.seconds(next.to_datetime(local.time()));
                local = zone.local_time(time);
                if local.month() == 1 {
                    continue 'months;
                }
            }
            while !self.day_matches(local) {
                if !advanced {
                    advanced = true;
                    local = zone.local_time(zone.seconds(local.date().at(0, 0, 0, 0)));
                }
                let next = local.date().tomorrow().ok()?;
                let before = time;
                time = zone.seconds(next.to_datetime(local.time()));
                // Where clocks skip midnight, the day begins an hour off.
                time += match i64::from(zone.local_time(time).hour()) {
                    0 => 0,
                    hour if hour > 12 => (24 - hour) * HOUR,
                    hour => -hour * HOUR,
                };
                // A day that the zone skips: upstream's search stays before it for ever.
                if time <= before {
                    let next = next.tomorrow().ok()?;
                    time = zone.seconds(next.to_datetime(local.time()));
                }
                local = zone.local_time(time);
                if local.day() == 1 {
                    continue 'months;
                }
            }
            while !self.hour.contains(local.hour()) {
                if !advanced {
                    advanced = true;
                    time = zone.seconds(local.date().at(local.hour(), 0, 0, 0));
                }
                time += HOUR;
                local = zone.local_time(time);
                if local.hour() == 0 {
                    continue 'months;
                }
            }
            while !self.minute.contains(local.minute()) {
                if !advanced {
                    advanced = true;
                    time -= time.rem_euclid(MINUTE);
                }
                time += MINUTE;
                local = zone.local_time(time);
                if local.minute() == 0 {
                    continue 'months;
                }
            }
            // Schedules of the API have no field for seconds: they are due at second 0.
            if local.second() == 0 {
                return Some(time);
            }
            time += i64::from(60 - local.second());
            advanced = true;
        }
    }
}

/// Returns the same day of the next month. Where that month is shorter, the days are counted on
/// into the one after it. Upstream: `Time.AddDate`.
fn next_month(date: Date) -> Option<Date> {
    let (year, month) = match date.month() {
        12 => (date.year() + 1, 1),
        month => (date.year(), month + 1),
    };
    let first = Date::new(year, month, 1).ok()?;
    first.checked_add(Span::new().days(date.day() - 1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Schedule, String> {
        Schedule::parse(text, TimeZone::UTC)
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_is_due_after_the_last_year_of_the_calendar() {
        let from = time("9999-12-30T20:00:00Z");
        for schedule in ["* * * * *", "0 0 1 1 *", "30 8 * * 1", "0 0 30 2 *", "@hourly"] {
            assert_eq!(parse(schedule).unwrap().next(from), None, "{schedule}");
        }
    }

    #[test]
    fn when_schedules_are_due() {
        for (schedule, from, next) in [
            ("* * * * *", "2026-07-09T14:45:00Z", "2026-07-09T14:46:00Z"),
            ("* * * * ?", "2026-07-09T14:59:59Z", "2026-07-09T15:00:00Z"),
            ("*/15 * * * *", "2026-07-09T14:46:12Z", "2026-07-09T15:00:00Z"),
            ("20-35/15 * * * *", "2026-07-09T14:46:00Z", "2026-07-09T15:20:00Z"),
            ("5/20 * * * *", "2026-07-09T14:26:00Z", "2026-07-09T14:45:00Z"),
            ("0 23 31 DEC ?", "2026-01-01T00:00:00Z", "2026-12-31T23:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("30 8 * * Mon-fri", "2026-07-10T08:30:00Z", "2026-07-13T08:30:00Z"),
            // Either day, unless one of the two is a star.
            ("0 0 13 * 5", "2026-11-01T00:00:00Z", "2026-11-06T00:00:00Z"),
            ("0 0 13 * *", "2026-11-01T00:00:00Z", "2026-11-13T00:00:00Z"),
            ("0 0 * * 5", "2026-11-01T00:00:00Z", "2026-11-06T00:00:00Z"),
            // A step takes the star away.
            ("0 0 */2 * 5", "2026-11-01T00:00:00Z", "2026-11-03T00:00:00Z"),
            ("@yearly", "2026-11-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@monthly", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("@weekly", "2026-11-01T00:00:00Z", "2026-11-08T00:00:00Z"),
            ("@midnight", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"),
            ("@hourly", "2026-11-01T00:00:00Z", "2026-11-01T01:00:00Z"),
            ("@every 90m", "2026-11-01T00:00:00.5Z", "2026-11-01T01:30:00Z"),
            ("@every 10ms", "2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z"),
            ("@every -5m", "2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z"),
            ("TZ=Asia/Kolkata 0 9 * * *", "2026-11-01T00:00:00Z", "2026-11-01T03:30:00Z"),
            ("CRON_TZ=Asia/Tokyo @daily", "2026-11-01T00:00:00Z", "2026-11-01T15:00:00Z"),
            // Clocks go from 2:00 to 3:00 on 2026-03-08 and from 2:00 to 1:00 on 2026-11-01.
            ("TZ=America/New_York 0 0 * * *", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
            ("TZ=America/New_York 30 2 * * *", "2026-03-07T08:00:00Z", "2026-03-09T06:30:00Z"),
            ("TZ=America/New_York 30 1 * * *", "2026-10-31T06:00:00Z", "2026-11-01T05:30:00Z"),
            ("TZ=America/New_York 30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
            ("TZ=America/New_York 0 * * * *", "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"),
            // Midnight is skipped on 2018-11-04.
            ("TZ=America/Sao_Paulo 0 0 * * *", "2018-11-03T12:00:00Z", "2018-11-05T02:00:00Z"),
            ("TZ=America/Sao_Paulo 0 9 4 11 ?", "2018-11-01T12:00:00Z", "2018-11-04T11:00:00Z"),
            // Midnight is skipped on the first of October 2017: the search goes from month to month
            // on the 30th, which February lacks.
            ("TZ=America/Asuncion 0 0 1 2 *", "2017-08-15T00:00:00Z", "2020-02-01T03:00:00Z"),
            ("TZ=America/Asuncion 0 0 * 2 *", "2017-08-15T00:00:00Z", "2019-02-03T03:00:00Z"),
            ("TZ=America/Asuncion 0 12 * 2-3 *", "2017-08-15T00:00:00Z", "2018-03-03T15:00:00Z"),
            // There is no 30 December 2011.
            ("TZ=Pacific/Apia 0 0 31 12 *", "2011-12-28T12:00:00Z", "2011-12-30T10:00:00Z"),
        ] {
            let next_found = parse(schedule).unwrap().next(time(from));
            assert_eq!(next_found, Some(time(next)), "{schedule} after {from}");
        }
        assert_eq!(parse(", * * * *").unwrap().next(time("2026-01-01T00:00:00Z")), None);
        assert_eq!(parse("59 23 31 2 *").unwrap().next(time("2026-01-01T00:00:00Z")), None);
    }

    #[test]
    fn what_is_refused_and_why() {
        for (text, why) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("TZ=0", "invalid schedule format: no fields"),
            (
                "TZ=Mars/Base * * * * *",
                "provided bad location Mars/Base: unknown time zone Mars/Base",
            ),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            (
                "x * * * *",
                r#"failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax"#,
            ),
            ("* * * * */-1", "negative number (-1) not allowed: -1"),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(parse(text).unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn a_zone_that_the_system_lacks_is_a_bundled_one() {
        let (none, bundled) = (TimeZoneDatabase::none(), TimeZoneDatabase::bundled());
        for (databases, name, known) in [
            ([&none, &bundled], "US/Pacific", true),
            ([&bundled, &none], "US/Pacific", true),
            ([&none, &bundled], "us/pacific", false),
            ([&none, &none], "US/Pacific", false),
        ] {
            let zone = zone_of(databases, name);
            assert_eq!(zone.is_some(), known, "{name}");
            assert!(zone.is_none_or(|zone| zone.iana_name() == Some(name)));
        }
    }

    #[test]
    fn time_zones_have_exact_names() {
        assert!(time_zone("Europe/Berlin").is_ok());
        assert_eq!(time_zone("").unwrap(), TimeZone::UTC);
        if Path::new(ZONES).join("posix/Europe/Berlin").exists() {
            assert!(time_zone("posix/Europe/Berlin").is_ok());
        }
        for name in ["europe/berlin", "Nowhere", "../etc/passwd", "/etc/localtime"] {
            assert_eq!(time_zone(name).unwrap_err(), format!("unknown time zone {name}"));
        }
    }
}
