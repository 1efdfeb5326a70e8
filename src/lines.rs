//! Escaping of text within a line of a log or a report. Names and messages of objects may contain
//! any character, and must not look like a line of ours or control a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a character may end a line, control a terminal, or change the direction of the
/// text.
fn is_unsafe(c: char) -> bool {
    c != '\t' && c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `text` in one line, as Rust and Go escape it: `\n`, `\u{1b}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    replace_unsafe(text, |c, to| to.extend(c.escape_default()))
}

/// Returns JSON in one line, with the same meaning: in compact JSON such characters are only in
/// strings.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    replace_unsafe(json, |c, to| {
        let _ = write!(to, "\\u{:04x}", u32::from(c));
    })
}

/// Replaces the unsafe characters of `text`: `replace` appends what stands for one.
fn replace_unsafe(text: &str, replace: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut replaced = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unsafe(c) {
            true => replace(c, &mut replaced),
            false => replaced.push(c),
        }
    }
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_within_its_line() {
        for (text, expected) in [
            ("", ""),
            ("a b\tc, \"d\" \\n é 名", "a b\tc, \"d\" \\n é 名"),
            (
                "a\nI1121 05:02:33.123456       1 a.rs:1] b",
                "a\\nI1121 05:02:33.123456       1 a.rs:1] b",
            ),
            ("a\r\nb", "a\\r\\nb"),
            ("\0\u{1b}[2J\u{7f}", "\\u{0}\\u{1b}[2J\\u{7f}"),
            ("\u{9b}2J\u{85}", "\\u{9b}2J\\u{85}"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("\u{202e}tset\u{2069}", "\\u{202e}tset\\u{2069}"),
        ] {
            assert_eq!(escaped(text), expected);
            let json = serde_json::Value::from(text).to_string();
            let line = escaped_json(&json);
            assert!(!line.contains(is_unsafe), "{line}");
            let read: String = serde_json::from_str(&line).expect("JSON");
            assert_eq!(read, text);
        }
    }
}
