//! File descriptors that are reserved for connections, so that health checks are answered when the
//! rest of the process has used all others.

use std::fs::File;

use parking_lot::Mutex;

/// Open descriptors that are closed when a connection needs one.
pub(super) struct Reserve {
    size: usize,
    held: Mutex<Vec<File>>,
}

impl Reserve {
    pub fn new(size: usize) -> Reserve {
        Reserve { size, held: Mutex::default() }
    }

    /// Frees one descriptor; returns false when all are in use.
    pub fn release(&self) -> bool {
        self.held.lock().pop().is_some()
    }

    /// Opens descriptors up to the full number, as far as the process can open more. Returns false
    /// when it should hold some and has none.
    pub fn refill(&self) -> bool {
        let mut held = self.held.lock();
        while held.len() < self.size {
            // Any file will do, and the root directory exists everywhere.
            match File::open("/") {
                Ok(descriptor) => held.push(descriptor),
                Err(_) => return !held.is_empty(),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_descriptors_are_held_again() {
        let reserve = Reserve::new(2);
        assert!(!reserve.release());
        assert!(reserve.refill());
        assert!(reserve.release() && reserve.release() && !reserve.release());
        assert!(reserve.refill());
        assert_eq!(reserve.held.lock().len(), 2);
        assert!(Reserve::new(0).refill());
    }
}
