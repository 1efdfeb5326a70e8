//! The calls to a driver's node service. Upstream: `csi_client.go`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grpc::{Channel, Endpoint};
use kube_controller_manager::clock::SharedClock;
use prost::Message;

use super::api::node_service_capability::Type as Capability;
use super::api::node_service_capability::rpc::Type as Rpc;
use super::api::volume_capability::access_mode::Mode;
use super::api::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use super::api::volume_usage::Unit;
use super::api::{self, VolumeCapability};
use super::error::Error;
use crate::metrics;

/// The deadline of each call. Upstream: `csiTimeout`.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A registered driver. Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Driver {
    name: Arc<str>,
    channel: Channel,
}

/// What a driver's node service can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `STAGE_UNSTAGE_VOLUME`
    pub stages: bool,
    /// `EXPAND_VOLUME`
    pub expands: bool,
    /// `VOLUME_MOUNT_GROUP`
    pub sets_group: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub has_single_writer_modes: bool,
    /// `GET_VOLUME_STATS`
    pub has_stats: bool,
}

/// What a volume holds; zero: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
}

impl Amounts {
    /// Converts the usages that a driver reports. Units that are not known are left out.
    fn of(usages: &[api::VolumeUsage]) -> Amounts {
        let mut all = Amounts::default();
        for usage in usages {
            let [total, available, used] = [usage.total, usage.available, usage.used]
                .map(|amount| u64::try_from(amount).unwrap_or_default());
            match usage.unit() {
                Unit::Bytes => {
                    (all.capacity_bytes, all.available_bytes, all.used_bytes) =
                        (total, available, used);
                }
                Unit::Inodes => {
                    (all.inodes, all.inodes_free, all.inodes_used) = (total, available, used);
                }
                Unit::Unknown => log::error!("a usage of an unknown unit: {usage:?}"),
            }
        }
        all
    }
}

impl Capabilities {
    /// Converts the capabilities that a driver reports.
    fn of(answer: &api::NodeGetCapabilitiesResponse) -> Capabilities {
        let has = |rpc: Rpc| {
            let is_it = |known: &Option<Capability>| matches!(known, Some(Capability::Rpc(known)) if known.r#type() == rpc);
            answer.capabilities.iter().any(|capability| is_it(&capability.r#type))
        };
        Capabilities {
            stages: has(Rpc::StageUnstageVolume),
            expands: has(Rpc::ExpandVolume),
            sets_group: has(Rpc::VolumeMountGroup),
            has_single_writer_modes: has(Rpc::SingleNodeMultiWriter),
            has_stats: has(Rpc::GetVolumeStats),
        }
    }

    /// Converts an access mode to that of CSI, by what the driver knows. Upstream:
    /// `asCSIAccessModeV1`, `asSingleNodeMultiWriterCapableCSIAccessModeV1`.
    fn access_mode(self, mode: &str) -> Mode {
        match (mode, self.has_single_writer_modes) {
            ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => Mode::SingleNodeWriter,
            ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
            ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
            ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
            ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
            _ => Mode::Unknown,
        }
    }

    /// Describes how a volume is used. `mount`: `None` for a block volume.
    fn volume(self, mode: &str, mount: Option<MountVolume>) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: self.access_mode(mode) as i32 }),
            access_type: Some(match mount {
                Some(mount) => AccessType::Mount(mount),
                None => AccessType::Block(BlockVolume {}),
            }),
        }
    }
}

/// How a volume is staged on the node.
#[derive(Clone, Default)]
pub struct Stage {
    pub handle: String,
    pub path: String,
    /// What the attachment of the volume says.
    pub publish_context: HashMap<String, String>,
    pub attributes: HashMap<String, String>,
    pub secrets: HashMap<String, String>,
    /// The first one of the volume, as Kubernetes names it.
    pub access_mode: String,
    /// The volume is one of an in-tree plugin: its calls are counted as such.
    pub migrated: bool,
    /// `None`: a block volume.
    pub mount: Option<MountVolume>,
}

/// How a volume is published for a pod.
#[derive(Clone, Default)]
pub struct Publish {
    pub stage: Stage,
    /// Where it is staged; empty: the driver does not stage.
    pub staging_path: String,
    pub read_only: bool,
}

impl Driver {
    /// Creates the driver whose node service is at `socket`. The first call connects.
    pub fn new(name: &str, socket: &Path, clock: SharedClock) -> Driver {
        let endpoint = Endpoint::Unix(socket.to_owned());
        let channel = Channel::new("CSI driver", endpoint, clock, |_, _, _| {});
        Driver { name: name.into(), channel }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether one is a clone of the other, and not a later registration of the name.
    pub fn is_same(&self, other: &Driver) -> bool {
        Arc::ptr_eq(&self.name, &other.name)
    }

    /// Calls a method of the driver's node service. It counts as for a volume of the driver itself,
    /// as upstream's calls do that end the use of any volume.
    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
    ) -> Result<A, Error> {
        self.call_for(method, request, false).await
    }

    /// Calls a method of the driver's node service, and observes the call in upstream's metric.
    /// `migrated`: for a volume of an in-tree plugin.
    async fn call_for<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        migrated: bool,
    ) -> Result<A, Error> {
        let clock = self.channel.clock();
        let begin = clock.monotonic();
        let answer: Result<A, grpc::Error> =
            self.channel.call(method, request, Some(TIMEOUT)).await;
        let took = clock.monotonic().saturating_sub(begin);
        metrics::observe_csi(&self.name, method, &code(answer.as_ref().err()), migrated, took);
        Ok(answer?)
    }

    /// Asks the driver about the node.
    ///
    /// # Errors
    /// Those of the call, as for all that follow.
    pub async fn info(&self) -> Result<api::NodeGetInfoResponse, Error> {
        self.call("csi.v1.Node/NodeGetInfo", &api::NodeGetInfoRequest {}).await
    }

    /// Asks the driver what it can do on the node. `migrated`: for a volume of an in-tree plugin.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn capabilities(&self, migrated: bool) -> Result<Capabilities, Error> {
        let method = "csi.v1.Node/NodeGetCapabilities";
        let request = api::NodeGetCapabilitiesRequest {};
        Ok(Capabilities::of(&self.call_for(method, &request, migrated).await?))
    }

    /// Stages a volume on the node, before it is published to pods.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn stage(&self, able: Capabilities, stage: Stage) -> Result<(), Error> {
        let migrated = stage.migrated;
        let request = api::NodeStageVolumeRequest {
            volume_id: stage.handle,
            publish_context: stage.publish_context,
            staging_target_path: stage.path,
            volume_capability: Some(able.volume(&stage.access_mode, stage.mount)),
            secrets: stage.secrets,
            volume_context: stage.attributes,
        };
        let method = "csi.v1.Node/NodeStageVolume";
        self.call_for::<api::NodeStageVolumeResponse>(method, &request, migrated).await.map(drop)
    }

    /// Unstages a volume, after it is unpublished from all pods.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn unstage(&self, handle: &str, path: &Path) -> Result<(), Error> {
        let request = api::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: path.display().to_string(),
        };
        let method = "csi.v1.Node/NodeUnstageVolume";
        self.call::<api::NodeUnstageVolumeResponse>(method, &request).await.map(drop)
    }

    /// Publishes a volume to a pod.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn publish(&self, able: Capabilities, publish: Publish) -> Result<(), Error> {
        let Publish { stage, staging_path, read_only } = publish;
        let migrated = stage.migrated;
        let request = api::NodePublishVolumeRequest {
            volume_id: stage.handle,
            publish_context: stage.publish_context,
            staging_target_path: staging_path,
            target_path: stage.path,
            volume_capability: Some(able.volume(&stage.access_mode, stage.mount)),
            readonly: read_only,
            secrets: stage.secrets,
            volume_context: stage.attributes,
        };
        let method = "csi.v1.Node/NodePublishVolume";
        self.call_for::<api::NodePublishVolumeResponse>(method, &request, migrated).await.map(drop)
    }

    /// Unpublishes a volume from a pod.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn unpublish(&self, handle: &str, path: &Path) -> Result<(), Error> {
        let request = api::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: path.display().to_string(),
        };
        let method = "csi.v1.Node/NodeUnpublishVolume";
        self.call::<api::NodeUnpublishVolumeResponse>(method, &request).await.map(drop)
    }

    /// Asks the driver what a published volume holds. `None`: the driver has no statistics.
    /// Upstream: `metricsCsi.GetMetrics`.
    ///
    /// # Errors
    /// See [`Driver::info`]; or the driver says nothing.
    pub async fn volume_stats(&self, handle: &str, path: &Path) -> Result<Option<Amounts>, Error> {
        if !self.capabilities(false).await?.has_stats {
            return Ok(None);
        }
        let request = api::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: path.display().to_string(),
            staging_target_path: String::new(),
        };
        let method = "csi.v1.Node/NodeGetVolumeStats";
        let answer: api::NodeGetVolumeStatsResponse = self.call(method, &request).await?;
        match answer.usage.is_empty() {
            true => Err(Error::NoUsage),
            false => Ok(Some(Amounts::of(&answer.usage))),
        }
    }

    /// Makes the file system of a published volume as large as the volume. `bytes`: its size.
    ///
    /// # Errors
    /// See [`Driver::info`].
    pub async fn expand(
        &self,
        able: Capabilities,
        publish: Publish,
        bytes: i64,
    ) -> Result<(), Error> {
        let Publish { stage, staging_path, .. } = publish;
        let migrated = stage.migrated;
        let request = api::NodeExpandVolumeRequest {
            volume_id: stage.handle,
            volume_path: stage.path,
            capacity_range: Some(api::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: staging_path,
            volume_capability: Some(able.volume(&stage.access_mode, stage.mount)),
            secrets: stage.secrets,
        };
        let method = "csi.v1.Node/NodeExpandVolume";
        self.call_for::<api::NodeExpandVolumeResponse>(method, &request, migrated).await.map(drop)
    }
}

/// Returns the gRPC code of a call by its error, as upstream's metric has it. Upstream:
/// `getErrorCode`.
fn code(error: Option<&grpc::Error>) -> String {
    match error {
        None => "OK".to_owned(),
        Some(grpc::Error::Status { code, .. }) => code.to_string(),
        Some(grpc::Error::DeadlineExceeded { .. }) => "DeadlineExceeded".to_owned(),
        Some(grpc::Error::Unreachable { .. } | grpc::Error::Lost { .. }) => {
            "Unavailable".to_owned()
        }
        Some(grpc::Error::Malformed { .. }) => "Internal".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_those_of_known_units() {
        let usage =
            |unit, total, available, used| api::VolumeUsage { available, total, used, unit };
        let usages = [usage(1, 10, 7, 3), usage(2, 5, 4, 1), usage(9, 1, 1, 1)];
        let expected = Amounts {
            capacity_bytes: 10,
            available_bytes: 7,
            used_bytes: 3,
            inodes: 5,
            inodes_free: 4,
            inodes_used: 1,
        };
        assert_eq!(Amounts::of(&usages), expected);
        let expected = Amounts { capacity_bytes: 10, ..Amounts::default() };
        assert_eq!(Amounts::of(&[usage(1, 10, -1, -1)]), expected);
    }

    #[test]
    fn access_modes_are_those_that_the_driver_knows() {
        let able = |has_single_writer_modes| Capabilities {
            has_single_writer_modes,
            ..Capabilities::default()
        };
        for (mode, old, new) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("Other", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!(able(false).access_mode(mode), old, "{mode}");
            assert_eq!(able(true).access_mode(mode), new, "{mode}");
        }
    }

    #[test]
    fn capabilities_that_are_not_known_are_left_out() {
        let rpc = |number| api::NodeServiceCapability {
            r#type: Some(Capability::Rpc(api::node_service_capability::Rpc { r#type: number })),
        };
        let answer = api::NodeGetCapabilitiesResponse {
            capabilities: vec![rpc(Rpc::StageUnstageVolume as i32), rpc(99)],
        };
        let expected = Capabilities { stages: true, ..Capabilities::default() };
        assert_eq!(Capabilities::of(&answer), expected);
    }
}
