//! Tests that run in a process with few descriptors.

use std::process::Command;

/// Returns true in a process that may open only `limit` descriptors. Else runs the test of this
/// name in such a process, and returns false once it has passed.
pub fn has_few_descriptors(test: &str, limit: u32) -> bool {
    const FEW: &str = "KUBELET_FEW_DESCRIPTORS";
    if std::env::var_os(FEW).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let limited = Command::new("sh")
        .args(["-c", "ulimit -n $0 && exec \"$@\""])
        .arg(limit.to_string())
        .arg(program)
        .args(["--exact", test])
        .env(FEW, "")
        .output()
        .expect("a shell");
    let output = String::from_utf8_lossy(&limited.stdout);
    assert!(limited.status.success() && output.contains("1 passed"), "{output}");
    false
}
