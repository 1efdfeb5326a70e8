//! How long a stand-in container runs, and how it ends.

use std::time::Duration;

/// What a container does. Statements are `sleep SECONDS` and `exit CODE`; `true`, `false`, `:` and
/// `echo` end at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Script {
    /// Runs until it is stopped.
    Forever,
    Ends {
        after: Duration,
        code: i32,
    },
    /// Never starts: its image cannot be pulled.
    NotPulled,
}

impl Script {
    /// Parses an annotation or a shell command made of `sleep`, `exit`, `true`, `false`, `:` and
    /// `echo`. Returns when the container ends, and with which code; `None` when the text contains
    /// other statements, or none at all.
    pub fn parse(text: &str) -> Option<Script> {
        let mut after = Duration::ZERO;
        let mut code = 0;
        let separators: &[_] = &[';', '\n', '&'];
        for statement in text.split(separators).map(str::trim).filter(|text| !text.is_empty()) {
            let mut words = statement.split_whitespace();
            let (command, argument) = (words.next().unwrap_or_default(), words.next());
            code = match command.rsplit('/').next().unwrap_or_default() {
                "sleep" => match argument {
                    Some("inf" | "infinity") => return Some(Script::Forever),
                    Some(seconds) => {
                        let seconds: f64 = seconds.trim_end_matches('s').parse().ok()?;
                        after += Duration::try_from_secs_f64(seconds).ok()?;
                        0
                    }
                    None => return None,
                },
                "exit" => {
                    let code = argument.map_or(Some(code), |code| code.parse().ok())?;
                    return Some(Script::Ends { after, code });
                }
                "true" | ":" | "echo" => 0,
                "false" => 1,
                _ => return None,
            };
        }
        (!text.trim().is_empty()).then_some(Script::Ends { after, code })
    }

    /// Parses a container's command line, which may be a shell with a script (`sh -c SCRIPT`).
    /// `None` as in [`Self::parse`].
    pub fn of_command(words: &[String]) -> Option<Script> {
        match words {
            [] => None,
            [shell, option, script, ..] if is_shell(shell) && option.ends_with('c') => {
                Script::parse(script)
            }
            words => Script::parse(&words.join(" ")),
        }
    }
}

fn is_shell(command: &str) -> bool {
    matches!(command.rsplit('/').next(), Some("sh" | "bash" | "ash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_sleep_and_exit_are_understood() {
        let ends = |seconds: f64, code| {
            Some(Script::Ends { after: Duration::from_secs_f64(seconds), code })
        };
        for (words, script) in [
            (&[] as &[&str], None),
            (&["nginx", "-g", "daemon off;"], None),
            (&["exit 3"], ends(0.0, 3)),
            (&["sleep", "5"], ends(5.0, 0)),
            (&["/bin/sleep", "0.5s"], ends(0.5, 0)),
            (&["sleep", "infinity"], Some(Script::Forever)),
            (&["sleep", "soon"], None),
            (&["/bin/true"], ends(0.0, 0)),
            (&["false"], ends(0.0, 1)),
            (&["sh", "-c", "sleep 2; exit 3"], ends(2.0, 3)),
            (&["/bin/bash", "-ec", "echo hello && sleep 1\nsleep 2\nfalse"], ends(3.0, 1)),
            (&["sh", "-c", "date; exit 1"], None),
            (&["sh", "-c", "exit 1; sleep 9"], ends(0.0, 1)),
            (&["sh", "-c", "false; exit"], ends(0.0, 1)),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(Script::of_command(&words), script, "{words:?}");
        }
    }
}
