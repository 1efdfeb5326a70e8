//! Files and folders of the machine: walks through folders of any depth, files below a folder,
//! watches, and files that are replaced whole.

pub mod beneath;
pub mod folder_watch;
pub mod tree;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file by way of one beside it with the ending `tmp`: after a power cut it has its old or
/// its new content, and once this has returned the new one. `path`: with a folder. `mode`: its
/// permissions, within the process's mask. Blocks.
///
/// # Errors
/// The file cannot be written, and the old one stays; or its new name may not survive a power cut.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("tmp");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
