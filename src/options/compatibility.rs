//! The flags for the version to emulate and the oldest version of other components.
//! Upstream: `component-base/compatibility`.

use super::flags::Options;
use super::release::Release;

impl Options {
    /// Lets the flags of versions choose the feature gates. Without `--emulated-version` they are
    /// those of the default release until the API server's is known.
    pub fn apply_version_flags(&mut self) {
        self.feature_gates.release = emulated(self).unwrap_or_default();
        self.feature_gates.min_compatibility =
            last(&self.min_compatibility_version).and_then(Release::of_minor);
    }

    /// Returns the releases that the process may follow.
    pub fn possible_releases(&self) -> Vec<Release> {
        emulated(self).map_or_else(|| Release::ALL.to_vec(), |release| vec![release])
    }
}

/// Returns the release that `--emulated-version` names; `None` if the API server's is followed.
pub fn emulated(o: &Options) -> Option<Release> {
    last(&o.emulated_version).and_then(Release::of_minor)
}

/// Returns the minor version in the last value of a flag; `None` without one.
fn last(versions: &[String]) -> Option<u32> {
    versions.last().and_then(|text| minor(text).ok())
}

/// Returns the minor version in `1.35`, `1.35.0`, `v1.35` or `kube=1.35`.
///
/// # Errors
/// The fault of another text.
fn minor(text: &str) -> Result<u32, String> {
    let pair = text.split_once('=').map(|(component, version)| (component.trim(), version.trim()));
    let (component, version) = pair.unwrap_or(("kube", text));
    if component != "kube" {
        return Err(format!("component not registered: {component}"));
    }
    let number = |digits: &str| {
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let numbers = version.strip_prefix('v').unwrap_or(version).split('.').map(number);
    match numbers.collect::<Option<Vec<u32>>>().as_deref() {
        Some([1, minor] | [1, minor, 0]) => Ok(*minor),
        Some([major, minor, patch]) if *patch > 0 => {
            Err(format!("patch version not allowed, got: kube={major}.{minor}.{patch}"))
        }
        _ => Err(format!("could not parse {version:?} as version")),
    }
}

/// Returns the faults of `--emulated-version` and `--min-compatibility-version`, a line each.
pub(super) fn version_problems(o: &Options) -> Vec<String> {
    let mut problems = Vec::new();
    for (flag, versions) in [
        ("emulated-version", &o.emulated_version),
        ("min-compatibility-version", &o.min_compatibility_version),
    ] {
        let mut minors = Vec::new();
        for version in versions {
            match minor(version) {
                Ok(minor) => minors.push(minor),
                Err(fault) => problems.push(format!("--{flag}: {fault}")),
            }
        }
        if let [first, second, ..] = minors[..] {
            problems.push(format!(
                "--{flag}: duplicate version flag, kube=1.{first} and kube=1.{second}"
            ));
        }
    }
    let newest = match last(&o.emulated_version) {
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
    let least = last(&o.min_compatibility_version)?;
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
        for (release, least) in [
            (Release::V1_34, Release::V1_34),
            (Release::V1_35, Release::V1_34),
            (Release::V1_36, Release::V1_35),
            (Release::V1_37, Release::V1_36),
        ] {
            options.follow(release).expect("no gate is given");
            assert_eq!(options.feature_gates.min_compatible(), least, "{release}");
        }
        options.min_compatibility_version = vec!["1.36".into()];
        options.apply_version_flags();
        assert_eq!(options.feature_gates.min_compatible(), Release::V1_36);
        assert_eq!(options.follow(Release::V1_36), Ok(()));
        let problems = options.follow(Release::V1_35).expect_err("others would be newer");
        assert!(problems[0].ends_with("version 1.36 is not between [1.34, 1.35]"), "{problems:?}");
    }
}
