//! The syntax of label keys and label values. Upstream: `api/validate/content`.

/// The longest name in a key, and the longest value.
const MAX_BYTES: usize = 63;
const MAX_PREFIX_BYTES: usize = 253;

const WORD: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and \
    end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used \
    for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, \
    '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
    'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PREFIX: &str = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";

/// Returns whether a name is a subdomain by RFC 1123. Upstream: `validation.IsDNS1123Subdomain`.
pub fn is_dns1123_subdomain(name: &str) -> bool {
    name.len() <= MAX_PREFIX_BYTES && is_subdomain(name)
}

/// Returns whether a label's key is valid. Upstream: `content.IsLabelKey`.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = parts(key);
    name.len() <= MAX_BYTES && is_word(name) && prefix.is_none_or(is_dns1123_subdomain)
}

/// Returns whether a label's value is valid. Upstream: `content.IsLabelValue`.
pub fn is_label_value(value: &str) -> bool {
    value.len() <= MAX_BYTES && (value.is_empty() || is_word(value))
}

/// Returns the faults of a key in upstream's words; empty for a valid one.
#[cold]
pub fn label_key_fault(key: &str) -> String {
    let (prefix, name) = parts(key);
    if name.contains('/') {
        return format!("a valid label key {WORD} {PREFIX}");
    }
    let mut faults = Vec::new();
    if let Some(prefix) = prefix {
        let mut fault = |fault: &str| faults.push(format!("prefix part {fault}"));
        if prefix.is_empty() {
            fault("must be non-empty");
        } else {
            if prefix.len() > MAX_PREFIX_BYTES {
                fault(&too_long(MAX_PREFIX_BYTES));
            }
            if !is_subdomain(prefix) {
                fault(SUBDOMAIN);
            }
        }
    }
    let mut fault = |fault: &str| faults.push(format!("name part {fault}"));
    if name.is_empty() {
        fault("must be non-empty");
    } else if name.len() > MAX_BYTES {
        fault(&too_long(MAX_BYTES));
    }
    if !is_word(name) {
        fault(WORD);
    }
    faults.join("; ")
}

/// Returns the faults of a value in upstream's words; empty for a valid one.
#[cold]
pub fn label_value_fault(value: &str) -> String {
    let long = (value.len() > MAX_BYTES).then(|| too_long(MAX_BYTES));
    let malformed = (!value.is_empty() && !is_word(value)).then(|| VALUE.to_owned());
    long.into_iter().chain(malformed).collect::<Vec<String>>().join("; ")
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Splits a key into its prefix, if it has one, and its name.
fn parts(key: &str) -> (Option<&str>, &str) {
    key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name))
}

/// Returns whether a text has the form that `WORD` describes.
fn is_word(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        && text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.bytes().next_back().is_some_and(|c| c.is_ascii_alphanumeric())
}

/// Returns whether each part between dots has lower-case letters, digits and inner hyphens only.
fn is_subdomain(text: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.split('.').all(|part| {
        part.bytes().all(|c| is_inner(c) || c == b'-')
            && part.bytes().next().is_some_and(is_inner)
            && part.bytes().next_back().is_some_and(is_inner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_valid_or_have_faults() {
        let (long, long_prefix) = ("n".repeat(64), "p".repeat(254));
        let prefix = |fault: &str| format!("prefix part {fault}");
        let name = |fault: &str| format!("name part {fault}");
        let too_many = format!("a valid label key {WORD} {PREFIX}");
        for (key, faults) in [
            ("a", vec![]),
            ("A_b-c.9", vec![]),
            ("example.com/MyName", vec![]),
            (&"n".repeat(63), vec![]),
            (&format!("{}/a", &long_prefix[1..]), vec![]),
            ("", vec![name("must be non-empty"), name(WORD)]),
            ("-a", vec![name(WORD)]),
            ("a.", vec![name(WORD)]),
            ("a b", vec![name(WORD)]),
            ("ä", vec![name(WORD)]),
            (&long, vec![name("must be no more than 63 bytes")]),
            (&format!("{long}-"), vec![name("must be no more than 63 bytes"), name(WORD)]),
            ("/a", vec![prefix("must be non-empty")]),
            ("Upper.com/a", vec![prefix(SUBDOMAIN)]),
            ("a..b/a", vec![prefix(SUBDOMAIN)]),
            (&format!("{long_prefix}/a"), vec![prefix("must be no more than 253 bytes")]),
            ("-/", vec![prefix(SUBDOMAIN), name("must be non-empty"), name(WORD)]),
            ("a/b/c", vec![too_many.clone()]),
            ("a//", vec![too_many]),
        ] {
            assert_eq!(label_key_fault(key), faults.join("; "), "{key}");
            assert_eq!(is_label_key(key), faults.is_empty(), "{key}");
        }
    }

    #[test]
    fn values_are_valid_or_have_faults() {
        let long = "v".repeat(64);
        let too_long = "must be no more than 63 bytes";
        for (value, faults) in [
            ("", vec![]),
            ("a", vec![]),
            ("A_b-c.9", vec![]),
            (&long[1..], vec![]),
            ("a/b", vec![VALUE]),
            ("-a", vec![VALUE]),
            ("a_", vec![VALUE]),
            (&long, vec![too_long]),
            (&format!("{long}_"), vec![too_long, VALUE]),
        ] {
            assert_eq!(label_value_fault(value), faults.join("; "), "{value}");
            assert_eq!(is_label_value(value), faults.is_empty(), "{value}");
        }
    }
}
