//! The secure port: its paths, authentication and authorization.
//! Upstream: `controller-manager/app/serve.go`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use rustix::net;

use super::Program;
use super::connect::Connect;
use super::delegated_auth::{Lookup, auth_config};
use super::leader_migration::LeaderMigration;
use crate::clock::SharedClock;
use crate::files::POLL_PERIOD;
use crate::logging::Verbosity;
use crate::options::{Options, followed, model_version, version_info};
use crate::server::auth::Auth;
use crate::server::health::HealthChecks;
use crate::server::http::{Guard, Server};
use crate::server::routes::Routes;
use crate::server::tls::{Tls, TlsOptions, load_or_create_self_signed};
use crate::server::zpages::{self, FLAGZ, STATUSZ};
use crate::server::{Handler, Request, Response, debug_flags, handler, profiling};
use crate::task::{self, StopToken, TaskGroup};

/// The cluster's authorities of client certificates are read again after this number of file polls.
const POLLS: u32 = 6;

/// Connections that may wait to be accepted, as in the standard library.
const BACKLOG: i32 = 128;

/// Returns the handlers of all served paths, without authentication, which [`serve`] adds.
pub fn routes(
    program: &Arc<dyn Program>,
    options: &Arc<Options>,
    migration: Option<&LeaderMigration>,
    health: &HealthChecks,
    verbosity: &Verbosity,
    clock: &SharedClock,
) -> Routes {
    let routes = Routes::new();
    routes.add_health(health);
    routes.add_metrics();
    let results = health.results().clone();
    routes.add_unlisted("/metrics/slis", handler(move |request| results.answer(request)));
    let (program_shown, given, migrating) = (program.clone(), options.clone(), migration.cloned());
    let config = move |_: &Request| {
        Response::json(200, &program_shown.configz(&given, migrating.as_ref(), followed()))
    };
    routes.add("/configz", handler(config));
    zpages::install_version(&routes, version_info);
    zpages::install_flagz(&routes, options.program, &program.flags(options));
    let build = zpages::Build {
        component: options.program.into(),
        versions: || (model_version().trim_start_matches('v').into(), followed().to_string()),
    };
    zpages::install_statusz(&routes, build, clock.clone());
    remove_gated(&routes, options);
    if options.profiling {
        profiling::install(&routes, clock.clone());
        let verbosity = verbosity.clone();
        debug_flags::install(&routes, move |text| verbosity.set(text));
    }
    routes
}

/// Removes the pages whose gates are off in the release that is followed.
pub fn remove_gated(routes: &Routes, options: &Options) {
    for (gate, path) in [("ComponentFlagz", FLAGZ), ("ComponentStatusz", STATUSZ)] {
        if !options.feature_gates.enabled(gate) {
            routes.remove(path);
        }
    }
}

/// Starts the HTTPS server of `--secure-port` (none for 0), and the tasks that reload its
/// certificates and the authorities of its clients. Returns once it listens; all of it ends with
/// `stop`.
///
/// # Errors
/// One line naming the flag or the file: an address in use, a certificate that cannot be read.
pub async fn serve(
    options: &Arc<Options>,
    routes: &Routes,
    connect: Connect,
    clock: SharedClock,
    tasks: &TaskGroup,
    stop: &StopToken,
) -> Result<(), String> {
    if options.secure_port == 0 {
        return Ok(());
    }
    let given = options.clone();
    let tls = task::blocking(move || Tls::new(tls_options(&given)?)).await?;
    let lookup = Lookup::new(options.clone(), connect)?;
    let auth = Auth::new(auth_config(options, connect, &lookup, &clock).await?, clock.clone());
    let listener = listen(options)?;
    if let Ok(address) = listener.local_addr() {
        log::info!("Serving securely on {address}");
    }
    let handler = never_cached(auth.clone().wrap(routes.handler()));
    let (timer, stopped) = (clock.clone(), stop.clone());
    let server = Server::on(listener, Some(tls.clone()), handler, Guard::UNTRUSTED, timer, stopped)
        .map_err(|error| format!("failed to create listener: {error}"))?;
    tasks.spawn(server.join());
    let (timer, stopped) = (clock.clone(), stop.clone());
    tasks.spawn(async move { tls.reload(timer, stopped).await });
    let stop = stop.clone();
    tasks.spawn(async move {
        // Nothing is read yet, so the first poll reads files that have changed since the start.
        let (mut read, mut polls) = (Default::default(), 0);
        while stop.unless_stopped(clock.sleep(POLL_PERIOD)).await.is_some() {
            let now = lookup.stamps().await;
            polls += 1;
            if now == read && polls < POLLS && !lookup.lacks_trust() {
                continue;
            }
            (read, polls) = (now, 0);
            match stop.unless_stopped(lookup.trust()).await {
                Some(Ok(trust)) => auth.set_trust(trust),
                Some(Err(error)) => {
                    log::error!("client certificate authorities not reloaded: {error}")
                }
                None => return,
            }
        }
    });
    Ok(())
}

/// Wraps a handler so that clients neither cache its answers nor guess their media type. Upstream:
/// `genericapifilters.WithCacheControl`.
fn never_cached(inner: Handler) -> Handler {
    Arc::new(move |request| {
        let answer = inner(request);
        Box::pin(async move {
            let answer = answer.await.with_header(X_CONTENT_TYPE_OPTIONS, "nosniff");
            answer.with_header(CACHE_CONTROL, "no-cache, private")
        })
    })
}

/// Binds the secure port: on every interface of both families if `--bind-address` is unspecified.
/// If that cannot be bound, as where the kernel lacks IPv6, the address itself is bound; a port in
/// use is an error at once.
fn listen(options: &Options) -> Result<TcpListener, String> {
    let port = u16::try_from(options.secure_port).unwrap_or_default();
    let address = SocketAddr::new(options.bind_address, port);
    let first = match options.bind_address.is_unspecified() {
        // Every interface of both families, where the kernel supports both.
        true => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
        false => address,
    };
    let listening = match bind(first, options.permit_port_sharing) {
        Err(error) if first != address && error.kind() != std::io::ErrorKind::AddrInUse => {
            bind(address, options.permit_port_sharing)
        }
        other => other,
    };
    listening.map_err(|error| {
        format!("failed to create listener: failed to listen on {address} (--secure-port): {error}")
    })
}

/// Binds `address`. With `is_shared` (`SO_REUSEPORT`), other processes that share it may bind it
/// too.
fn bind(address: SocketAddr, is_shared: bool) -> std::io::Result<TcpListener> {
    let family =
        if address.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    let flags = net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, net::SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::sockopt::set_socket_reuseport(&socket, is_shared)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Also where the machine's default is IPv6 alone.
        net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the TLS settings of the flags. If they name no certificate, the pair in `--cert-dir` is
/// used, and created if it does not exist; without a folder, a certificate is made in memory.
fn tls_options(options: &Options) -> Result<TlsOptions, String> {
    let address = Some(options.bind_address).filter(|address| !address.is_unspecified());
    let files = match (options.tls_cert_file.as_str(), options.cert_dir.as_str()) {
        ("", "") => None,
        ("", folder) => Some(
            load_or_create_self_signed(Path::new(folder), options.program, address)
                .map_err(|error| format!("--cert-dir: {error}"))?,
        ),
        (cert, _) => Some((cert.into(), PathBuf::from(&options.tls_private_key_file))),
    };
    let named = options.tls_sni_cert_key.0.iter();
    Ok(TlsOptions {
        files,
        address,
        named: named
            .map(|item| (item.cert.clone().into(), item.key.clone().into(), item.names.clone()))
            .collect(),
        is_self_signed: options.tls_cert_file.is_empty(),
        cipher_suites: options.tls_cipher_suites.clone(),
        curves: options.tls_curve_preferences.clone(),
        min_version: options.tls_min_version.clone(),
    })
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use serde_json::Value;

    use super::*;
    use crate::app::program::KubeControllerManager;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;
    use crate::options::Release;
    use crate::server::http::{Method, RequestBody};

    #[test]
    fn paths_are_served() {
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(0));
        let health = HealthChecks::new();
        let verbosity = Verbosity::new(0, &[]);
        let program: Arc<dyn Program> = Arc::new(KubeControllerManager);
        let routes = routes(&program, &Arc::default(), None, &health, &verbosity, &clock);
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
        let mut asked = Request::get("/metrics");
        asked.headers.insert("accept-encoding", "zstd, gzip;q=0.5".parse().expect("a header"));
        let zipped = block_on(routes.answer(asked));
        assert!(zipped.content().starts_with(&[0x1f, 0x8b]));
        assert!(
            zipped
                .headers
                .contains(&(hyper::header::CONTENT_ENCODING, "gzip".parse().expect("a header")))
        );
        assert!(!ask("/metrics").content().starts_with(&[0x1f, 0x8b]));
        assert_eq!(ask("/debug/pprof/heap").status, 404);
        assert_eq!(ask("/debug/pprof/goroutine").status, 200);
        let off = Arc::new(Options { profiling: false, ..Options::default() });
        let off = super::routes(&program, &off, None, &health, &verbosity, &clock);
        for path in ["/debug/pprof/", "/debug/pprof/goroutine", "/debug/flags/v"] {
            let answer = block_on(off.answer(Request::get(path)));
            assert_eq!((answer.status, answer.content()), (404, &b"404 page not found\n"[..]));
        }
        let flags = String::from_utf8(ask("/flagz").content().into()).expect("text");
        assert!(flags.contains("\nconcurrent-deployment-syncs=5\n"), "{flags}");
        assert_eq!(ask("/nope").status, 404);
        assert_eq!(ask("/debug/flags/v").status, 406);
        assert!(ask("/debug/flags/").content().starts_with(b"<html>"));
        let body = RequestBody::Full("x".into());
        let bad = Request { method: Method::PUT, body, ..Request::get("/debug/flags/v") };
        assert_eq!(block_on(routes.answer(bad)).status, 400);
        assert!(ask("/metrics/slis").content().starts_with(b"# HELP kubernetes_healthcheck "));
        let status = String::from_utf8(ask("/statusz").content().into()).expect("text");
        let paths = "Paths: /configz /flagz /healthz /livez /metrics /readyz /version\n";
        assert!(status.ends_with(paths), "{status}");
    }

    #[test]
    fn pages_of_gates_are_those_of_the_release() {
        let (clock, health): (SharedClock, _) =
            (FakeClock::new(Timestamp::from_secs(0)), HealthChecks::new());
        let verbosity = Verbosity::new(0, &[]);
        let program: Arc<dyn Program> = Arc::new(KubeControllerManager);
        let gate = ("ComponentStatusz".to_owned(), true);
        for (release, given, flagz, statusz) in [
            (Release::V1_37, None, 200, 200),
            (Release::V1_36, None, 200, 200),
            (Release::V1_35, None, 404, 404),
            (Release::V1_34, Some(gate), 404, 200),
        ] {
            let mut options = Options::default();
            options.feature_gates.given.extend(given);
            let given = Arc::new(options.clone());
            let routes = routes(&program, &given, None, &health, &verbosity, &clock);
            options.follow(release).expect("the gate is known");
            remove_gated(&routes, &options);
            let status = |path: &str| block_on(routes.answer(Request::get(path))).status;
            assert_eq!((status(FLAGZ), status(STATUSZ)), (flagz, statusz), "{release}");
        }
    }

    #[test]
    fn port_is_shared_only_where_permitted() {
        let any = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
        let first = bind(any, true).expect("a port");
        let address = first.local_addr().expect("its number");
        assert!(bind(address, true).is_ok());
        assert!(bind(address, false).is_err());
    }
}
