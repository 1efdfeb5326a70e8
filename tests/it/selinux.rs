//! Pods that use one volume with different SELinux labels.

use kube_controller_manager::objects::{CSIDriver, ObjectKey, Resource};
use serde_json::{Value, json};

use crate::attachments::{bound, delete_pod};
use crate::env::*;
use crate::metrics::Serving;

const DRIVER: &str = "selinux.example.com";
const METRIC: &str = "selinux_warning_controller_selinux_volume_conflict";

fn pod(name: &str, level: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "securityContext": { "seLinuxOptions": { "level": level } },
            "containers": [{
                "name": "main", "image": "x:1",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
        },
    })
}

#[test]
fn pods_with_other_labels_for_one_volume_get_events_and_a_metric() {
    everywhere("selinux", async |env| {
        let only = ["--controllers=selinux-warning-controller"];
        let serving = Serving::start(env, "manager", &manager_program(), &only);
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": { "name": DRIVER }, "spec": { "seLinuxMount": true },
        });
        env.client
            .resource(&CSIDriver::RESOURCE)
            .create::<Value>("", &driver)
            .await
            .expect("create");
        bound(env, "data", json!({ "csi": { "driver": DRIVER, "volumeHandle": "h" } })).await;
        for (name, level) in [("first", "s0:c1"), ("same", "s0:c1"), ("other", "s0:c2")] {
            create(&env.client, pod(name, level)).await;
        }
        let text = |own: &str, name: &str, label: &str| {
            format!(
                "SELinuxLabel \"{own}\" conflicts with pod {name} that uses the same volume as this \
                 pod with SELinuxLabel \"{label}\". If both pods land on the same node, only one of \
                 them may access the volume."
            )
        };
        for name in ["first", "same"] {
            let message = text(":::s0:c1", "other", ":::s0:c2");
            has_event(env, name, "SELinuxLabelConflict", &message).await;
            let message = text(":::s0:c2", name, ":::s0:c1");
            has_event(env, "other", "SELinuxLabelConflict", &message).await;
        }
        let lines = |text: &str| {
            let mut lines: Vec<String> = text
                .lines()
                .filter(|line| line.starts_with(&format!("{METRIC}{{")))
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        let metrics = serving.metrics(env, "four conflicts", |text| lines(text).len() == 4).await;
        let expected = format!(
            "{METRIC}{{pod1_name=\"first\",pod1_namespace=\"default\",pod1_value=\":::s0:c1\",\
             pod2_name=\"other\",pod2_namespace=\"default\",pod2_value=\":::s0:c2\",\
             property=\"SELinuxLabel\"}} 1"
        );
        assert!(lines(&metrics).contains(&expected), "{:#?}", lines(&metrics));
        // Conflicts go with their pods.
        delete_pod(env, &ObjectKey::new("default", "other")).await;
        serving.metrics(env, "no conflicts", |text| lines(text).is_empty()).await;
    });
}
