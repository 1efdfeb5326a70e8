//! What is asked for of a log. Upstream: `v1.PodLogOptions`, `ValidatePodLogOptions`.

use super::Error;
use super::format::Stamp;

/// Whose lines are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    #[default]
    All,
    Stdout,
    Stderr,
}

impl Streams {
    pub fn contains(self, is_stderr: bool) -> bool {
        match self {
            Streams::All => true,
            Streams::Stdout => !is_stderr,
            Streams::Stderr => is_stderr,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    /// The log of the container before.
    pub previous: bool,
    pub timestamps: bool,
    /// Only lines that are not older.
    pub since: Option<Stamp>,
    /// Lines of the file from its end; `None`: all.
    pub tail_lines: Option<u64>,
    /// `None`: no limit.
    pub limit_bytes: Option<u64>,
    pub streams: Streams,
}

impl LogOptions {
    /// Parses the decoded parameters of a query; unknown parameters are ignored, and of a parameter
    /// that is given again the first value counts.
    ///
    /// # Errors
    /// [`Error::Query`] for a value of another type, [`Error::Options`] for one out of its range,
    /// or for two that exclude each other.
    pub fn parse(query: &[(String, String)], now: Stamp) -> Result<LogOptions, Error> {
        let value = |name: &str| query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let flag = |name: &str| {
            let is_false = |text: &str| text.eq_ignore_ascii_case("false") || text == "0";
            value(name).is_some_and(|text| !is_false(text))
        };
        let number = |name: &str| -> Result<Option<i64>, Error> {
            value(name).map(|text| text.parse().map_err(|_| Error::Query)).transpose()
        };
        // An older name: `all` is the same as none.
        let tail = match value("tail").filter(|text| !text.is_empty()) {
            Some("all") => None,
            Some(tail) => Some(tail.parse().map_err(|_| Error::Query)?),
            None => number("tailLines")?,
        };
        let (limit, seconds) = (number("limitBytes")?, number("sinceSeconds")?);
        let time = value("sinceTime").filter(|text| !text.is_empty());
        let time =
            time.map(|text| Stamp::parse(text.as_bytes()).ok_or(Error::Query)).transpose()?;
        let streams = match value("stream") {
            None | Some("All") => Streams::All,
            Some("Stdout") => Streams::Stdout,
            Some("Stderr") => Streams::Stderr,
            Some(_) => return Err(Error::Options),
        };
        let is_valid = tail.is_none_or(|tail| tail >= 0)
            && limit.is_none_or(|limit| limit >= 1)
            && seconds.is_none_or(|seconds| seconds >= 1)
            && (seconds.is_none() || time.is_none())
            && (streams == Streams::All || tail.is_none());
        if !is_valid {
            return Err(Error::Options);
        }
        let unsigned = |number: Option<i64>| number.map(i64::unsigned_abs);
        Ok(LogOptions {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since: time.or(seconds.map(|seconds| now.minus(seconds))),
            tail_lines: unsigned(tail),
            limit_bytes: unsigned(limit),
            streams,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_checked() {
        let now = Stamp::of(1_800_000_000, 5);
        let ok = |options: LogOptions| Ok(options);
        let default = LogOptions::default;
        let query = || Err("Unable to decode query.");
        let invalid = || Err("Invalid request.");
        for (text, expected) in [
            ("", ok(default())),
            (
                "follow=true&previous=1",
                ok(LogOptions { follow: true, previous: true, ..default() }),
            ),
            ("follow=false&previous=0&timestamps=FALSE", ok(default())),
            (
                "follow=&timestamps=x",
                ok(LogOptions { follow: true, timestamps: true, ..default() }),
            ),
            ("tailLines=0", ok(LogOptions { tail_lines: Some(0), ..default() })),
            ("tailLines=-1", invalid()),
            ("tailLines=x", query()),
            ("tailLines=3&tail=all", ok(default())),
            ("tailLines=3&tail=7", ok(LogOptions { tail_lines: Some(7), ..default() })),
            ("limitBytes=1", ok(LogOptions { limit_bytes: Some(1), ..default() })),
            ("limitBytes=0", invalid()),
            ("sinceSeconds=0", invalid()),
            (
                "sinceSeconds=60",
                ok(LogOptions { since: Some(Stamp::of(1_799_999_940, 5)), ..default() }),
            ),
            (
                "sinceSeconds=9223372036854775807",
                ok(LogOptions { since: Some(Stamp::of(1_800_000_000 - i64::MAX, 5)), ..default() }),
            ),
            (
                "sinceTime=2027-01-15T08:00:00Z",
                ok(LogOptions { since: Some(Stamp::of(1_800_000_000, 0)), ..default() }),
            ),
            ("sinceTime=now", query()),
            ("sinceTime=2027-01-15T08:00:00Z&sinceSeconds=1", invalid()),
            ("stream=Stderr", ok(LogOptions { streams: Streams::Stderr, ..default() })),
            ("stream=All&tailLines=1", ok(LogOptions { tail_lines: Some(1), ..default() })),
            ("stream=Stdout&tailLines=1", invalid()),
            ("stream=stdout", invalid()),
            ("container=c&insecureSkipTLSVerifyBackend=true&x=y", ok(default())),
        ] {
            let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
            let pairs: Vec<_> = pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
            match (LogOptions::parse(&pairs, now), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => {
                    assert_eq!(found.to_string(), format!("{{\"message\": \"{expected}\"}}"));
                }
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        }
    }
}
