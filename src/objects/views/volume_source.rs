//! The sources of volumes that are attached to a node before they are mounted.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::objects::{Istr, null_as_default};

/// The source of a PersistentVolume, or of an inline volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeSource {
    Csi {
        driver: Istr,
        /// Empty for an ephemeral volume of a pod, which is never attached.
        handle: Box<str>,
    },
    InTree {
        kind: InTreeKind,
        /// JSON of the members of the source that are read. The same for each form of the object:
        /// protobuf has the zeroes that JSON leaves out.
        fields: Box<str>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InTreeKind {
    AwsElasticBlockStore,
    AzureDisk,
    AzureFile,
    Cinder,
    Fc,
    Flex,
    GcePersistentDisk,
    Iscsi,
    Portworx,
    Vsphere,
}

/// A member of a source, and whether a zero differs from an absent value: it is a pointer upstream.
type Member = (&'static str, bool);

impl InTreeKind {
    /// Returns the members that volumes of this kind are named and attached by. `wire::messages`
    /// has them too.
    const fn members(self) -> &'static [Member] {
        match self {
            InTreeKind::AwsElasticBlockStore => {
                &[("volumeID", false), ("fsType", false), ("partition", false), ("readOnly", false)]
            }
            InTreeKind::AzureDisk => &[
                ("diskURI", false),
                ("cachingMode", true),
                ("fsType", true),
                ("readOnly", true),
                ("kind", true),
            ],
            // Only a PersistentVolume has a namespace.
            InTreeKind::AzureFile => &[
                ("secretName", false),
                ("shareName", false),
                ("readOnly", false),
                ("secretNamespace", true),
            ],
            InTreeKind::Cinder | InTreeKind::Portworx => {
                &[("volumeID", false), ("fsType", false), ("readOnly", false)]
            }
            InTreeKind::Fc => &[("targetWWNs", false), ("lun", true), ("wwids", false)],
            InTreeKind::Flex => {
                &[("driver", false), ("fsType", false), ("readOnly", false), ("options", false)]
            }
            InTreeKind::GcePersistentDisk => {
                &[("pdName", false), ("fsType", false), ("partition", false), ("readOnly", false)]
            }
            InTreeKind::Iscsi => &[("targetPortal", false), ("iqn", false), ("lun", false)],
            InTreeKind::Vsphere => {
                &[("volumePath", false), ("fsType", false), ("storagePolicyName", false)]
            }
        }
    }
}

/// Returns whether Go leaves the value out of JSON with `omitempty`.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCsi {
    driver: Istr,
    #[serde(deserialize_with = "null_as_default")]
    volume_handle: Box<str>,
}

/// A source that is set, with all its members.
pub(super) struct Fields(Value);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Fields, D::Error> {
        Value::deserialize(from).map(Fields)
    }
}

impl Fields {
    /// Returns the members of this kind, as JSON; zero values are left out, as in Go.
    fn into_json(mut self, kind: InTreeKind) -> Box<str> {
        let mut kept = Map::new();
        for (name, is_pointer) in kind.members() {
            let value = self.0.get_mut(name).map(Value::take).unwrap_or_default();
            if !is_zero(&value) || *is_pointer && !value.is_null() {
                kept.insert((*name).to_owned(), value);
            }
        }
        Value::Object(kept).to_string().into()
    }
}

/// Defines a struct with the sources of a volume in addition to its own fields, and the method
/// `source`, which returns the one that is set.
macro_rules! with_volume_sources {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$of_field])* $field: $type,)*
            csi: Option<$crate::objects::views::volume_source::WireCsi>,
            aws_elastic_block_store: Option<$crate::objects::views::volume_source::Fields>,
            azure_disk: Option<$crate::objects::views::volume_source::Fields>,
            azure_file: Option<$crate::objects::views::volume_source::Fields>,
            cinder: Option<$crate::objects::views::volume_source::Fields>,
            fc: Option<$crate::objects::views::volume_source::Fields>,
            flex_volume: Option<$crate::objects::views::volume_source::Fields>,
            gce_persistent_disk: Option<$crate::objects::views::volume_source::Fields>,
            iscsi: Option<$crate::objects::views::volume_source::Fields>,
            portworx_volume: Option<$crate::objects::views::volume_source::Fields>,
            vsphere_volume: Option<$crate::objects::views::volume_source::Fields>,
        }

        impl $name {
            /// Takes the source of the volume, if it is one that is kept.
            fn source(&mut self) -> Option<$crate::objects::VolumeSource> {
                use $crate::objects::InTreeKind::*;
                let in_tree = [
                    (AwsElasticBlockStore, self.aws_elastic_block_store.take()),
                    (AzureDisk, self.azure_disk.take()),
                    (AzureFile, self.azure_file.take()),
                    (Cinder, self.cinder.take()),
                    (Fc, self.fc.take()),
                    (Flex, self.flex_volume.take()),
                    (GcePersistentDisk, self.gce_persistent_disk.take()),
                    (Iscsi, self.iscsi.take()),
                    (Portworx, self.portworx_volume.take()),
                    (Vsphere, self.vsphere_volume.take()),
                ];
                $crate::objects::VolumeSource::select(self.csi.take(), in_tree)
            }
        }
    };
}
pub(super) use with_volume_sources;

impl VolumeSource {
    /// Returns the source that is set, if one is.
    pub(super) fn select(
        csi: Option<WireCsi>,
        in_tree: [(InTreeKind, Option<Fields>); 10],
    ) -> Option<VolumeSource> {
        if let Some(WireCsi { driver, volume_handle: handle }) = csi {
            return Some(VolumeSource::Csi { driver, handle });
        }
        let (kind, fields) =
            in_tree.into_iter().find_map(|(kind, fields)| Some((kind, fields?)))?;
        Some(VolumeSource::InTree { kind, fields: fields.into_json(kind) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Encoded, Pod};

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
    }

    /// Each message has the zeroes that a real server writes, and members that are not read.
    #[test]
    fn both_forms_of_a_volume_give_the_same_fields() {
        let (empty, zero) = (|number| field(number, b""), |number: u8| vec![number << 3, 0]);
        for (json, number, message, expected) in [
            (
                json!({ "iscsi": { "targetPortal": "p", "iqn": "", "lun": 0, "portals": ["q"] } }),
                8,
                [field(1, b"p"), empty(2), zero(3), empty(4), empty(5), zero(6), field(7, b"q")],
                r#"{"targetPortal":"p"}"#,
            ),
            (
                json!({ "fc": { "targetWWNs": ["w"], "lun": 0, "fsType": "xfs", "wwids": [] } }),
                17,
                [field(1, b"w"), zero(2), field(3, b"xfs"), zero(4), vec![], vec![], vec![]],
                r#"{"lun":0,"targetWWNs":["w"]}"#,
            ),
            (
                json!({ "flexVolume": { "driver": "d", "secretRef": {}, "options": { "a": "" } } }),
                12,
                [
                    field(1, b"d"),
                    empty(2),
                    field(3, &empty(1)),
                    zero(4),
                    field(5, &[field(1, b"a"), empty(2)].concat()),
                    vec![],
                    vec![],
                ],
                r#"{"driver":"d","options":{"a":""}}"#,
            ),
            (
                json!({ "gcePersistentDisk": { "pdName": "d", "partition": 0 } }),
                3,
                [field(1, b"d"), empty(2), zero(3), zero(4), vec![], vec![], vec![]],
                r#"{"pdName":"d"}"#,
            ),
        ] {
            let mut volume = json;
            volume["name"] = json!("v");
            let pod = json!({ "spec": { "volumes": [volume] } }).to_string();
            // Numbers above 15 take two bytes.
            let head: &[u8] =
                if number < 16 { &[number << 3 | 2] } else { &[0x80 | number << 3 | 2, 1] };
            let message = message.concat();
            let source = [head, &[u8::try_from(message.len()).unwrap()], &message].concat();
            let volume = field(1, &[field(1, b"v"), field(2, &source)].concat());
            let pods = [Encoded::json(pod), Encoded::protobuf(field(2, &volume))]
                .map(|form| form.decode::<Pod>().unwrap());
            assert_eq!(pods[0], pods[1]);
            let source = &pods[0].spec.shape.inline_volumes[0].source;
            let VolumeSource::InTree { fields, .. } = source else { panic!("{source:?}") };
            assert_eq!(&**fields, expected);
        }
    }
}
