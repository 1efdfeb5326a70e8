//! The names and the resolver of a pod. Upstream: `dns.Configurer`, `GeneratePodHostNameAndDomain`.

use std::fs;
use std::io::Read;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::Error;
use crate::cri::api;
use crate::pod::{Pod, PodExt};

/// The limits of a pod's resolver. Upstream: `MaxDNSNameservers`, `MaxDNSSearchPaths`,
/// `MaxDNSSearchListChars`, and the longest search path.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH: usize = 253;
/// What a resolver without servers asks.
const LOCAL: &str = "127.0.0.1";
/// Upstream: `maxResolvConfLength`.
const MAX_FILE: u64 = 10 << 20;
/// The longest host name without its domain: one less than the kernel allows, as upstream.
const MAX_HOSTNAME: usize = 63;
/// The longest name with its domain that the kernel gets.
pub(super) const MAX_FQDN: usize = MAX_HOSTNAME + 1;

/// The resolvers that pods may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolvers {
    /// The machine's file; `None`: pods have nothing of it.
    pub host: Option<PathBuf>,
    /// `clusterDNS`: the servers of pods with the policy `ClusterFirst`.
    pub cluster_servers: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
}

/// Builds the DNS configuration of a pod, by its policy and its own settings. Reads the machine's
/// file each time: it changes with the machine's network. Blocks.
///
/// # Errors
/// When the machine's file cannot be read.
pub fn resolver(pod: &Pod, resolvers: &Resolvers) -> Result<api::DnsConfig, Error> {
    let is_needed = pod.spec().dns_policy.as_deref() != Some("None");
    let host = resolvers.host.as_deref().filter(|_| is_needed).map(read).transpose()?;
    Ok(combine(pod, resolvers, host.as_ref()))
}

/// Reads a resolver's file, as upstream at most [`MAX_FILE`] bytes. Upstream: `getHostDNSConfig`.
fn read(file: &Path) -> Result<api::DnsConfig, Error> {
    let fault = |source| Error::ResolvConf { path: file.to_owned(), source };
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).map_err(fault)?;
    opened.take(MAX_FILE).read_to_end(&mut bytes).map_err(fault)?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Parses the lists of a resolver's file. Upstream: `dns.parseResolvConf`.
fn parse(text: &str) -> api::DnsConfig {
    let mut dns = api::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
        let key = words.next();
        let values = words.map(str::to_owned);
        match key {
            Some("nameserver") => dns.servers.extend(values.take(1)),
            // `a.` and `a` are the same, and the root is searched in any case.
            Some("search") => {
                let values = values.filter(|value| value != ".");
                let values =
                    values.map(|value| value.strip_suffix('.').unwrap_or(&value).to_owned());
                dns.searches = values.collect();
            }
            Some("options") => values.for_each(|value| set_option(&mut dns.options, &value)),
            _ => {}
        }
    }
    dns
}

/// Builds the DNS configuration of a pod from its policy, its own settings and the machine's
/// resolver (`host`).
fn combine(pod: &Pod, resolvers: &Resolvers, host: Option<&api::DnsConfig>) -> api::DnsConfig {
    let spec = pod.spec();
    let of_host = || match host {
        Some(host) => {
            let mut host = host.clone();
            // Interfaces of the node do not exist in another network.
            host.servers.retain(|server| pod.is_host_network() || !is_scoped(server));
            host
        }
        None => api::DnsConfig {
            servers: vec![LOCAL.to_owned()],
            // As upstream for an empty `--resolv-conf`: a runtime would take the machine's
            // searches.
            searches: vec![".".to_owned()],
            options: Vec::new(),
        },
    };
    let is_cluster_first = match spec.dns_policy.as_deref() {
        Some("None" | "Default") => false,
        // On the host's network, only `ClusterFirstWithHostNet` asks for the cluster's servers.
        Some("ClusterFirst") => !pod.is_host_network(),
        // `ClusterFirstWithHostNet`.
        _ => true,
    };
    let mut dns = match spec.dns_policy.as_deref() {
        Some("None") => api::DnsConfig::default(),
        // Without servers of a cluster it is the machine's.
        _ if is_cluster_first && !resolvers.cluster_servers.is_empty() => {
            cluster(pod, resolvers, host)
        }
        _ => of_host(),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        dns.servers = unique(dns.servers);
        dns.searches = unique(dns.searches);
        for option in own.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            let value = option.value.as_deref().filter(|value| !value.is_empty());
            set_option(
                &mut dns.options,
                &value.map_or_else(|| name.clone(), |value| format!("{name}:{value}")),
            );
        }
    }
    if dns == api::DnsConfig::default() {
        // The runtime would take the machine's.
        dns.servers.push(LOCAL.to_owned());
    }
    fit(pod, &mut dns);
    dns
}

/// Builds the DNS configuration of a pod that asks the cluster's servers first; the searches of the
/// host follow the cluster's.
fn cluster(pod: &Pod, resolvers: &Resolvers, host: Option<&api::DnsConfig>) -> api::DnsConfig {
    let domain = &resolvers.cluster_domain;
    let of_host = host.into_iter().flat_map(|host| host.searches.clone());
    let searches = match domain.is_empty() {
        true => of_host.collect(),
        false => {
            let own = format!("{}.svc.{domain}", pod.namespace());
            let own = [own, format!("svc.{domain}"), domain.clone()];
            unique(own.into_iter().chain(of_host).collect())
        }
    };
    api::DnsConfig {
        servers: resolvers.cluster_servers.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

/// Returns the list without repeated items, in its order.
fn unique(list: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(list.len());
    for item in list {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// Adds an option such as `ndots:2`; it replaces one with the same name.
fn set_option(options: &mut Vec<String>, option: &str) {
    let name = |option: &str| option.split(':').next().map(str::to_owned);
    match options.iter_mut().find(|known| name(known) == name(option)) {
        Some(known) => option.clone_into(known),
        None => options.push(option.to_owned()),
    }
}

/// Returns whether an address is on one link only, of the interface that its zone names:
/// `fe80::1%3`.
fn is_scoped(server: &str) -> bool {
    let address = server.split_once('%').and_then(|(address, _)| address.parse::<Ipv6Addr>().ok());
    address.is_some_and(|address| address.is_unicast_link_local())
}

/// Cuts a pod's DNS configuration to the limits that resolvers have, and logs it if something is
/// left out.
fn fit(pod: &Pod, dns: &mut api::DnsConfig) {
    let before = (dns.servers.len(), dns.searches.len());
    dns.servers.truncate(MAX_SERVERS);
    dns.searches.truncate(MAX_SEARCHES);
    dns.searches.retain(|search| search.len() <= MAX_SEARCH);
    while dns.searches.join(" ").len() > MAX_SEARCH_CHARS {
        dns.searches.pop();
    }
    if before != (dns.servers.len(), dns.searches.len()) {
        log::warn!(
            "pod {}: the resolver's limits were exceeded, the applied nameservers are: {}, the \
             applied search line is: {}",
            pod.display_name(),
            dns.servers.join(" "),
            dns.searches.join(" "),
        );
    }
}

/// A pod's name in its network, and the domain below which it stands; empty: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub host: String,
    pub domain: String,
}

/// Returns the name of a pod by its `hostnameOverride`, `hostname` and `subdomain`.
pub fn name(pod: &Pod, cluster_domain: &str) -> PodName {
    let spec = pod.spec();
    let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    if let Some(host) = &spec.hostname_override {
        return PodName { host: shorten(host), domain: String::new() };
    }
    let host = text(&spec.hostname).unwrap_or_else(|| pod.name().to_owned());
    let domain = text(&spec.subdomain).map(|subdomain| {
        let namespace = pod.namespace();
        format!("{subdomain}.{namespace}.svc.{cluster_domain}")
    });
    PodName { host: shorten(&host), domain: domain.unwrap_or_default() }
}

/// Cuts a host name to upstream's limit, and `-` and `.` off the new end. Upstream:
/// `truncatePodHostnameIfNeeded`.
fn shorten(host: &str) -> String {
    match host.get(..MAX_HOSTNAME) {
        Some(start) if host.len() > MAX_HOSTNAME => start.trim_end_matches(['-', '.']).to_owned(),
        _ => host.to_owned(),
    }
}

impl PodName {
    /// Returns the name for the kernel: with `setHostnameAsFQDN` the one with its domain.
    ///
    /// # Errors
    /// When that is too long for the kernel.
    pub fn for_kernel(&self, pod: &Pod) -> Result<String, Error> {
        if self.domain.is_empty() || pod.spec().set_hostname_as_fqdn != Some(true) {
            return Ok(self.host.clone());
        }
        let full = format!("{}.{}", self.host, self.domain);
        match full.len() > MAX_FQDN {
            false => Ok(full),
            true => Err(Error::LongName(full)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let pod = json!({"metadata": {"name": "p-n", "namespace": "ns"}, "spec": spec});
        serde_json::from_value(pod).expect("a pod")
    }

    fn shown(dns: &api::DnsConfig) -> String {
        let all = [&dns.servers, &dns.searches, &dns.options];
        all.map(|list| list.join(" ")).join(" | ")
    }

    #[test]
    fn resolver_depends_on_policy_and_settings() {
        let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let host = api::DnsConfig {
            servers: list("1.1.1.1"),
            searches: list("corp lan"),
            options: list("ndots:2 rotate"),
        };
        let none = Resolvers::default();
        let alone = &(none.clone(), Some(host.clone()));
        let with_servers = |servers: &str, searches| {
            let host = api::DnsConfig { servers: list(servers), searches, options: Vec::new() };
            (Resolvers::default(), Some(host))
        };
        let scoped = &with_servers("fe80::1%3 fe80::2 2001:db8::1%3", list("lan"));
        let only_scoped = &with_servers("fe80::1%eth0", Vec::new());
        let clustered = Resolvers {
            cluster_servers: list("10.0.0.10"),
            cluster_domain: "cluster.local".to_owned(),
            ..none.clone()
        };
        let (clustered, none) = (&(clustered, Some(host)), &(none, None));
        let own = json!({"nameservers": ["8.8.8.8", "1.1.1.1"], "searches": ["lan", "x"],
            "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]});
        let many = json!({"nameservers": ["1", "2", "3", "4"]});
        let of_cluster = "10.0.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp \
                          lan | ndots:5";
        let of_host = "1.1.1.1 | corp lan | ndots:2 rotate";
        for (spec, (resolvers, host), expected) in [
            (json!({"dnsPolicy": "ClusterFirst"}), alone, of_host),
            (json!({"dnsPolicy": "ClusterFirst"}), none, "127.0.0.1 | . | "),
            (json!({"dnsPolicy": "ClusterFirst"}), clustered, of_cluster),
            (json!({}), clustered, of_cluster),
            (json!({"dnsPolicy": "Default"}), clustered, of_host),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), clustered, of_host),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                clustered,
                of_cluster,
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": own}),
                clustered,
                "8.8.8.8 1.1.1.1 | lan x | ndots:1 edns0",
            ),
            (
                json!({"dnsPolicy": "Default", "dnsConfig": own}),
                alone,
                "1.1.1.1 8.8.8.8 | corp lan x | ndots:1 rotate edns0",
            ),
            (json!({"dnsPolicy": "None", "dnsConfig": many}), alone, "1 2 3 |  | "),
            (json!({"dnsPolicy": "Default"}), scoped, "fe80::2 2001:db8::1%3 | lan | "),
            (
                json!({"dnsPolicy": "Default", "hostNetwork": true}),
                scoped,
                "fe80::1%3 fe80::2 2001:db8::1%3 | lan | ",
            ),
            (json!({"dnsPolicy": "ClusterFirst"}), only_scoped, "127.0.0.1 |  | "),
            (
                json!({"dnsPolicy": "Default", "dnsConfig": own}),
                only_scoped,
                "8.8.8.8 1.1.1.1 | lan x | ndots:1 edns0",
            ),
        ] {
            let dns = combine(&pod(spec.clone()), resolvers, host.as_ref());
            assert_eq!(shown(&dns), expected, "{spec}");
        }
    }

    #[test]
    fn resolver_file_is_read() {
        let dns = parse("# x\nnameserver 1.1.1.1\nsearch a b\nsearch c\noptions ndots:2 # y\n");
        assert_eq!(dns.servers, ["1.1.1.1"]);
        assert_eq!(dns.searches, ["c"]);
        assert_eq!(dns.options, ["ndots:2"]);
    }

    #[test]
    fn options_of_a_resolver_replace_each_other() {
        let dns = parse(
            "search a. . b\noptions ndots:2 rotate ndots:3\noptions timeout:1 ndots:5 rotate\n",
        );
        assert_eq!(dns.searches, ["a", "b"]);
        assert_eq!(dns.options, ["ndots:5", "rotate", "timeout:1"]);
    }

    #[test]
    fn machines_file_is_read_for_each_pod_that_needs_it() {
        let file = std::env::temp_dir().join(format!("kubelet-resolver-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        let resolvers = Resolvers { host: Some(file.clone()), ..Resolvers::default() };
        let servers = |policy: &str| {
            let dns = resolver(&pod(json!({ "dnsPolicy": policy })), &resolvers);
            dns.map(|dns| dns.servers.join(" ")).map_err(|error| error.to_string())
        };
        // The machine has booted and has no network yet.
        assert!(servers("Default").is_err_and(|fault| fault.contains("(--resolv-conf)")));
        assert_eq!(servers("None").as_deref(), Ok(LOCAL));
        for server in ["1.1.1.1", "2.2.2.2"] {
            fs::write(&file, format!("nameserver {server}\n")).expect("a file");
            assert_eq!(servers("ClusterFirst").as_deref(), Ok(server));
        }
        fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn search_lists_are_cut_to_their_limits() {
        let searches: Vec<String> = (0..40).map(|at| format!("{at:0>80}")).collect();
        let spec = json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}});
        let dns = combine(&pod(spec), &Resolvers::default(), None);
        assert_eq!(dns.searches.len(), 25);
        let long = json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["x".repeat(254), "a"]}});
        assert_eq!(combine(&pod(long), &Resolvers::default(), None).searches, ["a"]);
    }

    #[test]
    fn names_follow_hostname_and_subdomain() {
        let long = "x".repeat(62) + "-y";
        for (spec, host, domain, kernel) in [
            (json!({}), "p-n", "", Some("p-n")),
            (json!({"hostname": "h"}), "h", "", Some("h")),
            (json!({"hostname": "h", "subdomain": "s"}), "h", "s.ns.svc.c.d", Some("h")),
            (
                json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}),
                "h",
                "s.ns.svc.c.d",
                Some("h.s.ns.svc.c.d"),
            ),
            (json!({"hostname": "h", "hostnameOverride": "o.p"}), "o.p", "", Some("o.p")),
            (json!({"hostname": long}), &"x".repeat(62), "", Some(&*"x".repeat(62))),
            (
                json!({"hostname": "h".repeat(60), "subdomain": "s", "setHostnameAsFQDN": true}),
                &"h".repeat(60),
                "s.ns.svc.c.d",
                None,
            ),
        ] {
            let pod = pod(spec.clone());
            let name = name(&pod, "c.d");
            assert_eq!((&*name.host, &*name.domain), (host, domain), "{spec}");
            assert_eq!(name.for_kernel(&pod).ok().as_deref(), kernel, "{spec}");
        }
    }
}
