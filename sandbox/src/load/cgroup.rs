//! A memory cgroup for a manager: its limit, how often the manager met it, and what was in it. Of
//! version 2, or of version 1 where the memory controller is mounted there.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube_controller_manager::objects::Quantity;
use serde::Serialize;

/// A number of bytes, written as a quantity: `24M`, `24Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let quantity: Option<Quantity> = text.parse().ok();
        let bytes = quantity.map_or(0, Quantity::value);
        match u64::try_from(bytes) {
            Ok(bytes) if bytes > 0 => Ok(Bytes(bytes)),
            _ => Err(format!("{text:?} is not a number of bytes such as 24M or 24Mi")),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MB", self.0 as f64 / 1e6)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The kernel takes memory from a group's limit in parts of 64 pages.
const CHARGE_BYTES: u64 = 64 * 4096;

/// The memory controller's mount, and the cgroup of this process below it.
#[derive(Debug, PartialEq)]
struct Mount {
    version: Version,
    root: PathBuf,
    own: PathBuf,
}

/// What a cgroup has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// How often the limit was met, and memory had to be reclaimed. `None`: this kernel does not
    /// count it.
    pub hits: Option<u64>,
    /// The pages of files that were reclaimed and read again.
    pub refaults: u64,
    /// The processes that were killed because nothing was left to reclaim.
    pub kills: u64,
    pub anonymous_bytes: u64,
    /// The pages of files, such as the program's code.
    pub file_bytes: u64,
    /// The highest memory so far; 0: not counted by this kernel.
    pub peak_bytes: u64,
}

impl Counts {
    /// Adds the counts of a further group. The peak is the higher one; what is in memory is that of
    /// the further group.
    pub fn add(&mut self, other: Counts) {
        self.hits = self.hits.zip(other.hits).map(|(one, two)| one + two);
        self.refaults += other.refaults;
        self.kills += other.kills;
        (self.anonymous_bytes, self.file_bytes) = (other.anonymous_bytes, other.file_bytes);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
    }
}

/// A memory cgroup; removed on drop, when its processes have ended.
pub struct MemoryGroup {
    version: Version,
    folder: PathBuf,
}

impl MemoryGroup {
    /// Creates a cgroup, with a limit or without one. It lies as close to the root of the hierarchy
    /// as this process may write: in version 2 a group that has processes has no limited groups
    /// below it, unless it is the root.
    ///
    /// # Errors
    /// Why none can be written, in one line.
    pub fn new(limit: Option<Bytes>) -> Result<MemoryGroup, String> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mounts = mounts(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        let mut why = String::from("none is mounted");
        for mount in mounts {
            for parent in mount.parents() {
                match create(mount.version, &parent) {
                    Ok(group) => {
                        group.limit(limit).map_err(|error| group.cannot_write(&error))?;
                        return Ok(group);
                    }
                    Err(error) => why = format!("{}: {error}", parent.display()),
                }
            }
        }
        Err(format!("no memory cgroup can be written ({why})"))
    }

    fn cannot_write(&self, error: &io::Error) -> String {
        format!("the limit of {} cannot be written ({error})", self.folder.display())
    }

    /// Limits the memory of the group's processes, with no swap beyond it.
    fn limit(&self, limit: Option<Bytes>) -> io::Result<()> {
        let Some(Bytes(limit)) = limit else { return Ok(()) };
        let write = |file: &str, number: u64| fs::write(self.folder.join(file), number.to_string());
        match self.version {
            Version::One => write("memory.limit_in_bytes", limit)?,
            Version::Two => write("memory.max", limit)?,
        }
        // As in a container: what does not fit is not swapped out. The files are missing where the
        // kernel does not count swap.
        let _ = match self.version {
            Version::One => write("memory.memsw.limit_in_bytes", limit),
            Version::Two => write("memory.swap.max", 0),
        };
        Ok(())
    }

    /// Returns the file that takes the ids of its processes.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Reads the memory counters of the group from the kernel's files. A file that cannot be read
    /// counts as zero.
    pub fn counts(&self) -> Counts {
        let read_file = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let read_number = |file: &str| read_file(file).trim().parse().unwrap_or(0u64);
        let stat = read_file("memory.stat");
        match self.version {
            Version::One => Counts {
                // The limit with swap is the same, and is met first.
                hits: hits_of_version_one(
                    read_number("memory.failcnt") + read_number("memory.memsw.failcnt"),
                    read_number("memory.max_usage_in_bytes"),
                    read_number("memory.limit_in_bytes"),
                ),
                refaults: field(&stat, "workingset_refault_file"),
                kills: field(&read_file("memory.oom_control"), "oom_kill"),
                anonymous_bytes: field(&stat, "rss"),
                file_bytes: field(&stat, "cache"),
                peak_bytes: read_number("memory.max_usage_in_bytes"),
            },
            Version::Two => {
                let events = read_file("memory.events");
                Counts {
                    hits: Some(field(&events, "max")),
                    refaults: field(&stat, "workingset_refault_file"),
                    kills: field(&events, "oom_kill"),
                    anonymous_bytes: field(&stat, "anon"),
                    file_bytes: field(&stat, "file"),
                    peak_bytes: read_number("memory.peak"),
                }
            }
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("{} cannot be removed: {error}", self.folder.display());
        }
    }
}

impl fmt::Display for MemoryGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            Version::One => "version 1",
            Version::Two => "version 2",
        };
        write!(f, "{} ({version})", self.folder.display())
    }
}

impl Mount {
    /// Returns the groups in which this process may be allowed to create one, from the root down to
    /// its own.
    fn parents(&self) -> Vec<PathBuf> {
        let mut parents = vec![self.root.clone()];
        for part in self.own.components().skip(1) {
            let next = parents[parents.len() - 1].join(part);
            parents.push(next);
        }
        parents
    }
}

/// Finds the mounts of the memory controller in the texts of `/proc/self/mounts` and
/// `/proc/self/cgroup`.
fn mounts(mounts: &str, own: &str) -> Vec<Mount> {
    let own_of = |is_it: &dyn Fn(&str) -> bool| {
        let parts = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let mut found = parts.filter(|(controllers, _)| is_it(controllers)).map(|(_, path)| path);
        PathBuf::from(found.next().unwrap_or("/"))
    };
    let has_memory = |list: &str| list.split(',').any(|name| name == "memory");
    mounts
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, root, kind, options, ..] = fields[..] else { return None };
            let (version, own) = match kind {
                "cgroup2" => (Version::Two, own_of(&|controllers| controllers.is_empty())),
                "cgroup" if has_memory(options) => (Version::One, own_of(&has_memory)),
                _ => return None,
            };
            Some(Mount { version, root: root.into(), own })
        })
        .collect()
}

/// Creates a group below this one; an error says why none with a limit is possible.
fn create(version: Version, parent: &Path) -> io::Result<MemoryGroup> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let file = match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => {
            let controllers = fs::read_to_string(parent.join("cgroup.controllers"))?;
            if !controllers.split_whitespace().any(|name| name == "memory") {
                return Err(io::Error::other("it has no memory controller"));
            }
            // Refused where the group has processes of its own; then its groups have no limits.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
            "memory.max"
        }
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("kube-sandbox-{}-{count}", std::process::id()));
    fs::create_dir(&folder)?;
    if !folder.join(file).exists() {
        fs::remove_dir(&folder)?;
        return Err(io::Error::other(format!("its groups have no {file}")));
    }
    Ok(MemoryGroup { version, folder })
}

/// Returns how often a limit was met, by the counter of failures. `None`: the counter does not
/// work. Newer kernels keep that counter of version 1 at zero, even where the peak is at the limit.
fn hits_of_version_one(failures: u64, peak_bytes: u64, limit_bytes: u64) -> Option<u64> {
    let is_met = peak_bytes.saturating_add(CHARGE_BYTES) > limit_bytes;
    (failures > 0 || !is_met).then_some(failures)
}

/// Returns the number after `name` in lines of names and numbers.
fn field(text: &str, name: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_quantities() {
        for (text, bytes) in [
            ("24M", Some(24_000_000)),
            ("24Mi", Some(25_165_824)),
            ("16000000", Some(16_000_000)),
            ("0", None),
            ("-1M", None),
            ("much", None),
        ] {
            assert_eq!(text.parse().ok(), bytes.map(Bytes), "{text}");
        }
    }

    #[test]
    fn the_controller_is_found_in_both_versions() {
        let text = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                    cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let own = "4:memory:/pods/a\n3:cpuset:/\n0::/user/b\n";
        let [one, two] = &mounts(text, own)[..] else { panic!("two mounts") };
        assert_eq!((one.version, two.version), (Version::One, Version::Two));
        let parents = ["", "/pods", "/pods/a"].map(|at| format!("/sys/fs/cgroup/memory{at}"));
        assert_eq!(one.parents(), parents.map(PathBuf::from));
        assert_eq!(two.own, Path::new("/user/b"));
        assert_eq!(mounts("proc /proc proc rw 0 0\n", own), []);
    }

    #[test]
    fn a_counter_that_stays_zero_at_the_limit_says_nothing() {
        const MEGA: u64 = 1_000_000;
        assert_eq!(hits_of_version_one(0, 12 * MEGA, 24 * MEGA), Some(0));
        assert_eq!(hits_of_version_one(7, 24 * MEGA, 24 * MEGA), Some(7));
        assert_eq!(hits_of_version_one(0, 24 * MEGA - 2560, 24 * MEGA), None);
    }

    #[test]
    fn counts_of_several_groups_are_added() {
        let group =
            |hits, peak_bytes| Counts { hits, peak_bytes, refaults: 3, ..Counts::default() };
        let mut counts = group(Some(2), 9);
        counts.add(group(Some(1), 7));
        assert_eq!((counts.hits, counts.refaults, counts.peak_bytes), (Some(3), 6, 9));
        counts.add(group(None, 8));
        assert_eq!(counts.hits, None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let events = "low 0\nmax 17\noom 2\noom_kill 1\n";
        assert_eq!(["max", "oom", "oom_kill", "high"].map(|it| field(events, it)), [17, 2, 1, 0]);
    }
}
