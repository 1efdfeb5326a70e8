//! The fields of a Go `resource.Quantity`, which dumps show.

use std::fmt;

use crate::objects::values::quantity::DECIMAL;

/// A quantity as `resource.ParseQuantity` leaves it.
#[derive(Debug, Default, PartialEq)]
pub struct GoQuantity {
    value: i64,
    scale: i32,
    /// For an amount that does not fit into `value`: the unscaled number, and the number of its
    /// decimal digits.
    decimal: Option<(i128, i32)>,
    /// The text, where Go keeps it.
    cached: String,
    format: &'static str,
}

/// The number of decimal digits that always fit into an int64. Upstream: `maxInt64Factors`.
const INT64_DIGITS: i32 = 18;
const NANO: i32 = -9;

impl GoQuantity {
    /// The zero value for what Go cannot parse, which the API server does not store.
    pub fn parse(text: &str) -> GoQuantity {
        if text == "0" {
            let (cached, format) = ("0".to_owned(), "DecimalSI");
            return GoQuantity { cached, format, ..GoQuantity::default() };
        }
        if text.is_empty() {
            return GoQuantity::default();
        }
        GoQuantity::parse_some(text).unwrap_or_default()
    }

    fn parse_some(text: &str) -> Option<GoQuantity> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end =
            unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            digits => digits,
        };
        let (is_binary, exponent, mut format) = interpret(suffix)?;
        let digits = (i32::try_from(whole.len()).ok()?, i32::try_from(decimals.len()).ok()?);

        let (scale, mantissa, room) = match is_binary {
            false => (exponent, 1i64, INT64_DIGITS - digits.0 - digits.1),
            true if digits.1 == 0 => {
                // The float is rounded towards zero, as upstream's.
                let room = 15 - digits.0 - exponent * 3 / 10 - 1;
                (0, 1i64 << exponent, room)
            }
            true => (0, 1, -1),
        };
        let scale = scale - digits.1;
        if room >= 0 && scale >= NANO {
            let shifted = format!("{whole}{decimals}");
            let value: i64 = shifted.parse().ok()?;
            if let Some(product) = value.checked_mul(mantissa) {
                let is_canonical = match is_binary {
                    true => exponent % 10 == 0 && value & 0x07 != 0,
                    false => {
                        scale % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0')
                    }
                };
                return Some(GoQuantity {
                    value: if negative { -product } else { product },
                    scale,
                    decimal: None,
                    cached: if is_canonical { text.to_owned() } else { String::new() },
                    format,
                });
            }
        }

        // Upstream keeps any number of digits; this number suffices in practice.
        let mut unscaled: i128 = format!("{whole}{decimals}").parse().ok()?;
        let mut decimals = digits.1;
        match is_binary {
            true => unscaled = unscaled.checked_mul(1 << exponent)?,
            false => decimals -= exponent,
        }
        if unscaled != 0 {
            // Rounded up to billionths.
            let shift = 9 - decimals;
            let factor = 10i128.checked_pow(shift.unsigned_abs())?;
            unscaled = match shift {
                0.. => unscaled.checked_mul(factor)?,
                _ => unscaled / factor + i128::from(unscaled % factor != 0),
            };
            decimals = 9;
        }
        if is_binary {
            let nano = 1_000_000_000;
            if unscaled > i128::from(i64::MAX).checked_mul(nano)? {
                (unscaled, decimals) = (i128::from(i64::MAX), 0);
            } else if unscaled > 0 && unscaled < nano {
                format = "DecimalSI";
            }
        }
        let unscaled = if negative { -unscaled } else { unscaled };
        Some(GoQuantity { decimal: Some((unscaled, decimals)), format, ..GoQuantity::default() })
    }
}

/// Whether a suffix is binary, its exponent, and the format it stands for.
fn interpret(suffix: &str) -> Option<(bool, i32, &'static str)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some((_, exponent)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((false, *exponent, "DecimalSI"));
    }
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((true, 10 * (i32::try_from(at).ok()? + 1), "BinarySI"));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((false, exponent, "DecimalExponent"))
}

/// As go-spew prints it, without its type.
impl fmt::Display for GoQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GoQuantity { value, scale, decimal, cached, format } = self;
        write!(
            f,
            "{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} "
        )?;
        match decimal {
            None => f.write_str("d:(resource.infDecAmount){Dec:(*inf.Dec)<nil>}")?,
            Some((unscaled, decimals)) => {
                write!(
                    f,
                    "d:(resource.infDecAmount){{Dec:(*inf.Dec){{unscaled:(big.Int){{neg:(bool){} abs:(big.nat)",
                    *unscaled < 0
                )?;
                let amount = unscaled.unsigned_abs();
                match (amount as u64, (amount >> 64) as u64) {
                    (0, 0) => f.write_str("<nil>")?,
                    (low, 0) => write!(f, "[{low}]")?,
                    (low, high) => write!(f, "[{low} {high}]")?,
                }
                write!(f, "}} scale:(inf.Scale){decimals}}}}}")?;
            }
        }
        write!(f, " s:(string){cached} Format:(resource.Format){format}}}")
    }
}
