//! The kinds of a release, and those that a server serves only if its flags ask for them.

use serde_json::Value;

use super::builtin::{builtin, kind};
use super::fault::{duplicate, invalid};
use super::json::{list, text};
use super::metadata::{self, NameRule, subdomain_fault};
use super::rules::Rules;
use super::{Kind, certificates, devices, other_groups, workloads};
use crate::status::Cause;

/// Lists the built-in kinds of a server of Kubernetes 1.`minor`, 36 or 37. `all`: also those that
/// its flags must ask for.
pub fn served(minor: u32, all: bool) -> Vec<Kind> {
    let (mut kinds, mut gated) = (builtin(), behind_gates());
    if minor >= 37 {
        for kind in &mut gated {
            if let Some((_, version)) = IN_37.iter().find(|(name, _)| *name == kind.resource.kind) {
                kind.resource.version = (*version).into();
            }
        }
        // Since 1.37 autoscalers have a generation.
        // Pull request 138228.
        let autoscalers = kinds.iter_mut().filter(|kind| kind.resource.group == "autoscaling");
        autoscalers.for_each(|kind| kind.has_generation = true);
    }
    let is_stable = |kind: &Kind| kind.resource.version == "v1";
    kinds.extend(gated.into_iter().filter(|kind| all || is_stable(kind)));
    kinds
}

/// Lists a built-in kind of a server of Kubernetes 1.`minor` once for each of `versions`; empty if
/// there is no kind of that name.
pub fn in_versions(minor: u32, name: &str, versions: &[&str]) -> Vec<Kind> {
    let in_version = |version: &&str| {
        let mut kind = served(minor, true).into_iter().find(|kind| kind.resource.kind == name)?;
        kind.resource.version = (*version).to_owned().into();
        Some(kind)
    };
    versions.iter().filter_map(in_version).collect()
}

/// The versions of kinds in 1.37, where they differ: pull requests 138676, 138560, 139437, 139579
/// and 138572.
const IN_37: [(&str, &str); 6] = [
    ("DeviceTaintRule", "v1"),
    ("StorageVersionMigration", "v1"),
    ("ClusterTrustBundle", "v1"),
    ("PodCertificateRequest", "v1"),
    ("PodGroup", "v1beta1"),
    ("Workload", "v1beta1"),
];

/// Lists the kinds behind feature gates, with their versions in 1.36.
pub fn behind_gates() -> Vec<Kind> {
    let at_version = |version: &'static str, mut kind: Kind| {
        kind.resource.version = version.into();
        kind
    };
    const DEVICES: &str = "resource.k8s.io";
    const MIGRATION: &str = "storagemigration.k8s.io";
    const SERVERS: &str = "internal.apiserver.k8s.io";
    let requests =
        kind(DEVICES, "ResourcePoolStatusRequest", "resourcepoolstatusrequests", &[], false);
    let migrations =
        kind(MIGRATION, "StorageVersionMigration", "storageversionmigrations", &[], false);
    let candidates = kind("coordination.k8s.io", "LeaseCandidate", "leasecandidates", &[], true);
    let groups = kind("scheduling.k8s.io", "PodGroup", "podgroups", &[], true);
    let gangs = kind("scheduling.k8s.io", "Workload", "workloads", &[], true);
    let mut versions = kind(SERVERS, "StorageVersion", "storageversions", &[], false)
        .status(workloads::no_status)
        .rules(Rules { check: version_faults, ..Rules::named(NameRule::GroupResource) });
    versions.checks_status = true;
    vec![
        at_version(
            "v1beta2",
            kind(DEVICES, "DeviceTaintRule", "devicetaintrules", &[], false)
                .generation()
                .status(workloads::no_status)
                .default(devices::default_taint_rule),
        ),
        at_version("v1alpha3", requests.status(other_groups::without_status)),
        at_version("v1beta1", migrations.status(workloads::no_status)),
        at_version("v1beta1", candidates.rules(Rules::named(NameRule::Key))),
        at_version("v1alpha2", groups.generation().status(workloads::no_status)),
        at_version("v1alpha2", gangs.generation()),
        at_version("v1alpha1", versions),
        at_version("v1beta1", certificates::trust_bundles()),
        at_version("v1beta1", certificates::pod_requests()),
    ]
}

/// Checks a StorageVersion's status. Upstream: `validateStorageVersionStatus`.
fn version_faults(version: &Value) -> Vec<Cause> {
    let mut faults = Vec::new();
    let servers = list(version, "/status/storageVersions");
    for (n, server) in servers.iter().enumerate() {
        let at = |field: &str| format!("status.storageVersions[{n}].{field}");
        let id = text(server, "/apiServerID");
        if servers[..n].iter().any(|earlier| text(earlier, "/apiServerID") == id) {
            faults.push(duplicate(at("apiServerID"), &id.into()));
        }
        faults.extend(subdomain_fault(id).map(|why| invalid(at("apiServerID"), &id.into(), &why)));
        let encoding = text(server, "/encodingVersion");
        let decodable = list(server, "/decodableVersions");
        if !decodable.iter().any(|version| version == encoding) {
            let detail = format!("decodableVersions must include encodingVersion {encoding}");
            faults.push(invalid(at("decodableVersions"), &decodable.into(), &detail));
        }
    }
    faults.extend(wrong_common_version(version));
    let conditions = list(version, "/status/conditions");
    for (n, condition) in conditions.iter().enumerate() {
        for field in ["reason", "message"] {
            if text(condition, &format!("/{field}")).is_empty() {
                faults.push(super::fault::required(format!("status[{n}].{field}"), ""));
            }
        }
        let kind = text(condition, "/type");
        if let Some(fault) = metadata::qualified_fault(kind) {
            faults.push(invalid(format!("status[{n}].type"), &kind.into(), &fault));
        }
    }
    faults
}

/// Returns a fault unless the common version is that of all servers, if they agree, and is absent
/// otherwise. Upstream: `validateCommonVersion`.
fn wrong_common_version(version: &Value) -> Option<Cause> {
    let mut all = list(version, "/status/storageVersions")
        .iter()
        .map(|server| text(server, "/encodingVersion"));
    let first = all.next();
    let common = first.filter(|first| all.all(|other| other == *first));
    let given = version.pointer("/status/commonEncodingVersion").unwrap_or(&Value::Null);
    let detail = match (common, given.as_str()) {
        (None, None) => return None,
        (Some(common), Some(given)) if common == given => return None,
        (None, Some(_)) => {
            "should be nil if servers do not agree on the same encoding version, or if there is no \
             server reporting the supported versions yet"
                .to_owned()
        }
        (Some(common), None) => format!("the common encoding version is {common}"),
        (Some(common), Some(_)) => format!("the actual common encoding version is {common}"),
    };
    Some(invalid("status.commonEncodingVersion", given, &detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_storage_version_has_each_server_once_and_their_common_version() {
        let server = |id: &str, version: &str| {
            json!({
                "apiServerID": id, "encodingVersion": version, "decodableVersions": [version],
            })
        };
        let odd =
            json!({ "apiServerID": "a", "encodingVersion": "v2", "decodableVersions": ["v1"] });
        for (servers, common, fields) in [
            (vec![], Value::Null, vec![]),
            (vec![], "v1".into(), vec!["status.commonEncodingVersion"]),
            (vec![server("a", "v1"), server("b", "v1")], "v1".into(), vec![]),
            (vec![server("a", "v1"), server("b", "v2")], Value::Null, vec![]),
            (
                vec![server("a", "v1"), server("b", "v2")],
                "v1".into(),
                vec!["status.commonEncodingVersion"],
            ),
            (vec![server("a", "v1")], Value::Null, vec!["status.commonEncodingVersion"]),
            (
                vec![server("a", "v1"), server("a", "v1")],
                "v1".into(),
                vec!["status.storageVersions[1].apiServerID"],
            ),
            (vec![odd], "v2".into(), vec!["status.storageVersions[0].decodableVersions"]),
        ] {
            let version = json!({
                "status": { "storageVersions": servers, "commonEncodingVersion": common },
            });
            let found = version_faults(&version);
            let found: Vec<&str> = found.iter().map(|fault| &*fault.field).collect();
            assert_eq!(found, fields, "{version}");
        }
    }
}
