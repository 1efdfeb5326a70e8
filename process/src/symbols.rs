//! The names of this program's functions, from the symbol table of its file. A stripped file has
//! none.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::maps::Mapping;

const PROGRAM: &str = "/proc/self/exe";
/// The size of the largest table that is read, in bytes.
const MOST: u64 = 256 << 20;

/// The functions of the program's file.
pub struct Symbols {
    /// The path as the kernel maps it.
    file: String,
    segments: Vec<Segment>,
    /// By address.
    functions: Vec<Function>,
    names: Vec<u8>,
}

/// A part of the file and where it lies in memory, relative to the program's base.
struct Segment {
    offset: u64,
    address: u64,
    size: u64,
}

struct Function {
    address: u64,
    size: u64,
    /// The offset of its name.
    name: u32,
}

impl Symbols {
    /// Reads the functions of the file that this process runs.
    ///
    /// # Errors
    /// When the file cannot be read or is not in the format that Linux runs.
    pub fn of_this_process() -> io::Result<Symbols> {
        let file = std::fs::read_link(PROGRAM)?.to_string_lossy().into_owned();
        let reader = File::open(PROGRAM)?;
        let read = |offset, size| {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            reader.read_exact_at(&mut bytes, offset).map(|()| bytes)
        };
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not an ELF file");
        parse(file, &read)?.ok_or_else(malformed)
    }

    /// Returns whether no function is known.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Finds the function at an address of this process, as the compiler mangles its name.
    pub fn name(&self, address: usize, mappings: &[Mapping]) -> Option<String> {
        let mapping = mappings.iter().find(|m| (m.start..m.end).contains(&address))?;
        if mapping.file != self.file {
            return None;
        }
        let offset = (address - mapping.start + mapping.offset) as u64;
        let within = |s: &&Segment| (s.offset..s.offset.saturating_add(s.size)).contains(&offset);
        let segment = self.segments.iter().find(within)?;
        let address = offset - segment.offset + segment.address;
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        if address >= function.address.saturating_add(function.size.max(1)) {
            return None;
        }
        let name = self.names.get(function.name as usize..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(name).into_owned())
    }
}

/// An entry of a table, whose numbers are read by their offsets.
struct Entry<'a>(&'a [u8]);

impl Entry<'_> {
    /// Returns the number of `size` bytes at `at`.
    fn number_at(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.0.get(at..at.checked_add(size)?)?;
        let step = |sum, byte: &u8| (sum << 8) | u64::from(*byte);
        Some(match cfg!(target_endian = "big") {
            true => bytes.iter().fold(0, step),
            false => bytes.iter().rev().fold(0, step),
        })
    }
}

/// Reads the bytes of a file from an offset on, as many as the second number says.
type Read<'a> = &'a dyn Fn(u64, u64) -> io::Result<Vec<u8>>;

/// Reads the functions of an ELF file, none if it has no symbol table, or one beyond [`MOST`].
/// `None`: it is no ELF file of this processor's word size. `file`: its path as the kernel maps it.
fn parse(file: String, read: Read<'_>) -> io::Result<Option<Symbols>> {
    const LOADED: u64 = 1;
    const CODE: u64 = 1;
    const SYMBOL_TABLE: u64 = 2;
    const FUNCTION: u64 = 2;
    let wide = cfg!(target_pointer_width = "64");
    let word = if wide { 8 } else { 4 };
    // The layout of both word sizes: (offset in 64 bit, in 32 bit).
    let pick = |at: (usize, usize)| if wide { at.0 } else { at.1 };
    let header = read(0, 64)?;
    let header = Entry(&header);
    if header.number_at(0, 4) != Some(u64::from(u32::from_ne_bytes(*b"\x7fELF")))
        || header.number_at(4, 1) != Some(if wide { 2 } else { 1 })
    {
        return Ok(None);
    }
    let table = |offset: (usize, usize), size: (usize, usize), count: (usize, usize)| {
        let offset = header.number_at(pick(offset), word)?;
        let (size, count) = (header.number_at(pick(size), 2)?, header.number_at(pick(count), 2)?);
        Some((offset, size, count))
    };
    // The tables of program headers and of section headers, by `e_phoff` and `e_shoff`.
    let (Some(segments), Some(sections)) =
        (table((32, 28), (54, 42), (56, 44)), table((40, 32), (58, 46), (60, 48)))
    else {
        return Ok(None);
    };
    let entries = |(offset, size, count): (u64, u64, u64)| -> io::Result<Vec<Vec<u8>>> {
        let bytes = read(offset, size * count)?;
        Ok(bytes.chunks_exact((size as usize).max(1)).map(<[u8]>::to_vec).collect())
    };
    let mut found = Symbols { file, segments: vec![], functions: vec![], names: vec![] };
    for segment in entries(segments)? {
        let entry = Entry(&segment);
        let loaded = (|| {
            // `p_flags`, and below `p_type`, `p_offset`, `p_vaddr`, `p_filesz`.
            let flags = entry.number_at(pick((4, 24)), 4)?;
            (entry.number_at(0, 4)? == LOADED && flags & CODE != 0).then_some(())?;
            Some(Segment {
                offset: entry.number_at(pick((8, 4)), word)?,
                address: entry.number_at(pick((16, 8)), word)?,
                size: entry.number_at(pick((32, 16)), word)?,
            })
        })();
        found.segments.extend(loaded);
    }
    let sections = entries(sections)?;
    let place = |section: &[u8]| {
        let entry = Entry(section);
        // `sh_offset`, `sh_size`.
        let offset = entry.number_at(pick((24, 16)), word)?;
        let size = entry.number_at(pick((32, 20)), word)?;
        (size <= MOST).then_some((offset, size))
    };
    // By `sh_type`.
    let symbols = sections.iter().find(|s| Entry(s).number_at(4, 4) == Some(SYMBOL_TABLE));
    let Some(((offset, size), names)) = symbols.and_then(|table| {
        // `sh_link`: the section with the names.
        let link = Entry(table).number_at(pick((40, 24)), 4)?;
        Some((place(table)?, place(sections.get(usize::try_from(link).ok()?)?)?))
    }) else {
        return Ok(Some(found));
    };
    let table = read(offset, size)?;
    for symbol in table.chunks_exact(pick((24, 16))) {
        let entry = Entry(symbol);
        let function = (|| {
            // `st_info`, with the type in its lower four bits; then `st_name`, `st_value`,
            // `st_size`.
            (entry.number_at(pick((4, 12)), 1)? & 15 == FUNCTION).then_some(())?;
            Some(Function {
                name: entry.number_at(0, 4)? as u32,
                address: entry.number_at(pick((8, 4)), word)?,
                size: entry.number_at(pick((16, 8)), word)?,
            })
        })();
        found.functions.extend(function.filter(|function| function.address != 0));
    }
    found.functions.sort_unstable_by_key(|function| function.address);
    found.names = read(names.0, names.1)?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings;

    #[test]
    fn functions_of_this_program_have_names() {
        let symbols = Symbols::of_this_process().expect("this program's file");
        assert!(!symbols.is_empty());
        let address = functions_of_this_program_have_names as fn() as usize;
        let name = symbols.name(address, &mappings()).expect("a name");
        assert!(name.contains("functions_of_this_program_have_names"), "{name}");
        assert_eq!(symbols.name(1, &mappings()), None);
    }

    #[test]
    fn files_of_other_formats_and_short_files_are_refused() {
        let parsed = |bytes: &'static [u8]| {
            let read = move |offset: u64, size: u64| {
                let part = bytes.get(offset as usize..(offset + size) as usize);
                part.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            };
            parse(String::new(), &read).map(|found| found.is_some())
        };
        assert!(parsed(b"#!/bin/sh").is_err());
        assert!(!parsed(&[0; 64]).expect("a header"));
    }
}
