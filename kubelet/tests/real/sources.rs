//! Pods from a URL, which a server in the node's network answers. Upstream:
//! `pkg/kubelet/config/http_test.go`; `e2e_node` has no test of them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::clock::{Clock, SystemClock};
use kubelet::cri::api;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::crashes::containers;
use super::node::{Node, wait};
use super::pods::{STAYS, container, is_ready, once};

const ADDRESS: &str = "127.0.0.1:8099";
const OK: &str = "200 OK";
/// The connection is closed without an answer.
const NO_ANSWER: &str = "";

/// A server with one answer to all requests.
struct Server {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    status: &'static str,
    body: String,
    reads: Vec<Read>,
    /// The reads when the answer was set.
    before: usize,
}

/// A request.
#[derive(Clone)]
struct Read {
    head: Vec<String>,
    /// After the request has come, and before the answer is sent.
    at: Duration,
}

impl Server {
    /// It ends with the test's process.
    fn start(node: &Node) -> Server {
        let listener = node.listen(ADDRESS);
        let shared = Arc::<Mutex<Shared>>::default();
        let all = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that closes early is no fault.
                let _ = answer(&all, stream);
            }
        });
        Server { shared }
    }

    fn set(&self, status: &'static str, body: &str) {
        let mut shared = self.shared.lock();
        shared.before = shared.reads.len();
        (shared.status, shared.body) = (status, body.to_owned());
    }

    /// Whether the kubelet reads the answer this many times within two minutes. All reads but the last
    /// have been applied then.
    fn is_read(&self, times: usize) -> bool {
        wait(|| {
            let shared = self.shared.lock();
            shared.reads.len() - shared.before >= times
        })
    }

    fn reads(&self) -> Vec<Read> {
        self.shared.lock().reads.clone()
    }
}

fn answer(shared: &Mutex<Shared>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    for line in BufReader::new(stream.try_clone()?).lines() {
        match line? {
            line if line.is_empty() => break,
            line => head.push(line),
        }
    }
    let (status, body) = {
        let mut shared = shared.lock();
        shared.reads.push(Read { head, at: SystemClock.monotonic() });
        (shared.status, shared.body.clone())
    };
    if status == NO_ANSWER {
        return Ok(());
    }
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// A pod whose container has its name.
fn pod(name: &str) -> String {
    once(name, "Always", STAYS).replace("name: main", &format!("name: {name}"))
}

/// A PodList in JSON.
fn list(pods: &[&str]) -> String {
    let items = pods.iter().map(|pod| -> Value {
        let mut pod: Value = serde_yaml_ng::from_str(pod).expect("a pod");
        // Items of lists have no kind.
        let fields = pod.as_object_mut().expect("an object");
        fields.retain(|field, _| field != "kind" && field != "apiVersion");
        pod
    });
    let items: Vec<Value> = items.collect();
    json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
}

/// The values of a header, in order.
fn header<'a>(read: &'a Read, name: &str) -> Vec<&'a str> {
    let headers = read.head.iter().filter_map(|line| line.split_once(": "));
    headers.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

/// Whether a pod runs in the container in which it ran `before`.
fn is_same(pod: &Value, before: &Value) -> bool {
    let id = &container(before)["containerID"];
    id.is_string() && *id == container(pod)["containerID"] && is_ready(pod)
}

#[test]
fn pods_of_a_url_run_change_and_go() {
    let Some(mut node) = Node::start("url") else { return };
    let server = Server::start(&node);
    let (web, other) = (pod("web"), pod("other"));
    server.set(OK, &web);
    node.write("file.yaml", &pod("file"));
    node.configure(&format!(
        "staticPodURL: http://{ADDRESS}/pods?of=n\n\
         staticPodURLHeader: {{X-Role: [node], X-Token: [one, two]}}\n\
         httpCheckFrequency: 1s"
    ));
    node.start_kubelet();
    let single = node.eventually("web-n", "ready", is_ready);
    let file = node.eventually("file-n", "ready", is_ready);
    let source =
        |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.source"].clone();
    assert_eq!((source(&single), source(&file)), ("http".into(), "file".into()));
    let metadata = &single["metadata"];
    assert_eq!(metadata["annotations"]["kubernetes.io/config.hash"], metadata["uid"]);
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(single["spec"]["nodeName"], "n");
    // Only pods of files tolerate everything, as upstream.
    assert!(single["spec"]["tolerations"].is_null(), "{single:#}");
    assert!(file["spec"]["tolerations"].is_array(), "{file:#}");

    // By default it is every 20 seconds: six times within two minutes.
    assert!(server.is_read(10), "{}", server.reads().len());
    let reads = server.reads();
    for pair in reads.windows(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_secs(1), "the period is not kept");
    }
    for read in reads {
        assert_eq!(read.head[0], "GET /pods?of=n HTTP/1.1");
        assert_eq!(header(&read, "host"), [ADDRESS]);
        assert_eq!(header(&read, "x-role"), ["node"]);
        assert_eq!(header(&read, "x-token"), ["one", "two"]);
    }

    server.set(OK, &list(&[&web, &other]));
    let first = node.eventually("other-n", "ready", is_ready);
    assert!(is_same(&node.pod("web-n"), &single), "{}", node.log());
    let changed = web.replace("exit 0", "exit 1");
    server.set(OK, &list(&[&changed, &other]));
    node.eventually("web-n", "replaced", |pod| {
        is_ready(pod) && pod["metadata"]["uid"] != single["metadata"]["uid"]
    });
    server.set(OK, &list(&[&other]));
    node.eventually("web-n", "gone", Value::is_null);
    assert!(wait(|| !containers(&node).contains_key("web")), "{}", node.log());
    assert!(is_same(&node.pod("other-n"), &first), "{}", node.log());
    server.set(OK, &list(&[]));
    node.eventually("other-n", "gone", Value::is_null);
    server.set(OK, &web);
    node.eventually("web-n", "ready again", is_ready);
    // As upstream, an empty answer has no pods.
    server.set(OK, "");
    node.eventually("web-n", "gone", Value::is_null);
    assert!(wait(|| containers(&node).len() == 1), "{:?}\n{}", containers(&node), node.log());
    assert!(is_same(&node.pod("file-n"), &file), "{}", node.log());
}

#[test]
fn broken_answers_cost_no_pod_anything() {
    let Some(mut node) = Node::start("broken-url") else { return };
    let server = Server::start(&node);
    let (web, more) = (pod("web"), pod("more"));
    server.set(OK, &web);
    let url = format!("--manifest-url=http://{ADDRESS}/pods");
    let flags = [
        &url,
        "--manifest-url-header=X-Role: node,X-Token:one",
        "--manifest-url-header=X-Token:two",
        "--http-check-frequency=1s",
    ];
    node.start_kubelet_with(&flags);
    let before = node.eventually("web-n", "ready", is_ready);
    let read = server.reads().remove(0);
    assert_eq!(header(&read, "x-role"), ["node"]);
    assert_eq!(header(&read, "x-token"), ["one", "two"]);
    let invalid = more.replace("image: node.test/busybox:1", "tty: true");
    for (status, body, fault) in [
        ("500 Internal Server Error", list(&[&more]), "status is 500 Internal Server Error"),
        (OK, "garbage".to_owned(), "the document is not an object"),
        (OK, "{".to_owned(), "did not find expected node content"),
        (OK, "{apiVersion: v1, kind: Service}".to_owned(), "kind is \"Service\""),
        (OK, list(&[&more, &invalid]), "spec.containers[0].image: Required value"),
        ("204 No Content", String::new(), "status is 204 No Content"),
        (NO_ANSWER, String::new(), "connection closed before message completed"),
    ] {
        server.set(status, &body);
        assert!(server.is_read(2), "{}", node.log());
        let log = node.log();
        let mut lines =
            log.lines().filter(|line| line.contains("pods cannot be read from http://"));
        assert!(lines.any(|line| line.contains(fault)), "{fault}: {log}");
        assert!(node.pod("more-n").is_null());
        assert!(is_same(&node.pod("web-n"), &before), "{fault}: {log}");
    }

    // A source that has not been read does not end the pods of the last run.
    node.kill_kubelet();
    server.set("500 Internal Server Error", "");
    node.write("file.yaml", &pod("file"));
    node.start_kubelet_with(&flags);
    node.eventually("file-n", "ready", is_ready);
    assert!(server.is_read(5), "{}", node.log());
    let running = [api::ContainerState::ContainerRunning];
    assert_eq!(containers(&node)["web"], running, "{}", node.log());

    server.set(OK, &list(&[&web, &more]));
    node.eventually("more-n", "ready", is_ready);
    let after = node.eventually("web-n", "known", is_ready);
    assert!(is_same(&after, &before), "{after:#}\n{}", node.log());
    assert_eq!(container(&after)["restartCount"], 0);
    let log = node.log();
    assert!(!log.contains("Stopping container web"), "{log}");
    assert!(log.contains("pods are read from http://127.0.0.1:8099/pods again"), "{log}");
}
