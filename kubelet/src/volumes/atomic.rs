//! Files that change together: readers see all of the old ones or all of the new ones.
//! Upstream: `pkg/volume/util.AtomicWriter`.
//!
//! The files are in a folder whose name is a time, `..data` is a link to it, and each visible name is
//! a link through `..data`. A change is a new folder, to which `..data` is turned by one rename.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use super::Error;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Upstream: `maxPathLength`, `maxFileNameLength`.
const MAX_LENGTHS: (usize, usize) = (4096, 255);

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The user; `None`: that of the kubelet.
    pub owner: Option<u32>,
}

/// The files of a volume, by their paths in it.
pub type Payload = BTreeMap<PathBuf, File>;

/// Replaces the files of a volume by those of `payload`, all at once; when they are the same, only
/// makes links that are missing. `group`: the pod's `fsGroup`. `time`: the start of a new folder's
/// name. Blocks.
///
/// # Errors
/// One with the path.
pub fn write(
    folder: &Path,
    payload: &Payload,
    group: Option<u32>,
    time: &str,
) -> Result<(), Error> {
    check_paths(payload)?;
    let fault = |source| Error::Path { path: folder.to_owned(), source };
    let old = match fs::read_link(folder.join(DATA)) {
        Ok(target) => folder_in(folder, &target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(fault(error)),
    };
    let visible = visible_names(payload);
    let is_same = old.as_deref().is_some_and(|old| is_same(old, payload));
    if !is_same {
        replace(folder, payload, group, time).map_err(fault)?;
    }
    link(folder, &visible, group).map_err(fault)?;
    if !is_same && let Some(old) = old {
        // Visible names that only the old files had are removed.
        for entry in fs::read_dir(&old).into_iter().flatten().flatten() {
            if !visible.contains_key(Path::new(&entry.file_name())) {
                let removed = fs::remove_file(folder.join(entry.file_name()));
                removed.or_else(absent_is_fine).map_err(fault)?;
            }
        }
        fs::remove_dir_all(&old).or_else(absent_is_fine).map_err(fault)?;
    }
    Ok(())
}

/// Returns the folder of files that `..data` leads to. `None`: it leads to anything else, which is
/// not the kubelet's to compare or remove.
fn folder_in(volume: &Path, target: &Path) -> Option<PathBuf> {
    let mut parts = target.components();
    let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else { return None };
    let folder = volume.join(name);
    let is_folder = fs::symlink_metadata(&folder).is_ok_and(|data| data.is_dir());
    (is_folder && name.as_encoded_bytes().starts_with(b"..")).then_some(folder)
}

/// Turns the error that a file does not exist into a success.
fn absent_is_fine(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Checks that each path of the files is relative, short enough, and stays in the volume, and that no
/// name begins as the writer's own do (`..`). Upstream: `validatePath`.
fn check_paths(payload: &Payload) -> Result<(), Error> {
    let invalid = |fault: String| Err(Error::InvalidPath(format!("invalid path: {fault}")));
    for path in payload.keys() {
        let text = path.display().to_string();
        if text.is_empty() {
            return invalid("must not be empty: \"\"".to_owned());
        }
        if text.starts_with('/') {
            return invalid(format!("must be relative path: {text}"));
        }
        if text.len() > MAX_LENGTHS.0 {
            let max = MAX_LENGTHS.0;
            return invalid(format!("must be less than or equal to {max} characters"));
        }
        if text.split('/').any(|part| part == "..") {
            return invalid(format!("must not contain '..': {text}"));
        }
        if text.split('/').any(|part| part.len() > MAX_LENGTHS.1) {
            return invalid(format!(
                "filenames must be less than or equal to {} characters",
                MAX_LENGTHS.1
            ));
        }
        if text.starts_with("..") {
            return invalid(format!("must not start with '..': {text}"));
        }
    }
    Ok(())
}

/// Returns the first parts of the paths, with the owner of a file there.
fn visible_names(payload: &Payload) -> BTreeMap<PathBuf, Option<u32>> {
    let visible = |(path, file): (&PathBuf, &File)| {
        let name = path.iter().find(|part| *part != ".")?;
        Some((name.into(), file.owner))
    };
    payload.iter().filter_map(visible).collect()
}

/// Returns whether the folder has exactly the files of `payload`, with the same content. Modes do
/// not count.
fn is_same(old: &Path, payload: &Payload) -> bool {
    let wanted: BTreeSet<PathBuf> = payload.keys().map(|path| old.join(path)).collect();
    let mut present = BTreeSet::new();
    collect(old, &mut present);
    let has = |(path, file): (&PathBuf, &File)| {
        fs::read(old.join(path)).is_ok_and(|data| data == file.data)
    };
    present == wanted && payload.iter().all(has)
}

/// Adds the paths of all files below a folder to `files`.
fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(&entry.path(), files),
            _ => _ = files.insert(entry.path()),
        }
    }
}

/// Writes `payload` into a new folder and then lets `..data` lead to it, by one rename. The old
/// folder stays.
fn replace(folder: &Path, payload: &Payload, group: Option<u32>, time: &str) -> io::Result<()> {
    let name = format!("..{time}.{}", fastrand::u32(..));
    let new = folder.join(&name);
    let fill = || {
        fs::DirBuilder::new().mode(0o755).create(&new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        for (path, file) in payload {
            let path = new.join(path);
            let parent = path.parent().unwrap_or(&new);
            fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            let mut made =
                fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            io::Write::write_all(&mut made, &file.data)?;
            // The mode is set afterwards, so that the process's mask does not restrict it.
            made.set_permissions(fs::Permissions::from_mode(file.mode & 0o7777))?;
            if file.owner.is_some() {
                chown(&path, file.owner, None)?;
            }
        }
        if let Some(group) = group {
            give_to_group(&new, group)?;
        }
        // A write that was cut off may have left its link.
        fs::remove_file(folder.join(NEW_DATA)).or_else(absent_is_fine)?;
        symlink(&name, folder.join(NEW_DATA))?;
        fs::rename(folder.join(NEW_DATA), folder.join(DATA))
    };
    fill().inspect_err(|_| _ = fs::remove_dir_all(&new))
}

/// Gives a file, or a folder and all below it, to a group, and lets the group read it. Upstream:
/// `VolumeOwnership` of a read-only volume.
fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let data = fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if data.is_symlink() {
        return Ok(());
    }
    let more = if data.is_dir() { 0o2550 } else { 0o440 };
    let mode = data.permissions().mode() & 0o7777 | more;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    if data.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to_group(&entry?.path(), group)?;
        }
    }
    Ok(())
}

/// Makes the links by which the visible names lead to the current files.
fn link(
    folder: &Path,
    visible: &BTreeMap<PathBuf, Option<u32>>,
    group: Option<u32>,
) -> io::Result<()> {
    for (name, owner) in visible {
        let link = folder.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
            if owner.is_some() || group.is_some() {
                lchown(&link, *owner, group)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str, u32)]) -> Payload {
        let file = |(path, data, mode): &(&str, &str, u32)| {
            let data = data.as_bytes().to_vec();
            (PathBuf::from(path), File { data, mode: *mode, owner: None })
        };
        files.iter().map(file).collect()
    }

    /// The visible paths with their content and mode, sorted.
    fn seen(folder: &Path) -> Vec<String> {
        fn walk(at: &Path, below: &Path, into: &mut Vec<String>) {
            for entry in fs::read_dir(at).expect("a folder").flatten() {
                let path = entry.path();
                if entry.file_name().as_encoded_bytes().starts_with(b"..") {
                    continue;
                }
                if path.is_dir() {
                    walk(&path, below, into);
                    continue;
                }
                let text = fs::read_to_string(&path).expect("a file");
                let mode = fs::metadata(&path).expect("a file").permissions().mode() & 0o7777;
                let path = path.strip_prefix(below).expect("below").display().to_string();
                into.push(format!("{path} {text} {mode:o}"));
            }
        }
        let mut all = Vec::new();
        walk(folder, folder, &mut all);
        all.sort();
        all
    }

    #[test]
    fn files_change_together_and_only_when_they_differ() {
        let folder = std::env::temp_dir().join(format!("kubelet-atomic-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut before = None;
        for (files, is_changed, expected) in [
            (&[("a", "1", 0o644), ("b/c", "2", 0o400)][..], true, &["a 1 644", "b/c 2 400"][..]),
            (&[("a", "1", 0o644), ("b/c", "2", 0o400)], false, &["a 1 644", "b/c 2 400"]),
            (&[("a", "3", 0o644), ("b/d", "2", 0o440)], true, &["a 3 644", "b/d 2 440"]),
            (&[("a", "3", 0o644)], true, &["a 3 644"]),
            (&[], true, &[]),
            (&[], false, &[]),
            (&[("x/y/z", "4", 0o600)], true, &["x/y/z 4 600"]),
        ] {
            write(&folder, &payload(files), None, "2026_01_01").expect("written");
            assert_eq!(seen(&folder), expected, "{files:?}");
            let data = fs::read_link(folder.join(DATA)).expect("a link");
            assert_eq!(before.as_ref() != Some(&data), is_changed, "{files:?}");
            before = Some(data);
            let times = fs::read_dir(&folder).expect("a folder").flatten();
            let times = times.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            assert_eq!(times.count(), 1, "old folders are removed");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_write_that_was_cut_off_is_made_up_for() {
        let folder = std::env::temp_dir().join(format!("kubelet-cut-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let files = payload(&[("a", "1", 0o644)]);
        write(&folder, &files, None, "t").expect("written");
        symlink("..none", folder.join(NEW_DATA)).expect("a link");
        fs::remove_file(folder.join("a")).expect("removed");
        write(&folder, &files, None, "t").expect("written");
        assert_eq!(seen(&folder), ["a 1 644"]);
        write(&folder, &payload(&[("a", "2", 0o644)]), None, "t").expect("written");
        assert_eq!(seen(&folder), ["a 2 644"]);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn links_out_of_the_volume_are_replaced_and_not_followed() {
        let folder = std::env::temp_dir().join(format!("kubelet-links-{}", std::process::id()));
        let (volume, outside) = (folder.join("volume"), folder.join("outside"));
        fs::create_dir_all(&volume).expect("a folder");
        fs::create_dir_all(&outside).expect("a folder");
        for name in ["a", "kept"] {
            fs::write(outside.join(name), "1").expect("a file");
        }
        symlink(&outside, volume.join("..link")).expect("a link");
        let absolute = outside.display().to_string();
        // With the same files as the payload, and with others.
        for files in [&[("a", "1", 0o644), ("kept", "1", 0o644)][..], &[("a", "2", 0o644)]] {
            for target in [
                "../outside",
                &absolute,
                "..link",
                "..link/",
                "..link/.",
                "./../outside",
                "..",
                ".",
            ] {
                let _ = fs::remove_file(volume.join(DATA));
                symlink(target, volume.join(DATA)).expect("a link");
                write(&volume, &payload(files), None, "t").expect("written");
                assert_eq!(seen(&volume).len(), files.len(), "{target}");
                let data = fs::read_link(volume.join(DATA)).expect("a link");
                assert!(data.display().to_string().starts_with("..t."), "{target}");
                for name in ["a", "kept"] {
                    let text = fs::read_to_string(outside.join(name));
                    assert_eq!(text.ok().as_deref(), Some("1"), "{target}: {name}");
                }
                for (name, _, _) in files {
                    fs::remove_file(volume.join(name)).expect("a link");
                }
            }
        }
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn paths_stay_within_the_volume() {
        let long = "x".repeat(256);
        for (path, is_fine) in [
            ("a", true),
            ("a/b", true),
            ("a..b", true),
            ("a/..b", true),
            ("", false),
            ("/a", false),
            ("..", false),
            ("../a", false),
            ("a/../b", false),
            ("..a", false),
            (&long, false),
        ] {
            assert_eq!(check_paths(&payload(&[(path, "", 0)])).is_ok(), is_fine, "{path:?}");
        }
    }
}
