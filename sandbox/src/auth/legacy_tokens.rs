//! Authenticates the service-account tokens that Secrets hold. Upstream:
//! `pkg/serviceaccount/legacy.go`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Auth;
use crate::access::User;
use crate::object::{is_deleting, text};
use crate::storage::store::Store;
use kube_controller_manager::jwt::{LEGACY_ISSUER, LegacyClaims};
use kube_controller_manager::objects::Timestamp;

/// The label of a Secret with the date of its token's last use.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns a date as labels have it: `2026-11-25`.
pub fn date(time: Timestamp) -> String {
    time.to_jiff().strftime("%Y-%m-%d").to_string()
}

/// A token that is signed with the server's key, and whose Secret and account exist.
pub struct LegacyToken {
    pub namespace: String,
    pub secret_name: String,
    /// `None` when the Secret is marked as invalid.
    pub user: Option<User>,
    /// Whether the Secret's label [`LAST_USED`] has neither the date of today nor that of tomorrow.
    pub is_label_old: bool,
}

impl LegacyToken {
    /// Finds the Secret and the account of a legacy token. `None`: the token is not one that this
    /// server signed, or the objects no longer have it.
    pub fn find(auth: &Auth, store: &Store, token: &str, now: Timestamp) -> Option<LegacyToken> {
        let claims = auth.signer.as_ref()?.public_key().verify(token)?;
        let LegacyClaims { issuer, namespace, secret_name, account_name, account_uid, subject } =
            claims;
        let named = format!("system:serviceaccount:{namespace}:{account_name}");
        if issuer != LEGACY_ISSUER || subject != named {
            return None;
        }
        let live = |table: &str, name: &str| {
            let found = store.get(table, &format!("{namespace}/{name}"));
            found.filter(|object| !is_deleting(&object.value))
        };
        let secret = live("secrets", &secret_name)?;
        let copy = STANDARD.decode(text(&secret.value, "/data/token")).ok()?;
        let account = live("serviceaccounts", &account_name)?;
        if copy != token.as_bytes() || account.uid() != account_uid {
            return None;
        }
        let label =
            |name: &str| text(&secret.value, &format!("/metadata/labels/kubernetes.io~1{name}"));
        let last = label("legacy-token-last-used");
        let is_valid = label("legacy-token-invalid-since").is_empty();
        Some(LegacyToken {
            user: is_valid.then(|| User::service_account(&namespace, &account_name, &account_uid)),
            // As upstream: tomorrow's date stays too.
            is_label_old: last != date(now) && last != date(now + DAY),
            namespace,
            secret_name,
        })
    }
}
