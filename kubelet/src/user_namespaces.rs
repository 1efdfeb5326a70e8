//! The ranges of host ids that pods with user namespaces of their own have. Upstream:
//! `pkg/kubelet/userns`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::pod::Uid;

/// The ids of a pod are a multiple of it. Upstream: `userNsUnitLength`.
const UNIT: u32 = 65_536;
/// The user whose subordinate ids pods get, where it exists.
const USER: &str = "kubelet";
/// The file in a pod's folder. Upstream: `mappingsFile`.
const FILE: &str = "userns";

/// Why a pod has no ids. The texts are upstream's where it has one.
#[derive(Debug)]
pub enum Error {
    /// A file or folder cannot be read or written, or `getsubids` cannot be run.
    Path { path: PathBuf, source: io::Error },
    /// `getsubids` has failed, or says what cannot be used.
    SubordinateIds(String),
    /// The file of a pod is malformed.
    Malformed { path: PathBuf, source: serde_json::Error },
    /// The file of a pod has ids that the pod cannot have.
    Mapping(String),
    /// All ranges are used.
    Full,
    /// The node's ids do not suffice, or do not begin where they have to.
    Range(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Path { path, .. } => path.display().fmt(f),
            Error::SubordinateIds(text) => write!(f, "kubelet mappings: {text}"),
            Error::Malformed { path, .. } => {
                write!(f, "invalid user namespace mappings file: {}", path.display())
            }
            Error::Mapping(text) => write!(f, "user namespace: {text}"),
            Error::Full => f.write_str("could not find an empty slot to allocate a user namespace"),
            Error::Range(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Path { source, .. } => Some(source),
            Error::Malformed { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Converts a failure at `path`, for `map_err`.
fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Path { path, source }
}

/// The ids of a pod: those from 0 on in its namespace are these of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdMapping {
    pub host_id: u32,
    pub container_id: u32,
    pub length: u32,
}

/// The content of a pod's file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<IdMapping>,
    gid_mappings: Vec<IdMapping>,
}

/// The ids of the host that pods may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIds {
    pub first: u32,
    pub count: u32,
}

impl HostIds {
    /// Finds the subordinate ids of the user `kubelet`, where the machine has it and `getsubids`;
    /// else returns all ids but the first `per_pod`. Runs programs. Upstream: `getKubeletMappings`.
    ///
    /// # Errors
    /// The program fails, or says what cannot be used.
    pub fn detect(per_pod: u32) -> Result<HostIds, Error> {
        // There are 2^32 ids: all but the first `per_pod`.
        let others = HostIds { first: per_pod, count: 0_u32.wrapping_sub(per_pod) };
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        if !users.lines().any(|line| line.split(':').next() == Some(USER)) {
            return Ok(others);
        }
        let run = |arguments: &[&str]| match Command::new("getsubids").args(arguments).output() {
            Ok(output) if output.status.success() => {
                Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
            }
            Ok(_) => {
                let what = if arguments.len() > 1 { "gids" } else { "uids" };
                let text = format!("error retrieving additional {what} for user {USER:?}");
                Err(Error::SubordinateIds(text))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(Path::new("getsubids"))(error)),
        };
        let Some(uids) = run(&[USER])? else { return Ok(others) };
        if run(&["-g", USER])?.as_ref() != Some(&uids) {
            let text = format!("mismatched subuids and subgids for user {USER:?}");
            return Err(Error::SubordinateIds(text));
        }
        HostIds::parse(&uids)
    }

    /// Parses a line `0: kubelet 65536 7208960`. Upstream: `parseGetSubIdsOutput`.
    fn parse(text: &str) -> Result<HostIds, Error> {
        let refuse = |text: String| Err(Error::SubordinateIds(text));
        let mut lines = text.trim_matches('\n').split('\n');
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return refuse(format!("error parsing line {text:?}: it must contain only one line"));
        };
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [_, _, first, count] = parts[..] else {
            return refuse(format!("invalid line {line:?}"));
        };
        match (first.parse(), count.parse()) {
            (Ok(first), Ok(count)) => Ok(HostIds { first, count }),
            _ => refuse(format!("error parsing line {line:?}")),
        }
    }
}

/// The ranges of ids, and the pods that have them. Its calls block for a moment.
pub struct UserNamespaces {
    /// The folder of pods.
    pods: PathBuf,
    /// Ids of a pod.
    per_pod: u32,
    /// The first range is the one with this number.
    offset: u32,
    ranges: u32,
    used: Mutex<Used>,
}

/// The ranges in use, by their numbers from 0 on.
#[derive(Default)]
struct Used {
    ranges: BTreeSet<u32>,
    by_pod: BTreeMap<Uid, u32>,
}

impl UserNamespaces {
    /// Checks the ids of the node, and takes over the ranges of the pods whose folders are below
    /// `pods`.
    ///
    /// # Errors
    /// The ids do not suffice for `max_pods`, or a pod's file has not what a pod can have.
    pub fn new(
        pods: PathBuf,
        ids: HostIds,
        per_pod: u32,
        max_pods: u32,
    ) -> Result<UserNamespaces, Error> {
        let HostIds { first, count } = ids;
        let fault = if !per_pod.is_multiple_of(UNIT) || per_pod == 0 {
            format!("kubelet user namespace length {per_pod} is not a multiple of {UNIT}")
        } else if !first.is_multiple_of(per_pod) {
            format!("kubelet user assigned ID {first} is not a multiple of {per_pod}")
        } else if first < per_pod {
            format!("kubelet user assigned ID {first} must be greater or equal to {per_pod}")
        } else if !count.is_multiple_of(per_pod) {
            format!("kubelet user assigned IDs length {count} is not a multiple of {per_pod}")
        } else if count / per_pod < max_pods {
            format!("kubelet user assigned IDs are not enough to support {max_pods} pods")
        } else {
            String::new()
        };
        if !fault.is_empty() {
            return Err(Error::Range(fault));
        }
        let all = UserNamespaces {
            per_pod,
            offset: first / per_pod,
            ranges: count / per_pod,
            used: Mutex::default(),
            pods,
        };
        let entries = match fs::read_dir(&all.pods) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            Err(error) => return Err(at(&all.pods)(error)),
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        for uid in names.filter_map(|name| Uid::parse(&name)) {
            all.restore(&uid, &mut all.used.lock())?;
        }
        Ok(all)
    }

    /// Gives a pod, whose folder exists, a free range of ids, unless it has one, and returns its
    /// ids.
    ///
    /// # Errors
    /// All are used, or the pod's file cannot be read or written.
    pub fn get_or_create(&self, uid: &Uid) -> Result<IdMapping, Error> {
        let mut used = self.used.lock();
        if let Some(mapping) = self.restore(uid, &mut used)? {
            return Ok(mapping);
        }
        let number = match used.by_pod.get(uid) {
            // Its file is gone, but the range is still its own.
            Some(number) => *number,
            None => {
                let mut free = (0..self.ranges).filter(|number| !used.ranges.contains(number));
                free.next().ok_or(Error::Full)?
            }
        };
        let mapping = self.mapping(number);
        self.write(uid, mapping)?;
        used.ranges.insert(number);
        used.by_pod.insert(uid.clone(), number);
        Ok(mapping)
    }

    /// Frees the ids of a pod that has ended, or does not exist.
    pub fn release(&self, uid: &Uid) {
        let mut used = self.used.lock();
        if let Some(number) = used.by_pod.remove(uid) {
            used.ranges.remove(&number);
            // Mostly the folder is gone already.
            let _ = fs::remove_file(self.file(uid));
        }
    }

    fn file(&self, uid: &Uid) -> PathBuf {
        self.pods.join(&**uid).join(FILE)
    }

    /// Returns the ids of the range with this number.
    fn mapping(&self, number: u32) -> IdMapping {
        let host_id = (self.offset + number) * self.per_pod;
        IdMapping { host_id, container_id: 0, length: self.per_pod }
    }

    /// Reads and checks a pod's file, and marks its range as used; `None`: the pod has no file, or
    /// an empty one. Upstream: `parseUserNsFileAndRecord`.
    fn restore(&self, uid: &Uid, used: &mut Used) -> Result<Option<IdMapping>, Error> {
        let path = self.file(uid);
        let content = match fs::read(&path) {
            // An empty file has no ids.
            Ok(content) if content.is_empty() => return Ok(None),
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        let malformed = |source| Error::Malformed { path, source };
        let mappings: Mappings = serde_json::from_slice(&content).map_err(malformed)?;
        let refuse = |text: String| Err(Error::Mapping(text));
        let ([uids], [gids]) = (&mappings.uid_mappings[..], &mappings.gid_mappings[..]) else {
            let text = "invalid user namespace configuration: no more than one mapping allowed.";
            return refuse(text.to_owned());
        };
        if uids != gids {
            let text = "invalid user namespace configuration: GID and UID mapping should be \
                        identical";
            return refuse(text.to_owned());
        }
        let IdMapping { host_id, container_id, length } = *uids;
        if container_id != 0 {
            let text = "invalid user namespace configuration: UID 0 must be mapped";
            return refuse(text.to_owned());
        }
        if length != self.per_pod {
            return refuse(format!("wrong user namespace length {length}"));
        }
        if !host_id.is_multiple_of(self.per_pod) {
            return refuse(format!("wrong user namespace offset specified {host_id}"));
        }
        let number = (host_id / self.per_pod).checked_sub(self.offset);
        let Some(number) = number.filter(|number| *number < self.ranges) else {
            return refuse(format!("id {host_id} is out of range"));
        };
        match used.by_pod.get(uid) {
            Some(other) if *other != number => {
                let text = format!("different user namespace range already used by pod {uid:?}");
                return refuse(text);
            }
            None if used.ranges.contains(&number) => {
                return refuse(format!("range picked for pod {uid:?} already taken"));
            }
            _ => {}
        }
        used.ranges.insert(number);
        used.by_pod.insert(uid.clone(), number);
        Ok(Some(*uids))
    }

    /// Writes the pod's ids to its file, which survives a power cut: what the pod has written has
    /// these ids.
    fn write(&self, uid: &Uid, mapping: IdMapping) -> Result<(), Error> {
        let path = self.file(uid);
        let mappings = Mappings { uid_mappings: vec![mapping], gid_mappings: vec![mapping] };
        let write =
            || -> io::Result<()> { files::replace(&path, 0o644, &serde_json::to_vec(&mappings)?) };
        write().map_err(at(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: HostIds = HostIds { first: UNIT, count: 3 * UNIT };

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("kubelet-userns-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            for pod in ["a", "b", "c", "d"] {
                fs::create_dir_all(folder.join(pod)).expect("a folder");
            }
            Folder(folder)
        }

        fn open(&self) -> Result<UserNamespaces, Error> {
            UserNamespaces::new(self.0.clone(), ALL, UNIT, 2)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn uid(text: &str) -> Uid {
        Uid::parse(text).expect("a uid")
    }

    #[test]
    fn pods_keep_their_ranges_until_they_are_released() {
        let folder = Folder::new("ranges");
        let all = folder.open().expect("ranges");
        let first = |all: &UserNamespaces, pod: &str| {
            all.get_or_create(&uid(pod)).map(|mapping| mapping.host_id / UNIT)
        };
        for (pod, expected) in [("a", 1), ("b", 2), ("a", 1), ("c", 3)] {
            assert_eq!(first(&all, pod).expect("a range"), expected, "{pod}");
        }
        assert!(matches!(first(&all, "d"), Err(Error::Full)));
        let text = fs::read_to_string(folder.0.join("b/userns")).expect("a file");
        let mapping = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
        assert_eq!(text, format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#));
        // The kubelet restarts.
        let all = folder.open().expect("ranges");
        assert!(matches!(first(&all, "d"), Err(Error::Full)));
        all.release(&uid("b"));
        assert!(!folder.0.join("b/userns").exists());
        assert_eq!(first(&all, "d").expect("a range"), 2);
    }

    #[test]
    fn files_with_other_ranges_are_refused() {
        let mapping = |host: u32, container: u32, length: u32| {
            format!(r#"[{{"hostId":{host},"containerId":{container},"length":{length}}}]"#)
        };
        let good = mapping(UNIT, 0, UNIT);
        for (uids, gids, expected) in [
            ("[]".to_owned(), good.clone(), "no more than one mapping"),
            (mapping(2 * UNIT, 0, UNIT), good.clone(), "should be identical"),
            (mapping(UNIT, 1, UNIT), mapping(UNIT, 1, UNIT), "UID 0 must be mapped"),
            (mapping(UNIT, 0, 1), mapping(UNIT, 0, 1), "wrong user namespace length 1"),
            (mapping(1, 0, UNIT), mapping(1, 0, UNIT), "wrong user namespace offset specified 1"),
            (mapping(0, 0, UNIT), mapping(0, 0, UNIT), "id 0 is out of range"),
            (mapping(4 * UNIT, 0, UNIT), mapping(4 * UNIT, 0, UNIT), "is out of range"),
            ("{".to_owned(), good.clone(), "invalid user namespace mappings file"),
        ] {
            let folder = Folder::new("refused");
            let text = format!(r#"{{"uidMappings":{uids},"gidMappings":{gids}}}"#);
            fs::write(folder.0.join("a/userns"), text).expect("a file");
            let error = folder.open().err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let folder = Folder::new("taken");
        let text = format!(r#"{{"uidMappings":{good},"gidMappings":{good}}}"#);
        for pod in ["a", "b"] {
            fs::write(folder.0.join(pod).join(FILE), &text).expect("a file");
        }
        let error = folder.open().err().expect("refused").to_string();
        assert!(error.contains("already taken"), "{error}");
    }

    #[test]
    fn ids_of_the_node_have_to_suffice() {
        for (first, count, per_pod, expected) in [
            (UNIT, 110 * UNIT, UNIT, ""),
            (UNIT, 0_u32.wrapping_sub(UNIT), UNIT, ""),
            (UNIT, 110 * UNIT, 1, "length 1 is not a multiple"),
            (UNIT, 110 * UNIT, 0, "length 0 is not a multiple"),
            (1, 110 * UNIT, UNIT, "assigned ID 1 is not a multiple"),
            (0, 110 * UNIT, UNIT, "must be greater or equal"),
            (UNIT, 110 * UNIT + 1, UNIT, "IDs length 7208961 is not a multiple"),
            (UNIT, 109 * UNIT, UNIT, "not enough to support 110 pods"),
        ] {
            let ids = HostIds { first, count };
            let made = UserNamespaces::new("/none".into(), ids, per_pod, 110);
            let text = made.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{text}");
        }
    }

    #[test]
    fn output_of_getsubids_is_one_line() {
        let ids = HostIds { first: 65_536, count: 7_208_960 };
        assert_eq!(HostIds::parse("0: kubelet 65536 7208960\n").expect("ids"), ids);
        for text in ["", "0: kubelet 1 2\n1: kubelet 3 4\n", "0: kubelet 1\n", "0: kubelet x 2\n"] {
            assert!(HostIds::parse(text).is_err(), "{text}");
        }
    }
}
