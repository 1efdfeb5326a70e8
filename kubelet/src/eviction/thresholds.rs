//! The thresholds of a configuration. Upstream: `ParseThresholdConfig`.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_controller_manager::objects::Quantity;
use kube_controller_manager::options::parse_duration;

use super::{AmountError, Error};
use crate::node::pressure::Pressure;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// The memory of the machine, and that of all pods together. Memory comes first.
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    /// The disk of the layers of containers, which is the node's or that of images: their
    /// thresholds count for it.
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

impl Signal {
    /// Those that a configuration may name.
    const NAMED: [Signal; 9] = [
        Signal::MemoryAvailable,
        Signal::AllocatableMemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsAvailable,
        Signal::ContainerFsInodesFree,
        Signal::PidAvailable,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::ContainerFsAvailable => "containerfs.available",
            Signal::ContainerFsInodesFree => "containerfs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    fn parse(name: &str) -> Result<Signal, Error> {
        let found = Signal::NAMED.into_iter().find(|signal| signal.name() == name);
        found.ok_or_else(|| Error::UnknownSignal(name.to_owned()))
    }

    /// Returns the resource that is low when the signal is.
    pub fn resource(self) -> &'static str {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => "memory",
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => {
                "ephemeral-storage"
            }
            Signal::NodeFsInodesFree
            | Signal::ImageFsInodesFree
            | Signal::ContainerFsInodesFree => "inodes",
            Signal::PidAvailable => "pids",
        }
    }

    /// Returns the pressure that the node is under while the signal is low. Upstream:
    /// `signalToNodeCondition`.
    pub fn pressure(self) -> Pressure {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Pressure::Memory,
            Signal::NodeFsAvailable
            | Signal::NodeFsInodesFree
            | Signal::ImageFsAvailable
            | Signal::ImageFsInodesFree
            | Signal::ContainerFsAvailable
            | Signal::ContainerFsInodesFree => Pressure::Disk,
            Signal::PidAvailable => Pressure::Pid,
        }
    }

    /// Returns whether to remove unused containers and images before pods. `has_image_disk`: images
    /// have a disk of their own. Upstream: `buildSignalToNodeReclaimFuncs`.
    pub fn reclaims_images(self, has_image_disk: bool) -> bool {
        self.pressure() == Pressure::Disk && (self.is_of_images() || !has_image_disk)
    }

    /// Returns whether the signal is about the disk of images.
    pub(super) fn is_of_images(self) -> bool {
        matches!(self, Signal::ImageFsAvailable | Signal::ImageFsInodesFree)
    }

    /// Returns whether the signal is about the disk of the layers of containers.
    fn is_of_containers(self) -> bool {
        matches!(self, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree)
    }
}

/// An amount, or a part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Units(u64),
    /// 1: all of it.
    Part(f32),
}

impl Amount {
    /// Returns the amount in units, for a capacity.
    pub(super) fn of(self, capacity: u64) -> u64 {
        match self {
            Amount::Units(units) => units,
            Amount::Part(part) => (capacity as f64 * f64::from(part)) as u64,
        }
    }
}

/// Below this value, the node has too little.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Amount,
    /// How long a soft threshold may be crossed; `None`: a hard one.
    pub grace: Option<Duration>,
    pub min_reclaim: Option<Amount>,
}

/// The maps of a configuration, by signal.
#[derive(Clone, Copy, Debug)]
pub struct Statements<'a> {
    pub hard: &'a BTreeMap<String, String>,
    pub soft: &'a BTreeMap<String, String>,
    pub soft_grace: &'a BTreeMap<String, String>,
    pub min_reclaim: &'a BTreeMap<String, String>,
}

/// Parses thresholds. `limits_pods`: all pods together have a memory limit; the node's hard memory
/// threshold applies to it too. Upstream: `ParseThresholdConfig`.
///
/// # Errors
/// One that names the signal.
pub fn thresholds(of: Statements<'_>, limits_pods: bool) -> Result<Vec<Threshold>, Error> {
    let mut thresholds = Vec::new();
    for (name, text) in of.hard {
        let signal = Signal::parse(name)?;
        let value = value(signal, text)?;
        thresholds.extend(value.map(|value| Threshold {
            signal,
            value,
            grace: None,
            min_reclaim: None,
        }));
    }
    // As upstream, also those of signals without a soft threshold have to be valid.
    let mut graces = BTreeMap::new();
    for (name, text) in of.soft_grace {
        let signal = Signal::parse(name)?;
        let grace =
            parse_duration(text).map_err(|fault| Error::Grace { signal: name.clone(), fault })?;
        graces.insert(signal, grace);
    }
    for (name, text) in of.soft {
        let signal = Signal::parse(name)?;
        let Some(value) = value(signal, text)? else { continue };
        let grace = graces.get(&signal).copied();
        let grace = grace.ok_or_else(|| Error::NoGrace { signal: name.clone() })?;
        thresholds.push(Threshold { signal, value, grace: Some(grace), min_reclaim: None });
    }
    for (name, text) in of.min_reclaim {
        let signal = Signal::parse(name)?;
        let fault = |cause| Error::MinReclaim { signal: name.clone(), text: text.clone(), cause };
        let amount = match amount(text).map_err(fault)? {
            // As upstream, a quantity may be zero, and a percentage may not; it may be above 100%.
            Amount::Part(part) if part <= 0.0 => return Err(fault(AmountError::NotPositive)),
            amount => amount,
        };
        for threshold in thresholds.iter_mut().filter(|threshold| threshold.signal == signal) {
            threshold.min_reclaim = Some(amount);
        }
    }
    thresholds.retain(|threshold| !is_ignored(threshold));
    let memory = thresholds
        .iter()
        .find(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.grace.is_none());
    let of_pods = memory
        .filter(|_| limits_pods)
        .map(|threshold| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*threshold });
    thresholds.extend(of_pods);
    Ok(thresholds)
}

/// Returns whether a threshold has no effect, and logs it then. Upstream:
/// `UpdateContainerFsThresholds`.
fn is_ignored(threshold: &Threshold) -> bool {
    let is_ignored = threshold.signal.is_of_containers();
    if is_ignored {
        let kind = if threshold.grace.is_none() { "hard" } else { "soft" };
        log::error!(
            "eviction manager: found conflicting containerfs eviction. Ignoring. err=\"found \
             {} for {kind} eviction. ignoring\"",
            threshold.signal.name()
        );
    }
    is_ignored
}

/// Returns how much of a capacity has to stay free: with less, pods are evicted at once. Upstream:
/// `hardEvictionReservation`.
pub fn reserved(thresholds: &[Threshold], signal: Signal, capacity: i64) -> i64 {
    let is_hard = |one: &&Threshold| one.signal == signal && one.grace.is_none();
    let capacity = u64::try_from(capacity).unwrap_or(0);
    let bytes = thresholds.iter().find(is_hard).map_or(0, |hard| hard.value.of(capacity));
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Parses the amount of a threshold. `None`: the threshold is off, by `0%` or `100%`.
fn value(signal: Signal, text: &str) -> Result<Option<Amount>, Error> {
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    let fault = |cause| Error::Threshold { signal, text: text.to_owned(), cause };
    match amount(text).map_err(fault)? {
        Amount::Units(0) => Err(fault(AmountError::NotPositive)),
        Amount::Part(part) if !(0.0..=1.0).contains(&part) => {
            Err(fault(AmountError::PercentageOutOfRange))
        }
        amount => Ok(Some(amount)),
    }
}

/// Parses a percentage or a quantity.
fn amount(text: &str) -> Result<Amount, AmountError> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f32 = percent.parse().map_err(|_| AmountError::NotPercentage)?;
        return Ok(Amount::Part(percent / 100.0));
    }
    let amount = text.parse::<Quantity>().map_err(AmountError::NotQuantity)?;
    u64::try_from(amount.value()).map(Amount::Units).map_err(|_| AmountError::NotPositive)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::causes::chain;

    fn map(value: &Value) -> BTreeMap<String, String> {
        serde_json::from_value(value.clone()).expect("a map")
    }

    fn parse(
        hard: Value,
        soft: Value,
        grace: Value,
        least: Value,
    ) -> Result<Vec<Threshold>, String> {
        let [hard, soft, grace, least] = [&hard, &soft, &grace, &least].map(map);
        let statements =
            Statements { hard: &hard, soft: &soft, soft_grace: &grace, min_reclaim: &least };
        thresholds(statements, true).map_err(|error| chain(&error))
    }

    #[test]
    fn thresholds_are_parsed() {
        let all = parse(
            json!({"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "0%",
                   "containerfs.available": "10%", "containerfs.inodesFree": "5%"}),
            json!({"nodefs.available": "20%", "containerfs.available": "20%"}),
            json!({"nodefs.available": "90s", "containerfs.available": "90s"}),
            json!({"memory.available": "1Gi", "nodefs.available": "5%",
                   "containerfs.inodesFree": "1%"}),
        )
        .expect("thresholds");
        let five = Some(Amount::Part(0.05));
        let memory = Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Units(100 << 20),
            grace: None,
            min_reclaim: Some(Amount::Units(1 << 30)),
        };
        let disk = Threshold {
            signal: Signal::NodeFsAvailable,
            value: Amount::Part(0.1),
            grace: None,
            min_reclaim: five,
        };
        let soft =
            Threshold { value: Amount::Part(0.2), grace: Some(Duration::from_secs(90)), ..disk };
        let of_pods = Threshold { signal: Signal::AllocatableMemoryAvailable, ..memory };
        assert_eq!(all, [memory, disk, soft, of_pods]);
        let soft_memory = Threshold { grace: soft.grace, ..memory };
        for (all, signal, expected) in [
            (&all[..], Signal::MemoryAvailable, 100 << 20),
            (&all, Signal::NodeFsAvailable, 100),
            (&[soft_memory, disk], Signal::MemoryAvailable, 0),
            (&[], Signal::MemoryAvailable, 0),
        ] {
            let capacity = if signal == Signal::NodeFsAvailable { 1000 } else { 1 << 30 };
            assert_eq!(reserved(all, signal, capacity), expected);
        }
        let none = || json!({});
        for (hard, soft, grace, fault) in [
            (json!({"x": "1"}), none(), none(), "unsupported eviction signal x"),
            (
                json!({"memory.available": "0"}),
                none(),
                none(),
                "eviction threshold memory.available: \"0\": must be positive",
            ),
            (
                json!({"memory.available": "101%"}),
                none(),
                none(),
                "eviction threshold memory.available: \"101%\": must be >= 0% and <= 100%",
            ),
            (
                none(),
                json!({"memory.available": "1%"}),
                none(),
                "grace period must be specified for the soft eviction threshold memory.available",
            ),
            (
                json!({"containerfs.available": "0"}),
                none(),
                none(),
                "eviction threshold containerfs.available: \"0\": must be positive",
            ),
        ] {
            assert_eq!(parse(hard, soft, grace, none()).err().as_deref(), Some(fault));
        }
    }

    #[test]
    fn grace_periods_and_reclaims_without_a_threshold_are_checked() {
        let none = || json!({});
        let of = |text: &str| json!({"nodefs.available": text});
        let grace_fault = "the eviction grace period of nodefs.available: time: missing unit in \
                           duration \"90\"";
        for (soft, grace, least, fault) in [
            (none(), of("90"), none(), Some(grace_fault)),
            (of("0%"), of("90"), none(), Some(grace_fault)),
            (of("10%"), of("90"), none(), Some(grace_fault)),
            (none(), of("90s"), none(), None),
            (none(), json!({"x": "90s"}), none(), Some("unsupported eviction signal x")),
            (
                none(),
                none(),
                of("0%"),
                Some("eviction minimum reclaim nodefs.available: \"0%\": must be positive"),
            ),
            (
                none(),
                none(),
                of("-1"),
                Some("eviction minimum reclaim nodefs.available: \"-1\": must be positive"),
            ),
            (none(), none(), of("0"), None),
            (none(), none(), of("1%"), None),
            (none(), none(), of("150%"), None),
            (
                none(),
                none(),
                of("-1%"),
                Some("eviction minimum reclaim nodefs.available: \"-1%\": must be positive"),
            ),
        ] {
            let found = parse(none(), soft, grace, least);
            assert_eq!(found.err().as_deref(), fault);
        }
    }
}
