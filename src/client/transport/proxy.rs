//! The choice of a proxy for the API server. Upstream: `http.ProxyFromEnvironment`,
//! `rest.Config.Proxy`.

use std::net::IpAddr;

use base64::Engine;
use http_client::http_types::Url;

use crate::client::{Error, Result};
use crate::percent::decode_bytes;

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Kind {
    /// HTTP: a tunnel by CONNECT, or the requests themselves when the server has no TLS.
    Http,
    /// The same, over TLS.
    Https,
    Socks5,
}

/// A proxy's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) struct Proxy {
    pub kind: Kind,
    pub host: String,
    pub port: u16,
    /// User and password.
    pub login: Option<(Vec<u8>, Vec<u8>)>,
}

/// Returns the proxy for `server`: `configured` (a kubeconfig's `proxy-url`), else the
/// environment's HTTPS_PROXY, or HTTP_PROXY without TLS, unless NO_PROXY names the server or it is
/// on this machine.
///
/// # Errors
/// When the proxy's address is malformed or of another kind than those of [`Kind`]. When HTTP_PROXY
/// may come from a header `Proxy`, because the program runs as a CGI script.
pub(super) fn proxy_for(
    server: &Url,
    configured: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>> {
    // Both spellings of a variable are in use; that in upper case has precedence.
    let variable = |upper: &str, lower: &str| {
        [upper, lower].into_iter().filter_map(&environment).find(|value| !value.is_empty())
    };
    if let Some(address) = configured {
        let fault = |why| Error::Config(format!("proxy-url: {why}"));
        return Proxy::parse(address).map(Some).map_err(fault);
    }
    let (upper, lower) = match server.scheme() {
        "https" => ("HTTPS_PROXY", "https_proxy"),
        _ => ("HTTP_PROXY", "http_proxy"),
    };
    let Some(address) = variable(upper, lower) else { return Ok(None) };
    let is_cgi = environment("REQUEST_METHOD").is_some_and(|method| !method.is_empty());
    if upper == "HTTP_PROXY" && is_cgi {
        let what = "refusing to use HTTP_PROXY value in CGI environment; see \
                    golang.org/s/cgihttpproxy";
        return Err(Error::Config(what.to_owned()));
    }
    let (host, port) = (bare_host(server), server.port_or_known_default().unwrap_or(443));
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let exempt = variable("NO_PROXY", "no_proxy").unwrap_or_default();
    if is_local || exempt.split(',').any(|rule| exempts(rule, &host, port)) {
        return Ok(None);
    }
    // In the environment the scheme may be missing.
    let address = if address.contains("://") { address } else { format!("http://{address}") };
    Proxy::parse(&address).map(Some).map_err(|why| Error::Config(format!("{upper}: {why}")))
}

/// Returns the host of `url` in lower case, without the brackets of an IPv6 address and without a
/// dot at its end.
fn bare_host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

impl Proxy {
    /// Parses the address of a proxy. `Err`: the fault in the address. The text does not contain
    /// the address, which may hold a password.
    pub fn parse(address: &str) -> std::result::Result<Proxy, String> {
        let url = Url::parse(address).map_err(|error| format!("could not parse: {error}"))?;
        let (kind, usual_port) = match url.scheme() {
            "http" => (Kind::Http, 80),
            "https" => (Kind::Https, 443),
            "socks5" | "socks5h" => (Kind::Socks5, 1080),
            other => {
                return Err(format!(
                    "unsupported scheme {other:?}, must be http, https, or socks5"
                ));
            }
        };
        let host = bare_host(&url);
        if host.is_empty() {
            return Err("no host".to_owned());
        }
        let login = (!url.username().is_empty() || url.password().is_some()).then(|| {
            (decode_bytes(url.username()), decode_bytes(url.password().unwrap_or_default()))
        });
        Ok(Proxy { kind, host, port: url.port().unwrap_or(usual_port), login })
    }

    /// Returns whether the proxy gets the requests to `server` themselves, since no TLS protects
    /// them.
    pub fn forwards_to(&self, server: &Url) -> bool {
        server.scheme() == "http" && self.kind != Kind::Socks5
    }

    /// Returns the value of the header `Proxy-Authorization`; `None` without a login.
    pub fn authorization(&self) -> Option<String> {
        let (user, password) = self.login.as_ref()?;
        let pair = [user.as_slice(), password].join(&b':');
        Some(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
    }
}

/// Returns whether one entry of NO_PROXY names the server: `*`, an address, a network, a domain
/// with its subdomains, or after a leading dot only the subdomains. A port restricts the entry to
/// that port.
fn exempts(rule: &str, host: &str, port: u16) -> bool {
    let rule = rule.trim().to_ascii_lowercase();
    if rule.is_empty() || rule == "*" {
        return rule == "*";
    }
    let address: Option<IpAddr> = host.parse().ok();
    if let Some((network, bits)) = rule.split_once('/') {
        return match (address, network.parse::<IpAddr>(), bits.parse::<u32>()) {
            (Some(address), Ok(network), Ok(bits)) => is_within(address, network, bits),
            _ => false,
        };
    }
    // An address without a port: that of IPv6 has colons of its own.
    let bare = rule.trim_start_matches('[').trim_end_matches(']');
    if let Ok(named) = bare.parse::<IpAddr>() {
        return address == Some(named);
    }
    let (name, only_port) = match rule.rsplit_once(':') {
        Some((name, digits)) => (name, digits.parse::<u16>().ok()),
        None => (rule.as_str(), None),
    };
    if only_port.is_some_and(|only| only != port) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let (Ok(named), Some(address)) = (name.parse::<IpAddr>(), address) {
        return named == address;
    }
    // `*.example.com` means the same as `.example.com`.
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    match name.strip_prefix('.') {
        Some(below) => host.strip_suffix(below).is_some_and(|rest| rest.ends_with('.')),
        None => host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
    }
}

/// Returns whether the first `bits` of both are equal.
fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_proxy(
        server: &str,
        configured: Option<&str>,
        vars: &[(&str, &str)],
    ) -> Result<String> {
        let environment = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let found = proxy_for(&Url::parse(server).unwrap(), configured, environment)?;
        Ok(found.map_or("direct".to_owned(), |proxy| {
            let authorization =
                proxy.authorization().map_or(String::new(), |value| " ".to_owned() + &value);
            let kind = match proxy.kind {
                Kind::Http => "",
                Kind::Https => "tls ",
                Kind::Socks5 => "socks ",
            };
            format!("{kind}{}:{}{authorization}", proxy.host, proxy.port)
        }))
    }

    #[test]
    fn the_environment_and_the_kubeconfig_name_the_proxy() {
        let proxy = ("HTTPS_PROXY", "p:3128");
        for (server, configured, vars, expected) in [
            ("https://k.example:6443", None, &[][..], "direct"),
            ("https://k.example:6443", None, &[proxy], "p:3128"),
            (
                "https://k.example",
                None,
                &[("https_proxy", "http://u%40:w@p")],
                "p:80 Basic dUA6dw==",
            ),
            ("http://k.example", None, &[proxy], "direct"),
            ("http://k.example", None, &[("HTTP_PROXY", "q:1"), proxy], "q:1"),
            (
                "http://k.example",
                None,
                &[("http_proxy", "socks5://u:p@q")],
                "socks q:1080 Basic dTpw",
            ),
            (
                "http://k.example",
                None,
                &[("HTTP_PROXY", "q:1"), ("NO_PROXY", "k.example:80")],
                "direct",
            ),
            ("http://127.0.0.1", None, &[("HTTP_PROXY", "q:1")], "direct"),
            ("http://k.example", Some("http://q:1"), &[("NO_PROXY", "*")], "q:1"),
            (
                "https://k.example",
                None,
                &[("HTTP_PROXY", "q:1"), ("REQUEST_METHOD", "GET")],
                "direct",
            ),
            ("https://k.example", None, &[proxy, ("REQUEST_METHOD", "GET")], "p:3128"),
            ("http://k.example", None, &[("REQUEST_METHOD", "GET")], "direct"),
            ("https://127.0.0.1:6443", None, &[proxy], "direct"),
            ("https://[::1]:6443", None, &[proxy], "direct"),
            ("https://localhost", None, &[proxy], "direct"),
            ("https://k.example", Some("http://q:1"), &[proxy, ("NO_PROXY", "*")], "q:1"),
            ("https://k.example", Some("https://q"), &[], "tls q:443"),
            ("https://k.example", Some("socks5://u:@q"), &[], "socks q:1080 Basic dTo="),
            ("https://k.example", None, &[("HTTPS_PROXY", "socks5h://[::1]:9")], "socks ::1:9"),
        ] {
            assert_eq!(
                chosen_proxy(server, configured, vars).unwrap(),
                expected,
                "{server} {vars:?}"
            );
        }
        for (configured, bad) in [
            (None, "socks4://u:secret@p:1"),
            (None, "http://"),
            (None, "http://u:secret@[p"),
            (Some("ftp://secret"), ""),
            (Some("secret:3128"), ""),
        ] {
            let error = chosen_proxy("https://k", configured, &[("HTTPS_PROXY", bad)]).unwrap_err();
            let (error, what) =
                (error.to_string(), configured.map_or("HTTPS_PROXY", |_| "proxy-url"));
            assert!(error.contains(&format!("{what}: ")) && !error.contains("//u:"), "{error}");
        }
        // Even where NO_PROXY names the server.
        let vars = [("http_proxy", "q:1"), ("REQUEST_METHOD", "GET"), ("NO_PROXY", "*")];
        assert!(
            chosen_proxy("http://k.example", None, &vars).unwrap_err().to_string().contains("CGI")
        );
    }

    #[test]
    fn no_proxy_names_hosts_domains_addresses_and_networks() {
        for (rules, server, expected) in [
            ("example.com", "https://example.com", "direct"),
            ("example.com", "https://k.example.com", "direct"),
            ("example.com", "https://badexample.com", "p:3128"),
            (".example.com", "https://example.com", "p:3128"),
            ("*.example.com", "https://k.example.com", "direct"),
            ("other, K.Example.com:6443", "https://k.example.com:6443", "direct"),
            ("k.example.com:6443", "https://k.example.com", "p:3128"),
            ("10.0.0.0/8", "https://10.1.2.3:6443", "direct"),
            ("10.0.0.0/8", "https://11.1.2.3:6443", "p:3128"),
            ("0.0.0.0/0", "https://11.1.2.3:6443", "direct"),
            ("10.0.0.0/99,fd00::/8", "https://[fd00::7]:6443", "direct"),
            ("10.1.2.3", "https://10.1.2.3:6443", "direct"),
            ("10.1.2.3:1", "https://10.1.2.3:6443", "p:3128"),
            ("fd00::7", "https://[fd00::7]:6443", "direct"),
            ("*", "https://k", "direct"),
            (" , ", "https://k", "p:3128"),
        ] {
            let found =
                chosen_proxy(server, None, &[("HTTPS_PROXY", "p:3128"), ("NO_PROXY", rules)]);
            assert_eq!(found.unwrap(), expected, "{rules} {server}");
        }
    }
}
