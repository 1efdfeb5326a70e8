//! The fields of a pod that this kubelet cannot honour: a pod that sets one is refused, as it would
//! run in another way than its author wants. `docs/kubelet-pods.md` lists all fields.

use k8s_openapi::api::core::v1 as core;

use crate::pod::{Pod, PodExt};

/// Upstream: `safeSysctls`.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// The lines that refuse a pod, each with its field; empty: all of its fields are honoured.
pub fn refusals(pod: &Pod) -> Vec<String> {
    let spec = pod.spec();
    let mut refusals = Vec::new();
    let mut refuse = |field: String, why: &str| refusals.push(format!("{field}: {why}"));
    if spec.host_users == Some(false) {
        refuse("spec.hostUsers".to_owned(), "not supported: there are no user namespaces");
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        refuse("spec.os.name".to_owned(), "the node's operating system is linux");
    }
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        refuse("spec.schedulingGates".to_owned(), "not supported: there is no scheduler");
    }
    let readiness = spec.readiness_gates.as_ref();
    if readiness.is_some_and(|gates| !gates.is_empty()) {
        refuse("spec.readinessGates".to_owned(), "not supported: nothing can set such conditions");
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        if let Some(kind) = unsupported_kind(volume) {
            refuse(format!("spec.volumes[{at}].{kind}"), "this kind of volume is not supported");
        }
    }
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    for (at, sysctl) in sysctls.enumerate() {
        // The kernel has both forms.
        let name = sysctl.name.replace('/', ".");
        let field = format!("spec.securityContext.sysctls[{at}].name");
        let has = |is_host: Option<bool>| is_host == Some(true);
        if !SAFE_SYSCTLS.contains(&name.as_str()) {
            refuse(field, &format!("forbidden sysctl: {name:?} not allowlisted"));
        } else if name.starts_with("net.") && has(spec.host_network) {
            refuse(field, &format!("forbidden sysctl: {name:?} not allowed with host net enabled"));
        } else if name.starts_with("kernel.shm") && has(spec.host_ipc) {
            refuse(field, &format!("forbidden sysctl: {name:?} not allowed with host ipc enabled"));
        }
    }
    for (list, containers) in
        [("initContainers", pod.init_containers()), ("containers", &spec.containers[..])]
    {
        for (at, container) in containers.iter().enumerate() {
            let lines = of_container(container);
            let lines = lines.into_iter().map(|line| format!("spec.{list}[{at}].{line}"));
            refusals.extend(lines);
        }
    }
    refusals
}

fn of_container(container: &core::Container) -> Vec<String> {
    let mut lines = Vec::new();
    if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        lines.push("volumeDevices: not supported: there are no block volumes".to_owned());
    }
    let lifecycle = container.lifecycle.as_ref();
    if lifecycle.is_some_and(|lifecycle| lifecycle.stop_signal.is_some()) {
        let why = "not supported: upstream's feature gate ContainerStopSignals is off";
        lines.push(format!("lifecycle.stopSignal: {why}"));
    }
    let security = container.security_context.as_ref();
    if security.and_then(|context| context.proc_mount.as_deref()) == Some("Unmasked") {
        let why = "not supported: it needs user namespaces";
        lines.push(format!("securityContext.procMount: {why}"));
    }
    let resources = container.resources.as_ref();
    if resources.is_some_and(|resources| resources.claims.is_some()) {
        lines.push("resources.claims: not supported: there are no claims".to_owned());
    }
    let lists = resources.map(|resources| {
        [("limits", resources.limits.as_ref()), ("requests", resources.requests.as_ref())]
    });
    for (list, quantities) in lists.into_iter().flatten() {
        for resource in quantities.into_iter().flat_map(|quantities| quantities.keys()) {
            let is_known = ["cpu", "memory", "ephemeral-storage"].contains(&resource.as_str())
                || resource.starts_with("hugepages-");
            if !is_known {
                lines.push(format!("resources.{list}[{resource}]: the node has none"));
            }
        }
    }
    lines
}

/// The field of a volume of a kind that is not supported. Kinds that refer to objects of the API
/// server are refused before.
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
        ("nfs", volume.nfs.is_some()),
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
        let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
        for (spec, expected) in [
            (json!({}), None),
            (json!({"hostUsers": true, "os": {"name": "linux"}}), None),
            (
                json!({"hostUsers": false}),
                Some("spec.hostUsers: not supported: there are no user namespaces"),
            ),
            (
                json!({"os": {"name": "windows"}}),
                Some("spec.os.name: the node's operating system is linux"),
            ),
            (
                json!({"volumes": [{"name": "a"}, {"name": "b", "nfs": {"server": "s", "path": "/"}}]}),
                Some("spec.volumes[1].nfs: this kind of volume is not supported"),
            ),
            (json!({"securityContext": sysctl("net.ipv4.tcp_syncookies")}), None),
            (json!({"securityContext": sysctl("net/ipv4/tcp_syncookies")}), None),
            (
                json!({"securityContext": sysctl("kernel.msgmax")}),
                Some(
                    "spec.securityContext.sysctls[0].name: forbidden sysctl: \"kernel.msgmax\" \
                      not allowlisted",
                ),
            ),
            (
                json!({"hostNetwork": true, "securityContext": sysctl("net.ipv4.tcp_syncookies")}),
                Some(
                    "spec.securityContext.sysctls[0].name: forbidden sysctl: \
                      \"net.ipv4.tcp_syncookies\" not allowed with host net enabled",
                ),
            ),
            (
                container(json!({"volumeDevices": [{"name": "a", "devicePath": "/dev/a"}]})),
                Some("spec.containers[0].volumeDevices: not supported: there are no block volumes"),
            ),
            (
                container(json!({"lifecycle": {"stopSignal": "SIGINT"}})),
                Some(
                    "spec.containers[0].lifecycle.stopSignal: not supported: upstream's feature \
                      gate ContainerStopSignals is off",
                ),
            ),
            (container(json!({"securityContext": {"procMount": "Default"}})), None),
            (
                container(json!({"securityContext": {"procMount": "Unmasked"}})),
                Some(
                    "spec.containers[0].securityContext.procMount: not supported: it needs user \
                      namespaces",
                ),
            ),
            (container(json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}})), None),
            (
                container(json!({"resources": {"limits": {"example.com/gpu": "1"}}})),
                Some("spec.containers[0].resources.limits[example.com/gpu]: the node has none"),
            ),
        ] {
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(refused(spec.clone()), expected, "{spec}");
        }
    }
}
