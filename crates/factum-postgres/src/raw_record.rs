use factum_fault::Point;
use sqlx::PgConnection;

use crate::dead_letter::text;
use crate::event_id::new_event_id;

const EVENT_TYPE_BYTES: usize = 255;
const HEADER_NAME_BYTES: usize = 65_536;
/// So many bytes of a key decide where its row stands in the order.
const ORDER_BYTES: usize = 128;

/// A record that reaches Kafka through the outbox byte for byte, and is no domain event.
///
/// Written by [`Session::send_record`](crate::Session::send_record) in the transaction that answers for the record
/// that it comes from. The relay adds nothing to it. Rows of one key and one purpose leave in order; they don't wait
/// for the key's domain events, nor those for them.
///
/// Limits: a relay sends at most 64 headers of 64 KiB together, and what fits into the topic; a row beyond that is set
/// aside in sight.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    /// Why it is sent.
    pub purpose: RecordPurpose,
    /// The topic.
    pub topic: &'a str,
    /// The key; `None` for none.
    pub key: Option<&'a [u8]>,
    /// The value; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers, in order. A name may come twice, a value may be missing.
    pub headers: &'a [(String, Option<Vec<u8>>)],
    /// The event's type, for people who look at the table; empty if it could not be read.
    pub event_type: &'a str,
}

/// Why a raw record is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordPurpose {
    /// It waits in a retry topic.
    Retry,
    /// A dead letter, mirrored to a topic.
    DeadLetter,
}

impl RecordPurpose {
    /// The name in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            RecordPurpose::Retry => "retry",
            RecordPurpose::DeadLetter => "dead_letter",
        }
    }
}

pub(crate) async fn write(
    conn: &mut PgConnection,
    record: &RawRecord<'_>,
) -> Result<(), sqlx::Error> {
    factum_fault::at(Point::OutboxBefore);
    let id = new_event_id();
    // No client gives a name with a NUL, which PostgreSQL would refuse.
    let names: Vec<String> = record
        .headers
        .iter()
        .map(|(name, _)| text(name.as_str(), HEADER_NAME_BYTES))
        .collect();
    let values: Vec<Option<&[u8]>> = record
        .headers
        .iter()
        .map(|(_, value)| value.as_deref())
        .collect();
    sqlx::query(
        "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, \
                             occurred_at, purpose, record_key, header_names, header_values, tombstone) \
         VALUES ($1, $2, '', $3, $4, $3, $5, clock_timestamp(), $6, $7, $8, $9, $10)",
    )
    .bind(id.as_uuid())
    .bind(text(record.event_type, EVENT_TYPE_BYTES))
    .bind(order_of(record, &id.to_string()))
    .bind(record.topic)
    .bind(record.value.unwrap_or_default())
    .bind(record.purpose.as_str())
    .bind(record.key)
    .bind(names)
    .bind(values)
    .bind(record.value.is_none())
    .execute(conn)
    .await?;
    factum_fault::at(Point::OutboxAfter);
    Ok(())
}

/// What stands in the column `key`: rows with the same text leave in order. The purpose is part of it, so that a row
/// that can't be sent holds up no domain event. A record without a key stands for itself.
fn order_of(record: &RawRecord<'_>, id: &str) -> String {
    use std::fmt::Write as _;

    let mut order = format!("{}:", record.purpose.as_str());
    let Some(key) = record.key else {
        order.push_str(id);
        return order;
    };
    for byte in &key[..key.len().min(ORDER_BYTES)] {
        // A String takes everything.
        let _ = write!(order, "{byte:02x}");
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(purpose: RecordPurpose, key: Option<&[u8]>) -> RawRecord<'_> {
        RawRecord {
            purpose,
            topic: "t",
            key,
            value: None,
            headers: &[],
            event_type: "",
        }
    }

    #[test]
    fn a_key_of_any_bytes_has_an_order_and_no_key_has_its_own() {
        let long = vec![0xff; 100_000];
        let retry = |key| order_of(&record(RecordPurpose::Retry, key), "id");
        assert_eq!(retry(Some(b"A\0\xff")), "retry:4100ff");
        assert_eq!(retry(Some(b"")), "retry:");
        assert_eq!(retry(None), "retry:id");
        assert_eq!(retry(Some(&long)).len(), "retry:".len() + 2 * ORDER_BYTES);
        let letter = record(RecordPurpose::DeadLetter, Some(b"A"));
        assert_eq!(order_of(&letter, "id"), "dead_letter:41");
    }
}
