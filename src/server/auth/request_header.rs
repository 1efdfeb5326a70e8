//! Users that a front proxy names in headers.
//! Upstream: `apiserver/pkg/authentication/request/headerrequest`.

use hyper::header::HeaderValue;

use super::{Authorities, User};
use crate::objects::Timestamp;
use crate::percent;
use crate::server::Request;

/// The proxies that may name users, and the headers they use.
#[derive(Clone, Debug, Default)]
pub struct RequestHeader {
    pub ca: Option<Authorities>,
    /// Common names of the proxies' certificates; empty: any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

impl RequestHeader {
    /// Returns the user named by the headers of `request`; `None` when they name no user or when no
    /// proxy is trusted.
    ///
    /// # Errors
    /// Why the client's certificate is not that of a trusted proxy.
    pub(super) fn user(&self, request: &Request, now: Timestamp) -> Result<Option<User>, String> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let proxy = ca.user(&request.peer, now)?.name;
        let allowed = &self.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&proxy) {
            return Err(format!(
                "x509: subject with cn={proxy} is not in the allowed list: {allowed:?}"
            ));
        }
        Ok(self.user_from_headers(request))
    }

    /// Reads the user from the headers that a proxy has set. `None`: no header names a user.
    fn user_from_headers(&self, request: &Request) -> Option<User> {
        let first = |headers: &[String]| {
            let mut values = headers.iter().filter_map(|header| request.headers.get(header));
            values.find(|value| !value.is_empty()).map(header_text)
        };
        let groups = self.group_headers.iter().flat_map(|header| request.headers.get_all(header));
        Some(User {
            name: first(&self.username_headers)?,
            uid: first(&self.uid_headers).unwrap_or_default(),
            groups: groups.filter(|group| !group.is_empty()).map(header_text).collect(),
            extra: self.extra(request),
        })
    }

    /// Returns the headers that begin with one of the prefixes, by the name after it.
    fn extra(&self, request: &Request) -> Vec<(String, Vec<String>)> {
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for (header, value) in &request.headers {
                let Some(key) = header.as_str().strip_prefix(&prefix) else { continue };
                let key = unescaped(key);
                match extra.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, values)) => values.push(header_text(value)),
                    None => extra.push((key, vec![header_text(value)])),
                }
            }
        }
        extra
    }
}

fn header_text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Returns the percent-decoded `key`; a key with a malformed escape stays as it is.
/// Upstream: `unescapeExtraKey`.
fn unescaped(key: &str) -> String {
    if percent::is_well_formed(key) { percent::decode(key) } else { key.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, authority};
    use super::*;

    fn config() -> RequestHeader {
        RequestHeader {
            username_headers: vec!["x-remote-user".into(), "x-user".into()],
            uid_headers: vec!["x-remote-uid".into()],
            group_headers: vec!["x-remote-group".into()],
            extra_prefixes: vec!["X-Remote-Extra-".into()],
            ..RequestHeader::default()
        }
    }

    fn request(headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::get("/");
        for (name, value) in headers {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            request.headers.append(*name, value);
        }
        request
    }

    #[test]
    fn user_is_read_from_headers() {
        let user = config().user_from_headers(&request(&[
            ("x-remote-user", ""),
            ("x-user", "Ünal"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "dev"),
            ("x-remote-group", ""),
            ("x-remote-group", "ops"),
            ("x-remote-extra-scopes", "a"),
            ("x-remote-extra-scopes", "b"),
        ]));
        let expected = User {
            name: "Ünal".into(),
            uid: "7".into(),
            groups: vec!["dev".into(), "ops".into()],
            extra: vec![("scopes".into(), vec!["a".into(), "b".into()])],
        };
        assert_eq!(user, Some(expected));
        assert_eq!(config().user_from_headers(&request(&[("x-remote-group", "dev")])), None);
    }

    #[test]
    fn keys_of_extra_headers_are_percent_decoded() {
        for (key, expected) in [
            ("plain", "plain"),
            ("acme.com%2fproject", "acme.com/project"),
            ("%c3%bc", "ü"),
            ("a+b%3D", "a+b="),
            ("bad%zz%2f", "bad%zz%2f"),
            ("cut%2", "cut%2"),
            ("%+1", "%+1"),
            ("%", "%"),
            ("%2ü", "%2ü"),
        ] {
            assert_eq!(unescaped(key), expected, "{key}");
        }
        let user = config().user_from_headers(&request(&[
            ("x-remote-user", "ada"),
            ("x-remote-extra-a%62", "1"),
            ("x-remote-extra-ab", "2"),
        ]));
        assert_eq!(user.expect("a user").extra.len(), 1);
    }

    #[test]
    fn proxy_must_be_trusted() {
        let (proxies, others) = (authority(), authority());
        let config = RequestHeader {
            ca: Some(proxies.authorities()),
            allowed_names: vec!["front".into()],
            ..config()
        };
        let ask = |peer| {
            let request = Request { peer, ..request(&[("x-remote-user", "ada")]) };
            config.user(&request, NOW).map(|user| user.map(|user| user.name))
        };
        assert_eq!(ask(proxies.sign("front", "")), Ok(Some("ada".into())));
        assert!(ask(others.sign("front", "")).is_err());
        let refused = "x509: subject with cn=back is not in the allowed list: [\"front\"]";
        assert_eq!(ask(proxies.sign("back", "")), Err(refused.into()));
    }
}
