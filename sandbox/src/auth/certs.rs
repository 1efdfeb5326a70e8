//! The sandbox's own CA and the certificates that it signs.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use kube_controller_manager::objects::Timestamp;

/// A certificate and its key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Returns a key that signs service accounts' tokens, in PEM.
pub fn service_account_key() -> Result<String, rcgen::Error> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// A CA, valid for ten years from its creation.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
    now: Timestamp,
}

const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// Builds the parameters that all certificates have in common. They are valid from a year ago for
/// eleven years.
fn params(now: Timestamp, common_name: &str, organizations: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let date = |time: Timestamp| {
        let date = time.to_jiff().to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
    };
    params.not_before = date(now - YEAR);
    params.not_after = date(now + 10 * YEAR);
    params
}

impl Authority {
    /// Creates an authority with a new key and a self-signed certificate.
    pub fn new(now: Timestamp) -> Result<Authority, rcgen::Error> {
        let mut params = params(now, "sandbox-ca", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate, now })
    }

    /// Returns the CA's key, in PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate for the server, with its loopback names and this address.
    pub fn serving(&self, address: std::net::IpAddr) -> Result<Pair, rcgen::Error> {
        let mut params = params(self.now, "kube-apiserver", &[]);
        for name in ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
            params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
        }
        params.subject_alt_names.push(SanType::IpAddress(address));
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Returns a client certificate with the user's name and groups.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair, rcgen::Error> {
        self.sign(params(self.now, user, groups), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Signs a certificate for a new key.
    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Pair, rcgen::Error> {
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}
