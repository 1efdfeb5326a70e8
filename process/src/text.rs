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

    #[test]
    fn released_code_does_not_come_back_in_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: this kernel has no huge pages");
            return;
        }
        release_code();
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let mut code =
            maps.lines().skip_while(|line| !line.contains(" r-xp ") || !line.contains('/'));
        let flags = code.find(|line| line.starts_with("VmFlags:")).expect("flags");
        assert!(flags.split_whitespace().any(|flag| flag == "nh"), "{flags}");
    }
}
