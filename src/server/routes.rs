//! The handlers by path. Upstream: `apiserver/pkg/server/mux.PathRecorderMux`.

#![warn(missing_docs)]

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_lite::future::Boxed;

use super::health::HealthChecks;
use super::{Handler, Request, Response, handler};
use crate::metrics;

/// Cheap to clone; routes may be added while serving.
#[derive(Clone, Default)]
pub struct Routes {
    table: Arc<RwLock<Table>>,
}

#[derive(Default)]
struct Table {
    exact: BTreeMap<String, Handler>,
    /// Handlers of trees, by their prefix with a trailing slash.
    below: BTreeMap<String, Handler>,
    /// Left out of [`Routes::paths`].
    unlisted: Vec<String>,
}

impl Routes {
    /// No routes: each path is answered with 404.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a handler for exactly `path`, in place of an earlier one.
    pub fn add(&self, path: &str, handler: Handler) {
        let mut table = self.table.write();
        table.exact.insert(path.into(), handler);
    }

    /// Removes the handler for exactly `path`, if there is one.
    pub fn remove(&self, path: &str) {
        self.table.write().exact.remove(path);
    }

    /// Adds a handler for `path` and all paths below it.
    pub fn add_tree(&self, path: &str, handler: Handler) {
        self.add(path, handler.clone());
        let mut table = self.table.write();
        table.below.insert(format!("{path}/"), handler);
    }

    /// Adds `/healthz`, `/livez` and `/readyz`, each with a path below it for each check.
    pub fn add_health(&self, health: &HealthChecks) {
        for endpoint in ["healthz", "livez", "readyz"] {
            let health = health.clone();
            let answer = move |request: &Request| health.answer(endpoint, request);
            self.add_tree(&format!("/{endpoint}"), handler(answer));
        }
    }

    /// Adds `/metrics`: all metrics of the process.
    pub fn add_metrics(&self) {
        let answer = |request: &Request| {
            Response::new(200, metrics::CONTENT_TYPE, metrics::render()).gzipped_for(request)
        };
        self.add("/metrics", handler(answer));
    }

    /// Adds a handler that is left out of [`Routes::paths`].
    pub fn add_unlisted(&self, path: &str, handler: Handler) {
        self.add_tree(path, handler);
        self.table.write().unlisted.push(path.into());
    }

    /// Adds the debug handler of a controller, for `/debug/controllers/NAME` and all paths below
    /// it. The handler gets the paths without this prefix.
    pub fn add_debug(&self, controller: &str, handler: Handler) {
        let base = format!("/debug/controllers/{controller}");
        let stripped = base.clone();
        let strip: Handler = Arc::new(move |mut request: Request| {
            request.path = request.path.strip_prefix(&stripped).unwrap_or_default().into();
            handler(request)
        });
        self.add_unlisted(&base, strip);
    }

    /// Returns the paths, sorted, without the unlisted ones.
    pub fn paths(&self) -> Vec<String> {
        let table = self.table.read();
        table.exact.keys().filter(|path| !table.unlisted.contains(path)).cloned().collect()
    }

    /// Answers by the handler of the exact path, or else of the longest tree above it; with 404
    /// without either.
    pub fn answer(&self, request: Request) -> Boxed<Response> {
        let handler = {
            let table = self.table.read();
            let mut trees = table.below.iter().rev();
            match table.exact.get(&request.path) {
                Some(handler) => Some(handler.clone()),
                None => trees
                    .find(|(above, _)| request.path.starts_with(*above))
                    .map(|(_, handler)| handler.clone()),
            }
        };
        match handler {
            Some(handler) => handler(request),
            None => Box::pin(async { Response::text(404, "404 page not found\n") }),
        }
    }

    /// All routes as one handler, also those that are added later.
    pub fn handler(&self) -> Handler {
        let routes = self.clone();
        Arc::new(move |request| routes.answer(request))
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn health_and_metrics_have_their_paths() {
        let (routes, health) = (Routes::new(), HealthChecks::new());
        health.add("disk", Arc::new(|| Err("it is full".to_owned())));
        routes.add_health(&health);
        routes.add_metrics();
        let ask = |path: &str| block_on(routes.answer(Request::get(path))).status;
        for (path, status) in [
            ("/healthz", 500),
            ("/healthz/disk", 500),
            ("/livez?exclude=disk", 200),
            ("/readyz/disk", 500),
            ("/readyz/net", 404),
            ("/metrics", 200),
            ("/metrics/x", 404),
        ] {
            assert_eq!(ask(path), status, "{path}");
        }
    }

    #[test]
    fn longest_matching_route_answers() {
        let routes = Routes::new();
        let echo = |name: &'static str| {
            handler(move |r: &Request| Response::text(200, format!("{name}:{}", r.path)))
        };
        routes.add_tree("/a", echo("a"));
        routes.add("/a/b", echo("ab"));
        routes.add_debug("gc", echo("gc"));
        let ask = |path: &str| {
            let response = block_on(routes.answer(Request::get(path)));
            String::from_utf8(response.content().into()).expect("text")
        };
        assert_eq!(ask("/a"), "a:/a");
        assert_eq!(ask("/a/c"), "a:/a/c");
        assert_eq!(ask("/a/b"), "ab:/a/b");
        assert_eq!(ask("/ab"), "404 page not found\n");
        assert_eq!(ask("/debug/controllers/gc/graph"), "gc:/graph");
        assert_eq!(routes.paths(), ["/a", "/a/b"]);
    }
}
