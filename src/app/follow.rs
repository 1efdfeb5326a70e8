//! Chooses the release to follow: the one that `--emulated-version` names, or else the API
//! server's, since a manager must not be newer than its API server.

use std::time::Duration;

use serde_json::Value;

use super::connect::Connection;
use crate::clock::SharedClock;
use crate::options::{Options, Release, emulated};

/// The time between two requests while the API server does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// How long a refusal may last: a server that starts refuses until its rules and authenticators are
/// there.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the release to follow. Waits until the API server answers, unless a flag names the
/// release. The default if the server still refuses to answer after `REFUSAL_TIMEOUT`.
pub async fn release(
    options: &Options,
    connection: &dyn Connection,
    clock: &SharedClock,
) -> Release {
    if let Some(release) = emulated(options) {
        log::info!("Following Kubernetes {release}, which --emulated-version names");
        return release;
    }
    let deadline = clock.monotonic() + REFUSAL_TIMEOUT;
    let mut last = String::new();
    loop {
        match connection.version().await {
            Ok(version) => return of_server(&version),
            Err(error)
                if matches!(error.code(), Some(401 | 403 | 404))
                    && clock.monotonic() >= deadline =>
            {
                let release = Release::default();
                log::warn!("Following Kubernetes {release}: the API server's version: {error}");
                return release;
            }
            Err(error) => {
                let error = error.to_string();
                if error != last {
                    log::warn!("waiting for the API server's version: {error}");
                    last = error;
                }
            }
        }
        clock.sleep(RETRY).await;
    }
}

/// Returns the release to follow for a server that answered `/version` with `version`; the default
/// if that is not a version 1.N.
fn of_server(version: &Value) -> Release {
    let text = version["gitVersion"].as_str().unwrap_or_default();
    // A provider's own build may say `36+`.
    let minor = version["minor"].as_str().unwrap_or_default().trim_end_matches('+');
    let Some(minor) = minor.parse().ok().filter(|_| version["major"] == "1") else {
        let release = Release::default();
        log::warn!("Following Kubernetes {release}: the API server's version is {text:?}");
        return release;
    };
    let release = Release::for_server(minor);
    log::info!("Following Kubernetes {release}: the API server's version is {text}");
    if let Some(warning) = warning(minor) {
        log::warn!("{warning}");
    }
    release
}

/// Returns what is not known of a server of this minor version of Kubernetes 1; `None` if its
/// release is known.
fn warning(minor: u32) -> Option<String> {
    let (oldest, newest) = (Release::OLDEST, Release::NEWEST);
    if minor < oldest.minor() {
        return Some(format!(
            "the API server is older than {oldest}: this manager does not know how it differs, and \
             may ask for what it does not serve"
        ));
    }
    (minor > newest.minor()).then(|| {
        format!(
            "the API server is newer than {newest}: this manager does not know what it expects of \
             its controller manager"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn release_is_that_of_the_server() {
        for (major, minor, release) in [
            ("1", "36", Release::V1_36),
            ("1", "37+", Release::V1_37),
            ("1", "38", Release::V1_37),
            ("1", "35", Release::V1_35),
            ("1", "20", Release::V1_34),
            ("2", "37", Release::V1_36),
            ("1", "", Release::V1_36),
        ] {
            let version = json!({ "major": major, "minor": minor, "gitVersion": "v" });
            assert_eq!(of_server(&version), release, "{major}.{minor}");
        }
        assert_eq!(of_server(&Value::Null), Release::V1_36);
    }

    #[test]
    fn unknown_servers_have_a_warning() {
        let older = "the API server is older than 1.34: this manager does not know how it differs, \
                     and may ask for what it does not serve";
        let newer = "the API server is newer than 1.37: this manager does not know what it expects \
                     of its controller manager";
        for (minor, expected) in [
            (20, Some(older)),
            (33, Some(older)),
            (34, None),
            (36, None),
            (37, None),
            (38, Some(newer)),
        ] {
            assert_eq!(warning(minor).as_deref(), expected, "1.{minor}");
        }
    }
}
