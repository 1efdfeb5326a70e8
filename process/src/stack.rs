//! Walks the stack of the thread that a signal handler interrupted: without allocation, without
//! waiting for a lock, and through the kernel where it reads memory.
#![expect(unsafe_code, reason = "registers and program headers are C interfaces")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::Mutex;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64 as machine;
#[cfg(target_arch = "x86_64")]
use framehop::x86_64 as machine;
use framehop::{
    CacheNative, ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder,
    UnwinderNative,
};

/// The bytes of a section with tables for unwinding, as they are loaded.
type Tables = &'static [u8];

/// Finds callers by the tables that the compiler writes for the unwinding of panics.
pub struct Walker {
    unwinder: UnwinderNative<Tables, MustNotAllocateDuringUnwind>,
    /// Another thread's handler may hold it: then only the innermost address is recorded.
    cache: Mutex<CacheNative<MustNotAllocateDuringUnwind>>,
}

impl Walker {
    /// Knows the code that is loaded now. Allocates; not for signal handlers.
    pub fn new() -> Walker {
        let mut unwinder = UnwinderNative::new();
        loaded_modules().into_iter().for_each(|module| unwinder.add_module(module));
        Walker { unwinder, cache: Mutex::new(CacheNative::default()) }
    }

    /// Calls `record` with the addresses of the stack, the innermost first, until it returns
    /// `false`. All but the first are those of the instruction after a call.
    ///
    /// # Safety
    /// `context` is the third argument of a signal handler.
    pub unsafe fn walk(&self, context: *const c_void, mut record: impl FnMut(usize) -> bool) {
        // SAFETY: as the caller promises.
        let (address, registers) = unsafe { interrupted(context.cast()) };
        let Ok(mut cache) = self.cache.try_lock() else {
            record(address as usize);
            return;
        };
        let mut stack = StackReader::default();
        let mut read = |at| stack.read(at).ok_or(());
        let mut frames = self.unwinder.iter_frames(address, registers, &mut cache, &mut read);
        while let Ok(Some(frame)) = frames.next() {
            if !record(frame.address() as usize) {
                return;
            }
        }
    }
}

/// Returns the address of the interrupted instruction, and the registers that lead to its caller.
///
/// # Safety
/// `context` is what the kernel passes to a signal handler.
unsafe fn interrupted(context: *const libc::ucontext_t) -> (u64, framehop::UnwindRegsNative) {
    // SAFETY: as the caller promises.
    let state = unsafe { &(*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        let register = |number: c_int| state.gregs[number as usize].cast_unsigned();
        let address = register(libc::REG_RIP);
        let (stack, frame) = (register(libc::REG_RSP), register(libc::REG_RBP));
        (address, machine::UnwindRegsX86_64::new(address, stack, frame))
    }
    #[cfg(target_arch = "aarch64")]
    {
        let (frame, link) = (state.regs[29], state.regs[30]);
        (state.pc, machine::UnwindRegsAarch64::new(link, state.sp, frame))
    }
}

/// Reads the stack through the kernel, which answers an address that is not mapped with an error
/// where a load would end the process.
struct StackReader {
    start: u64,
    len: usize,
    bytes: [u8; 512],
}

impl Default for StackReader {
    fn default() -> StackReader {
        StackReader { start: 0, len: 0, bytes: [0; 512] }
    }
}

impl StackReader {
    /// Returns the word at an address of the stack; `None` where nothing is mapped.
    fn read(&mut self, at: u64) -> Option<u64> {
        if let Some(word) = self.read_buffered(at) {
            return Some(word);
        }
        self.fill(at);
        self.read_buffered(at)
    }

    /// Returns the word, if it is among the bytes that were read last.
    fn read_buffered(&self, at: u64) -> Option<u64> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(size_of::<u64>()).filter(|to| *to <= self.len)?;
        self.bytes.get(from..to)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads the bytes from `at` on. The kernel checks the address: it may be wrong.
    fn fill(&mut self, at: u64) {
        let size = self.bytes.len();
        let local = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: size };
        let remote = libc::iovec { iov_base: at as *mut c_void, iov_len: size };
        // SAFETY: both vectors have one element, and the kernel writes at most `size` bytes to
        // `bytes`.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        (self.start, self.len) = (at, usize::try_from(read).unwrap_or(0));
    }
}

/// Lists the code that is loaded now, with its tables for unwinding: `.eh_frame`, and its index
/// `.eh_frame_hdr`.
fn loaded_modules() -> Vec<Module<Tables>> {
    /// Adds the code of one loaded file to `list`, if it has tables for unwinding.
    ///
    /// # Safety
    /// `info` is what `dl_iterate_phdr` passes, and `list` what [`loaded_modules`] gives it.
    unsafe extern "C" fn add_modules(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        list: *mut c_void,
    ) -> c_int {
        // SAFETY: as the caller promises; the headers are an array of this length.
        let (info, list, headers) = unsafe {
            let info = &*info;
            let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            (info, &mut *list.cast::<Vec<Module<Tables>>>(), headers)
        };
        let range = |header: &libc::Elf64_Phdr| {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            start..start.wrapping_add(header.p_memsz)
        };
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let index = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
        let Some(index) = index.map(range) else { return 0 };
        let Some(segment) = loads().map(range).find(|range| range.contains(&index.start)) else {
            return 0;
        };
        let part = |start: u64| {
            // SAFETY: the part is loaded, read-only, and stays: no library is unloaded.
            unsafe { slice::from_raw_parts(start as *const u8, (segment.end - start) as usize) }
        };
        let Some(frames) = frames_of(part(index.start), index.start) else { return 0 };
        if !segment.contains(&frames) {
            return 0;
        }
        for code in loads().filter(|header| header.p_flags & libc::PF_X != 0).map(range) {
            let sections = ExplicitModuleSectionInfo {
                base_svma: info.dlpi_addr,
                text_svma: Some(code.clone()),
                eh_frame_svma: Some(frames..segment.end),
                eh_frame: Some(part(frames)),
                eh_frame_hdr_svma: Some(index.clone()),
                eh_frame_hdr: Some(part(index.start)),
                ..Default::default()
            };
            list.push(Module::new(String::new(), code, info.dlpi_addr, sections));
        }
        0
    }
    let mut modules: Vec<Module<Tables>> = Vec::new();
    // SAFETY: `add_modules` gets back the exclusive reference, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(add_modules), ptr::from_mut(&mut modules).cast()) };
    modules
}

/// Finds where `.eh_frame` begins, by `.eh_frame_hdr` at `start`: version 1 with a pointer that is
/// relative to its own place and has four bytes, as linkers write it.
fn frames_of(header: &[u8], start: u64) -> Option<u64> {
    const RELATIVE_FOUR_BYTES: u8 = 0x1b;
    match header {
        [1, RELATIVE_FOUR_BYTES, _, _, pointer @ ..] => {
            let offset = i32::from_ne_bytes(*pointer.first_chunk()?);
            (start + 4).checked_add_signed(offset.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_found_by_the_header() {
        let header = |version, encoding| [version, encoding, 3, 0x3b, 0xfc, 0xff, 0xff, 0xff, 9];
        assert_eq!(frames_of(&header(1, 0x1b), 0x1000), Some(0x1000));
        for (version, encoding) in [(2, 0x1b), (1, 0x1c)] {
            assert_eq!(frames_of(&header(version, encoding), 0x1000), None);
        }
        assert_eq!(frames_of(&header(1, 0x1b)[..7], 0x1000), None, "cut off");
    }

    #[test]
    fn memory_that_is_not_mapped_cannot_be_read() {
        let value = 0x0102_0304_0506_0708_u64;
        let mut stack = StackReader::default();
        assert_eq!(stack.read(ptr::from_ref(&value).addr() as u64), Some(value));
        assert_eq!(stack.read(8), None);
        assert_eq!(stack.read(u64::MAX - 3), None);
    }
}
