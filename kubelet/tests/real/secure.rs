//! A client of the kubelet's port with authentication.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::client::Trust;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub type Connection = StreamOwned<ClientConnection, TcpStream>;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A certificate with its key.
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// That of `NAME.crt` and `NAME.key`, beside a file `NAME.…`.
    pub fn beside(file: &Path) -> Identity {
        let chain = CertificateDer::pem_file_iter(file.with_extension("crt")).expect("a file");
        let key = PrivateKeyDer::from_pem_file(file.with_extension("key")).expect("a key");
        Identity { chain: chain.map(|one| one.expect("a certificate")).collect(), key }
    }
}

impl Clone for Identity {
    fn clone(&self) -> Identity {
        Identity { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Shakes hands with the kubelet that serves `certificate` (a PEM file) for the host `name`.
pub fn connect(
    stream: TcpStream,
    certificate: &Path,
    name: &str,
    identity: Option<Identity>,
) -> io::Result<Connection> {
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_file_iter(certificate).map_err(io::Error::other)? {
        roots.add(one.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let config = match identity {
        Some(identity) => {
            config.with_client_auth_cert(identity.chain, identity.key).map_err(io::Error::other)?
        }
        None => config.with_no_client_auth(),
    };
    shake_hands(stream, config, name)
}

/// Shakes hands with any kubelet, as clients do that do not know its authority.
pub fn connect_to_any(stream: TcpStream, host: &str) -> io::Result<Connection> {
    let provider = Arc::new(ring::default_provider());
    let trust = Trust::every(&provider);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust))
        .with_no_client_auth();
    shake_hands(stream, config, host)
}

fn shake_hands(stream: TcpStream, config: ClientConfig, name: &str) -> io::Result<Connection> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let name = name.to_owned().try_into().map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(client, stream))
}

/// Sends a request that closes the connection: the status, and the body as it was sent.
pub fn ask(
    mut connection: Connection,
    method: &str,
    path: &str,
    headers: &str,
) -> io::Result<(u16, String)> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n"
    );
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match connection.read_to_end(&mut answer) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    let broken = || io::Error::new(io::ErrorKind::InvalidData, answer.clone());
    Ok((status.ok_or_else(broken)?, body.ok_or_else(broken)?))
}
