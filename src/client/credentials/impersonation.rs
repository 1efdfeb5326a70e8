//! Acting as another user.

use http_client::http_types;
use http_client::http_types::headers::{HeaderName, HeaderValue};

use crate::client::config::Impersonation;
use crate::client::{Error, Result};

/// Returns the headers that ask to act as another user.
/// Upstream: `transport.NewImpersonatingRoundTripper`.
pub(in crate::client) fn impersonation(
    identity: &Impersonation,
) -> Result<Vec<(HeaderName, HeaderValue)>> {
    let Impersonation { user, uid, groups, extra } = identity;
    let mut headers = vec![("impersonate-user".to_owned(), user)];
    if !uid.is_empty() {
        headers.push(("impersonate-uid".to_owned(), uid));
    }
    headers.extend(groups.iter().map(|group| ("impersonate-group".to_owned(), group)));
    for (key, values) in extra {
        let name = format!("impersonate-extra-{}", header_escape(key));
        headers.extend(values.iter().map(|value| (name.clone(), value)));
    }
    let built = headers.into_iter().map(|(name, value)| {
        let fault = |_| Error::Config(format!("{name}: {value:?} fits in no header"));
        let value = header_value(value).map_err(fault)?;
        Ok((HeaderName::from_bytes(name.clone().into_bytes()).map_err(fault)?, value))
    });
    built.collect()
}

/// Returns `text` as the value of a header. `Err`: it does not fit in one.
pub(in crate::client) fn header_value(
    text: &str,
) -> std::result::Result<HeaderValue, http_types::Error> {
    HeaderValue::from_bytes(text.as_bytes().to_vec())
}

/// Escapes a part of a header's name: `%` and each byte that a name must not contain become `%` and
/// their code.
fn header_escape(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    text.bytes().fold(String::new(), |mut escaped, byte| {
        match is_plain(byte) {
            true => escaped.push(byte as char),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_is_asked_for_in_headers() {
        let text = |text: &str| text.to_owned();
        let mut who = Impersonation {
            user: text("system:serviceaccount:a:b"),
            uid: text("u 1"),
            groups: vec![text("g"), text("h")],
            extra: [
                (text("example.com/Some%key"), vec![text("x"), text("y")]),
                (text("none"), Vec::new()),
            ]
            .into(),
        };
        let shown = |who: &Impersonation| -> Vec<String> {
            let headers = impersonation(who).unwrap();
            headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
        };
        let expected = [
            "impersonate-user: system:serviceaccount:a:b",
            "impersonate-uid: u 1",
            "impersonate-group: g",
            "impersonate-group: h",
            "impersonate-extra-example.com%2fsome%25key: x",
            "impersonate-extra-example.com%2fsome%25key: y",
        ];
        assert_eq!(shown(&who), expected);
        let user = Impersonation { user: text("u"), ..Impersonation::default() };
        assert_eq!(shown(&user), ["impersonate-user: u"]);
        who.groups.push(text("größe"));
        let error = impersonation(&who).unwrap_err().to_string();
        assert!(error.contains("impersonate-group: \"größe\""), "{error}");
    }
}
