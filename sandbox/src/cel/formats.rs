//! Named formats of strings. Upstream: Kubernetes' `library.Format`.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::Result;
use super::kubernetes;
use super::value::Value;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// A format: its name, its pattern, its greatest length, and the error for text that does not
/// match.
type Named = (&'static str, String, usize, &'static str);

static FORMATS: LazyLock<Vec<Named>> = LazyLock::new(|| {
    let subdomain = format!(r"^{LABEL}(\.{LABEL})*$");
    let label = format!("^{LABEL}$");
    let wrong_label = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
        characters or '-', and must start and end with an alphanumeric character";
    let wrong_subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
        characters, '-' or '.', and must start and end with an alphanumeric character";
    let wrong_old_label = "a DNS-1035 label must consist of lower case alphanumeric characters or \
        '-', start with an alphabetic character, and end with an alphanumeric character";
    let wrong_value = "a valid label must be an empty string or consist of alphanumeric \
        characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let wrong_name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
        start and end with an alphanumeric character";
    let value = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?";
    let date = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$".to_owned();
    let datetime =
        r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$".to_owned();
    let hex = "[0-9a-fA-F]";
    let uuid = format!("^{hex}{{8}}-{hex}{{4}}-{hex}{{4}}-{hex}{{4}}-{hex}{{12}}$");
    let byte = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$".to_owned();
    vec![
        ("dns1123Label", label.clone(), 63, wrong_label),
        ("dns1123Subdomain", subdomain.clone(), 253, wrong_subdomain),
        ("dns1035Label", "^[a-z]([-a-z0-9]*[a-z0-9])?$".to_owned(), 63, wrong_old_label),
        ("qualifiedName", format!(r"^({LABEL}(\.{LABEL})*/)?{value}$"), 317, wrong_name),
        ("dns1123LabelPrefix", format!("^{LABEL}-?$"), 63, wrong_label),
        ("dns1123SubdomainPrefix", format!(r"^{LABEL}(\.{LABEL})*[-.]?$"), 253, wrong_subdomain),
        ("dns1035LabelPrefix", "^[a-z]([-a-z0-9]*)?$".to_owned(), 63, wrong_old_label),
        ("labelValue", format!("^({value})?$"), 63, wrong_value),
        ("uuid", uuid, 36, "does not match the UUID format"),
        ("byte", byte, usize::MAX, "invalid base64"),
        ("date", date, 10, "invalid date"),
        ("datetime", datetime, usize::MAX, "invalid datetime"),
    ]
});

/// Returns the name of a format, if there is one. `uri` has no pattern: it is not in the table.
fn named(name: &str) -> Option<&'static str> {
    let known = FORMATS.iter().map(|format| format.0).find(|known| *known == name);
    known.or((name == "uri").then_some("uri"))
}

/// Calls a function of named formats; `None`: there is no such function for these arguments.
pub fn call(name: &str, args: &[Value]) -> Option<Result<Value>> {
    Some(Ok(match (name, args) {
        ("format.named", [Value::String(name)]) => named(name).map(Value::Format).into(),
        // A function such as `format.dns1123Label()` returns the format of that name.
        (_, []) => Value::Format(named(name.strip_prefix("format.")?)?),
        ("validate", [Value::Format(format), Value::String(text)]) => {
            let faults = faults(format, text);
            let faults =
                faults.map(|faults| Value::list(faults.into_iter().map(Value::from).collect()));
            faults.into()
        }
        _ => return None,
    }))
}

/// Lists the faults of `text`; `None` when it has none, or the format is not known.
fn faults(format: &str, text: &str) -> Option<Vec<String>> {
    if format == "uri" {
        let url = kubernetes::call("isURL", &[text.into()]);
        let fine = url == Some(Ok(true.into()));
        return (!fine).then(|| vec![format!("invalid URI {text:?}")]);
    }
    let (_, pattern, most, message) = FORMATS.iter().find(|known| known.0 == format)?;
    let mut faults = Vec::new();
    if text.len() > *most {
        faults.push(format!("must be no more than {most} characters"));
    }
    if !Regex::new(pattern).is_ok_and(|regex| regex.is_match(text)) {
        faults.push((*message).to_owned());
    }
    (!faults.is_empty()).then_some(faults)
}
