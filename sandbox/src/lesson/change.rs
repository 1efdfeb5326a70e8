//! The life of one change.

use serde_json::json;

use super::Result;
use super::stage::{Actor, Stage};
use super::trace_log::Find;
use kube_controller_manager::objects::{Deployment, Resource};

/// Shows one change on its way through the manager, from the watch event to the echo of the write.
pub async fn show(stage: &mut Stage, manager: &mut Actor) -> Result<()> {
    let web = stage.read(&Deployment::RESOURCE, "web").await?;
    let replicas = web["spec"]["replicas"].as_i64().unwrap_or(1) + 1;
    stage.screen.say(&format!("A user scales the Deployment default/web to {replicas} pods."))?;
    let scale = json!({ "spec": { "replicas": replicas } });
    let version = stage.merge(&Deployment::RESOURCE, "web", scale).await?;

    let name = format!("Deployment default/web version={version} ");
    let event = stage
        .step(
            manager,
            "event",
            Find::station("received").with(name),
            "The API server sends the Deployment's new state on the watch that the manager keeps \
             open. The reflector decodes it once, into the object that all readers share. The \
             event has a number, its span, which all stations on its way carry.",
        )
        .await?
        .span;
    let of_event = |station| Find::station(station).span(event);
    stage
        .step(
            manager,
            "delta",
            of_event("queued").with("delta="),
            "The change waits in the DeltaFifo under the object's key. Were an older change of the \
             same object waiting, this one would be added to it.",
        )
        .await?;
    stage
        .step(
            manager,
            "index",
            of_event("cached"),
            "The informer pops the delta and replaces the object in the Indexer. From now on \
             Listers return the new state.",
        )
        .await?;
    stage
        .step(
            manager,
            "handler",
            of_event("handler").with("handler=deployment-controller "),
            "Each controller that watches Deployments has a handler with a buffer of its own: a \
             slow one delays no other.",
        )
        .await?;
    stage
        .step(
            manager,
            "key",
            of_event("key-queued").with("default/web queue=deployment "),
            "The handler queues a key, not the object: namespace and name. A key waits once, \
             however many events named it, and is given to one worker at a time.",
        )
        .await?;

    let wrote = Find::station("wrote").with("ReplicaSet default/web-").caused_by(event);
    let sync = stage.find(manager, wrote).await?.span;
    let of_sync = |station| Find::station(station).span(sync);
    stage
        .step(
            manager,
            "sync",
            of_sync("sync-began"),
            "A worker takes the key and calls the controller's sync. `by` names the events that \
             queued the key. The sync gets nothing but the key: it compares what should be with \
             what is.",
        )
        .await?;
    stage
        .step(
            manager,
            "read",
            of_sync("read").with("Deployment default/web "),
            "What should be, and what is, come from Listers: no request is sent to read them. \
             `cache` is the version up to which the cache has all changes.",
        )
        .await?;
    stage
        .step(
            manager,
            "request",
            of_sync("request-sent").with("/replicasets/web-"),
            "The ReplicaSet has too few replicas, so the sync sends a write.",
        )
        .await?;
    stage
        .step(
            manager,
            "write",
            of_sync("wrote").with("ReplicaSet default/web-"),
            "The API server has stored it, at this version. The sync does not touch the cache: the \
             manager learns of its own writes as of all others.",
        )
        .await?;
    let echo = Find::station("seen-again").with("ReplicaSet default/web-");
    stage
        .step(
            manager,
            "echo",
            echo.with(format!(" by={sync} ")),
            "The watch of ReplicaSets delivers the write: its echo. The same path begins again, \
             now for the ReplicaSet, whose controller will create a pod.",
        )
        .await?;
    let rest = Find::station("sync-ended").with("default/web controller=deployment-controller ");
    stage
        .step(
            manager,
            "rest",
            rest.with("result=\"done\"").caused_by(event).without("request-sent"),
            "Echoes queue the Deployment's key again, and in the end a sync finds nothing to \
             write. That is why the loop ends, and why a sync may run at any time, twice or after \
             a restart.",
        )
        .await?;
    Ok(())
}
