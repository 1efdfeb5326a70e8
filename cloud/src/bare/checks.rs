//! Checks whether the machines of nodes that are not ready can be reached.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use async_io::Async;
use futures_lite::FutureExt;
use futures_lite::future::pending;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use kube_controller_manager::cache::Lister;
use kube_controller_manager::client::Trust;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::controllers::{
    Change, Controller, ControllerContext, Next, Queue, QueuePolicy, SyncResult,
};
use kube_controller_manager::events::Recorder;
use kube_controller_manager::metrics::metrics;
use kube_controller_manager::objects::{ObjectKey, Uid};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use smol_hyper::rt::FuturesIo;

use super::config::{Check, Unreachable};
use super::profile;
use crate::objects::Node;

metrics! {
    static DURATIONS: HistogramVec["request"] = "cloudprovider_bare_api_request_duration_seconds",
        "[ALPHA] Latency of a check of a machine";
    static ERRORS: IntCounterVec["request"] = "cloudprovider_bare_api_request_errors",
        "[ALPHA] Cumulative number of checks of machines that failed";
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What the checks say of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is reached, or nothing is known yet.
    Runs,
    ShutDown,
    Gone,
}

/// The results of the checks of one machine so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct Results {
    /// In a row.
    failures: u32,
    /// Monotonic time.
    unreachable_since: Option<Duration>,
}

impl Results {
    /// Returns the results after one more check. A success resets them; the machine is unreachable
    /// from the failure that makes `check.failures` in a row.
    fn after(&self, is_reached: bool, now: Duration, check: &Check) -> Results {
        if is_reached {
            return Results::default();
        }
        let failures = self.failures.saturating_add(1);
        let is_unreachable = failures >= check.failures;
        let since = self.unreachable_since.or_else(|| is_unreachable.then_some(now));
        Results { failures, unreachable_since: since }
    }

    /// Returns what these results mean. A machine that is unreachable is shut down or gone, as the
    /// configuration says; one that is shut down is gone after `gone_after`.
    fn verdict(&self, now: Duration, check: &Check) -> Verdict {
        let Some(since) = self.unreachable_since else { return Verdict::Runs };
        let is_over = check.gone_after.is_some_and(|after| now.saturating_sub(since) >= after);
        match check.unreachable {
            Unreachable::Shutdown if !is_over => Verdict::ShutDown,
            Unreachable::Shutdown | Unreachable::Gone => Verdict::Gone,
        }
    }
}

/// Why a machine is not reached.
#[derive(Debug)]
enum Fault {
    /// No connection, or no answer.
    Connection {
        address: SocketAddr,
        source: Cause,
    },
    Status {
        address: SocketAddr,
        status: hyper::StatusCode,
    },
    Timeout {
        address: SocketAddr,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Connection { address, source } => write!(f, "{address}: {source}"),
            Fault::Status { address, status } => write!(f, "{address}: HTTP status {status}"),
            Fault::Timeout { address } => write!(f, "{address}: no answer in time"),
        }
    }
}

/// The checks of all nodes that are not ready.
pub struct Checks {
    check: Check,
    parts: OnceLock<Parts>,
    results: Mutex<HashMap<Uid, Results>>,
}

struct Parts {
    nodes: Lister<Node>,
    clock: SharedClock,
    recorder: Recorder,
}

impl Checks {
    pub fn new(check: Check) -> Arc<Checks> {
        Arc::new(Checks { check, parts: OnceLock::new(), results: Mutex::default() })
    }

    /// Returns the controller that checks the machines of nodes that are not ready.
    ///
    /// # Errors
    /// When there is no client for it.
    pub fn controller(
        self: &Arc<Self>,
        context: &Arc<ControllerContext>,
    ) -> Result<Controller, String> {
        let mut c = Controller::new(profile("bare-machine-checks"), context)?;
        let nodes = c.lister::<Node>();
        let queue = c.queue(QueuePolicy::default());
        let this = self.clone();
        c.watch(&nodes, &queue, move |change: Change<'_, Node>, queue: &Queue| {
            // The results are dropped here, not in `sync`: all workers may be waiting for other
            // machines.
            if matches!(change, Change::Deleted(_)) || is_ready(change.object()) {
                this.results.lock().remove(&change.object().meta.uid);
            }
            if let Change::Updated { old, new } = &change
                && old.meta.uid != new.meta.uid
            {
                this.results.lock().remove(&old.meta.uid);
            }
            let was_ready = |change: &Change<'_, Node>| match change {
                Change::Updated { old, .. } => Some(is_ready(old)),
                _ => None,
            };
            // Other changes do not bring the next check forward.
            if was_ready(&change) != Some(is_ready(change.object())) {
                queue.add(change.object().meta.key());
            }
        });
        let parts = Parts { nodes, clock: c.clock(), recorder: c.recorder() };
        if self.parts.set(parts).is_err() {
            return Err("the provider is initialized twice".to_owned());
        }
        // A check waits for a machine that does not answer: they run beside each other.
        c.sync_by(16, queue, self, Checks::sync);
        Ok(c)
    }

    /// Checks the machine of a node that is not ready, records the result, and sends an event when
    /// the machine becomes unreachable and when it is reached again.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(parts) = self.parts.get() else { return Ok(Next::Done) };
        let Some(node) = parts.nodes.get(&key).filter(|node| !is_ready(node)) else {
            return Ok(Next::Done);
        };
        let outcome = self.reach(&node, &parts.clock).await;
        let now = parts.clock.monotonic();
        let (before, after) = {
            let mut results = self.results.lock();
            // A node that became ready or went meanwhile has no results. The handler of the watch
            // removes those of one that does so from now on.
            let latest = parts.nodes.get(&key);
            if latest.is_none_or(|latest| !is_same_unready(&latest, &node)) {
                // Another Node of its name may not be ready either.
                return Ok(Next::After(self.check.period));
            }
            let results = results.entry(node.meta.uid.clone()).or_default();
            let before = results.clone();
            *results = before.after(outcome.is_ok(), now, &self.check);
            (before, results.clone())
        };
        match (before.unreachable_since, after.unreachable_since, outcome) {
            (None, Some(_), Err(fault)) => {
                let text = format!("The machine cannot be reached: {fault}");
                parts.recorder.warning(&*node, "MachineUnreachable", text);
            }
            (Some(_), None, _) => {
                parts.recorder.normal(&*node, "MachineReached", "The machine is reached again");
            }
            (.., Err(fault)) => log::debug!("node {key}: {fault}"),
            _ => {}
        }
        Ok(Next::After(self.check.period))
    }

    /// Returns what the checks say of the machine of a node. No machine is `Gone` while most are
    /// not reached: the manager itself is likely to be cut off.
    pub fn verdict(&self, node: &Node) -> Verdict {
        let Some(parts) = self.parts.get() else { return Verdict::Runs };
        // The caller's node may be older than the news that it is ready.
        let is_ready = parts.nodes.get(&node.meta.key()).is_some_and(|node| is_ready(&node));
        let results = self.results.lock();
        let verdict = match results.get(&node.meta.uid) {
            Some(results) if !is_ready => results.verdict(parts.clock.monotonic(), &self.check),
            _ => return Verdict::Runs,
        };
        // Also those that have not failed often enough yet: all fail at about the same time.
        let unreached = results.values().filter(|results| results.failures > 0).count();
        match verdict {
            Verdict::Gone if is_cut_off(unreached, parts.nodes.list().len()) => Verdict::ShutDown,
            verdict => verdict,
        }
    }

    /// Tries the addresses of a node until one is reached; returns the last fault if none is. A
    /// node without addresses counts as reached.
    async fn reach(&self, node: &Node, clock: &SharedClock) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for ip in addresses(node) {
            outcome = self.reach_address(ip, clock).await;
            if outcome.is_ok() {
                return outcome;
            }
        }
        outcome
    }

    /// Makes the configured check (https, http or tcp) of one address, with its timeout, and counts
    /// it.
    async fn reach_address(&self, ip: IpAddr, clock: &SharedClock) -> Result<(), Fault> {
        let (request, port, path) = match &self.check {
            Check { https: Some(http), .. } => ("https", http.port, Some(http.path.as_str())),
            Check { http: Some(http), .. } => ("http", http.port, Some(http.path.as_str())),
            Check { tcp: Some(tcp), .. } => ("tcp", tcp.port, None),
            // `Config::load` refuses it.
            _ => return Ok(()),
        };
        let address = SocketAddr::new(ip, port);
        let fault = |source| Fault::Connection { address, source };
        let reach = async {
            let stream = Async::<TcpStream>::connect(address).await;
            let stream = stream.map_err(|error| fault(error.into()))?;
            let Some(path) = path else { return Ok(()) };
            let status = match request {
                "https" => get_by_tls(stream, address, path).await,
                _ => get(stream, address, path).await,
            };
            let status = status.map_err(fault)?;
            // The kubelet's probes accept the same codes.
            match (200..400).contains(&status.as_u16()) {
                true => Ok(()),
                false => Err(Fault::Status { address, status }),
            }
        };
        let late = async {
            clock.sleep(self.check.timeout).await;
            Err(Fault::Timeout { address })
        };
        let start = clock.monotonic();
        let outcome = reach.or(late).await;
        DURATIONS.with_label_values(&[request]).observe((clock.monotonic() - start).as_secs_f64());
        if outcome.is_err() {
            ERRORS.with_label_values(&[request]).inc();
        }
        outcome
    }
}

/// Sends a GET over the stream and returns the status of the answer.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<hyper::StatusCode, Cause> {
    let (mut sender, connection) = http1::handshake(FuturesIo::new(stream)).await?;
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = async { Ok(sender.send_request(request).await?.status()) };
    // The connection makes progress while the answer is waited for. When it ends, so does the wait.
    let driven = async {
        let _ = connection.await;
        pending().await
    };
    answer.or(driven).await
}

/// Does the same as `get` over TLS. Any certificate of the server is accepted: the check asks
/// whether the machine runs, and sends no secret.
async fn get_by_tls(
    stream: Async<TcpStream>,
    address: SocketAddr,
    path: &str,
) -> Result<hyper::StatusCode, Cause> {
    static ANY: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> = LazyLock::new(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trust = Arc::new(Trust::every(&provider));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(trust);
        Ok(Arc::new(config.with_no_client_auth()))
    });
    let connector = TlsConnector::from(ANY.clone()?);
    let stream = connector.connect(ServerName::from(address.ip()), stream).await?;
    get(stream, address, path).await
}

/// Returns whether most machines are not reached: the manager itself is likely to be cut off.
fn is_cut_off(unreached: usize, nodes: usize) -> bool {
    unreached > nodes / 2
}

/// Returns whether `latest` is still the same Node, and not ready.
fn is_same_unready(latest: &Node, node: &Node) -> bool {
    latest.meta.uid == node.meta.uid && !is_ready(latest)
}

fn is_ready(node: &Node) -> bool {
    node.condition("Ready") == Some("True")
}

/// Returns the internal addresses of a node, or the external ones if there are no internal ones.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let of_type = |kind: &str| -> Vec<IpAddr> {
        let addresses = node.status.addresses.iter().filter(|address| address.type_ == kind);
        addresses.filter_map(|address| address.address.parse().ok()).collect()
    };
    let internal = of_type("InternalIP");
    if internal.is_empty() { of_type("ExternalIP") } else { internal }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use futures_lite::future::block_on;
    use kube_controller_manager::clock::{FakeClock, SystemClock};
    use kube_controller_manager::objects::Timestamp;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use serde_json::json;

    use super::*;

    fn check(text: &str) -> Check {
        serde_yaml_ng::from_str(&format!("{{tcp: {{port: 1}}, {text}}}")).expect("a check")
    }

    #[test]
    fn a_machine_is_unreachable_after_failures_in_a_row() {
        let seconds = Duration::from_secs;
        let shutdown = check("failures: 2, unreachable: shutdown, goneAfter: 100s");
        let gone = check("failures: 2, unreachable: gone");
        let mut results = Results::default();
        for (at, is_reached, now, expected) in [
            (0, false, 10, Verdict::Runs),
            (1, true, 20, Verdict::Runs),
            (2, false, 30, Verdict::Runs),
            (3, false, 40, Verdict::ShutDown),
            (4, false, 139, Verdict::ShutDown),
            (5, false, 140, Verdict::Gone),
            (6, true, 150, Verdict::Runs),
        ] {
            results = results.after(is_reached, seconds(now), &shutdown);
            assert_eq!(results.verdict(seconds(now), &shutdown), expected, "{at}");
        }
        let once = Results::default().after(false, seconds(1), &gone);
        assert_eq!(once.verdict(seconds(1), &gone), Verdict::Runs);
        let twice = once.after(false, seconds(2), &gone);
        assert_eq!(twice.verdict(seconds(2), &gone), Verdict::Gone);
        let forever = check("failures: 1, unreachable: shutdown");
        let results = Results::default().after(false, seconds(0), &forever);
        assert_eq!(results.verdict(Duration::MAX, &forever), Verdict::ShutDown);
    }

    #[test]
    fn the_manager_is_cut_off_when_most_machines_are_not_reached() {
        for (unreached, nodes, expected) in [
            (1, 1, true),
            (1, 2, false),
            (2, 2, true),
            (1, 3, false),
            (2, 3, true),
            (50, 100, false),
            (51, 100, true),
            // The lister is ahead of the handler.
            (1, 0, true),
        ] {
            assert_eq!(is_cut_off(unreached, nodes), expected, "{unreached} of {nodes}");
        }
    }

    #[test]
    fn results_of_a_node_that_is_ready_or_another_one_are_not_recorded() {
        let node = |uid: &str, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": { "name": "n", "uid": uid },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .expect("a Node")
        };
        let checked = node("1", "Unknown");
        for (latest, expected) in [
            (node("1", "Unknown"), true),
            (node("1", "False"), true),
            (node("1", "True"), false),
            (node("2", "Unknown"), false),
        ] {
            assert_eq!(is_same_unready(&latest, &checked), expected, "{latest:?}");
        }
    }

    /// A server that answers each connection with this text, after it has read something.
    fn server(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        port
    }

    /// As [`server`], with a certificate that no authority has signed.
    fn tls_server(answer: &'static str) -> u16 {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["other".to_owned()]).expect("parameters");
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a configuration");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let session = ServerConnection::new(config.clone()).expect("a session");
                let mut stream = StreamOwned::new(session, stream.expect("a connection"));
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        port
    }

    fn reach(check: &str, clock: &SharedClock) -> Result<(), String> {
        let checks = Checks::new(serde_yaml_ng::from_str(check).expect("a check"));
        let node = serde_json::from_value(json!({
            "metadata": { "name": "n" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }] },
        }))
        .expect("a Node");
        block_on(checks.reach(&node, clock)).map_err(|fault| fault.to_string())
    }

    #[test]
    fn machines_are_reached_by_tcp_http_and_https() {
        let clock = SystemClock::shared();
        let fine = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let failing = server("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
        let closing = server("");
        let secure = tls_server("HTTP/1.1 204 No Content\r\n\r\n");
        let secure_failing = tls_server("HTTP/1.1 503 Oops\r\nContent-Length: 0\r\n\r\n");
        let refused = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").port()
        };
        for (kind, port, fault) in [
            ("tcp", fine, None),
            ("tcp", refused, Some("refused")),
            ("http", fine, None),
            ("http", failing, Some("HTTP status 500")),
            ("http", closing, Some("closed")),
            ("http", refused, Some("refused")),
            ("http", secure, Some("")),
            ("https", secure, None),
            ("https", secure_failing, Some("HTTP status 503")),
            ("https", fine, Some("")),
            ("https", closing, Some("")),
            ("https", refused, Some("refused")),
        ] {
            let text = format!("{{{kind}: {{port: {port}}}, unreachable: gone}}");
            match (reach(&text, &clock), fault) {
                (Ok(()), None) => {}
                (Err(error), Some(fault)) if error.contains(fault) => {}
                (outcome, _) => panic!("{kind} {port}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn a_machine_that_does_not_answer_is_not_waited_for() {
        // Its backlog takes the connection, and no process reads from it.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let text = format!("{{http: {{port: {port}}}, timeout: 5s, unreachable: gone}}");
        let shared: SharedClock = clock.clone();
        let reaching = std::thread::spawn(move || reach(&text, &shared));
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(5));
        let fault = reaching.join().expect("a result").expect_err("a fault");
        assert!(fault.ends_with("no answer in time"), "{fault}");
    }
}
