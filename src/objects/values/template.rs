//! Pod templates, kept as their original JSON.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{LazyLock, OnceLock};

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::objects::values::intern::{Interned, Pool};
use crate::objects::{Istr, Labels, from_json, null_as_default};

/// A pod template: its original JSON, and a lens on the few fields that are read. So a field that
/// this build does not know still reaches the pods. All objects and versions with the same text
/// share one copy.
#[derive(Clone, Debug)]
pub struct Template(Interned<Shared>);

/// The fields of a [`Template`] that are read; a template derefs to them.
#[derive(Debug)]
pub struct Shared {
    json: Box<RawValue>,
    pub labels: Labels,
    pub annotations: Labels,
    pub finalizers: Vec<Istr>,
    digest: OnceLock<u128>,
}

static TEMPLATES: LazyLock<Pool<Interned<Shared>>> = LazyLock::new(Pool::new);

impl PartialEq for Shared {
    fn eq(&self, other: &Shared) -> bool {
        self.json.get() == other.json.get()
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.json.get().hash(state);
    }
}

impl Deref for Template {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// The fields of a template that are decoded.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Lens {
    #[serde(deserialize_with = "null_as_default")]
    metadata: LensMeta,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct LensMeta {
    labels: Labels,
    annotations: Labels,
    #[serde(deserialize_with = "null_as_default")]
    finalizers: Vec<Istr>,
}

impl Template {
    /// The template's own JSON.
    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// Parses the template, for comparisons and for new pods. Valid JSON that cannot be parsed,
    /// because of its depth or the size of a number, is returned as one string: equal templates
    /// stay equal, and the API server refuses pods made from it.
    pub fn to_value(&self) -> Value {
        let text = self.json.get();
        from_json(text).unwrap_or_else(|_| Value::String(text.to_owned()))
    }

    pub fn from_value(value: &Value) -> Result<Template, serde_json::Error> {
        Template::from_raw(serde_json::value::to_raw_value(value)?)
    }

    /// Returns the shared template of this text.
    fn from_raw(json: Box<RawValue>) -> Result<Template, serde_json::Error> {
        let Lens { metadata: LensMeta { labels, annotations, finalizers } } =
            from_json(json.get())?;
        let digest = OnceLock::new();
        Ok(Template(TEMPLATES.intern(Shared { json, labels, annotations, finalizers, digest })))
    }

    /// Returns the result of `compute` for the template: computed once for all holders of this
    /// text, so every caller must pass the same function.
    pub fn digest(&self, compute: impl FnOnce(&Template) -> u128) -> u128 {
        *self.0.digest.get_or_init(|| compute(self))
    }
}

impl Default for Template {
    fn default() -> Template {
        static EMPTY: LazyLock<Template> =
            LazyLock::new(|| from_json("{}").expect("an empty object is a template"));
        EMPTY.clone()
    }
}

/// Equal as JSON values: key order and white space do not count.
impl PartialEq for Template {
    fn eq(&self, other: &Template) -> bool {
        self.0 == other.0 || self.to_value() == other.to_value()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        if json.get() == "null" {
            return Ok(Template::default());
        }
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
        let again: Template = serde_json::from_str(text).unwrap();
        assert!(Interned::ptr_eq(&template.0, &again.0), "the same text is kept once");
        assert_eq!((again.digest(|_| 1), template.digest(|_| 2)), (1, 1));
    }
}
