use factum_event::EventId;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// A record that its consumer gave up, with everything that a person or a replay needs.
///
/// Written by [`Session::dead_letter`](crate::Session::dead_letter) in the transaction that
/// answers for the record. One row per (consumer, topic, partition, offset): the same record
/// again updates `attempts`, `reason`, `path`, `error` and `last_seen` of its row.
///
/// Limits: `error` is cut at 1 KiB, `event_type` and `path` at 255 and 1,024 bytes; of the headers
/// the first 100 are kept, names cut at 255 bytes and values at 4 KiB. Key and value are kept
/// byte for byte.
#[derive(Debug, Clone)]
pub struct DeadLetter<'a> {
    /// The consumer's stable name.
    pub consumer: &'a str,
    /// Where the record lies.
    pub topic: &'a str,
    /// Where the record lies.
    pub partition: i32,
    /// Where the record lies.
    pub offset: i64,
    /// The record's key, byte for byte.
    pub key: Option<&'a [u8]>,
    /// The record's value, byte for byte; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The record's headers, in order.
    pub headers: &'a [(String, Option<Vec<u8>>)],
    /// The event's id, if it could be read.
    pub event_id: Option<EventId>,
    /// The event's type, if it could be read.
    pub event_type: Option<&'a str>,
    /// A stable name: `DeadLetterReason::as_str`.
    pub reason: &'a str,
    /// The place inside the value, for poison: `$.total.currency`.
    pub path: Option<&'a str>,
    /// What failed, without values.
    pub error: Option<&'a str>,
    /// How often the handler ran; 0 when it never did.
    pub attempts: u32,
    /// When the record failed first; now, if not given.
    pub first_failed_at: Option<OffsetDateTime>,
}

const ERROR_BYTES: usize = 1024;
const EVENT_TYPE_BYTES: usize = 255;
const PATH_BYTES: usize = 1024;
const HEADERS: usize = 100;
const HEADER_NAME_BYTES: usize = 255;
const HEADER_VALUE_BYTES: usize = 4096;

pub(crate) async fn write(
    conn: &mut PgConnection,
    letter: &DeadLetter<'_>,
) -> Result<(), sqlx::Error> {
    let headers = &letter.headers[..letter.headers.len().min(HEADERS)];
    let names: Vec<String> = headers
        .iter()
        .map(|(name, _)| text(name.as_str(), HEADER_NAME_BYTES))
        .collect();
    let values: Vec<Option<&[u8]>> = headers
        .iter()
        .map(|(_, value)| {
            value
                .as_deref()
                .map(|value| &value[..value.len().min(HEADER_VALUE_BYTES)])
        })
        .collect();
    sqlx::query(
        "INSERT INTO dead_letter AS known \
         (consumer, topic, partition, record_offset, key, value, header_names, header_values, \
          event_id, event_type, reason, path, error, attempts, first_seen, last_seen) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
                 coalesce($15, clock_timestamp()), clock_timestamp()) \
         ON CONFLICT (consumer, topic, partition, record_offset) DO UPDATE SET \
          key = excluded.key, value = excluded.value, \
          header_names = excluded.header_names, header_values = excluded.header_values, \
          event_id = excluded.event_id, event_type = excluded.event_type, \
          reason = excluded.reason, path = excluded.path, error = excluded.error, \
          attempts = greatest(known.attempts, excluded.attempts), \
          first_seen = least(known.first_seen, excluded.first_seen), \
          last_seen = excluded.last_seen",
    )
    .bind(letter.consumer)
    .bind(letter.topic)
    .bind(letter.partition)
    .bind(letter.offset)
    .bind(letter.key)
    .bind(letter.value)
    .bind(names)
    .bind(values)
    .bind(letter.event_id.map(EventId::as_uuid))
    .bind(letter.event_type.map(|name| text(name, EVENT_TYPE_BYTES)))
    .bind(letter.reason)
    .bind(letter.path.map(|path| text(path, PATH_BYTES)))
    .bind(letter.error.map(|error| text(error, ERROR_BYTES)))
    .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
    .bind(letter.first_failed_at)
    .execute(conn)
    .await?;
    Ok(())
}

/// Cuts a text at a character's boundary and takes out what PostgreSQL's `text` refuses: a dead
/// letter about a NUL must not fail for a NUL (public case 50).
pub(crate) fn text(text: impl Into<String>, max_bytes: usize) -> String {
    let mut clean = text.into();
    if clean.contains('\0') {
        clean = clean.replace('\0', "\u{fffd}");
    }
    clean.truncate(clean.floor_char_boundary(max_bytes));
    clean
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn case_50_text_is_cut_at_a_character_and_free_of_nul() {
        assert_eq!(text("a\0b", 10), "a\u{fffd}b");
        assert_eq!(text("äöü", 3), "ä");
        assert_eq!(text("short", 10), "short");
    }
}
