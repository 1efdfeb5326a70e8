//! Stand-ins for what runs on a cluster's machines: a scheduler, the kubelet of all nodes and a CSI
//! driver. Beside real nodes only the first and a driver of folders run. They are clients of the API server and use the library's client and cache.

mod attacher;
mod containers;
mod coordinator;
mod driver;
mod kubelet;
mod mounts;
mod ports;
mod scheduler;
mod script;
mod volumes;
mod worker;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::events::{EventBroadcaster, Recorder};
use kube_controller_manager::objects::Istr;
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{StopToken, TaskGroup};
use parking_lot::{Mutex, MutexGuard};

pub use driver::DRIVER;

/// How the nodes behave.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub count: usize,
    /// The delay from bound to running and ready.
    pub start_delay: Duration,
    /// The delay from the deletion timestamp to the pod's removal; at most the grace period.
    pub stop_delay: Duration,
    /// The period in which leases are renewed.
    pub heartbeat: Duration,
    /// Whether scheduler and kubelet record events.
    pub events: bool,
    /// Set where the nodes are real ones. Then nothing stands in for their kubelets, and the driver's
    /// volumes are folders below this one.
    pub real_volumes: Option<PathBuf>,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            count: 3,
            start_delay: Duration::from_millis(300),
            stop_delay: Duration::from_millis(100),
            heartbeat: Duration::from_secs(10),
            events: true,
            real_volumes: None,
        }
    }
}

/// Changes how nodes behave while they run. Cheap to clone.
#[derive(Clone, Default)]
pub struct Steering {
    state: Arc<Mutex<Steered>>,
}

#[derive(Default)]
struct Steered {
    dead: HashSet<Istr>,
    /// Those that work again and have not reported it yet.
    returned: HashSet<Istr>,
    held: bool,
    kept: HashSet<Istr>,
}

impl Steering {
    fn state(&self) -> MutexGuard<'_, Steered> {
        self.state.lock()
    }

    /// Stops a node: it does not renew its lease and does not write to its pods any more.
    pub fn kill(&self, node: &str) {
        self.state().dead.insert(Istr::new(node));
    }

    /// Lets a dead node work again, and report that it is ready.
    pub fn revive(&self, node: &str) {
        let mut state = self.state();
        if state.dead.remove(node) {
            state.returned.insert(Istr::new(node));
        }
    }

    /// Holds all pods, so that none becomes ready, or releases them. They continue within a second
    /// of the release.
    pub fn hold(&self, held: bool) {
        self.state().held = held;
    }

    /// Keeps a pod of this name from being stopped when it is deleted, or releases it. It stops
    /// within a second of the release.
    pub fn keep(&self, pod: &str, kept: bool) {
        let names = &mut self.state().kept;
        if kept {
            names.insert(Istr::new(pod));
        } else {
            names.remove(pod);
        }
    }

    fn is_kept(&self, pod: &str) -> bool {
        self.state().kept.contains(pod)
    }

    fn is_dead(&self, node: &str) -> bool {
        self.state().dead.contains(node)
    }

    fn has_returned(&self, node: &str) -> bool {
        self.state().returned.contains(node)
    }

    /// Records that the node has reported that it works again.
    fn clear_returned(&self, node: &str) {
        self.state().returned.remove(node);
    }

    fn is_held(&self) -> bool {
        self.state().held
    }
}

/// The parts of a stand-in.
struct StandIn<'a> {
    factory: &'a SharedInformerFactory,
    client: Client,
    clock: SharedClock,
    /// `None` records no events.
    recorder: Option<Recorder>,
    stop: StopToken,
}

/// A scheduler and nodes for any API server, the sandbox's or a real one.
pub struct StandIns {
    pub steering: Steering,
    stop: StopToken,
    tasks: TaskGroup,
    factory: SharedInformerFactory,
    events: EventBroadcaster,
}

impl StandIns {
    /// Starts the stand-ins with an administrator's `client`. Beside real nodes these are only the
    /// scheduler and the provisioner.
    pub fn start(client: &Client, clock: &SharedClock, options: NodeOptions) -> StandIns {
        let factory = SharedInformerFactory::new(ClientSource::new(client.clone()), clock.clone());
        let steering = Steering::default();
        let events = EventBroadcaster::new(client.clone(), clock.clone());
        let (stop, tasks) = (StopToken::new(), TaskGroup::new());
        let stand_in = |component: &str| StandIn {
            factory: &factory,
            client: client.clone(),
            clock: clock.clone(),
            recorder: options.events.then(|| events.recorder(component)),
            stop: stop.clone(),
        };
        // The sidecars are named after their driver.
        let driver_part = |sidecar: &str| stand_in(&format!("{}_{sidecar}", driver::DRIVER));
        tasks.spawn(scheduler::scheduler(stand_in("default-scheduler")));
        let of_provisioner = driver_part("provisioner");
        tasks.spawn(driver::provisioner(of_provisioner, options.real_volumes.clone()));
        if options.real_volumes.is_none() {
            tasks.spawn(driver::resizer(driver_part("resizer")));
            tasks.spawn(attacher::attacher(driver_part("attacher")));
            tasks.spawn(mounts::mounts(stand_in("kubelet"), steering.clone()));
            tasks.spawn(kubelet::kubelet(stand_in("kubelet"), options, steering.clone()));
        }
        factory.start(&stop);
        StandIns { steering, stop, tasks, factory, events }
    }

    /// Starts the picking of leaders among LeaseCandidates, which an API server does itself.
    pub fn coordinate_elections(&self, client: &Client, clock: &SharedClock) {
        let stand_in = StandIn {
            factory: &self.factory,
            client: client.clone(),
            clock: clock.clone(),
            recorder: None,
            stop: self.stop.clone(),
        };
        self.tasks.spawn(coordinator::coordinator(stand_in));
        self.factory.start(&self.stop);
    }

    pub async fn stop(self) {
        self.stop.stop();
        self.tasks.join().await;
        self.events.shutdown().await;
        self.factory.shutdown().await;
    }
}
