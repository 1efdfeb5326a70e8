//! Create, update and patch. Upstream: `apiserver/pkg/registry/generic/registry.Store`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::accounts;
use crate::api::call::{Call, Warnings};
use crate::api::failures;
use crate::api::status::ApiResult;
use crate::api::{Api, Payload};
use crate::apply;
use crate::auth::Access;
use crate::kinds::{self, Kind, Subresource, View};
use crate::patch;
use crate::storage::store::{StoreError, Stored};
use kube_controller_manager::server::http::Response;

/// Times that a patch or an unconditional update is tried again after a conflict of its own making.
const RETRIES: usize = 20;
/// Letters of generated names: no vowels, nothing that looks like another. Upstream: `util/rand`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

fn remove(object: &mut Value, key: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(key);
    }
}

/// Sets `key` as `from` has it, or removes it.
fn carry(object: &mut Value, from: &Value, key: &str) {
    match from.get(key) {
        Some(value) => object[key] = value.clone(),
        None => remove(object, key),
    }
}

pub fn uuid() -> String {
    let bits = (fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

pub fn generated(base: &str) -> String {
    let base: String = base.chars().take(58).collect();
    let suffix: String =
        (0..5).map(|_| char::from(ALPHABET[fastrand::usize(..ALPHABET.len())])).collect();
    base + &suffix
}

/// Drops lists and maps of the metadata that hold nothing, as its type does.
fn drop_empty(metadata: &mut Value) {
    for key in ["annotations", "finalizers", "labels", "ownerReferences"] {
        let empty = match metadata.get(key) {
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(members)) => members.is_empty(),
            _ => false,
        };
        if empty {
            remove(metadata, key);
        }
    }
}

fn spec_keys(object: &Value) -> Vec<String> {
    object["spec"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Takes out the members of the spec that are not `asked` for.
fn take_added(object: &mut Value, asked: &[String]) -> Vec<(String, Value)> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let added: Vec<String> = spec.keys().filter(|key| !asked.contains(key)).cloned().collect();
    added.into_iter().filter_map(|key| spec.remove_entry(&key)).collect()
}

/// Everything but metadata and status: what the generation counts.
fn same_content(a: &Value, b: &Value) -> bool {
    let content = |object: &Value| {
        let mut map = object.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        map.remove("status");
        map
    };
    content(a) == content(b)
}

fn check_type(kind: &Kind, object: &mut Value) -> ApiResult<()> {
    if !object.is_object() || !object.get("metadata").is_none_or(|m| m.is_object() || m.is_null()) {
        return Err(failures::bad_request("the object provided is unrecognized: it is no object"));
    }
    let (version, name) = (kind.resource.api_version(), &*kind.resource.kind);
    let (has_version, has_name) = (text(object, "/apiVersion"), text(object, "/kind"));
    if (!has_version.is_empty() && has_version != version)
        || (!has_name.is_empty() && has_name != name)
    {
        return Err(failures::bad_request(format!(
            "the API version in the data ({has_version}, Kind={has_name}) does not match the expected API version ({version}, Kind={name})"
        )));
    }
    object["apiVersion"] = version.into();
    object["kind"] = name.into();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    Ok(())
}

fn check_name(call: &Call, object: &Value) -> ApiResult<()> {
    let name = text(object, "/metadata/name");
    if name == call.name {
        return Ok(());
    }
    Err(failures::bad_request(format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        call.name
    )))
}

/// An update of an object that is not there creates it. Upstream: `AllowCreateOnUpdate`.
fn made_by_update(kind: &Kind) -> bool {
    match &*kind.resource.group {
        "" => matches!(&*kind.resource.plural, "endpoints" | "events" | "limitranges" | "services"),
        "coordination.k8s.io" | "rbac.authorization.k8s.io" => true,
        "node.k8s.io" => true,
        _ => false,
    }
}

/// Whether an update may leave out which version it goes by. Upstream: `AllowUnconditionalUpdate`.
fn updates_unconditionally(kind: &Kind) -> bool {
    let strict = matches!(
        (&*kind.resource.group, &*kind.resource.plural),
        ("admissionregistration.k8s.io" | "coordination.k8s.io" | "node.k8s.io" | "policy", _)
            | ("apiextensions.k8s.io" | "apiregistration.k8s.io", _)
            | (
                "storage.k8s.io",
                "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments"
            )
    );
    !strict && !kind.is_custom()
}

/// Metadata that the status endpoint leaves as it is. Upstream: `ResetObjectMetaForStatus` and the
/// strategies that do as much by themselves.
fn kept_by_status(kind: &Kind) -> &'static [&'static str] {
    const ALL: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("apps", "deployments") => &["labels"],
        ("apiextensions.k8s.io" | "apiregistration.k8s.io", _) => ALL,
        ("certificates.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => ALL,
        _ if kind.is_custom() => ALL,
        _ => &[],
    }
}

fn check_namespace(call: &Call, object: &mut Value) -> ApiResult<()> {
    let metadata = &mut object["metadata"];
    if !call.kind.resource.namespaced {
        remove(metadata, "namespace");
        return Ok(());
    }
    let own = metadata["namespace"].as_str().unwrap_or_default();
    if !own.is_empty() && own != call.namespace {
        return Err(failures::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata["namespace"] = call.namespace.as_str().into();
    Ok(())
}

/// How an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// By the object's own endpoint.
    Main,
    /// By the status subresource (also approval): nothing else changes.
    Status,
    /// By a subresource that changes the spec (resize, ephemeral containers).
    Spec,
    /// By a subresource whose handler has decided what changes (binding, eviction, finalize).
    Raw,
}

/// Whether a write's `managedFields` are still to be worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Update,
    /// They are what they shall be.
    Done,
}

impl Api {
    pub fn create(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let stored = self.create_object(call, call.object(payload)?)?;
        Ok(self.one(201, call, &stored))
    }

    /// Stores a new object, as a create request does.
    pub fn create_object(&self, call: &Call, object: Value) -> ApiResult<Arc<Stored>> {
        self.create_tracked(call, object, Track::Update)
    }

    fn create_tracked(
        &self,
        call: &Call,
        mut object: Value,
        track: Track,
    ) -> ApiResult<Arc<Stored>> {
        let kind = &call.kind;
        let dry_run = call.query.dry_run()?;
        check_type(kind, &mut object)?;
        check_namespace(call, &mut object)?;
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(failures::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let base = text(&object, "/metadata/generateName").to_owned();
        let named = !text(&object, "/metadata/name").is_empty();
        let metadata = &mut object["metadata"];
        for key in [
            "resourceVersion",
            "selfLink",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            remove(metadata, key);
        }
        drop_empty(metadata);
        metadata["uid"] = uuid().into();
        metadata["creationTimestamp"] = self.clock.now().to_string().into();
        if kind.has_generation {
            metadata["generation"] = 1.into();
        }
        if !named && !base.is_empty() {
            metadata["name"] = generated(&base).into();
        }
        let name = text(&object, "/metadata/name").to_owned();
        if kind.resource.namespaced {
            self.check_namespace_open(call, &name)?;
        }
        self.check_defined(kind, &name)?;
        (kind.default)(&mut object);
        self.check_escalation(call, None, &object)?;
        let account = self.account_of(kind, &object)?;
        let asked = spec_keys(&object);
        if is_namespace(kind) {
            finalized_by_kubernetes(&mut object);
        }
        self.prioritize(kind, &mut object)?;
        self.check_cluster_ip(kind, &object)?;
        (kind.prepare_create)(&mut object);
        let mut causes = (kind.validate_create)(&object);
        if name.is_empty() && !causes.iter().any(|cause| cause.field == "metadata.name") {
            causes.push(failures::required("metadata.name", "name or generateName is required"));
        }
        self.refuse(kind, &name, &causes)?;
        if named && self.store.get(&call.table(), &call.key(&name)).is_some() {
            return Err(failures::already_exists(&kind.resource, &name));
        }
        if is_definition(kind) {
            self.establish(&mut object)?;
        }
        if track == Track::Update {
            remove(&mut object["metadata"], "managedFields");
            let now = self.clock.now().to_string();
            // Nobody manages what admission and allocation have added.
            let added = take_added(&mut object, &asked);
            apply::update(kind, None, &mut object, &call.writer(&now));
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                spec.extend(added);
            }
        }
        if let Some(account) = account {
            accounts::equip(&mut object, &account.value);
        }
        let table = call.table();
        if dry_run {
            self.charge(call, &object, true)?;
            return Ok(Arc::new(unversioned(object)));
        }
        self.charge(call, &object, false)?;
        let mut attempt = name;
        for _ in 0..8 {
            match self.store.create(&table, &call.key(&attempt), object.clone()) {
                Ok(stored) => {
                    self.accompany(kind, None, Some(&stored.value));
                    return Ok(stored);
                }
                Err(_) if !named && !base.is_empty() => {
                    attempt = generated(&base);
                    object["metadata"]["name"] = attempt.as_str().into();
                }
                Err(_) => return Err(failures::already_exists(&kind.resource, &attempt)),
            }
        }
        Err(failures::already_exists(&kind.resource, &attempt))
    }

    fn refuse(
        &self,
        kind: &Kind,
        name: &str,
        causes: &[crate::api::status::Cause],
    ) -> ApiResult<()> {
        if causes.is_empty() {
            return Ok(());
        }
        Err(failures::invalid(&kind.resource.group, &kind.resource.kind, name, causes))
    }

    /// Upstream: the admission plugin NamespaceLifecycle.
    fn check_namespace_open(&self, call: &Call, name: &str) -> ApiResult<()> {
        let namespaces = kube_controller_manager::objects::ResourceType::fixed(
            "",
            "v1",
            "Namespace",
            "namespaces",
            false,
        );
        let namespace = &call.namespace;
        let Some(found) = self.store.get("namespaces", namespace) else {
            return Err(failures::not_found(&namespaces, namespace));
        };
        if text(&found.value, "/status/phase") != "Terminating" && !is_deleting(&found.value) {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut error = failures::forbidden(&call.kind.resource, name, &why);
        error.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        Err(error)
    }

    /// A write to a kind that is stored as another.
    pub fn write_view(
        &self,
        view: View,
        verb: &str,
        call: &Call,
        payload: &Payload,
    ) -> ApiResult<Response> {
        let (group, version, plural) = view.of;
        let kind = self.registry.find(group, version, plural).ok_or_else(failures::no_such_path)?;
        let part = match call.subresource.as_str() {
            "" => Part::Main,
            "status" => Part::Status,
            _ => return Err(failures::no_such_path()),
        };
        let stored_as = Call {
            kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            subresource: call.subresource.clone(),
            query: call.query.clone(),
            form: call.form,
            encoding: call.encoding,
            warnings: Warnings::default(),
            user: call.user.clone(),
        };
        let own = || -> ApiResult<Value> {
            let mut object = call.object(payload)?;
            check_type(&call.kind, &mut object)?;
            Ok(object)
        };
        let written = |mut new: Value, old: &Value| {
            new = (view.write)(new);
            if plural == "horizontalpodautoscalers" {
                kinds::views::keep_metrics(&mut new, old);
            }
            new
        };
        let stored = match verb {
            "create" => self.create_object(&stored_as, (view.write)(own()?))?,
            "update" => {
                let object = own()?;
                self.modify(&stored_as, part, &|old| Ok(written(object.clone(), old)))?
            }
            _ => self.modify(&stored_as, part, &|old| {
                let shown = (view.read)(old);
                let patched =
                    patch::apply(&call.kind, &payload.content_type, &shown, &payload.bytes)?;
                Ok(written(call.patched(payload, patched)?, old))
            })?,
        };
        Ok(self.one(if verb == "create" { 201 } else { 200 }, call, &stored))
    }

    pub fn update(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let object = call.object(payload)?;
        let missing = || self.store.get(&call.table(), &call.key(&call.name)).is_none();
        if made_by_update(&call.kind) && missing() {
            check_name(call, &object)?;
            self.check_creates(call)?;
            let stored = self.create_object(call, object)?;
            return Ok(self.one(201, call, &stored));
        }
        let stored = self.update_object(call, object, Part::Main)?;
        Ok(self.one(200, call, &stored))
    }

    /// Whether the caller may create what the request would have changed. Errors: 403.
    fn check_creates(&self, call: &Call) -> ApiResult<()> {
        let access = Access {
            verb: "create".to_owned(),
            group: (*call.kind.resource.group).to_owned(),
            resource: (*call.kind.resource.plural).to_owned(),
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            path: String::new(),
        };
        self.check_access(&call.user, &access)
    }

    /// Replaces an object, as an update request does.
    pub fn update_object(&self, call: &Call, object: Value, part: Part) -> ApiResult<Arc<Stored>> {
        self.modify(call, part, &|_| Ok(object.clone()))
    }

    pub fn patch(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let missing = || self.store.get(&call.table(), &call.key(&call.name)).is_none();
        if patch::is_apply(&payload.content_type) && missing() {
            let config = call.config(payload)?;
            let now = self.clock.now().to_string();
            let empty = json!({ "metadata": {} });
            let object = apply::apply(&call.kind, &empty, &config, &call.writer(&now), true)?;
            self.check_creates(call)?;
            let stored = self.create_tracked(call, object, Track::Done)?;
            return Ok(self.one(201, call, &stored));
        }
        let stored = self.patch_object(call, payload, Part::Main)?;
        Ok(self.one(200, call, &stored))
    }

    /// Patches an object, as a patch request does.
    pub fn patch_object(
        &self,
        call: &Call,
        payload: &Payload,
        part: Part,
    ) -> ApiResult<Arc<Stored>> {
        if patch::is_apply(&payload.content_type) {
            let config = call.config(payload)?;
            let now = self.clock.now().to_string();
            let (writer, force) = (call.writer(&now), call.query.is("force"));
            return self.modify_tracked(call, part, Track::Done, &|old| {
                apply::apply(&call.kind, old, &config, &writer, force)
            });
        }
        self.modify(call, part, &|old| {
            let patched = patch::apply(&call.kind, &payload.content_type, old, &payload.bytes)?;
            call.patched(payload, patched)
        })
    }

    /// Changes an object by `change`, which is given what is stored and may be called again when
    /// another write came between.
    pub fn modify(
        &self,
        call: &Call,
        part: Part,
        change: &dyn Fn(&Value) -> ApiResult<Value>,
    ) -> ApiResult<Arc<Stored>> {
        let track = if part == Part::Raw { Track::Done } else { Track::Update };
        self.modify_tracked(call, part, track, change)
    }

    fn modify_tracked(
        &self,
        call: &Call,
        part: Part,
        track: Track,
        change: &dyn Fn(&Value) -> ApiResult<Value>,
    ) -> ApiResult<Arc<Stored>> {
        let dry_run = call.query.dry_run()?;
        let (table, key) = (call.table(), call.key(&call.name));
        let resource = &call.kind.resource;
        for _ in 0..RETRIES {
            let old = self
                .store
                .get(&table, &key)
                .ok_or_else(|| failures::not_found(resource, &call.name))?;
            let shown = crate::api::read::shown(&call.kind, &old);
            let mut new = self.changed(call, part, &shown, change(&shown)?)?;
            if track == Track::Update {
                let now = self.clock.now().to_string();
                apply::update(&call.kind, Some(&shown), &mut new, &call.writer(&now));
            }
            if new == *shown {
                return Ok(old);
            }
            let goes = goes_now(&call.kind, &new);
            if dry_run {
                return Ok(Arc::new(unversioned(new)));
            }
            let written = if goes {
                self.store.delete(&table, &key, old.version, Some(new))
            } else {
                self.store.replace(&table, &key, old.version, new)
            };
            match written {
                Ok(stored) => {
                    if goes {
                        self.gone(&call.kind, &stored.value);
                    } else {
                        self.accompany(&call.kind, Some(&old.value), Some(&stored.value));
                    }
                    return Ok(stored);
                }
                Err(StoreError::Changed) => {}
                Err(error) => return Err(failures::internal(format!("{error:?}"))),
            }
        }
        Err(failures::modified(resource, &call.name))
    }

    /// `new` as it would be stored in place of `old`.
    fn changed(&self, call: &Call, part: Part, old: &Value, mut new: Value) -> ApiResult<Value> {
        let kind = &call.kind;
        let resource = &kind.resource;
        check_type(kind, &mut new)?;
        check_namespace(call, &mut new)?;
        check_name(call, &new)?;
        let uid = text(&new, "/metadata/uid");
        let real = text(old, "/metadata/uid");
        if !uid.is_empty() && uid != real {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {real}"
            );
            return Err(failures::conflict(resource, &call.name, &why));
        }
        let due = text(&new, "/metadata/deletionTimestamp");
        if !due.is_empty() && !is_deleting(old) {
            let set = failures::invalid_value(
                "metadata.deletionTimestamp",
                &due.into(),
                "field is immutable",
            );
            return Err(failures::invalid(&resource.group, &resource.kind, &call.name, &[set]));
        }
        let version = text(&new, "/metadata/resourceVersion");
        if version.is_empty() && part != Part::Raw && !updates_unconditionally(kind) {
            let unset = failures::invalid_value(
                "metadata.resourceVersion",
                &0.into(),
                "must be specified for an update",
            );
            return Err(failures::invalid(&resource.group, &resource.plural, &call.name, &[unset]));
        }
        if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
            return Err(failures::modified(resource, &call.name));
        }
        for key in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
            "generateName",
        ] {
            carry(&mut new["metadata"], &old["metadata"], key);
        }
        remove(&mut new["metadata"], "selfLink");
        drop_empty(&mut new["metadata"]);
        match part {
            Part::Main => {
                (kind.default)(&mut new);
                self.check_escalation(call, Some(old), &new)?;
                (kind.prepare_update)(&mut new, old);
            }
            Part::Status => {
                let mut whole = old.clone();
                whole["metadata"] = new["metadata"].take();
                for key in kept_by_status(kind) {
                    carry(&mut whole["metadata"], &old["metadata"], key);
                }
                carry(&mut whole, &new, "status");
                new = whole;
                (kind.default)(&mut new);
            }
            Part::Spec => (kind.default)(&mut new),
            Part::Raw => {}
        }
        let counted = matches!(part, Part::Main | Part::Spec);
        if counted && kind.has_generation && !same_content(&new, old) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = (generation + 1).into();
        }
        let mut causes = Vec::new();
        if is_deleting(old) {
            let before = list(old, "/metadata/finalizers");
            let added: Vec<&Value> =
                list(&new, "/metadata/finalizers").iter().filter(|f| !before.contains(f)).collect();
            if !added.is_empty() {
                let added: Vec<String> = added.iter().map(|f| f.to_string()).collect();
                let why = format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                );
                causes.push(failures::forbidden_field("metadata.finalizers", &why));
            }
        }
        if part == Part::Main || part == Part::Status && kind.is_custom() {
            for cause in (kind.validate_update)(&new, old) {
                if !causes.iter().any(|known| known.field == cause.field) {
                    causes.push(cause);
                }
            }
        }
        if part == Part::Status && is_namespace(kind) {
            causes.extend(wrong_phase(&new));
        }
        self.refuse(kind, &call.name, &causes)?;
        if part == Part::Status {
            self.check_signer(call, old, &new)?;
        }
        if is_definition(kind) && part == Part::Main {
            self.establish(&mut new)?;
        }
        Ok(new)
    }

    /// Serves the kinds of a CustomResourceDefinition and says so in its status.
    fn establish(&self, definition: &mut Value) -> ApiResult<()> {
        let name = text(definition, "/metadata/name").to_owned();
        let kinds = kinds::from_crd(definition).map_err(|causes| {
            failures::invalid("apiextensions.k8s.io", "CustomResourceDefinition", &name, &causes)
        })?;
        let now = self.clock.now().to_string();
        let mut names = definition["spec"]["names"].clone();
        if names["listKind"].is_null() {
            names["listKind"] = format!("{}List", text(&names, "/kind")).into();
        }
        if names["singular"].is_null() {
            names["singular"] = text(&names, "/kind").to_lowercase().into();
        }
        let stored: Vec<&Value> = list(definition, "/spec/versions")
            .iter()
            .filter(|version| version["storage"] == true)
            .map(|version| &version["name"])
            .collect();
        let condition = |r#type: &str, reason: &str, message: &str| json!({ "type": r#type, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message });
        let known = definition.pointer("/status/conditions").cloned();
        let conditions = known.filter(|known| !list(known, "").is_empty()).unwrap_or_else(|| {
            json!([
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition(
                    "Established",
                    "InitialNamesAccepted",
                    "the initial names have been accepted"
                ),
            ])
        });
        let status = json!({
            "conditions": conditions, "acceptedNames": names.clone(), "storedVersions": stored,
        });
        definition["status"] = status;
        definition["spec"]["names"] = names;
        self.registry.define(&name, kinds);
        Ok(())
    }

    /// What follows the removal of an object.
    pub fn gone(&self, kind: &Kind, object: &Value) {
        if is_definition(kind) {
            self.registry.define(text(object, "/metadata/name"), Vec::new());
            let table =
                format!("{}.{}", text(object, "/spec/names/plural"), text(object, "/spec/group"));
            self.store.clear(&table);
        }
        self.accompany(kind, Some(object), None);
        if kind.is_custom()
            && let Err(error) = self.release_definition(&kind.resource.to_string())
        {
            log::error!("{} stays: {}", kind.resource, error.message);
        }
        if kind.resource.plural == "serviceaccounts" && kind.resource.group.is_empty() {
            let (namespace, name) =
                (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
            self.auth.revoke(&format!("system:serviceaccount:{namespace}:{name}"));
        }
    }
}

/// An object that is not stored: a dry run's answer.
fn unversioned(object: Value) -> Stored {
    let mut stored = Stored::new(object.clone(), 0);
    stored.bytes = serde_json::to_vec(&object).unwrap_or_default().into();
    stored.value = object;
    stored
}

pub fn is_definition(kind: &Kind) -> bool {
    kind.resource.plural == "customresourcedefinitions"
        && kind.resource.group == "apiextensions.k8s.io"
}

fn is_namespace(kind: &Kind) -> bool {
    kind.resource.plural == "namespaces" && kind.resource.group.is_empty()
}

/// A namespace's phase says whether it is being deleted. Upstream: `ValidateNamespaceStatusUpdate`.
fn wrong_phase(namespace: &Value) -> Option<crate::api::status::Cause> {
    let (right, detail) = match is_deleting(namespace) {
        true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
    };
    let phase = text(namespace, "/status/phase");
    (phase != right).then(|| failures::invalid_value("status.Phase", &phase.into(), detail))
}

fn finalized_by_kubernetes(namespace: &mut Value) {
    if !namespace["spec"].is_object() {
        namespace["spec"] = json!({});
    }
    let finalizers = &mut namespace["spec"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|f| f == "kubernetes") => {}
        Some(finalizers) => finalizers.push("kubernetes".into()),
        None => *finalizers = json!(["kubernetes"]),
    }
    namespace["status"] = json!({ "phase": "Active" });
    let name = text(namespace, "/metadata/name").to_owned();
    if !namespace["metadata"]["labels"].is_object() {
        namespace["metadata"]["labels"] = json!({});
    }
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
}

/// Whether an update lets the object go: deleted before, and nothing holds it any more.
/// Upstream: `ShouldDeleteDuringUpdate`.
pub fn goes_now(kind: &Kind, object: &Value) -> bool {
    let held_by_spec = is_namespace(kind) && !list(object, "/spec/finalizers").is_empty();
    is_deleting(object)
        && list(object, "/metadata/finalizers").is_empty()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !held_by_spec
}

/// The subresource of that name, when the kind has it.
pub fn has(kind: &Kind, wanted: &str) -> Option<Subresource> {
    kind.subresources.iter().find(|sub| sub.name() == wanted).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_uids_look_as_they_should() {
        let name = generated(&"x".repeat(70));
        assert_eq!((name.len(), &name[..58]), (63, &*"x".repeat(58)));
        let uid = uuid();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
        assert!("89ab".contains(&uid[19..20]), "{uid}");
    }
}
