//! Certificate authorities for tests.

use super::Authorities;
use crate::objects::Timestamp;
use crate::server::http::Chain;

/// A time at which the certificates below are valid.
pub const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

pub struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

pub fn authority() -> Authority {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new([]).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("a certificate");
    Authority { certificate, issuer: rcgen::Issuer::new(params, key) }
}

impl Authority {
    pub fn sign(&self, name: &str, group: &str) -> Chain {
        self.sign_names(&[name], group)
    }

    /// A chain with up to two common names.
    pub fn sign_names(&self, names: &[&str], group: &str) -> Chain {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new([]).expect("parameters");
        // rcgen keeps one value a type; the second common name is given by its number.
        let types = [rcgen::DnType::CommonName, rcgen::DnType::CustomDnType(vec![2, 5, 4, 3])];
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in types.into_iter().zip(names) {
            params.distinguished_name.push(kind, *name);
        }
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        Chain::from([signed.der().clone()])
    }

    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub fn authorities(&self) -> Authorities {
        Authorities::from_pem(self.pem().as_bytes()).expect("authorities")
    }
}
