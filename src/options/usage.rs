//! `--help`.

use std::collections::BTreeMap;
use std::iter::repeat;

use super::feature_gate_table::Stage;
use super::feature_gates::on_if_compatible;
use super::flags::FlagInfo;
use super::release::Release;
use super::values::Gates;

/// What `--help` says of a manager beside its flags.
pub struct Manual<'a> {
    /// The program's name.
    pub program: &'a str,
    /// A paragraph.
    pub about: &'a str,
    /// The names that `--controllers` accepts.
    pub controllers: &'a [&'a str],
    /// Those of them that are off by default.
    pub off: &'a [&'a str],
}

/// Returns the text of a manager's `--help`.
pub fn usage<T>(manual: &Manual<'_>, flags: &[FlagInfo<T>], defaults: &T) -> String {
    let Manual { program, about, controllers, off } = manual;
    let more = |field: &str| match field {
        "controllers" => vec![
            format!("All controllers: {}", controllers.join(", ")),
            format!("Disabled-by-default controllers: {}", off.join(", ")),
        ],
        "feature_gates" => gates(),
        _ => Vec::new(),
    };
    program_usage(program, about, flags, defaults, more)
}

/// Returns the text of a program's `--help`: what it is `about`, and its flags in groups, with
/// kinds and defaults. `more`: the lines below the help of a flag, by its field.
pub fn program_usage<T>(
    program: &str,
    about: &str,
    flags: &[FlagInfo<T>],
    defaults: &T,
    more: impl Fn(&str) -> Vec<String>,
) -> String {
    let mut text = format!("{about}\n\nUsage:\n  {program} [flags]\n");
    let left_column = |field: &str, name: &str, kind: &str| {
        let short = if field == "v" { "  -v, " } else { "      " };
        format!("{short}--{name} {kind}").trim_end().to_string()
    };
    let shown_flags = || flags.iter().filter(|flag| flag.deprecated().is_none());
    let mut groups: Vec<&str> = Vec::new();
    for flag in shown_flags() {
        if !groups.contains(&flag.group) {
            groups.push(flag.group);
        }
    }
    for group in groups {
        let flags = shown_flags().filter(|flag| flag.group == group);
        let mut rows: Vec<(String, Vec<String>)> = flags
            .map(|flag| {
                let mut help =
                    flag.help.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
                let default = (flag.default)(defaults);
                if !default.is_empty() {
                    help.push_str(&format!(" (default {default})"));
                }
                let mut lines = vec![help];
                lines.extend(more(flag.field));
                (left_column(flag.field, &flag.name(), flag.kind), lines)
            })
            .collect();
        if group == "Global" {
            rows.insert(0, ("  -h, --help".into(), vec![format!("Help for {program}.")]));
        }
        let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
        text.push_str(&format!("\n{group} flags:\n\n"));
        for (left, lines) in &rows {
            for (line, left) in lines.iter().zip([left.as_str()].into_iter().chain(repeat(""))) {
                text.push_str(&format!("{left:width$}   {line}\n"));
            }
        }
    }
    text
}

/// Returns the gates that may be set in 1.36 or 1.37, a line each, with the defaults of both if
/// they differ. Older releases are not shown.
/// Upstream: `KnownFeatures`.
fn gates() -> Vec<String> {
    let mut gates = BTreeMap::new();
    for release in [Release::V1_36, Release::V1_37] {
        for (name, stage, default) in (Gates { release, ..Gates::default() }).all() {
            let more = on_if_compatible(name)
                .map(|least| format!(", or true if --min-compatibility-version>={least}"));
            let text = format!("{} - default={default}{}", stage.name(), more.unwrap_or_default());
            // As upstream, gates that are GA or deprecated are not listed.
            let is_listed = matches!(stage, Stage::Alpha | Stage::Beta);
            gates.entry(name).or_insert_with(Vec::new).push(is_listed.then_some((release, text)));
        }
    }
    let line = |(name, states): (&str, Vec<Option<(Release, String)>>)| {
        let states: Vec<(Release, String)> = states.into_iter().flatten().collect();
        let shown = match &states[..] {
            [] => return None,
            [(_, one), (_, other)] if one == other => one.clone(),
            differing => {
                let shown = differing.iter().map(|(release, text)| format!("{release}: {text}"));
                shown.collect::<Vec<_>>().join("; ")
            }
        };
        Some(format!("kube:{name}=true|false ({shown})"))
    };
    gates.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::options::flags::{FLAGS, OWN};

    #[test]
    fn help_shows_groups_kinds_and_defaults() {
        let manual = Manual {
            program: "a-manager",
            about: "Manages.",
            controllers: &["a-controller", "b-controller"],
            off: &["b-controller"],
        };
        let text = usage(&manual, FLAGS, &Options::default());
        assert!(text.contains(
            "\nDeployment-controller flags:\n\n      --concurrent-deployment-syncs int32   "
        ));
        assert!(text.contains("(default 8760h0m0s)"), "durations as Go writes them");
        assert!(text.contains("\n  -v, --v Level "));
        assert_eq!(text.matches(" flags:\n").count(), text.matches(" flags:\n\n").count());
        assert!(text.contains("   All controllers: a-controller, b-controller\n"));
        assert!(text.contains("   Disabled-by-default controllers: b-controller\n"));
        assert!(text.contains("   kube:AllBeta=true|false (BETA - default=false)\n"));
        assert!(!text.contains("kube:DynamicResourceAllocation="), "it is GA");
        assert!(text.contains(
            "   kube:DRAFractionalCapacityRange=true|false (1.37: BETA - default=false, or true if \
             --min-compatibility-version>=1.37)\n"
        ));
        assert!(!text.contains("node-sync-period"), "it is deprecated");
        for flag in FLAGS.iter().filter(|flag| flag.deprecated().is_none()) {
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
    fn the_page_of_flags_has_each_with_its_help() {
        let page = include_str!("../../docs/flags.md");
        for flag in FLAGS.iter().filter(|flag| flag.deprecated().is_none()) {
            let help = flag.help.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            let row = page.lines().find(|line| {
                line.starts_with(&format!("| `--{}`", flag.name())) && line.contains(&help)
            });
            let default = (flag.default)(&Options::default());
            let row = row.unwrap_or_else(|| panic!("no row for --{}: {help}", flag.name()));
            assert!(row.contains(&default), "{row}: {default}");
        }
    }

    #[test]
    fn the_page_of_flags_names_those_that_are_ours_alone() {
        let page = include_str!("../../docs/flags.md");
        let section = page.split("\n## ").find(|section| section.starts_with("Ours alone\n"));
        let rows = section.expect("the section").lines().filter(|line| line.starts_with("| `--"));
        let named = |flag: &&FlagInfo| flag.group == OWN;
        assert_eq!(rows.clone().count(), FLAGS.iter().filter(named).count());
        for flag in FLAGS.iter().filter(named) {
            let row = format!("| `--{}`", flag.name());
            assert!(rows.clone().any(|line| line.starts_with(&row)), "{row}");
        }
    }
}
