//! A leader that cannot renew its lease.

use super::Result;
use super::stage::{Actor, Stage};
use super::trace_log::Find;
use crate::api::faults::Fault;

const LEASE: &str = "Lease kube-system/kube-controller-manager";

/// Stops `manager`, and shows how one manager loses its lease and another takes it. Returns the
/// new leader.
pub async fn show(stage: &mut Stage, manager: Actor) -> Result<Actor> {
    stage.stop_manager(manager).await?;
    stage.screen.say(
        "Two managers start, with leader election and its default times: a lease lasts 15 s, and a \
         leader that cannot renew it for 10 s ends.",
    )?;
    let mut first = stage.manager("first", &[])?;
    stage
        .step(
            &mut first,
            "acquired",
            Find::station("lease-acquired").with(LEASE),
            "The first manager has written its name into the Lease. Only now does it start its \
             controllers.",
        )
        .await?;
    let mut second = stage.manager("second", &[])?;
    stage
        .step(
            &mut second,
            "standby",
            Find::station("lease-tried").with(LEASE).with("held=false"),
            "The second manager reads the Lease every two seconds. It takes the Lease only when it \
             has seen it unchanged for 15 s by its own clock: the clocks of two machines are never \
             compared.",
        )
        .await?;
    // The first manager's caches are full and its controllers run.
    stage.wait_until_rolled_out(&mut first).await?;
    first.log.forget()?;
    second.log.forget()?;
    stage.screen.say(
        "From now on the API server answers each renewal with an error. All other requests are \
         served. The rest takes about 15 s.",
    )?;
    let faults = stage.cluster.sandbox.faults().clone();
    faults.next(usize::MAX, "update", "leases", Fault::code(500, None));
    stage
        .step(
            &mut first,
            "refused",
            Find::station("answered").with("/leases/kube-controller-manager code=500 "),
            "A renewal fails. The leader reads the Lease and tries again every two seconds: it \
             still holds the Lease.",
        )
        .await?;
    stage
        .step(
            &mut first,
            "lost",
            Find::station("lease-lost").with(LEASE),
            "No renewal has succeeded for 10 s. The leader stops its controllers, 5 s before \
             another manager may begin. A write that is not sent yet is refused by the client, \
             which asks the elector before each write.",
        )
        .await?;
    let code = stage.wait_for_end(&mut first).await?;
    let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    stage.screen.say(&format!(
        "The first manager has ended with {code}. Its supervisor, such as a kubelet, would start it \
         again, as a standby. The API server accepts renewals from now on.",
    ))?;
    stage.clear_faults();
    stage
        .step(
            &mut second,
            "taken",
            Find::station("lease-acquired").with(LEASE),
            "15 s after the last renewal that the second manager has seen, it takes the Lease.",
        )
        .await?;
    stage
        .step(
            &mut second,
            "list",
            Find::station("received").with("Deployment default/web ").with("event=added"),
            "The new leader knows nothing: its reflectors list everything, and each object is an \
             addition to its caches.",
        )
        .await?;
    let rest = Find::station("sync-ended").with("default/web controller=deployment-controller ");
    stage
        .step(
            &mut second,
            "rest",
            rest.with("result=\"done\"").without("request-sent"),
            "Each addition queues a key, and each sync finds its objects as they should be. A \
             change of the leader is no event: nothing is written.",
        )
        .await?;
    Ok(second)
}
