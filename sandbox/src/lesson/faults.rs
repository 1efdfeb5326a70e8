//! What happens when a watch, the server's history or a write is lost.

use serde_json::json;

use super::Result;
use super::stage::{Actor, Stage};
use super::trace_log::Find;
use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::{Deployment, ObjectKey, Pod, ReplicaSet, Resource};

fn phase(reflector: &str, phase: &str, outcome: &str) -> Find {
    let phase = format!("{reflector} phase=\"{phase}");
    Find::station("phase-ended").with(phase).with(format!("outcome={outcome}"))
}

/// Shows a watch that breaks, an object that changes meanwhile, and the new watch that brings the
/// change.
pub async fn dropped_watch(stage: &mut Stage, manager: &mut Actor) -> Result<()> {
    stage.warm_watch(manager, &Deployment::RESOURCE, "web").await?;
    manager.log.forget()?;
    stage.screen.say(
        "The API server cuts the connections of all watches, and holds the next watch of \
         Deployments for a while.",
    )?;
    stage.hold_watch("deployments").await?;
    stage
        .step(
            manager,
            "broken",
            phase("deployments.apps", "Watch {", "Broke"),
            "The reflector's phase `Watch` ends. `from` is the version of the last event. The \
             Indexer keeps all objects: a stale cache is better than none, and controllers work \
             on.",
        )
        .await?;
    stage
        .step(
            manager,
            "verify",
            phase("deployments.apps", "Verify {", "Verified"),
            "The reflector asks for the server's newest version, by a list of one object. Were it \
             older than `from`, the server would have been restored from a backup, and a watch \
             from a version of the future would bring nothing, without an error.",
        )
        .await?;
    stage.screen.say("While there is no watch, a user annotates the Deployment.")?;
    let version = stage.annotate(&Deployment::RESOURCE, "web").await?;
    stage.screen.say("The API server serves the watch.")?;
    stage.clear_faults();
    let name = format!("Deployment default/web version={version} ");
    let event = stage
        .step(
            manager,
            "event",
            Find::station("received").with(name).with("event=modified"),
            "The new watch begins at `from`, and the server still has the events since then. The \
             missed change arrives as if nothing had happened. Nothing was listed.",
        )
        .await?;
    stage
        .step(
            manager,
            "index",
            Find::station("cached").span(event.span),
            "The cache is equal to the server's objects again.",
        )
        .await?;
    Ok(())
}

/// Shows a server that forgets the deletion of a ReplicaSet before the watch could bring it.
pub async fn gone(stage: &mut Stage, manager: &mut Actor) -> Result<()> {
    let (set, _) = stage.replica_set_and_pod().await?;
    stage.warm_watch(manager, &ReplicaSet::RESOURCE, &set).await?;
    manager.log.forget()?;
    stage.screen.say(&format!(
        "The API server cuts all watches and holds the next watch of ReplicaSets. A user deletes \
         the ReplicaSet {set}. Then the server compacts its history: the event of the deletion is \
         lost for ever.",
    ))?;
    stage.hold_watch("replicasets").await?;
    let key = ObjectKey::new("default", &set);
    stage.cluster.client.delete::<ReplicaSet>(&key, Delete::new()).await?;
    stage.cluster.sandbox.api().store.compact();
    stage.clear_faults();
    stage
        .step(
            manager,
            "410 Gone",
            phase("replicasets.apps", "Watch {", "Expired"),
            "The new watch asks for the events since `from`. The server no longer has all of them \
             and answers with 410: it must not send a part of them.",
        )
        .await?;
    stage
        .step(
            manager,
            "wait",
            // With any outcome: the end of an outage, as which a cut may count, ends it too.
            phase("replicasets.apps", "Wait {", ""),
            "A list is expensive, and many clients may need one at the same time. So the reflector \
             waits, for a random part of a second and longer each time.",
        )
        .await?;
    stage
        .step(
            manager,
            "list",
            phase("replicasets.apps", "Stream {", "Listed"),
            "The reflector lists again, by a watch that begins with all objects, not older than \
             what it has already seen. The same watch then continues with changes.",
        )
        .await?;
    let name = format!("ReplicaSet default/{set} ");
    let delta = stage
        .step(
            manager,
            "delta",
            Find::station("queued").with(&name).with("delta=Deleted"),
            "No event said that the ReplicaSet was deleted, but it is absent from the list. The \
             DeltaFifo makes a deletion of that, with the last state that the cache knew: \
             upstream's DeletedFinalStateUnknown.",
        )
        .await?;
    stage
        .step(
            manager,
            "index",
            Find::station("cached").with(&name).with(" removed ").span(delta.span),
            "The Indexer removes it.",
        )
        .await?;
    stage
        .step(
            manager,
            "handler",
            Find::station("handler")
                .with(&name)
                .with("handler=deployment-controller event=delete")
                .span(delta.span),
            "Handlers see a deletion like any other, and queue the Deployment's key. A controller \
             that works by comparing states does not depend on events.",
        )
        .await?;
    stage
        .step(
            manager,
            "write",
            Find::station("wrote").with("ReplicaSet default/web-").caused_by(delta.span),
            "The sync finds a Deployment without a ReplicaSet and creates one.",
        )
        .await?;
    Ok(())
}

/// Shows a write whose object has changed since the cache saw it.
pub async fn conflict(stage: &mut Stage, manager: &mut Actor) -> Result<()> {
    let (_, pod) = stage.replica_set_and_pod().await?;
    stage.warm_watch(manager, &Deployment::RESOURCE, "web").await?;
    manager.log.forget()?;
    stage.screen.say(&format!(
        "The API server cuts all watches and holds that of Deployments, so that the manager's \
         cache is stale. A user annotates the Deployment: the manager does not see it. Then the \
         readiness probe of the pod {pod} fails, and the Deployment's status must change.",
    ))?;
    stage.hold_watch("deployments").await?;
    let version = stage.annotate(&Deployment::RESOURCE, "web").await?;
    let ready =
        |is_ready: &str| json!({ "metadata": { "annotations": { "sandbox/ready": is_ready } } });
    stage.merge(&Pod::RESOURCE, &pod, ready("false")).await?;

    let status = "/deployments/web/status ";
    let conflict = Find::station("answered").with(status).with(" code=409 ");
    let sync = stage.find(manager, conflict).await?.span;
    let of_sync = |station| Find::station(station).span(sync);
    stage
        .step(
            manager,
            "sync",
            of_sync("sync-began"),
            "The pod's change has led to a change of the ReplicaSet's status, and that has queued \
             the Deployment's key.",
        )
        .await?;
    stage
        .step(
            manager,
            "stale read",
            of_sync("read").with("Deployment default/web "),
            "The Lister returns the last state that the cache has seen. The server has a newer \
             version.",
        )
        .await?;
    stage
        .step(
            manager,
            "request",
            of_sync("request-sent").with(status),
            "The sync writes a status that is made from that state. The request carries the \
             version on which it is based.",
        )
        .await?;
    stage
        .step(
            manager,
            "409 Conflict",
            of_sync("answered").with(status),
            "The server refuses to overwrite a version that the writer has not seen. The \
             user's change is kept: this is optimistic concurrency.",
        )
        .await?;
    stage
        .step(
            manager,
            "end",
            of_sync("sync-ended"),
            "The sync ends with the error. It does not read the new version to force its write: \
             its decision was made from an old state.",
        )
        .await?;
    stage
        .step(
            manager,
            "requeue",
            of_sync("key-queued").with("default/web queue=deployment after="),
            "The queue adds the key again after a delay that doubles with each failure.",
        )
        .await?;
    manager.log.forget()?;
    stage.screen.say("The API server serves the watch of Deployments.")?;
    stage.clear_faults();
    stage
        .step(
            manager,
            "event",
            Find::station("received").with(format!("Deployment default/web version={version} ")),
            "The user's change arrives.",
        )
        .await?;
    let wrote = Find::station("wrote").with("Deployment default/web ");
    let retry = stage.find(manager, wrote).await?.span;
    stage
        .step(
            manager,
            "retry",
            Find::station("sync-began").span(retry),
            "The key is given to a worker again, by the event or by the delay.",
        )
        .await?;
    stage
        .step(
            manager,
            "write",
            Find::station("wrote").span(retry).with("Deployment default/web "),
            "Decided from the new state, the write succeeds, and the user's annotation is still \
             there.",
        )
        .await?;
    stage
        .step(
            manager,
            "echo",
            Find::station("seen-again")
                .with("Deployment default/web ")
                .with(format!(" by={retry} ")),
            "The manager sees its own write on the watch.",
        )
        .await?;
    stage.merge(&Pod::RESOURCE, &pod, ready("true")).await?;
    Ok(())
}
