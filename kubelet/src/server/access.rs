//! Who may ask for what: the users of requests, and the parts of the node that they name.
//! Upstream: `pkg/kubelet/server/auth.go`, `cmd/kubelet/app/auth.go`.

use std::sync::Arc;

use kube_controller_manager::client::Client;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::files::{POLL_PERIOD, stamp};
use kube_controller_manager::server::auth::{
    Access, ApiReviewer, Attributes, Auth, AuthConfig, Authorities, Refusal, RequestHeader, Trust,
};
use kube_controller_manager::server::http::Method;
use kube_controller_manager::server::{Request, Response};
use kube_controller_manager::task::{self, StopToken};

use super::Error;
use crate::options::configuration::{ALWAYS_ALLOW, Configuration};

/// Builds the filter in front of the port's handlers.
///
/// # Errors
/// The file with authorities cannot be used, or a review needs an absent API server.
pub async fn build(
    configuration: &Configuration,
    client: Option<&Client>,
    node: &str,
    clock: &SharedClock,
) -> Result<Arc<Auth>, Error> {
    let (authentication, authorization) =
        (&configuration.authentication, &configuration.authorization);
    let allows_all = authorization.mode == ALWAYS_ALLOW;
    // Strangers cause reviews too: these do not use up the limits of the kubelet's own requests.
    let reviews = client.map(|client| client.with_limits(0.0, 0));
    let reviewing = |is_needed: bool, kind| match (is_needed, &reviews) {
        (false, _) => Ok(None),
        (true, Some(client)) => Ok(Some(client.clone())),
        (true, None) => Err(Error::NoApiServer { kind }),
    };
    let reviewer = ApiReviewer {
        authentication: reviewing(authentication.webhook.enabled, "authentication")?,
        authorization: reviewing(!allows_all, "authorization")?,
        clock: clock.clone(),
    };
    let config = AuthConfig {
        trust: trust(&authentication.x509.client_ca_file).await.map_err(Error::ClientCa)?,
        reviewer: Arc::new(reviewer),
        attributes: Arc::new(NodeAttributes { node: node.to_owned() }),
        anonymous: authentication.anonymous.enabled,
        token_ttl: authentication.webhook.cache_ttl.0,
        authorized_ttl: authorization.webhook.cache_authorized_ttl.0,
        unauthorized_ttl: authorization.webhook.cache_unauthorized_ttl.0,
        // With `AlwaysAllow` no path is reviewed.
        always_allow: allows_all.then(|| "*".to_owned()).into_iter().collect(),
        always_allow_groups: Vec::new(),
    };
    Ok(Auth::new(config, clock.clone()))
}

/// Returns the authorities of a file; an empty path: none.
async fn trust(file: &str) -> Result<Trust, String> {
    let client_ca = match file {
        "" => None,
        file => Some(Authorities::from_file(file).await?),
    };
    Ok(Trust { client_ca, request_header: RequestHeader::default() })
}

/// Reads the file with authorities again when it has changed, until stopped. One that cannot be read
/// leaves them as they are.
pub async fn reload(auth: Arc<Auth>, file: String, clock: SharedClock, stop: StopToken) {
    if file.is_empty() {
        return;
    }
    // The first poll reads a file that may have changed since the start.
    let (mut read, mut known) = (None, String::new());
    while stop.unless_stopped(clock.sleep(POLL_PERIOD)).await.is_some() {
        let path = file.clone();
        let now = task::blocking(move || stamp(path)).await;
        if read == Some(now) {
            continue;
        }
        match trust(&file).await {
            Ok(trust) => {
                auth.set_trust(trust);
                (read, known) = (Some(now), String::new());
            }
            // Retried at the next poll, and logged once.
            Err(fault) if fault != known => {
                log::error!("authorities of clients not reloaded: {fault}");
                known = fault;
            }
            Err(_) => {}
        }
    }
}

/// Finds the parts of the node that a request asks for. Upstream: `nodeAuthorizerAttributesGetter`.
struct NodeAttributes {
    node: String,
}

impl Attributes for NodeAttributes {
    /// Returns what a request needs access to: the subresources of the node that its path stands
    /// for, each by the verb of its method.
    fn accesses(&self, request: &Request) -> Vec<Access> {
        let verb = match request.method {
            Method::POST => "create",
            Method::GET => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            // No verb stands for another method.
            _ => "",
        };
        let access = |subresource| Access::Resource {
            verb,
            resource: "nodes",
            subresource,
            name: self.node.clone(),
        };
        subresources(&request.path).into_iter().map(access).collect()
    }

    /// Builds the answer to a request that is refused, with upstream's text.
    fn refuse(&self, request: &Request, refusal: Refusal<'_>) -> Response {
        let (status, text) = match refusal {
            Refusal::Unauthenticated => (401, "Unauthorized".to_owned()),
            Refusal::Forbidden { user, accesses } => {
                let verb = accesses.first().map_or("", verb);
                let parts = subresources(&request.path).join(" ");
                let name = &user.name;
                let text = format!(
                    "Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{parts}])\n"
                );
                (403, text)
            }
            Refusal::Failed { user, access, .. } => {
                let (name, verb) = (&user.name, verb(access));
                let part = match access {
                    Access::Resource { subresource, .. } => subresource,
                    // Requests here need access to subresources only.
                    Access::Path { .. } => "",
                };
                let text = format!(
                    "Authorization error (user={name}, verb={verb}, resource=nodes, \
                     subresource={part})"
                );
                (500, text)
            }
        };
        Response::text(status, text)
    }
}

fn verb(access: &Access) -> &str {
    match access {
        Access::Resource { verb, .. } => verb,
        Access::Path { verb, .. } => verb,
    }
}

/// Lists the subresources of the node that a path stands for: access to one of them suffices. The
/// path is compared as it was sent, as routes do. The finer one comes first.
fn subresources(path: &str) -> Vec<&'static str> {
    let is = |of: &str| {
        path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let fine = [("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz")];
    let fine = fine.into_iter().chain([("/runningpods", "pods")]);
    let fine = fine.filter(|(of, _)| is(of)).map(|(_, part)| part).next();
    let coarse = [
        ("/stats", "stats"),
        ("/metrics", "metrics"),
        ("/logs", "log"),
        ("/checkpoint", "checkpoint"),
        ("/statusz", "statusz"),
        ("/flagz", "configz"),
    ];
    let coarse = coarse.into_iter().find(|(of, _)| is(of)).map_or("proxy", |(_, part)| part);
    fine.into_iter().chain([coarse]).collect()
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::server::auth::User;

    use super::*;

    #[test]
    fn paths_are_parts_of_the_node() {
        for (path, expected) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/pods/x", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/runningpods", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats", &["stats"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/", &["log"]),
            ("/logs/syslog", &["log"]),
            ("/checkpoint/ns/p/c", &["checkpoint"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/exec/ns/p/c", &["proxy"]),
            ("/run/ns/p/c", &["proxy"]),
            ("/attach/ns/p/c", &["proxy"]),
            ("/portForward/ns/p", &["proxy"]),
            ("/containerLogs/ns/p/c", &["proxy"]),
            ("/debug/pprof/profile", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
            // As routes, it does not decode or resolve them.
            ("/%70ods", &["proxy"]),
            ("/exec/../pods", &["proxy"]),
            ("//pods", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }

    #[test]
    fn methods_are_verbs_of_the_api() {
        let attributes = NodeAttributes { node: "n".to_owned() };
        for (method, verb) in [
            (Method::GET, "get"),
            (Method::POST, "create"),
            (Method::PUT, "update"),
            (Method::PATCH, "patch"),
            (Method::DELETE, "delete"),
            (Method::HEAD, ""),
            (Method::OPTIONS, ""),
        ] {
            let request = Request { method: method.clone(), ..Request::get("/exec/a/b/c") };
            let expected = Access::Resource {
                verb,
                resource: "nodes",
                subresource: "proxy",
                name: "n".to_owned(),
            };
            assert_eq!(attributes.accesses(&request), [expected], "{method}");
        }
    }

    #[test]
    fn refusals_have_upstreams_texts() {
        let attributes = NodeAttributes { node: "n".to_owned() };
        let request = Request::get("/pods");
        let accesses = attributes.accesses(&request);
        let user = &User { name: "ada".to_owned(), ..User::default() };
        let access = &accesses[0];
        for (refusal, status, text) in [
            (Refusal::Unauthenticated, 401, "Unauthorized"),
            (
                Refusal::Forbidden { user, accesses: &accesses },
                403,
                "Forbidden (user=ada, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
            ),
            (
                Refusal::Failed { user, access, error: "away" },
                500,
                "Authorization error (user=ada, verb=get, resource=nodes, subresource=pods)",
            ),
        ] {
            let response = attributes.refuse(&request, refusal);
            assert_eq!((response.status, response.content()), (status, text.as_bytes()));
        }
    }
}
