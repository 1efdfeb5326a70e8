//! Parses tokens to an [`Expr`] and expands macros. A node has the position that cel-go gives it:
//! an operator that of its sign, a selection that of the dot, a call that of the bracket.
//! Upstream: cel-go's `parser`.

use super::ast::{Element, Entry, Expr, Field, Literal, Node, Nodes};
use super::issues::Issue;
use super::lexer::{self, Placed, Token};
use super::macros;

/// The limit for nested brackets and operators. Upstream: the option `MaxRecursionDepth`.
const MAX_NESTING: u32 = 250;
/// The limit for the depth of the tree with its macros expanded.
const MAX_DEPTH: u32 = 300;
/// The limit for nodes: macros that copy their target grow fast.
const MAX_NODES: usize = 200_000;
/// The limit for the source, in characters. Upstream: `ExpressionSizeCodePointLimit`.
const MAX_LENGTH: usize = 100_000;

/// A binary operator. A higher `binds` binds tighter.
#[derive(Clone, Copy)]
struct Operator {
    symbol: &'static str,
    function: &'static str,
    binds: u8,
}

const fn operator(symbol: &'static str, function: &'static str, binds: u8) -> Operator {
    Operator { symbol, function, binds }
}

/// Operators with at most this `binds` are associative: their chains may be balanced.
const LOGIC: u8 = 2;
const OPERATORS: [Operator; 14] = [
    operator("||", "_||_", 1),
    operator("&&", "_&&_", 2),
    operator("<", "_<_", 3),
    operator("<=", "_<=_", 3),
    operator(">=", "_>=_", 3),
    operator(">", "_>_", 3),
    operator("==", "_==_", 3),
    operator("!=", "_!=_", 3),
    operator("in", "@in", 3),
    operator("+", "_+_", 4),
    operator("-", "_-_", 4),
    operator("*", "_*_", 5),
    operator("/", "_/_", 5),
    operator("%", "_%_", 5),
];

/// Words that may name fields but not variables.
pub const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// An expression and the positions of its nodes, in characters, by [`Id`](super::ast::Id).
pub struct Parsed {
    pub expr: Expr,
    pub positions: Vec<u32>,
}

type Result<T> = std::result::Result<T, Issue>;

/// Parses `source`. Stops at the first fault.
pub fn parse(source: &str) -> Result<Parsed> {
    let length = source.chars().count();
    if length > MAX_LENGTH {
        return fail_whole(format!(
            "expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}"
        ));
    }
    let tokens = lexer::tokens(source)?;
    let mut parser = Parser { tokens, at: 0, nodes: Nodes::default(), nesting: 0 };
    let expr = parser.expr()?;
    match parser.peek() {
        Token::End => Ok(Parsed { expr, positions: parser.nodes.into_positions() }),
        _ => parser.unexpected(),
    }
}

/// Returns an issue of the whole expression.
fn fail_whole<T>(message: String) -> Result<T> {
    Err(Issue { offset: None, message })
}

/// The tokens with a position in them, and the nodes made so far.
struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    nodes: Nodes,
    nesting: u32,
}

impl Parser {
    /// Checks that recursion over `expr` is safe.
    fn check_bounds(&self, expr: Expr) -> Result<Expr> {
        if expr.depth > MAX_DEPTH || self.nodes.count() > MAX_NODES {
            return fail_whole("max recursion depth exceeded".to_owned());
        }
        Ok(expr)
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn offset(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn next_is(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    /// Skips `symbol` if it is next. Returns its position.
    fn accept(&mut self, symbol: &str) -> Option<u32> {
        let offset = self.next_is(symbol).then(|| self.offset())?;
        self.next();
        Some(offset)
    }

    /// Skips `symbol`, which must be next. Returns its position.
    fn expect(&mut self, symbol: &str) -> Result<u32> {
        match self.accept(symbol) {
            Some(offset) => Ok(offset),
            None => self.unexpected(),
        }
    }

    /// Returns the syntax error about the next token.
    fn unexpected<T>(&self) -> Result<T> {
        let found = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Symbol(text) => (*text).to_owned(),
            Token::Ident(text) | Token::Int(text) | Token::Uint(text) | Token::Double(text) => {
                text.clone()
            }
            Token::String(_) | Token::Bytes(_) => "string".to_owned(),
        };
        self.fail(self.offset(), format!("Syntax error: unexpected '{found}'"))
    }

    fn fail<T>(&self, offset: u32, message: String) -> Result<T> {
        Err(Issue { offset: Some(offset), message })
    }

    /// Parses an expression, with the ternary operator.
    fn expr(&mut self) -> Result<Expr> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return fail_whole(format!("expression recursion limit exceeded: {MAX_NESTING}"));
        }
        let mut result = self.operation()?;
        if let Some(offset) = self.accept("?") {
            let yes = self.operation()?;
            self.expect(":")?;
            let no = self.expr()?;
            result = self.nodes.call(offset, "_?_:_", vec![result, yes, no]);
        }
        self.nesting -= 1;
        self.check_bounds(result)
    }

    /// Parses operands and binary operators. They have stacks of their own, so only brackets
    /// recurse.
    fn operation(&mut self) -> Result<Expr> {
        let mut operands = vec![self.unary()?];
        let mut operators: Vec<(Operator, u32)> = Vec::new();
        while let Some(operator) = self.operator() {
            let offset = self.offset();
            self.next();
            self.reduce(&mut operands, &mut operators, operator.binds)?;
            operators.push((operator, offset));
            operands.push(self.unary()?);
        }
        self.reduce(&mut operands, &mut operators, 0)?;
        Ok(operands.remove(0))
    }

    /// Returns the binary operator that is next, if one is.
    fn operator(&self) -> Option<Operator> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        OPERATORS.iter().find(|operator| operator.symbol == *symbol).copied()
    }

    /// Makes calls of the operators on top of the stack that bind tighter than `binds`, or equally,
    /// except `||` and `&&`: those stay until their chain is complete, and become a balanced tree.
    fn reduce(
        &mut self,
        operands: &mut Vec<Expr>,
        operators: &mut Vec<(Operator, u32)>,
        binds: u8,
    ) -> Result<()> {
        while let Some((top, _)) = operators.last().copied() {
            let is_associative = top.binds <= LOGIC;
            if top.binds < binds || (is_associative && top.binds == binds) {
                break;
            }
            let same = |(operator, _): &&(Operator, u32)| operator.binds == top.binds;
            let count =
                if is_associative { operators.iter().rev().take_while(same).count() } else { 1 };
            let offsets = operators.split_off(operators.len() - count);
            let mut terms = operands.split_off(operands.len() - count - 1).into_iter();
            let call = self.balanced_call(&mut terms, &offsets);
            operands.push(self.check_bounds(call)?);
        }
        Ok(())
    }

    /// Builds a tree of calls of minimal depth, of terms in their order. There is one more term
    /// than operators.
    fn balanced_call(
        &mut self,
        terms: &mut std::vec::IntoIter<Expr>,
        operators: &[(Operator, u32)],
    ) -> Expr {
        let middle = operators.len() / 2;
        let Some(&(operator, offset)) = operators.get(middle) else {
            return terms.next().expect("one more term than operators");
        };
        let left = self.balanced_call(terms, &operators[..middle]);
        let right = self.balanced_call(terms, &operators[middle + 1..]);
        self.nodes.call(offset, operator.function, vec![left, right])
    }

    /// Parses a member with `!` or `-` before it.
    fn unary(&mut self) -> Result<Expr> {
        let offset = self.offset();
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            let mut count = 0;
            let signed =
                matches!(self.tokens.get(self.at + 1), Some((Token::Int(_) | Token::Double(_), _)));
            // A single minus before a number is part of the literal.
            if symbol == "-" && self.next_is("-") && signed {
                break;
            }
            while self.accept(symbol).is_some() {
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                return Ok(match count % 2 {
                    0 => operand,
                    _ => self.nodes.call(offset, function, vec![operand]),
                });
            }
        }
        self.member()
    }

    /// Parses a primary with selections, calls and indices after it.
    fn member(&mut self) -> Result<Expr> {
        let mut result = self.primary()?;
        loop {
            if let Some(dot) = self.accept(".") {
                let optional = self.accept("?").is_some();
                let (field, at) = self.field_name()?;
                result = match self.accept("(") {
                    Some(open) if !optional => {
                        let args = self.arguments()?;
                        macros::member_call(&mut self.nodes, open, result, field, args)?
                    }
                    Some(open) => {
                        return self.fail(open, "Syntax error: unexpected '('".to_owned());
                    }
                    None if optional => {
                        let name = self.nodes.node(at, Node::Literal(Literal::String(field)));
                        self.nodes.call(dot, "_?._", vec![result, name])
                    }
                    None => {
                        let operand = Box::new(result);
                        self.nodes.node(dot, Node::Select { operand, field, test_only: false })
                    }
                };
            } else if let Some(open) = self.accept("[") {
                let function = if self.accept("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expr()?;
                self.expect("]")?;
                result = self.nodes.call(open, function, vec![result, index]);
            } else {
                return Ok(result);
            }
            result = self.check_bounds(result)?;
        }
    }

    /// Reads the name of a field. Returns its position too.
    fn field_name(&mut self) -> Result<(String, u32)> {
        let offset = self.offset();
        match self.peek() {
            Token::Ident(_) => {}
            Token::Symbol("`") => return self.fail(offset, "unsupported syntax: '`'".to_owned()),
            _ => return self.unexpected(),
        }
        match self.next() {
            Token::Ident(name) => Ok((name, offset)),
            _ => self.unexpected(),
        }
    }

    /// Reads arguments after the opening bracket, and the closing bracket.
    fn arguments(&mut self) -> Result<Vec<Expr>> {
        let mut args = Vec::new();
        if self.accept(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.accept(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    /// Parses an expression in brackets, a list, a map, a name or a literal.
    fn primary(&mut self) -> Result<Expr> {
        let offset = self.offset();
        if self.accept("(").is_some() {
            let inner = self.expr()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.accept("[").is_some() {
            return self.list(offset);
        }
        if self.accept("{").is_some() {
            return self.map(offset);
        }
        if self.next_is(".") || matches!(self.peek(), Token::Ident(_)) {
            return self.name();
        }
        let negative = self.accept("-").is_some();
        let literal = match self.peek().clone() {
            Token::Int(text) => {
                let (text, radix) = match text.strip_prefix("0x") {
                    Some(digits) => (digits, 16),
                    None => (text.as_str(), 10),
                };
                let sign = if negative { "-" } else { "" };
                match i64::from_str_radix(&format!("{sign}{text}"), radix) {
                    Ok(number) => Literal::Int(number),
                    Err(_) => return self.fail(offset, "invalid int literal".to_owned()),
                }
            }
            Token::Double(text) => {
                let number: f64 = text.parse().unwrap_or(f64::NAN);
                Literal::Double(if negative { -number } else { number })
            }
            Token::Uint(text) if !negative => {
                let parsed = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                match parsed {
                    Ok(number) => Literal::Uint(number),
                    Err(_) => return self.fail(offset, "invalid uint literal".to_owned()),
                }
            }
            Token::String(text) if !negative => Literal::String(text),
            Token::Bytes(bytes) if !negative => Literal::Bytes(bytes),
            Token::Symbol("true") if !negative => Literal::Bool(true),
            Token::Symbol("false") if !negative => Literal::Bool(false),
            Token::Symbol("null") if !negative => Literal::Null,
            _ => return self.unexpected(),
        };
        self.next();
        Ok(self.nodes.node(offset, Node::Literal(literal)))
    }

    /// Reads what starts with a name: a variable, a call or a message.
    fn name(&mut self) -> Result<Expr> {
        let dot = if self.accept(".").is_some() { "." } else { "" };
        let offset = self.offset();
        if let Some(words) = self.message_name() {
            let open = self.expect("{")?;
            return self.message(open, format!("{dot}{}", words.join(".")));
        }
        let Token::Ident(word) = self.peek().clone() else { return self.unexpected() };
        self.next();
        if RESERVED.contains(&word.as_str()) {
            return self.fail(offset, format!("reserved identifier: {word}"));
        }
        let name = format!("{dot}{word}");
        match self.accept("(") {
            Some(open) => {
                let args = self.arguments()?;
                macros::global_call(&mut self.nodes, open, name, args)
            }
            None => Ok(self.nodes.node(offset, Node::Ident(name))),
        }
    }

    /// Skips `a.b.C` if a brace follows it, and returns its words.
    fn message_name(&mut self) -> Option<Vec<String>> {
        let mut words = Vec::new();
        let mut at = self.at;
        loop {
            let Token::Ident(word) = &self.tokens.get(at)?.0 else { return None };
            words.push(word.clone());
            match &self.tokens.get(at + 1)?.0 {
                Token::Symbol("{") => {
                    self.at = at + 1;
                    return Some(words);
                }
                Token::Symbol(".") => at += 2,
                _ => return None,
            }
        }
    }

    /// Reads the fields of a message literal, after the opening brace.
    fn message(&mut self, open: u32, name: String) -> Result<Expr> {
        let mut fields = Vec::new();
        while self.accept("}").is_none() {
            let optional = self.accept("?").is_some();
            let (name, _) = self.field_name()?;
            let colon = self.expect(":")?;
            let value = self.expr()?;
            let id = self.nodes.id(colon);
            fields.push(Field { id, name, value, optional });
            self.separator("}")?;
        }
        Ok(self.nodes.node(open, Node::Struct { name, fields }))
    }

    /// Reads the elements of a list literal, after the opening bracket.
    fn list(&mut self, open: u32) -> Result<Expr> {
        let mut elements = Vec::new();
        while self.accept("]").is_none() {
            let optional = self.accept("?").is_some();
            elements.push(Element { value: self.expr()?, optional });
            self.separator("]")?;
        }
        Ok(self.nodes.node(open, Node::List(elements)))
    }

    /// Reads the entries of a map literal, after the opening brace.
    fn map(&mut self, open: u32) -> Result<Expr> {
        let mut entries = Vec::new();
        while self.accept("}").is_none() {
            let optional = self.accept("?").is_some();
            let key = self.expr()?;
            self.expect(":")?;
            let value = self.expr()?;
            entries.push(Entry { key, value, optional });
            self.separator("}")?;
        }
        Ok(self.nodes.node(open, Node::Map(entries)))
    }

    /// Reads a comma; it is optional before `end`.
    fn separator(&mut self, end: &str) -> Result<()> {
        if self.accept(",").is_some() || self.next_is(end) {
            return Ok(());
        }
        self.unexpected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_errors_have_a_position_and_text() {
        let cases = [
            ("a +", Some(3), "Syntax error: unexpected '<EOF>'"),
            ("a b", Some(2), "Syntax error: unexpected 'b'"),
            ("namespace == 'x'", Some(0), "reserved identifier: namespace"),
            ("a.`b`", Some(2), "unsupported syntax: '`'"),
            ("9223372036854775808", Some(0), "invalid int literal"),
            ("[1, 2", Some(5), "Syntax error: unexpected '<EOF>'"),
            ("has(a)", Some(4), "invalid argument to has() macro"),
            ("a.all(b.c, true)", Some(7), "argument must be a simple name"),
            ("a.map(1, true)", Some(6), "argument is not an identifier"),
            ("a.all(k, k, true)", Some(9), "duplicate variable name: k"),
        ];
        for (source, offset, message) in cases {
            let issue = parse(source).map(|_| ()).unwrap_err();
            assert_eq!((issue.offset, issue.message.as_str()), (offset, message), "{source}");
        }
        assert!(parse("-9223372036854775808 + --1 - -x").is_ok());
        for source in ["a.b.c{d: 1, ?e: 2,}.f", "[?a, b,]", "{?'a': b, c: d,}", "a[?b].?c", ".a(b)"]
        {
            assert!(parse(source).is_ok(), "{source}");
        }
    }
}
