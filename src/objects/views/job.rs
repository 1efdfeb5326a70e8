//! The view of a Job.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::objects::{
    Istr, LabelSelector, Meta, Template, Timestamp, Uid, WholeMeta, from_json, null_as_default,
    resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WireJob")]
pub struct Job {
    pub meta: Meta,
    pub spec: JobSpec,
    pub status: JobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    pub ttl_seconds_after_finished: Option<i32>,
    pub parallelism: Option<i32>,
    pub completions: Option<i32>,
    /// `NonIndexed` or `Indexed`; absent: `NonIndexed`.
    pub completion_mode: Option<Istr>,
    pub backoff_limit: Option<i32>,
    pub active_deadline_seconds: Option<i64>,
    pub suspend: Option<bool>,
    pub managed_by: Option<Istr>,
    /// `TerminatingOrFailed` or `Failed`.
    pub pod_replacement_policy: Option<Istr>,
    pub selector: Option<LabelSelector>,
    /// Empty once the Job has finished: no further pods are created from it.
    #[serde(deserialize_with = "null_as_default")]
    pub template: Template,
    /// Whether the template's restart policy is `OnFailure`.
    #[serde(skip)]
    pub restarts_containers: bool,
    /// Whether the template names a scheduling group.
    #[serde(skip)]
    pub has_scheduling_group: bool,
    pub backoff_limit_per_index: Option<i32>,
    pub max_failed_indexes: Option<i32>,
    pub success_policy: Option<Box<SuccessPolicy>>,
    pub pod_failure_policy: Option<Box<PodFailurePolicy>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    #[serde(deserialize_with = "null_as_default")]
    pub rules: Vec<SuccessPolicyRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessPolicyRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    #[serde(deserialize_with = "null_as_default")]
    pub rules: Vec<PodFailurePolicyRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFailurePolicyRule {
    /// `FailJob`, `FailIndex`, `Ignore` or `Count`.
    pub action: Istr,
    pub on_exit_codes: Option<OnExitCodes>,
    pub on_pod_conditions: Option<Vec<OnPodCondition>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnExitCodes {
    /// `None`: any container.
    pub container_name: Option<Istr>,
    /// `In` or `NotIn`.
    pub operator: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OnPodCondition {
    pub r#type: Istr,
    pub status: Istr,
}

/// A Job's whole status, which is replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Timestamp>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub active: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub failed: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "str::is_empty")]
    pub completed_indexes: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_indexes: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted_terminated_pods: Option<UncountedTerminatedPods>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
}

/// The uids of terminated pods that the counters do not contain yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UncountedTerminatedPods {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<Uid>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Uid>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    pub r#type: Istr,
    pub status: Istr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Istr,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
}

resource!(Job, "batch", "v1", "jobs", namespaced);
impl WholeMeta for Job {}

impl Job {
    /// Returns the condition with which the Job finished. Upstream: `jobutil.FinishedCondition`.
    pub fn finished(&self) -> Option<&JobCondition> {
        self.status.finished()
    }
}

impl JobStatus {
    /// See [`Job::finished`].
    pub fn finished(&self) -> Option<&JobCondition> {
        let ends = |name: &Istr| *name == "Complete" || *name == "Failed";
        self.conditions.iter().find(|condition| condition.is_true() && ends(&condition.r#type))
    }

    /// The condition of this type, with any status.
    pub fn condition(&self, name: &str) -> Option<&JobCondition> {
        self.conditions.iter().find(|condition| condition.r#type == *name)
    }
}

impl JobCondition {
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

impl JobSpec {
    pub fn is_indexed(&self) -> bool {
        self.completion_mode.as_ref().is_some_and(|mode| *mode == "Indexed")
    }

    pub fn is_suspended(&self) -> bool {
        self.suspend == Some(true)
    }
}

/// The wire form of a Job.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireJob {
    #[serde(deserialize_with = "null_as_default")]
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    spec: JobSpec,
    #[serde(deserialize_with = "null_as_default")]
    status: JobStatus,
}

impl From<WireJob> for Job {
    /// Converts the wire form of a Job to the view; a finished Job loses its template.
    fn from(WireJob { metadata: meta, mut spec, status }: WireJob) -> Job {
        if status.finished().is_some() {
            spec.template = Template::default();
        }
        // A template that cannot be parsed has neither, and its pods are refused.
        let Lens { spec: lens } = from_json(spec.template.json()).unwrap_or_default();
        spec.restarts_containers = lens.restart_policy == "OnFailure";
        spec.has_scheduling_group = lens.scheduling_group.is_some();
        Job { meta, spec, status }
    }
}

/// The fields of a Job's template that [`Template`] does not have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Lens {
    #[serde(deserialize_with = "null_as_default")]
    spec: LensSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LensSpec {
    restart_policy: Istr,
    scheduling_group: Option<IgnoredAny>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value, status: Value) -> Job {
        serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn a_finished_job_has_no_template() {
        let template = json!({ "spec": { "restartPolicy": "OnFailure", "schedulingGroup": {} } });
        let spec = json!({ "template": template });
        let condition = |kind: &str| json!({ "conditions": [{ "type": kind, "status": "True" }] });
        for (status, kept) in [
            (json!({}), true),
            (condition("FailureTarget"), true),
            (condition("Failed"), false),
            (condition("Complete"), false),
        ] {
            let job = job(spec.clone(), status);
            assert_eq!(job.spec.template != Template::default(), kept);
            assert_eq!((job.spec.restarts_containers, job.spec.has_scheduling_group), (kept, kept));
        }
    }

    #[test]
    fn a_status_is_written_as_it_was_read() {
        let status = json!({
            "conditions": [{
                "type": "Complete", "status": "True", "reason": "r", "message": "m",
                "lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z",
            "active": 1, "succeeded": 2, "failed": 3, "terminating": 0, "ready": 0,
            "completedIndexes": "0-2", "failedIndexes": "",
            "uncountedTerminatedPods": { "succeeded": ["a"], "failed": ["b"] },
        });
        for status in [status, json!({ "uncountedTerminatedPods": {} }), json!({})] {
            let read = job(json!({}), status.clone()).status;
            assert_eq!(serde_json::to_value(&read).unwrap(), status);
        }
    }
}
