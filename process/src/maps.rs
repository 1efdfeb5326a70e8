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

/// Returns the mappings of this process, by address; empty where they cannot be read.
pub fn mappings() -> Vec<Mapping> {
    parse(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Parses the mappings of files with code in lines as `start-end r-xp offset device inode file`;
/// other lines are skipped.
fn parse(text: &str) -> Vec<Mapping> {
    let line = |line: &str| {
        // The name of the file may have blanks.
        let (range, fields) = line.split_once(' ')?;
        let (rights, fields) = fields.split_once(' ')?;
        let (offset, fields) = fields.split_once(' ')?;
        let (_device, fields) = fields.split_once(' ')?;
        let (_inode, file) = fields.split_once(' ')?;
        let file = file.trim_start();
        if !rights.contains('x') || file.is_empty() {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        Some(Mapping { start, end, offset, file: file.to_owned() })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_with_a_file_is_listed() {
        let text = "\
55d0c0000000-55d0c0100000 r--p 00000000 fd:01 123                        /a b/manager
55d0c0100000-55d0c0200000 r-xp 00100000 fd:01 123                        /a b/manager
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
        assert_eq!(parse(text), [manager, vdso]);
        assert!(!mappings().is_empty());
    }
}
