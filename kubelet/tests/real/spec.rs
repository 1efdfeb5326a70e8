//! What a pod's definition asks for, as its containers see it.

use std::fs;

use super::node::{Node, wait};
use super::pods::{is_ready, once};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: fields}
spec:
  terminationGracePeriodSeconds: 1
  hostname: host
  subdomain: sub
  setHostnameAsFQDN: true
  shareProcessNamespace: true
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.1], searches: [a.test], options: [{name: ndots, value: '3'}]}
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias, alias.test]}]
  securityContext:
    runAsUser: 1000
    runAsGroup: 2000
    fsGroup: 3000
    supplementalGroups: [4000]
    seccompProfile: {type: RuntimeDefault}
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '80'}]
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: main
    image: node.test/busybox:1
    workingDir: /tmp
    command: [sh, -c, SCRIPT]
    volumeMounts: [{name: v, mountPath: /v}]
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
";

const SCRIPT: &str = "exec > /v/seen; hostname; pwd; id -u; id -g; id -G | tr ' ' '\\n' | sort;
  stat -c '%g %a' /v; touch /x 2>/dev/null || echo read-only; grep -c pause /proc/1/cmdline;
  grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status | tr '\\t' ' ';
  cat /proc/sys/net/ipv4/ip_unprivileged_port_start; grep . /etc/resolv.conf;
  grep -E 'alias|host' /etc/hosts | grep -v localhost | grep -v '^#' | sed 's/^10[0-9.]*/IP/' | tr '\\t' ' ';
  echo end; exec sleep 1000";

#[test]
fn fields_of_the_definition_reach_the_container() {
    let Some(mut node) = Node::start("fields") else { return };
    node.write("fields.yaml", &POD.replace("SCRIPT", &format!("{SCRIPT:?}")));
    let escape = once("escape", "Always", "x") + "    securityContext: {procMount: Unmasked}\n";
    node.write("escape.yaml", &escape);
    // In a user namespace of its own, if the runtime has them.
    let users = once("users", "Always", "cp /proc/self/uid_map /dev/termination-log; exit 1")
        .replace("spec:", "spec:\n  hostUsers: false");
    node.write("users.yaml", &users);
    let host = once("host", "Always", "cp /etc/hosts /dev/termination-log; exec sleep 1000")
        .replace(
            "spec:",
            "spec:\n  hostNetwork: true\n  hostAliases: [{ip: 192.0.2.8, hostnames: [h]}]",
        );
    node.write("host.yaml", &host);
    node.start_kubelet();
    let pod = node.eventually("fields-n", "ready", is_ready);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let folder = node.folder.join("kubelet/pods").join(uid);
    let seen = folder.join("volumes/kubernetes.io~empty-dir/v/seen");
    let text = || fs::read_to_string(&seen).unwrap_or_default();
    assert!(wait(|| text().ends_with("end\n")), "{}", text());
    assert_eq!(
        text(),
        "host.sub.default.svc.\n/tmp\n1000\n2000\n2000\n3000\n4000\n3000 2777\nread-only\n1\n\
         CapEff: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n80\nsearch a.test\nnameserver \
         192.0.2.1\noptions ndots:3\nIP host.sub.default.svc. host\n192.0.2.7 alias alias.test\nend\n"
    );
    // Unmasked, it would see the host's /proc as its root.
    let escape = node.eventually("escape-n", "failed", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(escape["status"]["reason"], "PodFeatureUnsupported", "{escape:#}");
    assert!(escape["status"]["containerStatuses"].is_null(), "{escape:#}");
    let refused = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let mapped = || {
        let pod = node.pod("users-n");
        let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"];
        let ids: Vec<&str> = last.as_str().unwrap_or_default().split_whitespace().collect();
        ids == ["0", "65536", "65536"]
    };
    assert!(wait(|| node.log().contains(refused) || mapped()), "{}", node.log());
    let host = node.eventually("host-n", "ready", is_ready);
    let uid = host["metadata"]["uid"].as_str().expect("a uid");
    let hosts = node.folder.join("kubelet/pods").join(uid).join("etc-hosts");
    let hosts = fs::read_to_string(hosts).expect("a file");
    assert!(hosts.starts_with("# Kubernetes-managed hosts file (host network).\n"), "{hosts}");
    assert!(hosts.ends_with("192.0.2.8\th\n"), "{hosts}");
}
