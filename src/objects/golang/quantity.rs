//! The fields of a Go `resource.Quantity`, which dumps show.

use std::fmt;

use crate::objects::Format;
use crate::objects::values::quantity::{Parts, Unit};

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
    /// Parses a quantity as Go does. Returns the zero value for what Go cannot parse, which the API
    /// server does not store.
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

    /// Parses a text that is not empty or `0`: as an integer with a scale if that is exact, else as
    /// a decimal. `None`: Go cannot parse it, or it has more digits than an `i128`.
    fn parse_some(text: &str) -> Option<GoQuantity> {
        let parts = Parts::parse(text).ok()?;
        let whole = if parts.whole.is_empty() { "0" } else { parts.whole };
        let shifted = format!("{whole}{}", parts.fraction);
        let (digits, scale) = (i32::try_from(shifted.len()).ok()?, parts.scale());
        let mut format = match parts.unit {
            Unit::Decimal(_, Format::DecimalExponent) => "DecimalExponent",
            Unit::Decimal(..) => "DecimalSI",
            Unit::Binary(_) => "BinarySI",
        };
        // Upstream's estimate of the decimal digits that are still free in an int64; below 0, the
        // number is kept as a decimal.
        let (mantissa, room) = match parts.unit {
            Unit::Decimal(..) => (1, INT64_DIGITS - digits),
            // The float is rounded towards zero, as upstream's.
            Unit::Binary(bits) if parts.fraction.is_empty() => {
                (1i64 << bits, 15 - digits - i32::try_from(bits * 3 / 10).ok()? - 1)
            }
            Unit::Binary(_) => (1, -1),
        };
        if room >= 0 && scale >= NANO {
            let value: i64 = shifted.parse().ok()?;
            if let Some(product) = value.checked_mul(mantissa) {
                return Some(GoQuantity {
                    value: if parts.negative { -product } else { product },
                    scale,
                    decimal: None,
                    cached: if parts.is_kept() { text.to_owned() } else { String::new() },
                    format,
                });
            }
        }

        // Upstream keeps any number of digits; this number suffices in practice.
        let mut unscaled: i128 = shifted.parse().ok()?;
        if let Unit::Binary(bits) = parts.unit {
            unscaled = unscaled.checked_mul(1 << bits)?;
        }
        let mut decimals = scale.wrapping_neg();
        if unscaled != 0 {
            // Rounded up to billionths.
            let shift = 9i32.wrapping_sub(decimals);
            let factor = 10i128.checked_pow(shift.unsigned_abs())?;
            unscaled = match shift {
                0.. => unscaled.checked_mul(factor)?,
                _ => unscaled / factor + i128::from(unscaled % factor != 0),
            };
            decimals = 9;
        }
        if let Unit::Binary(_) = parts.unit {
            let nano = 1_000_000_000;
            if unscaled > i128::from(i64::MAX).checked_mul(nano)? {
                (unscaled, decimals) = (i128::from(i64::MAX), 0);
            } else if unscaled > 0 && unscaled < nano {
                format = "DecimalSI";
            }
        }
        let unscaled = if parts.negative { -unscaled } else { unscaled };
        Some(GoQuantity { decimal: Some((unscaled, decimals)), format, ..GoQuantity::default() })
    }
}

/// As go-spew prints it, without its type.
impl fmt::Display for GoQuantity {
    /// Writes the struct as go-spew's `%#v` prints it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go 1.26 dumps what it parses from the text.
    #[test]
    fn fields_are_those_of_go() {
        for (text, value, scale, unscaled, cached, format) in [
            ("0", 0, 0, "", "0", "DecimalSI"),
            ("-500m", -500, -3, "", "-500m", "DecimalSI"),
            ("-0.5", -5, -1, "", "", "DecimalSI"),
            ("12Ki", 12_288, 0, "", "12Ki", "BinarySI"),
            ("1536Mi", 1_610_612_736, 0, "", "", "BinarySI"),
            ("1.5Gi", 0, 0, "1610612736000000000", "", "BinarySI"),
            ("1e4294967296", 1, 0, "", "1e4294967296", "DecimalExponent"),
            ("80e2147483646", 80, 2_147_483_646, "", "80e2147483646", "DecimalExponent"),
            ("1.5e-2147483648", 15, 2_147_483_647, "", "", "DecimalExponent"),
            (
                "123456789012345678901e3",
                0,
                0,
                "8982045362309844992 6692605942763",
                "",
                "DecimalExponent",
            ),
        ] {
            let dec = match unscaled {
                "" => "<nil>".to_owned(),
                words => format!(
                    "{{unscaled:(big.Int){{neg:(bool)false abs:(big.nat)[{words}]}} scale:(inf.Scale)9}}"
                ),
            };
            let dump = format!(
                "{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} \
                 d:(resource.infDecAmount){{Dec:(*inf.Dec){dec}}} s:(string){cached} \
                 Format:(resource.Format){format}}}"
            );
            assert_eq!(GoQuantity::parse(text).to_string(), dump, "{text}");
        }
    }
}
