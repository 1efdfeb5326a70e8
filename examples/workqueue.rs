//! A controller by hand: an informer lists and watches pods, its handler queues their keys, and a
//! worker takes them, with retries. It ends at SIGTERM or Ctrl-C. Upstream: client-go's
//! `examples/workqueue`.
//!
//! The runner does all this for a controller: see the sample-controller. A pod is created, and runs
//! only after all attempts; then it is deleted:
//!
//! ```text
//! Starting Pod controller
//! Error syncing pod default/mypod: it is pending
//! Error syncing pod default/mypod: it is pending
//! Error syncing pod default/mypod: it is pending
//! Error syncing pod default/mypod: it is pending
//! Error syncing pod default/mypod: it is pending
//! Dropping pod default/mypod out of the queue: it is pending
//! Sync/Add/Update for Pod mypod
//! Pod default/mypod does not exist anymore
//! Stopping Pod controller
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use argh::FromArgs;
use kube_controller_manager::cache::{Deleted, EventHandler, Lister, Scope, SharedIndexInformer};
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::objects::{ObjectKey, Pod, PodPhase, Resource};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task;
use kube_controller_manager::workqueue::{RateLimitingQueue, default_controller_rate_limiter};

/// Follows the pods of the namespace `default`.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
}

/// How often a key is retried before it is dropped.
const MAX_RETRIES: u32 = 5;

fn main() -> ExitCode {
    let Args { kubeconfig } = argh::from_env();
    task::main(run(kubeconfig))
}

/// Runs an informer and one worker, which takes keys from the queue until the stop.
async fn run(kubeconfig: Option<PathBuf>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = task::stop_on_signal()?;
    let clock = SystemClock::shared();
    let config = Config::load(kubeconfig.as_deref(), None)?;
    let source = ClientSource::new(Client::new(config, clock.clone())?);

    let limiter = default_controller_rate_limiter(clock.clone());
    let queue: RateLimitingQueue<ObjectKey> =
        RateLimitingQueue::new("pods", clock.clone(), limiter);

    let in_default = Scope { namespace: Some("default".to_owned()), ..Scope::all(Pod::RESOURCE) };
    let informer = SharedIndexInformer::<Pod>::new(source, in_default, clock);
    informer.add_handler("workqueue", Enqueue { queue: queue.clone() }, None);

    println!("Starting Pod controller");
    let running = task::spawn(informer.run(stop.clone()));
    // A worker that starts before the first list is whole would take absent pods for deleted ones.
    let synced = stop.unless_stopped(informer.synced()).await;
    if synced.is_some() {
        // One worker; more of them share the queue, which gives a key to one at a time.
        let worker = task::spawn(work(informer.lister(), queue.clone()));
        stop.stopped().await;
        println!("Stopping Pod controller");
        queue.shut_down();
        worker.await;
    }
    running.await;
    Ok(())
}

/// Queues the key of each pod that changes. The event's object is not queued: the worker reads the
/// newest state from the cache, so several events that wait are one sync.
struct Enqueue {
    queue: RateLimitingQueue<ObjectKey>,
}

impl EventHandler<Pod> for Enqueue {
    fn on_add(&mut self, pod: &Arc<Pod>, _initial: bool) {
        self.queue.add(pod.meta.key());
    }

    fn on_update(&mut self, _old: &Arc<Pod>, new: &Arc<Pod>) {
        self.queue.add(new.meta.key());
    }

    fn on_delete(&mut self, pod: &Deleted<Pod>) {
        self.queue.add(pod.object().meta.key());
    }
}

/// Takes keys until the queue is shut down and empty.
async fn work(pods: Lister<Pod>, queue: RateLimitingQueue<ObjectKey>) {
    while let Some(key) = queue.get().await {
        match sync(&pods, &key) {
            // Its next failure starts with a short delay.
            Ok(()) => queue.forget(&key),
            Err(error) if queue.num_requeues(&key) < MAX_RETRIES => {
                println!("Error syncing pod {key}: {error}");
                queue.add_rate_limited(key.clone());
            }
            Err(error) => {
                println!("Dropping pod {key} out of the queue: {error}");
                queue.forget(&key);
            }
        }
        // A key that was added meanwhile is given out only now.
        queue.done(&key);
    }
}

/// Contains the business logic: prints the pod. A pod that does not run yet is a failure, to show
/// the retries.
fn sync(pods: &Lister<Pod>, key: &ObjectKey) -> Result<(), &'static str> {
    let Some(pod) = pods.get(key) else {
        println!("Pod {key} does not exist anymore");
        return Ok(());
    };
    if pod.status.phase == PodPhase::Pending {
        return Err("it is pending");
    }
    println!("Sync/Add/Update for Pod {}", pod.meta.name);
    Ok(())
}
