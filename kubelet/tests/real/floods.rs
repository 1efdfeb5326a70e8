//! What the kubelet's process holds of streams to real containers: many at once, large ones, and
//! those whose client or runtime stops or goes away.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};

use super::node::wait;
use super::pods::{STAYS, container, is_ready, once, with_out};
use super::secure::Connection;
use super::streams::{Port, WebSocket, web};

const MIB: u64 = 1 << 20;
/// Of a stream whose end must not be waited for.
const CAT: &str = "/exec/default/web-n/main?command=cat&input=1&output=1";

/// The bytes of a large stream, by `STREAM_BYTES`.
fn stream_bytes() -> u64 {
    std::env::var("STREAM_BYTES").map_or(64 * MIB, |text| text.parse().expect("a number of bytes"))
}

fn start(test: &str, fields: &str) -> Option<Port> {
    let port = Port::start_with(test, fields)?;
    port.node.write("web.yaml", &with_out(&web(), &port.node.host_path("out")));
    port.node.eventually("web-n", "ready", is_ready);
    Some(port)
}

fn descriptors(port: &Port) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", port.node.kubelet_id()));
    open.expect("a process").count()
}

/// The descriptors without streams, once those of earlier ones are closed.
fn descriptors_at_rest(port: &Port) -> usize {
    let (mut least, mut polls) = (descriptors(port), 0);
    wait(|| {
        least = least.min(descriptors(port));
        polls += 1;
        polls == 20
    });
    least
}

/// The kubelet's anonymous memory, in bytes.
fn memory(port: &Port) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", port.node.kubelet_id()));
    let status = status.expect("a process");
    let size = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    let kilobytes: u64 = size.trim().trim_end_matches(" kB").parse().expect("kB");
    kilobytes << 10
}

/// The most memory that the kubelet has beyond what it had, at each megabyte of a stream.
struct Growth<'a> {
    port: &'a Port,
    before: u64,
    most: u64,
    bytes: u64,
}

impl<'a> Growth<'a> {
    fn of(port: &'a Port) -> Growth<'a> {
        Growth { port, before: memory(port), most: 0, bytes: 0 }
    }

    fn add(&mut self, bytes: u64) {
        let sampled = self.bytes / MIB;
        self.bytes += bytes;
        if self.bytes / MIB > sampled {
            self.most = self.most.max(memory(self.port).saturating_sub(self.before));
        }
    }
}

fn echo(stream: &mut WebSocket) {
    stream.send(0, b"hello");
    let (channel, bytes) = stream.next().expect("the echo");
    assert_eq!((channel, &*bytes), (1, &b"hello"[..]));
}

/// Asks for a page by a forwarded port.
fn load(forward: &mut WebSocket) {
    forward.send(0, b"GET /index.html HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    while !answer.ends_with("served\n") {
        let (channel, bytes) = forward.next().expect("more of the answer");
        // Each channel begins with its port.
        if channel == 0 && bytes != 8080_u16.to_le_bytes() {
            answer.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
}

/// Follows the log of a pod, after the head of the answer.
fn follow(port: &Port, pod: &str) -> BufReader<Connection> {
    let mut connection = port.connect();
    let path = format!("/containerLogs/default/{pod}/main?follow=true");
    let request = format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = BufReader::new(connection);
    let mut line = String::new();
    answer.read_line(&mut line).expect("a status");
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    while line != "\r\n" {
        line.clear();
        let length = answer.read_line(&mut line).expect("a head");
        assert!(length > 0, "half a head");
    }
    answer
}

/// The next chunk of a body; `None`: the end.
fn chunk(body: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    body.read_line(&mut line).expect("a length");
    let length = u64::from_str_radix(line.trim_end(), 16).expect("a length");
    let mut content = Vec::new();
    body.by_ref().take(length).read_to_end(&mut content).expect("a chunk");
    body.read_exact(&mut [0; 2]).expect("its end");
    (length > 0).then_some(content)
}

#[test]
fn hundred_streams_at_once_hold_little_and_leave_nothing() {
    let Some(port) = start("hundred", "") else { return };
    port.node.write("talks.yaml", &once("talks", "Never", &format!("echo hello; {STAYS}")));
    port.node
        .eventually("talks-n", "running", |pod| container(pod)["state"]["running"].is_object());
    let stream = |path: &str| port.web_socket(path).expect("an upgrade");
    let forward = || stream("/portForward/default/web-n?port=8080");
    let listen = || {
        let mut log = follow(&port, "talks-n");
        assert_eq!(chunk(&mut log).as_deref(), Some(&b"hello\n"[..]));
        log
    };
    // What is made with the first ones may stay.
    echo(&mut stream(CAT));
    load(&mut forward());
    drop(listen());
    let before = descriptors_at_rest(&port);
    for _ in 0..2 {
        let memory_before = memory(&port);
        let mut commands: Vec<WebSocket> = (0..40).map(|_| stream(CAT)).collect();
        let mut forwards: Vec<WebSocket> = (0..40).map(|_| forward()).collect();
        let logs: Vec<BufReader<Connection>> = (0..20).map(|_| listen()).collect();
        let open = descriptors(&port);
        // Commands and ports have a connection on each side.
        assert!(open >= before + 2 * 40 + 2 * 40 + 20, "{before} {open}");
        commands.iter_mut().for_each(echo);
        forwards.iter_mut().for_each(load);
        commands.iter_mut().for_each(echo);
        let grown = memory(&port).saturating_sub(memory_before);
        assert!(grown < 100 * MIB, "{grown} bytes for a hundred streams");
        drop((commands, forwards, logs));
        let are_closed = wait(|| descriptors(&port) <= before);
        assert!(are_closed, "{before} {}: {}", descriptors(&port), port.node.log());
    }
}

#[test]
fn large_streams_come_whole_and_are_not_kept() {
    let Some(port) = start("large", "containerLogMaxSize: 100Gi") else { return };
    let bytes = stream_bytes();
    let command = format!("command=head&command=-c&command={bytes}&command=/dev/zero");
    let path = format!("/exec/default/web-n/main?{command}&output=1");
    let mut output = port.web_socket(&path).expect("an upgrade");
    let mut growth = Growth::of(&port);
    while let Some((channel, content)) = output.next() {
        if channel == 1 {
            growth.add(content.len() as u64);
        }
    }
    assert_eq!(growth.bytes, bytes);
    assert!(growth.most < 16 * MIB, "exec: {} more bytes of memory", growth.most);
    let script = format!("head -c {bytes} /dev/zero | tr '\\000' x");
    port.node.write("floods.yaml", &once("floods", "Never", &script));
    port.node.eventually("floods-n", "started", |pod| {
        let state = &container(pod)["state"];
        state["running"].is_object() || state["terminated"].is_object()
    });
    let mut log = follow(&port, "floods-n");
    let mut growth = Growth::of(&port);
    while let Some(content) = chunk(&mut log) {
        assert!(content.iter().all(|byte| *byte == b'x'), "{}", growth.bytes);
        growth.add(content.len() as u64);
    }
    assert_eq!(growth.bytes, bytes);
    assert!(growth.most < 16 * MIB, "log: {} more bytes of memory", growth.most);
}

#[test]
fn clients_that_do_not_read_stop_what_they_asked_for() {
    let Some(port) = start("stalled", "") else { return };
    let out = port.node.host_path("out");
    echo(&mut port.web_socket(CAT).expect("an upgrade"));
    let (before, memory_before) = (descriptors_at_rest(&port), memory(&port));
    // Counts the blocks that it has written.
    let script = |number: usize| {
        format!(
            "i=0; while head -c 65536 /dev/zero; do i=$((i + 1)); echo $i > /out/{number}; done"
        )
    };
    let stalled: Vec<WebSocket> = (0..20)
        .map(|number| {
            let script: String =
                url::form_urlencoded::byte_serialize(script(number).as_bytes()).collect();
            let command = format!("command=sh&command=-c&command={script}");
            let path = format!("/exec/default/web-n/main?{command}&output=1");
            port.web_socket(&path).expect("an upgrade")
        })
        .collect();
    let written = || -> Vec<u64> {
        let blocks = |number: usize| {
            let text = fs::read_to_string(out.join(number.to_string())).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or_default()
        };
        (0..stalled.len()).map(blocks).collect()
    };
    // All buffers on the way are full once no more is written for some time.
    let (mut last, mut polls) = (written(), 0);
    let are_full = wait(|| {
        let now = written();
        polls = if now == last { polls + 1 } else { 0 };
        last = now;
        polls >= 20 && last.iter().all(|blocks| *blocks > 0)
    });
    assert!(are_full, "{last:?}");
    assert!(last.iter().all(|blocks| blocks * 65536 < 64 * MIB), "{last:?}");
    let grown = memory(&port).saturating_sub(memory_before);
    assert!(grown < stalled.len() as u64 * MIB, "{grown} bytes for {} streams", stalled.len());
    // Others are served meanwhile.
    echo(&mut port.web_socket(CAT).expect("an upgrade"));
    drop(stalled);
    let are_closed = wait(|| descriptors(&port) <= before);
    assert!(are_closed, "{before} {}: {}", descriptors(&port), port.node.log());
}

#[test]
fn streams_end_with_the_runtime() {
    let Some(port) = start("gone", "") else { return };
    echo(&mut port.web_socket(CAT).expect("an upgrade"));
    let before = descriptors_at_rest(&port);
    let mut streams: Vec<WebSocket> =
        (0..10).map(|_| port.web_socket(CAT).expect("an upgrade")).collect();
    streams.iter_mut().for_each(echo);
    port.node.kill_runtime();
    for stream in &mut streams {
        assert!(stream.next().is_none());
    }
    drop(streams);
    port.node.resume_runtime();
    // The kubelet has to find it first.
    assert!(wait(|| port.web_socket(CAT).is_ok()), "{}", port.node.log());
    echo(&mut port.web_socket(CAT).expect("an upgrade"));
    let are_closed = wait(|| descriptors(&port) <= before);
    assert!(are_closed, "{before} {}: {}", descriptors(&port), port.node.log());
}
