//! The memory of the program's own code.
#![expect(unsafe_code, reason = "advice to the kernel about memory is a C interface")]

use crate::mappings;

/// Code is mapped in parts of this size. Since 6.18, Linux maps a folio of the page cache as a whole
/// when its first byte is used, if all of it lies in the mapping; before, it did so with folios of
/// 2 MB. The file of a program that was just written may be in such folios. The parts end in the
/// middle of every folio of this size and more, so none of these lies in a part.
const PART: usize = 128 << 10;

/// Unmaps the pages of all code that was loaded from files; it is mapped again as it runs, 64 KB at
/// a time, from the kernel's page cache. Returns the bytes that were mapped at most.
///
/// A process that has started runs a small part of the code that its start ran.
pub fn release_code() -> usize {
    let is_file = |file: &str| file.starts_with('/');
    let code = mappings().into_iter().filter(|mapping| is_file(&mapping.file));
    code.map(|mapping| {
        // SAFETY: nothing writes to code, so what is mapped again is what was there.
        let advise = |start: usize, end: usize, advice| unsafe {
            libc::madvise(start as *mut libc::c_void, end - start, advice) == 0
        };
        // Every second part differs from its neighbours in what rarely matters: by default code is
        // not dumped anyway. Folios are aligned by their place in the file.
        let (offset, length) = (mapping.offset, mapping.end - mapping.start);
        let first = offset / (2 * PART) * (2 * PART) + PART / 2;
        for part in (first..offset + length).step_by(2 * PART) {
            let (start, end) = (part.max(offset), (part + PART).min(offset + length));
            if start < end {
                let address = mapping.start + (start - offset);
                advise(address, address + (end - start), libc::MADV_DONTDUMP);
            }
        }
        let is_released = advise(mapping.start, mapping.end, libc::MADV_DONTNEED);
        if is_released { length } else { 0 }
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of the code from files is mapped in, in KB, and its longest mapping in bytes.
    fn resident_code() -> (usize, usize) {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let (mut resident, mut longest, mut is_code) = (0, 0, false);
        let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
        for line in maps.lines() {
            match line.split_once(char::is_whitespace) {
                Some(("Rss:", size)) if is_code => {
                    let kilobytes = size.trim().trim_end_matches(" kB");
                    resident += kilobytes.parse::<usize>().expect("a size in KB");
                }
                Some((range, rest)) if range.contains('-') => {
                    is_code = rest.starts_with("r-xp") && line.contains('/');
                    if let Some((start, end)) = range.split_once('-').filter(|_| is_code) {
                        longest = longest.max(number(end) - number(start));
                    }
                }
                _ => (),
            }
        }
        (resident, longest)
    }

    /// One test, since other tests of this process that released code would change the counts.
    #[test]
    fn released_code_is_mapped_again_as_it_runs_and_in_parts() {
        // All of it is in memory first, so that less is left whatever the other tests run.
        for mapping in mappings().iter().filter(|mapping| mapping.file.starts_with('/')) {
            for page in (mapping.start..mapping.end).step_by(4096) {
                // SAFETY: code is mapped to be read too.
                unsafe { std::ptr::read_volatile(page as *const u8) };
            }
        }
        let (before, longest) = resident_code();
        assert!(longest > PART, "{longest}");
        assert!(release_code() >= before * 1024);
        let (after, longest) = resident_code();
        assert!(after > 0, "this runs");
        assert!(after < before, "{after} KB after {before}");
        assert!(longest <= PART, "{longest}");
        // The parts count as one mapping, and stay parts.
        assert!(release_code() >= before * 1024);
        assert!(resident_code().1 <= PART);
    }
}
