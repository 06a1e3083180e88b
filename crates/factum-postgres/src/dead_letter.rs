use factum_event::EventId;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// A record that its consumer gave up, with everything that a person or a replay needs.
///
/// Written by [`Session::dead_letter`](crate::Session::dead_letter) in the transaction that
/// answers for the record. One row per (consumer, topic, partition, offset): the same record
/// again updates `attempts`, `reason`, `path`, `error`, `build` and `last_seen` of its row, and opens it again if it
/// was replayed or discarded.
///
/// Key, value and headers are kept byte for byte, however many and large they are: a broker's limit of a record is
/// theirs. (PostgreSQL's `text` holds no NUL: in a header's name it becomes U+FFFD.) What Factum adds is cut: `error`
/// at 1 KiB, `path` at 1,024 bytes, `event_type` and `build` at 255.
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
    /// The build of the service that failed; empty if nobody said.
    pub build: &'a str,
}

pub(crate) const ERROR_BYTES: usize = 1024;
const EVENT_TYPE_BYTES: usize = 255;
const PATH_BYTES: usize = 1024;
const BUILD_BYTES: usize = 255;

pub(crate) async fn write(
    conn: &mut PgConnection,
    letter: &DeadLetter<'_>,
) -> Result<(), sqlx::Error> {
    let names: Vec<String> = letter
        .headers
        .iter()
        .map(|(name, _)| text(name.as_str(), usize::MAX))
        .collect();
    let values: Vec<Option<&[u8]>> = letter
        .headers
        .iter()
        .map(|(_, value)| value.as_deref())
        .collect();
    let path = letter.path.map(|path| text(path, PATH_BYTES));
    let group = path.as_deref().map(path_group).unwrap_or_default();
    let bytes = letter.value.map_or(0, <[u8]>::len);
    sqlx::query(
        "INSERT INTO dead_letter AS known \
         (consumer, topic, partition, record_offset, key, value, header_names, header_values, \
          event_id, event_type, reason, path, error, attempts, first_seen, last_seen, \
          payload_bytes, path_group, build) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
                 coalesce($15, clock_timestamp()), clock_timestamp(), $16, $17, $18) \
         ON CONFLICT (consumer, topic, partition, record_offset) DO UPDATE SET \
          key = excluded.key, value = excluded.value, \
          header_names = excluded.header_names, header_values = excluded.header_values, \
          event_id = excluded.event_id, event_type = excluded.event_type, \
          reason = excluded.reason, path = excluded.path, error = excluded.error, \
          attempts = greatest(known.attempts, excluded.attempts), \
          first_seen = least(known.first_seen, excluded.first_seen), \
          last_seen = excluded.last_seen, payload_bytes = excluded.payload_bytes, \
          path_group = excluded.path_group, build = excluded.build, state = 'open', \
          state_at = CASE WHEN known.state = 'open' THEN known.state_at ELSE clock_timestamp() END",
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
    .bind(path)
    .bind(letter.error.map(|error| text(error, ERROR_BYTES)))
    .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
    .bind(letter.first_failed_at)
    .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
    .bind(group)
    .bind(text(letter.build, BUILD_BYTES))
    .execute(conn)
    .await?;
    Ok(())
}

/// A path with its indices taken out, so that the same fault in every item of a list is one group:
/// `$.items[3].price` is `$.items[].price`.
pub(crate) fn path_group(path: &str) -> String {
    let mut group = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(open) = rest.find('[') {
        let (before, index) = rest.split_at(open + 1);
        group.push_str(before);
        rest = index;
        let digits = index.bytes().take_while(u8::is_ascii_digit).count();
        if index.as_bytes().get(digits) == Some(&b']') {
            rest = &index[digits..];
        }
    }
    group + rest
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
    use super::{path_group, text};

    #[test]
    fn case_50_text_is_cut_at_a_character_and_free_of_nul() {
        assert_eq!(text("a\0b", 10), "a\u{fffd}b");
        assert_eq!(text("äöü", 3), "ä");
        assert_eq!(text("short", 10), "short");
    }

    #[test]
    fn a_paths_indices_are_taken_out_and_nothing_else() {
        for (path, group) in [
            ("", ""),
            ("$", "$"),
            ("$.total.currency", "$.total.currency"),
            ("$.items[3].price", "$.items[].price"),
            ("$.items[0][12].taxes[7]", "$.items[][].taxes[]"),
            ("$.labels[*]", "$.labels[*]"),
            ("$['…'].a[1]", "$['…'].a[]"),
            ("$.line2.v10[1]", "$.line2.v10[]"),
            ("$.items[12", "$.items[12"),
            ("$.items[", "$.items["),
            ("$.items[1x]", "$.items[1x]"),
            ("$.items[]", "$.items[]"),
        ] {
            assert_eq!(path_group(path), group, "{path}");
        }
    }
}
