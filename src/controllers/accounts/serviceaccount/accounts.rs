//! Sees to it that every namespace has its service account `default`.
//! Upstream: `serviceaccounts_controller.go`.

use std::sync::Arc;

use serde_json::json;

use crate::cache::Lister;
use crate::client::Client;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, ControllerContext, Next, Queue, SyncResult, keys};
use crate::objects::{Namespace, ObjectKey, ServiceAccount};

/// The accounts that every namespace has.
const ACCOUNTS: [&str; 1] = ["default"];

struct Accounts {
    client: Client,
    namespaces: Lister<Namespace>,
    accounts: Lister<ServiceAccount>,
}

/// The controller `serviceaccount-controller`.
pub fn controller(cx: &ControllerContext) -> Controller {
    let (namespaces, accounts) = (cx.informer::<Namespace>(), cx.informer::<ServiceAccount>());
    let this = Arc::new(Accounts {
        client: cx.client("service-account-controller"),
        namespaces: namespaces.lister(),
        accounts: accounts.lister(),
    });
    let mut c = Controller::new("serviceaccount-controller");
    let queue = c.queue("serviceaccount", 1);
    // Without resyncs, as upstream's defaults have it.
    c.watch_resyncing(
        &accounts,
        None,
        &queue,
        |change: Change<'_, ServiceAccount>, wake: &Queue| {
            if let Change::Deleted(account) = change {
                wake.add(ObjectKey::cluster(&account.object().meta.namespace));
            }
        },
    );
    c.watch_resyncing(&namespaces, None, &queue, keys::of_current(|_: &Namespace| true));
    c.sync(queue, move |key| this.clone().sync(key));
    c
}

impl Accounts {
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
                made => drop(made?),
            }
        }
        Ok(Next::Done)
    }
}
