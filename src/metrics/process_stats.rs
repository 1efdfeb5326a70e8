//! The metrics of a process, read from `/proc` on each scrape.
//! Upstream: `prometheus/client_golang` process collector.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// Clock ticks per second in `/proc`; the same on every Linux platform of Rust.
const TICKS: f64 = 100.0;

/// Registers this process's metrics; a second call does nothing.
pub fn register() {
    let Some(process) = Process::new() else { return };
    match prometheus::register(Box::new(process)) {
        Ok(()) | Err(prometheus::Error::AlreadyReg) => (),
        Err(error) => log::error!("metrics: {error}"),
    }
}

/// Makes a metric of Kubernetes: the time at which this process started.
pub fn start_time() -> prometheus::Result<Gauge> {
    let gauge = Gauge::new(START_TIME, format!("[ALPHA] {START_TIME_HELP}"))?;
    gauge.set(current().start_seconds);
    Ok(gauge)
}

const START_TIME: &str = "process_start_time_seconds";
const START_TIME_HELP: &str = "Start time of the process since unix epoch in seconds.";

/// The metrics of this process, each with the part of a [`Reading`] that it shows.
struct Process {
    /// Counters whose values come from the kernel.
    counters: Vec<(Counter, Pick)>,
    gauges: Vec<(Gauge, Pick)>,
}

/// Selects the value of a gauge.
type Pick = fn(&Reading) -> f64;

/// One reading of a process from `/proc`.
#[derive(Debug, Default, PartialEq)]
pub struct Reading {
    pub cpu_seconds: f64,
    pub start_seconds: f64,
    pub resident_bytes: f64,
    /// The peak of `resident_bytes`.
    pub peak_bytes: f64,
    pub virtual_bytes: f64,
    pub threads: f64,
    pub open_fds: f64,
    /// By all network interfaces of the process's network namespace.
    pub received_bytes: f64,
    pub sent_bytes: f64,
    /// The soft limit of open files; `u64::MAX` when unlimited.
    pub max_fds: f64,
    /// The soft limit of virtual memory; `u64::MAX` when unlimited.
    pub virtual_max_bytes: f64,
}

impl Process {
    /// Creates the metrics of the process, with how each one's value is picked from a reading.
    fn new() -> Option<Process> {
        let gauge = |name: &str, help: &str, read: Pick| Some((Gauge::new(name, help).ok()?, read));
        let counter =
            |name: &str, help: &str, read: Pick| Some((Counter::new(name, help).ok()?, read));
        let cpu = "Total user and system CPU time spent in seconds.";
        Some(Process {
            counters: vec![
                counter("process_cpu_seconds_total", cpu, |r| r.cpu_seconds)?,
                counter(
                    "process_network_receive_bytes_total",
                    "Number of bytes received by the process over the network.",
                    |r| r.received_bytes,
                )?,
                counter(
                    "process_network_transmit_bytes_total",
                    "Number of bytes sent by the process over the network.",
                    |r| r.sent_bytes,
                )?,
            ],
            gauges: vec![
                gauge(START_TIME, START_TIME_HELP, |r| r.start_seconds)?,
                gauge("process_resident_memory_bytes", "Resident memory size in bytes.", |r| {
                    r.resident_bytes
                })?,
                gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", |r| {
                    r.virtual_bytes
                })?,
                gauge(
                    "process_virtual_memory_max_bytes",
                    "Maximum amount of virtual memory available in bytes.",
                    |r| r.virtual_max_bytes,
                )?,
                gauge("process_open_fds", "Number of open file descriptors.", |r| r.open_fds)?,
                gauge("process_max_fds", "Maximum number of open file descriptors.", |r| {
                    r.max_fds
                })?,
            ],
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges.iter().flat_map(|(gauge, _)| gauge.desc());
        self.counters.iter().flat_map(|(counter, _)| counter.desc()).chain(gauges).collect()
    }

    /// Reads the state of the process from `/proc`, and sets all metrics to it.
    fn collect(&self) -> Vec<MetricFamily> {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut reading = current();
        reading.open_fds = fs::read_dir("/proc/self/fd").map_or(0.0, |dir| dir.count() as f64);
        (reading.max_fds, reading.virtual_max_bytes) = limits(&text("/proc/self/limits"));
        (reading.received_bytes, reading.sent_bytes) = octets(&text("/proc/self/net/netstat"));
        // Sets the counters to the kernel's values.
        let counters = self.counters.iter().flat_map(|(counter, value)| {
            counter.reset();
            counter.inc_by(value(&reading));
            counter.collect()
        });
        let mut families: Vec<MetricFamily> = counters.collect();
        families.extend(self.gauges.iter().flat_map(|(gauge, value)| {
            gauge.set(value(&reading));
            gauge.collect()
        }));
        families
    }
}

/// Reads the state of this process, without its descriptors and limits.
pub fn current() -> Reading {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    read(&text("/proc/self/stat"), &text("/proc/self/status"), &text("/proc/stat"))
}

/// Parses the `stat` and `status` of a process, and the system's `stat`, into a reading.
pub fn read(stat: &str, status: &str, system: &str) -> Reading {
    // The second field is the program's name, which may contain spaces and parentheses.
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_name, fields)) => fields.split_whitespace().collect(),
        None => Vec::new(),
    };
    // `field`: its number in the manual of proc(5). The first of `fields` is the third one there.
    let ticks = |field: usize| -> f64 {
        fields.get(field - 3).and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    let number = |text: &str, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    Reading {
        cpu_seconds: (ticks(14) + ticks(15)) / TICKS,
        start_seconds: number(system, "btime") + ticks(22) / TICKS,
        resident_bytes: number(status, "VmRSS:") * 1024.0,
        peak_bytes: number(status, "VmHWM:") * 1024.0,
        virtual_bytes: number(status, "VmSize:") * 1024.0,
        threads: ticks(20),
        ..Reading::default()
    }
}

/// Reads the soft limits of open files and of virtual memory, in this order, from the text of
/// `limits`.
fn limits(text: &str) -> (f64, f64) {
    let soft = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        match line.split_whitespace().next() {
            // Go's collector reports it so.
            Some("unlimited") => u64::MAX as f64,
            other => other.and_then(|text| text.parse().ok()).unwrap_or_default(),
        }
    };
    (soft("Max open files"), soft("Max address space"))
}

/// Reads the bytes received and sent from the text of `netstat`: lines of names above lines of
/// numbers.
fn octets(text: &str) -> (f64, f64) {
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let number = |wanted: &str| -> f64 {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let found = pairs.find(|(name, _)| *name == wanted);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
    };
    (number("InOctets"), number("OutOctets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_is_skipped() {
        let stat = "1 (a) b) S 0 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 700 1 1 1";
        let reading = read(
            stat,
            "Name:\tx\nVmSize:\t 20 kB\nVmHWM:\t 15 kB\nVmRSS:\t 10 kB\n",
            "btime 1000\n",
        );
        let expected = Reading {
            cpu_seconds: 3.0,
            start_seconds: 1007.0,
            resident_bytes: 10240.0,
            peak_bytes: 15360.0,
            virtual_bytes: 20480.0,
            threads: 1.0,
            ..Reading::default()
        };
        assert_eq!(reading, expected);
        assert_eq!(read("", "", ""), Reading::default());
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n\
                    Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limits(text), (1024.0, u64::MAX as f64));
        let text = "TcpExt: A InOctets\nTcpExt: 1 2\n\
                    IpExt: InNoRoutes InOctets OutOctets\nIpExt: 1 20 30\n";
        assert_eq!(octets(text), (20.0, 30.0));
        assert_eq!(octets(""), (0.0, 0.0));
    }
}
