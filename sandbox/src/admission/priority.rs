//! Sets the priority of new pods. Upstream: `plugin/pkg/admission/priority`.

use std::sync::Arc;

use serde_json::Value;

use super::{forbidden, is_pod};
use crate::kinds::Kind;
use crate::object::text;
use crate::status::ApiResult;
use crate::storage::store::{Store, Stored};

const PRIORITY_CLASSES: &str = "priorityclasses.scheduling.k8s.io";

/// Sets the priority of a new pod from its class. A pod that names no class gets the default one;
/// without a default one it stays as it is. Errors: 403 when the class does not exist or the pod
/// names another priority.
pub fn prioritize(store: &Store, kind: &Kind, pod: &mut Value) -> ApiResult<()> {
    if !is_pod(kind) {
        return Ok(());
    }
    let name = text(pod, "/spec/priorityClassName").to_owned();
    let class = match name.as_str() {
        // They are built in, with fixed priorities: see `kinds::pod::prepare_create`.
        "system-node-critical" | "system-cluster-critical" => return Ok(()),
        "" => default_class(store),
        name => match store.get(PRIORITY_CLASSES, name) {
            Some(class) => Some(class),
            None => {
                let why = format!("no PriorityClass with name {name} was found");
                return Err(forbidden(kind, pod, &why));
            }
        },
    };
    let Some(class) = class else { return Ok(()) };
    let computed = class.value["value"].as_i64().unwrap_or(0);
    if let Some(own) = pod["spec"]["priority"].as_i64().filter(|own| *own != computed) {
        let why = format!(
            "the integer value of priority ({own}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
        );
        return Err(forbidden(kind, pod, &why));
    }
    pod["spec"]["priorityClassName"] = class.value["metadata"]["name"].clone();
    pod["spec"]["priority"] = computed.into();
    if let Some(policy) = class.value.get("preemptionPolicy") {
        pod["spec"]["preemptionPolicy"] = policy.clone();
    }
    Ok(())
}

/// Returns the default class for pods that name none; of several defaults, the lowest.
fn default_class(store: &Store) -> Option<Arc<Stored>> {
    let keep = |class: &Stored| class.value["globalDefault"] == true;
    let page = store.list(PRIORITY_CLASSES, "", None, usize::MAX, None, &keep).ok()?;
    page.items.into_iter().min_by_key(|class| class.value["value"].as_i64())
}
