//! A file with the resources of pods, in the form in which upstream keeps them.
//! Upstream: `allocation/state`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube_controller_manager::task;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Error, PodResources};
use crate::files;
use crate::pod::Uid;

/// The resources of pods by uid, in memory and in a file. Reads do not block.
pub struct Checkpoint {
    path: PathBuf,
    pods: Mutex<BTreeMap<String, PodResources>>,
    /// The checksum of what the file has, `None`: it is not known; held while it is written.
    written: Arc<async_lock::Mutex<Option<u64>>>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct File {
    /// `Data` as JSON.
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, PodResources>,
}

impl Checkpoint {
    /// Reads the file, if it exists. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was written: the resources that pods have are not known.
    pub fn open(path: PathBuf) -> Result<Checkpoint, Error> {
        let (pods, checksum) = match fs::read(&path) {
            Ok(content) => restore(&path, &content)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(source) => return Err(Error::Path { path, source }),
        };
        Ok(Checkpoint { path, pods: Mutex::new(pods), written: Arc::new(checksum.into()) })
    }

    /// Returns the resources of a pod; `None`: there is no record of it.
    pub fn get(&self, uid: &str) -> Option<PodResources> {
        self.pods.lock().get(uid).cloned()
    }

    /// Sets the resources of a pod in memory. They are in the file after the next write. Returns
    /// those that it had; `None`: there was no record of it.
    pub fn insert(&self, uid: &Uid, resources: PodResources) -> Option<PodResources> {
        self.pods.lock().insert(uid.to_string(), resources)
    }

    /// Replaces the resources of a pod. If the file cannot be written, the pod has those again that
    /// it had, as after a restart, unless it is gone or was given others meanwhile. During the
    /// write it has the new ones: a sync may apply them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn replace(&self, uid: &Uid, resources: PodResources) -> Result<(), Error> {
        let former = self.insert(uid, resources.clone());
        let written = self.write().await;
        if let (Err(_), Some(former)) = (&written, former) {
            let mut pods = self.pods.lock();
            if let Some(present) = pods.get_mut(&**uid).filter(|present| **present == resources) {
                *present = former;
            }
        }
        written
    }

    /// Records that a container was given these resources.
    ///
    /// # Errors
    /// The file cannot be written. What is in memory is set, as it is what the container has.
    pub async fn set_container(
        &self,
        uid: &Uid,
        container: &str,
        resources: ResourceRequirements,
    ) -> Result<(), Error> {
        let insert = |record: &mut PodResources| {
            record.container_resources.insert(container.to_owned(), resources);
        };
        self.change(uid, insert).await
    }

    /// Records that a pod's cgroup was given the pod's own resources.
    ///
    /// # Errors
    /// The file cannot be written. What is in memory is set, as it is what the pod has.
    pub async fn set_pod_level(
        &self,
        uid: &Uid,
        resources: ResourceRequirements,
    ) -> Result<(), Error> {
        self.change(uid, |record| record.pod_level_resources = Some(resources)).await
    }

    /// Changes the record of a pod in memory, and writes the file.
    async fn change(&self, uid: &Uid, change: impl FnOnce(&mut PodResources)) -> Result<(), Error> {
        change(self.pods.lock().entry(uid.to_string()).or_default());
        self.write().await
    }

    /// Forgets the pods that are not `known`. The file loses them with the next change, as upstream.
    pub fn retain(&self, known: impl Fn(&str) -> bool) {
        self.pods.lock().retain(|uid, _| known(uid));
    }

    /// Writes the resources of all pods to the file, unless it has them already.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn write(&self) -> Result<(), Error> {
        let mut written = self.written.lock_arc().await;
        let entries = self.pods.lock().clone();
        let data = serde_json::to_string(&Data { entries }).map_err(Error::Serialize)?;
        let checksum = checksum(&data);
        if *written == Some(checksum) {
            return Ok(());
        }
        let file = serde_json::to_vec(&File { data, checksum }).map_err(Error::Serialize)?;
        let path = self.path.clone();
        // The work holds the guard: it continues when this future does not.
        let replaced = task::blocking(move || {
            let replaced = files::replace(&path, 0o644, &file);
            // After a failure the file may have the one or the other.
            *written = replaced.is_ok().then_some(checksum);
            replaced
        });
        replaced.await.map_err(|source| Error::Path { path: self.path.clone(), source })
    }
}

type Restored = (BTreeMap<String, PodResources>, Option<u64>);

/// Parses the content of the file and checks it; returns the pods and the checksum.
fn restore(path: &Path, content: &[u8]) -> Result<Restored, Error> {
    let malformed = |source| Error::Malformed { path: path.to_owned(), source };
    let File { data, checksum: expected } = serde_json::from_slice(content).map_err(malformed)?;
    if checksum(&data) != expected {
        return Err(Error::Corrupt { path: path.to_owned() });
    }
    let Data { entries } = serde_json::from_str(&data).map_err(malformed)?;
    Ok((entries, Some(expected)))
}

/// Computes FNV-1a of 32 bits of Go's dump of the text. Upstream: `checksum.New`.
fn checksum(data: &str) -> u64 {
    let dump = format!("(string){data}");
    let add = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    u64::from(dump.bytes().fold(0x811c_9dc5, add))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::poll_once;

    use super::*;

    /// Of upstream's own test.
    const OF_GO: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    #[test]
    fn files_of_the_go_kubelet_are_read_and_damaged_ones_refused() {
        let (pods, checksum) = restore(Path::new("f"), OF_GO.as_bytes()).expect("a checkpoint");
        assert_eq!(checksum, Some(1_178_570_812));
        let container = &pods["pod1"].container_resources["container1"];
        assert_eq!(container.requests.as_ref().expect("requests")["cpu"].0, "1Ki");
        for (damaged, expected) in [
            (OF_GO.replace("1178570812", "1"), "corrupted"),
            (OF_GO.replace("1Ki", "2Ki"), "corrupted"),
            (OF_GO[..OF_GO.len() - 1].to_owned(), "could not restore state"),
            (String::new(), "could not restore state"),
        ] {
            let error = restore(Path::new("f"), damaged.as_bytes()).expect_err("damaged");
            assert!(error.to_string().contains(expected), "{error}");
        }
        // Of a pod without containers.
        let null = r#"{"entries":{"p":{"ContainerResources":null,"PodLevelResources":null}}}"#;
        let null: Data = serde_json::from_str(null).expect("entries");
        assert_eq!(null.entries["p"], PodResources::default());
    }

    #[test]
    fn failed_write_keeps_what_was_allocated_and_what_was_given() {
        let folder = std::env::temp_dir().join(format!("kubelet-unwritten-{}", std::process::id()));
        let path = folder.join("allocated_pods_state");
        let uid = |text: &str| Uid::parse(text).expect("a uid");
        let with = |cpu: &str| -> ResourceRequirements {
            serde_json::from_value(serde_json::json!({"limits": {"cpu": cpu}})).expect("resources")
        };
        let of_pod = move |cpu: &str| PodResources {
            container_resources: [("c".to_owned(), with(cpu))].into(),
            pod_level_resources: None,
        };
        task::run(1, async move {
            fs::create_dir_all(&folder).expect("a folder");
            let checkpoint = Checkpoint::open(path.clone()).expect("a checkpoint");
            checkpoint.replace(&uid("u"), of_pod("1")).await.expect("set");
            fs::remove_dir_all(&folder).expect("removed");
            let get = |uid: &str| checkpoint.get(uid).expect("a record");
            checkpoint.replace(&uid("u"), of_pod("2")).await.expect_err("no folder");
            assert_eq!(get("u"), of_pod("1"));
            // It had nothing that it could keep.
            checkpoint.replace(&uid("v"), of_pod("3")).await.expect_err("no folder");
            assert_eq!(get("v"), of_pod("3"));
            checkpoint.set_container(&uid("v"), "c", with("4")).await.expect_err("no folder");
            assert_eq!(get("v"), of_pod("4"));
            // The next write has all of it.
            fs::create_dir_all(&folder).expect("a folder");
            checkpoint.write().await.expect("written");
            let next = Checkpoint::open(path).expect("a checkpoint");
            assert_eq!((next.get("u"), next.get("v")), (Some(of_pod("1")), Some(of_pod("4"))));
            fs::remove_dir_all(&folder).expect("removed");
            // What was set or forgotten during a failed write stays so.
            let uid = uid("u");
            for is_known in [true, false] {
                let writing = checkpoint.written.lock().await;
                let mut replaced = pin!(checkpoint.replace(&uid, of_pod("5")));
                assert!(poll_once(&mut replaced).await.is_none());
                checkpoint.insert(&uid, of_pod("6"));
                checkpoint.retain(|_| is_known);
                drop(writing);
                replaced.await.expect_err("no folder");
                assert_eq!(checkpoint.get("u"), is_known.then(|| of_pod("6")));
            }
        });
    }

    #[test]
    fn what_was_set_is_there_after_a_restart() {
        let folder = std::env::temp_dir().join(format!("kubelet-alloc-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("allocated_pods_state");
        let uid = Uid::parse("u").expect("a uid");
        let resources: ResourceRequirements =
            serde_json::from_value(serde_json::json!({"limits": {"cpu": "1"}})).expect("resources");
        task::run(1, async move {
            let open = || Checkpoint::open(path.clone()).expect("a checkpoint");
            let checkpoint = open();
            assert_eq!(checkpoint.get("u"), None);
            checkpoint.set_container(&uid, "c", resources.clone()).await.expect("set");
            checkpoint.set_pod_level(&uid, resources.clone()).await.expect("set");
            let expected = PodResources {
                container_resources: [("c".to_owned(), resources.clone())].into(),
                pod_level_resources: Some(resources),
            };
            assert_eq!(open().get("u"), Some(expected));
            checkpoint.replace(&uid, PodResources::default()).await.expect("set");
            assert_eq!(open().get("u"), Some(PodResources::default()));
            // The caller may stop waiting: no other write begins before this one ends.
            let last = checkpoint.set_pod_level(&uid, ResourceRequirements::default());
            assert!(poll_once(last).await.is_none());
            let written = *checkpoint.written.lock().await;
            assert_eq!(open().get("u"), checkpoint.get("u"));
            assert_eq!(*open().written.lock().await, written);
            checkpoint.retain(|_| false);
            assert_eq!(checkpoint.get("u"), None);
            fs::remove_dir_all(&folder).expect("removed");
        });
    }
}
