//! The event core of Factum: what an event is, how it is written and read, and what becomes of one
//! that fails. Pure: no IO, no clock, no randomness; times and ids are arguments (EVT-4).
//!
//! A domain crate needs nothing else. Start at [`Event`].
//!
//! - [`Event`], [`Occurred`], [`Envelope`]: an event, with its time, with its id.
//! - [`Snapshot`]: what may stand in an event; [`Personal`]: what tells something of a person.
//! - [`EventId`], [`EventType`], [`AggregateId`], [`Amount`], [`Money`], [`Currency`]: its parts.
//! - [`Invalid`]: what a cross-field check says.
//! - [`Contract`], [`Shape`]: what it looks like on the wire.
//! - [`Upcast`], [`Downcast`], [`ConversionError`]: versions of one event, living together.
//! - [`Registry`], [`Decoded`], [`Poison`]: from bytes to an event, in three outcomes.
//! - [`HandlerError`], [`Failure`], [`Retry`], [`Outcome`], [`decide`]: the failure policy.
//!
//! The wire form is written down in the project's decisions: it is this crate's own and not serde's.

mod aggregate_id;
mod amount;
mod code_list;
mod constraint;
mod contract;
mod currency;
mod decode;
mod encode;
mod envelope;
mod event;
mod event_id;
mod event_type;
mod handler_error;
mod idempotency_key;
mod invalid;
mod json;
mod money;
mod number;
mod outcome;
mod path;
mod personal;
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
pub use idempotency_key::{IdempotencyKey, StepError};
pub use invalid::Invalid;
pub use money::{Money, MoneyError};
pub use outcome::{DeadLetterReason, Failure, OnExhausted, Outcome, Retry, RetryStrategy, decide};
pub use personal::Personal;
pub use poison::{Poison, PoisonReason, UnknownReason};
pub use read::{JsonValue, ObjectReader};
pub use snapshot::{Snapshot, SnapshotText};
pub use trace_context::{TraceContext, TraceContextError};
pub use version::{ConversionError, Downcast, Upcast, VersionError, VersionVisitor};

/// What the derives name. Not part of the promise.
#[doc(hidden)]
pub mod __private {
    pub use crate::constraint::{
        AmountRange, AmountRangeValue, Code, DoubleRange, DoubleRangeValue, Items, Length,
        ListValue, Pattern, TextRule, TextValue, WholeRange, WholeRangeValue,
    };
    pub use crate::contract::in_envelope;
    pub use crate::decode::read_record;
    pub use crate::idempotency_key::idempotency_key;
    pub use crate::invalid::{check_read, check_written};
    pub use crate::personal::{
        as_text, concatenate, first_personal, length_of, personal_at, personal_place,
    };
    pub use crate::version::{Superseded, check_supersedes, superseded, visit_superseded};
    pub use crate::{
        AggregateId, AggregateIdError, CodeList, Content, Contract, EncodeError, Envelope, Event,
        FieldShape, Invalid, JsonValue, ObjectReader, ObjectWriter, Poison, Shape, Shapes,
        Snapshot, SnapshotText, ToAggregateId, ValueWriter, VersionVisitor, Written,
    };
}
