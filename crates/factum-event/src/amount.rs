//! Amounts: exact decimals from the first byte to the last (listing fault 9).

use std::fmt;
use std::str::FromStr;

use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, Signed, ToPrimitive, Zero};

use crate::contract::{AmountBound, Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::number::{Decimal, DecimalFault};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::{Snapshot, SnapshotText};

/// An exact decimal amount.
///
/// It lies between -10^18 and 10^18 (both excluded), with at most 38 significant digits and 38
/// decimal places, so that `NUMERIC(56, 38)` holds every one. It has no currency; see
/// [`Money`](crate::Money).
///
/// On the wire it is a JSON number while a double holds it exactly, so that any language reads the
/// same sum. An amount with more digits is an [`EncodeError::InexactNumber`], unless its field is
/// declared as text (`#[event(text)]`). Both forms are read.
///
/// ```
/// # use factum_event::Amount;
/// let price: Amount = "10.50".parse()?;
/// assert_eq!(price, Amount::from_minor(1050, 2)?);
/// assert_eq!(price.to_string(), "10.5");
/// assert_eq!(price.checked_add(&"0.1".parse()?)?.to_string(), "10.6");
/// assert!("1e18".parse::<Amount>().is_err());
/// # Ok::<(), factum_event::AmountError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(
    /// Normalised: no zeros at the end.
    BigDecimal,
);

/// Amounts are smaller than ten to this power.
const WHOLE_DIGITS: i64 = 18;
/// The last decimal place of an amount.
const DECIMAL_PLACES: i64 = 38;

impl Amount {
    /// Nothing.
    pub fn zero() -> Amount {
        Amount(BigDecimal::zero())
    }

    /// An amount from a count of its smallest unit: `from_minor(1050, 2)` is 10.50.
    ///
    /// # Errors
    ///
    /// [`AmountError`] when it is outside an amount's limits.
    pub fn from_minor(units: i64, decimal_places: u32) -> Result<Amount, AmountError> {
        Amount::from_decimal(&BigDecimal::new(
            BigInt::from(units),
            i64::from(decimal_places),
        ))
    }

    /// An amount from a decimal, as one reads it from a `NUMERIC` column.
    ///
    /// # Errors
    ///
    /// [`AmountError`] when it is outside an amount's limits.
    pub fn from_decimal(decimal: &BigDecimal) -> Result<Amount, AmountError> {
        let (digits, scale) = decimal.as_bigint_and_exponent();
        // Checked before the number is brought to its normal form: that may be long.
        if digits.bits() > 4_096 {
            return Err(AmountError::TooManyDigits);
        }
        Amount::from_parts(&digits.to_string(), scale.saturating_neg())
    }

    fn from_parts(digits: &str, exponent: i64) -> Result<Amount, AmountError> {
        let mut decimal = Decimal::parse(digits)?;
        if decimal.digits != 0 {
            decimal.exponent = decimal.exponent.saturating_add(exponent);
        }
        Amount::from_text_decimal(decimal)
    }

    fn from_text_decimal(decimal: Decimal) -> Result<Amount, AmountError> {
        let whole_digits = decimal
            .exponent
            .saturating_add(i64::from(decimal.digit_count));
        if whole_digits > WHOLE_DIGITS {
            return Err(AmountError::TooLarge);
        }
        if decimal.exponent < -DECIMAL_PLACES {
            return Err(AmountError::TooManyDecimalPlaces);
        }
        // 38 digits fit, and the exponent lies between -38 and 18 now.
        let digits = BigInt::from(decimal.digits);
        let digits = if decimal.negative { -digits } else { digits };
        Ok(Amount(BigDecimal::new(digits, -decimal.exponent)))
    }

    /// The amount as a decimal, for binding in SQL and for arithmetic of one's own.
    pub fn as_decimal(&self) -> &BigDecimal {
        &self.0
    }

    /// Whether it is 0.
    pub fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    /// Whether it is more than 0.
    pub fn is_positive(&self) -> bool {
        self.0.is_positive()
    }

    /// The exact sum.
    ///
    /// # Errors
    ///
    /// [`AmountError`] when it is outside an amount's limits.
    pub fn checked_add(&self, other: &Amount) -> Result<Amount, AmountError> {
        Amount::from_decimal(&(&self.0 + &other.0))
    }

    /// The exact difference.
    ///
    /// # Errors
    ///
    /// [`AmountError`] when it is outside an amount's limits.
    pub fn checked_sub(&self, other: &Amount) -> Result<Amount, AmountError> {
        Amount::from_decimal(&(&self.0 - &other.0))
    }

    /// The exact product with a count, such as a price times a quantity.
    ///
    /// # Errors
    ///
    /// [`AmountError`] when it is outside an amount's limits.
    pub fn checked_mul(&self, count: i64) -> Result<Amount, AmountError> {
        Amount::from_decimal(&(&self.0 * BigDecimal::from(count)))
    }

    /// Digits and decimal places; fewer than 0 places are zeros before the point.
    fn parts(&self) -> (i128, i64) {
        let (digits, places) = self.0.as_bigint_and_scale();
        // At most 38 digits, which an i128 holds.
        (digits.to_i128().unwrap_or_default(), places)
    }

    /// The text of a JSON number, if every reader that uses doubles sees this very amount.
    fn exact_number(&self) -> Option<String> {
        /// A double tells any two decimals of so many digits apart.
        const ALWAYS_EXACT: u128 = 10_u128.pow(15);
        let text = self.to_string();
        if self.parts().0.unsigned_abs() < ALWAYS_EXACT {
            return Some(text);
        }
        // The shortest text that names the double is what JavaScript prints for it.
        let double: f64 = text.parse().ok()?;
        let seen = Decimal::parse(&format!("{double:e}")).ok()?;
        let own = Decimal::parse(&text).ok()?;
        (seen == own).then_some(text)
    }

    /// Plain notation with at least `min_places` decimal places.
    pub(crate) fn to_plain_text(&self, min_places: usize) -> String {
        let (digits, places) = self.parts();
        let mut text = digits.unsigned_abs().to_string();
        if places < 0 {
            text.extend(std::iter::repeat_n('0', places.unsigned_abs() as usize));
        }
        let places = places.max(0) as usize;
        if text.len() <= places {
            text.insert_str(0, &"0".repeat(places + 1 - text.len()));
        }
        let point = text.len() - places;
        text.extend(std::iter::repeat_n('0', min_places.saturating_sub(places)));
        if text.len() > point {
            text.insert(point, '.');
        }
        if digits < 0 {
            text.insert(0, '-');
        }
        text
    }
}

/// Why a number is not an [`Amount`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// The text is not a decimal number.
    #[error("not an amount: expected a decimal number, such as \"10.50\"")]
    NotANumber,
    /// It is 10^18 or more, or -10^18 or less.
    #[error("an amount lies between -10^18 and 10^18, both excluded")]
    TooLarge,
    /// It has more than 38 significant digits.
    #[error("an amount has at most 38 significant digits")]
    TooManyDigits,
    /// It has more than 38 decimal places.
    #[error("an amount has at most 38 decimal places")]
    TooManyDecimalPlaces,
    /// It is 0 or less where more is required.
    #[error("expected an amount of more than 0")]
    NotPositive,
}

impl From<DecimalFault> for AmountError {
    fn from(fault: DecimalFault) -> AmountError {
        match fault {
            DecimalFault::Syntax => AmountError::NotANumber,
            DecimalFault::TooManyDigits => AmountError::TooManyDigits,
        }
    }
}

/// Takes what JSON takes for a number: `10.50`, `-3`, `1E+5`; no spaces, no leading `+` or zero.
impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        Amount::from_text_decimal(Decimal::parse(text)?)
    }
}

macro_rules! amount_from_integer {
    ($($integer:ty),*) => { $(
        impl From<$integer> for Amount {
            fn from(units: $integer) -> Amount {
                Amount(BigDecimal::from(units).normalized())
            }
        }
    )* };
}

amount_from_integer!(u8, u16, u32, i8, i16, i32);

/// Plain notation without zeros at the end: `10.5`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_plain_text(0))
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amount({self})")
    }
}

fn amount(min: Option<AmountBound>, text: bool) -> Shape {
    Shape::Amount {
        min,
        max: None,
        text,
    }
}

fn more_than_zero() -> Option<AmountBound> {
    Some(AmountBound {
        value: "0".to_owned(),
        exclusive: true,
    })
}

impl Snapshot for Amount {
    const EXPECTED: &'static str =
        "a decimal amount below 10^18 with at most 38 digits, as number or text";

    fn shape(_: &mut Shapes) -> Shape {
        amount(None, false)
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        match self.exact_number() {
            Some(number) => Ok(out.number(&number)),
            None => Err(EncodeError::InexactNumber { path: out.path() }),
        }
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text_or_number(Self::EXPECTED)?
            .parse()
            .map_err(|_| from.invalid(Self::EXPECTED))
    }
}

impl SnapshotText for Amount {
    fn text_shape(_: &mut Shapes) -> Shape {
        amount(None, true)
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(&self.to_string())
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        Amount::read(from)
    }
}

/// An [`Amount`] of more than 0.
///
/// ```
/// # use factum_event::{Amount, AmountError, PositiveAmount};
/// let price = PositiveAmount::new("10.50".parse()?)?;
/// assert_eq!(price.amount().to_string(), "10.5");
/// assert_eq!(PositiveAmount::new(Amount::zero()), Err(AmountError::NotPositive));
/// # Ok::<(), AmountError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositiveAmount(Amount);

impl PositiveAmount {
    /// Takes an amount that is more than 0.
    ///
    /// # Errors
    ///
    /// [`AmountError::NotPositive`] for 0 and less.
    pub fn new(amount: Amount) -> Result<PositiveAmount, AmountError> {
        if amount.is_positive() {
            Ok(PositiveAmount(amount))
        } else {
            Err(AmountError::NotPositive)
        }
    }

    /// The amount.
    pub fn amount(&self) -> &Amount {
        &self.0
    }

    /// The amount, owned.
    pub fn into_amount(self) -> Amount {
        self.0
    }
}

impl FromStr for PositiveAmount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        PositiveAmount::new(text.parse()?)
    }
}

impl fmt::Display for PositiveAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Snapshot for PositiveAmount {
    const EXPECTED: &'static str =
        "a decimal amount of more than 0 and below 10^18 with at most 38 digits, as number or text";

    fn shape(_: &mut Shapes) -> Shape {
        amount(more_than_zero(), false)
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        self.0.write(out)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text_or_number(Self::EXPECTED)?
            .parse()
            .map_err(|_| from.invalid(Self::EXPECTED))
    }
}

impl SnapshotText for PositiveAmount {
    fn text_shape(_: &mut Shapes) -> Shape {
        amount(more_than_zero(), true)
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        self.0.write_text(out)
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        PositiveAmount::read(from)
    }
}
