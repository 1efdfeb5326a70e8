//! Warnings about the expressions of ValidatingAdmissionPolicies.

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{
    ExpressionWarning, ObjectKey, Resource, ResourceType, TypeChecking, ValidatingAdmissionPolicy,
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

/// A schema with a field of every type.
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

pub const BINDINGS: ResourceType = ResourceType::fixed(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    false,
);

pub async fn create_policy(env: &TestCluster, name: &str, spec: &Value) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name }, "spec": spec,
    });
    let resource = env.client.resource(&ValidatingAdmissionPolicy::RESOURCE);
    let _: Value = resource.create("", &policy).await.expect("create");
}

/// The match constraints of a policy: the creation of objects of a resource of version `v1`.
fn rule(group: &str, resource: &str) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": [resource],
    })
}

/// Waits for the warnings about the newest generation.
async fn warnings(env: &TestCluster, name: &str) -> (i64, Vec<ExpressionWarning>) {
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
            "matchConstraints": { "resourceRules": [rule("apps", "deployments")] },
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
        kinds::serve_widgets(env).await;
        let faults = env.cluster.sandbox.faults();
        faults.next(usize::MAX, "get", "/openapi/v3/apis/example.com/v1", Fault::code(500, None));
        let _manager = env.manager("manager", &[ONLY]);
        let rules = [rule("example.com", "widgets"), rule("apps", "deployments")];
        let spec = json!({
            "matchConstraints": { "resourceRules": rules },
            "validations": [{ "expression": "object.spec.nothing > 5" }],
        });
        create_policy(env, "two-kinds", &spec).await;
        let (_, found) = warnings(env, "two-kinds").await;
        assert_eq!(found.len(), 1);
        let warning = &found[0].warning;
        assert!(warning.starts_with("apps/v1, Kind=Deployment: ERROR"), "{warning}");
        assert!(!warning.contains("example"), "{warning}");
        assert_eq!(faults.pending().len(), 1);
    });
}

/// The Go manager has the schemas of built-in kinds.
#[test]
fn the_schema_of_a_built_in_kind_is_waited_for() {
    Env::run("policies-busy", async |env| {
        let faults = env.cluster.sandbox.faults();
        for code in [500, 429, 503] {
            faults.next(1, "get", "/openapi/v3/apis/batch/v1", Fault::code(code, None));
        }
        let _manager = env.manager("manager", &[ONLY]);
        let rules = [rule("batch", "jobs"), rule("apps", "deployments")];
        let spec = json!({
            "matchConstraints": { "resourceRules": rules },
            "validations": [{ "expression": "object.spec.nothing > 5" }],
        });
        create_policy(env, "two-kinds", &spec).await;
        let (_, found) = warnings(env, "two-kinds").await;
        assert_eq!(found.len(), 1);
        let warning = &found[0].warning;
        assert!(warning.contains("batch/v1, Kind=Job: ERROR"), "{warning}");
        assert_eq!(faults.pending(), []);
    });
}

/// The controller retries after a temporary failure; without the right to read schemas it writes no
/// warnings.
#[test]
fn without_schemas_a_policy_has_no_warnings() {
    Env::run("policies-forbidden", async |env| {
        let faults = env.cluster.sandbox.faults();
        faults.next(2, "get", "/openapi/v3", Fault::code(500, None));
        faults.next(usize::MAX, "get", "/openapi/v3", Fault::code(403, None));
        let _manager = env.manager("manager", &[ONLY]);
        let spec = json!({
            "matchConstraints": { "resourceRules": [rule("apps", "deployments")] },
            "validations": [{ "expression": "object.spec.nothing > 5" }],
        });
        create_policy(env, "unseen", &spec).await;
        assert_eq!(warnings(env, "unseen").await.1, []);
        assert_eq!(faults.pending().len(), 1, "the failures were met: {:?}", faults.pending());
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

const DEPLOYMENTS: ResourceType =
    ResourceType::fixed("apps", "v1", "Deployment", "deployments", true);
const WIDGETS: ResourceType = ResourceType::fixed("example.com", "v1", "Widget", "widgets", true);

fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    })
}

/// Creates an object. `Err`: the code and the message of the refusal.
async fn creates(
    env: &TestCluster,
    resource: &ResourceType,
    namespace: &str,
    object: &Value,
) -> Result<Value, (u16, String)> {
    let created = env.client.resource(resource).create(namespace, object).await;
    created.map_err(|error| {
        let message = error.message().map_or_else(|| error.to_string(), str::to_owned);
        (error.code().unwrap_or_default(), message)
    })
}

#[test]
fn policies_are_evaluated_at_admission() {
    everywhere("policies-admission", async |env| {
        let config_maps = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
        let limits = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "limits" },
            "data": { "most": "3" },
        });
        creates(env, &config_maps, "default", &limits).await.expect("limits");
        let spec = json!({
            "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["deployments"],
            }] },
            "matchConditions": [
                { "name": "not-free", "expression": "!object.metadata.name.startsWith('free-')" },
            ],
            "variables": [{ "name": "most", "expression": "int(params.data.most)" }],
            "validations": [{
                "expression": "object.spec.replicas <= variables.most",
                "messageExpression": "'at most ' + string(variables.most) + ' replicas in ' \
                    + namespaceObject.metadata.name",
                "reason": "Forbidden",
            }, {
                "expression": "oldObject == null || oldObject.spec.replicas <= object.spec.replicas",
                "message": "replicas may only grow",
            }],
        });
        create_policy(env, "replicas", &spec).await;
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "few" },
            "spec": {
                "policyName": "replicas", "validationActions": ["Deny"],
                "paramRef": {
                    "name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny",
                },
            },
        });
        creates(env, &BINDINGS, "", &binding).await.expect("binding");

        let mut tries = 0;
        let refused = std::cell::RefCell::new(None);
        eventually(&env.clock, "the policy is in force", || {
            tries += 1;
            let object = deployment(&format!("many-{tries}"), 5);
            let refused = &refused;
            async move {
                match creates(env, &DEPLOYMENTS, "default", &object).await {
                    Err(error) if error.0 == 403 => {
                        *refused.borrow_mut() = Some((text(&object, "name"), error));
                        Ok(())
                    }
                    // Until the parameters have been read.
                    Err((code, message)) => Err(format!("{code}: {message}")),
                    Ok(_) => Err("the Deployment was created".to_owned()),
                }
            }
        })
        .await;
        let (name, (code, message)) = refused.into_inner().expect("refusal");
        let denied = format!(
            "deployments.apps {name:?} is forbidden: ValidatingAdmissionPolicy 'replicas' with \
             binding 'few' denied request: "
        );
        assert_eq!((code, message), (403, format!("{denied}at most 3 replicas in default")));

        // Objects that a match condition excludes are created, and so are those that the
        // validations accept.
        for (name, replicas) in [("free-many", 5), ("few", 2)] {
            creates(env, &DEPLOYMENTS, "default", &deployment(name, replicas)).await.expect(name);
        }
        let key = ObjectKey::new("default", "few");
        let less = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
        let refused = env.client.resource(&DEPLOYMENTS).patch::<Value>(&key, &less).await;
        let error = refused.expect_err("fewer replicas");
        assert_eq!(error.code(), Some(422));
        let message = error.message().unwrap_or_default();
        assert!(message.ends_with("denied request: replicas may only grow"), "{message}");

        let broken = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": "broken" },
            "spec": {
                "matchConstraints": spec["matchConstraints"],
                "validations": [{ "expression": "object." }],
            },
        });
        let refused = creates(env, &ValidatingAdmissionPolicy::RESOURCE, "", &broken).await;
        let (code, message) = refused.expect_err("broken");
        assert_eq!(code, 422);
        assert!(
            message.contains("compilation failed: ERROR: <input>:1:8: Syntax error"),
            "{message}"
        );
    });
}

fn text(object: &Value, key: &str) -> String {
    object["metadata"][key].as_str().unwrap_or_default().to_owned()
}

#[test]
fn rules_of_custom_resources_are_evaluated() {
    everywhere("policies-rules", async |env| {
        let schema = json!({ "type": "object", "properties": { "spec": {
            "type": "object",
            "properties": {
                "low": { "type": "integer" }, "high": { "type": "integer" },
                "kind": { "type": "string", "maxLength": 9, "x-kubernetes-validations": [
                    { "rule": "self == oldSelf", "message": "kind is fixed" },
                ] },
                "sizes": { "type": "array", "maxItems": 9, "items": {
                    "type": "integer", "x-kubernetes-validations": [{ "rule": "self < 100" }],
                } },
            },
            "x-kubernetes-validations": [{
                "rule": "!has(self.low) || !has(self.high) || self.low <= self.high",
                "messageExpression": "has(self.kind) ? 'too low for ' + self.kind : 'too low'",
            }],
        } } });
        kinds::serve_widgets_like(env, schema).await;
        let widget = |name: &str, spec: Value| {
            json!({
                "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": name },
                "spec": spec,
            })
        };
        for (spec, expected) in [
            (json!({ "low": 3, "high": 2 }), "spec: Invalid value: too low"),
            (json!({ "low": 3, "high": 2, "kind": "a" }), "spec: Invalid value: too low for a"),
            (
                json!({ "sizes": [1, 200] }),
                "spec.sizes[1]: Invalid value: 200: failed rule: self < 100",
            ),
        ] {
            let refused = creates(env, &WIDGETS, "default", &widget("wrong", spec)).await;
            let expected = format!("Widget.example.com \"wrong\" is invalid: {expected}");
            assert_eq!(refused.expect_err("wrong"), (422, expected));
        }
        let fine = widget("fine", json!({ "low": 1, "high": 2, "kind": "a", "sizes": [99] }));
        creates(env, &WIDGETS, "default", &fine).await.expect("fine");
        let key = ObjectKey::new("default", "fine");
        let other = Patch::Merge(json!({ "spec": { "kind": "b" } }));
        let refused = env.client.resource(&WIDGETS).patch::<Value>(&key, &other).await;
        let error = refused.expect_err("kind is fixed");
        let message = error.message().unwrap_or_default();
        let expected = "Widget.example.com \"fine\" is invalid: spec.kind: Invalid value: \"b\": \
                        kind is fixed";
        assert_eq!(message, expected);
    });
}
