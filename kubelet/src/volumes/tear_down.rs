//! The end of a pod's volumes, by what the disk shows of each kind. Upstream:
//! `UnmountVolume`, `cleanupOrphanedPodDirs`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::task;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::csi::{self, absent_is_fine, entries};
use super::manager::Inner;
use super::mounts_below::{is_mounted, make_private, mounts_below};
use super::{Error, nfs, plain, subpath};
use crate::files::tree;
use crate::pod::Uid;

/// How long a server may take to let a mount go. Upstream: `unMountTimeout`.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// A volume in a pod's folder, by the names of folders.
enum Found {
    /// What containers mount there is the pod's own, and ends with it.
    Own(PathBuf),
    /// A folder of the machine.
    Mount(PathBuf),
    /// A folder of a server, which may not answer any more.
    Remote(PathBuf),
    Csi(PathBuf),
    CsiDevice(PathBuf),
    /// A link to a device of the machine.
    Device(PathBuf),
    Unknown(PathBuf),
}

impl Found {
    /// Returns the plugin and the operation that ends the volume, for metrics. `None`: the kind is
    /// not counted here, as CSI counts its own.
    fn operation(&self) -> Option<(String, &'static str)> {
        let (path, operation) = match self {
            Found::Own(path) | Found::Mount(path) | Found::Remote(path) => (path, "volume_unmount"),
            Found::Device(path) => (path, "unmap_volume"),
            Found::Csi(_) | Found::CsiDevice(_) | Found::Unknown(_) => return None,
        };
        let kind = path.parent()?.file_name()?.to_string_lossy().replace('~', "/");
        Some((kind, operation))
    }
}

/// What stays of a pod's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// The last messages of its containers.
    Messages,
}

impl Inner {
    /// Ends all volumes of a pod by what is in its folder, and removes the folder except for the
    /// `rest`. Fails while a volume cannot be ended, or anything is mounted below the folder.
    pub(super) async fn undo(&self, uid: &Uid, rest: Rest) -> Result<(), Error> {
        let folder = self.folders.pod(uid);
        let of = folder.clone();
        let found = task::blocking(move || -> Result<Vec<Found>, Error> {
            // A link in its place is not followed.
            if !fs::symlink_metadata(&of).is_ok_and(|found| found.is_dir()) {
                return Ok(Vec::new());
            }
            // Mounts of subPaths lie on the volumes, so they end first.
            unmount_below(&of.join(subpath::FOLDER), UnmountFlags::empty())?;
            volumes(&of).map_err(Error::at(of))
        });
        let mut outcome = Ok(());
        for volume in found.await? {
            let undone = match volume {
                Found::Csi(folder) => self.unpublish(folder).await,
                Found::CsiDevice(link) => self.unpublish_block(uid, link).await,
                other => {
                    let operation = other.operation();
                    let undone = self.undo_other(other);
                    match operation {
                        Some((plugin, name)) => self.counted(&plugin, name, false, undone).await,
                        None => undone.await,
                    }
                }
            };
            // The other volumes end in any case; the first failure is returned.
            outcome = outcome.and(undone);
        }
        outcome?;
        let messages = (rest == Rest::Messages).then(|| self.folders.messages(uid));
        task::blocking(move || {
            // To remove the folder would empty what is still mounted below it.
            match mounts_below(&folder).map_err(Error::at(&folder))?.into_iter().next() {
                Some(mounted) => Err(Error::UnknownMount(mounted)),
                None => remove_but(&folder, messages).map_err(Error::at(&folder)),
            }
        })
        .await
    }

    /// Ends a volume of any kind but CSI. The mount of a server that does not answer in time is
    /// forced to end: its first unmount then ends too. Upstream: `CleanupMountWithForce`.
    async fn undo_other(&self, volume: Found) -> Result<(), Error> {
        let folder = match volume {
            Found::Remote(folder) => folder,
            other => return task::blocking(move || undo_plain(other)).await,
        };
        let of = folder.clone();
        let unmounted = task::blocking(move || undo_mount(&of, UnmountFlags::empty()));
        let forced = async {
            self.clock.sleep(UNMOUNT_LIMIT).await;
            log::warn!("{}: the server does not answer: forced unmount", folder.display());
            task::blocking(move || undo_mount(&folder, UnmountFlags::FORCE)).await
        };
        unmounted.or(forced).await
    }
}

/// Removes a folder, or what has taken its place, but for one entry. Blocks.
fn remove_but(folder: &Path, kept: Option<PathBuf>) -> io::Result<()> {
    let is_kept = |entry: &PathBuf| kept.as_ref() == Some(entry);
    // A link in its place is not followed.
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    if !is_folder || !kept.as_ref().is_some_and(|kept| kept.exists()) {
        return tree::remove(folder);
    }
    let removed = entries(folder)?.into_iter().filter(|entry| !is_kept(entry));
    removed.map(|entry| tree::remove(&entry)).fold(Ok(()), Result::and)
}

/// Lists the volumes in a pod's folder; their kinds are the names of the folders in which they are.
fn volumes(pod: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for kind in entries(&pod.join("volumes"))? {
        let name = kind.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.extend(entries(&kind)?.into_iter().map(|volume| match name.as_str() {
            csi::FOLDER => Found::Csi(volume),
            plain::LOCAL => Found::Mount(volume),
            nfs::FOLDER => Found::Remote(volume),
            name if plain::FOLDERS.contains(&name) => Found::Own(volume),
            _ => Found::Unknown(volume),
        }));
    }
    for kind in entries(&pod.join("volumeDevices"))? {
        let name = kind.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.extend(entries(&kind)?.into_iter().map(|link| match name.as_str() {
            csi::FOLDER => Found::CsiDevice(link),
            plain::LOCAL => Found::Device(link),
            _ => Found::Unknown(link),
        }));
    }
    Ok(found)
}

/// Unmounts or removes a volume of any kind but CSI from its place in the pod's folder. Fails for
/// one of an unknown kind, unless its folder is empty. Blocks.
fn undo_plain(volume: Found) -> Result<(), Error> {
    match volume {
        Found::Own(folder) => {
            // Also what is busy: it is the pod's own.
            unmount_below(&folder, UnmountFlags::DETACH)?;
            unmount_all(&folder)
        }
        Found::Mount(folder) | Found::Remote(folder) => undo_mount(&folder, UnmountFlags::empty()),
        Found::Device(link) => absent_is_fine(fs::remove_file(&link)).map_err(Error::at(&link)),
        Found::Unknown(path) => {
            let is_empty = entries(&path).map_err(Error::at(&path))?.is_empty();
            match is_empty && !is_mounted(&path).map_err(Error::at(&path))? {
                true => Ok(()),
                false => Err(Error::UnknownVolume(path)),
            }
        }
        // `undo` ends these by calls to their drivers.
        Found::Csi(_) | Found::CsiDevice(_) => Ok(()),
    }
}

/// Unmounts a folder, and removes it. Fails if it is not empty then: its content is not the pod's.
/// Blocks.
fn undo_mount(folder: &Path, flags: UnmountFlags) -> Result<(), Error> {
    while is_mounted(folder).map_err(Error::at(folder))? {
        let unmounted = unmount(folder, flags | UnmountFlags::NOFOLLOW);
        unmounted.map_err(|error| Error::at(folder)(error.into()))?;
    }
    absent_is_fine(fs::remove_dir(folder)).map_err(Error::at(folder))
}

/// Unmounts what is mounted below a folder, the newest first: it may lie on another one. Blocks.
fn unmount_below(folder: &Path, flags: UnmountFlags) -> Result<(), Error> {
    let mounts = mounts_below(folder).map_err(Error::at(folder))?;
    // A bind shares what is mounted on it with its source, which keeps it.
    for mounted in &mounts {
        make_private(mounted).map_err(Error::at(mounted))?;
    }
    for mounted in mounts.iter().rev() {
        unmount_one(mounted, flags).map_err(Error::at(mounted))?;
    }
    Ok(())
}

/// Unmounts all that is mounted at a path, also what is busy. Blocks.
fn unmount_all(path: &Path) -> Result<(), Error> {
    while is_mounted(path).map_err(Error::at(path))? {
        make_private(path).map_err(Error::at(path))?;
        unmount_one(path, UnmountFlags::DETACH).map_err(Error::at(path))?;
    }
    Ok(())
}

/// Unmounts what is mounted at a path; nothing there is a success.
fn unmount_one(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match unmount(path, flags | UnmountFlags::NOFOLLOW) {
        // The unmount of the one on which it lay has ended it too.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use futures_lite::future::block_on;

    use super::*;
    use crate::volumes::Folders;
    use crate::volumes::manager::VolumeManager;

    /// Folders in a folder of the test, and what ends their pods.
    fn manager(test: &str) -> (PathBuf, Folders, VolumeManager) {
        let base = std::env::temp_dir().join(format!("kubelet-end-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let folders = Folders { root: base.join("kubelet"), logs: base.join("log/pods") };
        (base, folders.clone(), VolumeManager::for_tests(folders))
    }

    fn uid() -> Uid {
        Uid::parse("u").expect("a uid")
    }

    #[test]
    fn a_link_in_place_of_a_pods_folder_is_not_followed() {
        let (base, folders, manager) = manager("link");
        // The folder of all pods may be reached by a link.
        fs::create_dir_all(base.join("disk")).expect("a folder");
        symlink("disk", &folders.root).expect("a link");
        folders.make().expect("folders");
        let link = folders.pod(&uid());
        symlink("/", &link).expect("a link");
        assert!(mounts_below(&link).expect("the table").is_empty());
        fs::remove_file(&link).expect("removed");
        let outside = base.join("outside");
        fs::create_dir_all(outside.join("volumes/kubernetes.io~other/v/file")).expect("a folder");
        symlink(&outside, &link).expect("a link");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(fs::symlink_metadata(&link).is_err() && outside.join("volumes").exists());
        fs::remove_dir_all(base).expect("removed");
    }

    /// Another kubelet, or this one after a restart, reads them again.
    #[test]
    fn last_messages_of_an_ended_pod_stay_until_the_pod_goes() {
        let (base, folders, manager) = manager("messages");
        let message = folders.message_file(&uid(), "c", 0);
        let of_pod = folders.pod(&uid());
        for folder in [folders.messages(&uid()).join("c"), of_pod.join("volumes")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        fs::write(&message, "x").expect("a file");
        fs::write(folders.probes_file(&uid()), "{}").expect("a file");
        block_on(manager.tear_down_ended(&uid())).expect("ended");
        let left = entries(&of_pod).expect("a folder");
        assert_eq!(left, [folders.messages(&uid())]);
        assert_eq!(fs::read_to_string(&message).expect("a file"), "x");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(!of_pod.exists());
        // Nothing stays where there are no messages, and no link is followed.
        fs::create_dir_all(of_pod.join("volumes")).expect("a folder");
        block_on(manager.tear_down_ended(&uid())).expect("ended");
        assert!(!of_pod.exists());
        let outside = base.join("outside");
        fs::create_dir_all(outside.join("containers")).expect("a folder");
        fs::write(outside.join("file"), "x").expect("a file");
        symlink(&outside, &of_pod).expect("a link");
        block_on(manager.tear_down_ended(&uid())).expect("ended");
        assert!(fs::symlink_metadata(&of_pod).is_err() && outside.join("file").exists());
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn volumes_of_unknown_kinds_stay_until_they_are_empty() {
        let (base, folders, manager) = manager("unknown");
        let volume = folders.pod(&uid()).join("volumes/kubernetes.io~iscsi/v");
        fs::create_dir_all(volume.join("data")).expect("a folder");
        let own = folders.volume(&uid(), "empty-dir", "e");
        fs::create_dir_all(own.join("data")).expect("a folder");
        let fault = block_on(manager.tear_down(&uid())).expect_err("a fault").to_string();
        assert!(fault.ends_with("v is a volume of an unknown kind: it stays"), "{fault}");
        assert!(volume.join("data").exists() && own.exists());
        fs::remove_dir(volume.join("data")).expect("removed");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(!folders.pod(&uid()).exists());
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn a_drivers_volume_waits_for_its_driver() {
        let (base, folders, manager) = manager("driver");
        let folder = folders.published(&uid(), "v");
        fs::create_dir_all(folder.join("mount")).expect("a folder");
        let data = crate::csi::VolumeData {
            driver_name: "d".to_owned(),
            volume_handle: "h".to_owned(),
            ..Default::default()
        };
        data.save(&folder).expect("a file");
        let fault = block_on(manager.tear_down(&uid())).expect_err("a fault");
        let expected = "UnmountVolume.TearDown failed for volume \"v\" : driver name d not found in \
                        the list of registered CSI drivers";
        assert_eq!(crate::causes::chain(&fault), expected);
        assert!(folder.join("vol_data.json").exists());
        // Before its publication began, there is nothing to undo.
        fs::remove_file(folder.join("vol_data.json")).expect("removed");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(!folders.pod(&uid()).exists());
        fs::remove_dir_all(base).expect("removed");
    }

    /// Containers of other pods use what is mounted below a bind's source.
    #[test]
    fn the_source_of_a_sub_path_keeps_its_mounts() {
        let (base, folders, manager) = manager("peers");
        let source = base.join("source");
        let target = folders.pod(&uid()).join(subpath::FOLDER).join("v/c/0");
        for folder in [&source, &target] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let memory = |at: &Path| {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", at, "tmpfs", flags, None::<&std::ffi::CStr>)
        };
        if let Err(error) = memory(&source) {
            fs::remove_dir_all(base).expect("removed");
            return eprintln!("the_source_of_a_sub_path_keeps_its_mounts: {error}");
        }
        rustix::mount::mount_change(&source, rustix::mount::MountPropagationFlags::SHARED)
            .expect("shared");
        rustix::mount::mount_bind(&source, &target).expect("mounted");
        let below = source.join("below");
        fs::create_dir(&below).expect("a folder");
        memory(&below).expect("mounted");
        assert!(is_mounted(&target.join("below")).expect("the table"), "they are peers");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(is_mounted(&below).expect("the table") && !folders.pod(&uid()).exists());
        for mounted in [&below, &source] {
            unmount(mounted, UnmountFlags::DETACH).expect("unmounted");
        }
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn what_is_mounted_for_no_volume_stays() {
        let (base, folders, manager) = manager("mounts");
        let foreign = folders.pod(&uid()).join("foreign");
        let within = folders.volume(&uid(), "empty-dir", "e").join("within");
        let mount = |at: &Path| {
            fs::create_dir_all(at).expect("a folder");
            rustix::mount::mount(
                "tmpfs",
                at,
                "tmpfs",
                rustix::mount::MountFlags::empty(),
                None::<&std::ffi::CStr>,
            )
        };
        if let Err(error) = mount(&within) {
            fs::remove_dir_all(base).expect("removed");
            return eprintln!("what_is_mounted_for_no_volume_stays: {error}");
        }
        mount(&foreign).expect("mounted");
        fs::write(foreign.join("file"), "x").expect("a file");
        let fault = block_on(manager.tear_down(&uid())).expect_err("a fault");
        assert!(matches!(&fault, Error::UnknownMount(at) if *at == foreign), "{fault}");
        // What containers mount in their volume ends with it.
        assert!(foreign.join("file").exists() && !is_mounted(&within).expect("the table"));
        unmount(&foreign, UnmountFlags::DETACH).expect("unmounted");
        block_on(manager.tear_down(&uid())).expect("removed");
        assert!(!folders.pod(&uid()).exists());
        fs::remove_dir_all(base).expect("removed");
    }
}
