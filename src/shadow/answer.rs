//! Answers to writes that are not sent.

use futures_lite::future::Boxed;
use serde_json::Value;
use std::sync::Arc;

use super::author::bound_to;
use super::intended::{IntendedWrite, Place};
use super::ledger::{Kind, kind_of};
use super::request::{Effect, Refusal, Request};
use super::target::Target;
use super::{Inner, Shadow, secrets};
use crate::client::{
    Call, Details, Error, Failure, FailureBody, Interceptor, Result, Status, StatusCause,
};
use crate::task::{SyncScope, current_scope};

/// The page size of a list before a collection is deleted: one page shows whether it has items.
const PAGE: &str = "500";

/// A write that a client wants to send.
struct Asked {
    call: Call,
    /// The User-Agent, used when no controller wrote.
    agent: String,
    run: Option<Arc<SyncScope>>,
}

impl Interceptor for Shadow {
    /// Claims an object that a controller reads by name, because controllers read most objects in
    /// order to write them.
    fn on_read(&self, call: &Call) {
        let target = Target::parse(&call.path).filter(|target| !target.name.is_empty());
        let Some(target) = target.filter(|_| !call.is_watch) else { return };
        let place =
            Place { resource: target.resource(), namespace: target.namespace, name: target.name };
        let run = current_scope();
        self.inner.claim(&place, Kind::Read, run.map_or("", |run| run.controller));
    }

    fn handle_write(&self, call: &Call, agent: &str) -> Boxed<Result<Vec<u8>>> {
        let asked = Asked { call: call.clone(), agent: agent.to_owned(), run: current_scope() };
        let shadow = self.inner.clone();
        Box::pin(async move { shadow.answer(asked).await })
    }
}

impl Asked {
    /// Returns the error of a write for which no better answer is known.
    fn shadowed(&self) -> Error {
        Error::Shadowed { request: self.call.to_string() }
    }

    /// The controller; for other writes, the part of the program that the User-Agent names.
    fn controller(&self) -> String {
        let named = || self.agent.rsplit('/').next().unwrap_or_default();
        self.run.as_ref().map_or_else(named, |run| run.controller).to_owned()
    }

    /// Returns the place of the written object; the name of a creation comes from its body, and is
    /// `PREFIX*` if the server generates it.
    fn place(&self, target: &Target, body: &Value) -> Place {
        let metadata = &body["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let name = match (target.name.as_str(), text("name"), text("generateName")) {
            ("", "", prefix) if self.call.method == "POST" && !prefix.is_empty() => {
                format!("{prefix}*")
            }
            ("", name, _) if self.call.method == "POST" => name.to_owned(),
            (name, ..) => name.to_owned(),
        };
        Place { resource: target.resource(), namespace: target.namespace.clone(), name }
    }

    /// Returns the error that the API server would answer with.
    fn refusal_error(&self, refusal: Refusal, place: &Place) -> Error {
        let (code, reason, what) = refusal.answer();
        let mut details = Details::default();
        if refusal == Refusal::NamespaceTerminating {
            let reason = "NamespaceTerminating".to_owned();
            details.causes.push(StatusCause { reason, ..StatusCause::default() });
        }
        let status = Status {
            message: format!("{} {:?}: {what}", place.resource, place.name),
            reason: reason.to_owned(),
            code,
            details,
            ..Status::default()
        };
        let (request, body) = (self.call.to_string(), FailureBody::Status);
        Error::Status(Box::new(Failure { request, code, retry_after: None, body, status }))
    }
}

impl Inner {
    /// Handles a write of this manager in place of the API server: answers as the server would if
    /// it would refuse the write or change nothing; else records the write as intended, and returns
    /// [`Error::Shadowed`].
    async fn answer(&self, asked: Asked) -> Result<Vec<u8>> {
        let Some(target) = Target::parse(&asked.call.path) else { return Err(asked.shadowed()) };
        let (content_type, bytes) = asked.call.content().unwrap_or_default();
        // Events are not compared: each manager counts and gathers its own.
        if target.plural == "events" {
            return Ok(bytes.to_vec());
        }
        let mut body: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let place = asked.place(&target, &body);
        let is_of_secret = place.resource == secrets::RESOURCE;
        if is_of_secret {
            secrets::conceal(&mut body);
        }
        let object_path = object_path(&target, &place);
        let request = Request {
            method: asked.call.method,
            content_type,
            subresource: target.subresource.clone(),
            body,
            is_of_secret,
            object_path,
            collection: list_of_collection(&asked.call, &place),
        };
        let controller = asked.controller();
        self.claim(&place, kind_of(&request), &controller);
        // A sync records only the first of several objects; the others count as its siblings.
        let owners = request.body["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let owner = owners.filter_map(|owner| owner["uid"].as_str()).next();
        if let Some(owner) = owner.filter(|_| request.is_create()) {
            self.claim(&place.of_owner(owner), Kind::Create, &controller);
        }
        if let Some(claim) = bound_to(&place.resource, &request.body) {
            self.claim(&place.of_owner(claim), kind_of(&request), &controller);
        }
        let run = asked.run.as_deref();
        let in_sync = run.is_some_and(|run| !run.key.is_empty() && !run.has_ended());
        if in_sync && run.is_some_and(SyncScope::has_unwritten) {
            // The writes of a sync after a failed write differ from those after a successful one.
            return Err(asked.shadowed());
        }
        let mut intended = IntendedWrite {
            controller,
            key: if in_sync { run.map_or("", |run| &*run.key).to_owned() } else { String::new() },
            patience: run.map(|run| run.period).unwrap_or_default(),
            place,
            request,
            changes: Vec::new(),
        };
        let was_created = intended.request.is_create() && self.was_created(&intended);
        let (request, place) = (&intended.request, &intended.place);
        if let Some(path) = &request.object_path {
            match self.read(path).await {
                Ok(live) => {
                    if let Some(refusal) = request.refusal(live.as_ref()) {
                        self.record_refusal(&intended, refusal, live.as_ref());
                        return Err(asked.refusal_error(refusal, place));
                    }
                    if let Some(live) = live {
                        match request.effect(&live) {
                            Effect::Nothing => {
                                return Ok(serde_json::to_vec(&live).unwrap_or_default());
                            }
                            Effect::Changes(found) => intended.changes = found,
                            Effect::Unknown => {}
                        }
                    }
                }
                Err(error) => log::warn!("shadow: {place}: {error}"),
            }
        } else if let Some(list) = &request.collection {
            match self.has_items(list).await {
                Ok(false) => return Ok(b"{}".to_vec()),
                Ok(true) => {}
                Err(error) => log::warn!("shadow: {place}: {error}"),
            }
        }
        // A creation that the manager in charge has already made was compared with this one:
        // nothing more is expected of it.
        if !was_created {
            if let Some(refusal) = self.namespace_refusal(&intended).await {
                self.record_refusal(&intended, refusal, None);
                return Err(asked.refusal_error(refusal, place));
            }
            self.record_intended(intended);
        }
        if let Some(run) = run {
            run.mark_unwritten();
        }
        Err(asked.shadowed())
    }

    /// Returns the reason why the object cannot be created in its namespace; `None` if it can, or
    /// if the write is not a creation or the Namespace cannot be read.
    async fn namespace_refusal(&self, intended: &IntendedWrite) -> Option<Refusal> {
        let namespace = &intended.place.namespace;
        if !intended.request.is_create() || namespace.is_empty() {
            return None;
        }
        let found = self.read(&format!("/api/v1/namespaces/{namespace}")).await;
        Request::namespace_refusal(found.ok()?.as_ref())
    }

    /// Returns whether a list holds objects that are not being deleted.
    pub async fn has_items(&self, list: &Call) -> Result<bool> {
        let items: Value = self.reader.fetch(list).await?;
        let mut items = items["items"].as_array().into_iter().flatten();
        Ok(items.any(|item| item["metadata"]["deletionTimestamp"].is_null()))
    }
}

/// Returns the call that lists the collection that `call` deletes; `None` for other calls.
fn list_of_collection(call: &Call, place: &Place) -> Option<Call> {
    (call.method == "DELETE" && place.name.is_empty()).then(|| {
        let mut list = Call::new("GET", call.path.clone());
        list.query = call.query.clone();
        list.query("limit", PAGE);
        list
    })
}

/// Returns the path of the object that a write is compared with: the one that it changes or creates,
/// or its Scale. `None` for a collection, and for a name that the server generates.
fn object_path(target: &Target, place: &Place) -> Option<String> {
    if place.name.is_empty() || place.name.ends_with('*') {
        return None;
    }
    Some(match (target.name.as_str(), target.subresource.as_str()) {
        // A creation: the path is that of the collection.
        ("", _) => format!("{}/{}", target.object_path.trim_end_matches('/'), place.name),
        (_, "scale") => format!("{}/scale", target.object_path),
        _ => target.object_path.clone(),
    })
}
