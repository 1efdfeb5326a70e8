//! Service accounts: the default one of each namespace, and secret-based tokens from their creation
//! to their deletion when they are long unused.
//! Upstream: `pkg/controller/serviceaccount`.

pub mod accounts;
pub mod cleaner;
mod pod_secrets;
pub mod tokens;

use crate::cache::{Lister, Scope};
use crate::controllers::Controller;
use crate::objects::{Resource, TokenSecret};

/// Returns a Lister of the Secrets that hold tokens. No other Secret is read.
fn token_secrets(c: &mut Controller) -> Lister<TokenSecret> {
    let only = format!("type={}", TokenSecret::TYPE);
    c.lister_of(Scope { field_selector: Some(only), ..Scope::all(TokenSecret::RESOURCE) })
}
