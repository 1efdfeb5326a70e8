//! The logs of containers, in CRI's format: the lines that a person asks for, once or as they are
//! written. Upstream: `cri-client/pkg/logs`.
//!
//! [`LogOptions`] are read from a query, [`mod@format`] picks lines without I/O, and [`LogReader`] reads the
//! files. Memory does not depend on the length of lines.

mod error;
pub mod format;
mod options;
mod reader;

pub use error::Error;
pub use options::{LogOptions, Streams};
pub use reader::{IsRunning, LogFile, LogReader, is_running};
