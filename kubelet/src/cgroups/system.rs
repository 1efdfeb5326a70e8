//! The cgroups of the node's own programs. Upstream: `GetKubeletContainer`, `setupNode`.

use std::fs;
use std::io;

use super::{Hierarchy, files};

/// The paths of the cgroups of the kubelet and of the runtime, where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemCgroups {
    pub kubelet: Option<String>,
    pub runtime: Option<String>,
}

impl SystemCgroups {
    /// Returns the given cgroups; an empty one of the kubelet is that of this process. Blocks for a
    /// moment.
    pub fn detect(kubelet: &str, runtime: &str) -> SystemCgroups {
        let given = |path: &str| (!path.is_empty()).then(|| path.to_owned());
        let own = || of_process(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
        SystemCgroups { kubelet: given(kubelet).or_else(own), runtime: given(runtime) }
    }

    /// Returns them with their names in statistics.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let both = [("kubelet", &self.kubelet), ("runtime", &self.runtime)];
        both.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)))
    }
}

/// Returns the cgroup of a process by the content of `/proc/PID/cgroup`; `None`: its CPU and its
/// memory are counted in different ones. Upstream: `getContainer`.
fn of_process(text: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let of = |controller: &str| {
        let mut lines = lines.clone();
        let line = lines.find(|(names, _)| names.split(',').any(|name| name == controller));
        line.map(|(_, path)| path)
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    let path = match (cpu, memory) {
        // Version 2 has one line, without controllers.
        (None, None) => of(""),
        // systemd may count neither, and then names the unit only in its own hierarchy.
        _ if cpu == memory => of("name=systemd").or(cpu),
        _ => None,
    };
    // One above the mounted root, as in a cgroup namespace, cannot be found there.
    path.filter(|path| !path.contains("/..")).map(str::to_owned)
}

/// Moves this process into a cgroup, which is made where it is absent. Blocks for a moment.
///
/// # Errors
/// With the path that cannot be made or written.
pub fn join(hierarchy: &Hierarchy, path: &str) -> io::Result<()> {
    hierarchy.make_folders(path, &mut Vec::new())?;
    let process = std::process::id().to_string();
    let folders = hierarchy.folders(path);
    folders.iter().try_for_each(|folder| files::write(&folder.join("cgroup.procs"), &process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_that_of_the_unit() {
        let unit = "/system.slice/kubelet.service";
        let v1 = |cpu: &str, memory: &str, systemd: &str| {
            format!("5:cpu,cpuacct:{cpu}\n4:memory:{memory}\n1:name=systemd:{systemd}\n0::/\n")
        };
        for (text, expected) in [
            (format!("0::{unit}\n"), Some(unit)),
            (v1(unit, unit, unit), Some(unit)),
            (v1("/", "/", unit), Some(unit)),
            (v1("/a", "/b", unit), None),
            ("2:cpu:/a:b\n1:memory:/a:b\n".to_owned(), Some("/a:b")),
            (String::new(), None),
            ("0::/../x\n".to_owned(), None),
        ] {
            assert_eq!(of_process(&text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn given_cgroups_are_not_looked_for() {
        let cgroups = SystemCgroups::detect("/k", "");
        assert_eq!(cgroups.named().collect::<Vec<_>>(), [("kubelet", "/k")]);
    }

    #[test]
    fn process_joins_a_cgroup_of_each_mount() {
        let base = std::env::temp_dir().join(format!("kubelet-join-{}", std::process::id()));
        let own = std::process::id().to_string();
        for (name, hierarchy, mounts) in [
            ("v1", Hierarchy::v1_for_tests(&base.join("v1"), &["cpu", "memory"]), 2),
            ("v2", Hierarchy::V2 { root: base.join("v2") }, 1),
        ] {
            join(&hierarchy, "/a/b").expect(name);
            let folders = hierarchy.folders("/a/b");
            assert_eq!(folders.len(), mounts, "{name}");
            for folder in folders {
                let processes = fs::read_to_string(folder.join("cgroup.procs"));
                assert_eq!(processes.ok().as_deref(), Some(&*own), "{name}");
            }
        }
        fs::remove_dir_all(&base).expect("removed");
    }
}
