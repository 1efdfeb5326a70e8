//! The controller manager, configured by flags alone.

use std::io::Write;
use std::process::ExitCode;

use kube_controller_manager::app;
use kube_controller_manager::options::{self, Command};
use kube_controller_manager::task;

/// glibc's malloc has such a cache itself.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: process::ThreadCache = process::ThreadCache;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match options::parse(&args) {
        Ok(Command::Run(options)) => {
            task::run(app::THREADS, app::run(options, app::connect::connect))
        }
        Ok(Command::Help) => print(&app::usage()),
        Ok(Command::Version(how)) => print(&options::version(&how)),
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A reader that closes early (`| head`) is not an error.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
