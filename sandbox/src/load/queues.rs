//! How long keys wait in a manager's queues and how long their syncs take, from the histograms that
//! every manager serves.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Result;
use crate::cluster::free_port;
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SharedClock;

const WAITED: &str = "workqueue_queue_duration_seconds_bucket";
const WORKED: &str = "workqueue_work_duration_seconds_bucket";

/// The secure port of a manager, for its metrics.
pub struct Metrics {
    port: u16,
    client: Client,
}

/// The histograms of all queues at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histograms {
    waited: BTreeMap<String, Histogram>,
    worked: BTreeMap<String, Histogram>,
}

/// The counts of values that are not above the upper bounds of the buckets, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
struct Histogram(Vec<(f64, f64)>);

/// Upper bounds of the quantiles of a phase, in seconds: those of the histograms' buckets.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueTimes {
    pub syncs: u64,
    /// Over all queues.
    pub waited_median: f64,
    pub waited_p99: f64,
    pub worked_p99: f64,
    /// The queue with the longest wait at the 99th percentile, among those with 100 syncs; empty if
    /// no queue has 100.
    pub slowest: String,
    pub slowest_p99: f64,
}

impl fmt::Display for QueueTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} syncs", self.syncs)?;
        if self.syncs == 0 {
            return Ok(());
        }
        write!(
            f,
            "; waited {} (median), {} (99 %); took {} (99 %)",
            Bound(self.waited_median),
            Bound(self.waited_p99),
            Bound(self.worked_p99),
        )?;
        if !self.slowest.is_empty() {
            write!(f, "; slowest {}, {} (99 %)", self.slowest, Bound(self.slowest_p99))?;
        }
        Ok(())
    }
}

/// The upper bound of a bucket, in seconds. Bounds that are computed are a little off: Go serves
/// 9.999999999999999e-05 for 100 µs.
struct Bound(f64);

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Duration::try_from_secs_f64(self.0) {
            Ok(bound) => write!(f, "{bound:?}"),
            Err(_) => f.write_str("longer than all buckets"),
        }
    }
}

impl Metrics {
    /// Chooses a free port of this machine for a manager, and makes a client for it.
    pub fn new(clock: &SharedClock) -> Result<Metrics> {
        let port = free_port()?;
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        // Its certificate is self-signed, and the address that of this machine.
        config.tls.insecure = true;
        Ok(Metrics { port, client: Client::new(config, clock.clone())? })
    }

    /// Returns the flags with which a manager serves them without asking for credentials.
    pub fn flags(&self) -> [String; 2] {
        let paths = "/healthz,/readyz,/livez,/metrics";
        [
            format!("--secure-port={}", self.port),
            format!("--authorization-always-allow-paths={paths}"),
        ]
    }

    pub async fn read(&self) -> Result<Histograms> {
        let text = self.client.get_path("/metrics").await?;
        Ok(Histograms::parse(&String::from_utf8_lossy(&text)))
    }
}

impl Histograms {
    /// Parses the histograms of queues from the text of `/metrics`; other lines are ignored.
    fn parse(text: &str) -> Histograms {
        let mut all = Histograms::default();
        for line in text.lines() {
            let Some((name, rest)) = line.split_once('{') else { continue };
            let queues = match name {
                WAITED => &mut all.waited,
                WORKED => &mut all.worked,
                _ => continue,
            };
            let label = |name: &str| rest.split_once(&format!("{name}=\""))?.1.split_once('"');
            let (Some((queue, _)), Some((bound, _))) = (label("name"), label("le")) else {
                continue;
            };
            let value = rest.rsplit_once(' ').and_then(|(_, value)| value.parse().ok());
            let bound = if bound == "+Inf" { Some(f64::INFINITY) } else { bound.parse().ok() };
            if let Some(bucket) = bound.zip(value) {
                queues.entry(queue.to_owned()).or_default().0.push(bucket);
            }
        }
        all
    }

    /// Computes the times of the phase that began with `before`.
    pub fn since(&self, before: &Histograms) -> QueueTimes {
        let waited = Histogram::since_of_all(&self.waited, &before.waited);
        let worked = Histogram::since_of_all(&self.worked, &before.worked);
        let sum_of = |queues: &BTreeMap<String, Histogram>| {
            queues.values().fold(Histogram::default(), |sum, next| sum.plus(next))
        };
        let (all_waited, all_worked) = (sum_of(&waited), sum_of(&worked));
        // With fewer syncs, the 99th percentile is that of a single one.
        let busy = waited.iter().filter(|(_, histogram)| histogram.count() >= 100.0);
        let slowest = busy
            .map(|(name, histogram)| (histogram.quantile(0.99), name))
            .max_by(|one, other| one.0.total_cmp(&other.0));
        let (slowest_p99, slowest) =
            slowest.map_or_else(Default::default, |(seconds, name)| (seconds, name.clone()));
        QueueTimes {
            syncs: all_worked.count() as u64,
            waited_median: all_waited.quantile(0.5),
            waited_p99: all_waited.quantile(0.99),
            worked_p99: all_worked.quantile(0.99),
            slowest,
            slowest_p99,
        }
    }
}

impl Histogram {
    /// Returns what each queue has counted since `before`.
    fn since_of_all(
        now: &BTreeMap<String, Histogram>,
        before: &BTreeMap<String, Histogram>,
    ) -> BTreeMap<String, Histogram> {
        let none = Histogram::default();
        let since = |(name, histogram): (&String, &Histogram)| {
            (name.clone(), histogram.combined(before.get(name).unwrap_or(&none), -1.0))
        };
        now.iter().map(since).collect()
    }

    fn plus(&self, other: &Histogram) -> Histogram {
        if self.0.is_empty() { other.clone() } else { self.combined(other, 1.0) }
    }

    /// Adds `times` the counts of another histogram. The buckets of both are the same; an absent
    /// histogram has none.
    fn combined(&self, other: &Histogram, times: f64) -> Histogram {
        let of_other = |at: usize| other.0.get(at).map_or(0.0, |(_, count)| *count);
        let buckets = self.0.iter().enumerate();
        Histogram(buckets.map(|(at, (le, count))| (*le, count + times * of_other(at))).collect())
    }

    fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the upper bound of the bucket that holds the share `of` of the values; 0 without
    /// values.
    fn quantile(&self, of: f64) -> f64 {
        let rank = self.count() * of;
        let bucket = self.0.iter().find(|(_, count)| *count > 0.0 && *count >= rank);
        bucket.map_or(0.0, |(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(queue: &str, counts: [u32; 3]) -> String {
        let line = |name: &str, le: &str, count: u32| {
            format!("{name}{{name=\"{queue}\",le=\"{le}\"}} {count}\n")
        };
        let bounds = ["0.001", "1", "+Inf"];
        let of = |name: &'static str| {
            bounds.into_iter().zip(counts).map(move |(le, count)| line(name, le, count))
        };
        of(WAITED).chain(of(WORKED)).collect()
    }

    #[test]
    fn times_are_shown_rounded_and_without_a_queue_that_is_not_there() {
        let busy = QueueTimes {
            syncs: 400,
            waited_median: 9.999_999_999_999_999e-5,
            waited_p99: 0.001,
            worked_p99: f64::INFINITY,
            slowest: "job".to_owned(),
            slowest_p99: 10.0,
        };
        let few = QueueTimes { slowest: String::new(), slowest_p99: 0.0, ..busy.clone() };
        let common =
            "400 syncs; waited 100µs (median), 1ms (99 %); took longer than all buckets (99 %)";
        for (times, expected) in [
            (busy, format!("{common}; slowest job, 10s (99 %)")),
            (few, common.to_owned()),
            (QueueTimes::default(), "0 syncs".to_owned()),
        ] {
            assert_eq!(times.to_string(), expected);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_phase() {
        let before = Histograms::parse(&text("job", [1000, 1000, 1000]));
        let job = text("job", [1099, 1100, 1100]);
        let now = Histograms::parse(&(job + &text("endpoint", [0, 300, 300]) + "up 1\n"));
        let times = now.since(&before);
        assert_eq!(times.syncs, 400);
        assert_eq!((times.waited_median, times.waited_p99), (1.0, 1.0));
        assert_eq!((&*times.slowest, times.slowest_p99), ("endpoint", 1.0));
        assert_eq!(before.since(&before), QueueTimes::default());
        let beyond = Histograms::parse(&text("job", [1, 1, 2])).since(&Histograms::default());
        assert_eq!((beyond.waited_median, beyond.waited_p99), (0.001, f64::INFINITY));
        assert_eq!(beyond.slowest, "", "two syncs are too few");
    }
}
