//! What a consumer reads.

use std::sync::Arc;

/// One record as it stands on the broker, copied out of the client's buffers.
///
/// The bytes are untouched: nothing is decoded, trimmed or checked here. `Debug` shows where the
/// record stands and how long its parts are, never what is in them.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// The topic's name, shared by all records of one topic.
    pub topic: Arc<str>,
    /// The partition, from 0.
    pub partition: i32,
    /// The offset in the partition: an integer of 64 bits, never a float (listing fault 11).
    pub offset: i64,
    /// The key, or nothing.
    pub key: Option<Vec<u8>>,
    /// The value; nothing is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers in the order of the record. A name may come twice, a value may be missing.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since 1970, as the producer or the broker wrote it; nothing if there is none.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// The first header of that name that has a value.
    ///
    /// ```
    /// # let record = factum_kafka::Record {
    /// #     topic: "orders.confirmed".into(), partition: 0, offset: 7, key: None, value: None,
    /// #     headers: vec![("event-type".to_owned(), Some(b"order.confirmed.v1".to_vec()))],
    /// #     timestamp_ms: None,
    /// # };
    /// assert_eq!(record.header("event-type"), Some(&b"order.confirmed.v1"[..]));
    /// assert_eq!(record.header("traceparent"), None);
    /// ```
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .filter(|(n, _)| n == name)
            .find_map(|(_, value)| value.as_deref())
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("key_bytes", &self.key.as_ref().map(Vec::len))
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .field("headers", &self.headers.len())
            .field("timestamp_ms", &self.timestamp_ms)
            .finish()
    }
}
