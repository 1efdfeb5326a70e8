//! Protobuf from other programs. The sandbox's JSON of an object gives the same views as the object
//! that is encoded from it, and the encoding is stable.

use std::fmt::Debug;

use kube_controller_manager::objects::{
    Encoded, Lease, Node, Object, PartialObjectMetadata, Pod, protobuf,
};
use serde_json::Value;

use crate::bytes::{has_raw_bytes, parameters};

const KINDS: [(&str, &str); 10] = [
    ("v1", "Pod"),
    ("v1", "Node"),
    ("coordination.k8s.io/v1", "Lease"),
    ("v1", "Service"),
    ("v1", "PodList"),
    ("apps/v1", "Deployment"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("meta.k8s.io/v1", "DeleteOptions"),
    ("v1", "Status"),
];

/// Checks that a message and the JSON of its object are read as the same, or both refused.
fn check<V: Object + Debug + PartialEq>(message: &[u8], object: &Value) {
    let read = Encoded::protobuf(message).decode::<V>();
    if has_raw_bytes(&object.to_string()) {
        return;
    }
    match (read, Encoded::json(object.to_string()).decode::<V>()) {
        (Ok(protobuf), Ok(json)) => assert_eq!(protobuf, json, "{object}"),
        (Err(_), Err(_)) => {}
        (protobuf, json) => panic!("{:?} {:?}: {object}", protobuf.err(), json.err()),
    }
}

/// Decodes bytes as objects, by the sandbox's decoder and the client's, whose results must agree.
pub fn target(input: &[u8]) {
    let (parameter, bytes) = parameters(input);
    let _ = (protobuf::open(bytes), protobuf::kind(bytes));
    for form in [Encoded::protobuf(bytes), Encoded::json(bytes)] {
        let _ = (form.decode::<Pod>(), form.decode::<Node>(), form.decode::<Lease>());
        let _ = form.decode::<PartialObjectMetadata>();
    }
    let (api_version, kind) = KINDS[usize::from(parameter) % KINDS.len()];
    let envelope = sandbox::protobuf::envelope(api_version, kind, bytes);
    let Ok(object) = sandbox::protobuf::decode(&envelope) else { return };
    // Times that JSON cannot hold are lost, and fields that came twice are there once.
    let encoded = sandbox::protobuf::encode(&object).expect("a kind of the table");
    let object = sandbox::protobuf::decode(&encoded).expect("what was encoded");
    let again = sandbox::protobuf::encode(&object).expect("a kind of the table");
    assert_eq!(sandbox::protobuf::decode(&again).ok(), Some(object.clone()));
    let message = protobuf::open(&again).expect("an envelope");
    match kind {
        "Pod" => check::<Pod>(message, &object),
        "Node" => check::<Node>(message, &object),
        "Lease" => check::<Lease>(message, &object),
        _ => {}
    }
    if !matches!(kind, "PodList" | "DeleteOptions" | "Status") {
        check::<PartialObjectMetadata>(message, &object);
    }
}
