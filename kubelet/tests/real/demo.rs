//! The demo shows each of its pods, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::machine::SKIPPED;
use super::node::place;

const DEMO: &str = env!("CARGO_BIN_EXE_kubelet-demo");
const PODS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/static-pods");

#[test]
fn demo_shows_each_pod_and_removes_its_machine() {
    let Some(_place) = place("demo") else { return };
    let demo = Command::new(DEMO).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let demo = demo.expect("the demo");
    let id = demo.id();
    let output = demo.wait_with_output().expect("an end");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    let folder = format!("/tmp/kubelet-demo-{id}");
    assert!(!Path::new(&folder).exists());
    if output.status.code() == Some(SKIPPED.into()) {
        eprintln!("demo: {}", errors.trim());
        return;
    }
    assert!(output.status.success(), "{text}\n{errors}");
    for file in fs::read_dir(PODS).expect("the fixtures") {
        let file = file.expect("a fixture").path();
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(text.contains(&format!(" s  {name}-demo ")), "{name}: {text}");
    }
    let status_of = |pod: &str, status: &str| {
        let lines = text.lines().filter(|line| line.contains(&format!(" {pod}-demo ")));
        let mut words = lines.flat_map(str::split_whitespace);
        assert!(words.any(|word| word == status), "{pod} {status}: {text}");
    };
    for (pod, status) in [
        ("crash", "CrashLoopBackOff"),
        ("unhealthy", "CrashLoopBackOff"),
        ("init", "1/1"),
        ("slow", "1/1"),
        ("job", "Completed"),
        ("sidecar", "Completed"),
        ("no-image", "ErrImageNeverPull"),
    ] {
        status_of(pod, status);
    }
    assert!(text.contains(": hello from web-demo on demo"), "{text}");
    // Processes, mounts and namespaces of the machine carry its folder or its name.
    let name = format!("kubeletdemo{id}");
    let name = format!("node-{}", &name[name.len().saturating_sub(12)..]);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&folder), "{mounts}");
    assert!(!Path::new("/run/netns").join(name).exists());
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    for process in processes {
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        assert!(!line.contains(&folder), "{line}");
    }
}

#[test]
fn missing_tools_are_named_with_an_exit_code_of_their_own() {
    let tools = std::env::temp_dir().join(format!("kubelet-demo-tools-{}", std::process::id()));
    fs::create_dir_all(&tools).expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in ["bash", "dirname", "id"] {
        let mut places = std::env::split_paths(&path).map(|folder| folder.join(tool));
        let place: PathBuf = places.find(|place| place.exists()).expect("a tool");
        symlink(place, tools.join(tool)).expect("a link");
    }
    let output = Command::new(DEMO).env("PATH", &tools).output().expect("the demo");
    fs::remove_dir_all(&tools).expect("the folder");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(SKIPPED.into()), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("apt-get is missing") || line.contains("not root"), "{line}");
}

#[test]
fn mistakes_of_the_command_line_are_named() {
    for (args, fault) in [
        (&["--x"][..], "Error: unknown argument \"--x\": see kubelet-demo --help"),
        (&["--pods"], "Error: flag needs an argument: --pods"),
        (&["--kubeconfig"], "Error: flag needs an argument: --kubeconfig"),
        (
            &["--kubeconfig", "/nonexistent"],
            "Error: --kubeconfig: /nonexistent: No such file or directory (os error 2)",
        ),
    ] {
        let output = Command::new(DEMO).args(args).output().expect("the demo");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), fault);
    }
}
