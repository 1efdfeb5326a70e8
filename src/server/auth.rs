//! Who asks (client certificates, proxies' headers, bearer tokens) and whether they may.
//! Upstream: `apiserver/pkg/server/options` `DelegatingAuthenticationOptions` and
//! `DelegatingAuthorizationOptions`.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::Boxed;
use lru::LruCache;
use parking_lot::{Mutex, RwLock};
use rustls::RootCertStore;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::http::Chain;
use super::{Handler, Request, Response};
use crate::client::{Client, pem};
use crate::clock::SharedClock;
use crate::objects::{ResourceType, Timestamp};

/// Upstream: `user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
}

impl User {
    fn anonymous() -> User {
        User {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            ..User::default()
        }
    }

    fn authenticated(mut self) -> User {
        if !self.groups.iter().any(|group| group == "system:authenticated") {
            self.groups.push("system:authenticated".into());
        }
        self
    }
}

/// Asks the API server. Errors are for the log.
pub trait Reviewer: Send + Sync {
    /// Whether there is anybody to ask about tokens.
    fn knows_tokens(&self) -> bool;
    /// `None`: the token is nobody's.
    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>>;
    fn access(&self, user: &User, verb: &str, path: &str) -> Boxed<Result<bool, String>>;
}

const TOKEN_REVIEW: ResourceType =
    ResourceType::fixed("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", false);
const ACCESS_REVIEW: ResourceType = ResourceType::fixed(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    false,
);

/// Reviews by a kube-apiserver. Without a client there is nobody to ask about tokens, and no access.
pub struct ApiReviewer {
    pub authentication: Option<Client>,
    pub authorization: Option<Client>,
}

impl Reviewer for ApiReviewer {
    fn knows_tokens(&self) -> bool {
        self.authentication.is_some()
    }

    fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>> {
        let body = json!({
            "apiVersion": TOKEN_REVIEW.api_version(), "kind": "TokenReview",
            "spec": { "token": token },
        });
        let client = self.authentication.clone();
        Box::pin(async move {
            let Some(client) = client else { return Ok(None) };
            let answer = client.resource(&TOKEN_REVIEW).create::<Value>("", &body).await;
            Ok(reviewed_user(&answer.map_err(|error| error.to_string())?["status"]))
        })
    }

    fn access(&self, user: &User, verb: &str, path: &str) -> Boxed<Result<bool, String>> {
        let extra: HashMap<_, _> = user.extra.iter().cloned().collect();
        let body = json!({
            "apiVersion": ACCESS_REVIEW.api_version(), "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name, "uid": user.uid, "groups": user.groups, "extra": extra,
                "nonResourceAttributes": { "verb": verb, "path": path },
            },
        });
        let client = self.authorization.clone();
        Box::pin(async move {
            let Some(client) = client else { return Ok(false) };
            let answer = client.resource(&ACCESS_REVIEW).create::<Value>("", &body).await;
            let answer = answer.map_err(|error| error.to_string())?;
            Ok(answer["status"]["allowed"] == true && answer["status"]["denied"] != true)
        })
    }
}

fn reviewed_user(status: &Value) -> Option<User> {
    let strings = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(String::from)).collect()
    };
    let user = &status["user"];
    (status["authenticated"] == true).then(|| User {
        name: user["username"].as_str().unwrap_or_default().into(),
        uid: user["uid"].as_str().unwrap_or_default().into(),
        groups: strings(&user["groups"]),
        extra: user["extra"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.clone(), strings(values)))
            .collect(),
    })
}

/// Proxies that may name users in headers.
#[derive(Clone, Debug, Default)]
pub struct RequestHeader {
    pub ca: Option<Authorities>,
    /// Common names; empty: any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

/// Authorities of client certificates.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// # Errors
    /// When `pem` holds no certificate, or what is none.
    pub fn from_pem(pem: &[u8]) -> Result<Authorities, String> {
        let mut roots = RootCertStore::empty();
        for certificate in pem::certificates(pem) {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("no certificate in it".to_owned());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map(Authorities)
            .map_err(|error| error.to_string())
    }

    /// Who the first of `chain` names, when it leads to one of these authorities.
    ///
    /// # Errors
    /// Why it does not, for the log.
    pub fn user(&self, chain: &Chain, now: Timestamp) -> Result<User, String> {
        let now = Duration::from_micros(now.as_micros().max(0) as u64);
        let (own, between) = chain.split_first().ok_or("no certificate")?;
        self.0
            .verify_client_cert(own, between, UnixTime::since_unix_epoch(now))
            .map_err(|error| error.to_string())?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(own).map_err(|error| error.to_string())?;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().unwrap_or_default().to_string()
        };
        let subject = parsed.subject();
        Ok(User {
            name: subject.iter_common_name().next().map(text).unwrap_or_default(),
            groups: subject.iter_organization().map(text).collect(),
            ..User::default()
        })
    }
}

/// Whose certificates count, for clients and for proxies.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pub client_ca: Option<Authorities>,
    pub request_header: RequestHeader,
}

pub struct AuthConfig {
    pub trust: Trust,
    pub reviewer: Arc<dyn Reviewer>,
    pub token_ttl: Duration,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    /// Paths that need no authorization; one that ends in `*` stands for all it begins.
    pub always_allow: Vec<String>,
}

/// The filter before all handlers.
pub struct Auth {
    config: AuthConfig,
    trust: RwLock<Arc<Trust>>,
    clock: SharedClock,
    tokens: Cache<[u8; 32], Option<User>>,
    access: Cache<(User, String, String), bool>,
}

impl Auth {
    pub fn new(config: AuthConfig, clock: SharedClock) -> Arc<Auth> {
        let trust = RwLock::new(Arc::new(config.trust.clone()));
        let (tokens, access) = (Cache::default(), Cache::default());
        Arc::new(Auth { config, trust, clock, tokens, access })
    }

    /// Trusts these authorities from now on, and no others.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.write() = Arc::new(trust);
    }

    fn trust(&self) -> Arc<Trust> {
        self.trust.read().clone()
    }

    /// `inner`, for who may.
    pub fn wrap(self: Arc<Auth>, inner: Handler) -> Handler {
        Arc::new(move |request| {
            let (auth, inner) = (self.clone(), inner.clone());
            Box::pin(async move {
                match auth.check(&request).await {
                    Some(refusal) => refusal,
                    None => inner(request).await,
                }
            })
        })
    }

    /// The answer for who may not, `None` for who may.
    async fn check(&self, request: &Request) -> Option<Response> {
        let since = self.clock.monotonic();
        let user = self.authenticate(request).await;
        let took = self.clock.monotonic().saturating_sub(since);
        metrics::authenticated(user.as_ref().map(|user| user.name.as_str()), took);
        let Some(user) = user else {
            return Some(Response::status(401, "Unauthorized", "Unauthorized"));
        };
        let since = self.clock.monotonic();
        let allowed = self.authorize(&user, request).await;
        metrics::authorized(allowed, self.clock.monotonic().saturating_sub(since));
        if allowed {
            return None;
        }
        let (verb, path) = (verb(request), &request.path);
        Some(Response::status(
            403,
            "Forbidden",
            &format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name),
        ))
    }

    /// Who asks. `None`: credentials that are no good. Any good one is enough; who has none at all
    /// is anonymous.
    async fn authenticate(&self, request: &Request) -> Option<User> {
        let (now, chain) = (self.clock.now(), &request.peer);
        let mut faults = Vec::new();
        if !chain.is_empty() {
            let trust = self.trust();
            match proxied(&trust.request_header, request, now) {
                Ok(Some(user)) => return Some(user.authenticated()),
                Ok(None) => (),
                Err(fault) => faults.push(fault),
            }
            match trust.client_ca.as_ref().map(|ca| ca.user(chain, now)) {
                Some(Ok(user)) if !user.name.is_empty() => return Some(user.authenticated()),
                Some(Err(fault)) => faults.push(fault),
                _ => (),
            }
        }
        let bearer = request.header("authorization").and_then(|value| {
            let (scheme, token) = value.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        // Where nobody can judge tokens, one is as good as none.
        let token = bearer.filter(|token| !token.is_empty() && self.config.reviewer.knows_tokens());
        match token {
            Some(token) => self.owner(token).await,
            None if faults.is_empty() => Some(User::anonymous()),
            None => {
                log::error!("Unable to authenticate the request: {}", faults.join(", "));
                None
            }
        }
    }

    async fn owner(&self, token: &str) -> Option<User> {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.tokens.get(&key, self.clock.monotonic()) {
            return known;
        }
        match self.config.reviewer.token(token).await {
            Ok(user) => {
                let user = user.map(User::authenticated);
                let until = self.clock.monotonic() + self.config.token_ttl;
                self.tokens.put(key, user.clone(), until);
                user
            }
            Err(error) => {
                log::error!("Unable to authenticate the request: {error}");
                None
            }
        }
    }

    async fn authorize(&self, user: &User, request: &Request) -> bool {
        let path = &request.path;
        let bare = |path: &str| path.strip_prefix('/').unwrap_or(path).to_string();
        let allowed = |rule: &String| match bare(rule).strip_suffix('*') {
            Some(start) => bare(path).starts_with(start),
            None => bare(path) == bare(rule),
        };
        if self.config.always_allow.iter().any(allowed)
            || user.groups.iter().any(|group| group == "system:masters")
        {
            return true;
        }
        let verb = verb(request);
        let key = (user.clone(), verb.clone(), path.clone());
        if let Some(known) = self.access.get(&key, self.clock.monotonic()) {
            return known;
        }
        match self.config.reviewer.access(user, &verb, path).await {
            Ok(yes) => {
                let config = &self.config;
                let ttl = if yes { config.authorized_ttl } else { config.unauthorized_ttl };
                self.access.put(key, yes, self.clock.monotonic() + ttl);
                yes
            }
            Err(error) => {
                log::error!("Unable to authorize the request: {error}");
                false
            }
        }
    }
}

/// The user whom a trusted proxy names. `Err`: the certificate is no trusted proxy's.
fn proxied(
    config: &RequestHeader,
    request: &Request,
    now: Timestamp,
) -> Result<Option<User>, String> {
    let Some(ca) = &config.ca else { return Ok(None) };
    let proxy = ca.user(&request.peer, now)?.name;
    if !config.allowed_names.is_empty() && !config.allowed_names.contains(&proxy) {
        let allowed = &config.allowed_names;
        return Err(format!(
            "x509: subject with cn={proxy} is not in the allowed list: {allowed:?}"
        ));
    }
    let names = |header: &String| request.header(header).filter(|name| !name.is_empty());
    let Some(name) = config.username_headers.iter().find_map(names) else { return Ok(None) };
    let groups = config.group_headers.iter().flat_map(|header| request.headers.get_all(header));
    let mut extra: Vec<(String, Vec<String>)> = Vec::new();
    for (header, value) in &request.headers {
        let (header, Ok(value)) = (header.as_str(), value.to_str()) else { continue };
        let mut prefixes = config.extra_prefixes.iter().map(|p| p.to_ascii_lowercase());
        let Some(key) = prefixes.find_map(|p| header.strip_prefix(&p).map(String::from)) else {
            continue;
        };
        match extra.iter_mut().find(|(k, _)| *k == key) {
            Some((_, values)) => values.push(value.into()),
            None => extra.push((key, vec![value.into()])),
        }
    }
    Ok(Some(User {
        name: name.into(),
        uid: config.uid_headers.iter().find_map(names).unwrap_or_default().into(),
        groups: groups.filter_map(|value| value.to_str().ok()).map(String::from).collect(),
        extra,
    }))
}

fn verb(request: &Request) -> String {
    request.method.as_str().to_ascii_lowercase()
}

/// Answers that are valid for a time; the least recently used one is evicted when the cache is full.
struct Cache<K: Eq + Hash, V>(Mutex<LruCache<K, (V, Duration)>>);

impl<K: Eq + Hash, V> Default for Cache<K, V> {
    fn default() -> Self {
        const CAPACITY: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
        // Bounded afterwards: `LruCache::new` would allocate the table for all entries at once.
        let mut cache = LruCache::unbounded();
        cache.resize(CAPACITY);
        Cache(Mutex::new(cache))
    }
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    fn get(&self, key: &K, now: Duration) -> Option<V> {
        let mut cache = self.0.lock();
        cache.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    fn put(&self, key: K, value: V, until: Duration) {
        self.0.lock().put(key, (value, until));
    }
}

/// Upstream: `apiserver/pkg/endpoints/filters/metrics.go`.
mod metrics {
    use std::time::Duration;

    use crate::metrics::{exponential, metrics};

    metrics! {
        static USERS: IntCounterVec["username"] = "authenticated_user_requests",
            "[ALPHA] Counter of authenticated requests broken out by username.";
        static AUTHENTICATIONS: IntCounterVec["result"] =
            "authentication_attempts", "[ALPHA] Counter of authenticated attempts.";
        static AUTHENTICATION_SECONDS: HistogramVec["result"](exponential(0.001, 2.0, 15)) =
            "authentication_duration_seconds",
            "[ALPHA] Authentication duration in seconds broken out by result.";
        static AUTHORIZATIONS: IntCounterVec["result"] = "authorization_attempts_total",
            "[ALPHA] Counter of authorization attempts broken down by result. It can be \
             either 'allowed', 'denied', 'no-opinion' or 'error'.";
        static AUTHORIZATION_SECONDS: HistogramVec["result"](exponential(0.001, 2.0, 15)) =
            "authorization_duration_seconds",
            "[ALPHA] Authorization duration in seconds broken out by result.";
    }

    pub fn authenticated(user: Option<&str>, took: Duration) {
        let result = if user.is_some() { "success" } else { "failure" };
        AUTHENTICATIONS.with_label_values(&[result]).inc();
        AUTHENTICATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
        if let Some(user) = user {
            USERS.with_label_values(&[category(user)]).inc();
        }
    }

    pub fn authorized(allowed: bool, took: Duration) {
        let result = if allowed { "allowed" } else { "no-opinion" };
        AUTHORIZATIONS.with_label_values(&[result]).inc();
        AUTHORIZATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// Few values, and nobody's name. Upstream: `compressUsername`.
    fn category(user: &str) -> &str {
        match user {
            "admin"
            | "client"
            | "kube_proxy"
            | "kubelet"
            | "system:serviceaccount:kube-system:default" => user,
            _ if user.contains('@') => "email_id",
            _ => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_lite::future::block_on;
    use hyper::header::HeaderValue;

    use super::super::handler;
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::objects::Timestamp;

    #[derive(Default)]
    struct Fake {
        asked: AtomicUsize,
        silent: AtomicBool,
    }

    impl Reviewer for Fake {
        fn knows_tokens(&self) -> bool {
            !self.silent.load(Ordering::SeqCst)
        }
        fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let user = match token {
                "good" => Ok(Some(User { name: "ada".into(), ..User::default() })),
                "bad" => Ok(None),
                _ => Err("away".into()),
            };
            Box::pin(async { user })
        }
        fn access(&self, user: &User, verb: &str, path: &str) -> Boxed<Result<bool, String>> {
            let yes = user.name == "ada" && verb == "get" && path == "/metrics";
            Box::pin(async move { Ok(yes) })
        }
    }

    struct Authority {
        certificate: rcgen::Certificate,
        issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    }

    fn authority() -> Authority {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new([]).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority { certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    impl Authority {
        fn sign(&self, name: &str, group: &str) -> Chain {
            let key = rcgen::KeyPair::generate().expect("a key");
            let mut params = rcgen::CertificateParams::new([]).expect("parameters");
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
            Chain::from([signed.der().clone()])
        }
        fn authorities(&self) -> Authorities {
            Authorities::from_pem(self.certificate.pem().as_bytes()).expect("authorities")
        }
    }

    fn trust(clients: &Authority, proxies: &Authority) -> Trust {
        Trust {
            client_ca: Some(clients.authorities()),
            request_header: RequestHeader {
                ca: Some(proxies.authorities()),
                allowed_names: vec!["front-proxy-client".into()],
                username_headers: vec!["x-remote-user".into()],
                ..RequestHeader::default()
            },
        }
    }

    fn filter(clients: &Authority, proxies: &Authority) -> (Arc<Fake>, Arc<FakeClock>, Handler) {
        let (fake, clock, auth) = auth(clients, proxies);
        (fake, clock, auth.wrap(handler(|_| Response::text(200, "ok"))))
    }

    fn auth(clients: &Authority, proxies: &Authority) -> (Arc<Fake>, Arc<FakeClock>, Arc<Auth>) {
        let fake = Arc::new(Fake::default());
        let clock = FakeClock::new(Timestamp::from_secs(1_800_000_000));
        let config = AuthConfig {
            trust: trust(clients, proxies),
            reviewer: fake.clone(),
            token_ttl: Duration::from_secs(10),
            authorized_ttl: Duration::from_secs(10),
            unauthorized_ttl: Duration::from_secs(10),
            always_allow: vec!["/healthz".into(), "open*".into()],
        };
        (fake, clock.clone(), Auth::new(config, clock as Arc<dyn Clock>))
    }

    #[test]
    fn who_may_see_what() {
        let (clients, proxies) = (authority(), authority());
        let (_, _, filter) = filter(&clients, &proxies);
        let ask = |path: &str, header: Option<(&'static str, &'static str)>, peer: Chain| {
            let headers =
                header.map(|(n, v)| (n.parse().expect("a name"), HeaderValue::from_static(v)));
            let headers = headers.into_iter().collect();
            block_on(filter(Request { headers, peer, ..Request::get(path) }))
        };
        let nobody = Chain::default;
        let auth = "Authorization";
        let proxy = proxies.sign("front-proxy-client", "");
        let table = [
            ("/healthz", None, nobody(), 200),
            ("/metrics", None, nobody(), 403),
            ("/metrics", Some((auth, "Bearer good")), nobody(), 200),
            ("/configz", Some((auth, "Bearer good")), nobody(), 403),
            ("/metrics", Some((auth, "Bearer bad")), nobody(), 401),
            ("/healthz", Some((auth, "Bearer away")), nobody(), 401),
            ("/metrics", None, clients.sign("ada", "x"), 200),
            ("/configz", None, clients.sign("root", "system:masters"), 200),
            ("/configz", None, authority().sign("root", "system:masters"), 401),
            ("/healthz", None, authority().sign("root", "system:masters"), 401),
            ("/metrics", Some((auth, "Bearer good")), authority().sign("root", ""), 200),
            ("/metrics", Some(("X-Remote-User", "ada")), proxy.clone(), 200),
            ("/metrics", Some(("X-Remote-User", "bob")), proxy, 403),
            ("/metrics", Some(("X-Remote-User", "ada")), proxies.sign("other", ""), 401),
            ("/metrics", Some(("X-Remote-User", "ada")), clients.sign("bob", ""), 403),
            ("/open", None, nobody(), 200),
            ("/openly/more", None, nobody(), 200),
            ("/ope", None, nobody(), 403),
        ];
        for (path, header, chain, status) in table {
            let response = ask(path, header, chain);
            assert_eq!(response.status, status, "{path} {header:?}");
        }
        let refusal = ask("/metrics", None, nobody());
        let body: Value = serde_json::from_slice(refusal.content()).expect("a Status");
        assert_eq!(
            body["message"],
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
    }

    #[test]
    fn authorities_are_certificates_among_what_is_no_pem() {
        let good = authority().certificate.pem();
        let block = |content| {
            format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
        };
        for (text, is_fine) in [
            (good.clone(), true),
            (block("!!!") + &good, true),
            (block("") + &good, false),
            (block("MIIB") + &good, false),
            (block("!!!"), false),
            (String::new(), false),
        ] {
            assert_eq!(Authorities::from_pem(text.as_bytes()).is_ok(), is_fine, "{text}");
        }
    }

    #[test]
    fn authorities_may_change_while_serving() {
        let (old, new, proxies) = (authority(), authority(), authority());
        let (_, _, auth) = auth(&old, &proxies);
        let filter = auth.clone().wrap(handler(|_| Response::text(200, "ok")));
        let ask =
            |peer: Chain| block_on(filter(Request { peer, ..Request::get("/configz") })).status;
        let root = |authority: &Authority| authority.sign("root", "system:masters");
        assert_eq!((ask(root(&old)), ask(root(&new))), (200, 401));
        auth.set_trust(trust(&new, &proxies));
        assert_eq!((ask(root(&old)), ask(root(&new))), (401, 200));
    }

    #[test]
    fn answers_about_tokens_are_kept_for_their_time() {
        let (clients, proxies) = (authority(), authority());
        let (fake, clock, filter) = filter(&clients, &proxies);
        let ask = || {
            let mut request = Request::get("/metrics");
            request.headers.insert("authorization", HeaderValue::from_static("bearer good"));
            block_on(filter(request)).status
        };
        assert_eq!((ask(), ask()), (200, 200));
        assert_eq!(fake.asked.load(Ordering::SeqCst), 1);
        clock.advance(Duration::from_secs(10));
        assert_eq!(ask(), 200);
        assert_eq!(fake.asked.load(Ordering::SeqCst), 2);
        fake.silent.store(true, Ordering::SeqCst);
        assert_eq!(ask(), 403, "with nobody to ask, who has a token is anonymous");
    }
}
