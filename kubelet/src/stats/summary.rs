//! The answer of `/stats/summary`. Upstream: `pkg/kubelet/apis/stats/v1alpha1`.

use kube_controller_manager::objects::Timestamp;
use serde::Serialize;

use crate::cgroups::details::{Pressure, Stall};

/// The answer of `/stats/summary`. Upstream: `statsapi.Summary`.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
    /// When it was measured.
    #[serde(skip)]
    pub time: Timestamp,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: String,
    #[serde(flatten)]
    pub used: Used,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<Rlimit>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodRef,
    pub start_time: String,
    pub containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub used: Used,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub processes: Option<Processes>,
}

#[derive(Debug, Default, Serialize)]
pub struct PodRef {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: String,
    #[serde(flatten)]
    pub used: Used,
    /// What the container has written to its own layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Fs>,
    /// Microseconds since 1970.
    #[serde(skip)]
    pub started_micros: i64,
}

/// CPU, memory, waits for I/O, and swap.
#[derive(Debug, Default, Serialize)]
pub struct Used {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

/// How long processes have waited for disks.
#[derive(Debug, Default, Serialize)]
pub struct IoStats {
    pub time: String,
    pub psi: PsiStats,
}

/// Upstream: `PSIStats`.
#[derive(Debug, Default, Serialize)]
pub struct PsiStats {
    pub full: PsiData,
    pub some: PsiData,
}

/// The total in microseconds, as the kernel counts and upstream passes on, though its documentation
/// says nanoseconds; and shares of the last seconds in percent.
#[derive(Debug, Default, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

impl From<Pressure> for PsiStats {
    fn from(pressure: Pressure) -> PsiStats {
        let data = |Stall { total, avg10, avg60, avg300 }| PsiData { total, avg10, avg60, avg300 };
        PsiStats { full: data(pressure.full), some: data(pressure.some) }
    }
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    pub usage_core_nano_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    pub usage_bytes: u64,
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    pub swap_usage_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fs {
    pub time: String,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    pub inodes_free: u64,
    pub inodes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: Fs,
    pub name: String,
    /// The claim that the volume stands behind.
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRef>,
}

/// Upstream: `PVCReference`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimRef {
    pub name: String,
    pub namespace: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<Fs>,
}

#[derive(Debug, Serialize)]
pub struct Rlimit {
    pub time: String,
    pub maxpid: i64,
    pub curproc: i64,
}

#[derive(Debug, Serialize)]
pub struct Processes {
    pub process_count: u64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    pub time: String,
    #[serde(flatten)]
    pub default: Interface,
    pub interfaces: Vec<Interface>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    /// All numbers of the interface's line in `/proc/net/dev`.
    #[serde(skip)]
    pub(super) counts: Vec<u64>,
}
