//! Certificates, and the bundles that vouch for them.

pub mod approving;
pub mod cleaner;
mod kubelet;
pub mod podcertificaterequests;
mod requests;
pub mod root_ca;
pub mod rootcacertpublisher;
pub mod signing;
pub mod trustbundle;
pub mod x509;
