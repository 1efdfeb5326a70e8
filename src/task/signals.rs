//! SIGTERM and SIGINT: the first stops the program in order, the second ends the process at once. SIGUSR1
//! and SIGUSR2 do nothing, as in a Go program; by default they would end it.

use async_signal::{Signal, Signals};
use futures_lite::StreamExt;

use super::{StopToken, spawn};

/// Returns a token that the first SIGTERM or SIGINT stops; the second ends the process with exit
/// code 1. Call it once, on a task.
/// Upstream: `apiserver/pkg/server.SetupSignalContext`.
///
/// # Errors
/// When no handler can be installed.
pub fn stop_on_signal() -> std::io::Result<StopToken> {
    // The last two are caught only to be ignored.
    let all = [Signal::Term, Signal::Int, Signal::Usr1, Signal::Usr2];
    let mut signals = Signals::new(all)?;
    let stop = StopToken::new();
    let on_signal = stop.clone();
    drop(spawn(async move {
        while let Some(signal) = signals.next().await {
            let Ok(signal @ (Signal::Term | Signal::Int)) = signal else { continue };
            if on_signal.is_stopped() {
                log::error!("received {signal:?} again: exiting at once");
                std::process::exit(1);
            }
            log::info!("received {signal:?}: stopping");
            on_signal.stop();
        }
    }));
    Ok(stop)
}
