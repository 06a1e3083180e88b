//! The id of the aggregate that an event tells of: the key of its Kafka record (PROD-2).

use std::fmt;
use std::num::{NonZeroI64, NonZeroU32, NonZeroU64};

use uuid::Uuid;

use crate::contract::{Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::{Snapshot, parse_hyphenated};

/// The id of an aggregate as text. It is the key of the Kafka record, so that one aggregate's
/// events share a partition and stay in order (PROD-2).
///
/// 1 to 255 bytes without U+0000.
///
/// ```
/// # use factum_event::AggregateId;
/// assert_eq!(AggregateId::new("A-1")?.as_str(), "A-1");
/// assert_eq!(AggregateId::from(17_u64).as_str(), "17");
/// assert!(AggregateId::new("").is_err());
/// # Ok::<(), factum_event::AggregateIdError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AggregateId(String);

impl AggregateId {
    /// The most bytes that an id may have.
    pub const MAX_BYTES: usize = 255;

    /// Takes a text as an id.
    ///
    /// # Errors
    ///
    /// [`AggregateIdError`] when it is empty, longer than 255 bytes or holds U+0000.
    pub fn new(text: impl Into<String>) -> Result<AggregateId, AggregateIdError> {
        let text = text.into();
        AggregateId::check(&text)?;
        Ok(AggregateId(text))
    }

    /// Whether a text can be an id.
    pub(crate) fn check(text: &str) -> Result<(), AggregateIdError> {
        if text.is_empty() {
            Err(AggregateIdError::Empty)
        } else if text.len() > Self::MAX_BYTES {
            Err(AggregateIdError::TooLong { bytes: text.len() })
        } else if crate::json::has_nul(text) {
            Err(AggregateIdError::Nul)
        } else {
            Ok(())
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as text, owned.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Why a text can't be an aggregate id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateIdError {
    /// It is empty.
    #[error("an aggregate id is the key of the Kafka record and can't be empty (PROD-2)")]
    Empty,
    /// It is too long.
    #[error("an aggregate id has at most 255 bytes and this one has {bytes} (PROD-2)")]
    TooLong {
        /// Its size in bytes.
        bytes: usize,
    },
    /// It holds U+0000.
    #[error("an aggregate id can't hold U+0000, which PostgreSQL refuses in text (PROD-2)")]
    Nul,
}

impl fmt::Display for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for AggregateId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Snapshot for AggregateId {
    const EXPECTED: &'static str = "an aggregate id: text of 1 to 255 bytes";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::AggregateId
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(&self.0)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        AggregateId::new(from.text(Self::EXPECTED)?).map_err(|_| from.invalid(Self::EXPECTED))
    }
}

/// A type that the field marked `#[event(aggregate_id)]` may have.
///
/// Implemented for [`AggregateId`], [`String`] (checked when the event is written), [`Uuid`],
/// [`EventId`](crate::EventId) and the integers that ids use.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an aggregate id",
    label = "not an id",
    note = "the aggregate id is the key of the Kafka record (PROD-2) and is always there: use Uuid, an integer, String or AggregateId; for a newtype of your own write `#[derive(Snapshot)]` and `#[snapshot(aggregate_id)]`"
)]
pub trait ToAggregateId: Sized {
    /// The id as text.
    ///
    /// # Errors
    ///
    /// [`AggregateIdError`] when the value can't be one; only text can fail.
    fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError>;

    /// The value back from its text. `None` when the text is not one of this type's.
    fn from_aggregate_id(id: &AggregateId) -> Option<Self>;
}

impl ToAggregateId for AggregateId {
    fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        Ok(self.clone())
    }

    fn from_aggregate_id(id: &AggregateId) -> Option<Self> {
        Some(id.clone())
    }
}

impl ToAggregateId for String {
    fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        AggregateId::new(self.as_str())
    }

    fn from_aggregate_id(id: &AggregateId) -> Option<Self> {
        Some(id.0.clone())
    }
}

impl From<Uuid> for AggregateId {
    fn from(id: Uuid) -> AggregateId {
        AggregateId(id.as_hyphenated().to_string())
    }
}

impl ToAggregateId for Uuid {
    fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        Ok(AggregateId::from(*self))
    }

    fn from_aggregate_id(id: &AggregateId) -> Option<Self> {
        parse_hyphenated(&id.0)
    }
}

impl From<crate::EventId> for AggregateId {
    fn from(id: crate::EventId) -> AggregateId {
        AggregateId::from(id.as_uuid())
    }
}

impl ToAggregateId for crate::EventId {
    fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        Ok(AggregateId::from(*self))
    }

    fn from_aggregate_id(id: &AggregateId) -> Option<Self> {
        id.0.parse().ok()
    }
}

macro_rules! integer_aggregate_id {
    ($($integer:ty),*) => { $(
        impl From<$integer> for AggregateId {
            fn from(id: $integer) -> AggregateId {
                AggregateId(id.to_string())
            }
        }

        impl ToAggregateId for $integer {
            fn to_aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
                Ok(AggregateId::from(*self))
            }

            fn from_aggregate_id(id: &AggregateId) -> Option<Self> {
                // `+1` and `01` parse too, and would be other keys.
                id.0.parse().ok().filter(|value| AggregateId::from(*value) == *id)
            }
        }
    )* };
}

integer_aggregate_id!(u32, u64, i32, i64, NonZeroU32, NonZeroU64, NonZeroI64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_1_to_255_bytes_without_nul() {
        assert_eq!(AggregateId::new(""), Err(AggregateIdError::Empty));
        assert_eq!(AggregateId::new("a\0"), Err(AggregateIdError::Nul));
        assert!(AggregateId::new("a".repeat(255)).is_ok());
        let too_long = AggregateId::new("é".repeat(128));
        assert_eq!(too_long, Err(AggregateIdError::TooLong { bytes: 256 }));
    }

    #[test]
    fn an_id_goes_to_text_and_back() {
        fn there_and_back<T: ToAggregateId + PartialEq + std::fmt::Debug>(value: T) {
            let id = value.to_aggregate_id().unwrap();
            assert_eq!(T::from_aggregate_id(&id), Some(value));
        }
        there_and_back(17_u64);
        there_and_back(-17_i64);
        there_and_back(NonZeroU64::MIN);
        there_and_back(Uuid::from_u128(0xabc));
        there_and_back(crate::EventId::floor(1));
        there_and_back("A-1".to_owned());
        there_and_back(AggregateId::new("A-1").unwrap());
        for text in ["01", "+1", "1.0", "", "1 "] {
            if let Ok(id) = AggregateId::new(text) {
                assert_eq!(u64::from_aggregate_id(&id), None, "{text:?}");
            }
        }
    }
}
