//! The flags of the pods that recycle volumes.

use kube_controller_manager::client::Patch;
use kube_controller_manager::objects::{ObjectKey, Pod, Resource};
use serde_json::{Value, json};

use crate::env::*;
use crate::kinds::wait_until_exists;
use crate::volumes::{bound, claim, delete_claim, make, manager, volume, volume_in};

/// A template of recyclers. The stand-in kubelet takes a pod's behaviour from its annotation.
pub fn recycler_pod(behavior: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "default", "labels": { "by": "template" },
            "annotations": { "sandbox/behavior": behavior },
        },
        "spec": {
            "restartPolicy": "Never", "volumes": [{ "name": "vol" }],
            "containers": [{ "name": "main", "image": "x:1" }],
        },
    })
}

#[test]
fn recycler_pods_have_the_templates_and_timeouts_of_the_flags() {
    everywhere("recyclers", async |env| {
        let folder = Folder::new("recyclers");
        // These never end.
        let template = |name: &str| {
            let mut pod = recycler_pod("sleep infinity");
            pod["metadata"]["labels"] = json!({ "by": name });
            let path = folder.0.join(name);
            std::fs::write(&path, pod.to_string()).unwrap();
            path.display().to_string()
        };
        let flags = [
            format!("--pv-recycler-pod-template-filepath-hostpath={}", template("host-path")),
            "--pv-recycler-minimum-timeout-hostpath=50".to_owned(),
            "--pv-recycler-timeout-increment-hostpath=20".to_owned(),
            format!("--pv-recycler-pod-template-filepath-nfs={}", template("nfs")),
            "--pv-recycler-minimum-timeout-nfs=70".to_owned(),
            "--pv-recycler-increment-timeout-nfs=10".to_owned(),
        ];
        let _manager = manager(env, &flags.each_ref().map(String::as_str));
        let client = &env.client;
        let of_nfs = |name: &str, size: &str| {
            let mut volume = volume(name, size, "Recycle", "");
            volume["spec"].as_object_mut().unwrap().remove("hostPath");
            volume["spec"]["nfs"] = json!({ "server": "s", "path": "/p" });
            volume
        };
        for (made, by, seconds) in [
            (volume("small", "1Gi", "Recycle", "/tmp/none"), "host-path", 50),
            (volume("large", "4Gi", "Recycle", "/tmp/none"), "host-path", 80),
            (of_nfs("share", "8Gi"), "nfs", 80),
            (of_nfs("small-share", "1Gi"), "nfs", 70),
        ] {
            let name = made["metadata"]["name"].as_str().unwrap();
            make(client, &made).await;
            let mut asks = claim(name, "1Gi", Some(""));
            asks["spec"]["volumeName"] = json!(name);
            create(client, asks).await;
            bound(env, name).await;
            delete_claim(env, name).await;
            let recycler = ObjectKey::new("default", &format!("recycler-for-{name}"));
            let pod = wait_until_exists(env, &Pod::RESOURCE, &recycler, |_| true).await;
            assert_eq!(pod["metadata"]["labels"], json!({ "by": by }), "{name}");
            assert_eq!(pod["spec"]["activeDeadlineSeconds"], seconds, "{name}");
            let source = &pod["spec"]["volumes"][0];
            let expected = match by {
                "nfs" => json!({ "name": "vol", "nfs": { "server": "s", "path": "/p" } }),
                _ => json!({ "name": "vol", "hostPath": { "path": "/tmp/none", "type": "" } }),
            };
            assert_eq!(*source, expected, "{name}");
            volume_in(env, name, "Released").await;
            // It has run for too long: the volume does not become available.
            let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
            let failed = json!({ "status": {
                "phase": "Failed", "reason": "DeadlineExceeded", "message": "too slow",
            } });
            let failed = Patch::Merge(failed);
            pods.patch::<Value>(&recycler, &failed).await.expect("patch");
            volume_in(env, name, "Failed").await;
            let why = "Recycle failed: failed to recycle volume: too slow";
            has_event(env, name, "VolumeFailedRecycle", why).await;
        }
    });
}

#[test]
fn a_template_without_a_volume_ends_the_manager() {
    Env::run("recycler-refused", async |env| {
        let folder = Folder::new("recycler-refused");
        let path = folder.0.join("recycler");
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "spec": {} });
        std::fs::write(&path, pod.to_string()).unwrap();
        for flag in ["hostpath", "nfs"] {
            let flag = format!("--pv-recycler-pod-template-filepath-{flag}={}", path.display());
            let name = format!("manager-{}", flag.len());
            let mut manager = env.manager(&name, &[&flag]);
            let why =
                format!("pod specification ({}): does not contain any volume(s)", path.display());
            eventually(&env.clock, "the manager ends", || async {
                let log = std::fs::read_to_string(&manager.log).unwrap_or_default();
                if log.contains(&why) { Ok(()) } else { Err(log) }
            })
            .await;
            eventually(&env.clock, "its process ends", || {
                let ended = manager.ended().expect("a status");
                async move { ended.map(drop).ok_or_else(|| "it runs".to_owned()) }
            })
            .await;
        }
    });
}
