//! FlexVolumes are attached and detached by the programs of their drivers.

use std::path::{Path, PathBuf};

use kube_controller_manager::objects::{Node, ObjectKey, Resource};
use serde_json::{Value, json};

use crate::attachments::{ONLY, bound, delete_pod, lists, nodes_are_there, pod};
use crate::env::*;
use crate::kinds::*;

/// Notes its calls, and fails to attach as long as there is a file `fail` beside it.
const PROGRAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
init) echo '{"status": "Success", "capabilities": {"attach": true}}' ;;
attach)
  echo "attach $3 $2" >>"$here/calls"
  if [ -e "$here/fail" ]; then
    echo '{"status": "Failure", "message": "no disk"}'
    exit 1
  fi
  echo "{\"status\": \"Success\", \"device\": \"/dev/$3\"}" ;;
detach)
  echo "detach $3 $2" >>"$here/calls"
  echo '{"status": "Success"}' ;;
*)
  echo '{"status": "Not supported"}'
  exit 1 ;;
esac
"#;

/// A folder with one driver, removed at the end of the test.
struct Drivers(PathBuf);

impl Drivers {
    fn new() -> Drivers {
        let name = format!("kcm-flexvolumes-{}", std::process::id());
        let drivers = Drivers(std::env::temp_dir().join(name));
        let _ = std::fs::remove_dir_all(&drivers.0);
        std::fs::create_dir_all(drivers.driver()).expect("a folder");
        drivers
    }

    fn driver(&self) -> PathBuf {
        self.0.join("example.com~disk")
    }

    /// Renamed into place: a part of it must not run.
    fn install(&self) {
        let new = self.driver().join(".new");
        write_program(&new, PROGRAM);
        std::fs::rename(new, self.driver().join("disk")).expect("rename");
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.driver().join("calls")).unwrap_or_default()
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(path: &Path) -> String {
    format!("--flex-volume-plugin-dir={}", path.display())
}

#[test]
fn flex_volumes_are_attached_and_detached_by_their_programs() {
    everywhere("flex", async |env| {
        nodes_are_there(env).await;
        let drivers = Drivers::new();
        drivers.install();
        let fail = drivers.driver().join("fail");
        std::fs::write(&fail, "").expect("write");
        let _manager = env.manager("manager", &[ONLY, &folder(&drivers.0)]);
        let options = json!({ "disk": "d-1" });
        let source = json!({ "driver": "example.com/disk", "fsType": "ext4", "options": options });
        bound(env, "data", json!({ "flexVolume": source })).await;
        let user = pod(env, "user", "node-0", &["data"]).await;
        let text = "AttachVolume.Attach failed for volume \"data\" : attach command failed, status: \
                    Failure, reason: no disk";
        has_event(env, "user", "FailedAttachVolume", text).await;
        std::fs::remove_file(fail).expect("remove");
        let text = "AttachVolume.Attach succeeded for volume \"data\" ";
        has_event(env, "user", "SuccessfulAttachVolume", text).await;
        lists(env, "node-0", &["example.com/disk/data"]).await;
        let key = ObjectKey::cluster("node-0");
        let has_device =
            |node: &Value| node["status"]["volumesAttached"][0]["devicePath"] == "/dev/node-0";
        wait_until_exists(env, &Node::RESOURCE, &key, has_device).await;
        delete_pod(env, &user).await;
        lists(env, "node-0", &[]).await;
        let calls = eventually(&env.clock, "the driver detaches", || async {
            let calls = drivers.calls();
            if calls.contains("detach") { Ok(calls) } else { Err(calls) }
        })
        .await;
        let last = calls.lines().next_back().unwrap_or_default();
        assert_eq!(last, "detach node-0 data");
        let first = calls.lines().next().and_then(|call| call.strip_prefix("attach node-0 "));
        let heard: Value = serde_json::from_str(first.expect("an attach")).expect("JSON");
        assert_eq!(
            heard,
            json!({
                "disk": "d-1", "kubernetes.io/fsType": "ext4",
                "kubernetes.io/pvOrVolumeName": "data", "kubernetes.io/readwrite": "rw",
            })
        );
    });
}
