//! The last messages of containers that have ended, from their files or their logs. Upstream:
//! `getTerminationMessage`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use kube_controller_manager::task;

use super::Manager;
use crate::runtime::status::{PodStatus, State};

/// The bytes of a container's last message. Upstream: `MaxContainerTerminationMessageLength`.
const MAX_MESSAGE: u64 = 4096;
/// The lines and bytes of a last message that is taken from the log. Upstream:
/// `MaxContainerTerminationMessageLogLines`, `MaxContainerTerminationMessageLogLength`.
const MAX_LOG_MESSAGE: (usize, usize) = (80, 2048);
/// The bytes of the log's end in which they are looked for.
const MAX_LOG: u64 = 64 << 10;

impl Manager {
    /// Reads the last messages of a pod's containers that have ended, by their ids: from their
    /// files, else, for failed ones that ask for it, from their logs. Empty ones are left out.
    pub async fn messages(&self, status: &PodStatus) -> HashMap<String, String> {
        let ended = status.containers.iter().filter(|container| container.state == State::Exited);
        let files: Vec<_> = ended
            .map(|container| {
                let log = (container.falls_back_to_logs && container.exit_code != 0)
                    .then(|| container.log_path.clone());
                (container.id.clone(), container.message_file.clone(), log)
            })
            .collect();
        task::blocking(move || {
            let messages = files.into_iter().filter_map(|(id, file, log)| {
                let message = file.and_then(|file| tail(&file, MAX_MESSAGE));
                let message = message.filter(|text| !text.is_empty());
                Some((id, message.or_else(|| log_text(&tail(&log?, MAX_LOG)?))?))
            });
            messages.collect()
        })
        .await
    }
}

/// Reads the last bytes of a file as text. `None`: it cannot be read.
fn tail(file: &str, bytes: u64) -> Option<String> {
    let mut file = File::open(file).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes))).ok()?;
    let mut content = Vec::new();
    file.take(bytes).read_to_end(&mut content).ok()?;
    Some(String::from_utf8_lossy(&content).into_owned())
}

/// Extracts the text from lines of CRI's log format (time, stream, tag, text), and returns its end;
/// `None`: there is no text.
fn log_text(lines: &str) -> Option<String> {
    let count = lines.lines().count();
    let mut text = String::new();
    for line in lines.lines().skip(count.saturating_sub(MAX_LOG_MESSAGE.0)) {
        let mut parts = line.splitn(4, ' ').skip(2);
        if let (Some(tag), Some(part)) = (parts.next(), parts.next()) {
            text.push_str(part);
            // A partial line is followed by its rest.
            if tag != "P" {
                text.push('\n');
            }
        }
    }
    let start = text.len().saturating_sub(MAX_LOG_MESSAGE.1);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
    Some(text.split_off(start)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_out_of_log_lines() {
        let lines =
            "2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:00Z stderr F second line\n";
        assert_eq!(log_text(lines).as_deref(), Some("first\nsecond line\n"));
        assert_eq!(log_text("t stdout P a\nt stdout F b\n").as_deref(), Some("ab\n"));
        assert_eq!(log_text(""), None);
        let many: String = (0..100).map(|at| format!("t stdout F {at}\n")).collect();
        assert!(log_text(&many).is_some_and(|text| text.starts_with("20\n")));
        let long = format!("t stdout F {}\n", "é".repeat(2000));
        assert_eq!(log_text(&long).map(|text| text.len()), Some(2047));
    }
}
