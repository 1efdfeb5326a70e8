//! Expressions of policies and schemas: they are compiled, and evaluated over an object. An
//! evaluation ends, with the same result each time.

use cel_compiler::{Environment, Type, on_deep_stack};
use sandbox::access::Access;
use sandbox::cel::{Authorize, Program, Value, Variables};
use serde_json::json;

struct Nothing;

impl Authorize for Nothing {
    fn authorize(&self, _: Option<&(String, String)>, _: &Access) -> Result<String, String> {
        Err("no".to_owned())
    }
}

fn environment() -> Environment {
    let mut environment = Environment::default();
    for name in ["object", "self"] {
        environment.variables.insert(name, Type::Dyn);
    }
    environment
}

/// Evaluates a program for a small object, and renders the outcome.
fn evaluate(program: &Program) -> String {
    let object = json!({
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "replicas": 3, "ratio": 0.5, "flags": [true, false], "ports": [80, 443],
            "containers": [{ "name": "a", "image": "nginx:1" }, { "name": "b" }] },
        "when": "2024-05-01T10:20:30Z", "nothing": null,
    });
    let mut variables = Variables::new(&Nothing);
    variables.set("object", Value::from(&object));
    variables.set("self", Value::from(&object["spec"]));
    variables.set("authorizer", Value::Question(Default::default()));
    format!("{:?}", program.evaluate(&variables))
}

/// Checks that any text compiles or has issues, that evaluation has the same outcome twice, and
/// that neither panics.
pub fn target(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let run = || {
        let issues = environment().compile(text).err();
        assert!(issues.is_none_or(|issues| !issues.is_empty()));
        match Program::parse(text) {
            Ok(program) => assert_eq!(evaluate(&program), evaluate(&program)),
            Err(issue) => assert!(!issue.is_empty()),
        }
    };
    on_deep_stack(run).expect("no panic");
}
