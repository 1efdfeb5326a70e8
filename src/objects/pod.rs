//! The lean view of a Pod.

use serde::Deserialize;

use super::{Istr, Meta, Timestamp, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: Istr,
    /// The names of the init containers that run as long as the pod does.
    #[serde(rename = "initContainers", deserialize_with = "sidecars")]
    pub sidecars: Box<[Istr]>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: PodPhase,
    /// When the Ready condition last changed, and whether it is true now. `None`: no such condition.
    #[serde(rename = "conditions", deserialize_with = "ready_condition")]
    pub ready: Option<ReadyCondition>,
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

fn sidecars<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Box<[Istr]>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct InitContainer {
        name: Istr,
        restart_policy: Option<Istr>,
    }
    let containers = Option::<Vec<InitContainer>>::deserialize(from)?.unwrap_or_default();
    let runs_on = |c: &InitContainer| c.restart_policy.as_ref().is_some_and(|p| *p == "Always");
    Ok(containers.into_iter().filter(runs_on).map(|container| container.name).collect())
}

fn ready_condition<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<ReadyCondition>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Condition {
        r#type: Istr,
        status: Istr,
        #[serde(default)]
        last_transition_time: Option<Timestamp>,
    }
    let conditions = Option::<Vec<Condition>>::deserialize(from)?.unwrap_or_default();
    Ok(conditions.into_iter().find(|condition| condition.r#type == "Ready").map(|condition| {
        ReadyCondition {
            is_true: condition.status == "True",
            last_transition_time: condition.last_transition_time,
        }
    }))
}
