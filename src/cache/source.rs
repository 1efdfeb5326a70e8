//! How the cache reaches the API: objects in their encoded form, no HTTP.

use std::fmt;
use std::time::Duration;

use futures_lite::stream::Boxed as BoxStream;

use super::Error;
use crate::objects::{Encoded, Form, ListPart, ResourceType, WatchEvent};

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

    /// Whether it holds every object of the resource.
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

/// Lists and watches any scope: how the cache reaches the API, without HTTP. `src/source.rs` has
/// the implementation on the client; tests script their own.
///
/// An error that the watch carries as an event (410 in an ERROR event) is an `Err` item of the
/// stream. Futures and streams may be dropped at any time, which ends the request.
/// Upstream: `cache.ListerWatcher`.
pub trait Source: Send + Sync + 'static {
    /// `best`: the most compact form that the caller decodes; the answer may be JSON all the same.
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: ListRequest,
    ) -> Answer<'a, ListPart<Encoded>>;

    /// `best` as for [`Source::list`].
    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: WatchRequest,
    ) -> Answer<'a, WatchEvent<Encoded>>;
}
