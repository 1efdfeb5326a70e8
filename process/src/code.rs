//! How the kernel reads the program's code from its file.
#![allow(unsafe_code)]

use crate::maps::mappings;

/// Has the kernel read pages of the program's code one by one when it needs them again.
///
/// By default it also reads those around each page, up to megabytes (the device's `read_ahead_kb`).
/// Under a memory limit they displace other pages of code, which are then read again with those
/// around them, and so on: a program that is a little too large for its limit reads without end.
pub fn read_code_singly() {
    let Ok(program) = std::env::current_exe() else { return };
    for code in mappings().iter().filter(|code| program.as_os_str() == &*code.file) {
        // SAFETY: the range is mapped code of this program, which is never unmapped, and the advice
        // changes nothing but how it is read.
        unsafe {
            let _ = libc::madvise(code.start as *mut _, code.end - code.start, libc::MADV_RANDOM);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Whether the flags of some mapped code of this program have `rr`, "random read advise".
    fn is_advised() -> bool {
        let program = std::env::current_exe().expect("a program");
        let program = program.to_str().expect("a path");
        let text = fs::read_to_string("/proc/self/smaps").expect("mappings");
        let mut is_code = false;
        text.lines().any(|line| {
            if line.ends_with(program) {
                is_code = line.contains(" r-xp ");
            }
            is_code && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "rr")
        })
    }

    #[test]
    fn the_kernel_knows_that_code_is_read_singly() {
        assert!(!is_advised());
        read_code_singly();
        assert!(is_advised());
    }
}
