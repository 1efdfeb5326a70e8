//! Changes of the files of a folder, by inotify. Upstream: `config/file_linux.go`.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// A change that the kernel reports.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Written(PathBuf),
    Gone(PathBuf),
    /// Anything: changes were lost, or the folder itself has changed.
    Unknown,
}

/// Watches a folder, or one file.
pub struct FolderWatch {
    queue: Async<OwnedFd>,
    path: PathBuf,
}

impl FolderWatch {
    /// Watches a folder.
    ///
    /// # Errors
    /// When the folder does not exist, or cannot be watched.
    pub fn new(path: &Path) -> io::Result<FolderWatch> {
        FolderWatch::of(path, WATCHED)
    }

    /// Watches a folder as [`FolderWatch::new`] does; each write to a file is a change too.
    ///
    /// # Errors
    /// As there.
    pub fn of_writes(path: &Path) -> io::Result<FolderWatch> {
        FolderWatch::of(path, WATCHED.union(WatchFlags::MODIFY))
    }

    fn of(path: &Path, watched: WatchFlags) -> io::Result<FolderWatch> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&queue, path, watched)?;
        Ok(FolderWatch { queue: Async::new_nonblocking(queue)?, path: path.to_owned() })
    }

    /// Waits for changes. Those of files whose names start with a dot are left out, so there may be
    /// none. No change is lost when the future is dropped.
    ///
    /// # Errors
    /// When the kernel's queue cannot be read.
    pub async fn changes(&self) -> io::Result<Vec<Change>> {
        self.queue.read_with(|queue| changes(queue, &self.path)).await
    }
}

/// Reads the changes that wait in the kernel.
fn changes(queue: &OwnedFd, path: &Path) -> io::Result<Vec<Change>> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    let (mut changes, mut any) = (Vec::new(), false);
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                let change = change(path, name.as_deref(), event.events());
                // A new file that is still empty is reported when it is closed.
                let is_early = event.events().contains(ReadFlags::CREATE)
                    && matches!(&change, Some(Change::Written(file)) if is_empty(file));
                changes.extend(change.filter(|_| !is_early));
                any |= !is_early;
                if any && reader.is_buffer_empty() {
                    return Ok(changes);
                }
            }
            // Without any change `AGAIN` is an error, by which the caller waits for the next one.
            Err(Errno::AGAIN) if any => return Ok(changes),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether a file that was created is still to be written: it is reported when it is
/// closed.
fn is_empty(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.len() == 0)
}

/// Returns the change that an event stands for. Files whose names start with a dot are ignored.
fn change(path: &Path, name: Option<&str>, events: ReadFlags) -> Option<Change> {
    let is_self = ReadFlags::DELETE_SELF
        | ReadFlags::MOVE_SELF
        | ReadFlags::QUEUE_OVERFLOW
        | ReadFlags::UNMOUNT
        | ReadFlags::IGNORED;
    if events.intersects(is_self) {
        return Some(Change::Unknown);
    }
    let file = match name {
        Some(name) if name.starts_with('.') => return None,
        Some(name) => path.join(name),
        // The path is a file.
        None => path.to_owned(),
    };
    match events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        true => Some(Change::Gone(file)),
        false => Some(Change::Written(file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_changes_of_files() {
        let path = Path::new("/pods");
        let file = |name: &str| path.join(name);
        for (name, events, expected) in [
            (Some("a"), ReadFlags::CLOSE_WRITE, Some(Change::Written(file("a")))),
            (Some("a"), ReadFlags::MOVED_TO, Some(Change::Written(file("a")))),
            (Some("a"), ReadFlags::MOVED_FROM, Some(Change::Gone(file("a")))),
            (Some("a"), ReadFlags::DELETE, Some(Change::Gone(file("a")))),
            (Some(".a.swp"), ReadFlags::CLOSE_WRITE, None),
            (None, ReadFlags::QUEUE_OVERFLOW, Some(Change::Unknown)),
            (None, ReadFlags::DELETE_SELF, Some(Change::Unknown)),
            (None, ReadFlags::CLOSE_WRITE, Some(Change::Written(path.to_owned()))),
        ] {
            assert_eq!(change(path, name, events), expected, "{name:?} {events:?}");
        }
    }
}
