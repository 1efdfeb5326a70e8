//! Bootstrap tokens, with which a node joins a cluster: signing with them, and their expiry.
//! Upstream: `pkg/controller/bootstrap`, `k8s.io/cluster-bootstrap`.

pub mod signer;
mod token;
pub mod tokencleaner;

use crate::cache::{Lister, Scope};
use crate::controllers::Controller;
use crate::objects::{BootstrapToken, Resource};

/// Returns a Lister of the Secrets that hold bootstrap tokens. No other Secret is read.
fn token_lister(c: &mut Controller) -> Lister<BootstrapToken> {
    c.lister_of(Scope {
        namespace: Some("kube-system".to_owned()),
        field_selector: Some(format!("type={}", BootstrapToken::TYPE)),
        ..Scope::all(BootstrapToken::RESOURCE)
    })
}
