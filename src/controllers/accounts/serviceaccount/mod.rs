//! Service accounts: the default one of each namespace, and secret-based tokens from their making
//! to the day nobody has used them for long.
//! Upstream: `pkg/controller/serviceaccount`.

pub mod accounts;
pub mod cleaner;
pub mod jwt;
mod mounts;
pub mod tokens;

use crate::cache::{Scope, SharedIndexInformer};
use crate::controllers::ControllerContext;
use crate::objects::{Resource, TokenSecret};

/// The Secrets that hold tokens; no other is asked for.
fn token_secrets(cx: &ControllerContext) -> SharedIndexInformer<TokenSecret> {
    let only = format!("type={}", TokenSecret::TYPE);
    cx.factory()
        .informer_for(Scope { field_selector: Some(only), ..Scope::all(TokenSecret::RESOURCE) })
}
