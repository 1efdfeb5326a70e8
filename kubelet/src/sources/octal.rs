//! Modes of files as manifests write them: `defaultMode: 0400`. That is a number in the YAML of Go,
//! which is version 1.1, and a text in version 1.2.

use serde_json::{Value, json};

/// Replaces octal texts by numbers in all modes of files in a pod's volumes. `pod`: its JSON.
pub fn complete(pod: &mut Value) {
    if let Some(volumes) = pod.get_mut("spec").and_then(|spec| spec.get_mut("volumes")) {
        walk(volumes);
    }
}

/// Converts octal texts to numbers in all modes of files in a value.
fn walk(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(walk),
        Value::Object(members) => {
            for (key, member) in members {
                let is_mode = key == "mode" || key == "defaultMode";
                match member.as_str().filter(|_| is_mode).and_then(octal) {
                    Some(mode) => *member = json!(mode),
                    None => walk(member),
                }
            }
        }
        _ => {}
    }
}

/// Parses an octal number that begins with 0. `None`: the text is not such a number.
fn octal(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('0').filter(|digits| !digits.is_empty())?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then_some(())?;
    i32::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_volumes_are_numbers() {
        for (text, mode) in [
            ("0400", Some(256)),
            ("00", Some(0)),
            ("0", None),
            ("400", None),
            ("0900", None),
            ("0x1", None),
            ("0-7", None),
            ("", None),
        ] {
            assert_eq!(octal(text), mode, "{text}");
        }
        let mut pod = json!({
            "metadata": {"annotations": {"mode": "0400"}},
            "spec": {"volumes": [{"name": "0400", "projected": {"defaultMode": "0440", "sources": [
                {"configMap": {"items": [{"key": "mode", "path": "0400", "mode": "0444"}]}}]}}]},
        });
        complete(&mut pod);
        assert_eq!(pod["metadata"]["annotations"]["mode"], "0400");
        let volume = &pod["spec"]["volumes"][0];
        assert_eq!(
            (&volume["name"], &volume["projected"]["defaultMode"]),
            (&json!("0400"), &json!(288))
        );
        let item = &volume["projected"]["sources"][0]["configMap"]["items"][0];
        assert_eq!(*item, json!({"key": "mode", "path": "0400", "mode": 292}));
    }
}
