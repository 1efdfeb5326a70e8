//! Tokens in Secrets that authenticate nodes without a certificate.
//! Upstream: `plugin/pkg/auth/authenticator/token/bootstrap`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::access::User;
use crate::object::{is_deleting, text};
use crate::storage::store::Store;
use kube_controller_manager::objects::Timestamp;

/// Returns the user of a token `ID.SECRET` whose Secret permits authentication.
pub fn bootstrap_token(store: &Store, token: &str, now: Timestamp) -> Option<User> {
    let (id, secret) = token.split_once('.')?;
    let found = store.get("secrets", &format!("kube-system/bootstrap-token-{id}"))?;
    let found = &found.value;
    let data = |key: &str| -> Option<String> {
        let value = STANDARD.decode(text(found, &format!("/data/{key}"))).ok()?;
        String::from_utf8(value).ok().filter(|value| !value.is_empty())
    };
    let has = |key: &str, value: &str| data(key).is_some_and(|found| found == value);
    let ends = |text: String| text.parse::<Timestamp>().ok();
    // An unreadable time counts as passed.
    let expired = data("expiration").is_some_and(|text| ends(text).is_none_or(|end| end <= now));
    let is_valid = text(found, "/type") == "bootstrap.kubernetes.io/token"
        && !is_deleting(found)
        && !expired
        && has("token-id", id)
        && has("token-secret", secret)
        && has("usage-bootstrap-authentication", "true");
    let more = data("auth-extra-groups").unwrap_or_default();
    let groups = more.split(',').filter(|group| !group.is_empty());
    let groups: Vec<&str> = ["system:bootstrappers"].into_iter().chain(groups).collect();
    is_valid.then(|| User::new(&format!("system:bootstrap:{id}"), &groups))
}
