//! The flags of the allocator. Upstream: `newNodeIpamController`, `NewNodeIpamController`.

use super::cidr::Cidr;
use crate::options::Options;

/// The lengths of the prefixes of nodes' ranges where no flag sets them. Upstream:
/// `defaultNodeMaskCIDRIPv4`, `defaultNodeMaskCIDRIPv6`.
const DEFAULT_V4: i32 = 24;
const DEFAULT_V6: i32 = 64;

/// The ranges that the flags ask for.
#[derive(Debug, PartialEq)]
pub struct Config {
    /// The ranges of the cluster, one of each family, and the prefix of a node in each.
    pub clusters: Vec<(Cidr, u8)>,
    /// Ranges that nodes must not have.
    pub services: Vec<Cidr>,
}

impl Config {
    /// Reads from the flags the cluster's ranges, the prefix of a node in each, and the ranges of
    /// services.
    ///
    /// # Errors
    /// When the flags are not valid together.
    pub fn from_options(o: &Options) -> Result<Config, String> {
        if o.cidr_allocator_type == "CloudAllocator" {
            return Err(
                "--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not \
                        configured"
                    .to_owned(),
            );
        }
        let clusters = parse_cluster_cidrs(&o.cluster_cidr)?;
        let services = parse_service_cidrs(&o.service_cluster_ip_range)?;
        let prefixes = node_prefixes(o, &clusters)?;
        let mut sized = Vec::new();
        for (cluster, prefix) in clusters.into_iter().zip(prefixes) {
            let prefix = u8::try_from(prefix).ok().filter(|p| *p <= cluster.bits());
            match prefix {
                Some(prefix) if prefix >= cluster.prefix => sized.push((cluster, prefix)),
                _ => {
                    return Err(
                        "Controller: Invalid --cluster-cidr, mask size of cluster CIDR must \
                                be less than or equal to --node-cidr-mask-size configured for CIDR \
                                family"
                            .to_owned(),
                    );
                }
            }
        }
        // The check of the flags accepts an empty type.
        if o.cidr_allocator_type != "RangeAllocator" {
            return Err(format!("invalid CIDR allocator type: {}", o.cidr_allocator_type));
        }
        Ok(Config { clusters: sized, services })
    }
}

/// Parses `--cluster-cidr`: one range, or one of each family.
/// Upstream: `validateCIDRs`.
fn parse_cluster_cidrs(list: &str) -> Result<Vec<Cidr>, String> {
    let mut cidrs = Vec::new();
    for text in list.trim().split(',') {
        let cidr = Cidr::parse(text);
        cidrs.push(cidr.ok_or_else(|| {
            format!("invalid CIDR[{}]: invalid CIDR address: {text}", cidrs.len())
        })?);
    }
    let is_dual = cidrs.iter().any(|cidr| cidr.is_v4) && cidrs.iter().any(|cidr| !cidr.is_v4);
    if cidrs.len() > 1 && !is_dual {
        return Err(format!(
            "len of ClusterCIDRs=={} and they are not configured as dual stack (at least one from \
             each IPFamily",
            cidrs.len()
        ));
    }
    if cidrs.len() > 2 {
        return Err(format!(
            "length of clusterCIDRs is:{} more than max allowed of 2",
            cidrs.len()
        ));
    }
    Ok(cidrs)
}

/// Parses the first two ranges of services, which must be of different families; further ones are
/// ignored. A malformed one is skipped with a warning, as upstream.
fn parse_service_cidrs(list: &str) -> Result<Vec<Cidr>, String> {
    let mut cidrs = Vec::new();
    for text in list.split(',').take(2).filter(|text| !text.trim().is_empty()) {
        match Cidr::parse(text) {
            Some(cidr) => cidrs.push(cidr),
            None => log::info!("Warning: unsuccessful parsing of service CIDR {text:?}"),
        }
    }
    if matches!(cidrs[..], [first, second] if first.is_v4 == second.is_v4) {
        return Err("serviceCIDR and secondaryServiceCIDR are not dualstack (from different \
                    IPfamiles)"
            .to_owned());
    }
    Ok(cidrs)
}

/// Returns the length of a node's prefix for each range of the cluster, from the flags or the
/// defaults. An error if the flags do not fit the families of the cluster.
/// Upstream: `setNodeCIDRMaskSizes`.
fn node_prefixes(o: &Options, clusters: &[Cidr]) -> Result<Vec<i32>, String> {
    let or_default = |size: i32, default: i32| if size == 0 { default } else { size };
    // `size` is for a cluster of one family, whichever it is.
    let (size, v4, v6) =
        (o.node_cidr_mask_size, o.node_cidr_mask_size_ipv4, o.node_cidr_mask_size_ipv6);
    let error = |text: &str| Err(text.to_owned());
    if clusters.len() > 1 {
        if size != 0 {
            return error("usage of --node-cidr-mask-size is not allowed with dual-stack clusters");
        }
    } else if size != 0 {
        if v4 != 0 || v6 != 0 {
            return error(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed \
                 if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use \
                 IPFamily specific flags",
            );
        }
        return Ok(vec![size]);
    } else if clusters[0].is_v4 && v6 != 0 {
        return error(
            "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
        );
    } else if !clusters[0].is_v4 && v4 != 0 {
        return error(
            "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
        );
    }
    let prefix_of = |cluster: &Cidr| match cluster.is_v4 {
        true => or_default(v4, DEFAULT_V4),
        false => or_default(v6, DEFAULT_V6),
    };
    Ok(clusters.iter().map(prefix_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges and prefixes, then the service ranges; or the error.
    fn config(cluster: &str, services: &str, sizes: [i32; 3]) -> String {
        let [node_cidr_mask_size, node_cidr_mask_size_ipv4, node_cidr_mask_size_ipv6] = sizes;
        let options = Options {
            cluster_cidr: cluster.into(),
            service_cluster_ip_range: services.into(),
            node_cidr_mask_size,
            node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6,
            ..Options::default()
        };
        match Config::from_options(&options) {
            Err(error) => error,
            Ok(Config { clusters, services }) => {
                let clusters = clusters.iter().map(|(cidr, prefix)| format!("{cidr}>{prefix}"));
                let services = services.iter().map(|cidr| format!("not {cidr}"));
                clusters.chain(services).collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn only_the_range_allocator_is_built_in() {
        for (kind, expected) in [
            ("RangeAllocator", None),
            ("", Some("invalid CIDR allocator type: ")),
            (
                "CloudAllocator",
                Some(
                    "--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not \
                     configured",
                ),
            ),
        ] {
            let options = Options {
                cluster_cidr: "10.0.0.0/16".into(),
                cidr_allocator_type: kind.into(),
                ..Options::default()
            };
            assert_eq!(Config::from_options(&options).err().as_deref(), expected, "{kind:?}");
        }
    }

    #[test]
    fn flags_give_ranges_and_sizes() {
        // Upstream: TestSetNodeCIDRMaskSizesDualStack, TestNewNodeIpamControllerWithCIDRMasks. The
        // cluster, the services, the sizes for both families, IPv4 and IPv6.
        for (cluster, services, sizes, expected) in [
            ("10.0.0.0/21", "", [0, 0, 0], "10.0.0.0/21>24"),
            ("10.0.0.0/21", "10.1.0.0/21", [0, 26, 0], "10.0.0.0/21>26 not 10.1.0.0/21"),
            ("10.0.0.0/21", "", [25, 0, 0], "10.0.0.0/21>25"),
            ("fd00::/50", "", [0, 0, 0], "fd00::/50>64"),
            ("fd00::/50", "", [0, 0, 60], "fd00::/50>60"),
            (
                "10.0.0.0/21,fd00::/50",
                "10.1.0.0/21,fd01::/112",
                [0, 25, 60],
                "10.0.0.0/21>25 fd00::/50>60 not 10.1.0.0/21 not fd01::/112",
            ),
            (
                "fd00::/50,10.0.0.0/21",
                "x,fd01::/112",
                [0; 3],
                "fd00::/50>64 10.0.0.0/21>24 not fd01::/112",
            ),
            ("", "", [0; 3], "invalid CIDR[0]: invalid CIDR address: "),
            ("10.0.0.0/21,x", "", [0; 3], "invalid CIDR[1]: invalid CIDR address: x"),
            (
                "10.0.0.0/21,11.0.0.0/21",
                "",
                [0; 3],
                "len of ClusterCIDRs==2 and they are not configured as dual stack (at least one from \
                 each IPFamily",
            ),
            (
                "10.0.0.0/21,fd00::/50,fd01::/50",
                "",
                [0; 3],
                "length of clusterCIDRs is:3 more than max allowed of 2",
            ),
            (
                "10.0.0.0/21",
                "10.1.0.0/21,10.2.0.0/21",
                [0; 3],
                "serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)",
            ),
            (
                "10.0.0.0/21,fd00::/50",
                "",
                [24, 0, 0],
                "usage of --node-cidr-mask-size is not allowed with dual-stack clusters",
            ),
            (
                "10.0.0.0/21",
                "",
                [24, 24, 0],
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed \
                 if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use \
                 IPFamily specific flags",
            ),
            (
                "10.0.0.0/21",
                "",
                [0, 0, 64],
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            ),
            (
                "fd00::/50",
                "",
                [0, 24, 0],
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            ),
            (
                "10.0.0.0/25",
                "",
                [0; 3],
                "Controller: Invalid --cluster-cidr, mask size of cluster CIDR must be less than or \
                 equal to --node-cidr-mask-size configured for CIDR family",
            ),
        ] {
            assert_eq!(config(cluster, services, sizes), expected, "{cluster} {sizes:?}");
        }
    }
}
