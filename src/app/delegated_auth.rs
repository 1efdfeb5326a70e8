//! Authentication and authorization by the API server, with authorities from files and from the
//! cluster. Upstream: `apiserver/pkg/server/options` `DelegatingAuthenticationOptions`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::connect::{Connect, Target, user_agent};
use crate::client::{Client, is_in_cluster};
use crate::clock::SharedClock;
use crate::files::{Stamp, stamp};
use crate::objects::{ObjectKey, ResourceType, from_json};
use crate::options::Options;
use crate::server::auth::{
    ApiReviewer, AuthConfig, Authorities, MASTERS, PathAttributes, RequestHeader, Trust,
};
use crate::task;

const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);

/// Makes a client for reviews: by the kubeconfig, or as the Pod that the manager runs in. `None`
/// without either, and, with a warning, where the Pod's own access cannot be used.
fn review_client(
    connect: Connect,
    options: &Options,
    kubeconfig: &str,
    flag: &str,
) -> Result<Option<Client>, String> {
    if kubeconfig.is_empty() && !is_in_cluster() {
        return Ok(None);
    }
    // A negative rate: reviews are not limited.
    let target = Target { kubeconfig, qps: -1.0, read_only: options.shadow, ..Target::default() };
    match connect(&target) {
        Ok(connection) => {
            Ok(Some(connection.client(&user_agent(options.program, "delegated-auth"))))
        }
        Err(error) if kubeconfig.is_empty() => {
            log::warn!("failed to read in-cluster kubeconfig in place of --{flag}: {error}");
            Ok(None)
        }
        Err(error) => Err(format!("--{flag}: {error}")),
    }
}

/// Returns the configuration by which the server authenticates and authorizes its clients.
///
/// # Errors
/// One line naming the flag and its fault.
pub(super) async fn auth_config(
    options: &Options,
    connect: Connect,
    lookup: &Lookup,
    clock: &SharedClock,
) -> Result<AuthConfig, String> {
    let authorization = review_client(
        connect,
        options,
        &options.authorization_kubeconfig,
        "authorization-kubeconfig",
    )?;
    let tolerates = |fault: &LookupFault| {
        // Before it serves, upstream's manager looks up the settings of front proxies alone; with
        // a flag for them it looks up nothing, so no failure stops it.
        fault.is_tolerated
            || options.authentication_tolerate_lookup_failure
            || !options.requestheader_client_ca_file.is_empty()
    };
    let trust = match lookup.trust().await {
        Err(fault) if tolerates(&fault) => {
            log::warn!("Error looking up in-cluster authentication configuration: {fault}");
            lookup.lacks_trust.store(true, Ordering::Relaxed);
            lookup.files().await?
        }
        Err(fault) => return Err(fault.to_string()),
        Ok(trust) => trust,
    };
    let authentication = lookup.client.clone();
    Ok(AuthConfig {
        trust,
        reviewer: Arc::new(ApiReviewer { authentication, authorization, clock: clock.clone() }),
        token_ttl: options.authentication_token_webhook_cache_ttl,
        authorized_ttl: options.authorization_webhook_cache_authorized_ttl,
        unauthorized_ttl: options.authorization_webhook_cache_unauthorized_ttl,
        always_allow: options.authorization_always_allow_paths.clone(),
        always_allow_groups: vec![MASTERS.to_owned()],
        attributes: Arc::new(PathAttributes),
        anonymous: true,
    })
}

/// The sources of trusted authorities: files, and the cluster where no flag names a file.
pub(super) struct Lookup {
    options: Arc<Options>,
    client: Option<Client>,
    /// Whether the cluster's authorities could not be read at the start, nor since.
    lacks_trust: AtomicBool,
}

impl Lookup {
    pub fn new(options: Arc<Options>, connect: Connect) -> Result<Lookup, String> {
        let kubeconfig = &options.authentication_kubeconfig;
        let client = review_client(connect, &options, kubeconfig, "authentication-kubeconfig")?;
        Ok(Lookup { options, client, lacks_trust: AtomicBool::new(false) })
    }

    /// Reads the trusted authorities: from the files of the flags, and from the cluster where no
    /// flag names a file, unless `--authentication-skip-lookup` is given or there is no client.
    ///
    /// # Errors
    /// One line naming the flag or the cluster's fault.
    pub async fn trust(&self) -> Result<Trust, LookupFault> {
        let mut trust = self.files().await.map_err(LookupFault::lasting)?;
        let missing = trust.client_ca.is_none() || trust.request_header.ca.is_none();
        let client = self.client.as_ref().filter(|_| !self.options.authentication_skip_lookup);
        if let (Some(client), true) = (client, missing) {
            let (ca, header) = look_up(client).await?;
            trust.client_ca = trust.client_ca.or(ca);
            if trust.request_header.ca.is_none() {
                trust.request_header = header.unwrap_or(trust.request_header);
            }
        }
        self.lacks_trust.store(false, Ordering::Relaxed);
        Ok(trust)
    }

    /// Returns whether the manager serves without authorities that the cluster may have by now.
    pub fn lacks_trust(&self) -> bool {
        self.lacks_trust.load(Ordering::Relaxed)
    }

    /// Returns the stamps of the files with authorities.
    pub async fn stamps(&self) -> [Stamp; 2] {
        let o = self.options.clone();
        task::blocking(move || [&o.client_ca_file, &o.requestheader_client_ca_file].map(stamp))
            .await
    }

    /// Reads the authorities from the files that the flags name, without asking the API server.
    async fn files(&self) -> Result<Trust, String> {
        let o = &self.options;
        let proxies = "requestheader-client-ca-file";
        Ok(Trust {
            client_ca: authorities(&o.client_ca_file, "client-ca-file").await?,
            request_header: RequestHeader {
                ca: authorities(&o.requestheader_client_ca_file, proxies).await?,
                allowed_names: o.requestheader_allowed_names.clone(),
                username_headers: o.requestheader_username_headers.clone(),
                uid_headers: o.requestheader_uid_headers.clone(),
                group_headers: o.requestheader_group_headers.clone(),
                extra_prefixes: o.requestheader_extra_headers_prefix.clone(),
            },
        })
    }
}

/// Reads the CA file that a flag names; `None` for the empty name.
async fn authorities(file: &str, flag: &str) -> Result<Option<Authorities>, String> {
    if file.is_empty() {
        return Ok(None);
    }
    let read = Authorities::from_file(file).await;
    read.map(Some).map_err(|error| format!("--{flag}: {error}"))
}

/// The trusted authorities could not be read.
#[derive(Debug)]
pub(super) struct LookupFault {
    text: String,
    /// Upstream's manager starts nevertheless: the cluster has none yet, since its API server
    /// writes them once it serves, or they are malformed.
    is_tolerated: bool,
}

impl LookupFault {
    fn lasting(text: String) -> LookupFault {
        LookupFault { text, is_tolerated: false }
    }
}

impl fmt::Display for LookupFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads the cluster's settings of authentication, which are used where flags give none: the CA of
/// client certificates, and the settings of front proxies.
async fn look_up(
    client: &Client,
) -> Result<(Option<Authorities>, Option<RequestHeader>), LookupFault> {
    let key = ObjectKey::new("kube-system", "extension-apiserver-authentication");
    let fault = |error: &dyn fmt::Display, is_tolerated| LookupFault {
        text: format!(
            "unable to load configmap based client CA: {error} (see --authentication-skip-lookup)"
        ),
        is_tolerated,
    };
    let map = client.resource(&CONFIG_MAPS).get::<Value>(&key).await;
    let map = map.map_err(|error| fault(&error, error.is_not_found()))?;
    parse_settings(&map["data"]).map_err(|error| fault(&error, true))
}

/// Parses the data of the ConfigMap `extension-apiserver-authentication`: the CA of client
/// certificates, and the settings of front proxies; `None` where their CA is not given. A list that
/// is missing or malformed is empty. `Err`: a CA is malformed.
fn parse_settings(data: &Value) -> Result<(Option<Authorities>, Option<RequestHeader>), String> {
    let authorities = |key: &str| match data[key].as_str() {
        Some(pem) if !pem.is_empty() => Authorities::from_pem(pem.as_bytes()).map(Some),
        _ => Ok(None),
    };
    let list = |key: &str| -> Vec<String> {
        from_json(data[key].as_str().unwrap_or_default()).unwrap_or_default()
    };
    let header = authorities("requestheader-client-ca-file")?.map(|ca| RequestHeader {
        ca: Some(ca),
        allowed_names: list("requestheader-allowed-names"),
        username_headers: list("requestheader-username-headers"),
        uid_headers: list("requestheader-uid-headers"),
        group_headers: list("requestheader-group-headers"),
        extra_prefixes: list("requestheader-extra-headers-prefix"),
    });
    Ok((authorities("client-ca-file")?, header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_without_a_front_proxy_is_accepted() {
        let (ca, header) = parse_settings(&serde_json::json!({})).expect("nothing");
        assert!(ca.is_none() && header.is_none());
        assert!(parse_settings(&serde_json::json!({ "client-ca-file": "broken" })).is_err());
    }
}
