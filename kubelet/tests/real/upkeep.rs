//! Images, containers and logs are collected; logs are rotated; credentials are used.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::SystemClock;
use kubelet::cri::{self, ImageService, RuntimeService, api};
use serde_json::Value;

use super::crashes::containers;
use super::node::{Node, cgroups_of, wait};
use super::pods::{STAYS, is_ready, once};
use super::registry;

fn pod(name: &str, image: &str, script: &str) -> String {
    once(name, "Always", script).replace(BUSYBOX, image)
}

const BUSYBOX: &str = "node.test/busybox:1";

fn images(node: &Node) -> ImageService {
    let channel = cri::channel(&node.socket(), SystemClock::shared());
    ImageService::new(channel, Duration::from_secs(60))
}

fn has_image(node: &Node, name: &str) -> bool {
    let image = Some(api::ImageSpec { image: name.to_owned(), ..Default::default() });
    let request = api::ImageStatusRequest { image, verbose: false };
    block_on(images(node).image_status(request)).expect("a status").image.is_some()
}

#[test]
fn images_need_the_credentials_of_the_node() {
    let Some(mut node) = Node::start("credentials") else { return };
    // user:secret
    registry::start(&node, &["app"], Some("dXNlcjpzZWNyZXQ="));
    let image = format!("{}/app:1", registry::ADDRESS);
    node.write("app.yaml", &pod("app", &image, STAYS));
    node.start_kubelet();
    let waiting = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    node.eventually("app-n", "refused by the registry", |pod| {
        ["ErrImagePull", "ImagePullBackOff"].contains(&waiting(pod).as_str())
    });
    assert!(node.log().contains("no basic auth credentials"), "{}", node.log());
    let config = format!(
        r#"{{"auths": {{"{0}/other": {{"auth": "b3RoZXI6eA=="}}, "{0}": {{"auth": "dXNlcjpzZWNyZXQ="}}}}}}"#,
        registry::ADDRESS
    );
    fs::write(node.folder.join("kubelet/config.json"), config).expect("a file");
    node.eventually("app-n", "ready", is_ready);
    assert!(!node.log().contains("secret"), "{}", node.log());
    // What pulled it is the node's, so all pods may use it.
    let records = node.folder.join("kubelet/image_manager");
    let files = |folder: &str| fs::read_dir(records.join(folder)).expect("a folder").flatten();
    let pulled = files("pulled").map(|file| fs::read_to_string(file.path()).expect("a record"));
    let end = format!(
        "\"credentialMapping\":{{\"{}/app\":{{\"nodePodsAccessible\":true}}}}}}\n",
        registry::ADDRESS
    );
    assert_eq!(pulled.filter(|record| record.ends_with(&end)).count(), 1);
    assert!(wait(|| files("pulling").count() == 0));
}

/// A sandbox of another program, with this uid as its label.
fn foreign_sandbox(node: &Node, uid: &str) -> String {
    let name = "foreign".to_owned();
    let labels = [
        ("io.kubernetes.pod.name", &*name),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", uid),
    ];
    let host =
        api::NamespaceOption { network: api::NamespaceMode::Node as i32, ..Default::default() };
    let config = api::PodSandboxConfig {
        metadata: Some(api::PodSandboxMetadata {
            name: name.clone(),
            uid: format!("foreign{uid}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        linux: Some(api::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{}", node.name),
            security_context: Some(api::LinuxSandboxSecurityContext {
                namespace_options: Some(host),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request =
        api::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    block_on(runtime(node).run_pod_sandbox(request)).expect("a sandbox").pod_sandbox_id
}

fn runtime(node: &Node) -> RuntimeService {
    let channel = cri::channel(&node.socket(), SystemClock::shared());
    RuntimeService::new(channel, Duration::from_secs(60))
}

#[test]
fn sandboxes_whose_uid_is_no_folder_cost_no_pod_its_own() {
    let Some(mut node) = Node::start("foreign") else { return };
    node.write("own.yaml", &pod("own", BUSYBOX, STAYS));
    node.start_kubelet();
    let own = node.eventually("own-n", "ready", is_ready);
    let uid = own["metadata"]["uid"].as_str().expect("a uid");
    let foreign = [".", "..", "../pods", ""].map(|uid| foreign_sandbox(&node, uid));
    // It is an orphan, and is ended with what has been listed before it or with it.
    let orphan = foreign_sandbox(&node, "0123");
    let sandboxes = || -> Vec<String> {
        let request = api::ListPodSandboxRequest::default();
        let listed = block_on(runtime(&node).list_pod_sandbox(request)).expect("sandboxes");
        listed.items.into_iter().map(|sandbox| sandbox.id).collect()
    };
    assert!(wait(|| !sandboxes().contains(&orphan)), "{}", node.log());
    let left = sandboxes();
    assert!(foreign.iter().all(|id| left.contains(id)), "{left:?}\n{}", node.log());
    let folder = node.folder.join("kubelet/pods").join(uid);
    assert!(folder.join("etc-hosts").exists(), "{}", node.log());
    assert!(is_ready(&node.pod("own-n")), "{}", node.log());
}

#[test]
fn what_no_pod_needs_is_collected() {
    let Some(mut node) = Node::start("garbage") else { return };
    registry::start(&node, &["used", "mounted", "unused"], None);
    let [used, mounted, unused] =
        ["used", "mounted", "unused"].map(|name| format!("{}/{name}:1", registry::ADDRESS));
    let volume = format!("spec:\n  volumes: [{{name: v, image: {{reference: {mounted:?}}}}}]");
    let pod_with_volume = pod("used", &used, STAYS).replace("spec:", &volume)
        + "    volumeMounts: [{name: v, mountPath: /v}]\n";
    node.write("used.yaml", &pod_with_volume);
    node.write("crash.yaml", &pod("crash", BUSYBOX, "exit 1"));
    node.start_kubelet();
    node.eventually("used-n", "ready", is_ready);
    let image = Some(api::ImageSpec { image: unused.clone(), ..Default::default() });
    let request = api::PullImageRequest { image, ..Default::default() };
    block_on(images(&node).pull_image(request)).expect("an image");
    node.eventually("crash-n", "restarted", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"].as_i64() >= Some(2)
    });
    let found = containers(&node);
    assert!(found["main"].len() <= 4, "{found:?}");
    node.kill_kubelet();
    // What an agent leaves that ended while a pod was removed.
    node.remove("crash.yaml");
    let logs = node.folder.join("podlogs");
    fs::create_dir_all(logs.join("default_former-n_0123/main")).expect("a folder");
    fs::create_dir_all(logs.join("foreign")).expect("a folder");
    let links = node.folder.join("containers");
    let count = |folder: &std::path::Path| fs::read_dir(folder).map_or(0, Iterator::count);
    assert!(count(&links) >= 1, "no link to a log");
    symlink("/nonexistent", links.join("former-n_default_main-0123456789.log")).expect("a link");
    node.configure("imageGCHighThresholdPercent: 1\nimageGCLowThresholdPercent: 0");
    // In files, zero is the default.
    node.start_kubelet_with(&["--minimum-image-ttl-duration=0s"]);
    assert!(wait(|| !has_image(&node, &unused)), "{}", node.log());
    assert!(wait(|| node.log().contains("Insufficient free disk space")), "{}", node.log());
    assert!(has_image(&node, &used), "an image in use is removed");
    assert!(has_image(&node, &mounted), "an image that is mounted is removed");
    assert!(has_image(&node, "node.test/pause:1"), "a pinned image is removed");
    let metrics = node.get("127.0.0.1:10255", "/metrics").expect("metrics");
    let counted = "kubelet_image_garbage_collected_total{reason=\"space\"}";
    assert!(metrics.contains(counted), "{metrics}");
    let names = || {
        let mut names: Vec<String> = fs::read_dir(&logs)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let is_clean = wait(|| {
        let names = names();
        names.len() == 2 && names[0].starts_with("default_used-n_") && names[1] == "foreign"
    });
    assert!(is_clean, "{:?}\n{}", names(), node.log());
    assert!(wait(|| count(&links) == 1), "{}", node.log());
    assert_eq!(containers(&node)["main"].len(), 1);
}

#[test]
fn logs_are_rotated_and_compressed() {
    let Some(mut node) = Node::start("rotation") else { return };
    node.configure(
        "containerLogMaxSize: 10Ki\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s",
    );
    let script = "n=0; while :; do n=$((n+1)); echo line $n $(printf %0200d 0); done";
    node.write("chatty.yaml", &pod("chatty", BUSYBOX, script));
    node.start_kubelet();
    let chatty = node.eventually("chatty-n", "ready", is_ready);
    let uid = chatty["metadata"]["uid"].as_str().expect("a uid");
    let folder = node.folder.join(format!("podlogs/default_chatty-n_{uid}/main"));
    let names = || {
        let mut names: Vec<String> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    // The third rotation removes the first file.
    let mut seen = std::collections::BTreeSet::new();
    let is_rotated = wait(|| {
        seen.extend(names());
        seen.iter().filter(|name| name.ends_with(".gz")).count() >= 2
    });
    assert!(is_rotated, "{seen:?}\n{}", node.log());
    // Between two steps of a rotation there is no log, or one file more.
    let is_bounded = wait(|| {
        let names = names();
        names.len() <= 4 && names.first().is_some_and(|name| name == "0.log")
    });
    assert!(is_bounded, "{:?}", names());
    // A rotation may remove the file meanwhile.
    let mut unpacked = String::new();
    let is_unpacked = wait(|| {
        let Some(name) = names().into_iter().find(|name| name.ends_with(".gz")) else {
            return false;
        };
        let output = Command::new("gunzip").arg("-c").arg(folder.join(name)).output();
        let output = output.expect("gunzip");
        unpacked = String::from_utf8(output.stdout).expect("text");
        output.status.success()
    });
    assert!(is_unpacked, "{:?}", names());
    assert!(unpacked.lines().all(|line| line.contains(" stdout F line ")), "{unpacked}");
    assert!(unpacked.len() >= 10 << 10, "{}", unpacked.len());
    // Each line is in one file: none was lost.
    let status = chatty["status"]["containerStatuses"][0]["restartCount"].clone();
    assert_eq!(status, 0);
}

/// A file of a cgroup, by its names in both versions.
fn cgroup(node: &Node, path: &str, v1: (&str, &str), v2: &str) -> Option<String> {
    let folder = cgroups_of(v1.0).join(&node.name).join(path);
    let file = [v1.1, v2].map(|name| folder.join(name)).into_iter().find(|file| file.exists())?;
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

#[test]
fn pods_have_cgroups_of_their_class_and_their_usage_is_served() {
    let Some(mut node) = Node::start("cgroups") else { return };
    let limited = pod("limited", BUSYBOX, "echo x > /written; while :; do :; done")
        + "    resources: {requests: {cpu: 100m}, limits: {cpu: 200m, memory: 64Mi}}\n";
    node.write("limited.yaml", &limited);
    node.write("free.yaml", &pod("free", BUSYBOX, STAYS));
    let both = "  resources: {limits: {cpu: 300m, memory: 32Mi}}\n  containers:\n  - name: second\n    \
                image: node.test/busybox:1\n    command: [sleep, '1000']\n    \
                resources: {requests: {cpu: 100m}}\n";
    node.start_kubelet();
    let limited = node.eventually("limited-n", "ready", is_ready);
    let free = node.eventually("free-n", "ready", is_ready);
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let path = format!("kubepods/burstable/pod{}", uid(&limited));
    let memory = ("memory", "memory.limit_in_bytes");
    assert_eq!(cgroup(&node, &path, memory, "memory.max").as_deref(), Some("67108864"));
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let (quota, shares, least) =
        if is_v2 { ("20000 100000", "4", "1") } else { ("20000", "102", "2") };
    let of = |path: &str, file: &str, v2: &str| cgroup(&node, path, ("cpu", file), v2);
    assert_eq!(of(&path, "cpu.cfs_quota_us", "cpu.max").as_deref(), Some(quota));
    assert_eq!(of(&path, "cpu.shares", "cpu.weight").as_deref(), Some(shares));
    let free = format!("kubepods/besteffort/pod{}", uid(&free));
    assert_eq!(of(&free, "cpu.shares", "cpu.weight").as_deref(), Some(least));
    // What a whole pod asks for holds for each of its containers that asks for less.
    node.write("both.yaml", &pod("both", BUSYBOX, STAYS).replace("  containers:\n", both));
    let both = node.eventually("both-n", "ready", is_ready);
    assert_eq!(both["status"]["qosClass"], "Burstable");
    let whole = format!("kubepods/burstable/pod{}", uid(&both));
    assert_eq!(cgroup(&node, &whole, memory, "memory.max").as_deref(), Some("33554432"));
    let (quota, shares) = if is_v2 { ("30000 100000", "4") } else { ("30000", "102") };
    assert_eq!(of(&whole, "cpu.cfs_quota_us", "cpu.max").as_deref(), Some(quota));
    assert_eq!(of(&whole, "cpu.shares", "cpu.weight").as_deref(), Some(shares));
    // A class has the shares of its pods before they start.
    let shares = if is_v2 { "8" } else { "204" };
    assert_eq!(of("kubepods/burstable", "cpu.shares", "cpu.weight").as_deref(), Some(shares));
    for status in both["status"]["containerStatuses"].as_array().expect("containers") {
        let id = status["containerID"].as_str().expect("an id").trim_start_matches("containerd://");
        let limit = cgroup(&node, &format!("{whole}/{id}"), memory, "memory.max");
        assert_eq!(limit.as_deref(), Some("33554432"), "{status:#}");
        // There is no file where the kernel does not count swap.
        let swap = ("memory", "memory.memsw.limit_in_bytes");
        let swap = cgroup(&node, &format!("{whole}/{id}"), swap, "memory.swap.max");
        let no_swap = if is_v2 { "0" } else { "33554432" };
        assert!(swap.as_deref().is_none_or(|swap| swap == no_swap), "{swap:?}");
    }
    // The container is in the pod's cgroup.
    let id = limited["status"]["containerStatuses"][0]["containerID"].as_str().expect("an id");
    let container = format!("{path}/{}", id.trim_start_matches("containerd://"));
    let processes = of(&container, "cgroup.procs", "cgroup.procs").unwrap_or_default();
    assert!(!processes.is_empty(), "{container}");
    let score = fs::read_to_string(format!(
        "/proc/{}/oom_score_adj",
        processes.lines().next().expect("a process")
    ));
    // The request of memory is the limit: some of the machine's memory.
    let score: i64 = score.expect("a score").trim().parse().expect("a number");
    assert!((900..1000).contains(&score), "{score}");

    // Null while the kubelet does not answer.
    let usage = |path: &str| -> Value {
        let text = node.get("127.0.0.1:10255", path);
        text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"))
    };
    usage("/stats/summary");
    let mut summary = Value::Null;
    let is_measured = wait(|| {
        summary = usage("/stats/summary");
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let limited = pods.iter().find(|pod| pod["podRef"]["name"] == "limited-n");
        // containerd measures its images at intervals.
        let images = summary["node"]["runtime"]["imageFs"]["usedBytes"].as_u64();
        let is_counted = |pod: &Value| {
            pod["cpu"]["usageNanoCores"].as_u64() > Some(0)
                && pod["containers"][0]["rootfs"]["usedBytes"].as_u64() > Some(0)
        };
        images > Some(0) && limited.is_some_and(is_counted)
    });
    assert!(is_measured, "{summary:#}");
    let pods = summary["pods"].as_array().expect("pods");
    let limited = pods.iter().find(|pod| pod["podRef"]["name"] == "limited-n").expect("the pod");
    let memory = &limited["containers"][0]["memory"];
    let (used, left) = (&memory["workingSetBytes"], &memory["availableBytes"]);
    let sum = used.as_u64().zip(left.as_u64()).map(|(used, left)| used + left);
    assert_eq!(sum, Some(64 << 20), "{memory:#}");
    assert_eq!(limited["process_stats"]["process_count"], 2, "{limited:#}");
    assert!(limited["network"]["name"] == "eth0", "{limited:#}");
    let root = &summary["node"];
    assert_eq!(root["nodeName"], "n");
    assert_eq!(root["systemContainers"][0]["name"], "pods");
    assert!(root["fs"]["capacityBytes"].as_u64() > root["fs"]["availableBytes"].as_u64());
    assert!(root["runtime"]["imageFs"]["usedBytes"].as_u64() > Some(0), "{root:#}");
    let only = usage("/stats/summary?only_cpu_and_memory=true");
    assert!(only["node"]["fs"].is_null() && only["node"]["cpu"].is_object(), "{only:#}");
    let metrics = node.get("127.0.0.1:10255", "/metrics/resource").expect("metrics");
    for line in [
        "container_cpu_usage_seconds_total{container=\"main\",namespace=\"default\",pod=\"limited-n\"} ",
        "pod_memory_working_set_bytes{namespace=\"default\",pod=\"limited-n\"} ",
        "node_cpu_usage_seconds_total ",
        "resource_scrape_error 0",
    ] {
        assert!(metrics.contains(line), "{line}:\n{metrics}");
    }
    let metrics = node.get("127.0.0.1:10255", "/metrics/cadvisor").expect("metrics");
    let has = |name: &str, parts: &[&str]| {
        let mut lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.any(|line| parts.iter().all(|part| line.contains(part)))
    };
    let of_pod = "pod=\"limited-n\"";
    let (own, of_sandbox) = ("container=\"main\"", "container=\"\"");
    for (name, parts) in [
        ("container_cpu_usage_seconds_total", [of_pod, own, "cpu=\"total\""]),
        ("container_memory_working_set_bytes", [of_pod, own, "image=\"node.test/busybox:1\""]),
        ("container_spec_cpu_quota", [of_pod, own, "} 20000"]),
        ("container_network_receive_bytes_total", [of_pod, of_sandbox, "interface=\"eth0\""]),
        ("container_last_seen", [of_pod, of_sandbox, "image=\"node.test/pause"]),
        ("container_fs_usage_bytes", ["pod=\"\"", "id=\"/\"", "device="]),
        ("container_fs_io_time_seconds_total", ["pod=\"\"", "id=\"/\"", "device="]),
        ("container_memory_usage_bytes", ["pod=\"\"", "/besteffort\"", "image=\"\""]),
    ] {
        assert!(has(name, &parts), "{name} {parts:?}:\n{metrics}");
    }
    assert!(has("machine_memory_bytes", &["boot_id="]), "{metrics}");
    // The shares of the class follow its pods with the next round.
    node.remove("limited.yaml");
    let is_gone = wait(|| of(&path, "cgroup.procs", "cgroup.procs").is_none());
    assert!(is_gone, "{}", node.log());
    assert!(of(&free, "cgroup.procs", "cgroup.procs").is_some());
}

#[test]
fn static_pods_are_not_evicted_but_unused_images_go() {
    let Some(mut node) = Node::start("eviction") else { return };
    registry::start(&node, &["unused"], None);
    let unused = format!("{}/unused:1", registry::ADDRESS);
    let script = format!("dd if=/dev/zero of=/data/file bs=1M count=3; {STAYS}");
    let large = pod("large", BUSYBOX, &script).replace(
        "  containers:",
        "  volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]\n  containers:",
    ) + "    volumeMounts: [{name: data, mountPath: /data}]\n";
    node.write("large.yaml", &large);
    node.start_kubelet();
    node.eventually("large-n", "ready", is_ready);
    // Before that, the image of the pod would be an unused one too.
    node.kill_kubelet();
    node.configure(
        "evictionHard: {nodefs.available: 99.999%}\nvolumeStatsAggPeriod: 1s\n\
         imageMinimumGCAge: 1ns",
    );
    node.start_kubelet();
    node.eventually("large-n", "ready", is_ready);
    let image = Some(api::ImageSpec { image: unused.clone(), ..Default::default() });
    let request = api::PullImageRequest { image, ..Default::default() };
    block_on(images(&node).pull_image(request)).expect("an image");
    assert!(wait(|| !has_image(&node, &unused)), "{}", node.log());
    let refused = "cannot evict a critical pod default/large-n: Usage of EmptyDir volume \"data\" \
                   exceeds the limit \"1Mi\". ";
    assert!(wait(|| node.log().contains(refused)), "{}", node.log());
    let low = "cannot evict a critical pod default/large-n: The node was low on resource: \
               ephemeral-storage. Threshold quantity: ";
    assert!(wait(|| node.log().contains(low)), "{}", node.log());
    assert!(is_ready(&node.pod("large-n")));
}

/// Upstream: `oomWatcher`.
#[test]
fn kills_for_want_of_memory_are_events_of_the_node() {
    let Some(mut node) = Node::start("oom") else { return };
    let Ok(mut log) = fs::OpenOptions::new().write(true).open("/dev/kmsg") else {
        return eprintln!("oom: /dev/kmsg cannot be written");
    };
    node.start_kubelet();
    let victim = format!("victim of {}", node.name);
    let event = format!(
        "object=\"n\" fieldPath=\"\" kind=\"Node\" apiVersion=\"v1\" type=\"Warning\" \
         reason=\"SystemOOM\" message=\"System OOM encountered, victim process: {victim}, pid: 4242\""
    );
    let is_seen = wait(|| {
        // The kernel may drop a line of a program, and other kills may come in between.
        let _ = log.write_all(b"kubelet test invoked oom-killer: order=0");
        let _ = log.write_all(format!("Out of memory: Killed process 4242 ({victim})").as_bytes());
        node.log().contains(&event)
    });
    assert!(is_seen, "{}", node.log());
}

/// The values of a histogram's buckets, by their bounds.
fn buckets(node: &Node, name: &str) -> Vec<(f64, f64)> {
    let page = node.get("127.0.0.1:10255", "/metrics").unwrap_or_default();
    let prefix = format!("{name}_bucket{{le=\"");
    let of = |line: &str| {
        let (bound, count) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
        Some((bound.parse().ok()?, count.parse().ok()?))
    };
    page.lines().filter_map(of).collect()
}

#[test]
fn runtime_is_listed_less_often_while_there_is_no_pod() {
    let Some(mut node) = Node::start("idle") else { return };
    node.start_kubelet();
    let longer_than_2_5_s = |node: &Node| {
        let buckets = buckets(node, "kubelet_pleg_relist_interval_seconds");
        let up_to = |limit: f64| {
            buckets
                .iter()
                .filter(|(bound, _)| *bound <= limit)
                .map(|(_, count)| *count)
                .fold(0.0, f64::max)
        };
        up_to(f64::INFINITY) - up_to(2.5)
    };
    assert!(wait(|| longer_than_2_5_s(&node) >= 2.0), "{}", node.log());
    node.write("a.yaml", &pod("a", BUSYBOX, STAYS));
    node.eventually("a-n", "ready", is_ready);
    node.remove("a.yaml");
    node.eventually("a-n", "gone", Value::is_null);
    assert!(wait(|| containers(&node).is_empty()), "{}", node.log());
    let before = longer_than_2_5_s(&node);
    assert!(wait(|| longer_than_2_5_s(&node) > before), "{}", node.log());
}
