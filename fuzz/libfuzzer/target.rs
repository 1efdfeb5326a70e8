//! One binary for all targets, since each would link the whole library: FUZZ_TARGET names the one
//! to run.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let target = fuzz::TARGETS.iter().find(|(known, _)| *known == name);
    target.unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}, which is no target")).1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
