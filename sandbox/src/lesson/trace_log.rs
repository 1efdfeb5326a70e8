//! The trace that a manager writes with `--trace-object`, read from its log while it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A station that a traced object passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The number of the event, sync, phase or attempt.
    pub span: u64,
    /// The station's place in the source: `src/cache/reflector.rs:202`.
    pub place: String,
    pub station: String,
    /// The rest of the line.
    pub rest: String,
}

impl Line {
    /// Parses a line of the trace; `None` for other lines of the log.
    ///
    /// `I1121 05:02:33.123456       1 src/a.rs:10] trace span=7 queued Pod default/a …`
    fn parse(line: &str) -> Option<Line> {
        let (header, rest) = line.split_once("] trace span=")?;
        let (span, rest) = rest.split_once(' ')?;
        let (station, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Line {
            span: span.parse().ok()?,
            place: header.rsplit(' ').next()?.to_owned(),
            station: station.to_owned(),
            rest: rest.to_owned(),
        })
    }

    /// Returns the spans that caused this one.
    fn causes(&self) -> impl Iterator<Item = u64> {
        let by = self.rest.split(' ').find_map(|word| word.strip_prefix("by="));
        by.into_iter().flat_map(|by| by.split(',')).filter_map(|span| span.parse().ok())
    }

    /// Returns the value of `name=` in the rest of the line.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self.rest.split(' ').filter_map(|word| word.split_once('='));
        fields.into_iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }
}

/// Selects a line: every condition must hold.
#[derive(Clone, Default)]
pub struct Find {
    station: &'static str,
    parts: Vec<String>,
    span: Option<u64>,
    cause: Option<u64>,
    without: Option<&'static str>,
}

impl Find {
    pub fn station(station: &'static str) -> Find {
        Find { station, ..Find::default() }
    }

    /// Requires that the line contains this text.
    pub fn with(mut self, part: impl Into<String>) -> Find {
        self.parts.push(part.into());
        self
    }

    /// Requires that the line belongs to this span.
    pub fn span(mut self, span: u64) -> Find {
        self.span = Some(span);
        self
    }

    /// Requires that the line's span was caused by this one, directly or not.
    pub fn caused_by(mut self, span: u64) -> Find {
        self.cause = Some(span);
        self
    }

    /// Requires that no line of the same span is of this station.
    pub fn without(mut self, station: &'static str) -> Find {
        self.without = Some(station);
        self
    }

    /// Returns the condition in words, for errors.
    pub fn describe(&self) -> String {
        let span = self.span.map(|span| format!(" in span {span}"));
        let cause = self.cause.map(|span| format!(" caused by span {span}"));
        let parts = self.parts.join(", ");
        [Some(format!("{} {parts}", self.station)), span, cause].into_iter().flatten().collect()
    }

    /// Finds the first line that meets all conditions.
    fn find<'l>(&self, lines: &'l [Line]) -> Option<&'l Line> {
        let is_caused = |line: &Line| match self.cause {
            None => true,
            Some(cause) => is_caused(lines, line.span, cause),
        };
        let is_with = |line: &Line, station: &str| {
            lines.iter().any(|other| other.span == line.span && other.station == station)
        };
        lines.iter().find(|line| {
            line.station == self.station
                && self.parts.iter().all(|part| line.rest.contains(part))
                && self.span.is_none_or(|span| line.span == span)
                && self.without.is_none_or(|station| !is_with(line, station))
                && is_caused(line)
        })
    }
}

/// Returns whether `cause` led to `span`: by keys that it queued, and by the echoes of what those
/// wrote.
fn is_caused(lines: &[Line], span: u64, cause: u64) -> bool {
    // A span's causes are older than itself.
    if span <= cause {
        return span == cause;
    }
    let mut causes = lines.iter().filter(|line| line.span == span).flat_map(Line::causes);
    causes.any(|older| older < span && is_caused(lines, older, cause))
}

/// The trace in a log.
pub struct TraceLog {
    path: PathBuf,
    read: u64,
    /// The beginning of a line whose end has not been written yet.
    partial: Vec<u8>,
    lines: Vec<Line>,
    /// Earlier lines are of an earlier lesson.
    from: usize,
}

impl TraceLog {
    pub fn new(path: &Path) -> TraceLog {
        TraceLog { path: path.into(), read: 0, partial: Vec::new(), lines: Vec::new(), from: 0 }
    }

    /// Ignores the lines whose end was written up to now.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn forget(&mut self) -> io::Result<()> {
        self.read_new_lines()?;
        self.from = self.lines.len();
        Ok(())
    }

    /// Returns the first line that fits, if it has been written.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn find(&mut self, find: &Find) -> io::Result<Option<Line>> {
        self.read_new_lines()?;
        Ok(find.find(&self.lines[self.from..]).cloned())
    }

    /// Reads what was added to the log since the last call, and parses its whole lines. An
    /// incomplete line stays in `partial`.
    fn read_new_lines(&mut self) -> io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        self.read += file.read_to_end(&mut self.partial)? as u64;
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        self.lines.extend(String::from_utf8_lossy(&whole).lines().filter_map(Line::parse));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        let header = "I1121 05:02:33.123456       1 src/a/b.rs:10] trace span=";
        text.lines().map(|line| Line::parse(&format!("{header}{line}")).expect("a line")).collect()
    }

    #[test]
    fn a_line_is_split_into_its_fields() {
        let line = lines("7 queued Pod default/a delta=Added depth=1").remove(0);
        assert_eq!((line.span, &*line.place, &*line.station), (7, "src/a/b.rs:10", "queued"));
        assert_eq!(line.rest, "Pod default/a delta=Added depth=1");
        assert_eq!((line.field("delta"), line.field("del")), (Some("Added"), None));
        assert_eq!(Line::parse("I1121 05:02:33.123456 1 a.rs:10] no trace"), None);
    }

    #[test]
    fn a_line_is_found_by_text_span_and_cause() {
        let lines = lines(
            "1 received a version=1\n2 sync-began k by=1\n2 wrote b version=2\n\
             3 received b version=2\n3 seen-again b version=2 by=2\n4 sync-began k by=9,3\n\
             5 sync-began k by=9",
        );
        let span = |find: Find| find.find(&lines).map(|line| line.span);
        let sync = || Find::station("sync-began");
        for (find, found) in [
            (Find::station("received").with("b "), Some(3)),
            (Find::station("received").with("c "), None),
            (sync().span(4), Some(4)),
            (sync().without("wrote"), Some(4)),
            (sync().without("wrote").caused_by(1), Some(4)),
            (sync().span(5).caused_by(1), None),
            (Find::station("wrote").caused_by(1), Some(2)),
            (Find::station("wrote").caused_by(3), None),
        ] {
            assert_eq!(span(find.clone()), found, "{}", find.describe());
        }
    }

    #[test]
    fn a_log_is_read_while_it_grows() {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!("trace-log-{}", std::process::id()));
        let mut file = File::create(&path).expect("a file");
        let mut log = TraceLog::new(&path);
        let find = Find::station("queued");
        let mut found = |file: &mut File, text: &str| {
            file.write_all(text.as_bytes()).expect("written");
            log.find(&find).expect("read").map(|line| line.span)
        };
        assert_eq!(found(&mut file, "I a.rs:1] hello\nI a.rs:2] trace span=3 que"), None);
        assert_eq!(found(&mut file, "ued a\n"), Some(3));
        log.forget().expect("read");
        assert!(log.find(&find).expect("read").is_none());
        std::fs::remove_file(&path).expect("removed");
    }
}
