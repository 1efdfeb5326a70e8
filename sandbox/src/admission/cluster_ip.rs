//! Checks requested cluster IPs. Upstream: `core/service/ipallocator`.

use std::net::Ipv4Addr;

use serde_json::Value;

use super::is_core;
use crate::failures;
use crate::kinds::Kind;
use crate::object::text;
use crate::status::ApiResult;
use crate::storage::store::{Store, Stored};

/// Checks the cluster IP that a new service requests; only IPv4 addresses are checked. Errors: 422
/// when the address is outside the range or already allocated.
pub fn check(store: &Store, kind: &Kind, service: &Value) -> ApiResult<()> {
    if !is_core(kind, "services") {
        return Ok(());
    }
    let address = text(service, "/spec/clusterIP");
    let Ok(parsed) = address.parse::<Ipv4Addr>() else { return Ok(()) };
    let taken = |other: &Stored| text(&other.value, "/spec/clusterIP") == address;
    // The range of cluster IPs is 10.96.0.0/16.
    let why = if parsed.octets()[..2] != [10, 96] {
        "the provided network does not match the current range"
    } else if store
        .list("services", "", None, 1, None, &taken)
        .is_ok_and(|page| !page.items.is_empty())
    {
        "provided IP is already allocated"
    } else {
        return Ok(());
    };
    let why = format!("failed to allocate IP {address}: {why}");
    let cause = failures::invalid_value("spec.clusterIPs", &vec![address].into(), &why);
    Err(failures::invalid("", "Service", text(service, "/metadata/name"), &[cause]))
}
