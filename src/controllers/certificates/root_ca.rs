//! The authority that vouches for the API server, for those who hand it to others.
//! Upstream: `getKubeAPIServerCAFileContents`, `readCA`.

use crate::client::x509::Certificate;
use crate::client::{Client, pem};

/// Returns the content of `file` in PEM; without a file, the CA data of `client`'s own
/// configuration. Empty when neither exists.
///
/// # Errors
/// When the file cannot be read, holds no certificate or a malformed one.
pub fn root_ca(file: &str, client: &Client) -> Result<Vec<u8>, String> {
    if file.is_empty() {
        return Ok(client.ca_data().unwrap_or_default().to_vec());
    }
    let fault = |why: String| format!("error parsing root-ca-file at {file}: {why}");
    let pem = std::fs::read(file).map_err(|error| fault(error.to_string()))?;
    check(&pem).map_err(fault)?;
    Ok(pem)
}

fn check(pem: &[u8]) -> Result<(), String> {
    let mut any = false;
    for der in pem::certificates(pem) {
        Certificate::from_der(&der)?;
        any = true;
    }
    any.then_some(())
        .ok_or_else(|| "data does not contain any valid RSA or ECDSA certificates".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_valid_certificates_are_refused() {
        let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        assert_eq!(check(certificate.as_bytes()), Ok(()));
        assert!(check(b"").is_err());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(check(format!("{certificate}{broken}").as_bytes()).is_err());
    }
}
