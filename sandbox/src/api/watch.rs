//! Watches: initial objects, changes as they come, bookmarks.
//! Upstream: `apiserver/pkg/endpoints/handlers/watch.go`, `apiserver/pkg/storage/cacher`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use serde_json::{Value, json};

use crate::api::Api;
use crate::api::faults::Epoch;
use crate::api::read::{list_options_fault, object_bytes, parse_version};
use crate::api::select::{Selection, WatchEvent};
use crate::failures;
use crate::protobuf;
use crate::request::accept::{Encoding, Form};
use crate::request::call::Call;
use crate::status::ApiResult;
use crate::storage::store::{Change, StoreError, Stored};
use kube_controller_manager::server::http::{Bytes, Response};

/// The number of changes read at once.
const BATCH: usize = 500;
/// Events are batched up to this size.
const CHUNK_BYTES: usize = 64 * 1024;

struct Watch {
    api: Arc<Api>,
    call: Call,
    table: String,
    prefix: String,
    selection: Selection,
    /// Objects still to be sent as added.
    initial: VecDeque<Arc<Stored>>,
    /// Whether the bookmark after the initial objects is still to be sent.
    initial_bookmark_due: bool,
    /// Every change up to this version has been sent.
    cursor: u64,
    /// Whether the cursor has once reached the newest version.
    running: bool,
    bookmarks: bool,
    next_bookmark: Duration,
    deadline: Duration,
    epoch: Epoch,
    done: bool,
}

impl Api {
    /// Starts the response of a watch: a stream of the initial objects if they are asked for, then
    /// of changes and bookmarks until the timeout.
    pub async fn watch(self: Arc<Self>, call: Call) -> ApiResult<Response> {
        let selection = self.selection(&call)?;
        let query = &call.query;
        let asked = query.get("resourceVersion").to_owned();
        let streamed_list = query.is("sendInitialEvents");
        let r#match = query.get("resourceVersionMatch");
        if query.has("sendInitialEvents") && r#match != "NotOlderThan" {
            let why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return Err(list_options_fault("resourceVersionMatch", why.to_owned()));
        }
        if !query.has("sendInitialEvents") && !r#match.is_empty() {
            let why = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(list_options_fault("resourceVersionMatch", why.to_owned()));
        }
        let version = parse_version(&asked)?;
        let timeout = query.number::<u64>("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        // As upstream: 30 to 60 minutes, so that watches do not all end at once.
        let timeout = timeout.unwrap_or_else(|| 1800 + fastrand::u64(..1800));
        let (table, prefix) = (call.table(), call.prefix());
        // Without a version, a watch starts with the current objects unless asked not to.
        let wants_initial = streamed_list || (version.is_none() && !query.has("sendInitialEvents"));
        let (mut initial, mut cursor) = (VecDeque::new(), version.unwrap_or(0));
        if wants_initial || version.is_none() {
            if let Some(version) = version {
                self.wait_until_fresh(&self.store, &table, version).await?;
            }
            let keep = |stored: &Stored| selection.matches(stored);
            let page = self
                .store
                .list(&table, &prefix, None, usize::MAX, None, &keep)
                .map_err(|_| failures::internal("the newest list is always there"))?;
            cursor = page.version;
            if wants_initial {
                initial = page.items.into();
            }
        }
        let now = self.clock.monotonic();
        let bookmarks = query.is("allowWatchBookmarks");
        let media = match call.encoding {
            Encoding::Json => "application/json",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        };
        let watch = Watch {
            next_bookmark: now + self.bookmark_every,
            deadline: now + Duration::from_secs(timeout),
            epoch: self.faults.epoch(),
            initial_bookmark_due: streamed_list && bookmarks,
            running: false,
            done: false,
            api: self,
            call,
            table,
            prefix,
            selection,
            initial,
            cursor,
            bookmarks,
        };
        let stream = futures_lite::stream::unfold(watch, |mut watch| async {
            let chunk = watch.next().await?;
            Some((chunk, watch))
        });
        Ok(Response::stream(200, media, Box::pin(stream)))
    }
}

impl Watch {
    /// Waits for the next bytes to send; `None` at the end of the watch. Planned faults cut the
    /// connection, expire the watch or force a bookmark here.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let api = self.api.clone();
        let mut chunk = Vec::new();
        while !self.done {
            let changed = api.store.listen(&self.table);
            let steered = api.faults.listen();
            let epoch = api.faults.epoch();
            if epoch.cut != self.epoch.cut {
                self.done = true;
                return Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
            self.send_initial(&mut chunk);
            if chunk.is_empty() {
                self.send_changes(&mut chunk);
            }
            let now = api.clock.monotonic();
            if epoch.expire != self.epoch.expire && !self.done {
                self.end_expired(&mut chunk, self.cursor, self.cursor + 1);
            }
            let due = now >= self.next_bookmark || epoch.bookmark != self.epoch.bookmark;
            if due && self.bookmarks && chunk.is_empty() && !self.done {
                self.bookmark(&mut chunk, false);
                self.next_bookmark = now + api.bookmark_every;
            }
            self.epoch = epoch;
            if !chunk.is_empty() {
                return Some(Ok(chunk.into()));
            }
            if now >= self.deadline || api.stop.is_stopped() {
                break;
            }
            let until =
                if self.bookmarks { self.deadline.min(self.next_bookmark) } else { self.deadline };
            let wake = api.clock.sleep(until.saturating_sub(now));
            changed.or(steered).or(wake).or(api.stop.stopped()).await;
        }
        None
    }

    /// Adds initial objects to a chunk until it is full, and the bookmark that ends them after the
    /// last one.
    fn send_initial(&mut self, chunk: &mut Vec<u8>) {
        while let Some(stored) = self.initial.pop_front() {
            self.event(chunk, "ADDED", &stored);
            if chunk.len() > CHUNK_BYTES {
                return;
            }
        }
        if std::mem::take(&mut self.initial_bookmark_due) {
            self.bookmark(chunk, true);
        }
    }

    /// Appends the events of changes after the cursor to `chunk`, until none remains or the chunk
    /// is full. Ends the watch as expired when the changes have been compacted.
    fn send_changes(&mut self, chunk: &mut Vec<u8>) {
        while chunk.len() < CHUNK_BYTES {
            match self.api.store.changes(&self.table, self.cursor, BATCH, self.running) {
                Ok(found) => {
                    let none = found.changes.is_empty();
                    let repeats_events = self.api.faults.repeats_events();
                    for change in &found.changes {
                        self.send(chunk, change);
                        if repeats_events {
                            self.send_repeated(chunk, change);
                        }
                    }
                    self.cursor = found.version;
                    self.running = true;
                    if none {
                        return;
                    }
                }
                Err(StoreError::Compacted { oldest }) => {
                    return self.end_expired(chunk, self.cursor, oldest);
                }
                Err(error) => {
                    log::error!("watch of {}: {error:?}", self.table);
                    self.done = true;
                    return;
                }
            }
        }
    }

    /// Adds a change as this watch sees it: an object that stops matching the selectors is deleted
    /// for it.
    fn send(&self, chunk: &mut Vec<u8>, change: &Change) {
        if !change.key.starts_with(&self.prefix) {
            return;
        }
        match (self.selection.event_for(change), &change.old) {
            (Some(WatchEvent::Added), _) => self.event(chunk, "ADDED", &change.new),
            (Some(WatchEvent::Modified), _) => self.event(chunk, "MODIFIED", &change.new),
            (Some(WatchEvent::Deleted), _) => self.event(chunk, "DELETED", &change.new),
            (Some(WatchEvent::Left), Some(old)) => {
                let last = Stored::new(old.value.clone(), change.version);
                self.event(chunk, "DELETED", &last);
            }
            (Some(WatchEvent::Left) | None, _) => {}
        }
    }

    /// Sends the change and the state before it, while `Faults::repeat_events` is on. The old state
    /// comes last, which is the wrong order, unless the change is a deletion.
    fn send_repeated(&self, chunk: &mut Vec<u8>, change: &Change) {
        let remains = matches!(self.selection.event_for(change), Some(WatchEvent::Modified));
        if remains {
            self.send(chunk, change);
        }
        if let Some(old) = change.old.as_ref().filter(|_| change.key.starts_with(&self.prefix)) {
            self.event(chunk, "MODIFIED", old);
        }
        if !remains {
            self.send(chunk, change);
        }
    }

    fn event(&self, chunk: &mut Vec<u8>, r#type: &str, stored: &Stored) {
        let object = object_bytes(&self.call, stored, self.api.clock.now().as_secs());
        self.put(chunk, r#type, &object);
    }

    /// Appends an event that has no stored object.
    fn notice(&self, chunk: &mut Vec<u8>, r#type: &str, object: &Value) {
        let object = match self.call.encoding {
            Encoding::Json => serde_json::to_vec(object).ok(),
            Encoding::Protobuf => protobuf::encode(object),
        };
        self.put(chunk, r#type, &object.unwrap_or_default());
    }

    /// Appends a watch event of this type to the chunk, in the encoding of the watch.
    fn put(&self, chunk: &mut Vec<u8>, r#type: &str, object: &[u8]) {
        if self.call.encoding == Encoding::Protobuf {
            return protobuf::event(chunk, r#type, object);
        }
        chunk.extend_from_slice(format!("{{\"type\":\"{type}\",\"object\":").as_bytes());
        chunk.extend_from_slice(object);
        chunk.extend_from_slice(b"}\n");
    }

    /// Appends a bookmark of the watch's version to the chunk. `end`: it is the one that ends the
    /// initial objects.
    fn bookmark(&self, chunk: &mut Vec<u8>, end: bool) {
        let mut metadata = json!({ "resourceVersion": self.cursor.to_string() });
        if end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let resource = &self.call.kind.resource;
        let object = match self.call.form {
            Form::Table => crate::api::table::render(
                &self.call.kind,
                &[],
                &json!({ "resourceVersion": self.cursor.to_string() }),
                0,
                crate::api::table::IncludeObject::None,
            ),
            Form::Partial => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            _ => json!({
                "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata,
            }),
        };
        self.notice(chunk, "BOOKMARK", &object);
    }

    /// Appends the event of an expired watch to the chunk, and ends the watch.
    fn end_expired(&mut self, chunk: &mut Vec<u8>, version: u64, oldest: u64) {
        let why = format!("too old resource version: {version} ({oldest})");
        let status = failures::expired(why).to_json();
        self.notice(chunk, "ERROR", &status);
        self.done = true;
    }
}
