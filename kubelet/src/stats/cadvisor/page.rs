//! The families of `/metrics/cadvisor`, and how a page of them is written.

use std::fmt::Write;

use kube_controller_manager::objects::Timestamp;

/// The families with their kinds and help texts, in the order of the alphabet.
const FAMILIES: [(&str, &str, &str); 75] = [
    (
        "cadvisor_version_info",
        "gauge",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker \
         version, cadvisor version & cadvisor revision.",
    ),
    ("container_blkio_device_usage_total", "counter", "Blkio Device bytes usage"),
    ("container_cpu_cfs_burst_periods_total", "counter", "Number of periods when burst occurs."),
    (
        "container_cpu_cfs_burst_seconds_total",
        "counter",
        "Total time duration the container has been bursted.",
    ),
    (
        "container_cpu_cfs_periods_total",
        "counter",
        "Number of elapsed enforcement period intervals.",
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Number of throttled period intervals.",
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Total time duration the container has been throttled.",
    ),
    (
        "container_cpu_system_seconds_total",
        "counter",
        "Cumulative system cpu time consumed in seconds.",
    ),
    ("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds."),
    (
        "container_cpu_user_seconds_total",
        "counter",
        "Cumulative user cpu time consumed in seconds.",
    ),
    ("container_file_descriptors", "gauge", "Number of open file descriptors for the container."),
    ("container_fs_inodes_free", "gauge", "Number of available Inodes"),
    ("container_fs_inodes_total", "gauge", "Number of Inodes"),
    ("container_fs_io_current", "gauge", "Number of I/Os currently in progress"),
    (
        "container_fs_io_time_seconds_total",
        "counter",
        "Cumulative count of seconds spent doing I/Os",
    ),
    (
        "container_fs_io_time_weighted_seconds_total",
        "counter",
        "Cumulative weighted I/O time in seconds",
    ),
    (
        "container_fs_limit_bytes",
        "gauge",
        "Number of bytes that can be consumed by the container on this filesystem.",
    ),
    ("container_fs_read_seconds_total", "counter", "Cumulative count of seconds spent reading"),
    ("container_fs_reads_bytes_total", "counter", "Cumulative count of bytes read"),
    ("container_fs_reads_merged_total", "counter", "Cumulative count of reads merged"),
    ("container_fs_reads_total", "counter", "Cumulative count of reads completed"),
    ("container_fs_sector_reads_total", "counter", "Cumulative count of sector reads completed"),
    ("container_fs_sector_writes_total", "counter", "Cumulative count of sector writes completed"),
    (
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
    ),
    ("container_fs_write_seconds_total", "counter", "Cumulative count of seconds spent writing"),
    ("container_fs_writes_bytes_total", "counter", "Cumulative count of bytes written"),
    ("container_fs_writes_merged_total", "counter", "Cumulative count of writes merged"),
    ("container_fs_writes_total", "counter", "Cumulative count of writes completed"),
    ("container_last_seen", "gauge", "Last time a container was seen by the exporter"),
    ("container_memory_cache", "gauge", "Number of bytes of page cache memory."),
    ("container_memory_failcnt", "counter", "Number of memory usage hits limits"),
    (
        "container_memory_failures_total",
        "counter",
        "Cumulative count of memory allocation failures.",
    ),
    ("container_memory_kernel_usage", "gauge", "Size of kernel memory allocated in bytes."),
    ("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes."),
    ("container_memory_max_usage_bytes", "gauge", "Maximum memory usage recorded in bytes"),
    ("container_memory_rss", "gauge", "Size of RSS in bytes."),
    ("container_memory_swap", "gauge", "Container swap usage in bytes."),
    ("container_memory_total_active_file_bytes", "gauge", "Current total active file in bytes."),
    (
        "container_memory_total_inactive_file_bytes",
        "gauge",
        "Current total inactive file in bytes.",
    ),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
    ),
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes."),
    ("container_network_receive_bytes_total", "counter", "Cumulative count of bytes received"),
    (
        "container_network_receive_errors_total",
        "counter",
        "Cumulative count of errors encountered while receiving",
    ),
    (
        "container_network_receive_packets_dropped_total",
        "counter",
        "Cumulative count of packets dropped while receiving",
    ),
    ("container_network_receive_packets_total", "counter", "Cumulative count of packets received"),
    ("container_network_transmit_bytes_total", "counter", "Cumulative count of bytes transmitted"),
    (
        "container_network_transmit_errors_total",
        "counter",
        "Cumulative count of errors encountered while transmitting",
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "counter",
        "Cumulative count of packets dropped while transmitting",
    ),
    (
        "container_network_transmit_packets_total",
        "counter",
        "Cumulative count of packets transmitted",
    ),
    (
        "container_oom_events_total",
        "counter",
        "Count of out of memory events observed for the container",
    ),
    (
        "container_pressure_cpu_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to CPU congestion.",
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to IO congestion.",
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to memory \
         congestion.",
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to memory congestion.",
    ),
    ("container_processes", "gauge", "Number of processes running inside the container."),
    (
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    ),
    ("container_sockets", "gauge", "Number of open sockets for the container."),
    ("container_spec_cpu_period", "gauge", "CPU period of the container."),
    ("container_spec_cpu_quota", "gauge", "CPU quota of the container."),
    ("container_spec_cpu_shares", "gauge", "CPU share of the container."),
    ("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container."),
    (
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Memory reservation limit for the container.",
    ),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Memory swap limit for the container."),
    (
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds.",
    ),
    ("container_threads", "gauge", "Number of threads running inside the container"),
    (
        "container_threads_max",
        "gauge",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
    ),
    (
        "container_ulimits_soft",
        "gauge",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
    ),
    ("machine_cpu_cores", "gauge", "Number of logical CPU cores."),
    ("machine_cpu_physical_cores", "gauge", "Number of physical CPU cores."),
    ("machine_cpu_sockets", "gauge", "Number of CPU sockets."),
    ("machine_memory_bytes", "gauge", "Amount of memory installed on the machine."),
    (
        "machine_scrape_error",
        "gauge",
        "1 if there was an error while getting machine metrics, 0 otherwise.",
    ),
    ("machine_swap_bytes", "gauge", "Amount of swap memory available on the machine."),
];

/// The series by family.
pub struct Page {
    lines: Vec<String>,
    millis: i64,
}

impl Page {
    /// Makes a page without series, measured at `now`.
    pub fn new(now: Timestamp) -> Page {
        Page { lines: vec![String::new(); FAMILIES.len()], millis: now.to_jiff().as_millisecond() }
    }

    /// Returns the lines of a family; `None`: there is no such family.
    fn lines(&mut self, name: &'static str) -> Option<&mut String> {
        let at = FAMILIES.binary_search_by_key(&name, |(name, ..)| *name).ok()?;
        self.lines.get_mut(at)
    }

    /// Returns whether there is a series with these labels.
    pub fn has(&mut self, name: &'static str, labels: &str) -> bool {
        let series = format!("{name}{{{labels}}} ");
        self.lines(name).is_some_and(|lines| lines.contains(&series))
    }

    /// Adds a series with the time of its measurement.
    pub fn add_timed(&mut self, name: &'static str, labels: &str, value: f64) {
        let millis = self.millis;
        if let Some(lines) = self.lines(name) {
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{name}{{{labels}}} {value} {millis}");
        }
    }

    /// Adds a series without a time.
    pub fn add(&mut self, name: &'static str, labels: &str, value: f64) {
        if let Some(lines) = self.lines(name) {
            let _ = match labels.is_empty() {
                true => writeln!(lines, "{name} {value}"),
                false => writeln!(lines, "{name}{{{labels}}} {value}"),
            };
        }
    }

    /// Renders the families that have series, in the order of the alphabet.
    pub fn text(self) -> String {
        let mut text = String::new();
        for ((name, kind, help), lines) in FAMILIES.iter().zip(self.lines) {
            if !lines.is_empty() {
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_in_order_and_known() {
        assert!(FAMILIES.is_sorted_by_key(|(name, ..)| *name));
        let mut page = Page::new(Timestamp::from_secs(0));
        for (name, ..) in FAMILIES {
            page.add(name, "", 1.0);
        }
        assert_eq!(page.text().lines().count(), 3 * FAMILIES.len());
    }
}
