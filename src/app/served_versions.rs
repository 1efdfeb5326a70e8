//! The resources that API servers of different releases serve in different versions.

use crate::client::Versions;
use crate::objects::{
    DeviceTaintRule, PodCertificateRequest, PodGroup, Resource, StorageVersionMigration, Workload,
};

/// Each with the versions that the controllers can use, the best one first. Between these versions
/// the fields that they read and write are the same, except those by which a Job's Workload and
/// PodGroup refer to each other: Jobs get these only in `v1alpha2`.
pub const SERVED_VERSIONS: &[Versions] = &[
    (DeviceTaintRule::RESOURCE, &["v1", "v1beta2"]),
    (PodCertificateRequest::RESOURCE, &["v1", "v1beta1"]),
    (PodGroup::RESOURCE, &["v1beta1", "v1alpha3", "v1alpha2"]),
    (StorageVersionMigration::RESOURCE, &["v1", "v1beta1"]),
    (Workload::RESOURCE, &["v1beta1", "v1alpha3", "v1alpha2"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_that_the_code_names_is_among_them() {
        for (resource, versions) in SERVED_VERSIONS {
            assert!(versions.contains(&&*resource.version), "{resource}");
        }
    }
}
