//! Pods that an API server has bound to this node: an informer fills an `UndeltaStore`, whose whole
//! contents are the source's state. Mirror pods are among them.
//! Upstream: `pkg/kubelet/config/apiserver.go`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender};
use futures_lite::FutureExt;
use futures_lite::future::zip;
use kube_controller_manager::cache::{
    self, Deleted, EventHandler, Scope, SharedIndexInformer, UndeltaStore,
};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Resource;
use kube_controller_manager::task::StopToken;

use super::pod_config::{PodConfig, Source};
use crate::node::own::OwnNode;
use crate::pod::{Pod, PodExt};
use crate::whole_object::WholeObject;

/// Puts the pods of the informer into the store.
struct Filler(Arc<UndeltaStore<Pod>>);

impl Filler {
    fn set(&self, bound: &WholeObject<Pod>) {
        let pod = bound.object();
        self.0.add(pod.display_name(), pod.clone());
    }
}

impl EventHandler<WholeObject<Pod>> for Filler {
    fn on_add(&mut self, bound: &Arc<WholeObject<Pod>>, _: bool) {
        self.set(bound);
    }

    fn on_update(&mut self, _: &Arc<WholeObject<Pod>>, bound: &Arc<WholeObject<Pod>>) {
        self.set(bound);
    }

    fn on_delete(&mut self, deleted: &Deleted<WholeObject<Pod>>) {
        self.0.delete(&deleted.object().object().display_name());
    }
}

/// Watches the pods of `node`, until stopped. Nothing is set before the first list is complete:
/// what runs is not ended while the API server cannot be reached. They are listed once it is known
/// whether the server has the Node, which decides whether they are admitted.
pub async fn run(
    server: Arc<dyn cache::Source>,
    node: OwnNode,
    config: PodConfig,
    clock: SharedClock,
    stop: StopToken,
) {
    if stop.unless_stopped(node.synced()).await.is_none() {
        return;
    }
    log::info!("Watching apiserver");
    let field_selector = Some(format!("spec.nodeName={}", node.name()));
    let scope =
        Scope { field_selector, ..Scope::all(kube_controller_manager::objects::Pod::RESOURCE) };
    let informer = SharedIndexInformer::<WholeObject<Pod>>::new(server, scope, clock);
    let is_complete = Arc::new(AtomicBool::new(false));
    // Only the newest state matters.
    let (states, pushed) = async_channel::bounded(1);
    let store = Arc::new(UndeltaStore::new(push(states, is_complete.clone())));
    let registration = informer.add_handler("pod-config", Filler(store.clone()), None);
    let begin = async {
        registration.synced().await;
        is_complete.store(true, Ordering::Release);
        store.resync();
        std::future::pending().await
    };
    let running = zip(informer.run(stop.clone()), forward(pushed, &config).or(stop.stopped()));
    let running = async {
        running.await;
    };
    begin.or(running).await;
}

/// Returns the callback by which the store passes on its pods. It drops them until the first list
/// of pods is complete.
fn push(states: Sender<Vec<Arc<Pod>>>, is_complete: Arc<AtomicBool>) -> cache::PushFn<Pod> {
    Box::new(move |pods| {
        if is_complete.load(Ordering::Acquire) {
            // Closed only when the kubelet stops.
            let _ = states.force_send(pods);
        }
    })
}

/// Passes each state of the store to `config`.
async fn forward(pushed: Receiver<Vec<Arc<Pod>>>, config: &PodConfig) {
    while let Ok(pods) = pushed.recv().await {
        config.set(Source::Api, pods).await;
    }
}
