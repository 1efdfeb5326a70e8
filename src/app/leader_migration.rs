//! Leader migration: some controllers run under a second lease, which another manager may take
//! over. So controllers can move from this manager to a cloud controller manager and never run in
//! both.
//! Upstream: `controller-manager/pkg/leadermigration`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::controller_table::TOKEN_CONTROLLER;
use crate::options::Options;

const GROUP: &str = "controllermanager.config.k8s.io";
const KIND: &str = "LeaderMigrationConfiguration";

/// The content of `--leader-migration-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderMigration {
    /// Name of the second lease.
    pub leader_name: String,
    leaders: Vec<Leader>,
    /// The component that this process is.
    program: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Leader {
    #[serde(default)]
    name: String,
    /// The component that may run it; `*`: any that takes part in the migration.
    #[serde(default)]
    component: String,
}

/// The lease under which a controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    Main,
    Migration,
    /// Another component runs it.
    Others,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    leader_name: String,
    resource_lock: Option<String>,
    #[serde(default)]
    controller_leaders: Option<Vec<Leader>>,
}

impl LeaderMigration {
    /// Returns the migration that the flags describe; `None` if there is no migration, or no
    /// election.
    ///
    /// # Errors
    /// One line naming the flag, the file and its fault.
    pub fn from_options(options: &Options) -> Result<Option<LeaderMigration>, String> {
        let file = &options.leader_migration_config;
        let migration = match (options.enable_leader_migration, file.as_str()) {
            (false, _) => return Ok(None),
            (true, "") => LeaderMigration::without_file(options.program),
            (true, file) => {
                let fault = |error: String| format!("--leader-migration-config: {file}: {error}");
                let text = std::fs::read(file).map_err(|error| fault(error.to_string()))?;
                LeaderMigration::parse(&text, options.program).map_err(fault)?
            }
        };
        Ok(options.leader_elect.then_some(migration))
    }

    /// Parses the file of `--leader-migration-config`; an error lists all faults of its
    /// fields, or says that the file is of another kind or malformed.
    fn parse(yaml: &[u8], program: &'static str) -> Result<LeaderMigration, String> {
        let file: File = serde_yaml_ng::from_slice(yaml).map_err(|error| error.to_string())?;
        let version = match file.api_version.split_once('/') {
            Some((GROUP, version @ ("v1" | "v1beta1" | "v1alpha1"))) if file.kind == KIND => {
                version
            }
            _ => {
                return Err(format!(
                    "no kind {:?} is registered for version {:?}",
                    file.kind, file.api_version
                ));
            }
        };
        let mut problems = Vec::new();
        // v1 has leases only, and no field for the kind of lock.
        match (version, file.resource_lock.as_deref()) {
            ("v1", Some(_)) => problems.push("unknown field \"resourceLock\"".to_string()),
            ("v1", None) | (_, Some("leases")) => (),
            // Upstream accepts the value, and then fails: clients no longer have such a lock.
            (_, lock) => problems.push(format!(
                "resourceLock: Invalid value: {:?}: must be \"leases\"",
                lock.unwrap_or_default()
            )),
        }
        if file.leader_name.is_empty() {
            problems.push("leaderName: Required value".into());
        }
        let leaders = file.controller_leaders.unwrap_or_default();
        for (index, leader) in leaders.iter().enumerate() {
            for (field, value) in [("component", &leader.component), ("name", &leader.name)] {
                if value.is_empty() {
                    problems.push(format!("controllerLeaders[{index}].{field}: Required value"));
                }
            }
        }
        match problems.is_empty() {
            true => Ok(LeaderMigration { leader_name: file.leader_name, leaders, program }),
            false => Err(problems.join(", ")),
        }
    }

    /// Returns the lease under which `controller` runs, by its current name. The last entry about a
    /// controller counts. The token controller never migrates.
    pub fn lease_of(&self, controller: &str) -> Lease {
        let entry = self.leaders.iter().rev().find(|leader| leader.name == controller);
        match entry {
            _ if controller == TOKEN_CONTROLLER => Lease::Main,
            None => Lease::Main,
            Some(leader) if [self.program, "*"].contains(&leader.component.as_str()) => {
                Lease::Migration
            }
            Some(_) => Lease::Others,
        }
    }

    /// Returns the form in `/configz`.
    pub fn configz(&self) -> Value {
        json!({
            "leaderName": self.leader_name,
            "resourceLock": "leases",
            "controllerLeaders": self.leaders,
        })
    }

    /// Returns the migration that is used when no file describes one.
    /// Upstream: `DefaultLeaderMigrationConfiguration`. Two of its names are of no controller: only
    /// `cloud-node-lifecycle-controller` migrates.
    fn without_file(program: &'static str) -> LeaderMigration {
        let leader = |name: &str| Leader { name: name.into(), component: "*".into() };
        LeaderMigration {
            leader_name: "cloud-provider-extraction-migration".into(),
            leaders: ["route-controller", "service-controller", "cloud-node-lifecycle-controller"]
                .map(leader)
                .into(),
            program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::PROGRAM;

    #[test]
    fn controllers_run_under_their_lease() {
        let migration = LeaderMigration::parse(
            b"apiVersion: controllermanager.config.k8s.io/v1
kind: LeaderMigrationConfiguration
leaderName: move
controllerLeaders:
- { name: node-ipam-controller, component: kube-controller-manager }
- { name: ttl-controller, component: '*' }
- { name: job-controller, component: cloud-controller-manager }
- { name: serviceaccount-token-controller, component: '*' }
",
            PROGRAM,
        )
        .expect("a configuration");
        assert_eq!(migration.leader_name, "move");
        for (name, lease) in [
            ("node-ipam-controller", Lease::Migration),
            ("ttl-controller", Lease::Migration),
            ("job-controller", Lease::Others),
            ("deployment-controller", Lease::Main),
            (TOKEN_CONTROLLER, Lease::Main),
        ] {
            assert_eq!(migration.lease_of(name), lease, "{name}");
        }
        assert_eq!(migration.configz()["controllerLeaders"][1]["component"], "*");
        let standard = LeaderMigration::without_file(PROGRAM);
        assert_eq!(standard.lease_of("cloud-node-lifecycle-controller"), Lease::Migration);
        assert_eq!(standard.lease_of("deployment-controller"), Lease::Main);
    }

    #[test]
    fn faults_of_a_file_are_named() {
        let with = |version: &str, rest: &str| {
            let text = format!("apiVersion: {GROUP}/{version}\nkind: {KIND}\n{rest}");
            LeaderMigration::parse(text.as_bytes(), PROGRAM).map(|migration| migration.leader_name)
        };
        assert_eq!(with("v1alpha1", "leaderName: a\nresourceLock: leases\n"), Ok("a".into()));
        assert_eq!(with("v1beta1", "leaderName: a\nresourceLock: leases\n"), Ok("a".into()));
        for (version, rest, expected) in [
            ("v2", "leaderName: a", "no kind \"LeaderMigrationConfiguration\" is registered"),
            ("v1", "", "leaderName: Required value"),
            ("v1", "leaderName: a\nresourceLock: leases", "unknown field \"resourceLock\""),
            ("v1", "leaderName: a\nnope: 1", "unknown field `nope`"),
            ("v1beta1", "leaderName: a", "resourceLock: Invalid value: \"\""),
            ("v1beta1", "leaderName: a\nresourceLock: x", "resourceLock: Invalid value: \"x\""),
            (
                "v1",
                "leaderName: a\ncontrollerLeaders: [{name: x}]",
                "controllerLeaders[0].component: Required value",
            ),
        ] {
            let error = with(version, rest).expect_err(rest);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn no_migration_without_an_election() {
        let mut options = Options { enable_leader_migration: true, ..Options::default() };
        assert_eq!(
            LeaderMigration::from_options(&options),
            Ok(Some(LeaderMigration::without_file(PROGRAM)))
        );
        options.leader_elect = false;
        assert_eq!(LeaderMigration::from_options(&options), Ok(None));
        options.leader_migration_config = "/nowhere/migration.yaml".into();
        let error = LeaderMigration::from_options(&options).expect_err("no file");
        assert!(error.starts_with("--leader-migration-config: /nowhere/migration.yaml: "));
        options.enable_leader_migration = false;
        assert_eq!(LeaderMigration::from_options(&options), Ok(None));
    }
}
