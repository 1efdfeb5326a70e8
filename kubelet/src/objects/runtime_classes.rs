//! The RuntimeClasses of the API server. Upstream: `pkg/kubelet/runtimeclass`.

use std::sync::Arc;

use futures_lite::FutureExt;
use kube_controller_manager::cache::{
    Deleted, EventHandler, Lister, Scope, SharedIndexInformer, Source,
};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Meta, Object, ObjectKey, ResourceType};
use kube_controller_manager::task::{self, StopToken};
use serde::Deserialize;

use super::watches::Watches;
use super::{Key, Kind, Unavailable};

const RUNTIME_CLASSES: ResourceType =
    ResourceType::fixed("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", false);

/// All RuntimeClasses.
pub(super) struct RuntimeClasses {
    informer: SharedIndexInformer<RuntimeClass>,
    lister: Lister<RuntimeClass>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeClass {
    metadata: Meta,
    handler: String,
}

impl Object for RuntimeClass {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl RuntimeClasses {
    /// Starts an informer of the RuntimeClasses, which runs until stopped. Pods that wait for a
    /// class are synced again when it comes.
    pub(super) fn start(
        server: Arc<dyn Source>,
        clock: SharedClock,
        waiting: Watches,
        stop: &StopToken,
    ) -> RuntimeClasses {
        let informer = SharedIndexInformer::new(server, Scope::all(RUNTIME_CLASSES), clock);
        informer.add_handler("runtime-classes", Follower(waiting.clone()), None);
        let (running, stop) = (informer.clone(), stop.clone());
        drop(task::spawn(async move {
            let synced = async {
                running.synced().await;
                waiting.notify_all();
                std::future::pending().await
            };
            synced.or(running.run(stop)).await;
        }));
        RuntimeClasses { lister: informer.lister(), informer }
    }

    /// Returns the runtime's handler of a class.
    ///
    /// # Errors
    /// There is no such class, or no list of them is complete yet.
    pub(super) fn handler(&self, class: &str) -> Result<String, Unavailable> {
        let kind = Kind::RuntimeClass;
        match self.lister.get(&ObjectKey::cluster(class)) {
            Some(found) => Ok(found.handler.clone()),
            None if !self.informer.has_synced() => Err(Unavailable::NotYet { kind }),
            None => Err(Unavailable::NotFound { kind, name: class.to_owned() }),
        }
    }
}

/// Notifies the users of a class that has come.
struct Follower(Watches);

impl EventHandler<RuntimeClass> for Follower {
    /// Has the pods that refer to a new class synced again. Those of the first list are synced by
    /// `start`.
    fn on_add(&mut self, class: &Arc<RuntimeClass>, is_initial: bool) {
        if !is_initial {
            let name = class.metadata.name.to_string();
            let kind = Kind::RuntimeClass;
            self.0.notify_users(&Key { kind, namespace: String::new(), name });
        }
    }

    fn on_update(&mut self, _: &Arc<RuntimeClass>, _: &Arc<RuntimeClass>) {}

    fn on_delete(&mut self, _: &Deleted<RuntimeClass>) {}
}
