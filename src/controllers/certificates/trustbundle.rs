//! Publishes the CA certificates of the API server in the ClusterTrustBundle of the signer
//! `kubernetes.io/kube-apiserver-serving`.
//! Upstream: `pkg/controller/certificates/clustertrustbundlepublisher`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::root_ca::root_ca;
use crate::cache::MetadataHandler;
use crate::client::{Client, Delete, ListOptions};
use crate::clock::SharedClock;
use crate::controllers::runner::MetadataCaches;
use crate::controllers::{Controller, Error, Next, Queue, QueuePolicy, SyncResult};
use crate::metrics::{exponential, metrics};
use crate::objects::{Meta, ObjectKey, ResourceType};
use crate::task::{Latch, StopToken};

/// The bundles. The client asks for them in the version that the server serves.
pub const BUNDLES: ResourceType = ResourceType::fixed(
    "certificates.k8s.io",
    "v1beta1",
    "ClusterTrustBundle",
    "clustertrustbundles",
    false,
);

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
/// The API demands it of a bundle with this signer, and of no other.
const NAME_PREFIX: &str = "kubernetes.io:kube-apiserver-serving:";

/// The time between two reads of discovery, while it is unknown whether bundles are served.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);

metrics! {
    static SYNCS: IntCounterVec["code"] = "clustertrustbundle_publisher_sync_total",
        "[ALPHA] Number of syncs that occurred in cluster trust bundle publisher.";
    static DURATION: HistogramVec["code"](exponential(0.001, 2.0, 15)) =
        "clustertrustbundle_publisher_sync_duration_seconds",
        "[ALPHA] The time it took to sync a cluster trust bundle.";
}

/// Sets up the controller `kube-apiserver-serving-clustertrustbundle-publisher-controller`; idle if
/// no root CA is known.
///
/// # Errors
/// When `--root-ca-file` cannot be used.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let root_ca_pem = root_ca(&c.options().root_ca_file, &c.client())?;
    if root_ca_pem.is_empty() {
        return Ok(());
    }
    let this = Arc::new(Publisher {
        client: c.client(),
        bundle: String::from_utf8_lossy(&root_ca_pem).into_owned(),
        clock: c.clock(),
    });
    let queue = c.queue(QueuePolicy::default());
    let ready = Latch::new();
    c.ready_when(&ready);
    let (publisher, bundle_queue, caches) = (this.clone(), queue.clone(), c.metadata_caches());
    c.background(|stop| async move { publisher.watch(caches, bundle_queue, ready, stop).await });
    c.sync(queue, &this, |this, _| this.sync());
    Ok(())
}

struct Publisher {
    client: Client,
    bundle: String,
    clock: SharedClock,
}

/// The one key: all of the signer's bundles are synced together.
const ALL_BUNDLES: &str = "";

/// Queues the key when a bundle of the signer changes.
struct BundleHandler {
    queue: Queue<&'static str>,
}

impl BundleHandler {
    /// Queues [`ALL_BUNDLES`] if the bundle with this metadata is the signer's.
    fn queue_if_signers(&self, meta: &Meta) {
        if meta.name.starts_with(NAME_PREFIX) {
            self.queue.add(ALL_BUNDLES);
        }
    }
}

impl MetadataHandler for BundleHandler {
    fn on_add(&mut self, meta: &Meta) {
        self.queue_if_signers(meta);
    }
    fn on_update(&mut self, _: &Meta, new: &Meta) {
        self.queue_if_signers(new);
    }
    fn on_delete(&mut self, meta: &Meta) {
        self.queue_if_signers(meta);
    }
}

impl Publisher {
    /// Watches the bundles until `stop`; only waits if they are not served at the start. Opens
    /// `ready` when they are listed, or are not served.
    async fn watch(
        &self,
        caches: MetadataCaches,
        queue: Queue<&'static str>,
        ready: Latch,
        stop: StopToken,
    ) {
        if stop.unless_stopped(self.are_served()).await != Some(true) {
            ready.open();
            return stop.stopped().await;
        }
        let informer = caches.informer(&BUNDLES);
        let handler = BundleHandler { queue: queue.clone() };
        let registration = informer.add_metadata_handler(&BUNDLES.kind, Box::new(handler));
        caches.start(&stop);
        if stop.unless_stopped(registration.synced()).await.is_some() {
            queue.add(ALL_BUNDLES);
            ready.open();
            stop.stopped().await;
        }
        informer.remove_metadata_handler(&registration);
        caches.release(&informer);
    }

    /// Returns whether the server serves the bundles in a version that the client knows. Retries
    /// while that is unknown.
    async fn are_served(&self) -> bool {
        loop {
            match self.client.discovery().await {
                Ok(found) => {
                    let ResourceType { group, version, kind, .. } = self.client.served(&BUNDLES);
                    if found.resource_for(&group, &version, &kind).is_some() {
                        return true;
                    }
                    if !found.has_failure_in(&group) {
                        log::info!(
                            "no known scheme version was found for clustertrustbundles, cannot \
                             start kube-apiserver-serving-clustertrustbundle-publisher-controller"
                        );
                        return false;
                    }
                    log::error!("discovery failed for ClusterTrustBundle");
                }
                Err(error) => log::error!("discovery failed for ClusterTrustBundle: {error}"),
            }
            self.clock.sleep(DISCOVERY_RETRY).await;
            self.client.reset_discovery();
        }
    }

    /// Publishes the bundle, and counts the sync by the HTTP code of its result: 200, or that of
    /// the error.
    async fn sync(self: Arc<Self>) -> SyncResult {
        let start = self.clock.monotonic();
        let result = self.publish().await;
        let code = match &result {
            Ok(()) => 200,
            Err(error) => error.api().and_then(|error| error.code()).unwrap_or(500),
        };
        let code = code.to_string();
        let took = self.clock.monotonic() - start;
        DURATION.with_label_values(&[code.as_str()]).observe(took.as_secs_f64());
        SYNCS.with_label_values(&[code.as_str()]).inc();
        result.map(|()| Next::Done)
    }

    /// Creates or corrects the bundle, and deletes the signer's other bundles. They are read from
    /// the API server: there are few, and they hardly change.
    async fn publish(&self) -> Result<(), Error> {
        let (verbs, resource) = (self.client.resource(&BUNDLES), self.client.served(&BUNDLES));
        let field_selector = Some(format!("spec.signerName={SIGNER}"));
        let options = ListOptions { field_selector, ..ListOptions::default() };
        let bundles = verbs.list::<Value>(None, &options).await?.items;
        let name = bundle_name(&self.bundle);
        let name_of = |bundle: &Value| bundle["metadata"]["name"].as_str().map(str::to_owned);
        let current = bundles.iter().find(|bundle| bundle["metadata"]["name"] == *name);
        match current {
            None => {
                let bundle = json!({
                    "apiVersion": resource.api_version(), "kind": resource.kind,
                    "metadata": { "name": name },
                    "spec": { "signerName": SIGNER, "trustBundle": self.bundle },
                });
                verbs.create::<Value>("", &bundle).await?;
            }
            Some(current) if current["spec"]["trustBundle"] != *self.bundle => {
                let mut bundle = current.clone();
                bundle["apiVersion"] = resource.api_version().into();
                bundle["kind"] = resource.kind.as_ref().into();
                bundle["spec"]["trustBundle"] = self.bundle.as_str().into();
                verbs.update::<Value>(&ObjectKey::cluster(&name), &bundle).await?;
            }
            Some(_) => {}
        }
        let mut result = Ok(());
        for old in bundles.iter().filter_map(name_of).filter(|old| *old != name) {
            match verbs.delete(&ObjectKey::cluster(&old), Delete::new()).await {
                Err(error) if !error.is_not_found() => {
                    log::error!(
                        "failed to remove a cluster trust bundle bundleName={old:?}: {error}"
                    );
                    result = Err(error.into());
                }
                _ => {}
            }
        }
        result
    }
}

/// Returns the name of the bundle with this PEM: the signer's prefix and a digest of the PEM, so
/// that new certificates get a new object.
fn bundle_name(bundle: &str) -> String {
    let mut name = NAME_PREFIX.to_owned();
    for byte in &Sha256::digest(bundle)[..12] {
        // Writing to a String does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_named_after_its_signer_and_content() {
        assert_eq!(
            bundle_name("test"),
            "kubernetes.io:kube-apiserver-serving:9f86d081884c7d659a2feaa0"
        );
    }
}
