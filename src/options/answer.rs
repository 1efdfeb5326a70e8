//! What a command line is answered with when nothing runs.

use std::io::Write;
use std::process::ExitCode;

/// Prints a text, or a fault as a line on stderr. A reader that closes early (`| head`) is not an
/// error.
pub fn answer(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        },
        Err(fault) => {
            eprintln!("Error: {fault}");
            ExitCode::FAILURE
        }
    }
}
