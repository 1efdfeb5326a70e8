//! The files that are mapped as code.

use std::fs;

/// A part of a file that is mapped as code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    /// The offset in the file.
    pub offset: usize,
    pub file: String,
}

/// The mappings of this process, by address; empty where they cannot be read.
pub fn mappings() -> Vec<Mapping> {
    parse(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Of lines as `start-end r-xp offset device inode   file`; neighbours in memory and file are one.
fn parse(text: &str) -> Vec<Mapping> {
    let line = |line: &str| {
        let mut rest = line;
        let mut next = || {
            let (word, after) = rest.split_once(' ')?;
            rest = after.trim_start();
            Some(word)
        };
        let (range, rights, offset) = (next()?, next()?, next()?);
        let (_device, _inode) = (next()?, next()?);
        if !rights.contains('x') || rest.is_empty() {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        Some(Mapping { start, end, offset, file: rest.to_owned() })
    };
    let mut mappings: Vec<Mapping> = Vec::new();
    for next in text.lines().filter_map(line) {
        match mappings.last_mut() {
            Some(last) if last.continues(&next) => last.end = next.end,
            _ => mappings.push(next),
        }
    }
    mappings
}

impl Mapping {
    /// Whether `next` is the rest of the same file, with other advice.
    fn continues(&self, next: &Mapping) -> bool {
        self.end == next.start
            && self.file == next.file
            && self.offset + (self.end - self.start) == next.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_with_a_file_is_listed() {
        let text = "\
55d0c0000000-55d0c0100000 r--p 00000000 fd:01 123                        /a b/manager
55d0c0100000-55d0c0110000 r-xp 00100000 fd:01 123                        /a b/manager
55d0c0110000-55d0c0200000 r-xp 00110000 fd:01 123                        /a b/manager
55d0c0200000-55d0c0300000 r-xp 00200000 fd:01 124                        /other
55d0c0300000-55d0c0400000 r-xp 00000000 fd:01 124                        /other
55d0c0500000-55d0c0600000 r-xp 00100000 fd:01 124                        /other
7f0000000000-7f0000001000 r-xp 00000000 00:00 0 
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
broken";
        let manager = Mapping {
            start: 0x55d0c0100000,
            end: 0x55d0c0200000,
            offset: 0x100000,
            file: "/a b/manager".into(),
        };
        let vdso = Mapping {
            start: 0x7ffc00000000,
            end: 0x7ffc00002000,
            offset: 0,
            file: "[vdso]".into(),
        };
        // Neighbours in memory alone, or in the file alone, stay two.
        let other =
            |start, offset| Mapping { start, end: start + 0x100000, offset, file: "/other".into() };
        let one = other(0x55d0c0200000, 0x200000);
        let two = other(0x55d0c0300000, 0);
        let three = other(0x55d0c0500000, 0x100000);
        assert_eq!(parse(text), [manager, one, two, three, vdso]);
        assert!(!mappings().is_empty());
    }
}
