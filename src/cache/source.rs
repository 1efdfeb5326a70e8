//! The cache's access to the API: encoded objects, without HTTP. Upstream: `cache.ListerWatcher`.

use std::fmt;
use std::time::Duration;

use futures_lite::stream::Boxed as BoxStream;

use super::{Error, Outages};
use crate::objects::{Encoded, Form, ListPart, ResourceType, WatchEvent};

/// A boxed future that any thread may poll.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request's answer: a stream once the server has accepted it. Either may fail.
pub type Answer<'a, T> = BoxFuture<'a, Result<BoxStream<Result<T, Error>>, Error>>;

/// The objects that a reflector lists and watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Their resource.
    pub resource: ResourceType,
    /// Whether only their metadata is requested, as `PartialObjectMetadata`.
    pub metadata_only: bool,
    /// Only objects in this namespace.
    pub namespace: Option<String>,
    /// Only objects whose labels match, in the API's syntax.
    pub label_selector: Option<String>,
    /// Only objects whose fields match, in the API's syntax.
    pub field_selector: Option<String>,
}

impl Scope {
    /// Returns the scope of every object of `resource`, whole.
    pub fn all(resource: ResourceType) -> Scope {
        Scope {
            resource,
            metadata_only: false,
            namespace: None,
            label_selector: None,
            field_selector: None,
        }
    }

    /// Returns the scope of the metadata of every object of `resource`.
    pub fn metadata(resource: ResourceType) -> Scope {
        Scope { metadata_only: true, ..Scope::all(resource) }
    }

    /// Returns whether it includes every object of the resource.
    pub fn is_all(&self) -> bool {
        self.namespace.is_none() && self.label_selector.is_none() && self.field_selector.is_none()
    }
}

/// `pods`, `secrets (metadata)`, `pods namespace=a fields=status.phase=Failed`: for logs and
/// metrics.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.resource, f)?;
        if self.metadata_only {
            f.write_str(" (metadata)")?;
        }
        let narrowed = [
            ("namespace", &self.namespace),
            ("labels", &self.label_selector),
            ("fields", &self.field_selector),
        ];
        for (name, value) in narrowed {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

/// The list options that a reflector varies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// `None`: the newest version. `Some("0")`: any version.
    pub resource_version: Option<String>,
    /// Items in a page. `None`: the server's choice (all at once).
    pub limit: Option<u32>,
    /// From the previous page; `None`: the first page.
    pub continue_token: Option<String>,
}

/// The watch options that a reflector varies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// The version after which events begin. With initial events: the list is not older than this;
    /// `None`: the newest version.
    pub resource_version: Option<String>,
    /// Whether the watch begins with an event for each object, and a bookmark after them.
    pub send_initial_events: bool,
    /// The server ends the watch after this time.
    pub timeout: Duration,
}

/// Lists and watches any scope. `src/source.rs` implements it on the client; tests write their own
/// answers.
///
/// An error that the server sends as an event of the watch (410 in an ERROR event) is an `Err` item
/// of the stream. Futures and streams may be dropped at any time, which ends the request.
/// Upstream: `cache.ListerWatcher`.
pub trait Source: Send + Sync + 'static {
    /// Returns the objects of a list, and its end with the version. `preferred`: the most compact
    /// form that the caller decodes; the answer may still be JSON.
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: ListRequest,
    ) -> Answer<'a, ListPart<Encoded>>;

    /// The events of a watch. `preferred`: as for [`Source::list`].
    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: WatchRequest,
    ) -> Answer<'a, WatchEvent<Encoded>>;

    /// Returns whether the API server says that it is ready for requests. No answer is a no.
    fn is_ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    /// Returns the outages that the users of this source have noticed. `None`: they do not ask, and
    /// each waits for the end of its own delay, as upstream.
    fn outages(&self) -> Option<&Outages> {
        None
    }
}
