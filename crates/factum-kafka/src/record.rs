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
    pub headers: Headers,
    /// Milliseconds since 1970, as the producer or the broker wrote it; nothing if there is none.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// The first header of that name that has a value.
    ///
    /// ```
    /// # let record = factum_kafka::Record {
    /// #     topic: "orders.confirmed".into(), partition: 0, offset: 7, key: None, value: None,
    /// #     headers: [("event-type", Some(&b"order.confirmed.v1"[..]))].into_iter().collect(),
    /// #     timestamp_ms: None,
    /// # };
    /// assert_eq!(record.header("event-type"), Some(&b"order.confirmed.v1"[..]));
    /// assert_eq!(record.header("traceparent"), None);
    /// ```
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .filter(|(n, _)| *n == name)
            .find_map(|(_, value)| value)
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

/// Names and values of a record's headers, in their order.
///
/// All names lie in one piece of memory and all values in another: every record has headers, few are ever looked
/// at, and a piece for each of them would cost more than the record's key and value.
///
/// ```
/// # use factum_kafka::Headers;
/// let headers: Headers = [("a", Some(&b"1"[..])), ("b", None)].into_iter().collect();
/// assert_eq!(headers.len(), 2);
/// assert!(headers.iter().eq([("a", Some(&b"1"[..])), ("b", None)]));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    names: String,
    values: Vec<u8>,
    parts: Vec<Part>,
}

/// One header: where its name and its value end; they begin where those before end.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    name_end: usize,
    value_end: usize,
    has_value: bool,
}

impl Headers {
    /// Room for so many, of a usual size.
    pub(crate) fn with_capacity(count: usize) -> Headers {
        /// Factum's own names have up to 11 bytes, its values up to 55.
        const NAME_BYTES: usize = 12;
        const VALUE_BYTES: usize = 56;
        Headers {
            names: String::with_capacity(count * NAME_BYTES),
            values: Vec::with_capacity(count * VALUE_BYTES),
            parts: Vec::with_capacity(count),
        }
    }

    pub(crate) fn push(&mut self, name: &str, value: Option<&[u8]>) {
        self.names.push_str(name);
        self.values.extend_from_slice(value.unwrap_or_default());
        self.parts.push(Part {
            name_end: self.names.len(),
            value_end: self.values.len(),
            has_value: value.is_some(),
        });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Names and values in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut start = (0, 0);
        self.parts.iter().map(move |part| {
            let name = &self.names[start.0..part.name_end];
            let value = &self.values[start.1..part.value_end];
            start = (part.name_end, part.value_end);
            (name, part.has_value.then_some(value))
        })
    }
}

impl<'a> FromIterator<(&'a str, Option<&'a [u8]>)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, Option<&'a [u8]>)>>(from: I) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in from {
            headers.push(name, value);
        }
        headers
    }
}

/// How many, never what.
impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Headers")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let given = [
            ("a", Some(&b"1"[..])),
            ("", Some(b"")),
            ("a", None),
            ("\u{e4}", Some(b"\xff\0")),
        ];
        let headers: Headers = given.into_iter().collect();
        assert!(headers.iter().eq(given));
        assert_eq!(headers.len(), 4);
        let mut roomy = Headers::with_capacity(1);
        for (name, value) in given {
            roomy.push(name, value);
        }
        assert_eq!(roomy, headers);
        assert!(Headers::default().is_empty());
        assert!(!format!("{headers:?}").contains('1'));
    }
}
