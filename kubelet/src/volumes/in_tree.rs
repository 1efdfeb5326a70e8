//! PersistentVolumes of in-tree plugins that CSI drivers have taken over, as volumes of these
//! drivers.
//! Upstream: `csi-translation-lib`, `TranslateInTreeSpecToCSI`.

use k8s_openapi::api::core::v1 as core;

use super::Error;
use super::topology::Topology;

/// Stands for a project or a zone that the driver has to look up. Upstream: `UnspecifiedValue`.
const UNKNOWN: &str = "UNSPECIFIED";

// The field of the in-tree volume, and the CSI driver that has taken it over.
const AWS: (&str, &str) = ("awsElasticBlockStore", "ebs.csi.aws.com");
const AZURE_DISK: (&str, &str) = ("azureDisk", "disk.csi.azure.com");
const AZURE_FILE: (&str, &str) = ("azureFile", "file.csi.azure.com");
const CINDER: (&str, &str) = ("cinder", "cinder.csi.openstack.org");
const GCE: (&str, &str) = ("gcePersistentDisk", "pd.csi.storage.gke.io");
const PORTWORX: (&str, &str) = ("portworxVolume", "pxd.portworx.com");
const VSPHERE: (&str, &str) = ("vsphereVolume", "csi.vsphere.vmware.com");

/// Returns the field and the CSI driver if a pod's own volume, without a claim, is of an in-tree
/// plugin. The caller refuses such a volume.
pub(super) fn inline(volume: &core::Volume) -> Option<(&'static str, &'static str)> {
    let kinds = [
        (volume.aws_elastic_block_store.is_some(), AWS),
        (volume.azure_disk.is_some(), AZURE_DISK),
        (volume.azure_file.is_some(), AZURE_FILE),
        (volume.cinder.is_some(), CINDER),
        (volume.gce_persistent_disk.is_some(), GCE),
        (volume.portworx_volume.is_some(), PORTWORX),
        (volume.vsphere_volume.is_some(), VSPHERE),
    ];
    kinds.into_iter().find_map(|(is_it, kind)| is_it.then_some(kind))
}

/// Converts the PersistentVolume of an in-tree plugin to one of the CSI driver that has taken it
/// over. `None`: it is not of an in-tree plugin.
///
/// # Errors
/// The driver has no such volumes.
pub(super) fn translate(
    volume: &core::PersistentVolume,
) -> Result<Option<core::PersistentVolume>, Error> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let Some(source) = csi_source(volume, spec)? else { return Ok(None) };
    let mut translated = volume.clone();
    let spec = translated.spec.get_or_insert_default();
    if spec.gce_persistent_disk.is_some() {
        spec.access_modes = spec.access_modes.take().map(|modes| gce_modes(&modes));
    }
    // The in-tree source stays: only `topology` below reads it.
    spec.csi = Some(source);
    if let Some(topology) = topology(spec) {
        spec.node_affinity = topology.affinity(volume);
    }
    Ok(Some(translated))
}

/// Returns the labels of zones and regions that the volume's driver uses. `None`: the node affinity
/// stays as it is.
fn topology(spec: &core::PersistentVolumeSpec) -> Option<Topology> {
    let kinds = [
        (
            spec.aws_elastic_block_store.is_some(),
            Topology::of_zones("topology.ebs.csi.aws.com/zone"),
        ),
        (spec.cinder.is_some(), Topology::of_zones("topology.cinder.csi.openstack.org/zone")),
        (spec.gce_persistent_disk.is_some(), Topology::of_zones("topology.gke.io/zone")),
        (
            spec.vsphere_volume.is_some(),
            Topology::of_regions("topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"),
        ),
    ];
    kinds.into_iter().find_map(|(is_it, topology)| is_it.then_some(topology))
}

/// Builds the CSI source that replaces the in-tree source of a PersistentVolume. `None`: it has no
/// in-tree source. Upstream: `TranslateInTreePVToCSI` of each plugin.
fn csi_source(
    volume: &core::PersistentVolume,
    spec: &core::PersistentVolumeSpec,
) -> Result<Option<core::CSIPersistentVolumeSource>, Error> {
    let annotations = volume.metadata.annotations.as_ref();
    let annotation = |name: &str| annotations.and_then(|all| all.get(name));
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    Ok(Some(if let Some(aws) = &spec.aws_elastic_block_store {
        let partition = aws.partition.unwrap_or_default().to_string();
        let handle = aws_volume(&aws.volume_id).ok_or_else(|| {
            Error::Migration(format!("Invalid format for AWS volume ({})", aws.volume_id))
        })?;
        driver_source(AWS, handle, aws.fs_type.as_ref(), &[("partition", Some(partition.as_str()))])
    } else if let Some(azure) = &spec.azure_disk {
        let kind = azure.kind.as_deref().unwrap_or("Managed");
        if !kind.eq_ignore_ascii_case("managed") {
            return Err(Error::Migration(format!(
                "kind({kind}) is not supported in csi migration"
            )));
        }
        let attributes = [
            ("kind", Some("Managed")),
            ("cachingmode", azure.caching_mode.as_deref()),
            ("fstype", azure.fs_type.as_deref()),
        ];
        driver_source(AZURE_DISK, &azure.disk_uri, azure.fs_type.as_ref(), &attributes)
    } else if let Some(azure) = &spec.azure_file {
        let claim = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.as_deref());
        let namespace = azure.secret_namespace.as_deref().or(claim).unwrap_or_default();
        if namespace.is_empty() {
            let fault = "could not find a secret namespace in PersistentVolumeSource or ClaimRef";
            return Err(Error::Migration(fault.to_owned()));
        }
        let group = annotation("kubernetes.io/azure-file-resource-group");
        let group = group.map(String::as_str).unwrap_or_default();
        let (account, share) = (azure_account(&azure.secret_name), &azure.share_name);
        let handle = format!("{group}#{account}#{share}#{name}#{namespace}");
        core::CSIPersistentVolumeSource {
            node_stage_secret_ref: Some(secret(&azure.secret_name, namespace)),
            ..driver_source(AZURE_FILE, &handle, None, &[("sharename", Some(share.as_str()))])
        }
    } else if let Some(cinder) = &spec.cinder {
        driver_source(CINDER, &cinder.volume_id, cinder.fs_type.as_ref(), &[])
    } else if let Some(gce) = &spec.gce_persistent_disk {
        let partition = gce.partition.filter(|partition| *partition != 0);
        let partition = partition.map(|number| number.to_string()).unwrap_or_default();
        let handle = gce_disk(&gce.pd_name, volume)?;
        driver_source(
            GCE,
            &handle,
            gce.fs_type.as_ref(),
            &[("partition", Some(partition.as_str()))],
        )
    } else if let Some(portworx) = &spec.portworx_volume {
        let secret = annotation("openstorage.io/auth-secret-name")
            .zip(annotation("openstorage.io/auth-secret-namespace"))
            .map(|(name, namespace)| secret(name, namespace));
        core::CSIPersistentVolumeSource {
            node_stage_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            node_expand_secret_ref: secret,
            ..driver_source(PORTWORX, &portworx.volume_id, portworx.fs_type.as_ref(), &[])
        }
    } else if let Some(vsphere) = &spec.vsphere_volume {
        let policy = vsphere.storage_policy_name.as_deref().filter(|policy| !policy.is_empty());
        let attributes = [("storagepolicyname", policy)];
        driver_source(VSPHERE, &vsphere.volume_path, vsphere.fs_type.as_ref(), &attributes)
    } else {
        return Ok(None);
    }))
}

/// Builds the source of a volume of a driver. Of `attributes` only those with a value are taken.
fn driver_source(
    (_, driver): (&str, &str),
    handle: &str,
    fs_type: Option<&String>,
    attributes: &[(&str, Option<&str>)],
) -> core::CSIPersistentVolumeSource {
    let attributes = attributes.iter().filter_map(|(name, value)| {
        let value = (*value)?;
        Some(((*name).to_owned(), value.to_owned()))
    });
    core::CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        fs_type: fs_type.cloned(),
        volume_attributes: Some(attributes.collect()),
        ..core::CSIPersistentVolumeSource::default()
    }
}

fn secret(name: &str, namespace: &str) -> core::SecretReference {
    core::SecretReference { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()) }
}

/// Returns the id `vol-1` in `vol-1` or `aws://zone/vol-1`; `None`: a URL `aws:` without one.
/// Upstream: `KubernetesVolumeIDToEBSVolumeID`.
fn aws_volume(id: &str) -> Option<&str> {
    let Some(url) = id.strip_prefix("aws://") else { return Some(id) };
    let (_, path) = url.split(['?', '#']).next()?.split_once('/')?;
    let volume = path.trim_matches('/');
    (volume.starts_with("vol-") && !volume.contains('/')).then_some(volume)
}

/// Returns the storage account in the name that the in-tree plugin gave to its Secrets. Another
/// name is the account itself. Upstream: `getStorageAccountName`.
fn azure_account(secret: &str) -> &str {
    let tail = secret.split_once("azure-storage-account-").map(|(_, tail)| tail);
    let account = tail.and_then(|tail| tail.rsplit_once("-secret")).map(|(account, _)| account);
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}

/// Builds the handle of a disk from its name and the zone that the volume's labels name; with
/// several zones, from their region. Upstream: `TranslateInTreePVToCSI` of GCE.
fn gce_disk(disk: &str, volume: &core::PersistentVolume) -> Result<String, Error> {
    let labels = volume.metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|all| all.get(name)).filter(|zones| !zones.is_empty());
    let zones = label("failure-domain.beta.kubernetes.io/zone")
        .or_else(|| label("topology.kubernetes.io/zone"))
        .map_or(UNKNOWN, String::as_str);
    let zones: Vec<&str> = zones.split("__").collect();
    if let [zone] = zones[..] {
        return Ok(format!("projects/{UNKNOWN}/zones/{zone}/disks/{disk}"));
    }
    let region = |zone: &&str| match zone.split('-').collect::<Vec<_>>()[..] {
        [continent, area, _] => Some(format!("{continent}-{area}")),
        _ => None,
    };
    let regions: Option<Vec<String>> = zones.iter().map(region).collect();
    match regions.as_deref() {
        Some([first, others @ ..]) if others.iter().all(|region| region == first) => {
            Ok(format!("projects/{UNKNOWN}/regions/{first}/disks/{disk}"))
        }
        _ => Err(Error::Migration(format!("failed to get region from zones: {}", zones.join(" ")))),
    }
}

/// Replaces the access modes by the one that counts for the driver: ReadOnlyMany if it stands
/// alone, else ReadWriteOnce, as the in-tree plugin treated ReadWriteMany. No modes stay no modes.
/// Upstream: `backwardCompatibleAccessModes`.
fn gce_modes(modes: &[String]) -> Vec<String> {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    let mode = match (has("ReadWriteOnce") || has("ReadWriteMany"), has("ReadOnlyMany")) {
        (false, true) => "ReadOnlyMany",
        _ => "ReadWriteOnce",
    };
    match modes.is_empty() {
        true => Vec::new(),
        false => vec![mode.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(metadata: &Value, spec: &Value) -> core::PersistentVolume {
        let mut value = json!({"metadata": metadata, "spec": spec});
        value["metadata"]["name"] = json!("pv");
        serde_json::from_value(value).expect("a volume")
    }

    /// The source of the driver, or the error.
    fn of_driver(metadata: &Value, spec: &Value) -> Value {
        match translate(&volume(metadata, spec)) {
            Ok(Some(volume)) => {
                let csi = volume.spec.and_then(|spec| spec.csi).expect("a source");
                serde_json::to_value(csi).expect("JSON")
            }
            Ok(None) => Value::Null,
            Err(error) => json!(error.to_string()),
        }
    }

    #[test]
    fn volumes_of_in_tree_plugins_are_those_of_drivers() {
        let none = json!({});
        let gce = |zones: &str, handle: &str| {
            (
                json!({"labels": {"topology.kubernetes.io/zone": zones}}),
                json!({"gcePersistentDisk": {"pdName": "d", "fsType": "ext4"}}),
                json!({"driver": "pd.csi.storage.gke.io", "fsType": "ext4",
                       "volumeHandle": format!("projects/UNSPECIFIED/{handle}/disks/d"),
                       "volumeAttributes": {"partition": ""}}),
            )
        };
        let secret = json!({"name": "s", "namespace": "o"});
        for (metadata, spec, expected) in [
            (
                none.clone(),
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs"}}),
                json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs",
                       "volumeAttributes": {"partition": "0"}}),
            ),
            (
                none.clone(),
                json!({"awsElasticBlockStore": {"volumeID": "aws://a/disk"}}),
                json!(
                    "failed to translate in-tree pv to CSI: Invalid format for AWS volume \
                       (aws://a/disk)"
                ),
            ),
            (
                none.clone(),
                json!({"azureDisk": {"diskName": "d", "diskURI": "/d", "cachingMode": "None"}}),
                json!({"driver": "disk.csi.azure.com", "volumeHandle": "/d",
                       "volumeAttributes": {"kind": "Managed", "cachingmode": "None"}}),
            ),
            (
                none.clone(),
                json!({"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": "Shared"}}),
                json!(
                    "failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi \
                       migration"
                ),
            ),
            (
                json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}),
                json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s"},
                       "claimRef": {"namespace": "ns"}}),
                json!({"driver": "file.csi.azure.com", "volumeHandle": "rg#acc#s#pv#ns",
                       "volumeAttributes": {"sharename": "s"},
                       "nodeStageSecretRef": {
                           "name": "azure-storage-account-acc-secret", "namespace": "ns"}}),
            ),
            (
                none.clone(),
                json!({"cinder": {"volumeID": "c"}}),
                json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c",
                       "volumeAttributes": {}}),
            ),
            gce("", "zones/UNSPECIFIED"),
            gce("us-central1-a", "zones/us-central1-a"),
            gce("us-central1-a__us-central1-b", "regions/us-central1"),
            (
                json!({"annotations": {"openstorage.io/auth-secret-name": "s",
                                       "openstorage.io/auth-secret-namespace": "o"}}),
                json!({"portworxVolume": {"volumeID": "p"}}),
                json!({"driver": "pxd.portworx.com", "volumeHandle": "p", "volumeAttributes": {},
                       "nodeStageSecretRef": secret, "nodePublishSecretRef": secret,
                       "nodeExpandSecretRef": secret}),
            ),
            (
                none.clone(),
                json!({"vsphereVolume": {"volumePath": "[ds] v.vmdk", "storagePolicyName": "p"}}),
                json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] v.vmdk",
                       "volumeAttributes": {"storagepolicyname": "p"}}),
            ),
            (none.clone(), json!({"local": {"path": "/l"}}), Value::Null),
            (none, json!({"nfs": {"server": "s", "path": "/p"}}), Value::Null),
        ] {
            assert_eq!(of_driver(&metadata, &spec), expected, "{metadata} {spec}");
        }
    }

    #[test]
    fn node_affinity_is_by_the_labels_of_the_driver() {
        for (mut spec, expected) in [
            (json!({"awsElasticBlockStore": {"volumeID": "v"}}), "topology.ebs.csi.aws.com/zone"),
            (
                json!({"azureDisk": {"diskName": "d", "diskURI": "/d"}}),
                "topology.kubernetes.io/zone",
            ),
            (json!({"cinder": {"volumeID": "c"}}), "topology.cinder.csi.openstack.org/zone"),
            (json!({"gcePersistentDisk": {"pdName": "d"}}), "topology.gke.io/zone"),
            (json!({"portworxVolume": {"volumeID": "p"}}), "topology.kubernetes.io/zone"),
            (json!({"vsphereVolume": {"volumePath": "v"}}), "topology.csi.vmware.com/zone"),
        ] {
            let affinity = |key: &str| {
                let zone = json!({"key": key, "operator": "In", "values": ["z"]});
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}})
            };
            spec["nodeAffinity"] = affinity("topology.kubernetes.io/zone");
            let found = translate(&volume(&json!({}), &spec)).expect("a volume");
            let found = found.and_then(|found| found.spec).and_then(|spec| spec.node_affinity);
            assert_eq!(serde_json::to_value(found).expect("JSON"), affinity(expected), "{spec}");
        }
    }

    #[test]
    fn zones_of_a_disk_are_in_one_region() {
        let labels = json!({"labels": {"topology.kubernetes.io/zone": "a-b-c__d-e-f"}});
        let found = of_driver(&labels, &json!({"gcePersistentDisk": {"pdName": "d"}}));
        let fault = "failed to translate in-tree pv to CSI: failed to get region from zones: a-b-c \
                     d-e-f";
        assert_eq!(found, fault);
    }

    #[test]
    fn a_disk_has_no_mode_for_many_writers() {
        for (modes, expected) in [
            (&["ReadWriteMany"][..], &["ReadWriteOnce"][..]),
            (&["ReadOnlyMany", "ReadWriteOnce"], &["ReadWriteOnce"]),
            (&["ReadOnlyMany"], &["ReadOnlyMany"]),
            (&[], &[]),
        ] {
            let modes: Vec<String> = modes.iter().map(|mode| (*mode).to_owned()).collect();
            assert_eq!(gce_modes(&modes), expected, "{modes:?}");
        }
    }

    #[test]
    fn volumes_of_pods_are_refused_by_name() {
        let volume = |json| serde_json::from_value::<core::Volume>(json).expect("a volume");
        let disk = volume(json!({"name": "v", "gcePersistentDisk": {"pdName": "d"}}));
        assert_eq!(inline(&disk), Some(("gcePersistentDisk", "pd.csi.storage.gke.io")));
        assert_eq!(inline(&volume(json!({"name": "v", "emptyDir": {}}))), None);
    }
}
