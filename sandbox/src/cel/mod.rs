//! Evaluates expressions of the Common Expression Language, as policies and schemas have them. The
//! crate `cel-compiler` parses them and expands their macros. Upstream: cel-go's `cel.Program`,
//! with the functions of Kubernetes' `apiserver/pkg/cel/library`.
//!
//! Objects are untyped: a field is looked up when it is used, and a function looks at the values
//! that it is given. Costs are counted in steps.

mod authorizer;
mod evaluate;
mod formats;
mod formatting;
mod functions;
mod kubernetes;
mod lists;
mod net;
mod operators;
mod strings;
mod times;
mod value;

pub use self::authorizer::Authorize;
pub use self::evaluate::Variables;
pub use self::times::parse_duration;
pub use self::value::{Key, Question, Value};

use cel_compiler::ast::{Expr, Node};

/// A value, or an error with cel-go's text.
pub type Result<T> = std::result::Result<T, String>;

/// The error of an expression that takes too many steps or makes too long a value.
const COST_LIMIT: &str = "operation cancelled: actual cost limit exceeded";

/// An expression that is ready to be evaluated.
#[derive(Debug)]
pub struct Program {
    expr: Expr,
}

impl Program {
    /// Parses an expression. Errors: where the syntax is wrong.
    pub fn parse(source: &str) -> Result<Program> {
        Ok(Program { expr: cel_compiler::parse(source)? })
    }

    /// Returns whether the expression names this variable.
    pub fn uses(&self, variable: &str) -> bool {
        fn names(expr: &Expr, variable: &str) -> bool {
            let mut found = matches!(&expr.node, Node::Ident(name) if name == variable);
            expr.node.children(&mut |child| found = found || names(child, variable));
            found
        }
        names(&self.expr, variable)
    }

    /// Returns the value of the expression. Recursive: see [`cel_compiler::on_deep_stack`].
    pub fn evaluate(&self, variables: &Variables<'_>) -> Result<Value> {
        evaluate::evaluate(&self.expr, variables)
    }
}

#[cfg(test)]
mod tests;
