//! APIs that other servers serve, as APIServices register them: requests go to an endpoint of the
//! service with the user's name in headers. Upstream: `kube-aggregator/pkg/apiserver`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_lite::StreamExt;
use futures_lite::future::or;
use futures_rustls::rustls::ClientConfig;
use futures_rustls::rustls::crypto::ring;
use hyper::header::{ACCEPT, HOST, HeaderName, HeaderValue};
use serde_json::Value;

use super::backend::{Address, Backend, Outgoing, Tls};
use super::{Proxy, configured, forwarded_headers, is_upgrade, location, relay, request, unknown};
use crate::access::User;
use crate::object::text;
use crate::status::ApiResult;
use crate::storage::store::Store;
use kube_controller_manager::client::{Trust, pem};
use kube_controller_manager::server::http::{HeaderMap, Method, Request, Response};

/// How long discovery waits for another server.
const DISCOVERY: Duration = Duration::from_secs(5);
/// Bytes of another server's list of resources.
const DISCOVERY_BYTES: usize = 1 << 20;
/// The headers that name the user begin so.
const REMOTE: &str = "x-remote-";

/// A server behind an APIService.
struct Delegate {
    address: Address,
    config: Arc<ClientConfig>,
    /// The name in its certificate.
    name: String,
}

impl Proxy {
    /// Passes a request below `/apis/GROUP/VERSION` on to the service of its APIService, in the
    /// name of `user`, and returns the answer. Answers 503 when the service cannot be reached.
    pub async fn delegate(
        &self,
        store: &Store,
        service: &Value,
        user: &User,
        request: Request,
    ) -> ApiResult<Response> {
        let Some(delegate) = self.delegate_of(store, service) else {
            return Ok(Response::text(503, "service unavailable\n"));
        };
        let mut headers = forwarded_headers(&request);
        let upgrades = is_upgrade(&headers);
        name_user(&mut headers, user, &delegate.address)?;
        let Request { method, path, query, body, upgrade, .. } = request;
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let backend = delegate.backend(self);
        if upgrades {
            return self.upgrade(backend, target, method, headers, upgrade).await;
        }
        let request = self::request(method, &target, headers, Outgoing::new(body))?;
        Ok(match backend.send(request).await {
            Ok(answer) => relay(answer),
            Err(error) => Response::text(503, format!("error trying to reach service: {error}\n")),
        })
    }

    /// Asks an APIService for the `APIResourceList` of its group and version; `None` when there is
    /// no answer in time, or one that is not usable or too long.
    pub async fn resources(&self, store: &Store, service: &Value) -> Option<Value> {
        let delegate = self.delegate_of(store, service)?;
        let (group, version) = (text(service, "/spec/group"), text(service, "/spec/version"));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        name_user(&mut headers, &User::aggregator(), &delegate.address).ok()?;
        let target = format!("/apis/{group}/{version}");
        let request = request(Method::GET, &target, headers, Outgoing::empty()).ok()?;
        let backend = delegate.backend(self);
        let read = async {
            let mut answer = backend.send(request).await.ok()?;
            let mut document = Vec::new();
            while let Some(bytes) = answer.body.next().await {
                document.extend_from_slice(&bytes.ok()?);
                if document.len() > DISCOVERY_BYTES {
                    return None;
                }
            }
            let is_ok = answer.head.status.is_success();
            serde_json::from_slice(&document).ok().filter(|_| is_ok)
        };
        let late = async {
            self.clock.sleep(DISCOVERY).await;
            None
        };
        or(read, late).await
    }

    /// Finds an endpoint of an APIService, and the TLS configuration to reach it. `None` when the
    /// service has no endpoint, or its trust cannot be used.
    fn delegate_of(&self, store: &Store, service: &Value) -> Option<Delegate> {
        let reference = |key: &str| text(service, &format!("/spec/service/{key}"));
        let (namespace, name) = (reference("namespace"), reference("name"));
        let port = service.pointer("/spec/service/port").and_then(Value::as_u64).unwrap_or(443);
        let address = location::address_of_service(store, namespace, name, port)?;
        let provider = Arc::new(ring::default_provider());
        let trust = match service["spec"]["insecureSkipTLSVerify"] == true {
            true => Trust::every(&provider),
            false => {
                let bundle = STANDARD.decode(text(service, "/spec/caBundle")).ok()?;
                Trust::of(pem::certificates(&bundle), &provider)
            }
        };
        let config = configured(provider, trust, self.front_proxy.as_ref()).ok()?;
        Some(Delegate {
            address,
            config: Arc::new(config),
            name: format!("{name}.{namespace}.svc"),
        })
    }
}

impl Delegate {
    fn backend<'a>(&'a self, proxy: &'a Proxy) -> Backend<'a> {
        let tls = Tls { config: &self.config, name: &self.name };
        Backend { address: &self.address, tls: Some(tls), clock: &proxy.clock }
    }
}

/// Replaces the headers that name a user, and the host. Upstream: `transport.SetAuthProxyHeaders`.
///
/// # Errors
/// A part of the user does not fit into a header.
fn name_user(headers: &mut HeaderMap, user: &User, address: &Address) -> ApiResult<()> {
    let named: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(REMOTE)).cloned().collect();
    for name in named {
        headers.remove(name);
    }
    let groups = user.groups.iter().map(|group| ("group".to_owned(), group));
    let extra = user.extra.iter().flat_map(|(key, values)| {
        let key = format!("extra-{}", escaped(key));
        values.iter().map(move |value| (key.clone(), value))
    });
    let uid = Some(("uid".to_owned(), &user.uid)).filter(|(_, uid)| !uid.is_empty());
    let named = [("user".to_owned(), &user.name)].into_iter().chain(uid).chain(groups).chain(extra);
    for (key, value) in named {
        // Without one of them the other server would take the user for another.
        let refused = |why: String| unknown(format!("user {:?}: {key}: {why}", user.name));
        let name = HeaderName::try_from(format!("{REMOTE}{key}"));
        let name = name.map_err(|error| refused(error.to_string()))?;
        let value = HeaderValue::from_bytes(value.as_bytes());
        headers.append(name, value.map_err(|error| refused(error.to_string()))?);
    }
    if let Ok(host) = HeaderValue::from_str(&address.to_string()) {
        headers.insert(HOST, host);
    }
    Ok(())
}

/// Escapes a key of a user's extra values as a part of a header's name.
fn escaped(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~' => {
                text.push(byte.into());
            }
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_named_in_headers_that_clients_cannot_set() {
        let mut headers = HeaderMap::new();
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-a"] {
            headers.append(name, HeaderValue::from_static("root"));
        }
        let mut user = User::new("bob", &["a", "b"]);
        let credential = "authentication.kubernetes.io/credential-id";
        user.extra.insert(credential.to_owned(), vec!["JTI=1".to_owned()]);
        let address = Address { host: "10.0.0.1".to_owned(), port: 443 };
        user.uid = "u-1".to_owned();
        name_user(&mut headers, &user, &address).unwrap();
        let shown: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        let mut shown = shown;
        shown.sort();
        assert_eq!(
            shown,
            [
                "host=10.0.0.1:443",
                "x-remote-extra-authentication.kubernetes.io%2fcredential-id=JTI=1",
                "x-remote-group=a",
                "x-remote-group=b",
                "x-remote-uid=u-1",
                "x-remote-user=bob",
            ]
        );
        user.name = "bob\nroot".to_owned();
        assert!(name_user(&mut headers, &user, &address).is_err());
    }
}
