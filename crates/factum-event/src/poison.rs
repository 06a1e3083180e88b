//! Why a record can't be read, as a closed list of reasons.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Why a record can never be handled, as a stable name.
///
/// The names are public: they stand in the `dead_letter` table, in metrics and in the conformance
/// vectors, and they are not renamed. New ones may be added.
///
/// ```
/// # use factum_event::PoisonReason;
/// assert_eq!(PoisonReason::DuplicateKey.as_str(), "duplicate_key");
/// assert_eq!("duplicate_key".parse(), Ok(PoisonReason::DuplicateKey));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PoisonReason {
    /// The value has 0 bytes. (A null value is a tombstone, not poison.)
    Empty,
    /// The value is larger than [`DecodeLimits::max_bytes`](crate::DecodeLimits::max_bytes).
    TooLarge,
    /// Arrays and objects nest deeper than [`DecodeLimits::max_depth`](crate::DecodeLimits::max_depth).
    TooDeep,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The value begins with a schema registry's frame (first byte 0x00) and not with JSON.
    Framed,
    /// The text is not JSON as RFC 8259 defines it. A byte order mark, trailing text and a lone
    /// surrogate belong here too.
    MalformedJson,
    /// The text is JSON, but not an object.
    NotObject,
    /// An object holds the same key twice, also when the two are escaped differently.
    DuplicateKey,
    /// A string or a key holds U+0000, which PostgreSQL can't store as text.
    Nul,
    /// `eventType` is missing, not a string, or not printable.
    EventType,
    /// `eventId` is missing or not a UUID of version 7 in its hyphenated form (IDEM-1).
    EventId,
    /// `occurredAt` is missing or not an RFC 3339 instant (EVT-2).
    OccurredAt,
    /// `aggregateType` is missing or not the one that the event declares (EVT-2).
    AggregateType,
    /// `aggregateId` is missing, not usable as a key, or not the id of the event's own field (EVT-2).
    AggregateId,
    /// A required business field is absent.
    MissingField,
    /// A business field is there and doesn't fit its declaration.
    InvalidField,
    /// The record is a sound event of an older version, and the conversion up to the version that the
    /// consumer takes refused it (EVT-3). Mend the conversion, then replay.
    Upcast,
}

impl PoisonReason {
    /// Every reason, in the order of declaration.
    pub const ALL: &'static [PoisonReason] = &[
        PoisonReason::Empty,
        PoisonReason::TooLarge,
        PoisonReason::TooDeep,
        PoisonReason::NotUtf8,
        PoisonReason::Framed,
        PoisonReason::MalformedJson,
        PoisonReason::NotObject,
        PoisonReason::DuplicateKey,
        PoisonReason::Nul,
        PoisonReason::EventType,
        PoisonReason::EventId,
        PoisonReason::OccurredAt,
        PoisonReason::AggregateType,
        PoisonReason::AggregateId,
        PoisonReason::MissingField,
        PoisonReason::InvalidField,
        PoisonReason::Upcast,
    ];

    /// The stable name: lower-case words joined by `_`.
    pub const fn as_str(self) -> &'static str {
        match self {
            PoisonReason::Empty => "empty",
            PoisonReason::TooLarge => "too_large",
            PoisonReason::TooDeep => "too_deep",
            PoisonReason::NotUtf8 => "not_utf8",
            PoisonReason::Framed => "framed",
            PoisonReason::MalformedJson => "malformed_json",
            PoisonReason::NotObject => "not_object",
            PoisonReason::DuplicateKey => "duplicate_key",
            PoisonReason::Nul => "nul",
            PoisonReason::EventType => "event_type",
            PoisonReason::EventId => "event_id",
            PoisonReason::OccurredAt => "occurred_at",
            PoisonReason::AggregateType => "aggregate_type",
            PoisonReason::AggregateId => "aggregate_id",
            PoisonReason::MissingField => "missing_field",
            PoisonReason::InvalidField => "invalid_field",
            PoisonReason::Upcast => "upcast",
        }
    }
}

impl fmt::Display for PoisonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text is not the name of a [`PoisonReason`] or of a
/// [`DeadLetterReason`](crate::DeadLetterReason).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the name of a reason; the names are listed by `PoisonReason::ALL` and `DeadLetterReason::ALL`"
)]
pub struct UnknownReason;

impl FromStr for PoisonReason {
    type Err = UnknownReason;

    fn from_str(name: &str) -> Result<Self, UnknownReason> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == name)
            .ok_or(UnknownReason)
    }
}

/// A record that can never be handled: why, where in it, and what was expected there.
///
/// It names a path and an expectation and never a value, because a value may be personal data
/// (public case 58). In the path, a key that is not a plain name shows as `['…']`, and a key of a
/// map shows as `[*]`, for the same reason.
///
/// ```
/// # use factum_event::{Decoded, PoisonReason, Registry};
/// let Decoded::Poison(poison) = Registry::new().decode(Some(b"{}")) else { panic!() };
/// assert_eq!(poison.reason(), PoisonReason::EventType);
/// assert_eq!(poison.path(), "$.eventType");
/// assert_eq!(
///     poison.to_string(),
///     "event_type at $.eventType: expected an event type, such as \"order.confirmed.v1\"",
/// );
/// ```
///
/// A field that breaks a constraint names the rule, too:
/// `invalid_field (length) at $.sku: expected 1 to 40 characters`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{} at {path}: expected {expected}", in_parentheses(*rule))]
pub struct Poison {
    reason: PoisonReason,
    path: String,
    expected: Cow<'static, str>,
    rule: Option<&'static str>,
}

fn in_parentheses(rule: Option<&'static str>) -> String {
    rule.map(|rule| format!(" ({rule})")).unwrap_or_default()
}

impl Poison {
    pub(crate) fn new(
        reason: PoisonReason,
        path: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Poison {
            reason,
            path: path.into(),
            expected: expected.into(),
            rule: None,
        }
    }

    pub(crate) fn with_rule(self, rule: &'static str) -> Self {
        Poison {
            rule: Some(rule),
            ..self
        }
    }

    /// Why the record can't be handled.
    pub fn reason(&self) -> PoisonReason {
        self.reason
    }

    /// Where the fault is, such as `$.items[3].price`; `$` is the whole record. At most 512 bytes.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What was expected at the path.
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// Which constraint of the field was broken, if it was one; the reason is
    /// [`InvalidField`](PoisonReason::InvalidField) then. The names are public and are not renamed:
    /// `length`, `range`, `pattern`, `items`, `code`, `choice` (a value that a closed enum doesn't name)
    /// and `validate`.
    pub fn rule(&self) -> Option<&'static str> {
        self.rule
    }
}
