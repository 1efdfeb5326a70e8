//! Users, and the accesses that they request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The key of the credential in the extra fields of a user.
pub const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The user who makes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// The identity of the credential (`JTI=…`, `X509SHA256=…`) and the pod and node that a token
    /// is bound to, or what an impersonation names.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn new(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().copied().map(str::to_owned).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    pub fn anonymous() -> User {
        User::new("system:anonymous", &["system:unauthenticated"])
    }

    /// Returns the user that a service account's token stands for, with the groups of all service
    /// accounts and of its namespace.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> User {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")]
            .map(str::to_owned);
        User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: groups.into(),
            extra: BTreeMap::new(),
        }
    }

    /// Returns the API server itself.
    pub fn server() -> User {
        User::new("system:apiserver", &["system:masters"])
    }

    /// Returns the part of the API server that reads other servers' APIs.
    pub fn aggregator() -> User {
        User::new("system:kube-aggregator", &["system:masters"])
    }

    /// Records the credential that authenticated the user.
    pub fn with_credential(mut self, credential: String) -> User {
        self.extra.insert(CREDENTIAL.to_owned(), vec![credential]);
        self
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    /// Builds the `UserInfo` of `authentication.k8s.io`.
    pub fn to_json(&self) -> Value {
        let mut user = json!({ "username": self.name, "groups": self.groups });
        if !self.uid.is_empty() {
            user["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            user["extra"] = json!(self.extra);
        }
        user
    }
}

/// An access that a user requests: a verb on a resource, or on a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub verb: String,
    pub group: String,
    /// With the subresource: `pods/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// The path of a non-resource request: `/metrics`.
    pub path: String,
}
