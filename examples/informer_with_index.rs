//! An informer of pods with an index by node, and a handler that reads by it. It ends at SIGTERM or
//! Ctrl-C. Upstream: `cache.SharedIndexInformer` with `AddIndexers`.
//!
//! The first pod exists at the start; then another one is created on its node, and the first one is
//! deleted:
//!
//! ```text
//! 1 pods are cached; on node-1: a
//! default/b was added; on node-1: a b
//! default/a was deleted; on node-1: b
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use argh::FromArgs;
use kube_controller_manager::cache::{
    Deleted, EventHandler, Index, IndexValue, Lister, Scope, SharedIndexInformer,
};
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{Istr, Pod, Resource};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task;

/// Follows the pods of each node.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
    /// the node that is shown first
    #[argh(option)]
    node: String,
}

/// The pods of a node; a pod without one is in no bucket.
static BY_NODE: Index<Pod> = Index::new("node", |pod, found| {
    if !pod.spec.node_name.is_empty() {
        found(IndexValue::Text(pod.spec.node_name.clone()));
    }
});

fn main() -> ExitCode {
    task::main(run(argh::from_env()))
}

/// Runs an informer with an index and a handler until the stop.
async fn run(args: Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = task::stop_on_signal()?;
    let clock = SystemClock::shared();
    let config = Config::load(args.kubeconfig.as_deref(), None)?;
    let source = ClientSource::new(Client::new(config, clock.clone())?);

    let informer = SharedIndexInformer::<Pod>::new(source, Scope::all(Pod::RESOURCE), clock);
    informer.add_index(&BY_NODE);
    let pods = informer.lister();
    let handler = ShowNodes { pods: pods.clone() };
    let registration = informer.add_handler("show-nodes", handler, None);
    let running = task::spawn(informer.run(stop.clone()));

    // Resolves when the handler was called for each pod of the first list.
    stop.unless_stopped(registration.synced()).await;
    println!("{} pods are cached; {}", pods.len(), pods_on(&pods, &args.node.as_str().into()));
    running.await;
    Ok(())
}

/// Returns the names of a node's pods. The index is read under the same lock as the objects: it
/// never differs from them.
fn pods_on(pods: &Lister<Pod>, node: &Istr) -> String {
    let pods = pods.by_index(&BY_NODE, &IndexValue::Text(node.clone()));
    let mut names: Vec<&str> = pods.iter().map(|pod| &*pod.meta.name).collect();
    names.sort();
    format!("on {node}: {}", names.join(" "))
}

/// Prints the pods of a node when one of them comes or goes. The cache holds a change before the
/// handler is called for it.
struct ShowNodes {
    pods: Lister<Pod>,
}

impl ShowNodes {
    /// Prints what happened to a pod, and the pods of its node.
    fn show(&self, pod: &Pod, what: &str) {
        if !pod.spec.node_name.is_empty() {
            let on = pods_on(&self.pods, &pod.spec.node_name);
            println!("{} was {what}; {on}", pod.meta.key());
        }
    }
}

impl EventHandler<Pod> for ShowNodes {
    fn on_add(&mut self, pod: &Arc<Pod>, initial: bool) {
        if !initial {
            self.show(pod, "added");
        }
    }

    fn on_update(&mut self, old: &Arc<Pod>, new: &Arc<Pod>) {
        if old.spec.node_name != new.spec.node_name {
            self.show(new, "scheduled");
        }
    }

    fn on_delete(&mut self, pod: &Deleted<Pod>) {
        self.show(pod.object(), "deleted");
    }
}
