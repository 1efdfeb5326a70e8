//! Reads Deployments and Pods from caches that follow the server: after the first list no read
//! sends a request. Upstream: client-go's `informers` and generated `listers`.
//!
//! In a cluster with one Deployment and two pods, of which the Deployment selects one, it prints:
//!
//! ```text
//! 1 deployments and 2 pods are cached
//! deployment default/web selects pod web-1 by app=web
//! kube-system has 1 pods
//! pod default/missing is not cached
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use argh::FromArgs;
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, Selector};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};

/// Shows Deployments with their pods, from caches.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Args { kubeconfig } = argh::from_env();
    task::main(run(kubeconfig))
}

/// Fills the caches, and reads Deployments and their pods from them.
async fn run(kubeconfig: Option<PathBuf>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = SystemClock::shared();
    let config = Config::load(kubeconfig.as_deref(), None)?;
    let client = Client::new(config, clock.clone())?;

    // A second user of the factory who asks for pods gets the same cache.
    let factory = SharedInformerFactory::new(ClientSource::new(client), clock);
    let deployments = factory.informer::<Deployment>().lister();
    let pods = factory.informer::<Pod>().lister();

    // Nothing is requested before the start, and caches lack objects before they have synced.
    let stop = StopToken::new();
    factory.start(&stop);
    factory.wait_for_cache_sync().await;

    println!("{} deployments and {} pods are cached", deployments.len(), pods.len());
    for deployment in deployments.list() {
        let key = deployment.meta.key();
        let selector = Selector::try_from(deployment.spec.selector.as_ref())?;
        for pod in pods.in_namespace(&key.namespace) {
            if selector.matches(&pod.meta.labels) {
                println!("deployment {key} selects pod {} by {selector}", pod.meta.name);
            }
        }
    }
    println!("kube-system has {} pods", pods.count_in("kube-system"));
    let missing = ObjectKey::new("default", "missing");
    match pods.get(&missing) {
        Some(_) => println!("pod {missing} is cached"),
        None => println!("pod {missing} is not cached"),
    }

    stop.stop();
    factory.shutdown().await;
    Ok(())
}
