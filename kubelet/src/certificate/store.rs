//! Certificates with their keys on disk, in upstream's layout: a file for each, and a link to the
//! current one. Upstream: `client-go/util/certificate` (`FileStore`).

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube_controller_manager::client::pem;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::objects::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;

use super::Error;

/// A certificate with its chain, and its private key. Upstream: `tls.Certificate`.
pub struct Pair {
    /// The certificate, then intermediate ones, in PEM.
    pub certificate: Vec<u8>,
    /// In PEM.
    pub key: Vec<u8>,
    /// The certificate itself.
    pub leaf: Certificate,
    /// The same for a server.
    pub certified: Arc<CertifiedKey>,
}

/// Without the key.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("not_after", &self.leaf.not_after()).finish_non_exhaustive()
    }
}

impl Pair {
    /// Parses a certificate and its key, both in PEM; they may be in one text. `from` names it in
    /// errors. Upstream: `tls.X509KeyPair`.
    pub fn from_pem(certificate: &[u8], key: &[u8], from: &str) -> Result<Pair, Error> {
        let fault = |fault: String| Error::Pair { from: from.to_owned(), fault };
        let chain = pem::certificates(certificate);
        let own = chain.first().ok_or_else(|| fault("no certificate in it".to_owned()))?;
        let leaf = Certificate::from_der(own).map_err(fault)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fault(error.to_string()))?;
        let loaded = any_supported_type(&key).map_err(|error| fault(error.to_string()))?;
        let public = loaded.public_key();
        if public.is_none_or(|public| public.as_ref() != leaf.public_key()) {
            return Err(fault("private key does not match public key".to_owned()));
        }
        let text: String = chain.iter().map(|one| pem::certificate_text(one)).collect();
        let key = key_text(&key);
        let certified = Arc::new(CertifiedKey::new(chain, loaded));
        Ok(Pair { certificate: text.into_bytes(), key: key.into_bytes(), leaf, certified })
    }

    /// Returns a certificate and its key in files, which may be the same.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Pair, Error> {
        let from = match certificate == key {
            true => certificate.display().to_string(),
            false => format!("{} and {}", certificate.display(), key.display()),
        };
        let text = fs::read(certificate).map_err(Error::file(certificate))?;
        Pair::from_pem(&text, &fs::read(key).map_err(Error::file(key))?, &from)
    }

    /// Returns whether its life is over.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.leaf.not_after()
    }
}

/// Returns a private key in PEM.
fn key_text(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    pem::text(label, key.secret_der())
}

/// The certificates of one purpose: `PREFIX-DATE.pem` with certificate and key in it, and the link
/// `PREFIX-current.pem`. At any moment the link is either absent or leads to a whole file, also
/// after a crash. Former files stay, as upstream's. Blocks while it reads and writes.
#[derive(Debug)]
pub struct Store {
    prefix: &'static str,
    folder: PathBuf,
    /// A certificate and its key that count while there is no link.
    files: Option<(PathBuf, PathBuf)>,
}

impl Store {
    /// Opens the store in `folder`, which may be absent. Where an update was cut off between the
    /// removal of the link and its replacement, as upstream's are, it is completed.
    pub fn open(
        prefix: &'static str,
        folder: &Path,
        files: Option<(PathBuf, PathBuf)>,
    ) -> Result<Store, Error> {
        // Links are absolute.
        let folder = std::path::absolute(folder).map_err(Error::file(folder))?;
        let store = Store { prefix, folder, files };
        let (current, updated) = (store.current_path(), store.updated_path());
        if !exists(&current)? && is_link(&updated)? {
            fs::rename(&updated, &current).map_err(Error::file(&current))?;
        }
        Ok(store)
    }

    /// Returns the link to the current certificate, which may be absent.
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    /// Returns the link that becomes the current one.
    fn updated_path(&self) -> PathBuf {
        self.path("updated")
    }

    fn path(&self, qualifier: &str) -> PathBuf {
        self.folder.join(format!("{}-{qualifier}.pem", self.prefix))
    }

    /// Loads the current certificate: that of the link, else of the given files, else of
    /// `PREFIX.crt` and `PREFIX.key`; `None`: none of them exists.
    pub fn current(&self) -> Result<Option<Pair>, Error> {
        let current = self.current_path();
        if exists(&current)? {
            return Pair::from_files(&current, &current).map(Some);
        }
        let beside = |extension: &str| self.folder.join(format!("{}.{extension}", self.prefix));
        let usual = (beside("crt"), beside("key"));
        for (certificate, key) in self.files.iter().chain([&usual]) {
            if exists(certificate)? && exists(key)? {
                return Pair::from_files(certificate, key).map(Some);
            }
        }
        Ok(None)
    }

    /// Writes a certificate and makes it the current one. When it fails, the former one stays
    /// current.
    pub fn update(&self, pair: &Pair, now: Timestamp) -> Result<(), Error> {
        fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        let (current, updated) = (self.current_path(), self.updated_path());
        // Something else than a link is not the store's: it is an error.
        is_link(&current)?;
        if is_link(&updated)? {
            fs::remove_file(&updated).map_err(Error::file(&updated))?;
        }
        let file = self.path(&date(now));
        replace_file(&file, &[&pair.certificate[..], &pair.key].concat(), 0o600)?;
        symlink(&file, &updated).map_err(Error::file(&updated))?;
        fs::rename(&updated, &current).map_err(Error::file(&current))?;
        sync_folder(&self.folder)
    }
}

/// Formats a time as `2006-01-02-15-04-05`, in UTC: upstream takes the local time.
fn date(now: Timestamp) -> String {
    let text = now.truncate_to_secs().to_string();
    text.trim_end_matches('Z').replace(['T', ':'], "-")
}

/// Returns whether a file, or what a link leads to, is there. Upstream: `FileExists`.
fn exists(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(Error::file(path))
}

/// Returns whether the path is a link; one that is something else is an error.
fn is_link(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(file) if file.is_symlink() => Ok(true),
        Ok(_) => Err(Error::NoLink(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::file(path)(error)),
    }
}

/// Writes a file as a whole: after a crash or a failure it has the former content or this one.
pub fn replace_file(path: &Path, text: &[u8], mode: u32) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let part = folder.join(name);
    let write = || -> io::Result<()> {
        // The rest of one that was cut off may have other permissions.
        match fs::remove_file(&part) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&part)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    let written = write().inspect_err(|_| {
        let _ = fs::remove_file(&part);
    });
    written.map_err(Error::file(path))?;
    sync_folder(folder)
}

/// Writes the new names in a folder to the disk, so that they outlast a crash.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file(folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::{Folder, pair};
    use super::*;

    const DAY: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn open(folder: &Folder) -> Store {
        Store::open("kubelet-client", folder.path(), None).expect("a store")
    }

    fn current(store: &Store) -> Option<Vec<u8>> {
        store.current().expect("readable").map(|pair| pair.certificate)
    }

    #[test]
    fn link_leads_to_the_newest_certificate() {
        let folder = Folder::new("store");
        let store = open(&folder);
        assert_eq!(current(&store), None);
        for (at, name) in [
            (DAY, "kubelet-client-2027-01-15-08-00-00.pem"),
            // Another one in the same second, and one after the clock has stepped back.
            (DAY, "kubelet-client-2027-01-15-08-00-00.pem"),
            (Timestamp::from_secs(0), "kubelet-client-1970-01-01-00-00-00.pem"),
        ] {
            let pair = pair("n1");
            store.update(&pair, at).expect("written");
            assert_eq!(current(&store), Some(pair.certificate.clone()));
            let link = fs::read_link(store.current_path()).expect("a link");
            assert_eq!(link, folder.path().join(name), "it is absolute");
            let mode = fs::metadata(&link).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3, "no other files");
    }

    #[test]
    fn update_that_was_cut_off_is_completed_or_has_no_effect() {
        let folder = Folder::new("store-cut");
        let store = open(&folder);
        let (first, second) = (pair("n1"), pair("n1"));
        store.update(&first, DAY).expect("written");
        let (link, updated) = (store.current_path(), store.updated_path());
        // Each state in which ours or upstream's update may end.
        fs::write(folder.path().join("kubelet-client-x.pem.tmp"), "-----BEGIN").expect("written");
        fs::write(folder.path().join("kubelet-client-x.pem"), "-----BEGIN").expect("written");
        assert_eq!(current(&open(&folder)), Some(first.certificate.clone()));
        let text = [&second.certificate[..], &second.key].concat();
        fs::write(folder.path().join("kubelet-client-y.pem"), text).expect("written");
        symlink(folder.path().join("kubelet-client-y.pem"), &updated).expect("a link");
        assert_eq!(current(&open(&folder)), Some(first.certificate.clone()));
        fs::remove_file(&link).expect("it was there");
        assert_eq!(current(&open(&folder)), Some(second.certificate.clone()));
        assert!(!updated.exists());
        symlink("nowhere", &updated).expect("a link");
        store.update(&first, DAY).expect("the rest of an update is replaced");
        assert_eq!(current(&store), Some(first.certificate));
    }

    #[test]
    fn files_without_a_link_count_in_their_order() {
        let folder = Folder::new("store-files");
        let write = |name: &str| {
            let pair = pair("n1");
            let file = |extension: &str| folder.path().join(format!("{name}.{extension}"));
            fs::write(file("crt"), &pair.certificate).expect("written");
            fs::write(file("key"), &pair.key).expect("written");
            (pair.certificate, (file("crt"), file("key")))
        };
        let (usual, _) = write("kubelet-client");
        assert_eq!(current(&open(&folder)), Some(usual));
        let (given, files) = write("given");
        let store = Store::open("kubelet-client", folder.path(), Some(files)).expect("a store");
        assert_eq!(current(&store), Some(given));
        let newest = pair("n1");
        store.update(&newest, DAY).expect("written");
        assert_eq!(current(&store), Some(newest.certificate));
    }

    #[test]
    fn failure_leaves_the_former_certificate() {
        let folder = Folder::new("store-failure");
        let store = open(&folder);
        let (first, second) = (pair("n1"), pair("n1"));
        store.update(&first, DAY).expect("written");
        // A folder in its place: the file cannot be written.
        let later = Timestamp::from_secs(DAY.as_secs() + 1);
        let taken = folder.path().join("kubelet-client-2027-01-15-08-00-01.pem");
        fs::create_dir(&taken).expect("a folder");
        let error = store.update(&second, later).expect_err("it is a folder");
        assert!(error.to_string().ends_with("-08-00-01.pem"), "{error}");
        assert_eq!(current(&store), Some(first.certificate.clone()));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3, "nothing is left");
        // A file in place of the link is an administrator's: it stays.
        let text = [&second.certificate[..], &second.key].concat();
        fs::remove_file(store.current_path()).expect("it was there");
        fs::write(store.current_path(), text).expect("written");
        let error = store.update(&first, DAY).expect_err("it is a file").to_string();
        assert!(error.ends_with("to be a symlink but it is a file"), "{error}");
        assert_eq!(current(&store), Some(second.certificate));
    }

    #[test]
    fn pair_needs_its_own_key() {
        let (one, other) = (pair("n1"), pair("n1"));
        let fault = |certificate: &[u8], key: &[u8]| {
            Pair::from_pem(certificate, key, "x").expect_err("no pair").to_string()
        };
        let expected = "could not convert data from x into cert/key pair: ";
        for (certificate, key, why) in [
            (&one.certificate[..], &other.key[..], "private key does not match public key"),
            (b"", &one.key, "no certificate in it"),
            (&one.certificate, b"", ""),
        ] {
            let fault = fault(certificate, key);
            assert!(fault.starts_with(expected) && fault.ends_with(why), "{fault}");
        }
        let text = [&one.key[..], &one.certificate].concat();
        let read = Pair::from_pem(&text, &text, "x").expect("a pair in one text");
        assert_eq!((read.certificate, read.key), (one.certificate, one.key));
    }
}
