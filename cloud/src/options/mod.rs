//! The flags: a row each. Those that kube-controller-manager has too are in its `Options`.
//! Upstream: `cloud-provider/options`.

mod flags;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kube_controller_manager::options::{Arguments, CertKeys, Options, validate};

pub use self::flags::FLAGS;
use self::flags::set_flags;

/// The name in messages, `--help`, User-Agents and leases.
pub const PROGRAM: &str = "cloud-controller-manager";

/// All settings of the cloud-controller-manager.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudOptions {
    /// The flags of all managers, with this one's defaults; those that it does not have keep theirs.
    pub shared: Options,
    pub concurrent_node_syncs: i32,
    /// 0: as many as `concurrent_node_syncs`.
    pub concurrent_node_status_updates: i32,
    /// Of 1.37; it works with 1.36 as well.
    pub concurrent_node_lifecycle_syncs: i32,
    pub node_status_update_frequency: Duration,
    pub webhook: Webhook,
}

/// The server of a provider's webhooks. No provider of this build has one, so it never starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    pub names: Vec<String>,
    pub bind_address: IpAddr,
    pub secure_port: i32,
    pub cert_dir: String,
    pub disable_http2_serving: bool,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_curve_preferences: Vec<i32>,
    pub tls_min_version: String,
    pub tls_sni_cert_key: CertKeys,
}

impl Default for CloudOptions {
    fn default() -> CloudOptions {
        CloudOptions {
            shared: Options {
                program: PROGRAM,
                secure_port: 10258,
                leader_elect_resource_name: PROGRAM.into(),
                ..Options::default()
            },
            concurrent_node_syncs: 1,
            concurrent_node_status_updates: 0,
            concurrent_node_lifecycle_syncs: 1,
            node_status_update_frequency: Duration::from_secs(5 * 60),
            webhook: Webhook::default(),
        }
    }
}

impl Default for Webhook {
    fn default() -> Webhook {
        Webhook {
            names: Vec::new(),
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            secure_port: 10260,
            cert_dir: String::new(),
            disable_http2_serving: false,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            tls_min_version: String::new(),
            tls_sni_cert_key: CertKeys::default(),
        }
    }
}

/// The command of a command line.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Command {
    Run(CloudOptions),
    Help,
    /// Print the version: `true`, `raw`.
    Version(String),
}

/// Parses the arguments after the program's name. Deprecated flags cause a warning on stderr.
///
/// # Errors
/// One line naming the flag, with pflag's text where pflag has one.
pub fn parse(args: &[String]) -> Result<Command, String> {
    let arguments = Arguments::new(FLAGS, args, |name| format!("unknown flag: --{name}"))?;
    if arguments.help {
        return Ok(Command::Help);
    }
    let mut options = CloudOptions::default();
    set_flags(&mut options, &arguments)?;
    options.shared.apply_version_flags();
    if !arguments.positional.is_empty() {
        let shown: Vec<_> = arguments.positional.iter().map(|arg| format!("{arg:?}")).collect();
        return Err(format!("{PROGRAM:?} does not take any arguments, got [{}]", shown.join(" ")));
    }
    match options.shared.version.0.as_str() {
        version @ ("true" | "raw") => Ok(Command::Version(version.into())),
        _ => Ok(Command::Run(options)),
    }
}

impl CloudOptions {
    /// Returns the faults of the flags, a line each. `known_controller`: whether `--controllers`
    /// may name it. Upstream: `CloudControllerManagerOptions.Validate`.
    pub fn problems(&self, known_controller: &dyn Fn(&str) -> bool) -> Vec<String> {
        // The other manager refuses all clouds but external ones; `node_ipam` checks the allocator.
        let shared = Options {
            cloud_provider: String::new(),
            cidr_allocator_type: String::new(),
            ..self.shared.clone()
        };
        let mut problems = validate(&shared, known_controller);
        let mut refuse = |when: bool, fault: String| {
            if when {
                problems.push(fault);
            }
        };
        refuse(
            self.concurrent_node_syncs <= 0,
            "--concurrent-node-syncs must be a positive number".into(),
        );
        refuse(
            self.concurrent_node_status_updates < 0,
            "--concurrent-node-status-updates cannot be a negative number".into(),
        );
        let syncs = self.concurrent_node_lifecycle_syncs;
        refuse(
            syncs < 1,
            format!("--concurrent-node-lifecycle-syncs must be at least 1, but got {syncs}"),
        );
        let webhook = &self.webhook;
        for name in webhook.names.iter().filter(|name| *name != "*") {
            let name = name.strip_prefix('-').unwrap_or(name);
            refuse(true, format!("--webhooks: {name:?} is not in the list of known webhooks"));
        }
        let port = webhook.secure_port;
        refuse(
            !(0..=65535).contains(&port),
            format!(
                "--webhook-secure-port {port} must be between 0 and 65535, inclusive. A value of 0 \
                 disables the webhook endpoint entirely."
            ),
        );
        refuse(
            port != 0 && port == self.shared.secure_port,
            "--webhook-secure-port cannot be the same value as --secure-port".into(),
        );
        refuse(self.shared.cloud_provider.is_empty(), "--cloud-provider cannot be empty".into());
        problems
    }

    /// Returns how many Nodes the node lifecycle controller checks at once.
    pub fn node_lifecycle_workers(&self) -> usize {
        usize::try_from(self.concurrent_node_lifecycle_syncs).unwrap_or(1)
    }

    /// Returns how many workers update the addresses of Nodes.
    pub fn node_status_workers(&self) -> usize {
        let given = Some(self.concurrent_node_status_updates).filter(|count| *count > 0);
        usize::try_from(given.unwrap_or(self.concurrent_node_syncs)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> CloudOptions {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match parse(&args) {
            Ok(Command::Run(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_are_upstreams() {
        let options = run(&[]);
        assert_eq!(options, CloudOptions::default());
        let shown = |name: &str| {
            let flag = FLAGS.iter().find(|flag| flag.name() == name);
            (flag.unwrap_or_else(|| panic!("{name}")).text)(&options)
        };
        for (name, value) in [
            ("allocate-node-cidrs", "false"),
            ("bind-address", "0.0.0.0"),
            ("cidr-allocator-type", "RangeAllocator"),
            ("cloud-provider", ""),
            ("cluster-name", "kubernetes"),
            ("concurrent-node-lifecycle-syncs", "1"),
            ("concurrent-node-status-updates", "0"),
            ("concurrent-node-syncs", "1"),
            ("concurrent-service-syncs", "1"),
            ("configure-cloud-routes", "true"),
            ("kube-api-burst", "30"),
            ("kube-api-qps", "20"),
            ("leader-elect", "true"),
            ("leader-elect-resource-name", "cloud-controller-manager"),
            ("leader-elect-resource-namespace", "kube-system"),
            ("min-resync-period", "12h0m0s"),
            ("node-monitor-period", "5s"),
            ("node-status-update-frequency", "5m0s"),
            ("route-reconciliation-period", "10s"),
            ("secure-port", "10258"),
            ("webhook-bind-address", "0.0.0.0"),
            ("webhook-secure-port", "10260"),
        ] {
            assert_eq!(shown(name), value, "{name}");
        }
    }

    #[test]
    fn faults_name_their_flags() {
        let known = |name: &str| name == "cloud-node-controller";
        for (args, fault) in [
            (&["--cloud-provider=bare"][..], ""),
            (&["--cloud-provider=bare", "--controllers=*,-cloud-node-controller"], ""),
            (&["--cloud-provider=bare", "--cidr-allocator-type=CloudAllocator"], ""),
            (&[], "--cloud-provider cannot be empty"),
            (
                &["--cloud-provider=bare", "--controllers=job"],
                "--controllers: \"job\" is not in the list of known controllers",
            ),
            (
                &["--cloud-provider=bare", "--concurrent-node-syncs=0"],
                "--concurrent-node-syncs must be a positive number",
            ),
            (
                &["--cloud-provider=bare", "--concurrent-node-status-updates=-1"],
                "--concurrent-node-status-updates cannot be a negative number",
            ),
            (
                &["--cloud-provider=bare", "--concurrent-node-lifecycle-syncs=0"],
                "--concurrent-node-lifecycle-syncs must be at least 1, but got 0",
            ),
            (
                &["--cloud-provider=bare", "--webhooks=*,a"],
                "--webhooks: \"a\" is not in the list of known webhooks",
            ),
            (
                &["--cloud-provider=bare", "--webhook-secure-port=10258"],
                "--webhook-secure-port cannot be the same value as --secure-port",
            ),
            (
                &["--cloud-provider=bare", "--leader-elect-retry-period=9s"],
                "--leader-elect-renew-deadline must be greater than --leader-elect-retry-period*1.2",
            ),
        ] {
            let problems = run(args).problems(&known);
            assert_eq!(problems.join("; "), fault, "{args:?}");
        }
    }

    #[test]
    fn status_updates_have_as_many_workers_as_syncs_unless_they_have_their_own() {
        let count = |args: &[&str]| run(args).node_status_workers();
        assert_eq!(count(&[]), 1);
        assert_eq!(count(&["--concurrent-node-syncs=3"]), 3);
        let both = ["--concurrent-node-syncs=3", "--concurrent-node-status-updates=7"];
        assert_eq!(count(&both), 7);
    }
}
