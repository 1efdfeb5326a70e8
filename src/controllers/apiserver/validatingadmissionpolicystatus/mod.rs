//! Writes type-checking warnings into the status of ValidatingAdmissionPolicies.
//! Upstream: `pkg/controller/validatingadmissionpolicystatus`.

mod check;
mod declared;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use self::check::TypeChecker;
use crate::cache::Lister;
use crate::client::{self, Client, Patch};
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult, keys};
use crate::objects::{
    ObjectKey, Resource, TypeChecking, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyStatus,
};

const FIELD_MANAGER: &str = "validatingadmissionpolicy-status";
/// The time between two clearings of the cache of schemas, which serves bursts of policies.
const CACHE_PERIOD: Duration = Duration::from_secs(300);

struct PolicyStatus {
    client: Client,
    policies: Lister<ValidatingAdmissionPolicy>,
    checker: TypeChecker,
}

/// Sets up the controller `validatingadmissionpolicy-status-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let policies = c.lister();
    let checker = TypeChecker::new(c.client(), c.clock());
    let this = Arc::new(PolicyStatus { client: c.client(), policies: policies.clone(), checker });
    let queue = c.queue(QueuePolicy::default());
    c.watch(&policies, &queue, keys::of_current(needs_check));
    let status = this.clone();
    c.every(CACHE_PERIOD, move || {
        status.checker.clear_cache();
        std::future::ready(Ok(()))
    });
    c.sync(queue, &this, PolicyStatus::sync);
    Ok(())
}

/// Returns whether the spec has changed since the last check.
fn needs_check(policy: &ValidatingAdmissionPolicy) -> bool {
    policy.meta.generation > policy.status.observed_generation
}

impl PolicyStatus {
    /// Checks the policy, and writes the warnings into its status.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(policy) = self.policies.get(&key).filter(|policy| needs_check(policy)) else {
            return Ok(Next::Done);
        };
        let expression_warnings = self.checker.check(&policy).await?;
        let status = ValidatingAdmissionPolicyStatus {
            observed_generation: policy.meta.generation,
            type_checking: Some(TypeChecking { expression_warnings }),
            conditions: Vec::new(),
        };
        match self.write(&policy, status).await {
            Err(error) if error.is_not_found() => Ok(Next::Done),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Next::Done),
        }
    }

    /// Applies the status, so that a warning that is not in it is removed. Updates it where the
    /// server has no server-side apply.
    async fn write(
        &self,
        policy: &ValidatingAdmissionPolicy,
        status: ValidatingAdmissionPolicyStatus,
    ) -> client::Result<()> {
        const UNSUPPORTED_MEDIA_TYPE: u16 = 415;
        let resource = ValidatingAdmissionPolicy::RESOURCE;
        let body = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": policy.meta.name }, "status": status,
        });
        let apply = Patch::Apply { manager: FIELD_MANAGER.into(), force: true, body };
        let target = self.client.resource(&resource).subresource("status");
        match target.patch::<Value>(&policy.meta.key(), &apply).await {
            Err(error) if error.code() == Some(UNSUPPORTED_MEDIA_TYPE) => {
                // An apply leaves the conditions of others; an update would remove them.
                let conditions = policy.status.conditions.clone();
                let status = ValidatingAdmissionPolicyStatus { conditions, ..status };
                self.client.update_status(policy, &status).await.map(drop)
            }
            other => other.map(drop),
        }
    }
}
