//! The timer, the signal handler, and the table between the handler and its reader.
#![expect(unsafe_code, reason = "signal handlers and timers are C interfaces")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::stack::Walker;

/// The CPU time between two samples, as in Go.
pub const PERIOD: Duration = Duration::from_millis(10);
/// The deepest stack that is recorded.
const DEPTH: usize = 64;
/// The capacity of the table: more samples than one core takes in a second.
const SLOTS: usize = 128;

/// The states of a slot: empty, being written by a handler, and holding a sample to be drained.
const FREE: usize = 0;
const WRITING: usize = 1;
const FULL: usize = 2;

/// One sample on its way from the handler to the reader.
struct Slot {
    state: AtomicUsize,
    len: AtomicUsize,
    frames: [AtomicUsize; DEPTH],
}

/// Made with the first profile, and kept: a handler may still run when a profile ends.
static TABLE: OnceLock<Vec<Slot>> = OnceLock::new();
/// The stack walker for the code that was loaded when the first profile began.
static WALKER: OnceLock<Walker> = OnceLock::new();
/// Whether a profile is recorded now.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Whether the handler records.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Samples that found no free slot.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How often each stack was seen: addresses, the innermost first. All but the first are of the
/// instruction after a call.
pub type Stacks = HashMap<Vec<usize>, u64>;

/// The error when another profile is being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpu profiling already in use")
    }
}

impl std::error::Error for Busy {}

/// Records until dropped. There is one at a time.
pub struct Sampler {
    stacks: Stacks,
}

impl Sampler {
    /// Starts a timer whose signals record the stack of the running thread.
    ///
    /// # Errors
    /// When another sampler records.
    pub fn start() -> Result<Sampler, Busy> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(Busy);
        }
        let slot = || Slot {
            state: AtomicUsize::new(FREE),
            len: AtomicUsize::new(0),
            frames: [const { AtomicUsize::new(0) }; DEPTH],
        };
        TABLE.get_or_init(|| std::iter::repeat_with(slot).take(SLOTS).collect());
        WALKER.get_or_init(Walker::new);
        LOST.store(0, Ordering::Relaxed);
        let mut sampler = Sampler { stacks: Stacks::new() };
        // The last signals of an earlier profile may have left samples.
        sampler.drain();
        sampler.stacks.clear();
        install_handler();
        ACTIVE.store(true, Ordering::Release);
        set_timer(PERIOD);
        Ok(sampler)
    }

    /// Takes the samples out of the handler's table; call it several times a second, or samples are
    /// lost.
    pub fn drain(&mut self) {
        for slot in TABLE.get().into_iter().flatten() {
            if slot.state.load(Ordering::Acquire) == FULL {
                let len = slot.len.load(Ordering::Relaxed).min(DEPTH);
                let stack = slot.frames[..len].iter().map(|frame| frame.load(Ordering::Relaxed));
                *self.stacks.entry(stack.collect()).or_default() += 1;
                slot.state.store(FREE, Ordering::Release);
            }
        }
    }

    /// Returns the stacks seen, and the number of samples that were lost.
    pub fn finish(mut self) -> (Stacks, u64) {
        self.stop();
        self.drain();
        (std::mem::take(&mut self.stacks), LOST.load(Ordering::Relaxed))
    }

    fn stop(&mut self) {
        set_timer(Duration::ZERO);
        ACTIVE.store(false, Ordering::Release);
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
        TAKEN.store(false, Ordering::Release);
    }
}

/// Installs the handler for good: a signal may be on its way when the timer stops, and the default
/// action would end the process.
fn install_handler() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_tick;
        // SAFETY: a zeroed `sigaction` is valid, all pointers are to live values of this frame, and
        // the handler calls only functions that are safe in one.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGPROF, &action, ptr::null_mut());
        }
    });
}

/// Interrupts the process each `period` of its CPU time, which is less than a second; zero: never.
fn set_timer(period: Duration) {
    // SAFETY: zeroed intervals are valid, and the pointer is to a live value of this frame.
    unsafe {
        let mut timer: libc::itimerval = MaybeUninit::zeroed().assume_init();
        timer.it_interval.tv_usec = period.subsec_micros() as _;
        timer.it_value.tv_usec = period.subsec_micros() as _;
        libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut());
    }
}

/// Records the stack of the interrupted thread. No locks, no allocation.
extern "C" fn on_tick(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if !ACTIVE.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the location of this thread's `errno` is always valid.
    let errno = unsafe { *errno() };
    let free = |slot: &&Slot| {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        slot.state.compare_exchange(FREE, WRITING, success, failure).is_ok()
    };
    let slot = TABLE.get().and_then(|table| table.iter().find(free));
    match slot.zip(WALKER.get()) {
        Some((slot, walker)) => {
            let mut len = 0;
            // SAFETY: the kernel passes the interrupted thread's context.
            unsafe {
                walker.walk(context, |address| match slot.frames.get(len) {
                    Some(frame) => {
                        frame.store(address, Ordering::Relaxed);
                        len += 1;
                        true
                    }
                    None => false,
                });
            }
            slot.len.store(len, Ordering::Relaxed);
            slot.state.store(FULL, Ordering::Release);
        }
        None => drop(LOST.fetch_add(1, Ordering::Relaxed)),
    }
    // SAFETY: as above.
    unsafe { *self::errno() = errno };
}

fn errno() -> *mut c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Symbols, mappings};
    use std::hint::black_box;

    #[inline(never)]
    fn spin_for_the_profile(rounds: u64) -> u64 {
        (0..rounds).fold(1, |sum: u64, n| black_box(sum.wrapping_mul(31).wrapping_add(n)))
    }

    #[test]
    fn busy_function_and_its_caller_are_seen() {
        let mut sampler = Sampler::start().expect("the only one");
        assert_eq!(Sampler::start().err(), Some(Busy));
        let symbols = Symbols::of_this_process().expect("a test has symbols");
        let mappings = mappings();
        let name = |address: usize| symbols.name(address, &mappings).unwrap_or_default();
        // Ends once the functions are seen; the bound is for a broken timer.
        for round in 0.. {
            black_box(spin_for_the_profile(1_000_000));
            sampler.drain();
            let seen = sampler.stacks.keys().any(|stack| {
                let names: Vec<String> = stack.iter().map(|address| name(*address)).collect();
                let has = |part: &str| names.iter().any(|name| name.contains(part));
                has("spin_for_the_profile")
                    && (cfg!(target_arch = "arm") || has("busy_function_and_its_caller_are_seen"))
            });
            if seen {
                break;
            }
            let frames: Vec<_> = sampler.stacks.keys().collect();
            assert!(round < 10_000, "{frames:x?}");
        }
        let (stacks, _) = sampler.finish();
        assert!(!stacks.is_empty());
        // The next profile may start.
        drop(Sampler::start().expect("the first has ended"));
    }
}
