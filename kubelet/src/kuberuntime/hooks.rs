//! Hooks of a container's life: after its start, before its stop.
//! Upstream: `pkg/kubelet/lifecycle`.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::clock::SharedClock;

use crate::cri::{RuntimeService, chain};
use crate::http;
use crate::pod::{Container, Pod, PodExt};
use crate::prober;

/// The container whose hook is run.
pub struct HookTarget<'a> {
    pub runtime: &'a RuntimeService,
    pub clock: &'a SharedClock,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub id: &'a str,
    /// The pod's address; `None`: it has none yet.
    pub ip: Option<&'a str>,
}

/// Runs a hook to its end.
///
/// # Errors
/// Upstream's message.
pub async fn run(site: &HookTarget<'_>, hook: &core::LifecycleHandler) -> Result<(), String> {
    let name = &site.container.name;
    let pod = format!("{}({})", site.pod.full_name(), site.pod.uid());
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        return exec_in(site, &command).await.map_err(|(error, output)| {
            format!(
                "Exec lifecycle hook ([{}]) for Container {name:?} in Pod {pod:?} failed - error: \
                 {error}, message: {output:?}",
                command.join(" ")
            )
        });
    }
    if let Some(get) = &hook.http_get {
        return send(site, get).await.map_err(|error| {
            let path = get.path.as_deref().unwrap_or_default();
            format!(
                "HTTP lifecycle hook ({path}) for Container {name:?} in Pod {pod:?} failed - \
                 error: {error}"
            )
        });
    }
    match &hook.sleep {
        Some(sleep) => {
            site.clock.sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
            Ok(())
        }
        None => Err("Cannot run handler: invalid handler".to_owned()),
    }
}

/// Runs a command without a deadline. The error, and what the command has written.
async fn exec_in(site: &HookTarget<'_>, command: &[String]) -> Result<(), (String, String)> {
    let answer = site.runtime.exec_sync(site.id, command, None).await;
    let answer = answer.map_err(|error| (chain(&error), String::new()))?;
    if answer.exit_code == 0 {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&answer.stderr).into_owned();
    let output = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
    let (command, code) = (command.join(" "), answer.exit_code);
    Err((format!("command '{command}' exited with {code}: {errors}"), output))
}

/// Sends a GET; each status is a success. What this machine lacks says nothing about the container,
/// whose hook waits for it.
async fn send(site: &HookTarget<'_>, get: &core::HTTPGetAction) -> Result<(), String> {
    let ip = site.ip.or(get.host.as_deref()).ok_or("failed to find networking container")?;
    let mut target = prober::target(site.container, get, ip)?;
    let asked = repeat(site.clock, || prober::send(&target, get, "lifecycle")).await;
    let Err(fault) = asked else { return Ok(()) };
    let fault = fault.to_string();
    // What rustls says of an answer in plain text: the server has no TLS and is asked without it.
    if !target.is_https || !fault.contains("corrupt message") {
        return Err(fault);
    }
    target.is_https = false;
    let asked = repeat(site.clock, || prober::send(&target, get, "lifecycle")).await;
    asked.map(drop).map_err(|_| fault)
}

/// Repeats what fails for want of descriptors or memory of this machine.
async fn repeat<T, F: Future<Output = Result<T, http::Error>>>(
    clock: &SharedClock,
    ask: impl Fn() -> F,
) -> Result<T, http::Error> {
    loop {
        match ask().await {
            Err(fault) if fault.is_own => log::warn!("a hook waits: {fault}"),
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
            ready(Err::<(), _>(http::Error::of("dial", &errno.into())))
        }));
        for remaining in [2, 1] {
            assert!(block_on(poll_once(&mut hook)).is_none());
            assert_eq!(answers.borrow().len(), remaining);
            time.advance(Duration::from_secs(1));
        }
        let outcome = block_on(poll_once(&mut hook)).expect("an end");
        assert!(outcome.is_err_and(|fault| !fault.is_own));
    }
}
