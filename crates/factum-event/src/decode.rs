//! From the bytes of a record to an event: three outcomes and no exception.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use time::OffsetDateTime;

use crate::aggregate_id::AggregateId;
use crate::envelope::Envelope;
use crate::event::Event;
use crate::event_id::EventId;
use crate::event_type::EventType;
use crate::json::{self, Node};
use crate::poison::{Poison, PoisonReason};
use crate::read::ObjectReader;
use crate::snapshot::parse_hyphenated;
use crate::timestamp;
use crate::version::{ReadAs, read_as};

/// How large a record may be to be decoded. Anything beyond is poison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The most bytes of a value; 1 MiB by default, a little more than a broker takes by default.
    pub max_bytes: usize,
    /// How deep arrays and objects may nest, the outermost object included; 32 by default. More
    /// than 128 counts as 128.
    pub max_depth: u32,
}

/// Reading nests a stack frame per level.
const DEEPEST: u32 = 128;

impl Default for DecodeLimits {
    fn default() -> DecodeLimits {
        DecodeLimits {
            max_bytes: 1024 * 1024,
            max_depth: 32,
        }
    }
}

/// The event types that a consumer knows (CFG-3). What isn't registered is never decoded.
///
/// A type that supersedes others (`#[event(…, supersedes = …)]`) is also read from records of those, unless they
/// are registered themselves.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{Decoded, Registry};
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled")]
/// struct OrderCancelled {
///     #[event(aggregate_id)]
///     order_id: u32,
/// }
///
/// let registry = Registry::new().with::<OrderCancelled>();
/// let value = br#"{
///     "eventId": "01935c3e-7c1a-7000-8000-000000000001",
///     "eventType": "order.cancelled.v1",
///     "occurredAt": "2026-06-01T12:00:00+03:00",
///     "aggregateType": "Order",
///     "aggregateId": "7",
///     "orderId": 7
/// }"#;
/// let Decoded::Event(event) = registry.decode(Some(value)) else { panic!() };
/// let envelope = event.downcast::<OrderCancelled>().unwrap();
/// assert_eq!(envelope.order_id, 7);
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    /// By the type of the record, which is the event's own.
    decoders: BTreeMap<&'static str, Decoder>,
    /// By the type of the record, which is an older one than the event's.
    upcasts: BTreeMap<&'static str, Upcasts>,
    limits: DecodeLimits,
    foreign_ids: bool,
}

#[derive(Clone)]
struct Decoder {
    /// The type of the event that comes out.
    event_type: &'static str,
    rust_type: TypeId,
    /// What the event supersedes.
    lineage: Arc<[TypeId]>,
    /// Of the record.
    aggregate_type: &'static str,
    /// Of the record.
    topic: &'static str,
    read: Arc<Read>,
}

type Read = dyn Fn(&ObjectReader<'_>, &Head<'_>) -> Result<AnyEnvelope, Poison> + Send + Sync;

/// The registered types that a record of some older type can be made into.
#[derive(Clone, Default)]
struct Upcasts {
    candidates: Vec<Decoder>,
    /// The place of the one that all the others supersede, if there is one.
    nearest: Option<usize>,
}

impl Upcasts {
    fn add(&mut self, candidate: Decoder) {
        if !self
            .candidates
            .iter()
            .any(|known| known.rust_type == candidate.rust_type)
        {
            self.candidates.push(candidate);
        }
        self.nearest = self.candidates.iter().position(|near| {
            let supersede = |far: &Decoder| far.lineage.contains(&near.rust_type);
            let mut others = self
                .candidates
                .iter()
                .filter(|far| far.rust_type != near.rust_type);
            others.all(supersede)
        });
    }

    fn decoder(&self) -> Option<&Decoder> {
        self.candidates.get(self.nearest.unwrap_or(0))
    }
}

/// A type of records that a consumer takes, see [`Registry::taken_types`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct TakenType {
    /// The type of the records.
    pub event_type: &'static str,
    /// The type that the handler gets: the same, or a newer one that the records are made into.
    pub taken_as: &'static str,
    /// The topic that carries the records.
    pub topic: &'static str,
}

/// The envelope's fields of a record whose type is registered.
struct Head<'a> {
    id: EventId,
    occurred_at: OffsetDateTime,
    /// It can be an aggregate id.
    aggregate_id: &'a str,
}

impl Registry {
    /// A registry that knows no type.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Registers a type. Registering it twice is the same as once.
    ///
    /// # Panics
    ///
    /// Where [`try_with`](Self::try_with) fails: a mistake in the program that its first start shows.
    #[must_use]
    pub fn with<E: Event>(self) -> Registry {
        match self.try_with::<E>() {
            Ok(registry) => registry,
            Err(error) => panic!("{error}"),
        }
    }

    /// Registers a type, unless it can't be.
    ///
    /// # Errors
    ///
    /// [`RegistryError`] when another Rust type is registered under the same event type, or when a
    /// hand-written [`Event`] declares a malformed type.
    pub fn try_with<E: Event>(mut self) -> Result<Registry, RegistryError> {
        if E::EVENT_TYPE.parse::<EventType>().is_err() {
            return Err(RegistryError::MalformedType {
                event_type: E::EVENT_TYPE,
            });
        }
        let superseded = E::superseded();
        let lineage: Arc<[TypeId]> = superseded.iter().map(|older| older.rust_type).collect();
        let rust_type = TypeId::of::<E>();
        let decoder = |record_type, aggregate_type, topic, read: Arc<ReadAs<E>>| Decoder {
            event_type: E::EVENT_TYPE,
            rust_type,
            lineage: lineage.clone(),
            aggregate_type,
            topic,
            read: Arc::new(move |object: &ObjectReader<'_>, head: &Head<'_>| {
                Ok(wrap(read(object, head.aggregate_id)?, record_type, head))
            }),
        };
        let own = Arc::new(|object: &ObjectReader<'_>, id: &str| read_as::<E>(object, id));
        let own = decoder(E::EVENT_TYPE, E::AGGREGATE_TYPE, E::TOPIC, own);
        if let Some(earlier) = self.decoders.insert(E::EVENT_TYPE, own)
            && earlier.rust_type != rust_type
        {
            return Err(RegistryError::TypeTaken {
                event_type: E::EVENT_TYPE,
            });
        }
        for older in superseded {
            let upcast = decoder(
                older.event_type,
                older.aggregate_type,
                older.topic,
                older.read,
            );
            self.upcasts
                .entry(older.event_type)
                .or_default()
                .add(upcast);
        }
        Ok(self)
    }

    /// What is ambiguous: types that two registered ones supersede, of which neither supersedes the other, and
    /// that aren't registered themselves. A service with such a consumer doesn't start. Decoding takes the one
    /// that was registered first.
    pub fn conflicts(&self) -> Vec<RegistryError> {
        let ambiguous = self.upcasts.iter().filter(|(event_type, upcasts)| {
            upcasts.nearest.is_none() && !self.decoders.contains_key(*event_type)
        });
        ambiguous
            .map(|(event_type, upcasts)| RegistryError::Ambiguous {
                event_type,
                first: upcasts.candidates[0].event_type,
                second: upcasts.candidates[1].event_type,
            })
            .collect()
    }

    /// Every type of records that is taken, sorted by it: the registered ones, and the older ones that are made
    /// into them.
    pub fn taken_types(&self) -> Vec<TakenType> {
        let types: std::collections::BTreeSet<&'static str> = self
            .decoders
            .keys()
            .chain(self.upcasts.keys())
            .copied()
            .collect();
        let taken = |event_type| {
            let decoder = self.decoder(event_type)?;
            Some(TakenType {
                event_type,
                taken_as: decoder.event_type,
                topic: decoder.topic,
            })
        };
        types.into_iter().filter_map(taken).collect()
    }

    fn decoder(&self, record_type: &str) -> Option<&Decoder> {
        let upcast = || self.upcasts.get(record_type)?.decoder();
        self.decoders.get(record_type).or_else(upcast)
    }

    /// Sets other limits than the default ones.
    #[must_use]
    pub fn with_limits(mut self, limits: DecodeLimits) -> Registry {
        self.limits = limits;
        self
    }

    /// Takes events whose id is a UUID of another version than 7, too: see [`EventId::foreign`]. Without it they are
    /// poison.
    #[must_use]
    pub fn with_foreign_ids(mut self) -> Registry {
        self.foreign_ids = true;
        self
    }

    /// The registered types, sorted.
    pub fn event_types(&self) -> impl Iterator<Item = &'static str> {
        self.decoders.keys().copied()
    }

    /// Decodes the value of a record. It never panics and never fails in another way than
    /// [`Decoded`] tells.
    ///
    /// The order: what makes the text unsafe to read (size, UTF-8, syntax, depth, duplicate keys) is
    /// poison whatever its type. Then the type is read: one that isn't registered is
    /// [`Decoded::Unknown`] even when the rest would be no event of ours. Then the envelope, then the
    /// business fields, then U+0000 in what nobody read.
    ///
    /// Time is linear in the size but for the sorting of keys; memory is at most about 30 times the
    /// size.
    pub fn decode(&self, value: Option<&[u8]>) -> Decoded {
        match value {
            None => Decoded::Tombstone,
            Some(bytes) => self.decode_bytes(bytes).unwrap_or_else(Decoded::Poison),
        }
    }

    /// The type that a record says it is of, as far as that can be read, though the rest of it be poison. For lists
    /// of what was set aside.
    pub fn event_type_of(&self, value: &[u8]) -> Option<String> {
        let root = parse_object(value, self.limits).ok()?;
        let Node::Object(entries) = &root else {
            return None;
        };
        let event_type = read_event_type(&ObjectReader::root(entries)).ok()?;
        Some(event_type.to_owned())
    }

    fn decode_bytes(&self, bytes: &[u8]) -> Result<Decoded, Poison> {
        let root = parse_object(bytes, self.limits)?;
        let Node::Object(entries) = &root else {
            return Err(whole(PoisonReason::NotObject, "a JSON object"));
        };
        let object = ObjectReader::root(entries);

        let event_type = read_event_type(&object)?;
        let Some(decoder) = self.decoder(event_type) else {
            return Ok(Decoded::Unknown {
                event_type: event_type.to_owned(),
            });
        };
        let head = read_head(&object, decoder.aggregate_type, self.foreign_ids)?;
        let event = (decoder.read)(&object, &head)?;
        // Bare it would not be JSON, so it comes as an escape alone; few events hold one.
        let nul = if bytes.contains(&b'\\') {
            json::find_nul(&root)
        } else {
            None
        };
        match nul {
            None => Ok(Decoded::Event(event)),
            Some(path) => Err(Poison::new(PoisonReason::Nul, path, "text without U+0000")),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("event_types", &self.event_types().collect::<Vec<_>>())
            .field("limits", &self.limits)
            .finish()
    }
}

/// Why a type can't be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another Rust type has the event type already.
    #[error(
        "two Rust types declare the event type \"{event_type}\": give one of them another kind"
    )]
    TypeTaken {
        /// The event type.
        event_type: &'static str,
    },
    /// The event type isn't one.
    #[error(
        "\"{event_type}\" is not an event type: expected \"<aggregate>.<event>.v<N>\", such as \
         \"order.confirmed.v1\" (EVT-2)"
    )]
    MalformedType {
        /// What stands in [`Event::EVENT_TYPE`].
        event_type: &'static str,
    },
    /// Two registered types supersede it, and neither supersedes the other.
    #[error(
        "both \"{first}\" and \"{second}\" supersede \"{event_type}\": let one of them supersede the other, or \
         register a type for \"{event_type}\" itself (EVT-3)"
    )]
    Ambiguous {
        /// The type of the records.
        event_type: &'static str,
        /// One type that takes them.
        first: &'static str,
        /// Another.
        second: &'static str,
    },
}

fn whole(reason: PoisonReason, expected: impl Into<std::borrow::Cow<'static, str>>) -> Poison {
    Poison::new(reason, "$", expected)
}

fn parse_object(bytes: &[u8], limits: DecodeLimits) -> Result<Node<'_>, Poison> {
    const BYTE_ORDER_MARK: &str = "\u{feff}";
    match bytes.first() {
        None => return Err(whole(PoisonReason::Empty, "a JSON object, not 0 bytes")),
        Some(0) => {
            let expected = "JSON without a schema registry's frame (first byte 0x00): configure the \
                            producer to send plain JSON";
            return Err(whole(PoisonReason::Framed, expected));
        }
        Some(_) => {}
    }
    if bytes.len() > limits.max_bytes {
        let expected = format!("at most {} bytes; it has {}", limits.max_bytes, bytes.len());
        return Err(whole(PoisonReason::TooLarge, expected));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let expected = format!(
            "UTF-8; it stops to be UTF-8 at byte {}",
            error.valid_up_to()
        );
        whole(PoisonReason::NotUtf8, expected)
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        return Err(whole(
            PoisonReason::MalformedJson,
            "JSON without a byte order mark",
        ));
    }
    json::parse(text, limits.max_depth.min(DEEPEST))
}

fn read_event_type<'a>(object: &ObjectReader<'a>) -> Result<&'a str, Poison> {
    match object.value("eventType") {
        // A foreign type need not have our form; but it goes into logs and metrics.
        Some(Node::Text(text))
            if !text.is_empty()
                && text.len() <= Decoded::MAX_TYPE_BYTES
                && !text.chars().any(char::is_control) =>
        {
            Ok(text)
        }
        _ => {
            let expected = "an event type, such as \"order.confirmed.v1\"";
            Err(Poison::new(
                PoisonReason::EventType,
                "$.eventType",
                expected,
            ))
        }
    }
}

fn read_head<'a>(
    object: &ObjectReader<'a>,
    aggregate_type: &str,
    foreign_ids: bool,
) -> Result<Head<'a>, Poison> {
    let text = |name| match object.value(name) {
        Some(Node::Text(text)) => Some(&**text),
        _ => None,
    };
    let id = text("eventId")
        .and_then(|text| match foreign_ids {
            false => text.parse().ok(),
            true => EventId::foreign(parse_hyphenated(text)?).ok(),
        })
        .ok_or_else(|| {
            let expected = match foreign_ids {
                false => "a UUID of version 7 in its hyphenated form",
                true => "a UUID in its hyphenated form",
            };
            Poison::new(PoisonReason::EventId, "$.eventId", expected)
        })?;
    let occurred_at = text("occurredAt")
        .and_then(timestamp::parse)
        .ok_or_else(|| {
            let expected = "an RFC 3339 time, such as \"2026-06-01T12:00:00Z\"";
            Poison::new(PoisonReason::OccurredAt, "$.occurredAt", expected)
        })?;
    if text("aggregateType") != Some(aggregate_type) {
        let expected = format!("\"{aggregate_type}\"");
        return Err(Poison::new(
            PoisonReason::AggregateType,
            "$.aggregateType",
            expected,
        ));
    }
    let aggregate_id = text("aggregateId")
        .filter(|text| AggregateId::check(text).is_ok())
        .ok_or_else(|| {
            let expected = "text of 1 to 255 bytes without U+0000";
            Poison::new(PoisonReason::AggregateId, "$.aggregateId", expected)
        })?;
    Ok(Head {
        id,
        occurred_at,
        aggregate_id,
    })
}

/// Reads a record as a registry does, with a reader of one's own for the fields: for an event that is known by its
/// contract and not as a Rust type. `read` gets the fields and the key, and says whether the key is the one that the
/// fields tell of. `Ok(false)` for another event type.
pub fn read_record(
    bytes: &[u8],
    event_type: &str,
    aggregate_type: &str,
    limits: DecodeLimits,
    read: impl FnOnce(&ObjectReader<'_>, &str) -> Result<bool, Poison>,
) -> Result<bool, Poison> {
    let root = parse_object(bytes, limits)?;
    let Node::Object(entries) = &root else {
        return Err(whole(PoisonReason::NotObject, "a JSON object"));
    };
    let object = ObjectReader::root(entries);
    if read_event_type(&object)? != event_type {
        return Ok(false);
    }
    let head = read_head(&object, aggregate_type, false)?;
    if !read(&object, head.aggregate_id)? {
        return Err(foreign_key());
    }
    match json::find_nul(&root) {
        None => Ok(true),
        Some(path) => Err(Poison::new(PoisonReason::Nul, path, "text without U+0000")),
    }
}

/// The key tells of another aggregate than the event's own field does.
pub(crate) fn foreign_key() -> Poison {
    let expected = "the same id as in the event's own field";
    Poison::new(PoisonReason::AggregateId, "$.aggregateId", expected)
}

fn wrap<E: Event>(
    (event, aggregate_id): (E, AggregateId),
    sent_as: &'static str,
    head: &Head<'_>,
) -> AnyEnvelope {
    AnyEnvelope {
        id: head.id,
        event_type: E::EVENT_TYPE,
        sent_as,
        aggregate_id,
        occurred_at: head.occurred_at,
        envelope: Box::new(Envelope::new(head.id, event, head.occurred_at)),
    }
}

/// What a record is. There is no fifth case and no exception.
#[derive(Debug)]
#[must_use = "a record is handled, skipped and counted, or dead-lettered, never dropped (RTRY-X2)"]
pub enum Decoded {
    /// An event of a registered type.
    Event(AnyEnvelope),
    /// A type that isn't registered: to be skipped and counted, or dead-lettered by policy
    /// (listing fault 6).
    Unknown {
        /// The type as it was sent: 1 to 255 bytes, without control characters.
        event_type: String,
    },
    /// Never readable: a dead letter at once (RTRY-2).
    Poison(Poison),
    /// A null value. The topic's policy says what it means (public case 55).
    Tombstone,
}

impl Decoded {
    /// A longer `eventType` is poison.
    pub const MAX_TYPE_BYTES: usize = 255;
}

/// An event of some registered type.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{AnyEnvelope, Decoded, Event as _, EventId, Registry};
///
/// # #[derive(Debug, Event)]
/// # #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled")]
/// # struct OrderCancelled { #[event(aggregate_id)] order_id: u32 }
/// # #[derive(Debug, Event)]
/// # #[event(kind = "order.paid.v1", aggregate = "Order", topic = "orders.paid")]
/// # struct OrderPaid { #[event(aggregate_id)] order_id: u32 }
/// # let bytes = OrderCancelled { order_id: 7 }
/// #     .occurred_at(time::OffsetDateTime::UNIX_EPOCH).with_id(EventId::floor(0)).encode()?;
/// let registry = Registry::new().with::<OrderCancelled>().with::<OrderPaid>();
/// let Decoded::Event(event) = registry.decode(Some(&bytes)) else { panic!() };
/// assert_eq!(event.event_type(), "order.cancelled.v1");
/// assert!(event.downcast_ref::<OrderPaid>().is_none());
/// assert_eq!(event.downcast_ref::<OrderCancelled>().unwrap().order_id, 7);
/// # Ok::<(), factum::EncodeError>(())
/// ```
pub struct AnyEnvelope {
    id: EventId,
    event_type: &'static str,
    sent_as: &'static str,
    aggregate_id: AggregateId,
    occurred_at: OffsetDateTime,
    /// An `Envelope<E>` of the `E` with this event type.
    envelope: Box<dyn Any + Send + Sync>,
}

impl AnyEnvelope {
    /// The id of the event.
    pub fn id(&self) -> EventId {
        self.id
    }

    /// The type of the event, such as `order.confirmed.v1`.
    pub fn event_type(&self) -> &'static str {
        self.event_type
    }

    /// The type that the record had: [`event_type`](Self::event_type), or an older one that it supersedes.
    pub fn sent_as(&self) -> &'static str {
        self.sent_as
    }

    /// The id of the aggregate.
    pub fn aggregate_id(&self) -> &str {
        self.aggregate_id.as_str()
    }

    /// When the event happened in the business.
    pub fn occurred_at(&self) -> OffsetDateTime {
        self.occurred_at
    }

    /// Whether it is an `E`.
    pub fn is<E: Event>(&self) -> bool {
        self.envelope.is::<Envelope<E>>()
    }

    /// The envelope, if it is an `E`.
    pub fn downcast_ref<E: Event>(&self) -> Option<&Envelope<E>> {
        self.envelope.downcast_ref()
    }

    /// The envelope, owned.
    ///
    /// # Errors
    ///
    /// Itself, when it is no `E`.
    pub fn downcast<E: Event>(self) -> Result<Envelope<E>, AnyEnvelope> {
        let AnyEnvelope {
            id,
            event_type,
            sent_as,
            aggregate_id,
            occurred_at,
            envelope,
        } = self;
        envelope
            .downcast::<Envelope<E>>()
            .map(|envelope| *envelope)
            .map_err(|envelope| AnyEnvelope {
                id,
                event_type,
                sent_as,
                aggregate_id,
                occurred_at,
                envelope,
            })
    }
}

/// Without the event's fields: they may be personal data.
impl fmt::Debug for AnyEnvelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyEnvelope")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}
