//! The API server without its sockets: authenticates, authorizes and counts each request, applies
//! planned faults and calls the handler.

pub mod change;
mod companions;
mod connect;
mod definition_finalizer;
pub mod definitions;
pub mod delete;
mod delete_options;
pub mod faults;
pub mod legacy_tokens;
pub mod read;
pub mod response;
pub mod reviews;
pub mod rules;
pub mod select;
pub mod subresources;
pub mod table;
pub mod traffic;
pub mod watch;
pub mod write;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::WARNING;
use kube_controller_manager::percent::decode;
use serde_json::{Value, json};

use crate::access::{Access, User};
use crate::admission::accounts::await_default;
use crate::admission::policies::Policies;
use crate::api::faults::Faults;
use crate::api::response::{failure, json_response};
use crate::api::select::exact_name;
use crate::auth::Auth;
use crate::auth::bootstrap_tokens::bootstrap_token;
use crate::auth::rbac::{Authorizer, Rbac};
use crate::failures;
use crate::kinds::{self, Kind};
use crate::metrics::{self, Metrics};
use crate::patch;
use crate::protobuf;
use crate::proxy::Proxy;
use crate::request::accept::{Accept, Encoding, Form};
use crate::request::call::{Call, Query, ResourcePath, Warnings, verb};
use crate::request::payload::Payload;
use crate::status::{ApiError, ApiResult};
use crate::storage::registry::Registry;
use crate::storage::store::{Backup, Store};
use crate::types::{discovery, documents};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{BodyError, Method, Request, Response};
use kube_controller_manager::task::StopToken;

/// Upstream's limit of a request's body.
const BODY_LIMIT_BYTES: usize = 3 * 1024 * 1024;

/// An API server: what it stores, and the parts that answer requests.
pub struct Api {
    pub store: Store,
    pub registry: Registry,
    pub auth: Auth,
    pub rbac: Rbac,
    pub faults: Arc<Faults>,
    pub proxy: Proxy,
    pub clock: SharedClock,
    /// Whether a pod needs its service account.
    pub service_accounts: bool,
    /// The minor version of Kubernetes 1 that it is.
    pub minor: u32,
    pub stop: StopToken,
    /// The period of bookmarks on an idle watch.
    pub bookmark_every: Duration,
}

/// Returns the access that a request needs, for the authorizer: a verb with a resource, or with a
/// path outside the resources. Upstream: `RequestInfoFactory.NewRequestInfo`.
fn access(method: &Method, path: &str, query: &Query) -> Access {
    let Some(at) = ResourcePath::parse_prefix(path) else {
        let verb = method.as_str().to_ascii_lowercase();
        return Access { verb, path: decode(path), ..Access::default() };
    };
    let verb = match verb(method, Some(&at), query) {
        // No verb stands for this method of HTTP.
        "other" => "",
        verb => verb,
    };
    let resource = at.full_name();
    // A namespace belongs to itself.
    let namespaces = at.resource == "namespaces" && at.namespace.is_empty();
    let namespace = if namespaces { &at.name } else { &at.namespace };
    // A list or watch of one object by its name needs access to that name only.
    let selected = matches!(verb, "list" | "watch").then(|| exact_name(query.get("fieldSelector")));
    Access {
        verb: verb.to_owned(),
        group: at.group.clone(),
        resource,
        namespace: namespace.clone(),
        name: selected.flatten().unwrap_or_else(|| at.name.clone()),
        path: String::new(),
    }
}

impl Api {
    /// Restarts the server with the objects and the version of a backup.
    pub fn restore(&self, backup: &Backup) {
        self.restore_and(backup, || ());
    }

    /// Restores a backup as [`Self::restore`] does, and calls `change` before the server answers
    /// again.
    pub fn restore_and(&self, backup: &Backup, change: impl FnOnce()) {
        self.faults.cut_all();
        self.store.restore(backup);
        change();
        self.faults.come_back();
    }

    /// Serves a built-in kind in these versions from now on, in place of those before, and ends all
    /// watches: as a server does that is upgraded. The objects stay.
    pub fn serve_versions(&self, kind: &str, versions: &[&str]) {
        self.registry.replace(kind, kinds::in_versions(self.minor, kind, versions));
        self.faults.cut_watches();
    }

    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: Request) -> Response {
        let accept = request.header("accept").unwrap_or_default().to_owned();
        let accept = Accept::parse(&accept);
        let response = self.answer(request, &accept).await;
        // Failures use the requested encoding.
        match accept.plain() {
            Some(Encoding::Protobuf) if response.status >= 400 => protobuf::answer(response),
            _ => response,
        }
    }

    /// Serves one request in the order of a real server: planned faults, authentication,
    /// impersonation, authorization, then the resource or document at the path. A planned fault may
    /// replace the answer, or be applied to it at the end.
    async fn answer(self: Arc<Self>, request: Request, accept: &Accept<'_>) -> Response {
        let Request { method, path, query: encoded, headers, body, peer, upgrade } = request;
        let mut query = Query::parse(&encoded);
        let resource = ResourcePath::parse(&path);
        let verb = verb(&method, resource.as_ref(), &query);
        let resource_name = resource.as_ref().map_or_else(|| path.clone(), ResourcePath::full_name);
        // Read before the fault is taken: a clear that follows must release this request too.
        let clears = self.faults.clears();
        let fault = self.faults.take_fault(verb, &resource_name);
        let agent = headers.get("user-agent").and_then(|agent| agent.to_str().ok());
        let program = agent.unwrap_or_default().split('/').next().unwrap_or_default();
        if self.faults.is_away() {
            return Response::abort();
        }
        let fault = self.faults.end_of(program, verb, &resource_name).or(fault);
        if let Some(answer) = self.faults.before(fault.as_ref(), clears, &self.clock).await {
            return answer;
        }
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // Without a field manager the name of the program is used, except for apply.
        let applies = header("content-type").is_some_and(patch::is_apply);
        if let Some(agent) = header("user-agent").filter(|_| !applies) {
            query.fill("fieldManager", agent.split('/').next().unwrap_or_default());
        }
        let now = self.clock.now();
        let user_of_stored_token = |token: &str| {
            self.legacy_token(token).or_else(|| bootstrap_token(&self.store, token, now))
        };
        let Some(user) = self.auth.user(&peer, header("authorization"), now, user_of_stored_token)
        else {
            return failure(&failures::unauthorized());
        };
        let access = access(&method, &path, &query);
        let user = match self.authorizer().impersonate(user, &headers, &access) {
            Ok(user) => user,
            Err(error) => return failure(&error),
        };
        if let Err(error) = self.authorizer().check(&user, &access) {
            return failure(&error);
        }
        if let Some(behind) = self.behind(&path) {
            let request = Request { method, path, query: encoded, headers, body, peer, upgrade };
            let answered = self.connect(behind, &user, access, request).await;
            let response = answered.unwrap_or_else(|error| failure(&error));
            return match fault {
                Some(fault) => fault.after(response),
                None => response,
            };
        }
        let payload = match body.read(BODY_LIMIT_BYTES).await {
            Ok(bytes) => {
                let content_type = header("content-type").unwrap_or_default();
                let content_type = content_type.split(';').next().unwrap_or_default().trim();
                Payload { content_type: content_type.to_ascii_lowercase(), bytes }
            }
            Err(BodyError::TooLarge) => {
                let message = format!("Request entity too large: limit is {BODY_LIMIT_BYTES}");
                return failure(&ApiError::new(413, "RequestEntityTooLarge", message));
            }
            Err(BodyError::Broken(error)) => {
                return failure(&failures::bad_request(error.to_string()));
            }
        };
        let asks_for = header("accept").unwrap_or_default();
        if path == "/openapi/v2" && asks_for.contains("proto-openapi.spec.v2") {
            let form = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
            return Response::new(200, form, documents::openapi_v2_protobuf(self.minor));
        }
        let user = Arc::new(user);
        let answered = match resource {
            None => self.answer_non_resource(&path, query.is("verbose"), accept).await,
            Some(at) => self.clone().answer_resource(verb, at, query, accept, user, payload).await,
        };
        let response = answered.unwrap_or_else(|error| failure(&error));
        match fault {
            Some(fault) => fault.after(response),
            None => response,
        }
    }

    /// Answers a path that is no resource: health, version, OpenAPI and discovery.
    async fn answer_non_resource(
        &self,
        path: &str,
        verbose: bool,
        accept: &Accept<'_>,
    ) -> ApiResult<Response> {
        match path {
            "/healthz" | "/livez" | "/readyz" if verbose => {
                let name = path.trim_start_matches('/');
                let text = format!("[+]ping ok\n[+]log ok\n{name} check passed\n");
                return Ok(Response::text(200, text));
            }
            "/healthz" | "/livez" | "/readyz" | "/healthz/ping" | "/livez/ping"
            | "/readyz/ping" => {
                return Ok(Response::text(200, "ok"));
            }
            "/version" | "/version/" => {
                let text = serde_json::to_vec_pretty(&version(self.minor)).unwrap_or_default();
                return Ok(Response::new(200, "application/json", text));
            }
            _ => {}
        }
        let kinds = self.registry.all();
        if path.starts_with("/openapi/") {
            let document = documents::openapi(&kinds, self.minor, path);
            return Ok(json_response(200, &document.ok_or_else(failures::no_such_path)?));
        }
        let (form, encoding) =
            accept.discovery(matches!(path.trim_end_matches('/'), "/api" | "/apis"))?;
        let aggregated = form == Form::Aggregated;
        let document = documents::discovery(&kinds, path, aggregated);
        let document = document.or_else(|| metrics::document(path));
        let services = self.delegating();
        let of_services = || discovery::group_of(services.iter().map(|one| &one.value), path);
        let mut document = document.or_else(of_services).ok_or_else(failures::no_such_path)?;
        if path.trim_end_matches('/') == "/apis" {
            metrics::add_groups(&mut document, aggregated);
        }
        if path.starts_with("/apis") {
            for service in &services {
                if aggregated {
                    let resources = self.proxy.resources(&self.store, &service.value).await;
                    discovery::add_service(&mut document, &service.value, resources.as_ref());
                } else {
                    discovery::add_group_of(&mut document, &service.value);
                }
            }
        }
        if !aggregated {
            return Ok(encoding.of(json_response(200, &document)));
        }
        let body = match encoding {
            Encoding::Json => serde_json::to_vec(&document).ok(),
            Encoding::Protobuf => protobuf::encode(&document),
        };
        let media = match encoding {
            Encoding::Json => {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
            Encoding::Protobuf => {
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
        };
        Ok(Response::new(200, media, body.unwrap_or_default()))
    }

    /// Answers a request to a resource path: a review, metrics, a watch, or what [`Self::serve`]
    /// answers with the warnings of the call as headers.
    async fn answer_resource(
        self: Arc<Self>,
        verb: &'static str,
        at: ResourcePath,
        query: Query,
        accept: &Accept<'_>,
        user: Arc<User>,
        payload: Payload,
    ) -> ApiResult<Response> {
        if let Some(answer) = self.review(verb, &at, &user, &payload)? {
            return Ok(accept.plain().unwrap_or(Encoding::Json).of(answer));
        }
        if let Some(answer) = self.metrics().answer(verb, &at, &query) {
            return Ok(json_response(200, &answer?));
        }
        let Some(kind) = self.registry.find(&at.group, &at.version, &at.resource) else {
            // The core group has the version v1 only.
            // A path below an unknown group gets another answer than an unknown resource.
            let known = self.registry.all().iter().any(|kind| kind.resource.group == at.group);
            return Err(match known && !(at.group.is_empty() && at.version != "v1") {
                true => failures::no_such_resource(),
                false => failures::no_such_path(),
            });
        };
        if kind.resource.namespaced && at.namespace.is_empty() && !at.name.is_empty()
            || !kind.resource.namespaced && !at.namespace.is_empty()
        {
            return Err(failures::no_such_path());
        }
        let (form, encoding) = accept.objects(&kind, &at.subresource, verb)?;
        let call = Call {
            kind,
            namespace: at.namespace,
            name: at.name,
            subresource: at.subresource,
            query,
            form,
            encoding,
            warnings: Warnings::default(),
            user,
        };
        if verb == "watch" && call.subresource.is_empty() && call.kind.verbs().contains(&verb) {
            return self.watch(call).await;
        }
        if let Some(warning) = deprecated(&call.kind) {
            call.warn(warning.to_owned());
        }
        let payload = match call.table().as_str() {
            "certificatesigningrequests.certificates.k8s.io" if verb == "create" => {
                with_requester(&call.user, &payload)?
            }
            _ => payload,
        };
        let mut response = match self.serve(verb, &call, &payload).await {
            Ok(response) => encoding.of(response),
            Err(error) => failure(&error),
        };
        for warning in call.warnings.all() {
            response = response.with_header(WARNING, &format!("299 - {warning:?}"));
        }
        Ok(response)
    }

    pub fn authorizer(&self) -> Authorizer<'_> {
        self.rbac.authorizer(&self.store)
    }

    fn policies(&self) -> Policies<'_> {
        let (store, registry) = (&self.store, &self.registry);
        Policies { store, registry, authorizer: self.authorizer() }
    }

    fn metrics(&self) -> Metrics<'_> {
        Metrics { store: &self.store, registry: &self.registry, now: self.clock.now() }
    }

    /// Passes one request about objects, watches excepted, to the handler of its verb.
    async fn serve(
        &self,
        verb: &'static str,
        call: &Call,
        payload: &Payload,
    ) -> ApiResult<Response> {
        if let Some(view) = call.kind.view
            && matches!(verb, "create" | "update" | "patch")
        {
            return self.write_view(view, verb, call, payload);
        }
        if !call.subresource.is_empty() {
            return self.subresource(verb, call, payload);
        }
        if verb == "create" && call.table() == "bindings" {
            return self.bind_named(call, payload);
        }
        if !call.kind.verbs().contains(&verb) {
            return Err(failures::method_not_allowed());
        }
        if verb == "create"
            && (!call.name.is_empty() || call.kind.resource.namespaced && call.namespace.is_empty())
        {
            return Err(failures::method_not_allowed());
        }
        let resource = &call.kind.resource;
        log::trace!("{verb} {resource} {}", call.key(&call.name));
        match verb {
            "get" => self.get(call).await,
            "list" => self.list(call).await,
            "create" => {
                if self.needs_account(&call.kind) {
                    await_default(&self.store, &self.clock, call, payload).await;
                }
                self.create(call, payload)
            }
            "update" if !call.name.is_empty() => self.update(call, payload),
            "patch" if !call.name.is_empty() => self.patch(call, payload),
            "delete" => self.delete(call, payload),
            "deletecollection" if call.kind.resource.namespaced && call.namespace.is_empty() => {
                Err(failures::method_not_allowed())
            }
            "deletecollection" => self.delete_collection(call, payload),
            _ => Err(failures::method_not_allowed()),
        }
    }
}

/// Returns a new certificate request with the caller as its requester, in place of the values that
/// it came with. Upstream: `certificates.csrStrategy.PrepareForCreate`.
fn with_requester(user: &User, payload: &Payload) -> ApiResult<Payload> {
    let mut request = payload.object()?;
    if let Some(spec) = request.get_mut("spec").and_then(Value::as_object_mut) {
        let who = user.to_json();
        for key in ["username", "uid", "groups", "extra"] {
            match who.get(key) {
                Some(value) => spec.insert(key.to_owned(), value.clone()),
                None => spec.remove(key),
            };
        }
    }
    let bytes = serde_json::to_vec(&request).unwrap_or_default();
    Ok(Payload { content_type: "application/json".to_owned(), bytes: bytes.into() })
}

/// Returns the warning that every answer about a deprecated kind carries; `None` for other kinds.
/// Upstream: `WarningsOnCreate` and `APILifecycleDeprecated`.
fn deprecated(kind: &Kind) -> Option<&'static str> {
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        _ => None,
    }
}

/// Returns the answer of `/version` for a server of this minor version.
fn version(minor: u32) -> Value {
    let (text, before) = (minor.to_string(), (minor - 1).to_string());
    json!({
        "major": "1", "minor": text, "emulationMajor": "1", "emulationMinor": text,
        "minCompatibilityMajor": "1", "minCompatibilityMinor": before,
        "gitVersion": documents::version(minor), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Creates an empty server of the built-in kinds.
#[cfg(test)]
pub fn for_tests() -> Api {
    let clock = kube_controller_manager::clock::FakeClock::new(
        kube_controller_manager::objects::Timestamp::from_secs(1000),
    );
    Api {
        store: Store::new(100),
        registry: Registry::new(crate::kinds::builtin()),
        auth: Auth::default(),
        rbac: Rbac::default(),
        faults: Arc::default(),
        proxy: Proxy::new(clock.clone(), StopToken::new(), None, None).expect("no certificate"),
        clock,
        service_accounts: false,
        minor: 36,
        stop: StopToken::new(),
        bookmark_every: Duration::from_secs(60),
    }
}

#[cfg(test)]
mod tests;
