//! Files of variables: a part of the shell's syntax. Upstream: `pkg/kubelet/util/env.ParseEnv`.

use std::error::Error as StdError;
use std::fmt;

/// A fault in a file of variables. The text is upstream's.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    /// From 1.
    line: usize,
    fault: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Malformed { line, fault } = self;
        write!(f, "invalid environment variable format at line {line}: {fault}")
    }
}

impl StdError for Malformed {}

/// Finds the value of a key in a file of variables; empty: the file has no such key.
///
/// # Errors
/// The first fault before the key.
pub fn value(text: &str, key: &str) -> Result<String, Malformed> {
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let fault = |fault| Malformed { line: at + 1, fault };
        let line = line.trim_start_matches(BLANK);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, given) = line.split_once('=').ok_or_else(|| fault("missing '='"))?;
        if name.trim_end_matches(BLANK).is_empty() {
            return Err(fault("empty variable name"));
        }
        if name.ends_with(BLANK) {
            return Err(fault("whitespace before '=' is not allowed"));
        }
        if given.starts_with(BLANK) {
            // For the shell this is an empty value and a command.
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let rest = given.strip_prefix('\'');
        let mut rest = rest.ok_or_else(|| fault("value must be enclosed in single quotes"))?;
        let mut value = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after.trim_start_matches(BLANK);
            }
            value.push_str(rest);
            value.push('\n');
            (_, rest) = lines.next().ok_or_else(|| fault("unclosed single quote"))?;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return Err(fault("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

const BLANK: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_literal() {
        for (text, expected) in [
            ("", Ok("")),
            ("A='a'\nK='v'", Ok("v")),
            ("\t K='a=#$B ' # comment", Ok("a=#$B ")),
            ("# K='x'\n\n  \nK='first\n second'\nK='x'", Ok("first\n second")),
            ("K='v'\nbroken", Ok("v")),
            ("K= 'v'", Ok("")),
            ("A= 'v'\nK='v'", Ok("v")),
            ("K", Err("line 1: missing '='")),
            ("\n='v'", Err("line 2: empty variable name")),
            ("K ='v'", Err("line 1: whitespace before '=' is not allowed")),
            ("K=v", Err("line 1: value must be enclosed in single quotes")),
            ("K='v' w", Err("line 1: unexpected content after closing quote")),
            ("A='a'\nK='v\n", Err("line 2: unclosed single quote")),
        ] {
            let fault = |fault: &str| format!("invalid environment variable format at {fault}");
            let expected = expected.map(str::to_owned).map_err(fault);
            let found = value(text, "K").map_err(|error| error.to_string());
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
