//! Lists and watches of one type. Upstream: `cache.ListerWatcher`, `cache.ListWatch`.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::StreamExt;

use super::source::{Answer, ListRequest, RawListPart, RawWatchEvent, Scope, Source, WatchRequest};
use super::{DecodeError, Error};
use crate::objects::{Encoded, Form, Object, PartialObjectMetadata};

/// The annotation of the bookmark that ends the initial events of a watch.
/// Upstream: `metav1.InitialEventsAnnotationKey`.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One page of a list, as it arrives. `End` is the last part of a page that came whole.
pub enum ListPart<T> {
    Item(T),
    End { version: u64, continue_token: Option<String> },
}

#[derive(Debug)]
pub enum WatchEvent<T> {
    Added(T),
    Modified(T),
    /// The last state the server knew, at the version of the deletion.
    Deleted(T),
    Bookmark(Bookmark),
}

/// All changes up to `version` have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    pub version: u64,
    /// What came before was the whole state; what follows are changes.
    pub initial_events_end: bool,
}

/// Lists and watches the objects of one scope. Dropping a future or a stream ends its request.
pub trait ListerWatcher<T>: Send + Sync + 'static {
    fn list(&self, request: ListRequest) -> Answer<'_, ListPart<T>>;

    fn watch(&self, request: WatchRequest) -> Answer<'_, WatchEvent<T>>;

    /// See [`Source::pace`].
    fn pace(&self) -> Duration {
        Duration::ZERO
    }
}

/// Decodes what a [`Source`] sends. An item that cannot be decoded ends the list or watch with a
/// [`DecodeError`] that names it, as client-go's decoder does: a cache is whole or it is not.
pub struct SourceListerWatcher {
    source: Arc<dyn Source>,
    scope: Arc<Scope>,
}

impl SourceListerWatcher {
    pub fn new(source: Arc<dyn Source>, scope: Scope) -> SourceListerWatcher {
        SourceListerWatcher { source, scope: Arc::new(scope) }
    }
}

impl<T: Object> ListerWatcher<T> for SourceListerWatcher {
    fn list(&self, request: ListRequest) -> Answer<'_, ListPart<T>> {
        Box::pin(async move {
            let parts = self.source.list(&self.scope, best::<T>(), request).await?;
            let scope = self.scope.clone();
            Ok(parts.map(move |part| list_part(&scope, part?)).boxed())
        })
    }

    fn watch(&self, request: WatchRequest) -> Answer<'_, WatchEvent<T>> {
        Box::pin(async move {
            let events = self.source.watch(&self.scope, best::<T>(), request).await?;
            let scope = self.scope.clone();
            Ok(events.map(move |event| watch_event(&scope, event?)).boxed())
        })
    }

    fn pace(&self) -> Duration {
        self.source.pace(&self.scope)
    }
}

fn best<T: Object>() -> Form {
    if T::MESSAGE.is_some() { Form::Protobuf } else { Form::Json }
}

fn list_part<T: Object>(scope: &Scope, part: RawListPart) -> Result<ListPart<T>, Error> {
    match part {
        RawListPart::Item(object) => Ok(ListPart::Item(decode(scope, &object)?)),
        RawListPart::End { resource_version, continue_token } => {
            let version = resource_version.parse().map_err(|cause| {
                let what = format!("list of {scope} at resourceVersion {resource_version:?}");
                DecodeError { what, cause: Box::new(cause) }
            })?;
            // A server may spell "no more" as an empty token.
            let continue_token = continue_token.filter(|token| !token.is_empty());
            Ok(ListPart::End { version, continue_token })
        }
    }
}

fn watch_event<T: Object>(scope: &Scope, event: RawWatchEvent) -> Result<WatchEvent<T>, Error> {
    Ok(match event {
        RawWatchEvent::Added(object) => WatchEvent::Added(decode(scope, &object)?),
        RawWatchEvent::Modified(object) => WatchEvent::Modified(decode(scope, &object)?),
        RawWatchEvent::Deleted(object) => WatchEvent::Deleted(decode(scope, &object)?),
        RawWatchEvent::Bookmark(object) => {
            let object: PartialObjectMetadata = decode(scope, &object)?;
            WatchEvent::Bookmark(Bookmark {
                version: object.meta.resource_version,
                initial_events_end: object.meta.annotations.get(INITIAL_EVENTS_END) == Some("true"),
            })
        }
    })
}

fn decode<T: Object>(scope: &Scope, object: &Encoded) -> Result<T, DecodeError> {
    object.decode().map_err(|cause| {
        let what = match object.decode::<PartialObjectMetadata>() {
            Ok(object) => format!("{scope} {}", object.meta.key()),
            Err(_) => {
                let length = object.bytes.len();
                format!("{scope}: one of {length} bytes without readable metadata")
            }
        };
        DecodeError { what, cause }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Pod, Resource};

    #[test]
    fn what_cannot_be_decoded_is_named() {
        let scope = Scope::all(Pod::RESOURCE);
        let bad = Encoded::json(br#"{"metadata":{"namespace":"a","name":"b"},"spec":[1]}"#);
        let error = watch_event::<Pod>(&scope, RawWatchEvent::Added(bad)).unwrap_err();
        assert!(error.is_decode());
        assert!(error.to_string().starts_with("pods a/b: cannot be decoded: "), "{error}");
        let cut = RawListPart::Item(Encoded::json(b"{"));
        assert!(list_part::<Pod>(&scope, cut).is_err_and(|error| error.is_decode()));
    }

    #[test]
    fn bookmarks_tell_their_version_and_the_end_of_the_initial_events() {
        let scope = Scope::all(Pod::RESOURCE);
        for (annotations, end) in [
            (r#"{}"#, false),
            (r#"{"k8s.io/initial-events-end":"true"}"#, true),
            (r#"{"k8s.io/initial-events-end":"false"}"#, false),
        ] {
            let json =
                format!(r#"{{"metadata":{{"resourceVersion":"7","annotations":{annotations}}}}}"#);
            let event = watch_event::<Pod>(&scope, RawWatchEvent::Bookmark(Encoded::json(json)));
            let Ok(WatchEvent::Bookmark(bookmark)) = event else { panic!("not a bookmark") };
            assert_eq!(bookmark, Bookmark { version: 7, initial_events_end: end });
        }
    }
}
