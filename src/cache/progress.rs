//! What a reflector does now, for debug pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::counts::Counts;
use super::phase::{Phase, Start};

/// The phase of a reflector, and the number of objects that it has received.
#[derive(Default)]
pub struct Progress {
    /// The phase, and since when on the monotonic clock; `None` before the start.
    phase: Mutex<Option<(Phase, Duration)>>,
    events: AtomicU64,
}

impl Progress {
    /// Records that the reflector has entered `phase`.
    pub fn enter(&self, phase: &Phase, now: Duration) {
        *self.phase.lock() = Some((phase.clone(), now));
    }

    /// Counts an object that was received in a list or a watch.
    pub fn received(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the state of the reflector for the debug page. `counts`: the counters of its
    /// informer.
    pub fn status(&self, counts: &Counts, now: Duration) -> ReflectorStatus {
        let phase = self.phase.lock().clone();
        ReflectorStatus {
            seconds: phase.as_ref().map_or(0.0, |(_, at)| now.saturating_sub(*at).as_secs_f64()),
            phase: phase.map_or_else(|| "not started".into(), |(phase, _)| describe(&phase)),
            lists: counts.streams.get() + counts.lists.get(),
            watches: counts.watches.get(),
            objects: self.events.load(Ordering::Relaxed),
        }
    }
}

/// A reflector as debug pages show it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReflectorStatus {
    /// `watching`, `listing`, `waiting 1.2s, then watching`.
    pub phase: String,
    /// For how many seconds it has been in this phase.
    pub seconds: f64,
    /// Lists begun, including those that are the initial events of a watch.
    pub lists: u64,
    /// Watches opened.
    pub watches: u64,
    /// Objects received, in lists and watches.
    pub objects: u64,
}

/// Describes a phase in words, for the debug page.
fn describe(phase: &Phase) -> String {
    let age_text = |start: &Start| match start {
        Start::Any => "at any version".to_owned(),
        Start::AtLeast(version) => format!("not older than {version}"),
        Start::Newest => "the newest".to_owned(),
    };
    match phase {
        Phase::Stream { start } => format!("listing by a watch, {}", age_text(start)),
        Phase::List { start } => format!("listing, {}", age_text(start)),
        Phase::Watch { .. } => "watching".to_owned(),
        Phase::Verify { .. } => "asking for the newest version".to_owned(),
        Phase::Wait { delay, then, .. } => {
            format!("waiting {:.1}s, then {}", delay.as_secs_f64(), describe(then))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_is_described() {
        let (progress, counts) = (Progress::default(), Counts::default());
        let seconds = Duration::from_secs;
        assert_eq!(progress.status(&counts, seconds(9)).phase, "not started");
        let list = Phase::List { start: Start::Newest };
        let wait = Phase::Wait {
            delay: Duration::from_millis(1200),
            least: Duration::ZERO,
            then: Box::new(list),
        };
        progress.enter(&wait, seconds(3));
        counts.lists.add_one();
        let status = progress.status(&counts, seconds(5));
        assert_eq!(status.phase, "waiting 1.2s, then listing, the newest");
        assert_eq!((status.seconds, status.lists, status.watches), (2.0, 1, 0));
    }
}
