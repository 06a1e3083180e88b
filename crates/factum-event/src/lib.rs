//! The event core of Factum: what an event is, how it is written and read, and what becomes of one
//! that fails. Pure: no IO, no clock, no randomness; times and ids are arguments (EVT-4).
//!
//! A domain crate needs nothing else. Start at [`Event`].
//!
//! - [`Event`], [`Occurred`], [`Envelope`]: an event, with its time, with its id.
//! - [`Snapshot`]: what may stand in an event.
//! - [`EventId`], [`EventType`], [`AggregateId`], [`Amount`], [`Money`], [`Currency`]: its parts.
//! - [`Contract`], [`Shape`]: what it looks like on the wire.
//! - [`Upcast`], [`Downcast`], [`ConversionError`]: versions of one event, living together.
//! - [`Registry`], [`Decoded`], [`Poison`]: from bytes to an event, in three outcomes.
//! - [`HandlerError`], [`Failure`], [`Retry`], [`Outcome`], [`decide`]: the failure policy.
//!
//! The wire form is written down in the project's decisions: it is this crate's own and not serde's.

mod aggregate_id;
mod amount;
mod contract;
mod currency;
mod decode;
mod encode;
mod envelope;
mod event;
mod event_id;
mod event_type;
mod handler_error;
mod json;
mod money;
mod number;
mod outcome;
mod path;
mod poison;
mod read;
mod snapshot;
mod timestamp;
mod trace_context;
mod version;

pub use aggregate_id::{AggregateId, AggregateIdError, ToAggregateId};
pub use amount::{Amount, AmountError, PositiveAmount};
pub use contract::{AmountBound, CodeList, Content, Contract, FieldShape, Shape, Shapes};
pub use currency::{Currency, CurrencyError};
pub use decode::{AnyEnvelope, DecodeLimits, Decoded, Registry, RegistryError, TakenType};
pub use encode::{EncodeError, ObjectWriter, ValueWriter, Written};
pub use envelope::Envelope;
pub use event::{Event, Occurred};
pub use event_id::{EventId, EventIdError, EventIdSource};
pub use event_type::{EventType, EventTypeError};
pub use handler_error::HandlerError;
pub use money::{Money, MoneyError};
pub use outcome::{DeadLetterReason, Failure, Outcome, Retry, decide};
pub use poison::{Poison, PoisonReason, UnknownReason};
pub use read::{JsonValue, ObjectReader};
pub use snapshot::{Snapshot, SnapshotText};
pub use trace_context::{TraceContext, TraceContextError};
pub use version::{ConversionError, Downcast, Upcast, VersionError, VersionVisitor};

/// What the derives name. Not part of the promise.
#[doc(hidden)]
pub mod __private {
    pub use crate::contract::in_envelope;
    pub use crate::version::{Superseded, check_supersedes, superseded, visit_superseded};
    pub use crate::{
        AggregateId, AggregateIdError, Content, Contract, EncodeError, Envelope, Event, FieldShape,
        JsonValue, ObjectReader, ObjectWriter, Poison, Shape, Shapes, Snapshot, SnapshotText,
        ToAggregateId, ValueWriter, VersionVisitor, Written,
    };
}
