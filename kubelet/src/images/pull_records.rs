//! Records of the images that the kubelet has pulled, and with whose credentials: whether another
//! pod may use them. Upstream: `pkg/kubelet/images/pullmanager`.
//!
//! `image_manager/pulling` has an intent for each pull that is under way, `image_manager/pulled` a
//! record for each image of the runtime. After a crash an intent is left, which says that the
//! kubelet may have pulled the image: credentials are verified then.

mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::record::{ImagePullCredentials, ImagePullIntent, ImagePulledRecord, Kind, Version};
use super::Error;
use super::credentials::{Credentials, sha256};
use super::verification_policy::{VerificationPolicy, without_tag};
use crate::causes::chain;
use crate::cri::{ImageService, api};
use crate::files::replace;
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
    pulling: PathBuf,
    pulled: PathBuf,
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
        let records = Arc::new(PullRecords::new(root, policy, clock));
        let intents = records.run(PullRecords::prepare).await?;
        if !intents.is_empty() {
            match service.list_images(api::ListImagesRequest::default()).await {
                Ok(listed) => records.run(move |own| own.adopt(&intents, &listed.images)).await,
                Err(error) => log::error!("failed to list images: {}", chain(&error)),
            }
        }
        Ok(records)
    }

    fn new(root: &Path, policy: VerificationPolicy, clock: SharedClock) -> PullRecords {
        let folder = root.join("image_manager");
        let (pulling, pulled) = (folder.join("pulling"), folder.join("pulled"));
        PullRecords { pulling, pulled, policy, clock, under_way: Mutex::default() }
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
    /// Makes the folders, and writes files of an older version again. Returns the images of the
    /// intents that are left.
    fn prepare(&self) -> Result<BTreeSet<String>, Error> {
        for folder in [&self.pulling, &self.pulled] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(Error::record(folder))?;
        }
        let intents: Vec<ImagePullIntent> = list(&self.pulling);
        for intent in intents.iter().filter(|intent| intent.api_version != Version::V1beta1) {
            log_fault(self.write_intent(&intent.image));
        }
        for record in list::<ImagePulledRecord>(&self.pulled) {
            if record.api_version != Version::V1beta1 {
                log_fault(self.write_record(record));
            }
        }
        self.count();
        Ok(intents.into_iter().map(|intent| intent.image).collect())
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
        if let Some(record) = self.record(image_ref)? {
            return Ok(Known::Record(record));
        }
        let is_left = || -> Result<bool, Error> {
            let intent = read::<ImagePullIntent>(&file(&self.pulling, image))?;
            Ok(intent.is_some_and(|intent| intent.image == image))
        };
        let has_intent = under_way.contains_key(image) || is_left()?;
        Ok(if has_intent { Known::Intent } else { Known::Preloaded })
    }

    /// Reads the record of an image.
    fn record(&self, image_ref: &str) -> Result<Option<ImagePulledRecord>, Error> {
        let record = read::<ImagePulledRecord>(&file(&self.pulled, image_ref))?;
        Ok(record.filter(|record| record.image_ref == image_ref))
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
        let known = self.record(image_ref).unwrap_or_else(|error| {
            log::info!("the record of image {image} is replaced: {}", chain(&error));
            None
        });
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| ImagePulledRecord {
            kind: Kind::ImagePulledRecord,
            api_version: Version::V1beta1,
            last_updated_time: Timestamp::default(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        let mapping = &mut record.credential_mapping;
        let has_more = !new.is_empty() && mapping.entry(name.to_owned()).or_default().add(&new);
        if is_new || has_more || is_pull {
            record.last_updated_time = self.clock.now();
            self.write_record(record)?;
            self.count();
        }
        Ok(())
    }

    /// Writes the intent of a pull, and counts the pull.
    fn add_intent(&self, image: &str) -> Result<(), Error> {
        let mut under_way = self.under_way.lock();
        self.write_intent(image)?;
        *under_way.entry(image.to_owned()).or_default() += 1;
        self.count();
        Ok(())
    }

    /// Removes the intent of a pull that has ended, if no other pull of the image is under way.
    /// Upstream: `decrementImagePullIntent`.
    fn remove_intent(&self, image: &str) {
        let mut under_way = self.under_way.lock();
        match under_way.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            _ => match remove(&file(&self.pulling, image)) {
                Ok(()) => _ = under_way.remove(image),
                fault => log_fault(fault),
            },
        }
        self.count();
    }

    /// See [`PullRecords::prune`].
    fn remove_others(&self, images: &BTreeSet<String>, began: Timestamp) {
        let _locked = self.under_way.lock();
        for record in list::<ImagePulledRecord>(&self.pulled) {
            // The time is rounded down.
            let is_older = record.last_updated_time + Duration::from_secs(1) <= began;
            if is_older && !images.contains(&record.image_ref) {
                log_fault(remove(&file(&self.pulled, &record.image_ref)));
            }
        }
        self.count();
    }

    fn write_intent(&self, image: &str) -> Result<(), Error> {
        let (kind, api_version) = (Kind::ImagePullIntent, Version::V1beta1);
        let intent = ImagePullIntent { kind, api_version, image: image.to_owned() };
        write(&file(&self.pulling, image), &intent)
    }

    fn write_record(&self, record: ImagePulledRecord) -> Result<(), Error> {
        let record = ImagePulledRecord { api_version: Version::V1beta1, ..record };
        write(&file(&self.pulled, &record.image_ref), &record)
    }

    /// Sets the metrics of both folders.
    fn count(&self) {
        metrics::PULL_INTENTS.set(files(&self.pulling).len() as i64);
        metrics::PULLED_RECORDS.set(files(&self.pulled).len() as i64);
    }
}

fn log_fault(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        log::error!("{}", chain(&error));
    }
}

/// Returns the path of the file for an image. Upstream: `cacheFilename`.
fn file(folder: &Path, image: &str) -> PathBuf {
    folder.join(format!("sha256-{}", sha256(image)))
}

/// Lists the files of a folder, without those that were not written to their end.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).map_err(Error::record(folder));
    let entries = entries.inspect_err(|error| log::error!("{}", chain(error)));
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let is_record = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sha256-") && !name.ends_with(".tmp") && !path.is_dir()
    };
    paths.filter(is_record).collect()
}

/// Reads all files of a folder. The log names those that are malformed.
fn list<T: DeserializeOwned>(folder: &Path) -> Vec<T> {
    let contents = files(folder).into_iter().map(|path| read(&path));
    let contents = contents.inspect(|content| {
        if let Err(error) = content {
            log::error!("{}", chain(error));
        }
    });
    contents.flatten().flatten().collect()
}

/// Reads a file; `None`: it does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let content = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => content.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
    };
    content.map(Some).map_err(Error::record(path))
}

/// Replaces a file: after a power cut it has its old or its new content.
fn write(path: &Path, content: &impl Serialize) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let mut text = serde_json::to_vec(content)?;
        // As Go's encoder.
        text.push(b'\n');
        replace(path, 0o600, &text)
    };
    write().map_err(Error::record(path))
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::record(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use kube_controller_manager::clock::{Clock, FakeClock};

    use super::super::credentials::{Coordinates, Source};
    use super::*;

    /// Records in a folder of their own, at a time between two seconds.
    struct Fixture {
        root: PathBuf,
        clock: Arc<FakeClock>,
        records: Arc<PullRecords>,
    }

    impl Fixture {
        fn new(test: &str, policy: VerificationPolicy) -> Fixture {
            let root =
                std::env::temp_dir().join(format!("kubelet-pulls-{test}-{}", std::process::id()));
            let clock = FakeClock::new(Timestamp::from_micros(1_777_863_721_500_000));
            let records = Arc::new(PullRecords::new(&root, policy, clock.clone()));
            records.prepare().expect("folders");
            Fixture { root, clock, records }
        }

        /// Returns the names and contents of the files in a folder.
        fn files(&self, folder: &str) -> BTreeMap<String, String> {
            let entries = fs::read_dir(self.root.join("image_manager").join(folder));
            let file = |entry: fs::DirEntry| {
                let content = fs::read_to_string(entry.path()).expect("a file");
                (entry.file_name().into_string().expect("a name"), content)
            };
            entries.expect("a folder").flatten().map(file).collect()
        }

        fn write(&self, folder: &str, name: &str, content: &str) {
            let path = self.root.join("image_manager").join(folder).join(name);
            fs::write(path, content).expect("a file");
        }

        /// Pulls an image with the credentials, or with none.
        fn pull(&self, image: &str, image_ref: &str, credentials: Option<&Credentials>) {
            block_on(async {
                let pull = self.records.begin(image).await.expect("an intent");
                pull.succeed(image_ref.to_owned(), credentials).await;
            });
        }

        /// Checks the use of an image. Returns the result's label, whether the use is granted, and
        /// whether the pod's credentials were read for that.
        fn check(
            &self,
            image: &str,
            image_ref: &str,
            of_pod: &[Credentials],
        ) -> (&'static str, bool, bool) {
            let mut is_read = false;
            let credentials = async {
                is_read = true;
                Ok(of_pod.to_vec())
            };
            let checked = block_on(self.records.checked(image, image_ref, credentials));
            let (result, access) = checked.expect("credentials");
            (result, access == Access::Granted, is_read)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    fn secret(name: &str, password: &str) -> Credentials {
        let (uid, namespace) = ("u".to_owned(), "n".to_owned());
        let secret = Coordinates { uid, namespace, name: name.to_owned() };
        let source = Some(Arc::new(Source::Secret(secret)));
        let (username, password) = ("user".to_owned(), password.to_owned());
        Credentials { username, password, email: String::new(), source }
    }

    #[test]
    fn pods_may_use_an_image_by_the_policy_the_record_and_their_credentials() {
        const ALLOWED: (&str, bool, bool) = ("credentialPolicyAllowed", true, false);
        const FOUND: (&str, bool, bool) = ("credentialRecordFound", true, false);
        const COMPARED: (&str, bool, bool) = ("credentialRecordFound", true, true);
        const REFUSED: (&str, bool, bool) = ("mustAuthenticate", false, false);
        const DIFFERENT: (&str, bool, bool) = ("mustAuthenticate", false, true);
        const FAULT: (&str, bool, bool) = ("error", false, false);
        let (own, other) = ([secret("s", "p")], [secret("t", "q")]);
        // Each case has two of the policies: that of preloaded images, and the strictest one.
        for (case, image, image_ref, of_pod, preloaded, always) in [
            ("preloaded", "r.io/x:1", "x", &own, ALLOWED, REFUSED),
            ("pulled with a Secret", "r.io/a:1", "a", &own, COMPARED, COMPARED),
            ("by another tag", "r.io/a:2", "a", &own, COMPARED, COMPARED),
            ("with other credentials", "r.io/a:1", "a", &other, DIFFERENT, DIFFERENT),
            ("under another name", "q.io/a:1", "a", &own, REFUSED, REFUSED),
            ("by a malformed name", "r.io/A:1", "a", &own, FAULT, FAULT),
            ("open to all pods", "r.io/b:1", "b", &other, FOUND, FOUND),
            ("pulled by unknown pods", "r.io/c:1", "c", &own, REFUSED, REFUSED),
            ("being pulled", "r.io/d:1", "d", &own, REFUSED, REFUSED),
            ("left by a crash", "r.io/e:1", "e", &own, REFUSED, REFUSED),
            ("with a malformed record", "r.io/f:1", "f", &own, FAULT, FAULT),
            ("in a file of another image", "r.io/g:1", "g", &own, ALLOWED, REFUSED),
        ] {
            for (policy, expected) in [
                (VerificationPolicy::NeverVerifyPreloadedImages, preloaded),
                (VerificationPolicy::AlwaysVerify, always),
            ] {
                let fixture = Fixture::new("check", policy);
                let records = &fixture.records;
                fixture.pull("r.io/a:1", "a", Some(&own[0]));
                fixture.pull("r.io/b:1", "b", None);
                records
                    .add("r.io/c:1", "c", ImagePullCredentials::default(), true)
                    .expect("a record");
                records.add_intent("r.io/d:1").expect("an intent");
                records.write_intent("r.io/e:1").expect("an intent");
                fixture.write("pulled", &format!("sha256-{}", sha256("f")), "{");
                let (from, to) = (file(&records.pulled, "a"), file(&records.pulled, "g"));
                fs::copy(from, to).expect("a copy");
                assert_eq!(fixture.check(image, image_ref, of_pod), expected, "{case}");
            }
        }
    }

    #[test]
    fn checks_keep_the_credentials_that_they_have_found() {
        let fixture = Fixture::new("found", VerificationPolicy::AlwaysVerify);
        fixture.pull("r.io/a:1", "a", Some(&secret("s", "p")));
        // Another Secret with the same credentials, which change then.
        for (of_pod, expected) in [
            (secret("t", "p"), true),
            (secret("t", "q"), true),
            (secret("v", "q"), true),
            (secret("w", "r"), false),
        ] {
            let (_, is_granted, _) = fixture.check("r.io/a", "a", std::slice::from_ref(&of_pod));
            assert_eq!(is_granted, expected, "{of_pod:?}");
        }
        let record = fixture.records.record("a").expect("a file").expect("a record");
        let mut expected = ImagePullCredentials::default();
        for (name, password) in [("s", "p"), ("t", "q"), ("v", "q")] {
            expected.add(&ImagePullCredentials::of(Some(&secret(name, password))));
        }
        assert_eq!(record.credential_mapping["r.io/a"], expected);
    }

    #[test]
    fn pulls_are_recorded_in_the_files_of_the_go_kubelet() {
        let fixture = Fixture::new("files", VerificationPolicy::NeverVerify);
        let image = "docker.io/testing/test:latest";
        // Two pulls at a time, of which the first one fails.
        let failed = block_on(fixture.records.begin(image)).expect("an intent");
        let pull = block_on(fixture.records.begin(image)).expect("an intent");
        let intent = concat!(
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
            r#""image":"docker.io/testing/test:latest"}"#,
            "\n"
        );
        let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
        let intents = BTreeMap::from([(name.to_owned(), intent.to_owned())]);
        assert_eq!(fixture.files("pulling"), intents);
        drop(failed);
        let is_counted = || fixture.records.under_way.lock().get(image) == Some(&1);
        while !is_counted() {
            std::thread::yield_now();
        }
        assert_eq!(fixture.files("pulling"), intents);
        block_on(pull.succeed("testimageref".to_owned(), Some(&secret("s", "p"))));
        assert_eq!(fixture.files("pulling"), BTreeMap::new());
        let record = format!(
            "{}{}{}{}\n",
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
            r#""lastUpdatedTime":"2026-05-04T03:02:01Z","imageRef":"testimageref","#,
            r#""credentialMapping":{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"u","#,
            format_args!(
                r#""namespace":"n","name":"s","credentialHash":"{}"}}]}}}}}}"#,
                sha256(r#"{"username":"user","password":"p"}"#)
            ),
        );
        let name = "sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064";
        assert_eq!(fixture.files("pulled"), [(name.to_owned(), record)].into());
    }

    #[test]
    fn records_go_with_their_images_unless_they_are_newer() {
        let fixture = Fixture::new("prune", VerificationPolicy::NeverVerify);
        let refs = || {
            let mut refs: Vec<String> = list(&fixture.records.pulled)
                .into_iter()
                .map(|r: ImagePulledRecord| r.image_ref)
                .collect();
            refs.sort();
            refs.join(" ")
        };
        for image in ["a", "b", "c"] {
            fixture.pull(image, image, None);
        }
        let prune = |images: &[&str]| {
            let images = images.iter().map(ToString::to_string).collect();
            block_on(fixture.records.prune(images, fixture.clock.now()));
        };
        prune(&["a"]);
        assert_eq!(refs(), "a b c", "records of the same second");
        fixture.clock.advance(Duration::from_secs(1));
        fixture.pull("b", "b", Some(&secret("s", "p")));
        assert_eq!(refs(), "a b c");
        fixture.pull("d", "d", None);
        prune(&["a"]);
        assert_eq!(refs(), "a b d", "what was pulled again is new");
        fixture.clock.advance(Duration::from_secs(1));
        fixture.write("pulled", "sha256-malformed", "{");
        prune(&["a", "b"]);
        assert_eq!(refs(), "a b");
        assert!(fixture.files("pulled").contains_key("sha256-malformed"));
    }

    #[test]
    fn start_settles_what_a_crash_has_left() {
        let fixture = Fixture::new("crash", VerificationPolicy::NeverVerifyPreloadedImages);
        let records = &fixture.records;
        for image in ["r.io/a:1", "r.io/b@sha256:00", "busybox", "r.io/known:1", "r.io/gone:1"] {
            records.write_intent(image).expect("an intent");
        }
        records
            .add("r.io/known:1", "known", ImagePullCredentials::of(None), true)
            .expect("a record");
        // Half-written files, foreign ones, and those of an older version.
        fixture.write("pulling", "sha256-x.tmp", "{");
        fixture.write("pulled", "other", "{");
        let older = |content: &str| content.replace("v1beta1", "v1alpha1");
        for folder in ["pulling", "pulled"] {
            for (name, content) in fixture.files(folder) {
                fixture.write(folder, &name, &older(&content));
            }
        }
        let intents = records.prepare().expect("folders");
        assert_eq!(intents.len(), 5);
        for folder in ["pulling", "pulled"] {
            let contents: Vec<String> = fixture.files(folder).into_values().collect();
            assert!(contents.iter().all(|content| !content.contains("alpha")), "{contents:?}");
        }
        let image = |id: &str, tags: &[&str], digests: &[&str]| api::Image {
            id: id.to_owned(),
            repo_tags: tags.iter().map(ToString::to_string).collect(),
            repo_digests: digests.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let images = [
            image("a", &["r.io/a:1", "r.io/other:1"], &[]),
            image("b", &[], &["r.io/b@sha256:00"]),
            image("busybox", &["docker.io/library/busybox:latest"], &[]),
            image("known", &["r.io/known:1"], &[]),
        ];
        records.adopt(&intents, &images);
        let left: BTreeSet<String> =
            list(&records.pulling).into_iter().map(|one: ImagePullIntent| one.image).collect();
        // The digest of `b` is no valid one, and the runtime has another name for busybox.
        assert_eq!(
            left.into_iter().collect::<Vec<_>>(),
            ["busybox", "r.io/b@sha256:00", "r.io/gone:1"]
        );
        for (image, image_ref, result) in [
            ("r.io/a:1", "a", "mustAuthenticate"),
            ("r.io/other:1", "a", "mustAuthenticate"),
            ("busybox", "busybox", "mustAuthenticate"),
            ("busybox:latest", "busybox", "credentialPolicyAllowed"),
            ("r.io/known:1", "known", "credentialRecordFound"),
        ] {
            assert_eq!(fixture.check(image, image_ref, &[]).0, result, "{image}");
        }
    }
}
