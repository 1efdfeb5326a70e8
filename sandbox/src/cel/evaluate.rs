//! Walks the tree of an expression. Upstream: cel-go's `interpreter`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel_compiler::ast::{Comprehension, Expr, Literal, Node};

use super::COST_LIMIT;
use super::authorizer::Authorize;
use super::value::{Key, Value};
use super::{Result, functions, operators};

/// The limit for steps of one expression. Upstream: `PerCallLimit`, in other units.
const MAX_STEPS: u64 = 1_000_000;

/// The variables of an expression, and the authorizer that it may call.
#[derive(Default)]
pub struct Variables<'a> {
    values: HashMap<&'a str, Value>,
    /// Variables of a policy, `variables.NAME`: evaluated when they are first used.
    lazy: Vec<Lazy<'a>>,
    authorize: Option<&'a dyn Authorize>,
}

struct Lazy<'a> {
    name: &'a str,
    expr: Result<&'a Expr>,
    found: RefCell<Option<Result<Value>>>,
}

impl<'a> Variables<'a> {
    pub fn new(authorize: &'a dyn Authorize) -> Variables<'a> {
        Variables { authorize: Some(authorize), ..Variables::default() }
    }

    pub fn set(&mut self, name: &'a str, value: Value) {
        self.values.insert(name, value);
    }

    /// Adds `variables.NAME`. Expressions see those that were added before them.
    pub fn add_lazy(&mut self, name: &'a str, program: Result<&'a super::Program>) {
        let expr = program.map(|program| &program.expr);
        self.lazy.push(Lazy { name, expr, found: RefCell::default() });
    }
}

pub fn evaluate(expr: &Expr, variables: &Variables<'_>) -> Result<Value> {
    let known = variables.lazy.len();
    Walk { variables, known, locals: Vec::new(), steps: &Cell::new(0) }.value(expr)
}

struct Walk<'a> {
    variables: &'a Variables<'a>,
    /// How many of the lazy variables may be used.
    known: usize,
    /// The variables of comprehensions. An accumulator may hold an error.
    locals: Vec<(String, Result<Value>)>,
    steps: &'a Cell<u64>,
}

const NO_OVERLOAD: &str = "no such overload";

impl Walk<'_> {
    /// Counts the steps of an evaluation; fails when there are too many.
    fn charge(&self, steps: u64) -> Result<()> {
        self.steps.set(self.steps.get() + steps);
        if self.steps.get() > MAX_STEPS { Err(COST_LIMIT.to_owned()) } else { Ok(()) }
    }

    /// Evaluates an expression. Each node costs a step, and too many steps are an error.
    fn value(&mut self, expr: &Expr) -> Result<Value> {
        self.charge(1)?;
        match &expr.node {
            Node::Literal(literal) => Ok(literal_value(literal)),
            Node::Ident(name) => self.variable(name),
            Node::Select { operand, field, test_only } => self.select(operand, field, *test_only),
            Node::Call { function, target, args } => self.call(function, target.as_deref(), args),
            Node::List(elements) => {
                let mut items = Vec::with_capacity(elements.len());
                for element in elements {
                    let value = self.value(&element.value)?;
                    items.extend(if element.optional { optional(value)? } else { Some(value) });
                }
                Ok(Value::list(items))
            }
            Node::Map(entries) => {
                let mut members = BTreeMap::new();
                for entry in entries {
                    let key = self.value(&entry.key)?;
                    let key = Key::of(&key)
                        .ok_or_else(|| format!("unsupported key type: {}", key.type_name()))?;
                    let value = self.value(&entry.value)?;
                    let value = if entry.optional { optional(value)? } else { Some(value) };
                    let Some(value) = value else { continue };
                    if members.insert(key, value).is_some() {
                        return Err("Failed with repeated key".to_owned());
                    }
                }
                Ok(Value::Map(Arc::new(members)))
            }
            Node::Struct { name, .. } => Err(format!("unknown type: {name}")),
            Node::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    /// Looks a name up: first the variables of macros, the innermost first, then those of the
    /// expression, then the types. A leading dot is ignored.
    fn variable(&self, name: &str) -> Result<Value> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| local == name) {
            return value.clone();
        }
        if let Some(value) = self.variables.values.get(name) {
            return Ok(value.clone());
        }
        functions::type_named(name).ok_or_else(|| format!("no such attribute(s): {name}"))
    }

    fn is_variable(&self, name: &str) -> bool {
        self.locals.iter().any(|(local, _)| local == name)
            || self.variables.values.contains_key(name)
    }

    /// Returns the variable `variables.NAME` of the policy: evaluates it at its first use, and
    /// keeps the result. Upstream: `compositedCompiler`.
    fn policy_variable(&self, name: &str) -> Result<Value> {
        // A variable can use only those that are declared before it.
        let known = &self.variables.lazy[..self.known];
        let Some(at) = known.iter().rposition(|lazy| lazy.name == name) else {
            return Err(format!("no such key: {name}"));
        };
        let lazy = &known[at];
        if let Some(found) = &*lazy.found.borrow() {
            return found.clone();
        }
        let mut walk =
            Walk { variables: self.variables, known: at, locals: Vec::new(), steps: self.steps };
        let found =
            lazy.expr.clone().and_then(|expr| walk.value(expr)).map_err(|error| {
                format!("composited variable {name:?} fails to evaluate: {error}")
            });
        *lazy.found.borrow_mut() = Some(found.clone());
        found
    }

    /// Evaluates `operand.field`, or `has(operand.field)` if `test_only`.
    fn select(&mut self, operand: &Expr, field: &str, test_only: bool) -> Result<Value> {
        if let Node::Ident(name) = &operand.node
            && name == "variables"
            && !self.is_variable(name)
        {
            let found = self.policy_variable(field);
            return if test_only { Ok(found.is_ok().into()) } else { found };
        }
        // The name of a variable may have a dot.
        if let Node::Ident(name) = &operand.node
            && let Some(found) = self.variables.values.get(format!("{name}.{field}").as_str())
            && !test_only
        {
            return Ok(found.clone());
        }
        let container = match self.value(operand) {
            // The name of a type may have dots.
            Err(error) => {
                let named = operand.qualified_name().map(|name| format!("{name}.{field}"));
                let named = named.filter(|_| !test_only);
                return named.and_then(|name| functions::type_named(&name)).ok_or(error);
            }
            Ok(container) => container,
        };
        let found = match &container {
            Value::Optional(None) if test_only => return Ok(false.into()),
            Value::Optional(None) => return Ok(container),
            Value::Optional(Some(inner)) => {
                let found = operators::field(inner, field)?;
                return Ok(if test_only { found.is_some().into() } else { found.into() });
            }
            _ => operators::field(&container, field)?,
        };
        match found {
            found if test_only => Ok(found.is_some().into()),
            Some(found) => Ok(found),
            None => Err(format!("no such key: {field}")),
        }
    }

    /// Evaluates a call. Operators that need not evaluate all operands are decided here, the others
    /// by name in [`functions::call`].
    fn call(&mut self, function: &str, target: Option<&Expr>, args: &[Expr]) -> Result<Value> {
        match (function, args) {
            ("_&&_", [left, right]) => return self.logic(left, right, false),
            ("_||_", [left, right]) => return self.logic(left, right, true),
            ("_?_:_", [test, yes, no]) => {
                return match self.value(test)? {
                    Value::Bool(true) => self.value(yes),
                    Value::Bool(false) => self.value(no),
                    _ => Err(NO_OVERLOAD.to_owned()),
                };
            }
            // The condition of the macros `all` and `exists`: an error does not end their loop.
            ("@not_strictly_false", [arg]) => {
                return Ok((!matches!(self.value(arg), Ok(Value::Bool(false)))).into());
            }
            // `a.or(b)` evaluates `b` only where it is needed.
            ("or" | "orValue", [other]) => {
                let Some(target) = target else { return Err(NO_OVERLOAD.to_owned()) };
                return match (function, self.value(target)?) {
                    ("or", found @ Value::Optional(Some(_))) => Ok(found),
                    (_, Value::Optional(Some(found))) => Ok((*found).clone()),
                    (_, Value::Optional(None)) => self.value(other),
                    _ => Err(NO_OVERLOAD.to_owned()),
                };
            }
            _ => {}
        }
        // `sets.contains(a, b)` is a function with a dot in its name.
        let qualified = target.and_then(Expr::qualified_name).filter(|name| {
            let first = name.split('.').next().unwrap_or_default();
            !self.is_variable(first) && functions::is_namespace(name)
        });
        let (name, target) = match qualified {
            Some(namespace) => (format!("{namespace}.{function}"), None),
            None => (function.to_owned(), target),
        };
        let mut values = Vec::with_capacity(args.len() + 1);
        for arg in target.into_iter().chain(args) {
            values.push(self.value(arg)?);
        }
        self.charge(functions::cost(&name, &values))?;
        functions::call(&name, target.is_some(), &values, self.variables.authorize)
    }

    /// Evaluates `&&` (`decides` is false) or `||` (`decides` is true): an error counts only where
    /// the other side does not decide.
    fn logic(&mut self, left: &Expr, right: &Expr, decides: bool) -> Result<Value> {
        let as_bool = |value: Result<Value>| match value {
            Ok(Value::Bool(value)) => Ok(value),
            Ok(_) => Err(NO_OVERLOAD.to_owned()),
            Err(error) => Err(error),
        };
        let left = as_bool(self.value(left));
        if left == Ok(decides) {
            return Ok(decides.into());
        }
        let right = as_bool(self.value(right));
        if right == Ok(decides) {
            return Ok(decides.into());
        }
        left?;
        right.map(Value::from)
    }

    /// Evaluates a macro such as `all` or `map`: steps through the range while its condition holds.
    /// The variables of each step are removed after it.
    fn comprehension(&mut self, c: &Comprehension) -> Result<Value> {
        let range = self.value(&c.range)?;
        let items: Vec<(Value, Option<Value>)> = match (&range, c.var2.is_some()) {
            (Value::List(items), false) => items.iter().map(|item| (item.clone(), None)).collect(),
            (Value::List(items), true) => {
                let items = items.iter().enumerate();
                items.map(|(at, item)| (Value::int(at), Some(item.clone()))).collect()
            }
            (Value::Map(members), two) => {
                let members = members.iter();
                members.map(|(key, value)| (key.value(), two.then(|| value.clone()))).collect()
            }
            _ => return Err(NO_OVERLOAD.to_owned()),
        };
        let depth = self.locals.len();
        // An error stays in the accumulator: a later step of `all` or `exists` may still decide.
        let mut accumulator = self.value(&c.init);
        for (first, second) in items {
            self.locals.push((c.accu.clone(), accumulator.clone()));
            self.locals.push((c.var.clone(), Ok(first)));
            if let (Some(name), Some(second)) = (&c.var2, second) {
                self.locals.push((name.clone(), Ok(second)));
            }
            let condition = self.value(&c.condition);
            if !matches!(condition, Ok(Value::Bool(true))) {
                self.locals.truncate(depth);
                break;
            }
            accumulator = self.value(&c.step);
            self.locals.truncate(depth);
            // The result fails then, as each further step does.
            if self.steps.get() > MAX_STEPS {
                break;
            }
        }
        self.locals.push((c.accu.clone(), accumulator));
        let result = self.value(&c.result);
        self.locals.truncate(depth);
        result
    }
}

/// Returns the value of an optional entry such as `[?x]`; `None` if the entry is left out.
fn optional(value: Value) -> Result<Option<Value>> {
    match value {
        Value::Optional(value) => Ok(value.map(|value| (*value).clone())),
        other => Err(format!(
            "cannot initialize optional entry from non-optional value {}",
            other.type_name()
        )),
    }
}

/// Converts a literal of the expression to a value.
fn literal_value(literal: &Literal) -> Value {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::Bytes(bytes) => Value::Bytes(bytes.as_slice().into()),
        Literal::String(text) => text.as_str().into(),
    }
}
