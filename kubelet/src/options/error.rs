//! The errors of the command line and of configuration files.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::node;

/// Why a command line, or a configuration file that it names, is refused.
#[derive(Debug)]
pub enum Error {
    /// A flag is unknown, or its value is invalid. The text is pflag's.
    Flag(String),
    UnknownCommand(String),
    /// One flag of the credential providers is given without the other one.
    CredentialProviders,
    /// What concerns one configuration file, or the folder of drop-ins.
    File {
        path: String,
        cause: Box<Error>,
    },
    Unreadable(io::Error),
    Syntax(serde_yaml_ng::Error),
    NotAnObject,
    UnknownKind {
        kind: String,
        version: String,
    },
    UnknownField(String),
    /// This kubelet does not have what the field sets.
    UnsupportedField(String),
    /// The field has few values that are supported, as `a or b`.
    UnsupportedValue {
        field: String,
        given: String,
        only: String,
    },
    /// A field has another type.
    Field(serde_json::Error),
    /// A flag of the node is refused.
    Node(node::Error),
    /// A field of the node is out of its range: with its flag, its value and the range.
    OutOfRange {
        field: &'static str,
        value: i64,
        range: &'static str,
    },
    LeaseDuration,
    LogFormat(String),
    ReservedCpus(String),
    /// CPUs are reserved by their numbers, and by cgroups.
    ReservedCpusAndCgroups,
    RegisterWithTaints(node::Error),
    CloudProvider(String),
    /// The kubelet's port is 0.
    Port,
    /// Two ports are one.
    SamePorts(u16),
    AuthorizationMode(String),
    MaxPulls(i32),
    /// Several pulls at a time are allowed and forbidden.
    SerialPulls,
    UnknownGate(String),
    /// Of a feature gate, upstream allows only the other value.
    LockedGate {
        gate: String,
        on: bool,
    },
    /// Of a feature gate, this kubelet has only the other value.
    UnsupportedGate {
        gate: String,
        on: bool,
    },
    /// A feature gate is on, and the one that it depends on is off.
    GateDependency {
        gate: &'static str,
        needed: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Flag(text) => f.write_str(text),
            Error::UnknownCommand(word) => {
                write!(f, "unknown command {word:?}: the kubelet takes only flags")
            }
            Error::CredentialProviders => f.write_str(
                "--image-credential-provider-config and --image-credential-provider-bin-dir are \
                 needed both",
            ),
            Error::File { path, .. } => f.write_str(path),
            Error::Unreadable(error) => error.fmt(f),
            Error::Syntax(error) => error.fmt(f),
            Error::NotAnObject => f.write_str("the document is not an object"),
            Error::UnknownKind { kind, version } => {
                write!(f, "no kind {kind:?} is registered for version {version:?}")
            }
            Error::UnknownField(field) => {
                write!(f, "strict decoding error: unknown field {field:?}")
            }
            Error::UnsupportedField(field) => {
                write!(f, "{field} is not supported yet: see docs/kubelet-flags.md")
            }
            Error::UnsupportedValue { field, given, only } => {
                write!(f, "{field}: {given} is not supported, only {only}")
            }
            Error::Field(_) => f.write_str("the kubelet's configuration"),
            Error::Node(error) => error.fmt(f),
            Error::OutOfRange { field, value, range } => write!(f, "{field} {value} must {range}"),
            Error::LeaseDuration => f.write_str("nodeLeaseDurationSeconds must be greater than 0"),
            Error::LogFormat(format) => {
                write!(f, "logging.format (--logging-format) {format:?}: not text or json")
            }
            Error::ReservedCpus(list) => {
                write!(f, "unable to parse reservedSystemCPUs (--reserved-cpus) {list:?}")
            }
            Error::ReservedCpusAndCgroups => f.write_str(
                "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
                 (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
            ),
            Error::RegisterWithTaints(_) => {
                f.write_str("registerWithTaints (--register-with-taints)")
            }
            Error::CloudProvider(provider) => write!(
                f,
                "cloud provider {provider:?} was specified, but built-in cloud providers are \
                 disabled. Please set --cloud-provider=external and migrate to an external cloud \
                 provider"
            ),
            Error::Port => f.write_str("port (--port) 0 must be between 1 and 65535, inclusive"),
            Error::SamePorts(port) => {
                write!(f, "port (--port) and readOnlyPort (--read-only-port) are both {port}")
            }
            Error::AuthorizationMode(mode) => write!(
                f,
                "authorization.mode (--authorization-mode): unknown authorization mode {mode}"
            ),
            Error::MaxPulls(max) => {
                write!(f, "maxParallelImagePulls {max} must be a positive number")
            }
            Error::SerialPulls => f.write_str(
                "maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls \
                 (--serialize-image-pulls) is set to false",
            ),
            Error::UnknownGate(gate) => write!(f, "unrecognized feature gate: {gate}"),
            Error::LockedGate { gate, on } => {
                write!(f, "cannot set feature gate {gate} to {on}, feature is locked to {}", !on)
            }
            Error::UnsupportedGate { gate, on } => write!(
                f,
                "feature gate {gate}={on} is not supported yet: see docs/kubelet-flags.md"
            ),
            Error::GateDependency { gate, needed } => write!(
                f,
                "{gate} is enabled, but depends on features that are disabled: [{needed}]"
            ),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::File { cause, .. } => Some(&**cause),
            Error::Unreadable(error) => error.source(),
            Error::Syntax(error) => error.source(),
            Error::Field(error) => Some(error),
            Error::Node(error) => error.source(),
            Error::RegisterWithTaints(error) => Some(error),
            _ => None,
        }
    }
}
