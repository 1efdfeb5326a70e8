//! One attempt of a probe: by exec, HTTP, TCP or gRPC. Upstream: `prober.runProbe`, `pkg/probe`.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use futures_lite::FutureExt;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::grpc;
use super::worker::Worker;
use crate::causes::chain;
use crate::cri::RuntimeService;
use crate::http::{self, Target, TrustPolicy};
use crate::pod::Container;
use crate::runtime::environment::expand_word;

/// The bytes of an HTTP probe's answer that are read. Upstream: `maxRespBodyLength`.
const MAX_BODY: usize = 10 << 10;

impl Worker {
    /// Probes once. A success may have a warning. Upstream: `probe.Warning`.
    pub(super) async fn attempt(&self) -> Result<Option<String>, Fault> {
        let timeout = self.probe.timeout_seconds.unwrap_or(1).max(1);
        let timeout = Duration::from_secs(timeout.unsigned_abs().into());
        let clock = &self.probes.clock;
        if let Some(service) = &self.probe.grpc {
            // It has messages of its own for each stage that takes too long.
            let port = u16::try_from(service.port)
                .map_err(|_| Fault::NoResult(format!("invalid port number: {}", service.port)))?;
            let name = service.service.as_deref().unwrap_or_default();
            return grpc::check(clock, &self.ip.now(), port, name, timeout).await.map(|()| None);
        }
        if let Some(exec) = &self.probe.exec {
            // The runtime keeps the timeout of a command.
            // Only variables with a value in the definition are known here, as upstream.
            let variables = self.container.env.iter().flatten();
            let values = variables
                .map(|env| (env.name.clone(), env.value.clone().unwrap_or_default().into_bytes()))
                .collect();
            let command = exec.command.iter().flatten();
            let command = command.map(|word| expand_word(word, &values));
            let command = command.collect::<Result<Vec<String>, _>>();
            let command = command.map_err(|error| Fault::NoResult(chain(&error)))?;
            return run(&self.probes.runtime, &self.id, &command, timeout).await.map(|()| None);
        }
        let late = async {
            clock.sleep(timeout).await;
            Err(Fault::Failed(format!("no answer within {timeout:?}")))
        };
        self.connect().or(late).await
    }

    /// Makes the request of an HTTP probe, or the connection of a TCP probe.
    async fn connect(&self) -> Result<Option<String>, Fault> {
        let probe = &self.probe;
        if let Some(get) = &probe.http_get {
            let target = target(&self.container, get, &self.ip.now())?;
            return get_ok(&target, get).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let own = tcp.host.clone().filter(|host| !host.is_empty());
            let host = own.unwrap_or_else(|| self.ip.now());
            let port = port(&self.container, &tcp.port)?;
            return http::connect(&host, port).await.map(|_| None).map_err(Fault::from);
        }
        Err(Fault::NoResult("missing probe handler".to_owned()))
    }
}

/// Why a probe has not succeeded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The container has answered, or has not in time.
    Failed(String),
    /// The container could not be asked: that says nothing about it. Upstream: `probe.Unknown`.
    NoResult(String),
}

impl From<http::Error> for Fault {
    fn from(error: http::Error) -> Fault {
        match error.is_own() {
            true => Fault::NoResult(chain(&error)),
            false => Fault::Failed(chain(&error)),
        }
    }
}

impl From<PortError> for Fault {
    fn from(error: PortError) -> Fault {
        Fault::NoResult(error.to_string())
    }
}

/// Why a container has no such port.
#[derive(Debug, PartialEq, Eq)]
pub enum PortError {
    /// None of its ports has this name.
    NoName(String),
    /// It is not from 1 to 65535.
    Range(i32),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::NoName(name) => write!(f, "no port named {name:?}"),
            PortError::Range(number) => write!(f, "invalid port: {number}"),
        }
    }
}

impl StdError for PortError {}

/// Runs a command in a container. It fails with its output if its status is not 0, and if it takes
/// too long; another error of the call is no result.
async fn run(
    runtime: &RuntimeService,
    id: &str,
    command: &[String],
    timeout: Duration,
) -> Result<(), Fault> {
    let answer = match runtime.exec_sync(id, command, Some(timeout)).await {
        Ok(answer) => answer,
        Err(error) if error.is_deadline_exceeded() => {
            return Err(Fault::Failed(format!("command timed out: {}", chain(&error))));
        }
        Err(error) => return Err(Fault::NoResult(chain(&error))),
    };
    if answer.exit_code == 0 {
        return Ok(());
    }
    let output = [answer.stdout, answer.stderr].concat();
    let text = String::from_utf8_lossy(&output[..output.len().min(MAX_BODY)]);
    Err(Fault::Failed(text.trim_end().to_owned()))
}

/// Returns where an HTTP action of a container goes.
///
/// # Errors
/// When the container has no such port.
pub fn target(
    container: &Container,
    get: &core::HTTPGetAction,
    ip: &str,
) -> Result<Target, PortError> {
    let host = get.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ip);
    let path = get.path.clone().unwrap_or_default();
    Ok(Target {
        is_https: get.scheme.as_deref() == Some("HTTPS"),
        host: host.to_owned(),
        port: port(container, &get.port)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
    })
}

/// Sends the GET of an action. `purpose`: `probe` or `lifecycle`, for the user agent.
///
/// # Errors
/// When there is no answer.
pub async fn send(
    target: &Target,
    get: &core::HTTPGetAction,
    purpose: &str,
) -> Result<http::Answer, http::Error> {
    let mut headers = HeaderMap::new();
    for header in get.http_headers.iter().flatten() {
        let name = HeaderName::try_from(&header.name).map_err(hyper::http::Error::from)?;
        let value = HeaderValue::try_from(&header.value).map_err(hyper::http::Error::from)?;
        headers.append(name, value);
    }
    if !headers.contains_key(USER_AGENT) {
        let agent = HeaderValue::try_from(format!("kube-{purpose}/1.36"));
        headers.insert(USER_AGENT, agent.map_err(hyper::http::Error::from)?);
    }
    match headers.get(ACCEPT) {
        None => _ = headers.insert(ACCEPT, HeaderValue::from_static("*/*")),
        // As upstream, an empty value removes the header.
        Some(empty) if empty.is_empty() => _ = headers.remove(ACCEPT),
        Some(_) => {}
    }
    http::get(target, &headers, TrustPolicy::AnyCertificate, MAX_BODY).await
}

/// Sends the GET of a probe; a status from 200 to 399 is a success.
async fn get_ok(target: &Target, get: &core::HTTPGetAction) -> Result<Option<String>, Fault> {
    verdict(&send(target, get, "probe").await?)
}

/// Returns whether an HTTP answer is a success; a redirect is one with a warning, as only those to
/// other hosts are left. Upstream: `DoHTTPProbe`.
fn verdict(answer: &http::Answer) -> Result<Option<String>, Fault> {
    match answer.status.as_u16() {
        200..300 => Ok(None),
        300..400 => {
            let body = String::from_utf8_lossy(&answer.body);
            Ok(Some(format!("Probe terminated redirects, Response body: {body}")))
        }
        code => Err(Fault::Failed(format!("HTTP probe failed with statuscode: {code}"))),
    }
}

/// Finds a port by its number or name. Upstream: `probe.ResolveContainerPort`.
fn port(container: &Container, port: &IntOrString) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.into_iter().find(|port| port.name.as_deref() == Some(name.as_str()));
            match named {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| PortError::NoName(name.clone()))?,
            }
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(PortError::Range(number))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn redirects_that_are_not_followed_succeed_with_a_warning() {
        let warning = "Probe terminated redirects, Response body: gone";
        let failure = |code| Fault::Failed(format!("HTTP probe failed with statuscode: {code}"));
        for (code, expected) in [
            (199, Err(failure(199))),
            (200, Ok(None)),
            (299, Ok(None)),
            (302, Ok(Some(warning.to_owned()))),
            (399, Ok(Some(warning.to_owned()))),
            (400, Err(failure(400))),
        ] {
            let status = StatusCode::from_u16(code).expect("a status");
            let answer = http::Answer { status, body: b"gone".to_vec(), is_cut: false };
            assert_eq!(verdict(&answer), expected, "{code}");
        }
    }

    #[test]
    fn ports_have_numbers_or_names() {
        let container = Container {
            ports: Some(vec![core::ContainerPort {
                name: Some("web".to_owned()),
                container_port: 80,
                ..Default::default()
            }]),
            ..Default::default()
        };
        for (given, expected) in [
            (IntOrString::Int(1), Some(1)),
            (IntOrString::Int(0), None),
            (IntOrString::Int(65536), None),
            (IntOrString::String("web".to_owned()), Some(80)),
            (IntOrString::String("81".to_owned()), Some(81)),
            (IntOrString::String("x".to_owned()), None),
        ] {
            assert_eq!(port(&container, &given).ok(), expected, "{given:?}");
        }
    }
}
