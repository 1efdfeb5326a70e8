//! Metrics of requests. Upstream: `k8s.io/component-base/metrics/prometheus/restclient`.

use crate::metrics::metrics;

/// The bounds of durations, in seconds.
const LATENCIES: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The bounds of sizes, from 64 bytes to 16 MiB.
const SIZES: [f64; 11] = [
    64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0,
];

metrics! {
    pub(super) static REQUESTS: IntCounterVec["code", "method", "host"] =
        "rest_client_requests_total",
        "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.";
    pub(super) static RETRIES: IntCounterVec["code", "verb", "host"] =
        "rest_client_request_retries_total",
        "[ALPHA] Number of request retries, partitioned by status code, verb, and host.";
    pub(super) static DURATION: HistogramVec["verb", "host"](LATENCIES) =
        "rest_client_request_duration_seconds",
        "[ALPHA] Request latency in seconds. Broken down by verb, and host.";
    pub(super) static LIMITED: HistogramVec["verb", "host"](LATENCIES) =
        "rest_client_rate_limiter_duration_seconds",
        "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.";
    pub(super) static REQUEST_SIZE: HistogramVec["verb", "host"](SIZES) =
        "rest_client_request_size_bytes",
        "[ALPHA] Request size in bytes. Broken down by verb and host.";
    pub(super) static RESPONSE_SIZE: HistogramVec["verb", "host"](SIZES) =
        "rest_client_response_size_bytes",
        "[ALPHA] Response size in bytes. Broken down by verb and host.";
}
