//! Counters, gauges and histograms, and their text form. Those of this crate have the Go manager's
//! names. Each room declares its own with [`metrics!`](crate::metrics!), in the default registry,
//! and so does a program on this library; [`render`] shows all of them. Upstream:
//! `component-base/metrics`.

pub mod process_stats;

use std::sync::OnceLock;

use parking_lot::Mutex;
pub use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
pub use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use prometheus::{HistogramOpts, Opts, TextEncoder};

/// Declares metrics as statics, each registered with its first use:
///
/// ```
/// use kube_controller_manager::metrics::{self, exponential, metrics};
///
/// metrics! {
///     fn register;
///     static DELETED: IntCounterVec["namespace", "reason"] = "pods_deleted_total", "Help.";
///     pub static SYNC: Histogram(exponential(0.001, 2.0, 15)) = "sync_seconds", "Help.";
/// }
///
/// register();
/// DELETED.with_label_values(&["default", "finished"]).inc();
/// let text = String::from_utf8(metrics::render())?;
/// assert!(text.contains("pods_deleted_total{namespace=\"default\",reason=\"finished\"} 1"));
/// # Ok::<(), std::string::FromUtf8Error>(())
/// ```
///
/// `register` registers them all. It exists for metrics without labels, which are served at zero
/// before they count: a block that has one needs it, and it has to be called, or the crate does not
/// compile. A metric with labels has no series before its first use, so its block may go without.
#[macro_export]
macro_rules! metrics {
    (fn $register:ident; $(
        $(#[$doc:meta])* $vis:vis static $metric:ident:
            $kind:ident $([$($label:literal),+])? $(($buckets:expr))? = $name:expr, $help:expr;
    )+) => {
        /// Registers all metrics of the block, so that they are served at zero as well.
        #[deny(dead_code)]
        pub(crate) fn $register() {
            $( std::sync::LazyLock::force(&$metric); )+
        }
        $( $crate::metrics::metric! {
            $(#[$doc])* $vis static $metric:
                $kind [$($($label),+)?] [$($buckets)?] = $name, $help;
        } )+
    };
    ($(
        $(#[$doc:meta])* $vis:vis static $metric:ident:
            $kind:ident [$($label:literal),+] $(($buckets:expr))? = $name:expr, $help:expr;
    )+) => { $( $crate::metrics::metric! {
        $(#[$doc])* $vis static $metric: $kind [$($label),+] [$($buckets)?] = $name, $help;
    } )+ };
}

/// One static of [`metrics!`](crate::metrics!).
#[doc(hidden)]
#[macro_export]
macro_rules! metric {
    ($(#[$doc:meta])* $vis:vis static $metric:ident:
        $kind:ident [$($label:literal),*] [$($buckets:expr)?] = $name:expr, $help:expr;
    ) => {
        $(#[$doc])*
        $vis static $metric: std::sync::LazyLock<$crate::metrics::$kind> =
            std::sync::LazyLock::new(|| $crate::metrics::declared($crate::metrics::Spec {
                name: $name,
                help: $help,
                labels: &[$($label),*],
                buckets: ([$(Vec::from($buckets))?] as [Vec<f64>; _]).concat(),
            }));
    };
}
#[doc(hidden)]
pub use metric;
#[doc(inline)]
pub use metrics;

/// The declaration of one metric, for [`declared`].
pub struct Spec<'a> {
    /// The name, in snake case with its unit.
    pub name: &'a str,
    /// What it counts, in a sentence.
    pub help: &'a str,
    /// The names of its labels, which a kind with `Vec` in its name needs; empty for others.
    pub labels: &'a [&'a str],
    /// Upper bounds; empty: prometheus's default ones. Histograms have them.
    pub buckets: Vec<f64>,
}

/// A kind of metric that [`declared`] can make.
pub trait Metric: Collector + Clone + Sized + 'static {
    /// Makes the metric, which is not registered yet.
    ///
    /// # Errors
    /// When a name or the buckets are not valid.
    fn new(spec: Spec<'_>) -> prometheus::Result<Self>;
}

/// Makes a metric and registers it.
///
/// # Panics
/// When its name is not valid or is taken: a mistake in the program.
pub fn declared<M: Metric>(spec: Spec<'_>) -> M {
    let name = spec.name.to_owned();
    let registered = M::new(spec).and_then(|metric| {
        prometheus::register(Box::new(metric.clone()))?;
        Ok(metric)
    });
    registered.unwrap_or_else(|error| panic!("the metric {name}: {error}"))
}

/// Returns bounds that start at `start` and grow by `factor`. Upstream: `ExponentialBuckets`.
pub fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

macro_rules! kinds {
    ($( $kind:ident: |$spec:ident| $new:expr; )*) => { $(
        impl Metric for $kind {
            fn new($spec: Spec<'_>) -> prometheus::Result<$kind> {
                $new
            }
        }
    )* };
}

kinds! {
    IntCounter: |spec| IntCounter::new(spec.name, spec.help);
    IntCounterVec: |spec| IntCounterVec::new(Opts::new(spec.name, spec.help), spec.labels);
    IntGauge: |spec| IntGauge::new(spec.name, spec.help);
    IntGaugeVec: |spec| IntGaugeVec::new(Opts::new(spec.name, spec.help), spec.labels);
    GaugeVec: |spec| GaugeVec::new(Opts::new(spec.name, spec.help), spec.labels);
    Histogram: |spec| Histogram::with_opts(spec.histogram());
    HistogramVec: |spec| {
        let labels = spec.labels;
        HistogramVec::new(spec.histogram(), labels)
    };
}

impl Spec<'_> {
    /// Returns the options of a histogram.
    fn histogram(self) -> HistogramOpts {
        let opts = HistogramOpts::new(self.name, self.help);
        if self.buckets.is_empty() { opts } else { opts.buckets(self.buckets) }
    }
}

/// The content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Metrics that are not served.
static DISABLED: OnceLock<Vec<String>> = OnceLock::new();

/// Leaves the metrics of these names out of [`render`] from now on. Only the first call counts.
/// Upstream: `--disabled-metrics`.
pub fn disable(names: &[String]) {
    DISABLED.get_or_init(|| names.to_vec());
}

/// Returns every registered metric in the Prometheus text format, version 0.0.4.
pub fn render() -> Vec<u8> {
    // Some collectors fill series, read them and empty them: two readers would mix their numbers.
    static READING: Mutex<()> = Mutex::new(());
    let mut families = {
        let _alone = READING.lock();
        prometheus::gather()
    };
    let disabled = DISABLED.get().map(Vec::as_slice).unwrap_or_default();
    families.retain(|family| !disabled.iter().any(|name| name == family.name()));
    text(&families)
}

/// Returns metrics in the format of [`render`].
pub fn text(families: &[MetricFamily]) -> Vec<u8> {
    let mut text = String::new();
    if let Err(error) = TextEncoder::new().encode_utf8(families, &mut text) {
        log::error!("metrics: cannot be rendered: {error}");
    }
    with_go_bounds(&text).into_bytes()
}

/// Returns the text with the upper bounds of buckets as Go writes them. They are labels: `1e-08`
/// and `0.00000001` would be two series, and a graph would break when one manager replaces the
/// other.
fn with_go_bounds(text: &str) -> String {
    const BOUND: &str = "le=\"";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BOUND) {
        let (before, from) = rest.split_at(at + BOUND.len());
        let (value, after) = from.split_once('"').unwrap_or((from, ""));
        // Other labels end in these letters too, such as `role`.
        let is_bound = rest[..at].ends_with(['{', ',']);
        out.push_str(before);
        match go_exponent(value).filter(|_| is_bound) {
            Some(number) => out.push_str(&number),
            None => out.push_str(value),
        }
        out.push('"');
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns the number with an exponent; `None` if Go writes it without one.
fn go_exponent(number: &str) -> Option<String> {
    let bound = number.parse::<f64>().ok().filter(|bound| bound.is_finite() && *bound != 0.0)?;
    if (1e-4..1e6).contains(&bound.abs()) {
        return None;
    }
    let short = format!("{bound:e}");
    let (digits, power) = short.split_once('e')?;
    Some(match power.strip_prefix('-') {
        Some(power) => format!("{digits}e-{power:0>2}"),
        None => format!("{digits}e+{power:0>2}"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prometheus::core::Desc;

    use super::*;

    metrics! {
        fn register;
        static COUNTER: IntCounterVec["a", "b"] = "test_declared_total", "Counts.";
        static SECONDS: Histogram(exponential(0.5, 2.0, 2)) = "test_declared_seconds", "Takes.";
    }

    #[test]
    fn declared_metrics_are_served_with_their_labels_and_buckets() {
        register();
        COUNTER.with_label_values(&["x", "y"]).inc();
        let text = String::from_utf8(render()).unwrap();
        for line in [
            "test_declared_total{a=\"x\",b=\"y\"} 1\n",
            "test_declared_seconds_bucket{le=\"0.5\"} 0\n",
            "test_declared_seconds_bucket{le=\"1\"} 0\n",
            "test_declared_seconds_bucket{le=\"+Inf\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    /// Notices when two readers are in it at the same time.
    struct Alone {
        gauge: IntGauge,
        readers: AtomicUsize,
        highest: Arc<AtomicUsize>,
    }

    impl Collector for Alone {
        fn desc(&self) -> Vec<&Desc> {
            self.gauge.desc()
        }

        fn collect(&self) -> Vec<MetricFamily> {
            let readers = self.readers.fetch_add(1, Ordering::SeqCst) + 1;
            self.highest.fetch_max(readers, Ordering::SeqCst);
            // Another reader has time to enter.
            (0..100).for_each(|_| std::thread::yield_now());
            self.readers.fetch_sub(1, Ordering::SeqCst);
            Vec::new()
        }
    }

    #[test]
    fn metrics_have_one_reader_at_a_time() {
        let gauge = IntGauge::new("test_alone", "Nothing.").unwrap();
        let highest = Arc::new(AtomicUsize::new(0));
        let alone = Alone { gauge, readers: AtomicUsize::new(0), highest: highest.clone() };
        prometheus::register(Box::new(alone)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| drop(render())));
            }
        });
        assert_eq!(highest.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let text = "a{le=\"0.00000001\"} 0\na{x=\"y\",le=\"0.00009999999999999999\"} 1\n\
                    a{le=\"0.0001\"} 0.00001\na{le=\"262144\"} 0\na{le=\"1048576\"} 0\n\
                    a{le=\"0\"} 0\na{le=\"+Inf\"} 2\nb{role=\"1048576\"} 0\n";
        let gos = "a{le=\"1e-08\"} 0\na{x=\"y\",le=\"9.999999999999999e-05\"} 1\n\
                   a{le=\"0.0001\"} 0.00001\na{le=\"262144\"} 0\na{le=\"1.048576e+06\"} 0\n\
                   a{le=\"0\"} 0\na{le=\"+Inf\"} 2\nb{role=\"1048576\"} 0\n";
        assert_eq!(with_go_bounds(text), gos);
    }
}
