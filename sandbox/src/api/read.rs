//! GET: one object, or a list.
//! Upstream: `apiserver/pkg/endpoints/handlers/get.go`, `apiserver/pkg/storage/cacher`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_lite::FutureExt;
use serde_json::{Value, json};

use crate::api::Api;
use crate::api::response::{failure, json_response};
use crate::api::select::Selection;
use crate::api::table::{self, IncludeObject};
use crate::failures;
use crate::kinds::Kind;
use crate::protobuf;
use crate::request::accept::{Encoding, Form};
use crate::request::call::Call;
use crate::status::{ApiError, ApiResult, Cause};
use crate::storage::store::{Page, Store, StoreError, Stored};
use kube_controller_manager::server::http::{Bytes, Response};

/// How long a request waits for a version that has not been written yet.
const FRESH_WITHIN: Duration = Duration::from_secs(3);
/// Lists longer than this are sent in chunks.
const CHUNK_ITEMS: usize = 256;

/// Returns a stored object in the version of `kind`, borrowed where it needs no conversion.
pub fn in_version_of<'a>(kind: &Kind, stored: &'a Stored) -> Cow<'a, Value> {
    if let Some(view) = kind.view {
        return Cow::Owned((view.read)(&stored.value));
    }
    let mut value = match kind.coerced(&stored.value) {
        Some(value) => Cow::Owned(value),
        None => Cow::Borrowed(&stored.value),
    };
    let version = kind.resource.api_version();
    if value["apiVersion"] != *version {
        value.to_mut()["apiVersion"] = version.into();
    }
    value
}

/// An object of a list, without the kind that the list names; only custom resources repeat it.
pub struct Untyped<'a>(pub &'a Value);

impl serde::Serialize for Untyped<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Value::Object(members) = self.0 else { return self.0.serialize(to) };
        to.collect_map(
            members.iter().filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion")),
        )
    }
}

/// Returns the object that the columns of a kind read: a view is printed in its own form.
fn printed<'a>(kind: &Kind, stored: &'a Stored) -> Cow<'a, Value> {
    if kind.view.is_some() { Cow::Borrowed(&stored.value) } else { in_version_of(kind, stored) }
}

/// Builds the `PartialObjectMetadata` of an object.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// Encodes one object's message, in the requested form. The message of an object as it is stored is
/// encoded once, and kept.
fn object_message(call: &Call, stored: &Stored) -> Bytes {
    let (version, kind) = message_kind(call);
    match in_version_of(&call.kind, stored) {
        Cow::Borrowed(_) if call.form != Form::Partial => stored.protobuf(),
        value => protobuf::message(&version, kind, &value).unwrap_or_default(),
    }
}

/// Returns the `apiVersion` and kind in which a call shows objects.
fn message_kind(call: &Call) -> (String, &str) {
    match call.form {
        Form::Partial => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
        _ => (call.kind.resource.api_version(), &call.kind.resource.kind),
    }
}

/// Encodes one object in the requested form and encoding.
pub fn object_bytes(call: &Call, stored: &Stored, now: i64) -> Bytes {
    if call.encoding == Encoding::Protobuf {
        let (version, kind) = message_kind(call);
        return protobuf::envelope(&version, kind, &object_message(call, stored)).into();
    }
    let shown = in_version_of(&call.kind, stored);
    // No object is asked for in the form `Aggregated`, which is for discovery.
    let value = match (call.form, &shown) {
        // As it is stored.
        (Form::Object | Form::Aggregated, Cow::Borrowed(_)) => return stored.bytes.clone(),
        (Form::Object | Form::Aggregated, Cow::Owned(value)) => serde_json::to_vec(value),
        (Form::Partial, value) => serde_json::to_vec(&partial(value)),
        (Form::Table, _) => {
            let meta = json!({ "resourceVersion": stored.version.to_string() });
            let value = printed(&call.kind, stored);
            serde_json::to_vec(&table::render(&call.kind, &[&value], &meta, now, included(call)))
        }
    };
    value.unwrap_or_default().into()
}

/// Returns the objects in the rows of a Table.
fn included(call: &Call) -> IncludeObject {
    IncludeObject::parse(call.query.get("includeObject")).unwrap_or_default()
}

/// Parses the requested version; `None` is the newest (`0` or absent).
pub fn parse_version(text: &str) -> ApiResult<Option<u64>> {
    match text {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            failures::bad_request(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        }),
    }
}

/// Encodes a `continue` token as upstream's: the list at `version` continues behind the key
/// `after`, at the least key that is greater, which has a zero byte more.
pub fn encode_continue(version: i64, after: &str) -> String {
    URL_SAFE_NO_PAD.encode(
        json!({ "v": "meta.k8s.io/v1", "rv": version, "start": format!("{after}\0") }).to_string(),
    )
}

/// Decodes a `continue` token: returns the version of the list (negative: the newest) and the last
/// key of the page before.
pub fn decode_continue(token: &str) -> ApiResult<(i64, String)> {
    let fault = || failures::bad_request("continue key is not valid: it can't be decoded");
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| fault())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| fault())?;
    let version = token["rv"].as_i64().ok_or_else(fault)?;
    let start = token["start"].as_str().ok_or_else(fault)?;
    Ok((version, start.trim_end_matches('\0').to_owned()))
}

pub fn list_options_fault(field: &str, message: String) -> ApiError {
    let cause = Cause { reason: "FieldValueForbidden", message, field: field.to_owned() };
    failures::invalid("meta.k8s.io", "ListOptions", "", &[cause])
}

impl Api {
    /// Waits until the store has reached `version`. Errors: 504.
    pub async fn wait_until_fresh(
        &self,
        store: &Store,
        table: &str,
        version: u64,
    ) -> ApiResult<()> {
        let reached = async {
            loop {
                let changed = store.listen(table);
                if store.version() >= version {
                    return Ok(());
                }
                // A write to any table advances the version, so poll.
                changed.or(self.clock.sleep(Duration::from_millis(50))).await;
            }
        };
        let late = async {
            self.clock.sleep(FRESH_WITHIN).await;
            Err(failures::too_large(version, store.version()))
        };
        reached.or(late).await
    }

    /// Answers with one object, once the store is as new as the request wants.
    pub async fn get(&self, call: &Call) -> ApiResult<Response> {
        let table = call.table();
        if let Some(version) = parse_version(call.query.get("resourceVersion"))? {
            self.wait_until_fresh(&self.store, &table, version).await?;
        }
        let stored = self
            .store
            .get(&table, &call.key(&call.name))
            .ok_or_else(|| failures::not_found(&call.kind.resource, &call.name))?;
        Ok(self.one(200, call, &stored))
    }

    /// Returns the answer with one object.
    pub fn one(&self, status: u16, call: &Call, stored: &Stored) -> Response {
        let bytes = object_bytes(call, stored, self.clock.now().as_secs());
        Response::new(status, call.encoding.media_type(), bytes)
    }

    /// Parses the selectors of a call. Errors: 400 for a malformed one, or a field that the kind
    /// cannot be selected by.
    pub fn selection(&self, call: &Call) -> ApiResult<Selection> {
        let fields = call.query.get("fieldSelector");
        let selection = Selection::parse(&call.kind, call.query.get("labelSelector"), fields)?;
        match selection.unsupported() {
            None => Ok(selection),
            Some(label) => {
                // The error of kinds with fields of their own is shorter.
                let own = ["pods", "nodes", "events", "secrets", "services", "namespaces"];
                let own = own.contains(&&*call.kind.resource.plural);
                Err(failures::bad_request(match own {
                    true => format!("field label not supported: {label}"),
                    false => format!(
                        "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    ),
                }))
            }
        }
    }

    /// Checks the options of a list, and answers with one page of it.
    pub async fn list(&self, call: &Call) -> ApiResult<Response> {
        let selection = self.selection(call)?;
        let query = &call.query;
        let asked = query.get("resourceVersion");
        // As the watch cache, a list at version 0 has no limit; a negative limit is ignored.
        let limit = query.number::<i64>("limit")?.filter(|_| asked != "0");
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
        if query.has("sendInitialEvents") {
            let why = "Forbidden: sendInitialEvents is forbidden for list";
            return Err(list_options_fault("sendInitialEvents", why.to_owned()));
        }
        let r#match = query.get("resourceVersionMatch");
        let token = query.get("continue");
        match (r#match, asked) {
            ("", _) => {}
            (_, _) if !token.is_empty() => {
                let why = "Forbidden: resourceVersionMatch is forbidden when continue is provided";
                return Err(list_options_fault("resourceVersionMatch", why.to_owned()));
            }
            (_, "") => {
                let why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
                return Err(list_options_fault("resourceVersionMatch", why.to_owned()));
            }
            ("Exact", "0") => {
                let why = "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                return Err(list_options_fault("resourceVersionMatch", why.to_owned()));
            }
            ("Exact" | "NotOlderThan", _) => {}
            (other, _) => {
                let mut cause = failures::required("resourceVersionMatch", "");
                cause.reason = "FieldValueNotSupported";
                cause.message = format!(
                    "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                );
                return Err(failures::invalid("meta.k8s.io", "ListOptions", "", &[cause]));
            }
        }
        let table = call.table();
        let wanted = parse_version(asked)?;
        let (mut at, mut after) = (None, None);
        if !token.is_empty() {
            if wanted.is_some() {
                return Err(failures::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (version, key) = decode_continue(token)?;
            at = u64::try_from(version).ok();
            after = Some(key);
        } else if let Some(version) = wanted {
            self.wait_until_fresh(&self.store, &table, version).await?;
            if r#match == "Exact" || (r#match.is_empty() && limit > 0) {
                at = Some(version);
            }
        }
        let max = if limit == 0 { usize::MAX } else { limit };
        let keep = |stored: &Stored| selection.matches(stored);
        let page = self.store.list(&table, &call.prefix(), after.as_deref(), max, at, &keep);
        let page = match page {
            Ok(page) => page,
            Err(StoreError::Compacted { oldest }) => {
                return Ok(expired(after.as_deref(), at.unwrap_or(0), oldest));
            }
            Err(StoreError::TooLarge { current }) => {
                return Err(failures::too_large(at.unwrap_or(0), current));
            }
            Err(StoreError::AlreadyExists | StoreError::Changed) => {
                return Err(failures::internal("a list cannot conflict"));
            }
        };
        Ok(self.list_response(call, page, selection.is_everything()))
    }

    /// Answers with the objects of a list, or of a collection that is deleted, in the form and
    /// encoding of the call. `counted`: whether the answer has the number of remaining objects.
    pub fn list_response(&self, call: &Call, page: Page, counted: bool) -> Response {
        let mut meta = json!({ "resourceVersion": page.version.to_string() });
        if let Some((after, remaining)) = &page.rest {
            meta["continue"] = encode_continue(page.version as i64, after).into();
            // With a selector, the number of further matches is unknown.
            if counted {
                meta["remainingItemCount"] = (*remaining).into();
            }
        }
        if call.encoding == Encoding::Protobuf {
            return protobuf_list(call, &meta, &page.items);
        }
        let now = self.clock.now().as_secs();
        let kind = &call.kind;
        let (list_kind, version) = match call.form {
            Form::Table => {
                let shown: Vec<Cow<'_, Value>> =
                    page.items.iter().map(|stored| printed(kind, stored)).collect();
                let objects: Vec<&Value> = shown.iter().map(|value| &**value).collect();
                let include = included(call);
                return json_response(200, &table::render(kind, &objects, &meta, now, include));
            }
            Form::Partial => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            _ => (format!("{}List", kind.resource.kind), kind.resource.api_version()),
        };
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{meta},\"items\":[",
            Value::from(list_kind),
            Value::from(version),
        );
        let encode = |items: &[Arc<Stored>], first: bool, into: &mut Vec<u8>| {
            for (at, stored) in items.iter().enumerate() {
                if at > 0 || !first {
                    into.push(b',');
                }
                match call.form {
                    // The items of a built-in kind do not repeat the kind that the list names.
                    Form::Object if !kind.is_custom() => {
                        let shown = in_version_of(kind, stored);
                        into.extend(serde_json::to_vec(&Untyped(&shown)).unwrap_or_default());
                    }
                    _ => into.extend_from_slice(&object_bytes(call, stored, now)),
                }
            }
        };
        if page.items.len() <= CHUNK_ITEMS {
            let mut body = head.into_bytes();
            encode(&page.items, true, &mut body);
            body.extend_from_slice(b"]}\n");
            return Response::new(200, "application/json", body);
        }
        // Bytes are copied here once and are sent chunk by chunk.
        let mut chunks = vec![Ok(Bytes::from(head))];
        for (at, items) in page.items.chunks(CHUNK_ITEMS).enumerate() {
            let mut chunk = Vec::new();
            encode(items, at == 0, &mut chunk);
            chunks.push(Ok(chunk.into()));
        }
        chunks.push(Ok(Bytes::from_static(b"]}\n")));
        let stream = Box::pin(futures_lite::stream::iter(chunks));
        Response::stream(200, "application/json", stream)
    }
}

/// Answers with a list in protobuf, as a stream if it is long.
fn protobuf_list(call: &Call, meta: &Value, items: &[Arc<Stored>]) -> Response {
    let (version, kind) = message_kind(call);
    let kind = format!("{kind}List");
    let items: Vec<Bytes> = items.iter().map(|stored| object_message(call, stored)).collect();
    let parts = protobuf::list((&version, &kind), meta, &items, CHUNK_ITEMS);
    if items.len() <= CHUNK_ITEMS {
        return Response::new(200, protobuf::MEDIA_TYPE, parts.concat());
    }
    let stream = Box::pin(futures_lite::stream::iter(parts.into_iter().map(Ok)));
    Response::stream(200, protobuf::MEDIA_TYPE, stream)
}

/// Builds the answer 410 for a version that has been compacted. For a list with a `continue` token,
/// it has a token that continues after the same key at the newest version.
fn expired(after: Option<&str>, version: u64, oldest: u64) -> Response {
    let Some(after) = after else {
        let why =
            format!("The resourceVersion for the provided list is too old. ({version} < {oldest})");
        return failure(&failures::expired(why));
    };
    let why = "The provided continue parameter is too old to display a consistent list result. \
        You can start a new list without the continue parameter, or use the continue token in this \
        response to retrieve the remainder of the results. Continuing with the provided token \
        results in an inconsistent list - objects that were created, modified, or deleted between \
        the time the first chunk was returned and now may show up in the list.";
    let mut status = failures::expired(why).to_json();
    status["metadata"]["continue"] = encode_continue(-1, after).into();
    json_response(410, &status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_survive_a_round_trip() {
        let token = encode_continue(1234, "ns/a");
        assert_eq!(decode_continue(&token).ok(), Some((1234, "ns/a".to_owned())));
        assert_eq!(decode_continue(&encode_continue(-1, "x")).ok(), Some((-1, "x".to_owned())));
        for broken in ["!", "bm90IGpzb24", &URL_SAFE_NO_PAD.encode("{}")] {
            assert_eq!(decode_continue(broken).err().map(|error| error.code), Some(400));
        }
    }
}
