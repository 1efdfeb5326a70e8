//! The lean view of a Node.

use serde::{Deserialize, Deserializer};

use super::{Istr, Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Whether the Ready condition is true.
    #[serde(rename = "conditions", deserialize_with = "ready")]
    pub is_ready: bool,
    /// In units of 10^-9 cores; 0: not told.
    #[serde(rename = "allocatable", deserialize_with = "cpu")]
    pub allocatable_cpu_nanos: u64,
}

resource!(Node, "", "v1", "nodes", cluster);

impl Node {
    /// The label `topology.kubernetes.io/zone`, if it says anything.
    pub fn zone(&self) -> Option<&str> {
        self.meta.labels.get("topology.kubernetes.io/zone").filter(|zone| !zone.is_empty())
    }
}

fn ready<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    struct Condition {
        r#type: Istr,
        status: Istr,
    }
    let conditions = Option::<Vec<Condition>>::deserialize(from)?.unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.r#type == "Ready");
    Ok(ready.is_some_and(|condition| condition.status == "True"))
}

fn cpu<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    struct Allocatable {
        #[serde(default)]
        cpu: Istr,
    }
    let allocatable = Option::<Allocatable>::deserialize(from)?;
    Ok(allocatable.and_then(|allocatable| nanos(&allocatable.cpu)).unwrap_or(0))
}

/// `3920m`, `4`, `1.5`, `2k`: the forms in which the API server stores an amount of CPU.
fn nanos(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let power = match unit {
        "n" => 0,
        "u" => 3,
        "m" => 6,
        "" => 9,
        "k" => 12,
        "M" => 15,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let scale = power - i32::try_from(fraction.len()).ok()?;
    let ten = 10u64.checked_pow(scale.unsigned_abs())?;
    if scale >= 0 { digits.checked_mul(ten) } else { Some(digits.div_ceil(ten)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_readiness_are_read() {
        for (json, ready, cpu) in [
            (r#"{}"#, false, 0),
            (r#"{"allocatable": {"cpu": "3920m", "memory": "1Ki"}}"#, false, 3_920_000_000),
            (r#"{"allocatable": {"cpu": "4"}}"#, false, 4_000_000_000),
            (r#"{"allocatable": {"cpu": "1.5"}}"#, false, 1_500_000_000),
            (r#"{"allocatable": {"cpu": "100u"}}"#, false, 100_000),
            (r#"{"allocatable": {"cpu": "much"}}"#, false, 0),
            (r#"{"conditions": [{"type": "Ready", "status": "True"}]}"#, true, 0),
            (r#"{"conditions": [{"type": "Ready", "status": "Unknown"}]}"#, false, 0),
            (r#"{"conditions": [{"type": "DiskPressure", "status": "True"}]}"#, false, 0),
        ] {
            let status: NodeStatus = serde_json::from_str(json).unwrap();
            assert_eq!((status.is_ready, status.allocatable_cpu_nanos), (ready, cpu), "{json}");
        }
    }
}
