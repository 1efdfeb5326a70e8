//! Volumes of CSI drivers on the disk: upstream's folders and files, which say after a restart what is
//! staged and published.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::csi::{self, Lifecycle, VolumeData};
use crate::files::tree;
use crate::pod::Uid;
use crate::volumes::mounts_below::{is_mounted, mounts_below};
use crate::volumes::{CLOSED, Error, Folders, make_all};

/// The plugin's name in the names of folders.
pub(in crate::volumes) const FOLDER: &str = "kubernetes.io~csi";

/// Beside the data of a volume of blocks: upstream's bind mount of the device for each pod.
pub(super) const UPSTREAMS_DEVICES: &str = "dev";

impl Folders {
    /// Returns where the plugin keeps what it knows of volumes.
    pub(in crate::volumes) fn csi(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    /// Returns the folder of a staged volume of files, which has its data and its `globalmount`.
    pub(in crate::volumes) fn staged(&self, driver: &str, handle: &str) -> PathBuf {
        self.csi().join(driver).join(csi::sha256(&[handle]))
    }

    /// Returns the folder of all volumes of blocks.
    fn block_devices(&self) -> PathBuf {
        self.csi().join("volumeDevices")
    }

    /// Returns where a volume of blocks is staged. `volume`: the name of its PersistentVolume.
    pub(in crate::volumes) fn staged_block(&self, volume: &str) -> PathBuf {
        self.block_devices().join("staging").join(volume)
    }

    /// Returns the folder of what is known of a volume of blocks. `volume`: the name of its
    /// PersistentVolume.
    pub(in crate::volumes) fn block_data(&self, volume: &str) -> PathBuf {
        self.block_devices().join(volume).join("data")
    }

    /// Returns where a volume of blocks is published for a pod. `volume`: the name of its
    /// PersistentVolume.
    pub(in crate::volumes) fn published_block(&self, volume: &str, uid: &Uid) -> PathBuf {
        self.block_devices().join("publish").join(volume).join(&**uid)
    }

    /// Returns the link to a pod's volume of blocks.
    pub(in crate::volumes) fn device_link(&self, uid: &Uid, kind: &str, volume: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices").join(kind).join(volume)
    }

    /// Returns the folder of a pod's volume of files, which has its data and its `mount`.
    pub(in crate::volumes) fn published(&self, uid: &Uid, volume: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(FOLDER).join(volume)
    }
}

/// A volume that is staged, by the files of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes) struct Staged {
    pub(in crate::volumes) driver: String,
    pub(in crate::volumes) handle: String,
    /// The folder of its data.
    pub(super) folder: PathBuf,
    /// The path of the call.
    pub(super) path: PathBuf,
    /// The PersistentVolume, for one of blocks.
    pub(in crate::volumes) block: Option<String>,
}

/// Lists all staged volumes. A file that cannot be read is left out, with a line. Blocks.
///
/// # Errors
/// A folder cannot be read: there may be others.
pub(in crate::volumes) fn staged(folders: &Folders) -> io::Result<Vec<Staged>> {
    let mut found = Vec::new();
    for driver in entries(&folders.csi())? {
        // The folder of volumes of blocks, which follow below.
        if driver.file_name().is_some_and(|name| name == "volumeDevices") {
            continue;
        }
        for folder in entries(&driver)? {
            if let Some(data) = load(&folder) {
                let path = folder.join("globalmount");
                let VolumeData { driver_name: driver, volume_handle: handle, .. } = data;
                found.push(Staged { driver, handle, folder, path, block: None });
            }
        }
    }
    for volume in entries(&folders.block_devices())? {
        let folder = volume.join("data");
        let Some(name) = volume.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            continue;
        };
        if let Some(data) = load(&folder) {
            let path = folders.staged_block(&name);
            let VolumeData { driver_name: driver, volume_handle: handle, .. } = data;
            found.push(Staged { driver, handle, folder, path, block: Some(name) });
        }
    }
    Ok(found)
}

/// Reads the data of a volume from its folder. `None`: there are no data, or they cannot be read,
/// which is logged.
fn load(folder: &Path) -> Option<VolumeData> {
    VolumeData::load(folder).unwrap_or_else(|error| {
        log::error!("{}", crate::causes::chain(&error));
        None
    })
}

/// Lists what is in a folder; nothing, if it is no folder. Blocks.
///
/// # Errors
/// It cannot be read.
pub(in crate::volumes) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Vec::new()),
            _ => Err(error),
        },
    }
}

/// What is read of the volumes of files that are published for pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::volumes) struct Published {
    /// The drivers and handles of the persistent ones.
    pub(in crate::volumes) names: BTreeSet<(String, String)>,
    /// The number of all of them.
    pub(in crate::volumes) all: u64,
    /// The number of those without data that can be read.
    pub(in crate::volumes) unreadable: u64,
}

/// Reads the volumes of files that are published for pods. Blocks.
///
/// # Errors
/// A folder cannot be read: there may be others.
pub(in crate::volumes) fn published(folders: &Folders) -> io::Result<Published> {
    let mut found = Published::default();
    for pod in entries(&folders.pods())? {
        for volume in entries(&pod.join("volumes").join(FOLDER))? {
            found.all += 1;
            match load(&volume) {
                Some(data) if data.lifecycle == Some(Lifecycle::Ephemeral) => {}
                Some(data) => drop(found.names.insert((data.driver_name, data.volume_handle))),
                None => found.unreadable += 1,
            }
        }
    }
    Ok(found)
}

/// Lists the uids of the pods that have a staged volume published, or whose publication has begun,
/// by the files in their folders. Blocks.
///
/// # Errors
/// A folder cannot be read: there may be others.
pub(in crate::volumes) fn users(folders: &Folders, of: &Staged) -> io::Result<Vec<String>> {
    let mut users = Vec::new();
    for pod in entries(&folders.pods())? {
        let Some(uid) = pod.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            continue;
        };
        let is_used = match &of.block {
            Some(volume) => {
                let link = pod.join("volumeDevices").join(FOLDER).join(volume);
                match fs::symlink_metadata(link) {
                    Ok(_) => true,
                    Err(error) => absent_is_fine(Err(error)).map(|()| false)?,
                }
            }
            None => entries(&pod.join("volumes").join(FOLDER))?.iter().any(|volume| {
                // An unreadable file may be of any volume.
                match VolumeData::load(volume) {
                    Ok(data) => data.is_some_and(|data| {
                        data.driver_name == of.driver && data.volume_handle == of.handle
                    }),
                    Err(_) => true,
                }
            }),
        };
        if is_used {
            users.push(uid);
        }
    }
    Ok(users)
}

/// Makes `link` a symbolic link to `to`, in place of what is there. Does nothing if it is one
/// already.
pub(in crate::volumes) fn make_link(to: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|old| old == to) {
        return Ok(());
    }
    if let Some(parent) = link.parent() {
        make_all(parent, CLOSED)?;
    }
    absent_is_fine(fs::remove_file(link))?;
    std::os::unix::fs::symlink(to, link)
}

/// Removes the data and the folders of a published volume that is not mounted any more.
/// Upstream: `removeMountDir`.
pub(super) fn remove_published(folder: &Path) -> Result<(), Error> {
    remove_mount(&folder.join("mount"))?;
    VolumeData::remove(folder)?;
    absent_is_fine(fs::remove_dir(folder)).map_err(Error::at(folder))
}

/// Removes the files and folders of a volume that its driver has unstaged. Fails when something is
/// still mounted there.
pub(super) fn remove_staged(of: &Staged) -> Result<(), Error> {
    let allow_absent =
        |outcome: io::Result<()>, path: &Path| absent_is_fine(outcome).map_err(Error::at(path));
    if of.block.is_some() {
        // What pods have comes first: while a part of it stays, nothing is removed.
        // It is staged at `staging/NAME`, and published below `publish/NAME` beside that.
        let published = of.path.parent().and_then(Path::parent).zip(of.block.as_ref());
        if let Some(published) = published.map(|(all, name)| all.join("publish").join(name)) {
            allow_absent(fs::remove_dir(&published), &published)?;
        }
        let volume = of.folder.parent().unwrap_or(&of.folder);
        let dev = volume.join(UPSTREAMS_DEVICES);
        allow_absent(fs::remove_dir(&dev), &dev)?;
        // The driver may leave files, but no mounts.
        let mut mounts = mounts_below(&of.path).map_err(Error::at(&of.path))?;
        if is_mounted(&of.path).map_err(Error::at(&of.path))? {
            mounts.push(of.path.clone());
        }
        if let Some(mounted) = mounts.pop() {
            return Err(Error::UnknownMount(mounted));
        }
        tree::remove(&of.path).map_err(Error::at(&of.path))?;
        VolumeData::remove(&of.folder)?;
        allow_absent(fs::remove_dir(&of.folder), &of.folder)?;
        return allow_absent(fs::remove_dir(volume), volume);
    }
    remove_mount(&of.path)?;
    VolumeData::remove(&of.folder)?;
    allow_absent(fs::remove_dir(&of.folder), &of.folder)
}

/// Removes the folder or file on which a volume was mounted, as the driver should have done. Fails
/// if something is still mounted there.
fn remove_mount(path: &Path) -> Result<(), Error> {
    if is_mounted(path).map_err(Error::at(path))? {
        return Err(Error::UnknownMount(path.to_owned()));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => absent_is_fine(fs::remove_dir(path)),
        Ok(_) => absent_is_fine(fs::remove_file(path)),
        Err(error) => absent_is_fine(Err(error)),
    }
    .map_err(Error::at(path))
}

/// Turns the error that a file does not exist into a success.
pub(in crate::volumes) fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_volumes_and_their_users_are_read_from_the_disk() {
        let root = std::env::temp_dir().join(format!("kubelet-staged-{}", std::process::id()));
        let folders = Folders { root: root.clone(), logs: root.join("logs") };
        let data = |handle: &str| VolumeData {
            driver_name: "d".to_owned(),
            volume_handle: handle.to_owned(),
            ..VolumeData::default()
        };
        let save = |folder: PathBuf, handle: &str| {
            fs::create_dir_all(&folder).expect("a folder");
            data(handle).save(&folder).expect("a file");
        };
        save(folders.staged("d", "h"), "h");
        save(folders.block_data("pv"), "b");
        fs::create_dir_all(folders.staged("d", "h").join("globalmount")).expect("a folder");
        fs::create_dir_all(folders.staged_block("pv").join("left")).expect("a folder");
        let uid = |text: &str| Uid::parse(text).expect("a uid");
        save(folders.published(&uid("one"), "v"), "h");
        save(folders.published(&uid("two"), "v"), "other");
        let link = folders.device_link(&uid("two"), FOLDER, "pv");
        make_link(&folders.published_block("pv", &uid("two")), &link).expect("a link");
        make_link(&folders.published_block("pv", &uid("two")), &link).expect("a link");
        let mut found = staged(&folders).expect("folders");
        found.sort_by(|a, b| b.handle.cmp(&a.handle));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((&*found[0].handle, &found[0].block), ("h", &None));
        assert_eq!(found[0].path, folders.staged("d", "h").join("globalmount"));
        assert_eq!((&*found[1].handle, found[1].block.as_deref()), ("b", Some("pv")));
        assert_eq!(users(&folders, &found[0]).expect("folders"), ["one"]);
        assert_eq!(users(&folders, &found[1]).expect("folders"), ["two"]);
        // What an earlier kubelet has published for a pod keeps the rest.
        let device = folders.published_block("pv", &uid("two"));
        fs::create_dir_all(&device).expect("a folder");
        remove_staged(&found[1]).expect_err("it is published");
        assert!(folders.staged_block("pv").join("left").exists());
        assert_eq!(staged(&folders).expect("folders").len(), 2);
        fs::remove_dir(&device).expect("removed");
        // A file that cannot be read may be of this volume.
        fs::write(folders.published(&uid("two"), "v").join("vol_data.json"), "{").expect("a file");
        assert_eq!(users(&folders, &found[0]).expect("folders").len(), 2);
        let names = [("d".to_owned(), "h".to_owned())].into();
        let expected = Published { names, all: 2, unreadable: 1 };
        assert_eq!(published(&folders).expect("folders"), expected);
        for staged in &found {
            remove_staged(staged).expect("removed");
            remove_staged(staged).expect("removed before");
        }
        assert!(staged(&folders).expect("folders").is_empty());
        assert!(!folders.block_data("pv").exists());
        remove_published(&folders.published(&uid("one"), "v")).expect("removed");
        assert!(!folders.published(&uid("one"), "v").exists());
        fs::remove_dir_all(root).expect("removed");
    }
}
