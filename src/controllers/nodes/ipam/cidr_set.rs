//! The ranges of one size within a cluster's range, and which of them are taken.
//! Upstream: `pkg/controller/nodeipam/ipam/cidrset`.

use super::cidr::{Cidr, address};
use crate::metrics::{exponential, metrics};

metrics! {
    static ALLOCATIONS: IntCounterVec["clusterCIDR"] =
        "node_ipam_controller_cidrset_cidrs_allocations_total",
        "[ALPHA] Counter measuring total number of CIDR allocations.";
    static RELEASES: IntCounterVec["clusterCIDR"] =
        "node_ipam_controller_cidrset_cidrs_releases_total",
        "[ALPHA] Counter measuring total number of CIDR releases.";
    static MAX: IntGaugeVec["clusterCIDR"] = "node_ipam_controller_cirdset_max_cidrs",
        "[ALPHA] Maximum number of CIDRs that can be allocated.";
    static USAGE: GaugeVec["clusterCIDR"] = "node_ipam_controller_cidrset_usage_cidrs",
        "[ALPHA] Gauge measuring percentage of allocated CIDRs.";
    static TRIES: HistogramVec["clusterCIDR"](exponential(1.0, 5.0, 5)) =
        "node_ipam_controller_cidrset_allocation_tries_per_request",
        "[ALPHA] Number of endpoints added on each Service sync";
}

/// By how many bits the IPv6 prefix of a node may be longer than the cluster's: the set has a bit
/// for each node range. Upstream: `clusterSubnetMaxDiff`.
const MAX_DIFFERENCE: u8 = 16;

/// The node ranges of a cluster's range, by index, and which of them are taken.
pub struct CidrSet {
    cluster: Cidr,
    node_prefix: u8,
    max: u64,
    allocated: u64,
    /// Where the search for a free one starts, so that ranges are not reused at once.
    next: u64,
    used: Bits,
    label: String,
}

impl CidrSet {
    /// Makes the set of the node ranges in a cluster's range, of which all are free.
    ///
    /// # Errors
    /// When a cluster of IPv6 would have too many nodes. The prefix of a node must not be shorter
    /// than the cluster's.
    pub fn new(cluster: Cidr, node_prefix: u8) -> Result<CidrSet, String> {
        let difference = node_prefix - cluster.prefix;
        if !cluster.is_v4 && difference > MAX_DIFFERENCE {
            return Err("New CIDR set failed; the node CIDR size is too big".to_owned());
        }
        let (max, label) = (1 << difference, cluster.to_string());
        MAX.with_label_values(&[&label]).set(max as i64);
        let used = Bits::default();
        Ok(CidrSet { cluster, node_prefix, max, allocated: 0, next: 0, used, label })
    }

    /// Takes the next free range after the one that was taken last.
    ///
    /// # Errors
    /// When none is free.
    pub fn allocate(&mut self) -> Result<Cidr, String> {
        if self.allocated == self.max {
            return Err(
                "CIDR allocation failed; there are no remaining CIDRs left to allocate in \
                        the accepted range"
                    .to_owned(),
            );
        }
        let (mut candidate, mut tries) = (self.next, 0);
        while self.used.is_set(candidate) {
            candidate = (candidate + 1) % self.max;
            tries += 1;
        }
        self.next = (candidate + 1) % self.max;
        self.used.set(candidate, true);
        self.allocated += 1;
        ALLOCATIONS.with_label_values(&[&self.label]).inc();
        TRIES.with_label_values(&[&self.label]).observe(f64::from(tries));
        self.report();
        let shift = self.cluster.bits() - self.node_prefix;
        // With a prefix of 0 there is one range, and the shift would overflow.
        let offset = if shift == 128 { 0 } else { u128::from(candidate) << shift };
        let network = self.cluster.network | offset;
        Ok(Cidr { network, prefix: self.node_prefix, ..self.cluster })
    }

    /// Takes every range that `cidr` touches, whether it is free or not.
    ///
    /// # Errors
    /// When it lies outside of the cluster's range.
    pub fn occupy(&mut self, cidr: &Cidr) -> Result<(), String> {
        let taken = self.set_used(cidr, true)?;
        self.allocated += taken;
        ALLOCATIONS.with_label_values(&[&self.label]).inc_by(taken);
        self.report();
        Ok(())
    }

    /// Frees every range that `cidr` touches.
    ///
    /// # Errors
    /// When it lies outside of the cluster's range.
    pub fn release(&mut self, cidr: &Cidr) -> Result<(), String> {
        let freed = self.set_used(cidr, false)?;
        self.allocated -= freed;
        RELEASES.with_label_values(&[&self.label]).inc_by(freed);
        self.report();
        Ok(())
    }

    /// Marks every range that `cidr` touches as used or free, and returns how many changed.
    fn set_used(&mut self, cidr: &Cidr, used: bool) -> Result<u64, String> {
        let (first, last) = self.indices(cidr)?;
        Ok((first..=last).map(|index| u64::from(self.used.set(index, used))).sum())
    }

    /// Returns the first and the last index of the node ranges that overlap `cidr`.
    /// Upstream: `getBeginningAndEndIndices`.
    fn indices(&self, cidr: &Cidr) -> Result<(u64, u64), String> {
        let cluster = &self.cluster;
        if !cluster.overlaps(cidr) {
            return Err(format!("cidr {cidr} is out the range of cluster cidr {cluster}"));
        }
        if cidr.prefix <= cluster.prefix {
            return Ok((0, self.max - 1));
        }
        Ok((self.index(cidr.network)?, self.index(cidr.last())?))
    }

    /// Returns the index of the node range that contains the address `number`. An error outside of
    /// the cluster's range.
    fn index(&self, number: u128) -> Result<u64, String> {
        let shift = self.cluster.bits() - self.node_prefix;
        let offset = self.cluster.network ^ number;
        let index = if shift == 128 { 0 } else { offset >> shift };
        match u64::try_from(index) {
            Ok(index) if index < self.max => Ok(index),
            _ => {
                let (address, prefix) = (address(self.cluster.is_v4, number), self.node_prefix);
                Err(format!("CIDR: {address}/{prefix} is out of the range of CIDR allocator"))
            }
        }
    }

    /// Sets the metric of usage.
    fn report(&self) {
        USAGE.with_label_values(&[&self.label]).set(self.allocated as f64 / self.max as f64);
    }
}

/// Bits by index; those beyond the end are 0.
#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn is_set(&self, index: u64) -> bool {
        let (word, bit) = Bits::place(index);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Sets a bit to `on`, and returns whether this changed it.
    fn set(&mut self, index: u64, on: bool) -> bool {
        let (word, bit) = Bits::place(index);
        if self.is_set(index) == on {
            return false;
        }
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] ^= bit;
        true
    }

    /// Returns the position of the word that has the bit, and the mask of the bit in it.
    fn place(index: u64) -> (usize, u64) {
        ((index / 64) as usize, 1 << (index % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    fn set(cluster: &str, prefix: u8) -> CidrSet {
        CidrSet::new(cidr(cluster), prefix).unwrap()
    }

    fn allocate_many(set: &mut CidrSet, count: usize) -> Vec<String> {
        let next = |_| set.allocate().map_or_else(|error| error, |cidr| cidr.to_string());
        (0..count).map(next).collect()
    }

    const NONE_LEFT: &str = "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range";

    #[test]
    fn ranges_are_allocated_in_order_until_none_is_left() {
        // Upstream: TestCIDRSetFullyAllocated, TestIndexToCIDRBlock.
        for (cluster, prefix, expected) in [
            ("127.123.234.0/28", 30, &["127.123.234.0/30", "127.123.234.4/30"][..]),
            ("10.0.0.0/8", 16, &["10.0.0.0/16", "10.1.0.0/16"]),
            ("255.255.0.0/16", 24, &["255.255.0.0/24", "255.255.1.0/24"]),
            ("2001:db8::/48", 64, &["2001:db8::/64", "2001:db8:0:1::/64"]),
            ("2001:0db8:1234::/48", 52, &["2001:db8:1234::/52", "2001:db8:1234:1000::/52"]),
            ("2001:db8::/60", 68, &["2001:db8::/68", "2001:db8:0:0:1000::/68"]),
            ("beef:1234::/112", 128, &["beef:1234::/128", "beef:1234::1/128"]),
        ] {
            assert_eq!(allocate_many(&mut set(cluster, prefix), 2), expected, "{cluster}");
        }
        for (cluster, prefix, one) in [
            ("127.123.234.0/30", 30, "127.123.234.0/30"),
            ("10.0.0.0/32", 32, "10.0.0.0/32"),
            ("beef:1234::/30", 30, "beef:1234::/30"),
        ] {
            let mut set = set(cluster, prefix);
            assert_eq!(allocate_many(&mut set, 2), [one, NONE_LEFT]);
            set.release(&cidr(one)).unwrap();
            assert_eq!(allocate_many(&mut set, 2), [one, NONE_LEFT]);
        }
    }

    #[test]
    fn a_released_range_is_used_when_its_turn_comes() {
        let mut set = set("127.123.234.0/28", 30);
        assert_eq!(allocate_many(&mut set, 2), ["127.123.234.0/30", "127.123.234.4/30"]);
        set.release(&cidr("127.123.234.0/30")).unwrap();
        set.release(&cidr("127.123.234.0/30")).unwrap();
        assert_eq!(
            allocate_many(&mut set, 4),
            ["127.123.234.8/30", "127.123.234.12/30", "127.123.234.0/30", NONE_LEFT]
        );
    }

    #[test]
    fn what_is_occupied_is_not_allocated() {
        // Upstream: TestCIDRSetOccupied..., TestOccupy. The ranges in use after each.
        for (cluster, prefix, occupied, indices) in [
            ("127.0.0.0/8", 16, "127.0.0.0/8", Some((0, 255))),
            ("127.0.0.0/8", 16, "127.0.0.0/2", Some((0, 255))),
            ("127.0.0.0/8", 16, "127.0.0.0/16", Some((0, 0))),
            ("127.0.0.0/8", 32, "127.0.0.0/16", Some((0, 65535))),
            ("127.0.0.0/7", 16, "127.0.0.0/16", Some((256, 256))),
            ("127.0.0.0/7", 15, "127.0.0.0/15", Some((128, 128))),
            ("127.0.0.0/7", 18, "127.0.0.0/15", Some((1024, 1031))),
            ("10.0.0.0/16", 24, "10.0.5.128/25", Some((5, 5))),
            ("10.0.0.0/16", 24, "10.1.0.0/24", None),
            ("10.0.0.0/16", 24, "fd00::/64", None),
            ("2001:beef:1200::/40", 48, "2001:beef:1200::/40", Some((0, 255))),
            ("2001:beef:1200::/40", 48, "2001:beef:1235::/48", Some((0x35, 0x35))),
        ] {
            let mut set = set(cluster, prefix);
            let case = format!("{cluster} {prefix} {occupied}");
            assert_eq!(set.occupy(&cidr(occupied)).is_ok(), indices.is_some(), "{case}");
            let used: Vec<u64> =
                (0..set.max.min(70_000)).filter(|at| set.used.is_set(*at)).collect();
            let expected: Vec<u64> =
                indices.map(|(first, last)| (first..=last).collect()).unwrap_or_default();
            assert_eq!(used, expected, "{case}");
            assert_eq!(set.allocated, expected.len() as u64);
            set.occupy(&cidr(occupied)).ok();
            assert_eq!(set.allocated, expected.len() as u64, "{case}: counted once");
            set.release(&cidr(occupied)).ok();
            assert_eq!(set.allocated, 0, "{case}");
        }
    }

    #[test]
    fn errors_name_the_ranges() {
        assert_eq!(
            set("10.0.0.0/16", 24).occupy(&cidr("10.1.0.0/24")),
            Err("cidr 10.1.0.0/24 is out the range of cluster cidr 10.0.0.0/16".into())
        );
        let too_big = CidrSet::new(cidr("2001:db8::/47"), 64).err();
        assert_eq!(too_big.as_deref(), Some("New CIDR set failed; the node CIDR size is too big"));
    }
}
