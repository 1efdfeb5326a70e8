//! The metrics of the queues. Upstream: component-base/metrics/prometheus/workqueue.

use parking_lot::Mutex;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Histogram, IntCounter, IntGauge, Opts};

use crate::metrics::{exponential, metrics};

/// The metrics of one named queue.
pub(super) struct QueueMetrics {
    depth: IntGauge,
    adds: IntCounter,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: IntCounter,
}

impl QueueMetrics {
    /// Makes the metrics of a queue; `None` for a queue without a name.
    pub fn new(name: &str) -> Option<QueueMetrics> {
        (!name.is_empty()).then(|| QueueMetrics {
            depth: DEPTH.with_label_values(&[name]),
            adds: ADDS.with_label_values(&[name]),
            queue_duration: QUEUE_DURATION.with_label_values(&[name]),
            work_duration: WORK_DURATION.with_label_values(&[name]),
            retries: RETRIES.with_label_values(&[name]),
        })
    }

    /// Records that a key was queued.
    pub fn record_added(&self) {
        self.adds.inc();
        self.depth.inc();
    }

    /// Records that a worker has taken a key, which `waited` in the queue.
    pub fn record_taken(&self, waited: Duration) {
        self.depth.dec();
        self.queue_duration.observe(waited.as_secs_f64());
    }

    /// Records that a worker is done with a key.
    pub fn record_done(&self, worked: Duration) {
        self.work_duration.observe(worked.as_secs_f64());
    }

    /// Records an addition with a delay.
    pub fn record_retried(&self) {
        self.retries.inc();
    }

    /// Returns the numbers of adds and of retries.
    pub fn counts(&self) -> (u64, u64) {
        (self.adds.get(), self.retries.get())
    }
}

/// How long the keys in progress have been worked on.
#[derive(Clone, Copy, Default)]
pub(super) struct InProgress {
    pub total: Duration,
    pub longest: Duration,
}

impl InProgress {
    /// Adds a key that has been worked on for `age`.
    pub fn and(self, age: Duration) -> InProgress {
        InProgress { total: self.total + age, longest: self.longest.max(age) }
    }
}

/// A queue whose progress is read together with the metrics.
pub(super) trait HasProgress: Send + Sync {
    fn progress(&self) -> InProgress;
}

/// Reports the progress of `queue` under `name` while it lives.
pub(super) fn report_progress(name: &str, queue: Weak<dyn HasProgress>) {
    QUEUES.lock().push((name.into(), queue));
}

/// The queues that live, by their names.
type Queues = Arc<Mutex<Vec<(Box<str>, Weak<dyn HasProgress>)>>>;

metrics! {
    static DEPTH: IntGaugeVec["name"] = "workqueue_depth", "[BETA] Current depth of workqueue";
    static ADDS: IntCounterVec["name"] =
        "workqueue_adds_total", "[BETA] Total number of adds handled by workqueue";
    static QUEUE_DURATION: HistogramVec["name"](exponential(10e-9, 10.0, 10)) =
        "workqueue_queue_duration_seconds",
        "[BETA] How long in seconds an item stays in workqueue before being requested.";
    static WORK_DURATION: HistogramVec["name"](exponential(10e-9, 10.0, 10)) =
        "workqueue_work_duration_seconds",
        "[BETA] How long in seconds processing an item from workqueue takes.";
    static RETRIES: IntCounterVec["name"] =
        "workqueue_retries_total", "[BETA] Total number of retries handled by workqueue";
}

/// The queues with a name, for [`ProgressCollector`].
static QUEUES: LazyLock<Queues> = LazyLock::new(|| {
    let queues = Queues::default();
    if let Err(error) = ProgressCollector::register(&queues) {
        log::error!("workqueue: the progress has no metrics: {error}");
    }
    queues
});

impl ProgressCollector {
    /// Registers the metrics of the keys in progress, which are computed at each scrape.
    fn register(queues: &Queues) -> prometheus::Result<()> {
        prometheus::register(Box::new(ProgressCollector {
            unfinished: GaugeVec::new(
                Opts::new(
                    "workqueue_unfinished_work_seconds",
                    "[BETA] How many seconds of work has done that is in progress and hasn't been \
                     observed by work_duration. Large values indicate stuck threads. One can \
                     deduce the number of stuck threads by observing the rate at which this \
                     increases.",
                ),
                &["name"],
            )?,
            longest: GaugeVec::new(
                Opts::new(
                    "workqueue_longest_running_processor_seconds",
                    "[BETA] How many seconds has the longest running processor for workqueue been \
                     running.",
                ),
                &["name"],
            )?,
            queues: queues.clone(),
        }))
    }
}

/// Reads the queues when the metrics are read. Upstream has a ticker for each queue; here an idle
/// queue sleeps.
struct ProgressCollector {
    unfinished: GaugeVec,
    longest: GaugeVec,
    queues: Queues,
}

impl Collector for ProgressCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.unfinished.desc(), self.longest.desc()].concat()
    }

    /// Sums the progress of all queues by their names, and forgets queues that are gone.
    fn collect(&self) -> Vec<MetricFamily> {
        self.unfinished.reset();
        self.longest.reset();
        self.queues.lock().retain(|(name, queue)| {
            let Some(queue) = queue.upgrade() else { return false };
            let progress = queue.progress();
            self.unfinished.with_label_values(&[name]).add(progress.total.as_secs_f64());
            let longest = self.longest.with_label_values(&[name]);
            longest.set(longest.get().max(progress.longest.as_secs_f64()));
            true
        });
        let mut families = self.unfinished.collect();
        families.extend(self.longest.collect());
        families
    }
}
