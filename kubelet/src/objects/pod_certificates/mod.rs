//! Certificates of pods, which signers issue by PodCertificateRequests. The keys are made here, and
//! exist in memory and in the pods' volumes alone: after a restart of the kubelet all are requested
//! again. Upstream: `pkg/kubelet/podcertificate`.

mod keys;
mod state;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use event_listener::Event;
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::cache::{Deleted, EventHandler, Lister, Scope, SharedIndexInformer};
use kube_controller_manager::client::{self, Client};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{
    PodCertificateRequest, Resource, ResourceType, ServiceAccount,
};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken, notify_all};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::keys::NewKey;
pub use self::state::Credentials;
use self::state::{MAX_JITTER, Pending, Request, State};
use super::{Changes, Unavailable, served_versions, spawn, tokens};
use crate::causes::chain;
use crate::events;
use crate::node::own::OwnNode;
use crate::pod::{Pod, PodExt, Uid};

/// Each certificate is looked after once in one to two times this period. Upstream:
/// `runRefreshPass`.
const PERIOD: Duration = Duration::from_secs(60);
/// The first delay after a failure; each further one doubles it. Upstream:
/// `DefaultTypedControllerRateLimiter`.
const FIRST_RETRY: Duration = Duration::from_millis(5);

/// The source of a volume: the volume's name, and the place among its sources.
pub(super) type Place = (String, usize);
/// The credentials of a source, or why there are none.
pub(super) type KnownCertificate = Result<Credentials, Unavailable>;

/// The certificates of all pods. Cheap to clone: clones are the same.
#[derive(Clone)]
pub(super) struct PodCertificates(Arc<Inner>);

struct Inner {
    client: Client,
    own: OwnNode,
    clock: SharedClock,
    changes: Changes,
    stop: StopToken,
    /// Those of this node.
    requests: SharedIndexInformer<Request>,
    lister: Lister<Request>,
    /// The requests are followed from the first pod that needs a certificate.
    followed: Once,
    /// Held while a key is made: one of RSA takes seconds of a processor.
    making: Arc<async_lock::Mutex<()>>,
    pods: Mutex<BTreeMap<Uid, OfPod>>,
}

/// The certificates of one pod.
struct OfPod {
    /// Ends the tasks that look after them.
    stop: StopToken,
    /// One of its requests has changed.
    changed: Arc<Event>,
    certificates: BTreeMap<Place, Certificate>,
}

struct Certificate {
    signer: String,
    state: State,
}

/// What the task of one certificate is about.
struct Projection {
    pod: Arc<Pod>,
    place: Place,
    source: core::PodCertificateProjection,
    changed: Arc<Event>,
}

impl PodCertificates {
    /// Creates it without certificates. Everything ends with `stop`.
    pub(super) fn new(
        client: Client,
        own: OwnNode,
        clock: SharedClock,
        changes: Changes,
        stop: StopToken,
    ) -> PodCertificates {
        let scope = Scope {
            field_selector: Some(format!("spec.nodeName={}", own.name())),
            ..Scope::all(PodCertificateRequest::RESOURCE)
        };
        let source = ClientSource::new(client.clone());
        let requests = SharedIndexInformer::new(source, scope, clock.clone());
        let inner = Arc::new(Inner {
            client,
            own,
            clock,
            changes,
            stop,
            lister: requests.lister(),
            requests,
            followed: Once::new(),
            making: Arc::default(),
            pods: Mutex::default(),
        });
        inner.requests.add_handler("pod-certificates", Follower(inner.clone()), None);
        PodCertificates(inner)
    }

    /// Requests and renews the certificates of a pod, until it is forgotten. Upstream: `TrackPod`.
    pub(super) fn track(&self, pod: &Pod) {
        let inner = &self.0;
        let uid = pod.uid();
        let mut pods = inner.pods.lock();
        let mut sources = sources(pod).peekable();
        if pods.contains_key(&uid) || sources.peek().is_none() {
            return;
        }
        inner.followed.call_once(|| drop(task::spawn(inner.clone().follow())));
        let (pod, stop) = (Arc::new(pod.clone()), inner.stop.child());
        let changed = Arc::<Event>::default();
        let mut certificates = BTreeMap::new();
        for (place, source) in sources {
            let certificate =
                Certificate { signer: source.signer_name.clone(), state: State::default() };
            certificates.insert(place.clone(), certificate);
            let (pod, changed) = (pod.clone(), changed.clone());
            let projection = Projection { pod, place, source: source.clone(), changed };
            let inner = inner.clone();
            spawn(&stop, async move { inner.keep(projection).await });
        }
        pods.insert(uid, OfPod { stop, changed, certificates });
    }

    /// Forgets the keys and certificates of a pod that has ended. Upstream: `ForgetPod`.
    pub(super) fn forget(&self, uid: &Uid) {
        if let Some(of_pod) = self.0.pods.lock().remove(uid) {
            of_pod.stop.stop();
        }
    }

    /// Returns what is known of the certificates of a pod. Upstream:
    /// `GetPodCertificateCredentialBundle`.
    pub(super) fn known(&self, uid: &Uid) -> BTreeMap<Place, KnownCertificate> {
        let pods = self.0.pods.lock();
        let of_pod = pods.get(uid).into_iter().flat_map(|of_pod| &of_pod.certificates);
        of_pod
            .map(|(place, certificate)| (place.clone(), certificate.state.credentials()))
            .collect()
    }

    /// Counts the certificates by signer and state. Upstream: `MetricReport`.
    pub(super) fn counts(&self) -> BTreeMap<(String, &'static str), i64> {
        let now = self.0.clock.now();
        let mut counts = BTreeMap::new();
        for certificate in self.0.pods.lock().values().flat_map(|pod| pod.certificates.values()) {
            let label = certificate.state.label(now);
            *counts.entry((certificate.signer.clone(), label)).or_default() += 1;
        }
        counts
    }
}

/// Returns the sources of a pod's volumes that are certificates.
fn sources(pod: &Pod) -> impl Iterator<Item = (Place, &core::PodCertificateProjection)> {
    pod.spec().volumes.iter().flatten().flat_map(|volume| {
        let sources = volume.projected.iter().flat_map(|volume| volume.sources.iter().flatten());
        sources.enumerate().filter_map(|(at, source)| {
            source.pod_certificate.as_ref().map(|source| ((volume.name.clone(), at), source))
        })
    })
}

/// Wakes the tasks of the pod whose request has changed.
struct Follower(Arc<Inner>);

impl Follower {
    fn notify(&self, request: &Request) {
        if let Some(of_pod) = self.0.pods.lock().get(&*request.spec.pod_uid) {
            notify_all(&of_pod.changed);
        }
    }
}

impl EventHandler<Request> for Follower {
    fn on_add(&mut self, request: &Arc<Request>, _: bool) {
        self.notify(request);
    }

    fn on_update(&mut self, _: &Arc<Request>, request: &Arc<Request>) {
        self.notify(request);
    }

    fn on_delete(&mut self, deleted: &Deleted<Request>) {
        self.notify(deleted.object());
    }
}

impl Inner {
    /// Follows the requests of this node, once the API server serves their kind, until stopped.
    async fn follow(self: Arc<Self>) {
        let resource = PodCertificateRequest::RESOURCE;
        let served = served_versions::until_served(&self.client, &self.clock, &resource, |_| {});
        if self.stop.unless_stopped(served).await.is_some() {
            self.requests.run(self.stop.clone()).await;
        }
    }

    /// Looks after one certificate, for ever: at its start, when one of the pod's requests changes,
    /// and from time to time. After a failure it tries again with growing delays.
    async fn keep(&self, projection: Projection) {
        self.requests.synced().await;
        self.own.synced().await;
        let (mut failures, mut unused) = (0, None);
        loop {
            let changed = projection.changed.listen();
            match self.advance(&projection, &mut unused).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    let (pod, (volume, source)) =
                        (projection.pod.display_name(), &projection.place);
                    log::error!(
                        "while handling podCertificate projected volume source {source} of volume \
                         {volume:?} of pod {pod}: {}",
                        chain(&error)
                    );
                }
            }
            let period = PERIOD.mul_f64(1.0 + fastrand::f64());
            self.clock.sleep(retry_delay(failures).unwrap_or(period).min(period)).or(changed).await;
        }
    }

    /// Takes in what has happened to a certificate and its request, and creates a request if one is
    /// due. `unused`: a key whose request could not be created.
    async fn advance(
        &self,
        projection: &Projection,
        unused: &mut Option<NewKey>,
    ) -> Result<(), Fault> {
        let Projection { pod, .. } = projection;
        let found = self.with_state(projection, |state| {
            let request = state.pending().and_then(|key| self.lister.get(key));
            state.observe(request.as_deref(), self.clock.now(), jitter())
        });
        let found = found.unwrap_or_default();
        for (reason, message) in found.reports {
            events::warning(pod, None, reason, message);
        }
        if found.is_answered {
            self.changes.notify([pod.uid()]);
        }
        if found.is_due {
            let pending = self.create(projection, unused).await?;
            self.with_state(projection, |state| state.created(pending));
        }
        Ok(())
    }

    /// Calls `change` with the state of a certificate; `None`: its pod was forgotten.
    fn with_state<T>(
        &self,
        Projection { pod, place, .. }: &Projection,
        change: impl FnOnce(&mut State) -> T,
    ) -> Option<T> {
        let mut pods = self.pods.lock();
        let of_pod = pods.get_mut(&pod.uid())?;
        of_pod.certificates.get_mut(place).map(|certificate| change(&mut certificate.state))
    }

    /// Makes a key, if there is no unused one, and creates the request for its certificate.
    /// Upstream: `createPodCertificateRequest`.
    async fn create(
        &self,
        projection: &Projection,
        unused: &mut Option<NewKey>,
    ) -> Result<Pending, Fault> {
        let Projection { pod, source, .. } = projection;
        let account = self.client.get::<ServiceAccount>(&tokens::account(pod)).await;
        let account = account.map_err(Fault::Account)?;
        let node = self.own.registered();
        let node_uid = node.and_then(|node| node.metadata.uid.clone());
        let node_uid = node_uid.ok_or_else(|| Fault::Node(self.own.name().to_owned()))?;
        let key = match unused.take() {
            Some(key) => key,
            None => self.make_key(&source.key_type).await.map_err(Fault::Key)?,
        };
        let resource = self.client.served(&PodCertificateRequest::RESOURCE);
        let node = (self.own.name(), &*node_uid);
        let body = body(&resource, projection, &account.meta.uid.to_string(), node, &key.request);
        let requests = self.client.resource(&PodCertificateRequest::RESOURCE);
        match requests.create::<Request>(pod.namespace(), &body).await {
            Ok(created) => Ok(Pending::new(key.pem, &created, self.clock.now(), jitter())),
            Err(error) => {
                *unused = Some(key);
                Err(Fault::Create(error))
            }
        }
    }

    /// Makes a key once no other one is made, as upstream.
    async fn make_key(&self, key_type: &str) -> Result<NewKey, keys::Error> {
        let (key_type, guard) = (key_type.to_owned(), self.making.lock_arc().await);
        // The work holds the guard: it continues when this future does not.
        let made = task::blocking(move || {
            let _guard = guard;
            keys::generate(&key_type)
        });
        made.await
    }
}

/// Builds a request. `node`: its name and uid.
fn body(
    resource: &ResourceType,
    Projection { pod, source, .. }: &Projection,
    account_uid: &str,
    node: (&str, &str),
    request: &[u8],
) -> Value {
    let (name, uid) = (pod.name(), pod.uid());
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": &*uid});
    json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {
            "namespace": pod.namespace(), "generateName": "req-", "ownerReferences": [owner],
        },
        "spec": {
            "signerName": source.signer_name,
            "podName": name,
            "podUID": &*uid,
            "serviceAccountName": pod.spec().service_account_name,
            "serviceAccountUID": account_uid,
            "nodeName": node.0,
            "nodeUID": node.1,
            "maxExpirationSeconds": source.max_expiration_seconds,
            "stubPKCS10Request": STANDARD.encode(request),
            "unverifiedUserAnnotations": source.user_annotations,
        },
    })
}

/// Returns a time that keeps the certificates of a node apart.
fn jitter() -> Duration {
    MAX_JITTER.mul_f64(fastrand::f64())
}

/// Returns the delay after this number of failures; `None`: there was none.
fn retry_delay(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?;
    Some(FIRST_RETRY.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)))
}

/// Why there is no new request.
#[derive(Debug)]
enum Fault {
    Account(client::Error),
    /// The API server does not have the Node of this name.
    Node(String),
    Key(keys::Error),
    Create(client::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Account(_) => f.write_str("while fetching service account"),
            Fault::Node(name) => {
                write!(f, "while getting node object from local cache: node {name:?} not found")
            }
            Fault::Key(_) => {
                f.write_str("while creating PodCertificateRequest: while generating keypair")
            }
            Fault::Create(_) => {
                f.write_str("while creating PodCertificateRequest: while creating on API")
            }
        }
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Fault::Account(error) | Fault::Create(error) => Some(error),
            Fault::Key(error) => Some(error),
            Fault::Node(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
