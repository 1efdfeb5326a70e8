//! The Workload and the PodGroup of a Job whose pods are scheduled as a whole.
//! Upstream: `job_scheduling_manager.go` (feature gate `WorkloadWithJob`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::Jobs;
use crate::cache::{Index, IndexValue, Lister};
use crate::client::Client;
use crate::controllers::workloads::history::template_hash;
use crate::controllers::{Controller, Error};
use crate::events::Recorder;
use crate::objects::{
    Job, JobStatus, Object, ObjectKey, OwnerReference, Pod, PodGroup, Resource, Workload,
};

const BY_JOB: Index<Workload> = Index::new("job", |workload, emit| {
    let owner = workload.spec.controller_ref.as_ref();
    let is_job = |group: &str, kind: &str| group == "batch" && kind == "Job";
    if let Some(job) = owner.filter(|owner| is_job(&owner.api_group, &owner.kind)) {
        emit(IndexValue::Key(ObjectKey::new(&workload.meta.namespace, &job.name)));
    }
});
const BY_WORKLOAD: Index<PodGroup> = Index::new("workload", |group, emit| {
    let workload = &group.spec.pod_group_template_ref.workload.workload_name;
    if !workload.is_empty() {
        emit(IndexValue::Key(ObjectKey::new(&group.meta.namespace, workload)));
    }
});
/// Upstream: `validation.DNS1123SubdomainMaxLength`.
const LONGEST_NAME: usize = 253;

/// Finds and creates the Workloads and PodGroups of Jobs.
pub struct Groups {
    client: Client,
    recorder: Recorder,
    workloads: Lister<Workload>,
    groups: Lister<PodGroup>,
}

impl Groups {
    pub fn new(c: &mut Controller) -> Groups {
        let (workloads, groups) = (c.lister::<Workload>(), c.lister::<PodGroup>());
        c.index(&workloads, &BY_JOB);
        c.index(&groups, &BY_WORKLOAD);
        Groups { client: c.client(), recorder: c.recorder(), workloads, groups }
    }

    /// Returns the PodGroup for new pods of `job`, after creating it and its Workload if they are
    /// missing. `None` when the pods are scheduled one by one, as all are unless Workloads are
    /// served in `v1alpha2`.
    /// Upstream: `ensureWorkloadAndPodGroup`.
    async fn ensure(&self, job: &Job, pods: &[Arc<Pod>]) -> Result<Option<Arc<PodGroup>>, Error> {
        // Workloads of later versions are made of the Job's `spec.scheduling`.
        let is_known = self.client.served(&Workload::RESOURCE) == Workload::RESOURCE;
        if !is_known || !is_gang(job) {
            return Ok(None);
        }
        let Some(workload) = self.ensure_workload(job, pods).await? else { return Ok(None) };
        self.ensure_group(job, &workload).await
    }

    /// Returns the Workload of `job`, which it creates for a new Job. `None` when the pods are
    /// scheduled one by one.
    async fn ensure_workload(
        &self,
        job: &Job,
        pods: &[Arc<Pod>],
    ) -> Result<Option<Arc<Workload>>, Error> {
        let known = self.workloads.by_index(&BY_JOB, &IndexValue::Key(job.meta.key()));
        match only_object_of_job(known, job, "Workload") {
            Known::Missing => {}
            Known::Unusable => return Ok(None),
            Known::Found(workload) => return Ok(Some(workload).filter(is_usable)),
        }
        if !is_new(&job.status, pods) {
            return Ok(None);
        }
        let body = workload_of(job);
        let (created, workload) = self.create::<Workload>(job, &body).await?;
        if created {
            let (workload, job_name) = (&workload.meta.name, &job.meta.name);
            let text = format!("Created Workload {workload} for Job {job_name}");
            self.recorder.normal(job, "WorkloadCreated", text);
        }
        Ok(if is_usable(&workload) { Some(workload) } else { None })
    }

    /// Returns the PodGroup of `job`, which it creates if it is missing. `None` when the pods are
    /// scheduled one by one.
    async fn ensure_group(
        &self,
        job: &Job,
        workload: &Workload,
    ) -> Result<Option<Arc<PodGroup>>, Error> {
        let known = self.groups.by_index(&BY_WORKLOAD, &IndexValue::Key(workload.meta.key()));
        match only_object_of_job(known, job, "PodGroup") {
            Known::Missing => {}
            Known::Unusable => return Ok(None),
            Known::Found(group) => return Ok(Some(group)),
        }
        let body = group_of(job, workload)?;
        Ok(Some(self.create::<PodGroup>(job, &body).await?.1))
    }

    /// Creates the object that `body` describes. Returns whether it is new, and the object, which
    /// an earlier sync may have created though the cache does not show it yet.
    async fn create<T: Object + Resource>(
        &self,
        job: &Job,
        body: &Value,
    ) -> Result<(bool, Arc<T>), Error> {
        let namespace = &job.meta.namespace;
        match self.client.create::<T>(namespace, body).await {
            Ok(created) => Ok((true, Arc::new(created))),
            Err(error) if error.is_already_exists() => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let live: T = self.client.get(&ObjectKey::new(namespace, name)).await?;
                match live.meta().is_controlled_by(&job.meta.uid) {
                    true => Ok((false, Arc::new(live))),
                    false => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Jobs {
    /// Returns the PodGroup for new pods of `job`, as [`Groups::ensure`] does; `None` also where
    /// gang scheduling is not enabled.
    pub(super) async fn pod_group(
        &self,
        job: &Job,
        pods: &[Arc<Pod>],
    ) -> Result<Option<Arc<PodGroup>>, Error> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let ensured = groups.ensure(job, pods).await;
        ensured.map_err(|error| Error::during("ensuring Workload and PodGroup for Job", error))
    }
}

/// What the cache has of a Workload or a PodGroup for a Job.
enum Known<T> {
    Missing,
    /// There are several, or the only one is not the Job's own: the pods are scheduled one by one.
    Unusable,
    Found(Arc<T>),
}

/// Returns the object of `found` that the Job owns, if it is the only one. `found`: the objects of
/// this kind that refer to the Job or to its Workload.
fn only_object_of_job<T: Object>(mut found: Vec<Arc<T>>, job: &Job, kind: &str) -> Known<T> {
    let Some(last) = found.pop() else { return Known::Missing };
    if !found.is_empty() {
        let count = found.len() + 1;
        log::error!("{}: {count} objects {kind} refer to the Job, none is used", job.meta.key());
        return Known::Unusable;
    }
    match last.meta().is_controlled_by(&job.meta.uid) {
        true => Known::Found(last),
        false => Known::Unusable,
    }
}

/// Returns whether the pods of `job` are to be scheduled as a whole: all its indexes run at once,
/// and its template names no group. Upstream: `IsGangSchedulingCandidate`.
fn is_gang(job: &Job) -> bool {
    let spec = &job.spec;
    spec.parallelism.is_some_and(|count| count > 1)
        && spec.is_indexed()
        && spec.completions == spec.parallelism
        && !spec.has_scheduling_group
}

/// Returns whether the Workload has one template, as those made here. Upstream:
/// `validateWorkloadStructure`.
fn is_usable(workload: &Arc<Workload>) -> bool {
    workload.spec.pod_group_templates.len() == 1
}

/// Returns whether the Job has not started. One that has started without a Workload continues
/// without one. Upstream: `isNewJob`.
fn is_new(status: &JobStatus, pods: &[Arc<Pod>]) -> bool {
    pods.is_empty()
        && status.start_time.is_none()
        && status.succeeded == 0
        && status.failed == 0
        && status.condition("Suspended").is_none()
}

/// Makes the Workload to create for `job`: a gang of its pods.
fn workload_of(job: &Job) -> Value {
    let (name, namespace) = (&job.meta.name, &job.meta.namespace);
    json!({
        "apiVersion": Workload::RESOURCE.api_version(), "kind": "Workload",
        "metadata": {
            "name": workload_name(name, &job.meta.uid.to_string()), "namespace": namespace,
            "ownerReferences": [job.meta.controller_ref::<Job>()],
        },
        "spec": {
            "controllerRef": { "apiGroup": "batch", "kind": "Job", "name": name },
            "podGroupTemplates": [{
                "name": format!("{name}-pgt-0"),
                "schedulingPolicy": { "gang": { "minCount": job.spec.parallelism } },
            }],
        },
    })
}

/// Makes the PodGroup to create, of the first template of the Workload.
fn group_of(job: &Job, workload: &Workload) -> Result<Value, Error> {
    let Some(template) = workload.spec.pod_group_templates.first() else {
        let key = workload.meta.key();
        return Err(Error::other(format!("workload {key} has no PodGroupTemplates")));
    };
    let name = &workload.meta.name;
    Ok(json!({
        "apiVersion": PodGroup::RESOURCE.api_version(), "kind": "PodGroup",
        "metadata": {
            "name": group_name(name, &template.name), "namespace": job.meta.namespace,
            "ownerReferences": [
                job.meta.controller_ref::<Job>(), reference(workload),
            ],
        },
        "spec": {
            "podGroupTemplateRef": { "workload": {
                "workloadName": name, "podGroupTemplateName": template.name,
            } },
            "schedulingPolicy": template.scheduling_policy,
        },
    }))
}

/// Makes an owner reference that neither controls nor blocks a deletion.
fn reference<T: Object + Resource>(owner: &T) -> OwnerReference {
    let mut reference = owner.meta().controller_ref::<T>();
    (reference.controller, reference.block_owner_deletion) = (None, None);
    reference
}

/// Returns the name of the Job's Workload: the Job's name and a hash of its uid. The name is cut
/// where both together are too long for a name. Upstream: `computeWorkloadName`, where the hash is
/// of the uid as go-spew prints it.
fn workload_name(job: &str, uid: &str) -> String {
    let hash = template_hash(&format!("(types.UID){uid}"), None);
    let room = LONGEST_NAME - hash.len() - 1;
    format!("{}-{hash}", job.get(..room).unwrap_or(job))
}

/// Returns the name of a PodGroup: the names of its Workload and its template, cut to fit, and a
/// hash.
/// Upstream: `computePodGroupName`.
fn group_name(workload: &str, template: &str) -> String {
    let hash = template_hash(&format!("{workload}{template}"), None);
    let room = LONGEST_NAME - hash.len() - 2;
    let half = room / 2;
    let (mut one, mut two) = (workload.len(), template.len());
    if one + two > room {
        // A name shorter than its half leaves the rest to the other.
        match () {
            () if one <= half => two = room - one,
            () if two <= half => one = room - two,
            () => (one, two) = (room - half, half),
        }
    }
    let cut = |text: &str, length: usize| text.get(..length).unwrap_or(text).to_owned();
    format!("{}-{}-{hash}", cut(workload, one), cut(template, two))
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::cache::Indexer;
    use crate::client::testing::answering;
    use crate::events::testing::NoSink;

    fn job(spec: Value, status: Value) -> Job {
        let meta = json!({ "namespace": "ns", "name": "j", "uid": "u" });
        serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn jobs_of_indexes_that_run_at_once_are_scheduled_as_a_whole() {
        let spec = |parallelism: i32, completions: i32, mode: &str, group: Value| {
            json!({
                "parallelism": parallelism, "completions": completions, "completionMode": mode,
                "template": { "spec": { "schedulingGroup": group } },
            })
        };
        let none = Value::Null;
        for (spec, gang) in [
            (spec(2, 2, "Indexed", none.clone()), true),
            (spec(1, 1, "Indexed", none.clone()), false),
            (spec(2, 3, "Indexed", none.clone()), false),
            (spec(2, 2, "NonIndexed", none.clone()), false),
            (spec(2, 2, "Indexed", json!({ "podGroupName": "g" })), false),
        ] {
            assert_eq!(is_gang(&job(spec.clone(), json!({}))), gang, "{spec}");
        }
        for (status, new) in [
            (json!({}), true),
            (json!({ "startTime": "2026-01-01T00:00:00Z" }), false),
            (json!({ "failed": 1 }), false),
            (json!({ "conditions": [{ "type": "Suspended", "status": "False" }] }), false),
        ] {
            assert_eq!(is_new(&job(json!({}), status).status, &[]), new);
        }
    }

    #[test]
    fn a_group_belongs_to_its_job_and_its_workload() {
        let job = job(json!({ "parallelism": 3 }), json!({}));
        let mut body = workload_of(&job);
        body["metadata"]["uid"] = json!("w");
        let workload: Workload = serde_json::from_value(body).unwrap();
        let group = group_of(&job, &workload).unwrap();
        assert_eq!(group["spec"]["schedulingPolicy"], json!({ "gang": { "minCount": 3 } }));
        let owners = &group["metadata"]["ownerReferences"];
        assert_eq!(owners[0]["controller"], true);
        assert_eq!(
            owners[1],
            json!({
                "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "Workload",
                "name": workload.meta.name, "uid": "w",
            })
        );
        assert!(group_of(&job, &Workload::default()).is_err());
    }

    #[test]
    fn a_workload_that_the_cache_does_not_show_yet_must_be_usable_as_well() {
        let job = job(json!({ "parallelism": 3 }), json!({}));
        for (templates, usable) in [(1, true), (2, false)] {
            let mut live = workload_of(&job);
            let template = live["spec"]["podGroupTemplates"][0].clone();
            live["spec"]["podGroupTemplates"] = vec![template; templates].into();
            let client = block_on(answering(move |line| match line.starts_with("POST") {
                true => (409, json!({ "kind": "Status", "code": 409, "reason": "AlreadyExists" })),
                false => (200, live.clone()),
            }));
            let workloads = Arc::new(Indexer::new());
            workloads.add_index(&BY_JOB);
            let groups = Groups {
                client,
                recorder: Recorder::to_sink(Arc::new(NoSink)),
                workloads: Lister::new(workloads),
                groups: Lister::new(Arc::default()),
            };
            let found = block_on(groups.ensure_workload(&job, &[])).unwrap();
            assert_eq!(found.is_some(), usable, "{templates} templates");
        }
    }

    #[test]
    fn names_are_those_of_upstream() {
        let workload = workload_name("gang", "65d52101-facc-4417-9432-de4cc5dc3b2a");
        assert_eq!(workload, "gang-55f667ffd9");
        assert_eq!(group_name(&workload, "gang-pgt-0"), "gang-55f667ffd9-gang-pgt-0-796b668567");
    }

    #[test]
    fn names_are_cut_to_fit() {
        let long = |letter: &str| letter.repeat(250);
        for (workload, template) in
            [("w", "t"), (&long("w"), "t"), ("w", &long("t")), (&long("w"), &long("t"))]
        {
            let name = group_name(workload, template);
            assert!(name.len() <= LONGEST_NAME, "{}", name.len());
            assert!(name.starts_with('w') && name.contains("-t"), "{name}");
        }
        assert!(workload_name(&long("j"), "u").len() <= LONGEST_NAME);
    }
}
