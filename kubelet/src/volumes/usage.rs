//! What the volumes of claims and drivers hold, for statistics. A volume is measured when somebody
//! asks and its last measurement is old: by its driver, by its file system, or by the size of its
//! device. Upstream: `volumeStatCalculator`, `metricsCsi`, `metricsStatFS`, `metricsBlock`.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;

use super::csi::Handle;
use super::manager::{Inner, Mounted, VolumeManager};
use super::{Error, Folders, claim, nfs, plain};
use crate::causes::chain;
use crate::csi::{self, Amounts};
use crate::metrics;
use crate::pod::{Pod, PodExt, Uid};

/// How long an answer waits for the measurements that it has begun. Those of a driver that takes
/// longer are in a later answer.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A pod and a volume of it.
type Key = (Uid, String);

/// What a volume of a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredVolume {
    pub name: String,
    /// The name of its claim, in the pod's namespace; `None`: the driver's volume lives with its
    /// pod.
    pub claim: Option<String>,
    pub time: Timestamp,
    pub amounts: Amounts,
}

/// How a volume is measured: by a call to its driver, by its file system, or by its device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Gauge {
    Driver { of: Handle, path: PathBuf },
    FileSystem(PathBuf),
    Device(PathBuf),
}

struct Entry {
    /// When the last measurement began, by the monotonic clock.
    begun: Duration,
    is_running: bool,
    /// `None`: it failed, or has not ended yet.
    last: Option<(Timestamp, Amounts)>,
}

/// The last measurements, by pod and volume.
#[derive(Default)]
pub(super) struct Usages(Mutex<HashMap<Key, Entry>>);

impl Usages {
    /// Returns the volumes whose measurement is due, and marks it as running: the caller measures
    /// them and calls `end`. Forgets volumes that are not among `volumes` any more.
    fn begin(
        &self,
        volumes: BTreeMap<Key, Gauge>,
        period: Duration,
        now: Duration,
    ) -> Vec<(Key, Gauge)> {
        let mut entries = self.0.lock();
        entries.retain(|key, _| volumes.contains_key(key));
        let due = volumes.into_iter().filter(|(key, _)| {
            let entry = entries.entry(key.clone()).or_insert(Entry {
                begun: now,
                is_running: false,
                last: None,
            });
            // The entry that was just made.
            let is_first = entry.begun == now && entry.last.is_none();
            let is_due = is_first || now.saturating_sub(entry.begun) >= period;
            // One at a time: a driver may be silent for long.
            let begins = is_due && !entry.is_running;
            if begins {
                (entry.begun, entry.is_running) = (now, true);
            }
            begins
        });
        due.collect()
    }

    /// Records the end of the measurement that began at `begun`; `last`: what it has found.
    fn end(&self, key: &Key, begun: Duration, last: Option<(Timestamp, Amounts)>) {
        // The volume may be gone, or be another one of this name.
        if let Some(entry) = self.0.lock().get_mut(key).filter(|entry| entry.begun == begun) {
            (entry.is_running, entry.last) = (false, last);
        }
    }

    /// Returns the time and the result of the last measurement of a volume that has ended. `None`:
    /// it failed, or there has not been one.
    fn last(&self, key: &Key) -> Option<(Timestamp, Amounts)> {
        self.0.lock().get(key).and_then(|entry| entry.last)
    }

    /// Forgets the measurements of a pod that has ended.
    pub(super) fn forget(&self, uid: &Uid) {
        self.0.lock().retain(|(of, _), _| of != uid);
    }
}

impl VolumeManager {
    /// Returns the shortest time between two measurements of a volume; `None`: volumes are never
    /// measured.
    pub fn usage_period(&self) -> Option<Duration> {
        self.0.usage_period
    }

    /// Returns what the volumes of claims and drivers of these pods hold, as far as it is known.
    /// Measures first those whose last measurement is older than the period. The future may be
    /// dropped at any time: measurements that it has begun run to their ends.
    pub async fn usage(&self, pods: &[Arc<Pod>]) -> HashMap<Uid, Vec<MeasuredVolume>> {
        let inner = &self.0;
        let Some(period) = inner.usage_period else { return HashMap::new() };
        let now = inner.clock.monotonic();
        let due = inner.usages.begin(inner.gauges(), period, now);
        let running: Vec<_> = due
            .into_iter()
            .map(|(key, gauge)| {
                let inner = inner.clone();
                task::spawn(async move {
                    let last = inner.measure(&key, gauge).await;
                    inner.usages.end(&key, now, last);
                })
            })
            .collect();
        let all = async {
            for measurement in running {
                measurement.await;
            }
        };
        all.or(inner.clock.sleep(MAX_WAIT)).await;
        pods.iter().map(|pod| (pod.uid(), inner.measured(pod))).collect()
    }
}

/// Upstream's names of the volumes that have to be set up, and of those that are.
const STATES: [&str; 2] = ["desired_state_of_world", "actual_state_of_world"];

impl VolumeManager {
    /// Counts the volumes of these pods by plugin and state, for a metric. Upstream:
    /// `getVolumeCount`.
    pub fn counts(&self, pods: &[Arc<Pod>]) -> BTreeMap<(String, &'static str), i64> {
        let known = self.0.state.lock().known();
        let mut counts = BTreeMap::new();
        for pod in pods {
            for volume in pod.spec().volumes.iter().flatten() {
                let found = known.get(&(pod.uid(), volume.name.clone()));
                let Some((mounted, driven)) = found else { continue };
                let plugin = plugin_of(volume, mounted.as_ref(), driven.as_ref());
                let [desired, actual] = STATES.map(|state| (plugin.clone(), state));
                *counts.entry(desired).or_default() += 1;
                if mounted.is_some() {
                    *counts.entry(actual).or_default() += 1;
                }
            }
        }
        counts
    }
}

/// Returns the name of a volume's plugin, for metrics. `mounted`: the volume, if it is set up;
/// `driven`: its handle, if a CSI driver has it. Upstream: `GetFullQualifiedPluginNameForVolume`.
fn plugin_of(volume: &core::Volume, mounted: Option<&Mounted>, driven: Option<&Handle>) -> String {
    if let Some(of) = driven {
        return of.plugin();
    }
    let is_below =
        |of: &Mounted, folder: &str| of.path.components().any(|part| part.as_os_str() == folder);
    let plugin = plain::plugin(volume).unwrap_or_else(|| match mounted {
        Some(of) if of.is_device || is_below(of, plain::LOCAL) => plain::LOCAL_PLUGIN,
        Some(of) if is_below(of, nfs::FOLDER) => nfs::PLUGIN,
        Some(_) => plain::HOST_PATH_PLUGIN,
        // What its claim stands for is not known yet.
        None => plain::NO_PLUGIN,
    });
    plugin.to_owned()
}

impl Inner {
    /// Returns the last measurements of a pod's volumes; volumes without one are left out.
    fn measured(&self, pod: &Pod) -> Vec<MeasuredVolume> {
        let volumes = pod.spec().volumes.iter().flatten();
        let measured = volumes.filter_map(|volume| {
            let (time, amounts) = self.usages.last(&(pod.uid(), volume.name.clone()))?;
            let claim = claim::claim_of(pod, volume).map(|(name, _)| name);
            Some(MeasuredVolume { name: volume.name.clone(), claim, time, amounts })
        });
        measured.collect()
    }

    /// Returns how each volume that is set up is measured; those that are not measured are left
    /// out.
    fn gauges(&self) -> BTreeMap<Key, Gauge> {
        let known = self.state.lock().known();
        let gauges = known.into_iter().filter_map(|((uid, name), (mounted, driven))| {
            let gauge = gauge_of(&self.folders, &uid, mounted?, driven)?;
            Some(((uid, name), gauge))
        });
        gauges.collect()
    }

    /// Measures a volume. `None`: that failed, or the driver has no statistics.
    async fn measure(&self, (uid, volume): &Key, gauge: Gauge) -> Option<(Timestamp, Amounts)> {
        let (time, begin) = (self.clock.now(), self.clock.monotonic());
        let label = match &gauge {
            Gauge::Driver { of, .. } => of.driver.clone(),
            Gauge::FileSystem(_) => "statfs".to_owned(),
            Gauge::Device(_) => "block".to_owned(),
        };
        let outcome: Result<Option<Amounts>, Error> = match gauge {
            Gauge::Driver { of, path } => self.ask(&of, &path).await.map_err(Error::Csi),
            Gauge::FileSystem(path) => task::blocking(move || file_system(&path)).await.map(Some),
            Gauge::Device(path) => task::blocking(move || device(&path)).await.map(Some),
        };
        let took = self.clock.monotonic().saturating_sub(begin);
        metrics::VOLUME_MEASUREMENT.with_label_values(&[&label]).observe(took.as_secs_f64());
        let found = outcome.unwrap_or_else(|error| {
            log::debug!("usage of volume {volume} of pod {uid}: {}", chain(&error));
            None
        });
        found.map(|amounts| (time, amounts))
    }

    /// Asks a driver for the usage of its volume. `None`: it has no statistics.
    async fn ask(&self, of: &Handle, path: &Path) -> Result<Option<Amounts>, csi::Error> {
        let driver = self.drivers.get(&of.driver)?;
        driver.volume_stats(&of.handle, path).await
    }
}

/// Decides how a volume is measured. `None`: not here: a hostPath is not measured, and `stats`
/// measures those whose files are in the pod's folder. `driven`: its handle, if a CSI driver has it.
fn gauge_of(
    folders: &Folders,
    uid: &Uid,
    mounted: Mounted,
    driven: Option<Handle>,
) -> Option<Gauge> {
    match (driven, mounted.persistent) {
        (Some(of), Some(volume)) if mounted.is_device => {
            Some(Gauge::Driver { of, path: folders.published_block(&volume, uid) })
        }
        (Some(of), _) => Some(Gauge::Driver { of, path: mounted.path }),
        (None, Some(_)) if mounted.is_device => Some(Gauge::Device(mounted.path)),
        (None, _) => {
            let below = mounted.path.strip_prefix(folders.pod(uid).join("volumes")).ok()?;
            let kind = below.components().next()?.as_os_str();
            // Only these are file systems of their own.
            let is_mount = kind == plain::LOCAL || kind == nfs::FOLDER;
            is_mount.then_some(Gauge::FileSystem(mounted.path))
        }
    }
}

/// Reads the size and the usage of the file system at a path. Blocks. Upstream: `fs.Info`.
fn file_system(path: &Path) -> Result<Amounts, Error> {
    let found = rustix::fs::statvfs(path).map_err(|error| Error::at(path)(error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Amounts {
        capacity_bytes: bytes(found.f_blocks),
        available_bytes: bytes(found.f_bavail),
        used_bytes: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        inodes_used: found.f_files.saturating_sub(found.f_ffree),
    })
}

/// Reads the size of a device; nothing else of it is known. Blocks.
fn device(path: &Path) -> Result<Amounts, Error> {
    let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let capacity_bytes = size.map_err(Error::at(path))?;
    Ok(Amounts { capacity_bytes, ..Amounts::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(volume: &str) -> Key {
        (Uid::parse("u").expect("a uid"), volume.to_owned())
    }

    fn gauges(names: &[&str]) -> BTreeMap<Key, Gauge> {
        names.iter().map(|name| (key(name), Gauge::Device(name.into()))).collect()
    }

    #[test]
    fn volumes_are_measured_once_in_a_period_and_one_at_a_time() {
        let (usages, seconds) = (Usages::default(), Duration::from_secs);
        let begin = |names: &[&str], now| -> Vec<String> {
            let due = usages.begin(gauges(names), seconds(60), seconds(now));
            due.into_iter().map(|((_, name), _)| name).collect()
        };
        let amounts = |bytes| Amounts { capacity_bytes: bytes, ..Amounts::default() };
        let end = |name, begun, bytes| {
            let last = Some((Timestamp::from_secs(1), amounts(bytes)));
            usages.end(&key(name), seconds(begun), last);
        };
        let last = |name| usages.last(&key(name)).map(|(_, found)| found.capacity_bytes);
        assert_eq!(begin(&["a", "b"], 100), ["a", "b"]);
        assert_eq!(begin(&["a", "b"], 100), [""; 0], "they run");
        assert_eq!(last("a"), None);
        end("a", 100, 5);
        assert_eq!((last("a"), last("b")), (Some(5), None));
        // The driver of the second one is silent.
        assert_eq!(begin(&["a", "b"], 159), [""; 0]);
        assert_eq!(begin(&["a", "b"], 160), ["a"]);
        assert_eq!(last("a"), Some(5), "the old result serves meanwhile");
        end("a", 160, 6);
        end("b", 100, 7);
        assert_eq!((last("a"), last("b")), (Some(6), Some(7)));
        assert_eq!(begin(&["a", "b"], 161), ["b"]);
        // What is gone is forgotten, and its late result is not that of the next one.
        assert_eq!(begin(&["a"], 162), [""; 0]);
        assert_eq!(begin(&["a", "b"], 163), ["b"]);
        end("b", 161, 8);
        assert_eq!(last("b"), None);
        usages.forget(&key("a").0);
        assert_eq!((last("a"), last("b")), (None, None));
    }

    #[test]
    fn a_failed_measurement_is_repeated_by_the_period() {
        let (usages, seconds) = (Usages::default(), Duration::from_secs);
        let begin = |now| usages.begin(gauges(&["a"]), seconds(60), seconds(now)).len();
        assert_eq!(begin(10), 1);
        usages.end(&key("a"), seconds(10), None);
        assert_eq!((begin(11), begin(69), begin(70)), (0, 0, 1));
    }

    #[test]
    fn volumes_are_measured_by_those_who_know() {
        let root = PathBuf::from("/root");
        let folders = Folders { logs: root.join("logs"), root };
        let uid = Uid::parse("u").expect("a uid");
        let of = || Handle { driver: "d".to_owned(), handle: "h".to_owned() };
        let mounted = |path: &Path, is_device, persistent: Option<&str>| Mounted {
            path: path.to_owned(),
            read_only: false,
            is_device,
            group: None,
            persistent: persistent.map(str::to_owned),
        };
        let local = folders.volume(&uid, "local-volume", "pv");
        let of_server = folders.volume(&uid, "nfs", "v");
        let (path, block) = (Path::new("/p"), folders.published_block("pv", &uid));
        for (mounted, driven, expected) in [
            (
                mounted(path, false, Some("pv")),
                Some(of()),
                Some(Gauge::Driver { of: of(), path: path.to_owned() }),
            ),
            (
                mounted(path, false, None),
                Some(of()),
                Some(Gauge::Driver { of: of(), path: path.to_owned() }),
            ),
            (
                mounted(path, true, Some("pv")),
                Some(of()),
                Some(Gauge::Driver { of: of(), path: block }),
            ),
            (mounted(&local, false, Some("pv")), None, Some(Gauge::FileSystem(local.clone()))),
            (mounted(path, true, Some("pv")), None, Some(Gauge::Device(path.to_owned()))),
            (mounted(&of_server, false, None), None, Some(Gauge::FileSystem(of_server.clone()))),
            // A hostPath of a PersistentVolume, and of a pod.
            (mounted(path, false, Some("pv")), None, None),
            (mounted(path, false, None), None, None),
        ] {
            assert_eq!(gauge_of(&folders, &uid, mounted.clone(), driven), expected, "{mounted:?}");
        }
    }

    #[test]
    fn volumes_are_counted_by_their_plugins() {
        let volume = |json| serde_json::from_value::<core::Volume>(json).expect("a volume");
        let claimed = || volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}));
        let mounted = |path: &str, is_device| Mounted {
            path: path.into(),
            read_only: false,
            is_device,
            group: None,
            persistent: Some("pv".to_owned()),
        };
        let of = Handle { driver: "d".to_owned(), handle: "h".to_owned() };
        let local = mounted("/r/pods/u/volumes/kubernetes.io~local-volume/pv", false);
        for (volume, mounted, driven, expected) in [
            (volume(json!({"name": "v", "emptyDir": {}})), None, None, "kubernetes.io/empty-dir"),
            (claimed(), None, Some(&of), "kubernetes.io/csi:d"),
            (claimed(), None, None, "N/A"),
            (claimed(), Some(&local), None, "kubernetes.io/local-volume"),
            (claimed(), Some(&mounted("/dev/x", true)), None, "kubernetes.io/local-volume"),
            (
                claimed(),
                Some(&mounted("/r/pods/u/volumes/kubernetes.io~nfs/pv", false)),
                None,
                "kubernetes.io/nfs",
            ),
            (claimed(), Some(&mounted("/x", false)), None, "kubernetes.io/host-path"),
        ] {
            assert_eq!(plugin_of(&volume, mounted, driven), expected, "{mounted:?}");
        }
    }

    #[test]
    fn file_systems_and_devices_say_their_sizes() {
        let path = std::env::temp_dir().join(format!("kubelet-size-of-{}", std::process::id()));
        std::fs::write(&path, vec![0; 5000]).expect("a file");
        let found = device(&path).expect("a size");
        assert_eq!(found, Amounts { capacity_bytes: 5000, ..Amounts::default() });
        std::fs::remove_file(&path).expect("removed");
        assert!(device(&path).is_err() && file_system(&path).is_err());
        let found = file_system(&std::env::temp_dir()).expect("a file system");
        assert!(found.capacity_bytes >= found.used_bytes && found.capacity_bytes > 0, "{found:?}");
    }
}
