//! Percent-decoding of paths, queries and headers.

/// Decodes a text with `%XX` for some bytes; a `%` without two hexadecimal digits stays.
pub fn decode_bytes(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = escaped_byte(rest);
        decoded.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    decoded
}

/// Decodes a text as [`decode_bytes`] does; each byte that is not part of a character becomes one
/// U+FFFD.
pub fn decode(text: &str) -> String {
    String::from_utf8_lossy(&decode_bytes(text)).into_owned()
}

/// Decodes a part of a query, where `+` stands for a space.
pub fn decode_query(text: &str) -> String {
    decode(&text.replace('+', " "))
}

/// Returns whether two hexadecimal digits follow each `%`.
pub fn is_well_formed(text: &str) -> bool {
    text.match_indices('%').all(|(at, _)| escaped_byte(&text.as_bytes()[at..]).is_some())
}

/// Returns the byte of the escape that `text` begins with, if it does.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_malformed_ones_stay() {
        for (text, decoded, is_fine) in [
            ("", "", true),
            ("plain", "plain", true),
            ("not%20found%3A %22x%22", "not found: \"x\"", true),
            ("a+b%2Bc", "a+b+c", true),
            ("100%", "100%", false),
            ("%zz%C3%A9", "%zz\u{e9}", false),
            ("%+1", "%+1", false),
            ("%%41", "%A", false),
            ("%ff", "\u{fffd}", true),
            ("\u{e9}%4", "\u{e9}%4", false),
        ] {
            assert_eq!(decode(text), decoded, "{text}");
            assert_eq!(is_well_formed(text), is_fine, "{text}");
        }
        assert_eq!(decode_query("a+b%2Bc"), "a b+c");
        assert_eq!(decode_bytes("%ff"), [0xff]);
    }
}
