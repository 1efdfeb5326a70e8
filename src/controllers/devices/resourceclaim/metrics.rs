//! Upstream: `pkg/controller/resourceclaim/metrics`.

use std::sync::LazyLock;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use crate::cache::Lister;
use crate::metrics::metrics;
use crate::objects::ResourceClaim;
use crate::options::{Release, followed};

/// An annotation of claims that the scheduler creates for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

metrics! {
    static CREATED: IntCounterVec["status", "admin_access"] =
        "resourceclaim_controller_creates_total",
        "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status and \
         admin access";
}

metrics! {
    /// Replaces the metric above since 1.37.
    static CREATED_FOR: IntCounterVec["admin_access", "owner_api_group", "owner_api_kind", "status"] =
        "dynamic_resource_allocation_resourceclaim_creates_total",
        "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status, admin \
         access, and owning API group and kind (either Pod or scheduling.k8s.io/PodGroup)";
}

/// Counts an attempt to create a claim. `group` and `kind`: of the object that the claim is for.
pub fn count_creation(succeeded: bool, admin_access: bool, group: &str, kind: &str) {
    let status = if succeeded { "success" } else { "failure" };
    let admin_access = bool_label(admin_access);
    if followed() < Release::V1_37 {
        return CREATED.with_label_values(&[status, admin_access]).inc();
    }
    CREATED_FOR.with_label_values(&[admin_access, group, kind, status]).inc();
}

/// Exports the number of claims in `lister` as a metric, which is counted whenever the metrics are
/// read.
pub fn export_claim_count(lister: &Lister<ResourceClaim>) {
    *CLAIMS.lock() = Some(lister.clone());
}

fn bool_label(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}

/// The claims to count. The first use registers the metric.
static CLAIMS: LazyLock<Mutex<Option<Lister<ResourceClaim>>>> = LazyLock::new(|| {
    if let Err(error) = ClaimCollector::register() {
        log::error!("resourceclaim-controller: the number of claims is not served: {error}");
    }
    Mutex::default()
});

/// The metric of the number of claims.
struct ClaimCollector {
    claims: IntGaugeVec,
}

impl ClaimCollector {
    /// Registers the number of ResourceClaims, whose name depends on the release.
    fn register() -> prometheus::Result<()> {
        let help = "[ALPHA] Number of ResourceClaims, categorized by allocation status, admin \
                    access, and source. Source can be 'resource_claim_template' (created from a \
                    template), 'extended_resource' (extended resources), or empty (manually \
                    created by a user).";
        let name = match followed() >= Release::V1_37 {
            true => "dynamic_resource_allocation_resource_claims",
            false => "resourceclaim_controller_resource_claims",
        };
        let opts = Opts::new(name, help);
        let claims = IntGaugeVec::new(opts, &["allocated", "admin_access", "source"])?;
        prometheus::register(Box::new(ClaimCollector { claims }))
    }
}

impl Collector for ClaimCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.claims.desc()
    }

    /// Counts the claims again. `metrics::render` lets only one reader do so at a time.
    fn collect(&self) -> Vec<MetricFamily> {
        self.claims.reset();
        let lister = CLAIMS.lock().clone();
        for claim in lister.iter().flat_map(Lister::list) {
            self.claims.with_label_values(&claim_labels(&claim)).inc();
        }
        self.claims.collect()
    }
}

/// Returns the values of a claim's labels in the metric: whether it is allocated, whether it has
/// admin access, and its source.
fn claim_labels(claim: &ResourceClaim) -> [&'static str; 3] {
    let annotation = |name: &str| claim.meta.annotations.get(name).unwrap_or_default();
    let source = if annotation(EXTENDED) == "true" {
        "extended_resource"
    } else if !annotation(super::POD_CLAIM).is_empty() {
        "resource_claim_template"
    } else {
        ""
    };
    [bool_label(claim.status.allocation.is_some()), bool_label(claim.spec.admin_access), source]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_counted_by_their_state_and_source() {
        for (annotations, status, admin, expected) in [
            (json!({}), json!({}), false, ["false", "false", ""]),
            (
                json!({ "resource.kubernetes.io/pod-claim-name": "c" }),
                json!({ "allocation": {} }),
                true,
                ["true", "true", "resource_claim_template"],
            ),
            (
                json!({ EXTENDED: "true", "resource.kubernetes.io/pod-claim-name": "c" }),
                json!({}),
                false,
                ["false", "false", "extended_resource"],
            ),
            (json!({ EXTENDED: "false" }), json!({}), false, ["false", "false", ""]),
        ] {
            let request = json!({ "exactly": { "adminAccess": admin } });
            let claim = json!({
                "metadata": { "annotations": annotations }, "status": status,
                "spec": { "devices": { "requests": [request] } },
            });
            assert_eq!(claim_labels(&serde_json::from_value(claim).unwrap()), expected);
        }
    }
}
