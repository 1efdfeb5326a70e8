//! Probes by gRPC, of a server in the machine's network.

use std::convert::Infallible;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_io::Async;
use futures_lite::future::block_on;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue, USER_AGENT};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::task;
use kubelet::cri::Executor;
use smol_hyper::rt::FuturesIo;

use super::node::{Node, wait};
use super::pods::{container, is_ready, once};

const FOLDER: &str = "KUBELET_TEST_GRPC_FOLDER";
const PORT: u16 = 5123;

/// Writes a file that others read meanwhile.
fn replace(path: &Path, text: &str) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let new = path.with_extension(COUNT.fetch_add(1, Ordering::SeqCst).to_string());
    fs::write(&new, text).expect("a file");
    fs::rename(new, path).expect("a new name");
}

/// The answer to a check: the number in the file `status` for the service `web`, `NOT_FOUND` for
/// others.
async fn answer(request: Request<Incoming>, folder: &Path) -> Result<Answer, Infallible> {
    let agent = request.headers().get(USER_AGENT).cloned();
    let agent = agent.as_ref().map_or("", |agent| agent.to_str().expect("text"));
    replace(&folder.join("agent"), agent);
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.expect("a message").to_bytes();
    // A frame without compression, and the field 1 of the message.
    let is_web = body[..] == *b"\0\0\0\0\x05\x0a\x03web";
    let status: u8 = fs::read_to_string(folder.join("status"))
        .expect("a file")
        .trim()
        .parse()
        .expect("a number");
    let mut trailers = HeaderMap::new();
    let code = if path == "/grpc.health.v1.Health/Check" && is_web { "0" } else { "5" };
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
    let frames = [Ok(Frame::data(message)), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_lite::stream::iter(frames));
    Ok(Response::builder()
        .header("content-type", "application/grpc")
        .body(body)
        .expect("an answer"))
}

type Answer = Response<
    StreamBody<
        futures_lite::stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 2>>,
    >,
>;

/// The server, as a program of its own in the machine's network; no test without its folder.
#[test]
fn serves_health() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("a port");
    block_on(async {
        let listener = Async::new(listener).expect("a listener");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let folder = folder.clone();
            let answer = service_fn(move |request| {
                let folder = folder.clone();
                async move { answer(request, Path::new(&folder)).await }
            });
            let connection =
                Builder::new(Executor).serve_connection(FuturesIo::new(stream), answer);
            drop(task::spawn(async move {
                let _ = connection.await;
            }));
        }
    });
}

#[test]
fn grpc_probes_follow_the_service() {
    let Some(mut node) = Node::start("grpc") else { return };
    replace(&node.host_path("status"), "1");
    let folder = node.host_path("").display().to_string();
    let program = std::env::current_exe().expect("a program").display().to_string();
    let args = ["--exact", "grpc::serves_health", "--nocapture"];
    let mut server = node.spawn(&program, &args, &[(FOLDER, &folder)]);
    let pod = |name: &str, probe: &str| {
        let pod = once(name, "Always", "exec sleep 1000");
        pod.replace("spec:", "spec:\n  hostNetwork: true") + &format!("    {probe}\n")
    };
    let readiness = |service: &str, port: u16| {
        format!(
            "readinessProbe: {{grpc: {{port: {port}{service}}}, periodSeconds: 1, \
                 failureThreshold: 1}}"
        )
    };
    node.write("web.yaml", &pod("web", &readiness(", service: web", PORT)));
    node.write("other.yaml", &pod("other", &readiness("", PORT)));
    node.write("refused.yaml", &pod("refused", &readiness("", 5124)));
    let live = "livenessProbe: {grpc: {port: 5123, service: web}, periodSeconds: 1, \
                failureThreshold: 1}";
    node.write("live.yaml", &pod("live", live));
    node.start_kubelet();
    node.eventually("web-n", "ready", is_ready);
    node.eventually("live-n", "ready", is_ready);
    assert_eq!(node.host_text("agent"), "kube-probe/1.36");
    // An event's line has its message in quotes.
    let said = |text: &str| wait(|| node.log().contains(text));
    let not_found = "error: health rpc probe failed: rpc error: code = NotFound desc = ";
    assert!(said(not_found), "{}", node.log());
    let refused = r#"error: failed to connect service at \"198.51.100.2:5124\": dial tcp "#;
    assert!(said(refused), "{}", node.log());
    for name in ["other-n", "refused-n"] {
        assert!(!is_ready(&node.pod(name)), "{name}");
    }
    replace(&node.host_path("status"), "2");
    node.eventually("web-n", "not ready", |pod| !is_ready(pod));
    assert!(said(r#"service unhealthy (responded with \"NOT_SERVING\")"#), "{}", node.log());
    node.eventually("live-n", "restarted", |pod| {
        container(pod)["restartCount"].as_i64() >= Some(1)
    });
    replace(&node.host_path("status"), "1");
    node.eventually("web-n", "ready again", is_ready);
    let _ = server.kill();
    let _ = server.wait();
}
