//! Private keys, and requests for certificates that are signed with them. Upstream:
//! `client-go/util/keyutil`, `client-go/util/cert` (`MakeCSR`).

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, SanType,
};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::{Signer, SigningKey};
use x509_cert::der::Decode;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::Error;

/// The schemes in which a request is signed, one for each kind of key.
const SCHEMES: [(SignatureScheme, &rcgen::SignatureAlgorithm); 4] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, &PKCS_ECDSA_P256_SHA256),
    (SignatureScheme::ECDSA_NISTP384_SHA384, &PKCS_ECDSA_P384_SHA384),
    (SignatureScheme::ED25519, &PKCS_ED25519),
    (SignatureScheme::RSA_PKCS1_SHA256, &PKCS_RSA_SHA256),
];

/// A private key: RSA, ECDSA over P-256 or P-384, or Ed25519.
pub struct PrivateKey {
    /// In PEM, as it was read.
    pub pem: Vec<u8>,
    /// `SubjectPublicKeyInfo` in DER.
    pub public_key: Vec<u8>,
    /// The key itself, without the algorithm.
    public_bits: Vec<u8>,
    algorithm: &'static rcgen::SignatureAlgorithm,
    signer: Box<dyn Signer>,
}

impl PrivateKey {
    /// Returns a new ECDSA key over P-256, in PKCS #8. Upstream: `MakeEllipticPrivateKeyPEM`, which
    /// writes SEC 1.
    pub fn generate() -> Result<PrivateKey, Error> {
        let made = KeyPair::generate();
        let made = made.map_err(|source| Error::Make { what: "a private key", source })?;
        PrivateKey::from_pem(made.serialize_pem().as_bytes(), "memory")
    }

    /// Parses the first private key in PEM, in PKCS #1, SEC 1 or PKCS #8; other blocks are skipped.
    /// `from` names where the text is from.
    pub fn from_pem(pem: &[u8], from: &str) -> Result<PrivateKey, Error> {
        let fault = |fault: String| Error::Key { from: from.to_owned(), fault };
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|error| fault(error.to_string()))?;
        let key = any_supported_type(&der).map_err(|error| fault(error.to_string()))?;
        let unsupported = || fault("no RSA, ECDSA or Ed25519 key".to_owned());
        let offered = SCHEMES.map(|(scheme, _)| scheme);
        let signer = key.choose_scheme(&offered).ok_or_else(unsupported)?;
        let scheme = SCHEMES.iter().find(|(scheme, _)| *scheme == signer.scheme());
        let (_, algorithm) = scheme.ok_or_else(unsupported)?;
        let public_key = public_key(&key).ok_or_else(unsupported)?;
        let info = SubjectPublicKeyInfoRef::from_der(&public_key);
        let info = info.map_err(|error| fault(error.to_string()))?;
        let public_bits = info.subject_public_key.raw_bytes().to_vec();
        Ok(PrivateKey { pem: pem.to_vec(), public_key, public_bits, algorithm, signer })
    }

    /// Returns whether it may also encipher other keys.
    pub fn is_rsa(&self) -> bool {
        self.signer.scheme() == SignatureScheme::RSA_PKCS1_SHA256
    }
}

fn public_key(key: &Arc<dyn SigningKey>) -> Option<Vec<u8>> {
    key.public_key().map(|public| public.to_vec())
}

impl PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public_bits
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.algorithm
    }
}

impl rcgen::SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signer.sign(message).map_err(|_| rcgen::Error::RemoteKeyError)
    }
}

/// What a certificate is asked for: its subject and alternative names. Upstream:
/// `x509.CertificateRequest` as a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub common_name: String,
    pub organization: String,
    /// Sorted.
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
}

impl Template {
    /// Returns the template of a node's client certificate; with names added, it is that of its
    /// serving certificate.
    pub fn of_node(name: &str) -> Template {
        Template {
            common_name: format!("system:node:{name}"),
            organization: "system:nodes".to_owned(),
            dns_names: Vec::new(),
            ips: Vec::new(),
        }
    }

    /// Builds a request in PEM, signed with `key`.
    pub fn request(&self, key: &PrivateKey) -> Result<String, Error> {
        let fault = |source| Error::Make { what: "a certificate request", source };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, &self.organization);
        params.distinguished_name.push(DnType::CommonName, &self.common_name);
        for name in &self.dns_names {
            let name = name.as_str().try_into().map_err(fault)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params.subject_alt_names.extend(self.ips.iter().copied().map(SanType::IpAddress));
        params.serialize_request(key).and_then(|made| made.pem()).map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use kube_controller_manager::client::x509::Request;

    use super::*;

    macro_rules! authority {
        ($kind:literal) => {
            include_bytes!(concat!("../../../fixtures/certificates/ca-", $kind, ".key")).as_slice()
        };
    }

    #[test]
    fn keys_of_each_kind_sign_requests() {
        let keys: [(&[u8], bool); 4] = [
            (authority!("rsa2048"), true),
            (authority!("p256"), false),
            (authority!("p384"), false),
            (authority!("ed25519"), false),
        ];
        let template = Template {
            dns_names: vec!["n1".to_owned()],
            ips: vec!["10.0.0.7".parse().expect("an address")],
            ..Template::of_node("n1")
        };
        for (pem, is_rsa) in keys {
            let key = PrivateKey::from_pem(pem, "a fixture").expect("a key");
            assert_eq!(key.is_rsa(), is_rsa);
            let text = template.request(&key).expect("a request");
            let request = Request::from_pem(text.as_bytes()).expect("a request");
            assert_eq!(request.public_key(), key.public_key);
            assert_eq!(request.common_names().collect::<Vec<_>>(), ["system:node:n1"]);
            assert_eq!(request.organizations().collect::<Vec<_>>(), ["system:nodes"]);
        }
        let made = PrivateKey::generate().expect("a key");
        let read = PrivateKey::from_pem(&made.pem, "memory").expect("a key");
        assert_eq!(made.public_key, read.public_key);
    }

    #[test]
    fn fault_of_a_key_names_its_place() {
        for text in [&b""[..], b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"] {
            let error = PrivateKey::from_pem(text, "key.tmp").err().expect("no key");
            assert!(error.to_string().starts_with("private key in key.tmp: "), "{error}");
        }
    }
}
