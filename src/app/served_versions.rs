//! The resources that API servers of different releases serve in different versions.

use crate::client::Versions;
use crate::controllers::certificates::trustbundle::BUNDLES;
use crate::objects::{
    DeviceTaintRule, PodCertificateRequest, PodGroup, Resource, StorageVersionMigration, Workload,
};

/// Each with the versions that the controllers can use, the best one first. Between these versions
/// the fields that they read and write are the same, except those by which a Job's Workload and
/// PodGroup refer to each other: Jobs get these only in `v1alpha2`.
pub const SERVED_VERSIONS: &[Versions] = &[
    (BUNDLES, &["v1", "v1beta1", "v1alpha1"]),
    (DeviceTaintRule::RESOURCE, &["v1", "v1beta2"]),
    (PodCertificateRequest::RESOURCE, &["v1", "v1beta1"]),
    (PodGroup::RESOURCE, &["v1beta1", "v1alpha3", "v1alpha2"]),
    (StorageVersionMigration::RESOURCE, &["v1", "v1beta1"]),
    (Workload::RESOURCE, &["v1beta1", "v1alpha3", "v1alpha2"]),
];

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use serde_json::json;

    use super::*;
    use crate::client::testing::answering;

    #[test]
    fn version_that_the_code_names_is_among_them() {
        for (resource, versions) in SERVED_VERSIONS {
            assert!(versions.contains(&&*resource.version), "{resource}");
        }
    }

    /// What both releases serve by default, and with `--runtime-config`.
    #[test]
    fn best_version_in_the_documents_of_discovery_is_used() {
        const BUNDLES: &str = "ClusterTrustBundle";
        const RULES: &str = "DeviceTaintRule";
        const REQUESTS: &str = "PodCertificateRequest";
        const MIGRATIONS: &str = "StorageVersionMigration";
        const BY_CODE: [&str; 6] =
            ["v1beta1", "v1beta2", "v1beta1", "v1alpha2", "v1beta1", "v1alpha2"];
        type Served = &'static [(&'static str, &'static [&'static str])];
        let cases: [(&str, Served, [&str; 6]); 7] = [
            ("1.36", &[], BY_CODE),
            (
                "1.36 with all",
                &[
                    (BUNDLES, &["v1beta1", "v1alpha1"]),
                    (RULES, &["v1beta2", "v1alpha3"]),
                    (REQUESTS, &["v1beta1", "v1alpha1"]),
                    ("PodGroup", &["v1alpha2"]),
                    (MIGRATIONS, &["v1beta1"]),
                    ("Workload", &["v1alpha2"]),
                ],
                ["v1beta1", "v1beta2", "v1beta1", "v1alpha2", "v1beta1", "v1alpha2"],
            ),
            (
                "1.36 with an alpha version",
                &[(BUNDLES, &["v1alpha1"])],
                ["v1alpha1", "v1beta2", "v1beta1", "v1alpha2", "v1beta1", "v1alpha2"],
            ),
            (
                "1.37",
                &[(BUNDLES, &["v1"]), (RULES, &["v1"]), (REQUESTS, &["v1"]), (MIGRATIONS, &["v1"])],
                ["v1", "v1", "v1", "v1alpha2", "v1", "v1alpha2"],
            ),
            (
                "1.37 with the alpha version of scheduling.k8s.io",
                &[("PodGroup", &["v1alpha3"]), ("Workload", &["v1alpha3"])],
                ["v1beta1", "v1beta2", "v1beta1", "v1alpha3", "v1beta1", "v1alpha3"],
            ),
            (
                "1.37 with all",
                &[
                    (BUNDLES, &["v1", "v1beta1", "v1alpha1"]),
                    (RULES, &["v1", "v1beta2"]),
                    (REQUESTS, &["v1", "v1beta1"]),
                    ("PodGroup", &["v1beta1", "v1alpha3"]),
                    (MIGRATIONS, &["v1", "v1beta1"]),
                    ("Workload", &["v1beta1", "v1alpha3"]),
                ],
                ["v1", "v1", "v1", "v1beta1", "v1", "v1beta1"],
            ),
            ("a later release", &[("PodGroup", &["v1"]), ("Workload", &["v1"])], BY_CODE),
        ];
        for (name, served, expected) in cases {
            let groups: Vec<_> = SERVED_VERSIONS
                .iter()
                .flat_map(|(resource, _)| {
                    let is_this = |(kind, _): &&(&str, &[&str])| resource.kind == *kind;
                    let versions = served.iter().find(is_this).map_or(&[][..], |found| found.1);
                    versions.iter().map(move |version| {
                        let kind = json!({
                            "resource": resource.plural, "responseKind": { "kind": resource.kind },
                        });
                        let version = json!({ "version": version, "resources": [kind] });
                        json!({ "metadata": { "name": resource.group }, "versions": [version] })
                    })
                })
                .collect();
            let answer = move |line: &str| match line.starts_with("GET /apis ") {
                true => (200, json!({ "kind": "APIGroupDiscoveryList", "items": groups })),
                false => (404, json!({})),
            };
            let found = block_on(async {
                let client = answering(answer).await;
                client.choose_versions(SERVED_VERSIONS).await.expect("discovery");
                let served = |(resource, _): &Versions| client.served(resource).version;
                SERVED_VERSIONS.iter().map(served).collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "{name}");
        }
    }
}
