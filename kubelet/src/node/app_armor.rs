//! Whether the machine confines programs by AppArmor.

use std::fs;

/// Returns whether the kernel's AppArmor is on. Upstream: `apparmor.isEnabled`.
pub fn is_enabled() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.starts_with('Y'))
}
