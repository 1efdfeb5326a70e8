//! The ClusterTrustBundles of the API server, for projected volumes.
//! Upstream: `pkg/kubelet/clustertrustbundle`.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_lite::FutureExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube_controller_manager::cache::{Deleted, EventHandler, Scope, SharedIndexInformer};
use kube_controller_manager::client::{self, Client, pem};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{Istr, LabelSelector, Meta, Object, Requirement, Selector};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};

use super::references::needs_bundles;
use super::served_versions::{self, BUNDLES};
use super::{Changes, Unavailable};
use crate::pod::{Pod, PodExt, Uid};

/// The longest text of a label selector. Upstream: `maxLabelSelectorLength`.
const MAX_SELECTOR_BYTES: usize = 100 * 1024;

/// What is known of the ClusterTrustBundles, at a time.
#[derive(Clone, Debug, Default)]
pub(super) enum KnownBundles {
    /// All of them, and the order of their certificates in files.
    Listed(Vec<Arc<TrustBundle>>, RandomState),
    /// The API server has not sent them yet.
    NotYet,
    /// It is not known whether the API server serves them.
    Failed(Arc<client::Error>),
    /// The feature gate is off, or the API server does not serve them. Upstream: `NoopManager`.
    #[default]
    Unsupported,
}

impl KnownBundles {
    /// Returns the certificates that a source of a volume selects, in PEM. Each is there once, and
    /// their order stays while the kubelet runs. An optional source may select none.
    /// Upstream: `GetTrustAnchorsByName`, `GetTrustAnchorsBySigner`.
    ///
    /// # Errors
    /// No bundle is selected, or the bundles are not known. The texts are upstream's.
    pub(super) fn anchors(
        &self,
        source: &core::ClusterTrustBundleProjection,
    ) -> Result<String, Unavailable> {
        let (bundles, order) = match self {
            KnownBundles::Listed(bundles, order) => (bundles.iter(), order),
            KnownBundles::NotYet => return Err(Unavailable::BundlesNotYet),
            KnownBundles::Failed(error) => return Err(Unavailable::BundleVersion(error.clone())),
            KnownBundles::Unsupported => return Err(Unavailable::NoBundles),
        };
        let (selected, absent): (Vec<_>, _) = match (&source.name, &source.signer_name) {
            (Some(name), _) => {
                let absent = Unavailable::NoBundle { name: name.clone() };
                (bundles.filter(|bundle| bundle.metadata.name == *name).collect(), absent)
            }
            (None, Some(signer)) => {
                let selector = selector(source.label_selector.as_ref())?;
                let is_selected = |bundle: &&Arc<TrustBundle>| {
                    bundle.spec.signer_name == signer.as_str()
                        && selector.matches(&bundle.metadata.labels)
                };
                (bundles.filter(is_selected).collect(), Unavailable::NoBundleOfSigner)
            }
            (None, None) => return Err(Unavailable::UnnamedBundle),
        };
        if selected.is_empty() && source.optional != Some(true) {
            return Err(absent);
        }
        let anchors = selected.iter().flat_map(|bundle| &bundle.spec.trust_bundle);
        let anchors: BTreeSet<&[u8]> = anchors.map(Vec::as_slice).collect();
        let mut anchors: Vec<&[u8]> = anchors.into_iter().collect();
        // As upstream: no program may rely on a certificate's place.
        anchors.sort_by_cached_key(|anchor| order.hash_one(anchor));
        Ok(anchors.into_iter().map(pem::certificate_text).collect())
    }

    pub(super) fn is_settled(&self) -> bool {
        !matches!(self, KnownBundles::NotYet)
    }

    /// What is known when the API server has these bundles alone, with the same order each time.
    #[cfg(test)]
    pub(super) fn for_tests(bundles: &[serde_json::Value]) -> KnownBundles {
        let bundle = |bundle: &serde_json::Value| {
            Arc::new(TrustBundle::deserialize(bundle).expect("a bundle"))
        };
        KnownBundles::Listed(bundles.iter().map(bundle).collect(), RandomState::new())
    }
}

/// Returns a selector that is ready to match: an absent one selects nothing, an empty one
/// everything.
fn selector(given: Option<&meta::LabelSelector>) -> Result<Selector, Unavailable> {
    let Some(given) = given else { return Ok(Selector::nothing()) };
    let labels = given.match_labels.iter().flatten();
    let requirement = |given: &meta::LabelSelectorRequirement| Requirement {
        key: given.key.as_str().into(),
        operator: given.operator.as_str().into(),
        values: given.values.iter().flatten().map(|value| value.as_str().into()).collect(),
    };
    let selector = LabelSelector {
        match_labels: labels.map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        match_expressions: given.match_expressions.iter().flatten().map(requirement).collect(),
    };
    let selector = Selector::try_from(&selector).map_err(Unavailable::BundleSelector)?;
    match selector.to_string().len() {
        length if length > MAX_SELECTOR_BYTES => {
            Err(Unavailable::LongBundleSelector { length, max: MAX_SELECTOR_BYTES })
        }
        _ => Ok(selector),
    }
}

/// A ClusterTrustBundle, as far as volumes need it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TrustBundle {
    metadata: Meta,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    /// Empty: it is of no signer.
    signer_name: Istr,
    /// Certificates in DER.
    #[serde(deserialize_with = "certificates")]
    trust_bundle: Vec<Vec<u8>>,
}

/// Decodes certificates from PEM, once for all volumes.
fn certificates<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = pem::certificates(text.as_bytes()).into_iter();
    Ok(found.map(|certificate| certificate.to_vec()).collect())
}

impl Object for TrustBundle {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// All ClusterTrustBundles, which are watched while pods need them. Cheap to clone: clones are the
/// same. Upstream: `LazyInformerManager`.
#[derive(Clone)]
pub(super) struct TrustBundles(Arc<Inner>);

struct Inner {
    client: Client,
    clock: SharedClock,
    changes: Changes,
    stop: StopToken,
    order: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    users: BTreeSet<Uid>,
    /// `None`: there are no users.
    watch: Option<Arc<Watch>>,
}

/// One watch of all bundles, from its first user to its last one.
struct Watch {
    stop: StopToken,
    progress: Mutex<Progress>,
}

enum Progress {
    /// The API server is asked for the served versions.
    Discovers,
    Failed(Arc<client::Error>),
    NotServed,
    Runs(SharedIndexInformer<TrustBundle>),
}

impl TrustBundles {
    /// Creates it without a watch. Everything ends with `stop`.
    pub(super) fn new(
        client: Client,
        clock: SharedClock,
        changes: Changes,
        stop: StopToken,
    ) -> TrustBundles {
        let (order, state) = (RandomState::new(), Mutex::default());
        TrustBundles(Arc::new(Inner { client, clock, changes, stop, order, state }))
    }

    /// Watches the bundles, if the pod needs them, until [`TrustBundles::forget`].
    pub(super) fn follow(&self, pod: &Pod) {
        if !needs_bundles(pod) {
            return;
        }
        let mut state = self.0.state.lock();
        state.users.insert(pod.uid());
        if state.watch.is_none() {
            let (stop, progress) = (self.0.stop.child(), Mutex::new(Progress::Discovers));
            let watch = Arc::new(Watch { stop, progress });
            state.watch = Some(watch.clone());
            drop(task::spawn(self.clone().run(watch)));
        }
    }

    /// Ends the watch if only this pod needed it.
    pub(super) fn forget(&self, uid: &Uid) {
        let mut state = self.0.state.lock();
        state.users.remove(uid);
        if state.users.is_empty()
            && let Some(watch) = state.watch.take()
        {
            watch.stop.stop();
        }
    }

    /// Returns what is known of the bundles.
    pub(super) fn known(&self) -> KnownBundles {
        let watch = self.0.state.lock().watch.clone();
        let Some(watch) = watch else { return KnownBundles::NotYet };
        match &*watch.progress.lock() {
            Progress::Runs(informer) if informer.has_synced() => {
                KnownBundles::Listed(informer.lister().list(), self.0.order.clone())
            }
            Progress::Discovers | Progress::Runs(_) => KnownBundles::NotYet,
            Progress::Failed(error) => KnownBundles::Failed(error.clone()),
            Progress::NotServed => KnownBundles::Unsupported,
        }
    }

    /// Has the pods that need bundles synced again.
    fn notify_users(&self) {
        let users = self.0.state.lock().users.clone();
        self.0.changes.notify(users);
    }

    /// Watches the bundles until the watch is stopped.
    async fn run(self, watch: Arc<Watch>) {
        if watch.stop.unless_stopped(self.until_served(&watch)).await.is_none() {
            return;
        }
        let source = ClientSource::new(self.0.client.clone());
        let informer = SharedIndexInformer::new(source, Scope::all(BUNDLES), self.0.clock.clone());
        informer.add_handler("trust-bundles", Follower(self.clone()), None);
        *watch.progress.lock() = Progress::Runs(informer.clone());
        let synced = async {
            informer.synced().await;
            self.notify_users();
            std::future::pending().await
        };
        synced.or(informer.run(watch.stop.clone())).await;
    }

    /// Waits until the API server serves the bundles. Upstream asks no more once the answer was that
    /// it does not.
    async fn until_served(&self, watch: &Watch) {
        let report = |fault: Option<client::Error>| {
            let failed = |error| Progress::Failed(Arc::new(error));
            *watch.progress.lock() = fault.map_or(Progress::NotServed, failed);
            // Those who wait get the fault.
            self.0.changes.notify([]);
        };
        served_versions::until_served(&self.0.client, &self.0.clock, &BUNDLES, report).await;
    }
}

/// Notifies the users of bundles that have changed. Those of the first list are synced by `run`.
struct Follower(TrustBundles);

impl EventHandler<TrustBundle> for Follower {
    fn on_add(&mut self, _: &Arc<TrustBundle>, is_initial: bool) {
        if !is_initial {
            self.0.notify_users();
        }
    }

    fn on_update(&mut self, _: &Arc<TrustBundle>, _: &Arc<TrustBundle>) {
        self.0.notify_users();
    }

    fn on_delete(&mut self, _: &Deleted<TrustBundle>) {
        self.0.notify_users();
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::clock::SystemClock;
    use serde_json::{Value, json};

    use super::*;

    fn bundle(name: &str, signer: &str, labels: Value, certificates: &[&str]) -> Value {
        let certificates = certificates.iter().map(|text| pem::certificate_text(text.as_bytes()));
        let text: String = certificates.collect();
        json!({
            "metadata": {"name": name, "labels": labels, "resourceVersion": "1"},
            "spec": {"signerName": signer, "trustBundle": text},
        })
    }

    fn anchors(known: &KnownBundles, source: &Value) -> Result<String, String> {
        let mut source = source.clone();
        source["path"] = json!("p");
        let source = serde_json::from_value(source).expect("a source");
        known.anchors(&source).map_err(|error| error.to_string())
    }

    /// The certificates of a file, sorted.
    fn contents(text: &str) -> Vec<String> {
        let found = pem::certificates(text.as_bytes());
        let text = |der: &[u8]| String::from_utf8(der.to_vec()).expect("text");
        let mut found: Vec<String> = found.iter().map(|one| text(one)).collect();
        found.sort();
        found
    }

    #[test]
    fn bundles_are_selected_by_name_or_by_signer_and_labels() {
        let known = KnownBundles::for_tests(&[
            bundle("plain", "", json!({"k": "a"}), &["1", "2"]),
            bundle("s:a", "x/s", json!({"k": "a"}), &["3", "4", "3"]),
            bundle("s:b", "x/s", json!({"k": "b"}), &["4", "5"]),
            bundle("t:a", "x/t", json!({"k": "a"}), &["6"]),
        ]);
        let absent = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \
                      \"n\" not found";
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        let label = |value: &str| json!({"matchLabels": {"k": value}});
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]});
        let values: Vec<String> = (0..1_800).map(|number| format!("{number:063}")).collect();
        let long = expression("In", json!(values));
        for (source, expected) in [
            (json!({"name": "plain"}), Ok("1 2")),
            (json!({"name": "s:a"}), Ok("3 4")),
            (json!({"name": "n"}), Err(absent)),
            (json!({"name": "n", "optional": false}), Err(absent)),
            (json!({"name": "n", "optional": true}), Ok("")),
            (json!({"name": "plain", "optional": true}), Ok("1 2")),
            (json!({"signerName": "x/s", "labelSelector": {}}), Ok("3 4 5")),
            (json!({"signerName": "x/s", "labelSelector": label("b")}), Ok("4 5")),
            (
                json!({"signerName": "x/s", "labelSelector": expression("NotIn", json!(["b"]))}),
                Ok("3 4"),
            ),
            (json!({"signerName": "x/s", "labelSelector": label("c")}), Err(none)),
            (json!({"signerName": "x/s", "labelSelector": label("c"), "optional": true}), Ok("")),
            (json!({"signerName": "x/s"}), Err(none)),
            (json!({"signerName": "x/s", "optional": true}), Ok("")),
            (json!({"signerName": "x/u", "labelSelector": {}}), Err(none)),
            (
                json!({"signerName": "x/s", "labelSelector": expression("Gt", json!(["1"]))}),
                Err("while parsing label selector: \"Gt\" is not a valid label selector operator"),
            ),
            (
                json!({"signerName": "x/s", "labelSelector": long, "optional": true}),
                Err("label selector length (115206) is larger than 102400"),
            ),
            (
                json!({}),
                Err("ClusterTrustBundle projection requires either name or signerName to be set"),
            ),
        ] {
            let found = anchors(&known, &source).map(|text| contents(&text).join(" "));
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{source}");
        }
    }

    #[test]
    fn certificates_alone_are_written_as_go_writes_them() {
        let certificate = pem::certificate_text(b"certificate");
        for (given, expected) in [
            (certificate.clone(), certificate.as_str()),
            (format!("text\r\n\n{}more", certificate.replace('\n', "\r\n")), &certificate),
            (certificate.repeat(2), &certificate),
            (format!("{}{certificate}", pem::text("PUBLIC KEY", b"key")), &certificate),
            (String::new(), ""),
        ] {
            let mut bundle = bundle("b", "", json!({}), &[]);
            bundle["spec"]["trustBundle"] = json!(given);
            let known = KnownBundles::for_tests(&[bundle]);
            assert_eq!(anchors(&known, &json!({"name": "b"})).as_deref(), Ok(expected), "{given}");
        }
    }

    #[test]
    fn order_stays_while_the_kubelet_runs_and_changes_with_its_restart() {
        let numbers: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let (first, second) = numbers.split_at(20);
        let halves = [bundle("a", "x/s", json!({}), first), bundle("b", "x/s", json!({}), second)];
        let mut turned = halves.clone();
        turned.reverse();
        let source = json!({"signerName": "x/s", "labelSelector": {}});
        let of = |known: &KnownBundles| anchors(known, &source).expect("certificates");
        let known = KnownBundles::for_tests(&halves);
        let restarted = KnownBundles::for_tests(&turned);
        assert_eq!(of(&known), of(&known));
        assert_ne!(of(&known), of(&restarted));
        let (KnownBundles::Listed(_, order), KnownBundles::Listed(bundles, _)) =
            (&known, &restarted)
        else {
            panic!("both are listed");
        };
        // The order of the cache does not count.
        assert_eq!(of(&KnownBundles::Listed(bundles.clone(), order.clone())), of(&known));
        assert_eq!(contents(&of(&known)), contents(&of(&restarted)));
    }

    #[test]
    fn all_pods_share_a_watch_that_ends_with_the_last_of_them() {
        let config = client::Config::new("http://127.0.0.1:1".to_owned());
        let (clock, (again, _pods)) = (SystemClock::shared(), async_channel::unbounded());
        let client = Client::new(config, clock.clone()).expect("a client");
        let (changed, stop) = (Arc::default(), StopToken::new());
        let bundles = TrustBundles::new(client, clock, Changes { changed, again }, stop.clone());
        let pod = |uid: &str, source: Value| -> Pod {
            let volumes = json!([{"name": "v", "projected": {"sources": [source]}}]);
            let spec = json!({"containers": [], "volumes": volumes});
            let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": spec});
            serde_json::from_value(pod).expect("a pod")
        };
        let watch = || bundles.0.state.lock().watch.clone();
        bundles.follow(&pod("other", json!({"configMap": {"name": "m"}})));
        assert!(watch().is_none());
        let source = json!({"clusterTrustBundle": {"name": "b", "path": "p"}});
        let pods = ["a", "b"].map(|uid| pod(uid, source.clone()));
        pods.iter().for_each(|pod| bundles.follow(pod));
        let first = watch().expect("a watch");
        bundles.follow(&pods[0]);
        bundles.forget(&pods[0].uid());
        assert!(Arc::ptr_eq(&first, &watch().expect("a watch")) && !first.stop.is_stopped());
        bundles.forget(&pods[1].uid());
        assert!(watch().is_none() && first.stop.is_stopped());
        bundles.follow(&pods[0]);
        let second = watch().expect("a watch");
        assert!(!second.stop.is_stopped());
        stop.stop();
        assert!(second.stop.is_stopped());
    }

    #[test]
    fn optional_bundles_are_waited_for() {
        let source = json!({"name": "b", "optional": true});
        let unsupported =
            "ClusterTrustBundle projection is not supported in static kubelet mode".to_owned();
        for (known, expected) in [
            (KnownBundles::Unsupported, unsupported),
            (KnownBundles::NotYet, "ClusterTrustBundle informer has not yet synced".to_owned()),
            (
                KnownBundles::Failed(Arc::new(client::Error::Path("away".to_owned()))),
                format!(
                    "failed to ensure informer manager for ClusterTrustBundles: failed to \
                     determine which informer manager to choose: {}",
                    client::Error::Path("away".to_owned())
                ),
            ),
        ] {
            assert_eq!(anchors(&known, &source), Err(expected));
        }
    }
}
