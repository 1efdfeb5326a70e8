//! Pods of a controller: made from a template, deleted, with their events.
//! Upstream: `controller.RealPodControl`.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::client::{self, Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::Error;
use crate::controllers::workloads::consistency::Consistency;
use crate::events::Recorder;
use crate::objects::{
    Istr, Labels, Meta, Object, ObjectKey, OwnerReference, PartialObjectMetadata, Pod, Resource,
    Template,
};

/// A delete of which nobody can say whether it was done is made again after each of these: a server
/// that is started anew may be back by then.
const DELETE_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// A pod to be created: what the template says, byte for byte in its spec, under a generated name.
/// Upstream: `GetPodFromTemplate`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPod {
    api_version: &'static str,
    kind: &'static str,
    pub metadata: NewPodMeta,
    spec: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPodMeta {
    pub generate_name: String,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<Istr>,
    pub owner_references: [OwnerReference; 1],
}

impl NewPod {
    /// Fails for a template without labels: nothing would select the pod.
    pub fn of<O: Resource>(owner: &Meta, template: &Template) -> Result<NewPod, Error> {
        #[derive(serde::Deserialize)]
        struct SpecOf {
            #[serde(default)]
            spec: Option<Box<RawValue>>,
        }
        if template.labels.is_empty() {
            return Err(Error::other("unable to create pods, no labels"));
        }
        let SpecOf { spec } = serde_json::from_str(template.json())?;
        Ok(NewPod {
            api_version: "v1",
            kind: "Pod",
            metadata: NewPodMeta {
                generate_name: name_prefix(&owner.name),
                labels: template.labels.clone(),
                annotations: template.annotations.clone(),
                finalizers: template.finalizers.clone(),
                owner_references: [owner.controller_ref::<O>()],
            },
            spec,
        })
    }
}

/// `name-`, or `name` alone when that is no start of a pod's name. Upstream: `getPodsPrefix`.
fn name_prefix(owner: &str) -> String {
    let prefix = format!("{owner}-");
    // The dash, and what stands before it, are not yet the end of the name.
    let masked = match prefix.char_indices().nth_back(1) {
        Some((at, _)) => format!("{}a", &prefix[..at]),
        None => prefix.clone(),
    };
    if is_dns1123_subdomain(&masked) { prefix } else { owner.to_owned() }
}

/// Upstream: `validation.IsDNS1123Subdomain`.
fn is_dns1123_subdomain(text: &str) -> bool {
    let word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &[u8]| {
        label.first().is_some_and(word)
            && label.last().is_some_and(word)
            && label.iter().all(|byte| word(byte) || *byte == b'-')
    };
    text.len() <= 253 && text.as_bytes().split(|byte| *byte == b'.').all(is_label)
}

/// Creates and deletes pods on behalf of owners of any kind, and tells of it in events about the
/// owner. Cheap to clone.
#[derive(Clone)]
pub struct PodControl {
    client: Client,
    recorder: Recorder,
    clock: SharedClock,
    written: Option<Arc<Consistency>>,
}

impl PodControl {
    pub fn new(client: Client, recorder: Recorder, clock: SharedClock) -> PodControl {
        PodControl { client, recorder, clock, written: None }
    }

    /// Each pod written is noted in `consistency`, under its owner. Upstream: `OnWrite`.
    pub fn recording(mut self, consistency: &Arc<Consistency>) -> PodControl {
        self.written = Some(consistency.clone());
        self
    }

    /// Events: `SuccessfulCreate`, `FailedCreate`; none when the namespace is terminating.
    pub async fn create<O: Object + Resource>(&self, owner: &O, pod: &NewPod) -> Result<(), Error> {
        let meta = owner.meta();
        // The pod itself comes by the watch.
        let pods = self.client.resource(&Pod::RESOURCE);
        match pods.create_for_metadata(&meta.namespace, pod).await {
            Ok(PartialObjectMetadata { meta: created }) => {
                self.wrote(meta, &created);
                log::debug!("{}: created pod {}", meta.key(), created.name);
                let message = format!("Created pod: {}", created.name);
                self.recorder.normal(owner, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                self.doubt(meta, &error);
                let terminating = error.is_namespace_terminating();
                let error = Error::from(error);
                if !terminating {
                    let message = format!("Error creating: {}", error.message());
                    self.recorder.warning(owner, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Deletes this very pod, not another that has its name by now. [`is_gone`] tells the error that
    /// means there is nothing to delete; of that there is no event.
    /// Events: `SuccessfulDelete`, `FailedDelete`.
    pub async fn delete<O: Object + Resource>(&self, owner: &O, pod: &Pod) -> Result<(), Error> {
        let (key, uid) = (pod.meta.key(), pod.meta.uid.clone());
        log::debug!("{}: deleting pod {}", owner.meta().key(), key.name);
        match self.surely_delete(&key, Delete::new().uid(uid)).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", key.name);
                self.recorder.normal(owner, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Err(error.into()),
            Err(error) => {
                self.doubt(owner.meta(), &error);
                let error = Error::from(error);
                let message = format!("Error deleting: {}", error.message());
                self.recorder.warning(owner, "FailedDelete", message);
                Err(Error::during("unable to delete pods", error))
            }
        }
    }

    /// A delete whose answer is lost is made again: the owner that does not know of it could choose
    /// another pod in its place, and have one too few.
    async fn surely_delete(&self, key: &ObjectKey, delete: Delete) -> client::Result<()> {
        let mut answer = self.client.delete::<Pod>(key, delete.clone()).await;
        for pause in DELETE_PAUSES {
            match answer {
                Err(error) if error.is_unsure() => self.clock.sleep(pause).await,
                known => return known,
            }
            answer = match self.client.delete::<Pod>(key, delete.clone()).await {
                // That was us.
                Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
                again => again,
            };
        }
        answer
    }

    /// Notes a write of which nobody can say whether it was done.
    fn doubt(&self, owner: &Meta, error: &client::Error) {
        if let Some(consistency) = self.written.as_ref().filter(|_| error.is_unsure()) {
            consistency.unsure(&owner.key(), &owner.uid, &Pod::RESOURCE);
        }
    }

    /// Notes that `pod` was written for `owner`, by other means than these.
    pub fn wrote(&self, owner: &Meta, pod: &Meta) {
        if let Some(consistency) = &self.written {
            let key = ObjectKey { namespace: pod.namespace.clone(), name: owner.name.clone() };
            consistency.wrote_at(&key, &owner.uid, &Pod::RESOURCE, pod.resource_version);
        }
    }
}

/// Whether a failed delete found no such pod: none of the name, or one of another uid.
pub fn is_gone(error: &Error) -> bool {
    error.api().is_some_and(|error| error.is_not_found() || error.is_conflict())
}

#[cfg(test)]
pub(super) mod testing {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_std::net::TcpListener;
    use futures_lite::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::client::Config;
    use crate::clock::SystemClock;
    use crate::events::{EventSink, EventType, ObjectReference};
    use crate::task;

    /// Who hears of no event.
    pub struct Nobody;

    impl EventSink for Nobody {
        fn record(&self, _: &ObjectReference, _: EventType, _: &str, _: String) {}
    }

    /// A client of a server that leaves so many requests for each path without an answer, and from
    /// then on says that there is no such thing; and how many it heard.
    pub async fn forgetful(unanswered: usize) -> (Client, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()));
        let heard = Arc::new(AtomicUsize::new(0));
        let count = heard.clone();
        task::spawn(async move {
            let mut tries = HashMap::<Vec<u8>, usize>::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut piece = [0; 4096];
                let length = stream.read(&mut piece).await.unwrap();
                let line = piece[..length].split(|byte| *byte == b'\r').next().unwrap_or_default();
                count.fetch_add(1, Ordering::SeqCst);
                let tries = tries.entry(line.to_vec()).or_default();
                *tries += 1;
                if *tries > unanswered {
                    let answer =
                        b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                }
            }
        });
        (Client::new(config, SystemClock::shared()).unwrap(), heard)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use futures_lite::FutureExt;
    use futures_lite::future::{block_on, pending, yield_now};
    use serde_json::json;

    use super::testing::{Nobody, forgetful};
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::{ReplicaSet, Timestamp, Uid};

    #[test]
    fn a_delete_without_an_answer_is_made_again_after_a_while() {
        const TICK: Duration = Duration::from_millis(1);
        let set = ReplicaSet::default();
        let meta = Meta { name: "a".into(), namespace: "ns".into(), ..Meta::default() };
        let pod = Pod { meta, ..Pod::default() };
        for (unanswered, pauses, tries) in
            [(1, &[100][..], 2), (2, &[100, 400], 3), (9, &[100, 400, 1600], 4)]
        {
            let clock = FakeClock::new(Timestamp::from_secs(0));
            let (client, heard) = block_on(forgetful(unanswered));
            let recorder = Recorder::to_sink(Arc::new(Nobody));
            let control = PodControl::new(client, recorder, clock.clone());
            let passing = async {
                for (before, pause) in pauses.iter().enumerate() {
                    while heard.load(Ordering::SeqCst) != before + 1 || clock.sleepers() == 0 {
                        yield_now().await;
                    }
                    clock.advance(Duration::from_millis(*pause) - TICK);
                    yield_now().await;
                    assert_eq!(clock.sleepers(), 1, "not so soon as {pause} ms");
                    clock.advance(TICK);
                }
                pending().await
            };
            let done = block_on(control.delete(&set, &pod).or(passing));
            assert_eq!(done.is_ok(), unanswered < tries, "{done:?}");
            assert_eq!(heard.load(Ordering::SeqCst), tries);
            let all = pauses.iter().copied().sum();
            assert_eq!(clock.monotonic(), Duration::from_millis(all));
        }
    }

    #[test]
    fn a_pod_is_its_template() {
        let owner = Meta { name: "web-1".into(), uid: Uid::new("u"), ..Meta::default() };
        let template: Template = serde_json::from_value(json!({
            "metadata": {
                "name": "not taken", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"]
            },
            "spec": {"containers": [{"name": "c", "brandNew": [1, 2]}]},
        }))
        .unwrap();
        let pod = NewPod::of::<ReplicaSet>(&owner, &template).unwrap();
        assert_eq!(
            serde_json::to_value(&pod).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "generateName": "web-1-", "labels": {"a": "b"}, "annotations": {"c": "d"},
                    "finalizers": ["x/y"],
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"containers": [{"name": "c", "brandNew": [1, 2]}]},
            })
        );
        let error = NewPod::of::<ReplicaSet>(&owner, &Template::default()).unwrap_err();
        assert_eq!(error.to_string(), "unable to create pods, no labels");
    }

    #[test]
    fn the_prefix_has_a_dash_where_names_may() {
        let long = "a".repeat(253);
        for (owner, prefix) in [
            ("web", "web-"),
            ("a.b", "a.b-"),
            ("Web", "Web"),
            ("", ""),
            (&long, &*(long.clone() + "-")),
        ] {
            assert_eq!(name_prefix(owner), prefix);
        }
        assert_eq!(name_prefix(&(long + "a")), "a".repeat(254));
    }
}
