//! Removes containers that have ended, their sandboxes, and the logs of pods that are gone.
//! Upstream: `kuberuntime/kuberuntime_gc.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube_controller_manager::task;

use crate::causes::chain;
use crate::cri::{Error, RuntimeService, api};
use crate::files::tree;
use crate::pod::{Pod, PodExt, Uid};
use crate::runtime::labels;
use crate::volumes::{Folders, pod_of_logs};

/// A stop leaves the runtime this long. Upstream: `minimumGracePeriodInSeconds`.
const MIN_GRACE: Duration = Duration::from_secs(2);

/// The longest name of a file. Upstream: `ext4MaxFileNameLen`.
const MAX_NAME: usize = 255;

/// How many containers that have ended stay. Upstream: `GCPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Younger ones stay.
    pub min_age: Duration,
    /// The most that stay of each container of a pod; `None`: all.
    pub max_per_container: Option<usize>,
    /// The most that stay of all pods; `None`: all.
    pub max_containers: Option<usize>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { min_age: Duration::ZERO, max_per_container: Some(1), max_containers: None }
    }
}

/// A container that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    pub id: String,
    /// The pod's.
    pub uid: Uid,
    pub name: String,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    /// It may run: it is stopped first.
    pub is_unknown: bool,
}

/// Lists the ended containers that have to be removed: those of pods that are gone, and those
/// beyond the limits of the policy. `is_removed`: whether a pod is gone. Upstream:
/// `evictContainers`.
pub fn excess(dead: Vec<Dead>, policy: Policy, is_removed: &dyn Fn(&str) -> bool) -> Vec<Dead> {
    let mut units: BTreeMap<(Uid, String), Vec<Dead>> = BTreeMap::new();
    let mut excess = Vec::new();
    for container in dead {
        if is_removed(&container.uid) {
            excess.push(container);
        } else {
            let unit = (container.uid.clone(), container.name.clone());
            units.entry(unit).or_default().push(container);
        }
    }
    let mut kept: Vec<Vec<Dead>> = units.into_values().collect();
    if let Some(max) = policy.max_per_container {
        limit_each(&mut kept, max, &mut excess);
    }
    let Some(max) = policy.max_containers else { return excess };
    let total = |kept: &[Vec<Dead>]| kept.iter().map(Vec::len).sum::<usize>();
    if total(&kept) > max {
        // As upstream: first an equal number of each container stays, then the newest of all.
        let each = (max / kept.len()).max(1);
        limit_each(&mut kept, each, &mut excess);
        limit_each(&mut [kept.concat()], max, &mut excess);
    }
    excess
}

/// Moves all but the newest `max` of each list to `excess`.
fn limit_each(lists: &mut [Vec<Dead>], max: usize, excess: &mut Vec<Dead>) {
    for list in lists.iter_mut().filter(|list| list.len() > max) {
        list.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        excess.extend(list.drain(max..));
    }
}

/// A sandbox of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub uid: Uid,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    /// It is ready, or has containers.
    pub is_active: bool,
}

/// Lists the ids of the sandboxes that have to go: not active, and of a pod that is gone or has a
/// newer one. Upstream: `evictSandboxes`.
pub fn excess_sandboxes(sandboxes: Vec<Sandbox>, is_removed: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut pods: BTreeMap<Uid, Vec<Sandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        pods.entry(sandbox.uid.clone()).or_default().push(sandbox);
    }
    let mut excess = Vec::new();
    for (uid, mut sandboxes) in pods {
        sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
        let keep = usize::from(!is_removed(&uid));
        let old = sandboxes.into_iter().skip(keep).filter(|sandbox| !sandbox.is_active);
        excess.extend(old.map(|sandbox| sandbox.id));
    }
    excess
}

/// Removes ended containers, old sandboxes and logs that no pod needs. `is_removed` answers false
/// until all sources have been read; `now`: nanoseconds since 1970. Upstream:
/// `containerGC.GarbageCollect`.
///
/// # Errors
/// When the runtime does not list; what cannot be removed is logged, and stays until the next time.
pub async fn collect(
    runtime: &RuntimeService,
    folders: &Folders,
    policy: Policy,
    now: i64,
    is_removed: &(dyn Fn(&str) -> bool + Sync),
) -> Result<(), Error> {
    let listed = runtime.list_containers(api::ListContainersRequest::default()).await?.containers;
    let oldest = now.saturating_sub(i64::try_from(policy.min_age.as_nanos()).unwrap_or(i64::MAX));
    let dead = listed.iter().filter(|container| container.created_at <= oldest).filter_map(dead);
    for container in excess(dead.collect(), policy, is_removed) {
        if let Err(error) = remove(runtime, folders, &container).await {
            log::error!("Failed to remove container {}: {}", container.id, chain(&error));
        }
    }
    let listed = runtime.list_containers(api::ListContainersRequest::default()).await?.containers;
    let used: BTreeSet<&String> = listed.iter().map(|one| &one.pod_sandbox_id).collect();
    let sandboxes = runtime.list_pod_sandbox(api::ListPodSandboxRequest::default()).await?.items;
    let sandboxes = sandboxes.into_iter().filter_map(|sandbox| {
        Some(Sandbox {
            uid: labels::pod_uid(&sandbox.labels)?,
            created_at: sandbox.created_at,
            is_active: sandbox.state() == api::PodSandboxState::SandboxReady
                || used.contains(&sandbox.id),
            id: sandbox.id,
        })
    });
    for id in excess_sandboxes(sandboxes.collect(), is_removed) {
        log::debug!("Removing sandbox {id}");
        if let Err(error) = remove_sandbox(runtime, &id).await {
            log::error!("Failed to remove sandbox {id}: {}", chain(&error));
        }
    }
    remove_folders(runtime, folders, is_removed).await;
    Ok(())
}

/// Describes a container that does not run; `None`: it runs, or is another program's.
fn dead(container: &api::Container) -> Option<Dead> {
    let state = container.state();
    if state == api::ContainerState::ContainerRunning {
        return None;
    }
    Some(Dead {
        id: container.id.clone(),
        uid: labels::pod_uid(&container.labels)?,
        name: container.metadata.as_ref()?.name.clone(),
        created_at: container.created_at,
        is_unknown: state == api::ContainerState::ContainerUnknown,
    })
}

/// Removes a dead container; one of unknown state is stopped first.
async fn remove(
    runtime: &RuntimeService,
    folders: &Folders,
    container: &Dead,
) -> Result<(), Error> {
    if container.is_unknown {
        match runtime.stop_container(&container.id, MIN_GRACE).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    remove_container(runtime, folders, &container.id).await
}

/// Removes a container that does not run, with its logs. Upstream: `removeContainer`.
///
/// # Errors
/// When a call fails; a container that is gone already is no error.
pub async fn remove_container(
    runtime: &RuntimeService,
    folders: &Folders,
    id: &str,
) -> Result<(), Error> {
    let request = api::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let status = match runtime.container_status(request).await {
        Ok(answer) => answer.status.unwrap_or_default(),
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let label = |key: &str| status.labels.get(key).map(String::as_str).unwrap_or_default();
    let full_name = format!("{}_{}", label(labels::POD_NAME), label(labels::POD_NAMESPACE));
    let link = folders.links().join(link_name(&full_name, label(labels::CONTAINER_NAME), id));
    let log = PathBuf::from(status.log_path);
    let removed =
        task::blocking(move || remove_logs(&log).and(absent_is_fine(fs::remove_file(link))));
    if let Err(error) = removed.await {
        log::error!("the logs of container {id}: {error}");
    }
    let request = api::RemoveContainerRequest { container_id: id.to_owned() };
    match runtime.remove_container(request).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Stops and removes a sandbox.
///
/// # Errors
/// When a call fails; a sandbox that is gone already is no error.
pub async fn remove_sandbox(runtime: &RuntimeService, id: &str) -> Result<(), Error> {
    let request = api::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
    match runtime.stop_pod_sandbox(request).await {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    let request = api::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
    match runtime.remove_pod_sandbox(request).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Removes a log and those that were rotated. Blocks.
fn remove_logs(log: &Path) -> io::Result<()> {
    for file in with_prefix(log) {
        absent_is_fine(fs::remove_file(file))?;
    }
    Ok(())
}

/// Lists the files whose names begin with that of `path`, in its folder.
pub fn with_prefix(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let name = name.to_string_lossy();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&*name))
        .map(|entry| entry.path())
        .collect()
}

/// Turns the error that a file does not exist into a success.
fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the log folders of pods that are gone, and links to logs that are gone.
/// Upstream: `evictPodLogsDirectories`.
async fn remove_folders(
    runtime: &RuntimeService,
    folders: &Folders,
    is_removed: &(dyn Fn(&str) -> bool + Sync),
) {
    let logs = folders.logs.clone();
    let of_pods = task::blocking(move || names(&logs)).await;
    for name in of_pods {
        // Another program's folder has no pod's uid.
        let Some(uid) = pod_of_logs(&name).filter(|uid| is_removed(uid)) else { continue };
        let folder = folders.logs.join(&name);
        log::debug!("Removing the logs of the former pod {uid}");
        let removed = task::blocking(move || tree::remove(&folder));
        if let Err(error) = removed.await {
            log::error!("the log folder {name}: {error}");
        }
    }
    let links = folders.links();
    let dangling = task::blocking(move || {
        let names = names(&links).into_iter().filter(|name| name.ends_with(".log"));
        names.map(|name| links.join(name)).filter(|link| !link.exists()).collect::<Vec<_>>()
    });
    for link in dangling.await {
        if !may_be_rotating(runtime, &link).await
            && let Err(error) = absent_is_fine(fs::remove_file(&link))
        {
            log::error!("the link {}: {error}", link.display());
        }
    }
}

/// Lists the names of a folder's entries; none where it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns whether a link's log may only be absent because it is being rotated: its container has
/// not ended. False, as upstream, if the runtime does not answer or does not know the container.
async fn may_be_rotating(runtime: &RuntimeService, link: &Path) -> bool {
    let name = link.file_stem().unwrap_or_default().to_string_lossy();
    // See `link_name`.
    let Some((_, id)) = name.rsplit_once('-') else { return false };
    let request = api::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let status = runtime.container_status(request).await.ok().and_then(|answer| answer.status);
    status.is_some_and(|status| status.state() != api::ContainerState::ContainerExited)
}

/// Links the log of a container where collectors of logs look for it. An existing link stays.
/// Blocks.
///
/// # Errors
/// When the link cannot be made; without a log there is no link.
pub fn link_log(
    folders: &Folders,
    pod: &Pod,
    container: &str,
    id: &str,
    log: &Path,
) -> io::Result<()> {
    if !log.exists() {
        return Ok(());
    }
    let link = folders.links().join(link_name(&pod.full_name(), container, id));
    match std::os::unix::fs::symlink(log, link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns the file name of the link to a container's log. Upstream: `logSymlink`.
fn link_name(pod: &str, container: &str, id: &str) -> String {
    // The link stays in its folder, even if another program's labels name the pod.
    let mut name = format!("{pod}_{container}-{id}").replace('/', "_");
    let mut end = name.len().min(MAX_NAME - ".log".len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name + ".log"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> Dead {
        let [uid, name, created_at] = text.split('/').collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        Dead {
            id: text.to_owned(),
            uid: Uid::parse(uid).expect("a uid"),
            name: name.to_owned(),
            created_at: created_at.parse().expect("a number"),
            is_unknown: false,
        }
    }

    #[test]
    fn oldest_containers_beyond_each_limit_go() {
        let all = ["a/x/1", "a/x/2", "a/x/3", "a/y/4", "b/x/5", "b/x/6", "c/x/7"];
        for (each, total, removed, expected) in [
            (Some(1), None, "", &["a/x/1", "a/x/2", "b/x/5"][..]),
            (Some(2), None, "", &["a/x/1"]),
            (None, None, "", &[]),
            (Some(0), None, "", &all[..]),
            (Some(1), None, "a", &["a/x/1", "a/x/2", "a/x/3", "a/y/4", "b/x/5"]),
            (None, Some(7), "", &[]),
            // One of each of the four.
            (None, Some(4), "", &["a/x/1", "a/x/2", "b/x/5"]),
            (None, Some(3), "", &["a/x/1", "a/x/2", "a/x/3", "b/x/5"]),
            (Some(1), Some(2), "", &["a/x/1", "a/x/2", "a/x/3", "a/y/4", "b/x/5"]),
            (None, None, "c", &["c/x/7"]),
        ] {
            let policy =
                Policy { max_per_container: each, max_containers: total, min_age: Duration::ZERO };
            let given = all.iter().map(|text| dead(text)).collect();
            let mut ids: Vec<String> = excess(given, policy, &|uid| uid == removed)
                .into_iter()
                .map(|dead| dead.id)
                .collect();
            ids.sort();
            assert_eq!(ids, expected, "{each:?} {total:?} {removed}");
        }
    }

    #[test]
    fn newest_sandbox_of_a_pod_stays_and_active_ones_do() {
        let sandbox = |id: &str, uid: &str, created_at: i64, is_active: bool| Sandbox {
            id: id.to_owned(),
            uid: Uid::parse(uid).expect("a uid"),
            created_at,
            is_active,
        };
        let all = vec![
            sandbox("a1", "a", 1, false),
            sandbox("a2", "a", 2, true),
            sandbox("a3", "a", 3, false),
            sandbox("b1", "b", 1, false),
            sandbox("b2", "b", 2, true),
            sandbox("c1", "c", 1, false),
        ];
        assert_eq!(excess_sandboxes(all.clone(), &|uid| uid == "b"), ["a1", "b1"]);
        assert_eq!(excess_sandboxes(all, &|_| true), ["a3", "a1", "b1", "c1"]);
    }

    #[test]
    fn names_of_links_fit_into_a_folder() {
        assert_eq!(link_name("p_n", "c", "123"), "p_n_c-123.log");
        let long = link_name(&"é".repeat(200), "c", "123");
        assert!(long.len() <= MAX_NAME && long.ends_with("é.log"), "{long}");
    }
}
