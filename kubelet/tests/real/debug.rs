//! Ephemeral containers, as `kubectl debug` adds them.

use std::fs;

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{Pod, Resource};
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, Server, key};
use super::machine::{Error, Machine};
use super::node::place;
use super::pods::is_ready;

/// Writes what it sees of the processes of its target, and ends.
const LOOK: &str = "cat /proc/1/cmdline | tr '\\0' ' ' > /out/seen; exit 3";

#[test]
fn ephemeral_container_sees_its_target_and_runs_once() {
    let Some(_place) = place("debug") else { return };
    let machine = match Machine::start(format!("/tmp/kdbg{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("debug: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let out = machine.folder.join("out");
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "out",
                         "hostPath": {"path": out, "type": "DirectoryOrCreate"}}],
            "containers": [{"name": "main", "image": "node.test/busybox:1",
                            "command": ["sleep", "4242"]}],
        });
        server.create("p", "n", json!({}), spec).await;
        let agent = Agent::start(&machine, &server.sandbox.kubeconfig());
        server.eventually("p", "ready", is_ready).await;
        let container = |name: &str, target: &str| {
            json!({
                "name": name, "image": "node.test/busybox:1", "command": ["sh", "-c", LOOK],
                "targetContainerName": target,
                "volumeMounts": [{"name": "out", "mountPath": "/out"}],
            })
        };
        let add = async |container: Value| {
            let pods = server.client.resource(&Pod::RESOURCE).subresource("ephemeralcontainers");
            let change = json!({"spec": {"ephemeralContainers": [container]}});
            let patched = pods.patch::<Value>(&key("p"), &Patch::StrategicMerge(change)).await;
            patched.expect("patched");
        };
        add(container("look", "main")).await;
        let state = |pod: &Value, name: &str| -> Value {
            let statuses = pod["status"]["ephemeralContainerStatuses"].as_array();
            let status = statuses.into_iter().flatten().find(|status| status["name"] == name);
            status.cloned().unwrap_or_default()
        };
        let has_ended = |pod: &Value| state(pod, "look")["state"]["terminated"]["exitCode"] == 3;
        server.eventually("p", "looked", has_ended).await;
        assert_eq!(fs::read_to_string(out.join("seen")).expect("a file"), "sleep 4242 ");
        // By the end of another one, the first has had a second sync.
        add(container("again", "main")).await;
        let has_ended_again =
            |pod: &Value| state(pod, "again")["state"]["terminated"]["exitCode"] == 3;
        let pod = server.eventually("p", "looked again", has_ended_again).await;
        assert!(has_ended(&pod) && is_ready(&pod), "{pod:#}");
        assert_eq!(state(&pod, "look")["restartCount"], 0);
        drop(agent);
    });
}
