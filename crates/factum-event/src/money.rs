//! Money: an exact amount in a currency.

use std::fmt;

use crate::amount::{Amount, AmountError};
use crate::contract::{Shape, Shapes};
use crate::currency::Currency;
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::{Snapshot, SnapshotText};

/// An exact amount in a currency of ISO 4217. On the wire `{"amount":10.5,"currency":"EUR"}`.
///
/// The limits are those of [`Amount`]. Decimal places beyond the currency's minor unit are kept:
/// prices and exchange have them.
///
/// ```
/// # use factum_event::{Currency, Money};
/// let total = Money::from_minor(1050, Currency::EUR);
/// assert_eq!(total.to_string(), "10.50 EUR");
/// assert_eq!(total, Money::new("10.5".parse()?, Currency::EUR));
/// # Ok::<(), factum_event::AmountError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Money {
    amount: Amount,
    currency: Currency,
}

impl Money {
    /// An amount in a currency.
    pub fn new(amount: Amount, currency: Currency) -> Money {
        Money { amount, currency }
    }

    /// Money from a count of the currency's minor unit: cents for the euro, yen for the yen.
    ///
    /// `units` beyond ±(10^18 - 1) is only reached in currencies without a minor unit, and saturates
    /// there.
    pub fn from_minor(units: i64, currency: Currency) -> Money {
        const MOST: i64 = 999_999_999_999_999_999;
        let units = if currency.minor_digits() == 0 {
            units.clamp(-MOST, MOST)
        } else {
            units
        };
        match Amount::from_minor(units, currency.minor_digits()) {
            Ok(amount) => Money { amount, currency },
            Err(_) => unreachable!("19 digits with a decimal place or 18 without are an amount"),
        }
    }

    /// How much.
    pub fn amount(&self) -> &Amount {
        &self.amount
    }

    /// Of what.
    pub fn currency(&self) -> Currency {
        self.currency
    }

    /// Whether the amount is 0.
    pub fn is_zero(&self) -> bool {
        self.amount.is_zero()
    }

    /// The exact sum of two amounts of one currency.
    ///
    /// # Errors
    ///
    /// [`MoneyError`] when the currencies differ, or when the sum is outside an amount's limits.
    pub fn checked_add(&self, other: &Money) -> Result<Money, MoneyError> {
        if self.currency != other.currency {
            return Err(MoneyError::CurrenciesDiffer);
        }
        Ok(Money::new(
            self.amount.checked_add(&other.amount)?,
            self.currency,
        ))
    }
}

/// Why two sums of money have no sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoneyError {
    /// One is in another currency than the other.
    #[error("the two are in different currencies: convert one of them first")]
    CurrenciesDiffer,
    /// The sum is outside an amount's limits.
    #[error(transparent)]
    Amount(#[from] AmountError),
}

/// With at least the decimal places of the currency: `10.50 EUR`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.currency.minor_digits() as usize;
        write!(f, "{} {}", self.amount.to_plain_text(places), self.currency)
    }
}

impl Snapshot for Money {
    const EXPECTED: &'static str = "an object with amount and currency";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Money { text: false }
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.object(|object| {
            object.field("amount", &self.amount)?;
            object.field("currency", &self.currency)
        })
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        let object = from.object(Self::EXPECTED)?;
        Ok(Money {
            amount: object.field("amount")?,
            currency: object.field("currency")?,
        })
    }
}

/// The amount as text: `{"amount":"10.5","currency":"EUR"}`.
impl SnapshotText for Money {
    fn text_shape(_: &mut Shapes) -> Shape {
        Shape::Money { text: true }
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.object(|object| {
            object.text_field("amount", &self.amount)?;
            object.field("currency", &self.currency)
        })
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        Money::read(from)
    }
}
