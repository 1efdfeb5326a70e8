//! The timer, the signal handler, and the table between the handler and its reader.
#![expect(unsafe_code, reason = "signal handlers and program headers are C interfaces")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::cfi::{Object, REGISTERS, RETURN, Registers, STACK_POINTER, caller};

/// The CPU time between two samples, as Go's.
pub const PERIOD: Duration = Duration::from_millis(10);
/// The deepest stack that is recorded.
const DEPTH: usize = 64;
/// Samples that may wait for the reader: more than a second's on one core.
const SLOTS: usize = 128;

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
/// The code that was loaded when the first profile began.
static OBJECTS: OnceLock<Vec<Object>> = OnceLock::new();
/// Whether a profile is recorded now.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Whether the handler records.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Samples that found no free slot.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How often each stack was seen: addresses, the innermost first. All but the first are of the
/// instruction after a call.
pub type Stacks = HashMap<Vec<usize>, u64>;

/// Another profile is being recorded.
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
    /// Starts recording.
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
        OBJECTS.get_or_init(loaded);
        LOST.store(0, Ordering::Relaxed);
        let mut sampler = Sampler { stacks: Stacks::new() };
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

    /// The stacks seen, and the number of samples that were lost.
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

/// Interrupts the process each `period` of its CPU time; zero: never.
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
    match TABLE.get().and_then(|table| table.iter().find(free)) {
        Some(slot) => {
            // SAFETY: the kernel passes the interrupted thread's context.
            let len = unsafe { walk(context, &slot.frames) };
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

/// The address of the interrupted instruction and the registers; zeros on processors that are not
/// listed.
///
/// # Safety
/// `context` is the third argument of a signal handler.
unsafe fn interrupted(context: *const c_void) -> (usize, Registers) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: as the caller promises.
    let machine = unsafe { &(*context).uc_mcontext };
    let mut registers = [0; REGISTERS];
    #[cfg(target_arch = "x86_64")]
    let address = {
        use libc::{
            REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP,
            REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP,
        };
        // In the order of their DWARF numbers.
        let order = [
            REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8, REG_R9,
            REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
        ];
        for (register, place) in registers.iter_mut().zip(order) {
            *register = machine.gregs[place as usize] as usize;
        }
        registers[RETURN]
    };
    #[cfg(target_arch = "aarch64")]
    let address = {
        for (register, value) in registers.iter_mut().zip(machine.regs) {
            *register = value as usize;
        }
        registers[STACK_POINTER] = machine.sp as usize;
        machine.pc as usize
    };
    #[cfg(target_arch = "arm")]
    let address = machine.arm_pc as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "arm")))]
    let address = {
        let _unknown = machine;
        0
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _unwound = &mut registers;
    (address, registers)
}

/// Writes the addresses of the stack, the innermost first, and returns their number.
///
/// # Safety
/// `context` is the third argument of a signal handler.
unsafe fn walk(context: *const c_void, frames: &[AtomicUsize; DEPTH]) -> usize {
    // SAFETY: as the caller promises.
    let (mut address, mut registers) = unsafe { interrupted(context) };
    let objects = OBJECTS.get().map(Vec::as_slice).unwrap_or_default();
    let mut stack = StackReader::default();
    let mut len = 0;
    while let Some(frame) = frames.get(len) {
        frame.store(address, Ordering::Relaxed);
        len += 1;
        let before = registers[STACK_POINTER];
        // Of a caller the address is that of the instruction after the call.
        let inside = if len == 1 { address } else { address.wrapping_sub(1) };
        let mut read = |at| stack.read(at);
        let next = caller(objects, inside, &registers, &mut read);
        let next = match (next, len) {
            // Assembly without tables is at most one frame deep, and mostly has none of its own.
            (None, 1) => leaf_caller(objects, &registers, &mut read),
            (next, _) => next,
        };
        match next {
            // Stacks grow down; only a leaf may have no frame.
            Some((back, caller)) if caller[STACK_POINTER] > before || len == 1 => {
                (address, registers) = (back, caller);
            }
            _ => break,
        }
    }
    len
}

/// The caller of a function that has no frame.
fn leaf_caller(
    objects: &[Object],
    registers: &Registers,
    read: &mut dyn FnMut(usize) -> Option<usize>,
) -> Option<(usize, Registers)> {
    let mut next = *registers;
    let back = if cfg!(target_arch = "x86_64") {
        let pointer = registers[STACK_POINTER];
        next[STACK_POINTER] = pointer.checked_add(size_of::<usize>())?;
        read(pointer)?
    } else {
        registers[RETURN]
    };
    objects.iter().any(|object| object.code.contains(&back)).then_some((back, next))
}

/// Reads the stack through the kernel, which answers an address that is not mapped with an error
/// where a load would end the process.
struct StackReader {
    start: usize,
    len: usize,
    bytes: [u8; 512],
}

impl Default for StackReader {
    fn default() -> StackReader {
        StackReader { start: 0, len: 0, bytes: [0; 512] }
    }
}

impl StackReader {
    fn read(&mut self, at: usize) -> Option<usize> {
        let held = |reader: &StackReader| {
            let from = at.checked_sub(reader.start)?;
            let to = from.checked_add(size_of::<usize>()).filter(|to| *to <= reader.len)?;
            reader.bytes.get(from..to)?.try_into().ok().map(usize::from_ne_bytes)
        };
        held(self).or_else(|| {
            self.fill(at);
            held(self)
        })
    }

    fn fill(&mut self, at: usize) {
        let size = self.bytes.len();
        let local = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: size };
        let remote = libc::iovec { iov_base: at as *mut c_void, iov_len: size };
        // SAFETY: both vectors have one element, and the kernel writes at most `size` bytes to
        // `bytes`.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        (self.start, self.len) = (at, usize::try_from(read).unwrap_or(0));
    }
}

#[cfg(target_pointer_width = "64")]
type ProgramHeader = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type ProgramHeader = libc::Elf32_Phdr;

/// The code that is loaded now, with its tables.
fn loaded() -> Vec<Object> {
    /// # Safety
    /// `info` is what `dl_iterate_phdr` passes, and `list` what [`loaded`] gives it.
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        list: *mut c_void,
    ) -> c_int {
        // SAFETY: as the caller promises; the headers are an array of this length.
        let (info, list, headers) = unsafe {
            let info = &*info;
            let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            (info, &mut *list.cast::<Vec<Object>>(), headers)
        };
        let range = |header: &ProgramHeader| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        };
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
        let Some(header) = header.map(|header| range(header).start) else { return 0 };
        let Some(tables) = loads().map(range).find(|range| range.contains(&header)) else {
            return 0;
        };
        for code in loads().filter(|header| header.p_flags & libc::PF_X != 0) {
            // SAFETY: the part is loaded, read-only, and stays: no library is unloaded.
            let bytes = unsafe { slice::from_raw_parts(tables.start as *const u8, tables.len()) };
            list.push(Object { code: range(code), header, start: tables.start, bytes });
        }
        0
    }
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: `add` gets back the exclusive reference, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(add), ptr::from_mut(&mut objects).cast()) };
    objects
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
        // Ends with what is seen; the bound is for a broken timer.
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
