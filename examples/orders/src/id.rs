//! Ids: positive in events, `bigint` in tables.

use std::num::{NonZeroU64, TryFromIntError};

/// An id as a column takes it. No event holds a larger one than 2^53 - 1, which JavaScript can
/// still read.
pub fn to_column(id: NonZeroU64) -> i64 {
    i64::try_from(id.get()).unwrap_or(i64::MAX)
}

/// An id as a column has it.
///
/// # Errors
///
/// It is not positive.
pub fn from_column(id: i64) -> Result<NonZeroU64, TryFromIntError> {
    NonZeroU64::try_from(u64::try_from(id)?)
}
