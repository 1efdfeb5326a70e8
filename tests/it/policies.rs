//! Warnings about the expressions of ValidatingAdmissionPolicies.

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{
    ExpressionWarning, ObjectKey, Resource, TypeChecking, ValidatingAdmissionPolicy,
};
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds;

/// Policies, and the warnings that the Go manager 1.36 wrote for them on a real API server. The
/// numbers in names of types, which differ from run to run, are replaced with 0.
const WARNINGS: &str = include_str!("../../fixtures/policies.json");

const ONLY: &str = "--controllers=validatingadmissionpolicy-status-controller";

#[derive(serde::Deserialize)]
struct Case {
    spec: Value,
    warnings: Vec<ExpressionWarning>,
}

/// A schema with a field of every sort.
const SCHEMA: &str = r#"{ "type": "object", "properties": { "spec": {
  "type": "object",
  "properties": {
    "count": { "type": "integer" },
    "ratio": { "type": "number" },
    "limit": { "x-kubernetes-int-or-string": true },
    "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    "open": { "x-kubernetes-preserve-unknown-fields": true },
    "embedded": { "type": "object", "x-kubernetes-embedded-resource": true,
                  "x-kubernetes-preserve-unknown-fields": true },
    "foo-bar": { "type": "string" },
    "foo_bar": { "type": "string" },
    "namespace": { "type": "string" },
    "when": { "type": "string", "format": "date-time" },
    "day": { "type": "string", "format": "date" },
    "span": { "type": "string", "format": "duration" },
    "bin": { "type": "string", "format": "byte" },
    "flags": { "type": "object", "additionalProperties": { "type": "boolean" } },
    "nested": { "type": "object", "additionalProperties": { "type": "array",
      "items": { "type": "object", "properties": { "deep": { "type": "string" } } } } },
    "matrix": { "type": "array",
                "items": { "type": "array", "items": { "type": "integer" } } }
  }
} } }"#;

/// `Deployment123456.spec` as `Deployment0.spec`.
fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    let mut word = String::new();
    for character in text.chars().chain(['\n']) {
        if character.is_alphanumeric() {
            word.push(character);
            continue;
        }
        let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let named = name.starts_with(|c: char| c.is_ascii_uppercase());
        if named && word.len() >= name.len() + 3 {
            word.replace_range(name.len().., "0");
        }
        result.push_str(&word);
        result.push(character);
        word.clear();
    }
    result.pop();
    result
}

async fn create_policy(env: &Site, name: &str, spec: &Value) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name }, "spec": spec,
    });
    let resource = env.client.resource(&ValidatingAdmissionPolicy::RESOURCE);
    let _: Value = resource.create("", &policy).await.expect("create");
}

/// Waits for the warnings about the newest generation.
async fn warnings(env: &Site, name: &str) -> (i64, Vec<ExpressionWarning>) {
    let key = ObjectKey::new("", name);
    eventually(&env.clock, &format!("policy {name} is checked"), || async {
        let policy: ValidatingAdmissionPolicy =
            env.client.get(&key).await.map_err(|error| error.to_string())?;
        let generation = policy.meta.generation;
        match policy.status.type_checking {
            Some(TypeChecking { expression_warnings })
                if policy.status.observed_generation == generation =>
            {
                Ok((generation, expression_warnings))
            }
            _ => Err(format!("generation {generation}: {:?}", policy.status)),
        }
    })
    .await
}

#[test]
fn a_warning_stays_until_its_fault_is_corrected() {
    everywhere("policies", async |env| {
        let _manager = env.manager("manager", &[ONLY]);
        let spec = json!({
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["deployments"],
            }] },
            "validations": [
                { "expression": "object.spec.replicass > 5" },
                { "expression": "object.spec.replicas > 5",
                  "messageExpression": "'replicas: ' + object.spec.replicas" },
            ],
        });
        create_policy(env, "replicas", &spec).await;
        let (first, found) = warnings(env, "replicas").await;
        let expected = [
            (
                "spec.validations[0].expression",
                "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicass'\n \
                 | object.spec.replicass > 5\n | ...........^\n",
            ),
            (
                "spec.validations[1].messageExpression",
                "apps/v1, Kind=Deployment: ERROR: <input>:1:14: found no matching overload for \
                 '_+_' applied to '(string, int)'\n | 'replicas: ' + object.spec.replicas\n \
                 | .............^\n",
            ),
        ];
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|warning| (warning.field_ref.as_str(), warning.warning.as_str()))
            .collect();
        assert_eq!(found, expected);

        let fixed = json!({ "spec": { "validations": [
            { "expression": "object.spec.replicas > 5",
              "messageExpression": "'replicas: ' + string(object.spec.replicas)" },
        ] } });
        let key = ObjectKey::new("", "replicas");
        let patch = Patch::Merge(fixed);
        env.client.patch::<ValidatingAdmissionPolicy>(&key, &patch).await.expect("patch");
        let (second, found) = warnings(env, "replicas").await;
        assert!(second > first, "generation {second} follows {first}");
        assert_eq!(found, [], "the policy is correct now");
    });
}

#[test]
fn a_kind_whose_schema_cannot_be_read_is_left_out() {
    Env::run("policies-schema", async |env| {
        let failing = Fault::code(500, None);
        env.faults.as_ref().expect("embedded").next(
            usize::MAX,
            "get",
            "/openapi/v3/apis/batch/v1",
            failing,
        );
        let _manager = env.manager("manager", &[ONLY]);
        let rule = |group: &str, resource: &str| {
            json!({
                "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": [resource],
            })
        };
        let spec = json!({
            "matchConstraints": { "resourceRules": [rule("batch", "jobs"), rule("apps", "deployments")] },
            "validations": [{ "expression": "object.spec.nothing > 5" }],
        });
        create_policy(env, "two-kinds", &spec).await;
        let (_, found) = warnings(env, "two-kinds").await;
        assert_eq!(found.len(), 1);
        let warning = &found[0].warning;
        assert!(warning.starts_with("apps/v1, Kind=Deployment: ERROR"), "{warning}");
        assert!(!warning.contains("batch"), "{warning}");
    });
}

#[test]
fn warnings_are_those_of_the_go_manager() {
    everywhere("policies", async |env| {
        kinds::serve_widgets_like(env, serde_json::from_str(SCHEMA).unwrap()).await;
        // Schemas are published later than the kind is served.
        eventually(&env.clock, "the schema of widgets is published", || async {
            let path = "/openapi/v3/apis/example.com/v1";
            let text = env.client.get_path(path).await.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&text);
            if text.contains("foo-bar") { Ok(()) } else { Err(text.into_owned()) }
        })
        .await;
        let flags = [ONLY, "--kube-api-qps=1000", "--kube-api-burst=1000"];
        let _manager = env.manager("manager", &flags);
        let cases: Vec<Case> = serde_json::from_str(WARNINGS).unwrap();
        assert!(cases.len() > 150);
        for (n, case) in cases.iter().enumerate() {
            create_policy(env, &format!("policy-{n}"), &case.spec).await;
        }
        let mut different = Vec::new();
        for (n, Case { spec, warnings: expected }) in cases.iter().enumerate() {
            let (_, mut found) = warnings(env, &format!("policy-{n}")).await;
            for warning in &mut found {
                warning.warning = without_numbers(&warning.warning);
            }
            if found != *expected {
                different.push(format!("{spec}\nis     {found:#?}\nnot {expected:#?}"));
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n\n"));
    });
}
