//! What an event is: a plain type in the domain (EVT-4).

use time::OffsetDateTime;

use crate::aggregate_id::{AggregateId, AggregateIdError};
use crate::contract::Contract;
use crate::encode::{EncodeError, ObjectWriter};
use crate::envelope::Envelope;
use crate::event_id::EventId;
use crate::poison::Poison;
use crate::read::ObjectReader;
use crate::timestamp;
use crate::version::{Superseded, VersionVisitor};

/// A fact of the domain, as an immutable plain type (EVT-4). Made by `#[derive(Event)]`.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{Currency, Event as _, Money};
/// use time::macros::datetime;
/// use uuid::Uuid;
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
/// struct OrderConfirmed {
///     #[event(aggregate_id)]
///     order_id: Uuid,
///     total: Money,
/// }
///
/// let confirmed = OrderConfirmed {
///     order_id: Uuid::from_u128(7),
///     total: Money::from_minor(1050, Currency::EUR),
/// };
/// assert_eq!(confirmed.aggregate_id().unwrap().as_str(), "00000000-0000-0000-0000-000000000007");
/// // What `outbox.publish` and `tx.publish` take:
/// let occurred = confirmed.occurred_at(datetime!(2026-06-01 12:00 UTC));
/// # assert_eq!(occurred.event().total.currency(), Currency::EUR);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "not an event",
    note = "declare it with `#[derive(Event)]` and `#[event(kind = \"…\", aggregate = \"…\", topic = \"…\")]`"
)]
pub trait Event: Sized + Send + Sync + 'static {
    /// The type on the wire: `<aggregate>.<event>.v<N>` (EVT-2), see [`EventType`](crate::EventType).
    const EVENT_TYPE: &'static str;
    /// The type of the aggregate that the event tells of, such as `Order` (EVT-2).
    const AGGREGATE_TYPE: &'static str;
    /// The Kafka topic that carries the event (OBX-3).
    const TOPIC: &'static str;

    /// What the event looks like on the wire: the source of its lock file and of every export (EVT-3).
    fn contract() -> Contract;

    /// The id of the aggregate: the key of the Kafka record (PROD-2).
    ///
    /// # Errors
    ///
    /// [`AggregateIdError`] when the id is text and can't be a key.
    fn aggregate_id(&self) -> Result<AggregateId, AggregateIdError>;

    /// Writes the business fields, without those of the envelope.
    ///
    /// # Errors
    ///
    /// An [`EncodeError`] when a field can't be written.
    fn write_fields(&self, out: &mut ObjectWriter<'_>) -> Result<(), EncodeError>;

    /// Reads the business fields.
    ///
    /// # Errors
    ///
    /// A [`Poison`] when a field is missing or doesn't fit.
    fn read_fields(from: &ObjectReader<'_>) -> Result<Self, Poison>;

    /// Shows the versions that this type supersedes to the visitor, the newest first. Written by the derive for
    /// `supersedes = …`; [`Envelope::visit_versions`] calls it.
    ///
    /// # Errors
    ///
    /// A version can't be made, or the visitor's own.
    #[doc(hidden)]
    fn visit_superseded<V: VersionVisitor>(
        envelope: &Envelope<Self>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let _ = (envelope, visitor);
        Ok(())
    }

    /// The older versions that a reader of this type takes, too, the newest first. Written by the derive for
    /// `supersedes = …`.
    #[doc(hidden)]
    fn superseded() -> Vec<Superseded<Self>> {
        Vec::new()
    }

    /// Says when the event happened in the business: an argument, never the clock (EVT-2).
    ///
    /// The time is kept in UTC and to the microsecond, as PostgreSQL keeps it; what is finer is cut
    /// off. It must lie in the years 1 to 9999; publishing checks that.
    fn occurred_at(self, at: OffsetDateTime) -> Occurred<Self> {
        Occurred {
            event: self,
            occurred_at: timestamp::normalise(at).unwrap_or(at),
        }
    }
}

/// An event that happened at a time, and that has no id yet. Publishing gives it one.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an event is published by `outbox.publish` or `tx.publish`"]
pub struct Occurred<E> {
    event: E,
    occurred_at: OffsetDateTime,
}

impl<E: Event> Occurred<E> {
    /// The event.
    pub fn event(&self) -> &E {
        &self.event
    }

    /// When it happened, in UTC and to the microsecond.
    pub fn occurred_at(&self) -> OffsetDateTime {
        self.occurred_at
    }

    /// Gives it an id: for a caller that must know the id beforehand. Publishing does it otherwise.
    pub fn with_id(self, id: EventId) -> Envelope<E> {
        Envelope::new(id, self.event, self.occurred_at)
    }
}
