//! Requests through a server to a kubelet, over TLS.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use async_io::Async;
use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt, AsyncWriteExt, stream};
use kube_controller_manager::clock::{FakeClock, SharedClock};
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::server::http::{Handler, Server, Socket, Upgraded};
use kube_controller_manager::server::tls::{Tls, TlsOptions};
use kube_controller_manager::task::{self, Latch, StopToken};
use serde_json::json;

use super::*;
use crate::auth::certs::Authority;

/// A kubelet, and a server that passes requests on to it.
struct Fixture {
    server: SocketAddr,
    /// What the kubelet sends to followers of logs.
    lines: async_channel::Sender<io::Result<Bytes>>,
    /// The client of the logs has gone.
    gone: Arc<Latch>,
    stop: StopToken,
    servers: Vec<Server>,
    proxy: Arc<Proxy>,
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Opens a latch when it is dropped.
struct OnDrop(Arc<Latch>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A client that goes away ends it too.
async fn echo(io: Upgraded) {
    let (read, mut write) = futures_lite::io::split(io);
    if futures_lite::io::copy(read, &mut write).await.is_ok()
        && write.write_all(b"end").await.is_ok()
    {
        let _closed = write.close().await;
    }
}

impl Fixture {
    async fn start() -> Fixture {
        let clock: SharedClock = FakeClock::new(Timestamp::from_secs(1_000_000_000));
        let (stop, gone) = (StopToken::new(), Arc::new(Latch::new()));
        let (lines, followed) = async_channel::bounded(1);
        let authority = Authority::new(clock.now()).unwrap();
        let client = authority.client("kube-apiserver-kubelet-client", &["admins"]).unwrap();
        let shown = pem::certificates(client.certificate.as_bytes());
        let dropped = gone.clone();
        let kubelet: Handler = Arc::new(move |request| {
            assert_eq!(request.peer[..], shown[..], "the certificate of the API server");
            assert!(request.header("authorization").is_none());
            let (followed, dropped) = (followed.clone(), dropped.clone());
            Box::pin(async move { answer(request, followed, OnDrop(dropped)).await })
        });
        let tls = Tls::new(TlsOptions::default()).unwrap();
        let kubelet = Server::start(ANY, Some(tls), kubelet, clock.clone(), stop.clone());
        let kubelet = kubelet.await.unwrap();
        let proxy = Arc::new(Proxy::new(clock.clone(), stop.clone(), Some(&client), None).unwrap());
        let of_fixture = proxy.clone();
        let store = Arc::new(store(kubelet.address().port()));
        let server: Handler = Arc::new(move |request| {
            let (proxy, store) = (proxy.clone(), store.clone());
            Box::pin(async move {
                let at = ResourcePath::parse_prefix(&request.path).unwrap();
                let path = request.path.clone();
                let rest = path.split_once("/proxy/").map(|(_, rest)| rest);
                let answered = proxy.answer(&store, &at, rest, request).await;
                answered.unwrap_or_else(|error| Response::json(error.code, &error.to_json()))
            })
        });
        let server = Server::start(ANY, None, server, clock, stop.clone()).await.unwrap();
        let address = server.address();
        Fixture {
            server: address,
            lines,
            gone,
            stop,
            servers: vec![server, kubelet],
            proxy: of_fixture,
        }
    }

    /// Sends a request whose path is below `/api/v1`.
    async fn open(&self, method: &str, path: &str, more: &str) -> Async<TcpStream> {
        let mut client = Async::<TcpStream>::connect(self.server).await.unwrap();
        let head = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer x\r\n{more}"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client
    }

    /// The whole answer.
    async fn ask(&self, method: &str, path: &str) -> String {
        let client = self.open(method, path, "Connection: close\r\n\r\n").await;
        to_end(client).await
    }

    async fn stop(self) {
        self.stop.stop();
        for server in self.servers {
            server.join().await;
        }
        self.proxy.join().await;
    }
}

async fn to_end(mut client: Async<TcpStream>) -> String {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Reads until the bytes end with `end`.
async fn until(client: &mut Async<TcpStream>, end: &str) -> String {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(end.as_bytes()) {
        client.read_exact(&mut byte).await.unwrap();
        seen.push(byte[0]);
    }
    String::from_utf8(seen).unwrap()
}

fn store(kubelet: u16) -> Store {
    let store = Store::new(100);
    let put = |table: &str, key: &str, object| {
        store.create(table, key, object).expect("it is new");
    };
    // A port on which nothing listens.
    let away = TcpListener::bind(ANY).unwrap().local_addr().unwrap().port();
    for (name, port) in [("near", kubelet), ("away", away)] {
        let node = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
        } });
        put("nodes", name, node);
        let containers = json!([{ "name": "a" }, { "name": "bad" }, { "name": "broken" }]);
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "nodeName": name, "containers": containers },
        });
        put("pods", &format!("ns/{name}"), pod);
    }
    let waiting =
        json!({ "metadata": { "name": "w" }, "spec": { "containers": [{ "name": "a" }] } });
    put("pods", "ns/w", waiting);
    store
}

async fn answer(
    mut request: Request,
    followed: async_channel::Receiver<io::Result<Bytes>>,
    dropped: OnDrop,
) -> Response {
    let query = request.query.clone();
    match request.path.as_str() {
        "/containerLogs/ns/near/a" if query.contains("follow=true") => {
            let lines = stream::unfold((followed, dropped), async |(followed, dropped)| {
                Some((followed.recv().await.ok()?, (followed, dropped)))
            });
            Response::stream(200, "text/plain", Box::pin(lines))
        }
        "/containerLogs/ns/near/a" => Response::text(200, format!("{query}\n")),
        "/containerLogs/ns/near/bad" => Response::text(400, "no such log"),
        "/containerLogs/ns/near/broken" => Response::text(404, "no such pod"),
        "/exec/ns/near/a" => {
            assert_eq!((request.method.as_str(), query.as_str()), ("POST", "command=ls&output=1"));
            assert_eq!(request.header("x-stream-protocol-version"), Some("v4.channel.k8s.io"));
            let headers = [(CONNECTION, "Upgrade"), (UPGRADE, "SPDY/3.1")];
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
            let client = request.upgrade.take().unwrap();
            drop(task::spawn(async move { echo(client.connection().await.unwrap()).await }));
            Response { status: 101, headers: headers.into(), body: Body::Full(Bytes::new()) }
        }
        "/attach/ns/near/a" => Response::text(403, "not here\n"),
        "/attach/ns/near/bad" => Response::text(200, "no upgrade"),
        "/moved" => Response::text(302, "").with_header(LOCATION, "/pods?a=b"),
        path => {
            let (path, method) = (path.to_owned(), request.method.clone());
            let forwarded = request.header("x-forwarded-uri").unwrap_or_default().to_owned();
            let kind = request.header("x-kind").unwrap_or_default().to_owned();
            let body = request.body.read(1 << 20).await.unwrap();
            let text = format!("{method} {path}?{query} {forwarded} {kind} {} bytes", body.len());
            let response = Response::text(200, text);
            response.with_header(ACCESS_CONTROL_ALLOW_ORIGIN, "*")
        }
    }
}

#[test]
fn logs_are_streamed_while_they_are_written() {
    block_on(async {
        let fixture = Fixture::start().await;
        let once = fixture.ask("GET", "/namespaces/ns/pods/near/log?container=a&tailLines=3").await;
        assert!(once.starts_with("HTTP/1.1 200 ") && once.contains("stream=All&tailLines=3"));
        assert!(once.contains("content-type: text/plain\r\n"), "{once}");

        let path = "/namespaces/ns/pods/near/log?container=a&follow=true";
        let mut client = fixture.open("GET", path, "Connection: close\r\n\r\n").await;
        for line in ["one\n", "two\n"] {
            fixture.lines.send(Ok(Bytes::from_static(line.as_bytes()))).await.unwrap();
            until(&mut client, line).await;
        }
        fixture.lines.close();
        assert!(to_end(client).await.ends_with("0\r\n\r\n"));
        fixture.stop().await;
    });
}

#[test]
fn a_side_of_a_log_that_goes_away_ends_the_other() {
    block_on(async {
        // The kubelet: the answer is cut, so that the client sees that it is not whole.
        let fixture = Fixture::start().await;
        let path = "/namespaces/ns/pods/near/log?container=a&follow=true";
        let mut client = fixture.open("GET", path, "Connection: close\r\n\r\n").await;
        fixture.lines.send(Ok(Bytes::from_static(b"one\n"))).await.unwrap();
        until(&mut client, "one\n").await;
        fixture.lines.send(Err(io::ErrorKind::BrokenPipe.into())).await.unwrap();
        let rest = to_end(client).await;
        assert!(!rest.contains("0\r\n\r\n"), "{rest}");
        fixture.stop().await;

        // The client: the kubelet's stream is dropped, though it has nothing to send.
        let fixture = Fixture::start().await;
        let mut client = fixture.open("GET", path, "\r\n").await;
        fixture.lines.send(Ok(Bytes::from_static(b"one\n"))).await.unwrap();
        until(&mut client, "one\n").await;
        drop(client);
        fixture.gone.opened().await;
        fixture.stop().await;
    });
}

#[test]
fn a_kubelet_that_refuses_or_is_away_has_upstreams_status() {
    block_on(async {
        let fixture = Fixture::start().await;
        for (path, code, text) in [
            ("near/log?container=bad", 400, "\"message\":\"no such log\""),
            (
                "near/log?container=broken",
                404,
                "the server could not find the requested resource ( pods/log near)",
            ),
            ("near/exec?container=a", 400, "Upgrade request required"),
            ("w/log", 204, ""),
        ] {
            let answer = fixture.ask("GET", &format!("/namespaces/ns/pods/{path}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
            assert!(answer.contains(text), "{answer}");
        }
        let away = fixture.ask("GET", "/namespaces/ns/pods/away/log?container=a").await;
        assert!(away.starts_with("HTTP/1.1 500 "), "{away}");
        assert!(away.contains(r#"Get \"https://127.0.0.1:"#), "{away}");
        assert!(away.contains(": dial tcp 127.0.0.1:"), "{away}");
        assert!(away.contains(": connect: connection refused"), "{away}");
        let away = fixture.ask("GET", "/nodes/away/proxy/pods").await;
        assert!(away.starts_with("HTTP/1.1 503 "), "{away}");
        assert!(away.contains("error trying to reach service: dial tcp 127.0.0.1:"), "{away}");
        assert!(fixture.ask("PUT", "/namespaces/ns/pods/near/exec").await.contains(" 405 "));
        for (path, code, text) in [
            ("away/exec?container=a", 500, "error dialing backend: dial tcp 127.0.0.1:"),
            ("near/attach?container=a", 403, "\r\n\r\nnot here\n"),
            ("near/attach?container=bad", 500, "invalid upgrade response: status code 200"),
        ] {
            let path = format!("/namespaces/ns/pods/{path}");
            let upgrade = "Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n";
            let answer = to_end(fixture.open("GET", &path, upgrade).await).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
            assert!(answer.contains(text), "{answer}");
        }
        fixture.stop().await;
    });
}

#[test]
fn streams_are_copied_in_both_directions_until_both_have_ended() {
    block_on(async {
        let fixture = Fixture::start().await;
        let path = "/namespaces/ns/pods/near/exec?container=a&command=ls&stdout=true";
        let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\
            X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
        // The first bytes arrive with the request.
        let mut client = fixture.open("POST", path, &format!("{upgrade}first")).await;
        let head = until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: SPDY/3.1"), "{head}");
        until(&mut client, "first").await;
        let megabyte = "x".repeat(1 << 20);
        let (mut read, mut write) = futures_lite::io::split(Socket(client));
        let send = async {
            write.write_all(megabyte.as_bytes()).await.unwrap();
            // Ends this half alone: the kubelet still answers.
            write.close().await.unwrap();
        };
        let receive = async {
            let mut back = String::new();
            read.read_to_string(&mut back).await.unwrap();
            back
        };
        let ((), back) = futures_lite::future::zip(send, receive).await;
        assert_eq!((back.len(), &back[1 << 20..]), ((1 << 20) + 3, "end"));

        // A server that stops ends the streams that are open.
        let mut client = fixture.open("POST", path, &format!("{upgrade}first")).await;
        until(&mut client, "first").await;
        fixture.stop().await;
    });
}

#[test]
fn requests_for_a_node_reach_its_kubelet_as_they_are() {
    block_on(async {
        let fixture = Fixture::start().await;
        let more = "Connection: close, X-Hop\r\nX-Hop: 1\r\nX-Kind: own\r\n\
            Impersonate-User: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let client = fixture.open("PUT", "/nodes/near/proxy/run/a%2Fb/?c=d", more).await;
        let answer = to_end(client).await;
        let expected = "PUT /run/a%2Fb/?c=d /api/v1/nodes/near/proxy/run/a%2Fb/ own 3 bytes";
        assert!(answer.ends_with(expected), "{answer}");
        assert!(!answer.contains("access-control"), "{answer}");
        let slash = fixture.ask("GET", "/nodes/near/proxy?a=b").await;
        assert!(slash.starts_with("HTTP/1.1 301 "), "{slash}");
        assert!(slash.contains("location: /api/v1/nodes/near/proxy/?a=b\r\n"), "{slash}");
        let moved = fixture.ask("GET", "/nodes/near/proxy/moved").await;
        assert!(moved.contains("location: /api/v1/nodes/near/proxy/pods?a=b\r\n"), "{moved}");
        fixture.stop().await;
    });
}
