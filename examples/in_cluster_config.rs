//! A client with the configuration of its Pod: the address in the environment, and the token of the
//! service account. Upstream: client-go's `examples/in-cluster-client-configuration`.
//!
//! In a cluster with one pod it prints:
//!
//! ```text
//! There are 1 pods in the cluster
//! Pod example-xxxxx not found in default namespace
//! ```

use std::process::ExitCode;

use kube_controller_manager::client::{Client, Config, ListOptions, Result};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{ObjectKey, Pod};
use kube_controller_manager::task;

fn main() -> ExitCode {
    task::main(run())
}

/// Counts the pods of the cluster, and asks for one by its name.
async fn run() -> Result<()> {
    let client = Client::new(Config::in_cluster()?, SystemClock::shared())?;
    let pods: Vec<Pod> = client.list(None, &ListOptions::default()).await?;
    println!("There are {} pods in the cluster", pods.len());
    // Not found is an answer like any other: errors say by a method what they are.
    match client.get::<Pod>(&ObjectKey::new("default", "example-xxxxx")).await {
        Ok(_) => println!("Found example-xxxxx pod in default namespace"),
        Err(error) if error.is_not_found() => {
            println!("Pod example-xxxxx not found in default namespace");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
