//! Versions of one fact, living together: how an event is also written as the versions that it supersedes, and
//! read from them (EVT-3, listing fault 7).

use std::any::TypeId;
use std::borrow::Cow;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::aggregate_id::AggregateId;
use crate::decode::{DecodeLimits, foreign_key};
use crate::encode::{EncodeError, Output, ValueWriter};
use crate::envelope::Envelope;
use crate::event::Event;
use crate::poison::{Poison, PoisonReason};
use crate::read::ObjectReader;

/// Why an event can't be made from another version of itself.
///
/// It holds no text but the program's own, so that no value of a payload gets into a log or a dead letter (public
/// case 58). It is the error of a `TryFrom` between two versions; an error type of your own serves as well when it
/// is `Into<ConversionError>`.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::ConversionError;
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
/// struct OrderConfirmedV1 {
///     #[event(aggregate_id)]
///     order_id: u32,
///     cents: u32,
/// }
///
/// /// Amounts beyond what v1 holds.
/// #[derive(Debug, Event)]
/// #[event(
///     kind = "order.confirmed.v2", aggregate = "Order", topic = "orders.confirmed", unlocked,
///     supersedes = OrderConfirmedV1
/// )]
/// struct OrderConfirmed {
///     #[event(aggregate_id)]
///     order_id: u32,
///     #[event(text)]
///     cents: u64,
/// }
///
/// // Up: a consumer of v2 takes v1, too.
/// impl From<OrderConfirmedV1> for OrderConfirmed {
///     fn from(v1: OrderConfirmedV1) -> Self {
///         OrderConfirmed { order_id: v1.order_id, cents: v1.cents.into() }
///     }
/// }
///
/// // Down: publishing v2 writes v1, too.
/// impl TryFrom<&OrderConfirmed> for OrderConfirmedV1 {
///     type Error = ConversionError;
///
///     fn try_from(v2: &OrderConfirmed) -> Result<Self, ConversionError> {
///         let cents = v2.cents.try_into();
///         Ok(OrderConfirmedV1 {
///             order_id: v2.order_id,
///             cents: cents.map_err(|_| ConversionError::new("cents", "at most 4294967295"))?,
///         })
///     }
/// }
///
/// let error = OrderConfirmedV1::try_from(&OrderConfirmed { order_id: 7, cents: 1 << 40 });
/// assert_eq!(error.unwrap_err().to_string(), "`cents` has no counterpart: expected at most 4294967295");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` has no counterpart: expected {expected}")]
pub struct ConversionError {
    field: &'static str,
    expected: &'static str,
}

impl ConversionError {
    /// `field` is the field of the version that is converted, as it is called on the wire; `expected` is what the
    /// other version needs there, as a noun, such as `"at most 4294967295"`.
    pub const fn new(field: &'static str, expected: &'static str) -> ConversionError {
        ConversionError { field, expected }
    }

    /// The field that has no counterpart in the other version.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What the other version needs there.
    pub fn expected(&self) -> &'static str {
        self.expected
    }
}

/// `From` can't fail, so its error never comes to be.
impl From<Infallible> for ConversionError {
    fn from(never: Infallible) -> ConversionError {
        match never {}
    }
}

/// What an event does that supersedes `Older`: it is made from it, so that a consumer of the new version takes the
/// old one, too. Every `From<Older>`, and every `TryFrom<Older>` whose error is `Into<`[`ConversionError`]`>`,
/// is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` supersedes `{Older}`, and can't be made from it",
    label = "no conversion from this version up to `{Self}`",
    note = "write `impl From<{Older}> for {Self}`, or, where it can fail, `impl TryFrom<{Older}> for {Self}` with `type Error = factum::ConversionError`: a consumer of the new version also takes the old one (EVT-3)"
)]
pub trait Upcast<Older>: Sized {
    /// The newer version.
    ///
    /// # Errors
    /// The old version lacks what the new one needs.
    fn upcast(older: Older) -> Result<Self, ConversionError>;
}

#[diagnostic::do_not_recommend]
impl<Newer, Older> Upcast<Older> for Newer
where
    Newer: TryFrom<Older>,
    <Newer as TryFrom<Older>>::Error: Into<ConversionError>,
{
    fn upcast(older: Older) -> Result<Self, ConversionError> {
        Newer::try_from(older).map_err(Into::into)
    }
}

/// What the older one of two versions does: it is made from the newer one, so that publishing the new version also
/// writes the old one. Every `From<&Newer>`, and every `TryFrom<&Newer>` whose error is
/// `Into<`[`ConversionError`]`>`, is one.
#[diagnostic::on_unimplemented(
    message = "`{Newer}` supersedes `{Self}`, and can't be made into it",
    label = "no conversion from `{Newer}` down to this version",
    note = "write `impl From<&{Newer}> for {Self}`, or, where it can fail, `impl TryFrom<&{Newer}> for {Self}` with `type Error = factum::ConversionError`: publishing the new version also writes the old one (EVT-3)"
)]
pub trait Downcast<Newer>: Sized {
    /// The older version.
    ///
    /// # Errors
    /// The old version has no place for what the new one says.
    fn downcast(newer: &Newer) -> Result<Self, ConversionError>;
}

#[diagnostic::do_not_recommend]
impl<Older, Newer> Downcast<Newer> for Older
where
    Older: for<'a> TryFrom<&'a Newer>,
    for<'a> <Older as TryFrom<&'a Newer>>::Error: Into<ConversionError>,
{
    fn downcast(newer: &Newer) -> Result<Self, ConversionError> {
        Older::try_from(newer).map_err(Into::into)
    }
}

/// Why an event can't be written as a version that it supersedes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// The conversion refused.
    #[error(
        "{event_type} can't be written as {older}, which it supersedes: {error}; mend the event or the conversion"
    )]
    Conversion {
        /// The type that is published.
        event_type: &'static str,
        /// The version that can't be made.
        older: &'static str,
        /// The field, and what was expected there.
        #[source]
        error: ConversionError,
    },
    /// The two versions name different aggregates, so that they would have different keys.
    #[error(
        "{event_type} and {older}, which it supersedes, name different aggregates: let the conversion keep the \
         aggregate id (PROD-2)"
    )]
    OtherAggregate {
        /// The type that is published.
        event_type: &'static str,
        /// The version with the other aggregate id.
        older: &'static str,
    },
}

/// Is shown every version in which an event is published, see [`Envelope::visit_versions`].
pub trait VersionVisitor {
    /// What it may fail with.
    type Error: From<VersionError>;

    /// One version; the newest comes first.
    ///
    /// # Errors
    /// What it says ends the visit.
    fn version<E: Event>(&mut self, envelope: &Envelope<E>) -> Result<(), Self::Error>;
}

/// Shows the versions before `envelope`'s to the visitor. What the derive calls.
#[doc(hidden)]
pub fn visit_superseded<E, Older, V>(
    envelope: &Envelope<E>,
    visitor: &mut V,
) -> Result<(), V::Error>
where
    E: Event,
    Older: Event + Downcast<E>,
    V: VersionVisitor,
{
    let (event_type, older) = (E::EVENT_TYPE, Older::EVENT_TYPE);
    let event = Older::downcast(envelope.event()).map_err(|error| VersionError::Conversion {
        event_type,
        older,
        error,
    })?;
    // One fact: the same id and the same time.
    let converted = Envelope::new(envelope.id(), event, envelope.occurred_at());
    if let (Ok(one), Ok(other)) = (envelope.aggregate_id(), converted.aggregate_id())
        && one != other
    {
        return Err(VersionError::OtherAggregate { event_type, older }.into());
    }
    visitor.version(&converted)?;
    Older::visit_superseded(&converted, visitor)
}

/// How an `E` is made of an older version on the wire.
#[doc(hidden)]
pub struct Superseded<E> {
    pub(crate) event_type: &'static str,
    pub(crate) aggregate_type: &'static str,
    pub(crate) topic: &'static str,
    pub(crate) rust_type: TypeId,
    pub(crate) read: Arc<ReadAs<E>>,
}

/// Reads an event with its aggregate id, which is the given one: that of the envelope.
pub(crate) type ReadAs<E> =
    dyn Fn(&ObjectReader<'_>, &str) -> Result<(E, AggregateId), Poison> + Send + Sync;

/// What `E` takes of `Older` and of everything that `Older` supersedes, the newest first. What the derive calls.
#[doc(hidden)]
pub fn superseded<E, Older>() -> Vec<Superseded<E>>
where
    E: Event + Upcast<Older>,
    Older: Event,
{
    let direct = Superseded {
        event_type: Older::EVENT_TYPE,
        aggregate_type: Older::AGGREGATE_TYPE,
        topic: Older::TOPIC,
        rust_type: TypeId::of::<Older>(),
        read: Arc::new(|object: &ObjectReader<'_>, id: &str| {
            upcast::<Older, E>(read_as(object, id)?.0, id)
        }) as _,
    };
    let further = Older::superseded().into_iter().map(|oldest| {
        let read = oldest.read;
        Superseded {
            event_type: oldest.event_type,
            aggregate_type: oldest.aggregate_type,
            topic: oldest.topic,
            rust_type: oldest.rust_type,
            read: Arc::new(move |object: &ObjectReader<'_>, id: &str| {
                upcast::<Older, E>(read(object, id)?.0, id)
            }) as _,
        }
    });
    std::iter::once(direct).chain(further).collect()
}

/// Reads an event from a record of its own type.
pub(crate) fn read_as<E: Event>(
    object: &ObjectReader<'_>,
    aggregate_id: &str,
) -> Result<(E, AggregateId), Poison> {
    let event = E::read_fields(object)?;
    // The key decides the order of events. If it told of another aggregate than the event does,
    // one of the two would be wrong, and nobody could say which.
    match event.aggregate_id() {
        Ok(id) if id.as_str() == aggregate_id => Ok((event, id)),
        _ => Err(foreign_key()),
    }
}

fn upcast<Older: Event, E: Event + Upcast<Older>>(
    older: Older,
    aggregate_id: &str,
) -> Result<(E, AggregateId), Poison> {
    let poison = |path: String, expected: &str| {
        let expected = format!(
            "{expected}: this {} can't be made into {}; mend the conversion, then replay",
            Older::EVENT_TYPE,
            E::EVENT_TYPE
        );
        Poison::new(PoisonReason::Upcast, path, expected)
    };
    // The conversion and the check are the user's, and decoding never panics.
    let (event, invalid) = catch_unwind(AssertUnwindSafe(|| {
        E::upcast(older).map(|event| {
            let invalid = invalid(&event);
            (event, invalid)
        })
    }))
    .map_err(|_panic| poison("$".to_owned(), "a conversion that doesn't panic"))?
    .map_err(|error| poison(format!("$.{}", error.field()), error.expected()))?;
    if let Some((path, expected)) = invalid {
        return Err(poison(path, &expected));
    }
    match event.aggregate_id() {
        Ok(id) if id.as_str() == aggregate_id => Ok((event, id)),
        _ => Err(poison(
            "$.aggregateId".to_owned(),
            "a conversion that keeps the aggregate id",
        )),
    }
}

/// Where an event breaks a constraint or its `validate` function, and what is expected there. A conversion may well make
/// such an event: the older version had other constraints. Writing checks them, so it is written, to nowhere.
fn invalid<E: Event>(event: &E) -> Option<(String, Cow<'static, str>)> {
    let mut output = Output::new(DecodeLimits::default().max_depth);
    let written = ValueWriter::root(&mut output).object(|fields| event.write_fields(fields));
    match written {
        Err(EncodeError::Invalid { path, expected, .. }) => Some((path, expected)),
        // What a reader takes and a publisher doesn't, such as an amount that no double holds.
        _ => None,
    }
}

/// Stops the build where an event can't supersede another. What the derive calls, in a constant.
#[doc(hidden)]
pub const fn check_supersedes(
    event_type: &str,
    aggregate_type: &str,
    older_type: &str,
    older_aggregate_type: &str,
) {
    let (version, older_version) = (last_dot(event_type), last_dot(older_type));
    assert!(
        equal(
            aggregate_type.as_bytes(),
            aggregate_type.len(),
            older_aggregate_type.as_bytes(),
            older_aggregate_type.len()
        ),
        "`supersedes` names an event of another aggregate: versions of one event share `aggregate` (EVT-2)"
    );
    assert!(
        equal(
            event_type.as_bytes(),
            version,
            older_type.as_bytes(),
            older_version
        ),
        "`supersedes` names another event: the kinds of two versions differ in `.v<N>` alone (EVT-3)"
    );
    assert!(
        number_after(event_type, version) > number_after(older_type, older_version),
        "`supersedes` names a version that isn't older: give this event the higher `.v<N>` (EVT-3)"
    );
}

const fn last_dot(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = bytes.len();
    while at > 0 {
        at -= 1;
        if bytes[at] == b'.' {
            return at;
        }
    }
    0
}

/// Whether the beginnings of two texts are equal.
const fn equal(one: &[u8], one_len: usize, other: &[u8], other_len: usize) -> bool {
    if one_len != other_len {
        return false;
    }
    let mut at = 0;
    while at < one_len {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The number of `.v<N>`, which begins at `dot`. A kind that is none is refused elsewhere.
const fn number_after(event_type: &str, dot: usize) -> u64 {
    let bytes = event_type.as_bytes();
    let mut at = dot + 2;
    let mut number: u64 = 0;
    while at < bytes.len() {
        if bytes[at].is_ascii_digit() {
            number = number
                .saturating_mul(10)
                .saturating_add((bytes[at] - b'0') as u64);
        }
        at += 1;
    }
    number
}
