//! Shadow mode: the manager only reads, beside the manager in charge.

use std::io::Write;
use std::time::Duration;

use crate::clock::SharedClock;
use crate::options::Options;
use crate::server::Handler;
use crate::server::page::Page;
use crate::shadow::Shadow;
use crate::task::StopToken;

/// The sync period of volumes: short, so that this manager wants a binding while it is held back.
const BINDER_PERIOD: Duration = Duration::from_secs(5);

/// Returns the options for shadow mode: no lease is taken, no token is requested, and objects come
/// in JSON, whose metadata says who wrote them. Volumes are synced more often: see `BINDER_PERIOD`.
pub fn options(options: Options) -> Options {
    Options {
        leader_elect: false,
        enable_leader_migration: false,
        use_service_account_credentials: false,
        kube_api_content_type: "application/json".into(),
        pvclaimbinder_sync_period: options.pvclaimbinder_sync_period.min(BINDER_PERIOD),
        ..options
    }
}

/// Returns the handler of `/debug/shadow`: a page for people, JSON for programs.
pub fn served(shadow: &Shadow) -> Handler {
    let shadow = shadow.clone();
    let page = Page {
        title: "Shadow mode",
        style: ".scroll{overflow-x:auto}\n",
        script: include_str!("../shadow/page.js"),
    };
    page.handler(move |_| serde_json::to_value(shadow.report()).unwrap_or_default())
}

/// Waits for the time of `--shadow-for`, then compares late intentions once more, closes the report
/// and stops the controllers. Does nothing without a shadow or with a time of zero. Never resolves.
pub async fn stop_after_shadow_for<T>(
    options: &Options,
    shadow: Option<&Shadow>,
    clock: &SharedClock,
    stop: &StopToken,
) -> T {
    if let Some(shadow) = shadow.filter(|_| !options.shadow_for.is_zero()) {
        shadow.begun().await;
        clock.sleep(options.shadow_for).await;
        // Late intentions are compared once more.
        shadow.compare_late().await;
        shadow.close();
        stop.stop();
    }
    std::future::pending().await
}

/// Prints the report when the manager has ended, and returns the program's result. With
/// `--shadow-for` it is an error if the report is not clean. `ended`: how the controllers ended,
/// which does not matter after `--shadow-for`, because no write is in flight.
pub fn print_report(
    options: &Options,
    shadow: &Shadow,
    ended: Result<(), Vec<String>>,
) -> Result<(), Vec<String>> {
    let report = shadow.report();
    let text = report.to_string();
    let mut out = std::io::stdout();
    // A reader that closes early is not an error.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if !options.shadow_for.is_zero() && !report.is_clean() {
        // The report is the message: the program fails without a line of its own.
        return Err(Vec::new());
    }
    if shadow.is_closed() { Ok(()) } else { ended }
}
