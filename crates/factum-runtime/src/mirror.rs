//! Dead letters mirrored to `<topic>.dlq`, for a consumer that wants them in Kafka too.
//!
//! The table stays the truth: the mirror is a copy that nothing of Factum reads. It leaves through the outbox, written
//! in the transaction that sets the record aside.

use factum_kafka::{HEADER_BYTES_MAX, HEADERS_MAX, Record};
use factum_postgres::{DatabaseError, RawRecord, RecordPurpose, Session};

use crate::retry_topic::{self, HeaderList};
use crate::worker::Letter;

/// Why the record was set aside: `DeadLetterReason::as_str`.
const REASON: &str = "x-reason";
/// The place inside the value, for poison.
const PATH: &str = "x-path";

/// What a mirrored letter has beside the record's own headers.
const HEADERS: [&str; 10] = [
    REASON,
    PATH,
    retry_topic::CONSUMER,
    retry_topic::ORIGINAL_TOPIC,
    retry_topic::ORIGINAL_PARTITION,
    retry_topic::ORIGINAL_OFFSET,
    retry_topic::ATTEMPT,
    retry_topic::FIRST_FAILURE,
    retry_topic::NOT_BEFORE,
    retry_topic::ERROR,
];

/// Each of the texts in the headers, and each value of the record's own headers: as in `dead_letter`.
const TEXT_BYTES: usize = 1024;
const HEADER_VALUE_BYTES: usize = 4096;
/// What all of the record's own headers may have, so that the letter's own fit beside them.
const OWN_HEADERS: usize = HEADERS_MAX - HEADERS.len();
const OWN_HEADER_BYTES: usize = HEADER_BYTES_MAX - 8 * 1024;

/// The topic that the dead letters of a topic's records are mirrored to.
pub(crate) fn topic_of(published_to: &str) -> String {
    format!("{published_to}.dlq")
}

/// Writes the copy of a letter into the open transaction. `published_to` is where the event was published, and
/// `coordinates` are topic, partition and offset as the letter has them.
pub(crate) async fn send(
    session: &mut Session,
    consumer: &str,
    published_to: &str,
    coordinates: (&str, i32, i64),
    record: &Record,
    letter: &Letter,
) -> Result<(), DatabaseError> {
    let (topic, partition, offset) = coordinates;
    let mut headers = own(record);
    let mut add = |name: &str, value: String| {
        headers.push((name.to_owned(), Some(value.into_bytes())));
    };
    add(REASON, letter.reason.as_str().to_owned());
    if let Some(path) = &letter.path {
        add(PATH, retry_topic::cut(path, TEXT_BYTES));
    }
    add(retry_topic::CONSUMER, consumer.to_owned());
    add(retry_topic::ORIGINAL_TOPIC, topic.to_owned());
    add(retry_topic::ORIGINAL_PARTITION, partition.to_string());
    add(retry_topic::ORIGINAL_OFFSET, offset.to_string());
    add(retry_topic::ATTEMPT, letter.attempts.to_string());
    if let Some(at) = letter.first_failed_at {
        add(retry_topic::FIRST_FAILURE, retry_topic::in_rfc_3339(at));
    }
    add(
        retry_topic::ERROR,
        retry_topic::cut(&letter.error, TEXT_BYTES),
    );
    session
        .send_record(&RawRecord {
            purpose: RecordPurpose::DeadLetter,
            topic: &topic_of(published_to),
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
            event_type: letter.event_type.as_deref().unwrap_or_default(),
        })
        .await
}

/// The record's own headers, as many as fit.
fn own(record: &Record) -> HeaderList {
    let mut headers = retry_topic::without(record, &HEADERS);
    headers.truncate(OWN_HEADERS);
    let mut bytes = 0;
    let mut kept = HeaderList::with_capacity(headers.len() + HEADERS.len());
    for (name, value) in headers {
        let value = value.map(|mut value| {
            value.truncate(HEADER_VALUE_BYTES);
            value
        });
        bytes += name.len() + value.as_ref().map_or(0, Vec::len);
        if bytes > OWN_HEADER_BYTES {
            break;
        }
        kept.push((name, value));
    }
    kept
}
