//! The errors of settings of the node.

use std::error::Error as StdError;
use std::fmt;

use kube_controller_manager::objects::QuantityError;

/// Why a setting of the node is refused, or its address is not known.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// `--node-ip`.
    NodeIp {
        text: String,
        fault: &'static str,
    },
    /// Labels of `--node-labels` in Kubernetes' domains that a kubelet may not set.
    ForbiddenLabels {
        labels: Vec<String>,
        domains: String,
        allowed: String,
    },
    /// Keys or values of `--node-labels`, with their faults.
    Labels(Vec<(String, String)>),
    /// A taint has not the form of one, or another effect.
    Taint(String),
    TaintEffect(String),
    TaintKey {
        key: String,
        fault: String,
    },
    TaintValue {
        value: String,
        fault: String,
    },
    /// What concerns the reservations of a flag.
    Reservation {
        flag: &'static str,
        cause: Box<Error>,
    },
    NotReservable(String),
    Amount {
        resource: String,
        text: String,
        cause: QuantityError,
    },
    NegativeAmount {
        resource: String,
        text: String,
    },
    /// More is reserved than the machine has, in sentences.
    OverReserved(String),
    /// An address of `--node-ip` that the node cannot have.
    Address {
        which: &'static str,
        fault: String,
    },
    NoAddress {
        node: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NodeIp { text, fault } => write!(f, "bad --node-ip {text:?}: {fault}"),
            Error::ForbiddenLabels { labels, domains, allowed } => write!(
                f,
                "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n\
                 --node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix \
                 ({domains}) or be in the specifically allowed set ({allowed})",
                labels.join(" ")
            ),
            Error::Labels(faults) => {
                let faults = faults.iter().map(|(text, fault)| format!("'{text}' - {fault}"));
                write!(f, "invalid node labels: {}", faults.collect::<Vec<_>>().join("; "))
            }
            Error::Taint(text) => write!(f, "invalid taint spec: {text}"),
            Error::TaintEffect(effect) => {
                write!(f, "invalid taint effect: {effect}, unsupported taint effect")
            }
            Error::TaintKey { key, fault } => write!(f, "invalid taint key {key:?}: {fault}"),
            Error::TaintValue { value, fault } => {
                write!(f, "invalid taint value {value:?}: {fault}")
            }
            Error::Reservation { flag, .. } => write!(f, "--{flag} value failed to parse"),
            Error::NotReservable(resource) => write!(f, "cannot reserve {resource:?} resource"),
            Error::Amount { resource, text, .. } => {
                write!(f, "failed to parse quantity {text:?} for {resource:?} resource")
            }
            Error::NegativeAmount { resource, text } => {
                write!(f, "resource quantity for {resource:?} cannot be negative: {text}")
            }
            Error::OverReserved(text) => {
                write!(f, "invalid Node Allocatable configuration. {text}")
            }
            Error::Address { which, fault } => write!(f, "failed to validate {which}: {fault}"),
            Error::NoAddress { node } => {
                write!(f, "can't get ip address of node {node}: no default route")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Reservation { cause, .. } => Some(&**cause),
            Error::Amount { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
