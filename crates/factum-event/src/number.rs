//! The text of a JSON number, taken apart without rounding.

/// The largest integer that JavaScript holds exactly: 2^53 - 1.
pub(crate) const MAX_SAFE_INTEGER: i64 = 9_007_199_254_740_991;

/// More significant digits than any field may hold.
pub(crate) const MAX_DIGITS: usize = 38;

/// A decimal number `±digits × 10^exponent`, without zeros at either end of the digits.
///
/// Zero has no digits, exponent 0 and no sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) negative: bool,
    /// At most 38 decimal digits: 10^38 - 1 fits.
    pub(crate) digits: u128,
    pub(crate) exponent: i64,
    pub(crate) digit_count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecimalFault {
    /// Not a number in JSON's grammar.
    Syntax,
    /// More than 38 significant digits.
    TooManyDigits,
}

impl Decimal {
    /// Takes JSON's grammar and nothing else: no leading `+`, no leading zero, no space.
    ///
    /// Linear in the text and without allocation, whatever the exponent: `1e999999999` is a short
    /// text for a number that no machine could write out.
    pub(crate) fn parse(text: &str) -> Result<Decimal, DecimalFault> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return Err(DecimalFault::Syntax),
            Some((whole, fraction)) => (whole, fraction),
            None => (mantissa, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let leading_zero = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || leading_zero || !all_digits(whole) || !all_digits(fraction) {
            return Err(DecimalFault::Syntax);
        }

        let mut digits: u128 = 0;
        let mut digit_count: u32 = 0;
        // Zeros wait here until a digit follows them: zeros at the end are not significant.
        let mut waiting_zeros: usize = 0;
        for digit in whole
            .bytes()
            .chain(fraction.bytes())
            .map(|byte| byte - b'0')
        {
            if digit == 0 {
                if digits > 0 {
                    waiting_zeros += 1;
                }
                continue;
            }
            let more = waiting_zeros + 1;
            if digit_count as usize + more > MAX_DIGITS {
                return Err(DecimalFault::TooManyDigits);
            }
            for _ in 0..more {
                digits *= 10;
            }
            digits += u128::from(digit);
            digit_count += more as u32;
            waiting_zeros = 0;
        }
        if digits == 0 {
            return Ok(Decimal {
                negative: false,
                digits: 0,
                exponent: 0,
                digit_count: 0,
            });
        }
        let exponent = exponent
            .saturating_add(waiting_zeros as i64)
            .saturating_sub(fraction.len() as i64);
        Ok(Decimal {
            negative,
            digits,
            exponent,
            digit_count,
        })
    }

    /// The value as an integer, if it is one within ±(10^38 - 1).
    pub(crate) fn to_integer(self) -> Option<i128> {
        let zeros = u32::try_from(self.exponent).ok()?;
        if (zeros + self.digit_count) as usize > MAX_DIGITS {
            return None;
        }
        let magnitude = (self.digits * 10_u128.pow(zeros)) as i128;
        Some(if self.negative { -magnitude } else { magnitude })
    }
}

fn parse_exponent(text: &str) -> Result<i64, DecimalFault> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(DecimalFault::Syntax);
    }
    // Far beyond every limit, and far from an overflow when the text's length is added.
    const HUGE: i64 = i64::MAX / 4;
    let magnitude = digits.bytes().fold(0_i64, |sum, byte| {
        sum.saturating_mul(10)
            .saturating_add(i64::from(byte - b'0'))
            .min(HUGE)
    });
    Ok(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (bool, u128, i64) {
        let decimal = Decimal::parse(text).unwrap();
        (decimal.negative, decimal.digits, decimal.exponent)
    }

    #[test]
    fn equal_numbers_have_one_form() {
        for text in [
            "1000",
            "1e3",
            "1E+3",
            "1000.0",
            "10e2",
            "0.1e4",
            "1000.000e0",
            "100000e-2",
        ] {
            assert_eq!(parsed(text), (false, 1, 3), "{text}");
        }
        assert_eq!(parsed("-10.50"), (true, 105, -1));
        assert_eq!(parsed("10.005"), (false, 10005, -3));
        for zero in ["0", "-0", "0.000", "-0e9", "0e999999999999999999999999"] {
            assert_eq!(parsed(zero), (false, 0, 0), "{zero}");
        }
    }

    #[test]
    fn only_the_grammar_of_json_is_a_number() {
        for text in [
            "", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1e1.5", "1 ", " 1", "0x1",
            "1_000", "NaN", "Infinity", "1e5e5", "1.2.3", "--1", "١",
        ] {
            assert_eq!(Decimal::parse(text), Err(DecimalFault::Syntax), "{text:?}");
        }
    }

    #[test]
    fn a_hostile_exponent_costs_nothing() {
        let huge = Decimal::parse(&format!("1e{}", "9".repeat(1000))).unwrap();
        assert!(huge.exponent > 1_000_000);
        assert_eq!(huge.to_integer(), None);
        let tiny = Decimal::parse(&format!("1e-{}", "9".repeat(1000))).unwrap();
        assert!(tiny.exponent < -1_000_000);
        assert_eq!(tiny.to_integer(), None);
    }

    #[test]
    fn thirty_eight_digits_are_kept_and_more_are_refused() {
        let nines = "9".repeat(38);
        assert_eq!(parsed(&nines), (false, 10_u128.pow(38) - 1, 0));
        assert_eq!(
            Decimal::parse(&format!("{nines}9")),
            Err(DecimalFault::TooManyDigits)
        );
        assert_eq!(
            Decimal::parse(&format!("1{}1", "0".repeat(37))),
            Err(DecimalFault::TooManyDigits)
        );
        assert_eq!(parsed(&format!("1{}", "0".repeat(60))), (false, 1, 60));
        assert_eq!(parsed(&format!("0.{}1", "0".repeat(60))), (false, 1, -61));
    }

    #[test]
    fn integers_are_told_from_fractions() {
        let integer = |text| Decimal::parse(text).unwrap().to_integer();
        assert_eq!(integer("1e0"), Some(1));
        assert_eq!(integer("-12.0"), Some(-12));
        assert_eq!(integer("1.5"), None);
        assert_eq!(integer("1.5e1"), Some(15));
        assert_eq!(integer("1e37"), Some(10_i128.pow(37)));
        assert_eq!(integer("1e38"), None);
    }
}
