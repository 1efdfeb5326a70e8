//! The lessons of `sandbox --lesson`: each shows its stations in order, and each station names the
//! line of the source that wrote it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use kube_controller_manager::task::StopToken;
use sandbox::SandboxOptions;
use sandbox::lesson::{Lesson, Part, Screen};
use sandbox::nodes::NodeOptions;

use crate::env::*;

#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A step: its title, the place to open, and the line of the trace.
struct Step {
    title: String,
    place: String,
    trace: String,
}

/// Runs one part of the lesson to its end and returns its steps.
fn lesson(part: Part) -> Vec<Step> {
    let folder = Folder::new(&format!("lesson-{part}"));
    let shown = Shown::default();
    let lesson = Lesson {
        sandbox: SandboxOptions::new(folder.0.clone()),
        nodes: NodeOptions::default(),
        manager: manager_program(),
        manager_flags: quick_election(),
        parts: vec![part],
        patience: PATIENCE,
    };
    let ended = block_on(lesson.run(Screen::plain(shown.clone()), StopToken::new()));
    let text = String::from_utf8(shown.0.lock().unwrap().clone()).expect("UTF-8");
    ended.unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(!text.contains('\x1b'), "no colours where there is no terminal");
    steps(&text)
}

fn steps(text: &str) -> Vec<Step> {
    let mut lines = text.lines();
    let mut steps = Vec::new();
    while let Some(line) = lines.next() {
        let Some((heading, place)) = line.split_once("   open ") else { continue };
        let (number, title) = heading.trim_start().split_once(". ").expect("a number");
        assert_eq!(number, (steps.len() + 1).to_string(), "{text}");
        let trace = lines.next().expect("a line of the trace").trim().to_owned();
        steps.push(Step { title: title.to_owned(), place: place.to_owned(), trace });
    }
    steps
}

/// Whether the place is the code of a station: a call of `trace`.
fn is_station(place: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, line) = place.rsplit_once(':').expect("FILE:LINE");
    let source = fs::read_to_string(root.join(file)).unwrap_or_default();
    let line = line.parse::<usize>().ok().and_then(|line| source.lines().nth(line - 1));
    line.is_some_and(|line| line.contains("trace::"))
}

/// Runs a part, and checks the titles and stations of its steps, and the files that they name.
fn shows(part: Part, expected: &[(&str, &str, &str)]) {
    let steps = lesson(part);
    let found: Vec<(&str, &str, &str)> = steps
        .iter()
        .map(|Step { title, place, trace }| {
            let station = trace.split(' ').nth(1).unwrap_or_default();
            let (file, _) = place.rsplit_once(':').unwrap_or_default();
            // A watch may be faster than the answer, which then shows the echo.
            let is_early = title == "echo" && file == REQUEST;
            (title.as_str(), station, if is_early { REFLECTOR } else { file })
        })
        .collect();
    assert_eq!(found, expected);
    for Step { place, trace, .. } in &steps {
        assert!(is_station(place), "{place} is not the station of: {trace}");
    }
}

const REFLECTOR: &str = "src/cache/reflector.rs";
const FIFO: &str = "src/cache/delta_fifo.rs";
const INFORMER: &str = "src/cache/informer.rs";
const PROCESSOR: &str = "src/cache/processor.rs";
const LISTER: &str = "src/cache/lister.rs";
const QUEUE: &str = "src/workqueue/rate_limiting.rs";
const RUNNER: &str = "src/controllers/runner/queue.rs";
const REQUEST: &str = "src/client/request.rs";
const ELECTOR: &str = "src/leaderelection/elector.rs";

#[test]
fn the_life_of_one_change_is_shown() {
    shows(
        Part::Change,
        &[
            ("event", "received", REFLECTOR),
            ("delta", "queued", FIFO),
            ("index", "cached", INFORMER),
            ("handler", "handler", PROCESSOR),
            ("key", "key-queued", QUEUE),
            ("sync", "sync-began", RUNNER),
            ("read", "read", LISTER),
            ("request", "request-sent", REQUEST),
            ("write", "wrote", REQUEST),
            ("echo", "seen-again", REFLECTOR),
            ("rest", "sync-ended", RUNNER),
        ],
    );
}

#[test]
fn a_dropped_watch_is_shown() {
    shows(
        Part::DroppedWatch,
        &[
            ("broken", "phase-ended", REFLECTOR),
            ("verify", "phase-ended", REFLECTOR),
            ("event", "received", REFLECTOR),
            ("index", "cached", INFORMER),
        ],
    );
}

#[test]
fn a_410_is_shown() {
    shows(
        Part::Gone,
        &[
            ("410 Gone", "phase-ended", REFLECTOR),
            ("wait", "phase-ended", REFLECTOR),
            ("list", "phase-ended", REFLECTOR),
            ("delta", "queued", FIFO),
            ("index", "cached", INFORMER),
            ("handler", "handler", PROCESSOR),
            ("write", "wrote", REQUEST),
        ],
    );
}

#[test]
fn a_conflict_is_shown() {
    shows(
        Part::Conflict,
        &[
            ("sync", "sync-began", RUNNER),
            ("stale read", "read", LISTER),
            ("request", "request-sent", REQUEST),
            ("409 Conflict", "answered", REQUEST),
            ("end", "sync-ended", RUNNER),
            ("requeue", "key-queued", QUEUE),
            ("event", "received", REFLECTOR),
            ("retry", "sync-began", RUNNER),
            ("write", "wrote", REQUEST),
            ("echo", "seen-again", REFLECTOR),
        ],
    );
}

#[test]
fn a_lost_lease_is_shown() {
    shows(
        Part::LostLease,
        &[
            ("acquired", "lease-acquired", ELECTOR),
            ("standby", "lease-tried", ELECTOR),
            ("refused", "answered", REQUEST),
            ("lost", "lease-lost", ELECTOR),
            ("taken", "lease-acquired", ELECTOR),
            ("list", "received", REFLECTOR),
            ("rest", "sync-ended", RUNNER),
        ],
    );
}
