//! What may stand in an event: plain values, and structures of them.

use std::collections::BTreeMap;
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64,
};

use time::{Date, OffsetDateTime};
use uuid::Uuid;

use crate::contract::{Content, Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::number::{Decimal, MAX_SAFE_INTEGER};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::timestamp;

/// A value that an event may carry: it is written as JSON and read back without loss.
///
/// Implemented for `bool`, the integers of up to 64 bits, `f64`, [`String`], [`Uuid`],
/// [`OffsetDateTime`] (an instant: written in UTC, to the microsecond), [`Date`], the amounts and
/// ids of this crate, and `Option`, `Vec`, `Box`, [`Personal`](crate::Personal) and `BTreeMap<String, _>` of those. A
/// structure, or an enum of named values, gets it by `derive(Snapshot)`. An entity of a database mapper never has it
/// (EVT-X2): an event carries a
/// snapshot of what it tells, so that a later change of the entity can't change the past.
///
/// Write an implementation by hand for a value with a form of its own:
///
/// ```
/// use factum_event::{EncodeError, JsonValue, Poison, Shape, Shapes, Snapshot, ValueWriter, Written};
///
/// /// Five digits.
/// #[derive(Debug, PartialEq)]
/// struct PostalCode(String);
///
/// impl Snapshot for PostalCode {
///     const EXPECTED: &'static str = "a postal code of five digits";
///
///     fn shape(_: &mut Shapes) -> Shape {
///         Shape::Text { min_chars: None, max_chars: None, pattern: Some("[0-9]{5}".to_owned()) }
///     }
///
///     fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
///         out.text(&self.0)
///     }
///
///     fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
///         let text = from.text(Self::EXPECTED)?;
///         if text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()) {
///             Ok(PostalCode(text.to_owned()))
///         } else {
///             Err(from.invalid(Self::EXPECTED))
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't stand in an event",
    label = "not a value that an event may carry",
    note = "an event carries snapshots, never entities, aggregates or rows (EVT-X2): those change, and what was published must not. Give the values that tell the fact, or copy them into a struct or an enum with `#[derive(Snapshot)]`",
    note = "values that an event may carry: bool, String, integers up to 64 bits, Amount, Money, Currency, Uuid, OffsetDateTime, Date, f64 with a reason, Personal<_>, structs of those, structs around one of those (newtypes) and enums of names with `#[derive(Snapshot)]`, and Option, Vec, Box, BTreeMap<String, _> of those"
)]
pub trait Snapshot: Sized + 'static {
    /// What a reader expects, as a noun: it completes "expected …" in a fault.
    const EXPECTED: &'static str;

    /// What an event that carries it must declare.
    ///
    /// The derive gathers it from the fields' types. Two snapshots that hold each other in turn, `A` a `Vec<B>` and `B` a
    /// `Vec<A>`, would wait for each other's here, and the compiler says so (a cycle, E0391): write the implementation
    /// of one of them by hand, and give its content as it is. One that holds itself is no such case.
    const CONTENT: Content = Content::PLAIN;

    /// The form on the wire, for the contract.
    fn shape(shapes: &mut Shapes) -> Shape;

    /// Writes the value.
    ///
    /// # Errors
    ///
    /// An [`EncodeError`] when JSON can't hold the value, or when another language would read
    /// another value.
    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError>;

    /// Reads the value.
    ///
    /// # Errors
    ///
    /// A [`Poison`] that names path and expectation when it doesn't fit.
    fn read(from: &JsonValue<'_>) -> Result<Self, Poison>;

    /// Whether the field is left out when writing. Only `None` is.
    fn is_absent(&self) -> bool {
        false
    }

    /// What an absent field is read as: `Some(None)` for an `Option`, and `None` (so a fault) for
    /// everything else.
    fn absent() -> Option<Self> {
        None
    }
}

/// A value that can also be written as text, where a JSON number would lose digits in another
/// language: `#[event(text)]` on a field declares it.
///
/// Reading accepts text and number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be declared as text",
    label = "remove `text` from the attribute",
    note = "`text` is for integers, Amount and Money, and Option and Vec of them; for a struct around one of them, write `#[snapshot(text)]` on its own field"
)]
pub trait SnapshotText: Snapshot {
    /// The form on the wire when it is declared as text.
    fn text_shape(shapes: &mut Shapes) -> Shape;

    /// Writes the value as text.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::write`].
    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError>;

    /// Reads the value from text or from a number.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::read`].
    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison>;
}

impl Snapshot for bool {
    const EXPECTED: &'static str = "true or false";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Boolean
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        Ok(out.boolean(*self))
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.boolean()
    }
}

/// Integers: a JSON number within ±(2^53 - 1), text without that limit.
macro_rules! integer_snapshot {
    ($($integer:ty, $expected:literal, $expected_as_text:literal;)*) => { $(
        impl Snapshot for $integer {
            const EXPECTED: &'static str = $expected;
            const CONTENT: Content = Content {
                large_integer: <$integer>::MAX as u128 > MAX_SAFE_INTEGER as u128,
                ..Content::PLAIN
            };

            fn shape(_: &mut Shapes) -> Shape {
                Shape::integer(i128::from(<$integer>::MIN), i128::from(<$integer>::MAX))
            }

            fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
                out.integer(i128::from(*self))
            }

            fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
                let value = from.integer(Self::EXPECTED)?;
                if value.unsigned_abs() > MAX_SAFE_INTEGER as u128 {
                    return Err(from.invalid(Self::EXPECTED));
                }
                <$integer>::try_from(value).map_err(|_| from.invalid(Self::EXPECTED))
            }
        }

        impl SnapshotText for $integer {
            fn text_shape(_: &mut Shapes) -> Shape {
                Shape::Integer {
                    min: i128::from(<$integer>::MIN),
                    max: i128::from(<$integer>::MAX),
                    not_zero: false,
                    text: true,
                }
            }

            fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
                out.text(&self.to_string())
            }

            fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
                const EXPECTED: &str = $expected_as_text;
                Decimal::parse(from.text_or_number(EXPECTED)?)
                    .ok()
                    .and_then(Decimal::to_integer)
                    .and_then(|value| <$integer>::try_from(value).ok())
                    .ok_or_else(|| from.invalid(EXPECTED))
            }
        }
    )* };
}

integer_snapshot! {
    u8, "an integer from 0 to 255", "an integer from 0 to 255, as text";
    u16, "an integer from 0 to 65535", "an integer from 0 to 65535, as text";
    u32, "an integer from 0 to 4294967295", "an integer from 0 to 4294967295, as text";
    u64, "an integer from 0 to 9007199254740991", "an integer from 0 to 18446744073709551615, as text";
    i8, "an integer from -128 to 127", "an integer from -128 to 127, as text";
    i16, "an integer from -32768 to 32767", "an integer from -32768 to 32767, as text";
    i32, "an integer from -2147483648 to 2147483647", "an integer from -2147483648 to 2147483647, as text";
    i64, "an integer from -9007199254740991 to 9007199254740991", "an integer of 64 bits, as text";
}

macro_rules! non_zero_snapshot {
    ($($non_zero:ty, $integer:ty, $expected:literal;)*) => { $(
        impl Snapshot for $non_zero {
            const EXPECTED: &'static str = $expected;
            const CONTENT: Content = <$integer>::CONTENT;

            fn shape(shapes: &mut Shapes) -> Shape {
                other_than_zero(<$integer>::shape(shapes))
            }

            fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
                self.get().write(out)
            }

            fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
                <$integer>::read(from)
                    .ok()
                    .and_then(<$non_zero>::new)
                    .ok_or_else(|| from.invalid(Self::EXPECTED))
            }
        }

        impl SnapshotText for $non_zero {
            fn text_shape(shapes: &mut Shapes) -> Shape {
                other_than_zero(<$integer>::text_shape(shapes))
            }

            fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
                self.get().write_text(out)
            }

            fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
                <$non_zero>::new(<$integer>::read_text(from)?)
                    .ok_or_else(|| from.invalid("an integer other than 0, as text"))
            }
        }
    )* };
}

fn other_than_zero(shape: Shape) -> Shape {
    match shape {
        Shape::Integer { min, max, text, .. } => Shape::Integer {
            min: if min == 0 { 1 } else { min },
            max,
            not_zero: min < 0,
            text,
        },
        other => other,
    }
}

non_zero_snapshot! {
    NonZeroU8, u8, "an integer from 1 to 255";
    NonZeroU16, u16, "an integer from 1 to 65535";
    NonZeroU32, u32, "an integer from 1 to 4294967295";
    NonZeroU64, u64, "an integer from 1 to 9007199254740991";
    NonZeroI8, i8, "an integer from -128 to 127 other than 0";
    NonZeroI16, i16, "an integer from -32768 to 32767 other than 0";
    NonZeroI32, i32, "an integer from -2147483648 to 2147483647 other than 0";
    NonZeroI64, i64, "an integer from -9007199254740991 to 9007199254740991 other than 0";
}

impl Snapshot for f64 {
    const EXPECTED: &'static str = "a number that a double can hold";
    const CONTENT: Content = Content {
        float: true,
        ..Content::PLAIN
    };

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Double {
            min: None,
            max: None,
        }
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.float(*self)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        // JSON's grammar is a subset of what `f64` parses; 1e400 would become infinity.
        match from.number(Self::EXPECTED)?.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(from.invalid(Self::EXPECTED)),
        }
    }
}

impl Snapshot for String {
    const EXPECTED: &'static str = "text";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::TEXT
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(self)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text(Self::EXPECTED).map(str::to_owned)
    }
}

impl Snapshot for Uuid {
    const EXPECTED: &'static str = "a UUID in its hyphenated form";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Uuid
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(self.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        parse_hyphenated(from.text(Self::EXPECTED)?).ok_or_else(|| from.invalid(Self::EXPECTED))
    }
}

/// `uuid` parses braces, URNs and the form without hyphens too; one form is enough on a wire.
pub(crate) fn parse_hyphenated(text: &str) -> Option<Uuid> {
    if text.len() == uuid::fmt::Hyphenated::LENGTH {
        Uuid::try_parse(text).ok()
    } else {
        None
    }
}

impl Snapshot for OffsetDateTime {
    const EXPECTED: &'static str = "an RFC 3339 time, such as \"2026-06-01T12:00:00Z\"";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Instant
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        match timestamp::format(*self) {
            Some(text) => out.text(&text),
            None => Err(EncodeError::TimeOutOfRange { path: out.path() }),
        }
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        timestamp::parse(from.text(Self::EXPECTED)?).ok_or_else(|| from.invalid(Self::EXPECTED))
    }
}

impl Snapshot for Date {
    const EXPECTED: &'static str = "a date, such as \"2026-06-01\"";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Date
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        match timestamp::format_date(*self) {
            Some(text) => out.text(&text),
            None => Err(EncodeError::TimeOutOfRange { path: out.path() }),
        }
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        let text = from.text(Self::EXPECTED)?;
        timestamp::parse_date(text.as_bytes()).ok_or_else(|| from.invalid(Self::EXPECTED))
    }
}

fn nullable(shape: Shape) -> Shape {
    match shape {
        Shape::Nullable(_) => shape,
        shape => Shape::Nullable(Box::new(shape)),
    }
}

/// Absent when `None`; reading takes `null` for `None` too, because other writers send it.
impl<T: Snapshot> Snapshot for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const CONTENT: Content = T::CONTENT;

    fn shape(shapes: &mut Shapes) -> Shape {
        nullable(T::shape(shapes))
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        match self {
            Some(value) => value.write(out),
            // Only inside an array or map, where nothing can be left out.
            None => Ok(out.null()),
        }
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        if from.is_null() {
            Ok(None)
        } else {
            T::read(from).map(Some)
        }
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: SnapshotText> SnapshotText for Option<T> {
    fn text_shape(shapes: &mut Shapes) -> Shape {
        nullable(T::text_shape(shapes))
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        match self {
            Some(value) => value.write_text(out),
            None => Ok(out.null()),
        }
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        if from.is_null() {
            Ok(None)
        } else {
            T::read_text(from).map(Some)
        }
    }
}

fn list(items: Shape) -> Shape {
    Shape::Array {
        items: Box::new(items),
        min_items: None,
        max_items: None,
    }
}

impl<T: Snapshot> Snapshot for Vec<T> {
    const EXPECTED: &'static str = "an array";
    const CONTENT: Content = T::CONTENT;

    fn shape(shapes: &mut Shapes) -> Shape {
        list(T::shape(shapes))
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.array(self)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.items(Self::EXPECTED, T::read)
    }
}

impl<T: SnapshotText> SnapshotText for Vec<T> {
    fn text_shape(shapes: &mut Shapes) -> Shape {
        list(T::text_shape(shapes))
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text_array(self)
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.items(Self::EXPECTED, T::read_text)
    }
}

impl<T: Snapshot> Snapshot for Box<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const CONTENT: Content = T::CONTENT;

    fn shape(shapes: &mut Shapes) -> Shape {
        T::shape(shapes)
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        (**self).write(out)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        T::read(from).map(Box::new)
    }

    fn is_absent(&self) -> bool {
        (**self).is_absent()
    }

    fn absent() -> Option<Self> {
        T::absent().map(Box::new)
    }
}

/// An object whose keys are data. `None` is written as `null` here, so that its key is kept.
impl<T: Snapshot> Snapshot for BTreeMap<String, T> {
    const EXPECTED: &'static str = "an object";
    const CONTENT: Content = T::CONTENT;

    fn shape(shapes: &mut Shapes) -> Shape {
        Shape::Map {
            values: Box::new(T::shape(shapes)),
        }
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.object(|object| {
            for (key, value) in self {
                object.entry(key, value)?;
            }
            Ok(())
        })
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        let entries = from
            .object(Self::EXPECTED)?
            .entries(|key, value| Ok((key.to_owned(), T::read(value)?)))?;
        Ok(entries.into_iter().collect())
    }
}
