//! The file of `--cloud-config` for this provider: YAML, in which unknown fields are errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::grpc::{Endpoint, Tls};
use serde::Deserialize;

use crate::duration::duration;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The provider's name, with which its provider ids begin.
    pub name: String,
    /// `unix:///PATH` or `tls://HOST:PORT`
    endpoint: String,
    /// With `tls://`.
    tls: Option<TlsFiles>,
    /// The deadline of each call.
    #[serde(default = "timeout", deserialize_with = "duration")]
    pub timeout: Duration,
    /// What the provider has. The controllers of other parts do not run.
    #[serde(default = "all_parts")]
    parts: Vec<Part>,
    /// Whether the provider needs no id of the cluster, or has one.
    #[serde(default = "yes")]
    pub has_cluster_id: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsFiles {
    /// The authorities that sign the provider's certificate.
    ca: PathBuf,
    /// The manager's own certificate, with its key.
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The name in the provider's certificate, if it is not the host.
    server_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    LoadBalancers,
    Instances,
    Routes,
}

fn timeout() -> Duration {
    Duration::from_secs(30)
}

fn all_parts() -> Vec<Part> {
    vec![Part::LoadBalancers, Part::Instances, Part::Routes]
}

fn yes() -> bool {
    true
}

impl Config {
    /// Reads the configuration from the file, and the provider's endpoint from it.
    ///
    /// # Errors
    /// Names the file, and the field where one is wrong.
    pub fn load(path: Option<&Path>) -> Result<(Config, Endpoint), String> {
        let path = path.ok_or("--cloud-config is missing: it names the provider's endpoint")?;
        let fault = |error: String| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        Config::parse(&text).map_err(fault)
    }

    /// Parses the YAML and checks the values.
    fn parse(text: &str) -> Result<(Config, Endpoint), String> {
        let config: Config = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
        if config.name.is_empty() || config.name.contains("://") {
            return Err(format!("name: {:?} cannot begin a provider id", config.name));
        }
        if config.timeout.is_zero() {
            return Err("timeout: it is zero".to_owned());
        }
        let endpoint = config.endpoint()?;
        Ok((config, endpoint))
    }

    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the socket or the TLS address at which the provider is called.
    fn endpoint(&self) -> Result<Endpoint, String> {
        let fault = |why: &str| format!("endpoint: {:?} {why}", self.endpoint);
        if let Some(path) = self.endpoint.strip_prefix("unix://") {
            if self.tls.is_some() {
                return Err("tls: a Unix socket has none".to_owned());
            }
            return match Path::new(path).is_absolute() {
                true => Ok(Endpoint::Unix(path.into())),
                false => Err(fault("has no absolute path")),
            };
        }
        let Some(authority) = self.endpoint.strip_prefix("tls://") else {
            return Err(fault("is neither unix:///PATH nor tls://HOST:PORT"));
        };
        let parts = authority.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, port) = parts
            .filter(|(host, port)| !host.is_empty() && *port > 0)
            .ok_or_else(|| fault("is not tls://HOST:PORT"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let files = self.tls.as_ref().ok_or("tls.ca: it is missing")?;
        let identity = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err("tls: certificate and key need each other".to_owned()),
        };
        Ok(Endpoint::Tls(Tls {
            host: host.to_owned(),
            port,
            ca: files.ca.clone(),
            identity,
            server_name: files.server_name.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_sockets_or_hosts_with_tls() {
        let socket = "{name: a, endpoint: \"unix:///run/p.sock\", parts: [routes], timeout: 5s}";
        let (config, endpoint) = Config::parse(socket).expect("a configuration");
        assert_eq!(endpoint, Endpoint::Unix("/run/p.sock".into()));
        assert_eq!(config.timeout, Duration::from_secs(5));
        assert!(config.has(Part::Routes) && !config.has(Part::Instances));
        for (authority, host, port) in
            [("cloud.example:443", "cloud.example", 443), ("[fd00::1]:8443", "fd00::1", 8443)]
        {
            let text = format!(
                "{{name: a, endpoint: \"tls://{authority}\", tls: {{ca: /ca, certificate: /c, key: \
                 /k, serverName: s}}}}"
            );
            let (config, endpoint) = Config::parse(&text).expect("a configuration");
            let Endpoint::Tls(tls) = endpoint else { panic!("{endpoint:?}") };
            assert_eq!((tls.host.as_str(), tls.port), (host, port));
            assert_eq!(tls.server_name.as_deref(), Some("s"));
            assert!(config.has(Part::LoadBalancers) && config.has_cluster_id);
        }
    }

    #[test]
    fn faults_name_their_field() {
        for (text, fault) in [
            ("{}", "missing field `name`"),
            ("{name: a}", "missing field `endpoint`"),
            ("{name: a, endpoint: /run/x}", "endpoint: \"/run/x\" is neither"),
            ("{name: a, endpoint: \"unix://run/x\"}", "has no absolute path"),
            ("{name: a, endpoint: \"tls://host\"}", "is not tls://HOST:PORT"),
            ("{name: a, endpoint: \"tls://host:0\"}", "is not tls://HOST:PORT"),
            ("{name: a, endpoint: \"tls://h:1\"}", "tls.ca: it is missing"),
            ("{name: a, endpoint: \"tls://h:1\", tls: {}}", "tls: missing field `ca`"),
            (
                "{name: a, endpoint: \"tls://h:1\", tls: {ca: /a, key: /k}}",
                "tls: certificate and key need each other",
            ),
            ("{name: a, endpoint: \"unix:///x\", tls: {ca: /a}}", "tls: a Unix socket has none"),
            ("{name: \"a://\", endpoint: \"unix:///x\"}", "name: \"a://\" cannot begin"),
            ("{name: a, endpoint: \"unix:///x\", timeout: 0s}", "timeout: it is zero"),
            ("{name: a, endpoint: \"unix:///x\", timeout: 5x}", "timeout: time: "),
            ("{name: a, endpoint: \"unix:///x\", parts: [zones]}", "unknown variant `zones`"),
            ("{name: a, endpoint: \"unix:///x\", retries: 1}", "unknown field `retries`"),
        ] {
            let error = Config::parse(text).expect_err(text);
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
