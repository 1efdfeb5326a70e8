//! kubectl against the sandbox. Where kubectl is not installed, each test prints that it skips.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kube_controller_manager::server::http::{Request, Response, Server, handler};
use kube_controller_manager::server::tls::{Tls, TlsOptions};
use kube_controller_manager::task::StopToken;
use serde_json::{Value, json};

use crate::env::*;

struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    /// `None` where kubectl is not installed.
    fn new(kubeconfig: &Path, home: &Path) -> Option<Kubectl> {
        let found = Command::new("kubectl").args(["version", "--client"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            println!("skipped: no kubectl on the PATH");
            return None;
        }
        Some(Kubectl { kubeconfig: kubeconfig.into(), home: home.into() })
    }

    /// Standard output and error of a command that must succeed.
    async fn run(&self, args: &[&str]) -> String {
        let (ok, text) = self.try_with(args, "").await;
        assert!(ok, "kubectl {args:?}: {text}");
        text
    }

    /// Standard output and error of a command that must succeed with `input` to read.
    async fn feed(&self, args: &[&str], input: &Value) -> String {
        let (ok, text) = self.try_with(args, &input.to_string()).await;
        assert!(ok, "kubectl {args:?}: {text}");
        text
    }

    /// Standard output and error of a command that must fail.
    async fn fail(&self, args: &[&str], input: &Value) -> String {
        let (ok, text) = self.try_with(args, &input.to_string()).await;
        assert!(!ok, "kubectl {args:?} succeeded: {text}");
        text
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Reads a watch until `last` is seen. Returns when the first object is shown; the handle gives
    /// the lines up to `last`. The watch times out, and then the test fails.
    async fn watch(&self, args: &[&str], last: &str) -> async_std::task::JoinHandle<Vec<String>> {
        let mut command = self.command(args);
        command.arg("--request-timeout=150s");
        let last = last.to_owned();
        let (shown, first) = async_channel::bounded::<()>(1);
        let reader = async_std::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("kubectl starts");
            let mut seen = Vec::new();
            for line in BufReader::new(child.stdout.take().unwrap()).lines() {
                seen.push(line.expect("text"));
                if seen.len() > 1 {
                    shown.close();
                }
                if seen.last().is_some_and(|line| line.contains(&last)) {
                    break;
                }
            }
            let _ = child.kill();
            let _ = child.wait();
            let found = seen.last().is_some_and(|line| line.contains(&last));
            assert!(found, "the watch ended without {last:?}: {seen:#?}");
            seen
        });
        // The channel is closed by the reader, or with it.
        let _ = first.recv().await;
        reader
    }

    async fn try_with(&self, args: &[&str], input: &str) -> (bool, String) {
        let mut command = self.command(args);
        let input = input.to_owned();
        // The sandbox runs in this process, so its threads must not wait for kubectl.
        let output = async_std::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("kubectl starts");
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().expect("kubectl ends")
        })
        .await;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    }
}

/// Repeats the command until its output has all of `parts`: events are written in the background.
async fn shows(env: &Env, kubectl: &Kubectl, args: &[&str], parts: &[&str]) {
    eventually(&env.clock, &format!("{args:?} shows {parts:?}"), || async {
        let text = kubectl.run(args).await;
        if parts.iter().all(|part| text.contains(part)) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn everyday_commands() {
    Env::run("kubectl", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let _manager = env.manager("manager", &[]);
        let web = deployment("web", 3, "web:1");
        let apply = ["apply", "-f", "-"];
        has(&kubectl.feed(&apply, &web).await, &["deployment.apps/web created"]);
        has(&kubectl.feed(&apply, &web).await, &["deployment.apps/web unchanged"]);
        let status = ["rollout", "status", "deployment/web", "--timeout=120s"];
        has(&kubectl.run(&status).await, &["deployment \"web\" successfully rolled out"]);
        has(&kubectl.run(&["get", "deployments"]).await, &["NAME", "UP-TO-DATE", "web", "3/3"]);
        has(
            &kubectl.run(&["get", "deploy", "-o", "wide"]).await,
            &["CONTAINERS", "web:1", "app=web"],
        );
        let pods = kubectl.run(&["get", "pods", "-l", "app=web"]).await;
        assert_eq!(pods.matches("1/1").count(), 3, "{pods}");
        has(&pods, &["STATUS", "RESTARTS", "Running"]);
        let parts = [
            "3 desired | 3 updated | 3 total | 3 available | 0 unavailable",
            "ScalingReplicaSet",
            "Scaled up replica set web-",
            "NewReplicaSetAvailable",
        ];
        shows(env, &kubectl, &["describe", "deployment", "web"], &parts).await;
        let parts = ["Controlled By:  Deployment/web", "3 Running / 0 Waiting", "SuccessfulCreate"];
        shows(env, &kubectl, &["describe", "replicaset"], &parts).await;
        let parts = ["LAST SEEN", "SuccessfulCreate", "Created pod: web-"];
        shows(env, &kubectl, &["get", "events"], &parts).await;
        let parts = ["default-scheduler  Successfully assigned default/web-", "kubelet"];
        shows(env, &kubectl, &["describe", "pods"], &parts).await;
        let about = ["events", "--for=deployment/web"];
        has(&kubectl.run(&about).await, &["Deployment/web", "ScalingReplicaSet"]);

        let watch = kubectl.watch(&["get", "deployment", "web", "-w"], "5/5").await;
        has(
            &kubectl.run(&["scale", "deploy/web", "--replicas=5"]).await,
            &["deployment.apps/web scaled"],
        );
        let five = [
            "wait",
            "deploy/web",
            "--for=jsonpath={.status.availableReplicas}=5",
            "--timeout=120s",
        ];
        has(&kubectl.run(&five).await, &["condition met"]);
        let seen = watch.await;
        assert!(seen[0].starts_with("NAME") && seen.len() > 2, "{seen:#?}");
        let available = ["wait", "deploy/web", "--for=condition=Available"];
        has(&kubectl.run(&available).await, &["condition met"]);
        let image = ["set", "image", "deployment/web", "main=web:2"];
        has(&kubectl.run(&image).await, &["deployment.apps/web image updated"]);
        kubectl.run(&status).await;
        let history = kubectl.run(&["rollout", "history", "deployment/web"]).await;
        has(&history, &["REVISION", "1 ", "2 "]);
        let second = ["rollout", "history", "deployment/web", "--revision=2"];
        has(&kubectl.run(&second).await, &["with revision #2", "web:2"]);
        has(&kubectl.run(&["rollout", "undo", "deployment/web"]).await, &["rolled back"]);
        kubectl.run(&status).await;
        let image_now = "-o=jsonpath={.spec.template.spec.containers[0].image}";
        assert_eq!(kubectl.run(&["get", "deploy", "web", image_now]).await, "web:1");
        has(&kubectl.run(&["rollout", "pause", "deployment/web"]).await, &["paused"]);
        has(
            &kubectl.fail(&["rollout", "pause", "deployment/web"], &Value::Null).await,
            &["already paused"],
        );
        has(&kubectl.run(&["rollout", "resume", "deployment/web"]).await, &["resumed"]);
        has(&kubectl.run(&["rollout", "restart", "deployment/web"]).await, &["restarted"]);
        kubectl.run(&status).await;
        let restarted = "-o=jsonpath={.spec.template.metadata.annotations}";
        has(&kubectl.run(&["get", "deploy", "web", restarted]).await, &["restartedAt"]);
        has(
            &kubectl.run(&["explain", "deployment.spec.replicas"]).await,
            &["GROUP:", "apps", "replicas <integer>", "Number of desired pods"],
        );
        has(
            &kubectl.run(&["explain", "pods.spec.containers.imagePullPolicy"]).await,
            &["ENUM:", "IfNotPresent"],
        );
        let all = kubectl.run(&["explain", "deployment", "--recursive"]).await;
        has(&all, &["maxSurge\t<IntOrString>", "containers\t<[]Container> -required-"]);
    });
}

#[test]
fn top_shows_the_usage_that_annotations_say() {
    Env::run("kubectl-top", async |env| {
        let home = Folder::new("kubectl-top-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let _manager = env.manager("manager", &[]);
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/autoscaling.yaml");
        let applied = kubectl.run(&["apply", "-f", fixture]).await;
        let autoscaler = "horizontalpodautoscaler.autoscaling/shop created";
        has(&applied, &[autoscaler, "poddisruptionbudget.policy/shop created"]);
        kubectl.run(&["rollout", "status", "deployment/shop", "--timeout=120s"]).await;
        let usage = ["sandbox/cpu=250m", "sandbox/memory=64Mi"];
        kubectl.run(&[&["annotate", "pods", "-l", "app=shop"], &usage[..]].concat()).await;
        has(&kubectl.run(&["top", "pods"]).await, &["shop-", "250m", "64Mi"]);
        has(&kubectl.run(&["top", "pods", "--containers"]).await, &["POD", "shop", "250m"]);
        has(&kubectl.run(&["top", "nodes"]).await, &["NAME", "CPU(cores)", "node-"]);
        let parts = ["shop", "N/A", "1"];
        shows(env, &kubectl, &["get", "pdb"], &parts).await;
        has(&kubectl.run(&["get", "hpa"]).await, &["Deployment/shop", "10"]);
    });
}

#[test]
fn the_claims_of_a_stateful_set_are_shown_as_bound() {
    Env::run("kubectl-claims", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let _manager = env.manager("manager", &[]);
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/statefulset.yaml");
        kubectl.run(&["apply", "-f", demo]).await;
        kubectl.run(&["rollout", "status", "statefulset/db", "--timeout=120s"]).await;
        let claims = kubectl.run(&["get", "pvc"]).await;
        has(&claims, &["STATUS", "VOLUME", "CAPACITY", "STORAGECLASS", "data-db-0", "data-db-2"]);
        assert_eq!(claims.matches("Bound").count(), 3, "{claims}");
        let volumes = kubectl.run(&["get", "pv"]).await;
        has(&volumes, &["RECLAIM POLICY", "default/data-db-1"]);
        assert_eq!(volumes.matches("Bound").count(), 3, "{volumes}");
    });
}

#[test]
fn delete_cascades_as_requested() {
    Env::run("kubectl-delete", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let _manager = env.manager("manager", &[]);
        let web = deployment("web", 2, "web:1");
        let status = ["rollout", "status", "deployment/web", "--timeout=120s"];
        let sets = ["get", "replicasets", "-o=name"];

        kubectl.feed(&["apply", "-f", "-"], &web).await;
        kubectl.run(&status).await;
        let set = kubectl.run(&sets).await;
        let set = set.trim();
        has(
            &kubectl.run(&["delete", "deployment", "web", "--cascade=orphan"]).await,
            &["deployment.apps \"web\" deleted"],
        );
        let owners = ["get", set, "-o=jsonpath={.metadata.ownerReferences}"];
        assert_eq!(kubectl.run(&owners).await, "", "the set has no owner");

        // A new Deployment adopts it. In the foreground, delete waits for the dependents.
        kubectl.feed(&["apply", "-f", "-"], &web).await;
        kubectl.run(&status).await;
        assert_eq!(kubectl.run(&sets).await.trim(), set);
        kubectl.run(&["delete", "deployment", "web", "--cascade=foreground"]).await;
        let left = kubectl.run(&["get", "deployments,replicasets,pods"]).await;
        has(&left, &["No resources found in default namespace."]);

        kubectl.feed(&["apply", "-f", "-"], &web).await;
        kubectl.run(&status).await;
        kubectl.run(&["delete", "deployment", "web", "--cascade=background"]).await;
        kubectl.run(&["wait", "replicasets", "--all", "--for=delete", "--timeout=120s"]).await;
        kubectl.run(&["wait", "pods", "--all", "--for=delete", "--timeout=120s"]).await;
        let left = kubectl.run(&["get", "replicasets,pods"]).await;
        has(&left, &["No resources found in default namespace."]);
    });
}

#[test]
fn errors_have_the_text_of_a_real_server() {
    Env::run("kubectl-wrong", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let mut typo = deployment("web", 3, "web:1");
        typo["spec"]["replcas"] = 3.into();
        typo["spec"]["template"]["spec"]["containers"][0]["imag"] = "x".into();
        let apply = ["apply", "-f", "-"];
        has(
            &kubectl.fail(&apply, &typo).await,
            &["Error from server (BadRequest): error when creating \"STDIN\": \
               Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: \
               unknown field \"spec.replcas\", unknown field \"spec.template.spec.containers[0].imag\""],
        );
        let warned = kubectl.feed(&["create", "--validate=warn", "-f", "-"], &typo).await;
        has(&warned, &["Warning: unknown field \"spec.replcas\"", "deployment.apps/web created"]);
        let spec = kubectl.run(&["get", "deploy", "web", "-o=jsonpath={.spec}"]).await;
        assert!(!spec.contains("replcas") && !spec.contains("imag\""), "{spec}");
        let mut text = deployment("b", 3, "web:1");
        text["spec"]["replicas"] = "3".into();
        has(
            &kubectl.fail(&apply, &text).await,
            &[
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ],
        );
        let moved = r#"-p={"spec":{"selector":{"matchLabels":{"a":"b"}}}}"#;
        has(
            &kubectl.fail(&["patch", "deploy", "web", moved], &Value::Null).await,
            &["The Deployment \"web\" is invalid", "field is immutable"],
        );
        has(
            &kubectl.fail(&["get", "deploy", "none"], &Value::Null).await,
            &["Error from server (NotFound): deployments.apps \"none\" not found"],
        );
        has(
            &kubectl.fail(&["get", "nothings"], &Value::Null).await,
            &["the server doesn't have a resource type \"nothings\""],
        );
        let scaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "h" },
            "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "web" } },
        });
        has(
            &kubectl.fail(&["create", "-f", "-"], &scaler).await,
            &[
                "spec.maxReplicas: Required value: must be set and greater than 0",
                "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
            ],
        );
        kubectl.run(&["run", "lone", "--image=lone:1"]).await;
        // Before the pod has a node, its logs are empty.
        let scheduled = ["wait", "pod/lone", "--for=condition=PodScheduled", "--timeout=120s"];
        kubectl.run(&scheduled).await;
        for command in [&["logs", "lone"][..], &["exec", "lone", "--", "ls"]] {
            has(
                &kubectl.fail(command, &Value::Null).await,
                &["Error from server (NotImplemented): Pod \"lone\" has no "],
            );
        }
    });
}

/// Typed clients write protobuf: the created objects must have what the flags say.
#[test]
fn objects_created_by_flags_have_their_values() {
    Env::run("kubectl-create", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        for (command, of, path, expected) in [
            ("configmap c --from-literal=a=b", "cm/c", "{.data}", r#"{"a":"b"}"#),
            ("secret generic s --from-literal=a=b", "secret/s", "{.type} {.data.a}", "Opaque Yg=="),
            ("namespace n", "ns/n", "{.status.phase}", "Active"),
            ("serviceaccount sa", "sa/sa", "{.metadata.name}", "sa"),
            (
                "quota q --hard=pods=3,cpu=500m",
                "quota/q",
                "{.spec.hard}",
                r#"{"cpu":"500m","pods":"3"}"#,
            ),
            (
                "deployment d --image=x:1 --replicas=0 --port=80",
                "deploy/d",
                "{.spec.replicas} {.spec.template.spec.containers[0].ports[0].containerPort}",
                "0 80",
            ),
            (
                "job j --image=x:1 -- sleep 1",
                "job/j",
                "{.spec.template.spec.containers[0].command}",
                r#"["sleep","1"]"#,
            ),
            (
                "cronjob cj --image=x:1 --schedule=@daily",
                "cronjob/cj",
                "{.spec.schedule}",
                "@daily",
            ),
            ("job k --from=cronjob/cj", "job/k", "{.metadata.ownerReferences[0].name}", "cj"),
            (
                "service nodeport np --tcp=80:8080",
                "svc/np",
                "{.spec.type} {.spec.ports[0].targetPort}",
                "NodePort 8080",
            ),
            (
                "role r --verb=get,list --resource=pods",
                "role/r",
                "{.rules[0].verbs}",
                r#"["get","list"]"#,
            ),
            ("rolebinding rb --role=r --user=bob", "rolebinding/rb", "{.subjects[0].name}", "bob"),
            ("ingress i --rule=h/p=svc:80", "ingress/i", "{.spec.rules[0].host}", "h"),
            (
                "poddisruptionbudget b --selector=a=b --min-available=50%",
                "pdb/b",
                "{.spec.minAvailable}",
                "50%",
            ),
            ("priorityclass pc --value=7", "priorityclass/pc", "{.value}", "7"),
        ] {
            let mut args = vec!["create"];
            args.extend(command.split(' '));
            has(&kubectl.run(&args).await, &[" created"]);
            let shown = kubectl.run(&["get", of, &format!("-o=jsonpath={path}")]).await;
            assert_eq!(shown, expected, "{command}");
        }
        has(&kubectl.run(&["autoscale", "deploy/d", "--max=3"]).await, &["autoscaled"]);
        has(&kubectl.run(&["get", "hpa", "d"]).await, &["Deployment/d", "cpu: <unknown>/80%"]);
        has(&kubectl.run(&["expose", "deploy/d", "--port=80"]).await, &["service/d exposed"]);
        let token = kubectl.run(&["create", "token", "sa"]).await;
        assert_eq!(token.trim().split('.').count(), 3, "signed: {token}");
        assert_eq!(kubectl.run(&["auth", "can-i", "create", "pods"]).await.trim(), "yes");
        has(&kubectl.run(&["auth", "whoami"]).await, &["kubernetes-admin", "system:masters"]);
    });
}

/// Objects that an API server creates itself, and fields that it fills in.
#[test]
fn a_new_cluster_is_not_empty() {
    Env::run("kubectl-new", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let services = kubectl.run(&["get", "apiservices"]).await;
        has(&services, &["v1. ", "v1.apps", "Local", "True"]);
        let classes = kubectl.run(&["get", "priorityclasses"]).await;
        has(&classes, &["system-node-critical", "2000001000", "system-cluster-critical"]);
        has(&kubectl.run(&["get", "servicecidr"]).await, &["kubernetes", "10.96.0.0/16"]);
        has(&kubectl.run(&["get", "--raw", "/readyz?verbose"]).await, &["readyz check passed"]);
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": "csr" },
            "spec": { "request": "", "signerName": "a.b/c", "usages": ["client auth"],
                "username": "somebody-else" },
        });
        kubectl.feed(&["create", "-f", "-"], &request).await;
        has(&kubectl.run(&["get", "csr", "csr"]).await, &["kubernetes-admin", "Pending"]);
        let managed = "-o=jsonpath={.metadata.managedFields[*].fieldsV1}";
        let of_namespace = kubectl.run(&["get", "ns", "default", managed]).await;
        assert!(!of_namespace.contains("f:spec"), "{of_namespace}");
        kubectl.run(&["run", "lone", "--image=lone:1"]).await;
        kubectl.run(&["debug", "lone", "--image=tool", "--target=lone"]).await;
        let policy = "-o=jsonpath={.spec.ephemeralContainers[0].imagePullPolicy}";
        assert_eq!(kubectl.run(&["get", "pod", "lone", policy]).await, "Always");
        let moved = r#"-p={"spec":{"replicas":"x"}}"#;
        kubectl.run(&["create", "deploy", "d", "--image=d"]).await;
        has(
            &kubectl.fail(&["patch", "deploy", "d", moved], &Value::Null).await,
            &["unrecognized type: int32"],
        );
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" },
            "spec": { "hard": { "pods": "x" } },
        });
        has(
            &kubectl.fail(&["create", "-f", "-"], &quota).await,
            &["ResourceQuota in version \"v1\" cannot be handled", "quantities must match"],
        );
        let ingress = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "i" },
            "spec": {},
        });
        has(
            &kubectl.fail(&["create", "-f", "-"], &ingress).await,
            &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
        );
    });
}

#[test]
fn server_side_apply_keeps_what_others_manage() {
    Env::run("kubectl-ssa", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let apply = ["apply", "--server-side", "-f", "-"];
        let mut web = deployment("web", 3, "web:1");
        web["metadata"]["annotations"] = json!({ "note": "hi" });
        has(&kubectl.feed(&apply, &web).await, &["deployment.apps/web serverside-applied"]);
        kubectl.run(&["scale", "deploy/web", "--replicas=1"]).await;
        has(
            &kubectl.fail(&apply, &web).await,
            &[
                "Apply failed with 1 conflict: conflict with \"kubectl\" with subresource \"scale\" \
               using apps/v1: .spec.replicas",
            ],
        );
        // Without the field there is no conflict: the scaler owns it.
        web["spec"].as_object_mut().unwrap().remove("replicas");
        web["metadata"].as_object_mut().unwrap().remove("annotations");
        kubectl.feed(&apply, &web).await;
        let now = "-o=jsonpath={.spec.replicas} {.metadata.annotations.note}";
        assert_eq!(kubectl.run(&["get", "deploy", "web", now]).await, "1 ");
        web["spec"]["replicas"] = 2.into();
        let mut forced = apply.to_vec();
        forced.push("--force-conflicts");
        kubectl.feed(&forced, &web).await;
        assert_eq!(kubectl.run(&["get", "deploy", "web", now]).await, "2 ");
        // From client-side apply to server-side apply.
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" },
            "data": { "a": "1", "b": "2" } });
        kubectl.feed(&["apply", "-f", "-"], &map).await;
        let mut less = map.clone();
        less["data"] = json!({ "a": "3" });
        kubectl.feed(&apply, &less).await;
        let data = kubectl.run(&["get", "cm", "m", "-o=jsonpath={.data}"]).await;
        assert_eq!(data, r#"{"a":"3"}"#);
    });
}

/// The answers of a kubelet, and of a metrics-server, on one port.
fn behind(request: &Request) -> Response {
    match request.path.as_str() {
        "/containerLogs/default/web/main" => {
            Response::text(200, format!("a line\n{}\n", request.query))
        }
        "/exec/default/web/main" => Response::text(403, "no streams today\n"),
        "/pods" => Response::text(200, "the pods\n"),
        "/apis/metrics.k8s.io/v1beta1" => Response::json(
            200,
            &json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": "metrics.k8s.io/v1beta1", "resources": [{
                    "name": "nodes", "singularName": "", "namespaced": false,
                    "kind": "NodeMetrics", "verbs": ["get", "list"],
                }],
            }),
        ),
        "/apis/metrics.k8s.io/v1beta1/nodes" => {
            assert_eq!(request.header("x-remote-user"), Some("kubernetes-admin"));
            let now = "2026-01-01T00:00:00Z";
            Response::json(
                200,
                &json!({
                    "kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1",
                    "metadata": {}, "items": [{
                        "metadata": { "name": "real", "creationTimestamp": now },
                        "timestamp": now, "window": "10s",
                        "usage": { "cpu": "123m", "memory": "64Mi" },
                    }],
                }),
            )
        }
        _ => Response::text(404, "not here\n"),
    }
}

#[test]
fn requests_reach_the_kubelet_of_a_node_and_other_api_servers() {
    Env::run("kubectl-behind", async |env| {
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return;
        };
        let (any, stop) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), StopToken::new());
        let tls = Tls::new(TlsOptions::default()).unwrap();
        let server =
            Server::start(any, Some(tls), handler(behind), env.clock.clone(), stop.clone());
        let server = server.await.unwrap();
        let port = server.address().port();
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "real" },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
                "capacity": { "cpu": "1", "memory": "1Gi" },
                "allocatable": { "cpu": "1", "memory": "1Gi" },
            },
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
            "spec": { "nodeName": "real", "containers": [{ "name": "main", "image": "web:1" }] },
        });
        kubectl.feed(&["create", "-f", "-"], &node).await;
        kubectl.feed(&["create", "-f", "-"], &pod).await;
        let logs = kubectl.run(&["logs", "web", "--tail=2", "--timestamps", "-f"]).await;
        has(&logs, &["a line\nfollow=true&stream=All&tailLines=2&timestamps=true\n"]);
        let ready = ["wait", "pod/web", "--for=condition=Ready", "--timeout=120s"];
        kubectl.run(&ready).await;
        let refused = kubectl.fail(&["exec", "web", "--", "ls"], &Value::Null).await;
        has(&refused, &["no streams today"]);
        let wrong = kubectl.fail(&["logs", "web", "-c", "side"], &Value::Null).await;
        has(&wrong, &["container side is not valid for pod web"]);
        let pods = kubectl.run(&["get", "--raw", "/api/v1/nodes/real/proxy/pods"]).await;
        assert_eq!(pods, "the pods\n");

        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "metrics" },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        let api = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1beta1.metrics.k8s.io" },
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
                "service": { "namespace": "default", "name": "metrics", "port": port },
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        });
        kubectl.feed(&["create", "-f", "-"], &service).await;
        kubectl.feed(&["create", "-f", "-"], &api).await;
        has(&kubectl.run(&["top", "nodes"]).await, &["real", "123m"]);
        stop.stop();
        server.join().await;
    });
}
