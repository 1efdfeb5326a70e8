//! Authentication (client certificates, front proxies' headers, bearer tokens) and authorization
//! of requests. Upstream: `apiserver/pkg/server/options` `DelegatingAuthenticationOptions` and
//! `DelegatingAuthorizationOptions`.

mod attributes;
mod authorities;
mod cache;
mod metrics;
mod request_header;
mod review;
#[cfg(test)]
mod testing;

use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;

use async_lock::Semaphore;
use hyper::header::{AUTHORIZATION, HeaderValue};

use super::{Handler, Request, Response};
use crate::clock::SharedClock;

use cache::{Cache, Key};

pub use attributes::{Access, Attributes, PathAttributes, Refusal};
pub use authorities::Authorities;
pub use request_header::RequestHeader;
pub use review::{ApiReviewer, Reviewer};

const ANONYMOUS: &str = "system:anonymous";
const ALL_AUTHENTICATED: &str = "system:authenticated";
const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything. Upstream: `user.SystemPrivilegedGroup`.
pub const MASTERS: &str = "system:masters";

/// Reviews by the API server at a time; further ones wait. Unauthenticated clients cause reviews
/// too.
const MAX_REVIEWS: usize = 16;

/// Attributes of this many bytes are not cached. Upstream: `maxControlledAttrCacheSize`.
const MAX_CACHED_ATTRIBUTES_BYTES: usize = 10_000;

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
        User { name: ANONYMOUS.into(), groups: vec![ALL_UNAUTHENTICATED.into()], ..User::default() }
    }

    /// Adds the group of all authenticated users, unless the user is anonymous or is in this group
    /// or in that of the unauthenticated. Upstream: `group.AuthenticatedGroupAdder`.
    fn authenticated(mut self) -> User {
        let classified =
            |group: &String| group == ALL_AUTHENTICATED || group == ALL_UNAUTHENTICATED;
        if self.name != ANONYMOUS && !self.groups.iter().any(classified) {
            self.groups.push(ALL_AUTHENTICATED.into());
        }
        self
    }
}

/// The certificate authorities of clients and of front proxies.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pub client_ca: Option<Authorities>,
    pub request_header: RequestHeader,
}

/// The settings of [`Auth`].
pub struct AuthConfig {
    pub trust: Trust,
    pub reviewer: Arc<dyn Reviewer>,
    pub attributes: Arc<dyn Attributes>,
    /// Whether requests without credentials have a user.
    pub anonymous: bool,
    pub token_ttl: Duration,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    /// Paths that need no authorization; a path that ends in `*` is a prefix.
    pub always_allow: Vec<String>,
    /// Groups whose users need no authorization.
    pub always_allow_groups: Vec<String>,
}

/// The filter in front of all handlers: it authenticates each request, then authorizes it.
pub struct Auth {
    config: AuthConfig,
    trust: RwLock<Arc<Trust>>,
    clock: SharedClock,
    tokens: Cache<Option<User>>,
    access: Cache<bool>,
    reviews: Semaphore,
}

impl Auth {
    pub fn new(config: AuthConfig, clock: SharedClock) -> Arc<Auth> {
        let trust = RwLock::new(Arc::new(config.trust.clone()));
        let (tokens, access) = (Cache::new(), Cache::new());
        let reviews = Semaphore::new(MAX_REVIEWS);
        Arc::new(Auth { config, trust, clock, tokens, access, reviews })
    }

    /// Replaces the trusted authorities.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.write() = Arc::new(trust);
    }

    fn trust(&self) -> Arc<Trust> {
        self.trust.read().clone()
    }

    /// Wraps `inner` in this filter.
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

    /// Authenticates and authorizes a request: returns its refusal, or `None` when it is allowed.
    async fn check(&self, request: &Request) -> Option<Response> {
        let since = self.clock.monotonic();
        let user = self.authenticate(request).await;
        let took = self.clock.monotonic().saturating_sub(since);
        metrics::count_authentication(user.as_ref().map(|user| user.name.as_str()), took);
        let attributes = &self.config.attributes;
        let Some(user) = user else {
            return Some(attributes.refuse(request, Refusal::Unauthenticated));
        };
        let since = self.clock.monotonic();
        if self.needs_no_review(&user, request) {
            metrics::count_authorization(&Ok(true), self.clock.monotonic().saturating_sub(since));
            return None;
        }
        let accesses = attributes.accesses(request);
        for access in &accesses {
            let since = self.clock.monotonic();
            let allowed = self.authorize(&user, access).await;
            metrics::count_authorization(&allowed, self.clock.monotonic().saturating_sub(since));
            match &allowed {
                Ok(true) => return None,
                Ok(false) => {}
                Err(error) => {
                    let refusal = Refusal::Failed { user: &user, access, error };
                    return Some(attributes.refuse(request, refusal));
                }
            }
        }
        let refusal = Refusal::Forbidden { user: &user, accesses: &accesses };
        Some(attributes.refuse(request, refusal))
    }

    /// Returns the user of a request; `None` when its credentials are not valid. One valid
    /// credential is enough; a request without credentials is anonymous, or refused where the
    /// configuration has no anonymous user.
    async fn authenticate(&self, request: &Request) -> Option<User> {
        let (now, chain) = (self.clock.now(), &request.peer);
        let mut faults = Vec::new();
        if !chain.is_empty() {
            let trust = self.trust();
            match trust.request_header.user(request, now) {
                Ok(Some(user)) => return Some(user.authenticated()),
                Ok(None) => (),
                Err(fault) => faults.push(fault),
            }
            match trust.client_ca.as_ref().map(|ca| ca.user(chain, now)) {
                Some(Ok(user)) if !user.name.is_empty() => return Some(user.authenticated()),
                Some(Err(fault)) => faults.push(fault),
                // No CA, or a certificate without a name.
                _ => (),
            }
        }
        // As upstream, a token counts only where tokens can be reviewed.
        let reviewed = self.config.reviewer.reviews_tokens();
        match request.headers.get(AUTHORIZATION).and_then(bearer).filter(|_| reviewed) {
            Some(token) => self.user_of_token(&token).await,
            None if faults.is_empty() => self.config.anonymous.then(User::anonymous),
            None => {
                log::error!("Unable to authenticate the request: {}", faults.join(", "));
                None
            }
        }
    }

    /// Returns the user of a bearer token, from the cache or a review; `None` when it is not valid.
    async fn user_of_token(&self, token: &str) -> Option<User> {
        let (key, begin) = (Key::digest(token), self.clock.monotonic());
        let known = self.tokens.get(&key, begin);
        let is_known = known.is_some();
        let user = match known {
            Some(known) => known,
            None => self.review(key, token).await,
        };
        metrics::count_token_answer(is_known, self.clock.monotonic().saturating_sub(begin));
        user
    }

    /// Asks the API server for the user of a token, and caches the answer. `None`: it is not valid,
    /// or the review failed, which is logged.
    async fn review(&self, key: Key, token: &str) -> Option<User> {
        let blocked = metrics::Fetch::blocked();
        let permit = self.reviews.acquire().await;
        let fetch = metrics::Fetch::in_flight();
        let reviewed = self.config.reviewer.token(token).await;
        fetch.count_end(reviewed.is_ok());
        drop((permit, fetch, blocked));
        match reviewed {
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

    /// Returns whether the request is allowed without the API server, by its path or a group of the
    /// user.
    fn needs_no_review(&self, user: &User, request: &Request) -> bool {
        let path = &request.path;
        let bare = |path: &str| path.strip_prefix('/').unwrap_or(path).to_string();
        let allowed = |rule: &String| match bare(rule).strip_suffix('*') {
            Some(start) => bare(path).starts_with(start),
            None => bare(path) == bare(rule),
        };
        let config = &self.config;
        config.always_allow.iter().any(allowed)
            || user.groups.iter().any(|group| config.always_allow_groups.contains(group))
    }

    /// Returns whether the user has the access, from the cache or a review. Errors: from the
    /// review.
    async fn authorize(&self, user: &User, access: &Access) -> Result<bool, String> {
        let key =
            (access.size() < MAX_CACHED_ATTRIBUTES_BYTES).then(|| Key::digest(&(user, access)));
        let now = self.clock.monotonic();
        if let Some(known) = key.and_then(|key| self.access.get(&key, now)) {
            return Ok(known);
        }
        let permit = self.reviews.acquire().await;
        let reviewed = self.config.reviewer.access(user, access).await;
        drop(permit);
        match reviewed {
            Ok(yes) => {
                let config = &self.config;
                let ttl = if yes { config.authorized_ttl } else { config.unauthorized_ttl };
                if let Some(key) = key {
                    self.access.put(key, yes, self.clock.monotonic() + ttl);
                }
                Ok(yes)
            }
            Err(error) => {
                log::error!("Unable to authorize the request: {error}");
                Err(error)
            }
        }
    }
}

/// Returns the token of an `Authorization` header; `None` if it has none. Upstream: `bearertoken`.
fn bearer(value: &HeaderValue) -> Option<String> {
    let mut parts = value.as_bytes().trim_ascii().splitn(3, |byte| *byte == b' ');
    let is_bearer = parts.next()?.eq_ignore_ascii_case(b"bearer");
    let token = parts.next().filter(|token| is_bearer && !token.is_empty())?;
    Some(String::from_utf8_lossy(token).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_lite::future::{Boxed, block_on, poll_once};
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::super::handler;
    use super::super::http::Chain;
    use super::testing::{Authority, NOW, authority};
    use super::*;
    use crate::clock::{Clock, FakeClock};
    use crate::task::StopToken;

    #[derive(Default)]
    struct Fake {
        tokens: AtomicUsize,
        silent: AtomicBool,
        /// The users whose access was reviewed.
        users: Mutex<Vec<User>>,
        /// Reviews of this path wait for this token.
        slow: StopToken,
    }

    impl Reviewer for Fake {
        fn reviews_tokens(&self) -> bool {
            !self.silent.load(Ordering::SeqCst)
        }
        fn token(&self, token: &str) -> Boxed<Result<Option<User>, String>> {
            self.tokens.fetch_add(1, Ordering::SeqCst);
            let user = match token {
                "good" => Ok(Some(User { name: "ada".into(), ..User::default() })),
                "bad" => Ok(None),
                _ => Err("away".into()),
            };
            Box::pin(async { user })
        }
        fn access(&self, user: &User, access: &Access) -> Boxed<Result<bool, String>> {
            self.users.lock().push(user.clone());
            let (verb, path) = match access {
                Access::Path { verb, path } => (verb.as_str(), path.as_str()),
                Access::Resource { verb, subresource, .. } => (*verb, *subresource),
            };
            let yes = user.name == "ada" && verb == "get" && path == "/metrics";
            let yes = yes || path == "second";
            let (is_slow, slow) = (path.starts_with("/slow"), self.slow.clone());
            let is_away = path == "/away";
            Box::pin(async move {
                if is_slow {
                    slow.stopped().await;
                }
                if is_away { Err("away".into()) } else { Ok(yes) }
            })
        }
    }

    fn trust(clients: &Authority, proxies: &Authority) -> Trust {
        Trust {
            client_ca: Some(clients.authorities()),
            request_header: RequestHeader {
                ca: Some(proxies.authorities()),
                allowed_names: vec!["front-proxy-client".into()],
                username_headers: vec!["x-remote-user".into()],
                group_headers: vec!["x-remote-group".into()],
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
        let clock = FakeClock::new(NOW);
        let config = AuthConfig {
            trust: trust(clients, proxies),
            reviewer: fake.clone(),
            token_ttl: Duration::from_secs(10),
            authorized_ttl: Duration::from_secs(10),
            unauthorized_ttl: Duration::from_secs(10),
            always_allow: vec!["/healthz".into(), "open*".into()],
            always_allow_groups: vec![MASTERS.to_owned()],
            attributes: Arc::new(PathAttributes),
            anonymous: true,
        };
        (fake, clock.clone(), Auth::new(config, clock as Arc<dyn Clock>))
    }

    #[test]
    fn a_token_is_the_second_word_of_its_header() {
        for (header, expected) in [
            (&b"Bearer t"[..], Some("t")),
            (b" bEARER t ", Some("t")),
            (b"Bearer t u", Some("t")),
            (b"Bearer t\tu", Some("t\tu")),
            (b"Bearer \xff", Some("\u{fffd}")),
            (b"Bearer  t", None),
            (b"Bearer", None),
            (b"Bearer\tt", None),
            (b"Basic t", None),
            (b"", None),
        ] {
            let value = HeaderValue::from_bytes(header).unwrap();
            assert_eq!(bearer(&value).as_deref(), expected, "{value:?}");
        }
    }

    #[test]
    fn requests_are_authenticated_and_authorized() {
        let (clients, proxies) = (authority(), authority());
        let (_, _, filter) = filter(&clients, &proxies);
        let ask = |path: &str, header: Option<(&'static str, &'static str)>, peer: Chain| {
            let headers =
                header.map(|(n, v)| (n.parse().expect("a name"), HeaderValue::from_static(v)));
            let headers = headers.into_iter().collect();
            block_on(filter(Request { headers, peer, ..Request::get(path) }))
        };
        let none = Chain::default;
        let auth = "Authorization";
        let proxy = proxies.sign("front-proxy-client", "");
        let table = [
            ("/healthz", None, none(), 200),
            ("/metrics", None, none(), 403),
            ("/metrics", Some((auth, "Bearer good")), none(), 200),
            ("/configz", Some((auth, "Bearer good")), none(), 403),
            ("/metrics", Some((auth, "Bearer bad")), none(), 401),
            ("/healthz", Some((auth, "Bearer away")), none(), 401),
            ("/metrics", None, clients.sign("ada", "x"), 200),
            ("/configz", None, clients.sign("root", MASTERS), 200),
            ("/configz", None, authority().sign("root", MASTERS), 401),
            ("/healthz", None, authority().sign("root", MASTERS), 401),
            ("/metrics", Some((auth, "Bearer good")), authority().sign("root", ""), 200),
            ("/metrics", Some(("X-Remote-User", "ada")), proxy.clone(), 200),
            ("/metrics", Some(("X-Remote-User", "bob")), proxy, 403),
            ("/metrics", Some(("X-Remote-User", "ada")), proxies.sign("other", ""), 401),
            ("/metrics", Some(("X-Remote-User", "ada")), clients.sign("bob", ""), 403),
            ("/open", None, none(), 200),
            ("/openly/more", None, none(), 200),
            ("/ope", None, none(), 403),
            ("/away", None, none(), 500),
        ];
        for (path, header, chain, status) in table {
            let response = ask(path, header, chain);
            assert_eq!(response.status, status, "{path} {header:?}");
        }
        let refusal = ask("/metrics", None, none());
        let body: Value = serde_json::from_slice(refusal.content()).expect("a Status");
        assert_eq!(
            body["message"],
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
    }

    /// Requests need one of the parts of a node that their paths name.
    struct Parts;

    impl Attributes for Parts {
        fn accesses(&self, request: &Request) -> Vec<Access> {
            let known = ["first", "second", "/away"].into_iter();
            let named = known.filter(|part| request.query.split(',').any(|name| name == *part));
            let access = |subresource| Access::Resource {
                verb: "get",
                resource: "nodes",
                subresource,
                name: "n".to_owned(),
            };
            named.map(access).collect()
        }
        fn refuse(&self, _: &Request, refusal: Refusal<'_>) -> Response {
            let status = match refusal {
                Refusal::Unauthenticated => 401,
                Refusal::Forbidden { .. } => 403,
                Refusal::Failed { .. } => 500,
            };
            Response::text(status, format!("{refusal:?}"))
        }
    }

    #[test]
    fn one_of_several_accesses_is_enough() {
        let fake = Arc::new(Fake::default());
        let config = AuthConfig {
            trust: Trust::default(),
            reviewer: fake.clone(),
            token_ttl: Duration::ZERO,
            authorized_ttl: Duration::from_secs(10),
            unauthorized_ttl: Duration::ZERO,
            always_allow: Vec::new(),
            always_allow_groups: Vec::new(),
            attributes: Arc::new(Parts),
            anonymous: false,
        };
        let auth = Auth::new(config, FakeClock::new(NOW) as Arc<dyn Clock>);
        let filter = auth.wrap(handler(|_| Response::text(200, "ok")));
        // The parts, whether there is a token, the status and the reviews of access.
        for (parts, token, status, reviews) in [
            ("first", None, 401, 0),
            ("first", Some("Bearer bad"), 401, 0),
            ("", Some("Bearer good"), 403, 0),
            ("first", Some("Bearer good"), 403, 1),
            ("first,second", Some("Bearer good"), 200, 2),
            // The second one is cached.
            ("first,second", Some("Bearer good"), 200, 1),
            ("first,/away", Some("Bearer good"), 500, 2),
            ("second,/away", Some("Bearer good"), 200, 0),
        ] {
            let before = fake.users.lock().len();
            let mut request = Request::get(&format!("/x?{parts}"));
            if let Some(token) = token {
                request.headers.insert("authorization", HeaderValue::from_static(token));
            }
            assert_eq!(block_on(filter(request)).status, status, "{parts} {token:?}");
            assert_eq!(fake.users.lock().len() - before, reviews, "{parts} {token:?}");
        }
    }

    #[test]
    fn group_of_authenticated_users_is_added_as_upstream() {
        let (clients, proxies) = (authority(), authority());
        let (fake, _, filter) = filter(&clients, &proxies);
        let peer = proxies.sign("front-proxy-client", "");
        for (name, groups, expected) in [
            ("ada", &["dev"][..], &["dev", ALL_AUTHENTICATED][..]),
            ("ada", &[ALL_AUTHENTICATED], &[ALL_AUTHENTICATED]),
            ("ada", &[ALL_UNAUTHENTICATED], &[ALL_UNAUTHENTICATED]),
            (ANONYMOUS, &["dev"], &["dev"]),
            (ANONYMOUS, &[], &[]),
        ] {
            let mut request = Request { peer: peer.clone(), ..Request::get("/x") };
            request.headers.insert("x-remote-user", HeaderValue::from_static(name));
            for group in groups {
                request.headers.append("x-remote-group", HeaderValue::from_static(group));
            }
            block_on(filter(request));
            let user = fake.users.lock().last().cloned().expect("a review");
            assert_eq!(user.name, name);
            assert_eq!(user.groups, expected);
        }
    }

    #[test]
    fn long_paths_are_not_cached() {
        let (clients, proxies) = (authority(), authority());
        let (fake, _, filter) = filter(&clients, &proxies);
        for (length, reviews) in [(100, 1), (9_996, 1), (9_997, 2), (30_000, 2)] {
            let before = fake.users.lock().len();
            let path = format!("/{}", "x".repeat(length - 1));
            for _ in 0..2 {
                assert_eq!(block_on(filter(Request::get(&path))).status, 403);
            }
            assert_eq!(fake.users.lock().len() - before, reviews, "{length}");
        }
    }

    #[test]
    fn reviews_take_turns() {
        let (clients, proxies) = (authority(), authority());
        let (fake, _, filter) = filter(&clients, &proxies);
        let ask = |n| filter(Request::get(&format!("/slow/{n}")));
        let mut waiting: Vec<_> = (0..MAX_REVIEWS + 3).map(ask).collect();
        for request in &mut waiting {
            assert!(block_on(poll_once(request)).is_none());
        }
        assert_eq!(fake.users.lock().len(), MAX_REVIEWS);
        let health = block_on(poll_once(filter(Request::get("/healthz"))));
        assert_eq!(health.map(|response| response.status), Some(200), "it needs no review");
        fake.slow.stop();
        for request in waiting {
            assert_eq!(block_on(request).status, 403);
        }
        assert_eq!(fake.users.lock().len(), MAX_REVIEWS + 3);
    }

    #[test]
    fn authorities_may_change_while_serving() {
        let (old, new, proxies) = (authority(), authority(), authority());
        let (_, _, auth) = auth(&old, &proxies);
        let filter = auth.clone().wrap(handler(|_| Response::text(200, "ok")));
        let ask =
            |peer: Chain| block_on(filter(Request { peer, ..Request::get("/configz") })).status;
        let root = |authority: &Authority| authority.sign("root", MASTERS);
        assert_eq!((ask(root(&old)), ask(root(&new))), (200, 401));
        auth.set_trust(trust(&new, &proxies));
        assert_eq!((ask(root(&old)), ask(root(&new))), (401, 200));
    }

    #[test]
    fn token_reviews_are_cached_until_they_expire() {
        let (clients, proxies) = (authority(), authority());
        let (fake, clock, filter) = filter(&clients, &proxies);
        let ask = || {
            let mut request = Request::get("/metrics");
            request.headers.insert("authorization", HeaderValue::from_static("bearer good"));
            block_on(filter(request)).status
        };
        assert_eq!((ask(), ask()), (200, 200));
        assert_eq!(fake.tokens.load(Ordering::SeqCst), 1);
        clock.advance(Duration::from_secs(10));
        assert_eq!(ask(), 200);
        assert_eq!(fake.tokens.load(Ordering::SeqCst), 2);
        fake.silent.store(true, Ordering::SeqCst);
        assert_eq!(ask(), 403, "without token reviews the request is anonymous");
    }
}
