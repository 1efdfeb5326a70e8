//! A URI in the form in which Go's `net/url` writes it again after it has read it. Certificates
//! that the Go manager signs hold their URIs in this form.
//!
//! By hand: `url` follows the WHATWG, which writes another form (`http://h:` becomes `http://h/`),
//! and takes URIs that Go refuses.

use std::fmt::Write;
use std::net::Ipv6Addr;

/// A part of a URI, by the characters that it may hold beside letters, digits and `-_.~`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    User,
    Host,
    /// The characters of a zone, after `%25` between the brackets of a host.
    Zone,
    Path,
    Fragment,
}

impl Part {
    /// Returns whether the part may hold the byte without an escape.
    fn allows(self, byte: u8) -> bool {
        let marks: &[u8] = match self {
            Part::User => b"$&+,;=",
            Part::Host | Part::Zone => b"!\"$&'()*+,:;<=>[]",
            Part::Path => b"$&+,/:;=@",
            Part::Fragment => b"!$&()*+,/:;=?@",
        };
        byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || marks.contains(&byte)
    }

    /// Encodes the bytes as text, with an escape for each byte that the part may not hold.
    fn percent_encode(self, bytes: &[u8]) -> String {
        let mut text = String::new();
        for byte in bytes {
            match self.allows(*byte) {
                true => text.push(char::from(*byte)),
                false => {
                    // Writing to a String does not fail.
                    let _ = write!(text, "%{byte:02X}");
                }
            }
        }
        text
    }

    /// Decodes the escapes of `text`, which is this part of a URI. Fails where Go refuses the text.
    fn percent_decode(self, text: &str) -> Result<Vec<u8>, String> {
        let mut decoded = Vec::new();
        let mut remaining = text.as_bytes();
        while let Some((first, after)) = remaining.split_first() {
            if *first != b'%' {
                if matches!(self, Part::Host | Part::Zone)
                    && first.is_ascii()
                    && !self.allows(*first)
                {
                    let character = char::from(*first).to_string();
                    return Err(format!("invalid character {character:?} in host name"));
                }
                decoded.push(*first);
                remaining = after;
                continue;
            }
            let end = remaining.len().min(3);
            let invalid_escape = || {
                Err(format!("invalid URL escape {:?}", String::from_utf8_lossy(&remaining[..end])))
            };
            let [_, high, low, after @ ..] = remaining else { return invalid_escape() };
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return invalid_escape();
            };
            let byte = (high << 4) | low;
            let may_be_escaped = match self {
                Part::Host => byte == b'%' || !byte.is_ascii(),
                Part::Zone => byte == b'%' || byte == b' ' || Part::Host.allows(byte),
                _ => true,
            };
            if !may_be_escaped {
                return invalid_escape();
            }
            decoded.push(byte);
            remaining = after;
        }
        Ok(decoded)
    }

    /// Returns a path or a fragment in the form that Go writes: unchanged if that is a valid
    /// encoding, else encoded again.
    fn normalize(self, text: &str) -> Result<String, String> {
        let decoded = self.percent_decode(text)?;
        let encoded = self.percent_encode(&decoded);
        let is_valid = |byte: u8| b"!$&'()*+,;=:@[]%".contains(&byte) || self.allows(byte);
        if text.bytes().all(is_valid) && encoded != text {
            return Ok(text.to_owned());
        }
        if self == Part::Path && decoded == b"*" {
            return Ok("*".to_owned());
        }
        Ok(encoded)
    }
}

/// Returns the URI `text` in the form that Go writes.
///
/// # Errors
/// One line that says why Go cannot read it, or that its host is not a domain name.
pub fn normal_form(text: &str) -> Result<String, String> {
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut form =
        normalize_without_fragment(before).map_err(|why| format!("parse {before:?}: {why}"))?;
    if !fragment.is_empty() {
        let normalized = Part::Fragment.normalize(fragment);
        form += "#";
        form += &normalized.map_err(|why| format!("parse {text:?}: {why}"))?;
    }
    Ok(form)
}

/// Returns a URI without a fragment in the form that Go writes.
fn normalize_without_fragment(text: &str) -> Result<String, String> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (scheme, after_scheme) = split_scheme(text)?;
    let scheme = scheme.to_ascii_lowercase();
    let (hierarchy, query) = match after_scheme.split_once('?') {
        Some((hierarchy, query)) => (hierarchy, format!("?{query}")),
        None => (after_scheme, String::new()),
    };
    let mut form = String::new();
    if !scheme.is_empty() {
        form = format!("{scheme}:");
    }
    if !hierarchy.starts_with('/') {
        if !scheme.is_empty() {
            // An opaque URI, as `mailto:name`, stays as it is.
            return Ok(form + hierarchy + &query);
        }
        if hierarchy.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    // Go reads `///path` without a scheme as a path.
    let has_authority = !scheme.is_empty() || !hierarchy.starts_with("///");
    let after_slashes = if has_authority { hierarchy.strip_prefix("//") } else { None };
    let path = match after_slashes {
        None => hierarchy,
        Some(text) => {
            let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
            let authority = normalize_authority(&scheme, authority)?;
            if !authority.is_empty() || !path.is_empty() {
                form += "//";
            }
            form += &authority;
            path
        }
    };
    let path = Part::Path.normalize(path)?;
    // Without `./` the first segment would be read as a scheme.
    if form.is_empty() && path.split('/').next().is_some_and(|segment| segment.contains(':')) {
        form += "./";
    }
    Ok(form + &path + &query)
}

/// Splits off the scheme, which may be empty, and returns it with the text after its colon.
fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match end.filter(|end| text[*end..].starts_with(':')) {
        Some(0) => Err("missing protocol scheme".to_owned()),
        Some(end) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Ok((&text[..end], &text[end + 1..]))
        }
        _ => Ok(("", text)),
    }
}

/// Returns the user and the host of a URI as Go writes them.
fn normalize_authority(scheme: &str, text: &str) -> Result<String, String> {
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    let host = decode_host(scheme, host)?;
    if !is_domain(&host) {
        return Err("invalid domain".to_owned());
    }
    let host = Part::Host.percent_encode(&host);
    let Some(user) = user else { return Ok(host) };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(is_allowed) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    let normalize = |text: &str| -> Result<String, String> {
        let bytes = Part::User.percent_decode(text)?;
        Ok(Part::User.percent_encode(&bytes))
    };
    let user = match user.split_once(':') {
        None => normalize(user)?,
        Some((name, password)) => format!("{}:{}", normalize(name)?, normalize(password)?),
    };
    Ok(format!("{user}@{host}"))
}

/// Returns the decoded bytes of a host, with its port if it has one.
fn decode_host(scheme: &str, text: &str) -> Result<Vec<u8>, String> {
    let check_port = |port: &str| match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        None if port.is_empty() => Ok(()),
        _ => Err(format!("invalid port {port:?} after host")),
    };
    match text.rfind('[') {
        Some(0) => {}
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {
            // Other schemes may have a list of hosts with ports, of which Go checks the last port
            // only.
            let colon = match scheme {
                "http" | "https" => text.find(':'),
                _ => text.rfind(':'),
            };
            check_port(&text[colon.unwrap_or(text.len())..])?;
            return Part::Host.percent_decode(text);
        }
    }
    let Some((inside, port)) = text[1..].rsplit_once(']') else {
        return Err("missing ']' in host".to_owned());
    };
    check_port(port)?;
    let (address, zone) = inside.split_at(inside.find("%25").unwrap_or(inside.len()));
    let (address, zone) = (Part::Host.percent_decode(address)?, Part::Zone.percent_decode(zone)?);
    let is_address =
        std::str::from_utf8(&address).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok());
    // A zone is empty, or `%` and a name.
    if !is_address || zone.len() == 1 {
        return Err("invalid host".to_owned());
    }
    Ok([&b"["[..], &address, &zone, b"]", port.as_bytes()].concat())
}

/// Returns whether the host is empty or a domain name. Upstream: `domainNameValid`.
fn is_domain(host: &[u8]) -> bool {
    let is_label = |label: &[u8]| !label.is_empty() && label.iter().all(u8::is_ascii_graphic);
    host.is_empty() || host.split(|byte| *byte == b'.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_written_as_go_writes_them() {
        // What Go 1.26 makes of them, with the setting of the Go manager for colons in hosts.
        for (uri, form) in [
            ("spiffe://td/ns/a/sa/b", "spiffe://td/ns/a/sa/b"),
            ("SPIFFE://TD/x", "spiffe://TD/x"),
            ("file:///x", "file:///x"),
            ("file://", "file:"),
            ("file:/x", "file:/x"),
            ("mailto:", "mailto:"),
            ("urn:uuid:F81D", "urn:uuid:F81D"),
            ("X-1+a.b:q", "x-1+a.b:q"),
            ("x:y?z#w", "x:y?z#w"),
            ("x:?", "x:?"),
            ("a:b/c", "a:b/c"),
            ("http:/h", "http:/h"),
            ("http:////h/p", "http:////h/p"),
            ("*", "*"),
            ("a*b", "a*b"),
            ("%2A", "*"),
            ("%2a", "%2a"),
            ("", ""),
            ("a/b:c", "a/b:c"),
            ("a%3Ab\"", "./a:b%22"),
            ("a%3Ab", "a%3Ab"),
            ("/abs", "/abs"),
            ("//", ""),
            ("//h", "//h"),
            ("///x", "///x"),
            ("?q", "?q"),
            ("#f", "#f"),
            ("http://h/a b", "http://h/a%20b"),
            ("http://h/%7Euser%2F%2f", "http://h/%7Euser%2F%2f"),
            ("http://h/[x]", "http://h/[x]"),
            ("http://h/a%3Ab\"", "http://h/a:b%22"),
            ("http://h/a;b,c=d&e$f+g@h:i!j'k(l)m*n~o", "http://h/a;b,c=d&e$f+g@h:i!j'k(l)m*n~o"),
            ("http://h/a^b|c{d}\\e`", "http://h/a%5Eb%7Cc%7Bd%7D%5Ce%60"),
            ("http://h/%E4%BD", "http://h/%E4%BD"),
            ("http://h??", "http://h??"),
            ("http://h?a b", "http://h?a b"),
            ("http://h/?#", "http://h/?"),
            ("http://h#a b", "http://h#a%20b"),
            ("http://h#%41", "http://h#%41"),
            ("http://h#\"\u{1}", "http://h#%22%01"),
            ("http://%41@h", "http://A@h"),
            ("http://u%40:p%3a@h/", "http://u%40:p%3A@h/"),
            ("http://u:@h/", "http://u:@h/"),
            ("http://@h/", "http://@h/"),
            ("http://u@v@h/", "http://u%40v@h/"),
            ("http://u!$&'()*+,;=:@h/", "http://u%21$&%27%28%29%2A+,;=:@h/"),
            ("http://h:", "http://h:"),
            ("x://h:1:2:80", "x://h:1:2:80"),
            ("http://[::1]:80/", "http://[::1]:80/"),
            ("http://[::ffff:1.2.3.4]", "http://[::ffff:1.2.3.4]"),
            ("http://[fe80::1%25en0]/", "http://[fe80::1%25en0]/"),
            ("http://h%25", "http://h%25"),
            ("http://h<>\"/", "http://h<>\"/"),
        ] {
            assert_eq!(normal_form(uri).as_deref(), Ok(form), "{uri}");
        }
    }

    #[test]
    fn uris_that_go_refuses_are_refused() {
        for (uri, why) in [
            ("1a:b", "first path segment in URL cannot contain colon"),
            (":x", "missing protocol scheme"),
            ("http://h/\u{1}", "net/url: invalid control character in URL"),
            ("http://u<@h/", "net/url: invalid userinfo"),
            ("http://h:8x", "invalid port \":8x\" after host"),
            ("http://a:b:80", "invalid port \":b:80\" after host"),
            ("http://[::1]x", "invalid port \"x\" after host"),
            ("http://[::1]:8%30", "invalid port \":8%30\" after host"),
            ("http://[::1", "missing ']' in host"),
            ("http://[1.2.3.4]", "invalid host"),
            ("http://a[::1]", "invalid IP-literal"),
            ("http://[x]", "invalid host"),
            ("http://[fe80::1%25]/", "invalid host"),
            ("http://[fe80::1%25e%20n]/", "invalid domain"),
            ("http://h%41", "invalid URL escape \"%41\""),
            ("http://h%zz", "invalid URL escape \"%zz\""),
            ("http://h/%4", "invalid URL escape \"%4\""),
            ("http://h .x", "invalid character \" \" in host name"),
            ("http://h^/", "invalid character \"^\" in host name"),
            ("http://h%ff/", "invalid domain"),
            ("http://h./", "invalid domain"),
            ("http://.h/", "invalid domain"),
            ("http://a..b", "invalid domain"),
        ] {
            assert_eq!(normal_form(uri), Err(format!("parse {uri:?}: {why}")));
        }
        let refused = normal_form("http://h#%").unwrap_err();
        assert_eq!(refused, "parse \"http://h#%\": invalid URL escape \"%\"");
    }
}
