//! Whether pods may use images, by the records of pulls and their files.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, FakeClock};

use super::super::credentials::{Coordinates, Source, sha256};
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
        let records = PullRecords::new(&root, policy, clock.clone()).expect("folders");
        Fixture { root, clock, records: Arc::new(records) }
    }

    /// Returns the names and contents of the files in a folder.
    fn files(&self, folder: &str) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.root.join(folder));
        let file = |entry: fs::DirEntry| {
            let content = fs::read_to_string(entry.path()).expect("a file");
            (entry.file_name().into_string().expect("a name"), content)
        };
        entries.expect("a folder").flatten().map(file).collect()
    }

    fn write(&self, folder: &str, name: &str, content: &str) {
        let path = self.root.join(folder).join(name);
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
            records.add("r.io/c:1", "c", ImagePullCredentials::default(), true).expect("a record");
            records.add_intent("r.io/d:1").expect("an intent");
            records.pulling.put(ImagePullIntent::new("r.io/e:1")).expect("an intent");
            fixture.write("pulled", &format!("sha256-{}", sha256("f")), "{");
            let (from, to) = (records.pulled.file("a"), records.pulled.file("g"));
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
    let record = fixture.records.pulled.get("a").expect("a file").expect("a record");
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
        let records = fixture.records.pulled.list().into_iter();
        let mut refs: Vec<String> = records.map(|record| record.image_ref).collect();
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
        records.pulling.put(ImagePullIntent::new(image)).expect("an intent");
    }
    records.add("r.io/known:1", "known", ImagePullCredentials::of(None), true).expect("a record");
    // Half-written files, foreign ones, and those of an older version.
    fixture.write("pulling", "sha256-x.tmp", "{");
    fixture.write("pulled", "other", "{");
    let older = |content: &str| content.replace("v1beta1", "v1alpha1");
    for folder in ["pulling", "pulled"] {
        for (name, content) in fixture.files(folder) {
            fixture.write(folder, &name, &older(&content));
        }
    }
    let policy = VerificationPolicy::NeverVerifyPreloadedImages;
    let records = PullRecords::new(&fixture.root, policy, fixture.clock.clone()).expect("folders");
    let intents = records.intents();
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
    // The digest of `b` is no valid one, and the runtime has another name for busybox.
    let left = ["busybox", "r.io/b@sha256:00", "r.io/gone:1"];
    assert_eq!(records.intents(), left.map(str::to_owned).into());
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
