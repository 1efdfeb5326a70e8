//! Static pods come up, crash, back off, become ready and go.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::node::{Node, wait};

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: shared, emptyDir: {}}]
  initContainers:
  - name: content
    image: node.test/busybox:1
    command: [sh, -c, 'echo $(POD)/$(LABEL) > /shared/index.html']
    env:
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: httpd
    image: node.test/busybox:1
    command: [httpd, -f, -p, '8080', -h, /shared]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /index.html, port: web}, periodSeconds: 1}
    livenessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 60}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    volumeMounts: [{name: shared, mountPath: /shared, readOnly: true}]
";

/// A pod whose container `main` runs a script.
pub fn once(name: &str, policy: &str, script: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, {script:?}]
"
    )
}

/// The pod of [`once`] with a folder of the machine at `/out`, which is made.
pub fn with_out(pod: &str, folder: &Path) -> String {
    let folder = folder.display();
    let volume = format!("{{name: out, hostPath: {{path: {folder}, type: DirectoryOrCreate}}}}");
    pod.replace("spec:", &format!("spec:\n  volumes: [{volume}]"))
        + "    volumeMounts: [{name: out, mountPath: /out}]\n"
}

/// The end of a script that runs until it is asked to end.
pub const STAYS: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

pub fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

pub fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array();
    let mut found = conditions.into_iter().flatten().filter(|condition| condition["type"] == kind);
    found.next().unwrap_or(&Value::Null)
}

pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

#[test]
fn hosts_are_written_when_a_container_starts_and_never_read() {
    let Some(mut node) = Node::start("hosts") else { return };
    // A sparse file of 3 GB, once.
    let script = "[ -e /out/large ] || truncate -s 3G /etc/hosts; touch /out/large; \
                  while [ ! -e /out/end ]; do sleep 0.1; done; rm /out/end; exit 1";
    let probe = "    readinessProbe: {exec: {command: [test, -e, /out/ready]}, periodSeconds: 1, \
                 failureThreshold: 1}\n";
    let out = node.host_path("out");
    let manifest = with_out(&once("hosts", "Always", script), &out) + probe;
    node.write("hosts.yaml", &manifest);
    node.start_kubelet();
    assert!(wait(|| out.join("large").exists()), "{}", node.log());
    let pod = node.pod("hosts-n");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let file = node.folder.join("kubelet/pods").join(uid).join("etc-hosts");
    let length = || fs::metadata(&file).expect("a file").len();
    assert_eq!(length(), 3 << 30);
    // Each change is a sync; the second one begins after the end of the first.
    fs::write(out.join("ready"), "").expect("a file");
    node.eventually("hosts-n", "ready", is_ready);
    fs::remove_file(out.join("ready")).expect("a file");
    node.eventually("hosts-n", "unready", |pod| !is_ready(pod));
    assert_eq!(length(), 3 << 30, "written without a start of a container");
    let status = fs::read_to_string(format!("/proc/{}/status", node.kubelet_id()));
    let status = status.expect("a process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("kB");
    assert!(peak < 500_000, "the kubelet has used {peak} kB");
    fs::write(out.join("end"), "").expect("a file");
    node.eventually("hosts-n", "restarted", |pod| container(pod)["restartCount"] == 1);
    let text = fs::read_to_string(&file).expect("a file");
    assert!(text.contains("\thosts-n\n"), "{text}");
}

#[test]
fn pods_become_ready_crash_back_off_and_end() {
    let Some(mut node) = Node::start("pods") else { return };
    node.write("web.yaml", WEB);
    node.write("crash.yaml", &once("crash", "Always", "echo bye >/dev/termination-log; exit 3"));
    node.write("good.yaml", &once("good", "Never", "exit 0"));
    node.write("bad.yaml", &once("bad", "Never", "exit 4"));
    node.write("missing.yaml", &once("missing", "Always", "x").replace("busybox:1", "none:1"));
    node.write("broken.yaml", "{");
    let typo = "spec:\n  securityContext: {seccompProfile: {type: runtimeDefault}}";
    node.write("typo.yaml", &once("typo", "Always", STAYS).replace("spec:", typo));
    node.start_kubelet();
    let web = node.eventually("web-n", "ready", is_ready);
    let ip = web["status"]["podIP"].as_str().expect("an address");
    let served = node.get(&format!("{ip}:8080"), "/");
    assert_eq!(served.as_deref(), Some("web-n/web\n"), "{}", node.log());
    assert_eq!(web["status"]["qosClass"], "Burstable");
    assert_eq!(container(&web)["restartCount"], 0);
    node.eventually("good-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    let bad = node.eventually("bad-n", "failed", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(container(&bad)["state"]["terminated"]["exitCode"], 4);
    let crash = node.eventually("crash-n", "backing off", |pod| {
        container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            && container(pod)["restartCount"].as_i64() >= Some(2)
    });
    let last = &container(&crash)["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["message"]), (&Value::from(3), &Value::from("bye\n")));
    assert_eq!(crash["status"]["phase"], "Running");
    node.eventually("missing-n", "waiting for its image", |pod| {
        let reason = container(pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default();
        ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
    });
    assert!(node.log().contains("broken.yaml: "), "{}", node.log());
    let refused = "invalid pod: spec.securityContext.seccompProfile.type: Unsupported value";
    assert!(node.log().contains(refused), "{}", node.log());
    assert_eq!(node.pod("typo-n"), Value::Null);
    assert_eq!(node.get("127.0.0.1:10248", "/healthz").as_deref(), Some("ok"));
    let metrics = node.get("127.0.0.1:10255", "/metrics").expect("metrics");
    assert!(metrics.contains("kubelet_pleg_relist_duration_seconds_count"), "{metrics}");
    let uid = web["metadata"]["uid"].as_str().expect("a uid");
    let probes = || node.get("127.0.0.1:10255", "/metrics/probes").expect("metrics");
    let succeeded =
        format!("pod=\"web-n\",pod_uid={uid:?},probe_type=\"Readiness\",result=\"successful\"");
    assert!(probes().contains(&succeeded), "{}", probes());
    let folder = node.folder.join("kubelet/pods").join(uid);
    assert!(folder.exists());
    node.remove("web.yaml");
    node.eventually("web-n", "gone", Value::is_null);
    assert!(wait(|| !folder.exists()), "{}", node.log());
    assert!(wait(|| node.get(&format!("{ip}:8080"), "/").is_none()));
    assert!(wait(|| !probes().contains("web-n")), "{}", probes());
}

#[test]
fn agent_that_restarts_adopts_what_runs() {
    let Some(mut node) = Node::start("restart") else { return };
    node.write("web.yaml", WEB);
    node.write("gone.yaml", &once("gone", "Always", "exec sleep 1000"));
    node.write("done.yaml", &once("done", "Never", "echo bye > /dev/termination-log"));
    node.start_kubelet();
    let before = node.eventually("web-n", "ready", is_ready);
    let gone = node.eventually("gone-n", "ready", is_ready);
    node.eventually("done-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    node.kill_kubelet();
    node.remove("gone.yaml");
    node.start_kubelet();
    // The first status that has a container is the adopted one.
    let after = node.eventually("web-n", "known", |pod| container(pod)["containerID"].is_string());
    assert_eq!(container(&after)["containerID"], container(&before)["containerID"]);
    assert_eq!(container(&after)["restartCount"], 0);
    assert!(is_ready(&after), "readiness flips: {after:#}");
    let done = node.eventually("done-n", "known", |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(container(&done)["restartCount"], 0);
    assert_eq!(container(&done)["state"]["terminated"]["message"], "bye\n");
    // What was removed meanwhile ends, and its folder goes.
    let pods = node.folder.join("kubelet/pods");
    let folder = pods.join(gone["metadata"]["uid"].as_str().expect("a uid"));
    assert!(wait(|| !folder.exists()), "{}", node.log());
    // So does that of a pod that had ended.
    node.remove("done.yaml");
    assert!(wait(|| fs::read_dir(&pods).is_ok_and(|pods| pods.count() == 1)), "{}", node.log());
    let again = node.pod("web-n");
    assert_eq!(container(&again)["containerID"], container(&before)["containerID"]);
}

#[test]
fn pods_survive_the_death_of_the_runtime() {
    let Some(mut node) = Node::start("runtime") else { return };
    node.write("web.yaml", WEB);
    node.start_kubelet();
    let before = node.eventually("web-n", "ready", is_ready);
    node.kill_runtime();
    assert!(wait(|| node.log().contains("the runtime's pods cannot be listed")), "{}", node.log());
    node.resume_runtime();
    assert!(wait(|| node.log().contains("the runtime answers again")), "{}", node.log());
    let after = node.eventually("web-n", "ready", is_ready);
    assert_eq!(container(&after)["containerID"], container(&before)["containerID"]);
    // The runtime is used again, on a new connection.
    node.write("good.yaml", &once("good", "Never", "exit 0"));
    node.eventually("good-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
}

#[test]
fn changed_and_unhealthy_containers_are_restarted() {
    let Some(mut node) = Node::start("changes") else { return };
    let sick = once("sick", "Always", "touch /tmp/ok; exec sleep 1000")
        + "    livenessProbe:\n      exec: {command: [test, -e, /tmp/ok]}\n      periodSeconds: 1\n      \
           failureThreshold: 1\n";
    node.write("sick.yaml", &sick);
    node.start_kubelet();
    let first = node.eventually("sick-n", "ready", is_ready);
    let uid = first["metadata"]["uid"].as_str().expect("a uid");
    // The file is removed from within the container.
    let sicken = sick.replace("touch /tmp/ok;", "touch /tmp/ok; sleep 3; rm /tmp/ok;");
    node.write("sick.yaml", &sicken);
    let second = node.eventually("sick-n", "replaced", |pod| {
        pod["metadata"]["uid"].as_str().is_some_and(|new| new != uid) && is_ready(pod)
    });
    let id = container(&second)["containerID"].clone();
    node.eventually("sick-n", "restarted", |pod| {
        container(pod)["restartCount"].as_i64() >= Some(1) && container(pod)["containerID"] != id
    });
    assert!(node.log().contains("failed liveness probe, will be restarted"), "{}", node.log());
}

/// The kubelet itself ends some of them, within the sync that would start them again.
#[test]
fn containers_back_off_in_each_way_in_which_they_end() {
    let Some(mut node) = Node::start("back-off") else { return };
    // Longer than a container runs here.
    node.configure("crashLoopBackOff: {maxContainerRestartPeriod: 5m}");
    let fails = "{exec: {command: ['false']}, periodSeconds: 1, timeoutSeconds: 60, \
                 failureThreshold: 1}";
    let sidecar = format!(
        "initContainers: [{{name: side, image: 'node.test/busybox:1', restartPolicy: Always, \
         command: [sleep, '1000'], livenessProbe: {fails}}}]\n  containers:"
    );
    let stays = |name| once(name, "Always", STAYS);
    let with = |pod: String, fields: &str| format!("{pod}    {fields}\n");
    let rule = "{action: Restart, exitCodes: {operator: In, values: [3]}}";
    let pods = [
        ("liveness", with(stays("liveness"), &format!("livenessProbe: {fails}"))),
        ("startup", with(stays("startup"), &format!("startupProbe: {fails}"))),
        ("hook", with(stays("hook"), "lifecycle: {postStart: {exec: {command: ['false']}}}")),
        ("memory", {
            let pod = once("memory", "Always", "exec tail /dev/zero");
            with(pod, "resources: {limits: {memory: 16Mi}}")
        }),
        ("rule", {
            let pod = with(once("rule", "Never", "exit 3"), "restartPolicy: Never");
            with(pod, &format!("restartPolicyRules: [{rule}]"))
        }),
        ("side", stays("side").replace("containers:", &sidecar)),
    ];
    for (name, pod) in &pods {
        node.write(&format!("{name}.yaml"), pod);
    }
    node.start_kubelet();
    for (name, _) in &pods {
        let list = if *name == "side" { "initContainerStatuses" } else { "containerStatuses" };
        node.eventually(&format!("{name}-n"), "backing off", |pod| {
            let status = &pod["status"][list][0];
            status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
                && status["restartCount"].as_i64() >= Some(1)
                && status["lastState"]["terminated"].is_object()
        });
    }
}

/// As on machines without systemd: the runtime refuses such a mount of a volume that is not shared.
#[test]
fn mounts_propagate_also_where_the_root_folder_is_private() {
    let private = "mkdir $0 && mount -t tmpfs private $0 && mount --make-private $0";
    let below = "mkdir $0/below && mount -t tmpfs volume $0/below";
    // The folder lies on such a mount; or is one, with volumes of an earlier kubelet below.
    for (name, mount, root) in [
        ("shared", private.to_owned(), "private/kubelet"),
        ("shared-itself", format!("{private} && {below}"), "private"),
    ] {
        let Some(mut node) = Node::start(name) else { return };
        let folder = node.folder.join("private").display().to_string();
        let made = node.script("run").args(["sh", "-c", &mount, &folder]).status();
        assert!(made.expect("a shell").success());
        let pod = once("main", "Always", STAYS)
            .replace("spec:", "spec:\n  volumes: [{name: v, emptyDir: {}}]");
        for propagation in ["HostToContainer", "Bidirectional"] {
            let name = propagation.to_lowercase();
            let mount = format!("[{{name: v, mountPath: /v, mountPropagation: {propagation}}}]");
            let pod = pod.replace("{name: main}", &format!("{{name: {name}}}"));
            let fields =
                format!("    volumeMounts: {mount}\n    securityContext: {{privileged: true}}\n");
            node.write(&format!("{name}.yaml"), &(pod + &fields));
        }
        node.start_kubelet_with(&[&format!("--root-dir={}", node.folder.join(root).display())]);
        node.eventually("hosttocontainer-n", "ready", is_ready);
        node.eventually("bidirectional-n", "ready", is_ready);
    }
}

/// Whether the kernel can keep a file system in memory out of swap: since Linux 6.4.
fn has_noswap() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(4))
}

#[test]
fn containers_have_what_their_pod_says() {
    let Some(mut node) = Node::start("seen") else { return };
    let folder = node.host_path("");
    let manifest = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: seen}}
spec:
  restartPolicy: OnFailure
  volumes:
  - {{name: out, hostPath: {{path: {}}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 2Mi}}}}
  - {{name: large, emptyDir: {{medium: Memory, sizeLimit: 1Gi}}}}
  - {{name: facts, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'test -e /out/seen && exit 0; echo $CPU $MEMORY $(cat /facts/name) > /out/seen;
      grep -E \" /(memory|large) \" /proc/mounts >> /out/seen; exit 1']
    env:
    - {{name: CPU, valueFrom: {{resourceFieldRef: {{resource: limits.cpu}}}}}}
    - {{name: MEMORY, valueFrom: {{resourceFieldRef: {{resource: requests.memory, divisor: 1Mi}}}}}}
    resources: {{requests: {{memory: 16Mi}}, limits: {{cpu: 1500m, memory: 32Mi}}}}
    volumeMounts:
    - {{name: out, mountPath: /out}}
    - {{name: memory, mountPath: /memory}}
    - {{name: large, mountPath: /large}}
    - {{name: facts, mountPath: /facts}}
",
        folder.display()
    );
    node.write("seen.yaml", &manifest);
    node.start_kubelet();
    // The first run fails, the second one does not.
    let ended = node.eventually("seen-n", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(container(&ended)["restartCount"], 1, "{ended:#}");
    let seen = node.host_text("seen");
    let (line, mounts) = seen.split_once('\n').expect("two lines");
    assert_eq!(line, "2 16 seen-n");
    // No larger than the pod's memory.
    for (path, size) in [("/memory", "size=2048k"), ("/large", "size=32768k")] {
        let start = format!("tmpfs {path} tmpfs ");
        let mount = mounts.lines().find(|line| line.starts_with(&start)).expect("a mount");
        assert!(mount.contains(size), "{mount}");
        assert_eq!(mount.contains("noswap"), has_noswap(), "{mount}");
    }
    let machine = node.get("127.0.0.1:10255", "/spec/").expect("the machine");
    let machine: Value = serde_json::from_str(&machine).expect("JSON");
    assert!(machine["num_cores"].as_u64() >= Some(1), "{machine:#}");
    assert_eq!(node.get("127.0.0.1:10255", "/healthz").as_deref(), Some("ok"));
}
