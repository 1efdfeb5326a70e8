//! The releases of Kubernetes whose manager this one can be.

use std::fmt;

use super::compatibility::min_compatibility_problem;
use super::flags::Options;
use super::version::VERSION;

/// A release of Kubernetes: which gates there are, what they are by default, and how controllers
/// behave. Shown as `1.36`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    minor: u32,
}

impl Release {
    pub const V1_34: Release = Release { minor: 34 };
    pub const V1_35: Release = Release { minor: 35 };
    pub const V1_36: Release = Release { minor: 36 };
    pub const V1_37: Release = Release { minor: 37 };
    /// All of them, in the order of the columns of the table of gates.
    pub const ALL: [Release; 4] = [Release::V1_34, Release::V1_35, Release::V1_36, Release::V1_37];
    pub const OLDEST: Release = Release::V1_34;
    pub const NEWEST: Release = Release::V1_37;

    /// Returns the release of this minor version of Kubernetes 1; `None` if it is not known.
    pub fn of_minor(minor: u32) -> Option<Release> {
        Release::ALL.into_iter().find(|release| release.minor == minor)
    }

    /// Returns the newest known release that is no newer than a server of this minor version of
    /// Kubernetes 1, or else the oldest one: a manager must not be newer than its API server.
    pub fn for_server(minor: u32) -> Release {
        let not_newer = |release: &Release| release.minor <= minor;
        Release::ALL.into_iter().rev().find(not_newer).unwrap_or(Release::OLDEST)
    }

    /// Returns the version of the manager that is this one's model, `v1.36.2`.
    pub fn version(self) -> &'static str {
        if self >= Release::V1_37 { "v1.37.0" } else { VERSION }
    }

    /// The minor version, `36`.
    pub fn minor(self) -> u32 {
        self.minor
    }

    /// Returns the release before it; the oldest one has none and returns itself.
    pub(super) fn before(self) -> Release {
        Release::of_minor(self.minor - 1).unwrap_or(self)
    }

    /// Its column in the table of gates.
    pub(super) fn column(self) -> usize {
        (self.minor - Release::OLDEST.minor) as usize
    }
}

impl Default for Release {
    /// Returns the release to follow before the API server has been asked for its version.
    fn default() -> Release {
        Release::V1_36
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}

impl Options {
    /// The release to follow.
    pub fn release(&self) -> Release {
        self.feature_gates.release
    }

    /// Follows `release` from now on.
    ///
    /// # Errors
    /// The given feature gates and `--min-compatibility-version` that it does not allow, a line
    /// each; the release is followed nevertheless.
    pub fn follow(&mut self, release: Release) -> Result<(), Vec<String>> {
        self.feature_gates.release = release;
        let mut problems = self.feature_gates.problems(&[release]);
        problems.extend(min_compatibility_problem(self, release));
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_is_never_newer_than_a_known_server() {
        for (server, release) in [
            (30, Release::V1_34),
            (34, Release::V1_34),
            (35, Release::V1_35),
            (36, Release::V1_36),
            (37, Release::V1_37),
            (38, Release::V1_37),
        ] {
            assert_eq!(Release::for_server(server), release, "1.{server}");
        }
    }
}
