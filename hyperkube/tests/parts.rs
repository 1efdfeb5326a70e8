//! The binary is each of its parts, by its first argument and by the name of a link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_hyperkube");

fn run(program: impl AsRef<Path>, args: &[&str]) -> Output {
    Command::new(program.as_ref()).args(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Links to the binary, removed when dropped.
struct Links(PathBuf);

impl Links {
    fn new(names: &[&str]) -> Links {
        let folder = std::env::temp_dir().join(format!("hyperkube-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for name in names {
            symlink(BINARY, folder.join(name)).expect("a link");
        }
        Links(folder)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_part_is_reached_by_argument_and_by_link() {
    let links =
        Links::new(&["kubelet", "kube-controller-manager", "cloud-controller-manager", "other"]);
    for (part, usage, mistake) in [
        ("kubelet", kubelet::options::usage(), "unknown flag: --controllers"),
        (
            "kube-controller-manager",
            kube_controller_manager::app::usage(),
            "unknown flag: --pod-manifest-path",
        ),
        ("cloud-controller-manager", cloud::app::usage(), "unknown flag: --concurrent-job-syncs"),
    ] {
        let flag = mistake.trim_start_matches("unknown flag: ").to_owned() + "=x";
        let other = links.0.join("other");
        let ways: [(&Path, &[&str]); 3] =
            [(Path::new(BINARY), &[part]), (&links.0.join(part), &[]), (&other, &[part])];
        for (program, first) in ways {
            let with = |arg: &str| run(program, &[first, &[arg]].concat());
            let help = with("--help");
            assert!(help.status.success());
            assert_eq!(stdout(&help), usage, "{part} by {program:?}");
            assert!(stdout(&with("--version")).starts_with("Kubernetes v1.36."));
            // A flag of the other part is unknown, and the exit code is the part's.
            let fault = with(&flag);
            assert_eq!(fault.status.code(), Some(1));
            assert_eq!(stderr(&fault).trim(), format!("Error: {mistake}"));
        }
    }
}

#[test]
fn binary_itself_names_its_parts() {
    let help = run(BINARY, &["--help"]);
    assert!(help.status.success());
    let usage = stdout(&help);
    for part in ["kube-controller-manager", "kubelet", "cloud-controller-manager"] {
        assert!(usage.contains(&format!("\n  {part} ")), "{usage}");
    }
    let nothing = run(BINARY, &[]);
    assert_eq!((nothing.status.code(), stdout(&nothing)), (Some(1), usage));
    let unknown = run(BINARY, &["kube-proxy"]);
    let fault = "Error: unknown command \"kube-proxy\" for \"hyperkube\": expected \
                 kube-controller-manager or cloud-controller-manager or kubelet";
    assert_eq!((unknown.status.code(), stderr(&unknown).trim()), (Some(1), fault));
    assert!(stdout(&run(BINARY, &["--version"])).starts_with("Kubernetes v1.36."));
}
