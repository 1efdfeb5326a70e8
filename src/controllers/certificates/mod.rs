//! Certificates, and the bundles that vouch for them.

pub mod root_ca;
pub mod rootcacertpublisher;
