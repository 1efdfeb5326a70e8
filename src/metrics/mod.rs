//! Counters, gauges and histograms under the Go manager's names, and their text form.
//! Each room declares its own with `prometheus`'s macros in the default registry.

use std::sync::OnceLock;

use prometheus::TextEncoder;
use prometheus::proto::MetricFamily;

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
    let mut text = String::new();
    if let Err(error) = TextEncoder::new().encode_utf8(families, &mut text) {
        log::error!("metrics: cannot be rendered: {error}");
    }
    with_gos_bounds(&text).into_bytes()
}

/// Upper bounds of buckets as Go writes them. They are labels: `1e-08` and `0.00000001` would be
/// two series, and a graph over a swap of managers would break.
fn with_gos_bounds(text: &str) -> String {
    const SMALL: &str = "le=\"0.0000";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SMALL) {
        let (before, from) = rest.split_at(at + "le=\"".len());
        let (number, after) = from.split_once('"').unwrap_or((from, ""));
        out.push_str(before);
        match number.parse::<f64>().map(|bound| format!("{bound:e}")) {
            Ok(short) => match short.split_once("e-") {
                Some((digits, power)) => out.push_str(&format!("{digits}e-{power:0>2}")),
                None => out.push_str(&short),
            },
            Err(_) => out.push_str(number),
        }
        out.push('"');
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bounds_are_written_as_go_writes_them() {
        let text = "a{le=\"0.00000001\"} 0\na{x=\"y\",le=\"0.00009999999999999999\"} 1\n\
                    a{le=\"0.0001\"} 0.00001\na{le=\"+Inf\"} 2\n";
        let gos = "a{le=\"1e-08\"} 0\na{x=\"y\",le=\"9.999999999999999e-05\"} 1\n\
                   a{le=\"0.0001\"} 0.00001\na{le=\"+Inf\"} 2\n";
        assert_eq!(with_gos_bounds(text), gos);
    }
}
