//! Folders of pull records: a file for each image, in upstream's form.
//! Upstream: `pullmanager/fs_pullrecords.go`.

use std::fs::{self, DirBuilder, DirEntry};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use kube_controller_manager::metrics::IntGauge;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::Error;
use super::super::credentials::sha256;
use super::log_fault;
use super::record::Version;
use crate::causes::chain;
use crate::files::replace;

/// What the files of a folder say.
pub trait Content: Serialize + DeserializeOwned {
    /// Returns the image of the file.
    fn image(&self) -> &str;

    fn version(&mut self) -> &mut Version;
}

/// A folder of files for images. Its calls block; they must not overlap.
pub struct Folder<T> {
    path: PathBuf,
    /// The metric of the number of files.
    count: &'static IntGauge,
    content: PhantomData<fn() -> T>,
}

impl<T: Content> Folder<T> {
    /// Opens a folder, which is made if it does not exist, and counts its files. Those of an older
    /// version are written again.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(path: PathBuf, count: &'static IntGauge) -> Result<Folder<T>, Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(Error::record(&path))?;
        let folder: Folder<T> = Folder { path, count, content: PhantomData };
        folder.count_files();
        for mut content in folder.list() {
            if *content.version() != Version::V1beta1 {
                log_fault(folder.put(content));
            }
        }
        Ok(folder)
    }

    /// Returns what the file for an image says. `None`: there is no file, or it is another image's.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn get(&self, image: &str) -> Result<Option<T>, Error> {
        let content = read::<T>(&self.file(image))?;
        Ok(content.filter(|content| content.image() == image))
    }

    /// Writes the file for an image, in the last version. After a power cut it has its old or its
    /// new content.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, mut content: T) -> Result<(), Error> {
        *content.version() = Version::V1beta1;
        let path = self.file(content.image());
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_vec(&content)?;
            // As Go's encoder.
            text.push(b'\n');
            replace(&path, 0o600, &text)
        };
        write().map_err(Error::record(&path))?;
        self.count_files();
        Ok(())
    }

    /// Removes the file for an image, if it exists.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, image: &str) -> Result<(), Error> {
        let path = self.file(image);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::record(&path)(error));
            }
            _ => self.count_files(),
        }
        Ok(())
    }

    /// Sets the metric, also to what other programs have added or removed.
    fn count_files(&self) {
        self.count.set(self.files().len() as i64);
    }

    /// Reads all files. The log names those that are malformed.
    pub fn list(&self) -> Vec<T> {
        let contents = self.files().into_iter().map(|path| read(&path));
        let contents = contents.inspect(|content| {
            if let Err(error) = content {
                log::error!("{}", chain(error));
            }
        });
        contents.flatten().flatten().collect()
    }

    /// Lists the files, without those that were not written to their end.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).map_err(Error::record(&self.path));
        let entries = entries.inspect_err(|error| log::error!("{}", chain(error)));
        let is_record = |entry: &DirEntry| {
            let (name, kind) = (entry.file_name(), entry.file_type());
            let name = name.to_string_lossy();
            name.starts_with("sha256-")
                && !name.ends_with(".tmp")
                && kind.is_ok_and(|kind| !kind.is_dir())
        };
        let records = entries.into_iter().flatten().flatten().filter(is_record);
        records.map(|entry| entry.path()).collect()
    }

    /// Returns the path of the file for an image. Upstream: `cacheFilename`.
    pub fn file(&self, image: &str) -> PathBuf {
        self.path.join(format!("sha256-{}", sha256(image)))
    }
}

/// Reads a file; `None`: it does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let content = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => content.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
    };
    content.map(Some).map_err(Error::record(path))
}

#[cfg(test)]
mod tests {
    use super::super::record::ImagePullIntent;
    use super::*;

    #[test]
    fn files_are_counted_as_they_come_and_go() {
        let path = std::env::temp_dir().join(format!("kubelet-intents-{}", std::process::id()));
        fs::create_dir_all(path.join("sha256-folder")).expect("a folder");
        // Half-written files, and foreign ones.
        for name in ["sha256-x.tmp", "other"] {
            fs::write(path.join(name), "{").expect("a file");
        }
        let gauge = IntGauge::new("intents", "of a test").expect("a gauge");
        let count: &'static IntGauge = Box::leak(Box::new(gauge));
        let open = || Folder::<ImagePullIntent>::open(path.clone(), count).expect("a folder");
        let folder = open();
        assert_eq!(count.get(), 0);
        for image in ["a", "b", "a"] {
            folder.put(ImagePullIntent::new(image)).expect("written");
        }
        assert_eq!(count.get(), 2);
        fs::write(folder.file("c"), "{").expect("a file");
        folder.get("c").expect_err("malformed");
        let folder = open();
        assert_eq!((count.get(), folder.list().len()), (3, 2));
        for image in ["a", "a", "c"] {
            folder.remove(image).expect("removed");
        }
        assert_eq!(count.get(), 1);
        fs::copy(folder.file("b"), folder.file("d")).expect("a copy");
        assert_eq!(folder.get("d").expect("a file"), None);
        assert_eq!(folder.get("b").expect("a file"), Some(ImagePullIntent::new("b")));
        // The copy, which no call has made, is counted by the next one.
        folder.put(ImagePullIntent::new("b")).expect("written");
        assert_eq!(count.get(), 2);
        fs::remove_dir_all(&path).expect("removed");
    }
}
