//! Translates in-tree volumes to volumes of the CSI drivers that replace their plugins. All of
//! these plugins are migrated on every node, so CSINodes need not be read. Upstream:
//! `csi-translation-lib`.

use serde_json::{Map, Value, json};

use super::driver_of_kind as driver;
use crate::objects::{InTreeKind, PersistentVolume};

/// A PersistentVolume of an in-tree plugin, translated for its driver.
#[derive(Debug, PartialEq, Eq)]
pub struct MigratedVolume {
    pub driver: &'static str,
    pub handle: String,
}

/// An inline volume of a pod, translated for its driver.
#[derive(Debug, PartialEq)]
pub struct MigratedInline {
    /// The volume's name in messages.
    pub name: String,
    pub driver: &'static str,
    pub handle: String,
    pub access_mode: &'static str,
    /// A `PersistentVolumeSpec`.
    pub spec: Value,
}

/// Returns a field that is text; empty if it is absent.
fn text<'a>(fields: &'a Value, name: &str) -> &'a str {
    fields[name].as_str().unwrap_or_default()
}

fn read_only(fields: &Value) -> bool {
    fields["readOnly"].as_bool().unwrap_or_default()
}

/// Translates the in-tree source of a PersistentVolume to the CSI driver that replaces it; `None`
/// if it cannot be migrated. Upstream: `TranslateInTreePVToCSI`.
pub fn of_volume(
    kind: InTreeKind,
    fields: &Value,
    volume: &PersistentVolume,
) -> Option<MigratedVolume> {
    let handle = match kind {
        InTreeKind::AwsElasticBlockStore => aws_volume(text(fields, "volumeID"))?.to_owned(),
        InTreeKind::AzureDisk => managed_azure_disk(fields)?.to_owned(),
        InTreeKind::AzureFile => {
            let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.as_str());
            let namespace = fields["secretNamespace"].as_str().or(claim);
            let namespace = namespace.filter(|namespace| !namespace.is_empty())?;
            let group = volume.meta.annotations.get("kubernetes.io/azure-file-resource-group");
            azure_file(group.unwrap_or_default(), fields, &volume.meta.name, namespace)
        }
        InTreeKind::Cinder | InTreeKind::Portworx => text(fields, "volumeID").to_owned(),
        InTreeKind::GcePersistentDisk => gce_disk(text(fields, "pdName"), volume)?,
        InTreeKind::Vsphere => text(fields, "volumePath").to_owned(),
        InTreeKind::Fc | InTreeKind::Flex | InTreeKind::Iscsi => return None,
    };
    Some(MigratedVolume { driver: driver(kind)?, handle })
}

/// Returns the access modes for the driver. The in-tree plugin of GCE treated ReadWriteMany as
/// ReadWriteOnce. Upstream: `backwardCompatibleAccessModes`.
pub fn access_modes(kind: InTreeKind, volume: &PersistentVolume) -> Vec<&str> {
    let modes: Vec<&str> = volume.spec.access_modes.iter().map(|mode| mode.as_str()).collect();
    if kind != InTreeKind::GcePersistentDisk || modes.is_empty() {
        return modes;
    }
    let only_reads = modes.contains(&"ReadOnlyMany")
        && !modes.iter().any(|mode| ["ReadWriteOnce", "ReadWriteMany"].contains(mode));
    vec![if only_reads { "ReadOnlyMany" } else { "ReadWriteOnce" }]
}

/// Translates the in-tree source of a pod's inline volume to the CSI driver that replaces it;
/// `None` if it cannot be migrated. Upstream: `TranslateInTreeInlineVolumeToCSI`.
pub fn of_inline(
    kind: InTreeKind,
    fields: &Value,
    volume: &str,
    namespace: &str,
) -> Option<MigratedInline> {
    let driver = driver(kind)?;
    let mut attributes = Map::new();
    let mut attribute = |name: &str, value: &str| attributes.insert(name.into(), value.into());
    let mut access_mode = "ReadWriteOnce";
    let mut is_read_only = read_only(fields);
    let mut secret = None;
    // `unique`: the volume's name, where that is not `driver-handle`.
    let (handle, unique) = match kind {
        InTreeKind::AwsElasticBlockStore => {
            attribute("partition", &fields["partition"].as_i64().unwrap_or(0).to_string());
            (aws_volume(text(fields, "volumeID"))?.to_owned(), None)
        }
        InTreeKind::AzureDisk => {
            let disk = managed_azure_disk(fields)?.to_owned();
            attribute("kind", "Managed");
            for (from, to) in [("cachingMode", "cachingmode"), ("fsType", "fstype")] {
                match fields[from].as_str() {
                    // As upstream, which keeps an empty fsType.
                    Some("") if from == "cachingMode" => {}
                    Some(value) => drop(attribute(to, value)),
                    None => {}
                }
            }
            (disk.clone(), Some(disk))
        }
        InTreeKind::AzureFile => {
            let namespace = if namespace.is_empty() { "default" } else { namespace };
            attribute("sharename", text(fields, "shareName"));
            access_mode = "ReadWriteMany";
            secret = Some(json!({ "name": text(fields, "secretName"), "namespace": namespace }));
            let handle = azure_file("", fields, volume, namespace);
            (handle.clone(), Some(handle))
        }
        InTreeKind::Cinder => (text(fields, "volumeID").to_owned(), None),
        InTreeKind::GcePersistentDisk => {
            let partition = fields["partition"].as_i64().filter(|partition| *partition != 0);
            attribute("partition", &partition.map(|p| p.to_string()).unwrap_or_default());
            if is_read_only {
                access_mode = "ReadOnlyMany";
            }
            let disk = text(fields, "pdName");
            let handle = format!("projects/{UNKNOWN}/zones/{UNKNOWN}/disks/{disk}");
            (handle, Some(format!("{driver}-{disk}")))
        }
        InTreeKind::Portworx => {
            // As upstream: the access mode says it, in place of `readOnly`.
            if std::mem::take(&mut is_read_only) {
                access_mode = "ReadOnlyMany";
            }
            (text(fields, "volumeID").to_owned(), None)
        }
        InTreeKind::Vsphere => {
            let policy = text(fields, "storagePolicyName");
            if !policy.is_empty() {
                attribute("storagepolicyname", policy);
            }
            (text(fields, "volumePath").to_owned(), None)
        }
        InTreeKind::Fc | InTreeKind::Flex | InTreeKind::Iscsi => return None,
    };
    let mut csi = json!({ "driver": driver, "volumeHandle": handle });
    if is_read_only {
        csi["readOnly"] = json!(true);
    }
    // The driver of Azure files has no file system to make.
    let fs_type = text(fields, "fsType");
    if !fs_type.is_empty() && kind != InTreeKind::AzureFile {
        csi["fsType"] = json!(fs_type);
    }
    if !attributes.is_empty() {
        csi["volumeAttributes"] = attributes.into();
    }
    if let Some(secret) = secret {
        csi["nodeStageSecretRef"] = secret;
    }
    Some(MigratedInline {
        name: unique.unwrap_or_else(|| format!("{driver}-{handle}")),
        driver,
        handle,
        access_mode,
        spec: json!({ "csi": csi, "accessModes": [access_mode], "volumeMode": "Filesystem" }),
    })
}

/// The placeholder for a project or zone that only the driver knows.
const UNKNOWN: &str = "UNSPECIFIED";

/// Returns the volume's own id, from `vol-1` or `aws://zone/vol-1`; `None` if it has another form.
/// Upstream: `KubernetesVolumeIDToEBSVolumeID`.
fn aws_volume(id: &str) -> Option<&str> {
    let Some(url) = id.strip_prefix("aws://") else { return Some(id) };
    let path = url.split(['?', '#']).next()?;
    let (_, volume) = path.split_once('/')?;
    let volume = volume.trim_matches('/');
    (volume.starts_with("vol-") && !volume.contains('/')).then_some(volume)
}

/// Returns the URI of a managed disk, or of one without a kind; `None` for other kinds of disks,
/// which are not migrated.
fn managed_azure_disk(fields: &Value) -> Option<&str> {
    let is_managed = fields["kind"].as_str().is_none_or(|k| k.eq_ignore_ascii_case("managed"));
    is_managed.then(|| text(fields, "diskURI"))
}

/// Builds the handle of an Azure file share.
/// Upstream: `TranslateInTreePVToCSI` of Azure File.
fn azure_file(group: &str, fields: &Value, volume: &str, namespace: &str) -> String {
    let secret = text(fields, "secretName");
    // The account is part of the name that the in-tree plugin gave to its secrets.
    let mut account = secret;
    if let Some((_, tail)) = secret.split_once("azure-storage-account-")
        && let Some((name, _)) = tail.rsplit_once("-secret")
        && !name.is_empty()
    {
        account = name;
    }
    let share = text(fields, "shareName");
    format!("{group}#{account}#{share}#{volume}#{namespace}")
}

/// Builds the handle of a GCE disk, with the zone or the region in the volume's labels; `None` if
/// there are several zones, and they are not all of one region or not of the form `a-b-c`.
/// Upstream: `TranslateInTreePVToCSI` of GCE.
fn gce_disk(disk: &str, volume: &PersistentVolume) -> Option<String> {
    let label = |name| volume.meta.labels.get(name).filter(|zones| !zones.is_empty());
    let zones = label("failure-domain.beta.kubernetes.io/zone")
        .or_else(|| label("topology.kubernetes.io/zone"))
        .unwrap_or(UNKNOWN);
    let zones: Vec<&str> = zones.split("__").collect();
    if let [zone] = zones[..] {
        return Some(format!("projects/{UNKNOWN}/zones/{zone}/disks/{disk}"));
    }
    let region = |zone: &str| -> Option<String> {
        let parts: Vec<&str> = zone.split('-').collect();
        if parts.len() != 3 {
            return None;
        }
        Some(parts[..2].join("-"))
    };
    let regions: Option<Vec<String>> = zones.into_iter().map(region).collect();
    let regions = regions?;
    let first = regions.first()?;
    if regions.iter().any(|region| region != first) {
        return None;
    }
    Some(format!("projects/{UNKNOWN}/regions/{first}/disks/{disk}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_get_the_handles_of_their_drivers() {
        use InTreeKind::*;
        let zones = |zones: &str| json!({ "labels": { "topology.kubernetes.io/zone": zones } });
        for (kind, fields, meta, handle) in [
            (AwsElasticBlockStore, json!({ "volumeID": "vol-1" }), json!({}), Some("vol-1")),
            (
                AwsElasticBlockStore,
                json!({ "volumeID": "aws://us-east-1/vol-1" }),
                json!({}),
                Some("vol-1"),
            ),
            (AwsElasticBlockStore, json!({ "volumeID": "aws:///vol-1" }), json!({}), Some("vol-1")),
            (AwsElasticBlockStore, json!({ "volumeID": "aws://a/b/vol-1" }), json!({}), None),
            (AzureDisk, json!({ "diskURI": "/d", "kind": "managed" }), json!({}), Some("/d")),
            (AzureDisk, json!({ "diskURI": "/d", "kind": "Shared" }), json!({}), None),
            (
                AzureFile,
                json!({ "secretName": "azure-storage-account-acc-secret", "shareName": "s" }),
                json!({ "annotations": { "kubernetes.io/azure-file-resource-group": "rg" } }),
                Some("rg#acc#s#pv#ns"),
            ),
            (
                AzureFile,
                json!({ "secretName": "own", "shareName": "s", "secretNamespace": "other" }),
                json!({}),
                Some("#own#s#pv#other"),
            ),
            (Cinder, json!({ "volumeID": "c" }), json!({}), Some("c")),
            (
                GcePersistentDisk,
                json!({ "pdName": "d" }),
                json!({}),
                Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
            ),
            (
                GcePersistentDisk,
                json!({ "pdName": "d" }),
                zones("us-central1-a"),
                Some("projects/UNSPECIFIED/zones/us-central1-a/disks/d"),
            ),
            (
                GcePersistentDisk,
                json!({ "pdName": "d" }),
                zones("us-central1-a__us-central1-b"),
                Some("projects/UNSPECIFIED/regions/us-central1/disks/d"),
            ),
            (GcePersistentDisk, json!({ "pdName": "d" }), zones("us-central1-a__b-c-d"), None),
            (Portworx, json!({ "volumeID": "p" }), json!({}), Some("p")),
            (Vsphere, json!({ "volumePath": "[ds] v.vmdk" }), json!({}), Some("[ds] v.vmdk")),
            (Iscsi, json!({}), json!({}), None),
        ] {
            let mut object = json!({
                "metadata": meta, "spec": { "claimRef": { "namespace": "ns", "name": "c" } },
            });
            object["metadata"]["name"] = json!("pv");
            let volume: PersistentVolume = serde_json::from_value(object).unwrap();
            let found = of_volume(kind, &fields, &volume).map(|migrated| migrated.handle);
            assert_eq!(found.as_deref(), handle, "{kind:?} {fields} {meta}");
        }
    }

    #[test]
    fn a_gce_disk_has_no_mode_for_many_writers() {
        for (kind, given, expected) in [
            (InTreeKind::GcePersistentDisk, &["ReadWriteMany"][..], &["ReadWriteOnce"][..]),
            (InTreeKind::GcePersistentDisk, &["ReadOnlyMany"], &["ReadOnlyMany"]),
            (InTreeKind::GcePersistentDisk, &["ReadOnlyMany", "ReadWriteOnce"], &["ReadWriteOnce"]),
            (InTreeKind::GcePersistentDisk, &[], &[]),
            (InTreeKind::AzureFile, &["ReadWriteMany"], &["ReadWriteMany"]),
        ] {
            let volume: PersistentVolume =
                serde_json::from_value(json!({ "spec": { "accessModes": given } })).unwrap();
            assert_eq!(access_modes(kind, &volume), expected, "{kind:?} {given:?}");
        }
    }

    #[test]
    fn inline_volumes_become_specs() {
        use InTreeKind::*;
        let spec = |csi: Value, mode: &str| json!({ "csi": csi, "accessModes": [mode], "volumeMode": "Filesystem" });
        for (kind, fields, name, expected) in [
            (
                AwsElasticBlockStore,
                // As protobuf writes fields that are empty.
                json!({ "volumeID": "vol-1", "fsType": "", "partition": 0, "readOnly": false }),
                "ebs.csi.aws.com-vol-1",
                spec(
                    json!({
                        "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1",
                        "volumeAttributes": { "partition": "0" },
                    }),
                    "ReadWriteOnce",
                ),
            ),
            (
                AzureDisk,
                json!({ "diskURI": "/d", "cachingMode": "None", "fsType": "ext4", "readOnly": true }),
                "/d",
                spec(
                    json!({
                        "driver": "disk.csi.azure.com", "volumeHandle": "/d", "readOnly": true,
                        "fsType": "ext4",
                        "volumeAttributes": {
                            "kind": "Managed", "cachingmode": "None", "fstype": "ext4",
                        },
                    }),
                    "ReadWriteOnce",
                ),
            ),
            (
                AzureFile,
                json!({ "secretName": "s", "shareName": "sh" }),
                "#s#sh#v#ns",
                spec(
                    json!({
                        "driver": "file.csi.azure.com", "volumeHandle": "#s#sh#v#ns",
                        "volumeAttributes": { "sharename": "sh" },
                        "nodeStageSecretRef": { "name": "s", "namespace": "ns" },
                    }),
                    "ReadWriteMany",
                ),
            ),
            (
                GcePersistentDisk,
                json!({ "pdName": "d", "readOnly": true, "partition": 2 }),
                "pd.csi.storage.gke.io-d",
                spec(
                    json!({
                        "driver": "pd.csi.storage.gke.io", "readOnly": true,
                        "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
                        "volumeAttributes": { "partition": "2" },
                    }),
                    "ReadOnlyMany",
                ),
            ),
            (
                Portworx,
                json!({ "volumeID": "p", "readOnly": true }),
                "pxd.portworx.com-p",
                spec(json!({ "driver": "pxd.portworx.com", "volumeHandle": "p" }), "ReadOnlyMany"),
            ),
            (
                Cinder,
                json!({ "volumeID": "c", "fsType": "xfs" }),
                "cinder.csi.openstack.org-c",
                spec(
                    json!({
                        "driver": "cinder.csi.openstack.org", "volumeHandle": "c", "fsType": "xfs",
                    }),
                    "ReadWriteOnce",
                ),
            ),
        ] {
            let migrated = of_inline(kind, &fields, "v", "ns").unwrap();
            assert_eq!((migrated.name.as_str(), &migrated.spec), (name, &expected), "{kind:?}");
        }
        assert_eq!(of_inline(Fc, &json!({}), "v", "ns"), None);
    }
}
