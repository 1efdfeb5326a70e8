//! What upstream's kubelet has made of a volume of blocks for a pod, beside the driver's device: a
//! bind mount of it, and a loop device that keeps it open. This kubelet makes neither, but ends both,
//! as a pod may have begun under upstream's. Upstream: `volumepathhandler`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::csi::{absent_is_fine, entries};
use super::mounts_below::is_mounted;

/// Ends the loop devices of a file, unmounts it and removes it, if it is there. Blocks.
///
/// # Errors
/// One of the steps fails; it may be repeated.
pub(super) fn end(file: &Path) -> io::Result<()> {
    if let Err(error) = fs::symlink_metadata(file) {
        return absent_is_fine(Err(error));
    }
    for device in of_file(Path::new("/sys/block"), &file.canonicalize()?)? {
        let done = Command::new("losetup").arg("-d").arg(&device).output()?;
        if !done.status.success() {
            let fault = String::from_utf8_lossy(&done.stderr);
            return Err(io::Error::other(format!("losetup -d {}: {fault}", device.display())));
        }
    }
    while is_mounted(file)? {
        unmount(file, UnmountFlags::NOFOLLOW)?;
    }
    absent_is_fine(fs::remove_file(file))
}

/// Finds the loop devices of a file. `blocks`: the folder of the kernel's block devices.
fn of_file(blocks: &Path, file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for block in entries(blocks)? {
        // Only a loop device that is in use has one.
        let Ok(backing) = fs::read_to_string(block.join("loop/backing_file")) else { continue };
        if let Some(name) = block.file_name()
            && Path::new(backing.trim_end_matches('\n')) == file
        {
            found.push(Path::new("/dev").join(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_found_by_their_files() {
        let base = std::env::temp_dir().join(format!("kubelet-loop-{}", std::process::id()));
        for (device, backing) in [("loop0", Some("/a\n")), ("loop1", Some("/a b\n")), ("sda", None)]
        {
            let folder = base.join(device).join("loop");
            fs::create_dir_all(&folder).expect("a folder");
            if let Some(backing) = backing {
                fs::write(folder.join("backing_file"), backing).expect("a file");
            }
        }
        let found = of_file(&base, Path::new("/a b")).expect("a folder");
        assert_eq!(found, [PathBuf::from("/dev/loop1")]);
        assert!(of_file(&base, Path::new("/b")).expect("a folder").is_empty());
        let file = base.join("left");
        fs::write(&file, "").expect("a file");
        end(&file).expect("removed");
        end(&file).expect("removed before");
        assert!(!file.exists());
        fs::remove_dir_all(base).expect("removed");
    }
}
