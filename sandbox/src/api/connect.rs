//! Requests that servers behind this one answer: kubelets, pods, services and other API servers.
//! Upstream: `endpoints/handlers.ConnectResource`.

use std::sync::Arc;

use serde_json::Value;

use crate::access::{Access, User};
use crate::api::Api;
use crate::api::write::has;
use crate::kinds::Subresource;
use crate::request::call::ResourcePath;
use crate::status::ApiResult;
use crate::storage::store::Stored;
use kube_controller_manager::server::http::{Request, Response};

const API_SERVICES: &str = "apiservices.apiregistration.k8s.io";

/// Who answers a request in place of this server.
pub enum Behind {
    /// The server of an APIService.
    Service(Arc<Stored>),
    /// The server behind a subresource.
    Subresource(ResourcePath),
}

impl Api {
    /// Returns the server that a request for `path` is passed on to, or `None` if this server
    /// answers it. It is an APIService's server, or the target of a subresource such as `proxy`.
    pub fn behind(&self, path: &str) -> Option<Behind> {
        let mut parts = path.split('/').skip(1);
        if let (Some("apis"), Some(group), Some(version)) =
            (parts.next(), parts.next(), parts.next())
        {
            let service = self.store.get(API_SERVICES, &format!("{version}.{group}"));
            if let Some(service) = service.filter(|service| is_delegating(&service.value)) {
                return Some(Behind::Service(service));
            }
        }
        self.connected(path).map(Behind::Subresource)
    }

    /// Returns the APIServices of other servers.
    pub fn delegating(&self) -> Vec<Arc<Stored>> {
        let other = |service: &Stored| is_delegating(&service.value);
        let page = self.store.list(API_SERVICES, "", None, usize::MAX, None, &other);
        page.map(|page| page.items).unwrap_or_default()
    }

    /// Parses a path; returns its resource if the request is passed on for its subresource (`log`,
    /// `proxy` and others), else `None`.
    fn connected(&self, path: &str) -> Option<ResourcePath> {
        // The path of a proxy continues after the subresource.
        let with_rest = || ResourcePath::parse_prefix(path).filter(|at| at.subresource == "proxy");
        let at = ResourcePath::parse(path).or_else(with_rest)?;
        let kind = self.registry.find(&at.group, &at.version, &at.resource)?;
        let sub = has(&kind, &at.subresource)?;
        let scope_fits = kind.resource.namespaced != at.namespace.is_empty();
        let is_connected = matches!(sub, Subresource::Log | Subresource::Connect(_));
        (scope_fits && is_connected).then_some(at)
    }

    /// Passes a request on to the kubelet, pod or service that its subresource is about, or to the
    /// server of an APIService. `access` has been allowed.
    pub async fn connect(
        &self,
        behind: Behind,
        user: &User,
        access: Access,
        request: Request,
    ) -> ApiResult<Response> {
        let at = match behind {
            Behind::Service(service) => {
                return self.proxy.delegate(&self.store, &service.value, user, request).await;
            }
            Behind::Subresource(at) => at,
        };
        let streams = ["exec", "attach", "portforward"].contains(&at.subresource.as_str());
        if streams && access.verb != "create" {
            // A GET that opens a WebSocket does as much as a POST. Upstream: the gate
            // `AuthorizePodWebsocketUpgradeCreatePermission`.
            let access = Access { verb: "create".to_owned(), ..access };
            self.authorizer().check(user, &access)?;
        }
        let path = request.path.clone();
        self.proxy.answer(&self.store, &at, rest(&at, &path), request).await
    }
}

fn is_delegating(service: &Value) -> bool {
    service["spec"]["service"].is_object()
}

/// Returns the path after the subresource, still encoded; `None` if there is not even a slash.
fn rest<'a>(at: &ResourcePath, path: &'a str) -> Option<&'a str> {
    // The parts before it, with the empty first one:
    // `/api/v1/[namespaces/NAMESPACE/]KIND/NAME/SUB`. Only kinds of the core group are connected.
    let before = if at.namespace.is_empty() { 6 } else { 8 };
    path.splitn(before + 1, '/').nth(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::for_tests;

    #[test]
    fn paths_are_passed_on_by_their_subresource() {
        let api = for_tests();
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b/log", Some(("b", None))),
            ("/api/v1/namespaces/a/pods/b/exec", Some(("b", None))),
            ("/api/v1/namespaces/a/pods/b/proxy", Some(("b", None))),
            ("/api/v1/namespaces/a/pods/b/proxy/", Some(("b", Some("")))),
            (
                "/api/v1/namespaces/a/services/https:b:c/proxy/d/e%2Ff/",
                Some(("https:b:c", Some("d/e%2Ff/"))),
            ),
            ("/api/v1/nodes/b/proxy/pods", Some(("b", Some("pods")))),
            ("/api/v1/namespaces/a/pods/b", None),
            ("/api/v1/namespaces/a/pods/b/status", None),
            ("/api/v1/namespaces/a/pods/b/log/c", None),
            ("/api/v1/namespaces/a/nodes/b/proxy", None),
            ("/api/v1/pods/b/log", None),
            ("/apis/apps/v1/namespaces/a/deployments/b/proxy", None),
        ] {
            let at = api.connected(path);
            let found = at.as_ref().map(|at| (at.name.as_str(), rest(at, path)));
            assert_eq!(found, expected, "{path}");
        }
    }
}
