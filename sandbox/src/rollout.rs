//! The progress of a demo's workloads, and the reason why one is not complete.

use kube_controller_manager::objects::{ObjectKey, ResourceType};
use serde_json::Value;

/// The kinds that the demo waits for.
pub const WORKLOADS: [ResourceType; 5] = [
    ResourceType::fixed("apps", "v1", "Deployment", "deployments", true),
    ResourceType::fixed("apps", "v1", "StatefulSet", "statefulsets", true),
    ResourceType::fixed("apps", "v1", "DaemonSet", "daemonsets", true),
    ResourceType::fixed("batch", "v1", "Job", "jobs", true),
    ResourceType::fixed("batch", "v1", "CronJob", "cronjobs", true),
];

/// The progress of one workload. A CronJob counts its runs, the others their pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// `deployment ns/name`
    pub name: String,
    /// Whether the controller manager has observed the newest generation.
    pub observed: bool,
    pub wanted: i64,
    /// Pods of the newest template.
    pub created: i64,
    pub ready: i64,
    /// Available, or completed.
    pub done: i64,
    /// All pods, including those to be deleted.
    pub total: i64,
    /// The label of `done` in the output.
    done_means: &'static str,
}

impl Rollout {
    /// Computes the progress of an object of one of the workload kinds.
    pub fn of(kind: &str, object: &Value) -> Rollout {
        let number = |at: &str| object.pointer(at).and_then(Value::as_i64);
        let status = |field: &str| number(&format!("/status/{field}")).unwrap_or(0);
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(text("/metadata/namespace"), text("/metadata/name"));
        let rollout = Rollout {
            name: format!("{} {key}", kind.to_lowercase()),
            observed: number("/status/observedGeneration") == number("/metadata/generation"),
            wanted: number("/spec/replicas").unwrap_or(1),
            created: status("updatedReplicas"),
            ready: status("readyReplicas"),
            done: status("availableReplicas"),
            total: status("replicas"),
            done_means: "available",
        };
        match kind {
            "DaemonSet" => Rollout {
                wanted: status("desiredNumberScheduled"),
                created: status("updatedNumberScheduled"),
                ready: status("numberReady"),
                done: status("numberAvailable"),
                total: status("currentNumberScheduled"),
                ..rollout
            },
            "Job" => {
                let (active, succeeded) = (status("active"), status("succeeded"));
                Rollout {
                    observed: object.pointer("/status/startTime").is_some(),
                    wanted: number("/spec/completions").unwrap_or(1),
                    created: active + succeeded,
                    ready: status("ready") + succeeded,
                    done: succeeded,
                    total: active + succeeded,
                    done_means: "completed",
                    ..rollout
                }
            }
            "CronJob" => {
                let has_run = object.pointer("/status/lastSuccessfulTime").is_some();
                let active = object.pointer("/status/active").and_then(Value::as_array);
                let created = i64::from(has_run || active.is_some_and(|jobs| !jobs.is_empty()));
                Rollout {
                    observed: true,
                    wanted: 1,
                    created,
                    ready: created,
                    done: i64::from(has_run),
                    total: created,
                    done_means: "completed",
                    ..rollout
                }
            }
            _ => rollout,
        }
    }

    /// Returns whether the newest spec was observed, and all wanted pods are created and done, with
    /// no others beside them.
    pub fn is_complete(&self) -> bool {
        let Rollout { observed, wanted, created, done, total, .. } = self;
        *observed && [created, done, total].iter().all(|count| *count == wanted)
    }

    pub fn line(&self) -> String {
        let Rollout { name, wanted, created, ready, done, done_means, .. } = self;
        format!("{name}: {ready}/{wanted} ready, {created} up to date, {done} {done_means}")
    }
}

/// Describes what the rollouts wait for; `None` when all are complete.
pub fn waits_for(rollouts: &[Rollout]) -> Option<String> {
    if let Some(unseen) = rollouts.iter().find(|rollout| !rollout.observed) {
        return Some(format!("the controller manager to observe {}", unseen.name));
    }
    type Count = fn(&Rollout) -> i64;
    let sum = |count: Count| rollouts.iter().map(count).sum::<i64>();
    let wanted = sum(|rollout| rollout.wanted);
    let stages: [(Count, &str); 3] = [
        (|rollout| rollout.created, "created"),
        (|rollout| rollout.ready, "ready"),
        (|rollout| rollout.done, "available or completed"),
    ];
    let late = stages.iter().find(|(count, _)| sum(*count) < wanted);
    late.map(|(count, stage)| format!("pods to be {stage} ({} of {wanted})", sum(*count))).or_else(
        || {
            let rest = rollouts.iter().find(|rollout| !rollout.is_complete())?;
            Some(format!("old pods of {} to go", rest.name))
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_wait_reports_its_cause() {
        let rollout = |observed, [created, total, ready, done]: [i64; 4]| Rollout {
            name: "deployment ns/web".to_owned(),
            wanted: 3,
            created,
            total,
            ready,
            done,
            observed,
            done_means: "available",
        };
        for (observed, counts, expected) in [
            (false, [0, 0, 0, 0], Some("the controller manager to observe deployment ns/web")),
            (true, [1, 1, 0, 0], Some("pods to be created (1 of 3)")),
            (true, [3, 3, 2, 0], Some("pods to be ready (2 of 3)")),
            (true, [3, 3, 3, 0], Some("pods to be available or completed (0 of 3)")),
            (true, [3, 4, 3, 3], Some("old pods of deployment ns/web to go")),
            (true, [3, 3, 3, 3], None),
        ] {
            let waiting = waits_for(&[rollout(observed, counts)]);
            assert_eq!(waiting.as_deref(), expected, "{counts:?}");
        }
    }

    #[test]
    fn each_kind_shows_its_progress() {
        let object = |spec: Value, status: Value| {
            json!({
                "metadata": { "namespace": "ns", "name": "x", "generation": 1 },
                "spec": spec, "status": status,
            })
        };
        let replicas = json!({
            "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1,
        });
        let daemons = json!({
            "observedGeneration": 1, "desiredNumberScheduled": 4, "currentNumberScheduled": 4,
            "updatedNumberScheduled": 4, "numberReady": 4, "numberAvailable": 4,
        });
        let job = json!({ "startTime": "2026-01-01T00:00:00Z", "active": 1, "succeeded": 2 });
        let run = json!({ "active": [{ "name": "x-1" }] });
        let ran = json!({ "lastSuccessfulTime": "2026-01-01T00:00:00Z" });
        for (kind, spec, status, line, is_complete) in [
            (
                "StatefulSet",
                json!({ "replicas": 2 }),
                replicas,
                "1/2 ready, 2 up to date, 0 available",
                false,
            ),
            ("DaemonSet", json!({}), daemons, "4/4 ready, 4 up to date, 4 available", true),
            (
                "Job",
                json!({ "completions": 3 }),
                job,
                "2/3 ready, 3 up to date, 2 completed",
                false,
            ),
            ("CronJob", json!({}), run, "1/1 ready, 1 up to date, 0 completed", false),
            ("CronJob", json!({}), ran, "1/1 ready, 1 up to date, 1 completed", true),
        ] {
            let rollout = Rollout::of(kind, &object(spec, status));
            assert_eq!(rollout.line(), format!("{} ns/x: {line}", kind.to_lowercase()));
            assert_eq!(rollout.is_complete(), is_complete, "{kind}");
        }
    }
}
