//! A client with the configuration of a kubeconfig: the one that `--kubeconfig` names, else
//! `~/.kube/config`. Upstream: client-go's `examples/out-of-cluster-client-configuration`.
//!
//! In a cluster with one pod it prints:
//!
//! ```text
//! There are 1 pods in the cluster
//! Pod example-xxxxx not found in default namespace
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use argh::FromArgs;
use kube_controller_manager::client::{Client, Config, ListOptions, Result};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{ObjectKey, Pod};
use kube_controller_manager::task;

/// Counts the pods of a cluster, from outside of it.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; ~/.kube/config without it
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Args { kubeconfig } = argh::from_env();
    let home = || std::env::home_dir().unwrap_or_default();
    let kubeconfig = kubeconfig.unwrap_or_else(|| home().join(".kube/config"));
    task::main(run(kubeconfig))
}

/// Counts the pods of the cluster, and asks for one by its name.
async fn run(kubeconfig: PathBuf) -> Result<()> {
    // The kubeconfig's own address and current context. `Config` has more fields: rate, burst,
    // User-Agent, proxy.
    let config = Config::from_kubeconfig(kubeconfig, None, None)?;
    let client = Client::new(config, SystemClock::shared())?;
    let pods: Vec<Pod> = client.list(None, &ListOptions::default()).await?;
    println!("There are {} pods in the cluster", pods.len());
    match client.get::<Pod>(&ObjectKey::new("default", "example-xxxxx")).await {
        Ok(_) => println!("Found example-xxxxx pod in default namespace"),
        Err(error) if error.is_not_found() => {
            println!("Pod example-xxxxx not found in default namespace");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
