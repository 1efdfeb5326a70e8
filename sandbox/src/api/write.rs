//! Create, update and patch. Upstream: `apiserver/pkg/registry/generic/registry.Store`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::Access;
use crate::admission::policies::Request;
use crate::admission::{accounts, cluster_ip, pod_group, priority, quota, storage_class};
use crate::api::Api;
use crate::api::rules::{
    allows_create_on_update, check_name, check_namespace, check_type, initialize_namespace,
    is_definition, is_namespace, is_removed_by_update, refuse,
};
use crate::apply;
use crate::failures;
use crate::kinds::{self, Kind, Subresource, View};
use crate::object::{
    drop_empty, generated_name, is_deleting, remove, spec_keys, take_added, text, uuid,
};
use crate::patch;
use crate::request::call::{Call, Warnings};
use crate::request::payload::Payload;
use crate::status::ApiResult;
use crate::storage::store::{StoreError, Stored};
use kube_controller_manager::server::http::Response;

/// How often a patch or an unconditional update is retried after a conflict with another write.
const RETRIES: usize = 20;

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status: by the object's own endpoint.
    Main,
    /// The status: by the subresources `status` and `approval`.
    Status,
    /// The spec: by the subresources `resize` and `ephemeralcontainers`.
    Spec,
    /// Any part, without checks: by handlers that have decided the change (`binding`, `eviction`,
    /// `finalize`).
    Raw,
}

/// Whether a write's `managedFields` must still be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Update,
    /// They have been computed.
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

    /// Creates an object for the server itself, with all checks of a create request.
    pub fn create_value(&self, group: &str, resource: &str, object: Value) -> ApiResult<Value> {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let version = version.rsplit('/').next().unwrap_or_default();
        let kind =
            self.registry.find(group, version, resource).ok_or_else(failures::no_such_path)?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let mut call = Call::of(kind, namespace, "");
        call.query.fill("fieldManager", "kube-apiserver");
        self.create_object(&call, object).map(|stored| stored.value.clone())
    }

    /// Stores a new object after the checks of a create: metadata, defaults, admission, validation,
    /// policies and quota. Retries with another generated name if the name is taken.
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
            metadata["name"] = generated_name(&base).into();
        }
        let name = text(&object, "/metadata/name").to_owned();
        if kind.resource.namespaced {
            self.check_namespace_open(call, &name)?;
        }
        self.check_defined(kind, &name)?;
        self.faults.apply_rewrites(&kind.resource.plural, &mut object);
        (kind.default)(&mut object);
        self.authorizer().check_escalation(call, None, &object)?;
        self.authorizer().check_attester(call, None, &object)?;
        let account = match self.needs_account(kind) {
            true => accounts::account_of(&self.store, kind, &object)?,
            false => None,
        };
        let asked = spec_keys(&object);
        if is_namespace(kind) {
            initialize_namespace(&mut object);
        }
        priority::prioritize(&self.store, kind, &mut object)?;
        storage_class::classify(&self.store, kind, &mut object);
        pod_group::protect(kind, &mut object);
        cluster_ip::check(&self.store, kind, &object)?;
        (kind.prepare_create)(&mut object);
        let mut causes = (kind.validate_create)(&object);
        if name.is_empty() && !causes.iter().any(|cause| cause.field == "metadata.name") {
            causes.push(failures::required("metadata.name", "name or generateName is required"));
        }
        refuse(kind, &name, &causes)?;
        if named && self.store.get(&call.table(), &call.key(&name)).is_some() {
            return Err(failures::already_exists(&kind.resource, &name));
        }
        if is_definition(kind) {
            self.establish(&mut object)?;
        }
        if track == Track::Update {
            remove(&mut object["metadata"], "managedFields");
            let now = self.clock.now().to_string();
            // Fields that admission and allocation add have no manager.
            let added = take_added(&mut object, &asked);
            apply::update(kind, None, &mut object, &call.writer(&now));
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                spec.extend(added);
            }
        }
        if let Some(account) = account {
            accounts::add_token_and_secrets(&mut object, &account.value);
        }
        self.policies().admit(&Request {
            call,
            operation: "CREATE",
            object: Some(&object),
            old: None,
            dry_run,
        })?;
        kind.encode(&mut object);
        let table = call.table();
        if dry_run {
            self.charge(call, &object, None, true)?;
            return Ok(Arc::new(unversioned(object)));
        }
        self.charge(call, &object, None, false)?;
        let mut attempt = name;
        // Upstream: `maxNameGenerationCreateAttempts`.
        for _ in 0..8 {
            match self.store.create(&table, &call.key(&attempt), object.clone()) {
                Ok(stored) => {
                    self.sync_companions(kind, None, Some(&stored.value));
                    return Ok(stored);
                }
                Err(_) if !named && !base.is_empty() => {
                    attempt = generated_name(&base);
                    object["metadata"]["name"] = attempt.as_str().into();
                }
                Err(_) => return Err(failures::already_exists(&kind.resource, &attempt)),
            }
        }
        Err(failures::already_exists(&kind.resource, &attempt))
    }

    /// Returns whether an object of this kind needs its service account.
    pub fn needs_account(&self, kind: &Kind) -> bool {
        self.service_accounts && accounts::is_needed(&self.registry, kind)
    }

    /// Charges an object to the quotas of its namespace. `before`: the object before an update.
    /// Errors: 403.
    fn charge(
        &self,
        call: &Call,
        object: &Value,
        before: Option<&Value>,
        dry_run: bool,
    ) -> ApiResult<()> {
        // A dry run checks the quotas, but does not change their usage.
        let kind = self.registry.find("", "v1", quota::QUOTAS).filter(|_| !dry_run);
        for stored in quota::quotas(&self.store, call, before) {
            let charged = quota::charge(&call.kind, object, &stored.value)?;
            let (Some(_), Some(kind)) = (charged, kind.clone()) else { continue };
            let name = text(&stored.value, "/metadata/name");
            let at =
                Call { subresource: "status".to_owned(), ..Call::of(kind, &call.namespace, name) };
            // Requests are charged concurrently: the usage is checked again with each write.
            let changed = self.modify(&at, Part::Raw, &|old| {
                let mut new = old.clone();
                let used = quota::charge(&call.kind, object, old)?.unwrap_or_default();
                for (name, amount) in used.iter() {
                    new["status"]["used"][name.as_str()] = amount.to_string().into();
                }
                Ok(new)
            });
            match changed {
                // With 404 the quota has been deleted meanwhile.
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that the namespace of a new object accepts it. Errors: 403 when the namespace is
    /// being deleted, 404 when it does not exist. Upstream: the admission plugin
    /// NamespaceLifecycle.
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

    /// Writes to a kind whose objects are stored as another kind, such as a v1
    /// HorizontalPodAutoscaler. Converts the body to the stored kind, writes that, and answers in
    /// the form of the call's kind.
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
        let read_object = || -> ApiResult<Value> {
            let mut object = call.object(payload)?;
            check_type(&call.kind, &mut object)?;
            Ok(object)
        };
        let to_stored = |mut new: Value, old: &Value| {
            new = (view.write)(new);
            // Only this view cannot show all of the stored object.
            if plural == "horizontalpodautoscalers" {
                kinds::views::keep_metrics(&mut new, old);
            }
            new
        };
        let stored = match verb {
            "create" => self.create_object(&stored_as, (view.write)(read_object()?))?,
            "update" => {
                let object = read_object()?;
                self.modify(&stored_as, part, &|old| Ok(to_stored(object.clone(), old)))?
            }
            _ => self.modify(&stored_as, part, &|old| {
                let shown = (view.read)(old);
                let patched =
                    patch::apply(&call.kind, &payload.content_type, &shown, &payload.bytes)?;
                Ok(to_stored(call.check_patched(payload, patched)?, old))
            })?,
        };
        Ok(self.one(if verb == "create" { 201 } else { 200 }, call, &stored))
    }

    /// Replaces an object. A missing one is created where its kind allows it.
    pub fn update(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let object = call.object(payload)?;
        let missing = || self.store.get(&call.table(), &call.key(&call.name)).is_none();
        if allows_create_on_update(&call.kind) && missing() {
            check_name(call, &object)?;
            self.check_creates(call)?;
            let stored = self.create_object(call, object)?;
            return Ok(self.one(201, call, &stored));
        }
        let stored = self.update_object(call, object, Part::Main)?;
        Ok(self.one(200, call, &stored))
    }

    /// Checks that the caller may create the object, for an update that creates it. Errors: 403.
    fn check_creates(&self, call: &Call) -> ApiResult<()> {
        let access = Access {
            verb: "create".to_owned(),
            group: (*call.kind.resource.group).to_owned(),
            resource: (*call.kind.resource.plural).to_owned(),
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            path: String::new(),
        };
        self.authorizer().check(&call.user, &access)
    }

    /// Replaces an object, as an update request does.
    pub fn update_object(&self, call: &Call, object: Value, part: Part) -> ApiResult<Arc<Stored>> {
        self.modify(call, part, &|_| Ok(object.clone()))
    }

    /// Patches an object. An apply creates a missing one.
    pub fn patch(&self, call: &Call, payload: &Payload) -> ApiResult<Response> {
        let missing = || self.store.get(&call.table(), &call.key(&call.name)).is_none();
        if patch::is_apply(&payload.content_type) && missing() {
            let config = call.config(payload)?;
            let now = self.clock.now().to_string();
            let empty = json!({ "metadata": {} });
            // Forced: a new object has no other manager.
            let object = apply::apply(&call.kind, &empty, &config, &call.writer(&now), true)?;
            self.check_creates(call)?;
            let stored = self.create_tracked(call, object, Track::Done)?;
            return Ok(self.one(201, call, &stored));
        }
        let stored = self.patch_object(call, payload, Part::Main)?;
        Ok(self.one(200, call, &stored))
    }

    /// Applies a request's patch to the stored object: a server-side apply, or a patch of another
    /// type.
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
            call.check_patched(payload, patched)
        })
    }

    /// Changes an object by `change`, which gets the stored object and is called again after a
    /// conflict with another write.
    pub fn modify(
        &self,
        call: &Call,
        part: Part,
        change: &dyn Fn(&Value) -> ApiResult<Value>,
    ) -> ApiResult<Arc<Stored>> {
        let track = if part == Part::Raw { Track::Done } else { Track::Update };
        self.modify_tracked(call, part, track, change)
    }

    /// Stores the object that `change` makes of the stored one, after the checks of an update.
    /// Repeats this after a conflict with another write. Deletes an object that is being deleted
    /// when the change removes its last finalizer.
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
            let current = crate::api::read::in_version_of(&call.kind, &old);
            let mut new = self.complete_update(call, part, &current, change(&current)?)?;
            if track == Track::Update {
                let now = self.clock.now().to_string();
                apply::update(&call.kind, Some(&current), &mut new, &call.writer(&now));
            }
            // Upstream passes a Scale to policies here.
            if part != Part::Raw && call.subresource != "scale" {
                let (object, old) = (Some(&new), Some(&*current));
                let operation = "UPDATE";
                self.policies().admit(&Request { call, operation, object, old, dry_run })?;
            }
            // An object of an earlier storage version is written again.
            if new == *current && call.kind.is_encoded(&old.value) {
                return Ok(old);
            }
            if part == Part::Main && quota::changes_scope(&call.kind, &new, &current) {
                self.charge(call, &new, Some(&current), dry_run)?;
            }
            call.kind.encode(&mut new);
            let is_removed = is_removed_by_update(&call.kind, &new);
            if dry_run {
                return Ok(Arc::new(unversioned(new)));
            }
            let written = if is_removed {
                self.store.delete(&table, &key, old.version, Some(new))
            } else {
                self.store.replace(&table, &key, old.version, new)
            };
            match written {
                Ok(stored) => {
                    if is_removed {
                        self.after_removal(&call.kind, &stored.value);
                    } else {
                        self.sync_companions(&call.kind, Some(&old.value), Some(&stored.value));
                    }
                    return Ok(stored);
                }
                Err(StoreError::Changed) => {}
                Err(error) => return Err(failures::internal(format!("{error:?}"))),
            }
        }
        Err(failures::modified(resource, &call.name))
    }
}

/// Returns an object that is not stored: a dry run's answer.
fn unversioned(object: Value) -> Stored {
    let mut stored = Stored::new(object.clone(), 0);
    // `Stored::new` has written a version into its copy, which the answer must not have.
    stored.bytes = serde_json::to_vec(&object).unwrap_or_default().into();
    stored.value = object;
    stored
}

/// Returns the subresource of that name, when the kind has it.
pub fn has(kind: &Kind, wanted: &str) -> Option<Subresource> {
    kind.subresources.iter().find(|sub| sub.name() == wanted).cloned()
}
