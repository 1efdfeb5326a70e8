//! The sysctls that pods may set: those of a namespace of their own, which change nothing for
//! others. Upstream: `pkg/kubelet/sysctl`, `component-helpers/node/util/sysctl`.

use std::error::Error as StdError;
use std::fmt;

use super::Rejection;
use crate::pod::{Pod, PodExt};

/// The version of a kernel.
pub type KernelVersion = (u32, u32);

/// Those that are isolated between pods, and the first kernel that has them for each namespace.
/// Upstream: `safeSysctls`.
const SAFE: [(&str, KernelVersion); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// The longest name. Upstream: `SysctlMaxLength`.
const MAX_LENGTH: usize = 253;

/// Why there is no allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not the name of a sysctl, or the start of one with `*` at its end.
    Pattern(String),
    /// All of the machine share it.
    NotNamespaced(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pattern(pattern) => write!(
                f,
                "sysctl {pattern:?} must have at most {MAX_LENGTH} characters and be a name, or the \
                 start of one and *"
            ),
            Error::NotNamespaced(name) => {
                write!(f, "the sysctls {name:?} are not known to be namespaced")
            }
        }
    }
}

impl StdError for Error {}

/// The namespace of the kernel that a sysctl belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    /// Returns the namespace to which a sysctl belongs. `None`: all of the machine share it, as far
    /// as is known.
    fn of(name: &str) -> Option<Namespace> {
        let of_ipc = [
            "kernel.sem",
            "kernel.shm",
            "kernel.shmall",
            "kernel.shmmax",
            "kernel.shmmni",
            "kernel.shm_rmid_forced",
            "kernel.msg",
            "kernel.msgmax",
            "kernel.msgmnb",
            "kernel.msgmni",
        ];
        match name {
            name if of_ipc.contains(&name) || name.starts_with("fs.mqueue.") => {
                Some(Namespace::Ipc)
            }
            name if name.starts_with("net.") => Some(Namespace::Net),
            _ => None,
        }
    }

    /// Returns the name in upstream's messages.
    fn name(self) -> &'static str {
        match self {
            Namespace::Ipc => "IPC",
            Namespace::Net => "Net",
        }
    }

    /// Returns whether the pod shares the host's.
    fn is_of_host(self, pod: &Pod) -> bool {
        match self {
            Namespace::Ipc => pod.spec().host_ipc == Some(true),
            Namespace::Net => pod.is_host_network(),
        }
    }
}

/// The sysctls that pods may set, with their namespaces.
#[derive(Clone, Debug)]
pub struct Allowlist {
    names: Vec<(String, Namespace)>,
    prefixes: Vec<(String, Namespace)>,
}

impl Allowlist {
    /// Lists the safe sysctls of a kernel, and those of `patterns`: names, or starts of names with
    /// `*`.
    ///
    /// # Errors
    /// A pattern is malformed, or names sysctls that all of the machine share.
    pub fn new(patterns: &[String], kernel: KernelVersion) -> Result<Allowlist, Error> {
        let safe = SAFE.into_iter().filter(|(_, least)| kernel >= *least);
        let mut list = Allowlist { names: Vec::new(), prefixes: Vec::new() };
        for pattern in safe.map(|(name, _)| name).chain(patterns.iter().map(String::as_str)) {
            if !is_pattern(pattern) {
                return Err(Error::Pattern(pattern.to_owned()));
            }
            let name = with_dots(pattern);
            let (name, kind) = match name.split_once('*') {
                Some((prefix, _)) => (prefix, &mut list.prefixes),
                None => (&*name, &mut list.names),
            };
            let Some(namespace) = Namespace::of(name) else {
                return Err(Error::NotNamespaced(name.to_owned()));
            };
            kind.push((name.to_owned(), namespace));
        }
        Ok(list)
    }

    /// Checks that the pod may set all of its sysctls.
    ///
    /// # Errors
    /// The first sysctl of the pod that it may not set.
    pub(super) fn check(&self, pod: &Pod) -> Result<(), Rejection> {
        let security = pod.spec().security_context.as_ref();
        for sysctl in security.and_then(|context| context.sysctls.as_ref()).into_iter().flatten() {
            let name = with_dots(&sysctl.name);
            let Some(namespace) = self.namespace(&name) else {
                return Err(Rejection::Sysctl(format!("{name:?} not allowlisted")));
            };
            if namespace.is_of_host(pod) {
                let host = namespace.name();
                let why = format!("{name:?} not allowed with host {host} enabled");
                return Err(Rejection::Sysctl(why));
            }
        }
        Ok(())
    }

    fn namespace(&self, name: &str) -> Option<Namespace> {
        let named = self.names.iter().find(|(listed, _)| listed == name);
        let prefixed = || self.prefixes.iter().find(|(prefix, _)| name.starts_with(&**prefix));
        named.or_else(prefixed).map(|(_, namespace)| *namespace)
    }
}

/// Returns the name with dots as its separators. A name whose first separator is a slash has the
/// two exchanged, as a dot may be part of a device's name. Upstream: `NormalizeName`.
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']).map(|at| &name[at..=at]) {
        Some("/") => name
            .chars()
            .map(|character| match character {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// Returns whether a text is the name of a sysctl or a pattern: words of lower-case letters,
/// digits, `-` and `_`, the last of which may end with `*`. Upstream: `IsValidSysctlPattern`.
fn is_pattern(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_word = |word: &str| {
        let bytes = word.as_bytes();
        let is_plain = |byte: &u8| is_inner(*byte) || b"-_".contains(byte);
        bytes.iter().all(is_plain)
            && bytes.first().copied().is_some_and(is_inner)
            && bytes.last().copied().is_some_and(is_inner)
    };
    let mut words: Vec<&str> = text.split(['.', '/']).collect();
    let last = words.pop().unwrap_or_default();
    let is_last = match last.strip_suffix('*') {
        None => is_word(last),
        Some("") => true,
        Some(start) => is_word(start.trim_end_matches(['-', '_'])),
    };
    text.len() <= MAX_LENGTH && words.into_iter().all(is_word) && is_last
}

/// Returns the version of the kernel that runs, by the start of its release; `None`: it does not
/// start with two numbers.
pub fn kernel_version(release: &str) -> Option<KernelVersion> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(patterns: &[&str]) -> Result<Allowlist, Error> {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Allowlist::new(&patterns, (6, 1))
    }

    fn refused(list: &Allowlist, name: &str, host: &str) -> String {
        let mut spec = json!({"containers": [], "securityContext": {"sysctls": [
            {"name": "kernel.shm_rmid_forced", "value": "1"}, {"name": name, "value": "1"}]}});
        if name == "kernel.shm_rmid_forced" || host == "hostIPC" {
            spec["securityContext"]["sysctls"] = json!([{"name": name, "value": "1"}]);
        }
        if !host.is_empty() {
            spec[host] = json!(true);
        }
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
        list.check(&pod).err().map(|rejection| rejection.to_string()).unwrap_or_default()
    }

    #[test]
    fn only_sysctls_of_the_list_are_set_and_none_of_the_host() {
        let list = list(&["kernel.msg*", "kernel.sem", "net.b.*", "net/ipv6/conf/eth0.1/*"])
            .expect("an allowlist");
        let not_listed = |name: &str| format!("forbidden sysctl: {name:?} not allowlisted");
        for (name, host, expected) in [
            ("net.ipv4.tcp_syncookies", "", String::new()),
            ("net/ipv4/tcp_syncookies", "", String::new()),
            ("kernel.shm_rmid_forced", "", String::new()),
            ("kernel.msgmax", "", String::new()),
            ("kernel.msg.a", "", String::new()),
            ("kernel.sem", "", String::new()),
            ("net.b.a.b", "", String::new()),
            ("net.ipv6.conf.eth0/1.x", "", String::new()),
            ("net.ipv4.ip_forward", "", not_listed("net.ipv4.ip_forward")),
            ("net.c", "", not_listed("net.c")),
            ("kernel.sem.a", "", not_listed("kernel.sem.a")),
            ("kernel.shmmax", "", not_listed("kernel.shmmax")),
            (
                "net.ipv4.tcp_syncookies",
                "hostNetwork",
                "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"
                    .to_owned(),
            ),
            ("net.ipv4.tcp_syncookies", "hostIPC", String::new()),
            (
                "kernel.msgmax",
                "hostIPC",
                "forbidden sysctl: \"kernel.msgmax\" not allowed with host IPC enabled".to_owned(),
            ),
        ] {
            assert_eq!(refused(&list, name, host), expected, "{name} {host}");
        }
    }

    #[test]
    fn patterns_are_of_namespaces() {
        for (pattern, expected) in [
            ("kernel.shm*", Ok(())),
            ("net.*", Ok(())),
            ("net.ipv4.ip_local_port_range", Ok(())),
            ("fs.mqueue.queues_max", Ok(())),
            ("kernel.*", Err(Error::NotNamespaced("kernel.".to_owned()))),
            ("kernel.pid_max", Err(Error::NotNamespaced("kernel.pid_max".to_owned()))),
            ("*", Err(Error::NotNamespaced(String::new()))),
            ("net.*.a", Err(Error::Pattern("net.*.a".to_owned()))),
            ("net.-a", Err(Error::Pattern("net.-a".to_owned()))),
            ("net.A", Err(Error::Pattern("net.A".to_owned()))),
            ("", Err(Error::Pattern(String::new()))),
        ] {
            assert_eq!(list(&[pattern]).map(|_| ()), expected, "{pattern}");
        }
        let long = format!("net.{}", "a".repeat(250));
        assert_eq!(list(&[&long]).err(), Some(Error::Pattern(long.clone())));
    }

    #[test]
    fn old_kernels_have_fewer() {
        let list = |kernel| Allowlist::new(&[], kernel).expect("an allowlist").names.len();
        for (release, expected) in [
            ("3.10.0-1160.el7.x86_64", Some((3, 10))),
            ("6.1.0-18-amd64", Some((6, 1))),
            ("5.15", Some((5, 15))),
            ("x", None),
        ] {
            assert_eq!(kernel_version(release), expected);
        }
        assert_eq!([list((3, 10)), list((4, 5)), list((4, 15)), list((6, 1))], [5, 9, 12, 12]);
    }
}
