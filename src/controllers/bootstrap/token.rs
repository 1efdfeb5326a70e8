//! The expiry of a bootstrap token, and whether it may sign.
//! Upstream: `cluster-bootstrap/util/secrets`.

use std::time::Duration;

use crate::objects::{BootstrapToken, Timestamp};

const NAME_PREFIX: &str = "bootstrap-token-";
const ID_LENGTH: usize = 6;

/// When a token expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiration {
    Never,
    In(Duration),
    /// It has expired, or its time cannot be parsed.
    Expired,
}

/// Returns when the token expires, seen from `now`. One whose time cannot be parsed has expired.
pub fn expiration(token: &BootstrapToken, now: Timestamp) -> Expiration {
    let text = &*token.data.expiration;
    if text.is_empty() {
        return Expiration::Never;
    }
    let meta = &token.meta;
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<Timestamp>().ok());
    let Some(end) = parsed else {
        log::debug!(
            "Unparseable expiration time ({}) in {} Secret. Treating as expired.",
            String::from_utf8_lossy(text),
            meta.key()
        );
        return Expiration::Expired;
    };
    match end.duration_since(now) {
        Duration::ZERO => Expiration::Expired,
        remaining => Expiration::In(remaining),
    }
}

/// Returns the id and the secret of a token; `None` if it may not sign now.
/// Upstream: `validateSecretForSigning`.
pub fn id_and_secret_for_signing(token: &BootstrapToken, now: Timestamp) -> Option<(&str, &[u8])> {
    let (name, data) = (&*token.meta.name, &token.data);
    let log_invalid = |why: &str| log::debug!("{why} secretName={name:?}");
    let id = name.strip_prefix(NAME_PREFIX).filter(|id| {
        let is_allowed = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
        id.len() == ID_LENGTH && id.bytes().all(is_allowed)
    });
    let Some(id) = id else {
        log_invalid("Invalid secret name, must be of the form bootstrap-token-<secret-id>");
        return None;
    };
    if data.token_id.is_empty() || data.token_secret.is_empty() {
        log_invalid("No key in Secret");
        return None;
    }
    if *data.token_id != *id.as_bytes() {
        log_invalid("Token ID doesn't match secret name");
        return None;
    }
    let is_for_signing = *data.usage_bootstrap_signing == *b"true";
    if !is_for_signing || expiration(token, now) == Expiration::Expired {
        return None;
    }
    Some((id, &*data.token_secret))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(name: &str, data: &[(&str, &str)]) -> BootstrapToken {
        use base64::Engine;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let data: serde_json::Map<String, serde_json::Value> =
            data.iter().map(|(key, value)| ((*key).to_owned(), encode(value).into())).collect();
        serde_json::from_value(json!({ "metadata": { "name": name }, "data": data })).unwrap()
    }

    #[test]
    fn a_token_expires_at_its_time() {
        let now = Timestamp::from_secs(1_000_000_000); // 2001-09-09T01:46:40Z
        let seconds = |seconds| Expiration::In(Duration::from_secs(seconds));
        for (text, expected) in [
            ("", Expiration::Never),
            ("2001-09-09T01:46:41Z", seconds(1)),
            ("2001-09-09T01:46:40Z", Expiration::Expired),
            ("2001-09-09T01:46:39Z", Expiration::Expired),
            ("2001-09-09T03:46:41+02:00", seconds(1)),
            ("2001-09-08T23:46:41-02:00", seconds(1)),
            ("2001-09-09T1:46:41Z", seconds(1)),
            ("2001-09-09T01:46:40.5Z", Expiration::In(Duration::from_millis(500))),
            ("2001-09-09T01:46:40,5000000000000Z", Expiration::In(Duration::from_millis(500))),
            ("9999-12-31T23:59:59Z", seconds(252_402_300_799)),
            ("9999-12-31T23:59:59-23:59", seconds(252_402_387_139)),
            ("12001-09-09T01:46:41Z", Expiration::Expired),
            ("2001-09-09T01:46:60Z", Expiration::Expired),
            ("2101-09-09T01:46:41", Expiration::Expired),
            ("2101-09-09t01:46:41z", Expiration::Expired),
            ("2101-09-09 01:46:41Z", Expiration::Expired),
            ("2101-9-9T01:46:41Z", Expiration::Expired),
            ("2101-13-09T01:46:41Z", Expiration::Expired),
            ("2101-09-09T01:46:41.Z", Expiration::Expired),
            ("2101-09-09T01:46Z", Expiration::Expired),
            ("tomorrow", Expiration::Expired),
            ("T", Expiration::Expired),
        ] {
            let token = token("t", &[("expiration", text)]);
            assert_eq!(expiration(&token, now), expected, "{text}");
        }
    }

    #[test]
    fn a_token_that_may_sign_is_whole_and_named_after_its_id() {
        let now = Timestamp::from_secs(1_000_000_000);
        const GOOD: [(&str, &str); 4] = [
            ("token-id", "abc123"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
            ("expiration", "2101-01-01T00:00:00Z"),
        ];
        let name = "bootstrap-token-abc123";
        let good = token(name, &GOOD);
        assert_eq!(
            id_and_secret_for_signing(&good, now),
            Some(("abc123", &b"0123456789abcdef"[..]))
        );
        assert!(
            id_and_secret_for_signing(&token(name, &GOOD[..3]), now).is_some(),
            "it never expires"
        );
        for (name, key, value) in [
            ("bootstrap-token-abc12", "token-id", "abc12"),
            ("bootstrap-token-ABC123", "token-id", "ABC123"),
            ("token-abc123", "token-id", "abc123"),
            (name, "token-id", "abc124"),
            (name, "token-id", ""),
            (name, "token-secret", ""),
            (name, "usage-bootstrap-signing", "True"),
            (name, "usage-bootstrap-signing", ""),
            (name, "expiration", "2001-01-01T00:00:00Z"),
            (name, "expiration", "never"),
        ] {
            let mut data = GOOD;
            data.iter_mut().filter(|(known, _)| *known == key).for_each(|pair| pair.1 = value);
            assert_eq!(
                id_and_secret_for_signing(&token(name, &data), now),
                None,
                "{name} {key} {value}"
            );
        }
    }
}
