//! The parser and type checker of the Common Expression Language. It takes an expression and the
//! types of its variables, and returns the type of the whole or the issues with cel-go's text. It
//! evaluates nothing: the sandbox does. Upstream: cel-go's `cel.Env.Compile`.
//!
//! The parser is our own because the positions of nodes and the expanded macros must be those of
//! cel-go. The crate `cel` lacks comprehensions of two variables and optional mapping, and depends
//! on a runtime for generated parsers.

pub mod ast;
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

/// The variables and types that an expression may use.
#[derive(Default)]
pub struct Environment {
    pub variables: HashMap<&'static str, Type>,
    /// Types with fields, by name.
    pub types: BTreeMap<String, Type>,
}

impl Environment {
    /// Returns the type of a variable; for the name of a type, the type of types.
    fn lookup(&self, name: &str) -> Option<Type> {
        let of_type = || self.types.get(name).cloned().or_else(|| named_type(name));
        self.variables.get(name).cloned().or_else(|| of_type().map(Type::type_of))
    }

    /// Returns the type of `source`, or all its issues as a text of several lines. Recursive: see
    /// [`on_deep_stack`].
    pub fn compile(&self, source: &str) -> Result<Type, String> {
        let parsed = parser::parse(source).map_err(|issue| issues::display(source, vec![issue]))?;
        let types =
            checker::check(&parsed, self).map_err(|found| issues::display(source, found))?;
        let found = validate::validate(&parsed, &types);
        if !found.is_empty() {
            return Err(issues::display(source, found));
        }
        Ok(types.type_of(&parsed.expr).clone())
    }
}

/// Parses `source` and expands its macros; types are not checked. Recursive: see
/// [`on_deep_stack`]. Errors: the issue, as a text.
pub fn parse(source: &str) -> Result<ast::Expr, String> {
    let parsed = parser::parse(source).map_err(|issue| issues::display(source, vec![issue]))?;
    Ok(parsed.expr)
}

/// Runs `work` on a thread whose stack is large enough for the deepest expression that the parser
/// accepts. The stack of a worker is too small; most pages of this one are never touched.
pub fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    const STACK_BYTES: usize = 32 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work)?;
        thread.join().map_err(|_| std::io::Error::other("a type check panicked"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        let mut environment = Environment::default();
        let fields = [("name", Type::String), ("count", Type::Int), ("flag", Type::Bool)];
        let fields = fields.map(|(name, of)| (name.to_owned(), of)).into();
        let object = Type::structure("Thing", Fields::Known(fields));
        environment.types.insert("Thing".into(), object.clone());
        environment.variables.insert("things", Type::list(object.clone()));
        environment.variables.insert("labels", Type::map(Type::String, Type::String));
        environment.variables.insert("object", object);
        environment.variables.insert("any", Type::Dyn);
        environment
    }

    #[test]
    fn expressions_have_types() {
        for (source, expected) in [
            ("1 + 2 * 3 - -4", "int"),
            ("1 < 2 == true && !object.flag || any", "bool"),
            ("object.flag ? any : 1", "dyn"),
            ("things.map(t, t.name)", "list(string)"),
            ("things.map(t, t.flag, {t.name: t.count})", "list(map(string, int))"),
            ("labels.transformMap(k, v, v.size())", "map(string, int)"),
            ("labels.transformMapEntry(k, v, {v: k.size()})", "map(string, int)"),
            ("things.transformList(i, t, t.flag, i)", "list(int)"),
            ("things.sortBy(t, t.count)", "list(Thing)"),
            ("things.filter(t, t.flag).first().optMap(t, t.count)", "optional_type(int)"),
            ("labels[?'a'].optFlatMap(v, optional.of(v.size()))", "optional_type(int)"),
            ("labels.?a.orValue('')", "string"),
            ("object.?name.or(any.?name)", "optional_type(dyn)"),
            ("[?labels.?a, 'b']", "list(string)"),
            ("[]", "list(dyn)"),
            ("[[], [1u]]", "list(list(uint))"),
            ("any.foo.bar[0].size()", "int"),
            ("type(object)", "type(Thing)"),
            ("type(1) == int", "bool"),
            ("Thing{name: 'a', ?count: optional.none()}.count", "int"),
            ("'%d %s'.format([object.count, object.name])", "string"),
            ("duration('1s') + timestamp(0)", "timestamp"),
            ("any + 1", "int"),
            ("ip('::1').family() in [4, 6]", "bool"),
            ("url('https://a').getQuery()['x'][0]", "string"),
            ("things.all(object, object.count > 0) && object.name == ''", "bool"),
        ] {
            let found = environment().compile(source).map(|of| of.to_string());
            assert_eq!(found.as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn type_errors_have_the_text_of_cel_go() {
        for (source, expected) in [
            ("nope.x", "1:1: undeclared reference to 'nope' (in container '')"),
            ("nope(1)", "1:5: undeclared reference to 'nope' (in container '')"),
            ("object.name.nope()", "1:17: undeclared reference to 'nope' (in container '')"),
            (
                "object.flag ? 1 : 'x'",
                "1:13: found no matching overload for '_?_:_' applied to '(bool, int, string)'",
            ),
            (
                "object.name.split(',').join(1)",
                "1:28: found no matching overload for 'join' applied to 'list(string).(int)'",
            ),
            ("url('https://x').host", "1:17: unexpected failed resolution of 'kubernetes.URL'"),
            (
                "quantity('1').sign()",
                "1:19: found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'",
            ),
            (
                "labels[?'a'].optMap(v, 1).orValue('x')",
                "1:34: found no matching overload for 'orValue' applied to 'optional_type(int).(string)'",
            ),
            (
                "object.?name.size()",
                "1:18: found no matching overload for 'size' applied to 'optional_type(string).()'",
            ),
            (
                "any.exists_one(c, c + 1 == 'x')",
                "1:25: found no matching overload for '_==_' applied to '(int, string)'",
            ),
            (
                "any.a[?'b'].optMap(v, v + any).orValue('x')",
                "1:39: found no matching overload for 'orValue' applied to 'optional_type(bytes).(string)'",
            ),
            ("any && {}", "1:8: expected type 'bool' but found 'map(_var0, _var1)'"),
            ("[any, [any]]", "1:7: expected type 'dyn' but found 'list(dyn)'"),
            ("[?object.name]", "1:9: expected type 'optional_type(string)' but found 'string'"),
            ("[object.count, object.name]", "1:22: expected type 'int' but found 'string'"),
            (
                "{'a': object.count, 1: object.count}",
                "1:21: expected type 'string' but found 'int'",
            ),
            (
                "Thing{name: 1}",
                "1:11: expected type of field 'name' is 'string' but provided type is 'int'",
            ),
            ("Thing{nope: 1}", "1:11: undefined field 'nope'"),
            ("Nope{}", "1:5: undeclared reference to 'Nope' (in container '')"),
            ("object{}", "1:7: 'Thing' is not a type"),
            ("int{}", "1:4: 'int' is not a message type"),
            (
                "google.protobuf.Timestamp{seconds: 'a'}",
                "1:34: expected type of field 'seconds' is 'int' but provided type is 'string'",
            ),
            ("duration{secs: 1}", "1:14: undefined field 'secs'"),
            (
                "null_type{a: 1}",
                "1:12: unexpected failed resolution of 'google.protobuf.NullValue'",
            ),
            (
                "sets.contains(labels, [1])",
                "1:14: found no matching overload for 'sets.contains' applied to '(map(string, string), list(int))'",
            ),
            ("things.all(t, t.name)", "1:16: expected type 'bool' but found 'string'"),
            (
                "'%d'.format([object.name])",
                "1:20: error during formatting: decimal clause can only be used on integers, was given string",
            ),
        ] {
            let issues = environment().compile(source).unwrap_err();
            let first = issues.lines().next().unwrap_or_default();
            assert_eq!(first, format!("ERROR: <input>:{expected}"), "{source}");
        }
    }

    /// The answers of a real API server.
    #[test]
    fn fields_of_literals_of_other_types_are_checked_too() {
        for (source, expected) in [
            ("int{a: 1}", &["1:4: 'int' is not a message type", "1:6: undefined field 'a'"][..]),
            (".int{a: 1}", &["1:5: 'int' is not a message type", "1:7: undefined field 'a'"]),
            ("list{a: 1}", &["1:5: 'list' is not a message type", "1:7: undefined field 'a'"]),
            ("map{a: 1}", &["1:4: 'map' is not a message type"]),
            (
                "net.IP{a: 1}",
                &[
                    "1:7: 'net.IP' is not a message type",
                    "1:9: unexpected failed resolution of 'net.IP'",
                ],
            ),
            (
                "any{a: 1}",
                &["1:4: 'dyn' is not a type", "1:6: unexpected failed resolution of 'any'"],
            ),
        ] {
            let issues = environment().compile(source).unwrap_err();
            let found: Vec<&str> =
                issues.lines().filter_map(|line| line.strip_prefix("ERROR: <input>:")).collect();
            assert_eq!(found, expected, "{source}");
        }
        for source in ["google.protobuf.Duration{nanos: any}", "timestamp{}"] {
            assert!(environment().compile(source).is_ok(), "{source}");
        }
    }

    #[test]
    fn issues_are_in_the_order_of_the_source() {
        let issues = environment().compile("!(object.a || object.count) && 1 > object.name");
        let found = issues.unwrap_err();
        let heads: Vec<&str> = found.lines().filter(|line| line.starts_with("ERROR")).collect();
        assert_eq!(
            heads,
            [
                "ERROR: <input>:1:9: undefined field 'a'",
                "ERROR: <input>:1:21: expected type 'bool' but found 'int'",
                "ERROR: <input>:1:34: found no matching overload for '_>_' applied to '(int, string)'",
            ]
        );
    }

    #[test]
    fn every_cut_has_a_type_or_issues() {
        for source in [
            "things.all(t, has(t.name) ? t.count > 1.5e3 : !(any in {'k': b''})) || -1u == \u{e9}",
            "labels[?'a'].optMap(v, Thing{name: v, ?count: none}).orValue(object).name",
            "'%.2f %s'.format([object.count, {'a': [any]}]).matches(r'\\d') && [?any] == []",
            "things.sortBy(t, t.name).transformMap(i, t, i > 0, t).exists_one(k, v, k == v)",
        ] {
            let ends = source.char_indices().map(|(end, _)| end).chain([source.len()]);
            for cut in ends.map(|end| &source[..end]) {
                let issues = match environment().compile(cut) {
                    Ok(found) => {
                        let found = found.to_string();
                        assert!(!found.is_empty() && !found.contains("!error!"), "{cut}: {found}");
                        assert!(!found.contains("_var"), "{cut}: {found}");
                        continue;
                    }
                    Err(issues) => issues,
                };
                let heads: Vec<&str> =
                    issues.lines().filter(|line| line.starts_with("ERROR: <input>:")).collect();
                assert!(!heads.is_empty(), "{cut}: {issues}");
                for head in heads {
                    let mut parts = head["ERROR: <input>:".len()..].splitn(3, ':');
                    let [line, column, message] = [(); 3].map(|_| parts.next().unwrap_or_default());
                    let column: usize = column.parse().unwrap();
                    let is_placed = line == "1" && (1..=cut.chars().count() + 1).contains(&column);
                    assert!(is_placed && message.len() > 1, "{cut}: {head}");
                }
            }
        }
    }

    #[test]
    fn types_that_double_have_an_end() {
        for source in [
            format!("[1]{}", ".map(a, {a: a})".repeat(60)),
            format!("[any]{}", ".map(a, [[a, a]]).map(a, {a: [a]})".repeat(30)),
            format!("[[]]{}", ".map(a, {a: a})".repeat(60)),
            format!("[optional.none()]{}", ".map(a, {a: a})".repeat(60)),
        ] {
            let found = on_deep_stack(|| environment().compile(&source)).unwrap();
            assert!(found.is_ok(), "{}: {found:?}", &source[..20]);
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |source: String| {
            on_deep_stack(|| environment().compile(&source)).unwrap().map(|of| of.to_string())
        };
        for fine in [
            format!("{}any", "1 + ".repeat(250)),
            format!("any{}", ".a".repeat(250)),
            format!("{}any{}", "(".repeat(240), ")".repeat(240)),
            format!("{}any{}", "[".repeat(240), "]".repeat(240)),
            format!("{}true{}", "any.all(x, ".repeat(70), ")".repeat(70)),
            format!("{}true", "true || false && ".repeat(2000)),
            format!("{}1 == any", "-".repeat(5000)),
        ] {
            let found = deep(fine.clone());
            assert!(found.is_ok(), "{}: {found:?}", &fine[..20]);
        }
        for excess in [
            format!("{}any", "1 + ".repeat(5000)),
            format!("any{}", ".a".repeat(5000)),
            format!("{}any{}", "(".repeat(5000), ")".repeat(5000)),
            format!("{}true{}", "any.all(x, ".repeat(200), ")".repeat(200)),
            format!("any{}", ".optMap(x, x)".repeat(40)),
        ] {
            let found = deep(excess.clone()).unwrap_err();
            assert!(found.contains("recursion"), "{}: {found}", &excess[..20]);
        }
    }
}
