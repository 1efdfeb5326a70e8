//! A short soak: two managers under faults and work of every kind.

use std::path::PathBuf;
use std::time::Duration;

use kube_controller_manager::task::StopToken;
use sandbox::SandboxOptions;
use sandbox::soak::Soak;

use crate::env::*;
use crate::real;

/// How long the way to the final state may take: Jobs wait for minutes after failures.
const LONGEST: Duration = Duration::from_secs(900);

#[test]
fn nothing_is_lost_or_doubled_under_faults() {
    if !long_tests() {
        return eprintln!("soak: skipped without LONG_TESTS");
    }
    run("soak", None);
}

#[test]
fn nothing_is_lost_or_doubled_on_a_real_server() {
    let Some(assets) = real::assets() else { return };
    let _turn = real::turn();
    run("real-soak", Some(assets));
}

fn run(name: &str, assets: Option<PathBuf>) {
    let folder = Folder::new(name);
    let soak = Soak {
        sandbox: SandboxOptions::new(folder.0.clone()),
        assets,
        length: Duration::from_secs(30),
        seed: 3,
        manager: manager_program(),
        manager_flags: Vec::new(),
        patience: LONGEST,
    };
    let report = block_on(soak.run(StopToken::new())).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.is_sound(), "{report}");
    // The first objects alone are enough to check these.
    for name in [
        "one pod for each ordinal of a StatefulSet",
        "one live pod of a DaemonSet on each node",
        "no ReplicaSet above its highest replicas",
        "no volume attached twice",
        "no quota passed",
        "only the holder of the lease writes",
    ] {
        assert!(report.checked.get(name).is_some_and(|times| *times > 0), "{name}: {report}");
    }
    assert!(report.faults.values().sum::<u64>() > 3, "{report}");
}
