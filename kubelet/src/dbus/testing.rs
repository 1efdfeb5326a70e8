//! A message bus of a test, with a program on it.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::wire::{self, Argument, Body, Kind, PREFIX};

/// What the program says to a call.
pub enum Answer {
    Return(Vec<Argument>),
    /// With a file descriptor.
    Descriptor(OwnedFd),
    Failure(&'static str),
    /// The connection ends.
    End,
}

/// Signals to send after an answer: the object, the interface, the member, the arguments.
pub type Sent = (&'static str, &'static str, &'static str, Vec<Argument>);

type Program = dyn Fn(&str, Body) -> (Answer, Vec<Sent>) + Send + Sync;

/// Removed when dropped.
pub struct FakeBus {
    pub socket: PathBuf,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl FakeBus {
    pub fn start(
        program: impl Fn(&str, Body) -> (Answer, Vec<Sent>) + Send + Sync + 'static,
    ) -> FakeBus {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let socket = std::env::temp_dir().join(format!("kubelet-bus-{unique}"));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let program: Arc<Program> = Arc::new(program);
        let streams = Arc::new(Mutex::new(Vec::new()));
        let all: Arc<Mutex<Vec<UnixStream>>> = streams.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                all.lock().push(stream.try_clone().expect("a stream"));
                let program = program.clone();
                thread::spawn(move || serve(stream, &*program));
            }
        });
        FakeBus { socket, streams }
    }

    /// Sends a signal on all connections.
    pub fn send(&self, (path, interface, member, arguments): Sent) {
        let bytes = signal(path, interface, member, &arguments);
        for stream in &mut *self.streams.lock() {
            // It may have ended.
            let _ = stream.write_all(&bytes);
        }
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for FakeBus {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn signal(path: &str, interface: &str, member: &str, arguments: &[Argument]) -> Vec<u8> {
    let kind = Kind::Signal {
        path: path.to_owned(),
        interface: interface.to_owned(),
        member: member.to_owned(),
    };
    wire::encode(&kind, 1, "", arguments)
}

/// Answers a client as a bus does: authenticates it, then answers each call by `program`.
fn serve(mut stream: UnixStream, program: &Program) {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        line.extend(byte);
        if !line.ends_with(b"\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        let answer = match text.trim_start_matches('\0') {
            text if text.starts_with("AUTH EXTERNAL 3") => "OK 1234deadbeef\r\n",
            "NEGOTIATE_UNIX_FD\r\n" => "AGREE_UNIX_FD\r\n",
            "BEGIN\r\n" => break,
            _ => "REJECTED EXTERNAL\r\n",
        };
        stream.write_all(answer.as_bytes()).expect("written");
    }
    loop {
        let mut bytes = vec![0; PREFIX];
        if stream.read_exact(&mut bytes).is_err() {
            return;
        }
        bytes.resize(wire::length(&bytes).expect("a message"), 0);
        stream.read_exact(&mut bytes[PREFIX..]).expect("a message");
        let call = wire::decode(&bytes).expect("a message");
        let Kind::Call { member, .. } = &call.kind else { panic!("no call") };
        let (answer, signals) = match member.as_str() {
            "Hello" => (Answer::Return(vec![Argument::text(":1.1")]), Vec::new()),
            "AddMatch" => (Answer::Return(Vec::new()), Vec::new()),
            member => program(member, call.body.clone()),
        };
        let reply = Kind::Return { of: call.serial };
        let sent = match answer {
            Answer::Return(arguments) => stream.write_all(&wire::encode(&reply, 1, "", &arguments)),
            Answer::Descriptor(descriptor) => {
                let bytes = wire::encode(&reply, 1, "", &[Argument::Unsigned(0)]);
                let descriptors = [descriptor.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
                let parts = [IoSlice::new(&bytes)];
                let sent = sendmsg(&stream, &parts, &mut control, SendFlags::empty());
                sent.map(|_| ()).map_err(Into::into)
            }
            Answer::Failure(name) => {
                let kind = Kind::Failure { of: call.serial, name: name.to_owned() };
                stream.write_all(&wire::encode(&kind, 1, "", &[Argument::text("why")]))
            }
            Answer::End => return drop(stream.shutdown(std::net::Shutdown::Both)),
        };
        sent.expect("sent");
        for (path, interface, member, arguments) in signals {
            stream.write_all(&signal(path, interface, member, &arguments)).expect("sent");
        }
    }
}
