//! Folders and certificates of tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube_controller_manager::objects::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    SanType,
};

use super::key::{PrivateKey, Template};
use super::store::Pair;

/// A folder of one test, which is removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("kubelet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An authority that signs certificates of nodes.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// In PEM.
    pub certificate: String,
}

pub fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
    Authority { certificate: issuer.pem(), issuer }
}

impl Authority {
    /// Returns a node's certificate whose life begins then.
    pub fn sign(&self, node: &str, begin: Timestamp, life: Duration) -> Pair {
        self.sign_for(&Template::of_node(node), begin, life)
    }

    pub fn sign_for(&self, template: &Template, begin: Timestamp, life: Duration) -> Pair {
        let key = PrivateKey::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, &template.organization);
        params.distinguished_name.push(DnType::CommonName, &template.common_name);
        for name in &template.dns_names {
            let name = name.as_str().try_into().expect("a name");
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params.subject_alt_names.extend(template.ips.iter().copied().map(SanType::IpAddress));
        let begin = Duration::from_secs(u64::try_from(begin.as_secs()).expect("after 1970"));
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + begin;
        params.not_after = params.not_before + life;
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair::from_pem(signed.pem().as_bytes(), &key.pem, "a test").expect("a pair")
    }
}

/// Returns a certificate of a node, valid from 2026 to 2029.
pub fn pair(node: &str) -> Pair {
    authority().sign(node, Timestamp::from_secs(1_780_000_000), Duration::from_secs(94_608_000))
}
