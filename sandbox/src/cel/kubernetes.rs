//! Quantities, URLs and semantic versions. Upstream: Kubernetes' `library.Quantity`,
//! `library.URLs`, `library.SemverLib`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Result;
use super::value::{Key, Semver, Url, Value};
use kube_controller_manager::objects::Quantity;
use kube_controller_manager::percent::decode_query;

/// Evaluates the functions of quantities, URLs and semantic versions. `None`: not one of them.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    Some(match (name, args) {
        ("quantity", [Value::String(text)]) => {
            text.parse().map(Value::Quantity).map_err(|error| format!("{error}"))
        }
        ("isQuantity", [Value::String(text)]) => Ok(text.parse::<Quantity>().is_ok().into()),
        ("url", [Value::String(text)]) => Url::parse(text)
            .map(|url| Value::Url(Arc::new(url)))
            .ok_or_else(|| format!("URL parse error during conversion from string: {text:?}")),
        ("isURL", [Value::String(text)]) => Ok(Url::parse(text).is_some().into()),
        ("semver" | "isSemver", [Value::String(text), normalize @ ..]) => {
            let found = Semver::parse(text, normalize == [Value::Bool(true)]);
            match (name, found) {
                ("isSemver", found) => Ok(found.is_some().into()),
                (_, Some(version)) => Ok(Value::Semver(Arc::new(version))),
                (_, None) => Err(format!("invalid semantic version {text:?}")),
            }
        }
        ("isGreaterThan", [a, b]) => order(a, b)?.map(|order| order.is_gt().into()),
        ("isLessThan", [a, b]) => order(a, b)?.map(|order| order.is_lt().into()),
        ("compareTo", [a, b]) => order(a, b)?.map(|order| Value::Int(order as i64)),
        (_, [Value::Quantity(quantity), rest @ ..]) => return of_quantity(name, *quantity, rest),
        (_, [Value::Url(url)]) => return url.part(name).map(Ok),
        (_, [Value::Semver(version)]) => {
            let at = ["major", "minor", "patch"].iter().position(|part| *part == name)?;
            Ok(Value::Int(version.numbers[at].try_into().unwrap_or(i64::MAX)))
        }
        _ => return None,
    })
}

/// Compares two quantities or two versions; `None` for other values.
fn order(a: &Value, b: &Value) -> Option<Result<Ordering>> {
    match (a, b) {
        (Value::Quantity(a), Value::Quantity(b)) => Some(Ok(a.compare(*b))),
        (Value::Semver(a), Value::Semver(b)) => Some(Ok(a.compare(b))),
        _ => None,
    }
}

/// Calls a function of quantities; `None`: there is no such function for these arguments.
fn of_quantity(name: &str, quantity: Quantity, rest: &[Value]) -> Option<Result<Value>> {
    let is_whole = quantity.rounded_up().compare(quantity).is_eq();
    let other = match rest {
        [Value::Quantity(other)] => Some(*other),
        [Value::Int(other)] => Some(Quantity::new(*other)),
        _ => None,
    };
    Some(Ok(match (name, other) {
        ("sign", None) => Value::Int(quantity.compare(Quantity::ZERO) as i64),
        ("asApproximateFloat", None) => Value::Double(quantity.to_f64()),
        ("isInteger", None) => is_whole.into(),
        ("asInteger", None) if is_whole => Value::Int(quantity.value()),
        ("asInteger", None) => return Some(Err("cannot convert value to integer".to_owned())),
        ("add", Some(other)) => Value::Quantity(quantity + other),
        ("sub", Some(other)) => Value::Quantity(quantity - other),
        _ => return None,
    }))
}

impl Url {
    /// Parses an absolute URL, or an absolute path. Upstream: Go's `url.ParseRequestURI`.
    fn parse(text: &str) -> Option<Url> {
        let is_clean = !text.chars().any(|c| c.is_ascii_control() || c == ' ');
        let text = Some(text).filter(|text| is_clean && !text.is_empty())?;
        let (before, query) = text.split_once('?').unwrap_or((text, ""));
        let mut url = Url { query: query.to_owned(), ..Url::default() };
        let rest = match before.split_once("://") {
            Some((scheme, rest)) if !before.starts_with('/') => {
                let mut letters = scheme.chars();
                let fine = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
                    && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
                if !fine {
                    return None;
                }
                url.scheme = scheme.to_ascii_lowercase();
                let (authority, path) = match rest.find('/') {
                    Some(at) => rest.split_at(at),
                    None => (rest, ""),
                };
                // The host stands after the user's name.
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                url.host = host.to_owned();
                path
            }
            _ if before.starts_with('/') => before,
            _ => return None,
        };
        url.path = rest.to_owned();
        Some(url)
    }

    /// Splits the URL's host into the name, without the brackets of an IPv6 address, and the port,
    /// which is empty when absent.
    fn host_and_port(&self) -> (&str, &str) {
        let end = self.host.rfind(']').unwrap_or(0);
        let (name, port) = match self.host[end..].rfind(':') {
            Some(at) => (&self.host[..end + at], &self.host[end + at + 1..]),
            None => (self.host.as_str(), ""),
        };
        (name.trim_start_matches('[').trim_end_matches(']'), port)
    }

    /// Returns the part of a URL that a function asks for; `None`: there is no such function.
    fn part(&self, name: &str) -> Option<Value> {
        Some(match name {
            "getScheme" => self.scheme.as_str().into(),
            "getHost" => self.host.as_str().into(),
            "getHostname" => self.host_and_port().0.into(),
            "getPort" => self.host_and_port().1.into(),
            "getEscapedPath" => self.path.as_str().into(),
            "getQuery" => {
                let mut found: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
                for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    let key = Key::String(decode_query(key).into());
                    found.entry(key).or_default().push(decode_query(value).into());
                }
                let found = found.into_iter().map(|(key, values)| (key, Value::list(values)));
                Value::Map(Arc::new(found.collect()))
            }
            _ => return None,
        })
    }
}

impl Semver {
    /// Parses a semantic version. With `normalize` a leading `v`, leading zeros and missing numbers
    /// are accepted.
    fn parse(text: &str, normalize: bool) -> Option<Semver> {
        let text = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let text = text.split_once('+').map_or(text, |(version, _)| version);
        let (version, pre_release) = match text.split_once('-') {
            Some((version, pre_release)) => (version, Some(pre_release)),
            None => (text, None),
        };
        let mut numbers = [0; 3];
        let parts: Vec<&str> = version.split('.').collect();
        if parts.len() > 3 || (parts.len() < 3 && !normalize) {
            return None;
        }
        for (number, part) in numbers.iter_mut().zip(parts) {
            let padded = part.len() > 1 && part.starts_with('0');
            if !part.bytes().all(|byte| byte.is_ascii_digit()) || (padded && !normalize) {
                return None;
            }
            *number = part.parse().ok()?;
        }
        let pre_release: Vec<String> = pre_release
            .map(|text| text.split('.').map(str::to_owned).collect())
            .unwrap_or_default();
        let fine = |part: &String| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        pre_release.iter().all(fine).then_some(Semver { numbers, pre_release })
    }

    /// Compares two versions as semver orders them: one with a pre-release is before the one
    /// without, and numeric identifiers are before others. Build metadata do not count.
    fn compare(&self, other: &Semver) -> Ordering {
        let order = self.numbers.cmp(&other.numbers);
        if order.is_ne() {
            return order;
        }
        match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            _ => {}
        }
        for (a, b) in self.pre_release.iter().zip(&other.pre_release) {
            let order = match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                _ => a.cmp(b),
            };
            if order.is_ne() {
                return order;
            }
        }
        self.pre_release.len().cmp(&other.pre_release.len())
    }
}
