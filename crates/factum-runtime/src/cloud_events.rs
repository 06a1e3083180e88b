//! The attributes of CloudEvents 1.0 as Kafka headers (binary mode), for tools that look for them.
//!
//! The body stays the truth: the attributes repeat what stands in it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use factum_postgres::OutboxRow;
use iri_string::types::UriReferenceStr;

/// Where events come from, as CloudEvents has it: the attribute `source`.
///
/// A URI reference (RFC 3986) that is not empty, of at most 1,024 bytes: `/orders`, `urn:example:orders`,
/// `https://orders.example.com`.
///
/// ```
/// use factum_runtime::CloudEventsSource;
///
/// let source: CloudEventsSource = "/orders".parse()?;
/// assert_eq!(source.as_str(), "/orders");
/// assert!("".parse::<CloudEventsSource>().is_err());
/// assert!("our orders".parse::<CloudEventsSource>().is_err());
/// # Ok::<(), factum_runtime::CloudEventsSourceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEventsSource(Arc<str>);

impl CloudEventsSource {
    /// The most bytes of a source: it stands in every record.
    pub const MAX_BYTES: usize = 1_024;

    /// The URI reference.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text can't be the source of CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a source of CloudEvents: expected a URI reference (RFC 3986) of 1 to 1024 bytes, such as \"/orders\" or \
     \"https://orders.example.com\""
)]
pub struct CloudEventsSourceError;

impl FromStr for CloudEventsSource {
    type Err = CloudEventsSourceError;

    fn from_str(text: &str) -> Result<Self, CloudEventsSourceError> {
        let fits = !text.is_empty() && text.len() <= Self::MAX_BYTES;
        match UriReferenceStr::new(text) {
            Ok(_) if fits => Ok(CloudEventsSource(text.into())),
            _ => Err(CloudEventsSourceError),
        }
    }
}

impl fmt::Display for CloudEventsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The headers of a row, but for those that it has itself.
pub(crate) fn headers<'a>(
    source: &'a CloudEventsSource,
    row: &'a OutboxRow,
    event_id: &'a str,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    let subject = row
        .occasion
        .as_ref()
        .map(|occasion| occasion.aggregate_id.as_str())
        // No attribute may hold one (CloudEvents 1.0, "Type System").
        .filter(|id| !id.chars().any(char::is_control));
    let time = row
        .occasion
        .as_ref()
        .map(|occasion| occasion.occurred_at.as_str());
    [
        ("ce_specversion", Some("1.0")),
        ("ce_id", Some(event_id)),
        ("ce_type", Some(row.event_type.as_str())),
        ("ce_source", Some(source.as_str())),
        ("ce_time", time),
        ("ce_subject", subject),
        ("content-type", Some("application/json")),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .filter(|(name, _)| !row.headers.iter().any(|(there, _)| there == name))
}

#[cfg(test)]
mod tests {
    use factum_postgres::Occasion;
    use sqlx::types::Uuid;

    use super::*;

    fn row(aggregate_id: &str, headers: &[(&str, &str)]) -> OutboxRow {
        OutboxRow {
            id: 1,
            slot: 0,
            event_id: Uuid::nil(),
            event_type: "order.confirmed.v1".to_owned(),
            topic: "orders.confirmed".to_owned(),
            key: "A-1".to_owned(),
            payload: Vec::new(),
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            record: None,
            occasion: Some(Occasion {
                aggregate_id: aggregate_id.to_owned(),
                occurred_at: "2026-06-01T12:00:00.000000Z".to_owned(),
            }),
        }
    }

    #[test]
    fn a_source_is_a_uri_reference() {
        for good in [
            "/orders",
            "urn:example:orders",
            "https://orders.example.com/a?b#c",
            "orders",
            "/%20",
            "?",
        ] {
            assert!(good.parse::<CloudEventsSource>().is_ok(), "{good}");
        }
        let long = "a".repeat(CloudEventsSource::MAX_BYTES + 1);
        for bad in [
            "",
            " ",
            "our orders",
            "/ä",
            "/%2",
            "http://[",
            "a\nb",
            "/\0",
            &long,
        ] {
            assert!(bad.parse::<CloudEventsSource>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_row_s_own_header_wins_over_an_attribute() {
        let source = "/orders".parse().unwrap();
        let row = row("A-1", &[("ce_source", "/mine"), ("other", "x")]);
        let found: Vec<_> = headers(&source, &row, "id").collect();
        assert_eq!(
            found,
            [
                ("ce_specversion", "1.0"),
                ("ce_id", "id"),
                ("ce_type", "order.confirmed.v1"),
                ("ce_time", "2026-06-01T12:00:00.000000Z"),
                ("ce_subject", "A-1"),
                ("content-type", "application/json"),
            ]
        );
    }

    #[test]
    fn an_aggregate_id_that_no_attribute_may_hold_is_left_out() {
        let source = "/orders".parse().unwrap();
        let row = row("A\n1", &[]);
        assert!(headers(&source, &row, "id").all(|(name, _)| name != "ce_subject"));
    }
}
