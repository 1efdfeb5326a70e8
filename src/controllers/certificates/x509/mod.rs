//! X.509 certificates: requests for them, and their signing by an authority.

mod authority;
mod request;
mod signature;
mod uri;

pub use authority::{Authority, Template};
pub use request::{AlternativeNames, CertificateRequest, Subject};
