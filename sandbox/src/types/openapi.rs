//! OpenAPI documents for kubectl's `apply` and `explain`, and the types strategic merge walks.
//! Built when first asked for; the types of the built-in kinds once for the process.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::patch::merge_rule;

type Definitions = Map<String, Value>;
const SCHEMAS: &str = "#/components/schemas/";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The schemas of a built-in kind: the root type and all it refers to.
pub struct Types {
    /// `io.k8s.api.apps.v1.Deployment`
    pub root: String,
    definitions: Arc<Definitions>,
}

impl Types {
    pub fn schema(&self, type_name: &str) -> Option<&Value> {
        self.definitions.get(type_name)
    }

    /// The type of a field, or of the items or values of one; `None` for plain values.
    pub fn field(&self, type_name: &str, field: &str) -> Option<&str> {
        let schema = self.definitions.get(type_name)?.get("properties")?.get(field)?;
        [Some(schema), schema.get("items"), schema.get("additionalProperties")]
            .into_iter()
            .flatten()
            .find_map(reference)
    }
}

/// The name a schema refers to, at once or in its `allOf`.
pub fn reference(schema: &Value) -> Option<&str> {
    let direct = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"));
    direct?.as_str()?.strip_prefix(SCHEMAS)
}

macro_rules! roots {
    ($generator:ident, $group:expr, $kind:expr; $($of:literal, $name:literal => $type:ty;)*) => {
        match ($group, $kind) {
            $(($of, $name) => {
                $generator.subschema_for::<$type>();
                Some(<$type as schemars::JsonSchema>::schema_name().into_owned())
            })*
            _ => None,
        }
    };
}

/// Adds a built-in kind and everything it refers to; returns its name. `None` for a kind without a
/// schema.
fn add(generator: &mut SchemaGenerator, group: &str, kind: &str) -> Option<String> {
    use api::admissionregistration::v1 as admission;
    roots!(generator, group, kind;
        "", "Binding" => api::core::v1::Binding;
        "", "ComponentStatus" => api::core::v1::ComponentStatus;
        "", "ConfigMap" => api::core::v1::ConfigMap;
        "", "Endpoints" => api::core::v1::Endpoints;
        "", "Event" => api::core::v1::Event;
        "", "LimitRange" => api::core::v1::LimitRange;
        "", "Namespace" => api::core::v1::Namespace;
        "", "Node" => api::core::v1::Node;
        "", "PersistentVolume" => api::core::v1::PersistentVolume;
        "", "PersistentVolumeClaim" => api::core::v1::PersistentVolumeClaim;
        "", "Pod" => api::core::v1::Pod;
        "", "PodTemplate" => api::core::v1::PodTemplate;
        "", "ReplicationController" => api::core::v1::ReplicationController;
        "", "ResourceQuota" => api::core::v1::ResourceQuota;
        "", "Secret" => api::core::v1::Secret;
        "", "Service" => api::core::v1::Service;
        "", "ServiceAccount" => api::core::v1::ServiceAccount;
        "apps", "ControllerRevision" => api::apps::v1::ControllerRevision;
        "apps", "DaemonSet" => api::apps::v1::DaemonSet;
        "apps", "Deployment" => api::apps::v1::Deployment;
        "apps", "ReplicaSet" => api::apps::v1::ReplicaSet;
        "apps", "StatefulSet" => api::apps::v1::StatefulSet;
        "batch", "CronJob" => api::batch::v1::CronJob;
        "batch", "Job" => api::batch::v1::Job;
        "autoscaling/v1", "HorizontalPodAutoscaler" => api::autoscaling::v1::HorizontalPodAutoscaler;
        "autoscaling", "HorizontalPodAutoscaler" => api::autoscaling::v2::HorizontalPodAutoscaler;
        "policy", "PodDisruptionBudget" => api::policy::v1::PodDisruptionBudget;
        "networking.k8s.io", "IngressClass" => api::networking::v1::IngressClass;
        "networking.k8s.io", "Ingress" => api::networking::v1::Ingress;
        "networking.k8s.io", "IPAddress" => api::networking::v1::IPAddress;
        "networking.k8s.io", "NetworkPolicy" => api::networking::v1::NetworkPolicy;
        "networking.k8s.io", "ServiceCIDR" => api::networking::v1::ServiceCIDR;
        "events.k8s.io", "Event" => api::events::v1::Event;
        "flowcontrol.apiserver.k8s.io", "FlowSchema" => api::flowcontrol::v1::FlowSchema;
        "flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration" => api::flowcontrol::v1::PriorityLevelConfiguration;
        "resource.k8s.io", "DeviceClass" => api::resource::v1::DeviceClass;
        "resource.k8s.io", "ResourceClaim" => api::resource::v1::ResourceClaim;
        "resource.k8s.io", "ResourceClaimTemplate" => api::resource::v1::ResourceClaimTemplate;
        "resource.k8s.io", "ResourceSlice" => api::resource::v1::ResourceSlice;
        "authentication.k8s.io", "SelfSubjectReview" => api::authentication::v1::SelfSubjectReview;
        "authentication.k8s.io", "TokenReview" => api::authentication::v1::TokenReview;
        "authorization.k8s.io", "LocalSubjectAccessReview" => api::authorization::v1::LocalSubjectAccessReview;
        "authorization.k8s.io", "SelfSubjectAccessReview" => api::authorization::v1::SelfSubjectAccessReview;
        "authorization.k8s.io", "SelfSubjectRulesReview" => api::authorization::v1::SelfSubjectRulesReview;
        "authorization.k8s.io", "SubjectAccessReview" => api::authorization::v1::SubjectAccessReview;
        "discovery.k8s.io", "EndpointSlice" => api::discovery::v1::EndpointSlice;
        "coordination.k8s.io", "Lease" => api::coordination::v1::Lease;
        "rbac.authorization.k8s.io", "ClusterRole" => api::rbac::v1::ClusterRole;
        "rbac.authorization.k8s.io", "ClusterRoleBinding" => api::rbac::v1::ClusterRoleBinding;
        "rbac.authorization.k8s.io", "Role" => api::rbac::v1::Role;
        "rbac.authorization.k8s.io", "RoleBinding" => api::rbac::v1::RoleBinding;
        "storage.k8s.io", "CSIDriver" => api::storage::v1::CSIDriver;
        "storage.k8s.io", "CSINode" => api::storage::v1::CSINode;
        "storage.k8s.io", "CSIStorageCapacity" => api::storage::v1::CSIStorageCapacity;
        "storage.k8s.io", "StorageClass" => api::storage::v1::StorageClass;
        "storage.k8s.io", "VolumeAttributesClass" => api::storage::v1::VolumeAttributesClass;
        "storage.k8s.io", "VolumeAttachment" => api::storage::v1::VolumeAttachment;
        "scheduling.k8s.io", "PriorityClass" => api::scheduling::v1::PriorityClass;
        "node.k8s.io", "RuntimeClass" => api::node::v1::RuntimeClass;
        "certificates.k8s.io", "CertificateSigningRequest" => api::certificates::v1::CertificateSigningRequest;
        "admissionregistration.k8s.io", "MutatingAdmissionPolicy" => admission::MutatingAdmissionPolicy;
        "admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding" => admission::MutatingAdmissionPolicyBinding;
        "admissionregistration.k8s.io", "MutatingWebhookConfiguration" => admission::MutatingWebhookConfiguration;
        "admissionregistration.k8s.io", "ValidatingAdmissionPolicy" => admission::ValidatingAdmissionPolicy;
        "admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" => admission::ValidatingAdmissionPolicyBinding;
        "admissionregistration.k8s.io", "ValidatingWebhookConfiguration" => admission::ValidatingWebhookConfiguration;
        "apiextensions.k8s.io", "CustomResourceDefinition" => apiextensions::CustomResourceDefinition;
        "apiregistration.k8s.io", "APIService" => apiregistration::APIService;
    )
}

/// The schemas of all built-in kinds of a group, and the type of each kind.
struct Group {
    definitions: Arc<Definitions>,
    roots: HashMap<(String, String), String>,
}

/// How a kind's type is found: by its group, with the version where there are two, and its kind.
fn root_key(kind: &Kind) -> (String, String) {
    let resource = &kind.resource;
    let group = match (&*resource.group, &*resource.version) {
        ("autoscaling", "v1") => "autoscaling/v1",
        (group, _) => group,
    };
    (group.to_owned(), resource.kind.to_string())
}

fn builtin_group(name: &str) -> Arc<Group> {
    static GROUPS: OnceLock<Mutex<HashMap<String, Arc<Group>>>> = OnceLock::new();
    let groups = GROUPS.get_or_init(Mutex::default);
    let mut groups = groups.lock();
    if let Some(group) = groups.get(name) {
        return group.clone();
    }
    let mut settings = SchemaSettings::openapi3();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let mut roots = HashMap::new();
    let kinds = crate::kinds::builtin();
    for kind in kinds.iter().filter(|kind| kind.resource.group == name) {
        let key = root_key(kind);
        if let Some(root) = add(&mut generator, &key.0, &key.1) {
            roots.insert(key, root);
        }
    }
    let mut definitions: Definitions = generator.take_definitions(true);
    if let Some(quantity) = definitions.get_mut(QUANTITY) {
        *quantity = json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] });
    }
    for (type_name, schema) in &mut definitions {
        convert(schema);
        relax(type_name, schema);
        mark(type_name, schema);
        annotate(type_name, schema);
    }
    for kind in kinds.iter().filter(|kind| kind.resource.group == name) {
        if let Some(root) = roots.get(&root_key(kind)) {
            definitions[root]["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
        }
    }
    let group = Arc::new(Group { definitions: Arc::new(definitions), roots });
    groups.insert(name.to_owned(), group.clone());
    group
}

/// The types that a strategic merge patch of a built-in kind walks.
pub fn types_of(kind: &Kind) -> Arc<Types> {
    let group = builtin_group(&kind.resource.group);
    let root = group.roots.get(&root_key(kind)).cloned().unwrap_or_default();
    Arc::new(Types { root, definitions: group.definitions.clone() })
}

/// The types of the metadata that every kind has; no root.
pub fn meta_types() -> Arc<Types> {
    let group = builtin_group("coordination.k8s.io");
    Arc::new(Types { root: String::new(), definitions: group.definitions.clone() })
}

fn gvk(kind: &Kind) -> Value {
    let resource = &kind.resource;
    json!({ "group": resource.group, "version": resource.version, "kind": resource.kind })
}

/// Brings a schema into OpenAPI 3.0: what stands beside a reference would be ignored there, and
/// int-or-string fields are marked as such.
fn convert(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            // Both are also names of properties, in the schema of schemas.
            if members.len() > 1
                && members.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = members.remove("$ref")
            {
                members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
            }
            if members.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
                members.remove("x-kubernetes-int-or-string");
                members
                    .insert("oneOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
                members.insert("format".to_owned(), "int-or-string".into());
            }
            for (key, member) in members {
                match member {
                    // Names of members, which may look like keywords.
                    Value::Object(properties) if key == "properties" => {
                        properties.values_mut().for_each(convert);
                    }
                    member => convert(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert),
        _ => {}
    }
}

/// Facts that the types lack. One type per line: `field=keys` for lists whose items are
/// identified by keys, `field=set`, `field=atomic` for objects that have one owner as a whole (the
/// field `-` is the type itself), `field:value,...` for the values that a field may have.
const FIELDS: &str = include_str!("fields.txt");

fn fields(type_name: &str) -> impl Iterator<Item = &'static str> {
    static TABLE: OnceLock<HashMap<&'static str, &'static str>> = OnceLock::new();
    let table =
        TABLE.get_or_init(|| FIELDS.lines().filter_map(|line| line.split_once(' ')).collect());
    let at = type_name.find(".apis.").map(|at| at + ".apis.".len());
    let short = match at {
        Some(at) => &type_name[at..],
        None => type_name.strip_prefix("io.k8s.api.").unwrap_or(type_name),
    };
    table.get(short).copied().unwrap_or_default().split(' ').filter(|field| !field.is_empty())
}

/// Marks the fields of a type as server-side apply and `explain` want them.
fn mark(type_name: &str, schema: &mut Value) {
    for field in fields(type_name) {
        if let Some((name, values)) = field.split_once(':') {
            let values: Vec<&str> =
                values.split(',').map(|value| value.trim_matches('"')).collect();
            let of = &mut schema["properties"][name];
            let of = if of["type"] == "array" { &mut of["items"] } else { of };
            of["enum"] = json!(values);
        } else if let Some((name, how)) = field.split_once('=') {
            let of = if name == "-" { &mut *schema } else { &mut schema["properties"][name] };
            match how {
                "atomic" => of["x-kubernetes-map-type"] = "atomic".into(),
                "set" => of["x-kubernetes-list-type"] = "set".into(),
                keys => {
                    let keys: Vec<&str> = keys.split(',').collect();
                    of["x-kubernetes-list-type"] = "map".into();
                    of["x-kubernetes-list-map-keys"] = json!(keys);
                }
            }
        }
    }
}

/// Members that the API does not ask for, though the types do.
fn relax(type_name: &str, schema: &mut Value) {
    const ANY: [&str; 4] =
        ["JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"];
    const UNNAMED: [&str; 8] = [
        "ConfigMapEnvSource",
        "ConfigMapKeySelector",
        "ConfigMapProjection",
        "ConfigMapVolumeSource",
        "LocalObjectReference",
        "SecretEnvSource",
        "SecretKeySelector",
        "SecretProjection",
    ];
    let name = type_name.rsplit('.').next().unwrap_or_default();
    if ANY.contains(&name) {
        *schema = json!({ "description": schema["description"] });
    }
    let unnamed = UNNAMED.contains(&name);
    let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) else { return };
    required.retain(|field| field != "metadata" && !(unnamed && field == "name"));
    if required.is_empty()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.remove("required");
    }
}

/// kubectl merges by these on its side.
fn annotate(type_name: &str, schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (field, property) in properties {
        if let Some(rule) = merge_rule(type_name, field) {
            property["x-kubernetes-patch-strategy"] = rule.strategy.into();
            if !rule.key.is_empty() {
                property["x-kubernetes-patch-merge-key"] = rule.key.into();
            }
        }
    }
}

/// `api/v1`, `apis/apps/v1`: the key of a document in the index, and its path.
fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The answer to `/openapi/v3`: where each group version's document is. The hash changes with the
/// kinds, so that clients may keep what they have.
pub fn v3_index(kinds: &[Arc<Kind>]) -> Value {
    use sha2::{Digest as _, Sha256};
    let mut hashes: HashMap<String, Sha256> = HashMap::new();
    for kind in kinds {
        let resource = &kind.resource;
        let hash = hashes.entry(document_path(&resource.group, &resource.version)).or_default();
        hash.update(resource.plural.as_bytes());
        if let Some(schema) = &kind.schema {
            hash.update(schema.to_string().as_bytes());
        }
    }
    let paths: Map<String, Value> = hashes
        .into_iter()
        .map(|(path, hash)| {
            let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

/// The answer to `/openapi/v3/apis/GROUP/VERSION`; null when the version is not served.
pub fn v3_document(kinds: &[Arc<Kind>], group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    let mut schemas = Definitions::new();
    for kind in kinds {
        if kind.resource.group != group || kind.resource.version != version {
            continue;
        }
        let name = match &kind.schema {
            Some(schema) => {
                let name = custom_name(kind);
                schemas.insert(name.clone(), custom_schema(kind, schema));
                let meta = builtin_group("coordination.k8s.io");
                schemas.extend(
                    meta.definitions
                        .iter()
                        .filter(|(name, _)| name.starts_with("io.k8s.apimachinery."))
                        .map(|(name, schema)| (name.clone(), schema.clone())),
                );
                name
            }
            None => {
                let types = types_of(kind);
                if schemas.is_empty() {
                    schemas.extend(types.definitions.iter().map(|(n, s)| (n.clone(), s.clone())));
                }
                types.root.clone()
            }
        };
        add_paths(kind, &name, &mut paths);
    }
    if paths.is_empty() {
        return Value::Null;
    }
    json!({
        "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": "v1.36.2" },
        "paths": paths, "components": { "schemas": schemas },
    })
}

/// `io.x.v1.Foo` for the group `x.io`.
fn custom_name(kind: &Kind) -> String {
    let group: Vec<&str> = kind.resource.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), kind.resource.version, kind.resource.kind)
}

fn custom_schema(kind: &Kind, schema: &Value) -> Value {
    let mut schema = schema.clone();
    complete_embedded(&mut schema);
    complete_resource(&mut schema);
    schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
    schema
}

/// Adds what every resource has.
fn complete_resource(schema: &mut Value) {
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    const MORE: &str = "More info: \
        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let text = |about: &str, at: &str| json!({ "type": "string", "description": format!("{about} {MORE}#{at}") });
    schema["properties"]["apiVersion"] = text(
        "APIVersion defines the versioned schema of this representation of an object. Servers \
            should convert recognized schemas to the latest internal value, and may reject \
            unrecognized values.",
        "resources",
    );
    schema["properties"]["kind"] = text(
        "Kind is a string value representing the REST resource this object represents. Servers \
            may infer this from the endpoint the client submits requests to. Cannot be updated. \
            In CamelCase.",
        "types-kinds",
    );
    schema["properties"]["metadata"] = json!({
        "description": format!("Standard object's metadata. {MORE}#metadata"),
        "allOf": [{ "$ref": format!("{SCHEMAS}{OBJECT_META}") }],
    });
}

/// The same for the resources within.
fn complete_embedded(schema: &mut Value) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(complete_embedded);
    }
    for below in ["items", "additionalProperties"] {
        schema.get_mut(below).into_iter().for_each(complete_embedded);
    }
    if schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        complete_resource(schema);
        schema["required"] = json!(["kind", "apiVersion"]);
    }
}

/// The paths of a resource: kubectl looks here for what writes take, and which patches.
fn add_paths(kind: &Kind, schema: &str, paths: &mut Map<String, Value>) {
    let resource = &kind.resource;
    let base = document_path(&resource.group, &resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let all = format!("/{base}{scope}/{}", resource.plural);
    let one = format!("{all}/{{name}}");
    let body = json!({ "$ref": format!("{SCHEMAS}{schema}") });
    let operation = |action: &str, write: bool| {
        let mut operation = json!({
            "responses": { "200": {
                "description": "OK", "content": { "application/json": { "schema": body } },
            }},
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk(kind),
        });
        if write {
            let query =
                |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
            operation["parameters"] =
                json!([query("dryRun"), query("fieldManager"), query("fieldValidation")]);
            operation["requestBody"] = json!({ "content": { "*/*": { "schema": body } } });
        }
        operation
    };
    let mut patch = operation("patch", true);
    let mut types = vec!["application/json-patch+json", "application/merge-patch+json"];
    if !kind.is_custom() {
        types.push("application/strategic-merge-patch+json");
    }
    types.push("application/apply-patch+yaml");
    let content: Map<String, Value> = types
        .into_iter()
        .map(|media_type| (media_type.to_owned(), json!({ "schema": { "type": "object" } })))
        .collect();
    patch["requestBody"] = json!({ "content": content, "required": true });
    let of_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut parameters = Vec::new();
    if resource.namespaced {
        parameters.push(of_path("namespace"));
    }
    paths.insert(
        all,
        json!({
            "get": operation("list", false), "post": operation("post", true),
            "parameters": parameters,
        }),
    );
    parameters.push(of_path("name"));
    paths.insert(
        one,
        json!({
            "get": operation("get", false), "put": operation("put", true), "patch": patch,
            "delete": operation("delete", false), "parameters": parameters,
        }),
    );
}

/// The answer to `/openapi/v2`: no types, so that clients use what they know themselves.
pub fn v2(_kinds: &[Arc<Kind>]) -> Value {
    json!({
        "swagger": "2.0", "info": { "title": "Kubernetes", "version": "v1.36.2" }, "paths": {},
        "definitions": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn every_builtin_kind_has_a_schema_and_every_reference_its_target() {
        let kinds: Vec<Arc<Kind>> = builtin().into_iter().map(Arc::new).collect();
        for kind in &kinds {
            assert!(!types_of(kind).root.is_empty(), "{}", kind.resource.kind);
        }
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str));
                    members.values().for_each(|member| references(member, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let document = v3_document(&kinds, "apps", "v1");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference}");
        }
        let schemas = &document["components"]["schemas"];
        let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
        let expected = json!([{"group": "apps", "version": "v1", "kind": "Deployment"}]);
        assert_eq!(deployment["x-kubernetes-group-version-kind"], expected);
        let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        let policy = &schemas["io.k8s.api.core.v1.Container"]["properties"]["imagePullPolicy"];
        assert_eq!(policy["enum"], json!(["Always", "IfNotPresent", "Never"]));
        let selector = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"];
        assert_eq!(selector["x-kubernetes-map-type"], "atomic");
    }

    #[test]
    fn every_field_of_the_table_is_one() {
        let kinds = builtin();
        let mut known: HashMap<&str, Arc<Types>> = HashMap::new();
        for kind in &kinds {
            known.entry(&kind.resource.group).or_insert_with(|| types_of(kind));
        }
        for line in FIELDS.lines() {
            let (type_name, marks) = line.split_once(' ').unwrap();
            let suffix = format!(".{type_name}");
            let schema = known.values().find_map(|types| {
                types.definitions.iter().find(|(name, _)| name.ends_with(&suffix))
            });
            let (_, schema) = schema.unwrap_or_else(|| panic!("no type {type_name}"));
            for mark in marks.split(' ') {
                let field = mark.split(['=', ':']).next().unwrap();
                let of = &schema["properties"][field];
                let known = field == "-" || of.get("description").is_some();
                assert!(known, "{type_name} has no field {field}");
            }
        }
    }
}
