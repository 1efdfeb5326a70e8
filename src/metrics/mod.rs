//! Counters, gauges and histograms under the Go manager's names, and their text form.
//! Each room declares its own with `prometheus`'s macros in the default registry.

use prometheus::{Encoder, TextEncoder};

/// Every registered metric in the Prometheus text format, version 0.0.4.
pub fn render() -> Vec<u8> {
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&prometheus::gather(), &mut text) {
        log::error!("metrics: cannot be rendered: {error}");
    }
    text
}
