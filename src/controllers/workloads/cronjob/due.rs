//! The start of a CronJob that is due, and the time of the next one.

use std::time::Duration;

use super::schedule::Schedule;
use crate::objects::{CronJob, Timestamp};

/// Added to the time of the next start, for clocks that are a little apart.
/// Upstream: `nextScheduleDelta`.
const MARGIN: Duration = Duration::from_millis(100);
/// More missed starts than this are reported.
const MANY: i64 = 100;

/// How many starts were missed, roughly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missed {
    None,
    Few,
    Many,
}

/// The starts that have been due since the last one.
#[derive(Debug, PartialEq)]
struct Recent {
    /// From where starts are counted.
    since: Timestamp,
    /// The most recent start that is not after now.
    last: Option<Timestamp>,
    missed: Missed,
}

/// Finds the most recent start that is due, and roughly how many were missed. `deadline`: how many
/// seconds a start may be late. `Err`: no further start can be found. Upstream:
/// `mostRecentScheduleTime`.
fn recent_starts(
    cron_job: &CronJob,
    schedule: &Schedule,
    now: Timestamp,
    deadline: Option<i64>,
) -> Result<Recent, String> {
    let last = cron_job.status.last_schedule_time;
    let mut since = last.or(cron_job.meta.creation_timestamp).unwrap_or_default();
    if let Some(deadline) = deadline {
        // Anything before this is too late anyway.
        since = since.max(now - Duration::from_secs(u64::try_from(deadline).unwrap_or(0)));
    }
    let never = || "time difference between two schedules is less than 1 second".to_owned();
    let first = schedule.next(since).ok_or_else(never)?;
    if now < first {
        return Ok(Recent { since, last: None, missed: Missed::None });
    }
    let second = schedule.next(first).ok_or_else(never)?;
    if now < second {
        return Ok(Recent { since, last: Some(first), missed: Missed::None });
    }
    let period = i64::try_from(second.duration_since(first).as_secs()).unwrap_or(i64::MAX);
    if period < 1 {
        return Err(never());
    }
    let elapsed = i64::try_from(now.duration_since(first).as_secs()).unwrap_or(i64::MAX);
    let count = elapsed / period + 1;
    // No list of all missed starts is needed. The search for the last one begins as many whole
    // periods after the first start as leave a start that is due: mostly two periods before now.
    // Upstream always takes that, and finds no start if the period of the schedule varies.
    let after =
        |periods: i64| Timestamp::from_micros(first.as_micros() + periods * period * 1_000_000);
    let is_due = |periods: i64| schedule.next(after(periods)).is_some_and(|next| next <= now);
    // A start is due after `from`, and none after `to`. `count` is at least 2: the second start is
    // due.
    let (mut from, mut to) = (0, count - 2);
    if is_due(to) {
        from = to;
    }
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        match is_due(middle) {
            true => from = middle,
            false => to = middle,
        }
    }
    let mut last = None;
    let mut next = schedule.next(after(from));
    while let Some(time) = next.filter(|time| *time <= now) {
        last = Some(time);
        next = schedule.next(time);
    }
    Ok(Recent { since, last, missed: if count > MANY { Missed::Many } else { Missed::Few } })
}

/// Returns the time of the start that is due, if there is one, and how many were missed. Upstream:
/// `nextScheduleTime`.
///
/// # Errors
/// When the schedule is never due, such as on 31 February.
pub fn start(
    cron_job: &CronJob,
    schedule: &Schedule,
    now: Timestamp,
) -> Result<Option<(Timestamp, Missed)>, String> {
    let deadline = cron_job.spec.starting_deadline_seconds;
    let Recent { last, missed, .. } = recent_starts(cron_job, schedule, now, deadline)?;
    Ok(last.map(|time| (time, missed)))
}

/// Returns how long it is until the next start; zero if the schedule is never due. Upstream:
/// `nextScheduleTimeDuration`.
pub fn wait(cron_job: &CronJob, schedule: &Schedule, now: Timestamp) -> Duration {
    // Not from now: `@every` counts from the former start.
    let from = match recent_starts(cron_job, schedule, now, None) {
        Ok(Recent { last, since, .. }) => last.unwrap_or(since),
        Err(_) => now,
    };
    schedule.next(from).map_or(Duration::ZERO, |next| (next + MARGIN).duration_since(now))
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::*;

    fn at_time_of_day(text: &str) -> Timestamp {
        format!("2026-05-19T{text}Z").parse().unwrap()
    }

    fn cron_job(last: Option<&str>, deadline: Value) -> CronJob {
        serde_json::from_value(json!({
            "metadata": { "creationTimestamp": at_time_of_day("09:00:00") },
            "spec": { "startingDeadlineSeconds": deadline },
            "status": { "lastScheduleTime": last.map(at_time_of_day) },
        }))
        .unwrap()
    }

    #[test]
    fn which_start_is_due() {
        let none = || json!(null);
        for (schedule, last, deadline, now, due, wait_seconds) in [
            ("0 * * * *", None, none(), "09:59:59", None, 1),
            ("0 * * * *", None, none(), "10:00:00", Some(("10:00:00", Missed::None)), 3600),
            ("0 * * * *", None, none(), "10:30:00", Some(("10:00:00", Missed::None)), 1800),
            ("0 * * * *", Some("10:00:00"), none(), "10:30:00", None, 1800),
            (
                "0 * * * *",
                Some("10:00:00"),
                none(),
                "13:10:00",
                Some(("13:00:00", Missed::Few)),
                3000,
            ),
            ("* * * * *", None, none(), "12:00:30", Some(("12:00:00", Missed::Many)), 30),
            ("* * * * *", None, json!(300), "12:00:30", Some(("12:00:00", Missed::Few)), 30),
            ("0 * * * *", None, json!(60), "10:30:00", None, 1800),
            ("@every 7m", None, none(), "09:15:00", Some(("09:14:00", Missed::Few)), 360),
        ] {
            let text = format!("{schedule} {last:?} {deadline} at {now}");
            let schedule = Schedule::parse(schedule, TimeZone::UTC).unwrap();
            let (cron_job, now) = (cron_job(last, deadline), at_time_of_day(now));
            let due = due.map(|(time, missed)| (at_time_of_day(time), missed));
            assert_eq!(start(&cron_job, &schedule, now), Ok(due), "{text}");
            let expected = Duration::from_secs(wait_seconds) + MARGIN;
            assert_eq!(wait(&cron_job, &schedule, now), expected, "{text}");
        }
    }

    #[test]
    fn the_last_missed_start_of_an_uneven_schedule_is_due() {
        let new_york = || TimeZone::get("America/New_York").expect("a zone");
        let utc = || TimeZone::UTC;
        // The schedule in its zone, the last start before the outage, the deadline, the end of the
        // outage, and the start that is due then.
        for (schedule, zone, last, deadline, now, due) in [
            // Two days of a year.
            (
                "0 0 1,2 1 *",
                utc(),
                "2025-01-02T00:00:00Z",
                None,
                "2026-05-19T00:00:00Z",
                Some("2026-01-02T00:00:00Z"),
            ),
            // The deadline has passed, or not.
            (
                "0 0 1,2 1 *",
                utc(),
                "2025-01-02T00:00:00Z",
                Some(137 * 86_400 - 1),
                "2026-05-19T00:00:00Z",
                None,
            ),
            (
                "0 0 1,2 1 *",
                utc(),
                "2025-01-02T00:00:00Z",
                Some(139 * 86_400),
                "2026-05-19T00:00:00Z",
                Some("2026-01-02T00:00:00Z"),
            ),
            // Each week; the first one is an hour shorter than the others.
            (
                "0 1 * * 1",
                new_york(),
                "2026-02-23T06:00:00Z",
                None,
                "2026-03-23T04:30:00Z",
                Some("2026-03-16T05:00:00Z"),
            ),
            // Each minute of an hour: the last one, though the period is a minute.
            (
                "* 6 * * *",
                utc(),
                "2026-05-17T06:59:00Z",
                None,
                "2026-05-19T05:00:00Z",
                Some("2026-05-18T06:59:00Z"),
            ),
            // The first two starts of many years are near.
            (
                "0 0 28,29 2 *",
                utc(),
                "2007-03-01T00:00:00Z",
                None,
                "2026-01-19T00:00:00Z",
                Some("2025-02-28T00:00:00Z"),
            ),
        ] {
            let text = format!("{schedule} from {last} to {now} with {deadline:?}");
            let schedule = Schedule::parse(schedule, zone).unwrap();
            let cron_job: CronJob = serde_json::from_value(json!({
                "spec": { "startingDeadlineSeconds": deadline },
                "status": { "lastScheduleTime": last },
            }))
            .unwrap();
            let now: Timestamp = now.parse().unwrap();
            let found = start(&cron_job, &schedule, now).unwrap().map(|(time, _)| time);
            assert_eq!(found, due.map(|time| time.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_schedule_without_dates_is_an_error() {
        let never = Schedule::parse("59 23 31 2 *", TimeZone::UTC).unwrap();
        let error =
            start(&cron_job(None, json!(null)), &never, at_time_of_day("12:00:00")).unwrap_err();
        assert_eq!(error, "time difference between two schedules is less than 1 second");
    }
}
