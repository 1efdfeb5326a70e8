//! Words that must not appear in code, comments and docs: `docs/style.md` has a plainer one for
//! each, and upstream's term where there is one.

use std::fs;
use std::path::{Path, PathBuf};

/// Everyday words that were used as riddles. Each is found as a whole word, in any case.
const PHRASES: [&str; 28] = [
    "told",
    "tell",
    "tells",
    "anew",
    "whoever",
    "nobody's",
    "is none",
    "so many",
    "as good as",
    "what is left",
    "to be had",
    "goes with",
    "need know",
    "anybody",
    "whatever",
    "for as long as",
    "as it comes",
    "the one in charge",
    "looked at",
    "next look",
    "goes on",
    "what is wrong",
    "what becomes of",
    "tried again",
    "comes again",
    "is news",
    "left alone",
    "all the same",
];

/// Words that no identifier contains, in any case or ending: riddles that were replaced by the field's
/// terms.
const PARTS: [&str; 11] = [
    "breathe", "census", "derail", "distrust", "hasten", "patient", "resign", "restless", "rouse",
    "shelf", "wish",
];

/// Names that were replaced by the field's.
const NAMES: [&str; 21] = [
    "AskBefore",
    "ConfinedPod",
    "HeldBack",
    "Shelves",
    "confined_pod",
    "Error::Away",
    "client::kept",
    "transport::patient",
    "cache::slots",
    "crate::spare",
    "binder::shelves",
    "binder::latest",
    "attachdetach::world",
    "autoscaling::course",
    "job::round",
    "lifecycle::look",
    "shadow::tap",
    "shadow::tried",
    "shadow::turns",
    "resourceclaim::made",
    "devices::recent",
];

/// The rules themselves are quoted here, and released text is history.
const EXEMPT: [&str; 2] = ["docs/style.md", "tests/it/words.rs"];

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            collect(&path, files);
        } else if matches!(extension, Some("rs" | "md")) {
            files.push(path);
        }
    }
}

/// Whether `phrase` stands in `text` with no letter or digit beside it.
fn has(text: &str, phrase: &str) -> bool {
    let is_part = |character: Option<char>| {
        character.is_some_and(|character| character.is_alphanumeric() || character == '_')
    };
    text.match_indices(phrase).any(|(at, _)| {
        let after = text[at + phrase.len()..].chars().next();
        !is_part(text[..at].chars().next_back()) && !is_part(after)
    })
}

/// The words of all identifiers, and of the prose, in lower case: `is_derailed` has two, `HeldBack` too.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for character in line.chars() {
        let begins = character.is_uppercase() && last.is_lowercase();
        if begins || !character.is_alphanumeric() {
            words.push(String::new());
        }
        if character.is_alphanumeric() {
            words.last_mut().expect("one word").extend(character.to_lowercase());
        }
        last = character;
    }
    words
}

/// Whether `word` is `part`, perhaps with an ending.
fn is_form_of(word: &str, part: &str) -> bool {
    ["", "s", "es", "d", "ed", "ing"].iter().any(|end| word.strip_suffix(end) == Some(part))
}

fn faults(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        let phrases = PHRASES.iter().filter(|phrase| has(&lower, phrase));
        let names = NAMES.iter().filter(|name| has(line, name));
        let words = words(line);
        let is_used = |part: &&&str| words.iter().any(|word| is_form_of(word, part));
        let parts = PARTS.iter().filter(is_used);
        faults.extend(
            phrases
                .chain(names)
                .chain(parts)
                .map(|word| format!("{file}:{}: {word:?}", number + 1)),
        );
    }
    faults
}

#[test]
fn code_and_docs_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in [
        "src",
        "cel/src",
        "cloud/src",
        "cloud/tests",
        "examples",
        "fuzz",
        "grpc/src",
        "hyperkube/src",
        "hyperkube/tests",
        "kubelet/demo",
        "kubelet/src",
        "kubelet/tests",
        "process/src",
        "sandbox/src",
        "tests",
        "benches",
        "docs",
    ] {
        collect(&root.join(folder), &mut files);
    }
    let faults: Vec<String> = files
        .iter()
        .map(|file| (file.strip_prefix(root).unwrap().display().to_string(), file))
        .filter(|(name, _)| !EXEMPT.contains(&name.as_str()))
        .flat_map(|(name, file)| faults(&name, &fs::read_to_string(file).unwrap()))
        .collect();
    assert!(faults.is_empty(), "see docs/style.md:\n{}", faults.join("\n"));
}

#[test]
fn a_forbidden_word_is_found_as_a_whole_word() {
    for (line, found) in [
        ("/// What is left of it.", true),
        ("it is told", true),
        ("// Nothing Whatever", true),
        ("a stellar intellect", false),
        ("fn retold_here()", false),
        ("task.census()", true),
        ("run.is_derailed()", true),
        ("let intendedWishes = 1", true),
        ("a designed shelter", false),
    ] {
        assert_eq!(!faults("f", line).is_empty(), found, "{line}");
    }
}
