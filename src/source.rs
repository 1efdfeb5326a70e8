//! The client as the caches' [`Source`]: the one place that knows both. Upstream:
//! `cache.ListWatch`.

#![warn(missing_docs)]

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_lite::stream::{self, Boxed as BoxStream, Stream, StreamExt};

use crate::cache::{
    Answer, BoxFuture, DecodeError, Error, ListRequest, Outages, Scope, Source, WatchRequest,
};
use crate::client::{self, Client, Dynamic, ListOptions, WatchStream};
use crate::objects::{Encoded, Form, ListPart, ResourceType, WatchEvent};

/// Lists and watches through a [`Client`]. Upstream: `cache.ListWatch`.
///
/// Requests wait for the client's rate limiter. Each list and each watch is one request; the source
/// retries none of them beyond what the client does. Errors are given in the cache's terms:
/// `Expired` for 410, `Busy` for 429, `Unreachable` where the connection was refused, and where
/// that of a watch was reset. After an error a list or watch has no further items. Futures and
/// streams may be dropped at any time, which closes the connection.
pub struct ClientSource {
    client: Client,
    /// Whether a watch may begin with all objects.
    streams: bool,
    outages: Option<Outages>,
}

impl ClientSource {
    /// Makes a source whose watches may begin with all objects: the gate `WatchListClient` is on. A
    /// server that does not know such watches makes `watch` fail with `Unsupported`, and the caller
    /// lists.
    #[expect(clippy::new_ret_no_self, reason = "callers want the trait object")]
    pub fn new(client: Client) -> Arc<dyn Source> {
        Arc::new(ClientSource { client, streams: true, outages: None })
    }

    /// Makes a source that lists before it watches: the gate `WatchListClient` is off. A watch that
    /// asks for all objects fails with `Unsupported` and sends nothing.
    pub fn listing(client: Client) -> Arc<dyn Source> {
        Arc::new(ClientSource { client, streams: false, outages: None })
    }

    /// Makes a source whose caches notice the end of an outage together: see [`Outages`]. For a
    /// process with many caches, of which a cluster has few: after an outage all of them list
    /// within seconds, at five times the client's rate. `streams`: whether it watches before it
    /// lists.
    pub fn noticing_outages(client: Client, streams: bool) -> Arc<dyn Source> {
        let (client, outages) = (client.with_rate(5.0, 5), Some(Outages::default()));
        Arc::new(ClientSource { client, streams, outages })
    }

    /// Returns the verbs for the resource of `scope`, in the form that the caller prefers.
    fn verbs(&self, scope: &Scope, preferred: Form) -> Dynamic {
        let verbs = self.client.resource(&scope.resource).accepting(preferred);
        if scope.metadata_only { verbs.metadata_only() } else { verbs }
    }

    /// Looks up in which version the server serves `resource`, after a list was answered with 404. A
    /// watch need not: each failed one is followed by a list, at least of one object.
    async fn choose_version_again(&self, resource: &ResourceType) {
        if let Err(error) = self.client.choose_version_again(resource).await {
            log::warn!("{resource}: the served version is not known: {error}");
        }
    }
}

/// Returns the options of a list or watch of `scope`.
fn options(scope: &Scope, resource_version: Option<String>, limit: Option<u32>) -> ListOptions {
    ListOptions {
        label_selector: scope.label_selector.clone(),
        field_selector: scope.field_selector.clone(),
        resource_version,
        limit,
    }
}

/// Translates the client's error into the cache's terms.
fn translate(error: client::Error) -> Error {
    if error.is_expired() {
        return Error::Expired;
    }
    if error.is_too_large_resource_version() {
        return Error::TooLarge;
    }
    if error.is_too_many_requests() {
        return Error::Busy { after: error.retry_after().unwrap_or_default() };
    }
    match error {
        client::Error::Decode { request, source } => {
            DecodeError { what: request, cause: source.into_error() }.into()
        }
        error if error.is_refused() => Error::Unreachable(error.into()),
        error => Error::Failed(error.into()),
    }
}

/// Translates a list's error into the cache's terms. One that breaks off is not routine: it may do
/// so each time.
fn translate_list(error: client::Error) -> Error {
    match error.is_reset() {
        true => Error::Failed(error.into()),
        false => translate(error),
    }
}

/// Translates a watch's error into the cache's terms. After a Status the watch cannot be resumed:
/// most likely the server has restarted with an empty watch cache. After any other error it can.
fn translate_watch(error: client::Error) -> Error {
    let answered = error.code().is_some();
    match translate(error) {
        Error::Failed(cause) if answered => Error::EndedByServer(cause),
        other => other,
    }
}

/// The events of a watch, up to the first error. An `unfold` would store the future twice.
struct Events(Option<WatchStream>);

impl Stream for Events {
    type Item = Result<WatchEvent<Encoded>, Error>;

    /// Reads the next event; the stream ends with the first error.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(watch) = &mut self.0 else { return Poll::Ready(None) };
        // The future may be dropped at any time: the bytes that it has read are in the watch.
        let event = ready!(pin!(watch.next()).poll(context));
        let event = event.map(|event| event.map_err(translate_watch));
        if !matches!(event, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(event)
    }
}

impl Source for ClientSource {
    /// Opens a page of a list, whose items are read as they arrive.
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: ListRequest,
    ) -> Answer<'a, ListPart<Encoded>> {
        Box::pin(async move {
            let options = options(scope, request.resource_version, request.limit);
            let namespace = scope.namespace.as_deref();
            let verbs = self.verbs(scope, preferred);
            let page = verbs.list_page(namespace, &options, request.continue_token).await;
            if page.as_ref().is_err_and(client::Error::is_not_found) {
                self.choose_version_again(&scope.resource).await;
            }
            let page = page.map_err(translate_list)?;
            let parts = stream::unfold(Some(page), |page| async move {
                let mut page = page?;
                let part = page.next().await.map_err(translate_list);
                let has_more = matches!(part, Ok(ListPart::Item(_)));
                Some((part, has_more.then_some(page)))
            });
            Ok(parts.boxed() as BoxStream<_>)
        })
    }

    /// Opens a watch, whose events are read as they arrive.
    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        preferred: Form,
        request: WatchRequest,
    ) -> Answer<'a, WatchEvent<Encoded>> {
        Box::pin(async move {
            let initial = request.send_initial_events;
            if initial && !self.streams {
                return Err(Error::Unsupported);
            }
            let options = options(scope, request.resource_version, None);
            let namespace = scope.namespace.as_deref();
            let opened = self
                .verbs(scope, preferred)
                .watch(namespace, &options, initial, request.timeout)
                .await;
            let watch = opened.map_err(|error| match error.code() {
                // An older server refuses `sendInitialEvents` as invalid.
                Some(400 | 422) if initial => Error::Unsupported,
                _ => translate_watch(error),
            })?;
            Ok(Events(Some(watch)).boxed() as BoxStream<_>)
        })
    }

    /// Asks `/readyz`, which includes that the server's own caches and its authorization are ready.
    fn is_ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { self.client.get_path("/readyz").await.is_ok() })
    }

    fn outages(&self) -> Option<&Outages> {
        self.outages.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::objects::{DeviceTaintRule, Pod, Resource, ResourceClaim};

    fn name(error: &Error) -> &'static str {
        match error {
            Error::EndedByServer(_) => "Ended",
            Error::Expired => "Expired",
            Error::Busy { .. } => "Busy",
            Error::Failed(_) if error.is_decode() => "Garbled",
            Error::Failed(_) => "Failed",
            Error::TooLarge | Error::Unsupported | Error::Unreachable(_) => "another",
        }
    }

    #[test]
    fn without_the_gate_a_watch_with_initial_events_is_unsupported() {
        let clock = crate::clock::FakeClock::new(crate::objects::Timestamp::from_secs(0));
        let config = client::Config::new("http://127.0.0.1:1".to_owned());
        let client = Client::new(config, clock).expect("no certificates are read");
        let scope = Scope::all(Pod::RESOURCE);
        let unsupported = |source: Arc<dyn Source>| {
            let request = WatchRequest {
                resource_version: None,
                send_initial_events: true,
                timeout: Duration::from_secs(1),
            };
            let opened = source.watch(&scope, Form::Json, request);
            let opened = futures_lite::future::block_on(opened);
            matches!(opened.err(), Some(Error::Unsupported))
        };
        assert!(unsupported(ClientSource::listing(client.clone())));
        assert!(!unsupported(ClientSource::new(client)), "nothing answers");
    }

    /// With a server that is upgraded between two lists, and later serves the resource no longer.
    #[test]
    fn resource_that_is_not_served_any_more_is_listed_in_another_version() {
        const RULES: ResourceType = DeviceTaintRule::RESOURCE;
        const OTHERS: ResourceType = ResourceClaim::RESOURCE;
        let (is_upgraded, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let is_gone = Arc::new(AtomicBool::new(false));
        let (upgraded, gone, counted) = (is_upgraded.clone(), is_gone.clone(), reads.clone());
        let answer = move |line: &str| {
            let serves = !gone.load(Ordering::SeqCst);
            let version = if upgraded.load(Ordering::SeqCst) { "v1" } else { "v1beta2" };
            let path = line.split(' ').nth(1).unwrap_or_default();
            let rules = format!("/apis/resource.k8s.io/{version}/devicetaintrules");
            match path.split('?').next().unwrap_or_default() {
                "/api" => (404, json!({})),
                "/apis" => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let kind = json!({
                        "resource": "devicetaintrules", "scope": "Cluster", "verbs": ["list"],
                        "responseKind": { "kind": "DeviceTaintRule" },
                    });
                    let kinds = if serves { vec![kind] } else { Vec::new() };
                    let versions = json!([{ "version": version, "resources": kinds }]);
                    let group = json!({
                        "metadata": { "name": "resource.k8s.io" }, "versions": versions,
                    });
                    (200, json!({ "kind": "APIGroupDiscoveryList", "items": [group] }))
                }
                path if path == rules && serves => (200, json!({ "kind": "DeviceTaintRuleList" })),
                _ => (404, json!({})),
            }
        };
        futures_lite::future::block_on(async {
            let client = client::testing::answering(answer).await;
            let known = const { &[(RULES, &["v1", "v1beta2"] as &[&str])] };
            client.choose_versions(known).await.expect("discovery");
            let source = ClientSource::new(client);
            let (rules, others) = (Scope::all(RULES), Scope::all(OTHERS));
            let is_listed = async |scope: &Scope| {
                source.list(scope, Form::Json, ListRequest::default()).await.is_ok()
            };
            assert!(is_listed(&rules).await);
            is_upgraded.store(true, Ordering::SeqCst);
            assert!(!is_listed(&others).await);
            assert_eq!(reads.load(Ordering::SeqCst), 1, "it has one version");
            assert!(!is_listed(&rules).await);
            assert!(is_listed(&rules).await);
            assert_eq!(reads.load(Ordering::SeqCst), 2);
            is_gone.store(true, Ordering::SeqCst);
            for _ in 0..3 {
                assert!(!is_listed(&rules).await);
            }
            assert_eq!(reads.load(Ordering::SeqCst), 3, "it is not served in any version");
        });
    }

    #[test]
    fn a_refused_connection_differs_from_a_failed_request() {
        let failed = |source| client::Error::Transport { request: "GET /".into(), source };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(matches!(translate(failed(refused.into())), Error::Unreachable(_)));
        assert!(matches!(translate(failed("no answer in time".into())), Error::Failed(_)));
        for (kind, is_routine) in [
            (io::ErrorKind::ConnectionRefused, true),
            (io::ErrorKind::ConnectionReset, false),
            (io::ErrorKind::UnexpectedEof, false),
        ] {
            let routine = |error| matches!(error, Error::Unreachable(_));
            let of_list = translate_list(failed(io::Error::from(kind).into()));
            assert_eq!(routine(of_list), is_routine, "{kind}");
            assert!(routine(translate_watch(failed(io::Error::from(kind).into()))), "{kind}");
        }
    }

    #[test]
    fn errors_of_the_server_and_of_the_connection_are_distinguished() {
        for (code, reason, expected) in [
            (500, "InternalError", "Ended"),
            (403, "Forbidden", "Ended"),
            (410, "Expired", "Expired"),
            (429, "TooManyRequests", "Busy"),
            (0, "", "Failed"),
        ] {
            let error = match code {
                0 => client::Error::Transport { request: "GET /".into(), source: "reset".into() },
                code => client::Error::Status(Box::new(client::Failure {
                    request: "GET /".into(),
                    code,
                    retry_after: None,
                    body: client::FailureBody::Status,
                    status: client::Status { reason: reason.into(), ..Default::default() },
                })),
            };
            assert_eq!(name(&translate_watch(error)), expected, "{code} {reason}");
        }
        let garbled = client::Error::Decode { request: "GET /".into(), source: "no".into() };
        assert_eq!(name(&translate_watch(garbled)), "Garbled");
    }
}
