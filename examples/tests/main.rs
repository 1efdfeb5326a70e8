//! Each example runs against the sandbox, and prints what its first comment shows.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use kube_controller_manager::client::{Client, Delete, ListOptions, Patch};
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::objects::{Deployment, Lease, ObjectKey, Pod, Resource, ResourceType};
use sandbox::cluster::administrator;
use sandbox::{Sandbox, SandboxOptions, demo};
use serde_json::{Value, json};

/// How long a line or a state may take before the test fails. Not a limit on performance.
const PATIENCE: Duration = Duration::from_secs(120);

/// An API server alone: pods do not run unless the test says so.
struct Env {
    sandbox: Sandbox,
    client: Client,
    clock: SharedClock,
    folder: PathBuf,
}

impl Env {
    fn run(name: &str, scenario: impl AsyncFn(&Env)) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(format!("example-{name}-{unique}"));
        async_std::task::block_on(async {
            let options =
                SandboxOptions { service_accounts: false, ..SandboxOptions::new(&folder) };
            let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
            let clock = SystemClock::shared();
            let client = administrator(&sandbox.kubeconfig(), "test", &clock).expect("a client");
            let env = Env { sandbox, client, clock, folder };
            scenario(&env).await;
            env.sandbox.stop().await;
        });
    }

    /// A pod, which is on `node` unless that is empty.
    async fn pod(&self, namespace: &str, name: &str, node: &str) {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": {
                "nodeName": node, "containers": [{ "name": "main", "image": "registry.example/a" }],
            },
        });
        self.client.create::<Pod>(namespace, &pod).await.expect("created");
    }

    async fn delete_pod(&self, name: &str) {
        let (key, at_once) = (ObjectKey::new("default", name), Delete::new().grace_period(0));
        self.client.delete::<Pod>(&key, at_once).await.expect("deleted");
    }

    /// Starts an example with the administrator's kubeconfig.
    fn start(&self, program: &str, args: &[&str]) -> Example {
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(self.sandbox.kubeconfig()).args(args);
        Example::start(command)
    }

    /// Waits until `look` returns `Ok`.
    async fn eventually<T, F: Future<Output = Result<T, String>>>(
        &self,
        what: &str,
        look: impl Fn() -> F,
    ) -> T {
        let give_up = self.clock.monotonic() + PATIENCE;
        loop {
            match look().await {
                Ok(found) => return found,
                Err(last) if self.clock.monotonic() > give_up => panic!("{what}: {last}"),
                Err(_) => self.clock.sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running example; killed on drop.
struct Example {
    child: Child,
    lines: Receiver<String>,
    printed: Vec<String>,
}

impl Example {
    fn start(mut command: Command) -> Example {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Example { child, lines, printed: Vec::new() }
    }

    /// The next line; `None` after the last one.
    fn next(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.printed.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no further line after {:#?}", self.printed),
        }
    }

    /// Waits for a line, and returns what follows `start` in it.
    fn waits_for(&mut self, start: &str) -> String {
        while let Some(line) = self.next() {
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
        panic!("{start:?} is not in {:#?}", self.printed)
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").arg(id).status().expect("kill");
        assert!(sent.success());
    }

    /// Waits for the end, and returns all lines.
    fn ended(mut self) -> (ExitStatus, Vec<String>) {
        while self.next().is_some() {}
        let status = self.child.wait().expect("its status");
        (status, std::mem::take(&mut self.printed))
    }

    /// Waits for the end, which is a success, and compares the lines with those that the example's
    /// first comment shows.
    fn prints_as_documented(self, file: &str) {
        let (status, printed) = self.ended();
        assert_eq!(printed, documented(file), "{file}");
        assert!(status.success(), "{file}: {status}");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The block of text in the first comment of an example.
fn documented(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = std::fs::read_to_string(path).expect("the example");
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let block = comment.skip_while(|line| *line != " ```text").skip(1);
    let lines = block.take_while(|line| *line != " ```");
    let lines: Vec<String> = lines.map(|line| line[1..].to_owned()).collect();
    assert!(!lines.is_empty(), "{file} has no block of text");
    lines
}

#[test]
fn out_of_cluster_config() {
    Env::run("out-of-cluster", async |env| {
        env.pod("kube-system", "dns", "").await;
        let example = env.start(env!("CARGO_BIN_EXE_out-of-cluster-config"), &[]);
        example.prints_as_documented("out_of_cluster_config.rs");
    });
}

#[test]
fn in_cluster_config() {
    let program = env!("CARGO_BIN_EXE_in-cluster-config");
    let outside = Command::new(program).env_remove("KUBERNETES_SERVICE_HOST").output();
    let outside = outside.expect("it runs");
    let error = String::from_utf8_lossy(&outside.stderr);
    assert!(error.starts_with("unable to load in-cluster configuration"), "{error}");
    assert_eq!((error.lines().count(), outside.status.code()), (1, Some(1)));

    // A Pod's files, in a mount namespace of its own where the machine allows one.
    let in_namespace = ["--map-root-user", "--mount", "sh", "-c"];
    let possible = "mount -t tmpfs tmpfs /run && test /run -ef /var/run";
    let is_possible = Command::new("unshare").args(in_namespace).arg(possible).output();
    if !is_possible.is_ok_and(|output| output.status.success()) {
        return println!("skips the files of a Pod: there are no mount namespaces here");
    }
    Env::run("in-cluster", async |env| {
        env.pod("kube-system", "dns", "").await;
        let folder = "/var/run/secrets/kubernetes.io/serviceaccount";
        let files = env.sandbox.client_config();
        let token = env.folder.join("token");
        std::fs::write(&token, &files.token).expect("written");
        // The certificates are behind the mount if they are below /run.
        let pod = format!(
            "exec 3<{} 4<{} && mount -t tmpfs tmpfs /run && mkdir -p {folder} && \
             cat <&3 >{folder}/token && cat <&4 >{folder}/ca.crt && exec {program}",
            token.display(),
            files.ca.display(),
        );
        let mut command = Command::new("unshare");
        command.args(in_namespace).arg(pod);
        command.env("KUBERNETES_SERVICE_HOST", env.sandbox.address().ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", env.sandbox.address().port().to_string());
        Example::start(command).prints_as_documented("in_cluster_config.rs");
    });
}

#[test]
fn create_update_delete_deployment() {
    Env::run("create-update-delete", async |env| {
        let example = env.start(env!("CARGO_BIN_EXE_create-update-delete-deployment"), &[]);
        example.prints_as_documented("create_update_delete_deployment.rs");
    });
}

#[test]
fn dynamic_create_update_delete_deployment() {
    Env::run("dynamic", async |env| {
        let example = env.start(env!("CARGO_BIN_EXE_dynamic-create-update-delete-deployment"), &[]);
        example.prints_as_documented("dynamic_create_update_delete_deployment.rs");
    });
}

/// A Deployment of one container, selected by `app: NAME`.
async fn deployment(env: &Env, name: &str) {
    let labels = json!({ "app": name });
    let deployment = json!({
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "main", "image": "registry.example/a" }] },
            },
        },
    });
    env.client.create::<Deployment>("default", &deployment).await.expect("created");
}

#[test]
fn lister() {
    Env::run("lister", async |env| {
        deployment(env, "web").await;
        env.pod("default", "web-1", "").await;
        env.pod("kube-system", "dns", "").await;
        let example = env.start(env!("CARGO_BIN_EXE_lister"), &[]);
        example.prints_as_documented("lister.rs");
    });
}

#[test]
fn informer_with_index() {
    Env::run("informer", async |env| {
        env.pod("default", "a", "node-1").await;
        let program = env!("CARGO_BIN_EXE_informer-with-index");
        let mut example = env.start(program, &["--node", "node-1"]);
        example.waits_for("1 pods are cached");
        env.pod("default", "b", "node-1").await;
        example.waits_for("default/b was added");
        env.delete_pod("a").await;
        example.waits_for("default/a was deleted");
        example.terminate();
        example.prints_as_documented("informer_with_index.rs");
    });
}

#[test]
fn workqueue() {
    Env::run("workqueue", async |env| {
        let mut example = env.start(env!("CARGO_BIN_EXE_workqueue"), &[]);
        env.pod("default", "mypod", "").await;
        example.waits_for("Dropping pod default/mypod");
        let status = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        let pods = env.client.resource(&Pod::RESOURCE).subresource("status");
        let key = ObjectKey::new("default", "mypod");
        pods.patch::<Value>(&key, &status).await.expect("patched");
        example.waits_for("Sync/Add/Update");
        env.delete_pod("mypod").await;
        example.waits_for("Pod default/mypod does not exist");
        example.terminate();
        example.prints_as_documented("workqueue.rs");
    });
}

async fn holder(env: &Env, lease: &ObjectKey) -> String {
    let leases = env.client.resource(&Lease::RESOURCE);
    let lease = leases.get::<Value>(lease).await.expect("the lease");
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn leader_election() {
    Env::run("leader-election", async |env| {
        let start = |id: &str| {
            let lease = ["--lease-lock-name", "example", "--lease-lock-namespace", "default"];
            let args = [&lease[..], &["--id", id]].concat();
            env.start(env!("CARGO_BIN_EXE_leader-election"), &args)
        };
        let lease = ObjectKey::new("default", "example");
        let mut one = start("one");
        one.waits_for("one leads");
        let mut two = start("two");
        two.waits_for("new leader elected: one");
        assert_eq!(holder(env, &lease).await, "one");
        // It is killed, so it releases nothing: the other one waits for the end of the lease.
        one.child.kill().expect("killed");
        two.waits_for("two leads");
        assert_eq!(holder(env, &lease).await, "two");
        two.terminate();
        two.prints_as_documented("leader_election.rs");
        assert_eq!(holder(env, &lease).await, "", "a stop releases it");
    });
}

const FOOS: ResourceType =
    ResourceType::fixed("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos", true);

/// The sample-controller's cluster, with its kind and its rights.
struct Sample<'a> {
    env: &'a Env,
    key: ObjectKey,
    kubeconfig: PathBuf,
}

impl<'a> Sample<'a> {
    async fn new(env: &'a Env) -> Sample<'a> {
        for file in ["crd.yaml", "rbac.yaml"] {
            apply(env, file).await;
        }
        let user = "system:serviceaccount:sample-controller:sample-controller";
        let groups = ["system:authenticated", "system:serviceaccounts"];
        let kubeconfig = env.sandbox.kubeconfig_for(user, &groups).expect("written");
        Sample { env, key: ObjectKey::new("default", "example-foo"), kubeconfig }
    }

    fn start(&self) -> Example {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sample-controller"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(["--address", "127.0.0.1:0"]);
        let log = std::fs::File::create(self.env.folder.join("controller.log")).expect("a file");
        Example::start({
            command.stderr(log);
            command
        })
    }

    async fn deployment(&self) -> Result<Deployment, String> {
        self.env.client.get(&self.key).await.map_err(|error| error.to_string())
    }

    async fn foo(&self) -> Value {
        self.env.client.resource(&FOOS).get(&self.key).await.expect("the Foo")
    }

    /// Waits until the Deployment has this number of replicas.
    async fn scaled_to(&self, replicas: i32) -> Deployment {
        let scaled = self.env.eventually("the Deployment is scaled", async || {
            let deployment = self.deployment().await?;
            let is_scaled = deployment.replicas() == replicas;
            if is_scaled { Ok(deployment) } else { Err(format!("{deployment:?}")) }
        });
        scaled.await
    }

    /// The events about the Foo.
    async fn recorded(&self, reason: &str, message: &str) {
        let events = ResourceType::fixed("", "v1", "Event", "events", true);
        let recorded = self.env.eventually("the event is recorded", async || {
            let events = self.env.client.resource(&events);
            let events = events.list::<Value>(Some("default"), &ListOptions::default()).await;
            let events = events.map_err(|error| error.to_string())?.items;
            let is_it = |event: &Value| {
                let about = &event["involvedObject"];
                (about["kind"] == "Foo" && about["name"] == *self.key.name)
                    && event["reason"] == reason
                    && event["message"] == message
            };
            if events.iter().any(is_it) { Ok(()) } else { Err(format!("{events:#?}")) }
        });
        recorded.await;
    }
}

/// Creates the objects of a file of the sample-controller.
async fn apply(env: &Env, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_controller").join(file);
    let text = std::fs::read_to_string(path).expect("the manifest");
    for object in demo::parse(file, &text).expect("YAML") {
        env.client.reset_discovery();
        demo::create(&env.client, &object).await.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The body of a GET without TLS.
async fn get(env: &Env, address: &str, path: &str) -> String {
    let config = kube_controller_manager::client::Config::new(format!("http://{address}"));
    let client = Client::new(config, env.clock.clone()).expect("a client");
    let body = client.get_path(path).await.expect("answered");
    String::from_utf8_lossy(&body).into_owned()
}

#[test]
fn sample_controller_keeps_the_deployment_of_a_foo() {
    Env::run("sample", async |env| {
        let sample = Sample::new(env).await;
        let mut controller = sample.start();
        let address = controller.waits_for("Serving on ");
        controller.waits_for("Starting workers");
        apply(env, "foo.yaml").await;
        let created = sample.scaled_to(1).await;
        let foo = sample.foo().await;
        assert_eq!(foo["metadata"]["finalizers"], json!(["samplecontroller.k8s.io/deployment"]));
        let owner = created.meta.controller().expect("a controller");
        assert_eq!(
            (&*owner.kind, foo["metadata"]["uid"].as_str()),
            ("Foo", Some(&*owner.uid.to_string()))
        );
        sample.recorded("Created", "Created Deployment default/example-foo").await;

        let patch = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
        let foos = env.client.resource(&FOOS);
        foos.patch::<Value>(&sample.key, &patch).await.expect("patched");
        sample.scaled_to(3).await;
        sample.recorded("Scaled", "Scaled default/example-foo to 3").await;

        // The Deployment's status is reported in the Foo's.
        let status =
            json!({ "status": { "replicas": 3, "readyReplicas": 2, "availableReplicas": 2 } });
        let deployments = env.client.resource(&Deployment::RESOURCE).subresource("status");
        let status = Patch::Merge(status);
        deployments.patch::<Value>(&sample.key, &status).await.expect("patched");
        env.eventually("the status is reported", async || {
            let foo = sample.foo().await;
            let reported = foo["status"]["availableReplicas"] == 2;
            if reported { Ok(()) } else { Err(foo.to_string()) }
        })
        .await;

        assert_eq!(get(env, &address, "/healthz/leaderElection").await, "ok");
        // The event of the last write may still be queued.
        env.eventually("the metrics count it", async || {
            let metrics = get(env, &address, "/metrics").await;
            let expected = [
                "sample_controller_steps_total{step=\"create\"} 1",
                "sample_controller_steps_total{step=\"scale\"} 1",
                "leader_election_master_status{name=\"sample-controller\"} 1",
                "workqueue_depth{name=\"sample-controller\"} 0",
            ];
            let is_missing = |line: &&str| metrics.lines().all(|found| found != *line);
            let missing = expected.into_iter().find(is_missing);
            missing.map_or(Ok(()), |line| Err(format!("{line} is not in\n{metrics}")))
        })
        .await;

        // The finalizer keeps the Foo until its Deployment is gone.
        foos.delete(&sample.key, Delete::new()).await.expect("deleted");
        env.eventually("the Foo is gone", async || match foos.get::<Value>(&sample.key).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let deployment = sample.deployment().await;
        assert!(deployment.is_err(), "{deployment:?}");
        controller.terminate();
        let (status, printed) = controller.ended();
        assert!(status.success(), "{status}");
        assert_eq!(printed.last().map(String::as_str), Some("Stopped workers"));
        let lease = ObjectKey::new("sample-controller", "sample-controller");
        assert_eq!(holder(env, &lease).await, "", "a stop releases it");
    });
}

#[test]
fn sample_controller_leaves_the_deployment_of_another_owner() {
    Env::run("sample-refused", async |env| {
        let sample = Sample::new(env).await;
        deployment(env, "example-foo").await;
        let before = sample.deployment().await.expect("it is there");
        apply(env, "foo.yaml").await;
        let _controller = sample.start();
        let message = "Deployment default/example-foo exists and is not managed by \
                       default/example-foo";
        sample.recorded("ErrResourceExists", message).await;
        assert_eq!(sample.deployment().await.expect("it is there"), before);
    });
}

/// A process that is no longer the leader must not go on, and must not answer health checks.
#[test]
fn sample_controller_ends_when_its_lease_is_lost() {
    Env::run("sample-lost", async |env| {
        let sample = Sample::new(env).await;
        let mut controller = sample.start();
        controller.waits_for("Starting workers");
        let lease = ObjectKey::new("sample-controller", "sample-controller");
        let other = json!({ "spec": { "holderIdentity": "other", "leaseDurationSeconds": 3600 } });
        let leases = env.client.resource(&Lease::RESOURCE);
        // The leader may renew it at the same time, with its own name.
        while holder(env, &lease).await != "other" {
            leases.patch::<Value>(&lease, &Patch::Merge(other.clone())).await.expect("patched");
        }
        let (status, _) = controller.ended();
        assert_eq!(status.code(), Some(1));
        let log = std::fs::read_to_string(env.folder.join("controller.log")).expect("the log");
        // A line of the controller that shuts down may follow it.
        let lost = log.lines().filter(|line| *line == "the lease is lost").count();
        assert_eq!(lost, 1, "{log}");
        assert_eq!(holder(env, &lease).await, "other", "it is not released");
    });
}
