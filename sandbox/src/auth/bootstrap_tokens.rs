//! Tokens in Secrets that authenticate nodes without a certificate.
//! Upstream: `plugin/pkg/auth/authenticator/token/bootstrap`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::access::User;
use crate::object::{is_deleting, text};
use crate::storage::store::Store;
use kube_controller_manager::objects::Timestamp;

/// Returns the user of a token `ID.SECRET` whose Secret permits authentication. A Secret with an
/// extra group outside of `system:bootstrappers:` permits none.
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
    let extra = data("auth-extra-groups");
    let extra_groups = || extra.iter().flat_map(|groups| groups.split(','));
    if !is_valid || !extra_groups().all(is_extra_group) {
        return None;
    }
    let groups: Vec<&str> = ["system:bootstrappers"].into_iter().chain(extra_groups()).collect();
    Some(User::new(&format!("system:bootstrap:{id}"), &groups))
}

/// Returns whether a Secret may add this group to a token's user. Upstream:
/// `ValidateBootstrapGroupName`.
fn is_extra_group(group: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    group.strip_prefix("system:bootstrappers:").is_some_and(|name| {
        name.len() <= 256
            && name.bytes().all(|byte| is_plain(byte) || matches!(byte, b':' | b'-'))
            && name.bytes().next_back().is_some_and(is_plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_groups_are_those_of_bootstrappers() {
        for (group, expected) in [
            ("system:bootstrappers:kubeadm:default-node-token", true),
            ("system:bootstrappers:a", true),
            ("system:bootstrappers", false),
            ("system:bootstrappers:", false),
            ("system:bootstrappers:a-", false),
            ("system:bootstrappers:A", false),
            ("system:masters", false),
            ("", false),
        ] {
            assert_eq!(is_extra_group(group), expected, "{group:?}");
        }
    }
}
