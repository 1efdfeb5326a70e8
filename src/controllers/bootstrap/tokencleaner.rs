//! Deletes bootstrap tokens when they expire.
//! Upstream: `pkg/controller/bootstrap` (`tokencleaner.go`).

use std::sync::Arc;

use super::token::{self, Expiration};
use crate::cache::Lister;
use crate::client::{Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::objects::{BootstrapToken, ObjectKey};

/// Sets up the controller `token-cleaner-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let tokens = super::token_lister(c);
    let queue = c.queue(QueuePolicy::default());
    c.watch(&tokens, &queue, |change, queue| {
        if !matches!(change, Change::Deleted(_)) {
            queue.add(change.object().meta.key());
        }
    });
    let this = Arc::new(Cleaner { client: c.client(), tokens, clock: c.clock() });
    c.sync(queue, &this, Cleaner::sync);
    Ok(())
}

struct Cleaner {
    client: Client,
    tokens: Lister<BootstrapToken>,
    clock: SharedClock,
}

impl Cleaner {
    /// Deletes an expired token, or queues it again for when it expires. A delete that fails is
    /// logged and not retried, as upstream: an expired token is useless.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(token) = self.tokens.get(&key) else { return Ok(Next::Done) };
        match token::expiration(&token, self.clock.now()) {
            Expiration::Never => Ok(Next::Done),
            Expiration::In(remaining) => Ok(Next::After(remaining)),
            Expiration::Expired => {
                log::debug!("Deleting expired secret secret=\"{key}\"");
                let delete = Delete::new().uid(token.meta.uid.clone());
                match self.client.delete::<BootstrapToken>(&key, delete).await {
                    Err(error) if !error.is_conflict() && !error.is_not_found() => {
                        log::debug!("Error deleting secret: {error}");
                    }
                    // Deleted, or changed since: then its event brings the next sync.
                    _ => {}
                }
                Ok(Next::Done)
            }
        }
    }
}
