//! A manager that dies at any of its writes while a volume is provisioned, recycled or released:
//! the next one reaches the same final state, no claim has two volumes, and no volume with the
//! policy Retain is deleted.

use kube_controller_manager::client::ListOptions;
use kube_controller_manager::objects::{PersistentVolume, Resource};
use kube_controller_manager::options::Options;
use sandbox::nodes::DRIVER;
use serde_json::{Value, json};

use crate::crashes::{
    Cluster, Mutation, Scenario, runs, survives_every_write, survives_every_write_with,
};
use crate::env::*;
use crate::recycling::recycler_pod;
use crate::volumes::{claim, make_class, volume};

const BINDER: &str = "persistentvolume-binder-controller";

/// The claim and its one volume, both bound: their annotations, and the finalizers of the volume.
fn provided(name: &str, cluster: &Cluster) -> Result<Value, String> {
    let claim = cluster.find("PersistentVolumeClaim", name).ok_or("no claim")?;
    let volumes = cluster.volumes_of(&claim["metadata"]["uid"]);
    assert!(volumes.len() <= 1, "two volumes of one claim: {volumes:#?}");
    let volume = volumes.first().ok_or("no volume")?;
    if claim["status"]["phase"] != "Bound" || volume["status"]["phase"] != "Bound" {
        return Err(format!("{claim:#} {volume:#}"));
    }
    assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
    Ok(json!({
        "claim": claim["metadata"]["annotations"], "volume": volume["metadata"]["annotations"],
        "finalizers": volume["metadata"]["finalizers"],
    }))
}

#[test]
fn provisioning_survives_a_crash_at_every_write() {
    for (test, provisioner, at_least) in
        [("crash-external", DRIVER, 4), ("crash-hostpath", "kubernetes.io/host-path", 5)]
    {
        Env::run(test, async |env| {
            make_class(&env.client, "made", provisioner, "Immediate").await;
            let scenario = Scenario {
                changes: vec![],
                controllers: &[BINDER],
                objects: &|name| {
                    // A volume that no claim takes.
                    let mut spare = volume(&format!("spare-{name}"), "1Gi", "Retain", "/tmp/none");
                    spare["spec"]["storageClassName"] = json!("spare");
                    vec![claim(name, "1Gi", Some("made")), spare]
                },
                end: &provided,
            };
            let options = Options { enable_hostpath_provisioner: true, ..env.options() };
            let writes = survives_every_write_with(env, &scenario, &options).await;
            assert!(writes >= at_least, "{writes} writes");
            let all = env.client.resource(&PersistentVolume::RESOURCE);
            let all = all.list::<Value>(None, &ListOptions::default()).await.expect("list").items;
            let made = |volume: &&Value| volume["spec"]["storageClassName"] == "made";
            let runs = runs(env).await;
            assert_eq!(all.iter().filter(made).count(), runs, "one volume in each run");
            for path in
                all.iter().filter(made).filter_map(|v| v["spec"]["hostPath"]["path"].as_str())
            {
                assert!(std::fs::remove_dir_all(path).is_ok(), "{path}");
            }
        });
    }
}

#[test]
fn recycling_survives_a_crash_at_every_write() {
    Env::run("crash-recycle", async |env| {
        let folder = Folder::new("crash-recycler");
        let template = folder.0.join("recycler.yaml");
        std::fs::write(&template, recycler_pod("exit").to_string()).unwrap();
        let scenario = Scenario {
            changes: vec![],
            controllers: &[BINDER],
            // Released: its claim is gone.
            objects: &|name| {
                let mut used = volume(name, "1Gi", "Recycle", "/tmp/none");
                used["spec"]["claimRef"] =
                    json!({ "namespace": "default", "name": "gone", "uid": "gone" });
                vec![used]
            },
            end: &|name, cluster| {
                let volume = cluster.find("PersistentVolume", name).ok_or("no volume")?;
                let recycler = format!("recycler-for-{name}");
                let recycles = cluster.pods.iter().any(|pod| pod["metadata"]["name"] == recycler);
                if volume["status"]["phase"] != "Available" || recycles {
                    return Err(format!("{volume:#} {recycles}"));
                }
                Ok(json!([volume["spec"]["claimRef"], volume["metadata"]["annotations"]]))
            },
        };
        let template = template.display().to_string();
        let options =
            Options { pv_recycler_pod_template_filepath_hostpath: template, ..env.options() };
        let writes = survives_every_write_with(env, &scenario, &options).await;
        assert!(writes >= 4, "{writes} writes");
    });
}

#[test]
fn reclaiming_survives_a_crash_at_every_write() {
    for (test, policy, at_least) in [("crash-retain", "Retain", 1), ("crash-release", "Delete", 3)]
    {
        Env::run(test, async |env| {
            let scenario = Scenario {
                changes: vec![Mutation::Delete],
                controllers: &[
                    BINDER,
                    "persistentvolumeclaim-protection-controller",
                    "persistentvolume-protection-controller",
                ],
                objects: &|name| {
                    let path = format!("/tmp/kcm-release-{}-{name}", std::process::id());
                    let mut claim = claim(name, "1Gi", Some(""));
                    claim["spec"]["volumeName"] = json!(name);
                    vec![claim, volume(name, "1Gi", policy, &path)]
                },
                end: &|name, cluster| {
                    let claim = cluster.find("PersistentVolumeClaim", name);
                    let volume = cluster.find("PersistentVolume", name);
                    if let Some(claim) = claim {
                        if claim["metadata"]["deletionTimestamp"].is_string() {
                            return Err(claim.to_string());
                        }
                        let is_bound = [Some(claim), volume]
                            .into_iter()
                            .all(|it| it.is_some_and(|it| it["status"]["phase"] == "Bound"));
                        return if is_bound { Ok(json!("bound")) } else { Err(claim.to_string()) };
                    }
                    match volume {
                        None => {
                            assert_eq!(policy, "Delete", "{name} is deleted");
                            Ok(json!("deleted"))
                        }
                        Some(volume)
                            if policy == "Retain" && volume["status"]["phase"] == "Released" =>
                        {
                            let metadata = &volume["metadata"];
                            assert!(metadata["deletionTimestamp"].is_null(), "{volume:#}");
                            Ok(json!([metadata["annotations"], "released"]))
                        }
                        Some(volume) => Err(volume.to_string()),
                    }
                },
            };
            let writes = survives_every_write(env, &scenario).await;
            assert!(writes >= at_least, "{writes} writes");
        });
    }
}
