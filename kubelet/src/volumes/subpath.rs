//! Parts of volumes that containers mount: `subPath`. A container can change its volume at any time,
//! so a path in it is opened once, with the kernel's promise that no link leads out of the volume,
//! and what was opened is mounted. Upstream: `pkg/volume/util/subpath`.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, mkdirat, openat2};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::mounts_below::make_private;

/// The folder of a pod's mounts of this kind, in the pod's folder.
pub const FOLDER: &str = "volume-subpaths";

/// The largest file that [`read`] accepts, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// No link may lead out of the volume, and no link of `/proc` is followed.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// A fault of a subPath, in upstream's words: it says nothing about the host's files. `cause` is for
/// the log.
#[derive(Debug)]
pub struct Fault {
    pub step: &'static str,
    pub cause: String,
}

/// Mounts the part `path` of `volume` at `target`, and makes the folders of `path` that are missing,
/// with the mode of the volume. Does nothing when it is mounted there already. Blocks.
///
/// # Errors
/// Also when a link of `path` leads out of the volume.
pub fn bind(volume: &Path, path: &Path, target: &Path) -> Result<(), Fault> {
    let fault = |step| {
        move |error: io::Error| Fault {
            step,
            cause: format!("subPath {} of {}: {error}", path.display(), volume.display()),
        }
    };
    let root = open_root(volume).map_err(fault("prepare subPath"))?;
    let found = match open(&root, path) {
        Err(Errno::NOENT) => {
            make(&root, path).map_err(fault("create subPath directory"))?;
            open(&root, path)
        }
        found => found,
    };
    let found = found.map_err(io::Error::from).map_err(fault("prepare subPath"))?;
    mount_at(&found, target).map_err(fault("prepare subPath"))
}

/// Reads the text of a file of a volume. Links lead to parts of the volume only. Blocks.
///
/// # Errors
/// When it is not a file, has more than [`MAX_TEXT`] bytes, or is not UTF-8.
pub fn read(volume: &Path, path: &Path) -> io::Result<String> {
    // A pipe would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
    let file = fs::File::from(openat2(open_root(volume)?, path, flags, Mode::empty(), within)?);
    let data = file.metadata()?;
    if !data.is_file() || data.len() > MAX_TEXT {
        return Err(io::Error::other("not a file of text"));
    }
    let mut text = String::new();
    file.take(MAX_TEXT).read_to_string(&mut text)?;
    Ok(text)
}

/// Opens the folder of a volume, from which its parts are opened.
fn open_root(volume: &Path) -> io::Result<OwnedFd> {
    // The volume's own path has no part that a container could change.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(volume, flags, Mode::empty())?)
}

/// Opens a part of a volume without access to its content. Fails when a link leads out of the
/// volume.
fn open(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), WITHIN)
}

/// Makes the missing folders of `path` below the volume's folder `root`, with the mode of `root`.
fn make(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
    let parts: Vec<_> = path.iter().collect();
    let open_first = |count: usize| open(root, &parts[..count].iter().collect::<PathBuf>());
    // Becomes the number of leading parts that exist.
    let mut at = parts.len();
    let mut parent = loop {
        if at == 0 {
            break open(root, Path::new("."))?;
        }
        match open_first(at) {
            Ok(found) => break found,
            Err(Errno::NOENT) => at -= 1,
            Err(error) => return Err(error.into()),
        }
    };
    for part in &parts[at..] {
        match mkdirat(&parent, *part, mode) {
            // Another container of the pod has made it meanwhile.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // A link that has taken its place is not followed.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat2(&parent, *part, flags, Mode::empty(), WITHIN)?;
        // `mkdirat` has applied the mask of the process.
        fchmod(&made, mode)?;
        parent = made;
    }
    Ok(())
}

/// Mounts what was found at the target, in place of what is mounted there, unless it is the same.
fn mount_at(found: &OwnedFd, target: &Path) -> io::Result<()> {
    let status = fstat(found)?;
    if is_same(&status, target) {
        return Ok(());
    }
    // Something else is mounted there: the volume has changed since the container's last start.
    // What lies on it may belong to other pods.
    make_private(target)?;
    match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(parent) = target.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    prepare(target, FileType::from_raw_mode(status.st_mode) == FileType::Directory)?;
    mount_bind(format!("/proc/self/fd/{}", found.as_raw_fd()), target)?;
    Ok(())
}

/// Makes the target of a mount, in place of one of the other kind: a folder is mounted on a folder,
/// everything else on a file.
fn prepare(target: &Path, is_folder: bool) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(old) if old.is_dir() == is_folder => return Ok(()),
        Ok(old) if old.is_dir() => fs::remove_dir(target)?,
        Ok(_) => fs::remove_file(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    match is_folder {
        true => fs::DirBuilder::new().mode(0o750).create(target),
        false => {
            fs::File::options().write(true).create_new(true).mode(0o640).open(target).map(drop)
        }
    }
}

/// Returns whether the file or folder of `status` is mounted at `target` already.
fn is_same(status: &Stat, target: &Path) -> bool {
    fs::symlink_metadata(target)
        .is_ok_and(|there| there.dev() == status.st_dev && there.ino() == status.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Volume(PathBuf);

    impl Volume {
        fn new(name: &str) -> Volume {
            let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            fs::create_dir_all(folder.join("volume/a/b")).expect("folders");
            fs::create_dir_all(folder.join("outside")).expect("a folder");
            Volume(folder)
        }

        fn root(&self) -> OwnedFd {
            open_root(&self.0.join("volume")).expect("a folder")
        }
    }

    impl Drop for Volume {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_that_lead_out_of_the_volume_are_refused() {
        let volume = Volume::new("kubelet-subpath-links");
        let inside = volume.0.join("volume");
        symlink(volume.0.join("outside"), inside.join("absolute")).expect("a link");
        symlink("../outside", inside.join("relative")).expect("a link");
        symlink("a/b", inside.join("fine")).expect("a link");
        symlink("../../outside", inside.join("a/deep")).expect("a link");
        symlink("none", inside.join("dangling")).expect("a link");
        fs::write(inside.join("file"), "x").expect("a file");
        let root = volume.root();
        for (path, expected) in [
            ("a/b", Ok(())),
            ("fine", Ok(())),
            ("file", Ok(())),
            ("absolute", Err(Errno::XDEV)),
            ("relative", Err(Errno::XDEV)),
            ("a/deep", Err(Errno::XDEV)),
            ("dangling", Err(Errno::NOENT)),
            ("none", Err(Errno::NOENT)),
            ("file/x", Err(Errno::NOTDIR)),
        ] {
            assert_eq!(open(&root, Path::new(path)).map(drop), expected, "{path}");
        }
        for path in ["absolute/new", "relative/new", "a/deep/new", "dangling", "file/x"] {
            assert!(make(&root, Path::new(path)).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(volume.0.join("outside")).expect("a folder").count(), 0);
    }

    #[test]
    fn missing_folders_have_the_mode_of_the_volume() {
        let volume = Volume::new("kubelet-subpath-modes");
        let inside = volume.0.join("volume");
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o2775)).expect("a mode");
        symlink("a", inside.join("link")).expect("a link");
        let root = volume.root();
        for path in ["x", "x/y/z", "link/c/d"] {
            make(&root, Path::new(path)).expect(path);
            let mode = fs::metadata(inside.join(path)).expect(path).permissions().mode();
            assert_eq!(mode & 0o7777, 0o2775, "{path}");
        }
        assert!(inside.join("a/c/d").is_dir());
    }

    #[test]
    fn targets_have_the_kind_of_what_is_mounted() {
        let volume = Volume::new("kubelet-subpath-targets");
        let target = volume.0.join("target");
        for is_folder in [true, true, false, false, true] {
            prepare(&target, is_folder).expect("a target");
            assert_eq!(target.is_dir(), is_folder);
        }
    }
}
