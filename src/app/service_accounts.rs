//! The service accounts that controllers run under, with `--use-service-account-credentials`.
//! Upstream: `getOrCreateServiceAccount`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{self, Client, ListOptions};
use crate::clock::SharedClock;
use crate::objects::{
    Namespace, ObjectKey, PartialObjectMetadata, Resource, ResourceType, ServiceAccount,
};
use crate::task::StopToken;

pub const NAMESPACE: &str = "kube-system";
pub const RESOURCE: ResourceType = ServiceAccount::RESOURCE;

/// The first and the longest delay between two attempts to create missing accounts.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Gets or creates a service account. Its namespace is created too where that is allowed.
pub async fn ensure(client: &Client, name: &str) -> client::Result<()> {
    let key = ObjectKey::new(NAMESPACE, name);
    match client.resource(&RESOURCE).metadata_only().get::<PartialObjectMetadata>(&key).await {
        Err(error) if error.is_not_found() => {}
        other => return other.map(drop),
    }
    ensure_namespace(client).await;
    create(client, name).await
}

/// Creates the missing accounts of these names, and retries until all exist. Accounts are also
/// created on demand, but users who list them or bind roles to them expect all of them.
///
/// Ends after the stop, when no write is in flight: the lease is kept while a write has no answer.
pub async fn create_all(
    client: Client,
    mut names: BTreeSet<&'static str>,
    clock: SharedClock,
    stop: StopToken,
) {
    let mut wait = FIRST_WAIT;
    while let Err(error) = create_missing(&client, &mut names, &stop).await {
        let count = names.len();
        log::warn!("{count} service accounts of controllers could not be made yet: {error}");
        if stop.unless_stopped(clock.sleep(wait)).await.is_none() {
            return;
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Creates the accounts one after another, so that the tokens for which controllers wait come
/// first. Removes existing accounts from `names`. Creates no account after the stop.
///
/// # Errors
/// The first error; the other accounts are created nevertheless.
async fn create_missing(
    client: &Client,
    names: &mut BTreeSet<&'static str>,
    stop: &StopToken,
) -> client::Result<()> {
    let accounts = client.resource(&RESOURCE).metadata_only();
    let all = ListOptions::default();
    for account in accounts.list::<PartialObjectMetadata>(Some(NAMESPACE), &all).await?.items {
        names.remove(&*account.meta.name);
    }
    if names.is_empty() {
        return Ok(());
    }
    ensure_namespace(client).await;
    let mut result = Ok(());
    for name in names.clone() {
        if stop.is_stopped() {
            break;
        }
        match create(client, name).await {
            Ok(()) => _ = names.remove(name),
            error => result = result.and(error),
        }
    }
    result
}

/// Creates the namespace `kube-system` if it does not exist.
async fn ensure_namespace(client: &Client) {
    let namespaces = client.resource(&Namespace::RESOURCE).metadata_only();
    let namespace = namespaces.get::<PartialObjectMetadata>(&ObjectKey::cluster(NAMESPACE)).await;
    if namespace.is_err_and(|error| error.is_not_found()) {
        let body = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        });
        match client.resource(&Namespace::RESOURCE).create::<Value>("", &body).await {
            Err(error) if !error.is_already_exists() => {
                log::warn!("create non-exist namespace {NAMESPACE} failed: {error}");
            }
            _ => {}
        }
    }
}

/// Creates the service account; succeeds too if it exists.
async fn create(client: &Client, name: &str) -> client::Result<()> {
    let body = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": name, "namespace": NAMESPACE },
    });
    match client.resource(&RESOURCE).create::<Value>(NAMESPACE, &body).await {
        // Another process has created it meanwhile.
        Err(error) if error.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}
