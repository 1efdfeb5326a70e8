//! Records of the images that the kubelet has pulled, and with whose credentials: whether another
//! pod may use them. Upstream: `pkg/kubelet/images/pullmanager`.
//!
//! `image_manager/pulling` has an intent for each pull that is under way, `image_manager/pulled` a
//! record for each image of the runtime. After a crash an intent is left, which says that the
//! kubelet may have pulled the image: credentials are verified then.

mod folder;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;

use self::folder::Folder;
use self::record::{ImagePullCredentials, ImagePullIntent, ImagePulledRecord};
use super::Error;
use super::credentials::Credentials;
use super::verification_policy::{VerificationPolicy, without_tag};
use crate::causes::chain;
use crate::cri::{ImageService, api};
use crate::metrics;

/// Whether a pod may use an image that is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    /// Only after a pull; with the credentials for it, if they are read already.
    NeedsPull(Option<Vec<Credentials>>),
}

/// What is known of an image that is there.
enum Known {
    /// The kubelet has not pulled it.
    Preloaded,
    Intent,
    Record(ImagePulledRecord),
}

/// All records, in their files.
pub struct PullRecords {
    pulling: Folder<ImagePullIntent>,
    pulled: Folder<ImagePulledRecord>,
    policy: VerificationPolicy,
    clock: SharedClock,
    /// How many pulls of an image are under way. Locked while files are read and written.
    under_way: Mutex<HashMap<String, usize>>,
}

impl PullRecords {
    /// Opens the records below the kubelet's folder. Intents of a former process become records
    /// without credentials if the runtime has their images. Upstream: `NewImagePullManager`.
    ///
    /// # Errors
    /// The folders cannot be made.
    pub async fn open(
        root: &Path,
        policy: VerificationPolicy,
        clock: SharedClock,
        service: &ImageService,
    ) -> Result<Arc<PullRecords>, Error> {
        let folder = root.join("image_manager");
        let opened = task::blocking(move || PullRecords::new(&folder, policy, clock));
        let records = Arc::new(opened.await?);
        let intents = records.run(PullRecords::intents).await;
        if !intents.is_empty() {
            match service.list_images(api::ListImagesRequest::default()).await {
                Ok(listed) => records.run(move |own| own.adopt(&intents, &listed.images)).await,
                Err(error) => log::error!("failed to list images: {}", chain(&error)),
            }
        }
        Ok(records)
    }

    /// Opens the records in a folder. Blocks.
    fn new(
        folder: &Path,
        policy: VerificationPolicy,
        clock: SharedClock,
    ) -> Result<PullRecords, Error> {
        let pulling = Folder::open(folder.join("pulling"), &metrics::PULL_INTENTS)?;
        let pulled = Folder::open(folder.join("pulled"), &metrics::PULLED_RECORDS)?;
        Ok(PullRecords { pulling, pulled, policy, clock, under_way: Mutex::default() })
    }

    /// Returns whether a pod may use an image that is there. `image`: as the pod states it;
    /// `image_ref`: as the runtime names it; `credentials`: those that the pod has for it, which
    /// are read only where they count. Upstream: `MustAttemptImagePull`.
    ///
    /// # Errors
    /// The pod's credentials cannot be read.
    pub(super) async fn check(
        self: &Arc<Self>,
        image: &str,
        image_ref: &str,
        credentials: impl Future<Output = Result<Vec<Credentials>, Error>>,
    ) -> Result<Access, Error> {
        let checked = self.checked(image, image_ref, credentials).await;
        let result = checked.as_ref().map_or("error", |(result, _)| result);
        metrics::IMAGE_PULL_CHECKS.with_label_values(&[result]).inc();
        checked.map(|(_, access)| access)
    }

    /// See [`PullRecords::check`]. Returns also the label of the result in a metric.
    async fn checked(
        self: &Arc<Self>,
        image: &str,
        image_ref: &str,
        credentials: impl Future<Output = Result<Vec<Credentials>, Error>>,
    ) -> Result<(&'static str, Access), Error> {
        let names = (image.to_owned(), image_ref.to_owned());
        let (name, of) = names.clone();
        let known = match self.run(move |records| records.known(&name, &of)).await {
            Ok(known) => known,
            Err(error) => {
                log::error!("Unable to access cache records about image pulls: {}", chain(&error));
                return Ok(("error", Access::NeedsPull(None)));
            }
        };
        let is_pulled = !matches!(known, Known::Preloaded);
        if !self.policy.requires_credentials(image, is_pulled) {
            return Ok(("credentialPolicyAllowed", Access::Granted));
        }
        let needs_pull = |of_pod| Ok(("mustAuthenticate", Access::NeedsPull(of_pod)));
        let Known::Record(mut record) = known else { return needs_pull(None) };
        let Ok(name) = without_tag(image) else {
            return Ok(("error", Access::NeedsPull(None)));
        };
        let recorded = record.credential_mapping.remove(name).unwrap_or_default();
        if recorded.is_empty() {
            return needs_pull(None);
        }
        if !recorded.node_pods_accessible {
            let of_pod = credentials.await?;
            let Some(new) = recorded.find(&of_pod) else { return needs_pull(Some(of_pod)) };
            if !new.is_empty() {
                let (name, of) = names;
                log_fault(self.run(move |records| records.add(&name, &of, new, false)).await);
            }
        }
        Ok(("credentialRecordFound", Access::Granted))
    }

    /// Records that a pull begins. Upstream: `RecordPullIntent`.
    ///
    /// # Errors
    /// The intent cannot be written, and so the image must not be pulled.
    pub(super) async fn begin(self: &Arc<Self>, image: &str) -> Result<PullUnderWay, Error> {
        let (records, image) = (self.clone(), image.to_owned());
        let begun = move || {
            records.add_intent(&image)?;
            Ok(PullUnderWay(Some((records, image))))
        };
        task::blocking(begun).await
    }

    /// Removes the records of images that the runtime has no more. `images`: those that it has;
    /// `began`: the time before they were listed, since which records may be of newer images.
    /// Upstream: `PruneUnknownRecords`.
    pub(super) async fn prune(self: &Arc<Self>, images: BTreeSet<String>, began: Timestamp) {
        self.run(move |records| records.remove_others(&images, began)).await;
    }

    /// Does blocking work, which continues when this future is dropped.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&PullRecords) -> T + Send + 'static,
    ) -> T {
        let records = self.clone();
        task::blocking(move || work(&records)).await
    }
}

/// A pull that is under way. If it is dropped, it has failed.
pub(super) struct PullUnderWay(Option<(Arc<PullRecords>, String)>);

impl PullUnderWay {
    /// Records that the image was pulled with these credentials, or without any. If that cannot be
    /// written, the intent stays for the next start. Upstream: `RecordImagePulled`.
    pub(super) async fn succeed(mut self, image_ref: String, credentials: Option<&Credentials>) {
        let Some((records, image)) = self.0.take() else { return };
        let new = ImagePullCredentials::of(credentials);
        let work = move |records: &PullRecords| match records.add(&image, &image_ref, new, true) {
            Ok(()) => records.remove_intent(&image),
            fault => log_fault(fault),
        };
        records.run(work).await;
    }
}

impl Drop for PullUnderWay {
    /// Removes the intent in the background. Upstream: `RecordImagePullFailed`.
    fn drop(&mut self) {
        if let Some((records, image)) = self.0.take() {
            drop(task::spawn(task::blocking(move || records.remove_intent(&image))));
        }
    }
}

/// The work with files, which blocks.
impl PullRecords {
    /// Returns the images of the intents that are there.
    fn intents(&self) -> BTreeSet<String> {
        self.pulling.list().into_iter().map(|intent| intent.image).collect()
    }

    /// Makes records in place of intents whose images the runtime has, by these very names. Other
    /// intents stay, and count as pulls. Upstream: `initialize`.
    fn adopt(&self, intents: &BTreeSet<String>, images: &[api::Image]) {
        for image in images {
            let names = image.repo_digests.iter().chain(&image.repo_tags);
            for name in names.filter(|name| intents.contains(*name)) {
                match self.add(name, &image.id, ImagePullCredentials::default(), true) {
                    Ok(()) => self.remove_intent(name),
                    fault => log_fault(fault),
                }
            }
        }
    }

    /// Returns what the records say of an image that is there.
    fn known(&self, image: &str, image_ref: &str) -> Result<Known, Error> {
        let under_way = self.under_way.lock();
        if let Some(record) = self.pulled.get(image_ref)? {
            return Ok(Known::Record(record));
        }
        let has_intent = under_way.contains_key(image) || self.pulling.get(image)?.is_some();
        Ok(if has_intent { Known::Intent } else { Known::Preloaded })
    }

    /// Adds credentials to the record of an image, which is made if it does not exist. Empty
    /// credentials: it is not known who has pulled the image. `is_pull`: the image has been pulled
    /// now, so a collection that has listed the images before must not forget the record.
    /// Upstream: `writePulledRecordIfChanged`.
    fn add(
        &self,
        image: &str,
        image_ref: &str,
        new: ImagePullCredentials,
        is_pull: bool,
    ) -> Result<(), Error> {
        let name = without_tag(image)
            .map_err(|fault| Error::ImageName { image: image.to_owned(), fault })?;
        let _locked = self.under_way.lock();
        let known = self.pulled.get(image_ref).unwrap_or_else(|error| {
            log::info!("the record of image {image} is replaced: {}", chain(&error));
            None
        });
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| ImagePulledRecord::new(image_ref));
        let mapping = &mut record.credential_mapping;
        let has_more = !new.is_empty() && mapping.entry(name.to_owned()).or_default().add(&new);
        if is_new || has_more || is_pull {
            record.last_updated_time = self.clock.now();
            self.pulled.put(record)?;
        }
        Ok(())
    }

    /// Writes the intent of a pull, and counts the pull.
    fn add_intent(&self, image: &str) -> Result<(), Error> {
        let mut under_way = self.under_way.lock();
        self.pulling.put(ImagePullIntent::new(image))?;
        *under_way.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Removes the intent of a pull that has ended, if no other pull of the image is under way.
    /// Upstream: `decrementImagePullIntent`.
    fn remove_intent(&self, image: &str) {
        let mut under_way = self.under_way.lock();
        match under_way.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            _ => match self.pulling.remove(image) {
                Ok(()) => _ = under_way.remove(image),
                fault => log_fault(fault),
            },
        }
    }

    /// See [`PullRecords::prune`].
    fn remove_others(&self, images: &BTreeSet<String>, began: Timestamp) {
        let _locked = self.under_way.lock();
        for record in self.pulled.list() {
            // The time is rounded down.
            let is_older = record.last_updated_time + Duration::from_secs(1) <= began;
            if is_older && !images.contains(&record.image_ref) {
                log_fault(self.pulled.remove(&record.image_ref));
            }
        }
    }
}

fn log_fault(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        log::error!("{}", chain(&error));
    }
}
