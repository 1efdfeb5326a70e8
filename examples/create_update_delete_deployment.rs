//! Creates, updates, lists and deletes a Deployment by its type. Upstream: client-go's
//! `examples/create-update-delete-deployment`.
//!
//! Objects are written as JSON and read as views: `Deployment` has the fields that some controller
//! reads. The example `dynamic-create-update-delete-deployment` needs no type at all.
//!
//! ```text
//! Creating deployment...
//! Created deployment "demo-deployment".
//! Updating deployment...
//! Updated deployment: 1 replicas of nginx:1.13.
//! Listing deployments in namespace "default":
//!  * demo-deployment (1 replicas)
//! Deleting deployment...
//! Deleted deployment.
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use argh::FromArgs;
use kube_controller_manager::client::{Client, Config, Delete, ListOptions, Result};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{Deployment, ObjectKey};
use kube_controller_manager::task;
use serde_json::json;

/// Creates, updates, lists and deletes a Deployment.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
}

const NAMESPACE: &str = "default";

fn main() -> ExitCode {
    let Args { kubeconfig } = argh::from_env();
    task::main(run(kubeconfig))
}

/// Creates, updates, lists and deletes a Deployment with the typed client.
async fn run(kubeconfig: Option<PathBuf>) -> Result<()> {
    let config = Config::load(kubeconfig.as_deref(), None)?;
    let client = Client::new(config, SystemClock::shared())?;

    let deployment = json!({
        "metadata": { "name": "demo-deployment" },
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
    });
    println!("Creating deployment...");
    let created: Deployment = client.create(NAMESPACE, &deployment).await?;
    println!("Created deployment {:?}.", created.meta.name);

    println!("Updating deployment...");
    let key = created.meta.key();
    let updated = update(&client, &key).await?;
    let image = &updated.spec.template.to_value()["spec"]["containers"][0]["image"];
    let image = image.as_str().unwrap_or_default();
    println!("Updated deployment: {} replicas of {image}.", updated.replicas());

    println!("Listing deployments in namespace {NAMESPACE:?}:");
    let deployments = client.list(Some(NAMESPACE), &ListOptions::default()).await?;
    for deployment in deployments as Vec<Deployment> {
        println!(" * {} ({} replicas)", deployment.meta.name, deployment.replicas());
    }

    println!("Deleting deployment...");
    client.delete::<Deployment>(&key, Delete::foreground()).await?;
    println!("Deleted deployment.");
    Ok(())
}

/// Reads the live object, edits it and puts it back. If another client has written it meanwhile,
/// the server refuses with a conflict, and the edit begins again with the newer object. Upstream:
/// `retry.RetryOnConflict`.
async fn update(client: &Client, key: &ObjectKey) -> Result<Deployment> {
    loop {
        let edited = client.modify(key, |live| {
            live["spec"]["replicas"] = json!(1);
            live["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1.13");
            true
        });
        match edited.await {
            Err(error) if error.is_conflict() => continue,
            edited => return edited,
        }
    }
}
