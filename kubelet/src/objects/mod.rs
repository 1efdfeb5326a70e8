//! What pods refer to: ConfigMaps, Secrets, RuntimeClasses, Services, ClusterTrustBundles, and tokens
//! and certificates of their accounts. Static pods have the objects of a folder, pods of the API
//! server those of the server.
//!
//! [`Objects::read`] gives a pod's objects at a time, as [`PodObjects`]: each is found, missing, or
//! not fetched yet. It waits a second at most, for tokens ten. When an object comes later, or
//! changes, the pods that refer to it are synced again.

mod error;
pub mod folder;
mod pod_certificates;
mod references;
mod registry;
mod runtime_classes;
mod served_versions;
mod services;
mod tokens;
mod trust_bundles;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ServiceAccount, Timestamp};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken, notify_all};

pub use self::error::{Error, Unavailable};
pub use self::pod_certificates::Credentials;
pub use self::references::{Use, references};

use self::folder::LocalObjects;
use self::pod_certificates::{KnownCertificate, Place, PodCertificates};
use self::runtime_classes::RuntimeClasses;
use self::services::Services;
use self::tokens::{KnownToken, TokenSpec, Tokens};
use self::trust_bundles::{KnownBundles, TrustBundles};
use self::watches::Watches;
use crate::node::own::OwnNode;
use crate::pod::{Pod, PodExt, Uid};

/// The longest wait for objects that are not fetched yet. Upstream: the poll of `objectCache.Get`.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The longest wait for tokens that are requested, in all. Upstream waits for the answer.
const MAX_TOKEN_WAIT: Duration = Duration::from_secs(10);
/// Objects that are not read for this number of sync periods are watched no more.
/// Upstream: `NewWatchBasedManager`.
const IDLE_PERIODS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
    /// Its namespace is empty.
    RuntimeClass,
}

/// The key of a RuntimeClass's only content.
const HANDLER: &str = "handler";

/// What a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

/// The content of an object, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// `data`, of a Secret also `stringData`.
    pub data: BTreeMap<String, Vec<u8>>,
    /// A ConfigMap's `binaryData`, which variables do not see.
    pub binary_data: BTreeMap<String, Vec<u8>>,
    /// That of a Secret.
    pub secret_type: String,
    /// That of a Secret: one that is created again under its name is another one.
    pub uid: String,
}

impl Contents {
    /// Returns the content of a key, for a file.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key).or_else(|| self.binary_data.get(key)).map(Vec::as_slice)
    }
}

/// What is known of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Known {
    Found(Arc<Contents>),
    Missing,
    /// The API server has not answered yet.
    #[default]
    NotYet,
}

/// What is known of the objects that a pod refers to, at a time.
#[derive(Clone, Debug, Default)]
pub struct PodObjects {
    objects: BTreeMap<Key, Known>,
    tokens: BTreeMap<TokenSpec, KnownToken>,
    /// `None`: a static pod, or the feature gate is off.
    certificates: Option<BTreeMap<Place, KnownCertificate>>,
    bundles: KnownBundles,
}

impl PodObjects {
    fn new(objects: BTreeMap<Key, Known>) -> PodObjects {
        PodObjects { objects, ..PodObjects::default() }
    }

    /// Returns the contents of an object.
    ///
    /// # Errors
    /// The object is missing or not fetched yet, or no registered pod refers to it. The texts are
    /// upstream's.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<&Contents, Unavailable> {
        let key = Key { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        match self.objects.get(&key) {
            Some(Known::Found(contents)) => Ok(contents),
            Some(Known::Missing) => Err(Unavailable::NotFound { kind, name: key.name }),
            Some(Known::NotYet) => Err(Unavailable::NotYet { kind }),
            None => Err(Unavailable::NotRegistered { namespace: key.namespace, name: key.name }),
        }
    }

    /// Returns the token of the pod's account for a source of a volume.
    ///
    /// # Errors
    /// It is not there yet, or could not be fetched; a static pod has none.
    pub fn token(&self, source: &core::ServiceAccountTokenProjection) -> Result<&str, Unavailable> {
        match self.tokens.get(&TokenSpec::of(source)) {
            Some(KnownToken::Found(token, _)) => Ok(token),
            Some(KnownToken::Failed(error)) => Err(error.clone()),
            Some(KnownToken::NotYet) => Err(Unavailable::TokenNotYet),
            None => Err(Unavailable::NoTokens),
        }
    }

    /// Returns the key and the certificates for a source of a volume: the one at this place among
    /// the volume's.
    ///
    /// # Errors
    /// They are not issued yet, or refused; a static pod has none, and no pod while the gate is off.
    pub fn certificate(&self, volume: &str, source: usize) -> Result<&Credentials, Unavailable> {
        let certificates = self.certificates.as_ref().ok_or(Unavailable::NoCertificates)?;
        match certificates.get(&(volume.to_owned(), source)) {
            Some(Ok(credentials)) => Ok(credentials),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Unavailable::CertificateNotYet),
        }
    }

    /// Returns the certificates of ClusterTrustBundles for a source of a volume, in PEM.
    ///
    /// # Errors
    /// There are none, or they are not known; a static pod has none. The texts are upstream's.
    pub fn trust_anchors(
        &self,
        source: &core::ClusterTrustBundleProjection,
    ) -> Result<String, Unavailable> {
        self.bundles.anchors(source)
    }

    /// Returns whether the API server has answered for all objects and tokens.
    fn is_settled(&self) -> bool {
        self.has_objects() && self.tokens.values().all(KnownToken::is_settled)
    }

    /// Returns whether the API server has answered for all but tokens.
    fn has_objects(&self) -> bool {
        let is_issued =
            |known: &KnownCertificate| !matches!(known, Err(Unavailable::CertificateNotYet));
        self.objects.values().all(|known| *known != Known::NotYet)
            && self.certificates.iter().flat_map(BTreeMap::values).all(is_issued)
            && self.bundles.is_settled()
    }

    /// What a static pod finds in a folder with these objects.
    #[cfg(test)]
    pub fn for_tests(pod: &Pod, texts: &[&str]) -> PodObjects {
        folder::State::for_tests(texts).known(references(pod))
    }

    /// What a pod finds while the API server has not answered.
    #[cfg(test)]
    pub fn not_yet(pod: &Pod) -> PodObjects {
        PodObjects::new(references(pod).into_iter().map(|key| (key, Known::NotYet)).collect())
    }

    /// The same, with these ClusterTrustBundles.
    #[cfg(test)]
    pub fn with_bundles(self, bundles: &[serde_json::Value]) -> PodObjects {
        PodObjects { bundles: KnownBundles::for_tests(bundles), ..self }
    }

    /// The same, with a token for this source.
    #[cfg(test)]
    pub fn with_token(
        mut self,
        source: &core::ServiceAccountTokenProjection,
        token: &str,
    ) -> PodObjects {
        self.tokens
            .insert(TokenSpec::of(source), KnownToken::Found(token.into(), Timestamp::default()));
        self
    }

    /// The same, with a certificate for this source, or why there is no certificate.
    #[cfg(test)]
    pub fn with_certificate(
        mut self,
        volume: &str,
        source: usize,
        known: Result<Credentials, Unavailable>,
    ) -> PodObjects {
        let certificates = self.certificates.get_or_insert_default();
        certificates.insert((volume.to_owned(), source), known);
        self
    }
}

/// Who is notified of changes of objects.
#[derive(Clone)]
struct Changes {
    changed: Arc<Event>,
    /// Gets the pods that have to be synced again.
    again: Sender<Uid>,
}

impl Changes {
    /// Wakes those who wait for objects, and has these pods synced again.
    fn notify(&self, pods: impl IntoIterator<Item = Uid>) {
        notify_all(&self.changed);
        for uid in pods {
            // Closed only when the kubelet stops.
            let _ = self.again.try_send(uid);
        }
    }
}

/// The objects of all pods.
pub struct Objects {
    folder: LocalObjects,
    /// `None`: there is no API server.
    server: Option<ServerObjects>,
    clock: SharedClock,
}

struct ServerObjects {
    watches: Watches,
    tokens: Tokens,
    services: Services,
    classes: RuntimeClasses,
    /// `None`: the feature gate is off.
    certificates: Option<PodCertificates>,
    /// `None`: the feature gate is off.
    bundles: Option<TrustBundles>,
    changes: Changes,
}

impl Objects {
    /// Creates the objects of a folder, without those of an API server.
    pub fn new(folder: LocalObjects, clock: SharedClock) -> Objects {
        Objects { folder, server: None, clock }
    }

    /// Adds the objects of an API server, which are followed until stopped. `again` gets the pods
    /// whose objects have changed. `sync_period`: that of pods.
    pub fn with_server(
        self,
        client: &Client,
        again: Sender<Uid>,
        sync_period: Duration,
        stop: &StopToken,
    ) -> Objects {
        let clock = &self.clock;
        let changes = Changes { changed: Arc::default(), again };
        let source = ClientSource::new(client.clone());
        let max_idle = sync_period * IDLE_PERIODS;
        let watches =
            Watches::new(source.clone(), clock.clone(), max_idle, changes.clone(), stop.clone());
        let services = Services::start(source.clone(), clock.clone(), watches.clone(), stop);
        let classes = RuntimeClasses::start(source, clock.clone(), watches.clone(), stop);
        let tokens = Tokens::new(client.clone(), clock.clone(), changes.clone(), stop.clone());
        let (bundles, certificates) = (None, None);
        let server =
            ServerObjects { watches, tokens, services, classes, certificates, bundles, changes };
        Objects { server: Some(server), ..self }
    }

    /// Adds certificates for the pods of the API server on this Node, which are requested there and
    /// renewed until stopped. For objects that have that server.
    pub fn with_certificates(mut self, client: &Client, own: OwnNode, stop: &StopToken) -> Objects {
        if let Some(server) = &mut self.server {
            let (clock, changes) = (self.clock.clone(), server.changes.clone());
            let stop = stop.clone();
            let certificates = PodCertificates::new(client.clone(), own, clock, changes, stop);
            server.certificates = Some(certificates);
        }
        self
    }

    /// Adds the ClusterTrustBundles of the API server, which [`Objects::with_server`] has added.
    /// They are watched while pods need them. Without them their sources in volumes fail.
    pub fn with_trust_bundles(mut self, client: &Client, stop: &StopToken) -> Objects {
        if let Some(server) = &mut self.server {
            let (changes, clock) = (server.changes.clone(), self.clock.clone());
            let bundles = TrustBundles::new(client.clone(), clock, changes, stop.clone());
            server.bundles = Some(bundles);
        }
        self
    }

    /// Returns the objects of the API server, for a pod that is from there; `None`: a static pod,
    /// or no server.
    fn server_of(&self, pod: &Pod) -> Option<&ServerObjects> {
        self.server.as_ref().filter(|_| !pod.is_static())
    }

    /// Follows what a pod that begins or has changed refers to, until [`Objects::forget`].
    /// Upstream: `RegisterPod`.
    pub fn follow(&self, pod: &Pod) {
        if let Some(server) = self.server_of(pod) {
            server.watches.register(&pod.uid(), references(pod));
            if let Some(certificates) = &server.certificates {
                certificates.track(pod);
            }
            if let Some(bundles) = &server.bundles {
                bundles.follow(pod);
            }
        }
    }

    /// Forgets what a pod that has ended refers to, and its keys. Upstream: `UnregisterPod`,
    /// `DeleteServiceAccountToken`, `ForgetPod`.
    pub fn forget(&self, uid: &Uid) {
        if let Some(server) = &self.server {
            server.watches.forget(uid);
            server.tokens.forget(uid);
            if let Some(certificates) = &server.certificates {
                certificates.forget(uid);
            }
            if let Some(bundles) = &server.bundles {
                bundles.forget(uid);
            }
        }
    }

    /// Returns what is known of the objects and tokens that a pod refers to for this use. Waits for
    /// those that are not fetched yet: for a second at most, for tokens longer. The future may be
    /// dropped at any time.
    pub async fn read(&self, pod: &Pod, what: Use<'_>) -> PodObjects {
        let keys = what.keys(pod);
        let Some(server) = self.server_of(pod) else { return self.folder.now().known(keys) };
        let specs = what.tokens(pod);
        server.tokens.request(pod, &specs);
        let certificates = server.certificates.as_ref().filter(|_| matches!(what, Use::Volumes));
        let certificates_of = |all: &PodCertificates| all.known(&pod.uid());
        let bundles = server.bundles.as_ref().filter(|_| what.needs_bundles(pod));
        let now = || PodObjects {
            objects: server.watches.known(&keys),
            tokens: server.tokens.known(pod, &specs),
            certificates: certificates.map(certificates_of),
            bundles: bundles.map(TrustBundles::known).unwrap_or_default(),
        };
        let found = self.wait_settled(server, MAX_WAIT, now, PodObjects::is_settled).await;
        // Only tokens are missing: they may take longer.
        match found.has_objects() && !found.is_settled() {
            true => {
                let rest = MAX_TOKEN_WAIT.saturating_sub(MAX_WAIT);
                self.wait_settled(server, rest, now, PodObjects::is_settled).await
            }
            false => found,
        }
    }

    /// Returns a token of the pod's account for each wanted audience (empty: the API server) and
    /// life in seconds, in the same order. Each comes with its audience and the end of its life.
    /// They are renewed in time, if they are read again. The future may be dropped at any time.
    ///
    /// # Errors
    /// One is not there yet, or could not be fetched; a static pod has none.
    pub async fn tokens(
        &self,
        pod: &Pod,
        wanted: &[(String, Option<i64>)],
    ) -> Result<Vec<(String, Arc<str>, Timestamp)>, Unavailable> {
        let spec = |(audience, seconds): &(String, Option<i64>)| TokenSpec {
            audience: audience.clone(),
            seconds: *seconds,
            account_uid: None,
        };
        let mut known = self.known_tokens(pod, wanted.iter().map(spec).collect()).await?;
        let token = |one: &(String, Option<i64>)| {
            let found = known.remove(&spec(one)).unwrap_or(KnownToken::NotYet).found();
            found.map(|(token, expires)| (one.0.clone(), token, expires))
        };
        wanted.iter().map(token).collect()
    }

    /// Returns a token of the pod's account for a registry: for this audience, and only if the
    /// account has this uid. The future may be dropped at any time.
    ///
    /// # Errors
    /// It is not there yet, or could not be fetched; a static pod has none.
    pub async fn registry_token(
        &self,
        pod: &Pod,
        audience: &str,
        account_uid: &str,
    ) -> Result<Arc<str>, Unavailable> {
        let (audience, account_uid) = (audience.to_owned(), Some(account_uid.to_owned()));
        let spec = TokenSpec { audience, seconds: None, account_uid };
        let mut known = self.known_tokens(pod, BTreeSet::from([spec.clone()])).await?;
        let known = known.remove(&spec).unwrap_or(KnownToken::NotYet);
        known.found().map(|(token, _)| token)
    }

    /// Reads the account of a pod from the API server.
    ///
    /// # Errors
    /// It does not exist, or the server does not answer; a static pod has none.
    pub async fn account(&self, pod: &Pod) -> Result<ServiceAccount, Unavailable> {
        let server = self.server_of(pod).ok_or(Unavailable::NoAccounts)?;
        server.tokens.account(pod).await
    }

    /// Requests tokens for a pod, and returns what is known of them once the API server has
    /// answered, or after [`MAX_TOKEN_WAIT`].
    async fn known_tokens(
        &self,
        pod: &Pod,
        specs: BTreeSet<TokenSpec>,
    ) -> Result<BTreeMap<TokenSpec, KnownToken>, Unavailable> {
        let server = self.server_of(pod).ok_or(Unavailable::NoTokens)?;
        server.tokens.request(pod, &specs);
        let now = || server.tokens.known(pod, &specs);
        let is_settled =
            |known: &BTreeMap<TokenSpec, KnownToken>| known.values().all(KnownToken::is_settled);
        Ok(self.wait_settled(server, MAX_TOKEN_WAIT, now, is_settled).await)
    }

    /// Waits until `now` returns a value that is settled, and returns it. After `max_wait` returns
    /// the value at that time. Looks again after each change of the server's objects.
    async fn wait_settled<T>(
        &self,
        server: &ServerObjects,
        max_wait: Duration,
        now: impl Fn() -> T,
        is_settled: impl Fn(&T) -> bool,
    ) -> T {
        let settles = async {
            loop {
                let changed: EventListener = server.changes.changed.listen();
                let value = now();
                if is_settled(&value) {
                    return value;
                }
                changed.await;
            }
        };
        let late = async {
            self.clock.sleep(max_wait).await;
            now()
        };
        settles.or(late).await
    }

    /// Returns the runtime's handler of the pod's class; empty: the default one. Upstream:
    /// `LookupRuntimeHandler`.
    ///
    /// # Errors
    /// There is no such class, or it is not known yet.
    pub async fn handler(&self, pod: &Pod) -> Result<String, Unavailable> {
        let class = pod.spec().runtime_class_name.as_deref().unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let Some(server) = self.server_of(pod) else {
            let objects = self.folder.now().known(references(pod));
            let handler = objects.get(Kind::RuntimeClass, "", class)?.bytes(HANDLER);
            return Ok(String::from_utf8_lossy(handler.unwrap_or_default()).into_owned());
        };
        let handler = || server.classes.handler(class);
        let is_settled = |found: &Result<_, _>| !matches!(found, Err(Unavailable::NotYet { .. }));
        self.wait_settled(server, MAX_WAIT, handler, is_settled).await
    }

    /// Counts the certificates of pods by signer and state.
    pub fn certificate_counts(&self) -> BTreeMap<(String, &'static str), i64> {
        let certificates = self.server.as_ref().and_then(|server| server.certificates.as_ref());
        certificates.map(PodCertificates::counts).unwrap_or_default()
    }

    /// Returns the variables of Services for a pod's containers. Upstream: `getServiceEnvVarMap`.
    ///
    /// # Errors
    /// The pod is of the API server, and the Services are not known yet.
    pub async fn service_variables(&self, pod: &Pod) -> Result<Vec<(String, String)>, Unavailable> {
        // A static pod has the Services that are known.
        let Some(server) = &self.server else { return Ok(Vec::new()) };
        let variables = || server.services.variables(pod);
        let is_settled = |found: &Result<_, _>| found.is_ok();
        self.wait_settled(server, MAX_WAIT, variables, is_settled).await
    }
}

/// Runs a task of the objects until stopped.
fn spawn(stop: &StopToken, work: impl Future<Output = ()> + Send + 'static) {
    let stop = stop.clone();
    drop(task::spawn(async move { stop.unless_stopped(work).await.unwrap_or(()) }));
}
