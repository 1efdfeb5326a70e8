//! Functions for the own process that need the kernel's C interfaces.
//!
//! CPU profiles: a timer of the kernel interrupts the running threads 100 times a second of CPU
//! time, a signal handler records their stacks, and the counts are written in pprof's format, which
//! `go tool pprof` reads. Nothing runs and no memory is held before the first profile.
//!
//! Memory: a cache of free blocks for a thread that allocates much.
//!
//! Gzip: the format of profiles.
//!
//! Linux only.

mod gzip;
mod maps;
mod pprof;
mod sampler;
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "stack_innermost.rs")]
mod stack;
mod symbols;
mod tcache;

pub use gzip::gzip;
pub use maps::{Mapping, mappings};
pub use pprof::{Counted, Frame, Profile};
pub use sampler::{Busy, PERIOD, Sampler, Stacks};
pub use symbols::Symbols;
pub use tcache::ThreadCache;
