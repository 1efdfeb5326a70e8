//! The addresses that Services have and want, read from the Services themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube_controller_manager::objects::{Labels, ObjectKey, Timestamp};

use super::ranges::{Family, parse_address};
use crate::objects::Service;

/// The addresses of a Service, with commas between: kube-vip announces them.
pub const KUBE_VIP_ADDRESSES: &str = "kube-vip.io/loadbalancerIPs";
/// The interface on which kube-vip announces them.
pub const KUBE_VIP_INTERFACE: &str = "kube-vip.io/serviceInterface";
/// The addresses that this provider gave the Service. Where [`KUBE_VIP_ADDRESSES`] differs, a
/// person has set it.
pub const GIVEN_ADDRESSES: &str = "bare/given-addresses";
/// The addresses that this provider let the Service have, of those that a person asks for by
/// [`KUBE_VIP_ADDRESSES`].
pub const GRANTED_ADDRESSES: &str = "bare/granted-addresses";
/// With the value `true`, kube-vip sends the traffic of the Service's pods from its address. It
/// removes the rules for that by `spec.loadBalancerIP` alone.
pub const KUBE_VIP_EGRESS: &str = "kube-vip.io/egress";
/// The value of `spec.loadBalancerIP` that this provider has written: where the field differs, a
/// person has set it.
pub const GIVEN_FIELD: &str = "bare/given-load-balancer-ip";
/// The label by which kube-vip-cloud-provider finds its Services.
pub const IMPLEMENTATION: &str = "implementation";
pub const KUBE_VIP: &str = "kube-vip";

/// MetalLB's annotations, by their present and their former prefix.
const METALLB: [&str; 2] = ["metallb.io", "metallb.universe.tf"];

fn metallb<'a>(annotations: &'a Labels, name: &str) -> Option<&'a str> {
    METALLB.iter().find_map(|prefix| annotations.get(&format!("{prefix}/{name}")))
}

/// Parses addresses with commas between.
///
/// # Errors
/// The part that is no address.
fn parse(text: &str) -> Result<Vec<IpAddr>, String> {
    let parse = |part: &str| parse_address(part.trim()).ok_or_else(|| part.trim().to_owned());
    text.split(',').map(parse).collect()
}

/// Formats addresses with commas between, as annotations have them.
pub fn show(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(",")
}

/// Returns the value of `spec.loadBalancerIP`, if it has one.
pub fn field(service: &Service) -> Option<&str> {
    service.spec.load_balancer_ip.as_deref().filter(|text| !text.is_empty())
}

/// Returns whether a Service is one that the cloud's service controller gives a load balancer.
pub fn wants_load_balancer(service: &Service) -> bool {
    let is_load_balancer = service.spec.type_.as_deref() == Some("LoadBalancer");
    is_load_balancer && service.spec.load_balancer_class.is_none()
}

fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    service.meta.annotations.get(key).filter(|value| !value.is_empty())
}

/// Returns the addresses that this provider gave the Service before.
pub fn given(service: &Service) -> Vec<IpAddr> {
    annotation(service, GIVEN_ADDRESSES).and_then(|text| parse(text).ok()).unwrap_or_default()
}

/// Returns the addresses that a person asks for and that were granted.
fn granted(service: &Service) -> Vec<IpAddr> {
    let granted = annotation(service, GRANTED_ADDRESSES).and_then(|text| parse(text).ok());
    let granted = granted.unwrap_or_default();
    let requested = requested(service).unwrap_or_default();
    requested.into_iter().filter(|address| granted.contains(address)).collect()
}

/// Returns the addresses in the Service's status.
pub fn in_status(service: &Service) -> Vec<IpAddr> {
    let status = service.status.load_balancer.as_ref();
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    ingress.iter().filter_map(|ingress| parse_address(ingress.ip.as_deref()?)).collect()
}

/// Returns the pool that the Service asks for.
pub fn wanted_pool(service: &Service) -> Option<&str> {
    metallb(&service.meta.annotations, "address-pool").filter(|name| !name.is_empty())
}

/// Why the request of a Service cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    NoAddress {
        source: &'static str,
        part: String,
    },
    /// MetalLB's annotation and the field differ.
    TwoRequests,
}

/// Returns the addresses that a person asks for, by kube-vip's or MetalLB's annotation or by
/// `spec.loadBalancerIP`; empty: any. Values that this provider has written do not count.
///
/// # Errors
/// See [`RequestError`].
pub fn requested(service: &Service) -> Result<Vec<IpAddr>, RequestError> {
    let fault = |source| move |part| RequestError::NoAddress { source, part };
    if let Some(text) = annotation(service, KUBE_VIP_ADDRESSES)
        && Some(text) != annotation(service, GIVEN_ADDRESSES)
    {
        return parse(text).map_err(fault(KUBE_VIP_ADDRESSES));
    }
    let annotated = metallb(&service.meta.annotations, "loadBalancerIPs");
    let annotated = annotated.filter(|text| !text.is_empty());
    let field = field(service).filter(|text| annotation(service, GIVEN_FIELD) != Some(*text));
    let annotated =
        annotated.map(parse).transpose().map_err(fault("metallb.io/loadBalancerIPs"))?;
    let field = field.map(parse).transpose().map_err(fault("spec.loadBalancerIP"))?;
    match (annotated, field) {
        (Some(annotated), Some(field)) if annotated != field => Err(RequestError::TwoRequests),
        (annotated, field) => Ok(annotated.or(field).unwrap_or_default()),
    }
}

/// How firmly a Service has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// It asks for it.
    Requested,
    /// It was given it, or its request was granted.
    Given,
    /// Its status shows it.
    InStatus,
}

/// A Service among those that have or want addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub key: ObjectKey,
    created: Option<Timestamp>,
    pub addresses: Vec<(IpAddr, Hold)>,
    /// Protocol and port.
    ports: BTreeSet<(Box<str>, i32)>,
    /// MetalLB's key: Services with the same one share.
    sharing_key: Option<Box<str>>,
    /// Whether the namespace's Services share IPv4 addresses.
    shares_in_namespace: bool,
    /// Where traffic goes, as far as sharing is concerned.
    backend: Box<str>,
}

impl Claim {
    /// Returns the claim of a Service, read from its status, annotations and spec. `reserved`:
    /// addresses that this process has chosen for it, which the cache may not show yet.
    /// `shares_in_namespace`: whether the ConfigMap lets the Services of its namespace share.
    pub fn of(service: &Service, reserved: &[IpAddr], shares_in_namespace: bool) -> Claim {
        let mut claim = Claim {
            key: service.meta.key(),
            created: service.meta.creation_timestamp,
            addresses: Vec::new(),
            ports: ports(service),
            sharing_key: metallb(&service.meta.annotations, "allow-shared-ip")
                .filter(|key| !key.is_empty())
                .map(Box::from),
            shares_in_namespace,
            backend: backend(service),
        };
        claim.add(&in_status(service), Hold::InStatus);
        claim.add(&given(service), Hold::Given);
        claim.add(&granted(service), Hold::Given);
        claim.add(reserved, Hold::Given);
        if service.spec.type_.as_deref() == Some("LoadBalancer") {
            claim.add(&requested(service).unwrap_or_default(), Hold::Requested);
        }
        claim
    }

    /// Adds addresses with this hold, except those that the claim has already: the firmest holds
    /// are added first.
    fn add(&mut self, addresses: &[IpAddr], hold: Hold) {
        for address in addresses {
            // 0.0.0.0 stands for an address by DHCP: the announcer gets another one.
            if !address.is_unspecified() && self.hold(*address).is_none() {
                self.addresses.push((*address, hold));
            }
        }
    }

    pub fn hold(&self, address: IpAddr) -> Option<Hold> {
        self.addresses.iter().find(|(own, _)| *own == address).map(|(_, hold)| *hold)
    }

    /// Returns whether this Service keeps an address, and not `other`, which has or wants it too:
    /// the one with the firmer hold keeps it, then the older one.
    pub fn precedes(&self, other: &Claim, address: IpAddr) -> bool {
        let hold = |claim: &Claim| claim.hold(address).unwrap_or(Hold::Requested);
        let order =
            |claim: &Claim| (std::cmp::Reverse(hold(claim)), claim.created, claim.key.to_string());
        order(self) < order(other)
    }

    /// Checks that both Services may have the same address.
    ///
    /// # Errors
    /// Why they may not.
    pub fn shares(&self, other: &Claim, address: IpAddr) -> Result<(), String> {
        let by_key = self.sharing_key.is_some() && self.sharing_key == other.sharing_key;
        let by_namespace = Family::of(address) == Family::V4
            && self.shares_in_namespace
            && other.shares_in_namespace;
        if !by_key && !by_namespace {
            return Err("the two do not share addresses".to_owned());
        }
        if self.backend != other.backend {
            return Err("sharing with externalTrafficPolicy Local needs the same pods".to_owned());
        }
        match self.ports.intersection(&other.ports).next() {
            Some((protocol, port)) => Err(format!("both have port {port}/{protocol}")),
            None => Ok(()),
        }
    }

    /// Returns whether the Service takes an address that others have rather than a free one.
    pub fn prefers_shared(&self, family: Family) -> bool {
        self.sharing_key.is_none() && self.shares_in_namespace && family == Family::V4
    }
}

fn ports(service: &Service) -> BTreeSet<(Box<str>, i32)> {
    let ports = service.spec.ports.as_deref().unwrap_or_default();
    ports.iter().map(|port| (port.protocol.as_deref().unwrap_or("TCP").into(), port.port)).collect()
}

/// Returns the pods to which the traffic goes, as far as sharing is concerned: with
/// `externalTrafficPolicy: Local` those of the selector, else `cluster`. Upstream: MetalLB's
/// `BackendKey`.
fn backend(service: &Service) -> Box<str> {
    match service.spec.external_traffic_policy.as_deref() {
        Some("Local") => {
            let selector = service.spec.selector.iter().flatten();
            let pairs: Vec<String> =
                selector.map(|(key, value)| format!("{key}={value}")).collect();
            format!("local {}", pairs.join(",")).into()
        }
        _ => "cluster".into(),
    }
}
