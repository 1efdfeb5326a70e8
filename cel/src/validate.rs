//! Issues in expressions whose types fit: list and map literals of mixed types, and format strings
//! with arguments of the wrong type. The API server checks literals (patterns, durations,
//! timestamps) before it stores a policy.
//! Upstream: cel-go's `ValidateHomogeneousAggregateLiterals`, `ext.stringFormatValidator`.

use super::ast::{Expr, Literal, Node};
use super::checker::Types;
use super::issues::Issue;
use super::parser::Parsed;
use super::types::Type;

/// Returns issues of what the checker accepts and Kubernetes refuses.
pub fn validate(parsed: &Parsed, types: &Types) -> Vec<Issue> {
    let mut validator = Validator { parsed, types, issues: Vec::new() };
    validator.check_literals(&parsed.expr, false);
    validator.check_formats(&parsed.expr);
    validator.issues
}

/// Collects the issues of one checked expression.
struct Validator<'a> {
    parsed: &'a Parsed,
    types: &'a Types,
    issues: Vec<Issue>,
}

impl Validator<'_> {
    fn report(&mut self, at: &Expr, message: String) {
        let offset = Some(self.parsed.positions[at.id as usize]);
        self.issues.push(Issue { offset, message });
    }

    fn report_mismatch(&mut self, at: &Expr, expected: &Type, found: &Type) {
        self.report(at, format!("expected type '{expected}' but found '{found}'"));
    }

    /// Reports literals of lists and maps whose elements have different types. `exempt`: within the
    /// arguments of a format, which may be of any types.
    fn check_literals(&mut self, expr: &Expr, exempt: bool) {
        let exempt =
            exempt || matches!(&expr.node, Node::Call { function, .. } if function == "format");
        match &expr.node {
            Node::List(elements) if !exempt => {
                let mut values = elements.iter();
                let type_in_list = |element: &super::ast::Element| {
                    element_type(self.types.type_of(&element.value), element.optional)
                };
                let first = values.next().map(type_in_list);
                let other = values.find(|element| Some(type_in_list(element)) != first);
                if let (Some(first), Some(other)) = (first, other) {
                    let found = type_in_list(other);
                    self.report_mismatch(&other.value, &first, &found);
                }
            }
            Node::Map(entries) if !exempt => {
                let mut first: Option<(Type, Type)> = None;
                for entry in entries {
                    let key = self.types.type_of(&entry.key).clone();
                    let value = element_type(self.types.type_of(&entry.value), entry.optional);
                    match &first {
                        None => first = Some((key, value)),
                        Some((keys, values)) => {
                            if *keys != key {
                                self.report_mismatch(&entry.key, keys, &key);
                            }
                            if *values != value {
                                self.report_mismatch(&entry.value, values, &value);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
        expr.node.children(&mut |child| self.check_literals(child, exempt));
    }

    /// Checks formats that are string literals with a literal list of arguments.
    fn check_formats(&mut self, expr: &Expr) {
        if let Node::Call { function, target: Some(target), args } = &expr.node
            && function == "format"
            && let Node::Literal(Literal::String(format)) = &target.node
            && let [Expr { node: Node::List(elements), .. }] = args.as_slice()
        {
            let mut values = elements.iter().map(|element| &element.value);
            for clause in clauses(format) {
                let Some(value) = values.next() else { break };
                if let Err((at, message)) = self.check_clause(clause, value) {
                    self.report(at, format!("error during formatting: {message}"));
                    break;
                }
            }
        }
        expr.node.children(&mut |child| self.check_formats(child));
    }

    /// Checks that a clause of a format can print `value`. The error has the expression at fault.
    fn check_clause<'e>(&self, clause: char, value: &'e Expr) -> Result<(), (&'e Expr, String)> {
        let found = self.types.type_of(value);
        let (fits, wanted) = match clause {
            's' => {
                return match self.unprintable(value) {
                    None => Ok(()),
                    Some(at) => Err((
                        at,
                        format!(
                            "string clause can only be used on strings, bools, bytes, ints, \
                             doubles, maps, lists, types, durations, and timestamps, was given {}",
                            self.types.type_of(at).name()
                        ),
                    )),
                };
            }
            'd' => (
                matches!(found, Type::Int | Type::Uint),
                "decimal clause can only be used on integers",
            ),
            'o' => (
                matches!(found, Type::Int | Type::Uint),
                "octal clause can only be used on integers",
            ),
            'f' => (
                matches!(found, Type::Double | Type::String),
                "fixed-point clause can only be used on doubles",
            ),
            'e' => (
                matches!(found, Type::Double | Type::String),
                "scientific clause can only be used on doubles",
            ),
            'b' => (
                matches!(found, Type::Int | Type::Uint | Type::Bool),
                "only integers and bools can be formatted as binary",
            ),
            // `x` and `X`.
            _ => (
                matches!(found, Type::Int | Type::Uint | Type::String | Type::Bytes),
                "only integers, byte buffers, and strings can be formatted as hex",
            ),
        };
        if fits || *found == Type::Dyn {
            return Ok(());
        }
        Err((value, format!("{wanted}, was given {}", found.name())))
    }

    /// Finds the first part of `value` that a string clause cannot print.
    fn unprintable<'e>(&self, value: &'e Expr) -> Option<&'e Expr> {
        if matches!(
            self.types.type_of(value),
            Type::Opaque(..) | Type::Struct(_) | Type::Error | Type::Param(_)
        ) {
            return Some(value);
        }
        if !matches!(value.node, Node::List(_) | Node::Map(_)) {
            return None;
        }
        let mut found = None;
        value.node.children(&mut |child| {
            found = found.or_else(|| self.unprintable(child));
        });
        found
    }
}

/// Returns the type that an element adds to its list: for an optional element, the type inside.
fn element_type(of: &Type, optional: bool) -> Type {
    match of.unwrap_optional() {
        Some(inner) if optional => inner.clone(),
        _ => of.clone(),
    }
}

/// Returns the letters of a format's clauses. The API server has refused malformed formats.
fn clauses(format: &str) -> Vec<char> {
    let mut found = Vec::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' || characters.next_if_eq(&'%').is_some() {
            continue;
        }
        if characters.next_if_eq(&'.').is_some() {
            while characters.next_if(char::is_ascii_digit).is_some() {}
        }
        match characters.next() {
            Some(letter @ ('s' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o')) => found.push(letter),
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_found() {
        for (format, expected) in
            [("%d%% of %.3f, %s", "dfs"), ("no", ""), ("%", ""), ("%q %d", ""), ("%%%x", "x")]
        {
            assert_eq!(clauses(format).into_iter().collect::<String>(), expected, "{format}");
        }
    }
}
