//! A cluster whose node runs containers, as `sandbox --containers` makes it, and what `kubectl` does
//! with it: the whole way through the API server to the kubelet and the runtime.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use kube_controller_manager::task::{self, StopToken};
use sandbox::containers::{self, ContainerNode};
use sandbox::{demo, real_server};
use serde_json::{Value, json};

use super::api::PATIENCE;
use super::demo_server::DemoServer;
use super::metrics_server;
use super::node::{place, wait};
use super::registration::Folder;

const DEMO: &str = include_str!("../../../fixtures/demo.yaml");

/// Killed when dropped.
struct Running {
    child: Child,
    /// Open until then: a program dies of a pipe that nothing reads.
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stderr(Stdio::inherit()).spawn().expect("a program");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, output }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone)]
struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    fn command(&self, args: &[&str]) -> Command {
        self.by("kubectl", args)
    }

    fn by(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The outputs of a command, and whether it has succeeded.
    fn end(mut command: Command, input: &str) -> (bool, String) {
        let mut child = command.spawn().expect("kubectl");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input.as_bytes()).expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("an end");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn feed(&self, args: &[&str], input: &str) -> String {
        let (is_good, text) = Kubectl::end(self.command(args), input);
        assert!(is_good, "kubectl {args:?}: {text}");
        text
    }

    fn run(&self, args: &[&str]) -> String {
        self.feed(args, "")
    }

    fn fail(&self, args: &[&str]) -> String {
        let (is_good, text) = Kubectl::end(self.command(args), "");
        assert!(!is_good, "kubectl {args:?}: {text}");
        text
    }

    /// Runs a command on a terminal, and types each text once another is shown; all that it shows.
    fn on_terminal(&self, command: &str, steps: &[(&str, &str)]) -> String {
        let mut running = Running::start(self.by("script", &["-qec", command, "/dev/null"]));
        let mut keyboard = running.child.stdin.take().expect("a pipe");
        let (mut shown, mut byte) = (Vec::new(), [0]);
        for (awaited, typed) in steps {
            while !shown.ends_with(awaited.as_bytes()) {
                let count = running.output.read(&mut byte).expect("output");
                assert!(count > 0, "no {awaited:?}: {}", String::from_utf8_lossy(&shown));
                shown.push(byte[0]);
            }
            keyboard.write_all(typed.as_bytes()).expect("typed");
        }
        running.output.read_to_end(&mut shown).expect("output");
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Waits for `count` lines of a command's output that contain a text; the last of them, and the
    /// command, which runs on.
    fn lines(&self, args: &[&str], text: &str, count: usize) -> (String, Running) {
        let mut running = Running::start(self.command(args));
        let mut found = 0;
        loop {
            let mut line = String::new();
            let read = running.output.read_line(&mut line).expect("text");
            assert!(read > 0, "kubectl {args:?} ends without {text:?}");
            found += usize::from(line.contains(text));
            if found == count {
                return (line.trim_end().to_owned(), running);
            }
        }
    }
}

fn has_kubectl() -> bool {
    let found = Command::new("kubectl").args(["version", "--client"]).output();
    found.is_ok_and(|output| output.status.success())
}

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
    if !has_kubectl() {
        return eprintln!("{test}: skipped: kubectl is missing");
    }
    task::run(2, async move {
        let folder = Folder::make();
        let volumes = folder.0.join("volumes");
        let server = match &assets {
            None => DemoServer::embedded(&folder.0, &volumes).await,
            Some(assets) => DemoServer::real(assets, &folder.0, &volumes).await,
        };
        let (client, clock) = (server.client.clone(), server.clock.clone());
        let program = Path::new(env!("CARGO_BIN_EXE_kubelet-demo"));
        let mut node = ContainerNode::start(program, &server.node_kubeconfig).expect("a program");
        match node.ready(&client, &clock, PATIENCE).await {
            Err(containers::Error::Missing) => return server.stop().await,
            ready => ready.expect("a node"),
        }
        let objects = demo::parse("the fixture", DEMO).expect("objects");
        server.create(&objects, "shop").await;
        let end = clock.monotonic() + PATIENCE;
        loop {
            let rollouts = demo::rollouts(&client, &objects).await.expect("a list");
            if rollouts.iter().all(demo::Rollout::is_complete) {
                break;
            }
            let late: Vec<String> = rollouts.iter().map(demo::Rollout::line).collect();
            assert!(clock.monotonic() < end, "{late:#?}");
            clock.sleep(std::time::Duration::from_millis(500)).await;
        }
        let stop = StopToken::new();
        let metrics = metrics_server::start(&client, &clock, &stop).await;
        let kubectl = Kubectl { kubeconfig: server.kubeconfig.clone(), home: folder.0.clone() };
        // The servers are in this process: their threads must not wait for kubectl.
        task::blocking(move || look_inside(&kubectl, &volumes)).await;
        stop.stop();
        metrics.join().await;
        node.stop(&clock).await.expect("an end");
        server.stop().await;
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
    exec(&["sh", "-c", "i=0; while [ $i -lt 500000 ]; do i=$((i + 1)); done"], "");
    let top = |args: &[&str]| {
        let args = [&["top"][..], args, &["--no-headers"]].concat();
        let mut text = String::new();
        // The API server has to find the metrics-server first.
        let is_served = wait(|| {
            let (is_good, shown) = Kubectl::end(kubectl.command(&args), "");
            text = shown;
            is_good
        });
        assert!(is_served, "{text}");
        text
    };
    let nodes = top(&["nodes"]);
    let words: Vec<&str> = nodes.split_whitespace().collect();
    let [name, cpu, _, memory, _] = words[..] else { panic!("{nodes}") };
    assert_eq!(name, containers::NODE);
    assert!(amount(cpu, "m") > 0 && amount(memory, "Mi") > 0, "{nodes}");
    let pods = top(&["pods", "-n", "shop", "--containers"]);
    let rows = pods.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [pod, container, cpu, memory] = words[..] else { panic!("{pods}") };
        (amount(cpu, "m"), amount(memory, "Mi"), pod, container)
    });
    let (cpu, memory, pod, container) = rows.max().expect("a row");
    assert_eq!((pod, container), (&*web, "web"), "{pods}");
    assert!(cpu > 0 && memory >= 32, "{pods}");

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

/// A number of `kubectl top`, which has this unit.
fn amount(text: &str, unit: &str) -> i64 {
    let number = text.strip_suffix(unit).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{text:?} has not the unit {unit}"))
}
