//! Pod templates, kept as the JSON they came in.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Istr, Labels};

/// A pod template: every byte that the API sent, and a lens on the few fields that are read. So a
/// field that this build has never heard of still reaches the pods.
#[derive(Clone, Debug)]
pub struct Template {
    json: Arc<RawValue>,
    pub labels: Labels,
    pub annotations: Labels,
    pub finalizers: Vec<Istr>,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Lens {
    metadata: LensMeta,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct LensMeta {
    labels: Labels,
    annotations: Labels,
    finalizers: Vec<Istr>,
}

impl Template {
    /// The template's own JSON.
    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// Parsed, for comparing and for making pods from.
    pub fn to_value(&self) -> Value {
        serde_json::from_str(self.json.get()).expect("RawValue holds valid JSON")
    }

    pub fn from_value(value: &Value) -> Result<Template, serde_json::Error> {
        Template::from_raw(serde_json::value::to_raw_value(value)?)
    }

    fn from_raw(json: Box<RawValue>) -> Result<Template, serde_json::Error> {
        let Lens { metadata: LensMeta { labels, annotations, finalizers } } =
            serde_json::from_str(json.get())?;
        Ok(Template { json: json.into(), labels, annotations, finalizers })
    }
}

impl Default for Template {
    fn default() -> Template {
        let json = RawValue::from_string("{}".to_owned()).expect("an empty object is JSON");
        Template {
            json: json.into(),
            labels: Labels::default(),
            annotations: Labels::default(),
            finalizers: Vec::new(),
        }
    }
}

/// Equal as JSON values: key order and white space do not count.
impl PartialEq for Template {
    fn eq(&self, other: &Template) -> bool {
        self.json.get() == other.json.get() || self.to_value() == other.to_value()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        Template::from_raw(json).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_unknown_fields_and_compares_as_values() {
        let text = r#"{"metadata":{"labels":{"a":"b"}},"spec":{"brandNew":[1, 2.50]}}"#;
        let template: Template = serde_json::from_str(text).unwrap();
        assert_eq!(template.json(), text);
        assert_eq!(template.labels.get("a"), Some("b"));
        let reordered: Template = serde_json::from_str(
            r#"{"spec":{"brandNew":[1,2.50]},"metadata":{"labels":{"a":"b"}}}"#,
        )
        .unwrap();
        assert_eq!(template, reordered);
        assert_ne!(template, Template::default());
    }
}
