//! Counters, gauges and histograms under the Go manager's names, and their text form.
//! Each room declares its own with `prometheus`'s macros in the default registry.

use std::sync::OnceLock;

use prometheus::proto::MetricFamily;
use prometheus::{Encoder, TextEncoder};

/// The content type of what [`render`] gives.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Metrics that are not served.
static DISABLED: OnceLock<Vec<String>> = OnceLock::new();

/// Leaves the metrics of these names out from now on. Only the first call counts.
/// Upstream: `--disabled-metrics`.
pub fn disable(names: &[String]) {
    DISABLED.get_or_init(|| names.to_vec());
}

/// Every registered metric in the Prometheus text format, version 0.0.4.
pub fn render() -> Vec<u8> {
    let mut families = prometheus::gather();
    let disabled = DISABLED.get().map(Vec::as_slice).unwrap_or_default();
    families.retain(|family| !disabled.iter().any(|name| name == family.name()));
    text(&families)
}

/// Metrics in the same format.
pub fn text(families: &[MetricFamily]) -> Vec<u8> {
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(families, &mut text) {
        log::error!("metrics: cannot be rendered: {error}");
    }
    text
}
