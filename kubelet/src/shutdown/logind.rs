//! logind, by the system's message bus: it delays a shutdown, and announces it. Its calls block.
//! Upstream: `pkg/kubelet/nodeshutdown/systemd`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::Error;
use crate::dbus::wire::Argument;
use crate::dbus::{self, Connection, Object};

const LOGIND: Object = Object {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const SYSTEMD: Object = Object {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const SIGNAL: &str = "PrepareForShutdown";
/// logind reads its configuration again.
const SIGHUP: i32 = 1;
/// Upstream: `kubeletLogindConf`.
pub(super) const DROP_IN: &str = "99-kubelet.conf";

/// A connection to logind.
#[derive(Debug)]
pub struct Logind(Connection);

impl Logind {
    /// Connects to the bus of logind.
    ///
    /// # Errors
    /// There is no bus.
    pub fn open(socket: &Path) -> Result<Logind, Error> {
        Connection::open(socket).map(Logind).map_err(Error::Bus)
    }

    /// Returns the longest delay of a shutdown. Upstream: `CurrentInhibitDelay`.
    ///
    /// # Errors
    /// There is no logind.
    pub fn max_delay(&mut self) -> Result<Duration, Error> {
        let mut value = self.0.property(LOGIND, "InhibitDelayMaxUSec").map_err(Error::Bus)?;
        if value.signature().map_err(Error::Bus)? != "t" {
            return Err(Error::Bus(dbus::Error::Malformed("a delay that is not a number")));
        }
        value.u64().map(Duration::from_micros).map_err(Error::Bus)
    }

    /// Asks for a longer delay, by a drop-in of logind's configuration in `folder`. It holds some
    /// time later. Upstream: `OverrideInhibitDelay`, `ReloadLogindConf`.
    ///
    /// # Errors
    /// The file cannot be written, or systemd refuses.
    pub fn set_max_delay(&mut self, folder: &Path, delay: Duration) -> Result<(), Error> {
        let file = folder.join(DROP_IN);
        let seconds = delay.as_secs();
        let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, text));
        written.map_err(|source| Error::File { file, source })?;
        let unit = Argument::text("systemd-logind.service");
        let arguments = [unit, Argument::text("all"), Argument::Int(SIGHUP)];
        self.0.call(SYSTEMD, "KillUnit", &arguments).map(drop).map_err(Error::Bus)
    }

    /// Delays shutdowns while the descriptor is open. Upstream: `InhibitShutdown`.
    ///
    /// # Errors
    /// logind refuses.
    pub fn inhibit(&mut self) -> Result<OwnedFd, Error> {
        let why = "Kubelet needs time to handle node shutdown";
        let arguments = ["shutdown", "kubelet", why, "delay"].map(Argument::text);
        self.0.call(LOGIND, "Inhibit", &arguments).map_err(Error::Bus)?;
        let lock = self.0.take_descriptor();
        lock.ok_or(Error::Bus(dbus::Error::Malformed("no lock")))
    }

    /// Lets logind announce shutdowns, from now on.
    ///
    /// # Errors
    /// The bus refuses.
    pub fn subscribe(&mut self) -> Result<(), Error> {
        self.0.subscribe(LOGIND, SIGNAL).map_err(Error::Bus)
    }

    /// Waits until a shutdown begins (true) or is cancelled (false).
    ///
    /// # Errors
    /// The connection ends.
    pub fn next(&mut self) -> Result<bool, Error> {
        loop {
            let mut signal = self.0.signal(None).map_err(Error::Bus)?;
            if signal.interface == LOGIND.interface && signal.member == SIGNAL {
                return signal.body.u32().map(|begins| begins != 0).map_err(Error::Bus);
            }
        }
    }
}
