//! The memory of the program's own code.
#![expect(unsafe_code, reason = "advice to the kernel about memory is a C interface")]

use crate::mappings;

/// Unmaps the pages of all code that was loaded from files; it is mapped again as it runs, 64 KB at
/// a time, from the kernel's page cache. Returns the bytes that were mapped at most.
///
/// A process that has started runs a small part of the code that its start ran. Of a file that the
/// kernel keeps in huge pages, code is no longer mapped 2 MB at a time from here on.
pub fn release_code() -> usize {
    let is_file = |file: &str| file.starts_with('/');
    let code = mappings().into_iter().filter(|mapping| is_file(&mapping.file));
    code.map(|mapping| {
        let length = mapping.end - mapping.start;
        // SAFETY: nothing writes to code, so what is mapped again is what was there.
        let advise = |advice| unsafe {
            libc::madvise(mapping.start as *mut libc::c_void, length, advice) == 0
        };
        // A kernel without huge pages refuses this, and does not need it.
        advise(libc::MADV_NOHUGEPAGE);
        if advise(libc::MADV_DONTNEED) { length } else { 0 }
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of the code from files is mapped in, in KB, and the flags of the first such mapping.
    fn resident_code() -> (usize, String) {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let (mut resident, mut first_flags, mut is_code) = (0, String::new(), false);
        for line in maps.lines() {
            match line.split_once(char::is_whitespace) {
                Some(("Rss:", size)) if is_code => {
                    let kilobytes = size.trim().trim_end_matches(" kB");
                    resident += kilobytes.parse::<usize>().expect("a size in KB");
                }
                Some(("VmFlags:", flags)) if is_code && first_flags.is_empty() => {
                    first_flags = flags.trim().to_owned();
                }
                Some((range, rest)) if range.contains('-') => {
                    is_code = rest.starts_with("r-xp") && line.contains('/');
                }
                _ => (),
            }
        }
        (resident, first_flags)
    }

    /// One test, since other tests of this process that released code would change the counts.
    #[test]
    fn released_code_is_mapped_again_as_it_runs_but_not_in_huge_pages() {
        // All of it is in memory first, so that less is left whatever the other tests run.
        for mapping in mappings().iter().filter(|mapping| mapping.file.starts_with('/')) {
            for page in (mapping.start..mapping.end).step_by(4096) {
                // SAFETY: code is mapped to be read too.
                unsafe { std::ptr::read_volatile(page as *const u8) };
            }
        }
        let (before, _) = resident_code();
        assert!(release_code() >= before * 1024);
        let (after, flags) = resident_code();
        assert!(after > 0, "this runs");
        assert!(after < before, "{after} KB after {before}");
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
        } else {
            println!("skipped: this kernel has no huge pages");
        }
    }
}
