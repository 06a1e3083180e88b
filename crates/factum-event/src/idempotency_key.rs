//! The key that tells another system which calls are one call.

use std::fmt;

use crate::event_id::EventId;

/// Longest name of a step, in bytes.
const STEP_MAX_BYTES: usize = 64;

/// The `Idempotency-Key` of a call to another system (IDEM-4): an event's id, or the id and the name of a step.
///
/// Only an event makes one, through [`Envelope::idempotency_key`](crate::Envelope::idempotency_key) and
/// [`idempotency_key_for_step`](crate::Envelope::idempotency_key_for_step). So a handler that runs twice sends the
/// same key twice. Different events or steps never share a key: an id has 36 characters, and what follows is the step.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// # use factum::{Event as _, EventId};
/// # use time::macros::datetime;
/// # #[derive(Debug, Event)]
/// # #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
/// # struct OrderConfirmed { #[event(aggregate_id)] order_id: u32 }
/// # let event = OrderConfirmed { order_id: 7 }
/// #     .occurred_at(datetime!(2026-06-01 12:00 +3))
/// #     .with_id(EventId::floor(1_780_000_000_000));
/// assert_eq!(event.idempotency_key().as_str(), "019e7044-8800-7000-8000-000000000000");
/// assert_eq!(
///     event.idempotency_key_for_step("capture")?.as_str(),
///     "019e7044-8800-7000-8000-000000000000/capture",
/// );
/// # Ok::<(), factum::StepError>(())
/// ```
///
/// No text is a key:
///
/// ```compile_fail,E0423
/// let key = factum_event::IdempotencyKey("a key of my own".to_owned());
/// ```
///
/// ```compile_fail,E0277
/// let key: factum_event::IdempotencyKey = "a key of my own".to_owned().into();
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn of(id: EventId) -> IdempotencyKey {
        IdempotencyKey(id.to_string())
    }

    pub(crate) fn of_step(id: EventId, step: &str) -> Result<IdempotencyKey, StepError> {
        let is_name = (1..=STEP_MAX_BYTES).contains(&step.len())
            && step.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)
            });
        if is_name {
            Ok(IdempotencyKey(format!("{id}/{step}")))
        } else {
            Err(StepError)
        }
    }

    /// As it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As the IETF's draft writes it, which is a structured field's string: in quotation marks.
    pub fn quoted(&self) -> String {
        // It holds neither a quotation mark nor a backslash.
        format!("\"{}\"", self.0)
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of an event that is known by its id: what the runtime writes for `tx.call`.
#[doc(hidden)]
pub fn idempotency_key(id: EventId, step: Option<&str>) -> Result<IdempotencyKey, StepError> {
    match step {
        None => Ok(IdempotencyKey::of(id)),
        Some(step) => IdempotencyKey::of_step(id, step),
    }
}

/// The name of a step can't be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a step's name is 1 to 64 of a-z 0-9 . _ -, such as \"capture\"; write it so")]
pub struct StepError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_event_s_id_or_the_id_and_the_step() {
        let id = EventId::floor(1_780_000_000_000);
        let key = IdempotencyKey::of(id);
        assert_eq!(key.as_str(), id.to_string());
        assert_eq!(key.quoted(), format!("\"{id}\""));
        let step = IdempotencyKey::of_step(id, "capture").unwrap();
        assert_eq!(step.as_str(), format!("{id}/capture"));
        for bad in ["", "A", "a/b", "a b", "\"", "ä", &"a".repeat(65)] {
            assert_eq!(IdempotencyKey::of_step(id, bad), Err(StepError), "{bad:?}");
        }
    }
}
