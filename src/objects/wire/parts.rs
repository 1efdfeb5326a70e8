//! The pieces of a list and the events of a watch: one type each, from the response's body to the
//! reflector.

#![warn(missing_docs)]

use std::error::Error;

use crate::objects::{Encoded, PartialObjectMetadata};

/// One piece of a list, in the order of the body. `O`: how the objects are held, at first as
/// [`Encoded`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListPart<O> {
    /// One object.
    Item(O),
    /// The last part of a complete page.
    End {
        /// The version of the list.
        resource_version: String,
        /// Fetches the next page; never empty.
        continue_token: Option<String>,
    },
}

/// One event of a watch. `O`: how the objects are held, at first as [`Encoded`].
/// Upstream: `watch.Event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent<O> {
    /// The object is new.
    Added(O),
    /// The object has changed.
    Modified(O),
    /// The last state that the server knew, at the version of the deletion.
    Deleted(O),
    /// No object: all changes up to this version were sent.
    Bookmark(Bookmark),
}

impl<O> WatchEvent<O> {
    /// Returns the same event with its object converted.
    pub fn map<P>(self, convert: impl FnOnce(O) -> P) -> WatchEvent<P> {
        match self {
            WatchEvent::Added(object) => WatchEvent::Added(convert(object)),
            WatchEvent::Modified(object) => WatchEvent::Modified(convert(object)),
            WatchEvent::Deleted(object) => WatchEvent::Deleted(convert(object)),
            WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark),
        }
    }
}

/// All changes up to `version` have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// The version up to which all changes were sent.
    pub version: u64,
    /// The events before it are the whole state; the events after it are changes.
    pub initial_events_end: bool,
}

impl Bookmark {
    /// Upstream: `metav1.InitialEventsAnnotationKey`.
    const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

    /// Reads a bookmark's object, which has the watched kind and only metadata.
    pub fn decode(object: &Encoded) -> Result<Bookmark, Box<dyn Error + Send + Sync>> {
        let PartialObjectMetadata { meta } = object.decode()?;
        let end = meta.annotations.get(Bookmark::INITIAL_EVENTS_END);
        Ok(Bookmark { version: meta.resource_version, initial_events_end: end == Some("true") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_holds_its_version_and_marks_the_end_of_the_initial_events() {
        for (annotations, end) in [
            (r#"{}"#, false),
            (r#"{"k8s.io/initial-events-end":"true"}"#, true),
            (r#"{"k8s.io/initial-events-end":"false"}"#, false),
        ] {
            let json =
                format!(r#"{{"metadata":{{"resourceVersion":"7","annotations":{annotations}}}}}"#);
            let bookmark = Bookmark::decode(&Encoded::json(json)).unwrap();
            assert_eq!(bookmark, Bookmark { version: 7, initial_events_end: end });
        }
        let undecimal = Encoded::json(br#"{"metadata":{"resourceVersion":"seven"}}"#);
        assert!(Bookmark::decode(&undecimal).is_err());
    }
}
