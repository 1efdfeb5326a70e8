//! Several processes with one name of a lease: one of them leads, and another one takes over when
//! it ends. Upstream: client-go's `examples/leader-election`.
//!
//! The second of two processes, while the first is killed, and until SIGTERM:
//!
//! ```text
//! new leader elected: one
//! two leads
//! leader lost: two
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use argh::FromArgs;
use kube_controller_manager::client::{self, Client};
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::leaderelection::{
    Config, Ended, LeaderCallbacks, LeaderElector, LeaseLock, Work,
};
use kube_controller_manager::objects::ObjectKey;
use kube_controller_manager::task::{self, StopToken};

/// Contends for a lease.
#[derive(FromArgs)]
struct Args {
    /// path of a kubeconfig; without it the configuration of the Pod
    #[argh(option)]
    kubeconfig: Option<PathBuf>,
    /// the name of this process in the lease; it must be unique
    #[argh(option)]
    id: String,
    /// the name of the lease
    #[argh(option)]
    lease_lock_name: String,
    /// the namespace of the lease
    #[argh(option)]
    lease_lock_namespace: String,
}

fn main() -> ExitCode {
    task::main(run(argh::from_env()))
}

/// Waits for the lease, works while it is held, and releases it at the end.
async fn run(args: Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = task::stop_on_signal()?;
    let clock = SystemClock::shared();
    let config = client::Config::load(args.kubeconfig.as_deref(), None)?;
    let client = Client::new(config, clock.clone())?;

    let Args { id, lease_lock_name: name, lease_lock_namespace: namespace, .. } = args;
    // Its requests never wait behind those of the work.
    let client = client.for_lease();
    let lock = LeaseLock::new(&client, ObjectKey::new(&namespace, &name), id.clone(), None);
    // The lease lasts 15 s and is renewed every 2 s. After a stop it is released, so that the next
    // leader need not wait for its end.
    let elector = LeaderElector::new(Config::new(name, Arc::new(lock)), clock)?;

    let (leader, loser) = (id.clone(), id.clone());
    let lead = |stop: StopToken| async move {
        println!("{leader} leads");
        work(stop).await;
        // Nothing of this work may write later, so the lease may be released.
        Work::Ended
    };
    let callbacks = LeaderCallbacks::new(lead, move || println!("leader lost: {loser}"));
    let callbacks = callbacks.on_new_leader(move |leader| {
        // An empty leader: the lease was released.
        if leader != id && !leader.is_empty() {
            println!("new leader elected: {leader}");
        }
    });
    match elector.run(callbacks, &stop).await {
        Ended::NeverLed | Ended::Stopped => Ok(()),
        // Another process may lead by now: this one must not go on.
        Ended::Lost => Err("the lease could not be renewed".into()),
    }
}

/// Stands for the work of the leader: a controller would run here. It ends when `stop` stops.
async fn work(stop: StopToken) {
    stop.stopped().await;
}
