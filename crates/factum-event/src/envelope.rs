//! An event with its id and its time.

use std::ops::Deref;

use time::OffsetDateTime;

use crate::aggregate_id::{AggregateId, AggregateIdError};
use crate::decode::DecodeLimits;
use crate::encode::{EncodeError, Output, ValueWriter};
use crate::event::Event;
use crate::event_id::EventId;
use crate::idempotency_key::{IdempotencyKey, StepError};
use crate::timestamp;
use crate::version::VersionVisitor;

/// An event with its id and the time when it happened. It derefs to the event.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{Envelope, Event as _, EventId};
/// use time::macros::datetime;
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled")]
/// struct OrderCancelled {
///     #[event(aggregate_id)]
///     order_id: u32,
///     reason: Option<String>,
/// }
///
/// let envelope = OrderCancelled { order_id: 7, reason: None }
///     .occurred_at(datetime!(2026-06-01 12:00 +3))
///     .with_id(EventId::floor(1_780_000_000_000));
/// assert_eq!(envelope.order_id, 7);
/// assert_eq!(
///     String::from_utf8(envelope.encode()?).unwrap(),
///     concat!(
///         r#"{"eventId":"019e7044-8800-7000-8000-000000000000","eventType":"order.cancelled.v1","#,
///         r#""occurredAt":"2026-06-01T09:00:00Z","aggregateType":"Order","aggregateId":"7","#,
///         r#""orderId":7}"#,
///     ),
/// );
/// # Ok::<(), factum::EncodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope<E> {
    id: EventId,
    occurred_at: OffsetDateTime,
    event: E,
}

impl<E: Event> Envelope<E> {
    /// Wraps an event that happened at `at`; the time is kept in UTC and to the microsecond.
    pub fn new(id: EventId, event: E, at: OffsetDateTime) -> Envelope<E> {
        Envelope {
            id,
            occurred_at: timestamp::normalise(at).unwrap_or(at),
            event,
        }
    }

    /// The id: the same in every version of one fact, and what consumers deduplicate by (IDEM-1).
    pub fn id(&self) -> EventId {
        self.id
    }

    /// When the event happened in the business (EVT-2), in UTC and to the microsecond.
    pub fn occurred_at(&self) -> OffsetDateTime {
        self.occurred_at
    }

    /// The event.
    pub fn event(&self) -> &E {
        &self.event
    }

    /// The key of this event's one call to another system (IDEM-4): the event's id.
    pub fn idempotency_key(&self) -> IdempotencyKey {
        IdempotencyKey::of(self.id)
    }

    /// The key of one of several calls of this event: the event's id and the step's name, `<id>/<step>`.
    ///
    /// # Errors
    ///
    /// [`StepError`] when `step` isn't 1 to 64 of `a-z 0-9 . _ -`.
    pub fn idempotency_key_for_step(&self, step: &str) -> Result<IdempotencyKey, StepError> {
        IdempotencyKey::of_step(self.id, step)
    }

    /// The event, owned.
    pub fn into_event(self) -> E {
        self.event
    }

    /// The id of the aggregate: the key of the Kafka record (PROD-2).
    ///
    /// # Errors
    ///
    /// [`AggregateIdError`] when the id is text and can't be a key. Not for an event that was decoded.
    pub fn aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        self.event.aggregate_id()
    }

    /// The event as it goes over the wire: a flat JSON object in camelCase, the envelope's fields
    /// first (EVT-2, PROD-3). Absent values are left out.
    ///
    /// # Errors
    ///
    /// An [`EncodeError`] that names the path, when a reader would refuse the event or read another
    /// value. What this writes, [`Registry::decode`](crate::Registry::decode) reads back as the same
    /// event.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let limits = DecodeLimits::default();
        let aggregate_id = self.event.aggregate_id()?;
        let mut output = Output::new(limits.max_depth);
        let written = ValueWriter::root(&mut output).object(|object| {
            object.field("eventId", &self.id)?;
            object.borrowed_text("eventType", E::EVENT_TYPE)?;
            object.field("occurredAt", &self.occurred_at)?;
            object.borrowed_text("aggregateType", E::AGGREGATE_TYPE)?;
            object.field("aggregateId", &aggregate_id)?;
            self.event.write_fields(object)
        })?;
        drop(written);
        let bytes = output.into_bytes();
        if bytes.len() > limits.max_bytes {
            return Err(EncodeError::TooLarge {
                bytes: bytes.len(),
                limit: limits.max_bytes,
            });
        }
        Ok(bytes)
    }

    /// Shows every version in which this fact is published to the visitor: first the event as it is, then each
    /// version that it supersedes, with the same id, time and key (listing fault 7). An event that supersedes
    /// nothing has one.
    ///
    /// # Errors
    ///
    /// A [`VersionError`](crate::VersionError) when an older version can't be made; else the visitor's own.
    pub fn visit_versions<V: VersionVisitor>(&self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.version(self)?;
        E::visit_superseded(self, visitor)
    }
}

impl<E> Deref for Envelope<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.event
    }
}
