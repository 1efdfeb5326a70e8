//! The view of a CronJob.

use k8s_openapi::api::batch::v1::CronJobStatus;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::objects::{Istr, Labels, Meta, WholeMeta, resource};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronJob {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: CronJobSpec,
    pub status: CronJobStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpec {
    pub schedule: Box<str>,
    /// A name of the time zone database; `None`: the manager's own zone.
    pub time_zone: Option<Box<str>>,
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: Istr,
    pub suspend: Option<bool>,
    pub successful_jobs_history_limit: Option<i32>,
    pub failed_jobs_history_limit: Option<i32>,
    pub job_template: JobTemplate,
}

/// What Jobs are made from, each byte of their `spec` kept.
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

resource!(CronJob, "batch", "v1", "cronjobs", namespaced);
impl WholeMeta for CronJob {}
