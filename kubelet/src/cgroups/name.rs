//! Names of cgroups, as both drivers write them. Upstream: `CgroupName`.

/// Who makes the cgroups of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The runtime, as folders.
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

const SLICE: &str = ".slice";

/// The parts of a cgroup's name below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(Vec<String>);

impl Name {
    /// Parses a path such as `/kubepods/burstable`.
    pub fn of_cgroupfs(path: &str) -> Name {
        Name(path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }

    /// Parses a path whose last part is a slice, such as `/a.slice/a-b_c.slice`, which is `a`,
    /// `b-c`.
    pub fn of_systemd(path: &str) -> Name {
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let parts = last.strip_suffix(SLICE).unwrap_or(last).split('-');
        // A dash within a part is written as an underscore.
        Name(parts.filter(|part| !part.is_empty()).map(|part| part.replace('_', "-")).collect())
    }

    pub fn child(&self, part: &str) -> Name {
        Name(self.0.iter().cloned().chain([part.to_owned()]).collect())
    }

    pub fn last(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    /// Returns the path below the mounts.
    pub fn path(&self, driver: Driver) -> String {
        match driver {
            Driver::Cgroupfs => format!("/{}", self.0.join("/")),
            Driver::Systemd => {
                let slices = (1..=self.0.len()).map(|count| slice(&self.0[..count]));
                format!("/{}", slices.collect::<Vec<_>>().join("/"))
            }
        }
    }

    /// Returns the name as the parent of containers.
    pub fn parent_of_containers(&self, driver: Driver) -> String {
        match driver {
            Driver::Cgroupfs => self.path(driver),
            Driver::Systemd => slice(&self.0),
        }
    }
}

/// Returns the name of a slice: systemd nests slices by the dashes in their names.
fn slice(parts: &[String]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| part.replace('-', "_")).collect();
    parts.join("-") + SLICE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_write_names_in_their_ways() {
        for (root, parts, cgroupfs, systemd, parent) in [
            ("", &["kubepods"][..], "/kubepods", "/kubepods.slice", "kubepods.slice"),
            (
                "/",
                &["kubepods", "burstable", "pod1234-abcd"],
                "/kubepods/burstable/pod1234-abcd",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice",
                "kubepods-burstable-pod1234_abcd.slice",
            ),
            (
                "/a/b",
                &["kubepods"],
                "/a/b/kubepods",
                "/a.slice/a-b.slice/a-b-kubepods.slice",
                "a-b-kubepods.slice",
            ),
        ] {
            let root = Name::of_cgroupfs(root);
            let name = parts.iter().fold(root, |name, part| name.child(part));
            assert_eq!(name.path(Driver::Cgroupfs), cgroupfs);
            assert_eq!(name.path(Driver::Systemd), systemd);
            assert_eq!(name.parent_of_containers(Driver::Systemd), parent);
            assert_eq!(name.parent_of_containers(Driver::Cgroupfs), cgroupfs);
            assert_eq!(Name::of_cgroupfs(cgroupfs), name);
            assert_eq!(Name::of_systemd(systemd), name);
        }
        assert_eq!(Name::of_systemd("/"), Name::default());
        assert_eq!(Name::default().path(Driver::Cgroupfs), "/");
    }
}
