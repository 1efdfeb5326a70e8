//! Regular files below a folder whose contents are others': no link is followed, also where one is put
//! there meanwhile.

use std::fs::File;
use std::io;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// Opens the regular file at `path` below `folder` for reading. Blocks.
///
/// # Errors
/// The file is absent, a link, below a link, or not regular, or `path` leads out of the folder.
pub fn open(folder: &Path, path: &Path) -> io::Result<File> {
    let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut current = openat(CWD, folder, walk, Mode::empty())?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not a path below the folder");
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { return Err(invalid()) };
        if components.peek().is_some() {
            current = openat(&current, name, walk | OFlags::NOFOLLOW, Mode::empty())?;
            continue;
        }
        // A pipe has no writer to wait for.
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&current, name, read, Mode::empty())?);
        return match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        };
    }
    Err(invalid())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_below_the_folder_are_opened() {
        let base = std::env::temp_dir().join(format!("kubelet-beneath-{}", std::process::id()));
        let folder = base.join("logs");
        fs::create_dir_all(folder.join("a/b")).expect("folders");
        fs::write(folder.join("a/b/file"), "x").expect("a file");
        fs::write(base.join("secret"), "x").expect("a file");
        symlink(&base, folder.join("a/up")).expect("a link");
        symlink(base.join("secret"), folder.join("a/link")).expect("a link");
        symlink("b/file", folder.join("a/inside")).expect("a link");
        let pipe = Command::new("mkfifo").arg(folder.join("a/pipe")).status().expect("mkfifo");
        assert!(pipe.success());
        // The folder itself may be a link.
        symlink(&folder, base.join("linked")).expect("a link");
        for (path, is_opened) in [
            ("a/b/file", true),
            ("./a/./b/file", false),
            ("a/b/../b/file", false),
            ("../secret", false),
            ("a/up/secret", false),
            ("a/link", false),
            ("a/inside", false),
            ("a/pipe", false),
            ("a/b", false),
            ("a/b/absent", false),
            ("", false),
        ] {
            for folder in [&folder, &base.join("linked")] {
                assert_eq!(open(folder, Path::new(path)).is_ok(), is_opened, "{path}");
            }
        }
        assert!(open(&folder, &base.join("secret")).is_err());
        fs::remove_dir_all(&base).expect("removed");
    }
}
