//! What a `validate` function says about an event whose fields don't go together.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::constraint::{Place, Violation, rule};

/// The answer of a `validate` function: which field is wrong, and what was expected there.
///
/// The function is named by `#[event(validate = path::to::function)]` or
/// `#[snapshot(validate = …)]`. It sees a value whose fields have kept their own constraints, where
/// an event is read, and where it is published, before anything is written to the database. An event
/// that it refuses is poison for a reader ([`Poison::rule`](crate::Poison::rule) is `validate`), and an
/// [`EncodeError::Invalid`](crate::EncodeError::Invalid) for a publisher.
///
/// Neither text may quote a value: both go into dead letters and logs, and a value may be personal
/// data (public case 58). The function is pure: it looks at nothing but its argument, since the same
/// event must always get the same answer. A function that panics makes the event poison.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{EncodeError, Event as _, EventId, Invalid};
/// use time::{Date, OffsetDateTime, macros::date};
///
/// #[derive(Debug, Event)]
/// #[event(kind = "room.booked.v1", aggregate = "Room", topic = "rooms.booked", unlocked)]
/// #[event(validate = leaves_after_arrival)]
/// struct RoomBooked {
///     #[event(aggregate_id)]
///     room: u32,
///     arrival: Date,
///     departure: Date,
/// }
///
/// fn leaves_after_arrival(booked: &RoomBooked) -> Result<(), Invalid> {
///     if booked.departure > booked.arrival {
///         Ok(())
///     } else {
///         Err(Invalid::new("departure", "a day after `arrival`"))
///     }
/// }
///
/// let day = date!(2026 - 06 - 01);
/// let error = RoomBooked { room: 7, arrival: day, departure: day }
///     .occurred_at(OffsetDateTime::UNIX_EPOCH)
///     .with_id(EventId::floor(0))
///     .encode()
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "$.departure breaks the rule `validate`: expected a day after `arrival`; mend the value before publishing",
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}")]
pub struct Invalid {
    field: Cow<'static, str>,
    expected: Cow<'static, str>,
}

impl Invalid {
    /// `field` is the path on the wire from the struct on, such as `items` or `items[3].unitPrice`;
    /// empty for the struct as a whole. `expected` is a noun that completes "expected …".
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Invalid {
        Invalid {
            field: field.into(),
            expected: expected.into(),
        }
    }

    /// The path on the wire, from the struct on.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What was expected there.
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

/// Calls a `validate` function for a value that is to be published.
///
/// # Errors
///
/// What it says.
pub fn check_written<T>(
    value: &T,
    validate: fn(&T) -> Result<(), Invalid>,
    at: Place<'_>,
) -> Result<(), Violation> {
    validate(value).map_err(|Invalid { field, expected }| Violation {
        path: at.0.render_with(&field),
        rule: rule::VALIDATE,
        expected,
    })
}

/// Calls a `validate` function for a value that was read. Decoding never panics, so neither does this.
///
/// # Errors
///
/// What it says, or that it panicked.
pub fn check_read<T>(
    value: &T,
    validate: fn(&T) -> Result<(), Invalid>,
    at: Place<'_>,
) -> Result<(), Violation> {
    // The value is given up after a panic.
    catch_unwind(AssertUnwindSafe(|| check_written(value, validate, at))).unwrap_or_else(|_| {
        Err(Violation {
            path: at.0.render(),
            rule: rule::VALIDATE,
            expected: "a value that its `validate` function can judge: it panicked, mend it".into(),
        })
    })
}
