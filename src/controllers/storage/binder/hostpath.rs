//! The directories of HostPath volumes, on the machine of this manager: for tests of a cluster with
//! one node. Upstream: `pkg/volume/hostpath`.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::task;

/// Returns the path of a new volume, with a random UUID.
pub fn new_path() -> String {
    let random: u128 = fastrand::u128(..);
    let hex = format!("{random:032x}");
    // Version 4, as upstream's `uuid.NewUUID`: the digits 12 and 16 are those of version and
    // variant.
    let (variant, _) = ("89ab".split_at(fastrand::usize(..4)).1).split_at(1);
    format!(
        "/tmp/hostpath_pv/{}-{}-4{}-{variant}{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    )
}

/// Creates the directory and its parents.
pub async fn make(path: String) -> Result<(), String> {
    task::blocking(move || make_blocking(Path::new(&path)).map_err(|error| error.to_string())).await
}

fn make_blocking(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// Removes the directory with its content; fails if the path has no `/tmp/`.
pub async fn remove(path: String) -> Result<(), String> {
    if !is_ours(&path) {
        return Err(format!(
            "host_path deleter only supports /tmp/.+ but received provided {path}"
        ));
    }
    task::blocking(move || remove_blocking(Path::new(&path)).map_err(|error| error.to_string()))
        .await
}

/// Removes a directory with its content, or a file. Succeeds if it does not exist.
fn remove_blocking(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Returns whether the path may be removed: it has `/tmp/` and something after it, anywhere, as
/// upstream's expression has it.
fn is_ours(path: &str) -> bool {
    // `/tmp/.+`, where `.` matches no newline.
    let after = path.find("/tmp/").map(|at| &path[at + "/tmp/".len()..]);
    after.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_tmp_are_removed() {
        for (path, expected) in [
            ("/tmp/x", true),
            ("/var/tmp/x", true),
            ("/tmp/", false),
            ("/tmp", false),
            ("/etc", false),
            ("", false),
        ] {
            assert_eq!(is_ours(path), expected, "{path}");
        }
    }

    #[test]
    fn directories_are_created_and_removed() {
        let path = new_path();
        let id = path.strip_prefix("/tmp/hostpath_pv/").unwrap();
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{id}");
        make_blocking(Path::new(&path)).unwrap();
        fs::write(format!("{path}/file"), "x").unwrap();
        remove_blocking(Path::new(&path)).unwrap();
        assert!(!Path::new(&path).exists());
        remove_blocking(Path::new(&path)).unwrap();
    }
}
