//! The lean view of a Job.

use serde::Deserialize;

use crate::objects::{Istr, Meta, Timestamp, null_as_default, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: JobSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: JobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    pub ttl_seconds_after_finished: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    pub start_time: Option<Timestamp>,
    pub completion_time: Option<Timestamp>,
    pub conditions: Option<Box<[JobCondition]>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    pub r#type: Istr,
    pub status: Istr,
    pub last_transition_time: Option<Timestamp>,
}

resource!(Job, "batch", "v1", "jobs", namespaced);

impl Job {
    /// The condition that says how the Job finished. Upstream: `jobutil.FinishedCondition`.
    pub fn finished(&self) -> Option<&JobCondition> {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.find(|condition| {
            condition.status == "True"
                && (condition.r#type == "Complete" || condition.r#type == "Failed")
        })
    }
}
