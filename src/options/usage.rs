//! `--help` and `--version`.

use super::flags::{FLAGS, Options};
use super::parse::PROGRAM;

/// The release of Kubernetes whose manager this one stands in for.
pub const VERSION: &str = "v1.36.2";

/// The text of `--help`: the flags in groups, with kinds and defaults.
pub fn usage() -> String {
    let mut text = format!(
        "The Kubernetes controller manager watches the state of the cluster through the API server\n\
         and makes changes that move it towards the state that is wanted.\n\n\
         Usage:\n  {PROGRAM} [flags]\n"
    );
    let defaults = Options::default();
    let left = |field: &str, name: &str, kind: &str| {
        let short = if field == "v" { "  -v, " } else { "      " };
        format!("{short}--{name} {kind}").trim_end().to_string()
    };
    let mut groups: Vec<&str> = Vec::new();
    for flag in FLAGS.iter().filter(|flag| !groups.contains(&flag.group)).collect::<Vec<_>>() {
        if !groups.contains(&flag.group) {
            groups.push(flag.group);
        }
    }
    for group in groups {
        let flags: Vec<_> = FLAGS.iter().filter(|flag| flag.group == group).collect();
        let mut rows: Vec<(String, String)> = flags
            .iter()
            .map(|flag| {
                let mut help =
                    flag.help.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
                let default = (flag.default)(&defaults);
                if !default.is_empty() {
                    help.push_str(&format!(" (default {default})"));
                }
                (left(flag.field, &flag.name(), flag.kind), help)
            })
            .collect();
        if group == "Global" {
            rows.insert(0, ("  -h, --help".into(), format!("Help for {PROGRAM}.")));
        }
        let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
        text.push_str(&format!("\n{group} flags:\n\n"));
        for (left, help) in rows {
            text.push_str(&format!("{left:width$}   {help}\n"));
        }
    }
    text
}

/// What `--version` prints. `how`: `true` or `raw`.
pub fn version(how: &str) -> String {
    match how {
        "raw" => format!("{:#}\n", version_info()),
        _ => format!("Kubernetes {VERSION}\n"),
    }
}

/// Upstream: `apimachinery/pkg/version.Info`, as served under `/version`.
pub fn version_info() -> serde_json::Value {
    let mut numbers = VERSION.trim_start_matches('v').split('.');
    serde_json::json!({
        "major": numbers.next(),
        "minor": numbers.next(),
        "gitVersion": VERSION,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_groups_kinds_and_defaults() {
        let text = usage();
        assert!(text.contains(
            "\nDeployment-controller flags:\n\n      --concurrent-deployment-syncs int32   "
        ));
        assert!(text.contains("(default 8760h0m0s)"), "durations as Go writes them");
        assert!(text.contains("\n  -v, --v Level "));
        assert_eq!(text.matches(" flags:\n").count(), text.matches(" flags:\n\n").count());
        for flag in FLAGS {
            assert_eq!(text.matches(&format!("--{} ", flag.name())).count(), {
                // Some flags are named in the help of others.
                let mentioned = FLAGS
                    .iter()
                    .flat_map(|flag| flag.help)
                    .filter(|help| help.contains(&format!("--{} ", flag.name())));
                1 + mentioned.count()
            });
        }
    }

    #[test]
    fn versions() {
        assert_eq!(version("true"), "Kubernetes v1.36.2\n");
        assert_eq!(version_info()["minor"], "36");
    }
}
