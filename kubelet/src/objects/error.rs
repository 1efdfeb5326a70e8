//! The errors of objects.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::Utf8Error;
use std::sync::Arc;

use kube_controller_manager::client;
use kube_controller_manager::objects::SelectorError;

use super::Kind;
use super::folder::MAX_BYTES;
use crate::causes::chain;

/// Why a pod does not get what it refers to. The texts are upstream's.
#[derive(Clone, Debug)]
pub enum Unavailable {
    NotFound {
        kind: Kind,
        name: String,
    },
    /// The API server has not answered yet.
    NotYet {
        kind: Kind,
    },
    /// The registry does not know that the pod refers to it.
    NotRegistered {
        namespace: String,
        name: String,
    },
    ServicesNotYet,
    TokenNotYet,
    Token(Arc<client::Error>),
    /// The last token has expired. `account`: NAMESPACE/NAME.
    TokenExpired {
        account: String,
        source: Arc<client::Error>,
    },
    /// There is no API server that has tokens.
    NoTokens,
    /// The account of a pod cannot be read.
    Account(Arc<client::Error>),
    /// There is no API server that has accounts.
    NoAccounts,
    /// The signer has not answered yet.
    CertificateNotYet,
    /// The signer has refused a certificate for good. `verdict`: denied or failed.
    CertificateRefused {
        verdict: &'static str,
        reason: String,
        message: String,
    },
    /// There is no API server that has requests for certificates, or their gate is off.
    NoCertificates,
    /// There is no API server that has ClusterTrustBundles, or their feature gate is off.
    NoBundles,
    BundlesNotYet,
    /// It cannot be read in which version the API server serves ClusterTrustBundles.
    BundleVersion(Arc<client::Error>),
    NoBundle {
        name: String,
    },
    NoBundleOfSigner,
    /// A source of ClusterTrustBundles has neither a name nor a signer.
    UnnamedBundle,
    BundleSelector(SelectorError),
    /// Both in bytes.
    LongBundleSelector {
        length: usize,
        max: usize,
    },
}

impl Unavailable {
    /// Returns whether the object does not exist, which is fine where it is optional.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Unavailable::NotFound { .. })
    }
}

/// Returns the singular name of the resource in upstream's messages.
fn resource(kind: Kind) -> &'static str {
    match kind {
        Kind::ConfigMap => "configmap",
        Kind::Secret => "secret",
        Kind::RuntimeClass => "runtimeclass.node.k8s.io",
    }
}

/// Returns the server's message alone, where it has one.
fn answer(error: &client::Error) -> String {
    error.message().map_or_else(|| chain(error), str::to_owned)
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::NotFound { kind, name } => {
                write!(f, "{} {name:?} not found", resource(*kind))
            }
            Unavailable::NotYet { kind } => {
                let resource = resource(*kind);
                write!(f, "failed to sync {resource} cache: timed out waiting for the condition")
            }
            Unavailable::NotRegistered { namespace, name } => {
                write!(f, "object {namespace:?}/{name:?} not registered")
            }
            Unavailable::ServicesNotYet => f.write_str(
                "services have not yet been read at least once, cannot construct envvars",
            ),
            Unavailable::TokenNotYet => {
                f.write_str("failed to fetch token: timed out waiting for the condition")
            }
            Unavailable::Token(error) => write!(f, "failed to fetch token: {}", answer(error)),
            Unavailable::TokenExpired { account, source } => {
                let fault = answer(source);
                write!(f, "token {account} expired and refresh failed: {fault}")
            }
            Unavailable::NoTokens => {
                f.write_str("cannot use TokenManager when kubelet is in standalone mode")
            }
            Unavailable::Account(error) => f.write_str(&answer(error)),
            Unavailable::NoAccounts => {
                f.write_str("cannot get ServiceAccounts when kubelet is in standalone mode")
            }
            Unavailable::CertificateNotYet => f.write_str("credential bundle is not issued yet"),
            Unavailable::CertificateRefused { verdict, reason, message } => write!(
                f,
                "PodCertificateRequest was permanently {verdict}: reason={reason:?} \
                 message={message:?}"
            ),
            Unavailable::NoCertificates => f.write_str("unimplemented"),
            Unavailable::NoBundles => {
                f.write_str("ClusterTrustBundle projection is not supported in static kubelet mode")
            }
            Unavailable::BundlesNotYet => {
                f.write_str("ClusterTrustBundle informer has not yet synced")
            }
            Unavailable::BundleVersion(error) => write!(
                f,
                "failed to ensure informer manager for ClusterTrustBundles: failed to determine \
                 which informer manager to choose: {}",
                answer(error)
            ),
            Unavailable::NoBundle { name } => write!(
                f,
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \
                 {name:?} not found"
            ),
            Unavailable::NoBundleOfSigner => f.write_str(
                "combination of signerName and labelSelector matched zero ClusterTrustBundles",
            ),
            Unavailable::UnnamedBundle => f.write_str(
                "ClusterTrustBundle projection requires either name or signerName to be set",
            ),
            Unavailable::BundleSelector(error) => {
                write!(f, "while parsing label selector: {error}")
            }
            Unavailable::LongBundleSelector { length, max } => {
                write!(f, "label selector length ({length}) is larger than {max}")
            }
        }
    }
}

impl StdError for Unavailable {}

/// Why the folder cannot be read, or a file of it has no object.
#[derive(Debug)]
pub enum Error {
    Folder {
        path: PathBuf,
        source: io::Error,
    },
    /// The file cannot be read.
    File(io::Error),
    TooLarge,
    NotUtf8(Utf8Error),
    /// The file is neither JSON nor YAML.
    Syntax(serde_yaml_ng::Error),
    UnknownKind {
        kind: String,
        version: String,
    },
    /// A field of the object has another type.
    Field {
        kind: String,
        source: serde_json::Error,
    },
    /// A field has to have a value.
    Required {
        field: &'static str,
    },
    /// The name of a content.
    InvalidKey(String),
    /// A content is in both maps of a ConfigMap.
    DuplicateKey(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Folder { path, .. } => write!(f, "{}", path.display()),
            Error::File(error) => error.fmt(f),
            Error::TooLarge => write!(f, "it has more than {MAX_BYTES} bytes"),
            Error::NotUtf8(_) => f.write_str("not UTF-8"),
            Error::Syntax(error) => error.fmt(f),
            Error::UnknownKind { kind, version } => {
                let kinds = "a v1 ConfigMap, a v1 Secret or a node.k8s.io/v1 RuntimeClass";
                write!(f, "{version} {kind} is not {kinds}")
            }
            Error::Field { kind, .. } => write!(f, "invalid {kind}"),
            Error::Required { field } => write!(f, "{field}: Required value"),
            Error::InvalidKey(key) => write!(f, "data[{key}]: Invalid value: not a valid key"),
            Error::DuplicateKey(key) => {
                write!(f, "data[{key}]: Invalid value: duplicate of key present in binaryData")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Folder { source, .. } => Some(source),
            Error::File(error) => error.source(),
            Error::NotUtf8(error) => Some(error),
            Error::Syntax(error) => error.source(),
            Error::Field { source, .. } => Some(source),
            _ => None,
        }
    }
}
