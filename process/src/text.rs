//! The memory of the program's own code.
#![expect(unsafe_code, reason = "advice to the kernel about memory is a C interface")]

use crate::mappings;

/// Unmaps the pages of all code that was loaded from files; it is mapped again as it runs, 64 KB at
/// a time, from the kernel's page cache. Returns the bytes that were mapped at most.
///
/// A process that has started runs a small part of the code that its start ran.
pub fn release_code() -> usize {
    let is_file = |file: &str| file.starts_with('/');
    let code = mappings().into_iter().filter(|mapping| is_file(&mapping.file));
    code.map(|mapping| {
        let length = mapping.end - mapping.start;
        // SAFETY: nothing writes to code, so what is mapped again is what was there.
        let advised = unsafe {
            libc::madvise(mapping.start as *mut libc::c_void, length, libc::MADV_DONTNEED)
        };
        if advised == 0 { length } else { 0 }
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_code_is_mapped_again_when_it_runs() {
        let resident = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
            let mut is_code = false;
            maps.lines()
                .filter_map(|line| {
                    let mut words = line.split_whitespace();
                    match (words.next()?, words.next()?) {
                        ("Rss:", kilobytes) if is_code => kilobytes.parse::<usize>().ok(),
                        (range, rights) if range.contains('-') => {
                            is_code = rights == "r-xp" && line.contains('/');
                            None
                        }
                        _ => None,
                    }
                })
                .sum::<usize>()
        };
        // Every page of the code, from every mapping.
        let touched = mappings().iter().map(|mapping| mapping.end - mapping.start).sum::<usize>();
        let before = resident();
        assert!(before > 0 && before <= touched / 1024 + 1, "{before} of {touched}");
        assert!(release_code() > 0);
        let after = resident();
        assert!(after > 0, "this runs");
        assert!(after < before, "{after} KB after {before}");
    }
}
