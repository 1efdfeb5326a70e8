//! Hooks of a container's life: after its start, before its stop.
//! Upstream: `pkg/kubelet/lifecycle`.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;

use super::Manager;
use crate::causes::chain;
use crate::events;
use crate::http;
use crate::metrics;
use crate::pod::{Container, Pod, PodExt};
use crate::prober::{self, PortError};

/// Upstream's message about a hook that has failed: the log and the container's status show it.
#[derive(Debug)]
pub(super) struct HookFailure(String);

impl HookFailure {
    /// Builds the failure of a hook that did not end within this time.
    pub(super) fn late(seconds: i64) -> HookFailure {
        HookFailure(format!("no end within {seconds} s"))
    }
}

impl fmt::Display for HookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for HookFailure {}

/// A command in a container that has failed.
struct ExecFailure {
    error: String,
    /// What it has written.
    output: String,
}

/// Why a request to a container has no answer.
#[derive(Debug)]
enum RequestFailure {
    /// The pod has no address.
    NoAddress,
    Port(PortError),
    Http(http::Error),
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestFailure::NoAddress => f.write_str("failed to find networking container"),
            RequestFailure::Port(error) => error.fmt(f),
            RequestFailure::Http(error) => error.fmt(f),
        }
    }
}

impl Error for RequestFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RequestFailure::Http(error) => error.source(),
            RequestFailure::NoAddress | RequestFailure::Port(_) => None,
        }
    }
}

impl Manager {
    /// Runs a hook of the container with this id to its end. `ips`: the pod's addresses.
    pub(super) async fn run_hook(
        &self,
        pod: &Pod,
        container: &Container,
        id: &str,
        hook: &core::LifecycleHandler,
        ips: &[String],
    ) -> Result<(), HookFailure> {
        let name = &container.name;
        let pod_name = format!("{}({})", pod.full_name(), pod.uid());
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            return self.exec_hook(id, &command).await.map_err(|ExecFailure { error, output }| {
                HookFailure(format!(
                    "Exec lifecycle hook ([{}]) for Container {name:?} in Pod {pod_name:?} failed \
                     - error: {error}, message: {output:?}",
                    command.join(" ")
                ))
            });
        }
        if let Some(get) = &hook.http_get {
            return self.http_hook(pod, container, get, ips).await.map_err(|error| {
                let path = get.path.as_deref().unwrap_or_default();
                HookFailure(format!(
                    "HTTP lifecycle hook ({path}) for Container {name:?} in Pod {pod_name:?} \
                     failed - error: {}",
                    chain(&error)
                ))
            });
        }
        match &hook.sleep {
            Some(sleep) => {
                let seconds = sleep.seconds.max(0).unsigned_abs();
                self.clock.sleep(Duration::from_secs(seconds)).await;
                Ok(())
            }
            // As upstream, also for `tcpSocket`.
            None => Err(HookFailure("Cannot run handler: invalid handler".to_owned())),
        }
    }

    /// Runs a hook that is a command in the container, without a deadline. The command continues when
    /// the future is dropped, as upstream: after the grace period, until the container is killed.
    async fn exec_hook(&self, id: &str, command: &[String]) -> Result<(), ExecFailure> {
        let (runtime, id, own) = (self.runtime.clone(), id.to_owned(), command.to_vec());
        let answer = task::spawn(async move { runtime.exec_sync(&id, &own, None).await })
            .await
            .map_err(|error| ExecFailure { error: chain(&error), output: String::new() })?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&answer.stderr).into_owned();
        let output = [answer.stdout, answer.stderr].concat();
        let (command, code) = (command.join(" "), answer.exit_code);
        Err(ExecFailure {
            error: format!("command '{command}' exited with {code}: {errors}"),
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }

    /// Runs a hook that is an HTTP GET; any status of its answer is a success. The hook waits while
    /// this machine lacks descriptors or memory: that is not the container's fault.
    async fn http_hook(
        &self,
        pod: &Pod,
        container: &Container,
        get: &core::HTTPGetAction,
        ips: &[String],
    ) -> Result<(), RequestFailure> {
        let address = match pod.is_host_network() {
            true => Some(self.node.own.address_or_loopback()),
            false => ips.first().cloned(),
        };
        // `target` takes the hook's own host, if it has one: then the pod needs no address.
        let own_host = get.host.as_deref().filter(|host| !host.is_empty());
        let ip = address.as_deref().or(own_host);
        let ip = ip.ok_or(RequestFailure::NoAddress)?;
        let mut target = prober::target(container, get, ip).map_err(RequestFailure::Port)?;
        let asked = repeat(&self.clock, || prober::send(&target, get, "lifecycle")).await;
        let Err(fault) = asked else { return Ok(()) };
        if !target.is_https || !fault.has_no_tls() {
            return Err(RequestFailure::Http(fault));
        }
        // The server is asked without TLS, as upstream.
        target.is_https = false;
        let asked = repeat(&self.clock, || prober::send(&target, get, "lifecycle")).await;
        if asked.is_err() {
            return Err(RequestFailure::Http(fault));
        }
        metrics::HOOK_FALLBACKS.inc();
        let message = format!(
            "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
            target.host_and_port()
        );
        events::warning(pod, None, "LifecycleHTTPFallback", message);
        Ok(())
    }
}

/// Sends a request by `ask`, and repeats it each second while it fails because this machine lacks
/// descriptors or memory.
async fn repeat<T, F: Future<Output = Result<T, http::Error>>>(
    clock: &SharedClock,
    ask: impl Fn() -> F,
) -> Result<T, http::Error> {
    loop {
        match ask().await {
            Err(fault) if fault.is_own() => log::warn!("a hook waits: {}", chain(&fault)),
            outcome => return outcome,
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::ready;
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;
    use kube_controller_manager::objects::Timestamp;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn hooks_wait_for_what_this_machine_lacks() {
        let time = FakeClock::new(Timestamp::from_secs(0));
        let clock: SharedClock = time.clone();
        let answers = RefCell::new(vec![Errno::CONNREFUSED, Errno::NOMEM, Errno::MFILE]);
        let mut hook = pin!(repeat(&clock, || {
            let errno = answers.borrow_mut().pop().expect("an answer");
            ready(Err::<(), _>(http::Error::of("dial", errno.into())))
        }));
        for remaining in [2, 1] {
            assert!(block_on(poll_once(&mut hook)).is_none());
            assert_eq!(answers.borrow().len(), remaining);
            time.advance(Duration::from_secs(1));
        }
        let outcome = block_on(poll_once(&mut hook)).expect("an end");
        assert!(outcome.is_err_and(|fault| !fault.is_own()));
    }
}
