//! Checks that the machine is as the configuration wants it. Upstream:
//! `validateKubeletOSConfiguration`, `NewContainerManager`, `setupKernelTunables`.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::cgroup_version;
use crate::options::configuration::Configuration;

/// The settings of the kernel that upstream makes, below `/proc/sys`.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Why the kubelet does not start on this machine. The texts are upstream's.
#[derive(Debug)]
pub enum Error {
    CgroupV1,
    /// Version 1 of cgroups cannot kill all processes of a container.
    SingleProcess,
    SwapIsOn,
    /// The list of areas of swap cannot be read.
    Swaps(io::Error),
    /// Settings of the kernel differ: a text for each.
    Kernel(Vec<String>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::CgroupV1 => f.write_str(
                "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
                 unsupported and will be removed in a future release",
            ),
            Error::SingleProcess => f.write_str(
                "invalid configuration: singleProcessOOMKill must not be explicitly set to false \
                 when using cgroup v1",
            ),
            Error::SwapIsOn => f.write_str(
                "running with swap on is not supported, please disable swap or set --fail-swap-on \
                 flag to false",
            ),
            Error::Swaps(_) => f.write_str("failed to determine if swap is on"),
            Error::Kernel(faults) => write!(f, "[{}]", faults.join(", ")),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Swaps(error) => Some(error),
            _ => None,
        }
    }
}

/// Checks what the configuration asks of the machine.
///
/// # Errors
/// See [`Error`].
pub fn check(configuration: &Configuration) -> Result<(), Error> {
    check_cgroups(configuration, cgroup_version())?;
    if configuration.fail_swap_on {
        match fs::read_to_string("/proc/swaps") {
            Ok(areas) if has_areas(&areas) => return Err(Error::SwapIsOn),
            // The kernel has no swap.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Swaps(error));
            }
            _ => {}
        }
    }
    if configuration.protect_kernel_defaults {
        let read = |setting: &str| fs::read_to_string(Path::new("/proc/sys").join(setting));
        let faults = kernel_faults(read);
        if !faults.is_empty() {
            return Err(Error::Kernel(faults));
        }
    }
    Ok(())
}

/// Checks what the configuration asks of the version of cgroups. It asks nothing of version 2.
fn check_cgroups(configuration: &Configuration, version: i64) -> Result<(), Error> {
    if version != 1 {
        return Ok(());
    }
    if configuration.fail_cgroup_v1 {
        return Err(Error::CgroupV1);
    }
    match configuration.single_process_oom_kill {
        Some(false) => Err(Error::SingleProcess),
        _ => Ok(()),
    }
}

/// Returns whether `/proc/swaps` with this content lists an area: its first line is the head.
fn has_areas(swaps: &str) -> bool {
    swaps.trim().lines().count() > 1
}

/// Returns a text for each setting of the kernel that is not as upstream makes it. `read`: reads a
/// setting.
fn kernel_faults(read: impl Fn(&str) -> io::Result<String>) -> Vec<String> {
    let fault = |(setting, expected): (&str, &str)| match read(setting) {
        Ok(actual) if actual.trim() == expected => None,
        Ok(actual) => Some(format!(
            "invalid kernel flag: {setting}, expected value: {expected}, actual value: {}",
            actual.trim()
        )),
        Err(error) => Some(format!("/proc/sys/{setting}: {error}")),
    };
    KERNEL_SETTINGS.into_iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_version_1_are_checked() {
        for (fails, single, version, expected) in [
            (false, None, 1, None),
            (false, Some(true), 1, None),
            (false, Some(false), 1, Some("singleProcessOOMKill must not")),
            (false, Some(false), 2, None),
            (true, None, 1, Some("configured to not run on a host using cgroup v1")),
            (true, None, 2, None),
        ] {
            let configuration = Configuration {
                fail_cgroup_v1: fails,
                single_process_oom_kill: single,
                ..Configuration::default()
            };
            let fault = check_cgroups(&configuration, version).err();
            let fault = fault.map(|fault| fault.to_string());
            let is_expected = match expected {
                Some(text) => fault.as_ref().is_some_and(|fault| fault.contains(text)),
                None => fault.is_none(),
            };
            assert!(is_expected, "{fails} {single:?} {version}: {fault:?}");
        }
    }

    #[test]
    fn swap_is_on_where_an_area_is_listed() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        for (swaps, expected) in [
            (String::new(), false),
            (head.to_owned(), false),
            (format!("{head}/dev/sda2 partition\t1024\t0\t-2\n"), true),
        ] {
            assert_eq!(has_areas(&swaps), expected, "{swaps:?}");
        }
    }

    #[test]
    fn settings_of_the_kernel_are_compared_with_upstreams() {
        let as_upstream = |setting: &str| {
            let value = KERNEL_SETTINGS.iter().find(|(name, _)| *name == setting);
            Ok(format!("{}\n", value.expect("a setting").1))
        };
        assert_eq!(kernel_faults(as_upstream), Vec::<String>::new());
        let other = |setting: &str| match setting {
            "kernel/panic" => Ok("0\n".to_owned()),
            "vm/panic_on_oom" => Err(io::ErrorKind::NotFound.into()),
            _ => as_upstream(setting),
        };
        let expected = [
            "/proc/sys/vm/panic_on_oom: entity not found",
            "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0",
        ];
        assert_eq!(kernel_faults(other), expected);
    }

    #[test]
    fn unset_checks_pass_on_every_machine() {
        assert!(check(&Configuration::default()).is_ok());
    }
}
