//! Shows the debug pages of the sandbox's manager to a browser. The manager asks for a client
//! certificate; this proxy listens on a plain port of the loopback address and forwards requests
//! with the administrator's certificate. Its address holds a secret that others cannot guess.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hyper::header::CACHE_CONTROL;
use sha2::{Digest, Sha256};

use crate::cluster::free_port;
use crate::server::ClientFiles;
use kube_controller_manager::client::{Call, Client, Config, Credentials, Pem};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::server::http::{Handler, Method, Request, Response, Server};
use kube_controller_manager::task::StopToken;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Requests below this path are forwarded.
const BELOW: &str = "/debug/";

/// A running proxy.
pub struct DebugProxy {
    server: Server,
    stop: StopToken,
    secret: String,
    /// The manager's secure port.
    port: u16,
    files: ClientFiles,
}

impl DebugProxy {
    /// Starts a server that passes a browser's requests for debug pages on to the manager, as the
    /// administrator of `files`.
    pub async fn start(files: &ClientFiles, clock: &SharedClock) -> Result<DebugProxy, Error> {
        let port = free_port()?;
        let mut config = Config::new(format!("https://127.0.0.1:{port}"));
        // Its certificate is self-signed, and the address that of this machine.
        config.tls.insecure = true;
        config.tls.certificate = Some(Pem::File(files.certificate.clone()));
        config.tls.key = Some(Pem::File(files.key.clone()));
        config.credentials = Credentials::None;
        config.qps = -1.0;
        let manager = Client::new(config, clock.clone())?;
        // The administrator's token is signed, so its digest cannot be guessed.
        let digest = Sha256::digest(files.token.as_bytes());
        let secret: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let stop = StopToken::new();
        let handler = handler(manager, format!("/{secret}"));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::start(any, None, handler, clock.clone(), stop.clone()).await?;
        Ok(DebugProxy { server, stop, secret, port, files: files.clone() })
    }

    /// Returns the address of a debug page, for a browser.
    pub fn page(&self, name: &str) -> String {
        format!("http://{}/{}{BELOW}{name}", self.server.address(), self.secret)
    }

    /// Returns the flags with which a manager serves this proxy.
    pub fn manager_flags(&self) -> Vec<String> {
        vec![
            format!("--secure-port={}", self.port),
            format!("--client-ca-file={}", self.files.ca.display()),
        ]
    }

    pub async fn stop(self) {
        self.stop.stop();
        self.server.join().await;
    }
}

/// Returns a handler that forwards each request to the manager, and forbids caching of the answers.
fn handler(manager: Client, secret: String) -> Handler {
    let secret: Arc<str> = secret.into();
    Arc::new(move |request| {
        let (manager, secret) = (manager.clone(), secret.clone());
        Box::pin(async move {
            let answer = forward(&manager, &secret, &request).await;
            answer.with_header(CACHE_CONTROL, "no-store")
        })
    })
}

/// Forwards a GET below the secret path to the manager's debug page, and answers all else with 404.
/// A failure of the manager keeps its code; one without a code becomes 502.
async fn forward(manager: &Client, secret: &str, request: &Request) -> Response {
    let path = request.path.strip_prefix(secret).filter(|path| path.starts_with(BELOW));
    let Some(path) = path.filter(|_| request.method == Method::GET) else {
        return Response::text(404, "404 page not found\n");
    };
    let is_json = request.header("accept").is_some_and(|accept| accept == "application/json");
    let mut call = Call::new("GET", path);
    call.accept = if is_json { "application/json" } else { "text/html" };
    match manager.send(&call).await {
        Ok(body) if is_json => Response::new(200, "application/json", body),
        Ok(body) if body.starts_with(b"<!doctype html>") => {
            Response::new(200, "text/html; charset=utf-8", body)
        }
        Ok(body) => Response::text(200, body),
        Err(error) => Response::text(error.code().unwrap_or(502), format!("{error}\n")),
    }
}
