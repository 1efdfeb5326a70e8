//! Files whose content may be replaced while the process runs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How often served and trusted certificates are checked for changes.
pub const POLL_PERIOD: Duration = Duration::from_secs(10);

/// A value that changes with a file's content, its permissions and its place: inode, the time of
/// its last change (seconds and nanoseconds), length. `None` when there is no such file.
pub type Stamp = Option<(u64, i64, i64, u64)>;

/// Returns the stamp of a file. Follows links: a mounted Secret is replaced by a new link.
pub fn stamp(path: impl AsRef<Path>) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    // The time of modification may be set back, as by tools that copy it.
    Some((file.ino(), file.ctime(), file.ctime_nsec(), file.len()))
}
