//! Which addresses a Service gets: a decision without I/O.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use kube_controller_manager::objects::ObjectKey;

use super::claims::{Claim, RequestError, given, requested, wanted_pool};
use super::pools::{Addresses, Pool, PoolError, Pools};
use super::ranges::{Family, Order, Ranges};
use crate::objects::Service;

/// The decision for a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In the order of the Service's families.
    pub addresses: Vec<IpAddr>,
    /// Whether a person asked for them by kube-vip's annotation or otherwise.
    pub is_requested: bool,
    /// A family whose address is preferred, and of which none is free.
    pub lacks: Option<Family>,
}

/// Why a Service gets no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Pool(PoolError),
    /// The pool has no address of the family.
    NoFamily {
        pool: String,
        family: Family,
    },
    /// All addresses of the family are in use.
    Exhausted {
        pool: String,
        family: Family,
    },
    Request(RequestError),
    /// Another Service has the address.
    Taken {
        address: IpAddr,
        by: ObjectKey,
        why: String,
    },
    /// The pool that the Service asks for does not have the address that it asks for.
    NotInPool {
        address: IpAddr,
        pool: String,
    },
    /// The Service has no addresses of this family, or two of it are asked for.
    WrongFamily {
        address: IpAddr,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Pool(error) => error.fmt(f),
            Refusal::NoFamily { pool, family } => {
                write!(f, "the pool {pool} has no {} addresses", family.name())
            }
            Refusal::Exhausted { pool, family } => {
                write!(f, "no addresses available: all {} of {pool} are in use", family.name())
            }
            Refusal::Request(RequestError::NoAddress { source, part }) => {
                write!(f, "{source}: {part:?} is not an IP address")
            }
            Refusal::Request(RequestError::TwoRequests) => f.write_str(
                "metallb.io/loadBalancerIPs and spec.loadBalancerIP ask for different addresses",
            ),
            Refusal::Taken { address, by, why } => {
                write!(f, "{address} is the address of Service {by}, and {why}")
            }
            Refusal::NotInPool { address, pool } => {
                write!(f, "{address} is asked for, but is not in the pool {pool}")
            }
            Refusal::WrongFamily { address } => {
                write!(f, "{address} is asked for: one address for each IP family of the Service")
            }
        }
    }
}

/// The families of a Service's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Families {
    /// In order of preference.
    families: Vec<Family>,
    policy: Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Single,
    PreferDual,
    RequireDual,
}

/// Returns the families that a Service's addresses are to have. `pool` decides for a Service that
/// does not name its families.
fn families(service: &Service, pool: Option<&Pool>) -> Families {
    let named = service.spec.ip_families.iter().flatten();
    let named: Vec<Family> = named.filter_map(|name| Family::parse(name)).collect();
    let policy = match service.spec.ip_family_policy.as_deref() {
        Some("PreferDualStack") => Policy::PreferDual,
        Some("RequireDualStack") => Policy::RequireDual,
        _ => Policy::Single,
    };
    let mut families = match named.is_empty() {
        false => named,
        true if policy != Policy::Single => vec![Family::V4, Family::V6],
        true if pool.is_some_and(|pool| !pool.has(Family::V4)) => vec![Family::V6],
        true => vec![Family::V4],
    };
    if policy == Policy::Single {
        families.truncate(1);
    }
    Families { families, policy }
}

/// Returns the first claim that keeps `own` from having the address, and why the two cannot share
/// it.
fn obstacle<'a>(own: &Claim, others: &'a [Claim], address: IpAddr) -> Option<(&'a Claim, String)> {
    let having = others.iter().filter(|other| other.hold(address).is_some());
    having
        .filter(|other| !own.precedes(other, address))
        .find_map(|other| Some((other, own.shares(other, address).err()?)))
}

/// Decides which addresses a Service gets: those that a person asks for, else for each family the
/// one that it had, else one of its pool. With `PreferDualStack` one family is enough: `lacks` then
/// says why the other one is missing. `own`: the claim of the Service; `others`: those of all other
/// ones. `reserved`: the addresses that were chosen for it before and that it may not show yet.
///
/// # Errors
/// See [`Refusal`].
pub fn plan(
    service: &Service,
    own: &Claim,
    reserved: &[IpAddr],
    others: &[Claim],
    pools: &Pools,
) -> Result<Plan, Refusal> {
    let pool = match wanted_pool(service) {
        Some(name) => pools.named(name),
        None => pools.of_namespace(&service.meta.namespace),
    };
    let families = families(service, pool.as_ref().ok());
    let asked_for = requested(service).map_err(Refusal::Request)?;
    if !asked_for.is_empty() {
        let pool = wanted_pool(service).map(|_| pool).transpose().map_err(Refusal::Pool)?;
        grant(&asked_for, service, own, others, pool.as_ref())?;
        return Ok(Plan { addresses: asked_for, is_requested: true, lacks: None });
    }
    let before = if reserved.is_empty() { given(service) } else { reserved.to_vec() };
    let is_pool_wanted = wanted_pool(service).is_some();
    let may_stay = |address: IpAddr| {
        let is_of_pool = pool.as_ref().is_ok_and(|pool| pool.contains(address));
        (!is_pool_wanted || is_of_pool) && obstacle(own, others, address).is_none()
    };
    let mut addresses = Vec::new();
    let mut refusals = Vec::new();
    for &family in &families.families {
        let mut stays = before.iter().copied().filter(|address| Family::of(*address) == family);
        match stays.find(|address| may_stay(*address)) {
            Some(address) => addresses.push(address),
            None => match pool
                .clone()
                .map_err(Refusal::Pool)
                .and_then(|pool| choose(&pool, family, own, others))
            {
                Ok(address) => addresses.push(address),
                Err(refusal) => refusals.push((family, refusal)),
            },
        }
    }
    let is_enough = match families.policy {
        Policy::PreferDual => !addresses.is_empty(),
        Policy::Single | Policy::RequireDual => refusals.is_empty(),
    };
    // A Service that requires both families lacks one in a cluster that has only one.
    if families.policy == Policy::RequireDual && families.families.len() < 2 {
        let pool = pool.map_err(Refusal::Pool)?.to_string();
        let family = if families.families == [Family::V4] { Family::V6 } else { Family::V4 };
        return Err(Refusal::NoFamily { pool, family });
    }
    match refusals.into_iter().next() {
        Some((_, refusal)) if !is_enough => Err(refusal),
        lacking => {
            let is_exhausted = |refusal: &Refusal| matches!(refusal, Refusal::Exhausted { .. });
            let lacks = lacking.filter(|(_, refusal)| is_exhausted(refusal));
            let lacks = lacks.map(|(family, _)| family);
            Ok(Plan { addresses, is_requested: false, lacks })
        }
    }
}

/// Checks that the Service may have the addresses that it asks for. `pool`: the one that it asks
/// for too.
fn grant(
    requested: &[IpAddr],
    service: &Service,
    own: &Claim,
    others: &[Claim],
    pool: Option<&Pool>,
) -> Result<(), Refusal> {
    let named = service.spec.ip_families.iter().flatten();
    let named: Vec<Family> = named.filter_map(|name| Family::parse(name)).collect();
    for (at, &address) in requested.iter().enumerate() {
        let family = Family::of(address);
        let is_second = requested[..at].iter().any(|other| Family::of(*other) == family);
        if is_second || !named.is_empty() && !named.contains(&family) {
            return Err(Refusal::WrongFamily { address });
        }
        if let Some(pool) = pool.filter(|pool| !pool.contains(address)) {
            return Err(Refusal::NotInPool { address, pool: pool.to_string() });
        }
        if let Some((other, why)) = obstacle(own, others, address) {
            return Err(Refusal::Taken { address, by: other.key.clone(), why });
        }
    }
    Ok(())
}

/// Chooses the first address of the pool that is free, or that the Service may share. With a DHCP
/// pool it is 0.0.0.0: the announcer gets one by DHCP.
fn choose(pool: &Pool, family: Family, own: &Claim, others: &[Claim]) -> Result<IpAddr, Refusal> {
    if !pool.has(family) {
        return Err(Refusal::NoFamily { pool: pool.to_string(), family });
    }
    let ranges = match &pool.addresses {
        Addresses::Of(ranges) => ranges,
        Addresses::Dhcp => return Ok(IpAddr::from([0, 0, 0, 0])),
    };
    let claimed = others.iter().flat_map(|other| &other.addresses);
    let used: BTreeSet<IpAddr> = claimed.map(|(address, _)| *address).collect();
    let shared = shareable(ranges, pool.order, family, own, others, &used);
    let free = ranges.first_free(family, pool.order, |address| used.contains(&address));
    let chosen = match (shared, free) {
        (Some(shared), Some(free)) if !own.prefers_shared(family) => match pool.order {
            Order::Ascending => Some(shared.min(free)),
            Order::Descending => Some(shared.max(free)),
        },
        (shared, free) => shared.or(free),
    };
    chosen.ok_or_else(|| Refusal::Exhausted { pool: pool.to_string(), family })
}

/// Returns the first address of the pool that is used and that all of its Services share with this
/// one.
fn shareable(
    ranges: &Ranges,
    order: Order,
    family: Family,
    own: &Claim,
    others: &[Claim],
    used: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    let fits = |address: &&IpAddr| {
        let mut having = others.iter().filter(|other| other.hold(**address).is_some());
        Family::of(**address) == family
            && ranges.contains(**address)
            && having.all(|other| own.shares(other, **address).is_ok())
    };
    match order {
        Order::Ascending => used.iter().find(fits).copied(),
        Order::Descending => used.iter().rev().find(fits).copied(),
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::objects::Labels;
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, more: Value) -> Service {
        let mut whole = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80, "protocol": "TCP" }] },
        });
        merge(&mut whole, more);
        serde_json::from_value(whole).expect("a Service")
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    fn annotated(pairs: Value) -> Value {
        json!({ "metadata": { "annotations": pairs } })
    }

    fn status(addresses: &[&str]) -> Value {
        let ingress: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({ "status": { "loadBalancer": { "ingress": ingress } } })
    }

    fn pools(entries: &[(&str, &str)]) -> Pools {
        Pools::new(Some(entries.iter().copied().collect::<Labels>()))
    }

    /// The addresses of `service` beside others, or the refusal.
    fn decide(service: &Service, others: &[Service], pools: &Pools) -> Result<Plan, Refusal> {
        let claim = |service: &Service| {
            Claim::of(service, &[], pools.allows_sharing(&service.meta.namespace))
        };
        let others: Vec<Claim> = others.iter().map(claim).collect();
        plan(service, &claim(service), &[], &others, pools)
    }

    fn shown(decision: Result<Plan, Refusal>) -> String {
        match decision {
            Ok(plan) => super::super::claims::show(&plan.addresses),
            Err(refusal) => format!("{refusal}"),
        }
    }

    /// Policy, families, pool, used addresses, and the addresses if there are any.
    type Case<'a> = (&'a Value, &'a Value, &'a str, &'a [&'a str], Option<&'a str>);

    /// kube-vip-cloud-provider's own cases.
    #[test]
    fn families_are_chosen_as_kube_vip_chooses_them() {
        let (v4, v6) = ("10.10.10.8-10.10.10.15", "fd00::1-fd00::10");
        let both = "10.10.10.8-10.10.10.15,fd00::1-fd00::10";
        let few = "10.10.10.8-10.10.10.9,fd00::1-fd00::2";
        let (no_v4, no_v6) = (["10.10.10.8", "10.10.10.9"], ["fd00::1", "fd00::2"]);
        let none = [no_v4, no_v6].concat();
        let some_v4 = ["10.10.10.8", "10.10.10.9", "10.10.10.10", "10.10.10.12"];
        let some_v6 = ["fd00::1", "fd00::2", "fd00::4"];
        let (single, prefer, require) =
            (json!("SingleStack"), json!("PreferDualStack"), json!("RequireDualStack"));
        let four = json!(["IPv4"]);
        let six = json!(["IPv6"]);
        let four_six = json!(["IPv4", "IPv6"]);
        let six_four = json!(["IPv6", "IPv4"]);
        let cases: [Case<'_>; 23] = [
            (&Value::Null, &Value::Null, v4, &some_v4, Some("10.10.10.11")),
            (&single, &four, v4, &some_v4, Some("10.10.10.11")),
            (&Value::Null, &Value::Null, v6, &some_v6, Some("fd00::3")),
            (&single, &six, v6, &some_v6, Some("fd00::3")),
            (&single, &four, v6, &[], None),
            (&single, &six, v4, &[], None),
            (&prefer, &four_six, v4, &some_v4, Some("10.10.10.11")),
            (&prefer, &four_six, v6, &some_v6, Some("fd00::3")),
            (&prefer, &Value::Null, both, &[], Some("10.10.10.8,fd00::1")),
            (&prefer, &four_six, both, &[], Some("10.10.10.8,fd00::1")),
            (&prefer, &six_four, both, &[], Some("fd00::1,10.10.10.8")),
            (&prefer, &four_six, few, &no_v6, Some("10.10.10.8")),
            (&prefer, &four_six, few, &no_v4, Some("fd00::1")),
            (&prefer, &six_four, few, &no_v6, Some("10.10.10.8")),
            (&prefer, &four_six, few, &none, None),
            (&prefer, &four_six, "10.10.10.8-10.10.10.9,invalid-pool", &[], None),
            (&require, &four_six, v4, &[], None),
            (&require, &four_six, v6, &[], None),
            (&require, &four_six, "", &[], None),
            (&require, &four_six, both, &[], Some("10.10.10.8,fd00::1")),
            (&require, &six_four, both, &[], Some("fd00::1,10.10.10.8")),
            (&require, &four_six, few, &no_v6, None),
            (&require, &four_six, few, &no_v4, None),
        ];
        for (policy, families, pool, used, expected) in cases {
            let text = format!("{policy} {families} {pool} {used:?}");
            let spec = json!({ "spec": { "ipFamilyPolicy": policy, "ipFamilies": families } });
            let others: Vec<Service> =
                used.iter().map(|address| service(address, status(&[address]))).collect();
            let decision =
                decide(&service("new", spec), &others, &pools(&[("range-global", pool)]));
            match expected {
                Some(expected) => assert_eq!(shown(decision), expected, "{text}"),
                None => assert!(decision.is_err(), "{text}: {decision:?}"),
            }
        }
    }

    #[test]
    fn an_address_that_a_service_was_given_stays() {
        let kept = annotated(json!({
            "kube-vip.io/loadbalancerIPs": "10.0.0.9", "bare/given-addresses": "10.0.0.9",
        }));
        let kept = service("old", kept);
        // Even when the pool has changed.
        for pool in ["10.0.0.0/24", "10.9.0.0/24"] {
            let decision = decide(&kept, &[], &pools(&[("cidr-global", pool)]));
            assert_eq!(shown(decision), "10.0.0.9");
        }
        assert_eq!(shown(decide(&kept, &[], &Pools::new(None))), "10.0.0.9");
        // It moves to the pool that it asks for.
        let mut moved = kept.clone();
        moved.meta.annotations =
            moved.meta.annotations.iter().chain([("metallb.io/address-pool", "other")]).collect();
        let pools = pools(&[("cidr-global", "10.0.0.0/24"), ("cidr-other", "10.1.0.0/24")]);
        assert_eq!(shown(decide(&moved, &[], &pools)), "10.1.0.1");
        // The second family is added, and taken away.
        let dual = json!({ "spec": {
            "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"],
        } });
        let given = annotated(json!({
            "kube-vip.io/loadbalancerIPs": "10.0.0.9", "bare/given-addresses": "10.0.0.9",
        }));
        let mut grown = given;
        merge(&mut grown, dual);
        let pool = super::tests::pools(&[("cidr-global", "10.0.0.0/24,fd00::/120")]);
        assert_eq!(shown(decide(&service("old", grown), &[], &pool)), "10.0.0.9,fd00::");
        let two = annotated(json!({
            "kube-vip.io/loadbalancerIPs": "10.0.0.9,fd00::1",
            "bare/given-addresses": "10.0.0.9,fd00::1",
        }));
        let mut shrunk = two;
        merge(&mut shrunk, json!({ "spec": { "ipFamilies": ["IPv4"] } }));
        assert_eq!(shown(decide(&service("old", shrunk), &[], &pool)), "10.0.0.9");
    }

    #[test]
    fn requests_are_granted_or_refused_with_their_reason() {
        let pool = pools(&[
            ("cidr-global", "10.0.0.0/24"),
            ("cidr-other", "10.1.0.0/24"),
            ("cidr-dhcp", "0.0.0.0/32"),
        ]);
        let taken = service("taken", status(&["10.0.0.5"]));
        let cases = [
            (json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.7" }), json!({}), "10.0.0.7"),
            // The address is in no pool.
            (json!({ "kube-vip.io/loadbalancerIPs": "192.0.2.1" }), json!({}), "192.0.2.1"),
            (json!({ "metallb.io/loadBalancerIPs": "10.0.0.7" }), json!({}), "10.0.0.7"),
            (json!({ "metallb.universe.tf/loadBalancerIPs": "10.0.0.7" }), json!({}), "10.0.0.7"),
            (json!({}), json!({ "loadBalancerIP": "10.0.0.7" }), "10.0.0.7"),
            // As kube-vip-cloud-provider leaves a Service.
            (
                json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.7,fd00::7" }),
                json!({ "loadBalancerIP": "10.0.0.7", "ipFamilies": ["IPv4", "IPv6"] }),
                "10.0.0.7,fd00::7",
            ),
            // A request after an address from a pool.
            (
                json!({
                    "kube-vip.io/loadbalancerIPs": "10.0.0.9", "bare/given-addresses": "10.0.0.9",
                    "metallb.io/loadBalancerIPs": "10.0.0.7",
                }),
                json!({}),
                "10.0.0.7",
            ),
            (json!({ "kube-vip.io/loadbalancerIPs": "0.0.0.0" }), json!({}), "0.0.0.0"),
            (json!({ "metallb.io/address-pool": "dhcp" }), json!({}), "0.0.0.0"),
            (
                json!({ "metallb.io/address-pool": "none" }),
                json!({}),
                "no address pools could be found: the ConfigMap has none of cidr-none, range-none",
            ),
            (
                json!({ "metallb.io/address-pool": "other", "metallb.io/loadBalancerIPs": "10.0.0.7" }),
                json!({}),
                "10.0.0.7 is asked for, but is not in the pool cidr-other [10.1.0.0/24]",
            ),
            (
                json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.5" }),
                json!({}),
                "10.0.0.5 is the address of Service default/taken, and the two do not share \
                 addresses",
            ),
            // The same address in another form.
            (
                json!({ "kube-vip.io/loadbalancerIPs": "::ffff:10.0.0.5" }),
                json!({ "ipFamilies": ["IPv4", "IPv6"] }),
                "10.0.0.5 is the address of Service default/taken, and the two do not share \
                 addresses",
            ),
            (
                json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.256" }),
                json!({}),
                "kube-vip.io/loadbalancerIPs: \"10.0.0.256\" is not an IP address",
            ),
            (
                json!({ "metallb.io/loadBalancerIPs": "10.0.0.7" }),
                json!({ "loadBalancerIP": "10.0.0.8" }),
                "metallb.io/loadBalancerIPs and spec.loadBalancerIP ask for different addresses",
            ),
            (
                json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.7,10.0.0.8" }),
                json!({}),
                "10.0.0.8 is asked for: one address for each IP family of the Service",
            ),
            (
                json!({ "kube-vip.io/loadbalancerIPs": "fd00::1" }),
                json!({ "ipFamilies": ["IPv4"] }),
                "fd00::1 is asked for: one address for each IP family of the Service",
            ),
        ];
        for (annotations, spec, expected) in cases {
            let mut more = annotated(annotations);
            merge(&mut more, json!({ "spec": spec }));
            let decision = decide(&service("new", more), std::slice::from_ref(&taken), &pool);
            assert_eq!(shown(decision), expected);
        }
    }

    #[test]
    fn of_two_services_with_one_address_one_keeps_it() {
        let pool = pools(&[("cidr-global", "10.0.0.0/29")]);
        let give = |name: &str, more: Value| {
            let mut given = annotated(json!({
                "kube-vip.io/loadbalancerIPs": "10.0.0.1", "bare/given-addresses": "10.0.0.1",
            }));
            merge(&mut given, more);
            service(name, given)
        };
        let created = |time: &str| json!({ "metadata": { "creationTimestamp": time } });
        let request = |time: &str| {
            let mut request = annotated(json!({ "kube-vip.io/loadbalancerIPs": "10.0.0.1" }));
            merge(&mut request, created(time));
            service("w", request)
        };
        let granted = |time: &str| {
            let mut granted = annotated(json!({
                "kube-vip.io/loadbalancerIPs": "10.0.0.1", "bare/granted-addresses": "10.0.0.1",
            }));
            merge(&mut granted, created(time));
            service("x", granted)
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (keeps, loses) in [
            // The older one keeps it; of the same age, the first by name.
            (give("b", created(early)), give("a", created(late))),
            (give("a", created(early)), give("b", created(early))),
            // The one whose status shows it keeps it.
            (give("b", status(&["10.0.0.1"])), give("a", json!({}))),
            // The one that was given it, before one that asks for it.
            (give("b", created(late)), request(early)),
            (granted(late), request(early)),
        ] {
            let name = format!("{} {}", keeps.meta.name, loses.meta.name);
            let keeping = decide(&keeps, std::slice::from_ref(&loses), &pool);
            assert_eq!(shown(keeping), "10.0.0.1", "{name}");
            let losing = shown(decide(&loses, std::slice::from_ref(&keeps), &pool));
            assert_ne!(losing, "10.0.0.1", "{name}");
            assert!(losing == "10.0.0.2" || losing.contains("is the address of"), "{losing}");
        }
    }

    #[test]
    fn addresses_are_shared_by_key_and_by_namespace() {
        let key = |key: &str, port: u16| {
            let mut more = annotated(json!({ "metallb.io/allow-shared-ip": key }));
            merge(&mut more, json!({ "spec": { "ports": [{ "port": port }] } }));
            more
        };
        let at = |name: &str, mut more: Value, address: &str| {
            merge(&mut more, status(&[address]));
            service(name, more)
        };
        let port = |port: u16, protocol: &str| json!({ "spec": { "ports": [{ "port": port, "protocol": protocol }] } });
        let local = |mut more: Value, app: &str| {
            let local = json!({ "externalTrafficPolicy": "Local", "selector": { "app": app } });
            merge(&mut more, json!({ "spec": local }));
            more
        };
        let plain = pools(&[("cidr-global", "10.0.0.0/29")]);
        let sharing = pools(&[("cidr-global", "10.0.0.0/29"), ("allow-share-global", "true")]);
        for (pools, own, other, expected) in [
            (&plain, key("a", 80), key("a", 443), "10.0.0.2"),
            // The first address that fits, free or not.
            (&plain, key("a", 80), key("b", 443), "10.0.0.1"),
            (&plain, key("a", 80), key("a", 80), "10.0.0.1"),
            (&plain, local(key("a", 80), "x"), local(key("a", 443), "x"), "10.0.0.2"),
            (&plain, local(key("a", 80), "x"), local(key("a", 443), "y"), "10.0.0.1"),
            (&plain, local(key("a", 80), "x"), key("a", 443), "10.0.0.1"),
            (&plain, port(53, "TCP"), port(53, "UDP"), "10.0.0.1"),
            (&sharing, port(53, "TCP"), port(53, "UDP"), "10.0.0.2"),
            (&sharing, port(53, "UDP"), port(53, "UDP"), "10.0.0.1"),
        ] {
            // The other one has the second address; the key prefers the first free one, a namespace
            // that shares prefers the one in use.
            let others = [at("other", other.clone(), "10.0.0.2")];
            let first = at("first", port(1, "TCP"), "10.0.0.1");
            let decision = shown(decide(&service("new", own.clone()), &others, pools));
            let text = format!("{own} {other}");
            if pools.allows_sharing("default") {
                assert_eq!(decision, expected, "{text}");
                continue;
            }
            assert_eq!(decision, "10.0.0.1", "{text}");
            // Without the first address the shared one comes before the free third one.
            let others = [others[0].clone(), first];
            let decision = shown(decide(&service("new", own), &others, pools));
            let expected = if expected == "10.0.0.2" { "10.0.0.2" } else { "10.0.0.3" };
            assert_eq!(decision, expected, "{text}");
        }
    }

    #[test]
    fn exhausted_pools_say_so_and_preferred_families_are_remembered() {
        let pool = pools(&[("cidr-global", "10.0.0.1/32,fd00::1/128")]);
        let first = service("first", status(&["10.0.0.1"]));
        let decision = decide(&service("new", json!({})), std::slice::from_ref(&first), &pool);
        assert_eq!(
            shown(decision),
            "no addresses available: all IPv4 of cidr-global [10.0.0.1/32,fd00::1/128] are in use"
        );
        let dual = json!({ "spec": {
            "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"],
        } });
        let decision = decide(&service("new", dual.clone()), &[first], &pool);
        assert_eq!(decision.map(|plan| plan.lacks), Ok(Some(Family::V4)));
        // A pool without the family is not waited for.
        let v6 = pools(&[("cidr-global", "fd00::1/128")]);
        assert_eq!(decide(&service("new", dual), &[], &v6).map(|plan| plan.lacks), Ok(None));
        let single = json!({ "spec": {
            "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4"],
        } });
        assert_eq!(
            shown(decide(&service("new", single), &[], &pool)),
            "the pool cidr-global [10.0.0.1/32,fd00::1/128] has no IPv6 addresses"
        );
    }
}
