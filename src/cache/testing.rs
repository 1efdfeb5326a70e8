//! A source whose answers a test writes beforehand.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use futures_lite::StreamExt;
use futures_lite::future::yield_now;
use futures_lite::stream::{self, Boxed as BoxStream};

use super::{Answer, Error, ListRequest, Scope, Source, WatchRequest};
use crate::clock::FakeClock;
use crate::objects::{Bookmark, Encoded, Form, ListPart, Meta, ObjectKey, PartialObjectMetadata};

type WatchEvent = crate::objects::WatchEvent<Encoded>;

pub fn object(namespace: &str, name: &str, version: u64) -> Arc<PartialObjectMetadata> {
    labelled(namespace, name, version, &[])
}

pub fn labelled(
    namespace: &str,
    name: &str,
    version: u64,
    labels: &[(&str, &str)],
) -> Arc<PartialObjectMetadata> {
    let key = ObjectKey::new(namespace, name);
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let meta = Meta {
        name: key.name,
        namespace: key.namespace,
        resource_version: version,
        labels: serde_json::from_value(labels.into()).expect("a map of strings"),
        ..Meta::default()
    };
    Arc::new(PartialObjectMetadata { meta })
}

pub fn json(namespace: &str, name: &str, version: u64) -> Encoded {
    let object = serde_json::json!({"metadata": {
        "namespace": namespace, "name": name, "resourceVersion": version.to_string(),
    }});
    Encoded::json(object.to_string())
}

pub fn bookmark(version: u64, initial_events_end: bool) -> WatchEvent {
    WatchEvent::Bookmark(Bookmark { version, initial_events_end })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    List(ListRequest),
    /// Its version, and whether with initial events.
    Watch(Option<String>, bool),
}

pub enum Reply {
    Refused(Error),
    List(Vec<Result<ListPart<Encoded>, Error>>),
    Watch(BoxStream<Result<WatchEvent, Error>>),
}

/// Sends into a watch that is open. Dropping it closes the watch.
pub type Feed = Sender<Result<WatchEvent, Error>>;

impl Reply {
    /// One page.
    pub fn list(items: &[Encoded], version: u64, token: Option<&str>) -> Reply {
        let mut parts: Vec<_> = items.iter().cloned().map(ListPart::Item).map(Ok).collect();
        parts.push(Ok(ListPart::End {
            resource_version: version.to_string(),
            continue_token: token.map(str::to_owned),
        }));
        Reply::List(parts)
    }

    /// A watch that begins with these events and continues with those of its feed.
    pub fn watch(events: Vec<WatchEvent>) -> (Reply, Feed) {
        let (feed, receiver) = async_channel::unbounded();
        for event in events {
            feed.try_send(Ok(event)).expect("the receiver is here");
        }
        (Reply::Watch(receiver.boxed()), feed)
    }

    /// Initial events, and nothing after them.
    pub fn stream(items: &[Encoded], version: u64) -> Reply {
        Reply::Watch(stream::iter(initial(items, version)).map(Ok).chain(stream::pending()).boxed())
    }
}

pub fn initial(items: &[Encoded], version: u64) -> Vec<WatchEvent> {
    let mut events: Vec<_> = items.iter().cloned().map(WatchEvent::Added).collect();
    events.push(bookmark(version, true));
    events
}

/// Answers requests in order with the replies given; then not at all.
#[derive(Default)]
pub struct Script {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    replies: VecDeque<Reply>,
    requests: Vec<Request>,
}

impl Script {
    pub fn new() -> Arc<Script> {
        Arc::default()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn reply(&self, reply: Reply) {
        self.lock().replies.push_back(reply);
    }

    /// A reply of a watch; its feed.
    pub fn watch(&self, events: Vec<WatchEvent>) -> Feed {
        let (reply, feed) = Reply::watch(events);
        self.reply(reply);
        feed
    }

    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// The `count`th request, counted from 1. Moves the clock until the informer has sent it. Both
    /// run on one thread, so the informer does all it can between two moves.
    pub async fn request(&self, count: usize, clock: &FakeClock) -> Request {
        loop {
            for _ in 0..16 {
                if let Some(request) = self.lock().requests.get(count - 1) {
                    return request.clone();
                }
                yield_now().await;
            }
            clock.advance(Duration::from_millis(500));
        }
    }

    fn answer(&self, request: Request) -> Option<Reply> {
        let mut state = self.lock();
        state.requests.push(request);
        state.replies.pop_front()
    }
}

impl Source for Script {
    fn list<'a>(
        &'a self,
        _: &'a Scope,
        _: Form,
        request: ListRequest,
    ) -> Answer<'a, ListPart<Encoded>> {
        Box::pin(async move {
            match self.answer(Request::List(request)) {
                Some(Reply::List(parts)) => Ok(stream::iter(parts).boxed()),
                Some(Reply::Refused(error)) => Err(error),
                Some(Reply::Watch(_)) => panic!("the script expects a watch"),
                None => futures_lite::future::pending().await,
            }
        })
    }

    fn watch<'a>(&'a self, _: &'a Scope, _: Form, request: WatchRequest) -> Answer<'a, WatchEvent> {
        Box::pin(async move {
            let asked = Request::Watch(request.resource_version, request.send_initial_events);
            match self.answer(asked) {
                Some(Reply::Watch(events)) => Ok(events),
                Some(Reply::Refused(error)) => Err(error),
                Some(Reply::List(_)) => panic!("the script expects a list"),
                None => futures_lite::future::pending().await,
            }
        })
    }
}
