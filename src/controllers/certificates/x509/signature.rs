//! Signatures of certificates and of requests for them: the algorithms that Go's `crypto/x509` has,
//! except for the curve P-224.

use std::sync::Arc;

use der::asn1::{Any, AnyRef, ObjectIdentifier, OctetStringRef};
use der::oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, ID_SHA_1, ID_SHA_256, ID_SHA_384,
    ID_SHA_512, SECP_256_R_1, SECP_384_R_1, SECP_521_R_1, SHA_1_WITH_RSA_ENCRYPTION,
    SHA_256_WITH_RSA_ENCRYPTION, SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};
use der::oid::db::rfc8410::ID_ED_25519;
use der::{Decode, Encode, Sequence};
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
use x509_cert::spki::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef};

use crate::jwt;

const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");

const SHA256_WITH_RSA: AlgorithmIdentifierRef<'_> =
    AlgorithmIdentifierRef { oid: SHA_256_WITH_RSA_ENCRYPTION, parameters: Some(AnyRef::NULL) };
const ECDSA_WITH_SHA256: AlgorithmIdentifierRef<'_> = without_parameters(ECDSA_WITH_SHA_256);
const ECDSA_WITH_SHA384: AlgorithmIdentifierRef<'_> = without_parameters(ECDSA_WITH_SHA_384);
const ECDSA_WITH_SHA512: AlgorithmIdentifierRef<'_> = without_parameters(ECDSA_WITH_SHA_512);
const ED25519: AlgorithmIdentifierRef<'_> = without_parameters(ID_ED_25519);

const fn without_parameters(oid: ObjectIdentifier) -> AlgorithmIdentifierRef<'static> {
    AlgorithmIdentifierRef { oid, parameters: None }
}

/// The fewest bits of an RSA key, as in Go.
const MIN_RSA_BITS: usize = 1024;

/// Checks that `signature` of `message` was made with the private key of `public_key`, a
/// SubjectPublicKeyInfo, by the algorithm of this AlgorithmIdentifier.
///
/// # Errors
/// One line that gives the reason.
pub fn verify(
    public_key: &[u8],
    algorithm: &[u8],
    message: &[u8],
    signature: &[u8],
) -> Result<(), String> {
    let der_error = |error: der::Error| format!("asn1: {error}");
    let info = SubjectPublicKeyInfoRef::from_der(public_key).map_err(der_error)?;
    let algorithm = AlgorithmIdentifierRef::from_der(algorithm).map_err(der_error)?;
    let key = info.subject_public_key.as_bytes().ok_or("asn1: the key has a part of a byte")?;
    if is_verified_by_rustls(&info.algorithm, key, &algorithm, message, signature)
        .map_err(der_error)?
    {
        return Ok(());
    }
    let hash = match algorithm.oid {
        SHA_1_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_1 => Hash::Sha1,
        SHA_256_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_256 => Hash::Sha256,
        SHA_384_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_384 => Hash::Sha384,
        SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => Hash::Sha512,
        _ => return Err("x509: cannot verify signature: algorithm unimplemented".to_owned()),
    };
    let ecdsa = [ECDSA_WITH_SHA_1, ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512];
    if ecdsa.contains(&algorithm.oid) {
        verify_ecdsa(&info.algorithm, key, hash, message, signature)
    } else {
        verify_rsa(key, hash, message, signature)
    }
}

/// Verifies an RSA signature with PKCS #1 v1.5 padding. `key` is an `RSAPublicKey` in DER.
fn verify_rsa(key: &[u8], hash: Hash, message: &[u8], signature: &[u8]) -> Result<(), String> {
    let key = RsaPublicKey::from_pkcs1_der(key).map_err(|error| error.to_string())?;
    let bits = key.n().bits();
    if bits < MIN_RSA_BITS {
        return Err(format!("crypto/rsa: {bits}-bit keys are insecure"));
    }
    let digest = hash.digest_info(message).map_err(|error| format!("asn1: {error}"))?;
    let verified = key.verify(Pkcs1v15Sign::new_unprefixed(), &digest, signature);
    verified.map_err(|_| "crypto/rsa: verification error".to_owned())
}

/// Verifies an ECDSA signature on the curve that the key's algorithm names.
fn verify_ecdsa(
    key_algorithm: &AlgorithmIdentifierRef<'_>,
    key: &[u8],
    hash: Hash,
    message: &[u8],
    signature: &[u8],
) -> Result<(), String> {
    let verified = match key_algorithm.parameters_oid() {
        Ok(SECP_256_R_1) => p256::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p256::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded_digest(message, 32), &signature)
        }),
        Ok(SECP_384_R_1) => p384::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p384::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded_digest(message, 48), &signature)
        }),
        Ok(SECP_521_R_1) => p521::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
            let signature = p521::ecdsa::Signature::from_der(signature)?;
            key.verify_prehash(&hash.padded_digest(message, 66), &signature)
        }),
        _ => return Err("x509: unsupported elliptic curve".to_owned()),
    };
    verified.map_err(|_| "x509: ECDSA verification failure".to_owned())
}

/// Verifies the signature with rustls; `false` also if rustls does not have the algorithm. Then
/// `verify` tries the algorithms that only Go has.
fn is_verified_by_rustls(
    key_algorithm: &AlgorithmIdentifierRef<'_>,
    key: &[u8],
    algorithm: &AlgorithmIdentifierRef<'_>,
    message: &[u8],
    signature: &[u8],
) -> der::Result<bool> {
    // rustls compares the identifiers without tag and length.
    let key_algorithm = Any::encode_from(key_algorithm)?;
    let algorithm = Any::encode_from(algorithm)?;
    let provider = rustls::crypto::ring::default_provider();
    let mut matching = provider.signature_verification_algorithms.all.iter().filter(|known| {
        *known.public_key_alg_id() == *key_algorithm.value()
            && *known.signature_alg_id() == *algorithm.value()
    });
    Ok(matching.any(|known| known.verify_signature(key, message, signature).is_ok()))
}

/// The content that a PKCS #1 signature signs.
#[derive(Sequence)]
struct DigestInfo<'a> {
    algorithm: AlgorithmIdentifierRef<'a>,
    digest: OctetStringRef<'a>,
}

#[derive(Clone, Copy)]
enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Returns the hash of `message`.
    fn digest(self, message: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
            Hash::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, message).as_ref().to_vec()
    }

    /// Returns the hash of `message`, with zeros before it up to `bytes`, the size of the curve's
    /// field.
    fn padded_digest(self, message: &[u8], bytes: usize) -> Vec<u8> {
        let digest = self.digest(message);
        [vec![0; bytes.saturating_sub(digest.len())], digest].concat()
    }

    /// Encodes the [`DigestInfo`] of `message`.
    fn digest_info(self, message: &[u8]) -> der::Result<Vec<u8>> {
        let oid = match self {
            Hash::Sha1 => ID_SHA_1,
            Hash::Sha256 => ID_SHA_256,
            Hash::Sha384 => ID_SHA_384,
            Hash::Sha512 => ID_SHA_512,
        };
        let algorithm = AlgorithmIdentifierRef { oid, parameters: Some(AnyRef::NULL) };
        DigestInfo { algorithm, digest: OctetStringRef::new(&self.digest(message))? }.to_der()
    }
}

/// A private key that signs certificates.
pub struct SigningKey {
    key: KeyKind,
    /// The algorithm of its signatures.
    algorithm: AlgorithmIdentifierRef<'static>,
    /// `SubjectPublicKeyInfo`.
    public_key: Vec<u8>,
}

enum KeyKind {
    /// The keys that rustls has: RSA of 2048 to 4096 bits, P-256, P-384, Ed25519.
    Rustls(Box<dyn rustls::sign::Signer>),
    /// RSA keys of other sizes.
    Rsa(Box<pkcs1v15::SigningKey<Sha256>>),
    P521(Box<p521::ecdsa::SigningKey>),
}

impl SigningKey {
    /// Reads the first private key of a PEM file that can sign. Upstream:
    /// `keyutil.ParsePrivateKeyPEM`.
    pub fn from_pem(pem: &[u8]) -> Option<SigningKey> {
        let mut keys = PrivateKeyDer::pem_slice_iter(pem).filter_map(Result::ok);
        keys.find_map(|der| SigningKey::from_der(&der))
    }

    /// Reads a key of any kind that [`KeyKind`] has; `None` if it is of another kind.
    fn from_der(der: &PrivateKeyDer<'_>) -> Option<SigningKey> {
        if let Some(key) = any_supported_type(der).ok().and_then(SigningKey::from_rustls) {
            return Some(key);
        }
        if let Some(key) = jwt::rsa_key(der) {
            let public_key = key.to_public_key().to_public_key_der().ok()?.into_vec();
            let key = KeyKind::Rsa(Box::new(pkcs1v15::SigningKey::new(key)));
            return Some(SigningKey { key, algorithm: SHA256_WITH_RSA, public_key });
        }
        let secret = jwt::key::<p521::SecretKey>(der)?;
        let key = p521::ecdsa::SigningKey::from_bytes(&secret.to_bytes()).ok()?;
        let public_key = secret.public_key().to_public_key_der().ok()?.into_vec();
        Some(SigningKey {
            key: KeyKind::P521(Box::new(key)),
            algorithm: ECDSA_WITH_SHA512,
            public_key,
        })
    }

    /// Takes a key of rustls; `None` if it signs with none of these schemes.
    fn from_rustls(key: Arc<dyn rustls::sign::SigningKey>) -> Option<SigningKey> {
        const SCHEMES: [(SignatureScheme, AlgorithmIdentifierRef<'_>); 4] = [
            (SignatureScheme::RSA_PKCS1_SHA256, SHA256_WITH_RSA),
            (SignatureScheme::ECDSA_NISTP256_SHA256, ECDSA_WITH_SHA256),
            (SignatureScheme::ECDSA_NISTP384_SHA384, ECDSA_WITH_SHA384),
            (SignatureScheme::ED25519, ED25519),
        ];
        let signer = key.choose_scheme(&SCHEMES.map(|(scheme, _)| scheme))?;
        let (_, algorithm) = SCHEMES.into_iter().find(|(scheme, _)| *scheme == signer.scheme())?;
        let public_key = key.public_key()?.to_vec();
        Some(SigningKey { key: KeyKind::Rustls(signer), algorithm, public_key })
    }

    pub fn algorithm(&self) -> AlgorithmIdentifierRef<'static> {
        self.algorithm
    }

    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Signs `message`, and returns the signature.
    ///
    /// # Errors
    /// When the key can't sign: an RSA key that is too small.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        match &self.key {
            KeyKind::Rustls(key) => key.sign(message).map_err(|error| error.to_string()),
            // Blinded: the time it takes says nothing about the key.
            KeyKind::Rsa(key) => {
                let signature = key.try_sign_with_rng(&mut OsRng, message);
                signature.map(|signature| signature.to_vec()).map_err(|error| error.to_string())
            }
            KeyKind::P521(key) => {
                let signature: Result<p521::ecdsa::Signature, _> = key.try_sign(message);
                let der = signature.map(|signature| signature.to_der().to_bytes().to_vec());
                der.map_err(|error| error.to_string())
            }
        }
    }
}
