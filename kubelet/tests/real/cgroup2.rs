//! The cgroups of pods in version 2, in a virtual machine that the script `tests/vm` makes. With
//! `KUBELET_VM=1`: it takes minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::machine::SKIPPED;
use super::node::kubelet;
use super::pods::{STAYS, condition, container};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm");
const MIB: u64 = 1 << 20;
const NONE: &str = "max";
/// The huge pages of a class. Upstream: `setHugePagesUnbounded`.
const UNBOUNDED: &str = "4611686018427387904";
/// Of the script's configuration.
const POD_PIDS: &str = "200";

/// A pod whose containers have these resources.
fn pod(name: &str, resources: &[&str]) -> String {
    let mut pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, \
         spec: {{terminationGracePeriodSeconds: 1, containers: [\n"
    );
    for (at, resources) in resources.iter().enumerate() {
        pod.push_str(&format!(
            "{{name: c{at}, image: node.test/busybox:1, command: [sh, -c, {STAYS:?}], \
             resources: {resources}}},\n"
        ));
    }
    pod + "]}}\n"
}

/// Its container exceeds its limit of memory once, in a process beside the first one.
const HOG: &str = "
apiVersion: v1
kind: Pod
metadata: {name: hog}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: c0
    image: node.test/busybox:1
    command: [sh, -c, '[ -e /v/again ] || { touch /v/again; tail /dev/zero; }; STAYS']
    resources: {limits: {memory: 32Mi}}
    volumeMounts: [{name: v, mountPath: /v}]
";

/// What the machine has reported.
#[derive(Default)]
struct Report {
    facts: BTreeMap<String, String>,
    /// By step, path and file.
    cgroups: BTreeMap<(String, String, String), String>,
    /// By step, and `pods` or `summary`.
    documents: BTreeMap<(String, String), Value>,
}

impl Report {
    fn of(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            let owned = |part: &str| part.to_owned();
            match *line.splitn(5, ' ').collect::<Vec<_>>().as_slice() {
                ["fact", name, ..] => {
                    let value = line["fact ".len() + name.len()..].trim();
                    report.facts.insert(owned(name), owned(value));
                }
                [step, "cgroup", path, file, value] => {
                    report.cgroups.insert((owned(step), owned(path), owned(file)), owned(value));
                }
                [step, kind @ ("pods" | "summary"), ..] => {
                    let json = &line[step.len() + kind.len() + 2..];
                    let document = serde_json::from_str(json).expect("JSON");
                    report.documents.insert((owned(step), owned(kind)), document);
                }
                _ => {}
            }
        }
        report
    }

    fn number(&self, fact: &str) -> u64 {
        self.facts[fact].parse().expect("a number")
    }

    fn cgroup(&self, step: &str, path: &str, file: &str) -> &str {
        let key = (step.to_owned(), path.to_owned(), file.to_owned());
        self.cgroups.get(&key).unwrap_or_else(|| panic!("{step}: there is no {path}/{file}"))
    }

    fn paths(&self, step: &str) -> BTreeSet<&str> {
        let of_step = self.cgroups.keys().filter(|(of, _, _)| of == step);
        of_step.map(|(_, path, _)| path.as_str()).collect()
    }

    fn pod(&self, step: &str, name: &str) -> &Value {
        let pods = &self.documents[&(step.to_owned(), "pods".to_owned())]["items"];
        let mut found = pods.as_array().into_iter().flatten();
        found.find(|pod| pod["metadata"]["name"] == name).expect(name)
    }

    /// Checks the files that upstream writes with its default configuration, and that those stay as
    /// the kernel has them that belong to the feature MemoryQoS.
    fn check(&self, path: &str, limits: &Limits<'_>) {
        let shown = |file| self.cgroup("ready", path, file);
        for file in ["memory.min", "memory.low"] {
            assert_eq!(shown(file), "0", "{path} {file}");
        }
        let memory = limits.memory.map_or(NONE.to_owned(), |bytes| bytes.to_string());
        let quota = limits.quota.map_or(NONE.to_owned(), |quota| quota.to_string());
        let (group, swap) = if limits.of_container { ("1", "0") } else { ("0", NONE) };
        for (file, expected) in [
            ("cpu.max", format!("{quota} 100000").as_str()),
            ("memory.max", memory.as_str()),
            ("memory.high", NONE),
            ("memory.oom.group", group),
            ("memory.swap.max", swap),
            ("pids.max", limits.pids),
            ("hugetlb.2MB.max", limits.huge_pages),
        ] {
            assert_eq!(shown(file), expected, "{path} {file}");
        }
        let weight = shown("cpu.weight").parse().expect("a weight");
        let mut weights = vec![linear(limits.shares)];
        // The kubelet gives the runtime shares, which newer ones convert in another way.
        weights.extend(limits.of_container.then(|| quadratic(limits.shares)));
        assert!(weights.contains(&weight), "{path}: the weight is {weight}, not {weights:?}");
    }
}

/// What a cgroup may use.
#[derive(Clone, Copy)]
struct Limits<'a> {
    shares: u64,
    /// Microseconds of each 100 ms.
    quota: Option<u64>,
    memory: Option<u64>,
    pids: &'a str,
    /// Bytes of huge pages of 2 MB.
    huge_pages: &'a str,
    of_container: bool,
}

/// The weight for CPU shares. Upstream: `getCPUWeight`.
fn linear(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// The weight for CPU shares in newer versions of runc: 100 for 1024 shares.
/// Upstream: `ConvertCPUSharesToCgroupV2Value`.
fn quadratic(shares: u64) -> u64 {
    if shares <= 2 {
        return 1;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10_f64.powf(exponent).ceil() as u64
}

/// Removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `None`: no such machine can be made here; the reason is printed.
fn run(pods: &[(&str, String)], later: &[(&str, String)]) -> Option<Report> {
    if std::env::var("KUBELET_VM").as_deref() != Ok("1") {
        eprintln!("cgroup2: skipped: takes minutes, with KUBELET_VM=1");
        return None;
    }
    let folder = Folder(std::env::temp_dir().join(format!("kubelet-vm-{}", std::process::id())));
    let write = |below: &str, pods: &[(&str, String)]| {
        fs::create_dir_all(folder.0.join(below)).expect("a folder");
        for (name, manifest) in pods {
            let file = folder.0.join(below).join(format!("{name}.yaml"));
            fs::write(file, manifest).expect("a file");
        }
    };
    write("pods", pods);
    write("later", later);
    let output = Command::new(SCRIPT)
        .arg(&folder.0)
        .arg(kubelet())
        .stdin(Stdio::null())
        .output()
        .expect("the script");
    let fault = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(SKIPPED.into()) {
        eprintln!("cgroup2: {}", fault.trim());
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let is_complete = output.status.success() && text.lines().last() == Some("end");
    let console = || fs::read(folder.0.join("console")).unwrap_or_default();
    assert!(is_complete, "{fault}\n{text}\n{}", String::from_utf8_lossy(&console()));
    // With --nocapture.
    print!("{text}");
    Some(Report::of(&text))
}

#[test]
fn pods_have_upstreams_limits_in_version_2() {
    let pods = [
        (
            "guaranteed",
            &["{limits: {cpu: 200m, memory: 64Mi}}", "{limits: {cpu: 100m, memory: 32Mi}}"]
                as &[_],
        ),
        ("limited", &["{requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}"]),
        // The second container has no limit: the pod has none.
        ("asking", &["{requests: {cpu: 150m, memory: 16Mi}, limits: {memory: 64Mi}}", "{}"]),
        // Fewer than the kernel's least shares.
        ("small", &["{requests: {cpu: 1m}, limits: {cpu: 100m}}"]),
        ("besteffort", &["{}"]),
    ];
    let manifests = pods.map(|(name, resources)| (name, pod(name, resources)));
    let hog = HOG.replace("STAYS", &STAYS.replace('\'', "''"));
    let Some(report) = run(&manifests, &[("hog", hog)]) else { return };

    // All pods, and the classes.
    let node = |shares, memory, pids, huge_pages| Limits {
        shares,
        quota: None,
        memory,
        pids,
        huge_pages,
        of_container: false,
    };
    let machine_pids = report.number("pid_max").min(report.number("threads_max")).to_string();
    let memory = report.number("memory_bytes");
    let all = node(1024 * report.number("cpus"), Some(memory), &machine_pids, "0");
    report.check("node/kubepods", &all);
    // 100m and 150m and 1m.
    report.check("node/kubepods/burstable", &node(257, None, NONE, UNBOUNDED));
    report.check("node/kubepods/besteffort", &node(2, None, NONE, UNBOUNDED));
    // The parent of all had no controllers.
    for path in ["node/kubepods", "node/kubepods/burstable", "node/kubepods/besteffort"] {
        for file in ["cgroup.controllers", "cgroup.subtree_control"] {
            let enabled: BTreeSet<&str> = report.cgroup("ready", path, file).split(' ').collect();
            for controller in ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"] {
                assert!(enabled.contains(controller), "{path} {file}: {enabled:?}");
            }
        }
    }

    // Pods with their containers: shares, quota, memory in MiB.
    type Asked = (u64, Option<u64>, Option<u64>);
    let expected: [(&str, &str, Asked, &[Asked]); 5] = [
        (
            "guaranteed",
            "",
            (307, Some(30_000), Some(96)),
            &[(204, Some(20_000), Some(64)), (102, Some(10_000), Some(32))],
        ),
        ("limited", "burstable/", (102, Some(20_000), Some(64)), &[(102, Some(20_000), Some(64))]),
        ("asking", "burstable/", (153, None, None), &[(153, None, Some(64)), (2, None, None)]),
        ("small", "burstable/", (2, Some(10_000), None), &[(2, Some(10_000), None)]),
        ("besteffort", "besteffort/", (2, None, None), &[(2, None, None)]),
    ];
    let mut paths: BTreeSet<String> =
        ["", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort"]
            .map(|path| format!("node{path}"))
            .into();
    let summary = &report.documents[&("ready".to_owned(), "summary".to_owned())];
    let available = |memory: &Value| {
        memory["availableBytes"]
            .as_u64()
            .zip(memory["workingSetBytes"].as_u64())
            .map(|(a, b)| a + b)
    };
    assert_eq!(available(&summary["node"]["memory"]), Some(memory));
    for (name, class, of_pod, of_containers) in expected {
        let limits = |(shares, quota, memory): Asked, of_container, pids| Limits {
            shares,
            quota,
            memory: memory.map(|mib| mib * MIB),
            pids,
            // containerd's default, `disable_hugetlb_controller`, leaves those of containers.
            huge_pages: if of_container { NONE } else { "0" },
            of_container,
        };
        let found = report.pod("ready", &format!("{name}-n"));
        let uid = found["metadata"]["uid"].as_str().expect("a uid");
        let path = format!("node/kubepods/{class}pod{uid}");
        report.check(&path, &limits(of_pod, false, POD_PIDS));
        let mut below: BTreeSet<&str> = report.paths("ready");
        below.retain(|below| below.starts_with(&format!("{path}/")));
        paths.extend(below.iter().map(|path| (*path).to_owned()));
        paths.insert(path.clone());
        let statuses = found["status"]["containerStatuses"].as_array().expect("containers");
        let used = summary["pods"].as_array().into_iter().flatten();
        let used: Vec<&Value> = used.filter(|pod| pod["podRef"]["uid"] == uid).collect();
        let [used] = used[..] else { panic!("{name}: {summary:#}") };
        for (at, asked) in of_containers.iter().enumerate() {
            let mut named = statuses.iter().filter(|status| status["name"] == format!("c{at}"));
            let id = named.next().and_then(|status| status["containerID"].as_str());
            let id = id.and_then(|id| id.strip_prefix("containerd://")).expect("an id");
            let path = format!("{path}/{id}");
            report.check(&path, &limits(*asked, true, NONE));
            assert!(below.remove(path.as_str()), "{path}");
            let mut used = used["containers"].as_array().into_iter().flatten();
            let used = used.find(|used| used["name"] == format!("c{at}")).expect("a container");
            assert!(used["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(0), "{name}: {used:#}");
            assert!(used["memory"]["workingSetBytes"].as_u64() > Some(0), "{name}: {used:#}");
            assert_eq!(available(&used["memory"]), asked.2.map(|mib| mib * MIB), "{name}");
        }
        // The sandbox.
        assert_eq!(below.len(), 1, "{name}: {below:?}");
    }
    assert_eq!(report.paths("ready"), paths.iter().map(String::as_str).collect());

    // All processes of the container have ended: else only the one beside the first.
    let hog = report.pod("killed", "hog-n");
    let last = &container(hog)["lastState"]["terminated"];
    assert_eq!((&last["reason"], &last["exitCode"]), (&"OOMKilled".into(), &137.into()), "{hog:#}");
    assert_eq!(container(hog)["restartCount"], 1, "{hog:#}");
    assert_eq!(condition(hog, "Ready")["status"], "True", "{hog:#}");
    for (name, ..) in pods {
        let pod = report.pod("killed", &format!("{name}-n"));
        assert_eq!(container(pod)["restartCount"], 0, "{pod:#}");
    }

    // The cgroups of pods go with them.
    let left = ["node", "node/kubepods", "node/kubepods/besteffort", "node/kubepods/burstable"];
    assert_eq!(report.paths("gone"), left.into());
}
