//! A manager that dies at any of its writes to attach or to detach a volume: the next one reaches the
//! same end, and no volume of one writer is attached to two nodes at any time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use kube_controller_manager::controllers::runner::Change;
use kube_controller_manager::controllers::{Controller, Profile, Queue, QueuePolicy};
use kube_controller_manager::objects::{Istr, VolumeAttachment};
use kube_controller_manager::task::{Task, spawn};
use serde_json::{Value, json};

use crate::attachments::{csi, nodes_are_there, unique};
use crate::crashes::{Cluster, Mutation, Scenario, runs, survives_every_write};
use crate::env::*;

/// Pods, and a volume and a claim that are to be bound to each other.
fn pods_of_one_volume(name: &str, pods: &[(String, &str)]) -> Vec<Value> {
    let pod = |(pod, node): &(String, &str)| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod },
            "spec": {
                "nodeName": node, "containers": [{ "name": "main", "image": "x:1" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }],
            },
        })
    };
    let mut objects: Vec<Value> = pods.iter().map(pod).collect();
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "namespace": "default", "name": name },
        },
    });
    volume["spec"]["csi"] = csi(name)["csi"].clone();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    objects.extend([volume, claim]);
    objects
}

/// The nodes with an answered attachment of the volume, if the same nodes list the volume.
fn nodes_with(name: &str, cluster: &Cluster) -> Result<Vec<String>, String> {
    let of_volume =
        |object: &&Value| object["spec"]["source"]["persistentVolumeName"].as_str() == Some(name);
    let attachments: Vec<&Value> = cluster.attachments.iter().filter(of_volume).collect();
    if attachments.iter().any(|attachment| attachment["status"]["attached"] != true) {
        return Err(format!("{attachments:#?}"));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut nodes: Vec<String> =
        attachments.iter().map(|attachment| text(&attachment["spec"]["nodeName"])).collect();
    nodes.sort();
    let lists = |node: &&Value| {
        let mut listed = node["status"]["volumesAttached"].as_array().into_iter().flatten();
        listed.any(|volume| volume["name"] == unique(name))
    };
    let mut listing: Vec<String> =
        cluster.nodes.iter().filter(lists).map(|node| text(&node["metadata"]["name"])).collect();
    listing.sort();
    if nodes == listing { Ok(nodes) } else { Err(format!("{nodes:?}, listed by {listing:?}")) }
}

/// Counts new attachments, and records each volume that has two at the same time.
struct Attachments {
    seen: Arc<Mutex<(usize, Vec<String>)>>,
    process: InProcess,
    running: Task<()>,
}

impl Attachments {
    fn watch(env: &Env) -> Attachments {
        let process = InProcess::new(env, env.clock.clone(), env.options());
        let mut controller = Controller::new(Profile::new("observer"), &process.cx).unwrap();
        let attachments = controller.lister::<VolumeAttachment>();
        let queue: Queue = controller.queue(QueuePolicy::default());
        let seen = Arc::<Mutex<(usize, Vec<String>)>>::default();
        let (noted, mut nodes) = (seen.clone(), HashMap::<Istr, BTreeSet<Istr>>::new());
        controller.watch(
            &attachments,
            &queue,
            move |change: Change<'_, VolumeAttachment>, _: &Queue| {
                let spec = &change.object().spec;
                let Some(volume) = &spec.source.persistent_volume_name else { return };
                let nodes = nodes.entry(volume.clone()).or_default();
                if let Change::Deleted(_) = change {
                    nodes.remove(&spec.node_name);
                    return;
                }
                let mut noted = noted.lock().unwrap();
                noted.0 += usize::from(nodes.insert(spec.node_name.clone()));
                if nodes.len() > 1 {
                    noted.1.push(format!("{volume} on {nodes:?}"));
                }
            },
        );
        process.factory.start(&process.stop);
        let running = spawn(controller.run(process.stop.clone()));
        Attachments { seen, process, running }
    }

    /// Waits for `count` attachments, and asserts that no volume had two at a time.
    async fn end(self, env: &Env, count: usize) {
        eventually(&env.clock, "all attachments are seen", || async {
            let seen = self.seen.lock().unwrap().0;
            if seen >= count { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        self.process.stop.stop();
        self.running.await;
        self.process.factory.shutdown().await;
        assert_eq!(*self.seen.lock().unwrap(), (count, vec![]));
    }
}

const CRASHING: [&str; 2] =
    ["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"];

#[test]
fn an_attachment_survives_a_crash_at_every_write() {
    Env::run("crash-attach", async |env| {
        nodes_are_there(env).await;
        let attachments = Attachments::watch(env);
        let scenario = Scenario {
            controllers: &CRASHING,
            objects: &|name| pods_of_one_volume(name, &[(name.to_owned(), "node-0")]),
            changes: vec![],
            end: &|name, cluster| {
                let nodes = nodes_with(name, cluster)?;
                if nodes == ["node-0"] { Ok(json!(nodes)) } else { Err(format!("{nodes:?}")) }
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 5, "{writes} writes");
        // One attachment in each run.
        attachments.end(env, runs(env).await).await;
    });
}

#[test]
fn a_volume_that_moves_survives_a_crash_at_every_write() {
    Env::run("crash-detach", async |env| {
        nodes_are_there(env).await;
        let attachments = Attachments::watch(env);
        let scenario = Scenario {
            controllers: &CRASHING,
            objects: &|name| {
                // The second pod waits for the volume of the first, which is deleted.
                let (first, second) = (name.to_owned(), format!("{name}-second"));
                pods_of_one_volume(name, &[(first, "node-0"), (second, "node-1")])
            },
            changes: vec![Mutation::Delete],
            end: &|name, cluster| {
                let nodes = nodes_with(name, cluster)?;
                let first = cluster.pods.iter().find(|pod| pod["metadata"]["name"] == name);
                let expected = match first {
                    Some(pod) if !pod["metadata"]["deletionTimestamp"].is_null() => {
                        return Err("the first pod goes".into());
                    }
                    Some(_) => "node-0",
                    None => "node-1",
                };
                if nodes == [expected] { Ok(json!(nodes)) } else { Err(format!("{nodes:?}")) }
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 4, "{writes} writes");
        // Two attachments in each run.
        attachments.end(env, 2 * runs(env).await).await;
    });
}
