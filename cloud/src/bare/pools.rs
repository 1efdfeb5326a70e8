//! The pools of a ConfigMap, with kube-vip-cloud-provider's keys.

use std::fmt;
use std::net::IpAddr;

use kube_controller_manager::objects::Labels;

use super::ranges::{Family, Order, Ranges};

/// The pool of all namespaces that have none of their own.
const GLOBAL: &str = "global";
/// The pool whose Services get their addresses by DHCP, from the announcer.
const DHCP: &str = "0.0.0.0/32";

/// The ConfigMap's content.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// `None`: there is no ConfigMap.
    data: Option<Labels>,
}

/// Addresses for the Services of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The key of its entry: `cidr-global`.
    key: String,
    /// The value of its entry.
    text: String,
    pub addresses: Addresses,
    pub order: Order,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    Of(Ranges),
    /// The announcer gets an address by DHCP.
    Dhcp,
}

/// Why a Service has no pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    NoConfigMap,
    /// The entries that were looked for.
    NoEntry(String),
    Malformed {
        key: String,
        part: String,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NoConfigMap => {
                f.write_str("the ConfigMap with the address pools is missing")
            }
            PoolError::NoEntry(keys) => {
                write!(f, "no address pools could be found: the ConfigMap has none of {keys}")
            }
            PoolError::Malformed { key, part } => {
                write!(f, "{key} of the ConfigMap: {part:?} is neither a CIDR nor FIRST-LAST")
            }
        }
    }
}

/// `cidr-global [192.168.0.220/29]`
impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.key, self.text)
    }
}

impl Pool {
    /// Returns whether the pool has addresses of a family; DHCP gives IPv4 addresses only.
    pub fn has(&self, family: Family) -> bool {
        match &self.addresses {
            Addresses::Of(ranges) => ranges.has(family),
            Addresses::Dhcp => family == Family::V4,
        }
    }

    /// Returns whether an address is of the pool; of one by DHCP only 0.0.0.0, which stands for the
    /// address that the announcer gets.
    pub fn contains(&self, address: IpAddr) -> bool {
        match &self.addresses {
            Addresses::Of(ranges) => ranges.contains(address),
            Addresses::Dhcp => address.is_unspecified(),
        }
    }
}

impl Pools {
    /// Creates the pools of this data. `None`: there is no ConfigMap.
    pub fn new(data: Option<Labels>) -> Pools {
        Pools { data }
    }

    fn entry(&self, key: &str) -> Option<&str> {
        self.data.as_ref()?.get(key)
    }

    /// Returns the value that a key with this prefix has for the namespace, or for all.
    fn setting(&self, prefix: &str, namespace: &str) -> Option<&str> {
        let of = |name: &str| self.entry(&format!("{prefix}-{name}"));
        of(namespace).or_else(|| of(GLOBAL))
    }

    /// Returns the pool of a namespace: its own one, or that of all.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn of_namespace(&self, namespace: &str) -> Result<Pool, PoolError> {
        self.first_of(&[namespace, GLOBAL])
    }

    /// Returns the pool with this name: a namespace, or `global`.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn named(&self, name: &str) -> Result<Pool, PoolError> {
        self.first_of(&[name])
    }

    /// Returns the pool of the first name that has an entry (`cidr-NAME` or `range-NAME`).
    fn first_of(&self, names: &[&str]) -> Result<Pool, PoolError> {
        if self.data.is_none() {
            return Err(PoolError::NoConfigMap);
        }
        let keys = names.iter().flat_map(|name| [format!("cidr-{name}"), format!("range-{name}")]);
        let keys: Vec<String> = keys.collect();
        let found = keys.iter().find_map(|key| Some((key, self.entry(key)?)));
        let Some((key, text)) = found else { return Err(PoolError::NoEntry(keys.join(", "))) };
        let addresses = match text {
            DHCP => Addresses::Dhcp,
            text => {
                let skip_ends = self.entry("skip-end-ips-in-cidr") == Some("true");
                Addresses::Of(
                    Ranges::parse(text, skip_ends)
                        .map_err(|part| PoolError::Malformed { key: key.clone(), part })?,
                )
            }
        };
        let order = match self.entry("search-order") {
            Some("desc") => Order::Descending,
            _ => Order::Ascending,
        };
        Ok(Pool { key: key.clone(), text: text.to_owned(), addresses, order })
    }

    /// Returns whether Services of the namespace may share addresses.
    pub fn allows_sharing(&self, namespace: &str) -> bool {
        // As Go's `strconv.ParseBool`.
        let value = self.setting("allow-share", namespace);
        value.is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    /// Returns the interface on which the namespace's addresses are announced.
    pub fn interface(&self, namespace: &str) -> Option<&str> {
        self.setting("interface", namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_of_a_namespace_is_its_own_or_the_global_one() {
        let pools = Pools::new(Some(Labels::from_iter([
            ("cidr-global", "192.168.1.1/24"),
            ("cidr-system", "10.10.10.8/29"),
            ("range-system", "10.10.10.8-10.10.10.9"),
            ("range-tests", "172.16.0.1-172.16.0.254"),
            ("cidr-v6", "2001::10-2001::20"),
            ("cidr-broken", "10.0.0.0/8,x"),
            ("cidr-dhcp", "0.0.0.0/32"),
            ("allow-share-system", "true"),
            ("allow-share-tests", "yes"),
            ("interface-global", "eth0"),
            ("interface-system", "eth3"),
        ])));
        for (namespace, expected) in [
            ("system", "cidr-system [10.10.10.8/29]"),
            ("tests", "range-tests [172.16.0.1-172.16.0.254]"),
            ("v6", "cidr-v6 [2001::10-2001::20]"),
            ("basic", "cidr-global [192.168.1.1/24]"),
            ("dhcp", "cidr-dhcp [0.0.0.0/32]"),
        ] {
            let pool = pools.of_namespace(namespace).expect("a pool");
            assert_eq!(pool.to_string(), expected);
        }
        let broken = pools.of_namespace("broken").expect_err("a fault").to_string();
        assert_eq!(broken, "cidr-broken of the ConfigMap: \"x\" is neither a CIDR nor FIRST-LAST");
        assert_eq!(
            pools.named("basic"),
            Err(PoolError::NoEntry("cidr-basic, range-basic".to_owned()))
        );
        assert!(pools.named("global").is_ok());
        assert!(pools.allows_sharing("system"));
        assert!(!pools.allows_sharing("tests") && !pools.allows_sharing("basic"));
        assert_eq!(pools.interface("system"), Some("eth3"));
        assert_eq!(pools.interface("basic"), Some("eth0"));
    }

    #[test]
    fn without_a_config_map_there_is_no_pool() {
        let none = Pools::new(None);
        assert_eq!(none.of_namespace("a"), Err(PoolError::NoConfigMap));
        assert!(!none.allows_sharing("a") && none.interface("a").is_none());
        let empty = Pools::new(Some(Labels::default()));
        let error = empty.of_namespace("a").expect_err("a fault").to_string();
        assert!(error.ends_with("none of cidr-a, range-a, cidr-global, range-global"), "{error}");
    }
}
