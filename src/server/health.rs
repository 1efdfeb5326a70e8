//! /healthz, /livez and /readyz: named checks; more may be added while serving.
//! Upstream: `apiserver/pkg/server/healthz`, `controller-manager/pkg/healthz`.

#![warn(missing_docs)]

use parking_lot::RwLock;
use std::sync::Arc;

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::http::Method;
use super::{Request, Response};
use crate::metrics;

/// A health check. `Err`: the reason why it fails. Shown in the log and under the check's own path
/// only.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Cheap to clone; clones share their checks.
#[derive(Clone, Default)]
pub struct HealthChecks {
    checks: Arc<RwLock<Vec<(String, Check)>>>,
    results: Results,
}

impl HealthChecks {
    /// No checks: the answer is that of a check that always passes.
    pub fn new() -> HealthChecks {
        HealthChecks::default()
    }

    /// The last results of the checks and their counts, as metrics.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Adds a check under its own path, `/healthz/NAME`. It is called at each request and must not
    /// wait.
    pub fn add(&self, name: &str, check: Check) {
        let mut checks = self.checks.write();
        checks.push((name.into(), check));
    }

    /// Answers a path of `endpoint` (`healthz`, `livez`, `readyz`): all checks, or under
    /// `/healthz/NAME` a single one.
    pub fn answer(&self, endpoint: &str, request: &Request) -> Response {
        let mut checks = self.checks.read().clone();
        if checks.is_empty() {
            checks.push(("ping".into(), Arc::new(|| Ok(()))));
        }
        let below = request.path.trim_start_matches('/').strip_prefix(endpoint).unwrap_or_default();
        match below.trim_matches('/') {
            "" => self.answer_all(endpoint, request, &checks),
            name => match checks.iter().find(|(n, _)| n == name) {
                None => Response::text(404, "404 page not found\n"),
                Some((_, check)) => match check() {
                    Ok(()) => Response::text(200, "ok"),
                    Err(error) => Response::text(500, format!("internal server error: {error}\n")),
                },
            },
        }
    }

    /// Calls all checks that the query does not exclude, and answers with their results: 500 if one
    /// has failed.
    fn answer_all(
        &self,
        endpoint: &str,
        request: &Request,
        checks: &[(String, Check)],
    ) -> Response {
        let excluded: Vec<&str> = request.query_values("exclude").collect();
        let (mut text, mut failed) = (String::new(), Vec::new());
        for (name, check) in checks {
            if excluded.contains(&name.as_str()) {
                text.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            let result = check();
            self.results.observe(name, endpoint, result.is_ok());
            match result {
                Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
                Err(error) => {
                    text.push_str(&format!("[-]{name} failed: reason withheld\n"));
                    failed.push(format!("[-]{name} failed: {error}"));
                }
            }
        }
        let mut unknown: Vec<String> = excluded
            .iter()
            .filter(|name| !name.is_empty() && !checks.iter().any(|(n, _)| n == *name))
            .map(|name| format!("{name:?}"))
            .collect();
        unknown.sort();
        if !unknown.is_empty() {
            let unknown = unknown.join(",");
            text.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {unknown}\n"
            ));
        }
        if !failed.is_empty() {
            log::info!("{endpoint} check failed: {}", failed.join(", "));
            return Response::text(500, format!("{text}{endpoint} check failed\n"));
        }
        match request.query_values("verbose").next() {
            None => Response::text(200, "ok"),
            Some(_) => Response::text(200, format!("{text}{endpoint} check passed\n")),
        }
    }
}

/// Results of checks, under the names of service level indicators.
/// Upstream: `component-base/metrics/prometheus/slis`.
#[derive(Clone)]
pub struct Results {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl Default for Results {
    /// Registers the metrics of health checks in a registry of their own.
    fn default() -> Results {
        let register = || -> prometheus::Result<Results> {
            let registry = Registry::new();
            let help = "[STABLE] This metric records the result of a single healthcheck.";
            let last = Opts::new("kubernetes_healthcheck", help);
            let last = IntGaugeVec::new(last, &["name", "type"])?;
            let help = "[STABLE] This metric records the results of all healthcheck.";
            let total = Opts::new("kubernetes_healthchecks_total", help);
            let total = IntCounterVec::new(total, &["name", "status", "type"])?;
            registry.register(Box::new(metrics::process_stats::start_time()?))?;
            registry.register(Box::new(last.clone()))?;
            registry.register(Box::new(total.clone()))?;
            Ok(Results { registry, last, total })
        };
        register().expect("valid names and labels in a new registry")
    }
}

impl Results {
    fn observe(&self, name: &str, endpoint: &str, good: bool) {
        let status = if good { "success" } else { "error" };
        self.last.with_label_values(&[name, endpoint]).set(good.into());
        self.total.with_label_values(&[name, status, endpoint]).inc();
    }

    /// Answers `/metrics/slis`; a DELETE resets the results.
    pub fn answer(&self, request: &Request) -> Response {
        if request.method == Method::DELETE {
            self.last.reset();
            self.total.reset();
            return Response::text(200, "metrics reset\n");
        }
        let text = metrics::text(&self.registry.gather());
        Response::new(200, metrics::CONTENT_TYPE, text).gzipped_for(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str) -> (u16, String) {
        let checks = HealthChecks::new();
        checks.add("leaderElection", Arc::new(|| Ok(())));
        checks.add("broken", Arc::new(|| Err("secret".into())));
        let response = checks.answer("healthz", &Request::get(path));
        (response.status, String::from_utf8(response.content().into()).expect("text"))
    }

    #[test]
    fn text_matches_upstream() {
        let table = [
            ("/healthz?exclude=broken", 200, "ok"),
            (
                "/healthz?verbose&exclude=broken",
                200,
                "[+]leaderElection ok\n[+]broken excluded: ok\nhealthz check passed\n",
            ),
            (
                "/healthz",
                500,
                "[+]leaderElection ok\n[-]broken failed: reason withheld\nhealthz check failed\n",
            ),
            (
                "/healthz?verbose=1&exclude=b&exclude=broken&exclude=a",
                200,
                "[+]leaderElection ok\n[+]broken excluded: ok\nwarn: some health checks cannot be \
                 excluded: no matches for \"a\",\"b\"\nhealthz check passed\n",
            ),
            (
                "/healthz?exclude=broken,leaderElection",
                500,
                "[+]leaderElection ok\n[-]broken failed: reason withheld\nwarn: some health checks \
                 cannot be excluded: no matches for \"broken,leaderElection\"\n\
                 healthz check failed\n",
            ),
            ("/healthz/leaderElection", 200, "ok"),
            ("/healthz/broken", 500, "internal server error: secret\n"),
            ("/healthz/nope", 404, "404 page not found\n"),
        ];
        for (path, status, text) in table {
            assert_eq!(ask(path), (status, text.to_string()), "{path}");
        }
    }

    #[test]
    fn results_are_counted_until_a_reset() {
        let checks = HealthChecks::new();
        checks.add("broken", Arc::new(|| Err("secret".into())));
        for path in ["/healthz", "/healthz", "/healthz?exclude=broken"] {
            checks.answer("healthz", &Request::get(path));
        }
        let ask = |method| {
            let request = Request { method, ..Request::get("/metrics/slis") };
            String::from_utf8(checks.results().answer(&request).content().into()).expect("text")
        };
        let text = ask(Method::GET);
        for line in [
            "kubernetes_healthcheck{name=\"broken\",type=\"healthz\"} 0\n",
            "kubernetes_healthchecks_total{name=\"broken\",status=\"error\",type=\"healthz\"} 2\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("\nprocess_start_time_seconds "), "{text}");
        assert_eq!(ask(Method::DELETE), "metrics reset\n");
        assert!(!ask(Method::GET).contains("broken"));
    }

    #[test]
    fn default_check_is_a_ping() {
        let response = HealthChecks::new().answer("readyz", &Request::get("/readyz?verbose"));
        assert_eq!(response.content(), b"[+]ping ok\nreadyz check passed\n");
    }
}
