//! Checks of a service's health by gRPC's health protocol. Upstream: `pkg/probe/grpc`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_lite::FutureExt;
use grpc::{Code, Error, Executor, answer, request};
use http_body_util::Full;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{HeaderValue, USER_AGENT};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::options::show_duration;
use kube_controller_manager::task;
use prost::Message;
use smol_hyper::rt::FuturesIo;

use super::attempt::Fault;
use crate::causes::chain;
use crate::http;

const METHOD: &str = "grpc.health.v1.Health/Check";

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The outcome of the call on a connection.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The status of the answer.
    Answer(i32),
    /// An error of gRPC: its code and message.
    Status(Code, String),
    /// No connection could be made, or it ended before an answer: the server does not speak HTTP/2.
    NoConnection(String),
}

/// Asks `host` for the health of a service; empty: of the whole server. An answer other than
/// `SERVING` is an error, as is a connection that fails, or no answer within `timeout`.
///
/// # Errors
/// With upstream's message.
pub async fn check(
    clock: &SharedClock,
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<(), Fault> {
    let address = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let address = format!("{address}:{port}");
    let within = show_duration(timeout);
    let connected = AtomicBool::new(false);
    let run = async {
        let outcome = match connect(host, port).await {
            Ok(sender) => {
                connected.store(true, Ordering::Relaxed);
                call(sender, &address, service, timeout).await
            }
            Err(error) if error.is_own() => return Err(error.into()),
            Err(error) => Outcome::NoConnection(chain(&error)),
        };
        verdict(outcome, &address, &within).map_err(Fault::Failed)
    };
    let late = async {
        clock.sleep(timeout).await;
        Err(Fault::Failed(match connected.load(Ordering::Relaxed) {
            true => format!("timeout: health rpc did not complete within {within}"),
            false => format!(
                "timeout: failed to connect service {address:?} within {within}: context deadline \
                 exceeded"
            ),
        }))
    };
    run.or(late).await
}

/// Opens a connection for a gRPC probe, and drives it in a task of its own.
async fn connect(host: &str, port: u16) -> Result<SendRequest<Full<Bytes>>, http::Error> {
    let stream = http::connect(host, port).await?;
    let handshake = Builder::new(Executor).handshake(FuturesIo::new(stream)).await;
    let (sender, connection) = handshake?;
    // It ends with its sender.
    drop(task::spawn(async move {
        if let Err(error) = connection.await {
            log::debug!("the connection of a gRPC probe ended: {error}");
        }
    }));
    Ok(sender)
}

/// Asks the health service over a connection, and returns the outcome of the probe.
async fn call(
    mut sender: SendRequest<Full<Bytes>>,
    address: &str,
    service: &str,
    timeout: Duration,
) -> Outcome {
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    let mut request = match request(&format!("http://{address}"), METHOD, &message, Some(timeout)) {
        Ok(request) => request,
        Err(error) => return Outcome::Status(Code::Internal, error.to_string()),
    };
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("kube-probe/1.36"));
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) if sender.is_closed() => return Outcome::NoConnection(error.to_string()),
        Err(error) => return Outcome::Status(Code::Unavailable, error.to_string()),
    };
    if response.status() != StatusCode::OK {
        let status = response.status();
        let reason = status.canonical_reason().unwrap_or_default();
        let text = format!(
            "unexpected HTTP status code received from server: {} ({reason})",
            status.as_u16()
        );
        return Outcome::Status(code_of_http(status), text);
    }
    match answer("Check", response).await {
        Ok(message) => match HealthCheckResponse::decode(message) {
            Ok(response) => Outcome::Answer(response.status),
            Err(error) => Outcome::Status(Code::Internal, error.to_string()),
        },
        Err(Error::Status { code, message, .. }) => Outcome::Status(code, message),
        Err(Error::Malformed { fault, .. }) => Outcome::Status(Code::Unknown, fault),
        Err(error) => Outcome::Status(Code::Unavailable, error.to_string()),
    }
}

/// Returns the code of an answer that a proxy or another server has made. Upstream:
/// `HTTPStatusConvTab`.
fn code_of_http(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// Decides whether an outcome is a success; else returns upstream's message, which the event shows.
fn verdict(outcome: Outcome, address: &str, within: &str) -> Result<(), String> {
    match outcome {
        // The numbers are those of `ServingStatus`; 1 is `SERVING`.
        Outcome::Answer(1) => Ok(()),
        Outcome::Answer(status) => {
            let status = match status {
                0 => "UNKNOWN".to_owned(),
                2 => "NOT_SERVING".to_owned(),
                3 => "SERVICE_UNKNOWN".to_owned(),
                other => other.to_string(),
            };
            Err(format!("service unhealthy (responded with {status:?})"))
        }
        Outcome::Status(Code::Unimplemented, message) => Err(format!(
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): {message}"
        )),
        Outcome::Status(Code::DeadlineExceeded, _) => {
            Err(format!("timeout: health rpc did not complete within {within}"))
        }
        Outcome::Status(code, message) => Err(format!(
            "error: health rpc probe failed: rpc error: code = {code} desc = {message}"
        )),
        Outcome::NoConnection(fault) => {
            Err(format!("error: failed to connect service at {address:?}: {fault}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use futures_lite::future::block_on;
    use kube_controller_manager::clock::SystemClock;

    use super::*;

    #[test]
    fn outcomes_have_upstreams_messages() {
        let status = |code: u32, text: &str| Outcome::Status(code.into(), text.to_owned());
        for (outcome, message) in [
            (Outcome::Answer(1), None),
            (Outcome::Answer(0), Some("service unhealthy (responded with \"UNKNOWN\")")),
            (Outcome::Answer(2), Some("service unhealthy (responded with \"NOT_SERVING\")")),
            (Outcome::Answer(9), Some("service unhealthy (responded with \"9\")")),
            (
                status(12, "unknown service grpc.health.v1.Health"),
                Some(
                    "error: this server does not implement the grpc health protocol \
                     (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
                ),
            ),
            (status(4, "x"), Some("timeout: health rpc did not complete within 1s")),
            (
                status(5, "unknown service"),
                Some(
                    "error: health rpc probe failed: rpc error: code = NotFound desc = unknown \
                     service",
                ),
            ),
            (
                status(77, "x"),
                Some("error: health rpc probe failed: rpc error: code = Code(77) desc = x"),
            ),
        ] {
            assert_eq!(verdict(outcome, "a:1", "1s").err().as_deref(), message);
        }
    }

    #[test]
    fn refused_connection_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let clock = SystemClock::shared();
        let checked = check(&clock, "127.0.0.1", port, "", Duration::from_secs(9));
        let Err(Fault::Failed(fault)) = block_on(checked) else { panic!("no server") };
        let start = format!("error: failed to connect service at \"127.0.0.1:{port}\": dial tcp ");
        assert!(fault.starts_with(&start), "{fault}");
    }

    #[test]
    fn messages_have_the_form_of_the_protocol() {
        let request = HealthCheckRequest { service: "ab".to_owned() };
        assert_eq!(request.encode_to_vec(), [0x0a, 2, b'a', b'b']);
        assert!(HealthCheckRequest::default().encode_to_vec().is_empty());
        let response = HealthCheckResponse::decode(&[0x08, 1][..]).expect("a message");
        assert_eq!(response.status, 1);
    }
}
