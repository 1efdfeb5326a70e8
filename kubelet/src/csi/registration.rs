//! Registers the drivers whose sockets are in a folder, and deregisters those whose sockets go. A
//! registered driver is asked again about the node by the period of its CSIDriver.
//! Upstream: `pkg/kubelet/pluginmanager`, `RegistrationHandler`, `csiNodeUpdater`.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_lite::FutureExt;
use grpc::{Channel, Endpoint};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken, Task};

use super::error::Error;
use super::node_info::NodeInfo;
use super::registration_api::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use super::{CsiDrivers, Driver, Drivers};
use crate::causes::chain;
use crate::files::folder_watch::{Change, FolderWatch};
use crate::metrics::{self, PluginState};

/// How long a watch that failed is not set up again.
const RETRY: Duration = Duration::from_secs(1);
/// The deadlines of the calls to a plugin. Upstream: `GetInfo` has a second, beside ten to connect;
/// `notifyTimeoutDuration`.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The waits between attempts to register. Upstream: `exponentialbackoff`.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(122);

/// What registers drivers. Cheap to clone.
#[derive(Clone)]
pub struct DriverRegistration {
    /// `plugins_registry` in the root folder.
    pub folder: PathBuf,
    pub drivers: Drivers,
    /// `None`: there is no API server.
    pub server: Option<(NodeInfo, CsiDrivers)>,
    pub clock: SharedClock,
}

/// A socket of the folder.
struct Socket {
    stop: StopToken,
    /// Ends once the driver is not registered any more.
    running: Task<()>,
}

impl DriverRegistration {
    /// Follows the folder until stopped. Drivers stay registered after that.
    pub async fn run(self, stop: StopToken) {
        let mut sockets = BTreeMap::new();
        stop.unless_stopped(self.follow(&mut sockets)).await;
    }

    /// Watches the folder, and registers the driver of each socket that appears. After a lost watch
    /// the folder is compared as a whole.
    async fn follow(&self, sockets: &mut BTreeMap<PathBuf, Socket>) {
        loop {
            let watch = match FolderWatch::new(&self.folder) {
                Ok(watch) => watch,
                Err(error) => {
                    log::error!("{} is not watched: {error}", self.folder.display());
                    self.clock.sleep(RETRY).await;
                    continue;
                }
            };
            // After the watch is set up: no socket is missed between them.
            self.compare(sockets).await;
            loop {
                let changes = match watch.changes().await {
                    Ok(changes) => changes,
                    Err(error) => {
                        log::error!("{}: changes cannot be read: {error}", self.folder.display());
                        self.clock.sleep(RETRY).await;
                        break;
                    }
                };
                for change in &changes {
                    match change {
                        Change::Written(path) => self.start_socket(sockets, path).await,
                        Change::Gone(path) => self.end_socket(sockets, path).await,
                        Change::Unknown => {}
                    }
                }
                if changes.contains(&Change::Unknown) {
                    break;
                }
            }
        }
    }

    /// Compares the sockets in the folder with the known ones, and handles those that are gone or
    /// new.
    async fn compare(&self, sockets: &mut BTreeMap<PathBuf, Socket>) {
        let folder = self.folder.clone();
        let found = task::blocking(move || {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| is_socket(path)).collect::<Vec<_>>()
        });
        let found = found.await;
        let old: Vec<PathBuf> =
            sockets.keys().filter(|path| !found.contains(path)).cloned().collect();
        for path in old {
            self.end_socket(sockets, &path).await;
        }
        for path in found {
            if !sockets.contains_key(&path) {
                self.start_socket(sockets, &path).await;
            }
        }
    }

    /// Starts the task that keeps the driver of a socket registered, in place of that of an earlier
    /// socket at this path. Ignores hidden files and those that are not sockets.
    async fn start_socket(&self, sockets: &mut BTreeMap<PathBuf, Socket>, path: &Path) {
        let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes()[0] == b'.');
        if is_hidden || !is_socket(path) {
            return;
        }
        self.end_socket(sockets, path).await;
        let stop = StopToken::new();
        let (own, of, until) = (self.clone(), path.to_owned(), stop.clone());
        let running = task::spawn(async move { own.keep_registered(&of, until).await });
        metrics::set_plugin(path, PluginState::Desired, true);
        sockets.insert(path.to_owned(), Socket { stop, running });
    }

    /// Ends the task of a socket, if it has one, and waits until its driver is deregistered.
    async fn end_socket(&self, sockets: &mut BTreeMap<PathBuf, Socket>, path: &Path) {
        if let Some(socket) = sockets.remove(path) {
            metrics::set_plugin(path, PluginState::Desired, false);
            socket.stop.stop();
            socket.running.await;
        }
    }

    /// Registers the plugin of a socket, with retries, and deregisters it when stopped.
    async fn keep_registered(&self, socket: &Path, stop: StopToken) {
        let mut wait = FIRST_WAIT;
        let mut name = None;
        loop {
            match stop.unless_stopped(self.register(socket, &mut name)).await {
                None => break,
                Some(Ok(())) => {
                    metrics::set_plugin(socket, PluginState::Actual, true);
                    stop.unless_stopped(self.keep_allocatable(name.as_deref())).await;
                    stop.stopped().await;
                    break;
                }
                Some(Err(error)) => log::error!("{}: {}", socket.display(), chain(&error)),
            }
            // The plugin has not learnt that it is registered, so it must not be.
            self.deregister(name.take()).await;
            if stop.unless_stopped(self.clock.sleep(wait)).await.is_none() {
                return;
            }
            wait = (wait * 2).min(MAX_WAIT);
        }
        self.deregister(name).await;
        metrics::set_plugin(socket, PluginState::Actual, false);
    }

    /// Asks a plugin what it is, registers it, and notifies it of the outcome. Sets `name` to the
    /// driver's name once the API server may know it: it must then be deregistered after an error.
    async fn register(&self, socket: &Path, name: &mut Option<String>) -> Result<(), Error> {
        let endpoint = Endpoint::Unix(socket.to_owned());
        let channel = Channel::new("plugin", endpoint, self.clock.clone(), |_, _, _| {});
        let method = "pluginregistration.Registration/GetInfo";
        let info: PluginInfo = channel.call(method, &InfoRequest {}, Some(INFO_TIMEOUT)).await?;
        let registered = self.register_driver(socket, &info, name).await;
        let error = registered.as_ref().err().map(|error| {
            let text = chain(error);
            format!("RegisterPlugin error -- plugin registration failed with err: {text}")
        });
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: error.unwrap_or_default(),
        };
        let method = "pluginregistration.Registration/NotifyRegistrationStatus";
        let notified =
            channel.call::<RegistrationStatusResponse>(method, &status, Some(NOTIFY_TIMEOUT)).await;
        registered?;
        notified?;
        log::info!("CSI driver {} is registered", info.name);
        Ok(())
    }

    /// Checks what a plugin says of itself, asks its driver about the node, and registers both.
    /// `name` is set once the driver may be known to the API server.
    async fn register_driver(
        &self,
        socket: &Path,
        info: &PluginInfo,
        name: &mut Option<String>,
    ) -> Result<(), Error> {
        if info.r#type != "CSIPlugin" {
            let (kind, socket) = (info.r#type.clone(), socket.to_owned());
            return Err(Error::UnknownType { kind, socket });
        }
        if !info.supported_versions.iter().any(|version| is_supported(version)) {
            let (driver, versions) = (info.name.clone(), info.supported_versions.clone());
            return Err(Error::Versions { driver, versions });
        }
        if self.drivers.get(&info.name).is_ok() {
            return Err(Error::OtherSocket(info.name.clone()));
        }
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_owned(),
            own => own.strip_prefix("unix://").unwrap_or(own).into(),
        };
        let driver = Driver::new(&info.name, &endpoint, self.clock.clone());
        let about_node = driver.info().await?;
        *name = Some(info.name.clone());
        if let Some((node, _)) = &self.server {
            node.install(&info.name, &about_node).await?;
        }
        self.drivers.set(driver);
        Ok(())
    }

    /// Refreshes the CSINode by the period of the driver's CSIDriver, for ever. Returns at once
    /// without an API server.
    async fn keep_allocatable(&self, name: Option<&str>) {
        let (Some((node, csi_drivers)), Some(name)) = (&self.server, name) else { return };
        let mut due = None;
        loop {
            let changed = csi_drivers.changed();
            let object = csi_drivers.get(name).ok();
            let period = object.and_then(|object| object.allocatable_period());
            due = Due::next(due, period, self.clock.monotonic());
            let Some(Due { period, at }) = due else {
                changed.await;
                continue;
            };
            let wait = at.saturating_sub(self.clock.monotonic());
            if !wait.is_zero() {
                self.clock.sleep(wait).or(changed).await;
                continue;
            }
            if let Err(error) = node.refresh(name, &self.drivers).await {
                log::error!("Failed to update CSIDriver {name}: {}", chain(&error));
            }
            due = Some(Due { period, at: self.clock.monotonic() + period });
        }
    }

    /// Withdraws what may be registered of a driver.
    async fn deregister(&self, name: Option<String>) {
        let Some(name) = name else { return };
        log::info!("CSI driver {name} is deregistered");
        self.drivers.remove(&name);
        if let Some((node, _)) = &self.server
            && let Err(error) = node.uninstall(&name).await
        {
            log::error!("CSI driver {name}: {}", chain(&error));
        }
    }
}

/// When a driver is asked again about the node, by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    period: Duration,
    at: Duration,
}

impl Due {
    /// Returns when the driver has to be asked next: a new period begins now, one that has not
    /// changed keeps its time. `None`: the driver is not asked. Upstream: `syncDriverUpdater`.
    fn next(before: Option<Due>, period: Option<Duration>, now: Duration) -> Option<Due> {
        let period = period?;
        let kept = before.filter(|before| before.period == period);
        Some(kept.unwrap_or(Due { period, at: now + period }))
    }
}

/// Returns whether a version of CSI is one of 1.x. Upstream: `HighestSupportedVersion`.
fn is_supported(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.');
    parts.next() == Some("1") && parts.all(|part| part.parse::<u32>().is_ok())
}

fn is_socket(path: &Path) -> bool {
    let status: io::Result<_> = std::fs::symlink_metadata(path);
    status.is_ok_and(|status| status.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;

    use super::*;

    #[test]
    fn drivers_are_asked_by_the_period_of_their_object() {
        let seconds = Duration::from_secs;
        let due = |period, at| Some(Due { period: seconds(period), at: seconds(at) });
        for (before, period, now, expected) in [
            (None, None, 5, None),
            (None, Some(seconds(10)), 5, due(10, 15)),
            // Another change of the object.
            (due(10, 15), Some(seconds(10)), 12, due(10, 15)),
            (due(10, 15), Some(seconds(20)), 12, due(20, 32)),
            (due(10, 15), None, 12, None),
        ] {
            assert_eq!(Due::next(before, period, seconds(now)), expected, "{before:?} {period:?}");
        }
    }

    #[test]
    fn the_sockets_of_plugins_are_shown_while_they_are_there() {
        let name = format!("kubelet-plugin-metrics-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let socket = folder.join("a.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let clock = FakeClock::new(Timestamp::from_secs(1000));
        let registration = DriverRegistration {
            folder: folder.clone(),
            drivers: Drivers::default(),
            server: None,
            clock,
        };
        let line = format!(
            "plugin_manager_total_plugins{{socket_path=\"{}\",state=\"desired_state_of_world\"}} 1\n",
            socket.display()
        );
        let shown = || {
            let page = kube_controller_manager::metrics::render();
            String::from_utf8(page).expect("text").contains(&line)
        };
        let mut sockets = BTreeMap::new();
        for (is_there, expected) in [(true, true), (false, false)] {
            if !is_there {
                std::fs::remove_file(&socket).expect("removed");
            }
            block_on(registration.compare(&mut sockets));
            assert_eq!(shown(), expected, "{line}");
        }
        drop(listener);
        std::fs::remove_dir(&folder).expect("removed");
    }

    #[test]
    fn versions_of_csi_1_are_supported() {
        for (version, expected) in [
            ("1.0.0", true),
            ("v1.2.3", true),
            ("1", true),
            ("0.3.0", false),
            ("2.0.0", false),
            ("1.x", false),
        ] {
            assert_eq!(is_supported(version), expected, "{version}");
        }
    }
}
