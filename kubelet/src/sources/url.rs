//! Pods from a URL, which is read from time to time. Upstream: `pkg/kubelet/config/http.go`.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use hyper::HeaderMap;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::StopToken;

use super::Error;
use super::decode::{self, MAX_BYTES, Origin, Placement};
use super::pod_config::{PodConfig, Source};
use crate::causes::chain;
use crate::http::{self, Target, TrustPolicy};

/// How long one read may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The first failures are logged as warnings, all others at debug.
const LOUD_FAILURES: u32 = 4;

/// Reads the pods of a URL every `period`, until stopped.
pub async fn run(
    target: Target,
    headers: HeaderMap,
    to: Placement,
    period: Duration,
    config: PodConfig,
    clock: SharedClock,
    stop: StopToken,
) {
    log::info!("Watching {target} for pods");
    let (mut last, mut failures) = (None, 0);
    loop {
        let late = async {
            clock.sleep(TIMEOUT).await;
            Err(Error::Late(TIMEOUT))
        };
        match read(&target, &headers).or(late).await {
            Ok(body) => {
                let outcome = apply(&body, &mut last, &target, &to, &config).await;
                report(outcome, &mut failures, &target);
            }
            Err(error) => report(Err(error), &mut failures, &target),
        }
        if stop.unless_stopped(clock.sleep(period)).await.is_none() {
            return;
        }
    }
}

/// Fetches the body from a URL; any status but 200 is an error.
async fn read(target: &Target, headers: &HeaderMap) -> Result<Vec<u8>, Error> {
    let max = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    let answer = http::get(target, headers, TrustPolicy::SystemAuthorities, max)
        .await
        .map_err(Error::Http)?;
    match (answer.status.as_u16(), answer.is_cut) {
        (200, false) => Ok(answer.body),
        (200, true) => Err(Error::TooLarge { what: "the answer" }),
        _ => Err(Error::Status(answer.status)),
    }
}

/// Decodes the pods of a body and passes them to `config`, if the body differs from the last one.
/// An empty body means no pods, and is an error too.
async fn apply(
    body: &[u8],
    last: &mut Option<Vec<u8>>,
    target: &Target,
    to: &Placement,
    config: &PodConfig,
) -> Result<(), Error> {
    if body.is_empty() {
        config.set(Source::Http, Vec::new()).await;
        return Err(Error::Empty);
    }
    if last.as_deref() == Some(body) {
        return Ok(());
    }
    // An invalid document is reported once.
    *last = Some(body.to_vec());
    let pods = decode::pods(body, &Origin::Url(target.to_string()), to)?;
    config.set(Source::Http, pods.into_iter().map(Arc::new).collect()).await;
    Ok(())
}

/// Logs the outcome of a round, and counts failures; the first ones are logged as warnings.
fn report(outcome: Result<(), Error>, failures: &mut u32, target: &Target) {
    match outcome {
        Ok(()) if *failures > 0 => {
            log::info!("pods are read from {target} again");
            *failures = 0;
        }
        Ok(()) => {}
        Err(error) => {
            *failures = failures.saturating_add(1);
            let level = match *failures {
                ..=LOUD_FAILURES => log::Level::Warn,
                _ => log::Level::Debug,
            };
            log::log!(level, "pods cannot be read from {target}: {}", chain(&error));
        }
    }
}
