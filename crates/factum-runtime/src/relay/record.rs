//! The record of an outbox row.

use factum_kafka::OutgoingRecord;
use factum_postgres::OutboxRow;

use crate::cloud_events::{self, CloudEventsSource};

/// The record of a row: a raw one as it is. Rows of other languages may lack the headers that consumers look at.
pub(super) fn outgoing<'a>(
    row: &'a OutboxRow,
    event_id: &'a str,
    cloud_events: Option<&'a CloudEventsSource>,
) -> OutgoingRecord<'a> {
    if let Some(record) = &row.record {
        return OutgoingRecord {
            topic: &row.topic,
            key: record.key.as_deref(),
            value: (!record.tombstone).then_some(&row.payload),
            headers: record
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_deref()))
                .collect(),
            partition: None,
        };
    }
    let mut headers: Vec<(&str, Option<&[u8]>)> = row
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), Some(value.as_bytes())))
        .collect();
    for (name, value) in [("event-id", event_id), ("event-type", &row.event_type)] {
        if !row.headers.iter().any(|(there, _)| there == name) {
            headers.push((name, Some(value.as_bytes())));
        }
    }
    if let Some(source) = cloud_events {
        let attributes = cloud_events::headers(source, row, event_id);
        headers.extend(attributes.map(|(name, value)| (name, Some(value.as_bytes()))));
    }
    OutgoingRecord {
        topic: &row.topic,
        key: Some(row.key.as_bytes()),
        value: Some(&row.payload),
        headers,
        partition: None,
    }
}
