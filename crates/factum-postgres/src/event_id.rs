use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use factum_event::{EventId, EventIdSource};

/// A new event id from this process's one source: a UUID v7, greater than every id before it even
/// when the clock steps back (IDEM-1, public case 56).
///
/// [`Outbox::publish`](crate::Outbox::publish) calls it; call it yourself where the id must be
/// known before the event is published.
///
/// ```
/// let first = factum_postgres::new_event_id();
/// assert!(factum_postgres::new_event_id() > first);
/// ```
#[must_use]
pub fn new_event_id() -> EventId {
    static SOURCE: Mutex<Option<EventIdSource>> = Mutex::new(None);

    let random = random();
    let mut source = SOURCE.lock().unwrap_or_else(PoisonError::into_inner);
    let source = source.get_or_insert_with(EventIdSource::new);
    source.next(now_unix_millis(), random)
}

/// Milliseconds since 1970; a clock before that counts as 1970.
pub(crate) fn now_unix_millis() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    u64::try_from(now).unwrap_or(u64::MAX)
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    std::array::from_fn(|_| fastrand::u8(..))
}
