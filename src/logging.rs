//! Logs in klog's format, or as JSON lines. Upstream: `component-base/logs`, `klog`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use env_logger::{Builder, Logger, Target};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::clock::SharedClock;
use crate::lines::{escaped, escaped_json};
use crate::objects::Timestamp;
use crate::trace;

/// Verbosity from which other crates may log more than warnings.
const OTHERS: i32 = 8;

/// The verbosity of the log, which may change while the process runs.
#[derive(Clone)]
pub struct Verbosity {
    general: Arc<AtomicI32>,
    modules: Arc<[(String, i32)]>,
}

impl Verbosity {
    pub fn new(general: i32, modules: &[(String, i32)]) -> Verbosity {
        Verbosity { general: Arc::new(AtomicI32::new(general)), modules: modules.into() }
    }

    fn get(&self) -> i32 {
        self.general.load(Ordering::Relaxed)
    }

    /// Sets the verbosity that `-v` set at the start. `Ok`: the text of the answer to the caller.
    ///
    /// # Errors
    /// When `text` is not a verbosity. Upstream: `logs.GlogSetter`.
    pub fn set(&self, text: &str) -> Result<String, String> {
        let Some(general) = text.parse().ok().filter(|v| *v >= 0) else {
            return Err(format!("failed to set klog.logging.verbosity {text}: not a whole number"));
        };
        self.general.store(general, Ordering::Relaxed);
        self.apply();
        Ok(format!("successfully set klog.logging.verbosity to {text}"))
    }

    /// Sets the maximum level of `log`. Must be called again when a trace begins or ends.
    pub fn apply(&self) {
        log::set_max_level(self.max_level());
    }

    /// Returns the highest level of any file, and of traces.
    fn max_level(&self) -> LevelFilter {
        let level = level_of(self.modules.iter().map(|(_, v)| *v).fold(self.get(), i32::max));
        if trace::is_on() { level.max(LevelFilter::Debug) } else { level }
    }
}

/// How a program logs.
pub struct Settings<'a> {
    /// The program's crate. It and this library log by the verbosity, other crates only warnings
    /// below verbosity 8.
    pub program: &'static str,
    /// JSON lines in place of klog's format.
    pub json: bool,
    /// Only errors go to stderr, and the rest to stdout.
    pub split: bool,
    pub verbosity: i32,
    /// Verbosity by the name of a source file, which may have `*` and `?`.
    pub modules: &'a [(String, i32)],
}

/// Installs the logger. Does nothing when there is one already.
pub fn init(settings: &Settings<'_>, clock: SharedClock) -> Verbosity {
    let json = settings.json;
    let logger = |target: Target| {
        let clock = clock.clone();
        Builder::new()
            .filter_level(LevelFilter::Trace)
            .target(target)
            .format(move |out, record| {
                let line: Line = if json { json_line } else { text_line };
                writeln!(out, "{}", line(clock.now(), record))
            })
            .build()
    };
    let verbosity = Verbosity::new(settings.verbosity, settings.modules);
    let klog = Klog {
        program: settings.program,
        verbosity: verbosity.clone(),
        errors: logger(Target::Stderr),
        others: logger(if settings.split { Target::Stdout } else { Target::Stderr }),
    };
    if log::set_boxed_logger(Box::new(klog)).is_ok() {
        verbosity.apply();
    }
    verbosity
}

/// Returns the highest level that this verbosity (`-v`) lets through.
fn level_of(verbosity: i32) -> LevelFilter {
    match verbosity {
        ..4 => LevelFilter::Info,
        4..6 => LevelFilter::Debug,
        6.. => LevelFilter::Trace,
    }
}

/// The logger of the process: `errors` writes errors, `others` all other records.
struct Klog {
    program: &'static str,
    verbosity: Verbosity,
    errors: Logger,
    others: Logger,
}

impl Klog {
    /// Writes a record, errors apart from all others.
    fn write(&self, record: &Record<'_>) {
        match record.level() {
            Level::Error => self.errors.log(record),
            _ => self.others.log(record),
        }
    }

    /// Returns whether `-v`, or `--vmodule` for its file, lets the record through.
    fn passes(&self, record: &Record<'_>) -> bool {
        let name = module_of(record);
        let modules = &self.verbosity.modules;
        let matching = modules.iter().find(|(pattern, _)| glob(pattern, name));
        let verbosity = matching.map_or_else(|| self.verbosity.get(), |(_, v)| *v);
        let our_crates = [env!("CARGO_CRATE_NAME"), self.program];
        let is_ours = our_crates.iter().any(|name| record.target().starts_with(name));
        let max_level = match is_ours || verbosity >= OTHERS {
            true => level_of(verbosity),
            false => LevelFilter::Warn,
        };
        record.level() <= max_level
    }
}

impl Log for Klog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    /// Writes a record that passes; of a traced sync, writes each record as a decision of the
    /// trace.
    fn log(&self, record: &Record<'_>) {
        if trace::is_on() && is_logged_in_span(record) {
            // Lines that a traced sync or handler logs are its decisions, at any level.
            let (span, args) = (trace::current(), record.args());
            self.write(
                &Record::builder()
                    .level(record.level())
                    .target(trace::TARGET)
                    .file(record.file())
                    .line(record.line())
                    .args(format_args!("trace span={span} decided {args}"))
                    .build(),
            );
        } else if self.passes(record) {
            self.write(record);
        }
    }

    fn flush(&self) {
        self.errors.flush();
        self.others.flush();
    }
}

/// Returns whether a controller logged the record in a traced span; lines of the trace itself do
/// not count.
fn is_logged_in_span(record: &Record<'_>) -> bool {
    let part = record.target().strip_prefix(env!("CARGO_CRATE_NAME")).unwrap_or_default();
    part.starts_with("::controllers") && trace::current() != 0 && record.level() <= Level::Debug
}

/// Formats a record as a line.
type Line = fn(Timestamp, &Record<'_>) -> String;

/// Returns the name of the record's file; in lines of the trace its whole path, as readers of a
/// trace open the file.
fn file_of<'a>(record: &Record<'a>) -> &'a str {
    let path = record.file().unwrap_or("-");
    if record.target() == trace::TARGET { path } else { path.rsplit('/').next().unwrap_or("-") }
}

/// Returns the name of the record's file in `--vmodule`: without `.rs`; for `mod.rs`, the name of
/// its folder.
fn module_of<'a>(record: &Record<'a>) -> &'a str {
    let path = record.file().unwrap_or("-");
    let path = path.strip_suffix("/mod.rs").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// Returns the number of the sync that logs the record. Lines of the trace name a span instead.
fn sync_of(record: &Record<'_>) -> Option<u64> {
    Some(trace::scope().sync).filter(|sync| *sync > 0 && record.target() != trace::TARGET)
}

/// Formats a record as klog does, in UTC: `I1121 05:02:33.123456       1 file.rs:10] message
/// sync=42`. The number is there only inside of a sync. Always one line: klog quotes names and
/// errors too.
fn text_line(now: Timestamp, record: &Record<'_>) -> String {
    let letter = match record.level() {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let time = now.to_jiff().strftime("%m%d %H:%M:%S%.6f").to_string();
    let (pid, line) = (std::process::id(), record.line().unwrap_or_default());
    let mut message = record.args().to_string();
    if let Some(sync) = sync_of(record) {
        message.push_str(&format!(" sync={sync}"));
    }
    format!("{letter}{time} {pid:>7} {}:{line}] {}", file_of(record), escaped(&message))
}

/// Formats a record as a line of JSON.
/// Upstream: `component-base/logs/json`.
fn json_line(now: Timestamp, record: &Record<'_>) -> String {
    let caller = format!("{}:{}", file_of(record), record.line().unwrap_or_default());
    let mut line = serde_json::json!({
        "ts": now.as_micros() as f64 / 1000.0,
        "caller": caller,
        "msg": record.args().to_string(),
    });
    if let Some(sync) = sync_of(record) {
        line["sync"] = sync.into();
    }
    match record.level() {
        // As in klog's JSON, errors have no verbosity.
        Level::Error => (),
        Level::Warn | Level::Info => line["v"] = 0.into(),
        Level::Debug => line["v"] = 4.into(),
        Level::Trace => line["v"] = 6.into(),
    }
    escaped_json(&line.to_string()).into_owned()
}

/// Returns whether `name` matches `pattern`: `*` stands for any characters, `?` for one.
fn glob(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            let tail = &pattern[1..];
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| glob(tail, &name[at..]))
        }
        (Some(p), Some(n)) if p == '?' || p == n => {
            glob(&pattern[p.len_utf8()..], &name[n.len_utf8()..])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_format_of_klog() {
        let now: Timestamp = "2026-11-21T05:02:33.123456Z".parse().expect("a time");
        let record = |level| {
            Record::builder()
                .level(level)
                .file(Some("src/app/mod.rs"))
                .line(Some(10))
                .args(format_args!("hello"))
                .build()
        };
        let text = text_line(now, &record(Level::Info));
        let pid = format!("{:>7}", std::process::id());
        assert_eq!(text, format!("I1121 05:02:33.123456 {pid} mod.rs:10] hello"));
        assert!(text_line(now, &record(Level::Error)).starts_with("E1121 "));
        let traced = Record::builder()
            .target(trace::TARGET)
            .file(Some("src/app/mod.rs"))
            .line(Some(10))
            .args(format_args!("hello"))
            .build();
        assert!(text_line(now, &traced).ends_with(" src/app/mod.rs:10] hello"));
        let json: serde_json::Value =
            serde_json::from_str(&json_line(now, &record(Level::Debug))).expect("JSON");
        assert_eq!((&json["caller"], &json["v"]), (&"mod.rs:10".into(), &4.into()));
        let _sync = trace::enter(trace::Scope { span: 0, sync: 42 });
        assert!(text_line(now, &record(Level::Info)).ends_with("] hello sync=42"));
        assert!(json_line(now, &record(Level::Info)).contains(r#""sync":42"#));
        assert!(text_line(now, &traced).ends_with(" hello"), "it names its span");
    }

    #[test]
    fn no_message_makes_a_second_line() {
        let now: Timestamp = "2026-11-21T05:02:33.123456Z".parse().expect("a time");
        for name in ["a\nE1121 forged.rs:1] b", "a\r\u{85}\u{2028}b", "\u{1b}[2K\u{9b}A"] {
            for (line, is_json) in [(text_line as Line, false), (json_line, true)] {
                let line = line(
                    now,
                    &Record::builder()
                        .level(Level::Info)
                        .file(Some("src/app/mod.rs"))
                        .args(format_args!("scaling {name}"))
                        .build(),
                );
                assert!(!line.contains(char::is_control), "{line}");
                assert_eq!(line.lines().count(), 1, "{line}");
                assert!(!line.contains('\u{2028}'), "{line}");
                if is_json {
                    let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                    assert_eq!(read["msg"], format!("scaling {name}"));
                }
            }
        }
    }

    #[test]
    fn verbosity_by_file_takes_precedence() {
        let logger = || Builder::new().build();
        let verbosity = Verbosity::new(0, &[("gc*".into(), 4)]);
        let klog = Klog {
            program: "a_program",
            verbosity: verbosity.clone(),
            errors: logger(),
            others: logger(),
        };
        let passes = |file, target, level| {
            klog.passes(&Record::builder().level(level).file(Some(file)).target(target).build())
        };
        assert!(passes("src/gc_graph.rs", "kube_controller_manager::x", Level::Debug));
        assert!(!passes("src/job.rs", "kube_controller_manager::x", Level::Debug));
        assert!(passes("src/job.rs", "kube_controller_manager::x", Level::Info));
        assert!(passes("src/pod.rs", "a_program::pod", Level::Info));
        assert!(!passes("src/conn.rs", "rustls::conn", Level::Info));
        assert!(passes("src/gc/mod.rs", "kube_controller_manager::x", Level::Debug));
        assert_eq!(verbosity.max_level(), LevelFilter::Debug);
        verbosity.general.store(6, Ordering::Relaxed);
        assert!(passes("src/job.rs", "kube_controller_manager::x", Level::Trace));
        assert!(!passes("src/gc_graph.rs", "kube_controller_manager::x", Level::Trace));
        for text in ["", "x", "-1"] {
            assert!(verbosity.set(text).is_err(), "{text}");
        }
        assert_eq!(verbosity.get(), 6);
        assert!(glob("a?c*", "abcd") && !glob("a?c", "abcd") && glob("*", ""));
    }
}
