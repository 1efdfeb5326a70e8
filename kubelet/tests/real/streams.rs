//! Logs of real containers, and streams to them, as an API server asks for them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use super::node::{Node, wait};
use super::pods::{STAYS, container, is_ready, once};
use super::secure::{self, Connection};

const ADDRESS: &str = "127.0.0.1:10250";

/// A machine whose kubelet serves its port to everybody.
pub struct Port {
    pub node: Node,
}

impl Port {
    fn start(test: &str) -> Option<Port> {
        Port::start_with(test, "containerLogMaxSize: 64Ki\ncontainerLogMonitorInterval: 3s")
    }

    /// `fields`: more of the kubelet's configuration.
    pub fn start_with(test: &str, fields: &str) -> Option<Port> {
        let mut node = Node::start(test)?;
        let open = "enableServer: true\nauthentication: {anonymous: {enabled: true}}";
        node.configure(&format!("{open}\n{fields}"));
        let folder = node.folder.join("pki");
        node.start_kubelet_with(&[&format!("--cert-dir={}", folder.display())]);
        let port = Port { node };
        let is_open = || port.node.in_network(|| TcpStream::connect(ADDRESS).is_ok());
        assert!(wait(is_open), "no port: {}", port.node.log());
        Some(port)
    }

    fn certificate(&self) -> PathBuf {
        self.node.folder.join("pki/kubelet.crt")
    }

    pub fn connect(&self) -> Connection {
        let stream = self.node.in_network(|| TcpStream::connect(ADDRESS).expect("a connection"));
        secure::connect(stream, &self.certificate(), "n", None).expect("a handshake")
    }

    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        secure::ask(self.connect(), method, path, "").expect("an answer")
    }

    /// Asks for a WebSocket of version 4; `Err`: the head of another answer.
    pub fn web_socket(&self, path: &str) -> Result<WebSocket, String> {
        self.upgrade(
            "GET",
            path,
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n",
        )
        .map(WebSocket)
    }

    fn upgrade(&self, method: &str, path: &str, headers: &str) -> Result<Connection, String> {
        let mut connection = self.connect();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\n");
        connection.write_all(format!("{request}{headers}\r\n").as_bytes()).expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("text");
        if head.starts_with("HTTP/1.1 101 ") { Ok(connection) } else { Err(head) }
    }
}

/// The frames of a WebSocket, each of a channel.
pub struct WebSocket(Connection);

impl WebSocket {
    /// The next frame with content: its channel and bytes; `None`: the end.
    pub fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).ok()?;
            let length = match head[1] & 0x7f {
                126 => {
                    let mut length = [0; 2];
                    self.0.read_exact(&mut length).ok()?;
                    u16::from_be_bytes(length).into()
                }
                127 => {
                    let mut length = [0; 8];
                    self.0.read_exact(&mut length).ok()?;
                    usize::try_from(u64::from_be_bytes(length)).expect("a length")
                }
                short => usize::from(short),
            };
            let mut frame = vec![0; length];
            self.0.read_exact(&mut frame).ok()?;
            match head[0] & 0x0f {
                8 => return None,
                1 | 2 if frame.len() > 1 => return Some((frame[0], frame.split_off(1))),
                _ => {}
            }
        }
    }

    pub fn send(&mut self, channel: u8, bytes: &[u8]) {
        let length = u8::try_from(bytes.len() + 1).expect("a short frame");
        assert!(length < 126);
        // A mask of zeros leaves the bytes as they are.
        let mut frame = vec![0x82, 0x80 | length, 0, 0, 0, 0, channel];
        frame.extend_from_slice(bytes);
        self.0.write_all(&frame).expect("sent");
    }

    /// What comes on each of the first four channels until the end.
    fn rest(&mut self) -> [String; 4] {
        let mut texts = [const { Vec::new() }; 4];
        while let Some((channel, bytes)) = self.next() {
            texts[usize::from(channel)].extend_from_slice(&bytes);
        }
        texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[test]
fn logs_are_read_and_followed_to_the_last_byte() {
    let Some(port) = Port::start("logs") else { return };
    let script = "echo one; sleep 0.5; echo two >&2; sleep 0.5; echo three; until [ -e /tmp/go ]; do sleep 0.1; done; \
                  i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); \
                  [ $((i % 1000)) = 0 ] && sleep 0.3; done; printf last; exit 3";
    port.node.write("logs.yaml", &once("logs", "Never", script));
    port.node.eventually("logs-n", "running", |pod| container(pod)["state"]["running"].is_object());
    let path = "/containerLogs/default/logs-n/main";
    assert!(wait(|| port.ask("GET", path).1.contains("three")), "{}", port.node.log());
    for (query, expected) in [
        ("", "one\ntwo\nthree\n"),
        ("?tailLines=1", "three\n"),
        ("?stream=Stderr", "two\n"),
        ("?limitBytes=5", "one\nt"),
        ("?sinceTime=2100-01-01T00:00:00Z", ""),
    ] {
        let (status, body) = port.ask("GET", &format!("{path}{query}"));
        assert_eq!((status, &*chunks(&body)), (200, expected), "{query}");
    }
    let (status, body) = port.ask("GET", &format!("{path}?previous=true"));
    let text = "previous terminated container \"main\" in pod \"logs-n\" not found";
    assert_eq!((status, &*body), (400, text));
    // Rotated meanwhile: 20,000 lines are more than the largest size.
    let mut following = port.connect();
    let request =
        format!("GET {path}?follow=true HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
    following.write_all(request.as_bytes()).expect("sent");
    let (status, body) = port.ask("POST", "/run/default/logs-n/main?cmd=touch%20/tmp/go");
    assert_eq!((status, &*body), (200, ""));
    let mut answer = Vec::new();
    let _ = following.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let log = chunks(answer.split_once("\r\n\r\n").expect("a body").1);
    let mut expected = "one\ntwo\nthree\n".to_owned();
    for number in 0..20_000 {
        expected.push_str(&format!("line-{number}\n"));
    }
    expected.push_str("last");
    let at = log.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    assert_eq!(log.len(), expected.len(), "{} from {at}", &log[at..log.len().min(at + 200)]);
    assert_eq!(at, expected.len());
}

/// The content of a chunked body.
fn chunks(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        text.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").expect("the end of a chunk");
    }
    text
}

#[test]
fn commands_have_streams() {
    let Some(port) = Port::start("exec") else { return };
    port.node.write("web.yaml", &web());
    port.node.eventually("web-n", "ready", is_ready);
    let exec = |query: &str| port.web_socket(&format!("/exec/default/web-n/main?{query}"));
    let script = "command=sh&command=-c&command=echo%20out;echo%20err%20%3E%262;exit%203";
    let mut streams = exec(&format!("{script}&output=1&error=1")).expect("an upgrade");
    let [_, out, err, status] = streams.rest();
    assert_eq!((&*out, &*err), ("out\n", "err\n"));
    assert!(status.contains("\"ExitCode\",\"message\":\"3\""), "{status}");
    let mut cat = exec("command=cat&input=1&output=1").expect("an upgrade");
    for text in ["hello", "again"] {
        cat.send(0, text.as_bytes());
        let (channel, bytes) = cat.next().expect("the echo");
        assert_eq!((channel, &*bytes), (1, text.as_bytes()));
    }
    drop(cat);
    // Versions that containerd does not speak are refused by it.
    let protocol = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
                    Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
    let path = "/exec/default/web-n/main?command=true&output=1";
    let refused = port.upgrade("GET", path, protocol).expect_err("a refusal");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    // What an API server sends.
    let spdy = "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\
                Content-Length: 0\r\n";
    port.upgrade("POST", path, spdy).expect("an upgrade");
    let ports = spdy.replace("v4.channel", "portforward");
    port.upgrade("POST", "/portForward/default/web-n", &ports).expect("an upgrade");
    // More is in `floods`.
    let mut zeros = exec("command=head&command=-c&command=33554432&command=/dev/zero&output=1")
        .expect("an upgrade");
    let mut total = 0;
    while let Some((channel, bytes)) = zeros.next() {
        total += if channel == 1 { bytes.len() } else { 0 };
    }
    assert_eq!(total, 32 << 20);
    let (status, body) = port.ask("POST", "/run/default/web-n/main?cmd=echo%20hi");
    assert_eq!((status, &*body), (200, "hi\n"));
    let (status, body) = port.ask("GET", "/exec/default/web-n/none?command=true&output=1");
    assert_eq!((status, &*body), (500, "container not found (\"none\")"));
    let (status, body) = port.ask("GET", path);
    assert_eq!((status, &*body), (500, "Upgrade request required\n"));
    let (status, body) = port.ask("POST", "/checkpoint/default/web-n/main");
    assert!(status == 500 && body.contains("code = Unimplemented"), "{status} {body}");
    let running = port.ask("GET", "/runningpods/").1;
    assert!(running.contains("\"name\":\"web-n\""), "{running}");
}

#[test]
fn ports_are_forwarded_and_containers_attached_to() {
    let Some(port) = Port::start("forward") else { return };
    port.node.write("web.yaml", &web());
    port.node.eventually("web-n", "ready", is_ready);
    let mut forward = port.web_socket("/portForward/default/web-n?port=8080").expect("an upgrade");
    // Both channels begin with their port.
    for _ in 0..2 {
        let (_, bytes) = forward.next().expect("a port");
        assert_eq!(bytes, 8080_u16.to_le_bytes());
    }
    forward.send(0, b"GET /index.html HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    while !answer.ends_with("served\n") {
        let (channel, bytes) = forward.next().expect("the answer");
        assert_eq!(channel, 0, "{}", String::from_utf8_lossy(&bytes));
        answer.push_str(&String::from_utf8_lossy(&bytes));
    }
    let script = format!("echo early; sleep 3; while true; do echo tick; sleep 1; done & {STAYS}");
    port.node.write("ticks.yaml", &once("ticks", "Never", &script));
    port.node
        .eventually("ticks-n", "running", |pod| container(pod)["state"]["running"].is_object());
    let path = "/attach/default/ticks-n/main?output=1";
    let mut attached = port.web_socket(path).expect("an upgrade");
    let mut text = String::new();
    while !text.contains("tick\ntick\n") {
        let (channel, bytes) = attached.next().expect("more");
        assert_eq!(channel, 1);
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
}

/// A pod whose container `main` serves a page on port 8080.
pub fn web() -> String {
    let script = "mkdir /tmp/www; echo served > /tmp/www/index.html; \
                  exec httpd -f -p 8080 -h /tmp/www";
    once("web", "Always", script)
        + "    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}\n"
}
