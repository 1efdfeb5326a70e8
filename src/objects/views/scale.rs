//! The Scale of an object, as its subresource shows it.

use serde::Deserialize;
use serde_json::Value;

use crate::objects::{Labels, Meta, RawObject, Selector, from_json, null_as_default};

/// A Scale of any version. Fields that this build does not know are written back unchanged.
/// Upstream: `autoscaling/v1.Scale`, to which client-go converts all others.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawObject")]
pub struct Scale {
    pub meta: Meta,
    pub replicas: i32,
    pub status_replicas: i32,
    /// The selector of the pods, as in a query; empty without one.
    pub selector: String,
    json: RawObject,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    #[serde(deserialize_with = "null_as_default")]
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    replicas: i32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_as_default")]
    replicas: i32,
    /// A string; in the Scales of `extensions` and of the beta versions of `apps` a map of labels.
    selector: Value,
    #[serde(deserialize_with = "null_as_default")]
    target_selector: String,
}

impl TryFrom<RawObject> for Scale {
    type Error = serde_json::Error;

    /// Reads a Scale of any API version, whose selector may be a text, a map or a second field.
    fn try_from(json: RawObject) -> Result<Scale, serde_json::Error> {
        let Wire { metadata: meta, spec, status } = from_json(&json.to_string())?;
        let selector = match status.selector {
            Value::String(text) => text,
            Value::Object(_) if status.target_selector.is_empty() => {
                let labels: Labels = from_json(&status.selector.to_string())?;
                Selector::from_labels(&labels).to_string()
            }
            _ => status.target_selector,
        };
        let (replicas, status_replicas) = (spec.replicas, status.replicas);
        Ok(Scale { meta, replicas, status_replicas, selector, json })
    }
}

impl Scale {
    /// Returns the Scale with its selector in the form that a `LabelSelector` has.
    ///
    /// # Errors
    /// In upstream's words: the selector does not parse, or a `LabelSelector` has no such operator.
    pub fn converted(mut self) -> Result<Scale, String> {
        let selector = &self.selector;
        let fault = |why: String| format!("failed to parse target selector: {why}");
        let parsed = selector.parse::<Selector>().map_err(|error| {
            fault(format!("couldn't parse the selector string \"{selector}\": {error}"))
        })?;
        self.selector = parsed.for_label_selector().map_err(fault)?.to_string();
        Ok(self)
    }

    /// Returns the body of an update to `replicas`, which fails if the object has changed since it
    /// was read.
    ///
    /// # Errors
    /// When its spec is no object.
    pub fn with_replicas(&self, replicas: i32) -> Result<RawObject, serde_json::Error> {
        let mut json = self.json.clone();
        json.edit("spec", |spec| spec.set("replicas", replicas))?;
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_of_each_version_is_read_and_written_back() {
        for (status, selector) in [
            (r#"{"replicas":2,"selector":"a=b"}"#, "a=b"),
            (r#"{"replicas":2}"#, ""),
            (r#"{"replicas":2,"selector":{"a":"b"}}"#, "a=b"),
            (r#"{"replicas":2,"selector":{"a":"b"},"targetSelector":"a in (b,c)"}"#, "a in (b,c)"),
        ] {
            let text = format!(
                r#"{{"kind":"Scale","metadata":{{"name":"n"}},"spec":{{"replicas":3,"new":1}},"status":{status}}}"#
            );
            let scale: Scale = serde_json::from_str(&text).unwrap();
            assert_eq!((scale.replicas, scale.status_replicas), (3, 2));
            assert_eq!(scale.selector, selector);
            assert_eq!(
                scale.with_replicas(5).unwrap().to_string(),
                text.replace("\"replicas\":3", "\"replicas\":5")
            );
        }
        let empty: Scale = serde_json::from_str("{}").unwrap();
        assert_eq!(empty.with_replicas(1).unwrap().to_string(), r#"{"spec":{"replicas":1}}"#);
    }

    #[test]
    fn a_selector_is_what_a_label_selector_can_hold() {
        for (selector, converted) in [
            ("", Ok("")),
            (" ", Ok("")),
            ("b=2,a==1", Ok("a=1,b=2")),
            ("app=b,app=a", Ok("app=a")),
            ("!d,c,b notin (2,1),a in (2,1)", Ok("a in (1,2),b notin (1,2),c,!d")),
            ("app!=zz", Err("\"!=\" is not a valid label selector operator")),
            ("x>5", Err("\"gt\" isn't supported in label selectors")),
            ("x<5", Err("\"lt\" isn't supported in label selectors")),
        ] {
            let scale = serde_json::json!({ "status": { "selector": selector } });
            let scale: Scale = serde_json::from_str(&scale.to_string()).unwrap();
            let found = scale.converted().map(|scale| scale.selector);
            let fault = |why| format!("failed to parse target selector: {why}");
            assert_eq!(found, converted.map(str::to_owned).map_err(fault), "{selector}");
        }
        let scale: Scale = serde_json::from_str(r#"{"status":{"selector":"a in (b"}}"#).unwrap();
        let fault = scale.converted().unwrap_err();
        let start =
            "failed to parse target selector: couldn't parse the selector string \"a in (b\": ";
        assert!(fault.starts_with(start), "{fault}");
    }
}
