//! The lean view of a LeaseCandidate: the times of its last ping and of its last renewal.

use serde::Deserialize;

use crate::objects::{Meta, Timestamp, micro_time, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LeaseCandidate {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: LeaseCandidateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseCandidateSpec {
    #[serde(with = "micro_time")]
    pub ping_time: Option<Timestamp>,
    #[serde(with = "micro_time")]
    pub renew_time: Option<Timestamp>,
}

impl LeaseCandidateSpec {
    /// Whether the API server waits for a renewal.
    pub fn is_pinged(&self) -> bool {
        self.ping_time > self.renew_time
    }
}

resource!(LeaseCandidate, "coordination.k8s.io", "v1beta1", "leasecandidates", namespaced);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_is_pinged_until_it_renews() {
        let spec = |ping: &str, renew: &str| {
            let text = format!("{{\"pingTime\":{ping},\"renewTime\":{renew}}}");
            serde_json::from_str::<LeaseCandidateSpec>(&text).expect("a spec")
        };
        let early = "\"2026-05-01T10:00:01.000001Z\"";
        let late = "\"2026-05-01T10:00:01.000002Z\"";
        assert!(spec(late, early).is_pinged());
        assert!(!spec(early, late).is_pinged());
        assert!(!spec(early, early).is_pinged());
        assert!(!spec("null", early).is_pinged());
    }
}
