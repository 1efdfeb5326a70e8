//! What systemd learns of this program: that it has started, and, where its unit has a watchdog, that
//! it is healthy. Upstream: `daemon.SdNotify`, `pkg/kubelet/watchdog`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube_controller_manager::clock::SharedClock;

use super::error::Error;
use crate::kubelet::Kubelet;

/// A watchdog has to wait for longer. Upstream: `minimalNotifyInterval`.
const MIN_WATCHDOG: Duration = Duration::from_secs(1);

/// What has started this program, if it is a unit of systemd.
#[derive(Default)]
pub(super) struct Systemd {
    /// `None`: it expects no messages.
    socket: Option<SocketAddr>,
    /// It restarts a program that is silent for so long.
    watchdog: Option<Duration>,
    /// Set once there is one: before, the start alone shows health.
    kubelet: OnceLock<Arc<Kubelet>>,
}

impl Systemd {
    /// Reads from the environment what systemd expects of this program.
    ///
    /// # Errors
    /// A variable cannot be used.
    pub(super) fn detect() -> Result<Systemd, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let socket = variable("NOTIFY_SOCKET").map(|name| address(&name)).transpose();
        let [timeout, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(variable);
        let watchdog = watchdog(timeout.as_deref(), pid.as_deref(), process::id());
        Ok(Systemd {
            socket: socket.map_err(Error::of("NOTIFY_SOCKET"))?,
            watchdog: watchdog.map_err(Error::of("configure watchdog"))?,
            kubelet: OnceLock::new(),
        })
    }

    /// Reports to systemd that the kubelet runs. From now on its health counts for the watchdog.
    pub(super) fn report_started(&self, kubelet: &Arc<Kubelet>) {
        // It starts once.
        let _ = self.kubelet.set(kubelet.clone());
        if let Err(error) = self.notify("READY=1") {
            log::error!("Failed to notify systemd: {error}");
        }
    }

    /// Reports health twice in the watchdog's time while the kubelet is healthy, for ever. Without
    /// a watchdog it only waits.
    pub(super) async fn keep_alive(&self, clock: &SharedClock) {
        let Some(timeout) = self.watchdog else { return std::future::pending().await };
        log::info!("Starting systemd watchdog with interval {:?}", timeout / 2);
        loop {
            let health = self.kubelet.get().map_or(Ok(()), |kubelet| kubelet.health());
            match health {
                Ok(()) => {
                    if let Err(error) = self.notify("WATCHDOG=1") {
                        log::error!("Failed to notify watchdog: {error}");
                    }
                }
                Err(fault) => log::error!(
                    "Do not notify watchdog this iteration as the kubelet is reportedly not \
                     healthy: {fault}"
                ),
            }
            clock.sleep(timeout / 2).await;
        }
    }

    /// Sends a datagram to systemd, which takes it at once; nothing without a socket.
    fn notify(&self, text: &str) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let from = UnixDatagram::unbound()?;
        from.set_nonblocking(true)?;
        from.send_to_addr(text.as_bytes(), socket).map(drop)
    }
}

/// Parses the name of systemd's socket: a path, or after `@` a name without a file.
fn address(name: &str) -> io::Result<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

/// Returns the time of the watchdog, given in microseconds; `None`: no watchdog, or one of another
/// process than `own`. `Err`: a malformed value, or a time that is too short. Upstream:
/// `SdWatchdogEnabled`.
fn watchdog(
    timeout: Option<&str>,
    pid: Option<&str>,
    own: u32,
) -> Result<Option<Duration>, String> {
    let Some(timeout) = timeout else { return Ok(None) };
    let fault = |name: &str, value: &str| format!("{name}={value}: not a positive number");
    let micros = timeout.parse().ok().filter(|micros| *micros > 0);
    let micros = micros.ok_or_else(|| fault("WATCHDOG_USEC", timeout))?;
    if let Some(pid) = pid {
        let of: u32 = pid.parse().map_err(|_| fault("WATCHDOG_PID", pid))?;
        if of != own {
            return Ok(None);
        }
    }
    match Duration::from_micros(micros) {
        short if short <= MIN_WATCHDOG => Err(format!("timeout too small: {short:?}")),
        timeout => Ok(Some(timeout)),
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;

    #[test]
    fn watchdog_is_that_of_this_process() {
        let seconds = |seconds| Ok(Some(Duration::from_secs(seconds)));
        for (timeout, pid, expected) in [
            (None, None, Ok(None)),
            (None, Some("7"), Ok(None)),
            (Some("30000000"), None, seconds(30)),
            (Some("30000000"), Some("7"), seconds(30)),
            (Some("30000000"), Some("8"), Ok(None)),
            (Some("1000000"), None, Err("timeout too small: 1s")),
            (Some("0"), None, Err("WATCHDOG_USEC=0: not a positive number")),
            (Some("30s"), None, Err("WATCHDOG_USEC=30s: not a positive number")),
            (Some("30000000"), Some("x"), Err("WATCHDOG_PID=x: not a positive number")),
        ] {
            let found = watchdog(timeout, pid, 7);
            assert_eq!(found, expected.map_err(str::to_owned), "{timeout:?} {pid:?}");
        }
    }

    #[test]
    fn watchdog_is_notified_twice_in_its_time() {
        let name = format!("kubelet-systemd-{}", process::id());
        let file = std::env::temp_dir().join(&name);
        let text = file.display().to_string();
        let _ = std::fs::remove_file(&file);
        let by_file = UnixDatagram::bind(&file).expect("a socket");
        let by_name = address(&format!("@{name}")).expect("an address");
        let by_name = UnixDatagram::bind_addr(&by_name).expect("a socket");
        for (socket, server) in [(text, by_file), (format!("@{name}"), by_name)] {
            server.set_nonblocking(true).expect("a socket");
            let received = || {
                let mut bytes = [0; 64];
                let length = server.recv(&mut bytes).ok()?;
                Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
            };
            let systemd = Systemd {
                socket: Some(address(&socket).expect("an address")),
                watchdog: Some(Duration::from_secs(30)),
                ..Systemd::default()
            };
            let fake = FakeClock::new(Timestamp::from_secs(0));
            let clock: SharedClock = fake.clone();
            let mut alive = std::pin::pin!(systemd.keep_alive(&clock));
            let mut turn = || assert!(block_on(poll_once(alive.as_mut())).is_none());
            turn();
            assert_eq!(received().as_deref(), Some("WATCHDOG=1"));
            fake.advance(Duration::from_secs(14));
            turn();
            assert_eq!(received(), None);
            fake.advance(Duration::from_secs(1));
            turn();
            assert_eq!(received().as_deref(), Some("WATCHDOG=1"));
        }
        std::fs::remove_file(&file).expect("removed");
        // Who expects no messages gets none.
        Systemd::default().notify("READY=1").expect("nothing to do");
    }
}
