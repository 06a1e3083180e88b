//! What a field's value must be beyond its type: checked where an event is read and where it is published.
//!
//! Each rule is evaluated by garde; the names that users see, the texts and the places are Factum's own,
//! so that neither a value nor garde shows in them.

use std::borrow::Cow;
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64,
};
use std::str::FromStr;
use std::sync::OnceLock;

use bigdecimal::BigDecimal;
use garde::rules;
use regex::Regex;

use crate::amount::{Amount, PositiveAmount};
use crate::contract::{AmountBound, CodeList, Shape};
use crate::encode::EncodeError;
use crate::number::MAX_SAFE_INTEGER;
use crate::path::Path;
use crate::poison::{Poison, PoisonReason};

/// The stable names of the rules: they stand in [`Poison::rule`] and in [`EncodeError::Invalid`].
pub(crate) mod rule {
    pub(crate) const LENGTH: &str = "length";
    pub(crate) const RANGE: &str = "range";
    pub(crate) const PATTERN: &str = "pattern";
    pub(crate) const ITEMS: &str = "items";
    pub(crate) const CODE: &str = "code";
    pub(crate) const CHOICE: &str = "choice";
    pub(crate) const VALIDATE: &str = "validate";
}

/// Where a value stands that is checked.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a>(pub(crate) Path<'a>);

impl Place<'_> {
    /// A field of the object that stands here.
    #[must_use]
    pub fn field<'b>(&'b self, name: &'b str) -> Place<'b> {
        Place(Path::Field(&self.0, name))
    }

    fn item(&self, index: usize) -> Place<'_> {
        Place(Path::Index(&self.0, index))
    }

    fn violates(&self, rule: &'static str, expected: impl Into<Cow<'static, str>>) -> Violation {
        Violation {
            path: self.0.render(),
            rule,
            expected: expected.into(),
        }
    }
}

/// A value breaks a rule: poison for a reader, an error for a publisher.
#[derive(Debug)]
pub struct Violation {
    pub(crate) path: String,
    pub(crate) rule: &'static str,
    pub(crate) expected: Cow<'static, str>,
}

impl From<Violation> for Poison {
    fn from(violation: Violation) -> Poison {
        let Violation {
            path,
            rule,
            expected,
        } = violation;
        Poison::new(PoisonReason::InvalidField, path, expected).with_rule(rule)
    }
}

impl From<Violation> for EncodeError {
    fn from(violation: Violation) -> EncodeError {
        let Violation {
            path,
            rule,
            expected,
        } = violation;
        EncodeError::Invalid {
            path,
            rule,
            expected,
        }
    }
}

/// A rule for text.
pub trait TextRule {
    /// Its stable name.
    const NAME: &'static str;

    /// Whether the text keeps it.
    fn holds(&self, text: &str) -> bool;

    /// What it asks for, as a noun.
    fn expected(&self) -> Cow<'static, str>;
}

/// `length(min = 1, max = 40)`
#[derive(Debug)]
pub struct Length {
    min: Option<u32>,
    max: Option<u32>,
}

impl Length {
    /// Both bounds included.
    #[must_use]
    pub const fn new(min: Option<u32>, max: Option<u32>) -> Length {
        Length { min, max }
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Text { pattern, .. } => Shape::Text {
                min_chars: self.min,
                max_chars: self.max,
                pattern,
            },
            other => other,
        })
    }
}

impl TextRule for Length {
    const NAME: &'static str = rule::LENGTH;

    fn holds(&self, text: &str) -> bool {
        rules::length::chars::apply(&text, as_counts(self.min, self.max)).is_ok()
    }

    fn expected(&self) -> Cow<'static, str> {
        count_of(self.min, self.max, "character").into()
    }
}

/// `pattern = "[A-Z]{3}"`
#[derive(Debug)]
pub struct Pattern {
    written: &'static str,
    compiled: OnceLock<Regex>,
}

impl Pattern {
    /// A pattern without anchors, that the whole text must match. The derives have compiled it once.
    #[must_use]
    pub const fn new(written: &'static str) -> Pattern {
        Pattern {
            written,
            compiled: OnceLock::new(),
        }
    }

    fn compiled(&self) -> &Regex {
        self.compiled.get_or_init(|| {
            // The derive refuses a pattern for which this fails.
            Regex::new(&format!("^(?:{})$", self.written)).expect("a pattern that compiles")
        })
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Text {
                min_chars,
                max_chars,
                ..
            } => Shape::Text {
                min_chars,
                max_chars,
                pattern: Some(self.written.to_owned()),
            },
            other => other,
        })
    }
}

impl TextRule for Pattern {
    const NAME: &'static str = rule::PATTERN;

    fn holds(&self, text: &str) -> bool {
        rules::pattern::apply(&text, (self.compiled(),)).is_ok()
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("text that matches `{}` as a whole", self.written).into()
    }
}

/// `code = "country"`
#[derive(Debug)]
pub struct Code(CodeList);

impl Code {
    /// A code of the list.
    #[must_use]
    pub const fn new(list: CodeList) -> Code {
        Code(list)
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Text { .. } => Shape::Code(self.0),
            other => other,
        })
    }
}

// garde knows no such lists: the crates of `code_list.rs` do.
impl TextRule for Code {
    const NAME: &'static str = rule::CODE;

    fn holds(&self, text: &str) -> bool {
        self.0.contains(text)
    }

    fn expected(&self) -> Cow<'static, str> {
        self.0.expected().into()
    }
}

/// What `length`, `pattern` and `code` fit.
#[diagnostic::on_unimplemented(
    message = "`length`, `pattern` and `code` don't fit `{Self}`",
    label = "not text",
    note = "they are for String, and for Option, Vec and Box of it; a number takes `range`, a list takes `items`",
    note = "for a type of your own, check its values in `#[event(validate = path::to::function)]`"
)]
pub trait TextValue {
    /// Checks every text that the value holds.
    ///
    /// # Errors
    ///
    /// The first violation.
    fn check<R: TextRule>(&self, rule: &R, at: Place<'_>) -> Result<(), Violation>;
}

impl TextValue for String {
    fn check<R: TextRule>(&self, rule: &R, at: Place<'_>) -> Result<(), Violation> {
        self.as_str().check(rule, at)
    }
}

impl TextValue for str {
    fn check<R: TextRule>(&self, rule: &R, at: Place<'_>) -> Result<(), Violation> {
        if rule.holds(self) {
            Ok(())
        } else {
            Err(at.violates(R::NAME, rule.expected()))
        }
    }
}

/// `items(min = 1, max = 100)`
#[derive(Debug)]
pub struct Items {
    min: Option<u32>,
    max: Option<u32>,
}

impl Items {
    /// Both bounds included.
    #[must_use]
    pub const fn new(min: Option<u32>, max: Option<u32>) -> Items {
        Items { min, max }
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        match shape {
            Shape::Nullable(inner) => Shape::Nullable(Box::new(self.narrow(*inner))),
            Shape::Array { items, .. } => Shape::Array {
                items,
                min_items: self.min,
                max_items: self.max,
            },
            other => other,
        }
    }
}

/// What `items` fits.
#[diagnostic::on_unimplemented(
    message = "`items` doesn't fit `{Self}`",
    label = "not a list",
    note = "`items` is for Vec, and for Option and Box of it; text takes `length`, a number takes `range`"
)]
pub trait ListValue {
    /// Checks the number of items.
    ///
    /// # Errors
    ///
    /// The violation.
    fn check(&self, rule: &Items, at: Place<'_>) -> Result<(), Violation>;
}

impl<T> ListValue for Vec<T> {
    fn check(&self, rule: &Items, at: Place<'_>) -> Result<(), Violation> {
        rules::length::simple::apply(self, as_counts(rule.min, rule.max))
            .map_err(|_| at.violates(rule::ITEMS, count_of(rule.min, rule.max, "item")))
    }
}

impl<T: ListValue> ListValue for Option<T> {
    fn check(&self, rule: &Items, at: Place<'_>) -> Result<(), Violation> {
        match self {
            Some(value) => value.check(rule, at),
            None => Ok(()),
        }
    }
}

impl<T: ListValue> ListValue for Box<T> {
    fn check(&self, rule: &Items, at: Place<'_>) -> Result<(), Violation> {
        (**self).check(rule, at)
    }
}

/// `range(min = 1, max = 10)`: bounds that are whole numbers.
#[derive(Debug)]
pub struct WholeRange {
    min: Option<i128>,
    max: Option<i128>,
}

impl WholeRange {
    /// Both bounds included.
    #[must_use]
    pub const fn new(min: Option<i128>, max: Option<i128>) -> WholeRange {
        WholeRange { min, max }
    }

    /// What is wrong with the bounds for a field that holds the numbers from `least` to `greatest`, and as a JSON
    /// number those up to `greatest_number` to either side of 0: the derives stop the build with it.
    #[must_use]
    pub const fn misfit(
        &self,
        least: i128,
        greatest: i128,
        greatest_number: i128,
    ) -> Option<&'static str> {
        const BEYOND_NUMBERS: &str = "a bound lies beyond 2^53-1, and no number on the wire does: bring it nearer \
                                      to 0, leave it out, or declare the field as `text`";
        if let Some(min) = self.min {
            if min < least {
                return Some("`min` is less than the field's type holds: raise it or leave it out");
            }
            if min > greatest {
                return Some(
                    "`min` is more than the field's type holds, so that no value fits: lower it",
                );
            }
            if min < -greatest_number || min > greatest_number {
                return Some(BEYOND_NUMBERS);
            }
        }
        if let Some(max) = self.max {
            if max > greatest {
                return Some("`max` is more than the field's type holds: lower it or leave it out");
            }
            if max < least {
                return Some(
                    "`max` is less than the field's type holds, so that no value fits: raise it",
                );
            }
            if max < -greatest_number || max > greatest_number {
                return Some(BEYOND_NUMBERS);
            }
        }
        None
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Integer {
                min,
                max,
                not_zero,
                text,
            } => {
                let min = self.min.map_or(min, |own| own.max(min));
                let max = self.max.map_or(max, |own| own.min(max));
                Shape::Integer {
                    min,
                    max,
                    not_zero: not_zero && min <= 0 && max >= 0,
                    text,
                }
            }
            Shape::Double { .. } => Shape::Double {
                min: self.min.map(as_double),
                max: self.max.map(as_double),
            },
            Shape::Amount { min, max, text } => {
                let bound = |bound: Option<i128>| {
                    bound.map(|bound| AmountBound {
                        value: bound.to_string(),
                        exclusive: false,
                    })
                };
                narrow_amount(min, max, text, bound(self.min), bound(self.max))
            }
            other => other,
        })
    }

    fn expected(&self) -> String {
        between(
            self.min.map(|min| (min.to_string(), false)),
            self.max.map(|max| (max.to_string(), false)),
        )
    }
}

/// What a `range` with bounds that are whole numbers fits.
#[diagnostic::on_unimplemented(
    message = "`range` doesn't fit `{Self}`",
    label = "not a number",
    note = "`range` is for integers, f64, Amount and PositiveAmount, and for Option, Vec and Box of them; text takes `length`, a list takes `items`",
    note = "for a type of your own, check its values in `#[event(validate = path::to::function)]`"
)]
pub trait WholeRangeValue {
    /// The least whole number that the type holds.
    const LEAST: i128;
    /// The greatest.
    const GREATEST: i128;
    /// The greatest that stands on the wire as a number, and its opposite the least.
    const GREATEST_NUMBER: i128 = i128::MAX;

    /// Checks every number that the value holds.
    ///
    /// # Errors
    ///
    /// The first violation.
    fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation>;
}

macro_rules! whole_range_of_integers {
    ($($integer:ty),*) => { $(
        impl WholeRangeValue for $integer {
            const LEAST: i128 = <$integer>::MIN as i128;
            const GREATEST: i128 = <$integer>::MAX as i128;
            const GREATEST_NUMBER: i128 = MAX_SAFE_INTEGER as i128;

            fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation> {
                rules::range::apply(&i128::from(*self), (rule.min, rule.max))
                    .map_err(|_| at.violates(rule::RANGE, rule.expected()))
            }
        }
    )* };
}

whole_range_of_integers!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! whole_range_of_non_zeros {
    ($($non_zero:ty, $integer:ty;)*) => { $(
        impl WholeRangeValue for $non_zero {
            const LEAST: i128 = <$integer>::MIN as i128;
            const GREATEST: i128 = <$integer>::MAX as i128;
            const GREATEST_NUMBER: i128 = MAX_SAFE_INTEGER as i128;

            fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation> {
                WholeRangeValue::check(&self.get(), rule, at)
            }
        }
    )* };
}

whole_range_of_non_zeros! {
    NonZeroU8, u8; NonZeroU16, u16; NonZeroU32, u32; NonZeroU64, u64;
    NonZeroI8, i8; NonZeroI16, i16; NonZeroI32, i32; NonZeroI64, i64;
}

impl WholeRangeValue for f64 {
    const LEAST: i128 = i128::MIN;
    const GREATEST: i128 = i128::MAX;

    fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation> {
        let bounds = (rule.min.map(as_double), rule.max.map(as_double));
        rules::range::apply(self, bounds).map_err(|_| at.violates(rule::RANGE, rule.expected()))
    }
}

/// Amounts are smaller than this.
const AMOUNT_LIMIT: i128 = 10_i128.pow(18);

impl WholeRangeValue for Amount {
    const LEAST: i128 = 1 - AMOUNT_LIMIT;
    const GREATEST: i128 = AMOUNT_LIMIT - 1;

    // garde compares numbers that are `Copy`, and an exact decimal isn't.
    fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation> {
        let amount = self.as_decimal();
        let (min, max) = (
            rule.min.map(BigDecimal::from),
            rule.max.map(BigDecimal::from),
        );
        let holds = min.is_none_or(|min| *amount >= min) && max.is_none_or(|max| *amount <= max);
        if holds {
            Ok(())
        } else {
            Err(at.violates(rule::RANGE, rule.expected()))
        }
    }
}

impl WholeRangeValue for PositiveAmount {
    const LEAST: i128 = 0;
    const GREATEST: i128 = Amount::GREATEST;

    fn check(&self, rule: &WholeRange, at: Place<'_>) -> Result<(), Violation> {
        WholeRangeValue::check(self.amount(), rule, at)
    }
}

/// `range(min = 0.5, max = 1.5)`: bounds with a decimal point.
#[derive(Debug)]
pub struct DoubleRange {
    min: Option<f64>,
    max: Option<f64>,
}

impl DoubleRange {
    /// Both bounds included.
    #[must_use]
    pub const fn new(min: Option<f64>, max: Option<f64>) -> DoubleRange {
        DoubleRange { min, max }
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Double { .. } => Shape::Double {
                min: self.min,
                max: self.max,
            },
            other => other,
        })
    }
}

/// What a `range` with bounds that have a decimal point fits.
#[diagnostic::on_unimplemented(
    message = "a `range` with a decimal point doesn't fit `{Self}`",
    label = "not an f64",
    note = "the bounds of an integer are whole numbers: `range(min = 1)`; those of an amount are whole numbers or text: `range(min = \"0.01\")`"
)]
pub trait DoubleRangeValue {
    /// Checks every number that the value holds.
    ///
    /// # Errors
    ///
    /// The first violation.
    fn check(&self, rule: &DoubleRange, at: Place<'_>) -> Result<(), Violation>;
}

impl DoubleRangeValue for f64 {
    fn check(&self, rule: &DoubleRange, at: Place<'_>) -> Result<(), Violation> {
        rules::range::apply(self, (rule.min, rule.max)).map_err(|_| {
            let bound = |bound: f64| (format!("{bound:?}"), false);
            at.violates(
                rule::RANGE,
                between(rule.min.map(bound), rule.max.map(bound)),
            )
        })
    }
}

/// `range(min = "0.01")`, `range(greater_than = 0)`: bounds of an amount.
#[derive(Debug)]
pub struct AmountRange {
    min: Option<(&'static str, bool)>,
    max: Option<(&'static str, bool)>,
    parsed: OnceLock<(Option<Amount>, Option<Amount>)>,
}

impl AmountRange {
    /// A bound is an amount in plain notation, checked by the derives, and whether it is excluded itself.
    #[must_use]
    pub const fn new(
        min: Option<(&'static str, bool)>,
        max: Option<(&'static str, bool)>,
    ) -> AmountRange {
        AmountRange {
            min,
            max,
            parsed: OnceLock::new(),
        }
    }

    fn parsed(&self) -> &(Option<Amount>, Option<Amount>) {
        self.parsed.get_or_init(|| {
            let amount = |(text, _): (&str, bool)| -> Amount {
                // The derive refuses a text for which this fails.
                text.parse().expect("a bound that is an amount")
            };
            (self.min.map(amount), self.max.map(amount))
        })
    }

    fn holds(&self, amount: &Amount) -> bool {
        let (min, max) = self.parsed();
        let excluded = |bound: Option<(&str, bool)>| bound.is_some_and(|(_, excluded)| excluded);
        min.as_ref()
            .is_none_or(|min| amount > min || (amount == min && !excluded(self.min)))
            && max
                .as_ref()
                .is_none_or(|max| amount < max || (amount == max && !excluded(self.max)))
    }

    /// The bounds in their shortest notation, and whether each is excluded itself.
    fn bounds(&self) -> [Option<(String, bool)>; 2] {
        let (min, max) = self.parsed();
        let bound = |amount: &Option<Amount>, written: Option<(&str, bool)>| {
            amount
                .as_ref()
                .zip(written)
                .map(|(amount, (_, excluded))| (amount.to_string(), excluded))
        };
        [bound(min, self.min), bound(max, self.max)]
    }

    /// The shape of a field that the rule holds for.
    #[must_use]
    pub fn narrow(&self, shape: Shape) -> Shape {
        on_values(shape, &|shape| match shape {
            Shape::Amount { min, max, text } => {
                let [own_min, own_max] = self
                    .bounds()
                    .map(|bound| bound.map(|(value, exclusive)| AmountBound { value, exclusive }));
                narrow_amount(min, max, text, own_min, own_max)
            }
            other => other,
        })
    }
}

/// What a `range` with bounds that are text, or with `greater_than` or `less_than`, fits.
#[diagnostic::on_unimplemented(
    message = "a `range` for amounts doesn't fit `{Self}`",
    label = "neither Amount nor PositiveAmount",
    note = "bounds that are text, and `greater_than` and `less_than`, are for amounts; those of an integer are whole numbers: `range(min = 1, max = 10)`"
)]
pub trait AmountRangeValue {
    /// Checks every amount that the value holds.
    ///
    /// # Errors
    ///
    /// The first violation.
    fn check(&self, rule: &AmountRange, at: Place<'_>) -> Result<(), Violation>;
}

impl AmountRangeValue for Amount {
    fn check(&self, rule: &AmountRange, at: Place<'_>) -> Result<(), Violation> {
        if rule.holds(self) {
            return Ok(());
        }
        let [min, max] = rule.bounds();
        Err(at.violates(rule::RANGE, between(min, max)))
    }
}

impl AmountRangeValue for PositiveAmount {
    fn check(&self, rule: &AmountRange, at: Place<'_>) -> Result<(), Violation> {
        AmountRangeValue::check(self.amount(), rule, at)
    }
}

/// What holds for a value holds for it inside `Option`, `Vec` and `Box`, too.
macro_rules! through_containers {
    ($value:ident, ($($rule:ty)?), ($($generic:ident: $bound:ident)?), ($($constant:ident),*)) => {
        impl<T: $value> $value for Option<T> {
            $(const $constant: i128 = T::$constant;)*

            fn check$(<$generic: $bound>)?(
                &self,
                rule: &through_containers!(@rule $($rule)? $($generic)?),
                at: Place<'_>,
            ) -> Result<(), Violation> {
                match self {
                    Some(value) => value.check(rule, at),
                    None => Ok(()),
                }
            }
        }

        impl<T: $value> $value for Vec<T> {
            $(const $constant: i128 = T::$constant;)*

            fn check$(<$generic: $bound>)?(
                &self,
                rule: &through_containers!(@rule $($rule)? $($generic)?),
                at: Place<'_>,
            ) -> Result<(), Violation> {
                self.iter()
                    .enumerate()
                    .try_for_each(|(index, value)| value.check(rule, at.item(index)))
            }
        }

        impl<T: $value> $value for Box<T> {
            $(const $constant: i128 = T::$constant;)*

            fn check$(<$generic: $bound>)?(
                &self,
                rule: &through_containers!(@rule $($rule)? $($generic)?),
                at: Place<'_>,
            ) -> Result<(), Violation> {
                (**self).check(rule, at)
            }
        }
    };
    (@rule $rule:ty) => { $rule };
}

through_containers!(TextValue, (), (R: TextRule), ());
through_containers!(
    WholeRangeValue,
    (WholeRange),
    (),
    (LEAST, GREATEST, GREATEST_NUMBER)
);
through_containers!(DoubleRangeValue, (DoubleRange), (), ());
through_containers!(AmountRangeValue, (AmountRange), (), ());

/// Narrows the shape of each value that a rule looks at: inside `Option` and `Vec`, as `check` does.
fn on_values(shape: Shape, narrow: &impl Fn(Shape) -> Shape) -> Shape {
    match shape {
        Shape::Nullable(inner) => Shape::Nullable(Box::new(on_values(*inner, narrow))),
        Shape::Array {
            items,
            min_items,
            max_items,
        } => Shape::Array {
            items: Box::new(on_values(*items, narrow)),
            min_items,
            max_items,
        },
        value => narrow(value),
    }
}

fn narrow_amount(
    min: Option<AmountBound>,
    max: Option<AmountBound>,
    text: bool,
    own_min: Option<AmountBound>,
    own_max: Option<AmountBound>,
) -> Shape {
    // Plain notation, so it can be read; an excluded bound is the narrower of two equal ones.
    let value = |bound: &AmountBound| BigDecimal::from_str(&bound.value).unwrap_or_default();
    Shape::Amount {
        min: min
            .into_iter()
            .chain(own_min)
            .max_by_key(|bound| (value(bound), bound.exclusive)),
        max: max
            .into_iter()
            .chain(own_max)
            .min_by_key(|bound| (value(bound), !bound.exclusive)),
        text,
    }
}

/// Every double that a `range` can name in whole numbers; beyond 2^53 the nearest.
fn as_double(bound: i128) -> f64 {
    bound as f64
}

fn as_counts(min: Option<u32>, max: Option<u32>) -> (usize, usize) {
    let count = |bound: u32| usize::try_from(bound).unwrap_or(usize::MAX);
    (min.map_or(0, count), max.map_or(usize::MAX, count))
}

/// `1 to 40 characters`
fn count_of(min: Option<u32>, max: Option<u32>, noun: &str) -> String {
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    match (min, max) {
        (Some(min), Some(max)) if min == max => format!("exactly {min} {noun}{}", plural(min)),
        (Some(min), Some(max)) => format!("{min} to {max} {noun}s"),
        (Some(min), None) => format!("at least {min} {noun}{}", plural(min)),
        (None, Some(max)) => format!("at most {max} {noun}{}", plural(max)),
        (None, None) => format!("any number of {noun}s"),
    }
}

/// `a value from 1 to 10`; each bound with whether it is excluded itself.
fn between(min: Option<(String, bool)>, max: Option<(String, bool)>) -> String {
    if let (Some((min, false)), Some((max, false))) = (&min, &max) {
        return format!("a value from {min} to {max}");
    }
    let bounds = [
        min.map(|(min, excluded)| {
            format!("{} {min}", if excluded { "more than" } else { "at least" })
        }),
        max.map(|(max, excluded)| {
            format!("{} {max}", if excluded { "less than" } else { "at most" })
        }),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    format!("a value of {}", bounds.join(" and "))
}
