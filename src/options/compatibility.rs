//! The flags for the version to emulate and the oldest version of other components.
//! Upstream: `component-base/compatibility`.

use super::flags::Options;
use super::release::Release;

/// Returns the release that `--emulated-version` names; `None` if the API server's is followed.
pub fn emulated(o: &Options) -> Option<Release> {
    o.emulated_version.last().and_then(|text| minor(text)).and_then(Release::of_minor)
}

/// Returns the releases that the process may follow.
pub(super) fn possible(o: &Options) -> Vec<Release> {
    emulated(o).map_or_else(|| Release::ALL.to_vec(), |release| vec![release])
}

/// Returns the oldest minor version that other components may have.
pub fn min_compatible(o: &Options) -> u32 {
    let given = o.min_compatibility_version.last().and_then(|text| minor(text));
    given.unwrap_or_else(|| (o.release().minor() - 1).max(Release::OLDEST.minor()))
}

/// Returns the minor version in `1.35`, `1.35.0`, `v1.35` or `kube=1.35`; `None` for another text.
fn minor(text: &str) -> Option<u32> {
    let version = text.strip_prefix("kube=").unwrap_or(text);
    let minor = version.strip_prefix('v').unwrap_or(version).strip_prefix("1.")?;
    let minor = minor.strip_suffix(".0").unwrap_or(minor);
    let is_number = minor.bytes().all(|digit| digit.is_ascii_digit());
    minor.parse().ok().filter(|minor| is_number && *minor > 0)
}

/// Returns the faults of `--emulated-version` and `--min-compatibility-version`, a line each.
pub(super) fn version_problems(o: &Options) -> Vec<String> {
    let mut problems = Vec::new();
    for (flag, versions) in [
        ("emulated-version", &o.emulated_version),
        ("min-compatibility-version", &o.min_compatibility_version),
    ] {
        for version in versions.iter().filter(|text| minor(text).is_none()) {
            problems.push(match version.split_once('=') {
                Some((component, _)) if component != "kube" => {
                    format!("--{flag}: component not registered: {component}")
                }
                _ => format!("--{flag}: could not parse {version:?} as version"),
            });
        }
        if versions.len() > 1 {
            problems.push(format!("--{flag}: duplicate version flag, {}", versions.join(" and ")));
        }
    }
    let newest = match o.emulated_version.last().and_then(|text| minor(text)) {
        Some(minor) if Release::of_minor(minor).is_none() => {
            problems.push(format!(
                "--emulated-version: emulation version 1.{minor} is not between [{}, {}]",
                Release::OLDEST,
                Release::NEWEST
            ));
            return problems;
        }
        Some(_) | None => emulated(o).unwrap_or(Release::NEWEST),
    };
    problems.extend(min_compatibility_problem(o, newest));
    problems
}

/// Returns the fault of `--min-compatibility-version` while `newest` is followed.
pub(super) fn min_compatibility_problem(o: &Options, newest: Release) -> Option<String> {
    let least = o.min_compatibility_version.last().and_then(|text| minor(text))?;
    let oldest = Release::OLDEST;
    (!(oldest.minor()..=newest.minor()).contains(&least)).then(|| {
        format!(
            "--min-compatibility-version: minCompatibilityVersion version 1.{least} is not between \
             [{oldest}, {newest}]"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_can_be_emulated() {
        let options = |version: &str| Options {
            emulated_version: vec![version.into()],
            ..Options::default()
        };
        assert_eq!(emulated(&Options::default()), None);
        for (version, release) in [
            ("kube=1.34", Some(Release::V1_34)),
            ("1.35.0", Some(Release::V1_35)),
            ("v1.36", Some(Release::V1_36)),
            ("1.37", Some(Release::V1_37)),
            ("1.33", None),
            ("1.38", None),
            ("1.36.1", None),
            ("2.36", None),
        ] {
            assert_eq!(emulated(&options(version)), release, "{version}");
            let problems = version_problems(&options(version));
            assert_eq!(problems.is_empty(), release.is_some(), "{version}: {problems:?}");
        }
    }

    #[test]
    fn others_may_be_one_minor_version_older() {
        let mut options = Options::default();
        assert_eq!(min_compatible(&options), 35);
        options.follow(Release::V1_37).expect("no gate is given");
        assert_eq!(min_compatible(&options), 36);
        options.follow(Release::V1_34).expect("no gate is given");
        assert_eq!(min_compatible(&options), 34);
        options.min_compatibility_version = vec!["1.36".into()];
        assert_eq!(min_compatible(&options), 36);
        assert_eq!(options.follow(Release::V1_36), Ok(()));
        let problems = options.follow(Release::V1_35).expect_err("others would be newer");
        assert!(problems[0].ends_with("version 1.36 is not between [1.34, 1.35]"), "{problems:?}");
    }
}
