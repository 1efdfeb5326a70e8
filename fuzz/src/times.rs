//! Times and durations, one a line. What is written is read as the same value.

use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::options::{parse_duration, show_duration};

/// Checks that a time stays the same when it is written and read.
fn check_time(time: Timestamp) {
    // Written and read as JSON, whose years may have more than four digits.
    let json = serde_json::to_string(&time).expect("a text");
    let again: Timestamp = serde_json::from_str(&json).expect("what was written");
    assert_eq!(again, time.truncate_to_secs(), "{json}");
    let micros = format!("{:?}", time.to_micro_string());
    let again: Timestamp = serde_json::from_str(&micros).expect("what was written");
    assert_eq!(again, time, "{micros}");
    let jiff = Timestamp::from(time.to_jiff());
    assert!(jiff == time || !(-300_000_000_000..=253_402_000_000).contains(&time.as_secs()));
}

/// Parses lines as times and durations, and checks that what is shown is read as the same.
pub fn target(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    for line in text.lines().take(4) {
        if let Ok(time) = line.parse::<Timestamp>() {
            check_time(time);
            let json = serde_json::to_string(line).expect("a text");
            assert_eq!(serde_json::from_str::<Timestamp>(&json).ok(), Some(time), "{line:?}");
        }
        if let Ok(micros) = line.parse() {
            check_time(Timestamp::from_micros(micros));
        }
        if let Ok(duration) = parse_duration(line) {
            let shown = show_duration(duration);
            assert_eq!(parse_duration(&shown), Ok(duration), "{line:?} {shown:?}");
        }
        // Go's durations again, in expressions.
        if let Some(duration) = sandbox::cel::parse_duration(line) {
            assert!(!format!("{duration:?}").is_empty());
        }
    }
    let _: Result<Timestamp, _> = serde_json::from_slice(input);
}
