//! Creates the service account `default` in every namespace.
//! Upstream: `serviceaccounts_controller.go`.

use std::sync::Arc;

use serde_json::json;

use crate::cache::Lister;
use crate::client::Client;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult, keys};
use crate::objects::{Namespace, ObjectKey, ServiceAccount};

/// The accounts that every namespace has.
const ACCOUNTS: [&str; 1] = ["default"];

struct Accounts {
    client: Client,
    namespaces: Lister<Namespace>,
    accounts: Lister<ServiceAccount>,
}

/// Sets up the controller `serviceaccount-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (namespaces, accounts) = (c.lister::<Namespace>(), c.lister::<ServiceAccount>());
    let this = Arc::new(Accounts {
        client: c.client(),
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
    });
    let queue = c.queue(QueuePolicy::default());
    // Upstream has no resyncs here either.
    c.watch_resyncing(&accounts, None, &queue, |change, queue| {
        if let Change::Deleted(account) = change {
            queue.add(ObjectKey::cluster(&account.object().meta.namespace));
        }
    });
    c.watch_resyncing(&namespaces, None, &queue, keys::of_current(|_| true));
    c.sync(queue, &this, Accounts::sync);
    Ok(())
}

impl Accounts {
    /// Creates the missing accounts of an active namespace.
    async fn sync(self: Arc<Self>, namespace: ObjectKey) -> SyncResult {
        if !self.namespaces.get(&namespace).is_some_and(|namespace| namespace.is_active()) {
            return Ok(Next::Done);
        }
        for name in ACCOUNTS {
            if self.accounts.get(&ObjectKey::new(&namespace.name, name)).is_some() {
                continue;
            }
            let account = json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": name, "namespace": &*namespace.name },
            });
            match self.client.create::<ServiceAccount>(&namespace.name, &account).await {
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
        }
        Ok(Next::Done)
    }
}
