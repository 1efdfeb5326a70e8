//! HTTPS serving: /healthz /livez /readyz, /metrics, /configz, /debug, with delegated
//! authentication and authorization.

pub mod auth;
pub mod health;
pub mod http;
pub mod page;
pub mod profiling;
pub mod routes;
pub mod tls;
pub mod zpages;

pub use http::{Handler, Request, Response, handler};
