//! The results of probes, and what of them outlives a restart of the agent. Upstream:
//! `prober/results`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;
use std::{fs, io};

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task::Latch;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::pod::Uid;

/// The probes that run, and their results. `Probes` owns it.
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

    /// Returns the results of a pod's containers that are to be saved, by container id.
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
/// by container id: the time of a restart has no part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedResults {
    /// The startup probe has succeeded.
    pub(super) started: bool,
    /// The result of the readiness probe.
    pub(super) ready: bool,
}

/// Results by container id, and when they changed last, by the clock of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) results: BTreeMap<String, SavedResults>,
    /// `None`: it is not known.
    pub(super) changed: Option<Timestamp>,
}

impl Known {
    /// Adds what the API server has to what this file has. Of a container that both know the file
    /// counts, which is written first, unless another agent has run since: then the pod's readiness
    /// has changed after the file was written. A container that has started stays so.
    pub(super) fn with_reported(mut self, reported: Known) -> BTreeMap<String, SavedResults> {
        // `None`, as of an absent file, is older than any time.
        let is_newer = reported.changed > self.changed;
        for (id, reported) in reported.results {
            let saved = self.results.entry(id).or_insert(reported);
            saved.started |= reported.started;
            if is_newer {
                saved.ready = reported.ready;
            }
        }
        self.results
    }
}

/// Reads the results of probes from a status that the API server has.
pub(super) fn reported(status: &core::PodStatus) -> Known {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let results = lists.into_iter().flatten().flatten().filter_map(|status| {
        // `RUNTIME://ID`.
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((
            id.to_owned(),
            SavedResults { started: status.started == Some(true), ready: status.ready },
        ))
    });
    let ready = status.conditions.iter().flatten().find(|one| one.type_ == "ContainersReady");
    let changed = ready.and_then(|ready| ready.last_transition_time.as_ref());
    let changed = changed.map(|time| Timestamp::from_micros(time.0.as_microsecond()));
    Known { results: results.collect(), changed }
}

/// Reads the file of a pod's results, with the time at which it was written; an absent file has
/// none.
pub(super) fn read(file: &Path) -> io::Result<Known> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Known::default()),
        read => read?,
    };
    let written = fs::metadata(file)?.modified()?.duration_since(UNIX_EPOCH).ok();
    let micros = written.and_then(|written| i64::try_from(written.as_micros()).ok());
    let changed = micros.map(Timestamp::from_micros);
    Ok(Known { results: serde_json::from_slice(&bytes)?, changed })
}

/// Writes the file of a pod's results. Readers see the old file or the new one. It need not survive
/// a power cut: no container does.
pub(super) fn write(file: &Path, results: &BTreeMap<String, SavedResults>) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(results)?)?;
    fs::rename(new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `s`: started, `r`: ready.
    fn known(changed: Option<i64>, letters: Option<&str>) -> Known {
        let results = letters.map(|letters| SavedResults {
            started: letters.contains('s'),
            ready: letters.contains('r'),
        });
        let results = results.into_iter().map(|results| ("a".to_owned(), results)).collect();
        Known { results, changed: changed.map(Timestamp::from_secs) }
    }

    #[test]
    fn file_counts_unless_another_agent_has_run_since() {
        for (file, reported, expected) in [
            ((Some(10), Some("sr")), (Some(9), Some("s")), Some("sr")),
            ((Some(10), Some("s")), (Some(10), Some("sr")), Some("s")),
            ((Some(10), Some("s")), (Some(11), Some("sr")), Some("sr")),
            ((Some(10), Some("sr")), (Some(11), Some("s")), Some("s")),
            ((Some(10), Some("sr")), (None, Some("s")), Some("sr")),
            ((None, None), (Some(11), Some("sr")), Some("sr")),
            ((None, None), (None, Some("sr")), Some("sr")),
            ((Some(10), Some("sr")), (Some(11), None), Some("sr")),
            // It has started with either agent.
            ((Some(10), Some("")), (Some(9), Some("s")), Some("s")),
            ((Some(10), Some("s")), (Some(11), Some("")), Some("s")),
            ((None, None), (None, None), None),
        ] {
            let found = known(file.0, file.1).with_reported(known(reported.0, reported.1));
            assert_eq!(found, known(None, expected).results, "{file:?} {reported:?}");
        }
    }
}
