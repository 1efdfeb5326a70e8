//! New keys for pods, each with a request (PKCS #10) that proves its possession. Upstream:
//! `generateKeyAndProof`, `pemEncodeKey`.

use std::error::Error as StdError;
use std::fmt;

use p521::ecdsa::signature::Signer;
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    SignatureAlgorithm,
};
use rsa::RsaPrivateKey;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding, PrivateKeyInfo};
use rsa::rand_core::{OsRng, RngCore};
use x509_cert::attr::Attributes;
use x509_cert::der::asn1::{BitString, ObjectIdentifier};
use x509_cert::der::oid::db::rfc5912::ECDSA_WITH_SHA_512;
use x509_cert::der::oid::db::rfc8410::ID_ED_25519;
use x509_cert::der::{self, Decode, Encode};
use x509_cert::name::Name;
use x509_cert::request::{CertReq, CertReqInfo, Version};
use x509_cert::spki::{AlgorithmIdentifier, AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

use crate::certificate::PrivateKey;

/// A private key that was made for a pod.
pub(super) struct NewKey {
    /// In PEM, as PKCS #8.
    pub(super) pem: String,
    /// A request in DER, without a subject, that is signed with the key.
    pub(super) request: Vec<u8>,
}

/// Why there is no key.
#[derive(Debug)]
pub(super) enum Error {
    UnknownType(String),
    Make { what: &'static str, source: Box<dyn StdError + Send + Sync> },
}

impl Error {
    fn of<E: StdError + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Make { what, source: Box::new(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownType(name) => write!(f, "unknown key type {name:?}"),
            Error::Make { what, .. } => write!(f, "while generating {what}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::UnknownType(_) => None,
            Error::Make { source, .. } => Some(&**source),
        }
    }
}

/// Makes a key of the type that a source of a volume names. One of RSA takes seconds of CPU.
///
/// # Errors
/// There is no such type, or the system has no random numbers.
pub(super) fn generate(key_type: &str) -> Result<NewKey, Error> {
    match key_type {
        "RSA3072" => with_request(rsa(3072)?),
        "RSA4096" => with_request(rsa(4096)?),
        "ECDSAP256" => with_request(ecdsa(&PKCS_ECDSA_P256_SHA256)?),
        "ECDSAP384" => with_request(ecdsa(&PKCS_ECDSA_P384_SHA384)?),
        "ECDSAP521" => p521_with_request(),
        "ED25519" => with_request(ed25519()?),
        other => Err(Error::UnknownType(other.to_owned())),
    }
}

fn rsa(bits: usize) -> Result<String, Error> {
    let key = RsaPrivateKey::new(&mut OsRng, bits).map_err(Error::of("an RSA key"))?;
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(Error::of("an RSA key"))?;
    Ok(pem.to_string())
}

fn ecdsa(algorithm: &'static SignatureAlgorithm) -> Result<String, Error> {
    let key = KeyPair::generate_for(algorithm).map_err(Error::of("an ECDSA key"))?;
    Ok(key.serialize_pem())
}

/// Makes a key without its public half in PKCS #8, as Go: older versions of OpenSSL refuse both.
fn ed25519() -> Result<String, Error> {
    let fault = || Error::of("an Ed25519 key");
    let mut seed = [0; 32];
    OsRng.try_fill_bytes(&mut seed).map_err(Error::of("an Ed25519 key"))?;
    let seed = der::asn1::OctetStringRef::new(&seed).and_then(|seed| seed.to_der());
    let seed = seed.map_err(fault())?;
    let algorithm = AlgorithmIdentifier { oid: ID_ED_25519, parameters: None };
    let key = PrivateKeyInfo::new(algorithm, &seed).to_der().map_err(fault())?;
    Ok(kube_controller_manager::client::pem::text("PRIVATE KEY", &key))
}

/// Adds the request to a key of which ring has the algorithm.
fn with_request(pem: String) -> Result<NewKey, Error> {
    let key = PrivateKey::from_pem(pem.as_bytes(), "memory").map_err(Error::of("a key"))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(Error::of("stub PKCS#10 request"))?;
    Ok(NewKey { pem, request: request.der().to_vec() })
}

/// Makes a key over P-521, which ring lacks, with its request.
fn p521_with_request() -> Result<NewKey, Error> {
    let fault = |source: der::Error| Error::of("stub PKCS#10 request")(source);
    let secret = p521::SecretKey::random(&mut OsRng);
    let pem = secret.to_pkcs8_pem(LineEnding::LF).map_err(Error::of("an ECDSA key"))?;
    let public_key = secret.public_key().to_public_key_der().map_err(Error::of("an ECDSA key"))?;
    let info = CertReqInfo {
        version: Version::V1,
        subject: Name::default(),
        public_key: SubjectPublicKeyInfoOwned::from_der(public_key.as_bytes()).map_err(fault)?,
        attributes: Attributes::default(),
    };
    let signer = p521::ecdsa::SigningKey::from_bytes(&secret.to_bytes());
    let signer = signer.map_err(Error::of("an ECDSA key"))?;
    let signature: p521::ecdsa::Signature = signer
        .try_sign(&info.to_der().map_err(fault)?)
        .map_err(Error::of("stub PKCS#10 request"))?;
    const ALGORITHM: ObjectIdentifier = ECDSA_WITH_SHA_512;
    let algorithm = AlgorithmIdentifierOwned { oid: ALGORITHM, parameters: None };
    let signature = BitString::from_bytes(signature.to_der().as_bytes()).map_err(fault)?;
    let request = CertReq { info, algorithm, signature }.to_der().map_err(fault)?;
    Ok(NewKey { pem: pem.to_string(), request })
}

#[cfg(test)]
mod tests {
    use p521::ecdsa::signature::Verifier;
    use ring::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256,
        UnparsedPublicKey, VerificationAlgorithm,
    };
    use rsa::pkcs8::DecodePrivateKey;
    use rsa::traits::PublicKeyParts;

    use super::*;
    use crate::causes::chain;

    /// The signed part, the public key and the signature of a request without subject and
    /// attributes.
    fn parts(key: &NewKey) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let request = CertReq::from_der(&key.request).expect("a request");
        let info = &request.info;
        assert!(info.subject.is_empty() && info.attributes.is_empty(), "{info:?}");
        let public_key = info.public_key.subject_public_key.raw_bytes().to_vec();
        (info.to_der().expect("DER"), public_key, request.signature.raw_bytes().to_vec())
    }

    #[test]
    fn requests_are_signed_with_keys_of_each_type() {
        let types: [(&str, &dyn VerificationAlgorithm); 5] = [
            ("RSA3072", &RSA_PKCS1_2048_8192_SHA256),
            ("RSA4096", &RSA_PKCS1_2048_8192_SHA256),
            ("ECDSAP256", &ECDSA_P256_SHA256_ASN1),
            ("ECDSAP384", &ECDSA_P384_SHA384_ASN1),
            ("ED25519", &ED25519),
        ];
        for (key_type, algorithm) in types {
            let key = generate(key_type).expect("a key");
            assert!(key.pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
            assert!(key.pem.ends_with("\n-----END PRIVATE KEY-----\n"), "{key_type}");
            let (signed, public_key, signature) = parts(&key);
            let verified =
                UnparsedPublicKey::new(algorithm, public_key).verify(&signed, &signature);
            assert!(verified.is_ok(), "{key_type}");
            if let Some(bits) = key_type.strip_prefix("RSA") {
                let read = RsaPrivateKey::from_pkcs8_pem(&key.pem).expect("a key");
                assert_eq!((read.size() * 8).to_string(), bits);
            }
            assert_ne!(generate("ED25519").expect("a key").pem, key.pem);
        }
        let key = generate("ECDSAP521").expect("a key");
        let (signed, public_key, signature) = parts(&key);
        let read = p521::SecretKey::from_pkcs8_pem(&key.pem).expect("a key");
        assert_eq!(read.public_key().to_sec1_bytes().to_vec(), public_key);
        let verifier = p521::ecdsa::VerifyingKey::from_sec1_bytes(&public_key).expect("a key");
        let signature = p521::ecdsa::Signature::from_der(&signature).expect("a signature");
        assert!(verifier.verify(&signed, &signature).is_ok());
    }

    #[test]
    fn unknown_type_is_named() {
        let error = generate("RSA2048").err().expect("no key");
        assert_eq!(chain(&error), "unknown key type \"RSA2048\"");
    }
}
