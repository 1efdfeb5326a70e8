//! From the command line to settings: every form that pflag accepts is turned into argh's form
//! (`--flag value`), which argh parses.

use std::collections::HashMap;

use super::flags::{FLAGS, FlagInfo, Options, set_flags};
use super::values::Value;

/// The name in messages and in `--help`.
pub const PROGRAM: &str = "kube-controller-manager";

/// The command of a command line.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Command {
    Run(Options),
    Help,
    /// Print the version: `true`, `raw`.
    Version(String),
}

/// Parses the arguments after the program's name. Deprecated flags cause a
/// warning on stderr.
///
/// # Errors
/// One line naming the flag, with pflag's text where pflag has one.
pub fn parse(args: &[String]) -> Result<Command, String> {
    let arguments = Arguments::new(FLAGS, args, |name| format!("unknown flag: --{name}"))?;
    if arguments.help {
        return Ok(Command::Help);
    }
    let mut options = Options::default();
    set_flags(&mut options, &arguments)?;
    options.apply_version_flags();
    if !arguments.positional.is_empty() {
        let shown: Vec<_> = arguments.positional.iter().map(|arg| format!("{arg:?}")).collect();
        return Err(format!("{PROGRAM:?} does not take any arguments, got [{}]", shown.join(" ")));
    }
    match options.version.0.as_str() {
        version @ ("true" | "raw") => Ok(Command::Version(version.into())),
        _ => Ok(Command::Run(options)),
    }
}

/// A command line whose flags are known and have values that parse.
#[derive(Default)]
pub struct Arguments {
    /// In argh's form.
    flags: Vec<String>,
    pub positional: Vec<String>,
    /// Whether `--help` is asked for.
    pub help: bool,
}

impl Arguments {
    /// Checks the arguments after the program's name. `unknown`: the fault of a flag that is not
    /// among `flags`, by its name. Deprecated flags cause a warning on stderr.
    ///
    /// # Errors
    /// One line naming the flag, with pflag's text where pflag has one.
    pub fn new<T>(
        flags: &[FlagInfo<T>],
        args: &[String],
        unknown: fn(&str) -> String,
    ) -> Result<Arguments, String> {
        let known: HashMap<String, &FlagInfo<T>> =
            flags.iter().map(|flag| (flag.name(), flag)).collect();
        let mut arguments = Arguments::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                arguments.positional.extend(args.by_ref().cloned());
            } else if let Some(flag) = arg.strip_prefix("--") {
                let (name, value) = match flag.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_string())),
                    None => (flag, None),
                };
                if name.is_empty() || name.starts_with('-') {
                    return Err(format!("bad flag syntax: {arg}"));
                }
                // Underscores count as dashes. Upstream: `WordSepNormalizeFunc`.
                let name = name.replace('_', "-");
                if name == "help" {
                    arguments.help =
                        bool::parse(value.as_deref().unwrap_or("true")).map_err(|error| {
                            format!("invalid argument for \"--help\" flag: {error}")
                        })?;
                    continue;
                }
                let Some(info) = known.get(&name) else {
                    return Err(unknown(&name));
                };
                let value = value
                    .or_else(|| info.alone.map(String::from))
                    .or_else(|| args.next().cloned())
                    .ok_or_else(|| format!("flag needs an argument: --{name}"))?;
                arguments.push(info, value)?;
            } else if let Some(letters) =
                arg.strip_prefix('-').filter(|letters| !letters.is_empty())
            {
                match (letters.chars().next(), letters.get(1..).unwrap_or_default()) {
                    (Some('h'), "") => arguments.help = true,
                    // The value of `-v` may follow with or without `=`, or as the next argument.
                    (Some('v'), rest) => {
                        let value = match rest.strip_prefix('=') {
                            Some(value) => Some(value.to_string()),
                            None if !rest.is_empty() => Some(rest.to_string()),
                            None => args.next().cloned(),
                        };
                        let value =
                            value.ok_or_else(|| format!("flag needs an argument: 'v' in {arg}"))?;
                        let info = known.get("v").ok_or("unknown flag: --v")?;
                        arguments.push(info, value)?;
                    }
                    (letter, _) => {
                        let letter = letter.unwrap_or('-');
                        return Err(format!("unknown shorthand flag: {letter:?} in {arg}"));
                    }
                }
            } else if !arg.is_empty() {
                arguments.positional.push(arg.clone());
            }
        }
        Ok(arguments)
    }

    /// The flags, each followed by its value.
    pub fn flags(&self) -> Vec<&str> {
        self.flags.iter().map(String::as_str).collect()
    }

    /// Checks the value of a flag, and keeps both.
    fn push<T>(&mut self, info: &FlagInfo<T>, value: String) -> Result<(), String> {
        let name = info.name();
        (info.check)(&value).map_err(|error| {
            let short = if name == "v" { "-v, " } else { "" };
            format!("invalid argument {value:?} for \"{short}--{name}\" flag: {error}")
        })?;
        if let Some(warning) = info.deprecated() {
            eprintln!("Flag --{name} has been deprecated, {warning}");
        }
        self.flags.extend([format!("--{name}"), value]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(args: &[&str]) -> Result<Options, String> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match parse(&args)? {
            Command::Run(options) => Ok(options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn objects_to_trace_add_up_and_bad_ones_are_named() {
        let given = ["--trace-object=Deployment/default/web,Node/a", "--trace-object", "pods/x/y"];
        let options = run(&given).expect("flags");
        assert_eq!(options.trace_object.text(), "Deployment/default/web,Node/a,pods/x/y");
        for bad in ["", "web", "Pod/a/b/c", "Pod/default/", "/default/web", "Pod/a/b c", "Pod/a/b,"]
        {
            let fault = bad.rsplit(',').next().unwrap_or_default();
            let line = format!(
                "invalid argument {bad:?} for \"--trace-object\" flag: {fault:?} is not \
                 KIND/NAMESPACE/NAME"
            );
            assert_eq!(run(&[&format!("--trace-object={bad}")]), Err(line));
        }
    }

    #[test]
    fn every_form_of_a_flag() {
        let with = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options
        };
        let strings = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        let table: &[(&[&str], Options)] = &[
            (&[], Options::default()),
            (&["--cluster-name=a"], with(|o| o.cluster_name = "a".into())),
            (&["--cluster-name", "a"], with(|o| o.cluster_name = "a".into())),
            (&["--cluster_name", "--x"], with(|o| o.cluster_name = "--x".into())),
            (&["--cluster-name="], with(|o| o.cluster_name = String::new())),
            (&["--cluster-name=a", "--cluster-name=b"], with(|o| o.cluster_name = "b".into())),
            (&["--leader-elect"], Options::default()),
            (&["--leader-elect=false"], with(|o| o.leader_elect = false)),
            (&["--leader-elect=F"], with(|o| o.leader_elect = false)),
            (&["--allocate-node-cidrs"], with(|o| o.allocate_node_cidrs = true)),
            (&["--secure-port", "0"], with(|o| o.secure_port = 0)),
            (&["--kube-api-qps=-1"], with(|o| o.kube_api_qps = -1.0)),
            (&["--kube-api-qps=1e-300"], with(|o| o.kube_api_qps = 0.0)),
            (&["--kube-api-qps=+Inf"], with(|o| o.kube_api_qps = f32::INFINITY)),
            (
                &["--leader-elect-lease-duration=1m30s"],
                with(|o| o.leader_elect_lease_duration = Duration::from_secs(90)),
            ),
            (&["-v", "4"], with(|o| o.v.0 = 4)),
            (&["-v=4"], with(|o| o.v.0 = 4)),
            (&["-v4"], with(|o| o.v.0 = 4)),
            (&["--v=4"], with(|o| o.v.0 = 4)),
            (&["--"], Options::default()),
            (&["--node-sync-period=1s"], with(|o| o.node_sync_period = Duration::from_secs(1))),
            (&["--version=v1.36.2-x"], with(|o| o.version.0 = "v1.36.2-x".into())),
        ];
        for (args, expected) in table {
            assert_eq!(run(args).as_ref(), Ok(expected), "{args:?}");
        }
        let lists = run(&["--controllers=a,-b", "--controllers", "-c", "--controllers=*"]);
        assert_eq!(lists.expect("options").controllers, strings(&["a", "-b", "-c", "*"]));
        let gates = run(&["--feature-gates=A=true,kube:B=false", "--feature-gates=C=1"]);
        let gates = gates.expect("options").feature_gates.given;
        assert_eq!(gates, [("A".into(), true), ("B".into(), false), ("C".into(), true)]);
        let verbosity = run(&["--vmodule=reflector=4,", "--vmodule", "app*=2"]);
        assert_eq!(verbosity.expect("options").vmodule.text(), "reflector=4,app*=2");
    }

    #[test]
    fn what_is_wrong_is_told_in_a_line() {
        let table: &[(&[&str], &str)] = &[
            (&["--nope"], "unknown flag: --nope"),
            (&["--nope=1"], "unknown flag: --nope"),
            (&["-x"], "unknown shorthand flag: 'x' in -x"),
            (&["-leader-elect"], "unknown shorthand flag: 'l' in -leader-elect"),
            (&["--cluster-name"], "flag needs an argument: --cluster-name"),
            (&["--=1"], "bad flag syntax: --=1"),
            (
                &["a", "b"],
                "\"kube-controller-manager\" does not take any arguments, got [\"a\" \"b\"]",
            ),
            (
                &["--version", "x"],
                "\"kube-controller-manager\" does not take any arguments, got [\"x\"]",
            ),
            (
                &["--leader-elect", "false"],
                "\"kube-controller-manager\" does not take any arguments, got [\"false\"]",
            ),
            (
                &["--secure-port=x"],
                "invalid argument \"x\" for \"--secure-port\" flag: not a whole number of 32 bits",
            ),
            (
                &["--kube-api-qps=1e39"],
                "invalid argument \"1e39\" for \"--kube-api-qps\" flag: not a number of 32 bits",
            ),
            (&["-v", "x"], "invalid argument \"x\" for \"-v, --v\" flag: not a whole number"),
            (&["--v=+1"], "invalid argument \"+1\" for \"-v, --v\" flag: not a whole number"),
            (
                &["--vmodule=a=1,b=-2"],
                "invalid argument \"a=1,b=-2\" for \"--vmodule\" flag: \"b=-2\": not a whole number",
            ),
            (
                &["--vmodule=a"],
                "invalid argument \"a\" for \"--vmodule\" flag: \
                 \"a\" does not have the pattern=N format",
            ),
            (
                &["--min_resync_period=5"],
                "invalid argument \"5\" for \"--min-resync-period\" flag: \
                 time: missing unit in duration \"5\"",
            ),
            (
                &["--version=v1.37.0"],
                "invalid argument \"v1.37.0\" for \"--version\" flag: version \"v1.37.0\" must \
                 match major/minor/patch of default version \"v1.36.2\"",
            ),
            (
                &["--feature-gates=wardle:A=true"],
                "invalid argument \"wardle:A=true\" for \"--feature-gates\" flag: \
                 component not registered: wardle",
            ),
        ];
        for (args, expected) in table {
            assert_eq!(run(args), Err(expected.to_string()), "{args:?}");
        }
    }

    #[test]
    fn help_and_version_do_not_run() {
        let parse = |arg: &str| parse(&[arg.to_string()]);
        assert_eq!(parse("--help"), Ok(Command::Help));
        assert_eq!(parse("-h"), Ok(Command::Help));
        assert_eq!(parse("--version"), Ok(Command::Version("true".into())));
        assert_eq!(parse("--version=raw"), Ok(Command::Version("raw".into())));
        assert!(matches!(parse("--version=false"), Ok(Command::Run(_))));
    }

    #[test]
    fn flags_of_kubeadm_are_accepted() {
        let options = run(&[
            "--allocate-node-cidrs=true",
            "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-name=kubernetes",
            "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--use-service-account-credentials=true",
        ])
        .expect("options");
        assert_eq!(options.bind_address.to_string(), "127.0.0.1");
        assert_eq!(options.controllers, ["*", "bootstrapsigner", "tokencleaner"]);
        assert!(options.use_service_account_credentials && options.allocate_node_cidrs);
        assert_eq!(options.service_cluster_ip_range, "10.96.0.0/16");
    }
}
