//! The format gzip, for profiles and for answers to clients that accept it.

use miniz_oxide::deflate::compress_to_vec;

/// The header as Go writes it: no name, no time, an unknown system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// The fastest level that compresses.
const LEVEL: u8 = 1;

/// Compresses `bytes` into one gzip member.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = HEAD.to_vec();
    out.append(&mut compress_to_vec(bytes, LEVEL));
    out.extend_from_slice(&crc32(bytes).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out
}

/// The table of the checksum CRC-32.
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns the checksum of gzip.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| (crc >> 8) ^ CRC[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use miniz_oxide::inflate::decompress_to_vec;

    use super::*;

    #[test]
    fn compressed_bytes_can_be_decompressed() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for text in [String::new(), "a_metric{a=\"label\"} 1\n".repeat(5000)] {
            let out = gzip(text.as_bytes());
            let back = decompress_to_vec(&out[10..out.len() - 8]).expect("a stream");
            assert_eq!(back, text.as_bytes());
            assert_eq!(out[out.len() - 4..], (text.len() as u32).to_le_bytes());
            assert!(out.len() < 100 + text.len() / 20, "{}", out.len());
        }
    }
}
