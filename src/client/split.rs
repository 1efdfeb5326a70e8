//! Cuts JSON that arrives in pieces: a list's body into its items, a watch's into its events.

use memchr::{memchr, memchr_iter, memchr2};

/// Follows strings and nesting.
#[derive(Debug, Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// A vector search is faster in strings longer than this.
const SHORT: usize = 16;

/// The bytes that matter outside of strings.
const STRUCTURE: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 5 {
        table[b"\"{}[]"[at] as usize] = true;
        at += 1;
    }
    table
};

impl Scanner {
    /// Moves on by one byte: a string or a level of nesting may begin or end with it.
    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Scans to the end of the value that is open, or begins, at depth `floor`. Returns how many of
    /// `bytes` belong to the value, and whether it ends within them.
    fn scan_value(&mut self, bytes: &[u8], floor: usize) -> (usize, bool) {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let found = if !self.in_string {
                rest.iter().position(|byte| STRUCTURE[usize::from(*byte)])
            } else if self.escaped {
                Some(0)
            } else {
                let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
                rest.iter().take(SHORT).position(ends).or_else(|| {
                    let long = rest.get(SHORT..)?;
                    memchr2(b'"', b'\\', long).map(|found| found + SHORT)
                })
            };
            let Some(found) = found else { break };
            at += found + 1;
            self.step(rest[found]);
            if self.depth == floor && !self.in_string {
                return (at, true);
            }
        }
        (bytes.len(), false)
    }
}

/// Cuts one top-level JSON object after another out of a body, as in a watch. Never waits, and does
/// not check the JSON beyond strings and nesting: malformed text becomes a document that does not
/// decode. Bytes between documents are skipped.
#[derive(Debug, Default)]
pub struct DocumentSplitter {
    /// The beginning of a document whose end has not arrived.
    document: Vec<u8>,
    scanner: Scanner,
    /// The number of bytes of the document that the scanner has seen.
    scanned: usize,
}

impl DocumentSplitter {
    /// Takes further `bytes` of the body, calls `found` with each document that is whole now, and
    /// holds the beginning of the next one.
    pub fn feed(&mut self, mut bytes: &[u8], found: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            if self.document.is_empty() {
                let Some(start) = bytes.iter().position(|byte| matches!(byte, b'{' | b'[')) else {
                    return;
                };
                bytes = &bytes[start..];
            }
            // API servers write a document a line: most are found by the line's end, without a
            // scan.
            let end = memchr(b'\n', bytes);
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            bytes = end.map_or(&[], |end| &bytes[end + 1..]);
            if end.is_some() && self.document.is_empty() && is_document(piece) {
                found(piece);
                continue;
            }
            self.document.extend_from_slice(piece);
            if end.is_some() && self.scanned == 0 && is_document(&self.document) {
                found(&self.document);
                self.document.clear();
            } else if end.is_some() || may_end(piece) {
                self.scan(found);
            }
        }
    }

    /// Finds the ends of documents byte by byte, where line ends are not enough, and keeps the
    /// beginning of the next one.
    fn scan(&mut self, found: &mut dyn FnMut(&[u8])) {
        let (mut start, mut at) = (0, self.scanned);
        loop {
            let (count, whole) = self.scanner.scan_value(&self.document[at..], 0);
            at += count;
            if !whole {
                break;
            }
            found(&self.document[start..at]);
            let begins = |byte: &u8| matches!(byte, b'{' | b'[');
            at += self.document[at..].iter().position(begins).unwrap_or(self.document.len() - at);
            start = at;
        }
        self.document.drain(..start);
        self.scanned = self.document.len();
    }

    /// Returns whether no part of a document is held: a body that ends here is whole.
    pub fn is_between(&self) -> bool {
        self.document.is_empty()
    }

    /// Frees memory that holds no part of a document.
    pub fn shrink(&mut self) {
        self.document.shrink_to_fit();
    }
}

/// Returns whether a line is one document, as API servers write them, without parsing it: the
/// numbers of its opening and closing braces are equal, and no second value begins in it. `false`
/// does not mean that it is not a document.
fn is_document(line: &[u8]) -> bool {
    let count = |brace| memchr_iter(brace, line).count();
    line.first() == Some(&b'{')
        && line.last() == Some(&b'}')
        && count(b'{') == count(b'}')
        && !may_hold_two_values(line)
}

/// Returns whether a document may end in this piece of a line, so that a scan is worth its cost: at
/// its end, before blanks, or before another document. Other ends are found with the line's end.
fn may_end(piece: &[u8]) -> bool {
    matches!(piece.last(), Some(b'}' | b']' | b' ' | b'\t' | b'\r')) || may_hold_two_values(piece)
}

/// Returns whether a value ends and another begins, with only blanks between them: two documents,
/// or text in a string. The byte before most braces rules both out at once.
fn may_hold_two_values(piece: &[u8]) -> bool {
    memchr_iter(b'{', piece)
        .any(|brace| matches!(piece[..brace].trim_ascii_end().last(), Some(b'}' | b']')))
}

/// A piece of a list's body.
#[derive(Debug, PartialEq, Eq)]
pub enum ListPiece {
    /// The bytes of one object.
    Item(Vec<u8>),
    /// The bytes of the list's metadata. They may come before or after the items.
    Metadata(Vec<u8>),
    /// The list is whole. The last piece.
    End,
}

/// The part of a list's body to which the next byte belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inside {
    /// Before the list, or before the name of its next field.
    #[default]
    Nothing,
    /// The name of a field.
    Key,
    /// The field `items`, between two items.
    Items,
    Item,
    Metadata,
    /// After the name of a field: its value, unless that is one of the above.
    Other,
}

/// Cuts a list's body (`{"kind":…,"metadata":{…},"items":[{…},…]}`, its fields in any order) into
/// items and metadata. Holds one item at most. Never waits, and does not check the JSON beyond
/// strings and nesting.
#[derive(Debug, Default)]
pub struct ListSplitter {
    scanner: Scanner,
    inside: Inside,
    /// The name of the field whose value comes next.
    key: Vec<u8>,
    captured: Vec<u8>,
    done: bool,
}

impl ListSplitter {
    /// Takes further `bytes` of the body, and calls `found` with each piece that is whole now,
    /// items in their order.
    pub fn feed(&mut self, mut bytes: &[u8], found: &mut dyn FnMut(ListPiece)) {
        while let [byte, rest @ ..] = bytes {
            let floor = match self.inside {
                Inside::Item => 2,
                Inside::Metadata => 1,
                // The first byte of an item or of the metadata is scanned again, as its part.
                _ => {
                    if self.scan_outside(*byte, found) {
                        bytes = rest;
                    }
                    continue;
                }
            };
            let (count, whole) = self.scanner.scan_value(bytes, floor);
            self.captured.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if !whole {
                continue;
            }
            let captured = std::mem::take(&mut self.captured);
            if self.inside == Inside::Item {
                found(ListPiece::Item(captured));
                self.inside = Inside::Items;
            } else {
                found(ListPiece::Metadata(captured));
                self.key.clear();
                self.inside = Inside::Other;
            }
        }
    }

    /// Scans one byte that is part of neither an item nor the metadata. Returns `false`, and does
    /// not scan it, if it is the first byte of one.
    fn scan_outside(&mut self, byte: u8, found: &mut dyn FnMut(ListPiece)) -> bool {
        let (before, was_string) = (self.scanner.depth, self.scanner.in_string);
        if byte == b'{' && !was_string {
            match self.inside {
                Inside::Items if before == 2 => self.inside = Inside::Item,
                Inside::Other if before == 1 && self.key == b"metadata" => {
                    self.inside = Inside::Metadata;
                }
                _ => {}
            }
            if matches!(self.inside, Inside::Item | Inside::Metadata) {
                return false;
            }
        }
        self.scanner.step(byte);
        let depth = self.scanner.depth;
        match self.inside {
            Inside::Nothing => match byte {
                b'"' if depth == 1 => {
                    self.key.clear();
                    self.inside = Inside::Key;
                }
                b'}' if depth == 0 && before == 1 => self.end(found),
                _ => {}
            },
            Inside::Key if self.scanner.in_string => self.key.push(byte),
            Inside::Key => self.inside = Inside::Other,
            // The first byte of a field's value shows its type.
            Inside::Other => match byte {
                b'[' if depth == 2 && before == 1 && self.key == b"items" => {
                    self.inside = Inside::Items;
                }
                b',' if depth == 1 && !was_string => self.inside = Inside::Nothing,
                b'}' if depth == 0 && before == 1 => self.end(found),
                _ => {}
            },
            Inside::Items if byte == b']' && depth == 1 => {
                self.key.clear();
                self.inside = Inside::Other;
            }
            Inside::Items | Inside::Item | Inside::Metadata => {}
        }
        true
    }

    /// Passes on that the list is whole.
    fn end(&mut self, found: &mut dyn FnMut(ListPiece)) {
        self.done = true;
        self.inside = Inside::Nothing;
        found(ListPiece::End);
    }

    /// Returns whether the whole list has arrived.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"kind":"PodList","apiVersion":"v1","extra":{"items":[{"no":1}]},
        "metadata":{"resourceVersion":"7","x":["}"]},"odd":"a\",\"items\":[{}]",
        "items":[{"a":"ü}\"\\"}, {"b":[{"items":[]}]},{}] , "last":null}"#;

    #[test]
    fn lists_are_cut_at_every_byte() {
        for cut in 0..=LIST.len() {
            let (mut splitter, mut items, mut metadata, mut ends) =
                (ListSplitter::default(), Vec::new(), Vec::new(), 0);
            let (a, b) = LIST.as_bytes().split_at(cut);
            for piece in [a, b] {
                splitter.feed(piece, &mut |piece| match piece {
                    ListPiece::Item(item) => items.push(String::from_utf8(item).unwrap()),
                    ListPiece::Metadata(value) => metadata.push(String::from_utf8(value).unwrap()),
                    ListPiece::End => ends += 1,
                });
            }
            assert_eq!(
                items,
                [r#"{"a":"ü}\"\\"}"#, r#"{"b":[{"items":[]}]}"#, "{}"],
                "cut at {cut}"
            );
            assert_eq!(metadata, [r#"{"resourceVersion":"7","x":["}"]}"#], "cut at {cut}");
            assert_eq!((ends, splitter.is_done()), (1, true), "cut at {cut}");
        }
    }

    #[test]
    fn an_empty_list_ends() {
        for text in [r#"{"items":null,"metadata":{}}"#, r#"{"items":[]}"#, "{}"] {
            let (mut splitter, mut ended) = (ListSplitter::default(), false);
            splitter.feed(text.as_bytes(), &mut |piece| {
                assert!(!matches!(piece, ListPiece::Item(_)), "{text}");
                ended |= piece == ListPiece::End;
            });
            assert!(ended, "{text}");
        }
    }

    #[test]
    fn documents_are_cut_at_every_byte() {
        let text = "{\"a\":\"}{ü\\\"\"}\n{\"b\":[{}]}{}\n".as_bytes();
        for cut in 0..=text.len() {
            let (mut splitter, mut found) = (DocumentSplitter::default(), Vec::new());
            let (a, b) = text.split_at(cut);
            for piece in [a, b] {
                splitter.feed(piece, &mut |document| {
                    found.push(String::from_utf8(document.to_vec()).unwrap());
                });
            }
            assert_eq!(found, ["{\"a\":\"}{ü\\\"\"}", "{\"b\":[{}]}", "{}"], "cut at {cut}");
            assert!(splitter.is_between());
        }
    }

    #[test]
    fn documents_on_one_line_are_cut_with_any_blanks_between_them() {
        let all = [r#"{"a":1}"#, r#"{"b":{"c":"} {"}}"#, "[{}]", "[]", r#"{"d":[{},{ }]}"#, "{}"];
        for between in ["", " ", "\t", " \r \t", "\n", "\r\n "] {
            let text = format!("{}\n", all.join(between));
            for cut in 0..=text.len() {
                let (mut splitter, mut found) = (DocumentSplitter::default(), Vec::new());
                let (a, b) = text.split_at(cut);
                for piece in [a, b] {
                    splitter.feed(piece.as_bytes(), &mut |document| {
                        found.push(String::from_utf8(document.to_vec()).unwrap());
                    });
                }
                assert_eq!(found, all, "{between:?} cut at {cut}");
                assert!(splitter.is_between());
            }
        }
    }

    #[test]
    fn a_document_is_found_before_its_line_ends() {
        let (mut splitter, mut found) = (DocumentSplitter::default(), 0);
        for piece in ["{\"a\":{}", "}", "\n{}", " {\"b\":1}{", "}{}{\"c\":", "2} "] {
            splitter.feed(piece.as_bytes(), &mut |_| found += 1);
        }
        assert_eq!((found, splitter.is_between()), (6, true));
    }

    #[test]
    fn documents_that_cross_lines_and_lines_that_look_odd_are_cut() {
        let all = [
            "{\"a\":{\n\"b\":{}}\n}",
            "{\"a\":{\"b\":1}\n,\"c\":2}",
            "{\"a\":\"}\"}",
            "{\"a\":\"{\"}",
            "{\"a\":\"}{\"}",
            "[{\"a\":1}]",
        ];
        let (mut splitter, mut found) = (DocumentSplitter::default(), Vec::new());
        splitter.feed(
            all.map(|document| format!("{document}\n")).concat().as_bytes(),
            &mut |document| {
                found.push(String::from_utf8(document.to_vec()).unwrap());
            },
        );
        assert_eq!(found, all.map(|document| document.replace('\n', "")));
    }
}
