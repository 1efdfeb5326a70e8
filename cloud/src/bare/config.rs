//! The file of `--cloud-config` for this provider: YAML, in which unknown fields are errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use k8s_openapi::api::core::v1::NodeAddress;
use kube_controller_manager::objects::{
    is_label_key, is_label_value, label_key_fault, label_value_fault,
};
use serde::Deserialize;

use crate::duration::{duration, some_duration};
use crate::provider::is_kubernetes_label;

/// The whole file. An empty one is the defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    pub load_balancers: LoadBalancers,
    pub nodes: Nodes,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoadBalancers {
    pub mode: Mode,
    /// With pools: the ConfigMap that has them.
    pub config_map: MapName,
    /// With pools: who writes `status.loadBalancer`.
    pub status: StatusWriter,
}

/// Where the addresses of load balancers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// They come from the pools of a ConfigMap.
    #[default]
    Pools,
    /// They are those of nodes.
    Nodes,
    /// There are no load balancers: Services are left to others.
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MapName {
    pub namespace: String,
    pub name: String,
}

impl Default for MapName {
    fn default() -> MapName {
        MapName { namespace: "kube-system".to_owned(), name: "kubevip".to_owned() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StatusWriter {
    /// The service controller writes the addresses as soon as the Service has them.
    #[default]
    Provider,
    /// The announcer writes them when it announces them, as kube-vip does.
    Announcer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Nodes {
    #[serde(rename = "providerID")]
    pub provider_id: ProviderId,
    /// The zone of nodes for which `machines` says nothing else.
    pub zone: String,
    pub region: String,
    pub instance_type: String,
    pub labels: BTreeMap<String, String>,
    pub machines: Vec<Machine>,
    pub check: Option<Check>,
}

/// What the id in `spec.providerID` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ProviderId {
    #[default]
    #[serde(rename = "name")]
    Name,
    #[serde(rename = "machineID")]
    MachineId,
    #[serde(rename = "systemUUID")]
    SystemUuid,
}

/// What is known of one machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Machine {
    /// The name of its Node.
    pub name: String,
    pub zone: String,
    pub region: String,
    pub instance_type: String,
    /// They have precedence over those of all nodes.
    pub labels: BTreeMap<String, String>,
    pub addresses: Vec<Address>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Address {
    pub r#type: AddressType,
    pub address: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum AddressType {
    Hostname,
    #[serde(rename = "InternalIP")]
    InternalIp,
    #[serde(rename = "ExternalIP")]
    ExternalIp,
    #[serde(rename = "InternalDNS")]
    InternalDns,
    #[serde(rename = "ExternalDNS")]
    ExternalDns,
}

impl AddressType {
    fn name(self) -> &'static str {
        match self {
            AddressType::Hostname => "Hostname",
            AddressType::InternalIp => "InternalIP",
            AddressType::ExternalIp => "ExternalIP",
            AddressType::InternalDns => "InternalDNS",
            AddressType::ExternalDns => "ExternalDNS",
        }
    }
}

impl Address {
    /// Checks that an IP address is one of a machine, and that no other address is empty.
    fn validate(&self) -> Result<(), String> {
        let is_of_machine =
            |text: &str| text.parse().is_ok_and(|address: IpAddr| !address.is_unspecified());
        match self.r#type {
            AddressType::InternalIp | AddressType::ExternalIp if !is_of_machine(&self.address) => {
                Err(format!("{:?} is not the IP address of a machine", self.address))
            }
            _ if self.address.is_empty() => Err("it is empty".to_owned()),
            _ => Ok(()),
        }
    }

    pub fn of_node(&self) -> NodeAddress {
        NodeAddress { address: self.address.clone(), type_: self.r#type.name().to_owned() }
    }
}

/// How the machine of a node that is not ready is checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Check {
    /// One of the three.
    pub tcp: Option<Tcp>,
    pub http: Option<Http>,
    /// Any certificate is accepted, as by the kubelet's probes.
    pub https: Option<Http>,
    /// From the end of a check to the begin of the next one.
    #[serde(default = "period", deserialize_with = "duration")]
    pub period: Duration,
    #[serde(default = "timeout", deserialize_with = "duration")]
    pub timeout: Duration,
    /// After this number of failures in a row the machine is unreachable.
    #[serde(default = "failures")]
    pub failures: u32,
    pub unreachable: Unreachable,
    /// How long an unreachable machine is shut down before it is gone; only with
    /// `unreachable: shutdown`.
    #[serde(default, deserialize_with = "some_duration")]
    pub gone_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tcp {
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Http {
    pub port: u16,
    #[serde(default = "root")]
    pub path: String,
}

/// What an unreachable machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unreachable {
    /// Its Node gets the taint `node.cloudprovider.kubernetes.io/shutdown`.
    Shutdown,
    /// Its Node is deleted.
    Gone,
}

fn root() -> String {
    "/".to_owned()
}

fn period() -> Duration {
    Duration::from_secs(10)
}

fn timeout() -> Duration {
    Duration::from_secs(3)
}

fn failures() -> u32 {
    6
}

impl Config {
    /// Reads the configuration from a file; without a path it is the default one.
    ///
    /// # Errors
    /// Names the file, and the field where one is wrong.
    pub fn load(path: Option<&Path>) -> Result<Config, String> {
        let Some(path) = path else { return Ok(Config::default()) };
        let fault = |error: String| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        Config::parse(&text).map_err(fault)
    }

    /// Parses the YAML and checks the values; an empty file is the default configuration.
    fn parse(text: &str) -> Result<Config, String> {
        let config: Option<Config> =
            serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
        let config = config.unwrap_or_default();
        config.load_balancers.config_map.validate()?;
        config.nodes.validate()?;
        Ok(config)
    }
}

impl MapName {
    /// Checks that the name of the ConfigMap and its namespace are set.
    fn validate(&self) -> Result<(), String> {
        for (field, text) in [("namespace", &self.namespace), ("name", &self.name)] {
            if text.is_empty() {
                return Err(format!("loadBalancers.configMap.{field}: it is empty"));
            }
        }
        Ok(())
    }
}

/// Checks that the API server accepts these as labels of a Node, and that the node controller sets
/// them. `at`: where in the file they are; `places`: zone, region and instance type.
fn validate_labels(
    at: &str,
    places: [&String; 3],
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    for (field, value) in ["zone", "region", "instanceType"].into_iter().zip(places) {
        if !is_label_value(value) {
            return Err(format!("{at}.{field}: {value:?}: {}", label_value_fault(value)));
        }
    }
    for (name, value) in labels {
        let fault = match () {
            () if is_kubernetes_label(name) => "it is a label of Kubernetes".to_owned(),
            () if !is_label_key(name) => label_key_fault(name),
            () if !is_label_value(value) => label_value_fault(value),
            () => continue,
        };
        return Err(format!("{at}.labels: {name:?}: {fault}"));
    }
    Ok(())
}

impl Nodes {
    /// Checks the section `nodes`: labels, machines (no name twice) and the check.
    fn validate(&self) -> Result<(), String> {
        let places = [&self.zone, &self.region, &self.instance_type];
        validate_labels("nodes", places, &self.labels)?;
        let mut names = BTreeSet::new();
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.name.is_empty() {
                return Err(format!("nodes.machines[{at}].name: it is missing"));
            }
            if !names.insert(machine.name.as_str()) {
                return Err(format!("nodes.machines[{at}].name: {:?} comes twice", machine.name));
            }
            machine.validate(&format!("nodes.machines[{at}]"))?;
        }
        self.check.as_ref().map_or(Ok(()), Check::validate)
    }

    /// Returns what the file says of one machine.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.name == name)
    }
}

impl Machine {
    /// Checks the labels and addresses of one machine. `at`: its place in the file.
    fn validate(&self, at: &str) -> Result<(), String> {
        let places = [&self.zone, &self.region, &self.instance_type];
        validate_labels(at, places, &self.labels)?;
        for (index, address) in self.addresses.iter().enumerate() {
            let valid = address.validate();
            valid.map_err(|fault| format!("{at}.addresses[{index}].address: {fault}"))?;
        }
        Ok(())
    }
}

impl Check {
    /// Checks that there is one of tcp, http and https, and that the values make sense together.
    fn validate(&self) -> Result<(), String> {
        let http = |name: &str, http: &Http| match http {
            Http { port: 0, .. } => Some(format!("{name}.port: it is zero")),
            http if !http.path.starts_with('/') => {
                Some(format!("{name}.path: it does not begin with a slash"))
            }
            http if !is_path_and_query(&http.path) => {
                Some(format!("{name}.path: it is not the path and query of a URL"))
            }
            _ => None,
        };
        let fault = match (&self.tcp, &self.http, &self.https) {
            (Some(tcp), None, None) => (tcp.port == 0).then(|| "tcp.port: it is zero".to_owned()),
            (None, Some(plain), None) => http("http", plain),
            (None, None, Some(tls)) => http("https", tls),
            _ => return Err("nodes.check: it needs one of tcp, http and https".to_owned()),
        };
        let fault = fault.or_else(|| {
            let is_gone_later = self.gone_after.is_some() && self.unreachable == Unreachable::Gone;
            let fault = match () {
                () if self.period.is_zero() => "period: it is zero",
                () if self.timeout.is_zero() => "timeout: it is zero",
                () if self.failures == 0 => "failures: it is zero",
                () if is_gone_later => "goneAfter: unreachable machines are gone at once",
                () => return None,
            };
            Some(fault.to_owned())
        });
        fault.map_or(Ok(()), |fault| Err(format!("nodes.check.{fault}")))
    }
}

/// Returns whether a text can be the target of a request.
fn is_path_and_query(text: &str) -> bool {
    // A fragment is parsed, and would not be sent.
    !text.contains('#') && text.parse::<PathAndQuery>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults() {
        for text in ["", "{}", "# nothing", "loadBalancers: {}"] {
            assert_eq!(Config::parse(text), Ok(Config::default()), "{text}");
        }
        let pools = Config::default().load_balancers;
        assert_eq!(pools.config_map.namespace, "kube-system");
        assert_eq!((pools.mode, pools.config_map.name.as_str()), (Mode::Pools, "kubevip"));
    }

    #[test]
    fn all_fields_are_read() {
        let config = Config::parse(
            "loadBalancers:
  mode: nodes
  configMap: {namespace: ips, name: pools}
  status: announcer
nodes:
  providerID: machineID
  zone: rack-1
  region: cellar
  instanceType: nuc
  labels: {owner: us}
  machines:
  - name: one
    zone: rack-2
    labels: {disk: ssd}
    addresses: [{type: ExternalIP, address: 203.0.113.1}]
  check:
    http: {port: 10256, path: /healthz}
    period: 5s
    timeout: 1500ms
    failures: 3
    unreachable: shutdown
    goneAfter: 24h
",
        )
        .expect("a configuration");
        assert_eq!(config.load_balancers.mode, Mode::Nodes);
        assert_eq!(config.load_balancers.status, StatusWriter::Announcer);
        let one = config.nodes.machine("one").expect("a machine");
        assert_eq!(
            (one.zone.as_str(), one.addresses[0].of_node().type_.as_str()),
            ("rack-2", "ExternalIP")
        );
        let check = config.nodes.check.expect("a check");
        assert_eq!(
            (check.period, check.timeout),
            (Duration::from_secs(5), Duration::from_millis(1500))
        );
        assert_eq!(check.gone_after, Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn faults_name_their_field() {
        let check = |text: &str| format!("nodes: {{check: {{unreachable: gone, {text}}}}}");
        let machine = |kind: &str, address: &str| {
            let address = format!("{{type: {kind}, address: {address}}}");
            format!("nodes: {{machines: [{{name: a, addresses: [{address}]}}]}}")
        };
        for (text, fault) in [
            ("loadbalancers: {}".to_owned(), "unknown field `loadbalancers`"),
            ("loadBalancers: {pools: x}".to_owned(), "loadBalancers: unknown field `pools`"),
            ("loadBalancers: {mode: dhcp}".to_owned(), "loadBalancers.mode: unknown variant"),
            ("loadBalancers: {configMap: {nam: x}}".to_owned(), "unknown field `nam`"),
            ("nodes: {providerID: uid}".to_owned(), "nodes.providerID: unknown variant `uid`"),
            ("nodes: {machines: [{}]}".to_owned(), "nodes.machines[0].name: it is missing"),
            ("nodes: {machines: [{name: a}, {name: a}]}".to_owned(), "\"a\" comes twice"),
            (
                "loadBalancers: {configMap: {name: ''}}".to_owned(),
                "loadBalancers.configMap.name: it is empty",
            ),
            ("nodes: {zone: rack 1}".to_owned(), "nodes.zone: \"rack 1\": a valid label must be"),
            (
                "nodes: {labels: {a.k8s.io/b: c}}".to_owned(),
                "nodes.labels: \"a.k8s.io/b\": it is a label of Kubernetes",
            ),
            ("nodes: {labels: {/b: c}}".to_owned(), "nodes.labels: \"/b\": prefix part must be"),
            ("nodes: {labels: {b: a b}}".to_owned(), "nodes.labels: \"b\": a valid label must be"),
            (
                "nodes: {machines: [{name: a, region: '-'}]}".to_owned(),
                "nodes.machines[0].region: \"-\": a valid label must be",
            ),
            (machine("InternalIP", "10.0.0"), "\"10.0.0\" is not the IP address of a machine"),
            (
                machine("ExternalIP", "'::'"),
                "nodes.machines[0].addresses[0].address: \"::\" is not",
            ),
            (machine("Hostname", "''"), "nodes.machines[0].addresses[0].address: it is empty"),
            ("nodes: {check: {tcp: {port: 22}}}".to_owned(), "missing field `unreachable`"),
            (check("period: 1s"), "nodes.check: it needs one of tcp, http and https"),
            (check("tcp: {port: 1}, http: {port: 1}"), "nodes.check: it needs one"),
            (check("http: {port: 1}, https: {port: 1}"), "nodes.check: it needs one"),
            (check("tcp: {port: 70000}"), "nodes.check.tcp.port: "),
            (check("tcp: {}"), "missing field `port`"),
            (check("tcp: {port: 0}"), "nodes.check.tcp.port: it is zero"),
            (check("http: {port: 0}"), "nodes.check.http.port: it is zero"),
            (check("https: {port: 0}"), "nodes.check.https.port: it is zero"),
            (check("http: {port: 1, path: x}"), "nodes.check.http.path: "),
            (check("https: {port: 1, path: x}"), "nodes.check.https.path: "),
            (check("http: {port: 1, path: /a b}"), "nodes.check.http.path: it is not the path"),
            (check("http: {port: 1, path: '/a#b'}"), "nodes.check.http.path: it is not the path"),
            (check("tcp: {port: 1}, period: 0s"), "nodes.check.period: it is zero"),
            (check("tcp: {port: 1}, period: 5"), "nodes.check.period: "),
            (check("tcp: {port: 1}, timeout: 0s"), "nodes.check.timeout: it is zero"),
            (check("tcp: {port: 1}, failures: 0"), "nodes.check.failures: it is zero"),
            (check("tcp: {port: 1}, goneAfter: 1h"), "nodes.check.goneAfter: "),
        ] {
            let error = Config::parse(&text).expect_err(&text);
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
