//! Removes images that no container uses: old ones, and as many as the disk needs.
//! Upstream: `images/image_gc_manager.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;

use super::Error;
use super::pull_records::PullRecords;
use crate::cri::{self, ImageService, RuntimeService, api};
use crate::metrics;

/// When images go. Upstream: `ImageGCPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From this usage of the disk on, images go until `low` is reached.
    pub high_percent: u64,
    pub low_percent: u64,
    /// An image that was seen first more recently stays.
    pub min_age: Duration,
    /// An image that was not used for longer is removed, with any usage of the disk; zero: never.
    pub max_age: Duration,
}

impl Policy {
    /// Returns whether no image ever goes.
    pub fn is_off(&self) -> bool {
        self.high_percent == 100 && self.max_age.is_zero()
    }
}

/// An image of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub bytes: u64,
    /// The runtime needs it.
    pub is_pinned: bool,
}

/// Times are since a common start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    first_detected: Duration,
    last_used: Option<Duration>,
    bytes: u64,
    is_pinned: bool,
}

/// An image that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: String,
    pub bytes: u64,
    first_detected: Duration,
    last_used: Option<Duration>,
}

/// What is known of images and their use.
#[derive(Debug, Default)]
pub struct Records {
    images: BTreeMap<String, Record>,
}

impl Records {
    /// Records which images exist at the time `now`, and which of them are in use. Forgets the
    /// others. Upstream: `detectImages`.
    pub fn detect(&mut self, images: &[Image], in_use: &BTreeSet<String>, now: Duration) {
        for image in images {
            let record = self.images.entry(image.id.clone()).or_insert(Record {
                first_detected: now,
                last_used: None,
                bytes: 0,
                is_pinned: false,
            });
            if in_use.contains(&image.id) {
                record.last_used = Some(now);
            }
            record.bytes = image.bytes;
            record.is_pinned = image.is_pinned;
        }
        let present: BTreeSet<&String> = images.iter().map(|image| &image.id).collect();
        self.images.retain(|id, _| present.contains(id));
    }

    /// Lists the images that are neither in use nor pinned; those that were used longest ago first.
    /// Upstream: `imagesInEvictionOrder`.
    pub fn candidates(&self, in_use: &BTreeSet<String>) -> Vec<Candidate> {
        let free =
            self.images.iter().filter(|(id, record)| !in_use.contains(*id) && !record.is_pinned);
        let mut candidates: Vec<Candidate> = free
            .map(|(id, record)| Candidate {
                id: id.clone(),
                bytes: record.bytes,
                first_detected: record.first_detected,
                last_used: record.last_used,
            })
            .collect();
        candidates.sort_by_key(|image| (image.last_used, image.first_detected));
        candidates
    }
}

/// Returns whether an image has to be removed because it has not been used for too long. `running`:
/// how long uses have been recorded; none goes before that is longer than the limit. Upstream:
/// `freeOldImages`.
pub fn is_old(image: &Candidate, policy: &Policy, now: Duration, running: Duration) -> bool {
    let is_unused = image.last_used.is_none_or(|used| now.saturating_sub(used) > policy.max_age);
    !policy.max_age.is_zero() && running > policy.max_age && is_unused
}

/// Returns whether an image may be removed to free space: it is old enough, and was not in use at
/// the time `now`, the begin of the collection. Upstream: `freeSpace`.
pub fn may_go(image: &Candidate, policy: &Policy, now: Duration) -> bool {
    image.last_used.is_none_or(|used| used < now)
        && now.saturating_sub(image.first_detected) >= policy.min_age
}

/// The bytes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
}

impl Disk {
    /// Returns the file system that holds `path`. Blocks.
    ///
    /// # Errors
    /// When the path does not exist.
    pub fn of(path: &str) -> std::io::Result<Disk> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Disk {
            capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Returns how many percent of the disk are used.
    pub(super) fn used_percent(self) -> u64 {
        let available = u128::from(self.available.min(self.capacity));
        // A disk without capacity counts as free.
        let free = (available * 100).checked_div(u128::from(self.capacity)).unwrap_or(100);
        100 - u64::try_from(free).unwrap_or(100)
    }

    /// Returns the bytes to free, if the usage has reached the high threshold.
    pub fn to_free(self, policy: &Policy) -> Option<u64> {
        (self.used_percent() >= policy.high_percent).then(|| {
            let wanted = u128::from(self.capacity) * u128::from(100 - policy.low_percent) / 100;
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            wanted.saturating_sub(self.available.min(self.capacity))
        })
    }
}

/// The garbage collection of images.
pub struct ImageGc {
    service: ImageService,
    runtime: RuntimeService,
    clock: SharedClock,
    policy: Policy,
    since: Duration,
    records: Mutex<Records>,
    /// They lose the images that are removed.
    pull_records: Option<Arc<PullRecords>>,
}

impl ImageGc {
    pub fn new(
        service: ImageService,
        runtime: RuntimeService,
        clock: SharedClock,
        policy: Policy,
        pull_records: Option<Arc<PullRecords>>,
    ) -> ImageGc {
        let (since, records) = (clock.monotonic(), Mutex::default());
        ImageGc { service, runtime, clock, policy, since, records, pull_records }
    }

    /// Removes the images that were not used for too long. If the disk is too full then, removes
    /// further unused ones until enough is free.
    ///
    /// # Errors
    /// A call has failed, or not enough could be freed.
    pub async fn collect(&self) -> Result<(), Error> {
        let (now, began) = (self.clock.monotonic(), self.clock.now());
        let mut causes = Vec::new();
        let mut candidates = Vec::new();
        let unused = self.candidates(now).await?;
        let unused_count = unused.len();
        for image in unused {
            let running = now.saturating_sub(self.since);
            if !is_old(&image, &self.policy, now, running) {
                candidates.push(image);
            } else if let Err(error) = self.remove(&image, "age").await {
                causes.push(error);
            }
        }
        if !causes.is_empty() {
            let age = self.policy.max_age;
            let wanted = format!("wanted to free images older than {age:?}, encountered errors");
            return Err(Error::NotRemoved { wanted, causes });
        }
        if candidates.len() < unused_count {
            self.prune_pull_records(began).await;
        }
        let disk = self.disk().await?;
        if disk.capacity == 0 {
            return Err(Error::NoCapacity);
        }
        let Some(bytes) = disk.to_free(&self.policy) else { return Ok(()) };
        let used = disk.used_percent();
        log::info!(
            "Disk usage on image filesystem is over the high threshold, trying to free bytes down \
             to the low threshold: usage {used} %, {bytes} bytes"
        );
        let freed_bytes = self.free(candidates, bytes, now).await?;
        self.prune_pull_records(began).await;
        match freed_bytes < bytes {
            true => Err(Error::NotEnough { disk, freed_bytes }),
            false => Ok(()),
        }
    }

    /// Removes all images that may go, for room on the disk. Upstream: `DeleteUnusedImages`.
    ///
    /// # Errors
    /// A call has failed.
    pub async fn remove_unused(&self) -> Result<(), Error> {
        log::info!("Attempting to delete unused images");
        let (now, began) = (self.clock.monotonic(), self.clock.now());
        let candidates = self.candidates(now).await?;
        self.free(candidates, u64::MAX, now).await?;
        self.prune_pull_records(began).await;
        Ok(())
    }

    /// Removes the pull records of images that are gone. `began`: the time before the images were
    /// listed. Those of images in use stay: upstream removes them too, and takes these images for
    /// preloaded ones then, which all pods may use.
    async fn prune_pull_records(&self, began: Timestamp) {
        if let Some(pull_records) = &self.pull_records {
            let images = self.records.lock().images.keys().cloned().collect();
            pull_records.prune(images, began).await;
        }
    }

    /// Returns the disk of images. Upstream: `ImageFsStats`.
    ///
    /// # Errors
    /// The runtime does not name it, or it does not exist.
    pub async fn disk(&self) -> Result<Disk, Error> {
        let path = mount_point(&self.service).await?;
        task::blocking(move || Disk::of(&path).map_err(|source| Error::Filesystem { path, source }))
            .await
    }

    /// Lists the images that no container uses, after the records are brought up to date.
    async fn candidates(&self, now: Duration) -> Result<Vec<Candidate>, cri::Error> {
        let listed = self.service.list_images(api::ListImagesRequest::default()).await?.images;
        let containers =
            self.runtime.list_containers(api::ListContainersRequest::default()).await?;
        let own = |container: &api::Container| match container.image_id.as_str() {
            // A runtime may leave it empty.
            "" => container.image_ref.clone(),
            id => id.to_owned(),
        };
        let mut in_use: BTreeSet<String> = containers.containers.iter().map(own).collect();
        if listed.iter().any(|image| !image.pinned && !in_use.contains(&image.id)) {
            in_use.append(&mut self.mounted_images(&containers.containers).await?);
        }
        let images: Vec<Image> = listed
            .into_iter()
            .map(|image| Image { id: image.id, bytes: image.size, is_pinned: image.pinned })
            .collect();
        let mut records = self.records.lock();
        records.detect(&images, &in_use, now);
        Ok(records.candidates(&in_use))
    }

    /// Lists the images that containers mount. Upstream: `handleImageVolumes`.
    async fn mounted_images(
        &self,
        containers: &[api::Container],
    ) -> Result<BTreeSet<String>, cri::Error> {
        let mut images = BTreeSet::new();
        for container in containers {
            let container_id = container.id.clone();
            let request = api::ContainerStatusRequest { container_id, verbose: false };
            match self.runtime.container_status(request).await {
                Ok(answer) => {
                    let mounts = answer.status.into_iter().flat_map(|status| status.mounts);
                    images.extend(mounts.filter_map(|mount| Some(mount.image?.image)));
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(images)
    }

    /// Removes images in the order of the candidates until this much is free, and returns what is
    /// freed. Failures are collected.
    async fn free(
        &self,
        candidates: Vec<Candidate>,
        bytes: u64,
        now: Duration,
    ) -> Result<u64, Error> {
        let (mut freed, mut causes) = (0_u64, Vec::new());
        for image in candidates.iter().filter(|image| may_go(image, &self.policy, now)) {
            match self.remove(image, "space").await {
                Ok(()) => freed = freed.saturating_add(image.bytes),
                Err(error) => causes.push(error),
            }
            if freed >= bytes {
                break;
            }
        }
        if causes.is_empty() {
            return Ok(freed);
        }
        let wanted =
            format!("wanted to free {bytes} bytes, but freed {freed} bytes space with errors");
        Err(Error::NotRemoved { wanted, causes })
    }

    /// Removes one image from the runtime and from the records. `reason`: the label in a metric.
    async fn remove(&self, image: &Candidate, reason: &str) -> Result<(), cri::Error> {
        log::info!("Removing image to free bytes: {}, {} bytes", image.id, image.bytes);
        let spec = api::ImageSpec { image: image.id.clone(), ..Default::default() };
        self.service.remove_image(api::RemoveImageRequest { image: Some(spec) }).await?;
        self.records.lock().images.remove(&image.id);
        metrics::IMAGES_COLLECTED.with_label_values(&[reason]).inc();
        Ok(())
    }
}

/// Returns where the runtime keeps images.
///
/// # Errors
/// The runtime does not name it.
pub async fn mount_point(service: &ImageService) -> Result<String, Error> {
    let info = service.image_fs_info(api::ImageFsInfoRequest {}).await?;
    let first = info.image_filesystems.into_iter().next().and_then(|usage| usage.fs_id);
    Ok(first.ok_or(Error::NoFilesystem)?.mountpoint)
}

/// Formats a number of bytes with a unit. Upstream: `formatSize`.
pub(super) fn format_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: Duration::from_secs(3600),
    };

    fn image(id: &str, is_pinned: bool) -> Image {
        Image { id: id.to_owned(), bytes: 1, is_pinned }
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn images_are_ordered_by_their_last_use_and_first_sight() {
        let seconds = Duration::from_secs;
        let mut records = Records::default();
        records.detect(&[image("d", false), image("b", false)], &set(&["b"]), seconds(0));
        let all = ["a", "b", "c", "d"].map(|id| image(id, false));
        records.detect(&all, &set(&["c"]), seconds(10));
        let mut all = all.to_vec();
        all.push(image("pause", true));
        records.detect(&all, &set(&["e"]), seconds(20));
        let ids = |in_use: &[&str]| -> Vec<String> {
            records.candidates(&set(in_use)).into_iter().map(|image| image.id).collect()
        };
        assert_eq!(ids(&[]), ["d", "a", "b", "c"]);
        assert_eq!(ids(&["a", "c"]), ["d", "b"]);
        records.detect(&[image("a", false)], &set(&[]), seconds(30));
        let left: Vec<_> = records.candidates(&set(&[])).into_iter().map(|i| i.id).collect();
        assert_eq!(left, ["a"]);
    }

    #[test]
    fn ages_decide_with_any_usage_of_the_disk() {
        let seconds = Duration::from_secs;
        // First sight, last use, now, time of running: old, may go.
        for (first, used, now, running, old, may) in [
            (0, None, 0, 0, false, false),
            (0, None, 119, 119, false, false),
            (0, None, 120, 120, false, true),
            (0, None, 3600, 3600, false, true),
            (0, None, 3601, 3601, true, true),
            (0, Some(10), 3605, 3605, false, true),
            (0, Some(10), 3611, 3611, true, true),
            (0, Some(3611), 3611, 3611, false, false),
            // It was seen by an agent that has just started.
            (0, None, 9000, 10, false, true),
        ] {
            let image = Candidate {
                id: String::new(),
                bytes: 0,
                first_detected: seconds(first),
                last_used: used.map(seconds),
            };
            let case = format!("{first} {used:?} {now} {running}");
            assert_eq!(is_old(&image, &POLICY, seconds(now), seconds(running)), old, "{case}");
            assert_eq!(may_go(&image, &POLICY, seconds(now)), may, "{case}");
        }
        let never = Policy { max_age: Duration::ZERO, ..POLICY };
        let image = Candidate {
            id: String::new(),
            bytes: 0,
            first_detected: Duration::ZERO,
            last_used: None,
        };
        assert!(!is_old(&image, &never, Duration::MAX, Duration::MAX));
    }

    #[test]
    fn disk_is_freed_down_to_the_low_threshold() {
        for (capacity, available, expected) in [
            (100, 16, None),
            (100, 15, Some(5)),
            (100, 0, Some(20)),
            // Rounded as integers are.
            (1000, 160, None),
            (1000, 159, Some(41)),
            (1000, 150, Some(50)),
            (1000, 151, Some(49)),
            (100, 200, None),
            (0, 0, None),
        ] {
            let disk = Disk { capacity, available };
            assert_eq!(disk.to_free(&POLICY), expected, "{available} of {capacity}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (20 << 30, "20.0 GiB"),
            (3 << 50, "3072.0 TiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
