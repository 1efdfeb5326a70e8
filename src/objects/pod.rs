//! The lean view of a Pod.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Istr, Meta, PodQuota, ResourceList, Timestamp, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod")]
pub struct Pod {
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
    /// Of spec and status.
    pub quota: Arc<PodQuota>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    pub node_name: Istr,
    /// The names of the init containers that run as long as the pod does.
    pub sidecars: Box<[Istr]>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    pub phase: PodPhase,
    /// When the Ready condition last changed, and whether it is true now. `None`: no such condition.
    pub ready: Option<ReadyCondition>,
    /// The condition DisruptionTarget is there, and true.
    pub disruption_target: bool,
    /// Failed because the kubelet evicted it.
    pub evicted: bool,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<InitContainerStatus>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Absent, or not known to this build.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadyCondition {
    pub is_true: bool,
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    pub restart_count: i32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitContainerStatus {
    pub name: Istr,
    pub restart_count: i32,
}

resource!(Pod, "", "v1", "pods", namespaced);

impl Pod {
    /// Upstream: `podutil.IsPodReady`.
    pub fn is_ready(&self) -> bool {
        self.status.ready.as_ref().is_some_and(|ready| ready.is_true)
    }

    /// Ready for at least `min_ready_seconds` at `now`. Upstream: `podutil.IsPodAvailable`.
    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        let Some(ReadyCondition { is_true: true, last_transition_time }) = &self.status.ready
        else {
            return false;
        };
        let period = std::time::Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
        min_ready_seconds <= 0 || last_transition_time.is_some_and(|since| since + period <= now)
    }

    /// Upstream: `podutil.IsPodTerminal`.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase, PodPhase::Failed | PodPhase::Succeeded)
    }

    /// Neither finished nor being deleted. Upstream: `controller.IsPodActive`.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_being_deleted()
    }

    /// Being deleted and not finished yet. Upstream: `controller.IsPodTerminating`.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_being_deleted()
    }

    /// The most restarts of any container. Upstream: `maxContainerRestarts`.
    pub fn max_restarts(&self) -> i32 {
        self.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0)
    }

    /// The most restarts of any sidecar. Upstream: `maxContainerRestarts`.
    pub fn max_sidecar_restarts(&self) -> i32 {
        let sidecars = &self.spec.sidecars;
        let statuses = self.status.init_container_statuses.iter();
        statuses.filter(|c| sidecars.contains(&c.name)).map(|c| c.restart_count).max().unwrap_or(0)
    }
}

/// A pod as it comes, with all that the view is computed from.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePod {
    metadata: Meta,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireSpec {
    node_name: Istr,
    pub containers: Option<Vec<WireContainer>>,
    pub init_containers: Option<Vec<WireContainer>>,
    pub resources: Option<WireResources>,
    pub overhead: ResourceList,
    pub active_deadline_seconds: Option<i64>,
    pub priority_class_name: Istr,
    pub affinity: Option<WireAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainer {
    pub name: Istr,
    restart_policy: Option<Istr>,
    pub resources: Option<WireResources>,
}

impl WireContainer {
    /// Upstream: `podutil.IsRestartableInitContainer`.
    pub fn runs_on(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| *policy == "Always")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireResources {
    pub requests: ResourceList,
    pub limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireAffinity {
    pub pod_affinity: Option<WireTerms>,
    pub pod_anti_affinity: Option<WireTerms>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireTerms {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<Vec<WireTerm>>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Option<Vec<WireWeightedTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireTerm {
    pub namespaces: Option<Vec<IgnoredAny>>,
    pub namespace_selector: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireWeightedTerm {
    pub pod_affinity_term: WireTerm,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStatus {
    phase: PodPhase,
    reason: Istr,
    conditions: Option<Vec<WireCondition>>,
    pub container_statuses: Option<Vec<WireContainerStatus>>,
    pub init_container_statuses: Option<Vec<WireContainerStatus>>,
    pub qos_class: Istr,
    pub extended_resource_claim_status: Option<WireExtendedClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainerStatus {
    pub name: Istr,
    restart_count: i32,
    pub resources: Option<WireResources>,
    pub allocated_resources: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireExtendedClaim {
    pub resource_claim_name: Istr,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCondition {
    r#type: Istr,
    status: Istr,
    pub reason: Istr,
    last_transition_time: Option<Timestamp>,
}

impl WireStatus {
    pub fn condition(&self, name: &str) -> Option<&WireCondition> {
        self.conditions.iter().flatten().find(|condition| condition.r#type == *name)
    }
}

impl From<WirePod> for Pod {
    fn from(WirePod { metadata: meta, spec, status }: WirePod) -> Pod {
        let quota = PodQuota::of(&spec, &status);
        let init = spec.init_containers.iter().flatten();
        let sidecars = init.filter(|c| c.runs_on()).map(|c| c.name.clone()).collect();
        let ready = status.condition("Ready").map(|condition| ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        });
        let disruption_target = status
            .condition("DisruptionTarget")
            .is_some_and(|condition| condition.status == "True");
        let containers = status.container_statuses.into_iter().flatten();
        let init = status.init_container_statuses.into_iter().flatten();
        Pod {
            meta,
            spec: PodSpec { node_name: spec.node_name, sidecars },
            status: PodStatus {
                phase: status.phase,
                ready,
                disruption_target,
                evicted: status.phase == PodPhase::Failed && status.reason == "Evicted",
                container_statuses: containers
                    .map(|WireContainerStatus { restart_count, .. }| ContainerStatus {
                        restart_count,
                    })
                    .collect(),
                init_container_statuses: init
                    .map(|WireContainerStatus { name, restart_count, .. }| InitContainerStatus {
                        name,
                        restart_count,
                    })
                    .collect(),
            },
            quota,
        }
    }
}
