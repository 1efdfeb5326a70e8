//! The definitions of sandboxes and containers for the runtime.
//! Upstream: `generatePodSandboxConfig`, `generateContainerConfig`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Quantity;

use super::environment::{Values, expand_word};
use super::{Error, labels};
use crate::cri::api;
use crate::node::huge_pages::{PageSize, size_of};
use crate::pod::{
    APP_ARMOR, Container, Pod, PodExt, QosClass, is_restartable_init, listed, of_containers,
    of_pod, quantity,
};

/// CPU shares of a container that requests none. Upstream: `MinShares`.
const MIN_SHARES: i64 = 2;
/// Upstream: `MaxShares`.
const MAX_SHARES: i64 = 262_144;
/// The period of CPU quotas in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// The smallest quota in microseconds.
const MIN_QUOTA: i64 = 1000;

/// What the definition of a sandbox needs beside the pod.
pub struct SandboxSettings<'a> {
    pub attempt: u32,
    pub log_directory: &'a Path,
    /// Below it: the pod's cgroup. Empty: the runtime decides.
    pub cgroup_parent: &'a str,
    pub dns: api::DnsConfig,
    /// Empty with the host's network.
    pub hostname: String,
    /// `None`: the pod says nothing of the host's users.
    pub users: Option<&'a api::UserNamespace>,
}

/// Builds the definition of a pod's sandbox.
pub fn sandbox(pod: &Pod, settings: SandboxSettings<'_>) -> api::PodSandboxConfig {
    let spec = pod.spec();
    let security = spec.security_context.as_ref();
    let is_privileged =
        pod.all_containers().any(|one| is_privileged(one.security_context.as_ref()))
            || pod
                .ephemeral_containers()
                .iter()
                .any(|one| is_privileged(one.security_context.as_ref()));
    let context = api::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, settings.users)),
        run_as_user: security.and_then(|s| s.run_as_user).map(|value| api::Int64Value { value }),
        run_as_group: security.and_then(|s| s.run_as_group).map(|value| api::Int64Value { value }),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod) as i32,
        selinux_options: security.and_then(|s| s.se_linux_options.as_ref()).map(selinux),
        privileged: is_privileged,
        seccomp: Some(runtime_default()),
        ..Default::default()
    };
    let sysctls = security.and_then(|security| security.sysctls.as_ref()).into_iter().flatten();
    let annotations = pod.metadata.annotations.iter().flatten();
    api::PodSandboxConfig {
        metadata: Some(api::PodSandboxMetadata {
            name: pod.name().to_owned(),
            uid: pod.uid().to_string(),
            namespace: pod.namespace().to_owned(),
            attempt: settings.attempt,
        }),
        hostname: settings.hostname,
        log_directory: settings.log_directory.display().to_string(),
        dns_config: Some(settings.dns),
        port_mappings: if pod.is_host_network() { Vec::new() } else { port_mappings(pod) },
        labels: labels::sandbox_labels(pod),
        annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
        linux: Some(api::LinuxPodSandboxConfig {
            cgroup_parent: settings.cgroup_parent.to_owned(),
            security_context: Some(context),
            sysctls: sysctls.map(|item| (item.name.clone(), item.value.clone())).collect(),
            overhead: Some(overhead(pod)),
            resources: Some(sandbox_resources(pod)),
        }),
        ..Default::default()
    }
}

/// Returns what all containers together may use: runtimes with virtual machines size them by it.
/// Upstream: `calculateSandboxResources`.
fn sandbox_resources(pod: &Pod) -> api::LinuxContainerResources {
    let of = |resource, is_limit| Some(of_pod(pod, resource, is_limit)).filter(|q| !q.is_zero());
    linux_resources(of("cpu", false), of("cpu", true), of("memory", true))
}

/// Converts a pod's overhead to the resources of its sandbox. Upstream:
/// `convertOverheadToLinuxResources`.
pub(crate) fn overhead(pod: &Pod) -> api::LinuxContainerResources {
    let Some(overhead) = &pod.spec().overhead else { return Default::default() };
    let cpu = quantity(overhead, "cpu");
    linux_resources(cpu, cpu, quantity(overhead, "memory"))
}

fn runtime_default() -> api::SecurityProfile {
    api::SecurityProfile {
        profile_type: api::security_profile::ProfileType::RuntimeDefault as i32,
        localhost_ref: String::new(),
    }
}

/// Returns which namespaces a pod shares: with the host, among its containers, or none.
fn namespaces(pod: &Pod, users: Option<&api::UserNamespace>) -> api::NamespaceOption {
    let spec = pod.spec();
    let mode = |is_host: Option<bool>, own: api::NamespaceMode| match is_host {
        Some(true) => api::NamespaceMode::Node as i32,
        _ => own as i32,
    };
    let own_pid = match spec.share_process_namespace {
        Some(true) => api::NamespaceMode::Pod,
        _ => api::NamespaceMode::Container,
    };
    api::NamespaceOption {
        network: mode(spec.host_network, api::NamespaceMode::Pod),
        pid: mode(spec.host_pid, own_pid),
        ipc: mode(spec.host_ipc, api::NamespaceMode::Pod),
        userns_options: users.cloned(),
        ..Default::default()
    }
}

/// Returns the supplemental groups of a pod's containers: its `fsGroup` and those that it names.
fn groups(pod: &Pod) -> Vec<i64> {
    let security = pod.spec().security_context.as_ref();
    let own = security.and_then(|security| security.supplemental_groups.clone());
    let fs_group = security.and_then(|security| security.fs_group);
    fs_group.into_iter().chain(own.into_iter().flatten()).collect()
}

/// Returns whether the groups of a container's image are added to those of the pod.
fn groups_policy(pod: &Pod) -> api::SupplementalGroupsPolicy {
    let security = pod.spec().security_context.as_ref();
    match security.and_then(|security| security.supplemental_groups_policy.as_deref()) {
        Some("Strict") => api::SupplementalGroupsPolicy::Strict,
        _ => api::SupplementalGroupsPolicy::Merge,
    }
}

/// Returns whether only the pod's own supplemental groups count.
pub fn has_strict_groups(pod: &Pod) -> bool {
    groups_policy(pod) == api::SupplementalGroupsPolicy::Strict
}

fn selinux(options: &core::SELinuxOptions) -> api::SeLinuxOption {
    api::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

/// Lists the host ports of a pod's regular containers, as upstream.
fn port_mappings(pod: &Pod) -> Vec<api::PortMapping> {
    let ports = pod.spec().containers.iter().flat_map(|container| container.ports.iter().flatten());
    let mappings = ports.filter_map(|port| {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => api::Protocol::Udp,
            Some("SCTP") => api::Protocol::Sctp,
            _ => api::Protocol::Tcp,
        };
        Some(api::PortMapping {
            protocol: protocol as i32,
            container_port: port.container_port,
            host_port: port.host_port.filter(|port| *port > 0)?,
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
    });
    mappings.collect()
}

fn is_privileged(context: Option<&core::SecurityContext>) -> bool {
    context.and_then(|context| context.privileged).unwrap_or_default()
}

/// What the definition of a container needs beside the pod.
pub struct ContainerSettings<'a> {
    pub restart_count: u32,
    /// The image as the runtime resolved it.
    pub image_ref: &'a str,
    pub users: Option<&'a api::UserNamespace>,
    /// The id of the container whose processes an ephemeral container sees.
    pub target: Option<String>,
    /// The user of the image, when it has a number.
    pub image_uid: Option<i64>,
    pub environment: Vec<(String, Vec<u8>)>,
    pub mounts: Vec<api::Mount>,
    /// The node's bytes of memory.
    pub memory_bytes: i64,
    /// The sizes of huge pages that the node has.
    pub page_sizes: &'a [PageSize],
    pub seccomp: Seccomp<'a>,
    /// Whether the machine has AppArmor.
    pub has_app_armor: bool,
    /// More files of the container's cgroup in version 2, with their contents.
    pub unified: HashMap<String, String>,
    /// Whether the limit of memory is that of memory and swap too, in version 1.
    pub limits_memory_and_swap: bool,
}

/// Where seccomp profiles come from.
#[derive(Clone, Copy)]
pub struct Seccomp<'a> {
    /// The folder of local profiles.
    pub folder: &'a Path,
    /// Containers that name no profile get the runtime's.
    pub runtime_by_default: bool,
}

/// Builds the definition of a container for the runtime, from the pod and from what the start of
/// the container has prepared (`settings`).
///
/// # Errors
/// The security context forbids the image's user or names a profile that cannot be applied, or a
/// word of the command is not text.
pub fn container(
    pod: &Pod,
    container: &Container,
    settings: ContainerSettings<'_>,
) -> Result<api::ContainerConfig, Error> {
    let values: Values = settings.environment.iter().cloned().collect();
    let expand_list = |list: &Option<Vec<String>>| -> Result<Vec<String>, Error> {
        list.iter().flatten().map(|word| expand_word(word, &values)).collect()
    };
    let image = container.image.clone().unwrap_or_default();
    let guards = Guards {
        image_uid: settings.image_uid,
        seccomp: settings.seccomp,
        has_app_armor: settings.has_app_armor,
        users: settings.users,
    };
    let mut resources = resources(pod, container, settings.memory_bytes, settings.page_sizes);
    resources.unified = settings.unified;
    if settings.limits_memory_and_swap {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
    let mut security = security(pod, container, &guards)?;
    if let (Some(id), Some(namespaces)) = (settings.target, &mut security.namespace_options)
        && namespaces.pid() == api::NamespaceMode::Container
    {
        namespaces.pid = api::NamespaceMode::Target as i32;
        namespaces.target_id = id;
    }
    Ok(api::ContainerConfig {
        metadata: Some(api::ContainerMetadata {
            name: container.name.clone(),
            attempt: settings.restart_count,
        }),
        image: Some(api::ImageSpec {
            image: settings.image_ref.to_owned(),
            user_specified_image: image,
            ..Default::default()
        }),
        command: expand_list(&container.command)?,
        args: expand_list(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: settings
            .environment
            .into_iter()
            .map(|(key, value)| api::KeyValue { key, value })
            .collect(),
        mounts: map_owners(settings.mounts, settings.users),
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, settings.restart_count),
        log_path: format!("{}/{}.log", container.name, settings.restart_count),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(api::LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security),
        }),
        ..Default::default()
    })
}

/// Gives the mounts the ID mappings of the pod's user namespace (idmapped mounts): in the container
/// a file has the owner that it has on the host. Without a user namespace mounts stay as they are.
fn map_owners(mut mounts: Vec<api::Mount>, users: Option<&api::UserNamespace>) -> Vec<api::Mount> {
    if let Some(users) = users {
        for mount in &mut mounts {
            mount.uid_mappings.clone_from(&users.uids);
            mount.gid_mappings.clone_from(&users.gids);
        }
    }
    mounts
}

/// Computes the resources of a container, whose cgroup gets them.
pub(crate) fn resources(
    pod: &Pod,
    container: &Container,
    memory_bytes: i64,
    page_sizes: &[PageSize],
) -> api::LinuxContainerResources {
    let (own, pods) = (container.resources.as_ref(), pod.spec().resources.as_ref());
    // A container without a limit has the pod's.
    let limit = |resource| {
        let limit = listed(own, resource, true).filter(|limit| !limit.is_zero());
        limit.or_else(|| listed(pods, resource, true))
    };
    let memory_request = listed(own, "memory", false).map_or(0, |memory| memory.value());
    let limits = |lists: Option<&core::ResourceRequirements>| {
        lists.and_then(|lists| lists.limits.clone()).unwrap_or_default()
    };
    let mut pages = limits(pods);
    pages.extend(limits(own));
    api::LinuxContainerResources {
        oom_score_adj: oom_score_of(pod, container, memory_request, memory_bytes),
        hugepage_limits: hugepages(&pages, page_sizes),
        ..linux_resources(listed(own, "cpu", false), limit("cpu"), limit("memory"))
    }
}

/// Converts CPU and memory amounts to shares, quota and bytes. Upstream: `calculateLinuxResources`.
fn linux_resources(
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_limit: Option<Quantity>,
) -> api::LinuxContainerResources {
    let milli = |cpu: Option<Quantity>| cpu.map_or(0, |cpu| cpu.milli_value());
    api::LinuxContainerResources {
        cpu_shares: shares(milli(cpu_request.or(cpu_limit))),
        cpu_period: CPU_PERIOD,
        cpu_quota: match milli(cpu_limit) {
            // No limit.
            0 => 0,
            milli => (milli.saturating_mul(CPU_PERIOD) / 1000).max(MIN_QUOTA),
        },
        memory_limit_in_bytes: memory_limit.map_or(0, |memory| memory.value()),
        ..Default::default()
    }
}

/// Lists the limits of all page sizes of the node. Upstream: `GetHugepageLimitsFromResources`.
fn hugepages(
    limits: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    sizes: &[PageSize],
) -> Vec<api::HugepageLimit> {
    let limit = |size: &PageSize| {
        let of_size = limits.iter().find(|(resource, _)| size_of(resource) == Some(size.bytes));
        let amount = of_size.and_then(|(_, amount)| amount.0.parse::<Quantity>().ok());
        u64::try_from(amount.map_or(0, |amount| amount.value())).unwrap_or(0)
    };
    let hugepage_limit =
        |size: &PageSize| api::HugepageLimit { page_size: size.name.clone(), limit: limit(size) };
    sizes.iter().map(hugepage_limit).collect()
}

/// Computes the `oom_score_adj` of a container. Upstream: `GetContainerOOMScoreAdjust`.
fn oom_score_of(pod: &Pod, container: &Container, memory_request: i64, memory_bytes: i64) -> i64 {
    if pod.spec().priority_class_name.as_deref() == Some("system-node-critical") {
        return GUARANTEED_SCORE;
    }
    // A sidecar is not killed before the containers that it serves. A regular container may have
    // the policy `Always` too.
    let is_sidecar = is_restartable_init(container)
        && pod.init_containers().iter().any(|init| init.name == container.name);
    let request_of = |resources| listed(resources, "memory", false).map_or(0, |m| m.value());
    let of_others = pod.spec().containers.iter().map(|other| request_of(other.resources.as_ref()));
    let request = match is_sidecar {
        true => memory_request.max(of_others.min().unwrap_or(0)),
        false => memory_request,
    };
    // What only the whole pod requests is divided among all.
    let count = i64::try_from(pod.all_containers().count().max(1)).unwrap_or(i64::MAX);
    let request = match request_of(pod.spec().resources.as_ref()) {
        0 => request,
        own => {
            let rest = own.saturating_sub(of_containers(pod, "memory", false).value());
            request.saturating_add(rest / count)
        }
    };
    oom_score(QosClass::of(pod), request, memory_bytes)
}

/// The score of what is killed last.
const GUARANTEED_SCORE: i64 = -997;

/// Converts CPU millis to cgroup v1 shares. Upstream: `MilliCPUToShares`.
fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Converts cgroup v1 CPU shares to CPU millis, rounded up. `None`: fewer shares than any container
/// gets. Upstream: `SharesToMilliCPU`.
pub fn milli_of_shares(shares: u64) -> Option<i64> {
    let shares = i64::try_from(shares).ok().filter(|shares| *shares >= MIN_SHARES)?;
    Some(shares.min(MAX_SHARES).saturating_mul(1000).saturating_add(1023) / 1024)
}

/// Computes the score by which the kernel kills containers when memory is short, the highest first.
/// A burstable one is safer the more of the machine's memory it requests.
fn oom_score(class: QosClass, memory_request: i64, memory_bytes: i64) -> i64 {
    match class {
        QosClass::Guaranteed => GUARANTEED_SCORE,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let share = i128::from(memory_request) * 1000 / i128::from(memory_bytes.max(1));
            (1000 - i64::try_from(share).unwrap_or(1000)).clamp(3, 999)
        }
    }
}

/// What the security context of a container depends on beside the pod.
struct Guards<'a> {
    image_uid: Option<i64>,
    seccomp: Seccomp<'a>,
    has_app_armor: bool,
    users: Option<&'a api::UserNamespace>,
}

/// Builds the security context of a container from its own and its pod's. Errors: it forbids the
/// image's user, or names a profile that cannot be applied.
fn security(
    pod: &Pod,
    container: &Container,
    guards: &Guards<'_>,
) -> Result<api::LinuxContainerSecurityContext, Error> {
    let image_uid = guards.image_uid;
    let none = core::SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&none);
    let of_pod = pod.spec().security_context.as_ref();
    let user = own.run_as_user.or_else(|| of_pod.and_then(|context| context.run_as_user));
    let group = own.run_as_group.or_else(|| of_pod.and_then(|context| context.run_as_group));
    let non_root = own.run_as_non_root.or_else(|| of_pod.and_then(|c| c.run_as_non_root));
    if non_root == Some(true) {
        match user.or(image_uid) {
            Some(0) => return Err(Error::ImageRunsAsRoot),
            Some(_) => {}
            None => return Err(Error::ImageUserUnknown),
        }
    }
    let seccomp = own.seccomp_profile.as_ref();
    let seccomp = seccomp.or_else(|| of_pod.and_then(|context| context.seccomp_profile.as_ref()));
    let profile = match seccomp.map(|profile| (profile.type_.as_str(), profile)) {
        Some(("RuntimeDefault", _)) => runtime_default(),
        Some(("Localhost", profile)) => {
            let file = profile.localhost_profile.as_deref().filter(|file| !file.is_empty());
            let file = file.ok_or(Error::NoLocalhostProfile)?;
            localhost_profile(guards.seccomp.folder.join(file).display().to_string())
        }
        None if guards.seccomp.runtime_by_default => runtime_default(),
        Some(("Unconfined", _)) | None => unconfined(),
        // The server knows more types: the container must not run without protection.
        Some((other, _)) => return Err(unknown_type("seccompProfile", other)),
    };
    let app_armor = app_armor(pod, container)?;
    if app_armor.as_ref().is_some_and(|profile| *profile != unconfined()) && !guards.has_app_armor {
        return Err(Error::NoAppArmor);
    }
    let is_privileged = own.privileged.unwrap_or_default();
    // Only a user namespace guards the host where all of `/proc` is open.
    let is_open = own.proc_mount.as_deref() == Some("Unmasked")
        && guards.users.is_some_and(|users| users.mode() == api::NamespaceMode::Pod);
    let paths = |paths: &[&str]| match is_privileged || is_open {
        true => Vec::new(),
        false => paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    Ok(api::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|capabilities| api::Capability {
            add_capabilities: capabilities.add.clone().unwrap_or_default(),
            drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
            ..Default::default()
        }),
        privileged: is_privileged,
        namespace_options: Some(namespaces(pod, guards.users)),
        run_as_user: user.or(image_uid).map(|value| api::Int64Value { value }),
        run_as_group: group.map(|value| api::Int64Value { value }),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or_default(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod) as i32,
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or_else(|| of_pod.and_then(|context| context.se_linux_options.as_ref()))
            .map(selinux),
        apparmor: app_armor,
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(profile),
        ..Default::default()
    })
}

fn unconfined() -> api::SecurityProfile {
    api::SecurityProfile {
        profile_type: api::security_profile::ProfileType::Unconfined as i32,
        localhost_ref: String::new(),
    }
}

fn localhost_profile(localhost_ref: String) -> api::SecurityProfile {
    api::SecurityProfile {
        profile_type: api::security_profile::ProfileType::Localhost as i32,
        localhost_ref,
    }
}

/// Returns the AppArmor profile of a container: its own, that of the old annotation, or the pod's;
/// `None`: no profile is asked for. Upstream: `apparmor.GetProfile`.
///
/// # Errors
/// When the profile is of no known type.
fn app_armor(pod: &Pod, container: &Container) -> Result<Option<api::SecurityProfile>, Error> {
    let own = container.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
    let annotation = pod.annotation(&format!("{APP_ARMOR}{}", container.name));
    if let (None, Some(profile)) = (own, annotation.filter(|profile| !profile.is_empty())) {
        let profile = match (profile, profile.strip_prefix("localhost/")) {
            ("runtime/default", _) => runtime_default(),
            ("unconfined", _) => unconfined(),
            (_, Some(name)) => localhost_profile(name.to_owned()),
            _ => return Err(Error::UnknownAppArmorProfile(profile.to_owned())),
        };
        return Ok(Some(profile));
    }
    let of_pod = pod.spec().security_context.as_ref();
    let profile = own.or_else(|| of_pod.and_then(|context| context.app_armor_profile.as_ref()));
    let Some(profile) = profile else { return Ok(None) };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Some(runtime_default())),
        "Unconfined" => Ok(Some(unconfined())),
        "Localhost" => {
            Ok(Some(localhost_profile(profile.localhost_profile.clone().unwrap_or_default())))
        }
        other => Err(unknown_type("appArmorProfile", other)),
    }
}

fn unknown_type(field: &'static str, kind: &str) -> Error {
    Error::UnknownProfileType { field, kind: kind.to_owned() }
}

/// Upstream: `securitycontext.defaultMaskedPaths`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Upstream: `securitycontext.defaultReadonlyPaths`.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seccomp(runtime_by_default: bool) -> Seccomp<'static> {
        Seccomp { folder: Path::new("/seccomp"), runtime_by_default }
    }

    #[test]
    fn containers_without_a_seccomp_profile_get_the_default() {
        let named = |kind: &str| json!({"seccompProfile": {"type": kind}});
        for (own, of_pod, runtime_by_default, expected) in [
            (json!({}), json!({}), false, unconfined()),
            (json!({}), json!({}), true, runtime_default()),
            (named("Unconfined"), json!({}), true, unconfined()),
            (json!({}), named("Unconfined"), true, unconfined()),
            (json!({}), named("RuntimeDefault"), false, runtime_default()),
        ] {
            let container = json!({"name": "c", "securityContext": own});
            let pod = json!({"spec": {"securityContext": of_pod, "containers": [container]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let seccomp = seccomp(runtime_by_default);
            let guards = Guards { image_uid: None, seccomp, has_app_armor: false, users: None };
            let context = security(&pod, &pod.spec().containers[0], &guards).expect("a context");
            assert_eq!(context.seccomp, Some(expected), "{own} {of_pod} {runtime_by_default}");
        }
    }

    #[test]
    fn profiles_come_from_the_container_first() {
        let kind = |pod: serde_json::Value| {
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let seccomp = seccomp(false);
            let guards = Guards { image_uid: Some(1), seccomp, has_app_armor: true, users: None };
            let context = security(&pod, &pod.spec().containers[0], &guards);
            context.map_err(|error| error.to_string()).map(|context| {
                let shown = |profile: Option<api::SecurityProfile>| {
                    let profile = profile?;
                    Some(format!("{:?} {}", profile.profile_type(), profile.localhost_ref))
                };
                let groups = context.supplemental_groups_policy();
                (shown(context.seccomp), shown(context.apparmor), groups)
            })
        };
        let own = |own: serde_json::Value, of_pod: serde_json::Value| {
            json!({"metadata": {"annotations":
                    {"container.apparmor.security.beta.kubernetes.io/old": "localhost/x"}},
                "spec": {"securityContext": of_pod,
                    "containers": [{"name": "c", "securityContext": own}]}})
        };
        let (merge, strict) =
            (api::SupplementalGroupsPolicy::Merge, api::SupplementalGroupsPolicy::Strict);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(kind(own(json!({}), json!({}))), Ok((text("Unconfined "), None, merge)));
        let of_pod = json!({"seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
            "supplementalGroupsPolicy": "Strict"});
        let expected = Ok((text("RuntimeDefault "), text("Localhost p"), strict));
        assert_eq!(kind(own(json!({}), of_pod.clone())), expected);
        let of_container = json!({"appArmorProfile": {"type": "Unconfined"},
            "seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
        let expected = Ok((text("Localhost /seccomp/a/b.json"), text("Unconfined "), strict));
        assert_eq!(kind(own(of_container, of_pod)), expected);
        let missing = json!({"seccompProfile": {"type": "Localhost"}});
        let fault = "localhostProfile must be set if seccompProfile type is Localhost.";
        assert_eq!(kind(own(missing, json!({}))), Err(fault.to_owned()));
        for (field, fault) in [
            ("seccompProfile", "seccompProfile type \"runtimeDefault\" is unknown"),
            ("appArmorProfile", "appArmorProfile type \"runtimeDefault\" is unknown"),
        ] {
            let typo = json!({field: {"type": "runtimeDefault"}});
            assert_eq!(kind(own(typo.clone(), json!({}))), Err(fault.to_owned()));
            assert_eq!(kind(own(json!({}), typo)), Err(fault.to_owned()));
        }
    }

    #[test]
    fn all_of_proc_is_open_to_privileged_containers_and_in_user_namespaces() {
        let ids = vec![api::IdMapping { host_id: 65_536, container_id: 0, length: 65_536 }];
        let mode = api::NamespaceMode::Pod as i32;
        let own = api::UserNamespace { mode, uids: ids.clone(), gids: ids.clone() };
        let mode = api::NamespaceMode::Node as i32;
        let of_host = api::UserNamespace { mode, ..Default::default() };
        let unmasked = json!({"procMount": "Unmasked"});
        for (context, users, is_open) in [
            (json!({}), None, false),
            (json!({}), Some(&own), false),
            (unmasked.clone(), None, false),
            (unmasked.clone(), Some(&of_host), false),
            (unmasked, Some(&own), true),
            (json!({"privileged": true}), None, true),
        ] {
            let container = json!({"name": "c", "securityContext": context});
            let pod = json!({"metadata": {"uid": "u"}, "spec": {"containers": [container]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let seccomp = seccomp(false);
            let guards = Guards { image_uid: None, seccomp, has_app_armor: false, users };
            let found = security(&pod, &pod.spec().containers[0], &guards).expect("a context");
            let is_all_open = found.masked_paths.is_empty() && found.readonly_paths.is_empty();
            assert_eq!(is_all_open, is_open, "{context}");
            let given = found.namespace_options.and_then(|options| options.userns_options);
            assert_eq!(given.as_ref(), users);
        }
        let mounts = map_owners(vec![api::Mount::default()], Some(&own));
        assert_eq!((&mounts[0].uid_mappings, &mounts[0].gid_mappings), (&ids, &ids));
    }

    #[test]
    fn limit_of_memory_and_swap_is_that_of_memory() {
        for (limits_memory_and_swap, limits, expected) in [
            (true, json!({"memory": "1Mi"}), (1 << 20, 1 << 20)),
            (true, json!({}), (0, 0)),
            (false, json!({"memory": "1Mi"}), (1 << 20, 0)),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers":
                [{"name": "c", "resources": {"limits": limits}}]}}))
                .expect("a pod");
            let settings = ContainerSettings {
                restart_count: 0,
                image_ref: "i",
                users: None,
                target: None,
                image_uid: None,
                environment: Vec::new(),
                mounts: Vec::new(),
                memory_bytes: 1 << 30,
                page_sizes: &[],
                seccomp: seccomp(false),
                has_app_armor: false,
                unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
                limits_memory_and_swap,
            };
            let config =
                container(&pod, &pod.spec().containers[0], settings).expect("a definition");
            let found = config.linux.and_then(|linux| linux.resources).expect("resources");
            let limits = (found.memory_limit_in_bytes, found.memory_swap_limit_in_bytes);
            assert_eq!(limits, expected, "{limits_memory_and_swap}");
            assert_eq!(found.unified["memory.oom.group"], "1");
        }
    }

    #[test]
    fn sidecars_are_not_killed_before_the_containers() {
        let resources = |memory: &str| json!({"requests": {"memory": memory}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "s", "restartPolicy": "Always",
                "resources": resources("1")}, {"name": "i"}],
            "containers": [{"name": "a", "resources": resources("1Gi")},
                {"name": "b", "resources": resources("2Gi")}],
        }}))
        .expect("a pod");
        let gib = 1 << 30;
        let score =
            |container: &Container, request| oom_score_of(&pod, container, request, 4 * gib);
        assert_eq!(score(&pod.init_containers()[0], 1), 750);
        assert_eq!(score(&pod.init_containers()[0], 2 * gib), 500);
        assert_eq!(score(&pod.init_containers()[1], 0), 999);
        assert_eq!(score(&pod.spec().containers[0], gib), 750);
        let mut critical = pod.clone();
        critical.spec.get_or_insert_default().priority_class_name =
            Some("system-node-critical".to_owned());
        let container = &critical.spec().containers[0];
        assert_eq!(oom_score_of(&critical, container, 0, gib), -997);
    }

    #[test]
    fn amounts_without_bound_are_the_largest() {
        let lists = json!({ "cpu": "1e60", "memory": "1e60" });
        let own = json!({ "requests": { "memory": "9E" } });
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "resources": own, "containers": [{"name": "a", "resources": {"limits": lists}},
                {"name": "b", "resources": {"requests": {"cpu": "1e4294967296"}}}],
        }}))
        .expect("a pod");
        let of = |at: usize| resources(&pod, &pod.spec().containers[at], 4 << 30, &[]);
        let given = of(0);
        assert_eq!((given.cpu_shares, given.cpu_quota), (262_144, i64::MAX / 1000));
        assert_eq!((given.memory_limit_in_bytes, given.oom_score_adj), (i64::MAX, 3));
        assert_eq!(of(1).cpu_shares, 1024);
    }

    #[test]
    fn containers_share_what_their_pod_asks_for() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "resources": {"limits": {"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "4Mi"}},
            "containers": [{"name": "a", "resources": {
                "limits": {"cpu": "1"}, "requests": {"cpu": "500m", "memory": "1Gi"}}},
                {"name": "b"}],
        }}))
        .expect("a pod");
        let of = |at: usize| {
            let size = |name: &str, bytes| PageSize { name: name.to_owned(), bytes, capacity: 0 };
            let sizes = [size("2MB", 2 << 20), size("1GB", 1 << 30)];
            let given = resources(&pod, &pod.spec().containers[at], 4 << 30, &sizes);
            let pages = given.hugepage_limits.into_iter().map(|page| (page.page_size, page.limit));
            let pages: Vec<(String, u64)> = pages.collect();
            (given.cpu_shares, given.cpu_quota, given.memory_limit_in_bytes, pages)
        };
        let pages = vec![("2MB".to_owned(), 4 << 20), ("1GB".to_owned(), 0)];
        assert_eq!(of(0), (512, 100_000, 2 << 30, pages.clone()));
        assert_eq!(of(1), (2048, 200_000, 2 << 30, pages));
        let all = sandbox_resources(&pod);
        assert_eq!((all.cpu_shares, all.cpu_quota), (2048, 200_000));
        // Half of what the containers leave.
        let mut burstable = pod.clone();
        let own = burstable.spec.get_or_insert_default().resources.get_or_insert_default();
        own.limits = None;
        let score = |at: usize, request| {
            oom_score_of(&burstable, &burstable.spec().containers[at], request, 4 << 30)
        };
        assert_eq!((score(0, 1 << 30), score(1, 0)), (625, 875));
    }

    #[test]
    fn scores_and_shares_follow_requests() {
        let gib = 1 << 30;
        for (class, request, score) in [
            (QosClass::Guaranteed, gib, -997),
            (QosClass::BestEffort, 0, 1000),
            (QosClass::Burstable, 0, 999),
            (QosClass::Burstable, gib, 750),
            (QosClass::Burstable, 4 * gib, 3),
        ] {
            assert_eq!(oom_score(class, request, 4 * gib), score, "{class:?} {request}");
        }
        for (milli, expected) in [(0, 2), (1, 2), (100, 102), (1000, 1024), (1_000_000, 262_144)] {
            assert_eq!(shares(milli), expected, "{milli}");
        }
    }
}
