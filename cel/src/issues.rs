//! Issues of an expression, printed as cel-go prints them.
//! Upstream: cel-go's `common.Error`, `common.Errors`.

/// The number of issues printed; further ones are counted.
const MOST: usize = 100;
/// The length in bytes from which a line of source is not shown.
const LONGEST_SNIPPET: usize = 16384;

/// A fault and its position in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// In characters from the start. `None`: the whole expression.
    pub offset: Option<u32>,
    pub message: String,
}

/// Prints issues in the order of the source; issues at one position in the order of `issues`. Of
/// those beyond the first `MOST` only the number is printed.
pub fn display(source: &str, mut issues: Vec<Issue>) -> String {
    let excess = issues.len().saturating_sub(MOST);
    issues.truncate(MOST);
    issues.sort_by_key(|issue| issue.offset);
    let lines: Vec<&str> = source.split('\n').collect();
    let mut texts: Vec<String> = issues.iter().map(|issue| display_one(&lines, issue)).collect();
    if excess > 0 {
        texts.push(format!("{excess} more errors were truncated"));
    }
    texts.join("\n")
}

/// Formats an issue, with its line of the source and a pointer to the column.
fn display_one(lines: &[&str], issue: &Issue) -> String {
    let Some(offset) = issue.offset else {
        return format!("ERROR: <input>:-1:0: {}", issue.message);
    };
    let (line, column) = position(lines, offset as usize);
    let mut text = format!("ERROR: <input>:{}:{}: {}", line + 1, column + 1, issue.message);
    let snippet = lines.get(line).copied().unwrap_or_default().replace('\t', " ");
    if snippet.len() > LONGEST_SNIPPET {
        return text;
    }
    // As upstream, the pointer has wide signs below wide characters, so that columns match.
    let wide = |character: Option<char>| character.is_some_and(|c| c.len_utf8() > 1);
    let mut characters = snippet.chars();
    let mut pointer = String::new();
    for character in characters.by_ref().take(column) {
        pointer.push(if wide(Some(character)) { '\u{ff0e}' } else { '.' });
    }
    pointer.push(if wide(characters.next()) { '\u{ff3e}' } else { '^' });
    text.push_str(&format!("\n | {snippet}\n | {pointer}"));
    text
}

/// Returns line and column, both from 0.
fn position(lines: &[&str], offset: usize) -> (usize, usize) {
    let mut start = 0;
    for (n, line) in lines.iter().enumerate() {
        let length = line.chars().count();
        if offset <= start + length {
            return (n, offset - start);
        }
        start += length + 1;
    }
    (lines.len().saturating_sub(1), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_point_at_their_place_in_order() {
        let issue = |offset, message: &str| Issue { offset, message: message.into() };
        let text = display(
            "a ==\n\t'\u{e9}' + b",
            vec![issue(Some(12), "third"), issue(Some(7), "second"), issue(Some(0), "first")],
        );
        let expected = "ERROR: <input>:1:1: first\n | a ==\n | ^\n\
            ERROR: <input>:2:3: second\n |  '\u{e9}' + b\n | ..\u{ff3e}\n\
            ERROR: <input>:2:8: third\n |  '\u{e9}' + b\n | ..\u{ff0e}....^";
        assert_eq!(text, expected);
        assert_eq!(display("a", vec![issue(None, "all")]), "ERROR: <input>:-1:0: all");
        let many = display("a", vec![issue(Some(0), "x"); 103]);
        assert!(many.ends_with("\n3 more errors were truncated"));
    }
}
