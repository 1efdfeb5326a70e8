//! Signs and checks the secret-based tokens of service accounts.
//! Upstream: `pkg/serviceaccount` (`JWTTokenGenerator`, `LegacyClaims`), `client-go/util/keyutil`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs8::{self, DecodePrivateKey, EncodePublicKey, PrivateKeyInfo};
use rsa::rand_core::OsRng;
use rsa::signature::{Keypair as _, RandomizedSigner, SignatureEncoding, Signer as _, Verifier};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use sec1::DecodeEcPrivateKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The issuer of the tokens.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// The claims of a secret-based token, which never expires. The fields are in the order of their
/// names, as Go writes a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacyClaims {
    #[serde(rename = "iss")]
    pub issuer: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret_name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub account_name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub account_uid: String,
    #[serde(rename = "sub")]
    pub subject: String,
}

impl LegacyClaims {
    /// Makes the claims of a token in a Secret.
    pub fn new(namespace: &str, account: &str, account_uid: &str, secret: &str) -> LegacyClaims {
        LegacyClaims {
            issuer: LEGACY_ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret_name: secret.to_owned(),
            account_name: account.to_owned(),
            account_uid: account_uid.to_owned(),
            subject: format!("system:serviceaccount:{namespace}:{account}"),
        }
    }
}

/// The header of a token.
#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

enum PrivateKey {
    Rsa(Box<rsa::pkcs1v15::SigningKey<Sha256>>),
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

/// Signs tokens with one private key.
pub struct Signer {
    key: PrivateKey,
    public: PublicKey,
}

/// Checks tokens against the public half of a [`Signer`]'s key.
#[derive(Clone)]
pub struct PublicKey {
    key: VerifyingKey,
    algorithm: &'static str,
    id: String,
}

#[derive(Clone)]
enum VerifyingKey {
    Rsa(Box<rsa::pkcs1v15::VerifyingKey<Sha256>>),
    P256(p256::ecdsa::VerifyingKey),
    P384(p384::ecdsa::VerifyingKey),
    P521(p521::ecdsa::VerifyingKey),
}

impl Signer {
    /// Makes a signer of the first private key in a PEM file: RSA, or ECDSA over P-256, P-384 or
    /// P-521, in PKCS #1, SEC 1 or PKCS #8. Other blocks (`EC PARAMETERS`) are skipped.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn from_pem(pem: &[u8]) -> Result<Signer, String> {
        PrivateKeyDer::pem_slice_iter(pem)
            .filter_map(Result::ok)
            .find_map(|der| Signer::from_der(&der))
            .ok_or_else(|| "data does not contain a valid RSA or ECDSA private key".to_owned())
    }

    /// Makes a signer of an RSA key or a key of one of the three curves; `None` for another key.
    fn from_der(der: &PrivateKeyDer<'_>) -> Option<Signer> {
        let new_signer = |key, public, algorithm, id| Signer {
            key,
            public: PublicKey { key: public, algorithm, id },
        };
        if let Some(key) = rsa_key(der) {
            let id = key_id(&key.to_public_key())?;
            let key = rsa::pkcs1v15::SigningKey::<Sha256>::new(key);
            let public = VerifyingKey::Rsa(Box::new(key.verifying_key()));
            return Some(new_signer(PrivateKey::Rsa(Box::new(key)), public, "RS256", id));
        }
        if let Some(secret) = key::<p256::SecretKey>(der) {
            let key = p256::ecdsa::SigningKey::from(&secret);
            let public = VerifyingKey::P256(*key.verifying_key());
            let id = key_id(&secret.public_key())?;
            return Some(new_signer(PrivateKey::P256(key), public, "ES256", id));
        }
        if let Some(secret) = key::<p384::SecretKey>(der) {
            let key = p384::ecdsa::SigningKey::from(&secret);
            let public = VerifyingKey::P384(*key.verifying_key());
            let id = key_id(&secret.public_key())?;
            return Some(new_signer(PrivateKey::P384(key), public, "ES384", id));
        }
        let secret = key::<p521::SecretKey>(der)?;
        let key = p521::ecdsa::SigningKey::from_bytes(&secret.to_bytes()).ok()?;
        let public = VerifyingKey::P521(p521::ecdsa::VerifyingKey::from(&key));
        let id = key_id(&secret.public_key())?;
        Some(new_signer(PrivateKey::P521(key), public, "ES512", id))
    }

    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// Returns a token in the compact form, signed with this key.
    ///
    /// # Errors
    /// When the key can't sign: an RSA key that is too small.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, String> {
        let encode_part = |json: Result<Vec<u8>, serde_json::Error>| {
            json.map(|json| URL_SAFE_NO_PAD.encode(json)).map_err(|error| error.to_string())
        };
        let PublicKey { algorithm, id, .. } = &self.public;
        let header = Header { alg: (*algorithm).to_owned(), kid: id.clone() };
        let header = encode_part(serde_json::to_vec(&header))?;
        let text = format!("{header}.{}", encode_part(serde_json::to_vec(claims))?);
        let signature = self.signature(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Signs `text` by the algorithm of the key.
    fn signature(&self, text: &[u8]) -> Result<Vec<u8>, rsa::signature::Error> {
        Ok(match &self.key {
            // Blinded: the time it takes says nothing about the key.
            PrivateKey::Rsa(key) => key.try_sign_with_rng(&mut OsRng, text)?.to_vec(),
            PrivateKey::P256(key) => {
                Vec::from(&*key.try_sign(text).map(|s: p256::ecdsa::Signature| s.to_bytes())?)
            }
            PrivateKey::P384(key) => {
                Vec::from(&*key.try_sign(text).map(|s: p384::ecdsa::Signature| s.to_bytes())?)
            }
            PrivateKey::P521(key) => {
                Vec::from(&*key.try_sign(text).map(|s: p521::ecdsa::Signature| s.to_bytes())?)
            }
        })
    }
}

impl PublicKey {
    /// Returns the `kid` of the tokens that it checks: a digest of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the claims of `token`, if it was signed with this key.
    pub fn verify(&self, token: &str) -> Option<LegacyClaims> {
        let (text, signature) = token.rsplit_once('.')?;
        let (header, claims) = text.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        if header.alg != self.algorithm || !(header.kid.is_empty() || header.kid == self.id) {
            return None;
        }
        self.verify_signature(text.as_bytes(), &decode(signature)?).ok()?;
        serde_json::from_slice(&decode(claims)?).ok()
    }

    /// Checks that `signature` is one of `text` with this key.
    fn verify_signature(&self, text: &[u8], signature: &[u8]) -> Result<(), rsa::signature::Error> {
        match &self.key {
            VerifyingKey::Rsa(key) => key.verify(text, &signature.try_into()?),
            VerifyingKey::P256(key) => {
                key.verify(text, &p256::ecdsa::Signature::from_slice(signature)?)
            }
            VerifyingKey::P384(key) => {
                key.verify(text, &p384::ecdsa::Signature::from_slice(signature)?)
            }
            VerifyingKey::P521(key) => {
                key.verify(text, &p521::ecdsa::Signature::from_slice(signature)?)
            }
        }
    }
}

/// Parses an RSA key, in PKCS #1 or PKCS #8; `None`: it is another key, or malformed.
pub fn rsa_key(der: &PrivateKeyDer<'_>) -> Option<rsa::RsaPrivateKey> {
    match der {
        PrivateKeyDer::Pkcs1(der) => {
            rsa::RsaPrivateKey::from_pkcs1_der(der.secret_pkcs1_der()).ok()
        }
        other => key(other),
    }
}

/// Parses a key of this one kind and of this one curve, in SEC 1 or PKCS #8. `None`: it is another
/// key, or malformed.
pub fn key<K>(der: &PrivateKeyDer<'_>) -> Option<K>
where
    K: for<'a> TryFrom<PrivateKeyInfo<'a>, Error = pkcs8::Error>,
{
    match der {
        PrivateKeyDer::Pkcs8(der) => DecodePrivateKey::from_pkcs8_der(der.secret_pkcs8_der()).ok(),
        PrivateKeyDer::Sec1(der) => DecodeEcPrivateKey::from_sec1_der(der.secret_sec1_der()).ok(),
        _ => None,
    }
}

/// Returns the `kid` of a public key: a digest, from which the key cannot be derived. Upstream:
/// `keyIDFromPublicKey`.
fn key_id(key: &impl EncodePublicKey) -> Option<String> {
    let der = key.to_public_key_der().ok()?;
    Some(URL_SAFE_NO_PAD.encode(Sha256::digest(der.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key, and the token that the Go manager signed with it.
    macro_rules! golden {
        ($key:literal, $token:literal) => {
            (
                include_bytes!(concat!("../fixtures/tokens/", $key, ".pem")) as &[u8],
                include_str!(concat!("../fixtures/tokens/", $token, ".jwt")),
            )
        };
    }

    const GOLDEN: [(&[u8], &str); 5] = [
        golden!("rs256", "rs256"),
        golden!("rs256-pkcs8", "rs256"),
        golden!("es256", "es256"),
        golden!("es384", "es384"),
        golden!("es512", "es512"),
    ];

    fn claims() -> LegacyClaims {
        let uid = "f6fcd2c1-8916-4433-b5b4-1c97d1a9ef04";
        LegacyClaims::new("default", "robot", uid, "robot-token")
    }

    #[test]
    fn tokens_equal_those_of_the_go_manager() {
        for (pem, golden) in GOLDEN {
            let signer = Signer::from_pem(pem).unwrap();
            let public = signer.public_key();
            assert_eq!(public.verify(golden), Some(claims()), "{}", public.algorithm);
            let token = signer.sign(&claims()).unwrap();
            assert_eq!(public.verify(&token), Some(claims()), "{}", public.algorithm);
            // ECDSA signatures are never the same twice; the header holds algorithm and key id.
            let signed = |token: &str| token.rsplit_once('.').unwrap().0.to_owned();
            assert_eq!(signed(&token), signed(golden));
            assert_eq!(token == golden, public.algorithm == "RS256");
            assert_eq!(token.len(), golden.len());
        }
    }

    #[test]
    fn a_token_with_another_key_or_a_changed_text_is_refused() {
        let signers: Vec<Signer> =
            GOLDEN[1..].iter().map(|(pem, _)| Signer::from_pem(pem).unwrap()).collect();
        for (at, signer) in signers.iter().enumerate() {
            let token = signer.sign(&claims()).unwrap();
            for (other, verifier) in signers.iter().enumerate() {
                assert_eq!(verifier.public_key().verify(&token).is_some(), at == other);
            }
            let (text, signature) = token.rsplit_once('.').unwrap();
            let (header, _) = text.split_once('.').unwrap();
            let forged = LegacyClaims::new("kube-system", "admin", "u", "s");
            let forged = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&forged).unwrap());
            let verify = |token: &str| signer.public_key().verify(token);
            assert_eq!(verify(&format!("{header}.{forged}.{signature}")), None);
            let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
            for bad in [format!("{none}.{forged}."), text.to_owned(), String::new(), "..".into()] {
                assert_eq!(verify(&bad), None, "{bad}");
            }
        }
    }

    #[test]
    fn a_file_without_a_usable_key_is_refused() {
        let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        let broken = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for pem in [certificate.as_str(), &ed25519, broken, ""] {
            assert!(Signer::from_pem(pem.as_bytes()).is_err(), "{pem}");
        }
        let second = format!("{broken}{}", std::str::from_utf8(GOLDEN[0].0).unwrap());
        assert!(Signer::from_pem(second.as_bytes()).is_ok(), "the first that can be read");
    }
}
