//! Objects of a type of k8s-openapi, by its schema: the bytes of an input choose which fields an
//! object has, and their values.

use arbitrary::{Result, Unstructured};
use kube_controller_manager::objects::Timestamp;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Texts that mean something to a reader, beside random ones.
const TEXTS: [&str; 16] = [
    "",
    "a",
    "web-0",
    "Running",
    "Ready",
    "True",
    "Always",
    "NoExecute",
    "Exists",
    "TCP",
    "10.0.0.1",
    "fd00::1",
    "7",
    "kubernetes.io/hostname",
    "0123abcd-4567-89ab-cdef-0123456789ab",
    "\u{fc}\"\\\n\u{10ff7f}",
];
const QUANTITIES: [&str; 8] = ["0", "1", "500m", "1Gi", "-3", "1e3", "0.1", "99999999999999999"];
/// Deeper parts of an object are left out, unless they are required.
const MAX_DEPTH: usize = 24;
/// The most items of a list or a map.
const MAX_ITEMS: usize = 3;

/// Returns the schema of a type, with the definitions that it refers to.
pub fn schema<T: JsonSchema>() -> Value {
    SchemaGenerator::default().into_root_schema_for::<T>().to_value()
}

/// Returns an object of the type that has this schema.
pub fn object(schema: &Value, choices: &mut Unstructured<'_>) -> Result<Value> {
    Generator { root: schema, choices }.value(schema, 0)
}

/// Generates parts of an object by the definitions in `root`, as `choices` decides.
struct Generator<'a, 'c, 'i> {
    root: &'a Value,
    choices: &'c mut Unstructured<'i>,
}

impl<'a> Generator<'a, '_, '_> {
    /// Follows references and choices to a schema, and returns it with the name of the last
    /// reference.
    fn resolved(&mut self, mut part: &'a Value) -> Result<(&'a str, &'a Value)> {
        let mut name = "";
        loop {
            if let Some(reference) = part["$ref"].as_str() {
                let at = self.root.pointer(reference.trim_start_matches('#'));
                part = at.unwrap_or_else(|| panic!("no {reference}"));
                name = reference.rsplit(['.', '/']).next().unwrap_or_default();
                continue;
            }
            let forms = ["allOf", "anyOf", "oneOf"];
            let Some(several) = forms.iter().find_map(|form| part[*form].as_array()) else {
                return Ok((name, part));
            };
            let several: Vec<&Value> = several.iter().filter(|one| one["type"] != "null").collect();
            part = self.choices.choose(&several)?;
        }
    }

    /// Generates a value of the type that this part of the schema describes.
    fn value(&mut self, part: &'a Value, depth: usize) -> Result<Value> {
        let (name, part) = self.resolved(part)?;
        let of = match &part["type"] {
            Value::Array(types) => types.iter().find_map(Value::as_str).unwrap_or_default(),
            of => of.as_str().unwrap_or_default(),
        };
        Ok(match (name, of, part["format"].as_str().unwrap_or_default()) {
            ("Quantity", ..) => (*self.choices.choose(&QUANTITIES)?).into(),
            ("IntOrString", ..) if self.choices.arbitrary()? => self.text()?.into(),
            ("IntOrString", ..) => self.choices.arbitrary::<i32>()?.into(),
            ("MicroTime", ..) => self.time()?.to_micro_string().into(),
            (_, "string", "date-time") => self.time()?.to_string().into(),
            (_, "string", "byte") => (*self.choices.choose(&["", "AA==", "aGVsbG8="])?).into(),
            (_, "string", _) => self.text()?.into(),
            (_, "integer", _) => self.choices.arbitrary::<i32>()?.into(),
            (_, "number", _) => (f64::from(self.choices.arbitrary::<i16>()?) / 4.0).into(),
            (_, "boolean", _) => self.choices.arbitrary::<bool>()?.into(),
            (_, "array", _) => self.list(part, depth)?,
            (_, "object", _) => self.members(part, depth)?,
            // Any JSON.
            _ => json!({}),
        })
    }

    /// Generates a text: a prepared one, or a few of the fuzzer's bytes.
    fn text(&mut self) -> Result<String> {
        let choice = usize::from(self.choices.arbitrary::<u8>()?);
        match TEXTS.get(choice) {
            Some(text) => Ok((*text).to_owned()),
            None => {
                let length = self.choices.int_in_range(0..=8)?;
                Ok(String::from_utf8_lossy(self.choices.bytes(length)?).into_owned())
            }
        }
    }

    /// Draws a time from the year 1, with which JSON begins, to the last time of k8s-openapi's
    /// types.
    fn time(&mut self) -> Result<Timestamp> {
        let last = jiff::Timestamp::MAX.as_second();
        let seconds = self.choices.int_in_range(-62_135_596_800..=last)?;
        let micros = self.choices.int_in_range(0..=999_999)?;
        Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
    }

    /// Generates a list of a few items; it is empty beyond [`MAX_DEPTH`].
    fn list(&mut self, part: &'a Value, depth: usize) -> Result<Value> {
        let mut items = Vec::new();
        while depth < MAX_DEPTH && items.len() < MAX_ITEMS && self.more()? {
            items.push(self.value(&part["items"], depth + 1)?);
        }
        Ok(items.into())
    }

    /// Generates an object with all required members and some others. The type's own `apiVersion`
    /// and `kind` are left out.
    fn members(&mut self, part: &'a Value, depth: usize) -> Result<Value> {
        let mut members = Map::new();
        let required: Vec<&str> =
            part["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, of) in part["properties"].as_object().into_iter().flatten() {
            if depth == 0 && matches!(name.as_str(), "apiVersion" | "kind") {
                continue;
            }
            if required.contains(&name.as_str()) || depth < MAX_DEPTH && self.more()? {
                members.insert(name.clone(), self.value(of, depth + 1)?);
            }
        }
        let others = &part["additionalProperties"];
        while others.is_object() && depth < MAX_DEPTH && members.len() < MAX_ITEMS && self.more()? {
            members.insert(self.text()?, self.value(others, depth + 1)?);
        }
        Ok(members.into())
    }

    /// Returns whether another part follows: none at the end of the input.
    fn more(&mut self) -> Result<bool> {
        Ok(!self.choices.is_empty() && self.choices.arbitrary::<u8>()? % 4 == 1)
    }
}
