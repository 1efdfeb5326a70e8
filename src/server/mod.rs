//! HTTP serving, over TLS or plain: health checks, metrics and debug pages, with delegated
//! authentication and authorization. Upstream: `apiserver/pkg/server`, `controller-manager/app`.
//!
//! [`Server`](http::Server) accepts connections and calls a [`Handler`], which [`Routes`](routes::Routes)
//! finds by path. [`HealthChecks`](health::HealthChecks) answers `/healthz` and its siblings,
//! [`metrics::render`](crate::metrics::render) is the text of `/metrics`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kube_controller_manager::server::health::HealthChecks;
//! use kube_controller_manager::server::routes::Routes;
//! use kube_controller_manager::server::{Request, handler};
//!
//! let (routes, health) = (Routes::new(), HealthChecks::new());
//! health.add("disk", Arc::new(|| Err("it is full".to_owned())));
//! let check = move |request: &Request| health.answer("healthz", request);
//! routes.add_tree("/healthz", handler(check));
//! let answer = futures_lite::future::block_on(routes.answer(Request::get("/healthz/disk")));
//! assert_eq!((answer.status, answer.content()), (500, &b"internal server error: it is full\n"[..]));
//! ```

pub mod auth;
pub mod health;
pub mod http;
pub mod page;
pub mod profiling;
pub mod routes;
pub mod tls;
pub mod zpages;

pub use http::{Handler, Request, Response, handler};
