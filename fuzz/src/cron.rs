//! Schedules of CronJobs: the first byte picks a time zone, the first line is the schedule, the
//! second the time from which it is counted. The next start is later than that, and the search for
//! missed starts ends.

use kube_controller_manager::controllers::workloads::cronjob::due::{start, wait};
use kube_controller_manager::controllers::workloads::cronjob::schedule::{Schedule, time_zone};
use kube_controller_manager::objects::{CronJob, Timestamp};
use serde_json::json;

use crate::bytes::parameters;

/// Zones whose clocks skip or repeat midnight, a day, half an hour or the first of a month.
const ZONES: [&str; 16] = [
    "UTC",
    "Africa/Cairo",
    "Africa/Monrovia",
    "America/Asuncion",
    "America/Havana",
    "America/Nuuk",
    "America/Sao_Paulo",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Manila",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Kwajalein",
];

const NOW: &str = "2026-05-19T10:30:00Z";

/// Checks that a schedule's times increase, and that no CronJob is started before its time.
pub fn target(input: &[u8]) {
    let (parameter, text) = parameters(input);
    let Ok(text) = str::from_utf8(text) else { return };
    let zone = ZONES[usize::from(parameter) % ZONES.len()];
    let zone = time_zone(zone).expect("zones are bundled");
    let (schedule, from) = text.split_once('\n').unwrap_or((text, ""));
    let schedule = match Schedule::parse(schedule, zone) {
        Ok(schedule) => schedule,
        Err(error) => return assert!(!error.is_empty()),
    };
    let now: Timestamp = NOW.parse().expect("a time");
    let mut time = from.parse().unwrap_or(now);
    let job = json!({
        "metadata": { "creationTimestamp": time }, "status": { "lastScheduleTime": time },
    });
    for _ in 0..4 {
        let Some(next) = schedule.next(time) else { break };
        assert!(next > time, "{schedule:?} after {time}: {next}");
        time = next;
    }
    let job: CronJob = serde_json::from_value(job).expect("a CronJob");
    if let Ok(Some((due, _))) = start(&job, &schedule, now) {
        assert!(due <= now, "{due}");
    }
    wait(&job, &schedule, now);
}
