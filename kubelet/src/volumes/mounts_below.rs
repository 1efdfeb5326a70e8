//! What is mounted, by the kernel's table. Upstream: `k8s.io/mount-utils`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};

/// Lists the points below a folder where something is mounted, the oldest first. A link in place of
/// the folder is not followed; links may lead to the folder above it. Blocks.
///
/// # Errors
/// The table cannot be read.
pub(super) fn mounts_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(folder) = real(folder)? else { return Ok(Vec::new()) };
    Ok(points()?.into_iter().filter(|at| *at != folder && at.starts_with(&folder)).collect())
}

/// Returns whether something is mounted at a path. It is not opened: a server that is gone does not
/// matter. Blocks.
///
/// # Errors
/// The table cannot be read.
pub(super) fn is_mounted(path: &Path) -> io::Result<bool> {
    let Some(path) = real(path)? else { return Ok(false) };
    Ok(points()?.contains(&path))
}

/// Makes a mount and those below it private: what is unmounted there then stays mounted elsewhere.
/// Does nothing when nothing is mounted at the path. Blocks.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    match mount_change(path, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the path as the kernel's table has it: without links above its last part, which is not
/// followed. `None`: there is no folder above it.
fn real(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists all paths at which something is mounted, the oldest mount first.
fn points() -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().filter_map(|line| line.split(' ').nth(4)).map(mount_point).collect())
}

/// Decodes the path of a field of the kernel's table, which has some characters as octal numbers.
pub(super) fn mount_point(field: &str) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_the_mount_table_are_decoded() {
        for (field, path) in [
            ("/a/b", "/a/b"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/a\9", r"/a\9"),
            (r"/a\04", r"/a\04"),
            (r"/a\777", r"/a\777"),
        ] {
            assert_eq!(mount_point(field), Path::new(path), "{field}");
        }
    }

    #[test]
    fn mounts_are_found_below_their_parents() {
        assert!(is_mounted(Path::new("/proc")).expect("the table"));
        assert!(!is_mounted(Path::new("/proc/self")).expect("the table"));
        assert!(!is_mounted(Path::new("/none/at/all")).expect("no such folder"));
        assert!(!mounts_below(Path::new("/proc")).expect("the table").contains(&"/proc".into()));
    }
}
