//! All changes of a real API server, read from its etcd: one watch of all keys, over the JSON
//! gateway. With `--storage-media-type=application/json` the values are the objects.

use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_lite::AsyncBufReadExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::workload::KINDS;
use crate::object::{list, text};
use crate::storage::store::{Change, Stored};
use kube_controller_manager::client::{self, Call, Client, Config, Credentials};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{StopToken, TaskGroup};

/// The pause before a watch that has ended is begun again, and between two requests for the newest
/// version.
const PAUSE: Duration = Duration::from_millis(50);
/// A key, and the end of a range, that stand for all keys.
const ALL: &str = "AA==";

/// Reads changes until it is stopped.
pub struct Etcd {
    client: Client,
    clock: SharedClock,
    state: Mutex<State>,
    stop: StopToken,
    tasks: TaskGroup,
}

#[derive(Default)]
struct State {
    /// The changes that were not taken yet, each with its table.
    changes: Vec<(String, Change)>,
    /// All changes until this version have been read.
    seen: u64,
    /// All changes before this moment have been read.
    complete: Duration,
    /// Why changes are missing.
    lost: Option<String>,
}

/// What [`Etcd::take`] returns.
pub struct NewChanges {
    /// Each with its table, in the order of their versions.
    pub changes: Vec<(String, Change)>,
    /// All changes before this moment have been taken, in monotonic time.
    pub complete: Duration,
    /// Why changes are missing.
    pub lost: Option<String>,
}

impl Etcd {
    /// Starts to read the changes of the etcd that serves HTTP at `url`, from its first version on.
    pub fn start(url: &str, clock: &SharedClock) -> client::Result<Arc<Etcd>> {
        let mut config = Config::new(url.to_owned());
        config.credentials = Credentials::None;
        config.qps = -1.0;
        let etcd = Arc::new(Etcd {
            client: Client::new(config, clock.clone())?,
            clock: clock.clone(),
            state: Mutex::default(),
            stop: StopToken::new(),
            tasks: TaskGroup::new(),
        });
        let (reader, until) = (etcd.clone(), etcd.stop.clone());
        etcd.tasks.spawn(async move {
            until.unless_stopped(reader.keep_watching()).await;
        });
        let (asker, until) = (etcd.clone(), etcd.stop.clone());
        etcd.tasks.spawn(async move {
            until.unless_stopped(asker.track_newest()).await;
        });
        Ok(etcd)
    }

    pub async fn stop(&self) {
        self.stop.stop();
        self.tasks.join().await;
    }

    /// Returns the changes that have been read since the last call.
    pub fn take(&self) -> NewChanges {
        let mut state = self.state.lock();
        let (changes, lost) = (std::mem::take(&mut state.changes), state.lost.take());
        NewChanges { changes, complete: state.complete, lost }
    }

    /// Makes etcd forget what has been read.
    pub async fn compact(&self) {
        let seen = self.state.lock().seen.to_string();
        let body = json!({ "revision": seen });
        if let Err(error) = self.client.send(&post("/v3/kv/compaction", &body)).await {
            log::debug!("compaction: {error}");
        }
    }

    /// Watches etcd until stopped; after a failure it watches again from where it was.
    async fn keep_watching(&self) {
        loop {
            if let Err(error) = self.watch().await {
                log::debug!("watch of etcd: {error}");
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Reads changes from etcd, and adds them to the state, until the watch ends.
    async fn watch(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let from = self.state.lock().seen + 1;
        let body = json!({ "create_request": {
            "key": ALL, "range_end": ALL, "start_revision": from.to_string(), "prev_kv": true,
        } });
        let mut call = post("/v3/watch", &body);
        call.is_watch = true;
        let mut answers = self.client.open(&call).await?;
        let mut line = Vec::new();
        // A line without its end is read again by the next watch.
        while answers.read_until(b'\n', &mut line).await? > 0 && line.ends_with(b"\n") {
            let mut batch = parse(&line)?;
            line.clear();
            let mut state = self.state.lock();
            state.seen = batch.seen.max(state.seen);
            state.changes.append(&mut batch.changes);
            state.lost = state.lost.take().or(batch.lost);
            if batch.is_over {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks etcd for its newest version again and again. Once the watch has reached it, records
    /// that all changes until the question have been read.
    async fn track_newest(&self) {
        loop {
            let now = self.clock.monotonic();
            let newest = self.client.send(&post("/v3/kv/range", &json!({ "key": ALL }))).await;
            let newest = newest.ok().and_then(|answer| serde_json::from_slice(&answer).ok());
            let newest = newest.and_then(|answer: Value| number(&answer, "/header/revision"));
            if let Some(newest) = newest {
                while self.state.lock().seen < newest {
                    self.clock.sleep(PAUSE).await;
                }
                self.state.lock().complete = now;
            }
            self.clock.sleep(PAUSE).await;
        }
    }
}

fn post(path: &str, body: &Value) -> Call {
    Call::new("POST", path).bytes("application/json", body.to_string().into_bytes())
}

/// Reads a 64-bit number, which JSON has as a string.
fn number(object: &Value, pointer: &str) -> Option<u64> {
    text(object, pointer).parse().ok()
}

/// One answer of a watch.
#[derive(Default)]
struct Batch {
    changes: Vec<(String, Change)>,
    /// The version of its last event, of any key.
    seen: u64,
    lost: Option<String>,
    /// Nothing follows.
    is_over: bool,
}

/// Parses one line of a watch into the changes that it reports.
fn parse(line: &[u8]) -> serde_json::Result<Batch> {
    let answer: Value = serde_json::from_slice(line)?;
    let is_over = answer["error"].is_object() || answer["result"]["canceled"] == true;
    let mut batch = Batch { is_over, ..Batch::default() };
    if number(&answer, "/result/compact_revision").is_some() {
        batch.lost = Some(answer.to_string());
    }
    for event in list(&answer, "/result/events") {
        let Some(version) = number(event, "/kv/mod_revision") else { continue };
        batch.seen = batch.seen.max(version);
        let decoded = |pointer| BASE64_STANDARD.decode(text(event, pointer)).unwrap_or_default();
        let key = decoded("/kv/key");
        let Some((table, key)) = std::str::from_utf8(&key).ok().and_then(place) else { continue };
        let deleted = event["type"] == "DELETE";
        let value = decoded(if deleted { "/prev_kv/value" } else { "/kv/value" });
        match serde_json::from_slice(&value) {
            Ok(value) => {
                let new = Arc::new(Stored::new(value, version));
                batch.changes.push((table, Change { version, key, old: None, new, deleted }));
            }
            Err(error) => batch.lost = Some(format!("{table} {key}: {error}")),
        }
    }
    Ok(batch)
}

/// Finds the table of an observed object and its key there, from its key in etcd. Upstream:
/// `DefaultStorageFactory.ResourcePrefix`.
fn place(key: &str) -> Option<(String, Arc<str>)> {
    let key = key.strip_prefix("/registry/")?;
    // In etcd, the folders of these kinds do not have the name of the resource.
    let names = ["services/specs", "services/endpoints", "minions"];
    let (folder, rest) = match names
        .iter()
        .find_map(|name| Some((*name, key.strip_prefix(name)?.strip_prefix('/')?)))
    {
        Some(found) => found,
        None => key.split_once('/')?,
    };
    let plural = match folder {
        "services/specs" => "services",
        "services/endpoints" => "endpoints",
        "minions" => "nodes",
        folder => folder,
    };
    let kind = KINDS.iter().find(|kind| kind.plural == plural)?;
    let parts = 1 + usize::from(kind.namespaced);
    (rest.split('/').count() == parts).then(|| (kind.to_string(), rest.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_etcd_name_tables() {
        for (key, expected) in [
            ("/registry/pods/a/x", Some(("pods", "a/x"))),
            ("/registry/replicasets/a/x", Some(("replicasets.apps", "a/x"))),
            ("/registry/services/specs/a/x", Some(("services", "a/x"))),
            ("/registry/services/endpoints/a/x", Some(("endpoints", "a/x"))),
            ("/registry/minions/n", Some(("nodes", "n"))),
            ("/registry/namespaces/a", Some(("namespaces", "a"))),
            ("/registry/volumeattachments/v", Some(("volumeattachments.storage.k8s.io", "v"))),
            ("/registry/secrets/a/x", None),
            ("/registry/leases/kube-node-lease/n", None),
            ("/registry/masterleases/192.0.2.1", None),
            ("/registry/apiextensions.k8s.io/pods/x", None),
            ("compact_rev_key", None),
        ] {
            let found = place(key);
            let found = found.as_ref().map(|(table, key)| (table.as_str(), &**key));
            assert_eq!(found, expected, "{key}");
        }
    }

    #[test]
    fn answers_of_a_watch_are_changes() {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let pod = encoded("{\"metadata\":{\"name\":\"x\"}}\n");
        let at = |key: &str, version: &str, value: &str| json!({ "key": encoded(key), "mod_revision": version, "value": value });
        let key = "/registry/pods/a/x";
        let answer = json!({ "result": { "header": { "revision": "9" }, "events": [
            { "kv": at(key, "7", &pod) },
            { "type": "DELETE", "kv": at(key, "8", ""), "prev_kv": at(key, "7", &pod) },
            { "kv": at("compact_rev_key", "9", "") },
        ] } });
        let answer = answer.to_string();
        let batch = parse(answer.as_bytes()).unwrap();
        let changes = batch.changes.iter().map(|(table, change)| {
            let version = text(&change.new.value, "/metadata/resourceVersion");
            (table.as_str(), &*change.key, version, change.deleted)
        });
        let changes: Vec<_> = changes.collect();
        assert_eq!(changes, [("pods", "a/x", "7", false), ("pods", "a/x", "8", true)]);
        assert_eq!((batch.seen, batch.lost), (9, None));
        for cut in 0..answer.len() {
            assert!(parse(&answer.as_bytes()[..cut]).is_err(), "{cut}");
        }
        for (answer, is_lost, is_over) in [
            (json!({ "result": { "created": true } }), false, false),
            (json!({ "result": { "canceled": true, "compact_revision": "5" } }), true, true),
            (json!({ "error": { "message": "gone" } }), false, true),
            (json!({ "result": { "events": [{ "kv": at(key, "7", "k8s") }] } }), true, false),
        ] {
            let batch = parse(answer.to_string().as_bytes()).unwrap();
            assert_eq!((batch.lost.is_some(), batch.is_over), (is_lost, is_over), "{answer}");
        }
    }
}
