//! The API server's own Service. Upstream: `pkg/controlplane/reconcilers`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::api::Api;
use crate::status::ApiResult;

/// Creates the Service with which pods find the API server, and its endpoints.
pub fn own_service(api: &Api, address: SocketAddr) -> ApiResult<()> {
    let (group, port) = ("discovery.k8s.io", address.port());
    // An endpoint must not have a loopback address: an address for documentation replaces it.
    let ip = match address.ip() {
        ip if ip.is_loopback() || ip.is_unspecified() => Ipv4Addr::new(192, 0, 2, 1).into(),
        ip => ip,
    };
    let family = if matches!(ip, IpAddr::V4(_)) { "IPv4" } else { "IPv6" };
    let ports = json!([{ "name": "https", "port": port, "protocol": "TCP" }]);
    let named =
        |labels: Value| json!({ "name": "kubernetes", "namespace": "default", "labels": labels });
    for (group, resource, object) in [
        (
            "",
            "services",
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": named(json!({
                    "component": "apiserver", "provider": "kubernetes",
                })),
                "spec": {
                    "type": "ClusterIP", "clusterIP": "10.96.0.1",
                    "ipFamilyPolicy": "SingleStack",
                    "ports": [{
                        "name": "https", "protocol": "TCP", "port": 443, "targetPort": port,
                    }],
                },
            }),
        ),
        (
            "",
            "endpoints",
            json!({
                "apiVersion": "v1", "kind": "Endpoints",
                "metadata": named(json!({ "endpointslice.kubernetes.io/skip-mirror": "true" })),
                "subsets": [{ "addresses": [{ "ip": ip }], "ports": ports }],
            }),
        ),
        (
            group,
            "endpointslices",
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": named(json!({ "kubernetes.io/service-name": "kubernetes" })),
                "addressType": family, "ports": ports,
                "endpoints": [{ "addresses": [ip], "conditions": { "ready": true } }],
            }),
        ),
    ] {
        if api.registry.find(group, "v1", resource).is_some() {
            api.create_value(group, resource, object)?;
        }
    }
    Ok(())
}
