//! Tokens of service accounts for pods. Upstream: `pkg/kubelet/token`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::client::{self, Client};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ObjectKey, Resource, ServiceAccount, Timestamp};
use kube_controller_manager::task::StopToken;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Changes, Unavailable, spawn};
use crate::pod::{Pod, PodExt, Uid};

/// A token is renewed at this age, though it lives longer. Upstream: `maxTTL`.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Renewals begin up to this number of seconds earlier. Upstream: `maxJitter`.
const MAX_JITTER_SECONDS: f64 = 10.0;

/// The token that a source of a volume asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TokenSpec {
    /// Empty: the API server.
    pub(super) audience: String,
    pub(super) seconds: Option<i64>,
    /// The uid that the account must have; `None`: any.
    pub(super) account_uid: Option<String>,
}

impl TokenSpec {
    pub(super) fn of(source: &core::ServiceAccountTokenProjection) -> TokenSpec {
        let audience = source.audience.clone().unwrap_or_default();
        TokenSpec { audience, seconds: source.expiration_seconds, account_uid: None }
    }
}

/// What is known of a token.
#[derive(Clone, Debug)]
pub(super) enum KnownToken {
    /// The token, and when it expires.
    Found(Arc<str>, Timestamp),
    Failed(Unavailable),
    /// The API server has not answered yet.
    NotYet,
}

impl KnownToken {
    pub(super) fn is_settled(&self) -> bool {
        !matches!(self, KnownToken::NotYet)
    }

    /// Returns the token, and when it expires.
    pub(super) fn found(self) -> Result<(Arc<str>, Timestamp), Unavailable> {
        match self {
            KnownToken::Found(token, expires) => Ok((token, expires)),
            KnownToken::Failed(error) => Err(error),
            KnownToken::NotYet => Err(Unavailable::TokenNotYet),
        }
    }
}

/// The tokens of all pods. Cheap to clone: clones are the same.
#[derive(Clone)]
pub(super) struct Tokens(Arc<Inner>);

struct Inner {
    client: Client,
    clock: SharedClock,
    changes: Changes,
    stop: StopToken,
    tokens: Mutex<BTreeMap<Uid, BTreeMap<TokenSpec, Token>>>,
}

/// The state of one token.
#[derive(Default)]
struct Token {
    /// The last one that was issued.
    issued: Option<Issued>,
    /// Why the last request failed.
    fault: Option<Arc<client::Error>>,
    /// Whether a request is under way.
    is_requested: bool,
}

#[derive(Clone)]
struct Issued {
    token: Arc<str>,
    /// `None`: the API server has not said it; the token is kept then.
    lifetime: Option<Duration>,
    expires: Timestamp,
    /// When it was requested, on the monotonic clock: the API server's clock may show another time,
    /// and either clock may be set. Upstream compares `expires` with this machine's time.
    requested: Duration,
}

impl Issued {
    /// Returns whether it has to be renewed: in the last fifth of its life, or after a day.
    /// `jitter`: how much earlier. Upstream: `requiresRefresh`.
    fn is_due(&self, now: Duration, jitter: Duration) -> bool {
        let age = now.saturating_sub(self.requested) + jitter;
        self.lifetime.is_some_and(|lifetime| {
            // The API server counts its life in whole seconds.
            let fifth = Duration::from_secs(lifetime.as_secs() * 20 / 100);
            age > MAX_AGE || age > lifetime - fifth
        })
    }

    fn is_expired(&self, now: Duration) -> bool {
        self.lifetime.is_some_and(|lifetime| now.saturating_sub(self.requested) > lifetime)
    }
}

impl Token {
    /// Returns what is known of the token: it is good, failed, or not there yet. `account`:
    /// NAMESPACE/NAME, for the error.
    fn known(&self, account: impl Fn() -> String, now: Duration) -> KnownToken {
        match (&self.issued, &self.fault) {
            // A failed renewal does not count while the token is good.
            (Some(issued), _) if !issued.is_expired(now) => {
                KnownToken::Found(issued.token.clone(), issued.expires)
            }
            _ if self.is_requested => KnownToken::NotYet,
            (None, Some(error)) => KnownToken::Failed(Unavailable::Token(error.clone())),
            (Some(_), Some(error)) => {
                let (account, source) = (account(), error.clone());
                KnownToken::Failed(Unavailable::TokenExpired { account, source })
            }
            (_, None) => KnownToken::NotYet,
        }
    }

    /// Returns whether a request has to be sent.
    fn is_due(&self, now: Duration, jitter: Duration) -> bool {
        !self.is_requested && self.issued.as_ref().is_none_or(|issued| issued.is_due(now, jitter))
    }
}

impl Tokens {
    /// Creates an empty set of tokens. Requests end with `stop`.
    pub(super) fn new(
        client: Client,
        clock: SharedClock,
        changes: Changes,
        stop: StopToken,
    ) -> Tokens {
        Tokens(Arc::new(Inner { client, clock, changes, stop, tokens: Mutex::default() }))
    }

    /// Requests those of these tokens that are missing or have to be renewed, each in a task of its
    /// own. A request that has failed is sent again.
    pub(super) fn request(&self, pod: &Pod, specs: &BTreeSet<TokenSpec>) {
        let now = self.0.clock.monotonic();
        for spec in specs {
            // Whole seconds, as upstream.
            let jitter = Duration::from_secs((fastrand::f64() * MAX_JITTER_SECONDS) as u64);
            {
                let mut tokens = self.0.tokens.lock();
                let token = tokens.entry(pod.uid()).or_default().entry(spec.clone()).or_default();
                if !token.is_due(now, jitter) {
                    continue;
                }
                token.is_requested = true;
            }
            let (inner, spec) = (self.0.clone(), spec.clone());
            let (uid, account, body) = (pod.uid(), account(pod), body(pod, &spec));
            let fetch = async move { inner.fetch(uid, spec, account, body, now).await };
            spawn(&self.0.stop, fetch);
        }
    }

    /// Returns what is known of these tokens.
    pub(super) fn known(
        &self,
        pod: &Pod,
        specs: &BTreeSet<TokenSpec>,
    ) -> BTreeMap<TokenSpec, KnownToken> {
        let now = self.0.clock.monotonic();
        let tokens = self.0.tokens.lock();
        let of_pod = tokens.get(&pod.uid());
        let known = |spec: &TokenSpec| {
            let token = of_pod.and_then(|tokens| tokens.get(spec));
            let account = || account(pod).to_string();
            let known = token.map_or(KnownToken::NotYet, |token| token.known(account, now));
            (spec.clone(), known)
        };
        specs.iter().map(known).collect()
    }

    /// Reads the account of a pod from the API server.
    pub(super) async fn account(&self, pod: &Pod) -> Result<ServiceAccount, Unavailable> {
        let read = self.0.client.get(&account(pod)).await;
        read.map_err(|error| Unavailable::Account(Arc::new(error)))
    }

    /// Forgets the tokens of a pod that is gone.
    pub(super) fn forget(&self, uid: &Uid) {
        self.0.tokens.lock().remove(uid);
    }
}

impl Inner {
    /// Requests a token, and keeps the answer or the fault. Pods that wait for it are notified.
    /// `now`: the monotonic time.
    async fn fetch(
        &self,
        uid: Uid,
        spec: TokenSpec,
        account: ObjectKey,
        body: Value,
        now: Duration,
    ) {
        let accounts = self.client.resource(&ServiceAccount::RESOURCE).subresource("token");
        let answer = accounts.create_for::<Answer>(&account, &body).await;
        // A failed request is sent again by the pod's next sync.
        let again = answer.is_ok().then(|| uid.clone());
        {
            let mut tokens = self.tokens.lock();
            // The pod may be gone.
            let Some(token) = tokens.get_mut(&uid).and_then(|tokens| tokens.get_mut(&spec)) else {
                return;
            };
            token.is_requested = false;
            match answer {
                Ok(answer) => {
                    token.issued = Some(answer.issued(now));
                    token.fault = None;
                }
                Err(error) => {
                    log::error!("Couldn't update token of {account}: {error}");
                    token.fault = Some(Arc::new(error));
                }
            }
        }
        self.changes.notify(again);
    }
}

/// Returns the key of a pod's account.
pub(super) fn account(pod: &Pod) -> ObjectKey {
    let name = pod.spec().service_account_name.as_deref().unwrap_or_default();
    ObjectKey::new(pod.namespace(), name)
}

/// Builds the request for a token that is good while the pod exists.
fn body(pod: &Pod, spec: &TokenSpec) -> Value {
    let audiences: Vec<&str> =
        Some(spec.audience.as_str()).filter(|audience| !audience.is_empty()).into_iter().collect();
    let uid = spec.account_uid.as_ref();
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": uid.map(|uid| json!({"uid": uid})).unwrap_or_else(|| json!({})),
        "spec": {
            "audiences": audiences,
            "expirationSeconds": spec.seconds,
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.name(), "uid": &*pod.uid(),
            },
        },
    })
}

#[derive(Deserialize)]
struct Answer {
    spec: AnswerSpec,
    status: AnswerStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerSpec {
    /// The life that the API server has granted.
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerStatus {
    token: String,
    expiration_timestamp: Timestamp,
}

impl Answer {
    /// Returns the token, which was requested at this monotonic time.
    fn issued(self, requested: Duration) -> Issued {
        let Answer { spec, status } = self;
        Issued {
            token: status.token.into(),
            lifetime: spec.expiration_seconds.map(Duration::from_secs),
            expires: status.expiration_timestamp,
            requested,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn issued(at: u64, lifetime: Option<u64>) -> Issued {
        Issued {
            token: "t".into(),
            lifetime: lifetime.map(Duration::from_secs),
            expires: Timestamp::default(),
            requested: Duration::from_secs(at),
        }
    }

    #[test]
    fn tokens_are_renewed_at_four_fifths_of_their_life_and_after_a_day() {
        for (lifetime, jitter, at, is_due) in [
            (HOUR, 0, 0, false),
            (HOUR, 0, 2880, false),
            (HOUR, 0, 2881, true),
            (HOUR, 9, 2871, false),
            (HOUR, 9, 2872, true),
            (HOUR, 0, 5000, true),
            (600, 0, 480, false),
            (600, 0, 481, true),
            (25 * HOUR, 0, 20 * HOUR, false),
            (25 * HOUR, 0, 20 * HOUR + 1, true),
            (48 * HOUR, 0, 24 * HOUR, false),
            (48 * HOUR, 0, 24 * HOUR + 1, true),
            (48 * HOUR, 9, 24 * HOUR - 9, false),
            (48 * HOUR, 9, 24 * HOUR - 8, true),
            (0, 0, 1, true),
        ] {
            let (token, jitter) = (issued(1_000, Some(lifetime)), Duration::from_secs(jitter));
            let found = token.is_due(Duration::from_secs(1_000 + at), jitter);
            assert_eq!(found, is_due, "{lifetime} {jitter:?} {at}");
        }
        let (endless, late) = (issued(1_000, None), Duration::from_secs(1_000 * HOUR));
        assert!(!endless.is_due(late, Duration::ZERO) && !endless.is_expired(late));
    }

    #[test]
    fn token_is_used_until_it_expires() {
        let fault = || Some(Arc::new(client::Error::Config("no".to_owned())));
        for (issued_at, has_failed, is_requested, at, expected) in [
            (None, false, true, 0, "not yet"),
            (None, true, false, 0, "failed to fetch token: "),
            (None, true, true, 0, "not yet"),
            (Some(0), false, false, 0, "t"),
            (Some(0), true, false, 3000, "t"),
            (Some(0), false, true, 3600, "t"),
            (Some(0), true, false, 3601, "token n/a expired and refresh failed: "),
            (Some(0), false, true, 3601, "not yet"),
        ] {
            let token = Token {
                issued: issued_at.map(|at| issued(at, Some(HOUR))),
                fault: has_failed.then(fault).flatten(),
                is_requested,
            };
            let text = match token.known(|| "n/a".to_owned(), Duration::from_secs(at)) {
                KnownToken::Found(token, _) => token.to_string(),
                KnownToken::NotYet => "not yet".to_owned(),
                KnownToken::Failed(error) => error.to_string(),
            };
            let case = (issued_at, has_failed, is_requested, at);
            assert!(text.starts_with(expected), "{case:?}: {text}");
            // An old token is renewed meanwhile, by one request.
            let now = Duration::from_secs(at);
            let is_due = !is_requested && (issued_at.is_none() || at > 2880);
            assert_eq!(token.is_due(now, Duration::ZERO), is_due, "{case:?}");
        }
    }

    #[test]
    fn request_is_bound_to_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"serviceAccountName": "a", "containers": []},
        }))
        .expect("a pod");
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        for (audience, seconds, audiences) in
            [("", None, json!([])), ("vault", Some(600), json!(["vault"]))]
        {
            let audience = audience.to_owned();
            let body = body(&pod, &TokenSpec { audience, seconds, account_uid: None });
            let expected = json!({
                "audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound,
            });
            assert_eq!(body["spec"], expected);
        }
        let (audience, account_uid) = ("vault".to_owned(), Some("v".to_owned()));
        let body = body(&pod, &TokenSpec { audience, seconds: None, account_uid });
        assert_eq!(body["metadata"], json!({"uid": "v"}));
        assert_eq!(account(&pod).to_string(), "n/a");
    }
}
