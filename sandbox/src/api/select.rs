//! Selects the objects of a list or watch, and the events that a change causes.

use kube_controller_manager::objects::{Selector, SelectorError};
use serde_json::Value;

use crate::failures;
use crate::kinds::Kind;
use crate::status::ApiResult;
use crate::storage::store::{Change, Stored};

/// Label and field selectors of a request.
pub struct Selection {
    labels: Selector,
    fields: Vec<FieldTerm>,
    /// Looks up a field outside the metadata.
    field: fn(&Value, &str) -> Option<String>,
}

struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

/// The event that a watch sends for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    Added,
    Modified,
    Deleted,
    /// Selected before the change but not after it: the old object is sent as deleted.
    Left,
}

impl Selection {
    /// Parses the label and field selectors of a request. Errors: 400 for what cannot be parsed.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> ApiResult<Selection> {
        let refused = |why: SelectorError| failures::bad_request(why.to_string());
        let labels = labels.parse().map_err(refused)?;
        let fields = split_terms(fields)
            .into_iter()
            .filter(|term| !term.is_empty())
            .map(|term| {
                parse_term(&term).ok_or_else(|| {
                    failures::bad_request(format!(
                        "invalid selector: '{term}'; can't understand '{term}'"
                    ))
                })
            })
            .collect::<ApiResult<Vec<FieldTerm>>>()?;
        Ok(Selection { labels, fields, field: kind.field })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns a field by which objects of this kind cannot be selected, if the selection has one.
    pub fn unsupported(&self) -> Option<&str> {
        // A field that the kind knows has a value even in an empty object.
        let fields = self.fields.iter().map(|term| term.path.as_str());
        fields
            .filter(|path| !matches!(*path, "metadata.name" | "metadata.namespace"))
            .find(|path| (self.field)(&Value::Object(serde_json::Map::new()), path).is_none())
    }

    /// Returns the one name that can match. Upstream: `fields.RequiresExactMatch("metadata.name")`.
    pub fn name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|term| term.equal && term.path == "metadata.name")
            .map(|term| term.value.as_str())
    }

    /// Tests whether an object matches the selectors of both labels and fields.
    pub fn matches(&self, stored: &Stored) -> bool {
        (self.labels.is_empty() || self.labels.matches(&stored.labels))
            && self.fields.iter().all(|term| {
                let metadata = |name: &str| {
                    stored.value["metadata"][name].as_str().unwrap_or_default().to_owned()
                };
                let value = match term.path.as_str() {
                    "metadata.name" => metadata("name"),
                    "metadata.namespace" => metadata("namespace"),
                    path => (self.field)(&stored.value, path).unwrap_or_default(),
                };
                (value == term.value) == term.equal
            })
    }

    /// Returns the event that a watch with this selection sends for `change`, if any.
    pub fn event_for(&self, change: &Change) -> Option<WatchEvent> {
        let before = change.old.as_ref().is_some_and(|old| self.matches(old));
        if change.deleted {
            return before.then_some(WatchEvent::Deleted);
        }
        match (before, self.matches(&change.new)) {
            (false, true) => Some(WatchEvent::Added),
            (true, true) => Some(WatchEvent::Modified),
            (true, false) => Some(WatchEvent::Left),
            (false, false) => None,
        }
    }
}

/// Returns the only name that a field selector can match; `None` if it can match several, or a text
/// that cannot be one part of a path.
pub fn exact_name(fields: &str) -> Option<String> {
    let terms = split_terms(fields);
    let term = terms.iter().filter_map(|term| parse_term(term));
    let mut named = term.filter(|term| term.equal && term.path == "metadata.name");
    let found = named.next()?;
    (!found.value.is_empty() && !found.value.contains(['/', '%'])).then_some(found.value)
}

/// Splits at commas that are not escaped, and unescapes the values.
fn split_terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ',' if !escaped => terms.push(String::new()),
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            c => {
                if let Some(last) = terms.last_mut() {
                    last.push(c);
                }
            }
        }
        escaped = false;
    }
    terms
}

/// Parses `path=value`, `path==value` or `path!=value`; `None` for any other term.
fn parse_term(term: &str) -> Option<FieldTerm> {
    let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
        (path, value, false)
    } else {
        let (path, value) = term.split_once("==").or_else(|| term.split_once('='))?;
        (path, value, true)
    };
    Some(FieldTerm { path: path.trim().to_owned(), value: value.trim().to_owned(), equal })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn stored(app: &str, phase: &str) -> Arc<Stored> {
        let value = json!({
            "metadata": { "name": "a", "labels": { "app": app } }, "status": { "phase": phase },
        });
        Arc::new(Stored::new(value, 1))
    }

    #[test]
    fn a_watch_sees_objects_enter_and_leave_its_selection() {
        let field = |object: &Value, path: &str| {
            (path == "status.phase").then(|| object["status"]["phase"].as_str().unwrap().to_owned())
        };
        let fields = ["status.phase!=Failed", "metadata.name=a"].map(|t| parse_term(t).unwrap());
        let selection =
            Selection { labels: "app=web".parse().unwrap(), fields: fields.into(), field };
        assert_eq!(selection.name(), Some("a"));
        let (web, other, failed) =
            (stored("web", "Running"), stored("db", "Running"), stored("web", "Failed"));
        for (old, new, deleted, expected) in [
            (None, &web, false, Some(WatchEvent::Added)),
            (None, &other, false, None),
            (Some(&other), &web, false, Some(WatchEvent::Added)),
            (Some(&web), &web, false, Some(WatchEvent::Modified)),
            (Some(&web), &other, false, Some(WatchEvent::Left)),
            (Some(&web), &failed, false, Some(WatchEvent::Left)),
            (Some(&failed), &web, false, Some(WatchEvent::Added)),
            (Some(&web), &web, true, Some(WatchEvent::Deleted)),
            (Some(&other), &other, true, None),
        ] {
            let change = Change {
                version: 2,
                key: "a".into(),
                old: old.cloned(),
                new: new.clone(),
                deleted,
            };
            assert_eq!(selection.event_for(&change), expected);
        }
    }

    #[test]
    fn field_selectors_escape() {
        assert_eq!(split_terms(r"a=b\,c,d!=e"), ["a=b,c", "d!=e"]);
        assert!(parse_term("alone").is_none());
    }
}
