//! Macros: calls that expand to other expressions. Their nodes have the position of the call.
//! Upstream: cel-go's `parser.AllMacros`, `cel.OptionalTypes`, `ext.TwoVarComprehensions`,
//! `ext.Lists`.

use super::ast::{Comprehension, Element, Expr, Literal, Node, Nodes};
use super::issues::Issue;

type Result<T> = std::result::Result<T, Issue>;

/// The variable that holds the result of a comprehension. No user can write this name.
const ACCUMULATOR: &str = "@result";
/// The former name of [`ACCUMULATOR`], still refused.
const OLD_ACCUMULATOR: &str = "__result__";
const UNUSED: &str = "#unused";
const SORT_INPUT: &str = "@__sortBy_input__";

const NO_NAME: &str = "argument must be a simple name";
const NO_IDENTIFIER: &str = "argument is not an identifier";

/// Makes `function(args)`, whose bracket is at `at`; `has(a.b)`, the only global macro, becomes a
/// test of the field.
pub fn global_call(
    nodes: &mut Nodes,
    at: u32,
    function: String,
    mut args: Vec<Expr>,
) -> Result<Expr> {
    if function != "has" || args.len() != 1 {
        return Ok(nodes.node(at, Node::Call { function, target: None, args }));
    }
    let arg = args.remove(0);
    match arg.node {
        Node::Select { operand, field, .. } => {
            Ok(nodes.node(at, Node::Select { operand, field, test_only: true }))
        }
        _ => Err(Issue {
            offset: Some(nodes.position(arg.id)),
            message: "invalid argument to has() macro".to_owned(),
        }),
    }
}

/// Builds the call `target.function(args)`, whose bracket is at `at`, or what it expands to if it
/// is a macro.
pub fn member_call(
    nodes: &mut Nodes,
    at: u32,
    target: Expr,
    function: String,
    args: Vec<Expr>,
) -> Result<Expr> {
    let mut make = Make { nodes, at };
    match (function.as_str(), args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => {
            make.quantifier(&function, target, args)
        }
        ("map", 2 | 3) => make.map(target, args),
        ("filter", 2) => make.filter(target, args),
        ("transformList", 3 | 4) => make.transform_list(target, args),
        ("transformMap" | "transformMapEntry", 3 | 4) => {
            make.transform_map(&function, target, args)
        }
        ("optMap" | "optFlatMap", 2) => make.optional(&function, target, args),
        ("sortBy", 2) => make.sort_by(target, args),
        _ => Ok(make.node(Node::Call { function, target: Some(Box::new(target)), args })),
    }
}

/// The variables of a comprehension: one or two.
type Variables = (String, Option<String>);

/// Makes the nodes of a macro's expansion, all at the position of the call.
struct Make<'a> {
    nodes: &'a mut Nodes,
    at: u32,
}

impl Make<'_> {
    /// Expands `all`, `exists` and `exists_one` to a comprehension.
    fn quantifier(&mut self, kind: &str, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        let ((var, var2), mut bodies) = self.variables_and_body(args, 1)?;
        let body = bodies.remove(0);
        let (init, condition, step, result);
        match kind {
            "all" => {
                init = self.literal(Literal::Bool(true));
                let accu = self.accu();
                condition = self.call("@not_strictly_false", vec![accu]);
                let accu = self.accu();
                step = self.call("_&&_", vec![accu, body]);
                result = self.accu();
            }
            "exists" => {
                init = self.literal(Literal::Bool(false));
                let accu = self.accu();
                let not = self.call("!_", vec![accu]);
                condition = self.call("@not_strictly_false", vec![not]);
                let accu = self.accu();
                step = self.call("_||_", vec![accu, body]);
                result = self.accu();
            }
            _ => {
                init = self.literal(Literal::Int(0));
                condition = self.literal(Literal::Bool(true));
                let (accu, one) = (self.accu(), self.literal(Literal::Int(1)));
                let more = self.call("_+_", vec![accu, one]);
                step = self.when(Some(body), more);
                let (accu, one) = (self.accu(), self.literal(Literal::Int(1)));
                result = self.call("_==_", vec![accu, one]);
            }
        }
        let accu = ACCUMULATOR.to_owned();
        Ok(self.comprehension(Comprehension {
            range: target,
            var,
            var2,
            accu,
            init,
            condition,
            step,
            result,
        }))
    }

    /// Expands `list.map(e, [condition,] element)` to a comprehension.
    fn map(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        let var = self.one_variable(&args[0])?;
        let mut rest = args.into_iter().skip(1).rev();
        let (body, filter) = (rest.next(), rest.next());
        let step = self.add_element(body);
        let step = self.when(filter, step);
        let init = self.node(Node::List(Vec::new()));
        Ok(self.gather(target, (var, None), init, step))
    }

    /// Expands `list.filter(e, condition)` to a comprehension.
    fn filter(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        let var = self.one_variable(&args[0])?;
        let mut args = args.into_iter();
        let (element, filter) = (args.next(), args.next());
        let step = self.add_element(element);
        let step = self.when(filter, step);
        let init = self.node(Node::List(Vec::new()));
        Ok(self.gather(target, (var, None), init, step))
    }

    /// Expands `list.transformList(index, value, [filter,] element)` to a comprehension.
    fn transform_list(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        let bodies = args.len() - 2;
        let (vars, bodies) = self.variables_and_body(args, bodies)?;
        let mut rest = bodies.into_iter().rev();
        let (body, filter) = (rest.next(), rest.next());
        let step = self.add_element(body);
        let step = self.when(filter, step);
        let init = self.node(Node::List(Vec::new()));
        Ok(self.gather(target, vars, init, step))
    }

    /// Expands `transformMap(key, value, [filter,] newValue)` of a map, and
    /// `transformMapEntry(key, value, [filter,] entry)`, to a comprehension.
    fn transform_map(&mut self, kind: &str, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        let bodies = args.len() - 2;
        let (vars, bodies) = self.variables_and_body(args, bodies)?;
        let mut rest = bodies.into_iter().rev();
        let (body, filter) = (rest.next(), rest.next());
        let mut inserted = vec![self.accu()];
        if kind == "transformMap" {
            inserted.push(self.node(Node::Ident(vars.0.clone())));
        }
        inserted.extend(body);
        let step = self.call("cel.@mapInsert", inserted);
        let step = self.when(filter, step);
        let init = self.node(Node::Map(Vec::new()));
        Ok(self.gather(target, vars, init, step))
    }

    /// Expands `optMap` and `optFlatMap`: the body with the value bound to a name, if there is a
    /// value.
    fn optional(&mut self, kind: &str, target: Expr, mut args: Vec<Expr>) -> Result<Expr> {
        let Node::Ident(name) = &args[0].node else {
            return self
                .fail(&args[0], format!("{kind}() variable name must be a simple identifier"));
        };
        let (name, body) = (name.clone(), args.remove(1));
        let copy = self.nodes.copy(&target);
        let has_value = self.member(target, "hasValue", Vec::new());
        let value = self.member(copy, "value", Vec::new());
        let bound = self.bind(name, value, body);
        let mapped = match kind {
            "optMap" => self.call("optional.of", vec![bound]),
            _ => bound,
        };
        let none = self.call("optional.none", Vec::new());
        Ok(self.call("_?_:_", vec![has_value, mapped, none]))
    }

    /// Expands `list.sortBy(e, key)`: binds the list to a name, and sorts it by the keys that `map`
    /// computes from it. Upstream: `sortByMacro`.
    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr> {
        if !matches!(
            target.node,
            Node::List(_)
                | Node::Select { .. }
                | Node::Ident(_)
                | Node::Comprehension(_)
                | Node::Call { .. }
        ) {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call \
                           or select expression";
            return self.fail(&target, message.to_owned());
        }
        let input = self.node(Node::Ident(SORT_INPUT.to_owned()));
        let keys = self.map(input, args)?;
        let input = self.node(Node::Ident(SORT_INPUT.to_owned()));
        let sorted = self.member(input, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bind(SORT_INPUT.to_owned(), target, sorted))
    }

    /// Builds `body` with `value` bound to `name`: a loop over nothing, whose accumulator is the
    /// name.
    fn bind(&mut self, name: String, value: Expr, body: Expr) -> Expr {
        let range = self.node(Node::List(Vec::new()));
        let condition = self.literal(Literal::Bool(false));
        let step = self.node(Node::Ident(name.clone()));
        self.comprehension(Comprehension {
            range,
            var: UNUSED.to_owned(),
            var2: None,
            accu: name,
            init: value,
            condition,
            step,
            result: body,
        })
    }

    /// Returns a comprehension over all elements whose result is the accumulator.
    fn gather(&mut self, range: Expr, (var, var2): Variables, init: Expr, step: Expr) -> Expr {
        let (condition, result) = (self.literal(Literal::Bool(true)), self.accu());
        let accu = ACCUMULATOR.to_owned();
        self.comprehension(Comprehension { range, var, var2, accu, init, condition, step, result })
    }

    /// Returns the accumulator with one more element.
    fn add_element(&mut self, value: Option<Expr>) -> Expr {
        let elements = value.into_iter().map(|value| Element { value, optional: false }).collect();
        let (accu, list) = (self.accu(), self.node(Node::List(elements)));
        self.call("_+_", vec![accu, list])
    }

    /// Returns `step` if `filter` holds, else the unchanged accumulator.
    fn when(&mut self, filter: Option<Expr>, step: Expr) -> Expr {
        match filter {
            Some(filter) => {
                let accu = self.accu();
                self.call("_?_:_", vec![filter, step, accu])
            }
            None => step,
        }
    }

    fn node(&mut self, node: Node) -> Expr {
        self.nodes.node(self.at, node)
    }

    fn comprehension(&mut self, comprehension: Comprehension) -> Expr {
        self.node(Node::Comprehension(Box::new(comprehension)))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.nodes.call(self.at, function, args)
    }

    /// Makes the call `target.function(args)`.
    fn member(&mut self, target: Expr, function: &str, args: Vec<Expr>) -> Expr {
        let (function, target) = (function.to_owned(), Some(Box::new(target)));
        self.node(Node::Call { function, target, args })
    }

    fn literal(&mut self, literal: Literal) -> Expr {
        self.node(Node::Literal(literal))
    }

    /// Makes a reference to the accumulator.
    fn accu(&mut self) -> Expr {
        self.node(Node::Ident(ACCUMULATOR.to_owned()))
    }

    /// Returns the name of the only variable of a macro.
    fn one_variable(&self, arg: &Expr) -> Result<String> {
        let name = self.variable(arg, NO_IDENTIFIER)?;
        self.refuse_accumulator(arg, &name)?;
        Ok(name)
    }

    /// Splits `args` into variable names and the last `bodies` expressions.
    fn variables_and_body(
        &self,
        mut args: Vec<Expr>,
        bodies: usize,
    ) -> Result<(Variables, Vec<Expr>)> {
        let rest = args.split_off(args.len() - bodies);
        let var = self.variable(&args[0], NO_NAME)?;
        let var2 = args.get(1).map(|arg| self.variable(arg, NO_NAME)).transpose()?;
        if var2.as_ref() == Some(&var) {
            return self.fail(&args[1], format!("duplicate variable name: {var}"));
        }
        for (arg, name) in args.iter().zip([Some(&var), var2.as_ref()].into_iter().flatten()) {
            self.refuse_accumulator(arg, name)?;
        }
        Ok(((var, var2), rest))
    }

    /// Returns the name in `arg`; the error `otherwise` if it is not an identifier.
    fn variable(&self, arg: &Expr, otherwise: &str) -> Result<String> {
        match &arg.node {
            Node::Ident(name) => Ok(name.clone()),
            _ => self.fail(arg, otherwise.to_owned()),
        }
    }

    /// Refuses a variable with a name that the macros use themselves.
    fn refuse_accumulator(&self, arg: &Expr, name: &str) -> Result<()> {
        match name {
            ACCUMULATOR | OLD_ACCUMULATOR => {
                self.fail(arg, "iteration variable overwrites accumulator variable".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn fail<T>(&self, at: &Expr, message: String) -> Result<T> {
        Err(Issue { offset: Some(self.nodes.position(at.id)), message })
    }
}
