//! The CA certificates that clients need to verify the API server.
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
    let file_error = |why: String| format!("error parsing root-ca-file at {file}: {why}");
    let pem = std::fs::read(file).map_err(|error| file_error(error.to_string()))?;
    check_certificates(&pem).map_err(file_error)?;
    Ok(pem)
}

/// Checks that `pem` holds at least one certificate, and that all are well formed.
fn check_certificates(pem: &[u8]) -> Result<(), String> {
    let certificates = pem::certificates(pem);
    if certificates.is_empty() {
        return Err("data does not contain any valid RSA or ECDSA certificates".to_owned());
    }
    for der in certificates {
        Certificate::from_der(&der)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_valid_certificates_are_refused() {
        let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        assert_eq!(check_certificates(certificate.as_bytes()), Ok(()));
        assert!(check_certificates(b"").is_err());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(check_certificates(format!("{certificate}{broken}").as_bytes()).is_err());
    }
}
