//! ServiceCIDRs and their finalizer.

use std::time::Duration;

use kube_controller_manager::client::Delete;
use kube_controller_manager::objects::{IPAddress, ObjectKey, Resource, ServiceCIDR};
use serde_json::{Value, json};

use crate::env::*;

#[test]
fn a_subnet_stays_while_an_address_is_in_it() {
    everywhere("servicecidrs", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let subnet = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": { "name": "more" }, "spec": { "cidrs": ["10.20.0.0/24"] },
        });
        let address = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": { "name": "10.20.0.5", "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            }},
            "spec": { "parentRef": { "resource": "services", "namespace": "default", "name": "a" } },
        });
        client.resource(&ServiceCIDR::RESOURCE).create::<Value>("", &subnet).await.unwrap();
        client.resource(&IPAddress::RESOURCE).create::<Value>("", &address).await.unwrap();

        let (subnet, address) = (ObjectKey::cluster("more"), ObjectKey::cluster("10.20.0.5"));
        let is_ready = |status: &'static str, reason: &'static str| {
            let subnet = &subnet;
            async move {
                eventually(clock, &format!("Ready is {status}"), || async {
                    let cidr: ServiceCIDR = client.get(subnet).await.unwrap();
                    let found = cidr.status.conditions.iter().any(|it| {
                        (&*it.type_, &*it.status) == ("Ready", status)
                            && it.reason.as_deref() == Some(reason)
                    });
                    if found { Ok(cidr) } else { Err(format!("{cidr:?}")) }
                })
                .await
            }
        };
        let ready = is_ready("True", "").await;
        assert!(ready.meta.has_finalizer("networking.k8s.io/service-cidr-finalizer"));
        client.delete::<ServiceCIDR>(&subnet, Delete::new()).await.unwrap();
        // The controller writes this reason while an address blocks the deletion of the subnet.
        let dying = is_ready("False", "Terminating").await;

        client.delete::<IPAddress>(&address, Delete::new()).await.unwrap();
        eventually(clock, "the subnet goes", || async {
            match client.get::<ServiceCIDR>(&subnet).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let waited = clock.now().duration_since(dying.meta.deletion_timestamp.unwrap());
        assert!(waited >= Duration::from_secs(10), "API servers have ten seconds to stop using it");
    });
}
