//! JSON that keeps every byte where it is not edited.

use std::collections::HashMap;
use std::fmt;

use crate::objects::from_json;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON object whose members can be set and edited. The order of the members, their numbers,
/// their escapes and the inside of unedited members stay unchanged; white space between the members
/// is lost once an object is edited.
#[derive(Clone, Debug, Default)]
pub struct RawObject {
    /// Names and values, in their original text.
    members: Vec<(Box<RawValue>, Box<RawValue>)>,
}

impl RawObject {
    /// Parses an object; null is an empty one.
    pub fn parse(text: &str) -> Result<RawObject, serde_json::Error> {
        Ok(from_json::<Option<RawObject>>(text)?.unwrap_or_default())
    }

    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.place(name).map(|at| &*self.members[at].1)
    }

    /// Returns the value as text; `None` when it is absent or no string.
    pub fn text(&self, name: &str) -> Option<String> {
        from_json(self.get(name)?.get()).ok()
    }

    /// Replaces the value of `name` where it stands, or adds it at the end.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> Result<(), serde_json::Error> {
        let value = serde_json::value::to_raw_value(&value.into())?;
        self.put(name, value)
    }

    fn put(&mut self, name: &str, value: Box<RawValue>) -> Result<(), serde_json::Error> {
        match self.place(name) {
            Some(at) => self.members[at].1 = value,
            None => self.members.push((serde_json::value::to_raw_value(name)?, value)),
        }
        Ok(())
    }

    /// Sets the text of many members. Users may choose the number of both old and new members, so
    /// the places are looked up in a map.
    pub fn set_all<'a>(
        &mut self,
        values: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), serde_json::Error> {
        let name = |(at, (name, _)): (usize, &(Box<RawValue>, _))| {
            from_json::<String>(name.get()).map(|name| (name, at))
        };
        let places: HashMap<String, usize> =
            self.members.iter().enumerate().map(name).collect::<Result<_, _>>()?;
        for (name, value) in values {
            let value = serde_json::value::to_raw_value(value)?;
            match places.get(name) {
                Some(at) => self.members[*at].1 = value,
                None => self.members.push((serde_json::value::to_raw_value(name)?, value)),
            }
        }
        Ok(())
    }

    /// Removes the member, if it exists.
    pub fn remove(&mut self, name: &str) {
        while let Some(at) = self.place(name) {
            self.members.remove(at);
        }
    }

    /// Edits the object that is the value of `name`, or an empty one if it is absent.
    pub fn edit(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut RawObject) -> Result<(), serde_json::Error>,
    ) -> Result<(), serde_json::Error> {
        let mut object = self
            .get(name)
            .map_or_else(|| Ok(RawObject::default()), |value| RawObject::parse(value.get()))?;
        change(&mut object)?;
        let value = serde_json::value::to_raw_value(&object)?;
        self.put(name, value)
    }

    /// Edits the list that is the value of `name`, or an empty one if it is absent.
    pub fn edit_list(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Vec<Box<RawValue>>) -> Result<(), serde_json::Error>,
    ) -> Result<(), serde_json::Error> {
        let mut list = self.list(name)?;
        change(&mut list)?;
        let value = serde_json::value::to_raw_value(&list)?;
        self.put(name, value)
    }

    /// Returns the list that is the value of `name`; absent and null are empty.
    pub fn list(&self, name: &str) -> Result<Vec<Box<RawValue>>, serde_json::Error> {
        let list = self.get(name).map(|value| from_json::<Option<_>>(value.get()));
        Ok(list.transpose()?.flatten().unwrap_or_default())
    }

    /// Returns the position of the member `name`.
    fn place(&self, name: &str) -> Option<usize> {
        // The last value of a duplicate name counts, as in the other JSON decoders used here.
        self.members.iter().rposition(|(known, _)| {
            let bare = known.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            match bare {
                Some(text) if !text.contains('\\') => text == name,
                _ => from_json::<String>(known.get()).is_ok_and(|text| text == name),
            }
        })
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawObject, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawObject;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut members = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(member) = map.next_entry::<Box<RawValue>, Box<RawValue>>()? {
                    members.push(member);
                }
                Ok(RawObject { members })
            }
        }
        from.deserialize_map(Members)
    }
}

impl fmt::Display for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (at, (name, value)) in self.members.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{}:{}", name.get(), value.get())?;
        }
        f.write_str("}")
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(self.to_string()).map_err(S::Error::custom)?.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_edited_keeps_its_bytes() {
        let text = r#"{"z":1.50,"\u0061b":[ 1e400, "\u003c\/" ],"o":{"x":12345678901234567890123,"\"q":null},"a":{}}"#;
        assert_eq!(RawObject::parse(text).unwrap().to_string(), text);
        let mut object = RawObject::parse(text).unwrap();
        object.set("z", 2).unwrap();
        object.set("n<", "v").unwrap();
        object.edit("o", |inner| inner.set("y", json!(["w"]))).unwrap();
        object
            .edit_list("ab", |list| {
                list.pop();
                Ok(())
            })
            .unwrap();
        object.edit("new", |inner| inner.edit("deep", |deep| deep.set("x", true))).unwrap();
        assert_eq!(
            object.to_string(),
            r#"{"z":2,"\u0061b":[1e400],"o":{"x":12345678901234567890123,"\"q":null,"y":["w"]},"a":{},"n<":"v","new":{"deep":{"x":true}}}"#
        );
        assert_eq!((object.text("n<"), object.text("z")), (Some("v".to_owned()), None));
        let mut labels = RawObject::parse(r#"{"a":"1","\u0062":"2","c":3}"#).unwrap();
        labels.set_all([("b", "x<"), ("d", "y"), ("c", "z")]).unwrap();
        assert_eq!(labels.to_string(), r#"{"a":"1","\u0062":"x<","c":"z","d":"y"}"#);
        object.remove("o");
        object.remove("absent");
        assert_eq!(
            object.to_string(),
            r#"{"z":2,"\u0061b":[1e400],"a":{},"n<":"v","new":{"deep":{"x":true}}}"#
        );
        assert!(object.list("absent").unwrap().is_empty());
        assert!(object.edit("z", |_| Ok(())).is_err(), "a number is no object");
        assert_eq!(RawObject::parse("null").unwrap().to_string(), "{}");
        assert!(RawObject::parse("[1]").is_err());
    }
}
