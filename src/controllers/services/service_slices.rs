//! The Service and the manager of an EndpointSlice.

use std::sync::Arc;

use crate::cache::{Index, IndexValue, Lister};
use crate::controllers::Controller;
use crate::objects::{EndpointSlice, Labels, ObjectKey};

/// The label that names the Service. Upstream: `discovery.LabelServiceName`.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names the writer of the slice. Upstream: `discovery.LabelManagedBy`.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

const BY_SERVICE: Index<EndpointSlice> = Index::new("service", |slice, put| {
    if slice.meta.labels.contains_key(SERVICE_NAME) {
        put(IndexValue::Key(service_of(slice)));
    }
});

/// Returns the key of a slice's Service; its name is empty if the slice names none.
pub fn service_of(slice: &EndpointSlice) -> ObjectKey {
    let name = slice.meta.labels.get(SERVICE_NAME).unwrap_or_default();
    ObjectKey { namespace: slice.meta.namespace.clone(), name: name.into() }
}

pub fn is_managed(labels: &Labels, manager: &str) -> bool {
    labels.get(MANAGED_BY) == Some(manager)
}

/// Returns a Lister of slices, with the index that [`of_service`] uses.
pub fn lister(c: &mut Controller) -> Lister<EndpointSlice> {
    let slices = c.lister();
    c.index(&slices, &BY_SERVICE);
    slices
}

/// Returns the slices of a Service that `manager` writes, by name.
pub fn of_service(
    slices: &Lister<EndpointSlice>,
    service: &ObjectKey,
    manager: &str,
) -> Vec<Arc<EndpointSlice>> {
    let mut found = slices.by_index(&BY_SERVICE, &IndexValue::Key(service.clone()));
    found.retain(|slice| is_managed(&slice.meta.labels, manager));
    found.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    found
}

/// Returns the prefix of the name of a new slice of `owner`.
pub fn prefix(owner: &str) -> String {
    // With a '-' the longest names would exceed 253 characters.
    if owner.len() < 253 { format!("{owner}-") } else { owner.to_owned() }
}
