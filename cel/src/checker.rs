//! Finds the type of every node, and type errors. Upstream: cel-go's `checker`.

use super::Environment;
use super::ast::{Comprehension, Element, Entry, Expr, Field, Id, Literal, Node};
use super::issues::Issue;
use super::library::{self, Overload};
use super::parser::Parsed;
use super::types::{Fields, Struct, Substitutions, Type};

/// The type of each node, by [`Id`]. A node that a macro drops is dynamic.
pub struct Types(Vec<Type>);

impl Types {
    /// Returns the type of an expression; `dyn` for one without a record.
    pub fn type_of(&self, expr: &Expr) -> &Type {
        self.0.get(expr.id as usize).unwrap_or(&Type::Dyn)
    }
}

/// Checks a parsed expression. Returns the types of its nodes, or all issues in the order in which
/// they were found.
pub fn check(parsed: &Parsed, environment: &Environment) -> Result<Types, Vec<Issue>> {
    let mut checker = Checker {
        environment,
        positions: &parsed.positions,
        scopes: Vec::new(),
        types: vec![Type::Dyn; parsed.positions.len()],
        known: Substitutions::default(),
        issues: Vec::new(),
    };
    checker.check(&parsed.expr);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let known = checker.known;
    Ok(Types(checker.types.iter().map(|of| known.finish(of)).collect()))
}

/// Finds the types of one expression's nodes, and collects the issues.
struct Checker<'a> {
    environment: &'a Environment,
    positions: &'a [u32],
    /// The variables of comprehensions, innermost last.
    scopes: Vec<(&'a str, Type)>,
    types: Vec<Type>,
    known: Substitutions,
    issues: Vec<Issue>,
}

impl<'a> Checker<'a> {
    fn type_of(&self, expr: &Expr) -> Type {
        self.types[expr.id as usize].clone()
    }

    fn report(&mut self, id: Id, message: String) {
        self.issues.push(Issue { offset: Some(self.positions[id as usize]), message });
    }

    /// Reports an expression whose type is not the expected one.
    fn report_mismatch(&mut self, at: &Expr, expected: &Type, found: &Type) {
        self.report(at.id, format!("expected type '{expected}' but found '{found}'"));
    }

    /// Reports a name that is not declared, and returns the type of an error.
    fn report_undeclared(&mut self, id: Id, name: &str) -> Type {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    /// Reports a type whose fields are not known, and returns the type of an error.
    fn report_unresolved(&mut self, id: Id, name: &str) -> Type {
        self.report(id, format!("unexpected failed resolution of '{name}'"));
        Type::Error
    }

    /// Reports a field that its type does not have, and returns the type of an error.
    fn report_undefined(&mut self, id: Id, field: &str) -> Type {
        self.report(id, format!("undefined field '{field}'"));
        Type::Error
    }

    /// Checks `expr`, records its type and returns it.
    fn check(&mut self, expr: &'a Expr) -> Type {
        let found = match &expr.node {
            Node::Literal(literal) => match literal {
                Literal::Null => Type::Null,
                Literal::Bool(_) => Type::Bool,
                Literal::Int(_) => Type::Int,
                Literal::Uint(_) => Type::Uint,
                Literal::Double(_) => Type::Double,
                Literal::Bytes(_) => Type::Bytes,
                Literal::String(_) => Type::String,
            },
            Node::Ident(name) => match self.lookup(name) {
                Some(found) => found,
                None => self.report_undeclared(expr.id, name),
            },
            Node::Select { operand, field, test_only } => {
                self.check_select(expr, operand, field, *test_only)
            }
            Node::Call { function, target, args } => {
                self.check_call(expr, function, target.as_deref(), args)
            }
            Node::List(elements) => self.check_list(elements),
            Node::Map(entries) => self.check_map(entries),
            Node::Struct { name, fields } => self.check_struct(expr, name, fields),
            Node::Comprehension(comprehension) => self.check_comprehension(comprehension),
        };
        self.types[expr.id as usize] = found.clone();
        found
    }

    /// Returns the type of a variable in scope, or of a name of the environment.
    fn lookup(&self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        match self.scopes.iter().rev().find(|(known, _)| *known == name) {
            Some((_, local)) => Some(local.clone()),
            None => self.environment.lookup(name),
        }
    }

    /// Determines the type of `operand.field`, which may be a qualified name; with `test_only`, of
    /// `has(operand.field)`.
    fn check_select(
        &mut self,
        expr: &Expr,
        operand: &'a Expr,
        field: &str,
        test_only: bool,
    ) -> Type {
        if !test_only && let Some(found) = expr.qualified_name().and_then(|name| self.lookup(&name))
        {
            return found;
        }
        let found = self.select_field(expr, operand, field, false);
        if test_only { Type::Bool } else { self.known.resolve(&found) }
    }

    /// Determines the type of a field of `operand`. `optional`: selected by `.?`.
    fn select_field(
        &mut self,
        expr: &Expr,
        operand: &'a Expr,
        field: &str,
        optional: bool,
    ) -> Type {
        let operand = self.check(operand);
        let operand = self.known.resolve(&operand);
        let inner = operand.unwrap_optional();
        let target = inner.unwrap_or(&operand);
        let found = match target {
            Type::Map(of) => of.1.clone(),
            Type::Struct(of) => self.field_type(expr.id, of, field),
            Type::Param(_) => {
                self.known.assign(&Type::Dyn, target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    let message = format!("type '{other}' does not support field selection");
                    self.report(expr.id, message);
                }
                Type::Dyn
            }
        };
        if optional || inner.is_some() { Type::optional(found) } else { found }
    }

    /// Returns the type of a field of `of`; an unknown field is an issue.
    fn field_type(&mut self, id: Id, of: &Struct, field: &str) -> Type {
        if let Fields::Unknown = of.fields {
            return self.report_unresolved(id, &of.name);
        }
        of.field(field).unwrap_or_else(|| self.report_undefined(id, field))
    }

    /// Checks a call of a function or method, and returns the type of its result. Upstream:
    /// `checkCall`.
    fn check_call(
        &mut self,
        expr: &Expr,
        function: &str,
        target: Option<&'a Expr>,
        args: &'a [Expr],
    ) -> Type {
        // `operand.?field`: the field's name is the text of a literal.
        if let ("_?._", [operand, Expr { node: Node::Literal(Literal::String(field)), .. }]) =
            (function, args)
        {
            let found = self.select_field(expr, operand, field, true);
            return self.known.resolve(&found);
        }
        for arg in args {
            self.check(arg);
        }
        let overloads_of = |name: &str| library::overloads(name.strip_prefix('.').unwrap_or(name));
        let Some(target) = target else {
            return match overloads_of(function) {
                [] => self.report_undeclared(expr.id, function),
                overloads => self.resolve(expr, function, overloads, None, args),
            };
        };
        // `a.b.c()` is the function of that name if there is one, else `c` called on `a.b`.
        if let Some(prefix) = target.qualified_name() {
            let name = format!("{prefix}.{function}");
            let overloads = overloads_of(&name);
            if !overloads.is_empty() {
                return self.resolve(expr, &name, overloads, None, args);
            }
        }
        self.check(target);
        match overloads_of(function) {
            [] => self.report_undeclared(expr.id, function),
            overloads => self.resolve(expr, function, overloads, Some(target), args),
        }
    }

    /// Chooses the overloads that fit a call. Returns their common result, or `dyn` where their
    /// results differ: a dynamic argument may fit several. An issue if none fits.
    fn resolve(
        &mut self,
        expr: &Expr,
        function: &str,
        overloads: &[Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Type {
        if matches!(function, "_&&_" | "_||_") {
            return self.resolve_logic(args);
        }
        let found: Vec<Type> =
            target.into_iter().chain(args).map(|arg| self.type_of(arg)).collect();
        let mut result: Option<Type> = None;
        for overload in overloads.iter().filter(|overload| overload.member == target.is_some()) {
            let (wanted, gives) = overload.instantiate(&mut self.known);
            if !self.known.assign_all(&found, &wanted) {
                continue;
            }
            let gives = self.known.resolve(&gives);
            result = Some(match result {
                None => gives,
                Some(before) if before.is_dyn() || before == gives => before,
                Some(_) => Type::Dyn,
            });
        }
        if let Some(result) = result {
            return result;
        }
        let mut printed: Vec<String> =
            found.iter().map(|of| self.known.finish(of).to_string()).collect();
        let receiver = target.map(|_| printed.remove(0) + ".").unwrap_or_default();
        let message = format!(
            "found no matching overload for '{}' applied to '{receiver}({})'",
            function.strip_prefix('.').unwrap_or(function),
            printed.join(", ")
        );
        self.report(expr.id, message);
        Type::Error
    }

    /// Checks that the arguments of `&&` and `||` are bools.
    fn resolve_logic(&mut self, args: &[Expr]) -> Type {
        let mut result = Type::Bool;
        for arg in args {
            let found = self.type_of(arg);
            if !self.known.assign(&found, &Type::Bool) {
                self.report_mismatch(arg, &Type::Bool, &found);
                result = Type::Error;
            }
        }
        result
    }

    /// Returns the type inside an optional element. An element that is not optional is an issue,
    /// unless it is `dyn`; its own type is returned.
    fn unwrap_element(&mut self, value: &Expr, found: Type) -> Type {
        if let Some(inner) = found.unwrap_optional() {
            return inner.clone();
        }
        if !found.is_dyn() {
            self.report_mismatch(value, &Type::optional(found.clone()), &found);
        }
        found
    }

    /// Determines the type of a list literal: its elements have one type in common, or the list is
    /// of `dyn`.
    fn check_list(&mut self, elements: &'a [Element]) -> Type {
        let mut joined = None;
        for Element { value, optional } in elements {
            let mut found = self.check(value);
            if *optional {
                found = self.unwrap_element(value, found);
            }
            joined = Some(self.join(joined, found));
        }
        Type::list(joined.unwrap_or_else(|| Type::Param(self.known.fresh())))
    }

    /// Determines the type of a map literal; mixed types of keys or values are joined.
    fn check_map(&mut self, entries: &'a [Entry]) -> Type {
        let mut joined: (Option<Type>, Option<Type>) = (None, None);
        for Entry { key, value, optional } in entries {
            let found = self.check(key);
            joined.0 = Some(self.join(joined.0, found));
            let mut found = self.check(value);
            if *optional {
                found = self.unwrap_element(value, found);
            }
            joined.1 = Some(self.join(joined.1, found));
        }
        let (key, value) = match joined {
            (Some(key), Some(value)) => (key, value),
            _ => (Type::Param(self.known.fresh()), Type::Param(self.known.fresh())),
        };
        Type::map(key, value)
    }

    /// Joins two types to the more general one, or to `dyn` where neither is.
    fn join(&mut self, before: Option<Type>, found: Type) -> Type {
        match before {
            None => found,
            Some(before) if self.known.assign(&before, &found) => {
                before.most_general(&found).clone()
            }
            Some(_) => Type::Dyn,
        }
    }

    /// Checks a message literal, and returns its type. Upstream: `checkCreateStruct`.
    fn check_struct(&mut self, expr: &Expr, name: &str, fields: &'a [Field]) -> Type {
        let Some(named) = self.lookup(name) else { return self.report_undeclared(expr.id, name) };
        let name = name.strip_prefix('.').unwrap_or(name);
        let result = match &named {
            Type::Kind(Some(of)) => match &**of {
                Type::Struct(_) | Type::Timestamp | Type::Duration | Type::Null => (**of).clone(),
                other => {
                    self.report(expr.id, format!("'{}' is not a message type", other.name()));
                    Type::Error
                }
            },
            Type::Error => Type::Error,
            other => {
                self.report(expr.id, format!("'{}' is not a type", other.name()));
                Type::Error
            }
        };
        for Field { id, name: field, value, optional } in fields {
            let mut found = self.check(value);
            let wanted = self.literal_field(*id, &named, name, field);
            if *optional {
                found = self.unwrap_element(value, found);
            }
            if !self.known.assign(&wanted, &found) {
                let message = format!(
                    "expected type of field '{field}' is '{wanted}' but provided type is '{found}'"
                );
                self.report(*id, message);
            }
        }
        result
    }

    /// Returns the type of a field that a message literal sets. `named`: what the literal's type
    /// `name` stands for. Upstream: `lookupFieldType`, `DeclTypeProvider.FindStructFieldType`.
    fn literal_field(&mut self, id: Id, named: &Type, name: &str, field: &str) -> Type {
        let Type::Kind(Some(of)) = named else { return self.report_unresolved(id, name) };
        match &**of {
            Type::Struct(of) => self.field_type(id, of, field),
            Type::Timestamp | Type::Duration if matches!(field, "seconds" | "nanos") => Type::Int,
            Type::Map(entry) => entry.1.clone(),
            Type::Null => self.report_unresolved(id, "google.protobuf.NullValue"),
            Type::Opaque(..) | Type::Kind(_) => self.report_unresolved(id, name),
            _ => self.report_undefined(id, field),
        }
    }

    /// Checks a macro's loop, and returns the type of its result. Each part sees the variables that
    /// are in scope there. Upstream: `checkComprehension`.
    fn check_comprehension(&mut self, of: &'a Comprehension) -> Type {
        let range = self.check(&of.range);
        let accu = self.check(&of.init);
        let range = self.known.resolve(&range);
        let depth = self.scopes.len();
        self.scopes.push((&of.accu, accu.clone()));
        let two = of.var2.is_some();
        let (var, var2) = match &range {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.known.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension \
                     (must be list, map, or dynamic)"
                );
                self.report(of.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        self.scopes.push((&of.var, var));
        if let Some(name) = &of.var2 {
            self.scopes.push((name, var2));
        }
        self.check(&of.condition);
        self.assert(&of.condition, &Type::Bool);
        self.check(&of.step);
        self.assert(&of.step, &accu);
        self.scopes.truncate(depth + 1);
        let result = self.check(&of.result);
        self.scopes.truncate(depth);
        self.known.resolve(&result)
    }

    /// Reports an issue for an expression whose type does not fit `wanted`.
    fn assert(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.type_of(expr);
        if !self.known.assign(wanted, &found) {
            self.report_mismatch(expr, wanted, &found);
        }
    }
}
