//! Where a lesson is shown: coloured and step by step on a terminal, as plain lines elsewhere.

use std::io::{self, IsTerminal, Write};

use super::trace_log::Line;
use kube_controller_manager::task::{self, StopToken};

/// The columns of the texts.
const WIDTH: usize = 96;

/// The output of a lesson.
pub struct Screen {
    out: Box<dyn Write + Send + Sync>,
    /// Whether it is a terminal, on which each step waits for Enter.
    live: bool,
    steps: usize,
}

impl Screen {
    /// Returns the standard output. It is live if a person can answer it: both it and the standard
    /// input are a terminal.
    pub fn stdout() -> Screen {
        let live = io::stdout().is_terminal() && io::stdin().is_terminal();
        Screen { live, ..Screen::plain(io::stdout()) }
    }

    /// Creates a screen of plain lines to `out`, which waits for nothing.
    pub fn plain(out: impl Write + Send + Sync + 'static) -> Screen {
        Screen { out: Box::new(out), live: false, steps: 0 }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.live { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Prints the heading of a part of the lesson, whose steps are numbered from 1.
    ///
    /// # Errors
    /// When the output cannot be written, as for all methods.
    pub fn part(&mut self, name: &str, title: &str) -> io::Result<()> {
        self.steps = 0;
        let heading = self.paint("1", &format!("{name}: {title}"));
        writeln!(self.out, "\n{heading}\n")?;
        self.out.flush()
    }

    /// Prints what happens now.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        for line in wrap(text, WIDTH) {
            writeln!(self.out, "{line}")?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }

    /// Prints a step of the lesson: its title, the place in the source to open, the line of the
    /// trace, and what that means.
    pub fn step(&mut self, title: &str, line: &Line, says: &str) -> io::Result<()> {
        self.steps += 1;
        let heading = self.paint("1;36", &format!("{:>2}. {title}", self.steps));
        let place = self.paint("33", &line.place);
        let trace = format!("span={} {} {}", line.span, line.station, line.rest);
        writeln!(self.out, "{heading}   open {place}")?;
        writeln!(self.out, "    {}", self.paint("2", &trace))?;
        for line in wrap(says, WIDTH - 4) {
            writeln!(self.out, "    {line}")?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }

    /// Waits for Enter or for `stop`; returns at once without a terminal.
    pub async fn pause(&mut self, stop: &StopToken) -> io::Result<()> {
        if !self.live {
            return Ok(());
        }
        write!(self.out, "{}", self.paint("2", "Enter: next"))?;
        self.out.flush()?;
        let mut answer = String::new();
        let read = task::blocking(move || io::stdin().read_line(&mut answer).map(|_| ()));
        if let Some(read) = stop.unless_stopped(read).await {
            read?;
            // The cursor is below the question: both lines are cleared.
            write!(self.out, "\x1b[1A\x1b[J")?;
        }
        self.out.flush()
    }
}

/// Breaks `text` into lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_words() {
        for (text, lines) in [
            ("", vec![""]),
            ("a  b\n c", vec!["a b c"]),
            ("aaa bb c", vec!["aaa", "bb c"]),
            ("aaaaaaa b", vec!["aaaaaaa", "b"]),
        ] {
            assert_eq!(wrap(text, 5), lines, "{text:?}");
        }
    }
}
