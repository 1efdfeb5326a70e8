//! Creates, updates, lists and deletes a Deployment without a type for it: discovery finds the
//! resource, and objects are JSON. It works for every resource that the server has. Upstream:
//! client-go's `examples/dynamic-create-update-delete-deployment`.
//!
//! ```text
//! A Deployment of apps/v1 is at deployments.apps, in a namespace.
//! Creating deployment...
//! Created deployment "demo-deployment".
//! Updating deployment...
//! Updated deployment: 1 replicas of "nginx:1.13".
//! Listing deployments in namespace "default":
//!  * demo-deployment (1 replicas)
//! Deleting deployment...
//! Deleted deployment.
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use argh::FromArgs;
use kube_controller_manager::client::{self, Client, Config, Delete, Dynamic, ListOptions};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::task;
use serde_json::{Value, json};

/// Creates, updates, lists and deletes a Deployment as JSON.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
}

const NAMESPACE: &str = "default";
const NAME: &str = "demo-deployment";

fn main() -> ExitCode {
    let Args { kubeconfig } = argh::from_env();
    task::main(run(kubeconfig))
}

/// Creates, updates, lists and deletes a Deployment whose kind is found by discovery.
async fn run(kubeconfig: Option<PathBuf>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = Config::load(kubeconfig.as_deref(), None)?;
    let client = Client::new(config, SystemClock::shared())?;

    // Where the name is known, `ResourceType::fixed("apps", "v1", "Deployment", "deployments",
    // true)` needs no discovery.
    let discovery = client.discovery().await?;
    let resource = discovery.resource_for("apps", "v1", "Deployment");
    let resource = resource.ok_or("the server has no Deployment of apps/v1")?;
    let place = if resource.namespaced { "in a namespace" } else { "in the cluster" };
    println!("A {} of {} is at {resource}, {place}.", resource.kind, resource.api_version());
    let deployments = client.resource(&resource);

    println!("Creating deployment...");
    let created: Value = deployments.create(NAMESPACE, &deployment()).await?;
    println!("Created deployment {}.", created["metadata"]["name"]);

    println!("Updating deployment...");
    let updated = update(&deployments).await?;
    let image = &updated["spec"]["template"]["spec"]["containers"][0]["image"];
    println!("Updated deployment: {} replicas of {image}.", updated["spec"]["replicas"]);

    println!("Listing deployments in namespace {NAMESPACE:?}:");
    let list = deployments.list::<Value>(Some(NAMESPACE), &ListOptions::default()).await?;
    for deployment in list.items {
        let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
        println!(" * {name} ({} replicas)", deployment["spec"]["replicas"]);
    }

    println!("Deleting deployment...");
    deployments.delete(&ObjectKey::new(NAMESPACE, NAME), Delete::foreground()).await?;
    println!("Deleted deployment.");
    Ok(())
}

/// Returns the Deployment to create.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": NAME },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "demo" } },
            "template": {
                "metadata": { "labels": { "app": "demo" } },
                "spec": { "containers": [{
                    "name": "web", "image": "nginx:1.12",
                    "ports": [{ "name": "http", "protocol": "TCP", "containerPort": 80 }],
                }] },
            },
        },
    })
}

/// Reads the live Deployment, edits it and puts it back; after a conflict it begins again with the
/// newer object. Upstream: `retry.RetryOnConflict`.
async fn update(deployments: &Dynamic) -> client::Result<Value> {
    let key = ObjectKey::new(NAMESPACE, NAME);
    loop {
        let mut live: Value = deployments.get(&key).await?;
        live["spec"]["replicas"] = json!(1);
        live["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1.13");
        match deployments.update(&key, &live).await {
            Err(error) if error.is_conflict() => continue,
            updated => return updated,
        }
    }
}
