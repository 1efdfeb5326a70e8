//! Splits source text into tokens. Upstream: the lexer rules of cel-go's `CEL.g4`.

use super::issues::Issue;

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Ident(String),
    /// An operator, a bracket, or one of the words `in`, `true`, `false`, `null`.
    Symbol(&'static str),
    Int(String),
    Uint(String),
    Double(String),
    String(String),
    Bytes(Vec<u8>),
    End,
}

/// A token and its start, in characters.
pub type Placed = (Token, u32);

const SYMBOLS: [&str; 26] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%", "`", "=",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

struct Lexer {
    source: Vec<char>,
    at: usize,
}

/// Returns all tokens; the last is [`Token::End`].
pub fn tokens(source: &str) -> Result<Vec<Placed>, Issue> {
    let mut lexer = Lexer { source: source.chars().collect(), at: 0 };
    let mut found = Vec::new();
    loop {
        lexer.skip_blank();
        let start = lexer.at as u32;
        let token = lexer
            .token()
            .map_err(|message| Issue { offset: Some(start), message: message.to_owned() })?;
        let end = token == Token::End;
        found.push((token, start));
        if end {
            return Ok(found);
        }
    }
}

impl Lexer {
    /// Returns the character at this distance; a zero byte at the end.
    fn peek(&self, ahead: usize) -> char {
        self.source.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(n, c)| self.source.get(self.at + n) == Some(&c))
    }

    /// Skips blanks and comments.
    fn skip_blank(&mut self) {
        while self.at < self.source.len() {
            if matches!(self.peek(0), '\t' | ' ' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            } else if self.starts_with("//") {
                while self.at < self.source.len() && self.peek(0) != '\n' {
                    self.at += 1;
                }
            } else {
                break;
            }
        }
    }

    /// Takes the characters up to the first that is not wanted.
    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.at < self.source.len() && wanted(self.source[self.at]) {
            self.at += 1;
        }
        self.source[start..self.at].iter().collect()
    }

    /// Reads the next token.
    fn token(&mut self) -> Result<Token, &'static str> {
        if self.at >= self.source.len() {
            return Ok(Token::End);
        }
        let first = self.peek(0);
        if let Some(prefix) = self.string_prefix() {
            return self.string_token(prefix);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let word = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(match WORDS.iter().find(|known| **known == word) {
                Some(known) => Token::Symbol(known),
                None => Token::Ident(word),
            });
        }
        if first.is_ascii_digit() || (first == '.' && self.peek(1).is_ascii_digit()) {
            return Ok(self.number_token());
        }
        match SYMBOLS.iter().find(|symbol| self.starts_with(symbol)) {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(Token::Symbol(symbol))
            }
            None => Err("Syntax error: token recognition error"),
        }
    }

    /// Reads a number without its sign.
    fn number_token(&mut self) -> Token {
        let hexadecimal = self.starts_with("0x") && self.peek(2).is_ascii_hexdigit();
        let mut text = String::new();
        let mut double = false;
        if hexadecimal {
            self.at += 2;
            text.push_str("0x");
            text.push_str(&self.take_while(|c| c.is_ascii_hexdigit()));
        } else {
            text.push_str(&self.take_while(|c| c.is_ascii_digit()));
            if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
                double = true;
                self.at += 1;
                text.push('.');
                text.push_str(&self.take_while(|c| c.is_ascii_digit()));
            }
            let sign = usize::from(matches!(self.peek(1), '+' | '-'));
            if matches!(self.peek(0), 'e' | 'E') && self.peek(1 + sign).is_ascii_digit() {
                double = true;
                text.extend(&self.source[self.at..=self.at + sign]);
                self.at += 1 + sign;
                text.push_str(&self.take_while(|c| c.is_ascii_digit()));
            }
        }
        if double {
            return Token::Double(text);
        }
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return Token::Uint(text);
        }
        Token::Int(text)
    }

    /// Returns the length of the prefix before the quote, if a string starts here.
    fn string_prefix(&self) -> Option<usize> {
        let bytes = usize::from(matches!(self.peek(0), 'b' | 'B'));
        let raw = usize::from(matches!(self.peek(bytes), 'r' | 'R'));
        matches!(self.peek(bytes + raw), '"' | '\'').then_some(bytes + raw)
    }

    /// Reads a string or bytes, whose letters before the quote have the length `prefix`.
    fn string_token(&mut self, prefix: usize) -> Result<Token, &'static str> {
        const OPEN: &str = "Syntax error: token recognition error: unterminated string";
        let letters = &self.source[self.at..self.at + prefix];
        let bytes = letters.iter().any(|c| matches!(c, 'b' | 'B'));
        let raw = letters.iter().any(|c| matches!(c, 'r' | 'R'));
        self.at += prefix;
        let quote = self.peek(0);
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        let closing: String = std::iter::repeat_n(quote, if triple { 3 } else { 1 }).collect();
        self.at += closing.len();
        let mut text = String::new();
        let mut octets = Vec::new();
        while !self.starts_with(&closing) {
            let Some(&character) = self.source.get(self.at) else { return Err(OPEN) };
            if !triple && matches!(character, '\n' | '\r') {
                return Err(OPEN);
            }
            self.at += 1;
            let character = match character {
                '\\' if !raw => {
                    let escaped = self.escaped(bytes)?;
                    if bytes {
                        // An escape stands for an octet, any other character for its UTF-8.
                        octets.push(escaped as u32 as u8);
                        continue;
                    }
                    escaped
                }
                '\r' => {
                    self.at += usize::from(self.peek(0) == '\n');
                    '\n'
                }
                other => other,
            };
            if bytes {
                octets.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        self.at += closing.len();
        Ok(if bytes { Token::Bytes(octets) } else { Token::String(text) })
    }

    /// Reads the escape sequence after a backslash. `bytes`: in a literal of bytes, where an escape
    /// stands for an octet.
    fn escaped(&mut self, bytes: bool) -> Result<char, &'static str> {
        const BAD: &str = "Syntax error: token recognition error: invalid escape sequence";
        let letter = self.peek(0);
        self.at += 1;
        let (digits, radix, start) = match letter {
            'a' => return Ok('\u{7}'),
            'b' => return Ok('\u{8}'),
            'f' => return Ok('\u{c}'),
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'v' => return Ok('\u{b}'),
            '\\' | '\'' | '"' | '`' | '?' => return Ok(letter),
            'x' | 'X' => (2, 16, 0),
            'u' if !bytes => (4, 16, 0),
            'U' if !bytes => (8, 16, 0),
            '0'..='3' => (2, 8, letter as u32 - '0' as u32),
            _ => return Err(BAD),
        };
        let mut value = start;
        for _ in 0..digits {
            let digit = self.peek(0).to_digit(radix).ok_or(BAD)?;
            value = value.checked_mul(radix).ok_or(BAD)? + digit;
            self.at += 1;
        }
        char::from_u32(value).ok_or("invalid unicode code point")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_split_into_tokens() {
        let cases: [(&str, &[Token]); 8] = [
            (
                "a.b1 // x\n <= 1",
                &[
                    Token::Ident("a".into()),
                    Token::Symbol("."),
                    Token::Ident("b1".into()),
                    Token::Symbol("<="),
                    Token::Int("1".into()),
                ],
            ),
            ("1.5e3", &[Token::Double("1.5e3".into())]),
            (
                "1.e 2u",
                &[
                    Token::Int("1".into()),
                    Token::Symbol("."),
                    Token::Ident("e".into()),
                    Token::Uint("2".into()),
                ],
            ),
            ("0x1F", &[Token::Int("0x1F".into())]),
            (r#"'a\'\x41\u00e9\101'"#, &[Token::String("a'A\u{e9}A".into())]),
            (
                r#"r'\d' b"x\xff" br'\'"#,
                &[
                    Token::String("\\d".into()),
                    Token::Bytes(b"x\xff".to_vec()),
                    Token::Bytes(b"\\".to_vec()),
                ],
            ),
            ("'''a'\nb'''", &[Token::String("a'\nb".into())]),
            (
                "in inn true",
                &[Token::Symbol("in"), Token::Ident("inn".into()), Token::Symbol("true")],
            ),
        ];
        for (source, expected) in cases {
            let found: Vec<Token> = tokens(source).unwrap().into_iter().map(|(t, _)| t).collect();
            assert_eq!(found, [expected, &[Token::End]].concat(), "{source}");
        }
        for bad in ["'a", "'\\q'", "'a\nb'", "#", "'\\ud800'"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
    }
}
