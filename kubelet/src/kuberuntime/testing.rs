//! A node of a test, whose runtime answers as the test says.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;
use kube_controller_manager::clock::SystemClock;
use kube_controller_manager::task::StopToken;
use serde_json::json;

use super::{Manager, Node, garbage};
use crate::allocation::Checkpoint;
use crate::cgroups::{Cgroups, SystemCgroups};
use crate::cri::testing::FakeRuntime;
use crate::images::{Images, credentials};
use crate::locks::Locks;
use crate::node::network::NetworkState;
use crate::node::own::OwnNode;
use crate::node::pressure::NodePressure;
use crate::objects::Objects;
use crate::objects::folder::LocalObjects;
use crate::prober::Probes;
use crate::runtime::backoff::Backoff;
use crate::runtime::dns::Resolvers;
use crate::user_namespaces::{HostIds, UserNamespaces};
use crate::volumes::{Folders, VolumeManager};

/// As many host ids as a pod has.
const IDS: u32 = 1 << 16;

/// The node's folder, removed when dropped, and its runtime.
pub(crate) struct TestNode {
    pub(crate) root: PathBuf,
    pub(crate) runtime: FakeRuntime,
}

impl TestNode {
    /// Makes the folder of a test, and starts the runtime.
    pub(crate) fn start(
        test: &str,
        answers: impl Fn(&str) -> Result<Vec<u8>, &'static str> + Send + Sync + 'static,
    ) -> TestNode {
        let root = std::env::temp_dir().join(format!("kubelet-node-{test}-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder");
        let runtime = FakeRuntime::start(&root, answers);
        TestNode { root, runtime }
    }

    /// Returns a kubelet's calls to the runtime, with or without cgroups by class.
    pub(crate) fn manager(&self, cgroups: Option<Arc<Cgroups>>) -> Manager {
        let clock = SystemClock::shared();
        let (runtime, images) = self.runtime.services(&clock);
        let folders = Folders { root: self.root.clone(), logs: self.root.join("logs") };
        folders.make().expect("folders");
        let objects = Arc::new(Objects::new(LocalObjects::default(), clock.clone()));
        let ids = HostIds { first: IDS, count: IDS };
        let user_namespaces = UserNamespaces::new(folders.pods(), ids, IDS, 1).expect("ids");
        let (again, stop) = (async_channel::unbounded().0, StopToken::new());
        Manager {
            runtime: runtime.clone(),
            runtime_name: "fake".to_owned(),
            images: Images::new(
                images,
                clock.clone(),
                None,
                credentials::Files::default(),
                None,
                objects.clone(),
                None,
            ),
            probes: Probes::new(runtime, folders.clone(), clock.clone(), again, stop),
            volumes: VolumeManager::for_tests(folders.clone()),
            actuated: self.checkpoint("actuated_pods_state"),
            folders,
            user_namespaces: Arc::new(user_namespaces),
            objects,
            node: node(),
            clock,
            backoff: Backoff::new(Duration::from_secs(10), Duration::from_secs(300)).into(),
            starts: Locks::default(),
            dead: garbage::Policy::default(),
            cgroups,
            classes: Arc::default(),
            cgroup_features: OnceCell::new(),
        }
    }

    /// Opens the file of this name with the resources of pods.
    pub(crate) fn checkpoint(&self, name: &str) -> Checkpoint {
        Checkpoint::open(self.root.join(name)).expect("a checkpoint")
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Describes a machine with one CPU, whose network is ready.
fn node() -> Node {
    let network = NetworkState::default();
    network.set(None);
    let own = OwnNode::for_tests("1", "1Gi", "");
    let allocatable = json!({"cpu": "1", "memory": "1Gi", "pods": "110"});
    let status = json!({"status": {"allocatable": allocatable}});
    own.set_initial(serde_json::from_value(status).expect("a node"));
    Node {
        name: "n".to_owned(),
        own,
        pressure: NodePressure::new(Duration::ZERO),
        network,
        cpus: 1,
        memory_bytes: 1 << 30,
        page_sizes: Vec::new(),
        resolvers: Resolvers::default(),
        cgroup_root: String::new(),
        system_cgroups: SystemCgroups::default(),
        seccomp_default: false,
        single_process_oom_kill: false,
    }
}
