//! The lean view of a Pod.

use serde::Deserialize;

use super::{Istr, Meta, Timestamp, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WirePod")]
pub struct Pod {
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
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

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub restart_count: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
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
struct WireSpec {
    node_name: Istr,
    init_containers: Option<Vec<WireContainer>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireContainer {
    name: Istr,
    restart_policy: Option<Istr>,
}

impl WireContainer {
    /// Upstream: `podutil.IsRestartableInitContainer`.
    fn runs_on(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| *policy == "Always")
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    phase: PodPhase,
    reason: Istr,
    conditions: Option<Vec<WireCondition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<InitContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireCondition {
    r#type: Istr,
    status: Istr,
    last_transition_time: Option<Timestamp>,
}

impl WireStatus {
    fn condition(&self, name: &str) -> Option<&WireCondition> {
        self.conditions.iter().flatten().find(|condition| condition.r#type == *name)
    }
}

impl From<WirePod> for Pod {
    fn from(WirePod { metadata: meta, spec, status }: WirePod) -> Pod {
        let init = spec.init_containers.unwrap_or_default();
        let sidecars = init.iter().filter(|c| c.runs_on()).map(|c| c.name.clone()).collect();
        let ready = status.condition("Ready").map(|condition| ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        });
        let disruption_target = status
            .condition("DisruptionTarget")
            .is_some_and(|condition| condition.status == "True");
        Pod {
            meta,
            spec: PodSpec { node_name: spec.node_name, sidecars },
            status: PodStatus {
                phase: status.phase,
                ready,
                disruption_target,
                evicted: status.phase == PodPhase::Failed && status.reason == "Evicted",
                container_statuses: status.container_statuses.unwrap_or_default(),
                init_container_statuses: status.init_container_statuses.unwrap_or_default(),
            },
        }
    }
}
