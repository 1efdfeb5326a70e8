//! Cuts JSON that arrives in pieces: a list's body into its items, a watch's into its events.

/// Follows strings and nesting, byte by byte.
#[derive(Debug, Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
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
}

/// One top-level JSON object after another, as in a watch's body.
#[derive(Debug, Default)]
pub struct DocumentSplitter {
    scanner: Scanner,
    document: Vec<u8>,
}

impl DocumentSplitter {
    /// Calls `found` with each document that ends in `bytes`.
    pub fn feed(&mut self, bytes: &[u8], found: &mut dyn FnMut(&[u8])) {
        let mut start = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let was_inside = self.scanner.depth > 0;
            self.scanner.step(*byte);
            let is_inside = self.scanner.depth > 0;
            if !was_inside && is_inside {
                start = at;
            } else if was_inside && !is_inside {
                if self.document.is_empty() {
                    found(&bytes[start..=at]);
                } else {
                    self.document.extend_from_slice(&bytes[start..=at]);
                    found(&self.document);
                    self.document.clear();
                    self.document.shrink_to(64 << 10);
                }
            }
        }
        if self.scanner.depth > 0 {
            self.document.extend_from_slice(&bytes[start..]);
        }
    }

    /// Nothing of a document is held back.
    pub fn is_between(&self) -> bool {
        self.scanner.depth == 0
    }
}

/// A piece of a list.
#[derive(Debug, PartialEq, Eq)]
pub enum ListPiece {
    Item(Vec<u8>),
    Metadata(Vec<u8>),
    /// The list is whole.
    End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Nothing,
    Key,
    Items,
    Item,
    Metadata,
    Other,
}

/// A list's body: `{"kind":…,"metadata":{…},"items":[{…},…]}`, its fields in any order.
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
    /// Calls `found` with each piece that ends in `bytes`, items in their order.
    pub fn feed(&mut self, bytes: &[u8], found: &mut dyn FnMut(ListPiece)) {
        let mut start = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let before = self.scanner.depth;
            let was_string = self.scanner.in_string;
            self.scanner.step(*byte);
            let depth = self.scanner.depth;
            match self.inside {
                Inside::Nothing => match byte {
                    b'"' if depth == 1 => {
                        self.key.clear();
                        self.inside = Inside::Key;
                    }
                    b'}' if depth == 0 && before == 1 => {
                        self.done = true;
                        found(ListPiece::End);
                    }
                    _ => {}
                },
                Inside::Key if self.scanner.in_string => self.key.push(*byte),
                Inside::Key => self.inside = Inside::Other,
                // The value of a field: what it is shows in its first byte.
                Inside::Other => match byte {
                    b'[' if depth == 2 && self.key == b"items" => self.inside = Inside::Items,
                    b'{' if depth == 2 && before == 1 && self.key == b"metadata" => {
                        start = at;
                        self.inside = Inside::Metadata;
                    }
                    b',' if depth == 1 && !was_string => self.inside = Inside::Nothing,
                    b'}' if depth == 0 && before == 1 => {
                        self.done = true;
                        self.inside = Inside::Nothing;
                        found(ListPiece::End);
                    }
                    _ => {}
                },
                Inside::Items => match byte {
                    b'{' if depth == 3 => {
                        start = at;
                        self.inside = Inside::Item;
                    }
                    b']' if depth == 1 => {
                        self.key.clear();
                        self.inside = Inside::Other;
                    }
                    _ => {}
                },
                Inside::Item if depth == 2 => {
                    self.captured.extend_from_slice(&bytes[start..=at]);
                    found(ListPiece::Item(std::mem::take(&mut self.captured)));
                    self.inside = Inside::Items;
                }
                Inside::Metadata if depth == 1 => {
                    self.captured.extend_from_slice(&bytes[start..=at]);
                    found(ListPiece::Metadata(std::mem::take(&mut self.captured)));
                    self.key.clear();
                    self.inside = Inside::Other;
                }
                Inside::Item | Inside::Metadata => {}
            }
        }
        if matches!(self.inside, Inside::Item | Inside::Metadata) {
            self.captured.extend_from_slice(&bytes[start..]);
        }
    }

    /// The whole list has come.
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
    fn a_list_of_no_items_ends() {
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
}
