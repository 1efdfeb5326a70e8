//! Parses a kubeconfig and finds its faults. Upstream: `clientcmd/api/v1`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use super::{Exec, Impersonation};
use crate::client::transport::Proxy;
use crate::objects::null_as_default;

/// A kubeconfig as it is written. Upstream: `clientcmd/api/v1.Config`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    #[serde(deserialize_with = "text")]
    api_version: String,
    #[serde(deserialize_with = "text")]
    kind: String,
    #[serde(rename = "current-context", deserialize_with = "text")]
    pub current_context: String,
    #[serde(deserialize_with = "items")]
    pub clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "items")]
    pub users: Vec<NamedUser>,
    #[serde(deserialize_with = "items")]
    pub contexts: Vec<NamedContext>,
}

impl File {
    /// Parses the first document of a kubeconfig, and checks its version and that no name occurs
    /// twice. Further documents are ignored, as in Go. `Err`: the fault.
    pub fn parse(text: &[u8]) -> std::result::Result<File, String> {
        let first = serde_yaml_ng::Deserializer::from_slice(text).next();
        let read = first.map(Option::<File>::deserialize).transpose();
        let file = read.map_err(|error| without_value(&error))?.flatten().unwrap_or_default();
        if !matches!(file.kind.as_str(), "" | "Config")
            || !matches!(file.api_version.as_str(), "" | "v1")
        {
            let version = Some(file.api_version).filter(|version| !version.is_empty());
            let version = version.unwrap_or_else(|| "v1".to_owned());
            return Err(format!("no kind {:?} is registered for version {version:?}", file.kind));
        }
        let contexts = file.contexts.iter().map(|context| &context.name);
        require_unique("context", contexts)?;
        require_unique("cluster", file.clusters.iter().map(|cluster| &cluster.name))?;
        require_unique("user", file.users.iter().map(|user| &user.name))?;
        Ok(file)
    }
}

/// A text; null: an empty one. A number is not accepted as a text, as in Go.
#[derive(Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    /// Reads a string, or null as an empty one.
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Text, D::Error> {
        struct Found;
        impl Visitor<'_> for Found {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> std::result::Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_unit<E>(self) -> std::result::Result<Text, E> {
                Ok(Text::default())
            }
        }
        from.deserialize_any(Found)
    }
}

/// Deserializes a text as `Text` does, for `#[serde(deserialize_with = "text")]`.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    Ok(Text::deserialize(from)?.0)
}

/// Deserializes a list, or null; a null in it is an empty item.
pub(super) fn items<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> std::result::Result<Vec<T>, D::Error> {
    let items = Option::<Vec<Option<T>>>::deserialize(from)?.unwrap_or_default();
    Ok(items.into_iter().map(Option::unwrap_or_default).collect())
}

/// Deserializes a list of texts, or null.
pub(super) fn texts<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Vec<String>, D::Error> {
    Ok(items::<D, Text>(from)?.into_iter().map(|Text(text)| text).collect())
}

/// Deserializes lists of texts by name; a null is an empty one.
fn texts_by_name<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<BTreeMap<String, Vec<String>>, D::Error> {
    let named = Option::<BTreeMap<String, Option<Vec<Text>>>>::deserialize(from)?;
    let texts = |texts: Option<Vec<Text>>| texts.into_iter().flatten().map(|Text(t)| t).collect();
    Ok(named.into_iter().flatten().map(|(name, list)| (name, texts(list))).collect())
}

/// Checks that no name occurs twice in a list of the file. `what`: what the list contains.
fn require_unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a String>,
) -> std::result::Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("duplicate name {name:?} in the list of {what}s"));
        }
    }
    Ok(())
}

/// Returns the text of an error without the malformed value, which may be a token or a key: of
/// `invalid type: string "…", expected a map` the quoted part is left out.
pub fn without_value(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let starts = ["invalid type: ", "invalid value: "];
    let start = starts.iter().find_map(|start| Some(text.find(start)? + start.len()));
    match (start, text.rfind(", expected")) {
        (Some(start), Some(end)) if start <= end => {
            let (before, found) = text[..end].split_at(start);
            let kind = found.split(' ').next().unwrap_or_default();
            format!("{before}{kind}{}", &text[end..])
        }
        _ => text,
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedCluster {
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    #[serde(deserialize_with = "text")]
    pub server: String,
    #[serde(deserialize_with = "text")]
    pub certificate_authority: String,
    #[serde(deserialize_with = "text")]
    pub certificate_authority_data: String,
    #[serde(deserialize_with = "null_as_default")]
    pub insecure_skip_tls_verify: bool,
    #[serde(deserialize_with = "text")]
    pub tls_server_name: String,
    #[serde(deserialize_with = "text")]
    pub proxy_url: String,
    #[serde(deserialize_with = "items")]
    pub extensions: Vec<Extension>,
}

impl Cluster {
    /// Returns the faults of the cluster `name`, other than those of its address.
    /// Upstream: `clientcmd.validateClusterInfo`.
    pub fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.proxy_url.is_empty()
            && let Err(why) = Proxy::parse(&self.proxy_url)
        {
            faults.push(format!("invalid 'proxy-url' for cluster {name:?}: {why}"));
        }
        if !self.certificate_authority.is_empty() && !self.certificate_authority_data.is_empty() {
            faults.push(both_specified("certificate-authority", name));
        }
        faults
    }

    /// Returns the extension for credential plugins, null without one.
    pub fn into_exec_config(self) -> serde_json::Value {
        let name = "client.authentication.k8s.io/exec";
        let mut extensions = self.extensions.into_iter();
        let found = extensions.find(|extension| extension.name == name);
        found.map(|found| found.extension).unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Extension {
    #[serde(deserialize_with = "text")]
    pub name: String,
    pub extension: serde_json::Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedUser {
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub user: User,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    #[serde(deserialize_with = "text")]
    pub client_certificate: String,
    #[serde(deserialize_with = "text")]
    pub client_certificate_data: String,
    #[serde(deserialize_with = "text")]
    pub client_key: String,
    #[serde(deserialize_with = "text")]
    pub client_key_data: String,
    #[serde(deserialize_with = "text")]
    pub token: String,
    #[serde(rename = "tokenFile", deserialize_with = "text")]
    pub token_file: String,
    #[serde(deserialize_with = "text")]
    pub r#as: String,
    #[serde(deserialize_with = "text")]
    pub as_uid: String,
    #[serde(deserialize_with = "texts")]
    pub as_groups: Vec<String>,
    #[serde(deserialize_with = "texts_by_name")]
    pub as_user_extra: BTreeMap<String, Vec<String>>,
    #[serde(deserialize_with = "text")]
    pub username: String,
    #[serde(deserialize_with = "text")]
    pub password: String,
    pub auth_provider: Option<AuthProvider>,
    pub exec: Option<Box<Exec>>,
}

/// A removed way to get credentials: plugins have replaced it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    #[serde(deserialize_with = "text")]
    pub name: String,
}

impl AuthProvider {
    /// Returns why it cannot be used. Upstream: `rest.GetAuthProvider`.
    pub fn fault(&self) -> String {
        match self.name.as_str() {
            name @ ("azure" | "gcp") => format!("The {name} auth plugin has been removed."),
            "oidc" => "auth-provider \"oidc\" is not supported: use an exec plugin".to_owned(),
            name => format!("no Auth Provider found for name {name:?}"),
        }
    }
}

/// Returns the fault that a field is given both as a file and as data.
fn both_specified(field: &str, name: &str) -> String {
    format!("{field}-data and {field} are both specified for {name}")
}

impl User {
    /// Returns the faults of the user `name`: credentials that contradict each other or are
    /// incomplete.
    /// Upstream: `clientcmd.validateAuthInfo`.
    pub fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let is_set = |field: &String| !field.is_empty();
        let (certificate_data, certificate_file) =
            (is_set(&self.client_certificate_data), is_set(&self.client_certificate));
        let (key_data, key_file) = (is_set(&self.client_key_data), is_set(&self.client_key));
        if certificate_data || certificate_file {
            if certificate_data && certificate_file {
                faults.push(both_specified("client-certificate", name));
            }
            if key_data && key_file {
                faults.push(both_specified("client-key", name));
            }
            if !key_data && !key_file {
                faults.push(format!(
                    "client-key-data or client-key must be specified for {name} to use the \
                     clientCert authentication method"
                ));
            }
        }
        if let Some(exec) = &self.exec {
            if self.auth_provider.is_some() {
                faults.push(format!(
                    "authProvider cannot be provided in combination with an exec plugin for {name}"
                ));
            }
            faults.extend(exec.check().err().map(|what| format!("user {name:?}: exec {what}")));
        }
        if is_set(&self.token) && (is_set(&self.username) || is_set(&self.password)) {
            faults.push(format!(
                "more than one authentication method found for {name}; found [token basicAuth], \
                 only one is allowed"
            ));
        }
        let has_attributes =
            is_set(&self.as_uid) || !self.as_groups.is_empty() || !self.as_user_extra.is_empty();
        if has_attributes && self.r#as.is_empty() {
            faults.push(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        faults
    }

    /// Returns the identity to act as; `None` when no user is named.
    pub fn impersonation(&self) -> Option<Impersonation> {
        (!self.r#as.is_empty()).then(|| Impersonation {
            user: self.r#as.clone(),
            uid: self.as_uid.clone(),
            groups: self.as_groups.clone(),
            extra: self.as_user_extra.clone(),
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedContext {
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub context: Context,
}

/// A cluster and a user, by their names in the file.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    #[serde(deserialize_with = "text")]
    pub cluster: String,
    #[serde(deserialize_with = "text")]
    pub user: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_file_is_reported_without_its_values() {
        for (text, expected) in [
            ("--- |\n  a \"secret\" key\n", "invalid type: string, expected struct File"),
            ("users: \"secret, expected\"\n", "users: invalid type: string, expected a sequence"),
            ("users: [{user: {token: 4711}}]\n", "invalid type: integer, expected a string"),
            (
                "users: [{user: {exec: {args: [4711]}}}]\n",
                "invalid type: integer, expected a string",
            ),
            (
                "clusters: [{cluster: {insecure-skip-tls-verify: 'secret'}}]\n",
                "invalid type: string, expected a boolean",
            ),
            ("users: [{user: {exec: !!null secret}}]\n", "invalid value: string, expected null"),
            ("users: [", "did not find expected"),
            ("kind: Pod\n", "no kind \"Pod\" is registered for version \"v1\""),
            ("users: [{name: u}, {name: u}]", "duplicate name \"u\" in the list of users"),
        ] {
            let without = File::parse(text.as_bytes()).err().expect("no kubeconfig");
            let leaks = ["secret", "4711"].iter().any(|value| without.contains(value));
            assert!(without.contains(expected) && !leaks, "{without}");
        }
    }

    #[test]
    fn a_null_counts_as_a_missing_value() {
        for text in ["", "# nothing\n", "---\n", "null\n", "users: null\n"] {
            let file = File::parse(text.as_bytes()).expect(text);
            assert!(file.users.is_empty() && file.current_context.is_empty(), "{text}");
        }
        let file = File::parse(
            b"users: [null, {name: u, user: {token: ~, as-groups: [~, 'null'], as-user-extra: {a: , b: [c]}}}]",
        );
        let file = file.expect("a kubeconfig");
        assert_eq!(file.users.len(), 2);
        let user = &file.users[1].user;
        assert_eq!(user.as_groups, ["", "null"]);
        let extra = [("a".to_owned(), vec![]), ("b".to_owned(), vec!["c".to_owned()])];
        assert_eq!(user.as_user_extra, extra.into());
    }
}
