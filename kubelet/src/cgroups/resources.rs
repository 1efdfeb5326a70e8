//! What a cgroup of pods may use. Upstream: `cm/helpers_linux.go`, `component-helpers/resource`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube_controller_manager::objects::Quantity;

use super::Hierarchy;
use crate::node::huge_pages;
use crate::pod::{Container, Pod, PodExt, QosClass, is_restartable_init, listed, of_pod, quantity};

/// Upstream: `MinShares`, `MaxShares`.
pub const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
/// Microseconds. Upstream: `QuotaPeriod`, `MinQuotaPeriod`.
pub const PERIOD: i64 = 100_000;
const MIN_QUOTA: i64 = 1000;
/// The controller of huge pages.
pub const HUGETLB: &str = "hugetlb";

/// Limits of a cgroup; `None`: left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds in each period of 100 ms.
    pub cpu_quota: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
    pub pids: Option<i64>,
    /// Bytes of huge pages by the names of their sizes.
    pub huge_pages: Vec<(String, i64)>,
}

/// What the cgroup of a pod limits now; `None`: there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLimits {
    pub cpu_shares: u64,
    /// Microseconds in each period of 100 ms.
    pub cpu_quota: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
}

impl PodLimits {
    /// Returns the limits once these are set. Upstream: `mergeResourceConfig`.
    pub fn with(self, set: &Resources) -> PodLimits {
        PodLimits {
            cpu_shares: set.cpu_shares.unwrap_or(self.cpu_shares),
            cpu_quota: set.cpu_quota.or(self.cpu_quota),
            memory: set.memory.or(self.memory),
        }
    }

    /// Reads the limits of a cgroup from its files. A limit that is not a number, such as `max`, is
    /// no limit. Blocks for a moment.
    ///
    /// # Errors
    /// The name of a resource whose files are absent, or whose shares are malformed.
    pub(super) fn read(hierarchy: &Hierarchy, path: &str) -> Result<PodLimits, &'static str> {
        let file = |controller: &str, name: &str| {
            fs::read_to_string(hierarchy.folder(controller, path)?.join(name)).ok()
        };
        let number = |text: String| text.trim().parse::<i64>().ok();
        let limit_file = if hierarchy.is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
        let memory = file("memory", limit_file).map(number).ok_or("memory")?;
        let cpu = || match hierarchy.is_v2() {
            true => {
                let cpu = file("cpu", "cpu.max")?;
                let (quota, period) = cpu.trim().split_once(' ')?;
                let quota = quota.parse::<i64>().ok().zip(period.parse::<i64>().ok());
                let weight = file("cpu", "cpu.weight").and_then(number)?.unsigned_abs();
                let quota =
                    quota.map(|(quota, period)| quota.saturating_mul(PERIOD) / period.max(1));
                Some((shares_of_weight(weight), quota))
            }
            false => {
                let shares = file("cpu", "cpu.shares").and_then(number)?.unsigned_abs();
                Some((shares, file("cpu", "cpu.cfs_quota_us").map(number)?))
            }
        };
        let (cpu_shares, cpu_quota) = cpu().ok_or("cpu")?;
        Ok(PodLimits {
            cpu_shares,
            cpu_quota: cpu_quota.filter(|quota| *quota > 0),
            memory: memory.filter(|bytes| *bytes < UNBOUNDED),
        })
    }
}

/// Converts a CPU weight of cgroup v2 to shares of v1. Upstream: `CPUWeightToCPUShares`.
pub(super) fn shares_of_weight(weight: u64) -> u64 {
    weight.saturating_sub(1) * 262_142 / 9999 + MIN_SHARES
}

/// The least number of bytes that means "no limit". Upstream: `setHugePagesUnbounded`.
pub const UNBOUNDED: i64 = 1 << 62;

/// Converts CPU millis to shares of cgroup v1. Upstream: `MilliCPUToShares`.
pub fn shares(milli: i64) -> u64 {
    let shares = i128::from(milli.max(0)) * 1024 / 1000;
    u64::try_from(shares).unwrap_or(MAX_SHARES).clamp(MIN_SHARES, MAX_SHARES)
}

/// Converts shares of cgroup v1 to a CPU weight of v2. Upstream: `getCPUWeight`.
pub fn weight(shares: u64) -> u64 {
    match shares {
        MAX_SHARES.. => 10_000,
        shares => 1 + (shares.saturating_sub(2) * 9999) / 262_142,
    }
}

/// Converts CPU millis to a quota for each period. Upstream: `MilliCPUToQuota`.
pub fn quota(milli: i64) -> i64 {
    (milli.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA)
}

/// Converts a quantity to a number: in millis for `cpu`, else in units.
fn in_units(resource: &str, quantity: Quantity) -> i64 {
    match resource {
        "cpu" => quantity.milli_value(),
        _ => quantity.value(),
    }
}

/// Returns the requests or limits of a pod with its overhead: in millis for `cpu`, else in units. A
/// limit of 0 is no limit: overhead is not added to it. Upstream: `PodRequests`, `PodLimits`.
pub fn pod_amount(pod: &Pod, resource: &str, is_limit: bool) -> i64 {
    let total = of_pod(pod, resource, is_limit);
    let overhead = pod.spec().overhead.as_ref().and_then(|list| quantity(list, resource));
    let overhead = overhead.filter(|_| !is_limit || total.is_positive());
    in_units(resource, total + overhead.unwrap_or(Quantity::ZERO))
}

/// Returns the bytes of huge pages of a size that a pod asks for. Upstream: `HugePageLimits`.
pub fn pod_pages(pod: &Pod, size: i64) -> i64 {
    let containers = pod.all_containers().map(|container| container.resources.as_ref());
    let all = containers.chain([pod.spec().resources.as_ref()]).flatten();
    let lists = all.filter_map(|lists| lists.requests.as_ref()).chain(&pod.spec().overhead);
    let names = lists.flat_map(BTreeMap::keys);
    let names: BTreeSet<&String> =
        names.filter(|name| huge_pages::size_of(name) == Some(size)).collect();
    names.into_iter().map(|name| pod_amount(pod, name, false)).fold(0, i64::saturating_add)
}

/// Returns whether each container, or the pod itself, limits a resource. An init container counts as
/// limited if a sidecar before it is: both run at the same time, and upstream adds their limits.
fn is_limited(pod: &Pod, resource: &str) -> bool {
    let has_limit = |resources: Option<&ResourceRequirements>| {
        listed(resources, resource, true).is_some_and(|limit| limit.is_positive())
    };
    let is_limited = |container: &Container| has_limit(container.resources.as_ref());
    let mut has_limited_sidecar = false;
    let is_init_limited = |container: &Container| {
        let is_limited = has_limited_sidecar || is_limited(container);
        has_limited_sidecar |= is_limited && is_restartable_init(container);
        is_limited
    };
    has_limit(pod.spec().resources.as_ref())
        || pod.spec().containers.iter().all(is_limited)
            && pod.init_containers().iter().all(is_init_limited)
}

impl Resources {
    /// Computes the limits of a pod's cgroup. A burstable pod has only the limits that it or each
    /// of its containers sets; a best-effort pod has none. Upstream: `ResourceConfigForPod`.
    pub fn of_pod(pod: &Pod) -> Resources {
        let cpu_shares = Some(shares(pod_amount(pod, "cpu", false)));
        let cpu_quota = || quota(pod_amount(pod, "cpu", true));
        let memory = || pod_amount(pod, "memory", true);
        match QosClass::of(pod) {
            QosClass::Guaranteed => Resources {
                cpu_shares,
                cpu_quota: Some(cpu_quota()),
                memory: Some(memory()),
                ..Resources::default()
            },
            QosClass::Burstable => Resources {
                cpu_shares,
                cpu_quota: is_limited(pod, "cpu").then(cpu_quota),
                memory: is_limited(pod, "memory").then(memory),
                ..Resources::default()
            },
            QosClass::BestEffort => {
                Resources { cpu_shares: Some(MIN_SHARES), ..Resources::default() }
            }
        }
    }

    /// Lists the files of cgroup v1 with their controllers and contents.
    pub fn v1(&self) -> Vec<(&'static str, Cow<'static, str>, String)> {
        let mut files: Vec<(_, Cow<'static, str>, _)> = Vec::new();
        if let Some(shares) = self.cpu_shares {
            files.push(("cpu", "cpu.shares".into(), shares.to_string()));
        }
        if let Some(quota) = self.cpu_quota {
            files.push(("cpu", "cpu.cfs_period_us".into(), PERIOD.to_string()));
            files.push(("cpu", "cpu.cfs_quota_us".into(), quota.to_string()));
        }
        if let Some(bytes) = self.memory {
            files.push(("memory", "memory.limit_in_bytes".into(), bytes.to_string()));
        }
        if let Some(pids) = self.pids {
            files.push(("pids", "pids.max".into(), limit(pids)));
        }
        files.extend(self.pages("limit_in_bytes").map(|(file, text)| (HUGETLB, file.into(), text)));
        files
    }

    /// Lists the files of cgroup v2 with their contents.
    pub fn v2(&self) -> Vec<(Cow<'static, str>, String)> {
        let mut files: Vec<(Cow<'static, str>, _)> = Vec::new();
        if let Some(shares) = self.cpu_shares {
            files.push(("cpu.weight".into(), weight(shares).to_string()));
        }
        if let Some(quota) = self.cpu_quota {
            files.push(("cpu.max".into(), format!("{} {PERIOD}", limit(quota))));
        }
        if let Some(bytes) = self.memory {
            files.push(("memory.max".into(), limit(bytes)));
        }
        if let Some(pids) = self.pids {
            files.push(("pids.max".into(), limit(pids)));
        }
        files.extend(self.pages("max").map(|(file, text)| (file.into(), text)));
        files
    }

    /// Lists the files that limit huge pages, those in use and those that are reserved, with their
    /// contents.
    fn pages(&self, suffix: &str) -> impl Iterator<Item = (String, String)> {
        self.huge_pages.iter().flat_map(move |(size, bytes)| {
            ["", "rsvd."]
                .map(|kind| (format!("{HUGETLB}.{size}.{kind}{suffix}"), bytes.to_string()))
        })
    }
}

/// Formats a limit of cgroup v2; a negative one means no limit.
fn limit(value: i64) -> String {
    match value {
        0.. => value.to_string(),
        _ => "max".to_owned(),
    }
}

/// Returns the shares of the burstable class. Upstream: `setCPUCgroupConfig`.
pub fn burstable_shares<'a>(pods: impl Iterator<Item = &'a Pod>) -> u64 {
    let burstable = pods.filter(|pod| QosClass::of(pod) == QosClass::Burstable);
    shares(burstable.map(|pod| pod_amount(pod, "cpu", false)).fold(0, i64::saturating_add))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec});
        for key in ["containers", "initContainers"] {
            for (at, container) in pod["spec"][key].as_array_mut().into_iter().flatten().enumerate()
            {
                container["name"] = format!("{key}{at}").into();
            }
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn asks(requests: Value, limits: Value) -> Value {
        json!({"resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn shares_become_weights() {
        for (milli, expected_shares, expected_weight) in [
            (0, 2, 1),
            (1, 2, 1),
            (100, 102, 4),
            (1000, 1024, 39),
            (4000, 4096, 157),
            (256_000, 262_144, 10_000),
            (i64::MAX, 262_144, 10_000),
        ] {
            assert_eq!(shares(milli), expected_shares, "{milli}");
            assert_eq!(weight(expected_shares), expected_weight, "{milli}");
        }
    }

    #[test]
    fn amounts_of_pods_count_init_containers_and_sidecars() {
        let cpu = |amount: &str| asks(json!({"cpu": amount}), json!({"cpu": amount}));
        let sidecar = |amount: &str| {
            let mut container = cpu(amount);
            container["restartPolicy"] = "Always".into();
            container
        };
        for (spec, expected) in [
            (json!({"containers": [cpu("1"), cpu("500m")]}), 1500),
            (json!({"containers": [cpu("1")], "initContainers": [cpu("3"), cpu("2")]}), 3000),
            (json!({"containers": [cpu("1")], "initContainers": [sidecar("1"), cpu("2")]}), 3000),
            (json!({"containers": [cpu("5")], "initContainers": [sidecar("1"), cpu("2")]}), 6000),
            (json!({"containers": [cpu("1")], "initContainers": [cpu("2"), sidecar("1")]}), 2000),
            (
                json!({"containers": [cpu("1")],
                       "resources": {"requests": {"cpu": "7"}, "limits": {"cpu": "7"}}}),
                7000,
            ),
            (json!({"containers": [cpu("1")], "overhead": {"cpu": "250m"}}), 1250),
        ] {
            for is_limit in [false, true] {
                let found = pod_amount(&pod(spec.clone()), "cpu", is_limit);
                assert_eq!(found, expected, "{spec} {is_limit}");
            }
        }
        let unlimited = pod(json!({"containers": [{}], "overhead": {"cpu": "1"}}));
        assert_eq!(pod_amount(&unlimited, "cpu", true), 0);
        assert_eq!(pod_amount(&unlimited, "cpu", false), 1000);
    }

    #[test]
    fn huge_pages_of_a_pod_are_those_of_all_its_containers() {
        let pages = |size: &str, amount: &str| {
            let list = json!({ format!("hugepages-{size}"): amount });
            asks(list.clone(), list)
        };
        let mib = 1 << 20;
        for (spec, small, large) in [
            (json!({"containers": [{}]}), 0, 0),
            (json!({"containers": [pages("2Mi", "4Mi"), pages("2048Ki", "2Mi")]}), 6 * mib, 0),
            (
                json!({"containers": [pages("2Mi", "4Mi"), pages("1Gi", "1Gi")]}),
                4 * mib,
                1024 * mib,
            ),
            (
                json!({"containers": [{}], "resources": pages("2Mi", "8Mi")["resources"]}),
                8 * mib,
                0,
            ),
            (json!({"containers": [{}], "overhead": {"hugepages-2Mi": "2Mi"}}), 2 * mib, 0),
        ] {
            let pod = pod(spec.clone());
            assert_eq!(
                (pod_pages(&pod, 2 * mib), pod_pages(&pod, 1024 * mib)),
                (small, large),
                "{spec}"
            );
        }
        let limits = Resources {
            huge_pages: vec![("2MB".to_owned(), 5), ("1GB".to_owned(), 0)],
            ..Resources::default()
        };
        let v1: Vec<_> = limits.v1().into_iter().map(|(_, file, text)| (file, text)).collect();
        let named = |suffix: &str| -> Vec<(Cow<'static, str>, String)> {
            [("2MB.", "5"), ("2MB.rsvd.", "5"), ("1GB.", "0"), ("1GB.rsvd.", "0")]
                .map(|(file, text)| (format!("hugetlb.{file}{suffix}").into(), text.to_owned()))
                .into()
        };
        assert_eq!((v1, limits.v2()), (named("limit_in_bytes"), named("max")));
    }

    #[test]
    fn limits_of_pods_follow_their_class() {
        let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        for (containers, v1, v2) in [
            (
                json!([asks(both("1", "1Mi"), both("1", "1Mi"))]),
                "cpu.shares=1024 cpu.cfs_period_us=100000 cpu.cfs_quota_us=100000 \
                 memory.limit_in_bytes=1048576",
                "cpu.weight=39 cpu.max=100000 100000 memory.max=1048576",
            ),
            (json!([asks(json!({"cpu": "100m"}), json!({}))]), "cpu.shares=102", "cpu.weight=4"),
            (
                json!([asks(json!({"cpu": "100m"}), json!({"cpu": "200m"}))]),
                "cpu.shares=102 cpu.cfs_period_us=100000 cpu.cfs_quota_us=20000",
                "cpu.weight=4 cpu.max=20000 100000",
            ),
            (
                // The second container has no limit.
                json!([
                    asks(json!({}), json!({"cpu": "1", "memory": "1Mi"})),
                    asks(json!({"cpu": "1m"}), json!({"cpu": "1m"}))
                ]),
                "cpu.shares=2 cpu.cfs_period_us=100000 cpu.cfs_quota_us=100100",
                "cpu.weight=1 cpu.max=100100 100000",
            ),
            (
                json!([asks(json!({"memory": "1Mi"}), json!({"cpu": "1m"}))]),
                "cpu.shares=2 cpu.cfs_period_us=100000 cpu.cfs_quota_us=1000",
                "cpu.weight=1 cpu.max=1000 100000",
            ),
            (json!([{}]), "cpu.shares=2", "cpu.weight=1"),
        ] {
            let resources = Resources::of_pod(&pod(json!({"containers": containers})));
            let first: Vec<String> = resources
                .v1()
                .into_iter()
                .map(|(_, file, content)| format!("{file}={content}"))
                .collect();
            assert_eq!(first.join(" "), v1, "{containers}");
            let second: Vec<String> = resources
                .v2()
                .into_iter()
                .map(|(file, content)| format!("{file}={content}"))
                .collect();
            assert_eq!(second.join(" "), v2, "{containers}");
        }
    }

    #[test]
    fn limits_are_read_in_both_versions() {
        let base =
            std::env::temp_dir().join(format!("kubelet-cgroup-limits-{}", std::process::id()));
        let limits = |cpu_shares, cpu_quota, memory| PodLimits { cpu_shares, cpu_quota, memory };
        let v1 = Hierarchy::v1_for_tests(&base.join("v1"), &["cpu", "memory"]);
        let v2 = Hierarchy::V2 { root: base.join("v2") };
        for (hierarchy, files, expected) in [
            (&v2, &["cpu.max=max 100000", "cpu.weight=1"][..], Err("memory")),
            (&v2, &["memory.max=max", "cpu.weight=1"], Err("cpu")),
            (&v2, &["memory.max=max", "cpu.max=5000 50000", "cpu.weight=x"], Err("cpu")),
            (
                &v2,
                &["memory.max=max", "cpu.max=max 100000", "cpu.weight=39"],
                Ok(limits(998, None, None)),
            ),
            (
                &v2,
                &["memory.max=4096", "cpu.max=5000 50000", "cpu.weight=1"],
                Ok(limits(2, Some(10_000), Some(4096))),
            ),
            (&v1, &["memory.limit_in_bytes=4096", "cpu.shares=1024"], Err("cpu")),
            (
                &v1,
                &[
                    "memory.limit_in_bytes=9223372036854771712",
                    "cpu.shares=7",
                    "cpu.cfs_quota_us=-1",
                ],
                Ok(limits(7, None, None)),
            ),
        ] {
            let _ = fs::remove_dir_all(&base);
            for file in files {
                let (name, content) = file.split_once('=').expect("a content");
                let controller = name.split('.').next().unwrap_or_default();
                let folder = hierarchy.folder(controller, "/pod").expect("a folder");
                fs::create_dir_all(&folder).expect("a folder");
                fs::write(folder.join(name), format!("{content}\n")).expect("a file");
            }
            assert_eq!(PodLimits::read(hierarchy, "/pod"), expected, "{files:?}");
        }
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn init_container_is_limited_by_a_sidecar_before_it() {
        let (limited, open) =
            (|| asks(json!({}), json!({"cpu": "1"})), || asks(json!({}), json!({})));
        let sidecar = |mut container: Value| {
            container["restartPolicy"] = "Always".into();
            container
        };
        for (init, containers, expected) in [
            (json!([]), json!([limited()]), Some(100_000)),
            (json!([]), json!([limited(), open()]), None),
            (json!([open()]), json!([limited()]), None),
            (json!([sidecar(limited()), open()]), json!([limited()]), Some(200_000)),
            (
                json!([sidecar(limited()), sidecar(open()), open()]),
                json!([limited()]),
                Some(200_000),
            ),
            (json!([open(), sidecar(limited())]), json!([limited()]), None),
            // It has ended when the next one runs.
            (json!([limited(), open()]), json!([limited()]), None),
            (json!([sidecar(limited())]), json!([open()]), None),
        ] {
            let spec = json!({"initContainers": init, "containers": containers});
            assert_eq!(Resources::of_pod(&pod(spec.clone())).cpu_quota, expected, "{spec}");
        }
    }

    #[test]
    fn burstable_class_has_the_shares_of_its_pods() {
        let of = |cpu: &str| pod(json!({"containers": [asks(json!({"cpu": cpu}), json!({}))]}));
        let all = [of("1"), of("500m"), pod(json!({"containers": [{}]}))];
        assert_eq!(burstable_shares(all.iter()), 1536);
        assert_eq!(burstable_shares([].into_iter()), 2);
    }
}
