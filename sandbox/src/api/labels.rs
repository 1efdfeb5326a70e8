//! Label selectors of requests, parsed and refused as upstream does. Upstream: `labels.Parse`.

use std::str::FromStr;

use crate::kinds::{label_key_fault, label_value_fault};
use kube_controller_manager::objects::Labels;

/// All of them must hold.
pub struct Requirements(Vec<Requirement>);

struct Requirement {
    key: String,
    test: Test,
}

enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

impl Requirements {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|Requirement { key, test }| {
            let value = labels.get(key);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            let among = |values: &[String]| {
                value.is_some_and(|value| values.iter().any(|one| one.as_str() == value))
            };
            match test {
                Test::In(values) => among(values),
                Test::NotIn(values) => !among(values),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Above(least) => number().is_some_and(|number| number > *least),
                Test::Below(most) => number().is_some_and(|number| number < *most),
            }
        })
    }
}

/// A symbol, a word, or nothing at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    is_word: bool,
}

fn is_symbol(c: char) -> bool {
    "=!(),><".contains(c)
}

fn is_space(c: char) -> bool {
    " \t\r\n".contains(c)
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let is_word = !is_symbol(first);
        let length = if is_word {
            rest.find(|c| is_symbol(c) || is_space(c)).unwrap_or(rest.len())
        } else if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else {
            1
        };
        let (text, more) = rest.split_at(length);
        tokens.push(Token { text, is_word });
        rest = more.trim_start_matches(is_space);
    }
    tokens
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token { text: "", is_word: false })
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn all(&mut self) -> Result<Vec<Requirement>, String> {
        let mut all = Vec::new();
        let starts = |token: Token<'_>| token.is_word || token.text == "!";
        loop {
            match self.peek() {
                Token { text: "", .. } => return Ok(all),
                token if starts(token) => {}
                Token { text, .. } => {
                    return Err(format!(
                        "found '{text}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            let one = self.one().map_err(|why| format!("unable to parse requirement: {why}"))?;
            all.push(one);
            match self.next().text {
                "" => return Ok(all),
                "," if starts(self.peek()) => {}
                "," => {
                    let text = self.peek().text;
                    return Err(format!("found '{text}', expected: identifier after ','"));
                }
                text => {
                    return Err(format!("found '{text}', expected: ',' or 'end of string'"));
                }
            }
        }
    }

    fn one(&mut self) -> Result<Requirement, String> {
        let absent = self.peek().text == "!";
        if absent {
            self.next();
        }
        let Token { text: key, is_word } = self.next();
        if !is_word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(why) = label_key_fault(key) {
            return Err(format!("<nil>: Invalid value: {key:?}: {why}"));
        }
        let key = key.to_owned();
        if absent {
            return Ok(Requirement { key, test: Test::Absent });
        }
        if matches!(self.peek().text, "" | ",") {
            return Ok(Requirement { key, test: Test::Exists });
        }
        let operator = self.next().text;
        let values = match operator {
            "in" | "notin" => self.set()?,
            "=" | "==" | "!=" | ">" | "<" => vec![self.exact()?],
            _ => {
                let known = "in, notin, =, ==, !=, gt, lt";
                return Err(format!("found '{operator}', expected: {known}"));
            }
        };
        let mut faults = Vec::new();
        let number = values.first().and_then(|value| value.parse().ok());
        if let (">" | "<", None, [value]) = (operator, number, values.as_slice()) {
            faults.push(format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            ));
        }
        for (n, value) in values.iter().enumerate() {
            let why = label_value_fault(value);
            faults.extend(
                why.map(|why| format!("values[{n}][{key}]: Invalid value: {value:?}: {why}")),
            );
        }
        match faults.as_slice() {
            [] => {}
            [one] => return Err(one.clone()),
            many => return Err(format!("[{}]", many.join(", "))),
        }
        let test = match (operator, number) {
            (">", Some(number)) => Test::Above(number),
            ("<", Some(number)) => Test::Below(number),
            ("!=" | "notin", _) => Test::NotIn(values),
            _ => Test::In(values),
        };
        Ok(Requirement { key, test })
    }

    fn exact(&mut self) -> Result<String, String> {
        if matches!(self.peek().text, "" | ",") {
            return Ok(String::new());
        }
        let Token { text, is_word } = self.next();
        is_word
            .then(|| text.to_owned())
            .ok_or_else(|| format!("found '{text}', expected: identifier"))
    }

    /// `(a,b)`, sorted and without duplicates; a missing value is empty text.
    fn set(&mut self) -> Result<Vec<String>, String> {
        let open = self.next().text;
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        let first = self.peek();
        if !first.is_word && !matches!(first.text, "," | ")") {
            return Err(format!("found '{}', expected: ',', ')' or identifier", first.text));
        }
        loop {
            // A value, or an empty one.
            let Token { text, is_word } = self.peek();
            if is_word {
                self.next();
            } else if !matches!(text, "," | ")") {
                return Err(format!("found '{text}', expected: ',', or identifier"));
            }
            values.push(if is_word { text } else { "" }.to_owned());
            match self.next().text {
                "," => {}
                ")" => break,
                text => return Err(format!("found '{text}', expected: ',' or ')'")),
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(values)
    }
}

impl FromStr for Requirements {
    type Err = String;

    fn from_str(text: &str) -> Result<Requirements, String> {
        Parser { tokens: tokens(text), at: 0 }.all().map(Requirements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_what_they_say() {
        let labels: Labels = [("n", "5"), ("in", "x"), ("a.b/c", "")].into_iter().collect();
        for (selector, matches) in [
            ("", true),
            ("n", true),
            ("!n", false),
            ("!m,n==5", true),
            ("n!=5", false),
            ("n>4, n < 6", true),
            ("n>5", false),
            ("n<5", false),
            ("m>5", false),
            ("in>5", false),
            ("n in (4, 5)", true),
            ("n notin (4,5)", false),
            ("m notin (4)", true),
            ("in in (in,x)", true),
            ("a.b/c=", true),
            ("a.b/c in ()", true),
            ("n in (,5)", true),
            ("n in (5,)", true),
        ] {
            let parsed: Requirements = selector.parse().unwrap();
            assert_eq!(parsed.matches(&labels), matches, "{selector}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_upstreams_words() {
        let number = "for 'Gt', 'Lt' operators, the value must be an integer";
        for (selector, why) in [
            (">5", "found '>', expected: !, identifier, or 'end of string'".to_owned()),
            ("n>5>6", "found '>', expected: ',' or 'end of string'".into()),
            ("n,,m", "found ',', expected: identifier after ','".into()),
            ("n=5,", "found '', expected: identifier after ','".into()),
            ("!n=5", "found '=', expected: ',' or 'end of string'".into()),
            ("!", "unable to parse requirement: found '', expected: identifier".into()),
            ("n>=5", "unable to parse requirement: found '=', expected: identifier".into()),
            ("n in 5", "unable to parse requirement: found '5' expected: '('".into()),
            ("n in (5", "unable to parse requirement: found '', expected: ',' or ')'".into()),
            (
                "n gt 5",
                "unable to parse requirement: found 'gt', expected: in, notin, =, ==, !=, gt, lt"
                    .into(),
            ),
            (
                "n>x",
                format!("unable to parse requirement: values[0]: Invalid value: \"x\": {number}"),
            ),
        ] {
            assert_eq!(selector.parse::<Requirements>().err(), Some(why), "{selector}");
        }
        for selector in ["-n", "n=-5", "a/b/c", "n=5;"] {
            assert!(selector.parse::<Requirements>().is_err(), "{selector}");
        }
    }
}
