//! Files whose content may be replaced while the process runs.

use std::path::Path;
use std::time::{Duration, SystemTime};

/// How often served and trusted certificates are looked at.
pub const LOOK: Duration = Duration::from_secs(10);

/// When a file was written, and its length. `None` where it cannot be read.
pub type Stamp = Option<(SystemTime, u64)>;

/// Follows links, as a mounted Secret is replaced by one.
pub fn stamp(path: impl AsRef<Path>) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}
