//! The choice of volumes for claims, and bindings that fail or are interrupted.

use std::time::Duration;

use kube_controller_manager::clock::{Clock, FakeClock};
use kube_controller_manager::objects::{ObjectKey, PersistentVolume, PersistentVolumeClaim};
use kube_controller_manager::options::Options;
use kube_controller_manager::task::spawn;
use sandbox::faults::Fault;
use serde_json::{Value, json};

use crate::crashes::{Scenario, survives_every_write};
use crate::env::*;
use crate::volumes::{
    annotation, bound, claim, claim_key, make, make_class, manager, read, volume, volume_in,
};

#[test]
fn a_claim_takes_no_volume_of_another_kind() {
    everywhere("kinds-of-volumes", async |env| {
        let client = &env.client;
        let with = |name: &str, spec: Value| {
            let mut volume = volume(name, "1Gi", "Retain", "/tmp/none");
            if spec.get("volumeAttributesClassName").is_some() {
                volume["spec"].as_object_mut().unwrap().remove("hostPath");
            }
            for (field, value) in spec.as_object().unwrap() {
                volume["spec"][field] = value.clone();
            }
            volume
        };
        let csi = json!({ "driver": "static.example.com", "volumeHandle": "h" });
        for (name, spec) in [
            ("of-a-class", json!({ "storageClassName": "gold" })),
            ("read-many", json!({ "accessModes": ["ReadOnlyMany"] })),
            ("block", json!({ "volumeMode": "Block" })),
            ("of-attributes", json!({ "volumeAttributesClassName": "fast", "csi": csi })),
        ] {
            make(client, &with(name, spec)).await;
        }
        let mut labelled = volume("labelled", "1Gi", "Retain", "/tmp/none");
        labelled["metadata"]["labels"] = json!({ "tier": "db" });
        make(client, &labelled).await;
        make(client, &volume("larger", "2Gi", "Retain", "/tmp/none")).await;
        let manager = manager(env, &[]);
        for name in ["of-a-class", "read-many", "block", "of-attributes", "labelled", "larger"] {
            volume_in(env, name, "Available").await;
        }
        // One after the other: no claim takes the volume of a later one, although it is free.
        for (name, spec, volume) in [
            ("selects", json!({ "selector": { "matchLabels": { "tier": "db" } } }), "labelled"),
            ("plain", json!({}), "larger"),
            ("blocks", json!({ "volumeMode": "Block" }), "block"),
            ("reads", json!({ "accessModes": ["ReadOnlyMany"] }), "read-many"),
            ("golden", json!({ "storageClassName": "gold" }), "of-a-class"),
            ("fast", json!({ "volumeAttributesClassName": "fast" }), "of-attributes"),
        ] {
            let mut asks = claim(name, "1Gi", Some(""));
            for (field, value) in spec.as_object().unwrap() {
                asks["spec"][field] = value.clone();
            }
            create(client, asks).await;
            let found = bound(env, name).await;
            assert_eq!(found["spec"]["volumeName"], volume, "{name}");
        }
        drop(manager);
    });
}

#[test]
fn volumes_and_claims_of_migrated_plugins_are_marked() {
    everywhere("migrated", async |env| {
        const MIGRATED: &str = "pv.kubernetes.io/migrated-to";
        let client = &env.client;
        let mut made = volume("made", "1Gi", "Retain", "/tmp/none");
        made["metadata"]["annotations"] =
            json!({ "pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs" });
        make(client, &made).await;
        let mut asks = claim("asks", "1Gi", Some("missing"));
        asks["metadata"]["annotations"] =
            json!({ "volume.kubernetes.io/storage-provisioner": "kubernetes.io/gce-pd" });
        create(client, asks).await;
        let manager = manager(env, &[]);
        eventually(&env.clock, "both are marked", || async {
            let volume = read::<PersistentVolume>(client, &ObjectKey::cluster("made")).await;
            let claim = read::<PersistentVolumeClaim>(client, &claim_key("asks")).await;
            let mark = |object: &Option<Value>| {
                object.as_ref().and_then(|object| annotation(object, MIGRATED).map(str::to_owned))
            };
            let marks = [mark(&volume), mark(&claim)];
            let expected = ["ebs.csi.aws.com", "pd.csi.storage.gke.io"].map(str::to_owned);
            if marks == expected.map(Some) { Ok(()) } else { Err(format!("{marks:?}")) }
        })
        .await;
        drop(manager);
    });
}

const BINDER: &str = "persistentvolume-binder-controller";

#[test]
fn a_binding_survives_a_crash_at_every_write() {
    Env::run("crash-bind", async |env| {
        let scenario = Scenario {
            changes: vec![],
            controllers: &[BINDER],
            // Each run has a volume of its own.
            objects: &|name| {
                let mut volume = volume(name, "1Gi", "Retain", "/tmp/none");
                volume["metadata"]["labels"] = json!({ "run": name });
                let mut claim = claim(name, "1Gi", Some(""));
                claim["spec"]["selector"] = json!({ "matchLabels": { "run": name } });
                vec![volume, claim]
            },
            end: &|name, cluster| {
                let claim = cluster.find("PersistentVolumeClaim", name).ok_or("no claim")?;
                let volume = cluster.find("PersistentVolume", name).ok_or("no volume")?;
                let reference = &volume["spec"]["claimRef"];
                if claim["status"]["phase"] != "Bound" || volume["status"]["phase"] != "Bound" {
                    return Err(format!("{claim:#} {volume:#}"));
                }
                assert_eq!(claim["spec"]["volumeName"], name);
                assert_eq!(reference["uid"], claim["metadata"]["uid"]);
                Ok(json!({
                    "claim": claim["metadata"]["annotations"], "status": claim["status"],
                    "volume": volume["metadata"]["annotations"],
                }))
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 4, "{writes} writes");
    });
}

#[test]
fn a_binding_that_fails_again_and_again_is_tried_in_each_sync_period() {
    const FAILURES: usize = 18;
    Env::run("bind-fails", async |env| {
        let faults = env.cluster.sandbox.faults();
        faults.next(FAILURES, "update", "persistentvolumes", Fault::code(500, None));
        make(&env.client, &volume("v", "1Gi", "Retain", "/tmp/none")).await;
        create(&env.client, claim("c", "1Gi", Some(""))).await;
        let clock = FakeClock::new(env.clock.now());
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
        let controller = controller_of(BINDER, &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        eventually(&env.clock, "all failures", || async {
            clock.advance(Duration::from_secs(5));
            let left = faults.pending();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        let failed = clock.monotonic();
        eventually(&env.clock, "the claim is bound", || async {
            clock.advance(Duration::from_secs(5));
            let claim: Value = read::<PersistentVolumeClaim>(&env.client, &claim_key("c"))
                .await
                .ok_or("no claim")?;
            if claim["status"]["phase"] == "Bound" { Ok(()) } else { Err(claim.to_string()) }
        })
        .await;
        // Doubling delays without the limit of the period would have reached eleven minutes by
        // then.
        let waited = clock.monotonic() - failed;
        assert!(waited < Duration::from_secs(300), "{waited:?}");
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}

/// The directory must stay: it would be that of a volume with a claim.
#[test]
fn a_host_path_volume_that_may_exist_keeps_its_directory() {
    Env::run("hostpath-unanswered", async |env| {
        let faults = env.cluster.sandbox.faults();
        make_class(&env.client, "host", "kubernetes.io/host-path", "Immediate").await;
        faults.next(1, "create", "persistentvolumes", Fault::LoseAnswer);
        faults.next(4, "create", "persistentvolumes", Fault::code(403, None));
        create(&env.client, claim("data", "1Gi", Some("host"))).await;
        let clock = FakeClock::new(env.clock.now());
        let options = Options { enable_hostpath_provisioner: true, ..env.options() };
        let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), options);
        let controller = controller_of(BINDER, &cx);
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        eventually(&env.clock, "all tries have failed", || async {
            clock.advance(Duration::from_secs(5));
            let left = faults.pending();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        let text = "default/data: fault on purpose: Forbidden.";
        has_event(env, "data", "ProvisioningFailed", text).await;
        let bound = eventually(&env.clock, "the claim is bound", || async {
            clock.advance(Duration::from_secs(5));
            let claim: Value = read::<PersistentVolumeClaim>(&env.client, &claim_key("data"))
                .await
                .ok_or("no claim")?;
            if claim["status"]["phase"] == "Bound" { Ok(claim) } else { Err(claim.to_string()) }
        })
        .await;
        let name = bound["spec"]["volumeName"].as_str().expect("a volume");
        let made = volume_in(env, name, "Bound").await;
        let path = std::path::Path::new(made["spec"]["hostPath"]["path"].as_str().expect("a path"));
        assert!(path.is_dir(), "{made}");
        stop.stop();
        running.await;
        factory.shutdown().await;
        std::fs::remove_dir(path).expect("it is empty");
    });
}

#[test]
fn a_deletion_survives_a_crash_at_every_write() {
    Env::run("crash-delete", async |env| {
        let scenario = Scenario {
            changes: vec![],
            controllers: &[BINDER, "persistentvolume-protection-controller"],
            // Released: its claim is gone.
            objects: &|name| {
                let path = format!("/tmp/kcm-crash-{}-{name}", std::process::id());
                let mut deleted = volume(name, "1Gi", "Delete", &path);
                deleted["metadata"]["annotations"] = json!({
                    "pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path",
                });
                let gone = json!({ "namespace": "default", "name": "gone", "uid": "gone" });
                deleted["spec"]["claimRef"] = gone.clone();
                let kept = format!("kept-{name}");
                let mut kept = volume(&kept, "1Gi", "Retain", &path);
                kept["spec"]["claimRef"] = gone;
                vec![deleted, kept]
            },
            end: &|name, cluster| {
                let kept = format!("kept-{name}");
                let kept = cluster.find("PersistentVolume", &kept).ok_or("no volume is kept")?;
                match cluster.find("PersistentVolume", name) {
                    None if kept["status"]["phase"] == "Released" => Ok(json!("deleted")),
                    other => Err(format!("{other:#?} {kept:#}")),
                }
            },
        };
        let writes = survives_every_write(env, &scenario).await;
        assert!(writes >= 4, "{writes} writes");
    });
}
