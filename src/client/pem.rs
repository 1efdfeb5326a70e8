//! Certificates in files, as Go reads them. Upstream: Go's `encoding/pem`, `crypto/tls`.

use der::pem::LineEnding;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Reads the certificates in PEM; blocks of other kinds are ignored. Malformed blocks are skipped
/// and logged. The content of a block is not checked.
/// Upstream: `pem.Decode`.
pub fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
    // One at a time: a malformed block may have no end, and must not hide the next one.
    let starts: Vec<usize> = memchr::memmem::find_iter(text, "-----BEGIN ").collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let blocks = starts.iter().zip(ends).map(|(start, end)| &text[*start..end]);
    let decoded = blocks.flat_map(CertificateDer::pem_slice_iter).filter_map(|block| {
        block.inspect_err(|error| log::warn!("skipped a malformed PEM block: {error}")).ok()
    });
    decoded.collect()
}

/// Returns a certificate in PEM, as Go writes it.
pub fn certificate_text(der: &[u8]) -> String {
    text("CERTIFICATE", der)
}

/// Returns a block in PEM with this label, as Go writes it.
pub fn text(label: &'static str, der: &[u8]) -> String {
    der::pem::encode_string(label, LineEnding::LF, der).expect("the label is valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_blocks_are_skipped() {
        let pair = || rcgen::generate_simple_self_signed(["me".to_owned()]).unwrap();
        let (rcgen::CertifiedKey { cert: one, signing_key }, two) = (pair(), pair().cert);
        let (begin, end) = ("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n");
        let key = signing_key.serialize_pem();
        for (broken, more) in [
            (String::new(), 0),
            (format!("{begin}!!!\n{end}"), 0),
            (format!("{begin}AAAA\n"), 0),
            (format!("{key}comment\n{end}"), 0),
            (format!("{begin}{end}"), 1),
        ] {
            let text = format!("{broken}{}{broken}{}{broken}", one.pem(), two.pem());
            let mut found = certificates(text.as_bytes());
            assert_eq!(found.len(), 2 + 3 * more, "{broken}");
            found.retain(|one| !one.is_empty());
            assert_eq!(found, [one.der().clone(), two.der().clone()], "{broken}");
        }
    }
}
