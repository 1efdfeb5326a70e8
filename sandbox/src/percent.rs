//! Percent-encoding in paths and queries.

/// Decodes percent-encoding; with `plus`, `+` stands for a space.
pub fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
            .flatten();
        match escaped {
            Some(byte) => {
                decoded.push(byte);
                at += 2;
            }
            None if plus && bytes[at] == b'+' => decoded.push(b' '),
            None => decoded.push(bytes[at]),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
