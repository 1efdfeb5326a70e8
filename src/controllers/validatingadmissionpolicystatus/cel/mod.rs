//! The type checker of the Common Expression Language: from an expression and the types of its
//! variables to the type of the whole, or to what is wrong with it in the words of cel-go.
//! Nothing is evaluated. Upstream: cel-go's `cel.Env.Compile`.

mod ast;
mod checker;
mod issues;
mod lexer;
mod library;
mod macros;
mod parser;
mod types;
mod validate;

use std::collections::{BTreeMap, HashMap};

pub use self::library::named_type;
pub use self::parser::RESERVED;
pub use self::types::{Fields, LazyFields, Type};

/// The variables that an expression may name, and the types that it may name and make.
#[derive(Default)]
pub struct Environment {
    pub variables: HashMap<&'static str, Type>,
    /// Types with fields, by their names.
    pub types: BTreeMap<String, Type>,
}

impl Environment {
    fn lookup(&self, name: &str) -> Option<Type> {
        let of_type = || self.types.get(name).cloned().or_else(|| named_type(name));
        self.variables.get(name).cloned().or_else(|| of_type().map(Type::type_of))
    }

    /// The type of `source`, or all that is wrong with it as a text of several lines.
    pub fn compile(&self, source: &str) -> Result<Type, String> {
        let parsed = parser::parse(source).map_err(|issue| issues::display(source, vec![issue]))?;
        let types =
            checker::check(&parsed, self).map_err(|found| issues::display(source, found))?;
        let found = validate::validate(&parsed, &types);
        if !found.is_empty() {
            return Err(issues::display(source, found));
        }
        Ok(types.of(&parsed.expr).clone())
    }
}
