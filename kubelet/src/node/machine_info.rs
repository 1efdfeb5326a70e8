//! What the machine is, as the kernel and its files say. Upstream: cadvisor's `MachineInfo` and
//! `VersionInfo`.

use std::fs;
use std::path::Path;

use kube_controller_manager::objects::Timestamp;

use super::huge_pages::PageSize;

/// The machine. Read once: what of it may change, such as online CPUs, counts from the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineInfo {
    pub cpus: i64,
    pub memory_bytes: i64,
    /// 0: it has none.
    pub swap_bytes: i64,
    pub page_sizes: Vec<PageSize>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    /// The name of the operating system: `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
}

impl MachineInfo {
    /// Reads this machine. Blocks.
    pub fn detect() -> MachineInfo {
        MachineInfo::below(Path::new("/"))
    }

    /// Reads this machine: the CPUs, page sizes and kernel from the running system, all else from
    /// files below `root`. A file that cannot be read leaves its part empty (`os_image`:
    /// "Unknown").
    fn below(root: &Path) -> MachineInfo {
        let read = |file: &str| fs::read_to_string(root.join(file));
        let memory = read("proc/meminfo").unwrap_or_default();
        let kernel = rustix::system::uname();
        MachineInfo {
            cpus: online_cpus(),
            memory_bytes: kib(&memory, "MemTotal:") * 1024,
            swap_bytes: kib(&memory, "SwapTotal:") * 1024,
            page_sizes: PageSize::detect(),
            machine_id: first_of(root, &["etc/machine-id", "var/lib/dbus/machine-id"]),
            system_uuid: first_of(
                root,
                &[
                    "sys/class/dmi/id/product_uuid",
                    "proc/device-tree/system-id",
                    "proc/device-tree/vm,uuid",
                    "etc/machine-id",
                ],
            ),
            boot_id: first_of(root, &["proc/sys/kernel/random/boot_id"]),
            kernel_version: kernel.release().to_string_lossy().into_owned(),
            os_image: match read("etc/os-release").or_else(|_| read("usr/lib/os-release")) {
                Ok(text) => pretty_name(&text),
                Err(_) => "Unknown".to_owned(),
            },
        }
    }
}

/// Returns when the machine was started, in whole seconds; `None`: the kernel does not say. Blocks.
/// Upstream: `GetBootTime`.
pub fn boot_time() -> Option<Timestamp> {
    btime(&fs::read_to_string("/proc/stat").ok()?)
}

/// Returns the time of the start in the content of `/proc/stat`.
fn btime(stat: &str) -> Option<Timestamp> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line?.trim().parse().ok().map(Timestamp::from_secs)
}

/// Returns the content of the first file that can be read; empty if no file can.
fn first_of(root: &Path, files: &[&str]) -> String {
    let mut texts = files.iter().filter_map(|file| fs::read_to_string(root.join(file)).ok());
    let text = texts.next().unwrap_or_default();
    text.trim_end_matches('\0').trim().to_owned()
}

/// Returns the system's name in the content of `os-release`; `Linux` if it has none.
fn pretty_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// Returns the value of a line `NAME VALUE kB`; 0 without such a line.
fn kib(meminfo: &str, name: &str) -> i64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    kib.unwrap_or(0)
}

/// Returns the number of the machine's CPUs: the kubelet's own quota and affinity say nothing about
/// its pods'. Only where the kernel's list cannot be read, it is the number that the kubelet has.
fn online_cpus() -> i64 {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let own = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as i64);
    count_cpus(&list).unwrap_or_else(own)
}

/// Counts the CPUs of a list such as `0-3,5`; `None`: it is malformed. Upstream: `cpuset.Parse`.
pub fn count_cpus(list: &str) -> Option<i64> {
    let mut cpus = std::collections::BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
        if first < 0 || first > last || last > MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    i64::try_from(cpus.len()).ok()
}

/// More than any kernel counts.
const MAX_CPU: i64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn online_cpus_are_counted() {
        for (list, expected) in [
            ("0-3,5\n", Some(5)),
            ("0\n", Some(1)),
            ("0-127", Some(128)),
            ("0-1,1-2", Some(3)),
            ("3-1", None),
            ("0-99999999", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(count_cpus(list), expected, "{list:?}");
        }
        // On a thread of its own, which may use one of them.
        let of_thread = std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).expect("the CPUs of the thread");
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
            let mut one = rustix::thread::CpuSet::new();
            one.set(first.expect("a CPU"));
            rustix::thread::sched_setaffinity(None, &one).expect("an affinity");
            online_cpus()
        });
        let list = fs::read_to_string("/sys/devices/system/cpu/online").expect("the CPUs");
        assert_eq!(Some(of_thread.join().expect("a number")), count_cpus(&list));
    }

    #[test]
    fn the_time_of_the_start_is_read() {
        for (stat, expected) in [
            ("cpu  1 2\nctxt 9\nbtime 1700000000\nprocesses 3\n", Some(1_700_000_000)),
            ("btime x\n", None),
            ("cpu 1\n", None),
        ] {
            assert_eq!(btime(stat), expected.map(Timestamp::from_secs), "{stat:?}");
        }
    }

    #[test]
    fn files_of_the_machine_are_read() {
        let root = std::env::temp_dir().join(format!("kubelet-machine-{}", std::process::id()));
        let none = MachineInfo::below(&root);
        assert_eq!((none.memory_bytes, &*none.os_image, &*none.machine_id), (0, "Unknown", ""));
        for (file, text) in [
            ("proc/meminfo", "MemTotal:       24686532 kB\nSwapTotal: 1024 kB\nMemFree: 1 kB\n"),
            ("var/lib/dbus/machine-id", "abc\n"),
            ("proc/device-tree/vm,uuid", "1-2\0"),
            ("proc/sys/kernel/random/boot_id", "b\n"),
            ("usr/lib/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"),
        ] {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        let machine = MachineInfo::below(&root);
        assert_eq!((machine.memory_bytes, machine.swap_bytes), (24_686_532 * 1024, 1 << 20));
        assert_eq!((&*machine.machine_id, &*machine.system_uuid), ("abc", "1-2"));
        assert_eq!((&*machine.boot_id, &*machine.os_image), ("b", "Debian GNU/Linux 12"));
        fs::write(root.join("usr/lib/os-release"), "NAME=x\n").expect("a file");
        assert_eq!(MachineInfo::below(&root).os_image, "Linux");
        fs::remove_dir_all(&root).expect("removed");
    }
}
