//! The file systems of cgroups, version 1 and 2.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::resources::{HUGETLB, Resources};

/// What is mounted here decides the version.
const ROOT: &str = "/sys/fs/cgroup";

/// The table of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The controllers that pods need, in version 2.
const CONTROLLERS: [&str; 6] = ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"];

/// The mounted cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// A mount for each controller.
    V1 { mounts: BTreeMap<String, PathBuf> },
    /// One mount for all.
    V2 { root: PathBuf },
}

/// Why the cgroups of the machine are not known.
#[derive(Debug)]
pub enum Error {
    /// The table of mounts cannot be read.
    Unreadable(io::Error),
    NotMounted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreadable(_) => f.write_str(MOUNTS),
            Error::NotMounted => write!(f, "no cgroups are mounted below {ROOT}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Unreadable(error) => Some(error),
            Error::NotMounted => None,
        }
    }
}

impl Hierarchy {
    /// Returns the machine's. Blocks.
    ///
    /// # Errors
    /// The table of mounts cannot be read, or has no cgroups.
    pub fn detect() -> Result<Hierarchy, Error> {
        let mounts = fs::read_to_string(MOUNTS).map_err(Error::Unreadable)?;
        Hierarchy::of(&mounts).ok_or(Error::NotMounted)
    }

    /// Finds the hierarchy by the content of `mountinfo`. `None`: it has neither version 2 at
    /// [`ROOT`] nor the controllers `cpu` and `memory` of version 1, or is malformed.
    fn of(mounts: &str) -> Option<Hierarchy> {
        let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
        for line in mounts.lines() {
            let (front, back) = line.split_once(" - ")?;
            let point = front.split(' ').nth(4)?;
            let mut back = back.split(' ');
            let (kind, options) = (back.next()?, back.nth(1).unwrap_or_default());
            match kind {
                "cgroup2" if point == ROOT => return Some(Hierarchy::V2 { root: point.into() }),
                "cgroup" => {
                    for controller in options.split(',') {
                        let path =
                            found.entry(controller.to_owned()).or_insert_with(|| point.into());
                        // Of several mounts the one with the shortest path counts, as upstream.
                        if point.len() < path.as_os_str().len() {
                            *path = point.into();
                        }
                    }
                }
                _ => {}
            }
        }
        // Options of the mount are no controllers, and neither is a named hierarchy.
        found.retain(|name, _| {
            !["rw", "ro", "none", "xattr", "clone_children", "release_agent"]
                .contains(&name.as_str())
                && !name.contains('=')
        });
        let needed = ["cpu", "memory"].iter().all(|needed| found.contains_key(*needed));
        needed.then_some(Hierarchy::V1 { mounts: found })
    }

    #[cfg(test)]
    pub fn v1_for_tests(root: &Path, controllers: &[&str]) -> Hierarchy {
        let mounts = controllers.iter().map(|name| ((*name).to_owned(), root.join(name)));
        Hierarchy::V1 { mounts: mounts.collect() }
    }

    pub fn is_v2(&self) -> bool {
        matches!(self, Hierarchy::V2 { .. })
    }

    /// Returns the folder of a cgroup that has the files of a controller; `None`: it is version 1,
    /// and the controller is not mounted.
    pub fn folder(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let root = match self {
            Hierarchy::V1 { mounts } => mounts.get(controller)?,
            Hierarchy::V2 { root } => root,
        };
        Some(below(root, path))
    }

    /// Returns the folders of a cgroup, one a mount.
    pub fn folders(&self, path: &str) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = match self {
            Hierarchy::V1 { mounts } => mounts.values().map(|root| below(root, path)).collect(),
            Hierarchy::V2 { root } => vec![below(root, path)],
        };
        folders.sort();
        folders.dedup();
        folders
    }

    /// Finds the path of a container's cgroup below that of its pod, by its id: runtimes write
    /// their own names around it, such as `cri-containerd-<id>.scope`. Without a match it is the id
    /// alone. Blocks for a moment.
    pub fn container_below(&self, pod: &str, id: &str) -> String {
        let is_it = |name: &str| {
            let name = name.strip_suffix(".scope").unwrap_or(name);
            let prefix = name.strip_suffix(id);
            // CRI-O's monitor of a container has a cgroup beside it.
            prefix.is_some_and(|prefix| {
                prefix.is_empty() || prefix.ends_with('-') && !prefix.ends_with("-conmon-")
            })
        };
        let entries = self.folders(pod).into_iter().flat_map(fs::read_dir).flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let name = names.find(|name| is_it(name));
        format!("{pod}/{}", name.as_deref().unwrap_or(id))
    }

    /// Returns whether a cgroup exists in each mount.
    pub fn exists(&self, path: &str) -> bool {
        self.folders(path).iter().all(|folder| folder.is_dir())
    }

    /// Makes a cgroup, with those above it, and sets its limits. After an error the folders that it
    /// has made are removed: a pod whose cgroup exists is not given limits again.
    ///
    /// # Errors
    /// With the path that cannot be made or written.
    pub fn make(&self, path: &str, resources: &Resources) -> io::Result<()> {
        let mut new = Vec::new();
        let made = self.make_folders(path, &mut new).and_then(|()| self.limit(path, resources));
        if made.is_err() {
            for folder in new.iter().rev() {
                if let Err(error) = fs::remove_dir(folder) {
                    log::debug!("{}: {error}", folder.display());
                }
            }
        }
        made
    }

    /// Makes the folders of a cgroup and those above it, and appends each one that is new to `new`.
    /// In version 1 new ones get the CPUs of their parents; in version 2 the controllers are
    /// enabled in all parents.
    pub(super) fn make_folders(&self, path: &str, new: &mut Vec<PathBuf>) -> io::Result<()> {
        match self {
            Hierarchy::V1 { mounts } => {
                for (controller, root) in mounts {
                    let first = new.len();
                    make_below(root, path, new)?;
                    if controller == "cpuset" {
                        new[first..].iter().try_for_each(|folder| inherit_cpuset(folder))?;
                    }
                }
                Ok(())
            }
            Hierarchy::V2 { root } => {
                make_below(root, path, new)?;
                let available = controllers_of(root);
                let controllers: Vec<String> = CONTROLLERS
                    .into_iter()
                    .filter(|name| available.split_whitespace().any(|found| found == *name))
                    .map(|name| format!("+{name}"))
                    .collect();
                if !controllers.is_empty() {
                    let folder = below(root, path);
                    let mut parents: Vec<&Path> = folder.ancestors().skip(1).collect();
                    parents.retain(|parent| parent.starts_with(root));
                    // An existing ancestor may have no controllers enabled.
                    parents.into_iter().rev().for_each(|parent| enable(parent, &controllers));
                }
                Ok(())
            }
        }
    }

    /// Sets the limits of an existing cgroup. Left out are, in version 1, those of a controller
    /// that is not mounted; in version 2 those of huge pages, if the kernel has no such controller.
    pub(super) fn limit(&self, path: &str, resources: &Resources) -> io::Result<()> {
        match self {
            Hierarchy::V1 { mounts } => {
                for (controller, file, content) in resources.v1() {
                    if let Some(root) = mounts.get(controller) {
                        set(&below(root, path), &file, &content)?;
                    }
                }
                Ok(())
            }
            Hierarchy::V2 { root } => {
                let folder = below(root, path);
                let available = controllers_of(root);
                let has_pages = available.split_whitespace().any(|name| name == HUGETLB);
                let files = resources.v2().into_iter();
                let mut files = files.filter(|(file, _)| has_pages || !file.starts_with(HUGETLB));
                files.try_for_each(|(file, text)| set(&folder, &file, &text))
            }
        }
    }
}

/// Returns the controllers of a cgroup of version 2, as its file names them.
fn controllers_of(folder: &Path) -> String {
    fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default()
}

/// Writes a limit. Older kernels do not count reservations of huge pages.
fn set(folder: &Path, file: &str, content: &str) -> io::Result<()> {
    let path = folder.join(file);
    match file.contains(".rsvd.") && !path.exists() {
        true => Ok(()),
        false => write(&path, content),
    }
}

/// Enables the controllers, of the form `+cpu`, in the children of a cgroup; as many as can be.
/// Where a missing one matters, the limit cannot be written. Upstream: `fs2.CreateCgroupPath`.
fn enable(folder: &Path, controllers: &[String]) {
    let file = folder.join("cgroup.subtree_control");
    let Err(error) = write(&file, &controllers.join(" ")) else { return };
    log::debug!("{error}; controllers are enabled one by one");
    for controller in controllers {
        if let Err(error) = write(&file, controller) {
            log::debug!("{error}");
        }
    }
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Makes each folder of a path, and appends those that are new to `new`.
fn make_below(root: &Path, path: &str, new: &mut Vec<PathBuf>) -> io::Result<()> {
    let text = |folder: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
    };
    // It exists, except in tests.
    fs::create_dir_all(root).map_err(|error| text(root, error))?;
    let mut folder = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        folder.push(part);
        match fs::DirBuilder::new().mode(0o755).create(&folder) {
            Ok(()) => new.push(folder.clone()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(text(&folder, error)),
        }
    }
    Ok(())
}

/// Gives a new cpuset the CPUs and memory nodes of its parent: without them it takes no process.
fn inherit_cpuset(folder: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let parent = folder.parent().map(|parent| parent.join(file));
        if let Some(Ok(content)) = parent.map(fs::read_to_string) {
            write(&folder.join(file), content.trim())?;
        }
    }
    Ok(())
}

/// Writes a setting. Its error names the file and the content, as the kernel does not.
pub(super) fn write(file: &Path, content: &str) -> io::Result<()> {
    fs::write(file, content).map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {content:?}: {error}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_by_their_ids() {
        let root = std::env::temp_dir().join(format!("kubelet-names-{}", std::process::id()));
        let hierarchy = Hierarchy::V2 { root: root.clone() };
        for (pod, names, expected) in [
            ("a", &["x"][..], "/a/x"),
            (
                "b",
                &["cri-containerd-x.scope", "cri-containerd-y.scope"],
                "/b/cri-containerd-x.scope",
            ),
            ("c", &["crio-conmon-x.scope", "crio-y.scope", "crio-x.scope"], "/c/crio-x.scope"),
            ("d", &["crio-conmon-x", "crio-x", "crio-xx"], "/d/crio-x"),
            // It has ended.
            ("e", &["y"], "/e/x"),
        ] {
            for name in names {
                fs::create_dir_all(root.join(pod).join(name)).expect("made");
            }
            assert_eq!(hierarchy.container_below(&format!("/{pod}"), "x"), expected);
        }
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn version_is_that_of_the_mounts() {
        let one = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                   32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                   35 31 0:32 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n\
                   36 31 0:32 / /other/cgroup/memory/more rw - cgroup cgroup rw,memory\n\
                   40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                   41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let Some(Hierarchy::V1 { mounts }) = Hierarchy::of(one) else { panic!("not version 1") };
        let shown: Vec<String> =
            mounts.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
        assert_eq!(
            shown,
            [
                "cpu=/sys/fs/cgroup/cpu,cpuacct",
                "cpuacct=/sys/fs/cgroup/cpu,cpuacct",
                "memory=/sys/fs/cgroup/memory",
            ]
        );
        let two = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(Hierarchy::of(two), Some(Hierarchy::V2 { root: ROOT.into() }));
        assert_eq!(Hierarchy::of("31 23 0:28 / /sys rw - sysfs sysfs rw\n"), None);
        assert_eq!(Hierarchy::of("x"), None);
    }

    /// A folder of its own for a test; the test removes it.
    fn folder(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kubelet-{test}-{}", std::process::id()))
    }

    fn resources() -> Resources {
        Resources { cpu_shares: Some(2), memory: Some(4096), ..Resources::default() }
    }

    #[test]
    fn controllers_are_enabled_in_each_ancestor_where_they_can_be() {
        let root = folder("enable");
        // The file of the ancestor `a` cannot be written.
        fs::create_dir_all(root.join("a/cgroup.subtree_control")).expect("folders");
        fs::write(root.join("cgroup.controllers"), "cpuset cpu misc memory\n").expect("a file");
        let hierarchy = Hierarchy::V2 { root: root.clone() };
        hierarchy.make("/a/b/c", &resources()).expect("made");
        let read = |file: &str| fs::read_to_string(root.join(file)).expect(file);
        for parent in ["", "a/b/"] {
            let file = format!("{parent}cgroup.subtree_control");
            assert_eq!(read(&file), "+cpu +memory +cpuset", "{file}");
        }
        assert!(!root.join("a/b/c/cgroup.subtree_control").exists());
        assert_eq!(read("a/b/c/memory.max"), "4096");
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn new_folders_are_removed_when_limits_cannot_be_written() {
        let root = folder("limits");
        // The kernel accepts the path of the folder (at most 4095 bytes), but not those of its files.
        let mut path = "/old/new".to_owned();
        while root.as_os_str().len() + "/memory".len() + path.len() < 4086 {
            let rest = 4090 - root.as_os_str().len() - "/memory".len() - path.len();
            path.push_str(&format!("/{}", "x".repeat(rest.min(200) - 1)));
        }
        for (hierarchy, mounts) in [
            (Hierarchy::v1_for_tests(&root, &["cpuset", "memory"]), &["cpuset", "memory"][..]),
            (Hierarchy::V2 { root: root.join("memory") }, &["memory"]),
        ] {
            for mount in mounts {
                fs::create_dir_all(root.join(mount).join("old")).expect("folders");
            }
            let error = hierarchy.make(&path, &resources()).expect_err("no limits");
            assert_eq!(error.kind(), io::ErrorKind::InvalidFilename, "{error}");
            assert!(hierarchy.exists("/old"));
            assert!(hierarchy.folders("/old/new").iter().all(|folder| !folder.exists()));
        }
        fs::remove_dir_all(&root).expect("removed");
    }
}
