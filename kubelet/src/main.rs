//! The kubelet: keeps the pods of a folder or a URL on this machine.

use std::io::Write;
use std::process::ExitCode;

use kube_controller_manager::{options as library, task};
use kubelet::app;
use kubelet::options::{self, Command};

/// glibc's malloc has such a cache itself.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: process::ThreadCache = process::ThreadCache;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match options::parse(&args) {
        Ok(Command::Run(settings)) => task::run(1, app::run(*settings)),
        Ok(Command::Help) => print(&options::usage()),
        Ok(Command::Version) => print(&format!("Kubernetes {}\n", library::git_version())),
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
