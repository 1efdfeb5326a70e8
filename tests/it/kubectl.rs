//! kubectl against the sandbox, as a user types it. Skipped, and said so, where there is no kubectl.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

    async fn try_with(&self, args: &[&str], input: &str) -> (bool, String) {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let input = input.to_owned();
        // The sandbox runs in this process: its threads must not wait for kubectl.
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

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn the_commands_of_a_users_day() {
    block_on(async {
        let env = Env::new("kubectl").await;
        let home = Folder::new("kubectl-home");
        let Some(kubectl) = Kubectl::new(&env.cluster.kubeconfig(), &home.0) else {
            return env.stop().await;
        };
        let manager = env.manager("manager", &[]);
        let yaml = serde_json::to_string(&deployment("web", 3, "web:1")).unwrap();
        let (ok, text) = kubectl.try_with(&["apply", "-f", "-"], &yaml).await;
        assert!(ok, "{text}");
        has(&text, &["deployment.apps/web created"]);
        let (ok, text) = kubectl.try_with(&["apply", "-f", "-"], &yaml).await;
        assert!(ok, "{text}");
        has(&text, &["deployment.apps/web unchanged"]);
        let status = ["rollout", "status", "deployment/web", "--timeout=60s"];
        has(&kubectl.run(&status).await, &["deployment \"web\" successfully rolled out"]);
        has(&kubectl.run(&["get", "deployments"]).await, &["NAME", "UP-TO-DATE", "web", "3/3"]);
        has(
            &kubectl.run(&["get", "deploy", "-o", "wide"]).await,
            &["CONTAINERS", "web:1", "app=web"],
        );
        let pods = kubectl.run(&["get", "pods", "-l", "app=web"]).await;
        assert_eq!(pods.matches("1/1").count(), 3, "{pods}");
        has(&pods, &["STATUS", "RESTARTS", "Running"]);
        has(
            &kubectl.run(&["describe", "deployment", "web"]).await,
            &["ScalingReplicaSet", "Scaled up replica set web-", "NewReplicaSetAvailable"],
        );
        has(
            &kubectl.run(&["get", "events"]).await,
            &["LAST SEEN", "SuccessfulCreate", "Created pod: web-"],
        );

        has(
            &kubectl.run(&["scale", "deploy/web", "--replicas=5"]).await,
            &["deployment.apps/web scaled"],
        );
        let five =
            ["wait", "deploy/web", "--for=jsonpath={.status.availableReplicas}=5", "--timeout=60s"];
        has(&kubectl.run(&five).await, &["condition met"]);
        let image = ["set", "image", "deployment/web", "main=web:2"];
        has(&kubectl.run(&image).await, &["deployment.apps/web image updated"]);
        kubectl.run(&status).await;
        let history = kubectl.run(&["rollout", "history", "deployment/web"]).await;
        has(&history, &["REVISION", "1", "2"]);
        has(&kubectl.run(&["rollout", "undo", "deployment/web"]).await, &["rolled back"]);
        kubectl.run(&status).await;
        let image_now = "-o=jsonpath={.spec.template.spec.containers[0].image}";
        assert_eq!(kubectl.run(&["get", "deploy", "web", image_now]).await, "web:1");
        has(&kubectl.run(&["rollout", "pause", "deployment/web"]).await, &["paused"]);
        has(&kubectl.run(&["rollout", "resume", "deployment/web"]).await, &["resumed"]);
        has(&kubectl.run(&["rollout", "restart", "deployment/web"]).await, &["restarted"]);
        kubectl.run(&status).await;
        has(
            &kubectl.run(&["explain", "deployment.spec.replicas"]).await,
            &["GROUP:", "apps", "replicas", "Number of desired pods"],
        );
        drop(manager);
        env.stop().await;
    });
}
