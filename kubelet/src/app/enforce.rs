//! Limits of cgroups by what is reserved of the machine. Upstream: `enforceNodeAllocatableCgroups`.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Quantity;
use kube_controller_manager::task::{self, StopToken};

use crate::cgroups::{self, Cgroups, Limits};
use crate::events;
use crate::node::resources::{Amounts, NodeResources, PIDS};
use crate::options::configuration::Configuration;

/// After a limit could not be set.
const RETRY: Duration = Duration::from_secs(60);

/// The field and the flag.
const FLAG: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";

/// Why reservations are not enforced.
#[derive(Debug)]
pub enum Error {
    Duplicate(String),
    /// There are more words beside `none`.
    NotAlone,
    Unknown(String),
    /// The field of the cgroup, and the word that needs it.
    NoCgroup {
        field: &'static str,
        word: String,
    },
    /// A word is given with its other form.
    BothForms(String),
    /// There are no cgroups of classes.
    NoClasses(String),
    /// The cgroups of pods cannot be made.
    Pods(io::Error),
    /// The cgroup of a reservation cannot be limited.
    Reservation {
        what: String,
        cgroup: String,
        fault: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Duplicate(word) => write!(f, "duplicated enforcements {word:?} in {FLAG}"),
            Error::NotAlone => write!(
                f,
                "{FLAG} may not contain additional enforcements when \"none\" is specified"
            ),
            Error::Unknown(word) => write!(
                f,
                "option {word:?} specified for {FLAG}. Valid options are \"pods\", \
                 \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \
                 \"kube-reserved-compressible\" or \"none\""
            ),
            Error::NoCgroup { field, word } => {
                write!(f, "{field} must be specified when {word:?} included in {FLAG}")
            }
            Error::BothForms(word) => {
                write!(f, "both {word:?} and its other form cannot be specified together in {FLAG}")
            }
            Error::NoClasses(word) => write!(
                f,
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {word:?} contained in \
                 {FLAG}"
            ),
            Error::Pods(_) => f.write_str("cgroupsPerQOS (--cgroups-per-qos)"),
            Error::Reservation { what, cgroup, fault } => {
                write!(f, "Failed to enforce {what} Cgroup Limits on {cgroup:?}: {fault}")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Pods(error) => Some(error),
            _ => None,
        }
    }
}

/// How a reservation is enforced in its cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    No,
    /// Only CPU, which can be taken back at any time.
    Compressible,
    All,
}

/// What `enforceNodeAllocatable` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// All pods together are limited to what is not reserved.
    pub pods: bool,
    pub system: Scope,
    pub kube: Scope,
}

impl Keys {
    /// Reads from the configuration for which cgroups limits are enforced; if it does not say, for
    /// pods, if they have cgroups by class. Upstream: `ValidateKubeletConfiguration`.
    ///
    /// # Errors
    /// All but those of [`start`].
    pub fn of(configuration: &Configuration) -> Result<Keys, Error> {
        let is_on = configuration.cgroups_per_qos;
        let Some(words) = &configuration.enforce_node_allocatable else {
            return Ok(Keys { pods: is_on, ..Keys::default() });
        };
        let mut keys = Keys::default();
        for (at, word) in words.iter().enumerate() {
            if words[..at].contains(word) {
                return Err(Error::Duplicate(word.clone()));
            }
            match word.as_str() {
                "none" if words.len() > 1 => return Err(Error::NotAlone),
                "none" => continue,
                "pods" => keys.pods = true,
                "system-reserved" | "system-reserved-compressible" => {
                    let field = "systemReservedCgroup (--system-reserved-cgroup)";
                    add(&mut keys.system, word, &configuration.system_reserved_cgroup, field)?;
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    let field = "kubeReservedCgroup (--kube-reserved-cgroup)";
                    add(&mut keys.kube, word, &configuration.kube_reserved_cgroup, field)?;
                }
                _ => return Err(Error::Unknown(word.clone())),
            }
            if !is_on {
                return Err(Error::NoClasses(word.clone()));
            }
        }
        Ok(keys)
    }
}

/// Widens what is enforced by one word of the list; an error if the word has no cgroup, or if both
/// of its forms are given.
fn add(scope: &mut Scope, word: &str, cgroup: &str, field: &'static str) -> Result<(), Error> {
    if cgroup.is_empty() {
        return Err(Error::NoCgroup { field, word: word.to_owned() });
    }
    if *scope != Scope::No {
        return Err(Error::BothForms(word.to_owned()));
    }
    let is_compressible = word.ends_with("-compressible");
    *scope = if is_compressible { Scope::Compressible } else { Scope::All };
    Ok(())
}

/// What is enforced.
pub struct Settings<'a> {
    pub keys: Keys,
    pub configuration: &'a Configuration,
    pub resources: &'a NodeResources,
}

impl Settings<'_> {
    /// Returns the limits of all pods together. Without enforcement they are the machine's: the
    /// kernel's default share of CPU is too low.
    fn of_pods(&self, max_pids: Option<i64>) -> Limits {
        let limit = |resource: &str, capacity: Quantity| match self.keys.pods {
            true => self.resources.pod_limit(resource, capacity),
            false => capacity,
        };
        let of = |resource: &str| {
            let capacity = self.resources.capacity.get(resource).copied();
            capacity.map(|capacity| limit(resource, capacity))
        };
        Limits {
            milli_cpus: of("cpu").map(Quantity::milli_value),
            memory_bytes: of("memory").map(Quantity::value),
            pids: max_pids.map(|pids| limit(PIDS, Quantity::new(pids)).value()),
        }
    }
}

/// Returns the limits of a reservation. Upstream: `getCgroupConfigInternal`.
fn of_reservation(reserved: &Amounts, scope: Scope) -> Limits {
    let of = |resource: &str| reserved.get(resource).copied();
    let all = |resource: &str| of(resource).filter(|_| scope == Scope::All).map(Quantity::value);
    Limits {
        milli_cpus: of("cpu").map(Quantity::milli_value),
        memory_bytes: all("memory"),
        pids: all(PIDS),
    }
}

/// Makes the cgroups of pods, and sets their limits and those of reservations. A limit of the pods
/// that cannot be set, such as one below what they use, is tried each minute until the stop.
///
/// # Errors
/// [`Error::Pods`], [`Error::Reservation`].
pub fn start(
    cgroups: &Arc<Cgroups>,
    settings: &Settings<'_>,
    node: &str,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<(), Error> {
    let limits = settings.of_pods(cgroups::max_pids());
    cgroups.start(limits).map_err(Error::Pods)?;
    if !limit_pods(cgroups, limits, node) {
        let (cgroups, node) = (cgroups.clone(), node.to_owned());
        let (clock, stop) = (clock.clone(), stop.clone());
        drop(task::spawn(async move {
            let retry = async {
                clock.sleep(RETRY).await;
                while !limit_pods(&cgroups, limits, &node) {
                    clock.sleep(RETRY).await;
                }
            };
            stop.unless_stopped(retry).await;
        }));
    }
    let Settings { keys, configuration, resources } = settings;
    for (scope, cgroup, reserved, [what, name]) in [
        (
            keys.system,
            &configuration.system_reserved_cgroup,
            &resources.system_reserved,
            ["System Reserved", "system reserved"],
        ),
        (
            keys.kube,
            &configuration.kube_reserved_cgroup,
            &resources.kube_reserved,
            ["Kube Reserved", "kube reserved"],
        ),
    ] {
        if scope == Scope::No {
            continue;
        }
        if let Err(fault) = limit_reservation(cgroups, cgroup, of_reservation(reserved, scope)) {
            let extent = if scope == Scope::Compressible { " Compressible" } else { "" };
            let (what, cgroup) = (format!("{what}{extent}"), cgroup.clone());
            let error = Error::Reservation { what, cgroup, fault };
            events::node_warning(node, "FailedNodeAllocatableEnforcement", &error);
            return Err(error);
        }
        let message = format!("Updated limits on {name} cgroup {cgroup}");
        events::node_normal(node, "NodeAllocatableEnforced", message);
    }
    Ok(())
}

/// Limits the cgroup of a reservation, which must exist.
fn limit_reservation(cgroups: &Cgroups, cgroup: &str, limits: Limits) -> Result<(), String> {
    if limits == Limits::default() {
        // A reservation without amounts is refused, as upstream does it.
        return Err(format!("{cgroup:?} cgroup is not configured properly"));
    }
    cgroups.limit_existing(cgroup, limits).map_err(|error| error.to_string())
}

/// Limits the cgroup of all pods to what the node has for pods, and records an event about the
/// outcome. Returns whether the limit is set.
fn limit_pods(cgroups: &Cgroups, limits: Limits, node: &str) -> bool {
    match cgroups.limit_pods(limits) {
        Ok(()) => {
            let message = "Updated Node Allocatable limit across pods";
            events::node_normal(node, "NodeAllocatableEnforced", message);
            true
        }
        Err(error) => {
            let path = cgroups.all_pods();
            let message = format!("Failed to update Node Allocatable Limits {path:?}: {error}");
            events::node_warning(node, "FailedNodeAllocatableEnforcement", message);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::node::machine_info::MachineInfo;
    use crate::node::resources::{self, PodLimit};

    #[test]
    fn enforcement_is_checked() {
        let keys = |pods, system, kube| Ok::<_, &str>(Keys { pods, system, kube });
        for (fields, expected) in [
            (json!({}), keys(true, Scope::No, Scope::No)),
            (json!({"cgroupsPerQOS": false}), keys(false, Scope::No, Scope::No)),
            (json!({"enforceNodeAllocatable": []}), keys(false, Scope::No, Scope::No)),
            (json!({"enforceNodeAllocatable": ["none"]}), keys(false, Scope::No, Scope::No)),
            (
                json!({"enforceNodeAllocatable": ["pods", "system-reserved",
                                                  "kube-reserved-compressible"],
                       "systemReservedCgroup": "/a", "kubeReservedCgroup": "/b"}),
                keys(true, Scope::All, Scope::Compressible),
            ),
            (json!({"enforceNodeAllocatable": ["x"]}), Err("option \"x\" specified")),
            (
                json!({"enforceNodeAllocatable": ["pods", "none"]}),
                Err("may not contain additional"),
            ),
            (json!({"enforceNodeAllocatable": ["pods", "pods"]}), Err("duplicated enforcements")),
            (
                json!({"enforceNodeAllocatable": ["pods"], "cgroupsPerQOS": false}),
                Err("must be set to true when \"pods\""),
            ),
            (
                json!({"enforceNodeAllocatable": ["kube-reserved"]}),
                Err("kubeReservedCgroup (--kube-reserved-cgroup) must be specified"),
            ),
            (
                json!({"enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"],
                       "kubeReservedCgroup": "/b"}),
                Err("cannot be specified together"),
            ),
        ] {
            let configuration: Configuration =
                serde_json::from_value(fields.clone()).expect("a configuration");
            match (Keys::of(&configuration), expected) {
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(text.contains(part), "{fields}: {text}");
                }
                (outcome, expected) => assert_eq!(outcome.ok(), expected.ok(), "{fields}"),
            }
        }
    }

    #[test]
    fn limits_leave_out_what_is_reserved() {
        let machine = MachineInfo { cpus: 4, memory_bytes: 1 << 30, ..MachineInfo::default() };
        let pods = PodLimit { max: 110, per_core: 0 };
        let capacity = resources::capacity(&machine, pods, None);
        let mut resources = NodeResources { capacity, ..NodeResources::default() };
        let map = |value: Value| -> BTreeMap<String, String> {
            serde_json::from_value(value).expect("a map")
        };
        let system = map(json!({"cpu": "500m", "memory": "24Mi", "pid": "100"}));
        resources.parse_reserved(&system, &map(json!({})), None).expect("amounts");
        let configuration = Configuration::default();
        let mut settings = Settings {
            keys: Keys { pods: true, ..Keys::default() },
            configuration: &configuration,
            resources: &resources,
        };
        let limits = |cpu, mebibytes: i64, pids| Limits {
            milli_cpus: Some(cpu),
            memory_bytes: Some(mebibytes << 20),
            pids: Some(pids),
        };
        assert_eq!(settings.of_pods(Some(1000)), limits(3500, 1000, 900));
        settings.keys.pods = false;
        assert_eq!(settings.of_pods(Some(1000)), limits(4000, 1024, 1000));
        let reserved = &resources.system_reserved;
        assert_eq!(of_reservation(reserved, Scope::All), limits(500, 24, 100));
        let only_cpu = Limits { milli_cpus: Some(500), ..Limits::default() };
        assert_eq!(of_reservation(reserved, Scope::Compressible), only_cpu);
    }
}
