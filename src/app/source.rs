//! The client as the caches' source: the one place that knows both.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::stream::{self, Boxed as BoxStream, StreamExt};

use crate::cache::{
    Answer, Error, ListRequest, RawListPart, RawWatchEvent, Scope, Source, WatchRequest,
};
use crate::client::{self, Client, Dynamic, ListOptions, ListPart, WatchEvent};
use crate::objects::{Form, Pod, Resource};

pub struct ClientSource {
    client: Client,
}

impl ClientSource {
    #[expect(clippy::new_ret_no_self, reason = "what callers want is the trait object")]
    pub fn new(client: Client) -> Arc<dyn Source> {
        Arc::new(ClientSource { client })
    }

    fn verbs(&self, scope: &Scope, best: Form) -> Dynamic {
        let verbs = self.client.resource(&scope.resource).accepting(best);
        if scope.metadata_only { verbs.metadata_only() } else { verbs }
    }
}

fn options(scope: &Scope, resource_version: Option<String>, limit: Option<u32>) -> ListOptions {
    ListOptions {
        label_selector: scope.label_selector.clone(),
        field_selector: scope.field_selector.clone(),
        resource_version,
        limit,
    }
}

fn translated(event: WatchEvent) -> RawWatchEvent {
    match event {
        WatchEvent::Added(object) => RawWatchEvent::Added(object),
        WatchEvent::Modified(object) => RawWatchEvent::Modified(object),
        WatchEvent::Deleted(object) => RawWatchEvent::Deleted(object),
        WatchEvent::Bookmark(object) => RawWatchEvent::Bookmark(object),
    }
}

/// In the cache's own terms.
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
    match error.is_refused() {
        true => Error::Away(error.into()),
        false => Error::Failed(error.into()),
    }
}

/// Of a watch. A Status is the server's word that the next change cannot be sent so: it has begun
/// anew, most likely, and forgotten what was; after anything else the watch may go on where it was.
fn told(error: client::Error) -> Error {
    let answered = error.code().is_some();
    match translate(error) {
        Error::Failed(cause) if answered => Error::Ended(cause),
        other => other,
    }
}

/// Pods come and go by the thousands, each change a sync and a status of its owner and of that one's
/// owner.
const PODS: Duration = Duration::from_millis(50);

impl Source for ClientSource {
    fn list<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: ListRequest,
    ) -> Answer<'a, RawListPart> {
        Box::pin(async move {
            let options = options(scope, request.resource_version, request.limit);
            let namespace = scope.namespace.as_deref();
            let verbs = self.verbs(scope, best);
            let page = verbs.list_page(namespace, &options, request.continue_token).await;
            let page = page.map_err(translate)?;
            let parts = stream::unfold(Some(page), |page| async move {
                let mut page = page?;
                Some(match page.next().await {
                    Ok(ListPart::Item(item)) => (Ok(RawListPart::Item(item)), Some(page)),
                    Ok(ListPart::End { resource_version, continue_token }) => {
                        (Ok(RawListPart::End { resource_version, continue_token }), None)
                    }
                    Err(error) => (Err(translate(error)), None),
                })
            });
            Ok(parts.boxed() as BoxStream<_>)
        })
    }

    fn watch<'a>(
        &'a self,
        scope: &'a Scope,
        best: Form,
        request: WatchRequest,
    ) -> Answer<'a, RawWatchEvent> {
        Box::pin(async move {
            let initial = request.send_initial_events;
            let options = options(scope, request.resource_version, None);
            let namespace = scope.namespace.as_deref();
            let opened =
                self.verbs(scope, best).watch(namespace, &options, initial, request.timeout).await;
            let watch = opened.map_err(|error| match error.code() {
                // An older server refuses `sendInitialEvents` as invalid.
                Some(400 | 422) if initial => Error::Unsupported,
                _ => told(error),
            })?;
            let events = stream::unfold(Some(watch), |watch| async move {
                let mut watch = watch?;
                Some(match watch.next().await? {
                    Ok(event) => (Ok(translated(event)), Some(watch)),
                    Err(error) => (Err(told(error)), None),
                })
            });
            Ok(events.boxed() as BoxStream<_>)
        })
    }

    fn pace(&self, scope: &Scope) -> Duration {
        match scope.resource == Pod::RESOURCE {
            true => PODS,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_server_that_is_away_is_told_from_one_that_fails() {
        let failed = |source| client::Error::Transport { request: "GET /".into(), source };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(matches!(translate(failed(refused.into())), Error::Away(_)));
        assert!(matches!(translate(failed("no answer in time".into())), Error::Failed(_)));
    }

    #[test]
    fn an_error_in_a_watch_is_the_servers_word_or_the_connections() {
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
                    status: client::Status { reason: reason.into(), ..Default::default() },
                })),
            };
            let found = match told(error) {
                Error::Ended(_) => "Ended",
                Error::Expired => "Expired",
                Error::Busy { .. } => "Busy",
                Error::Failed(_) => "Failed",
                Error::TooLarge | Error::Unsupported | Error::Away(_) => "another",
            };
            assert_eq!(found, expected, "{code} {reason}");
        }
    }
}
