//! Objects of k8s-openapi's types, encoded as JSON and as protobuf: both give equal views, and the
//! protobuf is decoded to the same JSON.

use std::fmt::Debug;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use k8s_openapi::api::{apps, batch, coordination, core};
use kube_controller_manager::objects::{Encoded, Lease, Node, Object, PartialObjectMetadata, Pod};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bytes::{has_raw_bytes, parameters};
use crate::schemas::{object, schema};

/// An object in both encodings.
struct Both {
    json: Encoded,
    protobuf: Encoded,
}

impl Both {
    /// Builds an object by the schema from the fuzzer's choices, in JSON and in protobuf. `None`:
    /// the choices do not make one, or it has bytes that other readers do not know.
    fn new<T>(schema: &Value, choices: &[u8]) -> Option<Both>
    where
        T: k8s_openapi::Resource + Serialize + DeserializeOwned,
    {
        let chosen = object(schema, &mut Unstructured::new(choices)).ok()?;
        let typed: T = serde_json::from_value(chosen).expect("its schema was followed");
        let value = serde_json::to_value(&typed).expect("an object");
        if has_raw_bytes(&value.to_string()) {
            return None;
        }
        let message = sandbox::protobuf::message(T::API_VERSION, T::KIND, &value);
        let message = message.expect("a kind of the table");
        let envelope = sandbox::protobuf::encode(&value).expect("a kind of the table");
        let decoded = sandbox::protobuf::decode(&envelope).expect("what was encoded");
        assert_eq!(sandbox::protobuf::encode(&decoded), Some(envelope), "{value}");
        let json = serde_json::to_vec(&typed).expect("an object");
        Some(Both { json: Encoded::json(json), protobuf: Encoded::protobuf(&message[..]) })
    }

    /// Checks that both encodings give equal views, or that neither gives one.
    fn check<V: Object + Debug + PartialEq>(&self) {
        let text = String::from_utf8_lossy(&self.json.bytes);
        match (self.json.decode::<V>(), self.protobuf.decode::<V>()) {
            (Ok(json), Ok(protobuf)) => assert_eq!(protobuf, json, "{text}"),
            (Err(_), Err(_)) => {}
            (json, protobuf) => panic!("{:?} {:?}: {text}", json.err(), protobuf.err()),
        }
    }
}

/// Makes an object of type `T` from an input.
type Make = fn(&[u8]) -> Option<Both>;

macro_rules! kinds {
    ($($type:ty),* $(,)?) => {
        [$(|choices| {
            static SCHEMA: LazyLock<Value> = LazyLock::new(schema::<$type>);
            Both::new::<$type>(&SCHEMA, choices)
        }),*]
    };
}

const KINDS: [Make; 8] = kinds![
    core::v1::Pod,
    core::v1::Node,
    coordination::v1::Lease,
    apps::v1::ReplicaSet,
    batch::v1::Job,
    core::v1::Service,
    core::v1::ConfigMap,
    core::v1::Secret,
];

/// Checks that an object is the same, read from JSON and from protobuf.
pub fn target(input: &[u8]) {
    let (parameter, choices) = parameters(input);
    let kind = usize::from(parameter) % KINDS.len();
    let Some(both) = KINDS[kind](choices) else { return };
    match kind {
        0 => both.check::<Pod>(),
        1 => both.check::<Node>(),
        2 => both.check::<Lease>(),
        _ => {}
    }
    both.check::<PartialObjectMetadata>();
}
