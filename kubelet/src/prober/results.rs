//! The results of probes, and what of them outlives a restart of the agent. Upstream:
//! `prober/results`.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use kube_controller_manager::task::Latch;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::pod::{Pod, Uid};

#[derive(Default)]
pub(super) struct Table {
    /// By container id and kind.
    pub(super) results: BTreeMap<(String, Kind), bool>,
    /// Each with its pod.
    pub(super) running: BTreeMap<(String, Kind), (Uid, Latch)>,
}

impl Table {
    pub(super) fn result(&self, id: &str, kind: Kind) -> Option<bool> {
        self.results.get(&(id.to_owned(), kind)).copied()
    }

    /// The results of a pod's containers that are saved, by container id.
    pub(super) fn saved(&self, pod: &str) -> BTreeMap<String, SavedResults> {
        let ids = self.running.iter().filter(|(_, (of, _))| **of == *pod).map(|((id, _), _)| id);
        let has = |id: &str, kind| self.result(id, kind) == Some(true);
        let saved = |id: &str| SavedResults {
            started: has(id, Kind::Startup),
            ready: has(id, Kind::Readiness),
        };
        ids.map(|id| (id.clone(), saved(id))).collect()
    }
}

/// What an agent that restarts has to know of a container's probes. It is in a file beside the pod,
/// by container id: neither the clock nor the time of a restart has a part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedResults {
    /// The startup probe has succeeded.
    pub(super) started: bool,
    /// The result of the readiness probe.
    pub(super) ready: bool,
}

/// The states of containers that the API server has.
pub(super) fn reported(pod: &Pod) -> BTreeMap<String, SavedResults> {
    let status = pod.status.iter();
    let lists = status.flat_map(|all| [&all.init_container_statuses, &all.container_statuses]);
    let saved = lists.flatten().flatten().filter_map(|status| {
        // `RUNTIME://ID`.
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((
            id.to_owned(),
            SavedResults { started: status.started == Some(true), ready: status.ready },
        ))
    });
    saved.collect()
}

pub(super) fn read(file: &Path) -> io::Result<BTreeMap<String, SavedResults>> {
    match fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

/// Readers see the old file or the new one. It need not survive a power cut: no container does.
pub(super) fn write(file: &Path, results: &BTreeMap<String, SavedResults>) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(results)?)?;
    fs::rename(new, file)
}
