//! Pods from a folder, or from one file. Changes come by inotify; the folder is read whole from
//! time to time too. Upstream: `pkg/kubelet/config/file.go`, `file_linux.go`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use futures_lite::FutureExt;
use kube_controller_manager::cache::UndeltaStore;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken};

use super::Error;
use super::decode::{self, MAX_BYTES, Origin, Placement};
use super::pod_config::{PodConfig, Source};
use crate::causes::chain;
use crate::files::folder_watch::{Change, FolderWatch};
use crate::pod::{Pod, PodExt};

/// How long a watch that failed is not set up again. Upstream: `retryPeriod`.
const RETRY: Duration = Duration::from_secs(1);

/// Passes the pods of a folder or file to `config`, after each change and each `period`, until
/// stopped.
pub async fn run(
    path: PathBuf,
    to: Placement,
    period: Duration,
    config: PodConfig,
    clock: SharedClock,
    stop: StopToken,
) {
    let (states, pushed) = async_channel::unbounded();
    let folder = Folder::new(path.clone(), to, states);
    let forward = forward(pushed, &config);
    let watch = async {
        while !stop.is_stopped() {
            let watch = match FolderWatch::new(&path) {
                Ok(watch) => Some(watch),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    log::error!("{} is not watched: {error}", path.display());
                    None
                }
            };
            // After the watch is set up: no change is lost between them.
            folder.read_all().await;
            let due = clock.monotonic() + if watch.is_some() { period } else { RETRY };
            while let Some(changes) = next(watch.as_ref(), &path, &clock, due, &stop).await {
                if changes.contains(&Change::Unknown) {
                    break;
                }
                for change in changes {
                    folder.apply(change).await;
                }
            }
        }
    };
    forward.or(watch).await;
}

/// Passes each state of the folder's pods to `config`.
async fn forward(pushed: Receiver<Vec<Arc<Pod>>>, config: &PodConfig) {
    while let Ok(pods) = pushed.recv().await {
        config.set(Source::File, pods).await;
    }
}

/// Waits for the next changes; `None` at the time `due`, or when stopped.
async fn next(
    watch: Option<&FolderWatch>,
    path: &Path,
    clock: &SharedClock,
    due: Duration,
    stop: &StopToken,
) -> Option<Vec<Change>> {
    let late = async {
        let _ = stop.unless_stopped(clock.sleep(due.saturating_sub(clock.monotonic()))).await;
        None
    };
    let changes = async {
        match watch {
            None => std::future::pending().await,
            Some(watch) => match watch.changes().await {
                Ok(changes) => Some(changes),
                Err(error) => {
                    log::error!("{}: changes cannot be read: {error}", path.display());
                    Some(vec![Change::Unknown])
                }
            },
        }
    };
    late.or(changes).await
}

/// The pods of the files that could be read last. Upstream: `sourceFile`.
struct Folder {
    path: PathBuf,
    to: Placement,
    store: UndeltaStore<Pod>,
    /// The pods' keys by file.
    keys: parking_lot::Mutex<BTreeMap<PathBuf, String>>,
}

impl Folder {
    /// Creates the folder without pods. `states` gets all pods after each change.
    fn new(path: PathBuf, to: Placement, states: Sender<Vec<Arc<Pod>>>) -> Folder {
        let push = move |pods| {
            // Closed only when the kubelet stops.
            let _ = states.try_send(pods);
        };
        Folder { path, to, store: UndeltaStore::new(Box::new(push)), keys: Default::default() }
    }

    /// Reads all files. The pods of broken files are left out; those of files that cannot be read now
    /// stay.
    async fn read_all(&self) {
        let (path, to) = (self.path.clone(), self.to.clone());
        match task::blocking(move || read_all(&path, &to)).await {
            Ok(files) => {
                let mut keys = self.keys.lock();
                // The last pod of a file that cannot be read now: it says nothing about its
                // content.
                let last = |file: &Path, fault: Fault| {
                    fault.log(file);
                    match fault {
                        Fault::Unreadable(_) => self.store.get(keys.get(file)?),
                        Fault::Gone | Fault::NotAFile | Fault::Broken(_) => None,
                    }
                };
                let pods = files.into_iter().filter_map(|(file, read)| {
                    let pod = read.map_or_else(|fault| last(&file, fault), Some)?;
                    Some((file, pod))
                });
                let pods: Vec<_> = pods.collect();
                *keys = pods.iter().map(|(file, pod)| (file.clone(), key(pod))).collect();
                self.store.replace(pods.into_iter().map(|(_, pod)| (key(&pod), pod)).collect());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                log::debug!("{} does not exist: it has no pods", self.path.display());
                self.keys.lock().clear();
                self.store.replace(Vec::new());
            }
            // What has been read stays.
            Err(error) => log::error!("{} cannot be read: {error}", self.path.display()),
        }
    }

    /// Applies the change of one file to the source's pods.
    async fn apply(&self, change: Change) {
        match change {
            // `run` reads the whole folder again.
            Change::Unknown => {}
            Change::Gone(file) => {
                let key = self.keys.lock().remove(&file);
                if let Some(key) = key {
                    self.store.delete(&key);
                }
            }
            Change::Written(file) => {
                let (read, to) = (file.clone(), self.to.clone());
                match task::blocking(move || read_file(&read, &to)).await {
                    Ok(pod) => {
                        self.keys.lock().insert(file, key(&pod));
                        self.store.add(key(&pod), pod);
                    }
                    // Its last pod stays until the folder is read whole.
                    Err(fault) => fault.log(&file),
                }
            }
        }
    }
}

/// Returns the key of a pod in the store: its namespace and name.
fn key(pod: &Pod) -> String {
    pod.display_name()
}

/// Why a file has no pod.
enum Fault {
    Gone,
    NotAFile,
    /// It says nothing about the content, as when there is no descriptor left.
    Unreadable(io::Error),
    Broken(Error),
}

impl Fault {
    /// Logs the fault of a file, unless the file is only gone.
    fn log(&self, file: &Path) {
        let file = file.display();
        match self {
            Fault::Gone => {}
            Fault::NotAFile => log::error!("{file} is not a file"),
            Fault::Unreadable(error) => log::error!("{file}: {error}"),
            Fault::Broken(error) => log::error!("{file}: {}", chain(error)),
        }
    }
}

type Read = Result<Arc<Pod>, Fault>;

/// Reads the pods of all files of a folder, except hidden ones, or of the one file.
fn read_all(path: &Path, to: &Placement) -> io::Result<Vec<(PathBuf, Read)>> {
    let mut files = match fs::metadata(path)?.is_dir() {
        false => vec![path.to_owned()],
        true => {
            let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
            entries.collect::<io::Result<Vec<_>>>()?
        }
    };
    files.sort();
    let is_hidden =
        |file: &Path| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let files = files.into_iter().filter(|file| !is_hidden(file));
    Ok(files.map(|file| (file.clone(), read_file(&file, to))).collect())
}

/// Reads the pod of one file. Blocks.
fn read_file(file: &Path, to: &Placement) -> Read {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Fault::Gone,
        _ => Fault::Unreadable(error),
    };
    // A pipe would block.
    if !fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(Fault::NotAFile);
    }
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Fault::Broken(Error::TooLarge { what: "it" }));
    }
    decode::pod(&bytes, &Origin::file(file), to).map(Arc::new).map_err(Fault::Broken)
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use kube_controller_manager::clock::SystemClock;

    use super::super::{Op, PodUpdate};
    use super::*;

    fn manifest(name: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n\
             spec: {{containers: [{{name: a, image: 'b:1'}}]}}\n"
        )
    }

    /// The next change, as its operation and the pods' names.
    async fn next_change(updates: &Receiver<PodUpdate>) -> (Op, Vec<String>) {
        let update = updates.recv().await.expect("a change");
        (update.op, update.pods.iter().map(|pod| pod.name().to_owned()).collect())
    }

    #[test]
    fn changes_of_a_folder_become_changes_of_pods() {
        let folder = std::env::temp_dir().join(format!("kubelet-pods-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let clock = SystemClock::shared();
        let (config, updates) = PodConfig::new(clock.clone());
        let stop = StopToken::new();
        // Never read whole again, so that each change comes by inotify.
        let period = Duration::from_secs(100_000);
        let to = Placement { node: "n".to_owned(), has_objects: false };
        let source = run(folder.clone(), to, period, config, clock, stop.clone());
        let test = async {
            let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
            // The folder does not exist yet.
            assert_eq!(next_change(&updates).await, (Op::Add, names(&[])));
            let ready = folder.with_extension("new");
            fs::create_dir_all(&ready).expect("a folder");
            fs::write(ready.join("b.yaml"), manifest("b")).expect("a file");
            fs::write(ready.join("broken.yaml"), "{").expect("a file");
            fs::write(ready.join(".hidden.yaml"), manifest("hidden")).expect("a file");
            fs::rename(&ready, &folder).expect("a new name");
            assert_eq!(next_change(&updates).await, (Op::Add, names(&["b-n"])));
            fs::write(folder.join("a.yaml"), manifest("a")).expect("a file");
            assert_eq!(next_change(&updates).await, (Op::Add, names(&["a-n"])));
            // A file that breaks keeps its pod; the change after it is the next one.
            fs::write(folder.join("a.yaml"), "{").expect("a file");
            fs::remove_file(folder.join("b.yaml")).expect("a file");
            assert_eq!(next_change(&updates).await, (Op::Remove, names(&["b-n"])));
            fs::rename(folder.join("a.yaml"), folder.join("c.yaml")).expect("a new name");
            assert_eq!(next_change(&updates).await, (Op::Remove, names(&["a-n"])));
            fs::remove_dir_all(&folder).expect("a folder");
        };
        block_on(test.or(source));
        stop.stop();
    }

    #[test]
    fn pods_of_files_that_cannot_be_read_stay() {
        let folder = std::env::temp_dir().join(format!("kubelet-unread-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let to = Placement { node: "n".to_owned(), has_objects: false };
        let source = Folder::new(folder.clone(), to, async_channel::unbounded().0);
        let names = || {
            block_on(source.read_all());
            let mut names: Vec<_> =
                source.store.list().iter().map(|pod| pod.name().to_owned()).collect();
            names.sort();
            names.join(" ")
        };
        for name in ["a", "b", "c"] {
            fs::write(folder.join(name), manifest(name)).expect("a file");
        }
        assert_eq!(names(), "a-n b-n c-n");
        // A link to itself cannot be opened.
        fs::remove_file(folder.join("a")).expect("removed");
        std::os::unix::fs::symlink("a", folder.join("a")).expect("a link");
        fs::write(folder.join("b"), "{").expect("a file");
        fs::remove_file(folder.join("c")).expect("removed");
        assert_eq!(names(), "a-n");
        assert_eq!(names(), "a-n");
        fs::write(folder.join("b"), manifest("d")).expect("a file");
        assert_eq!(names(), "a-n d-n");
        fs::remove_file(folder.join("a")).expect("removed");
        assert_eq!(names(), "d-n");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
