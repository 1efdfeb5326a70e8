//! ConfigMaps, Secrets and RuntimeClasses from a folder, for static pods. One object a file, JSON or
//! YAML. Upstream has nothing like it: there static pods may not refer to such objects.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;
use serde_json::Value;

use super::{Contents, Error, HANDLER, Key, Kind, Known, PodObjects};
use crate::causes::chain;
use crate::files::folder_watch::FolderWatch;

/// The largest file.
pub(super) const MAX_BYTES: u64 = 10 << 20;
/// The delay after which a folder that cannot be watched is watched again.
const RETRY: Duration = Duration::from_secs(1);

/// All objects of the folder at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State(BTreeMap<Key, Object>);

#[derive(Clone, Debug, PartialEq)]
struct Object {
    file: PathBuf,
    contents: Arc<Contents>,
}

impl State {
    /// Returns what is known of these objects.
    pub(super) fn known(&self, keys: BTreeSet<Key>) -> PodObjects {
        let known = |key: Key| {
            let known = match self.contents(&key) {
                Some(contents) => Known::Found(contents.clone()),
                None => Known::Missing,
            };
            (key, known)
        };
        PodObjects::new(keys.into_iter().map(known).collect())
    }

    #[cfg(test)]
    pub(super) fn for_tests(texts: &[&str]) -> State {
        let objects = texts.iter().map(|text| decode(text.as_bytes()).expect("an object"));
        let object = |(key, contents)| (key, Object { file: PathBuf::new(), contents });
        State(objects.map(object).collect())
    }

    /// Returns the keys of the objects that differ between two states of the folder, or that only
    /// one of them has.
    fn changes(&self, other: &State) -> BTreeSet<Key> {
        let keys = self.0.keys().chain(other.0.keys());
        keys.filter(|key| self.contents(key) != other.contents(key)).cloned().collect()
    }

    fn contents(&self, key: &Key) -> Option<&Arc<Contents>> {
        self.0.get(key).map(|object| &object.contents)
    }

    /// Returns the object of a file.
    fn of_file(&self, file: &Path) -> Option<(Key, Arc<Contents>)> {
        let mut objects = self.0.iter();
        let (key, object) = objects.find(|(_, object)| object.file == file)?;
        Some((key.clone(), object.contents.clone()))
    }
}

/// The present state of the folder. Cheap to clone; empty without a folder.
#[derive(Clone, Default)]
pub struct LocalObjects(Arc<Mutex<Arc<State>>>);

impl LocalObjects {
    /// Returns the present state of the folder.
    pub(super) fn now(&self) -> Arc<State> {
        self.0.lock().clone()
    }
}

/// Reads a folder after each change and each `period`, until stopped, and keeps its state in
/// `objects`. Calls `changed` with the keys of the objects that have changed.
pub async fn run(
    folder: PathBuf,
    period: Duration,
    objects: LocalObjects,
    changed: impl Fn(BTreeSet<Key>),
    clock: SharedClock,
    stop: StopToken,
) {
    let mut faults = BTreeSet::new();
    while !stop.is_stopped() {
        // Before the folder is read: no change is lost between them.
        let watch = match FolderWatch::new(&folder) {
            Ok(watch) => Some(watch),
            Err(error) => {
                log::debug!("{} is not watched: {error}", folder.display());
                None
            }
        };
        let (of, last) = (folder.clone(), objects.now());
        let (new, now) = task::blocking(move || read(&of, &last)).await;
        for fault in now.difference(&faults) {
            log::error!("{fault}");
        }
        faults = now;
        let keys = new.changes(&objects.now());
        if !keys.is_empty() {
            *objects.0.lock() = Arc::new(new);
            changed(keys);
        }
        let pause = if watch.is_some() { period } else { RETRY };
        let event = async {
            match &watch {
                Some(watch) => _ = watch.changes().await,
                None => std::future::pending().await,
            }
        };
        stop.unless_stopped(event.or(clock.sleep(pause))).await;
    }
}

/// Reads a folder once: for the first start, before any pod is known. Blocks.
///
/// # Errors
/// When the folder cannot be read.
pub fn first(folder: &Path) -> Result<LocalObjects, Error> {
    fs::read_dir(folder).map_err(|source| Error::Folder { path: folder.to_owned(), source })?;
    let (objects, _) = read(folder, &State::default());
    Ok(LocalObjects(Arc::new(Mutex::new(Arc::new(objects)))))
}

/// Reads the objects of a folder; returns a line for each fault, too. Of files with one object the
/// first by name counts. A file with a fault keeps its `last` object, as a folder that cannot be
/// read keeps all: only what is not there is gone.
fn read(folder: &Path, last: &State) -> (State, BTreeSet<String>) {
    let entries = || {
        let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
        entries.collect::<io::Result<Vec<_>>>()
    };
    let mut files = match entries() {
        Ok(files) => files,
        Err(error) => {
            let is_gone = error.kind() == io::ErrorKind::NotFound;
            let objects = if is_gone { State::default() } else { last.clone() };
            return (objects, BTreeSet::from([format!("{}: {error}", folder.display())]));
        }
    };
    files.sort();
    let (mut objects, mut faults) = (State::default(), BTreeSet::new());
    for file in files {
        // Hidden files, such as the `..data` of a mounted ConfigMap.
        if file.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.') {
            continue;
        }
        let mut add_fault = |fault: String| faults.insert(format!("{}: {fault}", file.display()));
        let object = match read_file(&file) {
            Ok(object) => object,
            Err(error) => {
                add_fault(chain(&error));
                last.of_file(&file)
            }
        };
        let Some((key, contents)) = object else { continue };
        match objects.0.entry(key) {
            Entry::Vacant(place) => _ = place.insert(Object { file, contents }),
            Entry::Occupied(other) => {
                let Key { kind, namespace, name } = other.key();
                add_fault(format!("{kind:?} {namespace}/{name} is in another file already"));
            }
        }
    }
    (objects, faults)
}

/// Reads the object of a file; `None`: it is gone, or not a file.
fn read_file(file: &Path) -> Result<Option<(Key, Arc<Contents>)>, Error> {
    match fs::metadata(file) {
        Ok(data) if data.is_file() => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::File(error)),
        _ => return Ok(None),
    }
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).map_err(Error::File)?;
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Error::File)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge);
    }
    decode(&bytes).map(Some)
}

/// Decodes a ConfigMap, Secret or RuntimeClass in JSON or YAML; without a namespace it is in
/// `default`. Errors: another kind, a missing field, or an invalid key.
fn decode(bytes: &[u8]) -> Result<(Key, Arc<Contents>), Error> {
    let text = std::str::from_utf8(bytes).map_err(Error::NotUtf8)?;
    let document: Value = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => serde_yaml_ng::from_str(text).map_err(Error::Syntax)?,
    };
    let field = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (field("apiVersion").to_owned(), field("kind").to_owned());
    let invalid = |source| Error::Field { kind: kind.clone(), source };
    let (kind, metadata, contents) = match (version.as_str(), kind.as_str()) {
        ("v1", "ConfigMap") => {
            let map: core::ConfigMap = serde_json::from_value(document).map_err(invalid)?;
            let data = map.data.unwrap_or_default();
            let contents = Contents {
                data: data.into_iter().map(|(key, text)| (key, text.into_bytes())).collect(),
                binary_data: bytes_of(map.binary_data),
                ..Contents::default()
            };
            (Kind::ConfigMap, map.metadata, contents)
        }
        ("v1", "Secret") => {
            let secret: core::Secret = serde_json::from_value(document).map_err(invalid)?;
            let mut data = bytes_of(secret.data);
            let texts = secret.string_data.unwrap_or_default();
            data.extend(texts.into_iter().map(|(key, text)| (key, text.into_bytes())));
            let secret_type = secret.type_.unwrap_or_default();
            let uid = secret.metadata.uid.clone().unwrap_or_default();
            let contents = Contents { data, secret_type, uid, ..Contents::default() };
            (Kind::Secret, secret.metadata, contents)
        }
        ("node.k8s.io/v1", "RuntimeClass") => {
            let class: RuntimeClass = serde_json::from_value(document).map_err(invalid)?;
            if class.handler.is_empty() {
                return Err(Error::Required { field: HANDLER });
            }
            let data = BTreeMap::from([(HANDLER.to_owned(), class.handler.into_bytes())]);
            (Kind::RuntimeClass, class.metadata, Contents { data, ..Contents::default() })
        }
        _ => return Err(Error::UnknownKind { kind, version }),
    };
    let name = metadata.name.filter(|name| !name.is_empty());
    let name = name.ok_or(Error::Required { field: "metadata.name" })?;
    let namespace = metadata.namespace.filter(|namespace| !namespace.is_empty());
    let namespace = match kind {
        Kind::RuntimeClass => String::new(),
        _ => namespace.unwrap_or_else(|| "default".to_owned()),
    };
    for key in contents.data.keys().chain(contents.binary_data.keys()) {
        if !is_key(key) {
            return Err(Error::InvalidKey(key.clone()));
        }
    }
    if let Some(key) = contents.data.keys().find(|key| contents.binary_data.contains_key(*key)) {
        return Err(Error::DuplicateKey(key.clone()));
    }
    Ok((Key { kind, namespace, name }, Arc::new(contents)))
}

fn bytes_of(data: Option<BTreeMap<String, k8s_openapi::ByteString>>) -> BTreeMap<String, Vec<u8>> {
    data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect()
}

/// Returns whether the text is a valid key of a ConfigMap. Upstream: `IsConfigMapKey`.
fn is_key(key: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=253).contains(&key.len())
        && key.bytes().all(is_fine)
        && key != "."
        && !key.starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_decoded() {
        let decoded = |text: &str| decode(text.as_bytes());
        let (key, contents) = decoded(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: n}, \
             data: {b: c}, binaryData: {d: AAE=}}",
        )
        .expect("a ConfigMap");
        assert_eq!((key.kind, &*key.namespace, &*key.name), (Kind::ConfigMap, "n", "a"));
        assert_eq!(contents.bytes("b"), Some(&b"c"[..]));
        assert_eq!(contents.bytes("d"), Some(&[0, 1][..]));
        assert!(!contents.data.contains_key("d"));
        let (key, contents) = decoded(
            "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {b: Yg==, c: Yw==}, \
             stringData: {c: text}}",
        )
        .expect("a Secret");
        assert_eq!((key.kind, &*key.namespace), (Kind::Secret, "default"));
        let (class, of_class) = decoded(
            "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: kata}, handler: k}",
        )
        .expect("a RuntimeClass");
        assert_eq!((class.kind, &*class.namespace), (Kind::RuntimeClass, ""));
        assert_eq!((&*class.name, of_class.bytes(HANDLER)), ("kata", Some(&b"k"[..])));
        assert_eq!(contents.bytes("b"), Some(&b"b"[..]));
        assert_eq!(contents.bytes("c"), Some(&b"text"[..]));
    }

    #[test]
    fn faults_are_named() {
        for (text, fault) in [
            ("{kind: ConfigMap}", " ConfigMap is not a v1 ConfigMap, "),
            ("{apiVersion: v1, kind: Pod}", "v1 Pod is not a v1 ConfigMap, "),
            ("{apiVersion: node.k8s.io/v1, kind: RuntimeClass}", "handler: Required value"),
            ("{apiVersion: v1, kind: Secret}", "metadata.name: Required value"),
            ("{apiVersion: v1, kind: Secret, data: {a: '!'}}", "invalid Secret: "),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {../b: c}}",
                "data[../b]: Invalid value: not a valid key",
            ),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {..b: c}}",
                "data[..b]: Invalid value: not a valid key",
            ),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {b: c}, \
                 binaryData: {b: ''}}",
                "data[b]: Invalid value: duplicate of key present in binaryData",
            ),
        ] {
            let error = chain(&decode(text.as_bytes()).expect_err(text));
            assert!(error.starts_with(fault), "{text}: {error}");
        }
    }

    #[test]
    fn folder_is_read_file_by_file() {
        let folder = std::env::temp_dir().join(format!("kubelet-objects-{}", std::process::id()));
        fs::create_dir_all(folder.join("folder")).expect("a folder");
        let object = |name: &str| {
            format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{a: b}}}}"
            )
        };
        for (file, text) in [
            ("1.yaml", object("a")),
            ("2.yaml", object("a")),
            ("3.json", "{".to_owned()),
            (".4.yaml", object("hidden")),
            ("5.yaml", object("b")),
        ] {
            fs::write(folder.join(file), text).expect("a file");
        }
        let (objects, faults) = read(&folder, &State::default());
        let keys: Vec<&str> = objects.0.keys().map(|key| key.name.as_str()).collect();
        assert_eq!(keys, ["a", "b"]);
        let faults: Vec<String> = faults.into_iter().collect();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].ends_with("ConfigMap default/a is in another file already"));
        fs::remove_file(folder.join("5.yaml")).expect("removed");
        let names: Vec<String> =
            read(&folder, &objects).0.changes(&objects).into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["b"]);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn only_what_is_not_there_is_gone() {
        let folder = std::env::temp_dir().join(format!("kubelet-stays-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let object =
            |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
        let write = |file: &str, text: &str| fs::write(folder.join(file), text).expect("a file");
        let names = |of: &State| of.0.keys().map(|key| key.name.clone()).collect::<Vec<_>>();
        for name in ["a", "b", "c"] {
            write(name, &object(name));
        }
        let (first, faults) = read(&folder, &State::default());
        assert_eq!((names(&first).concat(), faults.len()), ("abc".to_owned(), 0));
        // A file that is being written, and one that cannot be opened: a link to itself.
        write("a", "{");
        fs::remove_file(folder.join("b")).expect("removed");
        std::os::unix::fs::symlink("b", folder.join("b")).expect("a link");
        fs::remove_file(folder.join("c")).expect("removed");
        let (second, faults) = read(&folder, &first);
        assert_eq!((names(&second).concat(), faults.len()), ("ab".to_owned(), 2), "{faults:?}");
        let (third, _) = read(&folder, &second);
        assert_eq!(third, second);
        // Another object of the file takes the place of its last one.
        write("a", &object("d"));
        assert_eq!(names(&read(&folder, &third).0).concat(), "bd");
        // A file that is not a folder cannot be read as one.
        let (all, faults) = read(&folder.join("a"), &third);
        assert_eq!((all, faults.len()), (third.clone(), 1));
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(read(&folder, &third).0, State::default());
    }
}
