//! Writes the condition Ready of each ServiceCIDR, and keeps one that is being deleted until no
//! Service would lose its address with it. Upstream: `pkg/controller/servicecidrs`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::cache::Lister;
use crate::client::{Client, Patch};
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::events::Recorder;
use crate::objects::{Condition, IPAddress, Object, ObjectKey, Resource, ServiceCIDR};

const FIELD_MANAGER: &str = "service-cidr-controller";
const MAX_RETRIES: u32 = 15;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// The time after which all API servers know that they must not use the subnet any more.
const GRACE: Duration = Duration::from_secs(10);

const READY: &str = "Ready";
const FAMILY_LABEL: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY_LABEL: &str = "ipaddress.kubernetes.io/managed-by";
/// The value of that label on addresses of the API server's own allocator.
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// Sets up the controller `service-cidr-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let (cidrs, addresses) = (c.lister::<ServiceCIDR>(), c.lister::<IPAddress>());
    let this = Arc::new(ServiceCidrs {
        client: c.client(),
        recorder: c.recorder(),
        cidrs: cidrs.clone(),
        addresses: addresses.clone(),
        clock: c.clock(),
    });
    let queue = c.queue(QueuePolicy::at_most(MAX_RETRIES).logged_as(log::Level::Debug));
    let all = cidrs.clone();
    c.watch(&cidrs, &queue, move |change, queue| {
        queue.add(change.object().meta().key());
        if let Change::Added { new, .. } = change {
            // A new ServiceCIDR may contain the addresses that block the deletion of another one.
            let all = all.list();
            for subnet in subnets(new) {
                for other in with_subnet(&all, |other| overlap(other, &subnet)) {
                    queue.add(other.meta().key());
                }
            }
        }
    });
    c.watch(&addresses, &queue, move |change, queue| {
        let meta = change.object().meta();
        if matches!(change, Change::Added { .. } | Change::Deleted(_))
            && meta.labels.get(MANAGED_BY_LABEL) == Some(ALLOCATOR)
            && let Ok(address) = meta.name.parse::<IpAddr>()
        {
            for cidr in with_subnet(&cidrs.list(), |subnet| allocates(subnet, address)) {
                queue.add(cidr.meta().key());
            }
        }
    });
    c.sync(queue, &this, ServiceCidrs::sync);
    Ok(())
}

struct ServiceCidrs {
    client: Client,
    recorder: Recorder,
    cidrs: Lister<ServiceCIDR>,
    addresses: Lister<IPAddress>,
    clock: SharedClock,
}

impl ServiceCidrs {
    /// Adds the finalizer to a ServiceCIDR and sets its condition Ready. Removes the finalizer of a
    /// deleted one when no address needs it, at the earliest [`GRACE`] after the deletion.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(cidr) = self.cidrs.get(&key) else { return Ok(Next::Done) };
        let Some(deleted) = cidr.meta.deletion_timestamp else {
            self.add_finalizer(&cidr).await?;
            if let Err(error) = self.set_ready(&cidr, IS_READY).await {
                let text = "The ServiceCIDR Status can not be set to Ready=True";
                self.recorder.warning(&*cidr, "KubernetesServiceCIDRError", text);
                return Err(error);
            }
            return Ok(Next::Done);
        };
        if !can_delete(&cidr, &self.cidrs.list(), || self.addresses.list()) {
            // A change of the addresses or of another ServiceCIDR queues it again.
            self.set_ready(&cidr, IS_NEEDED).await?;
            return Ok(Next::Done);
        }
        let grace_left = GRACE.saturating_sub(self.clock.now().duration_since(deleted));
        if !grace_left.is_zero() {
            return Ok(Next::After(grace_left));
        }
        self.remove_finalizer(&cidr).await?;
        Ok(Next::Done)
    }

    async fn add_finalizer(&self, cidr: &ServiceCIDR) -> Result<(), Error> {
        if cidr.meta.has_finalizer(FINALIZER) {
            return Ok(());
        }
        self.patch(cidr, json!({ "metadata": { "finalizers": [FINALIZER] } })).await
    }

    async fn remove_finalizer(&self, cidr: &ServiceCIDR) -> Result<(), Error> {
        if !cidr.meta.has_finalizer(FINALIZER) {
            return Ok(());
        }
        let body = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
        self.patch(cidr, body).await
    }

    /// Patches the object; succeeds if it is gone.
    async fn patch(&self, cidr: &ServiceCIDR, body: Value) -> Result<(), Error> {
        let patch = Patch::StrategicMerge(body);
        match self.client.patch::<ServiceCIDR>(&cidr.meta.key(), &patch).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Writes the condition Ready, if it is not as `wanted`.
    async fn set_ready(&self, cidr: &ServiceCIDR, wanted: Ready) -> Result<(), Error> {
        let conditions = &cidr.status.conditions;
        let current = conditions.iter().find(|condition| condition.type_ == READY);
        let (status, reason, message) = wanted;
        if let Some(current) = current
            && *current.status == *status
            && current.reason.as_deref().unwrap_or_default() == reason
            && current.message.as_deref().unwrap_or_default() == message
        {
            return Ok(());
        }
        let ready = Condition {
            type_: READY.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(self.clock.now()),
            ..Condition::default()
        };
        let body = json!({
            "apiVersion": ServiceCIDR::RESOURCE.api_version(), "kind": ServiceCIDR::RESOURCE.kind,
            "metadata": { "name": cidr.meta.name }, "status": { "conditions": [ready] },
        });
        let verbs = self.client.resource(&ServiceCIDR::RESOURCE).subresource("status");
        let patch = Patch::Apply { manager: FIELD_MANAGER.into(), force: true, body };
        match verbs.patch::<ServiceCIDR>(&cidr.meta.key(), &patch).await {
            // The server has no server-side apply.
            Err(error) if error.code() == Some(415) => {
                let others = conditions.iter().filter(|condition| condition.type_ != READY);
                let all: Vec<&Condition> = others.chain([&ready]).collect();
                self.client.update_status(cidr, &json!({ "conditions": all })).await?;
            }
            applied => drop(applied?),
        }
        Ok(())
    }
}

/// Status, reason and message of the condition Ready.
type Ready = (&'static str, &'static str, &'static str);

const IS_READY: Ready = ("True", "", "Kubernetes Service CIDR is ready");
const IS_NEEDED: Ready = (
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, \
     please remove them or create a new ServiceCIDR",
);

/// Parses a subnet, in which host bits may be set; `None` if it is malformed. Upstream:
/// `netip.ParsePrefix`, which refuses a length with leading zeros.
fn subnet(text: &str) -> Option<IpNet> {
    let (_, length) = text.split_once('/')?;
    let is_padded = length.len() > 1 && length.starts_with('0');
    text.parse().ok().filter(|_| !is_padded)
}

/// Returns the subnets of a ServiceCIDR. Malformed ones are ignored.
fn subnets(cidr: &ServiceCIDR) -> impl Iterator<Item = IpNet> {
    cidr.spec.cidrs.iter().filter_map(|text| subnet(text))
}

/// Returns the members of `all` that have a subnet for which `matches` holds.
fn with_subnet(
    all: &[Arc<ServiceCIDR>],
    matches: impl Fn(&IpNet) -> bool,
) -> impl Iterator<Item = &Arc<ServiceCIDR>> {
    all.iter().filter(move |cidr| subnets(cidr).any(|subnet| matches(&subnet)))
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

/// Returns whether Services may get `address` from `subnet`: every address except the network's own
/// and, for IPv4, the broadcast address. Upstream: `servicecidr.PrefixContainsIP`.
fn allocates(subnet: &IpNet, address: IpAddr) -> bool {
    let is_broadcast = address.is_ipv4() && address == subnet.broadcast();
    subnet.contains(&address) && address != subnet.network() && !is_broadcast
}

/// Returns whether `cidr` can be deleted: other members of `all` contain its subnets, or can
/// allocate each of its addresses that is in use.
/// Upstream: `canDeleteCIDR`.
fn can_delete(
    cidr: &ServiceCIDR,
    all: &[Arc<ServiceCIDR>],
    addresses: impl FnOnce() -> Vec<Arc<IPAddress>>,
) -> bool {
    let is_other = |other: &Arc<ServiceCIDR>| other.meta.name != cidr.meta.name;
    let is_covered =
        |subnet: IpNet| with_subnet(all, |larger| larger.contains(&subnet)).any(is_other);
    if subnets(cidr).all(is_covered) {
        return true;
    }
    let depends_on_cidr = |name: &str| {
        let Ok(address) = name.parse::<IpAddr>() else { return false };
        let allocators: Vec<_> = with_subnet(all, |subnet| allocates(subnet, address)).collect();
        !allocators.is_empty() && !allocators.into_iter().any(is_other)
    };
    let families: Vec<&str> =
        subnets(cidr).map(|subnet| if subnet.addr().is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    !addresses().iter().any(|address| {
        let labels = &address.meta.labels;
        labels.get(MANAGED_BY_LABEL) == Some(ALLOCATOR)
            && labels.get(FAMILY_LABEL).is_some_and(|family| families.contains(&family))
            && depends_on_cidr(&address.meta.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(name: &str, cidrs: &[&str]) -> Arc<ServiceCIDR> {
        let object = json!({ "metadata": { "name": name }, "spec": { "cidrs": cidrs } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn address(name: &str, by: &str) -> Arc<IPAddress> {
        let family = if name.contains(':') { "IPv6" } else { "IPv4" };
        let labels = json!({ FAMILY_LABEL: family, MANAGED_BY_LABEL: by });
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn subnets_are_parsed() {
        for good in ["10.0.0.0/8", "10.1.2.3/0", "::/0", "2001:db8::1/128", "1.2.3.4/32"] {
            assert!(subnet(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "::/129",
            "10.0.0/8",
            "fe80::1%eth0/64",
        ] {
            assert!(subnet(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn subnets_overlap_and_contain() {
        // First, second; they overlap; the first contains the second.
        for (first, second, overlapping, containing) in [
            ("10.0.0.0/24", "10.0.0.0/26", true, true),
            ("10.0.0.0/24", "10.0.0.128/26", true, true),
            ("10.0.0.0/26", "10.0.0.0/24", true, false),
            ("10.0.0.0/24", "10.0.0.7/24", true, true),
            ("10.0.0.0/24", "10.0.1.0/24", false, false),
            ("0.0.0.0/0", "255.0.0.0/8", true, true),
            ("0.0.0.0/0", "::/0", false, false),
            ("2001:db8::/96", "2001:db8::/112", true, true),
            ("2001:db8::/128", "2001:db8::1/128", false, false),
        ] {
            let (a, b) = (subnet(first).unwrap(), subnet(second).unwrap());
            assert_eq!(overlap(&a, &b), overlapping, "{first} {second}");
            assert_eq!(overlap(&b, &a), overlapping, "{second} {first}");
            assert_eq!(a.contains(&b), containing, "{first} {second}");
        }
    }

    #[test]
    fn network_and_broadcast_addresses_are_not_allocated() {
        for (text, address, expected) in [
            ("10.0.0.0/24", "10.0.0.1", true),
            ("10.0.0.0/24", "10.0.0.0", false),
            ("10.0.0.0/24", "10.0.0.255", false),
            ("10.0.0.0/24", "10.0.0.254", true),
            ("10.0.0.0/24", "10.0.1.1", false),
            ("10.0.0.9/24", "10.0.0.9", true),
            ("10.0.0.0/31", "10.0.0.1", false),
            ("10.0.0.4/32", "10.0.0.4", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "255.255.255.255", false),
            ("2001:db8::/112", "2001:db8::ffff", true),
            ("2001:db8::/112", "2001:db8::", false),
            ("2001:db8::/112", "2001:db8::1:1", false),
            ("2001:db8::1/128", "2001:db8::1", false),
            ("::/0", "::1", true),
            ("::/0", "0.0.0.1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(allocates(&subnet(text).unwrap(), address), expected, "{text} {address}");
        }
    }

    #[test]
    fn a_subnet_is_deletable_when_no_address_needs_it() {
        let dual = &["192.168.0.0/24", "2001:db2::/64"][..];
        let v4 = &["192.168.0.0/24"][..];
        // The subnets to be deleted; those of others; addresses in use; whether it may go.
        for (own, others, addresses, goes) in [
            (v4, &[][..], &[][..], true),
            (v4, &[], &["192.168.0.1"], false),
            (v4, &[], &["192.168.1.1", "2001:db2::1"], true),
            // Its first and last address are never assigned to a Service.
            (v4, &[], &["192.168.0.0", "192.168.0.255"], true),
            (v4, &[v4], &["192.168.0.1"], true),
            (v4, &[dual], &["192.168.0.1"], true),
            (v4, &[&["192.168.0.0/16"]], &["192.168.0.1"], true),
            // A smaller subnet contains only some of them.
            (v4, &[&["192.168.0.0/28"]], &["192.168.0.1"], true),
            (v4, &[&["192.168.0.0/28"]], &["192.168.0.1", "192.168.0.19"], false),
            (v4, &[&["192.168.0.0/28"]], &["192.168.0.15"], false),
            (dual, &[v4], &["192.168.0.1"], true),
            (dual, &[v4], &["192.168.0.1", "2001:db2::1"], false),
            (dual, &[v4, &["2001:db2::/48"]], &["2001:db2::1"], true),
            (&["broken"], &[], &["192.168.0.1"], true),
        ] {
            let own = cidr("own", own);
            let mut all = vec![own.clone()];
            all.extend(others.iter().map(|cidrs| cidr("other", cidrs)));
            let used = || addresses.iter().map(|name| address(name, ALLOCATOR)).collect();
            assert_eq!(
                can_delete(&own, &all, used),
                goes,
                "{own:?} beside {others:?}: {addresses:?}"
            );
        }
        let own = cidr("own", v4);
        let foreign = || vec![address("192.168.0.1", "somebody")];
        assert!(
            can_delete(&own, std::slice::from_ref(&own), foreign),
            "not the allocator's address"
        );
    }
}
