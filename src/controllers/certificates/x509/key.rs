//! Private keys as files hold them. Upstream: `client-go/util/keyutil`.

use rsa::RsaPrivateKey;
use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs8::{self, DecodePrivateKey, PrivateKeyInfo};
use rustls::pki_types::PrivateKeyDer;
use sec1::DecodeEcPrivateKey;

/// An RSA key, in PKCS #1 or PKCS #8.
pub fn rsa(der: &PrivateKeyDer<'_>) -> Option<RsaPrivateKey> {
    match der {
        PrivateKeyDer::Pkcs1(der) => RsaPrivateKey::from_pkcs1_der(der.secret_pkcs1_der()).ok(),
        other => elliptic(other),
    }
}

/// A key of this one kind and of this one curve, in SEC 1 or PKCS #8.
pub fn elliptic<K>(der: &PrivateKeyDer<'_>) -> Option<K>
where
    K: for<'a> TryFrom<PrivateKeyInfo<'a>, Error = pkcs8::Error>,
{
    match der {
        PrivateKeyDer::Pkcs8(der) => DecodePrivateKey::from_pkcs8_der(der.secret_pkcs8_der()).ok(),
        PrivateKeyDer::Sec1(der) => DecodeEcPrivateKey::from_sec1_der(der.secret_sec1_der()).ok(),
        _ => None,
    }
}
