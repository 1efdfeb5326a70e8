//! Code that the docs quote is in the source as it is quoted.

use std::fs;
use std::path::Path;

/// Code that a page quotes from a file.
struct Quote<'p> {
    file: &'p str,
    /// Its lines, without indentation.
    lines: Vec<&'p str>,
}

/// The quotes of a page. The line before a quote ends with ``from `FILE`:``, and the quote is
/// indented by four spaces.
fn quotes(page: &str) -> Vec<Quote<'_>> {
    let mut quotes: Vec<Quote<'_>> = Vec::new();
    let mut is_quote = false;
    for line in page.lines() {
        let named = line
            .strip_suffix("`:")
            .and_then(|line| line.rsplit_once('`'))
            .filter(|(before, _)| before.to_lowercase().ends_with("from "));
        match (named, quotes.last_mut()) {
            (Some((_, file)), _) => {
                quotes.push(Quote { file, lines: Vec::new() });
                is_quote = true;
            }
            (None, Some(quote)) if is_quote && (line.is_empty() || line.starts_with("    ")) => {
                quote.lines.push(line.trim());
            }
            _ => is_quote = false,
        }
    }
    for quote in &mut quotes {
        let is_code = |line: &&str| !line.is_empty();
        let first = quote.lines.iter().position(is_code).unwrap_or(0);
        let end = quote.lines.iter().rposition(is_code).map_or(0, |last| last + 1);
        quote.lines = quote.lines[first.min(end)..end].to_vec();
    }
    quotes
}

/// Whether the quote's lines are in `source`, one after the other. A quote may leave out a part of
/// the file between two items, where it has an empty line.
fn is_in(quote: &Quote<'_>, source: &str) -> bool {
    let source: Vec<&str> = source.lines().map(str::trim).collect();
    let mut parts = quote.lines.split(|line| line.is_empty());
    !quote.lines.is_empty()
        && parts.all(|part| source.windows(part.len().max(1)).any(|lines| lines == part))
}

#[test]
fn quoted_code_is_in_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/adding-a-controller.md")).unwrap();
    let quotes = quotes(&page);
    assert_eq!(quotes.len(), 4, "the row, the constructor, the sync and the decision");
    for quote in &quotes {
        let source = fs::read_to_string(root.join(quote.file)).unwrap();
        let (file, text) = (quote.file, quote.lines.join("\n"));
        assert!(is_in(quote, &source), "docs/adding-a-controller.md, not in {file}:\n{text}");
    }
}

#[test]
fn a_changed_line_is_found() {
    let page = "Text, from `a.rs`:\n\n    fn a() {\n        b()\n    }\n\n    fn c() {}\n\n\
                Text.\n\n    other\n";
    let quotes = quotes(page);
    let lines = ["fn a() {", "b()", "}", "", "fn c() {}"];
    assert_eq!((quotes.len(), quotes[0].file, &*quotes[0].lines), (1, "a.rs", &lines[..]));
    let source = "mod m {\n    fn a() {\n        b()\n    }\n    fn x() {}\n    fn c() {}\n}\n";
    assert!(is_in(&quotes[0], source));
    assert!(!is_in(&quotes[0], &source.replace("b()", "b(1)")));
    assert!(!is_in(&quotes[0], &source.replace("fn c", "fn d")));
}
