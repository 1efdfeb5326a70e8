//! The report of shadow mode: as JSON, as text, as metrics.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::diff::Change;
use crate::lines::escaped;
use crate::metrics::metrics;

metrics! {
    static INTENTIONS: IntGaugeVec["controller", "state"] = "shadow_intentions",
        "Writes that this manager would have made in shadow mode, by what became of them.";
    static WRITES: IntGaugeVec["state"] = "shadow_incumbent_writes",
        "Writes of the manager in charge that were seen in shadow mode.";
}

/// The longest value of a field in the text, in bytes.
const VALUE_BYTES: usize = 120;
/// How many fields of a write the text names.
const FIELDS: usize = 12;

/// How a write that this manager wants compares with those of the manager in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Wanted for less than the grace period.
    Pending,
    /// The manager in charge attempts it too, and the API server refuses it.
    Refused,
    /// The manager in charge has made it.
    Met,
    /// Wanted for longer than the grace period, and not made.
    Outstanding,
    /// The manager in charge has written something else instead.
    Contradicted,
}

/// A write that this manager would have made, as the report lists it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub controller: String,
    /// The key that was synced.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    pub verb: &'static str,
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub outcome: Outcome,
    pub wanted_for_seconds: u64,
    pub tries: u64,
    pub changes: Vec<Change>,
}

/// A write of the manager in charge that this one never wanted.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unexpected {
    pub verb: &'static str,
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The version of the last such write.
    pub resource_version: String,
    pub times: u64,
    /// The fields that the manager in charge owned after the first one.
    pub fields: Vec<String>,
}

/// The intentions of one controller.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub controller: String,
    /// Writes of the manager in charge that this controller wanted too.
    pub expected: u64,
    pub met: u64,
    /// Intentions that are no longer wanted, without a write of the manager in charge.
    pub dropped: u64,
    pub pending: u64,
    pub outstanding: u64,
    /// Also creations that differ and are not listed, each time that they are wanted.
    pub contradicted: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How long writes have been compared.
    pub seconds: u64,
    pub grace_seconds: u64,
    pub outstanding: Vec<Item>,
    pub contradicted: Vec<Item>,
    pub unexpected: Vec<Unexpected>,
    pub unexpected_writes: u64,
    pub expected_writes: u64,
    /// Unexpected writes that are younger than the grace period.
    pub undecided_writes: u64,
    pub pending: Vec<Item>,
    /// Creations that the API server refuses to the manager in charge as well.
    pub refused: Vec<Item>,
    pub controllers: Vec<Row>,
    /// The most recent met intentions.
    pub met: Vec<Item>,
}

impl Report {
    /// Returns whether nothing is outstanding, contradicted or unexpected.
    pub fn is_clean(&self) -> bool {
        self.outstanding.is_empty() && self.all_contradicted() == 0 && self.unexpected_writes == 0
    }

    /// Returns the number of all contradictions, with those that are not listed.
    fn all_contradicted(&self) -> u64 {
        self.controllers.iter().map(|row| row.contradicted).sum()
    }

    /// Sets the metrics of shadow mode to the numbers of the report.
    pub fn publish(&self) {
        for row in &self.controllers {
            for (state, count) in [
                ("met", row.met),
                ("dropped", row.dropped),
                ("pending", row.pending),
                ("outstanding", row.outstanding),
                ("contradicted", row.contradicted),
            ] {
                INTENTIONS.with_label_values(&[&row.controller, state]).set(count as i64);
            }
        }
        for (state, count) in [
            ("expected", self.expected_writes),
            ("unexpected", self.unexpected_writes),
            ("undecided", self.undecided_writes),
        ] {
            WRITES.with_label_values(&[state]).set(count as i64);
        }
    }
}

/// Formats the place of a write: `deployments.apps/status default/web`.
fn format_place(resource: &str, subresource: &str, namespace: &str, name: &str) -> String {
    let mut text = resource.to_owned();
    if !subresource.is_empty() {
        let _ = write!(text, "/{subresource}");
    }
    match (namespace, name) {
        ("", "") => {}
        ("", name) => {
            let _ = write!(text, " {name}");
        }
        (namespace, "") => {
            let _ = write!(text, " in {namespace}");
        }
        (namespace, name) => {
            let _ = write!(text, " {namespace}/{name}");
        }
    }
    escaped(&text).into_owned()
}

impl Item {
    fn format_place(&self) -> String {
        format_place(&self.resource, &self.subresource, &self.namespace, &self.name)
    }
}

impl Unexpected {
    fn format_place(&self) -> String {
        format_place(&self.resource, &self.subresource, &self.namespace, &self.name)
    }
}

/// Formats a field's value for a line; absent ones as `-`.
fn format_value(value: &serde_json::Value) -> String {
    if value.is_null() {
        return "-".to_owned();
    }
    let mut text = value.to_string();
    if text.len() > VALUE_BYTES {
        let mut end = VALUE_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    escaped(&text).into_owned()
}

impl fmt::Display for Item {
    /// Writes the item as a line, and its first `FIELDS` changes as a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Item { controller, verb, wanted_for_seconds, .. } = self;
        writeln!(f, "  {controller}: {verb} {} (for {wanted_for_seconds}s)", self.format_place())?;
        for change in self.changes.iter().take(FIELDS) {
            let (old, new) = (format_value(&change.old), format_value(&change.new));
            writeln!(f, "      {}: {old} -> {new}", escaped(&change.path))?;
        }
        match self.changes.len().saturating_sub(FIELDS) {
            0 => Ok(()),
            more => writeln!(f, "      and {more} more fields"),
        }
    }
}

impl fmt::Display for Unexpected {
    /// Writes the write as a line, and its first `FIELDS` fields in a second one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unexpected { verb, times, fields, .. } = self;
        let often = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        writeln!(f, "  {verb} {}{often}", self.format_place())?;
        if fields.is_empty() {
            return Ok(());
        }
        let more = if fields.len() > FIELDS { ", …" } else { "" };
        let fields = fields.iter().take(FIELDS).map(String::as_str).collect::<Vec<_>>().join(", ");
        writeln!(f, "      {}{more}", escaped(&fields))
    }
}

/// As `--shadow-for` prints it.
impl fmt::Display for Report {
    /// Writes the report as text, with a row for each controller.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seconds, grace_seconds, .. } = self;
        writeln!(f, "Shadow report after {seconds}s, grace period {grace_seconds}s")?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<48} {:>8} {:>8} {:>8} {:>8} {:>12} {:>13}",
            "controller", "expected", "met", "dropped", "pending", "outstanding", "contradicted"
        )?;
        for row in &self.controllers {
            let Row { controller, expected, met, dropped, pending, outstanding, contradicted } =
                row;
            writeln!(
                f,
                "{controller:<48} {expected:>8} {met:>8} {dropped:>8} {pending:>8} {outstanding:>12} {contradicted:>13}"
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "writes of the manager in charge: {} expected, {} unexpected, {} undecided",
            self.expected_writes, self.unexpected_writes, self.undecided_writes
        )?;
        for (title, items) in
            [("outstanding", &self.outstanding), ("contradicted", &self.contradicted)]
        {
            if !items.is_empty() {
                writeln!(f, "\n{title}:")?;
                items.iter().try_for_each(|item| item.fmt(f))?;
            }
        }
        match self.all_contradicted().saturating_sub(self.contradicted.len() as u64) {
            0 => {}
            more => writeln!(f, "  and {more} more creations with another content")?,
        }
        if !self.unexpected.is_empty() {
            writeln!(f, "\nunexpected:")?;
            self.unexpected.iter().try_for_each(|write| write.fmt(f))?;
        }
        writeln!(f, "\nresult: {}", if self.is_clean() { "clean" } else { "not clean" })
    }
}
