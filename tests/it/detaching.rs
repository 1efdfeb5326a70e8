//! Volumes of deleted pods, on nodes that do not report that they have unmounted them.

use std::time::Duration;

use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{Node, ObjectKey, Resource, VolumeAttachment};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::spawn;
use serde_json::{Value, json};

use crate::attachments::{attached, bound, csi, delete_pod, lists, nodes_are_there, pod, unique};
use crate::env::*;
use crate::kinds::wait_until_exists;

fn of_volume<'a>(attachments: &'a [Value], volume: &str) -> Option<&'a Value> {
    attachments.iter().find(|it| it["spec"]["source"]["persistentVolumeName"] == *volume)
}

fn is_there(attachments: &[Value], volume: &str) -> bool {
    of_volume(attachments, volume).is_some()
}

fn is_attached(attachments: &[Value], volume: &str) -> bool {
    of_volume(attachments, volume).is_some_and(|it| it["status"]["attached"] == true)
}

const CONTROLLER: &str = "persistentvolume-attach-detach-controller";

#[test]
fn a_volume_that_is_not_unmounted_is_detached_after_six_minutes_unless_the_flag_forbids_it() {
    for (name, forbidden) in [("force-detach", false), ("no-force-detach", true)] {
        everywhere(name, async |env| {
            nodes_are_there(env).await;
            let clock = FakeClock::new(env.clock.now());
            let options = Options { disable_force_detach_on_timeout: forbidden, ..env.options() };
            let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), options);
            let controller = controller_of(CONTROLLER, &cx);
            factory.start(&stop);
            let running = spawn(controller.run(stop.clone()));

            // Advances the controller's clock while it waits for a condition.
            let after = async |step: u64, look: &dyn Fn(&[Value]) -> bool| {
                let all = env.client.resource(&VolumeAttachment::RESOURCE);
                eventually(&env.clock, "the attachments change", || async {
                    let found = all.list::<Value>(None, &ListOptions::default()).await;
                    let found = found.map_err(|error| error.to_string())?.items;
                    if look(&found) {
                        return Ok(());
                    }
                    clock.advance(Duration::from_secs(step));
                    Err(format!("{found:#?}"))
                })
                .await;
            };
            bound(env, "data", csi("h")).await;
            let user = pod(env, "user", "node-0", &["data"]).await;
            after(1, &|all| is_attached(all, "data")).await;
            lists(env, "node-0", &[&unique("h")]).await;
            let key = ObjectKey::cluster("node-0");
            let in_use = |node: &Value| node["status"]["volumesInUse"] == json!([unique("h")]);
            wait_until_exists(env, &Node::RESOURCE, &key, in_use).await;
            // The kubelet does not answer any more.
            env.steering.kill("node-0");
            let nodes = env.client.resource(&Node::RESOURCE).subresource("status");
            let condition = json!({ "type": "Ready", "status": "Unknown" });
            let unknown = Patch::StrategicMerge(json!({ "status": { "conditions": [condition] } }));
            nodes.patch::<Value>(&key, &unknown).await.expect("patch");
            let start = clock.monotonic();
            delete_pod(env, &user).await;

            if forbidden {
                // Half an hour later the controller is at work: another pod is served.
                for name in ["other", "third"] {
                    clock.advance(Duration::from_secs(15 * 60));
                    bound(env, name, csi(name)).await;
                    pod(env, name, "node-1", &[name]).await;
                    after(1, &|all| is_attached(all, name)).await;
                }
                attached(env, "h", "node-0").await;
                let unmounted = Patch::Merge(json!({ "status": { "volumesInUse": null } }));
                nodes.patch::<Value>(&key, &unmounted).await.expect("patch");
                after(1, &|all| !is_there(all, "data")).await;
            } else {
                after(10, &|all| !is_there(all, "data")).await;
                let waited = clock.monotonic() - start;
                assert!(waited >= Duration::from_secs(6 * 60), "{waited:?}");
            }
            lists(env, "node-0", &[]).await;
            stop.stop();
            running.await;
            factory.shutdown().await;
        });
    }
}
