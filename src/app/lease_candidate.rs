//! The candidate for a lease in a coordinated election: an object of kind LeaseCandidate has the
//! versions of this process, and the API server picks the leader among the candidates that answer
//! its pings. Upstream: client-go's `leaderelection.LeaseCandidate`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::client_builder::SimpleClients;
use super::connect::{Connection, user_agent};
use crate::cache::{Lister, Scope, SharedIndexInformer, SharedInformerFactory};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::{
    Change, Controller, ControllerContext, ControllerContextParts, Next, Profile, Queue,
    QueuePolicy, SyncResult,
};
use crate::objects::{self, ObjectKey, Resource, Timestamp};
use crate::options::{Options, Release};
use crate::server::health::Check;
use crate::task::StopToken;

const NAME: &str = "leasecandidate";
/// The candidate with the oldest emulated version leads: during an upgrade no new feature is used
/// before the last old process has ended.
const STRATEGY: &str = "OldestEmulationVersion";
/// The candidate is renewed, or made again, at least this often.
const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// This process as a candidate for the main lease.
pub(super) struct LeaseCandidate {
    factory: SharedInformerFactory,
    informer: SharedIndexInformer<objects::LeaseCandidate>,
    controller: Controller,
}

impl LeaseCandidate {
    /// Builds the candidate of a coordinated election, with an informer and a controller that
    /// renews it. `identity`: of the contender; the candidate has the same name.
    ///
    /// # Errors
    /// When there is no client.
    pub fn new(
        options: &Arc<Options>,
        connection: &Arc<dyn Connection>,
        identity: &str,
        clock: &SharedClock,
    ) -> Result<LeaseCandidate, String> {
        let streams = options.feature_gates.enabled("WatchListClient");
        let reader = connection.client(&user_agent(options.program, "lease-candidate"));
        let source = connection.source(reader, streams);
        // Upstream also resyncs this informer. That has no effect here, because the one object is
        // renewed as often.
        let factory = SharedInformerFactory::new(source, clock.clone());
        let context = ControllerContext::new(ControllerContextParts {
            options: options.clone(),
            factory: factory.clone(),
            clients: Arc::new(SimpleClients {
                program: options.program,
                connection: connection.clone(),
            }),
            clock: clock.clone(),
            extension: None,
        });
        let mut controller = Controller::new(Profile::new(NAME), &context)?;
        let key = ObjectKey::new(&options.leader_elect_resource_namespace, identity);
        let scope = Scope {
            namespace: Some(key.namespace.to_string()),
            field_selector: Some(format!("metadata.name={identity}")),
            ..Scope::all(objects::LeaseCandidate::RESOURCE)
        };
        let informer = factory.informer_for::<objects::LeaseCandidate>(scope.clone());
        let candidates = controller.lister_of::<objects::LeaseCandidate>(scope);
        let renewal = Arc::new(Renewal {
            client: controller.client(),
            clock: clock.clone(),
            candidates: candidates.clone(),
            lease: options.leader_elect_resource_name.clone(),
            release: options.release(),
        });
        let queue = controller.queue(QueuePolicy::default());
        controller.watch(
            &candidates,
            &queue,
            |change: Change<'_, objects::LeaseCandidate>, queue: &Queue| {
                if let Change::Updated { new, .. } = change
                    && new.spec.is_pinged()
                {
                    queue.add(new.meta.key());
                }
            },
        );
        let first = queue.clone();
        controller.at_start(move || first.add(key));
        controller.sync(queue, &renewal, Renewal::sync);
        Ok(LeaseCandidate { factory, informer, controller })
    }

    /// Returns a health check that fails until the candidate's cache has synced.
    pub fn check(&self) -> Check {
        let informer = self.informer.clone();
        Arc::new(move || match informer.has_synced() {
            true => Ok(()),
            false => Err("1 informers not started yet: [*v1beta1.LeaseCandidate]".into()),
        })
    }

    /// Keeps the candidate until stopped. The object stays: the API server removes candidates that
    /// are not renewed.
    pub async fn run(self, stop: StopToken) {
        self.factory.start(&stop);
        self.controller.run(stop).await;
        self.factory.shutdown().await;
    }
}

/// Creates and renews the LeaseCandidate of this process.
struct Renewal {
    client: Client,
    clock: SharedClock,
    candidates: Lister<objects::LeaseCandidate>,
    lease: String,
    release: Release,
}

impl Renewal {
    /// Creates the candidate, or renews it: when the API server has pinged it, and each
    /// [`RENEWAL`].
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let now = self.clock.now();
        match self.candidates.get(&key) {
            None => {
                let verbs = self.client.resource(&objects::LeaseCandidate::RESOURCE);
                let candidate = candidate(&key, &self.lease, self.release, now);
                verbs.create::<Value>(&key.namespace, &candidate).await?;
            }
            Some(_) => {
                let renewed = self.client.modify::<objects::LeaseCandidate>(&key, |live| {
                    live["spec"]["renewTime"] = now.to_micro_string().into();
                    true
                });
                renewed.await?;
            }
        }
        Ok(Next::After(RENEWAL))
    }
}

/// Returns a new LeaseCandidate that stands for `lease`.
fn candidate(key: &ObjectKey, lease: &str, release: Release, now: Timestamp) -> Value {
    json!({
        "apiVersion": objects::LeaseCandidate::RESOURCE.api_version(),
        "kind": objects::LeaseCandidate::RESOURCE.kind,
        "metadata": { "name": &*key.name, "namespace": &*key.namespace },
        "spec": {
            "leaseName": lease,
            "binaryVersion": release.version().trim_start_matches('v'),
            "emulationVersion": format!("{release}.0"),
            "renewTime": now.to_micro_string(),
            "strategy": STRATEGY,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_names_its_versions_and_its_lease() {
        let key = ObjectKey::new("kube-system", "host_uid");
        let now: Timestamp = "2026-05-01T10:00:01.123456Z".parse().expect("a time");
        let made = candidate(&key, "kube-controller-manager", Release::V1_35, now);
        assert_eq!(
            made,
            json!({
                "apiVersion": "coordination.k8s.io/v1beta1", "kind": "LeaseCandidate",
                "metadata": { "name": "host_uid", "namespace": "kube-system" },
                "spec": {
                    "leaseName": "kube-controller-manager",
                    "binaryVersion": "1.36.2", "emulationVersion": "1.35.0",
                    "renewTime": "2026-05-01T10:00:01.123456Z",
                    "strategy": "OldestEmulationVersion",
                },
            })
        );
    }
}
