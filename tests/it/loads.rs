//! The loads of the sandbox, in small sizes: a memory limit, many managers, and a spread
//! cluster.

use std::time::Duration;

use kube_controller_manager::task::StopToken;
use sandbox::SandboxOptions;
use sandbox::load::{Density, Load, Report, Row, SmallestLimit};
use sandbox::nodes::NodeOptions;

use crate::env::*;

fn load(folder: &Folder, size: &str) -> Load {
    Load {
        sandbox: SandboxOptions::new(folder.0.clone()),
        kubeconfig: None,
        nodes: NodeOptions::default(),
        size: size.parse().expect("a size"),
        config_maps: 0,
        idle: Duration::ZERO,
        manager: manager_program(),
        manager_flags: Vec::new(),
        pages: false,
        limit: None,
        quiet: Duration::from_secs(1),
        patience: PATIENCE,
    }
}

fn run(load: Load) -> Report {
    block_on(load.run(StopToken::new())).unwrap_or_else(|error| panic!("{error}"))
}

fn row<'a>(report: &'a Report, phase: &str) -> &'a Row {
    let found = report.rows.iter().find(|row| row.phase == phase);
    found.unwrap_or_else(|| panic!("no row {phase} in\n{report}"))
}

/// Runs a load with a memory limit; `None`: no memory cgroup can be written here.
fn limited(name: &str, size: &str, limit: &str) -> Option<Report> {
    let folder = Folder::new(name);
    let limit = Some(limit.parse().expect("a number of bytes"));
    let report = run(Load { limit, ..load(&folder, size) });
    let Some(why) = &report.limit.as_ref().expect("it has a limit").skipped else {
        return Some(report);
    };
    println!("skipped: {why}");
    assert!(report.rows.is_empty(), "no load without its limit");
    assert!(report.to_string().ends_with(&format!("skipped, {why}\n")), "{report}");
    None
}

#[test]
fn a_manager_lives_under_a_memory_limit_that_it_does_not_need() {
    let size = "deployments=2,replicas=3,storm=4";
    let Some(report) = limited("limit", size, "1Gi") else { return };
    let limit = report.limit.as_ref().unwrap();
    assert!(limit.lived, "{report}");
    assert_eq!((limit.counts.hits, limit.counts.kills), (Some(0), 0), "{report}");
    assert_eq!(row(&report, "storm: all pods ready").limit_hits, Some(0));
    assert!(row(&report, "namespace deleted").private_bytes > 0, "{report}");
    assert!(report.to_string().contains("memory limit 1073.7 MB: lived, met the limit 0 times"));
}

#[test]
fn a_manager_that_is_killed_at_its_memory_limit_is_reported() {
    let size = "deployments=1,replicas=1";
    let Some(report) = limited("out-of-memory", size, "1M") else { return };
    let limit = report.limit.as_ref().unwrap();
    assert!(!limit.lived && limit.counts.kills > 0 && limit.counts.hits != Some(0), "{report}");
    let last = report.rows.last().expect("the phase of its end");
    assert_eq!(last.phase, "empty cluster");
    assert!(last.skipped.as_ref().is_some_and(|why| why.contains("killed at its memory limit")));
}

#[test]
fn the_smallest_memory_limit_is_found() {
    let folder = Folder::new("smallest-limit");
    let search = SmallestLimit {
        load: load(&folder, "deployments=0"),
        step: "16M".parse().expect("a number of bytes"),
    };
    let report = block_on(search.run(StopToken::new())).unwrap_or_else(|error| panic!("{error}"));
    if let Some(why) = report.skipped {
        println!("skipped: {why}");
        return;
    }
    let [found] = &report.stages[..] else { panic!("{report}") };
    assert!(found.limit_bytes.0 <= found.unlimited_peak_bytes, "{report}");
    assert!(found.limit_bytes.0 > found.anonymous_bytes / 2, "{report}");
    assert!(found.seconds > 0.0 && found.unlimited_anonymous_bytes > 0, "{report}");
}

#[test]
fn managers_are_measured_at_rest_beside_empty_servers() {
    let folder = Folder::new("density");
    let density = Density {
        dir: folder.0.clone(),
        managers: 2,
        idle: Duration::from_secs(1),
        manager: manager_program(),
        manager_flags: quick_election(),
    };
    let report = block_on(density.run(StopToken::new())).unwrap_or_else(|error| panic!("{error}"));
    // A machine may lack the memory for both.
    if report.managers < 2 {
        println!("skipped: memory for {} of 2 managers", report.managers);
        return;
    }
    assert!(report.private_bytes.mean > 0.0, "{report}");
    assert!(report.private_bytes.mean <= report.resident_bytes.mean, "{report}");
    assert!(report.private_bytes.mean >= report.anonymous_bytes.mean / 2.0, "{report}");
    assert!(report.to_string().contains("2 managers beside empty API servers"), "{report}");
}

#[test]
fn a_load_is_spread_over_namespaces_with_services_and_jobs() {
    let folder = Folder::new("spread");
    let size = "scale=20,deployments=4,replicas=5,namespaces=12,services=4,jobs=3,minutes=0";
    let report = run(load(&folder, size));
    // Not "all pods ready": on a slow machine they are ready as soon as they exist.
    for phase in ["namespaces, Services", "all pods exist", "Jobs finished"] {
        let times = row(&report, phase).queues.as_ref().expect("the manager's metrics");
        assert!(times.syncs > 0, "{phase}: {times:?}");
    }
    let start = row(&report, "restarted: first write");
    let after = start.after_lists_seconds.expect("the embedded server notes its lists");
    assert!(after < start.seconds, "the lists are sent after the start\n{report}");
    let deleted = row(&report, "a tenth deleted");
    let deletions = &deleted.requests.as_ref().expect("counted")["deletecollection"];
    assert!(deletions.requests > 0, "{report}");
    assert!(report.to_string().contains("of CPU a pod"), "{report}");
}
