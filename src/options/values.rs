//! The types of flags, each with its parser and its text.
//! Upstream: `spf13/pflag`, `component-base/cli/flag`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::duration::{parse_duration, show_duration};
use super::release::Release;
use super::version::VERSION;

/// A type that a flag can have.
pub trait Value: Sized {
    /// The name in `--help`; empty for a bool.
    const KIND: &'static str;
    /// The value of the flag when it is given without one.
    const ALONE: Option<&'static str> = None;

    /// Parses the value of a flag on the command line.
    ///
    /// # Errors
    /// One line naming the fault of `text`, without the flag's name.
    fn parse(text: &str) -> Result<Self, String>;

    /// Applies the given values, in order, to the default. The last one wins, unless values add up.
    fn merge(&mut self, mut given: Vec<Given<Self>>) {
        if let Some(Given(last)) = given.pop() {
            *self = last;
        }
    }

    /// Why the value is refused though it parses, to follow the flag's name.
    fn fault(&self) -> Option<String> {
        None
    }

    /// The form in which pflag shows it.
    fn text(&self) -> String;

    /// The default in `--help`; empty: not shown.
    fn shown(&self) -> String {
        self.text()
    }
}

/// A value on the command line.
pub struct Given<T>(pub T);

impl<T: Value> FromStr for Given<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        T::parse(text).map(Given)
    }
}

impl Value for bool {
    const KIND: &'static str = "";
    const ALONE: Option<&'static str> = Some("true");

    fn parse(text: &str) -> Result<bool, String> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err("not a bool".into()),
        }
    }
    fn text(&self) -> String {
        self.to_string()
    }
    fn shown(&self) -> String {
        if *self { "true".into() } else { String::new() }
    }
}

macro_rules! number {
    ($type:ty, $kind:literal, $read:expr, $what:literal) => {
        impl Value for $type {
            const KIND: &'static str = $kind;
            fn parse(text: &str) -> Result<$type, String> {
                $read(text).ok_or_else(|| $what.into())
            }
            fn text(&self) -> String {
                self.to_string()
            }
            fn shown(&self) -> String {
                if *self == <$type>::default() { String::new() } else { self.to_string() }
            }
        }
    };
}
number!(u16, "uint16", parse_whole, "not a whole number of 16 bits");
number!(i32, "int32", parse_whole, "not a whole number of 32 bits");
number!(i64, "int", parse_whole, "not a whole number of 64 bits");
number!(f32, "float32", |text| parse_decimal(text, f32::is_infinite), "not a number of 32 bits");
number!(f64, "float", |text| parse_decimal(text, f64::is_infinite), "not a number of 64 bits");

/// Parses a decimal number. Returns infinity only for the text of infinity, not for numbers that
/// are too large. Upstream: `strconv.ParseFloat`.
fn parse_decimal<T: FromStr + Copy>(text: &str, is_infinite: fn(T) -> bool) -> Option<T> {
    let number = text.parse().ok()?;
    let is_word = text.contains(['i', 'I']);
    (is_word || !is_infinite(number)).then_some(number)
}

/// Parses a literal of Go: `0x1F`, `0b1`, `0o7` or `07`, and digits in groups, `1_000`.
/// Upstream: `strconv.ParseInt` of base 0.
fn parse_whole<T: TryFrom<i64>>(text: &str) -> Option<T> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefixes = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8), ("0", 8)];
    let prefixed = prefixes.into_iter().find_map(|(prefix, radix)| {
        let digits = unsigned.strip_prefix(prefix)?;
        (!digits.is_empty()).then_some((radix, digits.strip_prefix('_').unwrap_or(digits)))
    });
    let (radix, digits) = prefixed.unwrap_or((10, unsigned));
    let mut groups = digits.split('_');
    if !groups.all(|group| !group.is_empty() && group.chars().all(|c| c.is_digit(radix))) {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let number = i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), radix).ok()?;
    T::try_from(number).ok()
}

/// A count that is at least 1, such as a controller's workers. Another number on the command line
/// is kept for [`validate`](super::validate()), which refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    given: i32,
    /// `i32::MAX`: any number.
    most: i32,
}

impl Count {
    /// Makes a count without an upper bound. A `count` below 1 does not compile in a constant.
    pub const fn new(count: i32) -> Count {
        Count::up_to(i32::MAX, count)
    }

    /// Makes a count that may be at most `most`; panics when `count` is below 1.
    pub const fn up_to(most: i32, count: i32) -> Count {
        assert!(count >= 1, "a count is at least 1");
        Count { given: count, most }
    }

    /// Returns the number; 1 in place of a smaller one.
    pub fn get(self) -> usize {
        usize::try_from(self.given).unwrap_or(1).max(1)
    }
}

impl Value for Count {
    const KIND: &'static str = i32::KIND;
    fn parse(text: &str) -> Result<Count, String> {
        i32::parse(text).map(|given| Count { given, most: i32::MAX })
    }
    fn merge(&mut self, given: Vec<Given<Count>>) {
        if let Some(Given(last)) = given.last() {
            self.given = last.given;
        }
    }
    /// Returns why the count is out of its bounds, if it is.
    fn fault(&self) -> Option<String> {
        let Count { given, most } = *self;
        let must = match most {
            // As upstream, the text for a count without an upper bound is another one.
            i32::MAX if given < 1 => "be greater than 0".to_owned(),
            _ if given < 1 => "not be less than 1".to_owned(),
            _ if given > most => format!("not be more than {most}"),
            _ => return None,
        };
        Some(format!("must {must}, but got {given}"))
    }
    fn text(&self) -> String {
        self.given.to_string()
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(self.given)
    }
}

impl Value for String {
    const KIND: &'static str = "string";
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.into())
    }
    fn text(&self) -> String {
        self.clone()
    }
    fn shown(&self) -> String {
        if self.is_empty() { String::new() } else { format!("{self:?}") }
    }
}

impl Value for IpAddr {
    const KIND: &'static str = "ip";
    fn parse(text: &str) -> Result<IpAddr, String> {
        match text {
            // An empty text means every interface, as in Go.
            "" => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            text => text.parse().map_err(|_| "not an IP address".into()),
        }
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const KIND: &'static str = "duration";
    fn parse(text: &str) -> Result<Duration, String> {
        parse_duration(text)
    }
    fn text(&self) -> String {
        show_duration(*self)
    }
    fn shown(&self) -> String {
        if self.is_zero() { String::new() } else { show_duration(*self) }
    }
}

/// A flag whose absence is not the same as any value.
impl<T: Value + Clone> Value for Option<T> {
    const KIND: &'static str = T::KIND;
    const ALONE: Option<&'static str> = T::ALONE;

    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        let values: Vec<T> = given.into_iter().filter_map(|Given(value)| value).collect();
        // There is no default to merge with, so the first value stands in for it.
        if let Some(mut merged) = values.first().cloned() {
            merged.merge(values.into_iter().map(Given).collect());
            *self = Some(merged);
        }
    }
    fn fault(&self) -> Option<String> {
        self.as_ref().and_then(T::fault)
    }
    fn text(&self) -> String {
        self.as_ref().map(T::text).unwrap_or_default()
    }
    fn shown(&self) -> String {
        self.as_ref().map(T::shown).unwrap_or_default()
    }
}

/// Splits a text at commas outside double quotes, as a line of CSV.
fn split_list(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    if text.is_empty() {
        return items;
    }
    let (mut item, mut quoted) = (String::new(), false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            _ => item.push(c),
        }
    }
    items.push(item);
    items
}

/// The first value replaces the default list; further values are appended.
impl Value for Vec<String> {
    const KIND: &'static str = "strings";
    fn parse(text: &str) -> Result<Self, String> {
        Ok(split_list(text))
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        if !given.is_empty() {
            *self = given.into_iter().flat_map(|Given(items)| items).collect();
        }
    }
    fn text(&self) -> String {
        format!("[{}]", self.join(","))
    }
    fn shown(&self) -> String {
        if self.is_empty() { String::new() } else { self.text() }
    }
}

/// The first value replaces the default list; further values are appended.
impl Value for Vec<i32> {
    const KIND: &'static str = "int32Slice";
    fn parse(text: &str) -> Result<Self, String> {
        split_list(text).iter().map(|item| i32::parse(item.trim())).collect()
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        if !given.is_empty() {
            *self = given.into_iter().flat_map(|Given(items)| items).collect();
        }
    }
    fn text(&self) -> String {
        format!("[{}]", self.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
    fn shown(&self) -> String {
        self.text()
    }
}

/// `key=value` pairs. Upstream: pflag's `stringToString`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(pub BTreeMap<String, String>);

impl Value for Map {
    const KIND: &'static str = "stringToString";
    /// Parses pairs `key=value`, separated by commas.
    fn parse(text: &str) -> Result<Map, String> {
        // A single pair may have commas on both sides: metric,label=value,value.
        let pairs = match text.matches('=').count() {
            1 => vec![text.to_string()],
            _ => split_list(text),
        };
        let pairs = pairs.iter().map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_string(), value.trim_matches('\'').to_string())),
            None => Err(format!("{pair} must be formatted as key=value")),
        });
        pairs.collect::<Result<_, _>>().map(Map)
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        self.0.extend(given.into_iter().flat_map(|Given(map)| map.0));
    }
    fn text(&self) -> String {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        format!("[{}]", pairs.collect::<Vec<_>>().join(","))
    }
    fn shown(&self) -> String {
        self.text()
    }
}

/// The values of `--feature-gates`, in order. `feature_gates` interprets them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// In the order of the command line: the last value of a gate counts.
    pub given: Vec<(String, bool)>,
    /// The release whose gates they are.
    pub release: Release,
    /// The oldest release of other components, if `--min-compatibility-version` names it.
    pub min_compatibility: Option<Release>,
}

impl Value for Gates {
    const KIND: &'static str = "colonSeparatedMultimapStringString";
    /// Parses feature gates: pairs `name=bool` or `kube:name=bool`, separated by commas.
    fn parse(text: &str) -> Result<Gates, String> {
        let mut gates = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("missing bool value for {pair}"));
            };
            let name = match name.trim().split_once(':') {
                Some(("kube", name)) => name,
                Some((component, _)) => {
                    return Err(format!("component not registered: {component}"));
                }
                None => name.trim(),
            };
            let value = bool::parse(value.trim())
                .map_err(|error| format!("invalid value of {name}={value}: {error}"))?;
            gates.push((name.to_string(), value));
        }
        Ok(Gates { given: gates, ..Gates::default() })
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        self.given.extend(given.into_iter().flat_map(|Given(gates)| gates.given));
    }
    fn text(&self) -> String {
        let pairs = self.given.iter().map(|(name, on)| format!("{name}={on}"));
        pairs.collect::<Vec<_>>().join(",")
    }
    fn shown(&self) -> String {
        self.text()
    }
}

/// Verbosity of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level(pub i32);

impl Value for Level {
    const KIND: &'static str = "Level";
    fn parse(text: &str) -> Result<Level, String> {
        // As Go's `ParseUint`, which takes no sign.
        let level = text.parse().ok().filter(|level| *level >= 0 && !text.starts_with('+'));
        level.map(Level).ok_or_else(|| "not a whole number".into())
    }
    fn text(&self) -> String {
        self.0.to_string()
    }
    // All defaults are empty or 0, which pflag does not show.
    fn shown(&self) -> String {
        String::new()
    }
}

/// Verbosity by the name of a source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vmodule(pub Vec<(String, i32)>);

impl Value for Vmodule {
    const KIND: &'static str = "pattern=N,...";
    /// Parses pairs `pattern=N`, separated by commas.
    fn parse(text: &str) -> Result<Vmodule, String> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| match pair.split_once('=') {
            Some((pattern, level))
                if !pattern.is_empty() && !level.is_empty() && !level.contains('=') =>
            {
                let level = Level::parse(level).map_err(|error| format!("{pair:?}: {error}"))?;
                Ok((pattern.to_string(), level.0))
            }
            _ => Err(format!("{pair:?} does not have the pattern=N format")),
        });
        pairs.collect::<Result<_, _>>().map(Vmodule)
    }
    fn merge(&mut self, given: Vec<Given<Vmodule>>) {
        self.0.extend(given.into_iter().flat_map(|Given(pairs)| pairs.0));
    }
    fn text(&self) -> String {
        let pairs = self.0.iter().map(|(pattern, level)| format!("{pattern}={level}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

/// An object to trace: `Deployment/default/web`, or `Node/a` for one without a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceObject {
    /// A kind, or the plural of a resource with or without its group, in any case.
    pub kind: String,
    /// Empty for an object without one.
    pub namespace: String,
    pub name: String,
}

impl FromStr for TraceObject {
    type Err = String;
    /// Parses `KIND/NAME` or `KIND/NAMESPACE/NAME`.
    fn from_str(text: &str) -> Result<TraceObject, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name) = match parts[..] {
            [kind, name] => (kind, "", name),
            [kind, namespace, name] => (kind, namespace, name),
            _ => return Err(format!("{text:?} is not KIND/NAMESPACE/NAME")),
        };
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if kind.is_empty() || name.is_empty() || !is_word(text) {
            return Err(format!("{text:?} is not KIND/NAMESPACE/NAME"));
        }
        let [kind, namespace, name] = [kind, namespace, name].map(str::to_owned);
        Ok(TraceObject { kind, namespace, name })
    }
}

impl fmt::Display for TraceObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceObject { kind, namespace, name } = self;
        if namespace.is_empty() {
            write!(f, "{kind}/{name}")
        } else {
            write!(f, "{kind}/{namespace}/{name}")
        }
    }
}

/// Objects to trace, separated by commas; given several times, they add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceObjects(pub Vec<TraceObject>);

impl Value for TraceObjects {
    const KIND: &'static str = "kind/namespace/name,...";
    fn parse(text: &str) -> Result<TraceObjects, String> {
        text.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>().map(TraceObjects)
    }
    fn merge(&mut self, given: Vec<Given<TraceObjects>>) {
        self.0.extend(given.into_iter().flat_map(|Given(objects)| objects.0));
    }
    fn text(&self) -> String {
        self.0.iter().map(TraceObject::to_string).collect::<Vec<_>>().join(",")
    }
}

/// A number of bytes: `512`, `1K`, `2Ki`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity(pub u64);

impl Value for Quantity {
    const KIND: &'static str = "quantity";
    /// Parses a number with a unit such as `k` or `Mi`.
    fn parse(text: &str) -> Result<Quantity, String> {
        let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(at);
        let factor: u64 = match unit {
            "" => 1,
            "k" | "K" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            _ => return Err("not a quantity".into()),
        };
        let number: Option<u64> = number.parse().ok();
        number
            .and_then(|number| number.checked_mul(factor))
            .map(Quantity)
            .ok_or_else(|| "not a quantity".into())
    }
    fn text(&self) -> String {
        self.0.to_string()
    }
    // All defaults are empty or 0, which pflag does not show.
    fn shown(&self) -> String {
        String::new()
    }
}

/// Certificates for some names. Upstream: `NamedCertKeyArray`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertKeys(pub Vec<CertKey>);

/// Files of a certificate and its key, and its names (none: those in the certificate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertKey {
    pub cert: String,
    pub key: String,
    pub names: Vec<String>,
}

impl Value for CertKeys {
    const KIND: &'static str = "namedCertKey";
    /// Parses `cert,key`, or `cert,key:names`.
    fn parse(text: &str) -> Result<CertKeys, String> {
        let (files, names) = match text.split_once(':') {
            Some((files, names)) => (files, Some(names.trim())),
            None => (text, None),
        };
        if names == Some("") {
            return Err("empty names list is not allowed".into());
        }
        let files: Vec<&str> = files.split(',').map(str::trim).collect();
        let [cert, key] = files[..] else {
            return Err("expected comma separated certificate and key file paths".into());
        };
        let names = names.into_iter().flat_map(|names| names.split(','));
        let names = names.map(|name| name.trim().to_owned()).collect();
        Ok(CertKeys(vec![CertKey { cert: cert.into(), key: key.into(), names }]))
    }
    fn merge(&mut self, given: Vec<Given<Self>>) {
        self.0.extend(given.into_iter().flat_map(|Given(keys)| keys.0));
    }
    fn text(&self) -> String {
        let items = self.0.iter().map(|item| match item.names.is_empty() {
            true => format!("{},{}", item.cert, item.key),
            false => format!("{},{}:{}", item.cert, item.key, item.names.join(",")),
        });
        format!("[{}]", items.collect::<Vec<_>>().join(";"))
    }
}

/// `--version`: `false`, `true`, `raw`, or a version to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

impl Default for Version {
    fn default() -> Version {
        Version("false".into())
    }
}

impl Value for Version {
    const KIND: &'static str = "version[=true]";
    const ALONE: Option<&'static str> = Some("true");
    /// Parses `true`, `false`, `raw`, or a version that differs from this one's only in its end.
    fn parse(text: &str) -> Result<Version, String> {
        match text {
            "raw" => Ok(Version(text.into())),
            _ if text.starts_with('v') => {
                let more = text.strip_prefix(VERSION);
                match more.is_some_and(|more| more.is_empty() || more.starts_with(['-', '+'])) {
                    true => Ok(Version(text.into())),
                    false => Err(format!(
                        "version {text:?} must match major/minor/patch of default version \
                         {VERSION:?}"
                    )),
                }
            }
            _ => bool::parse(text).map(|on| Version(on.to_string())),
        }
    }
    fn text(&self) -> String {
        self.0.clone()
    }
    // All defaults are empty or 0, which pflag does not show.
    fn shown(&self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_the_syntax_of_go() {
        for (text, expected) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("0", Some(0)),
            ("00", Some(0)),
            ("010", Some(8)),
            ("08", None),
            ("0x1F", Some(31)),
            ("-0X_ff", Some(-255)),
            ("0b101", Some(5)),
            ("0o17", Some(15)),
            ("0_7", Some(7)),
            ("1_000", Some(1000)),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("0x", None),
            ("0x_", None),
            ("-", None),
            ("", None),
            ("+-1", None),
            ("1.0", None),
            ("-2147483648", Some(i32::MIN)),
            ("2147483648", None),
        ] {
            assert_eq!(parse_whole(text), expected, "{text}");
        }
    }

    #[test]
    fn certificates_for_names_have_the_syntax_of_go() {
        for (text, expected) in [
            ("a.crt,a.key", Ok("[a.crt,a.key]")),
            (" a.crt , a.key ", Ok("[a.crt,a.key]")),
            ("a.crt,a.key:x", Ok("[a.crt,a.key:x]")),
            ("a.crt, a.key : *.x , 10.0.0.1 ", Ok("[a.crt,a.key:*.x,10.0.0.1]")),
            ("a.crt,a.key:fd00::1", Ok("[a.crt,a.key:fd00::1]")),
            ("a.crt,a.key:x,,y", Ok("[a.crt,a.key:x,,y]")),
            ("a.crt,a.key:\"x,y\"", Ok("[a.crt,a.key:\"x,y\"]")),
            ("a.crt,", Ok("[a.crt,]")),
            (",a.key", Ok("[,a.key]")),
            ("a.crt,a.key:", Err("empty names list is not allowed")),
            ("a.crt,a.key: ", Err("empty names list is not allowed")),
            ("a.crt:", Err("empty names list is not allowed")),
            ("a.crt", Err("expected comma separated certificate and key file paths")),
            ("", Err("expected comma separated certificate and key file paths")),
            ("a.crt:x,y", Err("expected comma separated certificate and key file paths")),
            ("a.crt,a.key,x", Err("expected comma separated certificate and key file paths")),
        ] {
            let parsed = CertKeys::parse(text).map(|keys| keys.text());
            assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text:?}");
        }
        let quoted = CertKeys::parse("a.crt,a.key:\"x,y\"").expect("two names");
        assert_eq!(quoted.0[0].names, ["\"x", "y\""]);
    }

    #[test]
    fn metric_labels_keep_their_commas() {
        let map = Map::parse("metric1,label1=v1,v2").expect("a map");
        assert_eq!(map.0.get("metric1,label1").map(String::as_str), Some("v1,v2"));
        assert!(Map::parse("a=1,b").is_ok(), "one pair, whose value has a comma");
        assert!(Map::parse("a").is_err());
    }
}
