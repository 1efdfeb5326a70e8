//! Self-signed certificates, for a server without others.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Creates a certificate and its key in PEM, for this host and for `address`.
pub(super) fn self_signed(address: Option<IpAddr>) -> Result<(Vec<u8>, Vec<u8>), String> {
    let failed = |error: rcgen::Error| format!("self-signed certificate: {error}");
    let mut names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
    names.extend(address.map(|address| address.to_string()).filter(|a| *a != names[1]));
    let mut params = rcgen::CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    params.key_usages =
        vec![rcgen::KeyUsagePurpose::DigitalSignature, rcgen::KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let cert = params.self_signed(&key).map_err(failed)?;
    Ok((cert.pem().into_bytes(), key.serialize_pem().into_bytes()))
}

/// Returns the files `NAME.crt` and `NAME.key` in a folder. Where neither exists, both are created,
/// and the folder too.
/// Upstream: `MaybeDefaultWithSelfSignedCerts`.
///
/// # Errors
/// One line naming the file.
pub fn load_or_create_self_signed(
    folder: &Path,
    name: &str,
    address: Option<IpAddr>,
) -> Result<(PathBuf, PathBuf), String> {
    let files = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    match (files.0.exists(), files.1.exists()) {
        (true, true) => return Ok(files),
        (false, false) => (),
        (true, false) => {
            return Err(format!("{} exists, {} does not", files.0.display(), files.1.display()));
        }
        (false, true) => {
            return Err(format!("{} exists, {} does not", files.1.display(), files.0.display()));
        }
    }
    let (cert, key) = self_signed(address)?;
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    // The key is private from its first byte on.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(&files.1).and_then(|mut file| file.write_all(&key)).map_err(failed(&files.1))?;
    std::fs::write(&files.0, cert).map_err(failed(&files.0))?;
    log::info!("Generated self-signed cert ({}, {})", files.0.display(), files.1.display());
    Ok(files)
}

/// A temporary folder of one test, removed with it.
#[cfg(test)]
pub(super) mod testing {
    use std::path::PathBuf;

    pub struct Folder(pub PathBuf);

    pub fn folder(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("kcm-tls-{name}-{}", std::process::id())))
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Tls, TlsOptions};
    use super::testing::folder;
    use super::*;

    #[test]
    fn pair_is_created_once() {
        let folder = folder("pair");
        let files = load_or_create_self_signed(&folder.0, "x", None).expect("a pair");
        let made = std::fs::read(&files.1).expect("a key");
        assert_eq!(load_or_create_self_signed(&folder.0, "x", None), Ok(files.clone()));
        assert_eq!(std::fs::read(&files.1).expect("a key"), made);
        let options = TlsOptions { files: Some(files.clone()), ..TlsOptions::default() };
        assert!(Tls::new(options).is_ok());
        std::fs::remove_file(&files.1).expect("it was there");
        let error = load_or_create_self_signed(&folder.0, "x", None).expect_err("half a pair");
        assert!(error.ends_with("x.key does not"), "{error}");
    }
}
