//! Signatures of certificates and of requests for them: the algorithms that Go's `crypto/x509` has,
//! but for the curve P-224.

use std::sync::Arc;

use ring::digest;
use rsa::pkcs1::DecodeRsaPublicKey;
use rsa::pkcs8::EncodePublicKey;
use rsa::rand_core::OsRng;
use rsa::signature::hazmat::PrehashVerifier;
use rsa::signature::{RandomizedSigner, SignatureEncoding, Signer};
use rsa::traits::PublicKeyParts;
use rsa::{Pkcs1v15Sign, RsaPublicKey, pkcs1v15};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use sha2::Sha256;

use super::der::{self, Malformed, Reader};
use crate::jwt;

/// 1.2.840.113549.1.1, of RSA's algorithms.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
/// 1.2.840.10045.4, of ECDSA's.
const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
/// 1.2.840.10045.3.1.7, 1.3.132.0.34 and 1.3.132.0.35
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// Whole AlgorithmIdentifiers.
const SHA256_WITH_RSA: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b, 0x05, 0x00];
const ECDSA_WITH_SHA256: &[u8] =
    &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const ECDSA_WITH_SHA384: &[u8] =
    &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
const ECDSA_WITH_SHA512: &[u8] =
    &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];
const ED25519: &[u8] = &[0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];

/// Of an RSA key, as in Go.
const MIN_RSA_BITS: usize = 1024;

/// Whether `signature` of `message` was made with the private key of `public_key`, a
/// SubjectPublicKeyInfo, by the algorithm of this AlgorithmIdentifier.
///
/// # Errors
/// One line saying why not.
pub fn verify(
    public_key: &[u8],
    algorithm: &[u8],
    message: &[u8],
    signature: &[u8],
) -> Result<(), String> {
    let parts = || -> Result<_, Malformed> {
        let mut info = Reader::new(public_key).nested(der::SEQUENCE, "public key")?;
        let kind = info.expect(der::SEQUENCE, "public key")?.content;
        let key = info.bytes("public key")?;
        let algorithm = Reader::new(algorithm).expect(der::SEQUENCE, "algorithm")?.content;
        Ok((kind, key, algorithm))
    };
    let (kind, key, algorithm) = parts().map_err(|error| error.to_string())?;
    let provider = rustls::crypto::ring::default_provider();
    let mut known = provider.signature_verification_algorithms.all.iter().filter(|known| {
        *known.public_key_alg_id() == *kind && *known.signature_alg_id() == *algorithm
    });
    if known.any(|known| known.verify_signature(key, message, signature).is_ok()) {
        return Ok(());
    }
    let oid = |bytes| Some(Reader::new(bytes).expect(der::OBJECT_IDENTIFIER, "").ok()?.content);
    let algorithm = oid(algorithm).unwrap_or_default();
    let unsupported = || "x509: cannot verify signature: algorithm unimplemented".to_owned();
    if let Some([number]) = algorithm.strip_prefix(RSA) {
        let hash = match number {
            5 => Hash::Sha1,
            11 => Hash::Sha256,
            12 => Hash::Sha384,
            13 => Hash::Sha512,
            _ => return Err(unsupported()),
        };
        let key = RsaPublicKey::from_pkcs1_der(key).map_err(|error| error.to_string())?;
        if key.n().bits() < MIN_RSA_BITS {
            let bits = key.n().bits();
            return Err(format!("crypto/rsa: {bits}-bit keys are insecure"));
        }
        let digest = hash.of(message);
        let padding = Pkcs1v15Sign { hash_len: Some(digest.len()), prefix: hash.prefix().into() };
        let verified = key.verify(padding, &digest, signature);
        return verified.map_err(|_| "crypto/rsa: verification error".to_owned());
    }
    let hash = match algorithm.strip_prefix(ECDSA) {
        Some([1]) => Hash::Sha1,
        Some([3, 2]) => Hash::Sha256,
        Some([3, 3]) => Hash::Sha384,
        Some([3, 4]) => Hash::Sha512,
        _ => return Err(unsupported()),
    };
    let mut parameters = Reader::new(kind);
    let _ = parameters.any("");
    let curve = parameters.expect(der::OBJECT_IDENTIFIER, "").map_or(&[][..], |oid| oid.content);
    let verified = match curve {
        P256 => p256::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p256::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded(message, 32), &signature)
        }),
        P384 => p384::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p384::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded(message, 48), &signature)
        }),
        P521 => p521::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p521::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded(message, 66), &signature)
        }),
        _ => return Err("x509: unsupported elliptic curve".to_owned()),
    };
    verified.map_err(|_| "x509: ECDSA verification failure".to_owned())
}

#[derive(Clone, Copy)]
enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    fn of(self, message: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
            Hash::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, message).as_ref().to_vec()
    }

    /// The same number in at least as many bytes as the curve's field has.
    fn padded(self, message: &[u8], bytes: usize) -> Vec<u8> {
        let digest = self.of(message);
        [vec![0; bytes.saturating_sub(digest.len())], digest].concat()
    }

    /// What stands before the digest in a PKCS #1 signature.
    fn prefix(self) -> Vec<u8> {
        // 1.3.14.3.2.26, and 2.16.840.1.101.3.4.2.x
        let sha2 = |number| vec![0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, number];
        let (oid, length) = match self {
            Hash::Sha1 => (vec![0x2b, 0x0e, 0x03, 0x02, 0x1a], 20),
            Hash::Sha256 => (sha2(1), 32),
            Hash::Sha384 => (sha2(2), 48),
            Hash::Sha512 => (sha2(3), 64),
        };
        let oid = der::element(der::OBJECT_IDENTIFIER, &oid);
        let algorithm = der::sequence(&[oid, der::element(der::NULL, &[])]);
        let mut whole =
            der::sequence(&[algorithm, der::element(der::OCTET_STRING, &vec![0; length])]);
        whole.truncate(whole.len() - length);
        whole
    }
}

/// A private key that signs certificates.
pub struct SigningKey {
    key: Kind,
    /// The AlgorithmIdentifier of its signatures.
    algorithm: &'static [u8],
    /// `SubjectPublicKeyInfo`.
    public_key: Vec<u8>,
}

enum Kind {
    /// RSA of 2048 to 4096 bits, P-256, P-384, Ed25519.
    Common(Box<dyn rustls::sign::Signer>),
    /// Of other sizes.
    Rsa(Box<pkcs1v15::SigningKey<Sha256>>),
    P521(Box<p521::ecdsa::SigningKey>),
}

impl SigningKey {
    /// The first private key of a PEM file. Upstream: `keyutil.ParsePrivateKeyPEM`.
    pub fn from_pem(pem: &[u8]) -> Option<SigningKey> {
        let mut keys = PrivateKeyDer::pem_slice_iter(pem).filter_map(Result::ok);
        keys.find_map(|der| SigningKey::from_der(&der))
    }

    fn from_der(der: &PrivateKeyDer<'_>) -> Option<SigningKey> {
        if let Some(key) = any_supported_type(der).ok().and_then(SigningKey::common) {
            return Some(key);
        }
        if let Some(key) = jwt::rsa_key(der) {
            let public_key = key.to_public_key().to_public_key_der().ok()?.into_vec();
            let key = Kind::Rsa(Box::new(pkcs1v15::SigningKey::new(key)));
            return Some(SigningKey { key, algorithm: SHA256_WITH_RSA, public_key });
        }
        let secret = jwt::key::<p521::SecretKey>(der)?;
        let key = p521::ecdsa::SigningKey::from_bytes(&secret.to_bytes()).ok()?;
        let public_key = secret.public_key().to_public_key_der().ok()?.into_vec();
        Some(SigningKey {
            key: Kind::P521(Box::new(key)),
            algorithm: ECDSA_WITH_SHA512,
            public_key,
        })
    }

    fn common(key: Arc<dyn rustls::sign::SigningKey>) -> Option<SigningKey> {
        const SCHEMES: [(SignatureScheme, &[u8]); 4] = [
            (SignatureScheme::RSA_PKCS1_SHA256, SHA256_WITH_RSA),
            (SignatureScheme::ECDSA_NISTP256_SHA256, ECDSA_WITH_SHA256),
            (SignatureScheme::ECDSA_NISTP384_SHA384, ECDSA_WITH_SHA384),
            (SignatureScheme::ED25519, ED25519),
        ];
        let signer = key.choose_scheme(&SCHEMES.map(|(scheme, _)| scheme))?;
        let (_, algorithm) = SCHEMES.into_iter().find(|(scheme, _)| *scheme == signer.scheme())?;
        let public_key = key.public_key()?.to_vec();
        Some(SigningKey { key: Kind::Common(signer), algorithm, public_key })
    }

    pub fn algorithm(&self) -> &'static [u8] {
        self.algorithm
    }

    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// # Errors
    /// When the key can't sign: an RSA key that is too small.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        match &self.key {
            Kind::Common(key) => key.sign(message).map_err(|error| error.to_string()),
            // Blinded: the time it takes says nothing about the key.
            Kind::Rsa(key) => {
                let signature = key.try_sign_with_rng(&mut OsRng, message);
                signature.map(|signature| signature.to_vec()).map_err(|error| error.to_string())
            }
            Kind::P521(key) => {
                let signature: Result<p521::ecdsa::Signature, _> = key.try_sign(message);
                let der = signature.map(|signature| signature.to_der().to_bytes().to_vec());
                der.map_err(|error| error.to_string())
            }
        }
    }
}
