//! Objects that follow others: the IPAddress of a Service's address, and the APIService of a
//! version that definitions serve. Upstream: `core/service/ipallocator`,
//! `kube-aggregator/pkg/controllers/autoregister`.

use serde_json::{Value, json};

use crate::api::Api;
use crate::api::delete_options::DeleteOptions;
use crate::api::rules::is_definition;
use crate::api::write::Part;
use crate::kinds::Kind;
use crate::object::{list, text};
use crate::request::call::Call;
use crate::status::ApiResult;
use crate::storage::store::Stored;

const REGISTRATION: &str = "apiregistration.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

fn is_service(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "services"
}

/// Returns the cluster IPs of a service; a headless one has none.
fn addresses(service: Option<&Value>) -> Vec<&str> {
    let all = service.map_or(&[][..], |service| list(service, "/spec/clusterIPs"));
    all.iter().filter_map(Value::as_str).filter(|address| *address != "None").collect()
}

/// Returns the status of an APIService that this server serves.
pub fn local_status(now: &str) -> Value {
    json!({ "conditions": [{
        "type": "Available", "status": "True", "reason": "Local",
        "message": "Local APIServices are always available", "lastTransitionTime": now,
    }] })
}

impl Api {
    /// Creates and deletes the objects that this server keeps beside a written one: the IPAddresses
    /// of a Service, and the APIServices of a group. `old`: `None` for a new object; `new`: `None`
    /// for a deleted one.
    pub fn sync_companions(&self, kind: &Kind, old: Option<&Value>, new: Option<&Value>) {
        let done = if is_service(kind) {
            self.sync_ip_addresses(old, new)
        } else if is_definition(kind) {
            self.sync_api_services(new.or(old).map_or("", |of| text(of, "/spec/group")))
        } else if *kind.resource.group == *REGISTRATION
            // A deleted APIService of a group that definitions serve is created again.
            && let (Some(gone), None) = (old, new)
        {
            self.sync_api_services(text(gone, "/spec/group"))
        } else {
            return;
        };
        if let Err(error) = done {
            log::error!("beside {}: {}", kind.resource, error.message);
        }
    }

    /// Creates an IPAddress for each cluster IP that the service gains, and deletes those of the
    /// IPs that it loses, if the kind is served. Called after each write of a service.
    fn sync_ip_addresses(&self, old: Option<&Value>, new: Option<&Value>) -> ApiResult<()> {
        let Some(kind) = self.registry.find(NETWORKING, "v1", "ipaddresses") else { return Ok(()) };
        let (before, after) = (addresses(old), addresses(new));
        for address in before.iter().filter(|address| !after.contains(address)) {
            let call = Call::of(kind.clone(), "", address);
            let gone = self.delete_object(&call, &DeleteOptions::default());
            gone.map(drop).or_else(|error| if error.code == 404 { Ok(()) } else { Err(error) })?;
        }
        for address in after.iter().filter(|address| !before.contains(address)) {
            let at = |pointer| new.map_or("", |service| text(service, pointer));
            let family = if address.contains(':') { "IPv6" } else { "IPv4" };
            let object = json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
                "metadata": { "name": address, "labels": {
                    "ipaddress.kubernetes.io/ip-family": family,
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                } },
                "spec": { "parentRef": {
                    "resource": "services", "namespace": at("/metadata/namespace"),
                    "name": at("/metadata/name"),
                } },
            });
            let made = self.create_value(NETWORKING, "ipaddresses", object);
            made.map(drop).or_else(|error| if error.code == 409 { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }

    /// Keeps one APIService for each version of a group that definitions serve. Does nothing if
    /// APIServices are not served.
    fn sync_api_services(&self, group: &str) -> ApiResult<()> {
        let Some(kind) = self.registry.find(REGISTRATION, "v1", "apiservices") else {
            return Ok(());
        };
        let kinds = self.registry.all();
        let custom = kinds.iter().filter(|kind| kind.is_custom() && *kind.resource.group == *group);
        let served: Vec<String> =
            custom.map(|kind| format!("{}.{group}", kind.resource.version)).collect();
        let table = Call::of(kind.clone(), "", "").table();
        let ours = |service: &Stored| {
            service.labels.get(AUTOMANAGED) == Some("true")
                && text(&service.value, "/spec/group") == group
        };
        let known = self.store.list(&table, "", None, usize::MAX, None, &ours);
        for service in known.map(|page| page.items).unwrap_or_default() {
            let name = text(&service.value, "/metadata/name");
            if !served.iter().any(|served| served == name) {
                let call = Call::of(kind.clone(), "", name);
                self.delete_object(&call, &DeleteOptions::default())?;
            }
        }
        for name in served {
            if self.store.get(&table, &name).is_none() {
                let version = name.split('.').next().unwrap_or_default();
                let spec = json!({
                    "group": group, "version": version,
                    "groupPriorityMinimum": 1000, "versionPriority": 100,
                });
                self.register(&name, "true", spec)?;
            }
        }
        Ok(())
    }

    /// Creates an APIService of this server, if the kind is served. `how`: the value of the label
    /// of automatic registration, `true` or `onstart`.
    pub fn register(&self, name: &str, how: &str, spec: Value) -> ApiResult<()> {
        let Some(kind) = self.registry.find(REGISTRATION, "v1", "apiservices") else {
            return Ok(());
        };
        let service = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": name, "labels": { AUTOMANAGED: how } }, "spec": spec,
        });
        self.create_value(REGISTRATION, "apiservices", service)?;
        let now = self.clock.now().to_string();
        let subresource = "status".to_owned();
        let call = Call { subresource, ..Call::of(kind, "", name) };
        let changed = self.modify(&call, Part::Raw, &|old| {
            let mut new = old.clone();
            new["status"] = local_status(&now);
            Ok(new)
        });
        changed.map(drop)
    }
}
