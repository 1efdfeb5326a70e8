//! Selectors from text. Upstream: `labels.Parse`.

use std::slice;
use std::str::FromStr;

use super::{Selector, SelectorError, Term, Test, check, number};
use crate::objects::Istr;
use crate::objects::values::label_syntax::{is_label_key, label_key_fault};

/// From the form that [`Selector`]'s `Display` writes, and its variants.
impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Selector, SelectorError> {
        let terms = Parser { remainder: text }.terms().map_err(SelectorError)?;
        Ok(Selector { nothing: false, terms })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    /// A word; `in` and `notin` are operators where one is expected, otherwise keys or values.
    Word(&'a str),
    Symbol(&'a str),
}

use Token::{End, Symbol, Word};

impl<'a> Token<'a> {
    /// Splits the first token off a text, and returns both. A zero byte ends the text, but directly
    /// after a token it is skipped.
    fn first(text: &str) -> (Token<'_>, &str) {
        let is_space = |c| matches!(c, ' ' | '\t' | '\r' | '\n');
        let is_symbol = |c| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        let text = text.trim_start_matches(is_space);
        let length = match text.find(|c| is_space(c) || is_symbol(c) || c == '\0') {
            Some(0) if text.starts_with('\0') => 0,
            Some(0) if text.starts_with("==") || text.starts_with("!=") => 2,
            Some(0) => 1,
            Some(length) => length,
            None => text.len(),
        };
        let (token, remainder) = text.split_at(length);
        let remainder = remainder.strip_prefix('\0').unwrap_or(remainder);
        match token {
            "" => (End, ""),
            token if token.starts_with(is_symbol) => (Symbol(token), remainder),
            token => (Word(token), remainder),
        }
    }

    fn starts_term(self) -> bool {
        matches!(self, Word(_) | Symbol("!"))
    }

    /// The token as the parser's errors show it.
    fn text(self) -> &'a str {
        match self {
            End => "",
            Word(text) | Symbol(text) => text,
        }
    }

    /// Returns the error about this token where another one was expected.
    fn instead_of<T>(self, expected: &str) -> Result<T, String> {
        Err(format!("found '{}', expected: {expected}", self.text()))
    }
}

struct Parser<'a> {
    remainder: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        Token::first(self.remainder).0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, remainder) = Token::first(self.remainder);
        self.remainder = remainder;
        token
    }

    /// Parses all terms of the text.
    fn terms(mut self) -> Result<Vec<Term>, String> {
        let mut terms = Vec::new();
        match self.peek() {
            End => return Ok(terms),
            token if token.starts_term() => {}
            token => return token.instead_of("!, identifier, or 'end of string'"),
        }
        loop {
            let term = self.term().map_err(|why| format!("unable to parse requirement: {why}"))?;
            terms.push(term);
            match self.next() {
                End => return Ok(terms),
                Symbol(",") if self.peek().starts_term() => {}
                Symbol(",") => return self.peek().instead_of("identifier after ','"),
                token => return token.instead_of("',' or 'end of string'"),
            }
        }
    }

    /// Parses a key with its operator and values.
    fn term(&mut self) -> Result<Term, String> {
        let is_negated = self.peek() == Symbol("!");
        if is_negated {
            self.next();
        }
        let key = self.expect_word()?;
        if !is_label_key(key) {
            // The key has no path yet.
            return Err(format!("<nil>: Invalid value: {key:?}: {}", label_key_fault(key)));
        }
        let test = match self.peek() {
            _ if is_negated => Test::DoesNotExist,
            End | Symbol(",") => Test::Exists,
            _ => self.test(key)?,
        };
        Ok(Term { key: key.into(), test })
    }

    /// Parses an operator and its values.
    fn test(&mut self, key: &str) -> Result<Test, String> {
        match self.next() {
            Word("in") => Ok(Test::In(self.set(key)?.into())),
            Word("notin") => Ok(Test::NotIn(self.set(key)?.into())),
            Symbol("=") => Ok(Test::Equals(self.value(key)?)),
            Symbol("==") => Ok(Test::DoubleEquals(self.value(key)?)),
            Symbol("!=") => Ok(Test::NotEquals(self.value(key)?)),
            Symbol(">") => Ok(Test::GreaterThan(self.bound(key)?)),
            Symbol("<") => Ok(Test::LessThan(self.bound(key)?)),
            token => token.instead_of("in, notin, =, ==, !=, gt, lt"),
        }
    }

    fn expect_word(&mut self) -> Result<&'a str, String> {
        match self.next() {
            Word(text) => Ok(text),
            token => token.instead_of("identifier"),
        }
    }

    /// Parses a value, which may be missing.
    fn optional_word(&mut self) -> Result<Istr, String> {
        match self.peek() {
            End | Symbol(",") => Ok(Istr::default()),
            _ => self.expect_word().map(Istr::new),
        }
    }

    /// Parses the value after `=`, `==` or `!=`.
    fn value(&mut self, key: &str) -> Result<Istr, String> {
        let value = self.optional_word()?;
        check_values(key, slice::from_ref(&value), None)?;
        Ok(value)
    }

    /// Parses the number after `>` or `<`.
    fn bound(&mut self, key: &str) -> Result<Istr, String> {
        let bound = self.optional_word()?;
        let misuse = number(&bound).is_none().then(|| {
            format!(
                "values[0]: Invalid value: {bound:?}: for 'Gt', 'Lt' operators, the value must be \
                 an integer"
            )
        });
        check_values(key, slice::from_ref(&bound), misuse)?;
        Ok(bound)
    }

    /// Parses a set, `(a,b)`, and returns it sorted, each value once. A missing value is an empty
    /// one.
    fn set(&mut self, key: &str) -> Result<Vec<Istr>, String> {
        match self.next() {
            Symbol("(") => {}
            token => return Err(format!("found '{}' expected: '('", token.text())),
        }
        match self.peek() {
            Word(_) | Symbol("," | ")") => {}
            token => return token.instead_of("',', ')' or identifier"),
        }
        let mut values = Vec::new();
        loop {
            values.push(match self.peek() {
                Word(_) => self.expect_word()?,
                Symbol("," | ")") => "",
                token => return token.instead_of("',', or identifier"),
            });
            match self.next() {
                Symbol(",") => {}
                Symbol(")") => break,
                token => return token.instead_of("',' or ')'"),
            }
        }
        values.sort();
        values.dedup();
        let values: Vec<Istr> = values.into_iter().map(Istr::new).collect();
        check_values(key, &values, None)?;
        Ok(values)
    }
}

/// Checks the key and the values of a term. `misuse`: a fault that the caller has found.
fn check_values(key: &str, values: &[Istr], misuse: Option<String>) -> Result<(), String> {
    check(key, values, misuse).map_err(|SelectorError(why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Labels;
    use crate::objects::values::label_syntax::label_value_fault;

    #[test]
    fn a_selector_is_parsed_matched_and_printed() {
        let labels: Labels =
            [("app", "web"), ("n", "5"), ("in", "notin"), ("a.b/c", "")].into_iter().collect();
        for (text, matches, printed) in [
            ("", true, ""),
            (" \t\r\n", true, ""),
            ("app=web", true, "app=web"),
            (" app\n==\tweb , n", true, "app==web,n"),
            ("app=api", false, "app=api"),
            ("app!=web", false, "app!=web"),
            ("none!=web", true, "none!=web"),
            ("none=", false, "none="),
            ("a.b/c=", true, "a.b/c="),
            ("a.b/c=,app", true, "a.b/c=,app"),
            ("n,app", true, "app,n"),
            ("!app", false, "!app"),
            ("! none", true, "!none"),
            ("app in (web,api)", true, "app in (api,web)"),
            ("app in(web , web)", true, "app in (web)"),
            ("app in (api)", false, "app in (api)"),
            ("app notin (web)", false, "app notin (web)"),
            ("none notin (web)", true, "none notin (web)"),
            ("a.b/c in ()", true, "a.b/c in ()"),
            ("a.b/c in (,)", true, "a.b/c in ()"),
            ("app in (,web)", true, "app in (,web)"),
            ("app in (web,)", true, "app in (,web)"),
            ("app in (x,,web)", true, "app in (,web,x)"),
            ("in=notin", true, "in=notin"),
            ("in in (in,notin)", true, "in in (in,notin)"),
            ("notin", false, "notin"),
            ("n>4", true, "n>4"),
            ("n > 5", false, "n>5"),
            ("n<6", true, "n<6"),
            ("n<5", false, "n<5"),
            ("n>04,n<06", true, "n>04,n<06"),
            ("n>4, n < 6", true, "n>4,n<6"),
            ("n>5", false, "n>5"),
            ("none>5", false, "none>5"),
            ("in>5", false, "in>5"),
            ("n!=5", false, "n!=5"),
            ("!m,n==5", true, "!m,n==5"),
            ("n in (4, 5)", true, "n in (4,5)"),
            ("n notin (4,5)", false, "n notin (4,5)"),
            ("n in (,5)", true, "n in (,5)"),
            ("n in (5,)", true, "n in (,5)"),
            ("app>4", false, "app>4"),
            ("none<4", false, "none<4"),
            ("app\0,none", false, "app,none"),
            ("app,n \0,none", true, "app,n"),
        ] {
            let selector: Selector = text.parse().unwrap();
            let found = (selector.matches(&labels), &*selector.to_string());
            assert_eq!(found, (matches, printed), "{text:?}");
        }
    }

    #[test]
    fn a_malformed_selector_is_refused_in_upstreams_words() {
        let key = |key: &str| format!("<nil>: Invalid value: {key:?}: {}", label_key_fault(key));
        let value = |field: &str, value: &str| {
            format!("{field}: Invalid value: {value:?}: {}", label_value_fault(value))
        };
        let no_number = |value: &str| {
            format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be \
                 an integer"
            )
        };
        let huge = "9223372036854775808";
        let requirement = |why: &str| format!("unable to parse requirement: {why}");
        for (text, why) in [
            (",a", "found ',', expected: !, identifier, or 'end of string'".to_owned()),
            ("=a", "found '=', expected: !, identifier, or 'end of string'".into()),
            ("a b", requirement("found 'b', expected: in, notin, =, ==, !=, gt, lt")),
            ("a(b)", requirement("found '(', expected: in, notin, =, ==, !=, gt, lt")),
            ("a!b", requirement("found '!', expected: in, notin, =, ==, !=, gt, lt")),
            ("a gt 5", requirement("found 'gt', expected: in, notin, =, ==, !=, gt, lt")),
            ("a,", "found '', expected: identifier after ','".into()),
            ("a, ,b", "found ',', expected: identifier after ','".into()),
            ("a, \0b", "found '', expected: identifier after ','".into()),
            ("a=b c", "found 'c', expected: ',' or 'end of string'".into()),
            ("a=b)", "found ')', expected: ',' or 'end of string'".into()),
            ("a>5>6", "found '>', expected: ',' or 'end of string'".into()),
            ("!a=b", "found '=', expected: ',' or 'end of string'".into()),
            ("!", requirement("found '', expected: identifier")),
            ("!!a", requirement("found '!', expected: identifier")),
            ("a=(b", requirement("found '(', expected: identifier")),
            ("a===b", requirement("found '=', expected: identifier")),
            ("a>=5", requirement("found '=', expected: identifier")),
            ("a in", requirement("found '' expected: '('")),
            ("a in b", requirement("found 'b' expected: '('")),
            ("a in (", requirement("found '', expected: ',', ')' or identifier")),
            ("a in (=", requirement("found '=', expected: ',', ')' or identifier")),
            ("a in (b", requirement("found '', expected: ',' or ')'")),
            ("a in (b c)", requirement("found 'c', expected: ',' or ')'")),
            ("a in (b,", requirement("found '', expected: ',', or identifier")),
            ("a in (,!)", requirement("found '!', expected: ',', or identifier")),
            ("-a", requirement(&key("-a"))),
            ("!a/b/c", requirement(&key("a/b/c"))),
            ("a;=b", requirement(&key("a;"))),
            ("a=b;", requirement(&value("values[0][a]", "b;"))),
            ("a!=-b", requirement(&value("values[0][a]", "-b"))),
            ("a in (c,b;)", requirement(&value("values[0][a]", "b;"))),
            (
                "a notin (c,-,b;)",
                requirement(&format!(
                    "[{}, {}]",
                    value("values[0][a]", "-"),
                    value("values[1][a]", "b;")
                )),
            ),
            ("a>", requirement(&no_number(""))),
            ("a<b", requirement(&no_number("b"))),
            (&format!("a<{huge}"), requirement(&no_number(huge))),
            ("a>-5", requirement(&value("values[0][a]", "-5"))),
            ("a>-", requirement(&format!("[{}, {}]", no_number("-"), value("values[0][a]", "-")))),
        ] {
            let found = text.parse::<Selector>().map_err(|error| error.to_string());
            assert_eq!(found, Err(why), "{text:?}");
        }
    }
}
