//! A client of the system's message bus (D-Bus), for systemd and logind. Its calls block.
//! Upstream: `github.com/godbus/dbus`.

#[cfg(test)]
pub mod testing;
pub mod wire;

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use self::wire::{Argument, Body, Kind, Message, PREFIX};

/// Where the system's bus is.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// A call that is not answered in this time fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The file descriptors that a message may have.
const MAX_DESCRIPTORS: usize = 4;

/// Why the bus, or a program on it, does not do what is asked.
#[derive(Debug)]
pub enum Error {
    Connect(io::Error),
    /// The bus does not answer, or ends the connection.
    Lost(io::Error),
    /// The bus does not let this program in.
    Refused(String),
    /// It says something that is not D-Bus.
    Malformed(&'static str),
    /// The program that was called answers with an error.
    Failed {
        method: String,
        name: String,
        message: String,
    },
}

impl Error {
    /// Returns the name of an error that a call was answered with; empty: another failure.
    pub fn name(&self) -> &str {
        match self {
            Error::Failed { name, .. } => name,
            _ => "",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Connect(_) => f.write_str("cannot connect to the system's message bus"),
            Error::Lost(_) => f.write_str("the system's message bus"),
            Error::Refused(line) => write!(f, "the system's message bus refuses: {line:?}"),
            Error::Malformed(what) => write!(f, "the system's message bus sends {what}"),
            Error::Failed { method, name, message } => write!(f, "{method}: {name}: {message}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Connect(error) | Error::Lost(error) => Some(error),
            _ => None,
        }
    }
}

/// An object of a program on the bus, by one of its interfaces.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub destination: &'static str,
    pub path: &'static str,
    pub interface: &'static str,
}

const BUS: Object = Object {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

/// A signal with its arguments.
#[derive(Clone, Debug)]
pub struct Signal {
    pub interface: String,
    pub member: String,
    pub body: Body,
}

/// A connection to a bus.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    serial: u32,
    signals: VecDeque<Signal>,
    descriptors: VecDeque<OwnedFd>,
}

impl Connection {
    /// Connects to the bus with this socket.
    ///
    /// # Errors
    /// No bus is there, or it does not let this program in.
    pub fn open(socket: &Path) -> Result<Connection, Error> {
        let mut stream = UnixStream::connect(socket).map_err(Error::Connect)?;
        let timeouts = stream.set_read_timeout(Some(TIMEOUT));
        timeouts.and_then(|()| stream.set_write_timeout(Some(TIMEOUT))).map_err(Error::Connect)?;
        authenticate(&mut stream)?;
        let (signals, descriptors) = (VecDeque::new(), VecDeque::new());
        let mut connection = Connection { stream, serial: 0, signals, descriptors };
        connection.call(BUS, "Hello", &[])?;
        Ok(connection)
    }

    /// Calls a method and waits for its answer; signals that come meanwhile are kept.
    ///
    /// # Errors
    /// It answers with an error, or not at all.
    pub fn call(
        &mut self,
        object: Object,
        member: &str,
        arguments: &[Argument],
    ) -> Result<Body, Error> {
        self.serial += 1;
        let Object { destination, path, interface } = object;
        let kind = Kind::Call {
            path: path.to_owned(),
            interface: interface.to_owned(),
            member: member.to_owned(),
        };
        let bytes = wire::encode(&kind, self.serial, destination, arguments);
        self.stream.write_all(&bytes).map_err(Error::Lost)?;
        loop {
            let mut message = self.read()?;
            match message.kind {
                Kind::Return { of } if of == self.serial => return Ok(message.body),
                Kind::Failure { of, name } if of == self.serial => {
                    let has_text = message.signature.starts_with('s');
                    let text = if has_text { message.body.text()? } else { String::new() };
                    let method = format!("{interface}.{member}");
                    return Err(Error::Failed { method, name, message: text });
                }
                kind => self.keep_signal(kind, message.body),
            }
        }
    }

    /// Reads a property. The value follows its signature.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn property(&mut self, object: Object, name: &str) -> Result<Body, Error> {
        let properties = Object { interface: "org.freedesktop.DBus.Properties", ..object };
        let arguments = [Argument::text(object.interface), Argument::text(name)];
        self.call(properties, "Get", &arguments)
    }

    /// Lets the bus send these signals of an object, from now on.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn subscribe(&mut self, object: Object, member: &str) -> Result<(), Error> {
        let Object { path, interface, .. } = object;
        let rule = format!("type='signal',path='{path}',interface='{interface}',member='{member}'");
        self.call(BUS, "AddMatch", &[Argument::Text(rule)]).map(drop)
    }

    /// Waits for the next signal. Signals that came during calls come first. `timeout`: `None`
    /// waits for ever.
    ///
    /// # Errors
    /// The connection ends, or nothing comes in time.
    pub fn signal(&mut self, timeout: Option<Duration>) -> Result<Signal, Error> {
        if let Some(signal) = self.signals.pop_front() {
            return Ok(signal);
        }
        self.stream.set_read_timeout(timeout).map_err(Error::Lost)?;
        let signal = loop {
            match self.read() {
                Ok(message) => self.keep_signal(message.kind, message.body),
                Err(error) => break Err(error),
            }
            if let Some(signal) = self.signals.pop_front() {
                break Ok(signal);
            }
        };
        self.stream.set_read_timeout(Some(TIMEOUT)).map_err(Error::Lost)?;
        signal
    }

    /// Returns the file descriptor that came with the last answer.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_back()
    }

    /// Keeps a signal for the next call of `signal`; other messages are dropped.
    fn keep_signal(&mut self, kind: Kind, body: Body) {
        if let Kind::Signal { interface, member, .. } = kind {
            self.signals.push_back(Signal { interface, member, body });
        }
    }

    /// Reads a whole message.
    fn read(&mut self) -> Result<Message, Error> {
        let mut bytes = vec![0; PREFIX];
        self.fill(&mut bytes, 0)?;
        bytes.resize(wire::length(&bytes)?, 0);
        self.fill(&mut bytes, PREFIX)?;
        wire::decode(&bytes)
    }

    /// Fills `bytes` from `at` on with what the bus sends, and keeps the file descriptors that come
    /// with it. The end of the connection is an error.
    fn fill(&mut self, bytes: &mut [u8], mut at: usize) -> Result<(), Error> {
        while at < bytes.len() {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes[at..])];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let read = match recvmsg(&self.stream, &mut parts, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => continue,
                read => read.map_err(|error| Error::Lost(error.into()))?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.descriptors.extend(descriptors);
                }
            }
            if read.bytes == 0 {
                return Err(Error::Lost(io::ErrorKind::UnexpectedEof.into()));
            }
            at += read.bytes;
        }
        Ok(())
    }
}

/// Authenticates as the user of this process, which the bus compares with what the kernel says, and
/// asks for file descriptors in messages.
fn authenticate(stream: &mut UnixStream) -> Result<(), Error> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let user: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
    stream.write_all(b"\0").map_err(Error::Lost)?;
    for (line, answer) in
        [(format!("AUTH EXTERNAL {user}"), "OK "), ("NEGOTIATE_UNIX_FD".into(), "AGREE_UNIX_FD")]
    {
        stream.write_all(format!("{line}\r\n").as_bytes()).map_err(Error::Lost)?;
        let said = read_line(stream)?;
        if !said.starts_with(answer) {
            return Err(Error::Refused(said));
        }
    }
    stream.write_all(b"BEGIN\r\n").map_err(Error::Lost)
}

/// Reads a line, and no byte after it.
fn read_line(stream: &mut UnixStream) -> Result<String, Error> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(Error::Lost)?;
        line.extend(byte);
        if line.len() > wire::MAX_MESSAGE {
            return Err(Error::Malformed("a line without an end"));
        }
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::testing::{Answer, FakeBus};
    use super::*;

    #[test]
    fn errors_of_calls_have_their_names_and_signals_wait() {
        let bus = FakeBus::start(|member, _| match member {
            "Good" => {
                let signal = ("/p", "i", "Came", vec![Argument::Bool(true)]);
                (Answer::Return(vec![Argument::text("yes")]), vec![signal])
            }
            _ => (Answer::Failure("x.Bad"), Vec::new()),
        });
        let object = Object { destination: "x", path: "/x", interface: "x.Y" };
        let mut connection = Connection::open(&bus.socket).expect("a connection");
        let mut good = connection.call(object, "Good", &[]).expect("an answer");
        assert_eq!(good.text().expect("text"), "yes");
        let error = connection.call(object, "Bad", &[]).expect_err("an error");
        assert_eq!((error.name(), &*error.to_string()), ("x.Bad", "x.Y.Bad: x.Bad: why"));
        // It came during the second call.
        let mut signal = connection.signal(None).expect("a signal");
        assert_eq!((&*signal.member, signal.body.u32().expect("a bool")), ("Came", 1));
        bus.cut();
        assert!(matches!(connection.signal(None), Err(Error::Lost(_))));
        assert!(matches!(Connection::open(Path::new("/nonexistent")), Err(Error::Connect(_))));
    }

    struct Daemon(Child);

    impl Drop for Daemon {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The reference implementation, where the machine has it.
    #[test]
    fn reference_bus_understands_and_is_understood() {
        let socket = std::env::temp_dir().join(format!("kubelet-dbus-{}", std::process::id()));
        let daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut daemon) = daemon.map(Daemon) else {
            return eprintln!("skipped: there is no dbus-daemon");
        };
        let mut connection = loop {
            match Connection::open(&socket) {
                Ok(connection) => break connection,
                Err(error) => {
                    let ended = daemon.0.try_wait().expect("a child");
                    assert!(ended.is_none(), "{ended:?}: {error}");
                    std::thread::yield_now();
                }
            }
        };
        let id = connection.call(BUS, "GetId", &[]).and_then(|mut body| body.text());
        assert_eq!(id.expect("an id").len(), 32);
        let error = connection.call(BUS, "Nothing", &[]).expect_err("no such method");
        assert_eq!(error.name(), "org.freedesktop.DBus.Error.UnknownMethod");
        let mut features = connection.property(BUS, "Features").expect("a property");
        assert_eq!(features.signature().expect("one"), "as");
        connection.subscribe(BUS, "NameOwnerChanged").expect("subscribed");
        let _other = Connection::open(&socket).expect("another");
        while connection.signal(Some(TIMEOUT)).expect("a signal").member != "NameOwnerChanged" {}
        drop(daemon);
        // It leaves its socket.
        let _ = std::fs::remove_file(&socket);
    }
}
