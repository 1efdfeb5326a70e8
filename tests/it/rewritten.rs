//! New objects that a mutating webhook changes: those that their controller does not recognise come
//! slower and slower, and an event says what was changed.

use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    ControllerRevision, DaemonSet, Deployment, Job, ObjectKey, Pod, ReplicaSet, Resource,
    ResourceType, StatefulSet,
};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds;

const POLICIES: ResourceType = ResourceType::fixed(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingAdmissionPolicy",
    "mutatingadmissionpolicies",
    false,
);
const POLICY_BINDINGS: ResourceType = ResourceType::fixed(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingAdmissionPolicyBinding",
    "mutatingadmissionpolicybindings",
    false,
);
/// The name of the policy that stands for the webhook on a real API server.
const REWRITER: &str = "rewriter";
/// The reason of the event about an object that is not recognised.
const CHANGED: &str = "CreatedObjectChanged";
const CONTROLLERS: &str =
    "--controllers=daemonset,deployment,job,replicaset,replicationcontroller,statefulset";

/// A change of each new object of a resource whose label `app` begins with `app`.
struct Rewrite<'a> {
    resource: &'a ResourceType,
    app: &'static str,
    /// JSON pointers, and the new texts; `None`: the field is removed.
    changes: &'static [(&'static str, Option<&'static str>)],
}

impl Rewrite<'_> {
    fn applies_to(&self, object: &Value) -> bool {
        let app = object["metadata"]["labels"]["app"].as_str();
        app.is_some_and(|app| app.starts_with(self.app))
    }

    /// The change on the sandbox.
    fn on_sandbox(&self) -> impl Fn(&mut Value) + Send + 'static {
        let Rewrite { app, changes, .. } = *self;
        let resource = self.resource.clone();
        move |object| {
            let rewrite = Rewrite { resource: &resource, app, changes };
            if !rewrite.applies_to(object) {
                return;
            }
            for (pointer, text) in changes {
                let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
                let parent = object.pointer_mut(parent).and_then(Value::as_object_mut);
                let (parent, key) = (parent.expect("an object"), key.replace("~1", "/"));
                match text {
                    Some(text) => _ = parent.insert(key, (*text).into()),
                    None => _ = parent.remove(&key),
                }
            }
        }
    }

    /// The policy that does the same on a real API server.
    fn policy(&self) -> Value {
        let mutation = |(pointer, text): &(&str, Option<&str>)| {
            let patch = match text {
                Some(text) => format!(r#"{{op: "add", path: "{pointer}", value: "{text}"}}"#),
                None => format!(r#"{{op: "remove", path: "{pointer}"}}"#),
            };
            let expression = format!("[JSONPatch{patch}]");
            json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } })
        };
        let rule = json!({
            "apiGroups": [self.resource.group], "apiVersions": [self.resource.version],
            "resources": [self.resource.plural], "operations": ["CREATE"],
        });
        let condition = format!(
            r#"has(object.metadata.labels) && "app" in object.metadata.labels
               && object.metadata.labels["app"].startsWith("{}")"#,
            self.app
        );
        json!({
            "apiVersion": POLICIES.api_version(), "kind": POLICIES.kind,
            "metadata": { "name": REWRITER },
            "spec": {
                "failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "matchConstraints": { "resourceRules": [rule] },
                "matchConditions": [{ "name": "app", "expression": condition }],
                "mutations": self.changes.iter().map(mutation).collect::<Vec<_>>(),
            },
        })
    }

    /// Puts the change in place. `probe`: an object that it changes, to be created in vain until it
    /// comes back changed.
    async fn begin(&self, env: &TestCluster, probe: Value) {
        assert!(self.applies_to(&probe), "{probe}");
        if let Some(faults) = &env.faults {
            return faults.rewrite(&self.resource.plural, self.on_sandbox());
        }
        let binding = json!({
            "apiVersion": POLICY_BINDINGS.api_version(), "kind": POLICY_BINDINGS.kind,
            "metadata": { "name": REWRITER }, "spec": { "policyName": REWRITER },
        });
        for (resource, body) in [(&POLICIES, self.policy()), (&POLICY_BINDINGS, binding)] {
            env.client.resource(resource).create::<Value>("", &body).await.expect("create");
        }
        let (verbs, key) = (env.client.resource(self.resource), ObjectKey::new("default", "probe"));
        eventually(&env.clock, "new objects are changed", || async {
            let _ = verbs.delete(&key, Delete::new().grace_period(0)).await;
            let created = verbs.create::<Value>("default", &probe).await;
            let created = created.map_err(|error| error.to_string())?;
            let is_changed = self.changes.iter().all(|(pointer, text)| {
                let found = created.pointer(pointer);
                text.map_or(found.is_none(), |text| found.is_some_and(|found| found == text))
            });
            if is_changed { Ok(()) } else { Err(created.to_string()) }
        })
        .await;
        verbs.delete(&key, Delete::new().grace_period(0)).await.expect("delete");
    }

    async fn end(&self, env: &TestCluster) {
        match &env.faults {
            Some(faults) => faults.clear(),
            None => {
                for resource in [&POLICY_BINDINGS, &POLICIES] {
                    let key = ObjectKey::cluster(REWRITER);
                    env.client
                        .resource(resource)
                        .delete(&key, Delete::new())
                        .await
                        .expect("delete");
                }
            }
        }
    }
}

/// The messages of the events about `name` with the reason [`CHANGED`].
async fn changes_reported(env: &TestCluster, name: &str) -> Vec<String> {
    let events = env.client.resource(&kinds::EVENTS);
    let events = events.list::<Value>(None, &ListOptions::default()).await.expect("list").items;
    let about = events
        .iter()
        .filter(|event| event["involvedObject"]["name"] == name && event["reason"] == CHANGED);
    about.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits for the event after the third object in a row that `name` does not recognise.
async fn waits_longer(env: &TestCluster, name: &str) {
    has_event(
        env,
        name,
        CHANGED,
        "; it creates no other for 4 s, or until a dry run comes back unchanged or its spec changes",
    )
    .await;
}

fn template(app: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    })
}

fn probe(app: &str) -> Value {
    let mut probe = template(app);
    probe["apiVersion"] = "v1".into();
    probe["kind"] = "Pod".into();
    probe["metadata"]["name"] = "probe".into();
    probe
}

/// An owner of pods, which has its own name as their label `app`.
fn owner(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let selector = match kind {
        "ReplicationController" => json!({ "app": name }),
        _ => json!({ "matchLabels": { "app": name } }),
    };
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "selector": selector, "template": template(name) },
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object
}

#[test]
fn pods_that_lose_their_labels_come_slower_and_slower() {
    everywhere("rewritten-pods", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let changes = &[("/metadata/labels/app", None)];
        let rewrite = Rewrite { resource: &Pod::RESOURCE, app: "lost", changes };
        rewrite.begin(env, probe("lost")).await;
        let mut job = owner(
            "batch/v1",
            "Job",
            "lost-job",
            json!({ "manualSelector": true, "parallelism": 2, "completions": 2 }),
        );
        job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        let two = json!({ "replicas": 2 });
        let owners = [
            owner("apps/v1", "ReplicaSet", "lost-set", two.clone()),
            owner("v1", "ReplicationController", "lost-controller", two),
            owner("apps/v1", "DaemonSet", "lost-daemon", json!({})),
            job,
        ];
        for owner in &owners {
            create(&env.client, owner.clone()).await;
        }
        for owner in &owners {
            let name = owner["metadata"]["name"].as_str().unwrap();
            waits_longer(env, name).await;
            let prefix = format!("{name}-");
            let pods = env.pods().await;
            let made = pods.iter().filter(|pod| pod.meta.name.starts_with(&prefix)).count();
            let reported = changes_reported(env, name).await;
            let what = r#"label "app" is missing"#;
            assert!(reported.iter().all(|message| message.contains(what)), "{reported:?}");
            // The event about the last pod may still be on its way.
            assert!(made <= reported.len() + 1, "{made} pods of {name}, {reported:?}");
        }

        rewrite.end(env).await;
        merge::<ReplicaSet>(&env.client, "lost-set", json!({ "spec": { "replicas": 3 } })).await;
        merge::<Job>(&env.client, "lost-job", json!({ "spec": { "parallelism": 1 } })).await;
        eventually(&env.clock, "a new spec ends the wait", || async {
            let pods = env.pods().await;
            let of =
                |app| pods.iter().filter(|pod| pod.meta.labels.get("app") == Some(app)).count();
            let found = (of("lost-set"), of("lost-job"));
            if found == (3, 1) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    });
}

/// The owner announces a long wait, and creates its pods long before its end.
#[test]
fn the_wait_ends_soon_after_the_webhook_has_gone() {
    if !long_tests() {
        return eprintln!("rewritten-for-a-while: skipped without LONG_TESTS");
    }
    everywhere("rewritten-for-a-while", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let changes = &[("/metadata/labels/app", None)];
        let rewrite = Rewrite { resource: &Pod::RESOURCE, app: "later", changes };
        rewrite.begin(env, probe("later")).await;
        let owners = [
            owner("apps/v1", "ReplicaSet", "later-set", json!({ "replicas": 2 })),
            owner("apps/v1", "DaemonSet", "later-daemon", json!({})),
        ];
        for owner in &owners {
            create(&env.client, owner.clone()).await;
        }
        let announced = "; it creates no other for 32 s, or until a dry run comes back unchanged \
                         or its spec changes";
        for owner in &owners {
            let name = owner["metadata"]["name"].as_str().unwrap();
            has_event(env, name, CHANGED, announced).await;
        }
        let began = env.clock.monotonic();
        rewrite.end(env).await;
        for (app, count) in [("later-set", 2), ("later-daemon", 1)] {
            eventually(&env.clock, "its pods are created", || async {
                let pods = env.pods().await;
                let made = pods.iter().filter(|pod| pod.meta.labels.get("app") == Some(app));
                let made = made.count();
                if made >= count { Ok(()) } else { Err(format!("{made} of {app}")) }
            })
            .await;
        }
        let took = env.clock.monotonic() - began;
        assert!(took < Duration::from_secs(25), "{took:?} of the 32 s");
    });
}

#[test]
fn replica_sets_whose_template_is_rewritten_come_slower_and_slower() {
    everywhere("rewritten-sets", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let rewrite = Rewrite {
            resource: &ReplicaSet::RESOURCE,
            app: "web",
            changes: &[("/spec/template/spec/containers/0/image", Some("mirror/web:1"))],
        };
        let mut probe = owner("apps/v1", "ReplicaSet", "web", json!({ "replicas": 0 }));
        probe["metadata"] = json!({ "name": "probe", "labels": { "app": "web" } });
        rewrite.begin(env, probe).await;
        create(&env.client, deployment("web", 2, "web:1")).await;
        waits_longer(env, "web").await;
        let sets: Vec<ReplicaSet> = list(&env.client).await;
        let reported = changes_reported(env, "web").await;
        let what = "spec.template.spec.containers[0].image is changed";
        assert!(reported.iter().all(|message| message.contains(what)), "{reported:?}");
        assert!(sets.len() <= reported.len() + 1, "{} ReplicaSets, {reported:?}", sets.len());
        let deployment: Deployment =
            env.client.get(&ObjectKey::new("default", "web")).await.expect("get");
        let status = &deployment.status;
        assert_eq!(status.observed_generation, Some(deployment.meta.generation), "{status:?}");

        rewrite.end(env).await;
        merge::<Deployment>(&env.client, "web", set_image("web:2")).await;
        rolled_out(&env.client, &env.clock, "web").await;
    });
}

/// No scheduler gives these pods a node, so that only their affinity says for which one they are.
#[test]
fn daemon_pods_that_lose_their_node_come_slower_and_slower() {
    everywhere("rewritten-nodes", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let changes = &[("/spec/affinity", None)];
        let rewrite = Rewrite { resource: &Pod::RESOURCE, app: "astray", changes };
        let mut pinned = probe("astray");
        pinned["spec"]["affinity"] = json!({ "nodeAffinity": {} });
        rewrite.begin(env, pinned).await;
        let mut daemon = owner("apps/v1", "DaemonSet", "astray", json!({}));
        daemon["spec"]["template"]["spec"]["schedulerName"] = "none".into();
        create(&env.client, daemon).await;
        waits_longer(env, "astray").await;
        let reported = changes_reported(env, "astray").await;
        let what = "its affinity to its node is missing";
        assert!(reported.iter().all(|message| message.contains(what)), "{reported:?}");
        rewrite.end(env).await;
    });
}

/// Waits until the current generation of an object is acted on and `is_done`. Returns its status.
async fn settles(
    env: &TestCluster,
    resource: &ResourceType,
    name: &str,
    is_done: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&env.clock, &format!("{name} settles"), || async {
        let (verbs, key) = (env.client.resource(resource), ObjectKey::new("default", name));
        let mut object = verbs.get::<Value>(&key).await.map_err(|error| error.to_string())?;
        let generation = object["metadata"]["generation"].take();
        let status = object["status"].take();
        let is_current = status["observedGeneration"] == generation;
        if is_current && is_done(&status) { Ok(status) } else { Err(status.to_string()) }
    })
    .await
}

/// The names of the revisions whose names begin with `prefix`.
async fn revisions(env: &TestCluster, prefix: &str) -> Vec<String> {
    let all: Vec<ControllerRevision> = list(&env.client).await;
    let names = all.iter().map(|revision| revision.meta.name.to_string());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// If it were not recognised, each sync would create another revision and roll it out.
#[test]
fn a_revision_whose_data_is_rewritten_is_used_nevertheless() {
    everywhere("rewritten-revisions", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let rewrite = Rewrite {
            resource: &ControllerRevision::RESOURCE,
            app: "kept",
            changes: &[("/data/spec/template/spec/containers/0/image", Some("mirror/x:1"))],
        };
        let probe = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": { "name": "probe", "labels": { "app": "kept" } },
            "data": { "spec": { "template": template("kept") } }, "revision": 1,
        });
        rewrite.begin(env, probe).await;
        let set = json!({ "replicas": 1, "serviceName": "s" });
        create(&env.client, owner("apps/v1", "StatefulSet", "kept-set", set)).await;
        create(&env.client, owner("apps/v1", "DaemonSet", "kept-daemon", json!({}))).await;
        for (kind, name) in [("StatefulSet", "kept-set"), ("DaemonSet", "kept-daemon")] {
            let place = "data.spec.template.spec.containers[0].image";
            let message = format!("{place} is changed; this {kind} uses it nevertheless");
            has_event(env, name, CHANGED, &message).await;
        }
        // Each of these needs several syncs.
        let (stateful, daemon) = (&StatefulSet::RESOURCE, &DaemonSet::RESOURCE);
        for replicas in [1, 2, 3] {
            let spec = json!({ "spec": { "replicas": replicas } });
            merge::<StatefulSet>(&env.client, "kept-set", spec).await;
            let is_ready = |status: &Value| status["readyReplicas"] == replicas;
            let status = settles(env, stateful, "kept-set", is_ready).await;
            assert_eq!(status["updateRevision"], status["currentRevision"], "{status}");
        }
        let limit = json!({ "spec": { "revisionHistoryLimit": 5 } });
        merge::<DaemonSet>(&env.client, "kept-daemon", limit).await;
        let is_ready = |status: &Value| {
            let desired = &status["desiredNumberScheduled"];
            *desired != 0
                && status["numberReady"] == *desired
                && status["updatedNumberScheduled"] == *desired
        };
        settles(env, daemon, "kept-daemon", is_ready).await;
        for name in ["kept-set", "kept-daemon"] {
            assert_eq!(revisions(env, name).await.len(), 1, "{name}");
            assert_eq!(changes_reported(env, name).await.len(), 1, "{name}");
        }

        rewrite.end(env).await;
        merge::<StatefulSet>(&env.client, "kept-set", set_image("x:2")).await;
        merge::<DaemonSet>(&env.client, "kept-daemon", set_image("x:2")).await;
        let is_updated = |status: &Value| {
            status["updateRevision"] == status["currentRevision"] && status["readyReplicas"] == 3
        };
        settles(env, stateful, "kept-set", is_updated).await;
        settles(env, daemon, "kept-daemon", is_ready).await;
        for name in ["kept-set", "kept-daemon"] {
            assert_eq!(revisions(env, name).await.len(), 2, "{name}");
        }
    });
}

#[test]
fn changes_by_which_an_object_is_still_recognised_delay_nothing() {
    everywhere("rewritten-harmless", async |env| {
        let _manager = env.manager("manager", &[CONTROLLERS]);
        let rewrite = Rewrite {
            resource: &Pod::RESOURCE,
            app: "fine",
            changes: &[
                ("/metadata/labels/injected", Some("yes")),
                ("/spec/containers/0/image", Some("mirror/fine:1")),
            ],
        };
        rewrite.begin(env, probe("fine")).await;
        create(&env.client, deployment("fine", 5, "fine:1")).await;
        rolled_out(&env.client, &env.clock, "fine").await;
        let set = json!({ "replicas": 2, "serviceName": "s" });
        create(&env.client, owner("apps/v1", "StatefulSet", "fine-set", set)).await;
        eventually(&env.clock, "its pods are created", || async {
            let pods = env.pods().await;
            let injected = pods.iter().filter(|pod| pod.meta.labels.contains_key("injected"));
            let found = injected.count();
            if found == 7 { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        has_event(env, "fine-set", "SuccessfulCreate", "successful").await;
        let events = env.client.resource(&kinds::EVENTS);
        let events = events.list::<Value>(None, &ListOptions::default()).await.expect("list").items;
        assert!(events.iter().all(|event| event["reason"] != CHANGED), "{events:#?}");
        rewrite.end(env).await;
    });
}
