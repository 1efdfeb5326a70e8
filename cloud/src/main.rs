//! The cloud controller manager, configured by flags alone.

use std::process::ExitCode;

use cloud::app;

/// glibc's malloc has such a cache itself.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: process::ThreadCache = process::ThreadCache;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    app::main(&args)
}
