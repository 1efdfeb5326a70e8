//! Call-frame information: where a function's caller is, from the tables that the compiler writes
//! for the unwinding of panics. It runs in a signal handler, so it reads plain bytes, neither
//! allocates nor locks, and never panics. See section 6.4 of DWARF, and `.eh_frame` in the Linux Standard Base.

use std::ops::Range;

/// The registers that rules are kept for, by their DWARF numbers; the stack pointer; and the column
/// of the return address.
#[cfg(target_arch = "aarch64")]
mod machine {
    pub const REGISTERS: usize = 32;
    pub const STACK_POINTER: usize = 31;
    pub const RETURN: usize = 30;
}
#[cfg(not(target_arch = "aarch64"))]
mod machine {
    pub const REGISTERS: usize = 17;
    pub const STACK_POINTER: usize = 7;
    pub const RETURN: usize = 16;
}
pub use machine::{REGISTERS, RETURN, STACK_POINTER};

/// States that a function's program may put aside.
const REMEMBERED: usize = 4;

/// A loaded file: its code and its tables.
pub struct Object {
    pub code: Range<usize>,
    /// The address of `.eh_frame_hdr`.
    pub header: usize,
    /// Where `bytes` begin.
    pub start: usize,
    /// The loaded part of the file that holds `.eh_frame_hdr` and `.eh_frame`.
    pub bytes: &'static [u8],
}

/// The registers of a frame; 0 where a value is not known.
pub type Registers = [usize; REGISTERS];

/// How a register of the caller is found.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Same,
    /// Saved so far from the frame's address.
    Saved(isize),
    In(usize),
    Unknown,
}

#[derive(Clone, Copy)]
struct State {
    /// The frame's address is this register and an offset; `None`: it is an expression.
    frame: Option<(usize, isize)>,
    rules: [Rule; REGISTERS],
}

/// Bytes at an address.
#[derive(Clone, Copy)]
struct Reader {
    bytes: &'static [u8],
    start: usize,
    /// The next byte.
    at: usize,
    end: usize,
}

impl Reader {
    fn of(object: &Object, at: usize) -> Reader {
        let (bytes, start) = (object.bytes, object.start);
        Reader { bytes, start, at, end: start.wrapping_add(bytes.len()) }
    }

    fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let next = self.at.checked_add(N).filter(|next| *next <= self.end)?;
        let from = self.at.checked_sub(self.start)?;
        let bytes = self.bytes.get(from..from.checked_add(N)?)?.try_into().ok()?;
        self.at = next;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<isize> {
        Some(self.u32()? as i32 as isize)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|next| *next <= self.end)?;
        Some(())
    }

    fn uleb(&mut self) -> Option<usize> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            value |= usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    fn sleb(&mut self) -> Option<isize> {
        let (mut value, mut shift) = (0isize, 0);
        loop {
            let byte = self.byte()?;
            value |= isize::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                let negative = byte & 0x40 != 0 && shift < isize::BITS;
                return Some(if negative { value | (-1isize << shift) } else { value });
            }
        }
    }

    /// A pointer in one of the encodings `DW_EH_PE_*`; `None` for rare ones.
    fn pointer(&mut self, encoding: u8) -> Option<usize> {
        const RELATIVE: u8 = 0x10;
        const INDIRECT: u8 = 0x80;
        let here = self.at;
        let value = match encoding & 0x0f {
            0x00 => self.take().map(usize::from_ne_bytes)?,
            0x02 => self.u16()?.into(),
            0x0a => self.u16()? as i16 as usize,
            0x03 => self.u32()? as usize,
            0x0b => self.i32()? as usize,
            0x04 | 0x0c => self.u64()? as usize,
            0x01 => self.uleb()?,
            0x09 => self.sleb()? as usize,
            _ => return None,
        };
        match encoding & 0x70 {
            0 => Some(value),
            _ if encoding & INDIRECT != 0 => Some(0),
            RELATIVE => Some(here.wrapping_add(value)),
            _ => None,
        }
    }
}

/// A function's program, and what it needs of its common entry.
struct Function {
    begin: usize,
    program: Reader,
    common: Reader,
    code_factor: usize,
    data_factor: isize,
}

/// The function at `address`.
fn function(object: &Object, address: usize) -> Option<Function> {
    // What linkers write: pairs of 32-bit numbers relative to the header.
    const SORTED_PAIRS: u8 = 0x3b;
    let mut header = Reader::of(object, object.header);
    let [version, frame_encoding, count_encoding, table_encoding] = header.take()?;
    if version != 1 || table_encoding != SORTED_PAIRS {
        return None;
    }
    header.pointer(frame_encoding)?;
    let count = header.pointer(count_encoding)?;
    let table = header.at;
    let pair = |index: usize| {
        let mut reader = Reader::of(object, table.checked_add(index.checked_mul(8)?)?);
        let relative = |offset: isize| object.header.wrapping_add_signed(offset);
        Some((relative(reader.i32()?), relative(reader.i32()?)))
    };
    // The last function that begins at or before the address.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match pair(middle)?.0 <= address {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let (_, entry) = pair(low.checked_sub(1)?)?;

    let mut entry = Reader::of(object, entry);
    let length = usize::try_from(entry.u32()?).ok()?;
    entry.end = entry.at.checked_add(length).filter(|end| *end <= entry.end)?;
    let here = entry.at;
    let common = here.checked_sub(usize::try_from(entry.u32()?).ok()?)?;
    let mut common = Reader::of(object, common);
    let length = usize::try_from(common.u32()?).ok()?;
    common.end = common.at.checked_add(length).filter(|end| *end <= common.end)?;
    common.u32()?;
    let version = common.byte()?;
    let mut letters = [0; 8];
    let mut count = 0;
    loop {
        match common.byte()? {
            0 => break,
            letter => *letters.get_mut(count)? = letter,
        }
        count += 1;
    }
    let (code_factor, data_factor) = (common.uleb()?, common.sleb()?);
    let _return = if version == 1 { common.byte()?.into() } else { common.uleb()? };
    let mut encoding = 0;
    let augmented = letters.first() == Some(&b'z');
    if augmented {
        let length = common.uleb()?;
        let program = common.at.checked_add(length)?;
        for letter in letters.iter().take(count).skip(1) {
            match letter {
                b'R' => encoding = common.byte()?,
                b'L' => drop(common.byte()?),
                b'P' => {
                    let encoding = common.byte()?;
                    common.pointer(encoding)?;
                }
                b'S' | b'B' => (),
                _ => return None,
            }
        }
        common.at = program;
    } else if count > 0 {
        return None;
    }
    let begin = entry.pointer(encoding)?;
    let size = entry.pointer(encoding & 0x0f)?;
    if !(begin..begin.checked_add(size)?).contains(&address) {
        return None;
    }
    if augmented {
        let length = entry.uleb()?;
        entry.skip(length)?;
    }
    Some(Function { begin, program: entry, common, code_factor, data_factor })
}

impl State {
    /// Runs a program up to `address`. `initial`: the state to which rules are restored.
    fn run(
        &mut self,
        function: &Function,
        mut program: Reader,
        address: usize,
        initial: Option<&State>,
    ) -> Option<()> {
        let mut location = function.begin;
        let mut aside = [*self; REMEMBERED];
        let mut depth = 0;
        while !program.is_empty() {
            let code = program.byte()?;
            let (high, low) = (code & 0xc0, usize::from(code & 0x3f));
            let scaled = |offset: isize| offset.checked_mul(function.data_factor);
            let mut advance = |delta: usize| {
                location = location.wrapping_add(delta.wrapping_mul(function.code_factor));
                location <= address
            };
            let goes_on = match (high, low) {
                (0x40, delta) => advance(delta),
                (0x80, register) => {
                    let offset = scaled(isize::try_from(program.uleb()?).ok()?)?;
                    self.set(register, Rule::Saved(offset))
                }
                (0xc0, register) => self.restore(register, initial),
                // nop
                (0, 0x00) => true,
                (0, 0x02) => advance(program.byte()?.into()),
                (0, 0x03) => advance(program.u16()?.into()),
                (0, 0x04) => advance(usize::try_from(program.u32()?).ok()?),
                // offset_extended, offset_extended_sf
                (0, 0x05) => {
                    let register = program.uleb()?;
                    let offset = scaled(isize::try_from(program.uleb()?).ok()?)?;
                    self.set(register, Rule::Saved(offset))
                }
                (0, 0x11) => {
                    let register = program.uleb()?;
                    let offset = scaled(program.sleb()?)?;
                    self.set(register, Rule::Saved(offset))
                }
                // restore_extended, undefined, same_value, register
                (0, 0x06) => {
                    let register = program.uleb()?;
                    self.restore(register, initial)
                }
                (0, 0x07) => self.set(program.uleb()?, Rule::Unknown),
                (0, 0x08) => self.set(program.uleb()?, Rule::Same),
                (0, 0x09) => {
                    let register = program.uleb()?;
                    self.set(register, Rule::In(program.uleb()?))
                }
                // remember_state, restore_state
                (0, 0x0a) => {
                    *aside.get_mut(depth)? = *self;
                    depth += 1;
                    true
                }
                (0, 0x0b) => {
                    depth = depth.checked_sub(1)?;
                    *self = *aside.get(depth)?;
                    true
                }
                // def_cfa, def_cfa_register, def_cfa_offset, and the first and last with signs
                (0, 0x0c) => {
                    let register = program.uleb()?;
                    self.frame = Some((register, isize::try_from(program.uleb()?).ok()?));
                    true
                }
                (0, 0x12) => {
                    let register = program.uleb()?;
                    self.frame = Some((register, scaled(program.sleb()?)?));
                    true
                }
                (0, 0x0d) => {
                    self.frame = Some((program.uleb()?, self.frame?.1));
                    true
                }
                (0, 0x0e) => {
                    self.frame = Some((self.frame?.0, isize::try_from(program.uleb()?).ok()?));
                    true
                }
                (0, 0x13) => {
                    self.frame = Some((self.frame?.0, scaled(program.sleb()?)?));
                    true
                }
                // def_cfa_expression
                (0, 0x0f) => {
                    let length = program.uleb()?;
                    program.skip(length)?;
                    self.frame = None;
                    true
                }
                // expression, val_expression
                (0, 0x10 | 0x16) => {
                    let register = program.uleb()?;
                    let length = program.uleb()?;
                    program.skip(length)?;
                    self.set(register, Rule::Unknown)
                }
                // val_offset, val_offset_sf
                (0, 0x14 | 0x15) => {
                    let register = program.uleb()?;
                    program.uleb()?;
                    self.set(register, Rule::Unknown)
                }
                // The signing of return addresses; the size of arguments.
                (0, 0x2d) => true,
                (0, 0x2e) => program.uleb().is_some(),
                _ => return None,
            };
            if !goes_on {
                return Some(());
            }
        }
        Some(())
    }

    /// Registers that no rule is kept for hold no addresses. Always true: the program goes on.
    fn set(&mut self, register: usize, rule: Rule) -> bool {
        if let Some(kept) = self.rules.get_mut(register) {
            *kept = rule;
        }
        true
    }

    fn restore(&mut self, register: usize, initial: Option<&State>) -> bool {
        let rule = initial.and_then(|state| state.rules.get(register)).unwrap_or(&Rule::Same);
        self.set(register, *rule)
    }
}

/// The caller of the function at `address` (of a call: inside of it), and the caller's registers.
/// `read` reads a word of the stack. `None`: the outermost frame, or not known.
pub fn caller(
    objects: &[Object],
    address: usize,
    registers: &Registers,
    read: &mut dyn FnMut(usize) -> Option<usize>,
) -> Option<(usize, Registers)> {
    let object = objects.iter().find(|object| object.code.contains(&address))?;
    let function = function(object, address)?;
    let mut state = State { frame: None, rules: [Rule::Same; REGISTERS] };
    state.run(&function, function.common, usize::MAX, None)?;
    let initial = state;
    state.run(&function, function.program, address, Some(&initial))?;
    let (base, offset) = state.frame?;
    let frame = registers.get(base)?.checked_add_signed(offset)?;
    let mut next = *registers;
    for (register, (value, rule)) in next.iter_mut().zip(state.rules).enumerate() {
        *value = match rule {
            Rule::Same => registers[register],
            Rule::Saved(offset) => read(frame.checked_add_signed(offset)?)?,
            Rule::In(other) => *registers.get(other)?,
            Rule::Unknown => 0,
        };
    }
    let back = next[RETURN];
    next[STACK_POINTER] = frame;
    (back != 0).then_some((back, next))
}
