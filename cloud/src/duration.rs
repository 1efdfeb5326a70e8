//! Durations in Go's form, in configurations.

use std::fmt;
use std::time::Duration;

use kube_controller_manager::options::parse_duration;
use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Deserializes a duration such as `1m30s`. It is parsed in the visitor, so that errors name the
/// field.
pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration such as 30s")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }
    }
    from.deserialize_str(Text)
}

/// Deserializes as [`duration`] does, for a field that may be absent.
pub fn some_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}
