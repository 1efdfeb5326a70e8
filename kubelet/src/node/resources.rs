//! What the machine has, what is reserved of it, and what pods may have.
//! Upstream: `CapacityFromMachineInfo`, `GetNodeAllocatableReservation`, `nodestatus.MachineInfo`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_controller_manager::objects::{Format, Quantity};

use super::machine_info::MachineInfo;
use super::{Error, huge_pages};

/// Amounts of resources by their names. Upstream: `v1.ResourceList`.
pub type Amounts = BTreeMap<String, Quantity>;

/// The ids of processes, which are reserved and limited, and are no resource of a Node.
/// Upstream: `pidlimit.PIDs`.
pub const PIDS: &str = "pid";

/// What a machine has and what is reserved of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeResources {
    pub capacity: Amounts,
    /// `systemReserved`.
    pub system_reserved: Amounts,
    /// `kubeReserved`.
    pub kube_reserved: Amounts,
    /// The free amounts below which pods are evicted at once.
    pub hard_eviction: Amounts,
}

/// Returns an amount of bytes, in binary units.
pub fn bytes(count: i64) -> Quantity {
    Quantity::from_milli(count.saturating_mul(1000), Format::BinarySi)
}

/// How many pods a node may have. Upstream: `MaxPods`, `PodsPerCore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLimit {
    pub max: i64,
    /// 0: no limit.
    pub per_core: i64,
}

impl PodLimit {
    /// Returns the limit of a node with this many CPUs.
    fn of(self, cpus: i64) -> i64 {
        match self.per_core {
            ..=0 => self.max,
            per_core => self.max.min(cpus.saturating_mul(per_core)),
        }
    }
}

/// Lists what a machine has. `storage_bytes`: of the disk of pods; `None`: it is not counted.
pub fn capacity(machine: &MachineInfo, pods: PodLimit, storage_bytes: Option<i64>) -> Amounts {
    let mut capacity = Amounts::from([
        ("cpu".to_owned(), Quantity::new(machine.cpus)),
        ("memory".to_owned(), bytes(machine.memory_bytes)),
        ("pods".to_owned(), Quantity::new(pods.of(machine.cpus))),
    ]);
    capacity.extend(storage_bytes.map(|count| ("ephemeral-storage".to_owned(), bytes(count))));
    for size in &machine.page_sizes {
        capacity.insert(huge_pages::resource(size.bytes), bytes(size.capacity));
    }
    capacity
}

impl NodeResources {
    /// Parses what is reserved for the system and for Kubernetes' own programs. `reserved_cpus`, if
    /// given, takes the place of both reservations of CPU. Upstream: `parseResourceList`.
    ///
    /// # Errors
    /// One that names the flag and the resource.
    pub fn parse_reserved(
        &mut self,
        system: &BTreeMap<String, String>,
        kube: &BTreeMap<String, String>,
        reserved_cpus: Option<i64>,
    ) -> Result<(), Error> {
        let parse = |flag: &'static str, texts: &BTreeMap<String, String>| {
            let parsed =
                texts.iter().map(|(name, text)| Ok((name.clone(), parse_amount(name, text)?)));
            let parsed: Result<Amounts, Error> = parsed.collect();
            parsed.map_err(|cause| Error::Reservation { flag, cause: Box::new(cause) })
        };
        self.kube_reserved = parse("kube-reserved", kube)?;
        self.system_reserved = parse("system-reserved", system)?;
        if let Some(cpus) = reserved_cpus.filter(|cpus| *cpus > 0) {
            self.kube_reserved.remove("cpu");
            self.system_reserved.insert("cpu".to_owned(), Quantity::new(cpus));
        }
        Ok(())
    }

    /// Returns all that is reserved of a resource. Upstream: `GetNodeAllocatableReservation`.
    fn reservation(&self, resource: &str) -> Quantity {
        let all = [&self.system_reserved, &self.kube_reserved, &self.hard_eviction];
        let found = all.into_iter().filter_map(|amounts| amounts.get(resource).copied());
        found.fold(Quantity::ZERO, |sum, amount| sum + amount)
    }

    /// Checks that no more is reserved than the machine has. Upstream: `validateNodeAllocatable`.
    ///
    /// # Errors
    /// One that names the resources.
    pub fn check(&self) -> Result<(), Error> {
        let mut faults = Vec::new();
        for (resource, capacity) in &self.capacity {
            let reserved = self.reservation(resource);
            if reserved.compare(*capacity).is_gt() {
                faults.push(format!(
                    "Resource {resource:?} has a reservation of {reserved} but capacity of \
                     {capacity}. Expected capacity >= reservation."
                ));
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::OverReserved(faults.join(" "))),
        }
    }

    /// Returns what all pods together may use: the capacity without what is reserved. What
    /// evictions keep free is not taken off, so that they begin before the kernel enforces this
    /// limit. `capacity`: what the machine has of a resource. Upstream:
    /// `getNodeAllocatableInternalAbsolute`.
    pub fn pod_limit(&self, resource: &str, capacity: Quantity) -> Quantity {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or_default();
        at_least_zero(capacity - of(&self.system_reserved) - of(&self.kube_reserved))
    }

    /// Sets capacity and allocatable of a Node. Resources that others advertise stay.
    /// Upstream: `nodestatus.MachineInfo`.
    pub fn set(&self, status: &mut core::NodeStatus) {
        let capacity = status.capacity.get_or_insert_default();
        for (resource, amount) in &self.capacity {
            put(capacity, resource, *amount);
        }
        let capacity = &*capacity;
        let allocatable = status.allocatable.get_or_insert_default();
        // Extended resources that are no longer in the capacity are dropped.
        allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended(name));
        let parsed = |text: &ApiQuantity| text.0.parse::<Quantity>().unwrap_or_default();
        let mut pages = Quantity::ZERO;
        for (resource, amount) in capacity {
            let amount = parsed(amount);
            if huge_pages::size_of(resource).is_some() {
                pages = pages + amount;
            }
            put(allocatable, resource, at_least_zero(amount - self.reservation(resource)));
        }
        // Huge pages are set aside: no pod has their memory.
        let memory = allocatable.get("memory").map(parsed);
        if let Some(memory) = memory.filter(|_| !pages.is_zero()) {
            put(allocatable, "memory", at_least_zero(memory - pages));
        }
    }
}

fn at_least_zero(amount: Quantity) -> Quantity {
    let is_negative = amount.compare(Quantity::ZERO).is_lt();
    if is_negative { Quantity::ZERO } else { amount }
}

/// Sets the amount of a resource. An equal amount keeps its text: another form is no change.
fn put(amounts: &mut BTreeMap<String, ApiQuantity>, resource: &str, amount: Quantity) {
    let before = amounts.get(resource).and_then(|text| text.0.parse::<Quantity>().ok());
    if before.is_none_or(|before| before.compare(amount).is_ne()) {
        amounts.insert(resource.to_owned(), ApiQuantity(amount.to_string()));
    }
}

/// Parses an amount that is reserved; it must be of a resource that can be, and not negative.
fn parse_amount(name: &str, text: &str) -> Result<Quantity, Error> {
    if !["cpu", "memory", "ephemeral-storage", PIDS].contains(&name) {
        return Err(Error::NotReservable(name.to_owned()));
    }
    let (resource, of) = (name.to_owned(), text.to_owned());
    match text.parse::<Quantity>() {
        Err(cause) => Err(Error::Amount { resource, text: of, cause }),
        Ok(amount) if amount.compare(Quantity::ZERO).is_lt() => {
            Err(Error::NegativeAmount { resource, text: of })
        }
        Ok(amount) => Ok(amount),
    }
}

/// Returns whether a resource is advertised by a device plugin or by a person. Upstream:
/// `IsExtendedResourceName`.
pub fn is_extended(resource: &str) -> bool {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    !is_native && !resource.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::causes::chain;
    use crate::node::huge_pages::PageSize;

    fn machine() -> MachineInfo {
        let size = |bytes, capacity| PageSize { name: String::new(), bytes, capacity };
        MachineInfo {
            cpus: 4,
            memory_bytes: 1000 << 20,
            page_sizes: vec![size(2 << 20, 100 << 20), size(1 << 30, 0)],
            ..MachineInfo::default()
        }
    }

    fn map(value: Value) -> BTreeMap<String, String> {
        serde_json::from_value(value).expect("a map")
    }

    #[test]
    fn pods_have_what_is_not_reserved() {
        let pods = PodLimit { max: 110, per_core: 0 };
        let mut resources = NodeResources {
            capacity: capacity(&machine(), pods, Some(10_000_000_000)),
            hard_eviction: Amounts::from([
                ("memory".to_owned(), bytes(100 << 20)),
                ("ephemeral-storage".to_owned(), bytes(1_000_000_000)),
            ]),
            ..NodeResources::default()
        };
        let system = map(json!({"cpu": "500m", "memory": "50Mi"}));
        let kube = map(json!({"cpu": "250m", "pid": "100"}));
        resources.parse_reserved(&system, &kube, None).expect("amounts");
        assert_eq!(resources.check(), Ok(()));
        let others = json!({
            "capacity": {"example.com/gpu": "2", "cpu": "4000m", "attachable-volumes-x": "3"},
            "allocatable": {"example.com/gone": "1", "hugepages-32Mi": "0"},
        });
        let mut status: core::NodeStatus = serde_json::from_value(others).expect("a status");
        resources.set(&mut status);
        let status = serde_json::to_value(&status).expect("JSON");
        let capacity = json!({
            "attachable-volumes-x": "3", "cpu": "4000m", "ephemeral-storage": "9765625Ki",
            "example.com/gpu": "2", "hugepages-1Gi": "0", "hugepages-2Mi": "100Mi",
            "memory": "1000Mi", "pods": "110",
        });
        assert_eq!(status["capacity"], capacity);
        let allocatable = json!({
            "attachable-volumes-x": "3", "cpu": "3250m", "ephemeral-storage": "9000000000",
            "example.com/gpu": "2", "hugepages-1Gi": "0", "hugepages-2Mi": "100Mi",
            "hugepages-32Mi": "0", "memory": "750Mi", "pods": "110",
        });
        assert_eq!(status["allocatable"], allocatable);
        // Evictions come before the limit of the pods' cgroup.
        let limit = |resource: &str, amount| resources.pod_limit(resource, amount).to_string();
        assert_eq!(limit("memory", bytes(1000 << 20)), "950Mi");
        assert_eq!(limit("cpu", Quantity::new(4)), "3250m");
        assert_eq!(limit(PIDS, Quantity::new(50)), "0");
    }

    #[test]
    fn number_of_pods_has_two_limits() {
        for (max, per_core, expected) in [(110, 0, 110), (110, 10, 40), (30, 10, 30), (0, 1, 0)] {
            assert_eq!(PodLimit { max, per_core }.of(4), expected, "{max} {per_core}");
        }
    }

    #[test]
    fn reservations_are_checked() {
        let parse = |system, kube, cpus| {
            let mut resources = NodeResources::default();
            resources.parse_reserved(&map(system), &map(kube), cpus).map(|()| resources)
        };
        for (kube, fault) in [
            (
                json!({"cpu": "x"}),
                "--kube-reserved value failed to parse: failed to parse quantity \
                                   \"x\" for \"cpu\" resource: quantities must match the regular \
                                   expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                json!({"pods": "1"}),
                "--kube-reserved value failed to parse: cannot reserve \"pods\" resource",
            ),
            (
                json!({"memory": "-1"}),
                "--kube-reserved value failed to parse: resource quantity for \"memory\" cannot be \
              negative: -1",
            ),
        ] {
            let error = parse(json!({}), kube, None).expect_err(fault);
            assert_eq!(chain(&error), fault);
        }
        // Numbered CPUs take the place of both amounts.
        let both = parse(json!({"cpu": "1"}), json!({"cpu": "2", "memory": "1"}), Some(3));
        let both = both.expect("amounts");
        assert_eq!(both.reservation("cpu").to_string(), "3");
        assert_eq!(both.reservation("memory").to_string(), "1");
        let pods = PodLimit { max: 1, per_core: 0 };
        let more = NodeResources { capacity: capacity(&machine(), pods, None), ..both };
        assert_eq!(more.check(), Ok(()));
        let mut more = more;
        more.hard_eviction.insert("cpu".to_owned(), Quantity::new(2));
        let fault = more.check().expect_err("too much is reserved").to_string();
        assert!(fault.contains("\"cpu\" has a reservation of 5 but capacity of 4."), "{fault}");
    }

    #[test]
    fn extended_resources_are_those_of_other_domains() {
        for (resource, expected) in [
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/x", false),
            ("a.kubernetes.io/x", false),
            ("requests.example.com/x", false),
            ("example.com/x", true),
        ] {
            assert_eq!(is_extended(resource), expected, "{resource}");
        }
    }
}
