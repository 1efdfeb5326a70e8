//! The version to emulate and the oldest version of other components.
//! Upstream: `component-base/compatibility`.

use super::flags::Options;

/// Minor versions of Kubernetes 1: the oldest that may be emulated, and the current one.
const OLDEST: u32 = 33;
pub(super) const NEWEST: u32 = 36;

/// The minor version to emulate.
pub fn emulated(o: &Options) -> u32 {
    o.emulated_version.last().and_then(|text| minor(text)).unwrap_or(NEWEST)
}

/// The oldest minor version that other components may have.
pub fn min_compatible(o: &Options) -> u32 {
    let given = o.min_compatibility_version.last().and_then(|text| minor(text));
    given.unwrap_or_else(|| (emulated(o) - 1).max(OLDEST))
}

/// The minor version in `1.35`, `1.35.0` or `kube=1.35`.
fn minor(text: &str) -> Option<u32> {
    let version = text.strip_prefix("kube=").unwrap_or(text);
    let minor = version.trim_start_matches('v').strip_prefix("1.")?;
    minor.strip_suffix(".0").unwrap_or(minor).parse().ok().filter(|minor| *minor > 0)
}

/// The faults of the versions, a line each.
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
    let (emulated, least) = (emulated(o), min_compatible(o));
    if !(OLDEST..=NEWEST).contains(&emulated) {
        problems.push(format!(
            "--emulated-version: emulation version 1.{emulated} is not between \
             [1.{OLDEST}, 1.{NEWEST}]"
        ));
    } else if !(OLDEST..=emulated).contains(&least) {
        problems.push(format!(
            "--min-compatibility-version: minCompatibilityVersion version 1.{least} is not between \
             [1.{OLDEST}, 1.{emulated}]"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_can_be_emulated() {
        let mut options = Options::default();
        assert_eq!((emulated(&options), min_compatible(&options)), (36, 35));
        options.emulated_version = vec!["kube=1.34".into()];
        assert_eq!((emulated(&options), min_compatible(&options)), (34, 33));
        options.emulated_version = vec!["1.34.0".into()];
        assert_eq!((emulated(&options), min_compatible(&options)), (34, 33));
        options.emulated_version = vec!["1.33.1".into()];
        assert_eq!(version_problems(&options).len(), 1);
        options.emulated_version = vec!["1.33".into()];
        assert_eq!((emulated(&options), min_compatible(&options)), (33, 33));
        assert_eq!(version_problems(&options), Vec::<String>::new());
    }
}
