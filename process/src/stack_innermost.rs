//! For processors whose stacks cannot be walked: records only the innermost address.
#![expect(unsafe_code, reason = "registers are a C interface")]

use std::ffi::c_void;

pub struct Walker;

impl Walker {
    pub fn new() -> Walker {
        Walker
    }

    /// Calls `record` with the address of the interrupted instruction; 0 where it is not known.
    ///
    /// # Safety
    /// `context` is the third argument of a signal handler.
    pub unsafe fn walk(&self, context: *const c_void, mut record: impl FnMut(usize) -> bool) {
        // SAFETY: as the caller promises.
        let state = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
        #[cfg(target_arch = "arm")]
        let address = state.arm_pc as usize;
        #[cfg(not(target_arch = "arm"))]
        let address = {
            let _unknown = state;
            0
        };
        record(address);
    }
}
