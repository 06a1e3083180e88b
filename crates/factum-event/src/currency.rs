//! Currencies: the closed list of ISO 4217.

use std::fmt;
use std::str::FromStr;

use crate::contract::{CodeList, Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::Snapshot;

/// A currency of ISO 4217, by its alphabetic code in upper case.
///
/// The list is closed: `eur` and `XYZ` are refused. Codes withdrawn since 2021 (ANG, BGN, CUC, HRK,
/// SLL, VES, ZWL) are still read, because old events hold them.
///
/// ```
/// # use factum_event::Currency;
/// let euro: Currency = "EUR".parse()?;
/// assert_eq!(euro, Currency::EUR);
/// assert_eq!(euro.minor_digits(), 2);
/// assert!("eur".parse::<Currency>().is_err());
/// # Ok::<(), factum_event::CurrencyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency(
    /// The place in `CODES`, which is sorted.
    u8,
);

impl Currency {
    /// The euro.
    pub const EUR: Currency = Currency::known("EUR");
    /// The pound sterling.
    pub const GBP: Currency = Currency::known("GBP");
    /// The Japanese yen, which has no minor unit.
    pub const JPY: Currency = Currency::known("JPY");
    /// The US dollar.
    pub const USD: Currency = Currency::known("USD");

    /// The three letters.
    pub fn code(self) -> &'static str {
        CODES[usize::from(self.0)].0
    }

    /// How many decimal digits the minor unit has: 2 for cents. 0 for a currency without a minor
    /// unit, and for codes that are no money, such as XAU (gold).
    pub fn minor_digits(self) -> u32 {
        CODES[usize::from(self.0)].1
    }

    /// Every currency, by code.
    pub fn all() -> impl Iterator<Item = Currency> {
        (0..=u8::MAX).take(CODES.len()).map(Currency)
    }

    /// For the constants above: a code that is not in the list doesn't compile.
    const fn known(code: &str) -> Currency {
        let code = code.as_bytes();
        let mut at = 0;
        loop {
            let candidate = CODES[at].0.as_bytes();
            if candidate[0] == code[0] && candidate[1] == code[1] && candidate[2] == code[2] {
                return Currency(at as u8);
            }
            at += 1;
        }
    }
}

/// A text is not the code of a currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a currency: expected a code of ISO 4217 in upper case, such as \"EUR\"")]
pub struct CurrencyError;

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(code: &str) -> Result<Self, CurrencyError> {
        match CODES.binary_search_by_key(&code, |(code, _)| code) {
            Ok(at) => Ok(Currency(at as u8)),
            Err(_) => Err(CurrencyError),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Snapshot for Currency {
    const EXPECTED: &'static str = "a currency code (ISO 4217), such as \"EUR\"";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Code(CodeList::Currency)
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(self.code())
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text(Self::EXPECTED)?
            .parse()
            .map_err(|_| from.invalid(Self::EXPECTED))
    }
}

/// Code and digits of the minor unit, sorted by code.
#[rustfmt::skip]
const CODES: [(&str, u32); 184] = [
    ("AED", 2), ("AFN", 2), ("ALL", 2), ("AMD", 2), ("ANG", 2), ("AOA", 2), ("ARS", 2), ("AUD", 2),
    ("AWG", 2), ("AZN", 2), ("BAM", 2), ("BBD", 2), ("BDT", 2), ("BGN", 2), ("BHD", 3), ("BIF", 0),
    ("BMD", 2), ("BND", 2), ("BOB", 2), ("BOV", 2), ("BRL", 2), ("BSD", 2), ("BTN", 2), ("BWP", 2),
    ("BYN", 2), ("BZD", 2), ("CAD", 2), ("CDF", 2), ("CHE", 2), ("CHF", 2), ("CHW", 2), ("CLF", 4),
    ("CLP", 0), ("CNY", 2), ("COP", 2), ("COU", 2), ("CRC", 2), ("CUC", 2), ("CUP", 2), ("CVE", 2),
    ("CZK", 2), ("DJF", 0), ("DKK", 2), ("DOP", 2), ("DZD", 2), ("EGP", 2), ("ERN", 2), ("ETB", 2),
    ("EUR", 2), ("FJD", 2), ("FKP", 2), ("GBP", 2), ("GEL", 2), ("GHS", 2), ("GIP", 2), ("GMD", 2),
    ("GNF", 0), ("GTQ", 2), ("GYD", 2), ("HKD", 2), ("HNL", 2), ("HRK", 2), ("HTG", 2), ("HUF", 2),
    ("IDR", 2), ("ILS", 2), ("INR", 2), ("IQD", 3), ("IRR", 2), ("ISK", 0), ("JMD", 2), ("JOD", 3),
    ("JPY", 0), ("KES", 2), ("KGS", 2), ("KHR", 2), ("KMF", 0), ("KPW", 2), ("KRW", 0), ("KWD", 3),
    ("KYD", 2), ("KZT", 2), ("LAK", 2), ("LBP", 2), ("LKR", 2), ("LRD", 2), ("LSL", 2), ("LYD", 3),
    ("MAD", 2), ("MDL", 2), ("MGA", 2), ("MKD", 2), ("MMK", 2), ("MNT", 2), ("MOP", 2), ("MRU", 2),
    ("MUR", 2), ("MVR", 2), ("MWK", 2), ("MXN", 2), ("MXV", 2), ("MYR", 2), ("MZN", 2), ("NAD", 2),
    ("NGN", 2), ("NIO", 2), ("NOK", 2), ("NPR", 2), ("NZD", 2), ("OMR", 3), ("PAB", 2), ("PEN", 2),
    ("PGK", 2), ("PHP", 2), ("PKR", 2), ("PLN", 2), ("PYG", 0), ("QAR", 2), ("RON", 2), ("RSD", 2),
    ("RUB", 2), ("RWF", 0), ("SAR", 2), ("SBD", 2), ("SCR", 2), ("SDG", 2), ("SEK", 2), ("SGD", 2),
    ("SHP", 2), ("SLE", 2), ("SLL", 2), ("SOS", 2), ("SRD", 2), ("SSP", 2), ("STN", 2), ("SVC", 2),
    ("SYP", 2), ("SZL", 2), ("THB", 2), ("TJS", 2), ("TMT", 2), ("TND", 3), ("TOP", 2), ("TRY", 2),
    ("TTD", 2), ("TWD", 2), ("TZS", 2), ("UAH", 2), ("UGX", 0), ("USD", 2), ("USN", 2), ("UYI", 0),
    ("UYU", 2), ("UYW", 4), ("UZS", 2), ("VED", 2), ("VES", 2), ("VND", 0), ("VUV", 0), ("WST", 2),
    ("XAD", 2), ("XAF", 0), ("XAG", 0), ("XAU", 0), ("XBA", 0), ("XBB", 0), ("XBC", 0), ("XBD", 0),
    ("XCD", 2), ("XCG", 2), ("XDR", 0), ("XOF", 0), ("XPD", 0), ("XPF", 0), ("XPT", 0), ("XSU", 0),
    ("XTS", 0), ("XUA", 0), ("XXX", 0), ("YER", 2), ("ZAR", 2), ("ZMW", 2), ("ZWG", 2), ("ZWL", 2),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_so_that_every_code_is_found() {
        assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(Currency::all().count(), CODES.len());
        for currency in Currency::all() {
            assert_eq!(currency.code().parse(), Ok(currency));
            assert!(currency.code().bytes().all(|b| b.is_ascii_uppercase()));
            assert_eq!(currency.code().len(), 3);
        }
    }

    #[test]
    fn only_upper_case_codes_of_the_list_are_currencies() {
        for code in [
            "",
            "eur",
            "Eur",
            "EURO",
            "EU",
            "XYZ",
            "   ",
            "EUR ",
            "€€€",
            "\0\0\0",
        ] {
            assert_eq!(code.parse::<Currency>(), Err(CurrencyError), "{code:?}");
        }
    }

    #[test]
    fn minor_units_are_those_of_the_standard() {
        for (code, digits) in [
            ("EUR", 2),
            ("JPY", 0),
            ("KWD", 3),
            ("CLF", 4),
            ("XAU", 0),
            ("ISK", 0),
        ] {
            assert_eq!(
                code.parse::<Currency>().unwrap().minor_digits(),
                digits,
                "{code}"
            );
        }
    }
}
