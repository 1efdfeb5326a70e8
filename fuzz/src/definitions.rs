//! Schemas of CustomResourceDefinitions, and objects that they check: an input is the JSON of a
//! schema, of an object, and of the object's next state.

use kube_controller_manager::server::http::Method;
use serde_json::Value;

use crate::world::{definition, world};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/fuzz.example.com/v1/namespaces/default/things";

/// Creates a CustomResourceDefinition and objects of it; the server must not fail. Of the input's
/// JSON documents the first is the schema, and the next two are the object and its update.
pub fn target(input: &[u8]) {
    let documents = serde_json::Deserializer::from_slice(input).into_iter::<Value>();
    let documents: Vec<Value> = documents.map_while(Result::ok).take(3).collect();
    let Some((schema, objects)) = documents.split_first() else { return };
    let world = world();
    let send = |method, path: &str, object: &Value| {
        let answer = world.send(method, path, "application/json", object.to_string());
        let answer = answer.expect("an answer");
        let body = String::from_utf8_lossy(answer.content());
        assert!(answer.status < 500, "{path}: {} {body}", answer.status);
        answer.status
    };
    let made = send(Method::POST, DEFINITIONS, &definition("things", schema));
    if made == 201 {
        for (at, object) in objects.iter().enumerate() {
            let mut object = object.clone();
            if let Some(members) = object.as_object_mut() {
                members.insert("apiVersion".to_owned(), "fuzz.example.com/v1".into());
                members.insert("kind".to_owned(), "Things".into());
                members.insert("metadata".to_owned(), serde_json::json!({ "name": "a" }));
            }
            match at {
                0 => send(Method::POST, THINGS, &object),
                _ => send(Method::PUT, &format!("{THINGS}/a"), &object),
            };
        }
        world.get(THINGS);
        world.get("/openapi/v3/apis/fuzz.example.com/v1");
    }
    // Its kind is served until it is deleted, also after a restart.
    send(Method::DELETE, &format!("{DEFINITIONS}/things.fuzz.example.com"), &Value::Null);
}
