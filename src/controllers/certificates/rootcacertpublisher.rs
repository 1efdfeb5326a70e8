//! Publishes the CA certificates of the API server to every namespace, in the ConfigMap
//! `kube-root-ca.crt`. Upstream: `pkg/controller/certificates/rootcacertpublisher`.

use std::sync::Arc;

use serde_json::json;

use crate::cache::{Lister, Scope};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::certificates::root_ca::root_ca;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::metrics::{exponential, metrics};
use crate::objects::{ConfigMap, Labels, Namespace, ObjectKey, Resource};

const NAME: &str = "kube-root-ca.crt";
/// The key of the CA certificates in the ConfigMap.
const DATA_KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver \
    when using internal endpoints such as the internal service IP or kubernetes.default.svc. No \
    other usage is guaranteed across distributions of Kubernetes clusters.";

metrics! {
    static SYNCS: IntCounterVec["code"] = "root_ca_cert_publisher_sync_total",
        "[ALPHA] Number of namespace syncs happened in root ca cert publisher.";
    static DURATION: HistogramVec["code"](exponential(0.001, 2.0, 15)) =
        "root_ca_cert_publisher_sync_duration_seconds",
        "[ALPHA] Number of namespace syncs happened in root ca cert publisher.";
}

struct Publisher {
    client: Client,
    maps: Lister<ConfigMap>,
    /// The data that each ConfigMap is to have: the CA certificates under [`DATA_KEY`].
    data: Labels,
    clock: SharedClock,
}

/// Sets up the controller `root-ca-certificate-publisher-controller`.
///
/// # Errors
/// When `--root-ca-file` cannot be used.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let root_ca_pem = root_ca(&c.options().root_ca_file, &c.client())?;
    let namespaces = c.lister::<Namespace>();
    let only = format!("metadata.name={NAME}");
    let maps = c.lister_of::<ConfigMap>(Scope {
        field_selector: Some(only),
        ..Scope::all(ConfigMap::RESOURCE)
    });
    let this = Arc::new(Publisher {
        client: c.client(),
        maps: maps.clone(),
        data: [(DATA_KEY, String::from_utf8_lossy(&root_ca_pem))].into_iter().collect(),
        clock: c.clock(),
    });
    let queue = c.queue(QueuePolicy::default());
    // As upstream: the sync of an added namespace checks a ConfigMap that is there already.
    c.watch(&maps, &queue, |change, queue| {
        if !matches!(change, Change::Added { .. }) {
            queue.add(ObjectKey::cluster(&change.object().meta.namespace));
        }
    });
    c.watch(&namespaces, &queue, |change, queue| {
        let needs_sync = match &change {
            Change::Added { .. } => true,
            Change::Updated { new, .. } | Change::Resync { object: new } => new.is_active(),
            Change::Deleted(_) => false,
        };
        if needs_sync {
            queue.add(change.object().meta.key());
        }
    });
    c.sync(queue, &this, Publisher::sync);
    Ok(())
}

impl Publisher {
    /// Publishes the ConfigMap in a namespace, and counts the sync by the HTTP code of its result:
    /// 200, or that of the error.
    async fn sync(self: Arc<Self>, namespace: ObjectKey) -> SyncResult {
        let start = self.clock.monotonic();
        let result = self.publish(&namespace.name).await;
        let code = match &result {
            Ok(_) => 200,
            Err(error) => error.api().and_then(|error| error.code()).unwrap_or(500),
        };
        let code = code.to_string();
        let took = self.clock.monotonic() - start;
        DURATION.with_label_values(&[code.as_str()]).observe(took.as_secs_f64());
        SYNCS.with_label_values(&[code.as_str()]).inc();
        result
    }

    /// Creates or corrects the ConfigMap of a namespace. A namespace that is gone or terminating
    /// needs none.
    async fn publish(&self, namespace: &str) -> SyncResult {
        let key = ObjectKey::new(namespace, NAME);
        let Some(cached) = self.maps.get(&key) else {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": NAME, "namespace": namespace,
                    "annotations": { DESCRIPTION: DESCRIPTION_TEXT },
                },
                "data": self.data,
            });
            return match self.client.create::<ConfigMap>(namespace, &map).await {
                Err(error) if error.is_not_found() || error.is_namespace_terminating() => {
                    Ok(Next::Done)
                }
                Err(error) => Err(error.into()),
                Ok(_) => Ok(Next::Done),
            };
        };
        if let Some(map) = with_expected_content(&cached, &self.data) {
            self.client.update::<ConfigMap>(&key, &map.to_json()?).await?;
        }
        Ok(Next::Done)
    }
}

/// Returns `map` with `data` and the description; `None` if it has both already. Another text of
/// the description causes no write, but a write replaces it, as upstream.
fn with_expected_content(map: &ConfigMap, data: &Labels) -> Option<ConfigMap> {
    let annotations = &map.meta.annotations;
    let is_described = annotations.get(DESCRIPTION).is_some_and(|text| !text.is_empty());
    if map.data == *data && is_described {
        return None;
    }
    let mut map = map.clone();
    map.data = data.clone();
    let description = [(DESCRIPTION, DESCRIPTION_TEXT)];
    map.meta.annotations = map.meta.annotations.iter().chain(description).collect();
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_content_is_restored_and_the_rest_is_kept() {
        let data: Labels = [(DATA_KEY, "CA")].into_iter().collect();
        let decode =
            |value: &serde_json::Value| serde_json::from_value::<ConfigMap>(value.clone()).unwrap();
        let good = json!({
            "metadata": {
                "name": NAME, "namespace": "a", "resourceVersion": "7",
                "annotations": { DESCRIPTION: "of their own", "x": "y" }, "labels": { "l": "m" },
            },
            "data": { DATA_KEY: "CA" }, "binaryData": { "b": "AA==" }, "immutable": false,
        });
        assert!(with_expected_content(&decode(&good), &data).is_none());
        let mut fixed = good.clone();
        fixed["metadata"]["annotations"][DESCRIPTION] = DESCRIPTION_TEXT.into();
        for (pointer, value) in [
            ("/data", json!({ DATA_KEY: "other" })),
            ("/data", json!({ DATA_KEY: "CA", "more": "" })),
            ("/data", json!({})),
            ("/metadata/annotations/kubernetes.io~1description", json!("")),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value.clone();
            let written = with_expected_content(&decode(&bad), &data);
            assert_eq!(serde_json::to_value(written).unwrap(), fixed, "{pointer} {value}");
        }
    }
}
