//! What `kubectl` does with a cluster whose node runs containers: the whole way through the API
//! server to the kubelet and the runtime.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use kube_controller_manager::options::Options;
use kube_controller_manager::task;
use sandbox::{containers, demo, real_server};
use serde_json::{Value, json};

use super::api::PATIENCE;
use super::container_cluster::{ContainerCluster, Kubectl};
use super::metrics_server::MetricsServer;
use super::node::{place, wait};

const DEMO: &str = include_str!("../../../fixtures/demo.yaml");

/// Those that the fixture needs. A real API server finds a Service's pods by Endpoints.
const CONTROLLERS: [&str; 13] = [
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "job-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "statefulset-controller",
];

#[test]
fn kubectl_reaches_into_the_containers_of_the_demo() {
    reach_into_the_demo("demo_cluster", None);
}

#[test]
fn kubectl_reaches_into_them_through_a_real_api_server() {
    if let Some(assets) = real_server::assets() {
        reach_into_the_demo("demo_cluster on a real API server", Some(assets));
    }
}

/// `assets`: the folder of a real API server's programs; `None`: the embedded one.
fn reach_into_the_demo(test: &str, assets: Option<PathBuf>) {
    let Some(_place) = place(test) else { return };
    task::run(2, async move {
        let options = Options::default();
        let started = ContainerCluster::start(assets.as_deref(), &CONTROLLERS, options).await;
        let Some(running) = started else { return };
        let (client, clock) = (&running.server.client, &running.server.clock);
        let objects = demo::parse("the fixture", DEMO).expect("objects");
        running.server.create(&objects, "shop").await;
        let end = clock.monotonic() + PATIENCE;
        loop {
            let rollouts = demo::rollouts(client, &objects).await.expect("a list");
            if rollouts.iter().all(demo::Rollout::is_complete) {
                break;
            }
            let late: Vec<String> = rollouts.iter().map(demo::Rollout::line).collect();
            assert!(clock.monotonic() < end, "{late:#?}");
            clock.sleep(std::time::Duration::from_millis(500)).await;
        }
        let metrics = MetricsServer::start(&running.server).await;
        let (kubectl, volumes) = (running.kubectl.clone(), running.volumes.clone());
        // The servers are in this process: their threads must not wait for kubectl.
        task::blocking(move || look_inside(&kubectl, &volumes)).await;
        metrics.stop().await;
        running.stop().await;
    });
}

fn look_inside(kubectl: &Kubectl, volumes: &Path) {
    let all: Value =
        serde_json::from_str(&kubectl.run(&["get", "pods", "-n", "shop", "-o", "json"]))
            .expect("pods");
    let name_of = |app: &str| {
        let pods = all["items"].as_array().into_iter().flatten();
        let mut names = pods.filter(|pod| pod["metadata"]["labels"]["app"] == app);
        let name = names.next().expect("a pod")["metadata"]["name"].as_str();
        name.expect("a name").to_owned()
    };
    let web = name_of("web");
    let exec = |words: &[&str], input: &str| {
        let args = [&["-n", "shop", "exec", "-i", "-c", "web", &web, "--"], words].concat();
        kubectl.feed(&args, input)
    };

    // Logs.
    let text = kubectl.run(&["-n", "shop", "logs", &web]);
    assert_eq!(text, format!("{web} serves\n"));
    let worker = name_of("worker");
    let args = ["-n", "shop", "logs", "-f", &worker];
    let (line, following) = kubectl.lines(&args, "works: ", 3);
    assert!(line.starts_with(&worker), "{line}");
    drop(following);
    let text = kubectl.run(&["-n", "shop", "logs", "-l", "app=worker", "--tail=1"]);
    assert_eq!(text.lines().count(), 3, "{text}");

    // Commands, with input, exit code and a terminal.
    let page = format!("hello from {web}\n");
    assert_eq!(exec(&["cat", "/tmp/www/index.html"], ""), page);
    let megabyte = "0123456789abcde\n".repeat(1 << 16);
    assert_eq!(exec(&["cat"], "one\ntwo\n"), "one\ntwo\n");
    assert_eq!(exec(&["sh", "-c", "cat > /tmp/in; wc -c < /tmp/in"], &megabyte), "1048576\n");
    let args = ["-n", "shop", "exec", &web, "--", "sh", "-c", "echo out; exit 3"];
    let text = kubectl.fail(&args);
    assert!(text.starts_with("out\n") && text.contains("exit code 3"), "{text}");
    let shell = format!("kubectl -n shop exec -it {web} -- sh");
    let text = kubectl.on_terminal(&shell, &[("# ", "echo this is $(tty)\nexit\n")]);
    assert!(text.contains("this is /dev/pts/0"), "{text}");

    // Ports, of a Service and of the pods behind it.
    let args = ["-n", "shop", "port-forward", "service/web", ":80"];
    let (line, forwarding) = kubectl.lines(&args, "Forwarding from 127.0.0.1:", 1);
    let port = line.split([':', ' ']).find_map(|word| word.parse::<u16>().ok());
    let port = port.expect("a port");
    for _ in 0..3 {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        connection.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("200 OK") && answer.contains("hello from web-"), "{answer}");
    }
    drop(forwarding);

    // What a container writes.
    let (line, attached) = kubectl.lines(&["-n", "shop", "attach", &worker], "works: ", 2);
    assert!(line.starts_with(&worker), "{line}");
    drop(attached);

    // Files.
    let (there, back) = (kubectl.home.join("there"), kubectl.home.join("back"));
    std::fs::write(&there, &megabyte).expect("a file");
    let remote = format!("shop/{web}:/tmp/copied");
    kubectl.run(&["cp", &there.display().to_string(), &remote]);
    kubectl.run(&["cp", &remote, &back.display().to_string()]);
    assert_eq!(std::fs::read_to_string(&back).expect("a file"), megabyte);

    // A container beside those of a pod, which sees the processes of one.
    // The runtime ends an attachment with its input, which stays open here.
    let script = "while true; do cat /proc/1/root/tmp/www/index.html; sleep 1; done";
    let mut args = vec!["-n", "shop", "debug", "-i", &web, "--image=node.test/busybox:1"];
    args.extend(["--target=web", "-c=look", "--profile=sysadmin", "--", "sh", "-c", script]);
    let (line, debugging) = kubectl.lines(&args, "hello from ", 2);
    assert_eq!(line, page.trim_end());
    drop(debugging);
    let text = kubectl.run(&["-n", "shop", "logs", &web, "-c", "look", "--tail=1"]);
    assert_eq!(text, page);

    let shell = format!(
        "kubectl -n shop debug -it {web} --image=node.test/busybox:1 --target=web -c=shell -- sh"
    );
    let steps = [("pressing enter.", "\n"), ("# ", "echo this is $(tty)\nexit\n")];
    let text = kubectl.on_terminal(&shell, &steps);
    assert!(text.contains("this is /dev/pts/0"), "{text}");

    // The kubelet's own pages, and a pod's, through the API server.
    let raw = |path: &str| kubectl.run(&["get", "--raw", path]);
    let node = format!("/api/v1/nodes/{}/proxy", containers::NODE);
    let metrics = raw(&format!("{node}/metrics/cadvisor"));
    let cpu = metrics.lines().any(|line| {
        line.starts_with("container_cpu_usage_seconds_total{")
            && line.contains(&format!("pod=\"{web}\""))
            && line.contains("container=\"web\"")
    });
    assert!(cpu, "{metrics}");
    let summary: Value =
        serde_json::from_str(&raw(&format!("{node}/stats/summary"))).expect("JSON");
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let of_web = pods.iter().find(|pod| pod["podRef"]["name"] == *web).expect("the pod");
    assert!(
        of_web["memory"]["workingSetBytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{of_web:#}"
    );
    let page = raw("/api/v1/namespaces/shop/services/web/proxy/index.html");
    assert!(page.starts_with("hello from web-"), "{page}");

    // Usage, by way of a metrics-server. The files in this folder are memory.
    exec(&["sh", "-c", "head -c 33554432 /dev/zero > /dev/shm/x"], "");
    let top = |args: &[&str]| {
        let args = [&["top"][..], args, &["--no-headers"]].concat();
        Kubectl::end(kubectl.command(&args), "")
    };
    // The API server has to find the metrics-server first, which needs two pages of the kubelet.
    let mut shown = String::new();
    let memory_of_web = || {
        shown = top(&["pods", "-n", "shop", "--containers"]).1;
        let rows = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut of_web = rows.filter_map(|row| match row[..] {
            [pod, "web", _, memory] if pod == web => memory.strip_suffix("Mi")?.parse::<u64>().ok(),
            _ => None,
        });
        of_web.next().is_some_and(|memory| memory >= 32)
    };
    assert!(wait(memory_of_web), "{shown}");
    let (is_good, nodes) = top(&["nodes"]);
    assert!(is_good && nodes.starts_with(containers::NODE), "{nodes}");

    // The claim's volume is a folder, in the pod and here.
    let text = kubectl.run(&["-n", "shop", "exec", "orders-0", "--", "ls", "/data"]);
    assert_eq!(text, "starts\n");
    let folders = std::fs::read_dir(volumes).expect("a folder");
    assert_eq!(
        folders
            .filter(|folder| folder.as_ref().is_ok_and(|it| it.path().join("starts").exists()))
            .count(),
        2
    );

    // A token of the pod's account is good for the API server.
    let token = exec(&["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"], "");
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
    });
    let answer = kubectl.feed(&["create", "-f", "-", "-o", "json"], &review.to_string());
    assert!(answer.contains("system:serviceaccount:shop:default"), "{answer}");
}
