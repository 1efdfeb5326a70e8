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
    if configuration.fail_cgroup_v1 && cgroup_version() == 1 {
        return Err(Error::CgroupV1);
    }
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
