//! The version of this program, as `--version` and `/version` show it.

use std::sync::OnceLock;

use super::release::Release;

/// The version of Kubernetes whose manager this one replaces, unless it follows a later release.
pub const VERSION: &str = "v1.36.2";

/// The version to report, where `--version` names one.
static REPORTED: OnceLock<String> = OnceLock::new();
/// The release that this process follows.
static FOLLOWED: OnceLock<Release> = OnceLock::new();

/// Sets the release whose version is reported. Only the first call counts.
pub fn report_release(release: Release) {
    FOLLOWED.get_or_init(|| release);
}

/// Returns the release that this process follows; the default before it is chosen.
pub fn followed() -> Release {
    FOLLOWED.get().copied().unwrap_or_default()
}

/// Returns the version of the manager that is the model of this process: `v1.36.2`.
pub fn model_version() -> &'static str {
    followed().version()
}

/// Sets the version to report. Only the first call counts.
/// Upstream: `version.SetDynamicVersion`.
pub fn report_version(version: &str) {
    REPORTED.get_or_init(|| version.into());
}

/// Returns the version that `--version` set, or else [`model_version`].
pub fn git_version() -> &'static str {
    REPORTED.get().map_or_else(model_version, String::as_str)
}

/// Returns the operating system and the processor, as Go names them.
pub fn platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        // Kubernetes runs on the little-endian one only.
        "powerpc64" => "ppc64le",
        other => other,
    };
    format!("{}/{arch}", std::env::consts::OS)
}

/// Returns the text of `--version`. `how`: `true` or `raw`.
pub fn version(how: &str) -> String {
    let info = version_info();
    let field = |name: &str| info[name].as_str().unwrap_or_default().to_string();
    match how {
        "raw" => format!(
            "version.Info{{Major:{:?}, Minor:{:?}, EmulationMajor:\"\", EmulationMinor:\"\", \
             MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:{:?}, \
             GitCommit:{:?}, GitTreeState:{:?}, BuildDate:{:?}, GoVersion:{:?}, Compiler:{:?}, \
             Platform:{:?}}}\n",
            field("major"),
            field("minor"),
            field("gitVersion"),
            field("gitCommit"),
            field("gitTreeState"),
            field("buildDate"),
            field("goVersion"),
            field("compiler"),
            field("platform"),
        ),
        _ => format!("Kubernetes {VERSION}\n"),
    }
}

/// Returns the version of this build, as served under `/version`.
/// Upstream: `apimachinery/pkg/version.Info`.
pub fn version_info() -> serde_json::Value {
    let mut numbers = model_version().trim_start_matches('v').split('.');
    serde_json::json!({
        "major": numbers.next(),
        "minor": numbers.next(),
        "gitVersion": git_version(),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": platform(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version("true"), "Kubernetes v1.36.2\n");
        assert_eq!(version_info()["minor"], "36");
        let raw = version("raw");
        assert!(raw.starts_with("version.Info{Major:\"1\", Minor:\"36\", "), "{raw}");
        assert!(raw.contains(", GitVersion:\"v1.36.2\", "), "{raw}");
    }
}
