//! Pulls of images from a registry that answers when the test lets it: how many are under way at a
//! time, and what is reported of them.

use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::options::parse_duration;
use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{STAYS, container, is_ready, once};
use super::proxy::Proxy;
use super::registry::{self, Gate};

fn image(name: &str) -> String {
    format!("{}/{name}:1", registry::ADDRESS)
}

fn pod(name: &str) -> String {
    once(name, "Always", STAYS).replace("node.test/busybox:1", &image(name))
}

/// A kubelet whose pods wait for their images, which the registry holds back.
struct Pulls {
    node: Node,
    proxy: Proxy,
    gate: Arc<Gate>,
}

impl Pulls {
    /// A pod for each of the images `names`. Returns when the kubelet has reached the pull of each of
    /// them, and a pod that needs no pull is ready: a pull that nothing stops is under way then.
    fn start(test: &str, names: &[&str], configuration: &str, flags: &[&str]) -> Option<Pulls> {
        let mut node = Node::start(test)?;
        let gate = registry::start_held(&node, names);
        let proxy = Proxy::start(&node.folder, &node.socket());
        node.configure(configuration);
        for name in names {
            node.write(&format!("{name}.yaml"), &pod(name));
        }
        let endpoint = format!("--container-runtime-endpoint=unix://{}", proxy.socket.display());
        let flags: Vec<&str> =
            [endpoint.as_str()].into_iter().chain(flags.iter().copied()).collect();
        node.start_kubelet_with(&flags);
        for name in names {
            let event = format!("message=\"Pulling image \\\"{}\\\"\"", image(name));
            assert!(wait(|| node.log().contains(&event)), "{name}: {}", node.log());
        }
        node.write("local.yaml", &once("local", "Always", STAYS));
        node.eventually("local-n", "ready", is_ready);
        Some(Pulls { node, proxy, gate })
    }

    /// Waits until the registry holds back `count` images, and returns them.
    fn held(&self, count: usize) -> Vec<String> {
        let is_so = wait(|| self.gate.held().len() == count);
        assert!(is_so, "not {count}: {:?}\n{}", self.gate.held(), self.node.log());
        self.gate.held().into_iter().collect()
    }

    /// Lets the pull of an image end, and waits for its pod.
    fn finish(&self, name: &str) {
        self.gate.open(name);
        self.node.eventually(&format!("{name}-n"), "ready", is_ready);
    }

    fn most(&self) -> usize {
        self.proxy.most_at_a_time("PullImage")
    }

    /// The durations in the event of a pull: its own, and with the wait for other pulls.
    fn durations(&self, name: &str) -> (Duration, Duration) {
        let log = self.node.log();
        let begin = format!("Successfully pulled image \\\"{}\\\" in ", image(name));
        let text = log.split(&begin).nth(1).unwrap_or_else(|| panic!("no event of {name}: {log}"));
        let (own, rest) = text.split_once(" (").expect("two durations");
        let (all, rest) = rest.split_once(" including waiting). Image size: ").expect("a size");
        let (size, _) = rest.split_once(" bytes.").expect("bytes");
        assert!(size.parse::<u64>().expect("a number") > 0, "{size}");
        let parsed = |text: &str| parse_duration(text).expect("a duration of Go");
        (parsed(own), parsed(all))
    }
}

#[test]
fn pulls_are_serial_by_default() {
    let names = ["a", "b", "c", "d"];
    let Some(pulls) = Pulls::start("serial", &names, "", &[]) else { return };
    let first = pulls.held(1).concat();
    assert_eq!((pulls.most(), pulls.proxy.calls("PullImage")), (1, 1), "{}", pulls.node.log());
    pulls.finish(&first);
    let second = pulls.held(1).concat();
    pulls.finish(&second);
    let third = pulls.held(1).concat();
    assert_eq!(pulls.most(), 1, "{}", pulls.node.log());
    let (own, all) = pulls.durations(&second);
    assert!(own < all, "the wait for the first pull does not count: {own:?} {all:?}");
    let metrics = pulls.node.get("127.0.0.1:10255", "/metrics").expect("metrics");
    for line in [
        "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 2\n",
        "kubelet_runtime_operations_total{operation_type=\"pull_image\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // The pull of a pod that goes makes room.
    pulls.node.remove(&format!("{third}.yaml"));
    pulls.node.eventually(&format!("{third}-n"), "gone", Value::is_null);
    let held = pulls.held(2);
    let fourth = held.iter().find(|name| **name != third).expect("another image").clone();
    assert!(held.contains(&third), "{third}: {held:?}");
    pulls.gate.open(&third);
    pulls.finish(&fourth);
    let mut pulled = [first, second, third, fourth];
    pulled.sort_unstable();
    assert_eq!(pulled, names);
}

#[test]
fn parallel_pulls_have_a_limit() {
    let names = ["a", "b", "c", "d"];
    let fields = "serializeImagePulls: false\nmaxParallelImagePulls: 2";
    let Some(pulls) = Pulls::start("limited", &names, fields, &[]) else { return };
    let first = pulls.held(2);
    assert_eq!((pulls.most(), pulls.proxy.calls("PullImage")), (2, 2), "{}", pulls.node.log());
    pulls.finish(&first[0]);
    let second = pulls.held(2);
    assert!(second.contains(&first[1]) && !second.contains(&first[0]), "{first:?} {second:?}");
    names.iter().for_each(|name| pulls.gate.open(name));
    for name in names {
        pulls.finish(name);
    }
    assert_eq!((pulls.most(), pulls.proxy.calls("PullImage")), (2, 4), "{}", pulls.node.log());
}

#[test]
fn parallel_pulls_without_a_limit_are_all_under_way() {
    let names = ["a", "b", "c", "d"];
    let flags = ["--serialize-image-pulls=false"];
    let Some(pulls) = Pulls::start("unlimited", &names, "", &flags) else { return };
    assert_eq!(pulls.held(4), names);
    assert_eq!(pulls.most(), 4);
    for name in names {
        pulls.finish(name);
    }
}

#[test]
fn preloaded_images_need_credentials_where_the_policy_says_so() {
    let Some(mut node) = Node::start("verified-images") else { return };
    node.configure("imagePullCredentialsVerificationPolicy: AlwaysVerify");
    let never = once("never", "Always", STAYS) + "    imagePullPolicy: Never\n";
    node.write("never.yaml", &never);
    node.start_kubelet();
    let refused = |pod: &Value| container(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull";
    node.eventually("never-n", "refused", refused);
    node.configure("featureGates: {KubeletEnsureSecretPulledImages: false}");
    node.kill_kubelet();
    node.start_kubelet();
    node.eventually("never-n", "ready", is_ready);
    let event =
        "message=\"Container image \\\"node.test/busybox:1\\\" already present on machine\"\n";
    assert!(wait(|| node.log().contains(event)), "{}", node.log());
}

#[test]
fn failed_pulls_back_off_and_name_their_fault() {
    let Some(mut node) = Node::start("failed-pulls") else { return };
    registry::start(&node, &["app"], None);
    node.write("missing.yaml", &pod("missing"));
    node.start_kubelet();
    let waits = |pod: &Value, reason: &str| container(pod)["state"]["waiting"]["reason"] == reason;
    let failed = node.eventually("missing-n", "backing off", |pod| waits(pod, "ImagePullBackOff"));
    let message = container(&failed)["state"]["waiting"]["message"].as_str().unwrap_or_default();
    let image = image("missing");
    let begin = format!("Back-off pulling image \"{image}\": ErrImagePull: ");
    assert!(message.starts_with(&begin) && message.ends_with("not found"), "{message}");
    for event in [
        format!("reason=\"Failed\" message=\"Failed to pull image \\\"{image}\\\": "),
        format!("reason=\"BackOff\" message=\"Back-off pulling image \\\"{image}\\\"\"\n"),
    ] {
        assert!(wait(|| node.log().contains(&event)), "{event}: {}", node.log());
    }
    // The failed pull has made room for this one.
    node.write("app.yaml", &pod("app"));
    node.eventually("app-n", "ready", is_ready);
}
