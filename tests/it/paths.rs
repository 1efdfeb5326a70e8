//! Finds the paths in Rust source that name items of a crate, in every form and context. Works on
//! tokens, so comments and strings are ignored.

use std::collections::BTreeMap;

/// A path, resolved to the crate's root, and the line that it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub line: usize,
    /// Modules and item; `*` last for a glob; empty for the crate itself.
    pub path: Vec<String>,
}

struct Token {
    text: String,
    line: usize,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Identifiers, `::` and single punctuation characters. Literals, comments and lifetimes are left
/// out; `$crate` is `crate`.
fn tokens(source: &str) -> Vec<Token> {
    let text: Vec<char> = source.chars().collect();
    let at = |n: usize| text.get(n).copied().unwrap_or('\0');
    let starts = |n: usize, what: &str| what.chars().enumerate().all(|(k, c)| at(n + k) == c);
    let (mut found, mut n, mut line) = (Vec::new(), 0, 1);
    while n < text.len() {
        let begin = n;
        if starts(n, "//") {
            while n < text.len() && at(n) != '\n' {
                n += 1;
            }
        } else if starts(n, "/*") {
            let mut depth = 0;
            loop {
                if starts(n, "/*") {
                    (depth, n) = (depth + 1, n + 2);
                } else if starts(n, "*/") {
                    (depth, n) = (depth - 1, n + 2);
                } else {
                    n += 1;
                }
                if depth == 0 || n >= text.len() {
                    break;
                }
            }
        } else if at(n) == '"' {
            n = after_string(&text, n, None);
        } else if at(n) == '\'' {
            n = match (at(n + 1), at(n + 2)) {
                ('\\', _) => {
                    let closing = (n + 3..text.len()).find(|k| at(*k) == '\'');
                    closing.map_or(text.len(), |k| k + 1)
                }
                (_, '\'') => n + 3,
                _ => (n + 1..=text.len()).find(|k| !is_word(at(*k))).unwrap_or(text.len()),
            };
        } else if is_word(at(n)) || (at(n) == '$' && is_word(at(n + 1))) {
            n += 1;
            while is_word(at(n)) {
                n += 1;
            }
            let word: String = text[begin..n].iter().collect();
            let hashes = (n..).take_while(|k| at(*k) == '#').count();
            let is_raw = matches!(word.as_str(), "r" | "br" | "cr");
            if is_raw && at(n + hashes) == '"' {
                n = after_string(&text, n + hashes, Some(hashes));
            } else if word == "r" && hashes == 1 {
                // A raw identifier: its name is the next word.
                n += 1;
            } else {
                let text = if word == "$crate" { "crate".to_owned() } else { word };
                found.push(Token { text, line });
            }
        } else if starts(n, "::") {
            found.push(Token { text: "::".to_owned(), line });
            n += 2;
        } else {
            if !at(n).is_whitespace() {
                found.push(Token { text: at(n).to_string(), line });
            }
            n += 1;
        }
        line += text[begin..n.min(text.len())].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// The place after the string whose opening quote is at `n`. `hashes`: of a raw string.
fn after_string(text: &[char], mut n: usize, hashes: Option<usize>) -> usize {
    n += 1;
    while let Some(c) = text.get(n) {
        n += 1;
        match (c, hashes) {
            ('\\', None) => n += 1,
            ('"', None) => return n,
            ('"', Some(hashes))
                if text[n..].iter().take_while(|c| **c == '#').count() >= hashes =>
            {
                return n + hashes;
            }
            _ => {}
        }
    }
    text.len()
}

/// One source file, with the modules that open in it.
pub struct Source {
    tokens: Vec<Token>,
    /// The module that each token stands in.
    modules: Vec<Vec<String>>,
}

impl Source {
    /// `module`: the path of the file's module.
    pub fn new(text: &str, module: &[&str]) -> Source {
        let tokens = tokens(text);
        let mut open: Vec<(usize, String)> = Vec::new();
        let (mut depth, mut modules) = (0, Vec::new());
        for (n, token) in tokens.iter().enumerate() {
            let inner = open.iter().map(|(_, name)| name.clone());
            modules.push(module.iter().map(|name| (*name).to_owned()).chain(inner).collect());
            match token.text.as_str() {
                "{" => {
                    let is_module = n >= 2 && tokens[n - 2].text == "mod";
                    if is_module {
                        open.push((depth, tokens[n - 1].text.clone()));
                    }
                    depth += 1;
                }
                "}" => {
                    depth = usize::saturating_sub(depth, 1);
                    open.pop_if(|(at, _)| *at == depth);
                }
                _ => {}
            }
        }
        Source { tokens, modules }
    }

    fn text(&self, n: usize) -> &str {
        self.tokens.get(n).map_or("", |token| &token.text)
    }

    /// The paths that start with `crate`, `$crate`, `self` or `super`. Paths in visibility are
    /// skipped: `pub(in crate::a)`.
    pub fn internal(&self) -> Vec<Named> {
        let mut found = Vec::new();
        for n in 0..self.tokens.len() {
            let root = match self.text(n) {
                "crate" => Vec::new(),
                "self" | "super" if self.text(n + 1) == "::" => self.modules[n].clone(),
                _ => continue,
            };
            let follows_path = n > 0 && self.text(n - 1) == "::";
            let before = if n > 0 && self.text(n - 1) == "in" { n - 1 } else { n };
            let is_visibility =
                before > 1 && self.text(before - 1) == "(" && self.text(before - 2) == "pub";
            if !follows_path && !is_visibility {
                self.walk(n, root, &mut found);
            }
        }
        found
    }

    /// The paths into another crate, by its name; `::name::…` included.
    pub fn external(&self, name: &str) -> Vec<Named> {
        let mut found = Vec::new();
        for n in (0..self.tokens.len()).filter(|n| self.text(*n) == name) {
            if self.text(n + 1) == "::" {
                self.walk(n + 2, Vec::new(), &mut found);
            } else {
                found.push(Named { line: self.tokens[n].line, path: Vec::new() });
            }
        }
        found
    }

    /// Takes the path at token `n`, each of its branches where it has a group. Returns the token
    /// after it.
    fn walk(&self, mut n: usize, mut path: Vec<String>, found: &mut Vec<Named>) -> usize {
        let line = self.tokens.get(n).map_or(0, |token| token.line);
        loop {
            match self.text(n) {
                "{" => {
                    n += 1;
                    while !matches!(self.text(n), "}" | "") {
                        n = match self.text(n) {
                            "," => n + 1,
                            _ => self.walk(n, path.clone(), found),
                        };
                    }
                    return n + 1;
                }
                "crate" | "self" => n += 1,
                "super" => {
                    path.pop();
                    n += 1;
                }
                "*" => {
                    path.push("*".to_owned());
                    n += 1;
                }
                word if word.starts_with(|c| is_word(c) || c == '$') => {
                    path.push(word.to_owned());
                    n += 1;
                }
                // The type arguments of the preceding segment, or no path.
                _ => {
                    found.push(Named { line, path });
                    return n + 1;
                }
            }
            if self.text(n) == "::" {
                n += 1;
                continue;
            }
            if self.text(n) == "as" {
                n += 2;
            }
            found.push(Named { line, path });
            return n;
        }
    }

    /// The macros defined here, each with its module.
    pub fn macros(&self) -> Vec<(String, Vec<String>)> {
        let is_definition = |n: &usize| self.text(*n) == "macro_rules" && self.text(n + 1) == "!";
        let definitions = (0..self.tokens.len()).filter(is_definition);
        definitions.map(|n| (self.text(n + 2).to_owned(), self.modules[n].clone())).collect()
    }

    /// The calls of macros by their bare name, as paths to one of `known` whose room is another.
    pub fn calls(&self, known: &BTreeMap<String, Vec<Vec<String>>>) -> Vec<Named> {
        let mut found = Vec::new();
        for n in 0..self.tokens.len() {
            let is_call = self.text(n + 1) == "!"
                && matches!(self.text(n + 2), "(" | "[" | "{")
                && (n == 0 || self.text(n - 1) != "::");
            let Some(definitions) = known.get(self.text(n)).filter(|_| is_call) else { continue };
            let room = self.modules[n].first();
            if !definitions.iter().any(|module| module.first() == room) {
                let mut path = definitions[0].clone();
                path.push(self.text(n).to_owned());
                found.push(Named { line: self.tokens[n].line, path });
            }
        }
        found
    }

    /// The lines that include other text, or rename the crate: paths do not show these.
    pub fn detours(&self) -> Vec<usize> {
        let starts = |n: usize, words: &[&str]| {
            words.iter().enumerate().all(|(k, word)| self.text(n + k) == *word)
        };
        let is_detour = |n: &usize| {
            starts(*n, &["#", "[", "path", "="])
                || starts(*n, &["include", "!"])
                || starts(*n, &["extern", "crate"])
        };
        (0..self.tokens.len()).filter(is_detour).map(|n| self.tokens[n].line).collect()
    }
}

fn joined(found: &[Named]) -> Vec<String> {
    found.iter().map(|named| format!("{} {}", named.line, named.path.join("::"))).collect()
}

#[test]
fn every_form_of_path_is_found() {
    for (source, expected) in [
        ("use crate::cache::Store;", &["1 cache::Store"][..]),
        ("use crate::{cache, client::Client};", &["1 cache", "1 client::Client"]),
        (
            "pub use crate::{\n a::{self, b::{C, D as E}},\n f::*,\n};",
            &["2 a", "2 a::b::C", "2 a::b::D", "3 f::*"],
        ),
        ("use {crate::a::B, super::c::D};", &["1 a::B", "1 room::c::D"]),
        ("fn f(x: &crate::a::B) -> Vec<crate::c::D> {}", &["1 a::B", "1 c::D"]),
        ("let x = crate::a::b::<u8>(1);", &["1 a::b"]),
        ("<crate::a::B as super::C>::d()", &["1 a::B", "1 room::C"]),
        ("use super::super::other::X;", &["1 other::X"]),
        ("use super::super::super::other::X;", &["1 other::X"]),
        ("self::super::super::other::x()", &["1 other::x"]),
        ("mod tests { use super::super::super::other::X; }", &["1 other::X"]),
        ("mod a { fn f() { super::b() } }\nsuper::c!()", &["1 room::file::b", "2 room::c"]),
        (
            "mod a { mod b { use super::*; } use super::*; }",
            &["1 room::file::a::*", "1 room::file::*"],
        ),
        ("macro_rules! m { () => { $crate::a::B }; }", &["1 a::B"]),
        ("json!({ \"a\": [crate::a::B, x] })", &["1 a::B"]),
        ("#[serde(with = \"crate::a::b\")] struct X;", &[]),
        ("impl X for crate::a::r#type::Y {}", &["1 a::type::Y"]),
        ("use crate as root;", &["1 "]),
        ("use crate::*;", &["1 *"]),
        ("pub(crate) fn f(self) {} pub(super) struct X; pub(in crate::a) struct Y;", &[]),
        (
            "// crate::a\n/* crate::b /* */ crate::c */ \"crate::d\" r#\"\"crate::e\"\"# crate::f",
            &["2 f"],
        ),
        ("b'\\'' '\"' '\\u{1}' 'a' crate::a::<'static>() // \"", &["1 a"]),
        ("let x: &'a str = \"\\\"\"; crate::b", &["1 b"]),
        ("x::crate_name::self_ crate::", &["1 "]),
    ] {
        let found = Source::new(source, &["room", "file"]).internal();
        assert_eq!(joined(&found), expected, "{source}");
    }
}

#[test]
fn paths_into_another_crate_are_found() {
    let source = "use name::{a::B, c};\nfn f() { ::name::d::e(); other::name() }\nuse name as n;";
    let found = Source::new(source, &[]).external("name");
    assert_eq!(joined(&found), ["1 a::B", "1 c", "2 d::e", "2 ", "3 "]);
}

#[test]
fn calls_of_another_rooms_macro_are_found() {
    let macros = Source::new("macro_rules! counters { () => {} }", &["metrics", "table"]).macros();
    assert_eq!(macros[0].0, "counters");
    let known = BTreeMap::from([(macros[0].0.clone(), vec![macros[0].1.clone()])]);
    let call = "vec![counters];\ncounters! { a }\ncounters!(b); x::counters!();";
    let found = Source::new(call, &["cache"]).calls(&known);
    assert_eq!(joined(&found), ["2 metrics::table::counters", "3 metrics::table::counters"]);
    assert_eq!(Source::new(call, &["metrics"]).calls(&known), []);
}

#[test]
fn detours_are_found() {
    let source = "#[path = \"../x.rs\"]\nmod x;\ninclude!(\"y.rs\");\nextern crate a as b;\n\
        include_str!(\"z\");";
    assert_eq!(Source::new(source, &[]).detours(), [1, 3, 4]);
}
