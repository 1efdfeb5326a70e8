//! Files of variables: a part of the shell's syntax. Upstream: `pkg/kubelet/util/env.ParseEnv`.

/// The value of a key; empty: the file has no such key.
///
/// # Errors
/// One line with the first fault before the key.
pub fn value(text: &str, key: &str) -> Result<String, String> {
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let fault = |fault: &str| {
            format!("invalid environment variable format at line {}: {fault}", at + 1)
        };
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
            assert_eq!(value(text, "K"), expected, "{text:?}");
        }
    }
}
