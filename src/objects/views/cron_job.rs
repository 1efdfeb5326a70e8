//! The view of a CronJob.

use k8s_openapi::api::core::v1::ObjectReference;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::objects::{Istr, Labels, Meta, Timestamp, WholeMeta, null_as_default, resource};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronJob {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: CronJobSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: CronJobStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub schedule: Box<str>,
    /// A name of the time zone database; `None`: the manager's own zone.
    pub time_zone: Option<Box<str>>,
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: Istr,
    pub suspend: Option<bool>,
    pub successful_jobs_history_limit: Option<i32>,
    pub failed_jobs_history_limit: Option<i32>,
    #[serde(deserialize_with = "null_as_default")]
    pub job_template: JobTemplate,
}

/// The template of Jobs, with every byte of its `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplate {
    pub metadata: Option<JobTemplateMeta>,
    pub spec: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplateMeta {
    pub labels: Labels,
    pub annotations: Labels,
}

/// Whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<Vec<ObjectReference>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Timestamp>,
}

resource!(CronJob, "batch", "v1", "cronjobs", namespaced);
impl WholeMeta for CronJob {}
