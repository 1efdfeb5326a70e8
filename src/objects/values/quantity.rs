//! Amounts of resources. Upstream: `resource.Quantity`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// The decimal suffixes and their powers of ten.
const DECIMAL: [(&str, i32); 10] = [
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
/// The binary units, in the order of their powers of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// One, in billionths.
const UNIT: i128 = 1_000_000_000;
/// Binary amounts end here, as upstream's.
const MAX_BINARY: i128 = i64::MAX as i128 * UNIT;

/// An amount, exact to 10^-9, and the family of its units.
///
/// Amounts and sums beyond 1.7 * 10^29 become the largest one.
///
/// Equality and hash distinguish `1024Mi` (the same as `1Gi`) from `1073741824`;
/// [`Quantity::compare`] does not. Displayed in the canonical form. Upstream: `resource.Quantity`.
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
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityError::Format => {
                "quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            QuantityError::Unit => "unable to parse quantity's suffix",
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

    /// Returns a quantity of `count` thousandths, written in units of `format`.
    /// Upstream: `NewMilliQuantity`.
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

    /// Returns nearly the closest floating-point number: the last digit is upstream's, which
    /// multiplies the number that is written by its unit. Upstream: `AsApproximateFloat64`.
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

    /// Returns the amount in billionths; `None` if it is too large, so that such amounts look
    /// equal.
    pub fn nanos(self) -> Option<i128> {
        (self.nanos.unsigned_abs() < Quantity::MAX.nanos.unsigned_abs()).then_some(self.nanos)
    }

    /// Compares the amounts and ignores the units.
    pub fn compare(self, other: Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }

    /// Returns the amount, rounded away from zero and limited to the range of `i64`.
    pub fn value(self) -> i64 {
        saturate(divided_away_from_zero(self.nanos, UNIT))
    }

    /// Returns the amount in thousandths, rounded away from zero and limited to the range of `i64`.
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

    /// Returns the sum or the difference with `other`, whose amount is `nanos`, in units of the
    /// first that is not zero.
    fn with_amount(self, other: Quantity, nanos: i128) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos, format }.limited()
    }

    pub fn times(self, count: u64) -> Quantity {
        Quantity { nanos: self.nanos.saturating_mul(i128::from(count)), ..self }.limited()
    }

    /// Returns [`Quantity::MIN`] for a smaller amount: an `i128` has one below it.
    fn limited(self) -> Quantity {
        Quantity { nanos: self.nanos.max(Quantity::MIN.nanos), ..self }
    }
}

/// A zero takes the other's units. Upstream: `Quantity.Add`.
impl Add for Quantity {
    type Output = Quantity;
    fn add(self, other: Quantity) -> Quantity {
        self.with_amount(other, self.nanos.saturating_add(other.nanos))
    }
}

/// A zero takes the other's units. Upstream: `Quantity.Sub`.
impl Sub for Quantity {
    type Output = Quantity;
    fn sub(self, other: Quantity) -> Quantity {
        self.with_amount(other, self.nanos.saturating_sub(other.nanos))
    }
}

fn saturate(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn divided_away_from_zero(number: i128, divisor: i128) -> i128 {
    number / divisor + (number % divisor).signum()
}

/// Returns the form in which the API server stores the quantity `text`: the canonical one, unless
/// `text` is of a shape that upstream keeps as it was given (`1500m`, but not `1000m`). Upstream:
/// `Quantity.s`.
pub fn stored_quantity(text: &str) -> Result<String, QuantityError> {
    let parts = Parts::parse(text)?;
    let quantity = parts.quantity();
    // The text of an amount that is too large says more than the largest one.
    let is_kept = parts.is_kept() || quantity.nanos().is_none();
    Ok(if is_kept { text.to_owned() } else { quantity.to_string() })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// Parses a quantity. Fractions of 10^-9 are rounded away from zero, and an amount that is too
    /// large becomes [`Quantity::MAX`] or [`Quantity::MIN`]: each text that upstream accepts has to
    /// be read. Upstream: `resource.ParseQuantity`.
    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        Parts::parse(text).map(|parts| parts.quantity())
    }
}

/// The parts of a quantity's text.
pub(in crate::objects) struct Parts<'a> {
    pub negative: bool,
    /// Without leading zeros.
    pub whole: &'a str,
    pub fraction: &'a str,
    pub unit: Unit,
}

#[derive(Clone, Copy)]
pub(in crate::objects) enum Unit {
    /// A power of ten.
    Decimal(i32, Format),
    /// A power of two.
    Binary(u32),
}

impl Parts<'_> {
    /// Splits a quantity at its point and its unit. Upstream: `parseQuantityString`.
    pub fn parse(text: &str) -> Result<Parts<'_>, QuantityError> {
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
        Ok(Parts { negative, whole, fraction, unit: Unit::parse(unit)? })
    }

    /// Returns the quantity that the parts write; amounts that are too large are cut off.
    fn quantity(&self) -> Quantity {
        let nanos = self.unsigned_nanos();
        let (nanos, format) = match self.unit {
            Unit::Decimal(_, format) => (nanos.unwrap_or(Quantity::MAX.nanos), format),
            Unit::Binary(_) => match nanos.unwrap_or(MAX_BINARY).min(MAX_BINARY) {
                // Less than one has no binary form.
                nanos @ 1..UNIT => (nanos, Format::DecimalSi),
                nanos => (nanos, Format::BinarySi),
            },
        };
        Quantity { nanos: if self.negative { -nanos } else { nanos }, format }
    }

    /// Returns the amount without its sign, in billionths, rounded up; `None` if it is too large.
    fn unsigned_nanos(&self) -> Option<i128> {
        let power = i64::from(self.scale()) + 9;
        let digits = match self.fraction {
            "" => Cow::Borrowed(self.whole),
            fraction => Cow::Owned(format!("{}{fraction}", self.whole)),
        };
        match self.unit {
            Unit::Decimal(..) => scaled(&digits, power),
            Unit::Binary(bits) if self.fraction.is_empty() => {
                scaled(&digits, power)?.checked_mul(1 << bits)
            }
            Unit::Binary(bits) => scaled(&times_power_of_two(&digits, bits), power),
        }
    }

    /// Returns the power of ten that belongs to the digits, whole and fraction read as one integer;
    /// that of a binary unit is not in it. It wraps around, as upstream's.
    pub fn scale(&self) -> i32 {
        let exponent = match self.unit {
            Unit::Decimal(exponent, _) => exponent,
            Unit::Binary(_) => 0,
        };
        exponent.wrapping_sub(self.fraction.len() as i32)
    }

    /// Returns whether upstream keeps the original text: that of a number that fits into an int64
    /// and looks canonical to it. Upstream: the fast path of `ParseQuantity`.
    pub fn is_kept(&self) -> bool {
        let digits = format!("{}{}", self.whole, self.fraction);
        if self.whole.is_empty() {
            return false;
        }
        match self.unit {
            Unit::Decimal(..) => {
                let scale = self.scale();
                digits.len() <= 18 && scale >= -9 && scale % 3 == 0 && !digits.ends_with("000")
            }
            Unit::Binary(bits) => {
                let room = 14i64 - digits.len() as i64 - i64::from(bits * 3 / 10);
                // Upstream only tests that the number is not a multiple of 8.
                let looks_canonical = digits.parse::<u64>().is_ok_and(|number| number & 7 != 0);
                self.fraction.is_empty() && room >= 0 && looks_canonical
            }
        }
    }
}

impl Unit {
    /// Parses a suffix such as `Mi`, or an exponent.
    fn parse(text: &str) -> Result<Unit, QuantityError> {
        if let Some((_, exponent)) = DECIMAL.iter().find(|(unit, _)| *unit == text) {
            return Ok(Unit::Decimal(*exponent, Format::DecimalSi));
        }
        if let Some(at) = (1u32..).zip(&BINARY[1..]).find(|(_, unit)| **unit == text) {
            return Ok(Unit::Binary(10 * at.0));
        }
        let exponent = text.strip_prefix(['e', 'E']).and_then(|text| text.parse::<i64>().ok());
        // Upstream reads 64 bits of an exponent and uses the lower half: `1e4294967296` is 1.
        exponent
            .map(|exponent| Unit::Decimal(exponent as i32, Format::DecimalExponent))
            .ok_or(QuantityError::Unit)
    }
}

/// Returns `digits * 2^bits`, with `bits` up to 60, as decimal digits of any number.
fn times_power_of_two(digits: &str, bits: u32) -> String {
    let mut carry = 0u64;
    let mut next = |digit: u64| {
        let sum = carry + (digit << bits);
        carry = sum / 10;
        (sum % 10) as u32
    };
    let zeros = std::iter::repeat_n(0, 20);
    let reversed = digits.bytes().rev().map(|digit| u64::from(digit - b'0')).chain(zeros);
    let reversed: Vec<u32> = reversed.map(&mut next).collect();
    reversed.into_iter().rev().filter_map(|digit| char::from_digit(digit, 10)).collect()
}

/// Returns `digits * 10^power`, rounded up; `None` if it is too large.
fn scaled(digits: &str, power: i64) -> Option<i128> {
    let digits = digits.trim_start_matches('0');
    let parsed = |digits: &str| -> Option<i128> {
        if digits.is_empty() { Some(0) } else { digits.parse().ok() }
    };
    if power < 0 {
        let places = usize::try_from(power.unsigned_abs()).unwrap_or(usize::MAX);
        let (number, tail) = digits.split_at(digits.len().saturating_sub(places));
        let rounds_up = tail.bytes().any(|digit| digit != b'0');
        return parsed(number)?.checked_add(i128::from(rounds_up));
    }
    match parsed(digits)? {
        0 => Some(0),
        number => number.checked_mul(10i128.checked_pow(u32::try_from(power).ok()?)?),
    }
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
            // The count is of billionths.
            return match 3 * thousands as i64 - 9 {
                0 => write!(f, "{count}"),
                exponent => write!(f, "{count}e{exponent}"),
            };
        }
        let (count, unit) = reduced(nanos, 1000, DECIMAL.len());
        write!(f, "{count}{}", DECIMAL[unit].0)
    }
}

/// Divides `count` by the highest power of `base`, below the `end`th, that divides it. Returns the
/// quotient and the exponent.
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

/// From a string or a number.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
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

    /// They agree to the last digit: an autoscaler compares with it.
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
        use QuantityError::{Format, Unit};
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
            ("1e9223372036854775808", Unit),
            ("1e-9223372036854775809", Unit),
        ] {
            assert_eq!(given.parse::<Quantity>(), Err(error), "{given:?}");
        }
        assert_eq!(serde_json::from_str::<Quantity>("0.5").unwrap(), q("500m"));
        assert_eq!(serde_json::from_str::<Quantity>("3").unwrap(), q("3"));
    }

    /// Go's reading of many texts. The columns: the text, the form in which the API server stores
    /// it, and the amount as digits with a power of ten.
    fn of_go() -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/quantities.tsv");
        std::fs::read_to_string(file).unwrap()
    }

    /// `digits * 10^power`, exact or the largest amount.
    fn amount(number: &str) -> i128 {
        let (digits, power) = number.split_once('e').unwrap();
        let is_zero = digits.bytes().all(|digit| digit == b'0');
        let zeros = if is_zero { 0 } else { power.parse::<i64>().unwrap() + 9 };
        let zeros = "0".repeat(zeros.clamp(0, 60) as usize);
        let largest = if digits.starts_with('-') { Quantity::MIN } else { Quantity::MAX };
        format!("{digits}{zeros}").parse().unwrap_or(largest.nanos)
    }

    #[test]
    fn amounts_are_those_of_go() {
        let mut accepted = 0;
        for line in of_go().lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            let [text, stored, number] = columns[..] else {
                assert!(columns[0].parse::<Quantity>().is_err(), "{line:?}");
                continue;
            };
            let read: Quantity = serde_json::from_value(text.into()).expect(line);
            assert_eq!(read.nanos, amount(number), "{line:?}");
            let of_stored: Quantity = serde_json::from_value(stored.into()).expect(line);
            // Go writes no unit for amounts beyond `999E`, which makes another amount of them.
            if read.nanos.unsigned_abs() < 10u128.pow(30) {
                assert_eq!(of_stored.nanos, read.nanos, "{line:?}");
                assert_eq!(stored_quantity(text).as_deref(), Ok(stored), "{line:?}");
            }
            accepted += 1;
        }
        assert!(accepted > 200, "{accepted} rows");
    }

    /// Go's grammar, without its amounts: a sign, digits with a point among them, and a unit.
    fn has_gos_form(text: &str) -> bool {
        let number = text.strip_prefix(['+', '-']).unwrap_or(text);
        let unit = number.trim_start_matches(|c: char| c.is_ascii_digit());
        let unit = match unit.strip_prefix('.') {
            Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()),
            None => unit,
        };
        let units = "n u m k M G T P E Ki Mi Gi Ti Pi Ei".split(' ').chain([""]);
        let exponent = unit.strip_prefix(['e', 'E']).map(|digits| digits.parse::<i64>().is_ok());
        !text.is_empty() && (units.into_iter().any(|known| known == unit) || exponent == Some(true))
    }

    #[test]
    fn changed_texts_are_read_if_go_reads_them() {
        const CHARACTERS: [char; 16] =
            ['0', '1', '9', '.', '+', '-', 'e', 'E', 'i', 'n', 'm', 'k', 'K', 'P', ' ', '\u{fc}'];
        let mut read = 0;
        for text in of_go().lines().step_by(4).filter_map(|line| line.split('\t').next()) {
            for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                let (before, after) = text.split_at(at);
                let rest: String = after.chars().skip(1).collect();
                let added = CHARACTERS.map(|c| format!("{before}{c}{after}"));
                let replaced = CHARACTERS.map(|c| format!("{before}{c}{rest}"));
                let removed = [format!("{before}{rest}"), before.to_owned(), after.to_owned()];
                for changed in added.into_iter().chain(replaced).chain(removed) {
                    let quantity = changed.parse::<Quantity>();
                    assert_eq!(quantity.is_ok(), has_gos_form(&changed), "{changed:?}");
                    let Ok(quantity) = quantity else { continue };
                    let shown: Quantity = quantity.to_string().parse().expect(&changed);
                    assert_eq!(shown.nanos, quantity.nanos, "{changed:?}");
                    read += 1;
                }
            }
        }
        assert!(read > 10_000, "{read} texts");
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
