//! What the manager serves, and to whom. Upstream: `controller-manager/app/serve.go`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use async_std::net::TcpListener;
use hyper::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use serde_json::Value;

use super::configz;
use super::connect::{Connect, Target, user_agent};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::metrics;
use crate::objects::{ObjectKey, ResourceType};
use crate::options::{Options, PROGRAM, VERSION, version_info};
use crate::server::auth::{ApiReviewer, Auth, AuthConfig, Authorities, RequestHeader};
use crate::server::health::HealthChecks;
use crate::server::http::Server;
use crate::server::routes::Routes;
use crate::server::tls::{Tls, TlsOptions};
use crate::server::{Handler, Request, Response, handler, zpages};
use crate::task::{self, StopToken, TaskGroup};

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);

/// Everything that is served, before authentication.
pub fn routes(options: &Options, health: &HealthChecks, clock: &SharedClock) -> Routes {
    let routes = Routes::new();
    for endpoint in ["healthz", "livez", "readyz"] {
        let health = health.clone();
        let answer = move |request: &Request| health.answer(endpoint, request);
        routes.add_tree(&format!("/{endpoint}"), handler(answer));
    }
    let metrics = |_: &Request| {
        Response::new(200, "text/plain; version=0.0.4; charset=utf-8", metrics::render())
    };
    routes.add("/metrics", handler(metrics));
    let config = configz::of(options);
    routes.add("/configz", handler(move |_| Response::json(200, &config)));
    zpages::install_version(&routes, version_info());
    if options.feature_gates.enabled("ComponentFlagz") {
        zpages::install_flagz(&routes, PROGRAM, &options.pairs());
    }
    if options.feature_gates.enabled("ComponentStatusz") {
        let version = VERSION.trim_start_matches('v');
        zpages::install_statusz(&routes, PROGRAM, version, clock.clone());
    }
    if options.profiling {
        let none = |_: &Request| Response::text(404, "this build records no profiles\n");
        routes.add_tree("/debug/pprof", handler(none));
    }
    routes
}

/// Serves until stopped, if `--secure-port` says so.
///
/// # Errors
/// One line naming the flag or the file: an address in use, a certificate that can't be read ...
pub async fn serve(
    options: &Options,
    routes: &Routes,
    connect: Connect,
    clock: SharedClock,
    tasks: &TaskGroup,
    stop: &StopToken,
) -> Result<(), String> {
    if options.secure_port == 0 {
        return Ok(());
    }
    let tls_options = tls_options(options);
    let tls = task::blocking(move || Tls::new(tls_options)).await?;
    let auth = Auth::new(auth_config(options, connect).await?, clock.clone());
    let listener = listen(options).await?;
    if let Ok(address) = listener.local_addr() {
        log::info!("Serving securely on {address}");
    }
    let handler = never_cached(auth.wrap(routes.handler()));
    let server = Server::on(listener, Some(tls.clone()), handler, clock.clone(), stop.clone())
        .map_err(|error| format!("failed to create listener: {error}"))?;
    tasks.spawn(server.join());
    let stop = stop.clone();
    tasks.spawn(async move { tls.reload(clock, stop).await });
    Ok(())
}

/// Upstream: `genericapifilters.WithCacheControl`.
fn never_cached(inner: Handler) -> Handler {
    Arc::new(move |request| {
        let answer = inner(request);
        Box::pin(async move {
            let answer = answer.await.with_header(X_CONTENT_TYPE_OPTIONS, "nosniff");
            answer.with_header(CACHE_CONTROL, "no-cache, private")
        })
    })
}

async fn listen(options: &Options) -> Result<TcpListener, String> {
    let port = u16::try_from(options.secure_port).unwrap_or_default();
    let address = SocketAddr::new(options.bind_address, port);
    let first = match options.bind_address.is_unspecified() {
        // Every interface of both families, where the kernel has both.
        true => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
        false => address,
    };
    let listening = match TcpListener::bind(first).await {
        Err(error) if first != address && error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind(address).await
        }
        other => other,
    };
    listening.map_err(|error| {
        format!("failed to create listener: failed to listen on {address} (--secure-port): {error}")
    })
}

fn tls_options(options: &Options) -> TlsOptions {
    let files = (!options.tls_cert_file.is_empty()).then(|| {
        (PathBuf::from(&options.tls_cert_file), PathBuf::from(&options.tls_private_key_file))
    });
    let named = options.tls_sni_cert_key.0.iter();
    TlsOptions {
        files,
        named: named
            .map(|item| (item.cert.clone().into(), item.key.clone().into(), item.names.clone()))
            .collect(),
        cipher_suites: options.tls_cipher_suites.clone(),
        curves: options.tls_curve_preferences.clone(),
        min_version: options.tls_min_version.clone(),
    }
}

async fn auth_config(options: &Options, connect: Connect) -> Result<AuthConfig, String> {
    let client = |kubeconfig: &str, flag: &str| -> Result<Option<Client>, String> {
        if kubeconfig.is_empty() {
            return Ok(None);
        }
        let target = Target { kubeconfig, qps: -1.0, ..Target::default() };
        let connection = connect(&target).map_err(|error| format!("--{flag}: {error}"))?;
        Ok(Some(connection.client(&user_agent("delegated-auth"))))
    };
    let authentication = client(&options.authentication_kubeconfig, "authentication-kubeconfig")?;
    let authorization = client(&options.authorization_kubeconfig, "authorization-kubeconfig")?;
    let mut client_ca = authorities(&options.client_ca_file, "client-ca-file").await?;
    let mut request_header = RequestHeader {
        ca: authorities(&options.requestheader_client_ca_file, "requestheader-client-ca-file")
            .await?,
        allowed_names: options.requestheader_allowed_names.clone(),
        username_headers: options.requestheader_username_headers.clone(),
        uid_headers: options.requestheader_uid_headers.clone(),
        group_headers: options.requestheader_group_headers.clone(),
        extra_prefixes: options.requestheader_extra_headers_prefix.clone(),
    };
    let missing = client_ca.is_none() || request_header.ca.is_none();
    if let Some(client) = &authentication
        && missing
        && !options.authentication_skip_lookup
    {
        match look_up(client).await {
            Ok((ca, header)) => {
                client_ca = client_ca.or(ca);
                if request_header.ca.is_none() {
                    request_header = header.unwrap_or(request_header);
                }
            }
            Err(error) if options.authentication_tolerate_lookup_failure => {
                log::warn!("Error looking up in-cluster authentication configuration: {error}");
            }
            Err(error) => {
                return Err(format!(
                    "unable to load configmap based client CA: {error} \
                     (see --authentication-skip-lookup)"
                ));
            }
        }
    }
    Ok(AuthConfig {
        client_ca,
        request_header,
        reviewer: Arc::new(ApiReviewer { authentication, authorization }),
        token_ttl: options.authentication_token_webhook_cache_ttl,
        authorized_ttl: options.authorization_webhook_cache_authorized_ttl,
        unauthorized_ttl: options.authorization_webhook_cache_unauthorized_ttl,
        always_allow: options.authorization_always_allow_paths.clone(),
    })
}

async fn authorities(file: &str, flag: &str) -> Result<Option<Authorities>, String> {
    if file.is_empty() {
        return Ok(None);
    }
    let path = file.to_string();
    let pem = task::blocking(move || std::fs::read(path))
        .await
        .map_err(|error| format!("--{flag}: {file}: {error}"))?;
    Authorities::from_pem(&pem).map(Some).map_err(|error| format!("--{flag}: {file}: {error}"))
}

/// What the cluster says about authentication, where flags say nothing.
async fn look_up(client: &Client) -> Result<(Option<Authorities>, Option<RequestHeader>), String> {
    let key = ObjectKey::new("kube-system", "extension-apiserver-authentication");
    let map: Value =
        client.resource(&CONFIG_MAPS).get(&key).await.map_err(|error| error.to_string())?;
    found(&map["data"])
}

fn found(data: &Value) -> Result<(Option<Authorities>, Option<RequestHeader>), String> {
    let authorities = |key: &str| match data[key].as_str() {
        Some(pem) if !pem.is_empty() => Authorities::from_pem(pem.as_bytes()).map(Some),
        _ => Ok(None),
    };
    let list = |key: &str| -> Vec<String> {
        serde_json::from_str(data[key].as_str().unwrap_or_default()).unwrap_or_default()
    };
    let header = authorities("requestheader-client-ca-file")?.map(|ca| RequestHeader {
        ca: Some(ca),
        allowed_names: list("requestheader-allowed-names"),
        username_headers: list("requestheader-username-headers"),
        uid_headers: list("requestheader-uid-headers"),
        group_headers: list("requestheader-group-headers"),
        extra_prefixes: list("requestheader-extra-headers-prefix"),
    });
    Ok((authorities("client-ca-file")?, header))
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn the_paths_that_are_served() {
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let health = HealthChecks::new();
        let routes = routes(&Options::default(), &health, &clock);
        let ask = |path: &str| block_on(routes.answer(Request::get(path)));
        health.add("replicaset-controller", Arc::new(|| Ok(())));
        assert_eq!(
            ask("/livez?verbose").content(),
            b"[+]replicaset-controller ok\nlivez check passed\n"
        );
        assert_eq!(ask("/healthz/replicaset-controller").content(), b"ok");
        let config: Value = serde_json::from_slice(ask("/configz").content()).expect("JSON");
        let generic = &config["kubecontrollermanager.config.k8s.io"]["Generic"];
        assert_eq!(generic["LeaderElection"]["leaseDuration"], "15s");
        assert_eq!(ask("/debug/pprof/heap").status, 404);
        let flags = String::from_utf8(ask("/flagz").content().into()).expect("text");
        assert!(flags.contains("\nconcurrent-deployment-syncs=5\n"), "{flags}");
        assert_eq!(ask("/nope").status, 404);
    }

    #[test]
    fn a_cluster_without_a_front_proxy_is_no_error() {
        let (ca, header) = found(&serde_json::json!({})).expect("nothing");
        assert!(ca.is_none() && header.is_none());
        assert!(found(&serde_json::json!({ "client-ca-file": "broken" })).is_err());
    }
}
