//! A cache of free blocks in front of the C library's malloc, for one thread that allocates much.
#![expect(unsafe_code, reason = "an allocator hands out addresses")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Allocates from the C library, whose free blocks the threads that called
/// [`ThreadCache::enable`] keep for themselves: of each size up to 32 KB or 8 blocks, 3 MB in all.
///
/// glibc has a similar cache built in (tcache); musl's malloc searches its tables for each block,
/// and gives the pages of a group of blocks back to the kernel as soon as the last of them is free.
///
/// Invariants:
///
/// - The size of a layout alone says where its block comes from. Up to the largest size it is a
///   block of the size's class, and the C library is asked for the size of the class, both to get
///   it and to free it; so all blocks of a class are alike, and it does not matter which thread
///   frees one, or whether that thread keeps blocks. A larger size is passed on as it is. `realloc`
///   leaves a block in its place only within its class, or leaves it to the C library from one
///   large size to another.
/// - A layout with a rare alignment, more than malloc gives every block, is passed on whole, in all
///   four functions.
/// - malloc aligns also blocks of 12 bytes to `ALIGNED`. glibc and musl do; C promises only what an
///   object of that size needs.
/// - A kept block is in one list, of its class, of one thread. It is free: its first bytes are the
///   address of the next one, which is written when it is put in and read when it is taken out, and
///   nothing else reads or writes it in between.
/// - The count beside a list is its length. It is at most `KEPT` bytes of blocks, or `FEWEST`
///   blocks if that is more.
/// - A thread that has not called `enable` has empty lists.
/// - The lists are one thread's, without locks. So no signal handler may allocate or free; the
///   profiler's does not.
/// - Nothing here allocates, and nothing here can panic: an allocator must do neither.
/// - The lists have no destructor and need no start: blocks can be freed until a thread's very end.
pub struct ThreadCache;

impl ThreadCache {
    /// Makes the calling thread keep free blocks from now on. Only for threads that do not end: the
    /// blocks that they keep would be lost.
    pub fn enable() {
        CACHE.with(|cache| cache.is_enabled.set(true));
    }

    /// Gives all blocks that the calling thread has kept back to the C library. Returns their
    /// bytes.
    pub fn release() -> usize {
        let mut bytes = 0;
        CACHE.with(|cache| {
            for class in 0..CLASSES {
                while let Some(block) = cache.take(class) {
                    bytes += size(class);
                    // SAFETY: a block of this class has come from `System` with this layout.
                    unsafe { System.dealloc(block, layout(size(class))) };
                }
            }
        });
        bytes
    }
}

/// The sizes of musl's blocks, in units of 16 bytes, of which it uses 4 bytes itself: a size that
/// is rounded up to one of these takes no more memory there than before, or a page or two where
/// musl maps a block of 16 KB and more by its own length. Buffers that have grown to 32 KB fit:
/// each would be a mapping of its own, with nine page faults.
const UNITS: [u16; CLASSES] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
];
const CLASSES: usize = 42;
const UNIT: usize = 16;
const OVERHEAD: usize = 4;
/// The alignment of every block from malloc, the smallest included.
const ALIGNED: usize = 2 * size_of::<usize>();
/// At most this number of bytes of one class is kept, or `FEWEST` blocks if that is more.
const KEPT: usize = 32 << 10;
const FEWEST: usize = 8;

/// The classes of small blocks by their units.
const SMALL: [u8; 128] = {
    let mut classes = [0; 128];
    let (mut units, mut class) = (1, 0);
    while units < classes.len() {
        if units > UNITS[class] as usize {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};

/// Returns the class of blocks that have room for `bytes`; `None` if there is no such block.
fn class(bytes: usize) -> Option<usize> {
    // A layout has at most `isize::MAX` bytes, so this cannot overflow.
    let units = (bytes + OVERHEAD).div_ceil(UNIT);
    match SMALL.get(units) {
        Some(class) => Some(usize::from(*class)),
        None if units > usize::from(UNITS[CLASSES - 1]) => None,
        None => Some(UNITS.partition_point(|most| usize::from(*most) < units)),
    }
}

/// Returns the size of the blocks of a class, in bytes.
fn size(class: usize) -> usize {
    usize::from(UNITS[class]) * UNIT - OVERHEAD
}

/// Returns the layout that is passed to `System`. For this layout it calls malloc, which aligns
/// every block to `ALIGNED`.
fn layout(bytes: usize) -> Layout {
    // SAFETY: the size of a class or of a valid layout, and so at most `isize::MAX`.
    unsafe { Layout::from_size_align_unchecked(bytes, 1) }
}

/// A free block holds the address of the next one.
struct Free {
    next: *mut Free,
}

/// Without `Drop`: a thread's end must not run code of the allocator's.
struct Cache {
    is_enabled: Cell<bool>,
    classes: [(Cell<*mut Free>, Cell<usize>); CLASSES],
}

thread_local! {
    static CACHE: Cache = const {
        Cache {
            is_enabled: Cell::new(false),
            classes: [const { (Cell::new(ptr::null_mut()), Cell::new(0)) }; CLASSES],
        }
    };
}

impl Cache {
    /// Takes out a kept block of a class.
    fn take(&self, class: usize) -> Option<*mut u8> {
        let (first, count) = &self.classes[class];
        let block = first.get();
        if block.is_null() {
            return None;
        }
        // SAFETY: `keep` wrote it, and the block is unused since.
        first.set(unsafe { (*block).next });
        count.set(count.get() - 1);
        Some(block.cast())
    }

    /// Keeps a free block, if there is room. Returns whether it did.
    ///
    /// # Safety
    ///
    /// The block has this class, and nothing uses it any more.
    unsafe fn keep(&self, class: usize, block: *mut u8) -> bool {
        let (first, count) = &self.classes[class];
        if !self.is_enabled.get() || count.get() >= (KEPT / size(class)).max(FEWEST) {
            return false;
        }
        let block: *mut Free = block.cast();
        // SAFETY: the smallest class has room for an address, and malloc aligns its blocks for it.
        unsafe { block.write(Free { next: first.get() }) };
        first.set(block);
        count.set(count.get() + 1);
        true
    }
}

// SAFETY: a block is that of `System` for the class of its size, or for its layout itself if that
// is aligned in a rare way or large; a layout is always treated in the same way.
unsafe impl GlobalAlloc for ThreadCache {
    unsafe fn alloc(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of `System`, here and below.
        unsafe {
            if wanted.align() > ALIGNED { System.alloc(wanted) } else { allocate(wanted.size()) }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, had: Layout) {
        // SAFETY: as above.
        unsafe {
            if had.align() > ALIGNED { System.dealloc(block, had) } else { free(block, had.size()) }
        }
    }

    unsafe fn alloc_zeroed(&self, wanted: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if wanted.align() > ALIGNED {
                System.alloc_zeroed(wanted)
            } else {
                allocate_zeroed(wanted.size())
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, had: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if had.align() > ALIGNED {
                System.realloc(block, had, size)
            } else {
                resize(block, had.size(), size)
            }
        }
    }
}

// Functions of their own and without an alignment, so that each of the very many calls is short; of
// C, so that no call needs code for unwinding.

/// Returns a kept block of the size's class, or a new one; large blocks are always new.
#[inline(never)]
unsafe extern "C" fn allocate(size: usize) -> *mut u8 {
    // SAFETY: as in `GlobalAlloc`, here and below.
    unsafe {
        match class(size) {
            Some(class) => CACHE
                .with(|cache| cache.take(class))
                .unwrap_or_else(|| System.alloc(layout(self::size(class)))),
            None => System.alloc(layout(size)),
        }
    }
}

/// Returns a block as [`allocate`] does, filled with zeros.
#[inline(never)]
unsafe extern "C" fn allocate_zeroed(size: usize) -> *mut u8 {
    // SAFETY: as above; a block has room for what was asked for.
    unsafe {
        if class(size).is_none() {
            // Large blocks are fresh pages, which are zero.
            return System.alloc_zeroed(layout(size));
        }
        let block = allocate(size);
        if !block.is_null() {
            block.write_bytes(0, size);
        }
        block
    }
}

/// Keeps a block for later; large blocks, and those beyond what may be kept, go back to the system.
#[inline(never)]
unsafe extern "C" fn free(block: *mut u8, size: usize) {
    // SAFETY: as above.
    unsafe {
        match class(size) {
            Some(class) if CACHE.with(|cache| cache.keep(class, block)) => {}
            Some(class) => System.dealloc(block, layout(self::size(class))),
            None => System.dealloc(block, layout(size)),
        }
    }
}

/// Returns a block of the wanted size with the old content: the same one if its class stays the
/// same.
#[inline(never)]
unsafe extern "C" fn resize(block: *mut u8, size: usize, wanted: usize) -> *mut u8 {
    // SAFETY: as above; both blocks have room for what is copied.
    unsafe {
        match (class(size), class(wanted)) {
            (None, None) => System.realloc(block, layout(size), wanted),
            (before, after) if before == after => block,
            _ => {
                let moved = allocate(wanted);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, size.min(wanted));
                    free(block, size);
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicPtr;

    use super::*;

    fn layout_of(size: usize) -> Layout {
        Layout::from_size_align(size, 1).expect("small")
    }

    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: not empty.
        let block = unsafe { ThreadCache.alloc(layout_of(size)) };
        // Miri aligns a block of 12 bytes as C promises, to 8.
        let aligned = if cfg!(miri) && class(size) == Some(0) { 8 } else { ALIGNED };
        assert!(!block.is_null() && block.addr() % aligned == 0);
        block
    }

    fn free(block: *mut u8, size: usize) {
        // SAFETY: by `alloc` above.
        unsafe { ThreadCache.dealloc(block, layout_of(size)) }
    }

    #[test]
    fn a_class_has_the_smallest_blocks_that_fit() {
        for bytes in 1..=size(CLASSES - 1) {
            let class = class(bytes).expect("small");
            assert!(size(class) >= bytes, "{bytes}");
            assert!(class == 0 || size(class - 1) < bytes, "{bytes}");
        }
        assert_eq!(class(size(CLASSES - 1) + 1), None, "large");
        assert!(size(0) >= size_of::<Free>());
    }

    #[test]
    fn blocks_are_kept_within_bounds_and_given_back() {
        let other = alloc(100);
        free(other, 100);
        ThreadCache::enable();
        let kept = |bytes| {
            let class = class(bytes).expect("small");
            CACHE.with(|cache| cache.classes[class].1.get())
        };
        assert_eq!(kept(100), 0, "not enabled then");
        let (first, second) = (alloc(100), alloc(97));
        free(first, 100);
        free(second, 97);
        assert_eq!(kept(98), 2);
        assert_eq!(alloc(99), second, "the last is the warmest");
        free(second, 99);
        let many: Vec<_> = (0..1000).map(|_| alloc(2000)).collect();
        many.into_iter().for_each(|block| free(block, 2000));
        assert_eq!(kept(2000), KEPT / size(class(2000).expect("small")));
        let large: Vec<_> = (0..20).map(|_| alloc(30_000)).collect();
        large.into_iter().for_each(|block| free(block, 30_000));
        assert_eq!(kept(30_000), FEWEST);
        assert!(ThreadCache::release() > 2 * KEPT);
        assert_eq!(ThreadCache::release(), 0);
        assert_eq!((kept(100), kept(2000), kept(30_000)), (0, 0, 0));
    }

    #[test]
    fn bytes_survive_growing_shrinking_and_another_thread() {
        ThreadCache::enable();
        let sizes = [
            1, 12, 13, 500, 5_000, 32_748, 32_749, 43_676, 43_677, 200_000, 300_000, 32_000, 40, 3,
        ];
        let mut block = alloc(sizes[0]);
        for pair in sizes.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let pattern: Vec<u8> = (0..before).map(|at| (at % 251) as u8).collect();
            // SAFETY: a block of `before` bytes, then one of `after`.
            let kept = unsafe {
                block.copy_from_nonoverlapping(pattern.as_ptr(), before);
                block = ThreadCache.realloc(block, layout_of(before), after);
                std::slice::from_raw_parts(block, before.min(after))
            };
            assert!(pattern.starts_with(kept), "{before} to {after}");
        }
        let block = AtomicPtr::new(block);
        let elsewhere = std::thread::spawn(move || free(block.into_inner(), 3));
        elsewhere.join().expect("no panic");

        let dirty = alloc(64);
        // SAFETY: 64 bytes, and below those of a new block.
        unsafe { dirty.write_bytes(1, 64) };
        free(dirty, 64);
        // SAFETY: not empty.
        let clean = unsafe { ThreadCache.alloc_zeroed(layout_of(64)) };
        assert_eq!(clean, dirty, "kept");
        // SAFETY: as long as was asked for.
        assert_eq!(unsafe { std::slice::from_raw_parts(clean, 64) }, [0; 64]);
        free(clean, 64);
        ThreadCache::release();
    }
}
