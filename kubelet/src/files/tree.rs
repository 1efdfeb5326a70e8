//! Walks through folders whose contents are others': however deep they are, three descriptors are
//! open, no link is followed, and a folder that is moved meanwhile leads nowhere else.
//! Upstream: `removeall`.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
    unlinkat,
};
use rustix::path::Arg;

/// Handles an entry of a folder, by its name and its own status. Returns whether to walk through
/// it.
pub type Enter<'a> = dyn FnMut(BorrowedFd<'_>, &CStr, &Stat) -> io::Result<bool> + 'a;
/// Handles an entry after all that is below it.
pub type Leave<'a> = dyn FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()> + 'a;

/// Removes a folder with all below it, or what has taken its place. What is mounted below it stays,
/// and is an error. Needs Linux 5.6. Blocks.
///
/// # Errors
/// The first failure; what could be removed is removed. A folder that is gone already is no error.
pub fn remove(folder: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(folder).is_ok_and(|data| !data.is_dir()) {
        return absent_is_fine(std::fs::remove_file(folder));
    }
    let mut enter = |at: BorrowedFd<'_>, name: &CStr, status: &Stat| {
        if is_folder(status) {
            return Ok(true);
        }
        unlinkat(at, name, AtFlags::empty())?;
        Ok(false)
    };
    let mut leave = |at: BorrowedFd<'_>, name: &CStr| Ok(unlinkat(at, name, AtFlags::REMOVEDIR)?);
    walk_within(folder, ResolveFlags::NO_XDEV, &mut enter, &mut leave)?;
    absent_is_fine(std::fs::remove_dir(folder))
}

/// Walks through a folder: calls `enter` for each entry, and `leave` for each folder that it has
/// walked through, after its entries. Blocks.
///
/// # Errors
/// The first failure; the walk continues beside it. What is gone meanwhile is no error.
pub fn walk(folder: &Path, enter: &mut Enter<'_>, leave: &mut Leave<'_>) -> io::Result<()> {
    walk_within(folder, ResolveFlags::empty(), enter, leave)
}

/// Walks all files below `folder`: calls `enter` on the way down and `leave` on the way up. Returns
/// the first failure; what is gone is no failure. `within`: how folders below the first one are
/// opened.
fn walk_within(
    folder: &Path,
    within: ResolveFlags,
    enter: &mut Enter<'_>,
    leave: &mut Leave<'_>,
) -> io::Result<()> {
    let open_below = |at: &OwnedFd, name: &CStr| open_within(at, name, within);
    let root = match open(CWD, folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        root => root?,
    };
    let mut outcome = Ok(());
    let mut note = |failure: io::Result<()>| {
        let failure = absent_is_fine(failure);
        if outcome.is_ok() {
            outcome = failure;
        }
    };
    let mut current = root.try_clone()?;
    let first = Level::new(&current, CString::default(), enter, &mut note);
    let mut levels: Vec<Level> = first.map_err(|error| note(Err(error))).into_iter().collect();
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.pending.pop() {
            let below = open_below(&current, &name)
                .and_then(|below| Ok((Level::new(&below, name, enter, &mut note)?, below)));
            match below {
                Ok((level, below)) => {
                    levels.push(level);
                    current = below;
                }
                Err(error) => note(Err(error)),
            }
            continue;
        }
        let Some(done) = levels.pop().filter(|_| !levels.is_empty()) else { break };
        let depth = levels.len();
        match ascend(&root, &current, &mut levels, &open_below) {
            Ok(above) => current = above,
            Err(error) => {
                note(Err(error));
                break;
            }
        }
        // With fewer levels `current` is not the folder that has it.
        if levels.len() == depth {
            note(leave(current.as_fd(), &done.name));
        }
    }
    outcome
}

pub fn is_folder(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::Directory
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// A folder on the path to the current one.
struct Level {
    identity: (u64, u64),
    /// In the folder above it.
    name: CString,
    /// Folders in it that have not been walked through.
    pending: Vec<CString>,
}

impl Level {
    /// Calls `enter` for all entries of a folder, and keeps the names of those to walk through.
    fn new(
        folder: &OwnedFd,
        name: CString,
        enter: &mut Enter<'_>,
        note: &mut dyn FnMut(io::Result<()>),
    ) -> io::Result<Level> {
        let mut pending = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            let status = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
            match status.and_then(|status| enter(folder.as_fd(), name, &status)) {
                Ok(true) => pending.push(name.to_owned()),
                Ok(false) => {}
                Err(error) => note(Err(error)),
            }
        }
        Ok(Level { identity: identity(folder)?, name, pending })
    }
}

/// Returns the device and the inode of a folder.
fn identity(folder: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = fstat(folder)?;
    Ok((status.st_dev, status.st_ino))
}

/// Opens the folder above the current one, which is the last level. If it is another one, as the
/// current folder has been moved, the levels are found again from the root, and those that are gone
/// are left out.
fn ascend(
    root: &OwnedFd,
    current: &OwnedFd,
    levels: &mut Vec<Level>,
    open_below: &dyn Fn(&OwnedFd, &CStr) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let is = |folder: &OwnedFd, level: &Level| {
        identity(folder).is_ok_and(|identity| identity == level.identity)
    };
    if let (Ok(above), Some(level)) = (open(current, c".."), levels.last())
        && is(&above, level)
    {
        return Ok(above);
    }
    let (mut at, mut depth) = (root.try_clone()?, 1);
    for level in &levels[1..] {
        match open_below(&at, &level.name) {
            Ok(below) if is(&below, level) => at = below,
            _ => break,
        }
        depth += 1;
    }
    levels.truncate(depth);
    Ok(at)
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open(at: impl AsFd, path: impl Arg) -> io::Result<OwnedFd> {
    Ok(openat(at, path, FOLDER, Mode::empty())?)
}

/// Opens a folder below `at`. `within`: what the kernel must not pass on the way; empty: no limit.
fn open_within(at: &OwnedFd, name: &CStr, within: ResolveFlags) -> io::Result<OwnedFd> {
    match within.is_empty() {
        true => open(at, name),
        false => Ok(openat2(at, name, FOLDER, Mode::empty(), within)?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::mkdirat;

    use super::*;
    use crate::few_descriptors::has_few_descriptors;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("kubelet-tree-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// Makes folders within each other, whose path is longer than the kernel takes.
    fn deepen(folder: &Path, levels: usize) {
        let mut at = open(CWD, folder).expect("a folder");
        for _ in 0..levels {
            let name = "x".repeat(100);
            mkdirat(&at, &name, Mode::RWXU).expect("a folder");
            at = open(&at, name).expect("a folder");
        }
    }

    #[test]
    fn deep_folders_take_few_descriptors() {
        if !has_few_descriptors("files::tree::tests::deep_folders_take_few_descriptors", 32) {
            return;
        }
        let folder = folder("deep");
        for (name, levels) in [("a", 1100), ("b", 50)] {
            fs::create_dir(folder.join(name)).expect("a folder");
            deepen(&folder.join(name), levels);
        }
        let mut count = 0;
        let mut enter = |_: BorrowedFd<'_>, _: &CStr, _: &Stat| {
            count += 1;
            Ok(true)
        };
        walk(&folder, &mut enter, &mut |_, _| Ok(())).expect("a walk");
        assert_eq!(count, 1101 + 51);
        remove(&folder).expect("removed");
        assert!(!folder.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let folder = folder("links");
        let (inside, outside) = (folder.join("inside"), folder.join("outside"));
        for path in [inside.join("a/b"), outside.join("kept")] {
            fs::create_dir_all(path).expect("folders");
        }
        fs::write(inside.join("a/b/file"), "x").expect("a file");
        for (to, at) in [(&outside, "a/link"), (&outside.join("kept"), "link"), (&inside, "a/up")] {
            symlink(to, inside.join(at)).expect("a link");
        }
        remove(&inside).expect("removed");
        assert!(!inside.exists() && outside.join("kept").exists());
        symlink(&outside, &inside).expect("a link");
        remove(&inside).expect("removed");
        assert!(!inside.is_symlink() && outside.join("kept").exists());
        remove(&folder).expect("removed");
        remove(&folder).expect("no error");
    }

    #[test]
    fn what_is_mounted_below_a_folder_is_not_removed() {
        let folder = folder("mounts");
        let (source, target) = (folder.join("source"), folder.join("removed/a/target"));
        for path in [source.join("kept"), target.clone(), folder.join("removed/b")] {
            fs::create_dir_all(path).expect("folders");
        }
        // Of the same file system, so that its number does not show it.
        if let Err(error) = rustix::mount::mount_bind(&source, &target) {
            fs::remove_dir_all(folder).expect("removed");
            return eprintln!("what_is_mounted_below_a_folder_is_not_removed: {error}");
        }
        remove(&folder.join("removed")).expect_err("it is mounted");
        assert!(source.join("kept").exists() && !folder.join("removed/b").exists());
        rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).expect("unmounted");
        remove(&folder).expect("removed");
    }

    /// A process that still runs moves the folder that is being removed to another place.
    #[test]
    fn a_folder_that_is_moved_leads_nowhere_else() {
        let folder = folder("moved");
        let (inside, outside) = (folder.join("inside"), folder.join("outside"));
        fs::create_dir_all(outside.join("kept")).expect("folders");
        for path in ["a/b/c/d", "a/b/e", "f/g"] {
            fs::create_dir_all(inside.join(path)).expect("folders");
        }
        fs::write(inside.join("a/b/c/d/file"), "x").expect("a file");
        let mut enter = |at: BorrowedFd<'_>, name: &CStr, status: &Stat| {
            if name == c"file" {
                fs::rename(inside.join("a/b/c"), outside.join("c")).expect("another place");
            }
            if !is_folder(status) {
                unlinkat(at, name, AtFlags::empty())?;
            }
            Ok(is_folder(status))
        };
        let mut leave =
            |at: BorrowedFd<'_>, name: &CStr| Ok(unlinkat(at, name, AtFlags::REMOVEDIR)?);
        walk(&inside, &mut enter, &mut leave).expect("a walk");
        assert!(outside.join("kept").exists());
        assert_eq!(fs::read_dir(&inside).expect("a folder").count(), 0, "the rest is removed");
        remove(&folder).expect("removed");
    }
}
