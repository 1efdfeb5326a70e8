//! Code that the docs quote is in the source as it is quoted, and so are the files and tests that
//! they name.

use std::fs;
use std::path::{Path, PathBuf};

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

/// The Rust files of the repository, as paths from its root.
fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders =
        "src benches cel cloud examples fixtures fuzz grpc kubelet process sandbox tests"
            .split(' ')
            .map(|folder| root.join(folder))
            .collect::<Vec<_>>();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    files
}

/// The texts between backticks.
fn code(page: &str) -> impl Iterator<Item = &str> {
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn files_and_tests_that_the_docs_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = rust_files(root);
    let source: String =
        files.iter().map(|file| fs::read_to_string(root.join(file)).unwrap()).collect();
    let (mut named, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        let page_name = path.file_name().unwrap().to_string_lossy();
        for text in code(&page) {
            let exists = if text.ends_with(".rs") {
                files.iter().any(|file| file.ends_with(text))
            } else if is_test_name(text)
                && ["client-go.md", "feature-gates.md"].contains(&&*page_name)
            {
                source.contains(text)
            } else {
                continue;
            };
            named += 1;
            if !exists {
                missing.push(format!("docs/{page_name}: {text}"));
            }
        }
    }
    assert!(named > 150, "{named}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Tests are named by a sentence, metrics are not: but those are in the source as well.
fn is_test_name(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    text.split('_').count() > 3 && text.split('_').all(is_word)
}
