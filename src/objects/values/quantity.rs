//! Amounts of resources. Upstream: `resource.Quantity`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// The decimal suffixes and their powers of ten.
pub(in crate::objects) const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const UNIT: i128 = 1_000_000_000;
/// Binary amounts end here, as upstream's.
const MAX_BINARY: i128 = i64::MAX as i128 * UNIT;

/// An amount, exact to 10^-9, and the family of its units.
///
/// Amounts beyond 1.7 * 10^29 cannot be parsed, and sums are limited to it.
///
/// Equality and hash distinguish `1024Mi` (the same as `1Gi`) from `1073741824`; [`Quantity::compare`] does
/// not. Displayed in the canonical form. Upstream: `resource.Quantity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// The family of units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12M`: 12 * 10^6
    #[default]
    DecimalSi,
    /// `12Mi`: 12 * 2^20
    BinarySi,
    /// `12e6`
    DecimalExponent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityError {
    /// Not a sign, a number and a unit.
    Format,
    /// The suffix of the number is not a unit.
    Unit,
    /// The amount is too large.
    TooLarge,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityError::Format => {
                "quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            QuantityError::Unit => "unable to parse quantity's suffix",
            QuantityError::TooLarge => "the quantity is too large",
        })
    }
}

impl std::error::Error for QuantityError {}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };
    pub const ONE: Quantity = Quantity { nanos: UNIT, format: Format::DecimalSi };
    /// The largest amount.
    pub const MAX: Quantity = Quantity { nanos: i128::MAX, format: Format::DecimalSi };
    /// The smallest amount.
    pub const MIN: Quantity = Quantity { nanos: -i128::MAX, format: Format::DecimalSi };

    /// A whole number, with decimal units.
    pub fn new(count: i64) -> Quantity {
        Quantity { nanos: i128::from(count) * UNIT, format: Format::DecimalSi }
    }

    /// `count` thousandths, written in units of `format`. Upstream: `NewMilliQuantity`.
    pub fn from_milli(count: i64, format: Format) -> Quantity {
        let nanos = i128::from(count) * (UNIT / 1000);
        // Amounts below 1024 and fractions have no binary form.
        let is_binary = nanos % UNIT == 0 && nanos.abs() >= 1024 * UNIT;
        let format = match format {
            Format::BinarySi if !is_binary => Format::DecimalSi,
            format => format,
        };
        Quantity { nanos, format }
    }

    /// Nearly the closest floating-point number: the last digit is upstream's, which multiplies the number
    /// that is written by its unit. Upstream: `AsApproximateFloat64`.
    pub fn to_f64(self) -> f64 {
        for (unit, factor) in [(UNIT, 1.0), (UNIT / 1_000, 1e-3), (UNIT / 1_000_000, 1e-6)] {
            if self.nanos % unit == 0 {
                return (self.nanos / unit) as f64 * factor;
            }
        }
        self.nanos as f64 * 1e-9
    }

    pub fn format(self) -> Format {
        self.format
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// Compares the amounts and ignores the units.
    pub fn compare(self, other: Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }

    /// The amount, rounded away from zero and limited to the range of `i64`.
    pub fn value(self) -> i64 {
        saturate(divided_away_from_zero(self.nanos, UNIT))
    }

    /// The amount in thousandths, rounded away from zero and limited to the range of `i64`.
    pub fn milli_value(self) -> i64 {
        saturate(divided_away_from_zero(self.nanos, UNIT / 1000))
    }

    /// The next whole number away from zero.
    pub fn rounded_up(self) -> Quantity {
        self.rounded_to(UNIT)
    }

    /// The next thousandth away from zero.
    pub fn rounded_up_to_milli(self) -> Quantity {
        self.rounded_to(UNIT / 1000)
    }

    fn rounded_to(self, step: i128) -> Quantity {
        let nanos = divided_away_from_zero(self.nanos, step).saturating_mul(step);
        Quantity { nanos, ..self }.limited()
    }

    fn with(self, other: Quantity, nanos: i128) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos, format }.limited()
    }

    pub fn times(self, count: u64) -> Quantity {
        Quantity { nanos: self.nanos.saturating_mul(i128::from(count)), ..self }.limited()
    }

    /// At least [`Quantity::MIN`], which is above the least number of its type.
    fn limited(self) -> Quantity {
        Quantity { nanos: self.nanos.max(Quantity::MIN.nanos), ..self }
    }
}

/// A zero takes the other's units. Upstream: `Quantity.Add`.
impl Add for Quantity {
    type Output = Quantity;
    fn add(self, other: Quantity) -> Quantity {
        self.with(other, self.nanos.saturating_add(other.nanos))
    }
}

/// A zero takes the other's units. Upstream: `Quantity.Sub`.
impl Sub for Quantity {
    type Output = Quantity;
    fn sub(self, other: Quantity) -> Quantity {
        self.with(other, self.nanos.saturating_sub(other.nanos))
    }
}

fn saturate(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn divided_away_from_zero(number: i128, divisor: i128) -> i128 {
    number / divisor + (number % divisor).signum()
}

/// The form in which the API server stores the quantity `text`: the canonical one, unless `text` is
/// of a shape that upstream keeps as it was given (`1500m`, but not `1000m`). Upstream: `Quantity.s`.
pub fn stored_quantity(text: &str) -> Result<String, QuantityError> {
    let parts = Parts::of(text)?;
    let quantity = parts.quantity()?;
    Ok(if parts.is_kept() { text.to_owned() } else { quantity.to_string() })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// Fractions of 10^-9 are rounded away from zero. Upstream: `resource.ParseQuantity`.
    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        Parts::of(text)?.quantity()
    }
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    unit: Unit,
}

#[derive(Clone, Copy)]
enum Unit {
    /// A power of ten.
    Decimal(i32, Format),
    /// A power of two.
    Binary(u32),
}

impl Parts<'_> {
    fn of(text: &str) -> Result<Parts<'_>, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let negative = text.starts_with('-');
        let number = text.strip_prefix(['+', '-']).unwrap_or(text);
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = number.split_at(digits(number));
        let (fraction, unit) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        let letters = unit.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
        let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
        if digits(exponent) < exponent.len() {
            return Err(QuantityError::Format);
        }
        let whole = whole.trim_start_matches('0');
        Ok(Parts { negative, whole, fraction, unit: Unit::of(unit)? })
    }

    fn quantity(&self) -> Result<Quantity, QuantityError> {
        let digits = match self.fraction {
            "" => Cow::Borrowed(self.whole),
            fraction => Cow::Owned(format!("{}{fraction}", self.whole)),
        };
        let places = i32::try_from(self.fraction.len()).map_err(|_| QuantityError::TooLarge)?;
        let (factor, power, format) = match self.unit {
            Unit::Decimal(exponent, format) => (1, exponent.saturating_sub(places), format),
            Unit::Binary(bits) => (1i128 << bits, -places, Format::BinarySi),
        };
        let nanos = match scaled(&digits, factor, power.saturating_add(9)) {
            Some(nanos) if format == Format::BinarySi => nanos.min(MAX_BINARY),
            Some(nanos) => nanos,
            None if format == Format::BinarySi && places <= 9 => MAX_BINARY,
            None => return Err(QuantityError::TooLarge),
        };
        // Less than one has no binary form.
        let is_fraction = (1..UNIT).contains(&nanos) && format == Format::BinarySi;
        let format = if is_fraction { Format::DecimalSi } else { format };
        Ok(Quantity { nanos: if self.negative { -nanos } else { nanos }, format })
    }

    /// Whether upstream keeps the original text.
    fn is_kept(&self) -> bool {
        let digits = format!("{}{}", self.whole, self.fraction);
        if self.whole.is_empty() {
            return false;
        }
        match self.unit {
            Unit::Decimal(exponent, _) => {
                let scale = i64::from(exponent) - self.fraction.len() as i64;
                digits.len() <= 18 && scale >= -9 && scale % 3 == 0 && !digits.ends_with("000")
            }
            Unit::Binary(bits) => {
                let room = 14i64 - digits.len() as i64 - i64::from(bits * 3 / 10);
                let is_odd = digits.parse::<u64>().is_ok_and(|number| number & 7 != 0);
                self.fraction.is_empty() && room >= 0 && is_odd
            }
        }
    }
}

impl Unit {
    fn of(text: &str) -> Result<Unit, QuantityError> {
        if let Some((_, exponent)) = DECIMAL.iter().find(|(unit, _)| *unit == text) {
            return Ok(Unit::Decimal(*exponent, Format::DecimalSi));
        }
        if let Some(at) = (1u32..).zip(&BINARY[1..]).find(|(_, unit)| **unit == text) {
            return Ok(Unit::Binary(10 * at.0));
        }
        let exponent = text.strip_prefix(['e', 'E']).and_then(|text| text.parse().ok());
        exponent
            .map(|exponent| Unit::Decimal(exponent, Format::DecimalExponent))
            .ok_or(QuantityError::Unit)
    }
}

/// `digits * factor * 10^power`, rounded up. `None`: too large.
fn scaled(digits: &str, factor: i128, power: i32) -> Option<i128> {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    if power >= 0 {
        let number = digits.parse::<i128>().ok()?.checked_mul(factor)?;
        return number.checked_mul(10i128.checked_pow(power.unsigned_abs())?);
    }
    // Digits far below the last significant one only decide whether to round up.
    let places = usize::try_from(power.unsigned_abs()).ok()?;
    let dropped = places.saturating_sub(36).min(digits.len());
    let (digits, tail) = digits.split_at(digits.len() - dropped);
    let number = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? };
    let number = number.checked_mul(factor)?;
    let ten = 10i128.checked_pow(u32::try_from(places.min(36)).ok()?)?;
    let rounds = number % ten != 0 || tail.bytes().any(|digit| digit != b'0');
    (number / ten).checked_add(i128::from(rounds))
}

/// The canonical form. Upstream: `Quantity.CanonicalizeBytes`.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantity { nanos, format } = *self;
        if nanos == 0 {
            return f.write_str("0");
        }
        let count = nanos / UNIT;
        if format == Format::BinarySi && nanos % UNIT == 0 && count.unsigned_abs() >= 1024 {
            let (count, unit) = reduced(count, 1024, BINARY.len());
            return write!(f, "{count}{}", BINARY[unit]);
        }
        if format == Format::DecimalExponent {
            let (count, thousands) = reduced(nanos, 1000, usize::MAX);
            return match 3 * thousands as i64 - 9 {
                0 => write!(f, "{count}"),
                exponent => write!(f, "{count}e{exponent}"),
            };
        }
        let (count, unit) = reduced(nanos, 1000, DECIMAL.len());
        write!(f, "{count}{}", DECIMAL[unit].0)
    }
}

/// Divides `count` by the highest power of `base`, below the `end`th, that divides it.
fn reduced(mut count: i128, base: i128, end: usize) -> (i128, usize) {
    let mut power = 0;
    while power + 1 < end && count % base == 0 {
        count /= base;
        power += 1;
    }
    (count, power)
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// From a string or a number. Amounts that are too large become [`Quantity::MAX`] or
/// [`Quantity::MIN`]: one odd object must not prevent a list from being read.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                match text.trim().parse() {
                    Err(QuantityError::TooLarge) if text.trim().starts_with('-') => {
                        Ok(Quantity::MIN)
                    }
                    Err(QuantityError::TooLarge) => Ok(Quantity::MAX),
                    other => other.map_err(E::custom),
                }
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity::new(number))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
        }
        from.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn canonical_forms_are_gos() {
        // The text, the form that Go stores, and the form that it writes after arithmetic.
        for (given, stored, canonical) in [
            ("0", "0", "0"),
            ("0Gi", "0", "0"),
            ("0.0m", "0", "0"),
            ("+", "0", "0"),
            (".", "0", "0"),
            ("5", "5", "5"),
            ("+5", "+5", "5"),
            ("-3", "-3", "-3"),
            ("007", "007", "7"),
            ("5.", "5.", "5"),
            ("5.0", "5", "5"),
            ("1.5", "1500m", "1500m"),
            ("0.5", "500m", "500m"),
            (".5", "500m", "500m"),
            ("-0.5", "-500m", "-500m"),
            ("1.500", "1.500", "1500m"),
            ("1500m", "1500m", "1500m"),
            ("1000m", "1", "1"),
            ("100", "100", "100"),
            ("1000", "1k", "1k"),
            ("1000000", "1M", "1M"),
            ("1k", "1k", "1k"),
            ("1024Ki", "1Mi", "1Mi"),
            ("1024Mi", "1Gi", "1Gi"),
            ("1000Ki", "1000Ki", "1000Ki"),
            ("10Ki", "10Ki", "10Ki"),
            ("1.5Gi", "1536Mi", "1536Mi"),
            ("0.5Ki", "512", "512"),
            ("0.0001Ki", "102400u", "102400u"),
            ("0.5Mi", "512Ki", "512Ki"),
            ("16Ei", "9223372036854775807", "9223372036854775807"),
            ("-16Ei", "-9223372036854775807", "-9223372036854775807"),
            ("8Ti", "8Ti", "8Ti"),
            ("100Ti", "100Ti", "100Ti"),
            ("1e3", "1e3", "1e3"),
            ("1E3", "1E3", "1e3"),
            ("1e4", "10e3", "10e3"),
            ("12e6", "12e6", "12e6"),
            ("5e-1", "500e-3", "500e-3"),
            ("1e0", "1e0", "1"),
            ("1E", "1E", "1E"),
            ("1n", "1n", "1n"),
            ("0.1n", "1n", "1n"),
            ("-0.1n", "-1n", "-1n"),
            ("1e-60", "1e-9", "1e-9"),
            ("1.0000000001", "1000000001n", "1000000001n"),
            ("3.141592653589793238", "3141592654n", "3141592654n"),
            (
                "123456789012345678901234567890m",
                "123456789012345678901234567890m",
                "123456789012345678901234567890m",
            ),
        ] {
            assert_eq!(stored_quantity(given).as_deref(), Ok(stored), "{given}");
            assert_eq!(q(given).to_string(), canonical, "{given}");
            assert_eq!(q(stored).compare(q(given)), Ordering::Equal, "{given}: stored, read again");
        }
    }

    /// To the last digit: an autoscaler compares with it.
    #[test]
    fn floating_point_numbers_are_gos() {
        for (given, number) in [
            ("0.235", 235.0 * 1e-3),
            ("285m", 285.0 * 1e-3),
            ("7", 7.0),
            ("1Ki", 1024.0),
            ("15u", 15.0 * 1e-6),
            ("3n", 3.0 * 1e-9),
            ("-0.5", -500.0 * 1e-3),
        ] {
            assert_eq!(given.parse::<Quantity>().unwrap().to_f64(), number, "{given}");
        }
        assert_eq!(1.0 + "0.235".parse::<Quantity>().unwrap().to_f64(), 1.235);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        use QuantityError::{Format, TooLarge, Unit};
        for (given, error) in [
            ("", Format),
            ("many", Format),
            ("1Zi", Format),
            ("1.2.3", Format),
            ("1 G", Format),
            ("--1", Unit),
            ("1e", Unit),
            ("1KM", Unit),
            ("1mi", Unit),
            ("1e99999999999", Unit),
            ("1e40", TooLarge),
        ] {
            assert_eq!(given.parse::<Quantity>(), Err(error), "{given:?}");
        }
        assert_eq!(serde_json::from_str::<Quantity>("\"1e40\"").unwrap(), Quantity::MAX);
        assert_eq!(serde_json::from_str::<Quantity>("0.5").unwrap(), q("500m"));
        assert_eq!(serde_json::from_str::<Quantity>("3").unwrap(), q("3"));
    }

    #[test]
    fn sums_are_exact_and_keep_the_units() {
        for (a, b, sum, difference) in [
            ("0", "1Gi", "1Gi", "-1Gi"),
            ("1Gi", "1", "1073741825", "1073741823"),
            ("1Gi", "1Gi", "2Gi", "0"),
            ("1G", "1Gi", "2073741824", "-73741824"),
            ("100m", "900m", "1", "-800m"),
            ("1Mi", "500m", "1048576500m", "1048575500m"),
            ("1e3", "1k", "2e3", "0"),
            ("1n", "1", "1000000001n", "-999999999n"),
        ] {
            assert_eq!((q(a) + q(b)).to_string(), sum, "{a} + {b}");
            assert_eq!((q(a) - q(b)).to_string(), difference, "{a} - {b}");
        }
        assert_eq!(q("250m").times(10).to_string(), "2500m");
        assert_eq!(Quantity::MAX + Quantity::ONE, Quantity::MAX);
    }

    #[test]
    fn amounts_are_rounded_away_from_zero() {
        for (text, value, millis, whole) in [
            ("1500m", 2, 1500, "2"),
            ("-1500m", -2, -1500, "-2"),
            ("1n", 1, 1, "1"),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000, "1536Mi"),
            ("100E", i64::MAX, i64::MAX, "100E"),
        ] {
            let amount = q(text);
            assert_eq!((amount.value(), amount.milli_value()), (value, millis), "{text}");
            assert_eq!(amount.rounded_up().to_string(), whole);
        }
        assert_eq!(q("1Gi").compare(q("1G")), Ordering::Greater);
        assert_eq!(q("1024Mi").compare(q("1073741824")), Ordering::Equal);
        assert_ne!(q("1024Mi"), q("1073741824"));
    }
}
