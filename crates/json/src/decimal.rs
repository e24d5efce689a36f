//! Exact comparison of JSON numbers. A float holds about 17 digits, and models write more.

use std::cmp::Ordering;
use std::fmt::LowerExp;
use std::str::FromStr;

/// Digits that each float keeps.
const FLOAT_DIGITS: usize = 15;
/// Bound of the exponents at which each float keeps them.
const FLOAT_EXPONENT: i128 = 290;

/// A decimal number. Equal numbers have equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal {
    is_negative: bool,
    /// Without zeros at the start and the end. Empty: zero.
    digits: String,
    /// The number is `0.digits` times ten to this power; 0 for zero.
    exponent: i128,
}

impl Decimal {
    /// `None`: the text is no JSON number.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) =
            text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, parse_power(power)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: String = [whole, fraction].concat();
        if whole.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let significant = all.trim_start_matches('0');
        let zeros = all.len() - significant.len();
        let digits = significant.trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self { is_negative: false, digits, exponent: 0 });
        }
        let places = i128::try_from(whole.len()).ok()? - i128::try_from(zeros).ok()?;
        Some(Self { is_negative, digits, exponent: power.saturating_add(places) })
    }

    /// The number as a schema has it.
    pub fn from_number(number: &serde_json::Number) -> Option<Self> {
        Self::parse(&number.to_string())
    }

    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub fn is_integer(&self) -> bool {
        self.exponent >= self.digit_count()
    }

    /// True if a float may stand for another number than this one.
    pub(crate) fn may_differ_as_float(&self) -> bool {
        self.digits.len() > FLOAT_DIGITS || self.exponent.abs() > FLOAT_EXPONENT
    }

    /// True if this is a whole multiple of the other, which has at most 38 digits.
    pub fn is_multiple_of(&self, other: &Self) -> bool {
        if self.is_zero() {
            return true;
        }
        let Ok(divisor) = other.digits.parse::<u64>() else { return false };
        // Both as whole numbers times a power of ten.
        let power = (self.exponent - self.digit_count()) - (other.exponent - other.digit_count());
        if divisor == 0 || power < 0 {
            // The digits of this number do not end with zero.
            return false;
        }
        let divisor = u128::from(divisor);
        let rest = self.digits.bytes().fold(0_u128, |rest, digit| {
            (rest * 10 + u128::from(digit.saturating_sub(b'0'))) % divisor
        });
        (rest * power_of_ten(power, divisor)).is_multiple_of(divisor)
    }

    fn digit_count(&self) -> i128 {
        i128::try_from(self.digits.len()).unwrap_or(i128::MAX)
    }

    /// One text for equal numbers, which is a JSON number.
    pub fn normal_text(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}{}e{}", self.digits, self.exponent.saturating_sub(self.digit_count()))
    }
}

/// True if the text is a number, and the shortest text of the nearest float of this type is the same
/// number.
pub(crate) fn is_exact_as<F: FromStr + LowerExp>(text: &str) -> bool {
    let float = text.parse::<F>().ok().and_then(|float| Decimal::parse(&format!("{float:e}")));
    float.is_some() && float == Decimal::parse(text)
}

/// Largest exponent; longer ones count as this one.
const POWER_MAX: i128 = 1_000_000_000_000_000_000_000_000_000_000;

/// Exponents of absurd length become the largest ones.
fn parse_power(text: &str) -> Option<i128> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let power = digits.parse::<i128>().unwrap_or(POWER_MAX).min(POWER_MAX);
    Some(if text.starts_with('-') { -power } else { power })
}

/// Ten to that power, by the divisor.
fn power_of_ten(power: i128, divisor: u128) -> u128 {
    let (mut result, mut base, mut left) = (1 % divisor, 10 % divisor, power);
    while left > 0 {
        if left % 2 == 1 {
            result = result * base % divisor;
        }
        base = base * base % divisor;
        left /= 2;
    }
    result
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.is_zero(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        // Digits without zeros at the start have the order of texts.
        let size =
            || self.exponent.cmp(&other.exponent).then_with(|| self.digits.cmp(&other.digits));
        sign(self).cmp(&sign(other)).then_with(|| match sign(self) {
            0 => Ordering::Equal,
            1.. => size(),
            ..0 => size().reverse(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_ordered_by_their_value() {
        let ordered = [
            "-1e400",
            "-100.1",
            "-100",
            "-0.5",
            "-1e-400",
            "0",
            "1e-401",
            "1e-400",
            "0.09",
            "0.1",
            "0.10000000000000000000000000000000001",
            "1",
            "1.5",
            "9",
            "10",
            "99.9",
            "100",
            "9007199254740993",
            "9007199254740993.0000001",
            "1e400",
            "1.01e400",
        ];
        for (first, low) in ordered.iter().enumerate() {
            for (second, high) in ordered.iter().enumerate() {
                assert_eq!(decimal(low).cmp(&decimal(high)), first.cmp(&second), "{low} {high}");
            }
        }
    }

    #[test]
    fn equal_numbers_have_one_value() {
        for (one, other) in [
            ("1", "1.0"),
            ("1e2", "100"),
            ("0.001", "1E-3"),
            ("-0", "0e99"),
            ("12.50", "1250e-2"),
            (
                "1e-99999999999999999999999999999999999999999",
                "1e-99999999999999999999999999999999999999998",
            ),
        ] {
            assert_eq!(decimal(one), decimal(other), "{one} {other}");
            assert_eq!(decimal(&decimal(one).normal_text()), decimal(one));
        }
        for text in ["", "-", "+1", ".5", "1e", "1e+", "0x1", "1 ", "1_0", "NaN"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn integers_and_multiples_are_exact() {
        for (text, is_integer) in [
            ("1", true),
            ("1.0", true),
            ("1e400", true),
            ("9007199254740993.5", false),
            ("100000000000000000000000.5", false),
            ("0.5e1", true),
            ("0", true),
            ("1e-400", false),
        ] {
            assert_eq!(decimal(text).is_integer(), is_integer, "{text}");
        }
        for (text, of, is_multiple) in [
            ("10", "5", true),
            ("0.3", "0.1", true),
            ("19.99", "0.01", true),
            ("19.995", "0.01", false),
            ("100000000000000000000000000000000001", "2", false),
            ("1e400", "3", false),
            ("3e400", "3", true),
            ("0", "7", true),
            ("-21", "7", true),
            ("1e-400", "0.1", false),
        ] {
            assert_eq!(decimal(text).is_multiple_of(&decimal(of)), is_multiple, "{text} {of}");
        }
    }
}
