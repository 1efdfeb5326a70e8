//! How the cache reaches the API: objects' bytes in, no HTTP.

use std::fmt;
use std::time::Duration;

use futures_lite::stream::Boxed as BoxStream;

use super::Error;
use crate::objects::{Encoded, Form, ResourceType};

pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request's answer: a stream once the server has accepted it. Either may fail.
pub type Answer<'a, T> = BoxFuture<'a, Result<BoxStream<Result<T, Error>>, Error>>;

/// Which objects a reflector asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    pub resource: ResourceType,
    /// Ask for `PartialObjectMetadata`.
    pub metadata_only: bool,
    pub namespace: Option<String>,
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
}

impl Scope {
    /// Every object of `resource`, whole.
    pub fn all(resource: ResourceType) -> Scope {
        Scope {
            resource,
            metadata_only: false,
            namespace: None,
            label_selector: None,
            field_selector: None,
        }
    }

    /// The metadata of every object of `resource`.
    pub fn metadata(resource: ResourceType) -> Scope {
        Scope { metadata_only: true, ..Scope::all(resource) }
    }

    /// Leaves no object of the resource out.
    pub fn is_all(&self) -> bool {
        self.namespace.is_none() && self.label_selector.is_none() && self.field_selector.is_none()
    }
}

/// `pods`, `secrets (metadata)`, `pods namespace=a fields=status.phase=Failed`: for logs and metrics.
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

/// The list options a reflector varies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// `None`: the newest. `Some("0")`: any.
    pub resource_version: Option<String>,
    /// Items a page, `None`: the server's choice (all at once).
    pub limit: Option<u32>,
    /// From the page before.
    pub continue_token: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    pub resource_version: Option<String>,
    pub send_initial_events: bool,
    /// The server ends the watch after this long.
    pub timeout: Duration,
}

/// The pieces of one page of a list, as they arrive.
#[derive(Clone, Debug)]
pub enum RawListPart {
    Item(Encoded),
    /// Last: the list's own metadata.
    End {
        resource_version: String,
        continue_token: Option<String>,
    },
}

/// One event of a watch.
#[derive(Clone, Debug)]
pub enum RawWatchEvent {
    Added(Encoded),
    Modified(Encoded),
    Deleted(Encoded),
    Bookmark(Encoded),
}

/// How the cache reaches the API: objects' bytes in, no HTTP. Implemented by the adapter in `app`.
/// Errors the watch carries as events (410 in an ERROR event) come as `Err` items of the stream.
/// Futures and streams may be dropped at any time: that ends the request.
pub trait Source: Send + Sync + 'static {
    /// `best`: the most compact form that is understood; what comes may be in JSON all the same.
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: ListRequest,
    ) -> Answer<'a, RawListPart>;

    /// `best` as for [`Source::list`].
    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: WatchRequest,
    ) -> Answer<'a, RawWatchEvent>;

    /// How long the events of a watch may gather that follow close upon each other. Zero: not at all.
    fn pace(&self, _scope: &Scope) -> Duration {
        Duration::ZERO
    }
}
