//! HTTP serving, over TLS or plain: health checks, metrics and debug pages, with delegated
//! authentication and authorization. Upstream: `apiserver/pkg/server`, `controller-manager/app`.
//!
//! A [`Server`] accepts connections and calls a [`Handler`], which [`Routes`] find by path.
//! [`HealthChecks`] answer `/healthz` and its siblings, and `/metrics` shows what
//! [`metrics`](mod@crate::metrics) declares.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kube_controller_manager::server::{HealthChecks, Request, Routes};
//!
//! let (routes, health) = (Routes::new(), HealthChecks::new());
//! health.add("disk", Arc::new(|| Err("it is full".to_owned())));
//! routes.add_health(&health);
//! routes.add_metrics();
//! let answer = futures_lite::future::block_on(routes.answer(Request::get("/healthz/disk")));
//! assert_eq!((answer.status, answer.content()), (500, &b"internal server error: it is full\n"[..]));
//! ```

pub mod auth;
pub mod debug_flags;
pub mod health;
pub mod http;
pub(crate) mod page;
pub mod profiling;
pub mod routes;
pub mod tls;
pub mod zpages;

pub use health::HealthChecks;
pub use http::{Handler, Request, Response, Server, handler};
pub use routes::Routes;
