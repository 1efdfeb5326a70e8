//! Resource types that tests use, and a custom resource.

use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use serde_json::{Value, json};

use crate::env::*;

pub const CONFIG_MAPS: ResourceType =
    ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);
pub const ACCOUNTS: ResourceType =
    ResourceType::fixed("", "v1", "ServiceAccount", "serviceaccounts", true);
pub const BINDINGS: ResourceType = ResourceType::fixed(
    "rbac.authorization.k8s.io",
    "v1",
    "ClusterRoleBinding",
    "clusterrolebindings",
    false,
);
pub const ACCESS_REVIEWS: ResourceType = ResourceType::fixed(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    false,
);
pub const EVENTS: ResourceType = ResourceType::fixed("", "v1", "Event", "events", true);
pub const API_SERVICES: ResourceType =
    ResourceType::fixed("apiregistration.k8s.io", "v1", "APIService", "apiservices", false);
pub const DEFINITIONS: ResourceType = ResourceType::fixed(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);
/// Defined by [`serve_widgets`].
pub const WIDGETS: ResourceType =
    ResourceType::fixed("example.com", "v1", "Widget", "widgets", true);
pub const SELF_REVIEWS: ResourceType = ResourceType::fixed(
    "authentication.k8s.io",
    "v1",
    "SelfSubjectReview",
    "selfsubjectreviews",
    false,
);

/// Defines [`WIDGETS`] with this schema, and waits until they are served.
pub async fn serve_widgets_like(env: &TestCluster, schema: Value) {
    let definition = json!({
        "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": WIDGETS.group, "scope": "Namespaced",
            "names": { "kind": WIDGETS.kind, "plural": WIDGETS.plural, "singular": "widget" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    });
    env.client.resource(&DEFINITIONS).create::<Value>("", &definition).await.expect("create");
    eventually(&env.clock, "widgets are served", || async {
        let widgets = env.client.resource(&WIDGETS);
        let listed = widgets.list::<Value>(None, &ListOptions::default()).await;
        listed.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// Widgets without any content.
pub async fn serve_widgets(env: &TestCluster) {
    serve_widgets_like(env, json!({ "type": "object" })).await;
}

/// Where the embedded API server stores the widgets.
pub const WIDGET_TABLE: &str = "widgets.example.com";

/// Registers an aggregated server that cannot be reached for version v1 of `group`.
pub async fn register_unreachable_server(env: &TestCluster, group: &str) {
    let mut away = json!({
        "apiVersion": API_SERVICES.api_version(), "kind": API_SERVICES.kind,
        "metadata": { "name": format!("v1.{group}") },
        "spec": {
            "group": group, "version": "v1",
            "service": { "namespace": "default", "name": "away" },
            "groupPriorityMinimum": 100, "versionPriority": 100,
        },
    });
    let services = env.client.resource(&API_SERVICES);
    let Err(error) = services.create::<Value>("", &away).await else { return };
    assert!(error.is_already_exists(), "{error}");
    // The APIService of a definition: without this label the API server leaves it alone.
    away["metadata"]["labels"] = json!({ "kube-aggregator.kubernetes.io/automanaged": null });
    let key = ObjectKey::cluster(&format!("v1.{group}"));
    services.patch::<Value>(&key, &Patch::Merge(away)).await.expect("patch");
}

/// Deletes a widget while its group is unreachable, as an API server does that does not know of that
/// yet.
pub fn delete_stored_widget(env: &Env, key: &str) {
    let store = &env.cluster.sandbox.api().store;
    let stored = store.get(WIDGET_TABLE, key).expect("the widget is there");
    store.delete(WIDGET_TABLE, key, stored.version, None).expect("deleted");
}

/// Waits until the object exists and `good` accepts it. Returns it.
pub async fn wait_until_exists(
    env: &TestCluster,
    resource: &ResourceType,
    key: &ObjectKey,
    good: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&env.clock, &format!("{resource} {key} comes"), || async {
        match env.client.resource(resource).get::<Value>(key).await {
            Ok(object) if good(&object) => Ok(object),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until the object does not exist.
pub async fn wait_until_deleted(env: &TestCluster, resource: &ResourceType, key: &ObjectKey) {
    eventually(&env.clock, &format!("{resource} {key} goes"), || async {
        match env.client.resource(resource).get::<Value>(key).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
