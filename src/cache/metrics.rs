//! The metrics of the caches. The numbers stay with the informers and become series when metrics
//! are read: a series that is kept takes half a kilobyte, and each CRD has an informer.

use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::counts::Counts;
use super::processor::HandlerStatus;

/// A resource version is shown without its higher digits, as upstream.
const VERSION_DIGITS: u64 = 10_u64.pow(15);

/// The numbers of an informer, read when metrics are.
pub trait Measured: Send + Sync {
    /// The scope, as logs and metrics name it.
    fn name(&self) -> &str;
    /// The labels of upstream's metrics: name, group, version and resource.
    fn labels(&self) -> [&str; 4];
    /// Keys that wait in the queue.
    fn queued(&self) -> usize;
    /// The newest version up to which the store has all changes.
    fn last_seen_version(&self) -> u64;
    fn handlers(&self) -> Vec<HandlerStatus>;
    /// Its counters since it was created.
    fn counts(&self) -> &Counts;
}

/// The informers that run.
static RUNNING: LazyLock<Mutex<Vec<Weak<dyn Measured>>>> = LazyLock::new(|| {
    if let Err(error) = Caches::new().and_then(|caches| prometheus::register(Box::new(caches))) {
        log::error!("the caches have no metrics: {error}");
    }
    Mutex::default()
});

/// Reports the numbers of `informer` until [`forget`].
pub fn report(informer: &Arc<impl Measured + 'static>) {
    let informer: Arc<dyn Measured> = informer.clone();
    let mut running = RUNNING.lock();
    running.retain(|running| running.strong_count() > 0);
    running.push(Arc::downgrade(&informer));
}

/// Stops reporting the numbers of `informer`: its series end.
pub fn forget(informer: &Arc<impl Measured>) {
    let informer = Arc::as_ptr(informer).cast::<()>();
    RUNNING.lock().retain(|running| running.as_ptr().cast::<()>() != informer);
}

/// Reads the numbers of all informers. The vectors are empty between two reads.
struct Caches {
    queued: IntGaugeVec,
    version: IntGaugeVec,
    backlog: IntGaugeVec,
    handler_panics: IntCounterVec,
    panics: IntCounterVec,
    undecoded: IntCounterVec,
    lists: IntCounterVec,
    watches: IntCounterVec,
    short_watches: IntCounterVec,
}

impl Caches {
    /// Creates the metrics of informers and reflectors, without values.
    fn new() -> prometheus::Result<Caches> {
        const RESOURCE: [&str; 4] = ["name", "group", "version", "resource"];
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(name, help), labels)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels)
        };
        Ok(Caches {
            queued: gauge(
                "informer_queued_items",
                "[ALPHA] Number of items currently queued in the FIFO.",
                &RESOURCE,
            )?,
            version: gauge(
                "informer_store_resource_version",
                "[ALPHA] The 15 least significant digits of the resource version of the store.",
                &RESOURCE,
            )?,
            backlog: gauge(
                "informer_handler_backlog",
                "Number of notifications that wait for an event handler",
                &["informer", "handler"],
            )?,
            handler_panics: counter(
                "informer_handler_panics_total",
                "Number of notifications at which an event handler panicked",
                &["informer", "handler"],
            )?,
            panics: counter(
                "informer_panics_total",
                "Number of panics while objects were decoded or indexed",
                &["informer"],
            )?,
            undecoded: counter(
                "reflector_undecodable_objects_total",
                "Number of objects in lists and watches that could not be decoded",
                &["informer"],
            )?,
            lists: counter(
                "reflector_lists_total",
                "Number of lists begun, by how they are asked for",
                &["informer", "method"],
            )?,
            watches: counter("reflector_watches_total", "Number of watches opened", &["informer"])?,
            short_watches: counter(
                "reflector_short_watches_total",
                "Number of watches that ended within a second without an event",
                &["informer"],
            )?,
        })
    }

    fn gauges(&self) -> [&IntGaugeVec; 3] {
        [&self.queued, &self.version, &self.backlog]
    }

    fn counters(&self) -> [&IntCounterVec; 6] {
        [
            &self.handler_panics,
            &self.panics,
            &self.undecoded,
            &self.lists,
            &self.watches,
            &self.short_watches,
        ]
    }

    /// Adds the numbers of an informer to the metrics. Several informers may have the same labels.
    fn add_numbers_of(&self, informer: &dyn Measured) {
        let resource = informer.labels();
        self.queued.with_label_values(&resource).add(informer.queued() as i64);
        let version = informer.last_seen_version() % VERSION_DIGITS;
        self.version.with_label_values(&resource).set(version as i64);
        let name = informer.name();
        for handler in informer.handlers() {
            let labels = [name, &*handler.name];
            self.backlog.with_label_values(&labels).add(handler.backlog as i64);
            self.handler_panics.with_label_values(&labels).inc_by(handler.panics);
        }
        let counts = informer.counts();
        for (counter, labels, count) in [
            (&self.panics, &[name][..], &counts.panics),
            (&self.undecoded, &[name], &counts.undecoded),
            (&self.lists, &[name, "stream"], &counts.streams),
            (&self.lists, &[name, "list"], &counts.lists),
            (&self.watches, &[name], &counts.watches),
            (&self.short_watches, &[name], &counts.short_watches),
        ] {
            if count.get() > 0 {
                counter.with_label_values(labels).inc_by(count.get());
            }
        }
    }
}

impl Collector for Caches {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges().into_iter().flat_map(Collector::desc);
        gauges.chain(self.counters().into_iter().flat_map(Collector::desc)).collect()
    }

    /// Fills the metrics with the numbers of all running informers, and empties them afterwards.
    fn collect(&self) -> Vec<MetricFamily> {
        let running: Vec<_> = RUNNING.lock().iter().filter_map(Weak::upgrade).collect();
        running.iter().for_each(|informer| self.add_numbers_of(&**informer));
        let gauges = self.gauges().into_iter().flat_map(Collector::collect);
        let families =
            gauges.chain(self.counters().into_iter().flat_map(Collector::collect)).collect();
        self.gauges().into_iter().for_each(IntGaugeVec::reset);
        self.counters().into_iter().for_each(IntCounterVec::reset);
        families
    }
}
