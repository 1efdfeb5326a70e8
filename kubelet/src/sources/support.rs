//! The fields of a manifest that could never be honoured: such a pod would wait for ever. What a
//! node does not have is found when the pod is admitted. `docs/kubelet-pods.md` lists all fields.

use k8s_openapi::api::core::v1 as core;

use crate::pod::{Pod, PodExt};

/// Lists the fields of a pod that are not supported, each with the reason, for its refusal. Empty:
/// the pod may run.
pub fn refusals(pod: &Pod) -> Vec<String> {
    let spec = pod.spec();
    let mut refusals = Vec::new();
    let mut refuse = |field: String, why: &str| refusals.push(format!("{field}: {why}"));
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        refuse("spec.schedulingGates".to_owned(), "not supported: there is no scheduler");
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        if let Some(kind) = unsupported_kind(volume) {
            refuse(format!("spec.volumes[{at}].{kind}"), "this kind of volume is not supported");
        }
    }
    for (list, containers) in
        [("initContainers", pod.init_containers()), ("containers", &spec.containers[..])]
    {
        for (at, container) in containers.iter().enumerate() {
            if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
                let why = "not supported: static pods have no claims";
                refuse(format!("spec.{list}[{at}].volumeDevices"), why);
            }
        }
    }
    refusals
}

/// Returns the field of a volume of a kind that is not supported. Kinds that refer to objects of
/// the API server are refused before.
fn unsupported_kind(volume: &core::Volume) -> Option<&'static str> {
    let kinds = [
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    kinds.into_iter().find(|(_, is_set)| *is_set).map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: Value) -> Vec<String> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([]);
        }
        refusals(&serde_json::from_value(json!({"spec": spec})).expect("a pod"))
    }

    #[test]
    fn refusals_name_their_field() {
        let container = |more: Value| {
            let mut container = json!({"name": "c"});
            for (key, value) in more.as_object().into_iter().flatten() {
                container[key] = value.clone();
            }
            json!({"containers": [container]})
        };
        for (spec, expected) in [
            (json!({}), None),
            (
                json!({"volumes": [{"name": "a", "nfs": {"server": "s", "path": "/"}},
                                   {"name": "b", "gitRepo": {"repository": "r"}}]}),
                Some("spec.volumes[1].gitRepo: this kind of volume is not supported"),
            ),
            (
                container(json!({"volumeDevices": [{"name": "a", "devicePath": "/dev/a"}]})),
                Some("spec.containers[0].volumeDevices: not supported: static pods have no claims"),
            ),
        ] {
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(refused(spec.clone()), expected, "{spec}");
        }
    }
}
