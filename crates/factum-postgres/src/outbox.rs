use factum_event::{
    AggregateIdError, EncodeError, Envelope, Event, EventId, Occurred, TraceContext, VersionError,
    VersionVisitor,
};
use factum_fault::Point;
use sqlx::PgConnection;
use sqlx::postgres::PgDatabaseError;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::{self, DatabaseError};
use crate::event_id::{new_event_id, random};

/// The largest payload that [`Outbox::publish`] takes, in bytes: what a broker's default
/// `message.max.bytes` of 1,048,588 holds, with room for key, headers and framing.
pub const MAX_PAYLOAD_BYTES: usize = 900_000;

/// Kafka's own limit on a topic's name.
const MAX_TOPIC_BYTES: usize = 249;

/// The door for domain events (PROD-4): `publish` writes a row of table `outbox` into the caller's
/// transaction, and a relay sends it to Kafka after the transaction was committed.
///
/// It never begins or commits a transaction. With a bare connection, each call commits on its own.
///
/// An event that supersedes others (`#[event(…, supersedes = …)]`) is written in each of its versions, the newest
/// first, in one statement: one row per version, each for its own topic, with the same event id, key and time, so
/// that a consumer acts once whichever it takes (listing fault 7).
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum::Event as _;
/// # use factum_macros::Event;
/// # #[derive(Event)]
/// # #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
/// # pub struct OrderConfirmed {
/// #     #[event(aggregate_id)]
/// #     order_id: u32,
/// # }
/// use factum_postgres::{Outbox, PgConnection, PublishError};
/// use time::OffsetDateTime;
///
/// async fn confirm(
///     tx: &mut PgConnection, // a transaction that also holds the order's new state
///     outbox: &Outbox,
///     order: OrderConfirmed,
///     confirmed_at: OffsetDateTime,
/// ) -> Result<(), PublishError> {
///     let event_id = outbox.publish(tx, order.occurred_at(confirmed_at)).await?;
///     println!("will be sent as {event_id}");
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    trace: Option<TraceContext>,
}

/// An event on its way into the outbox: `Occurred` gets a new id, `Envelope` keeps its own.
#[derive(Debug, Clone)]
pub struct Publication<E>(Source<E>);

#[derive(Debug, Clone)]
enum Source<E> {
    Occurred(Occurred<E>),
    Envelope(Envelope<E>),
}

impl<E> From<Occurred<E>> for Publication<E> {
    fn from(occurred: Occurred<E>) -> Self {
        Self(Source::Occurred(occurred))
    }
}

impl<E> From<Envelope<E>> for Publication<E> {
    fn from(envelope: Envelope<E>) -> Self {
        Self(Source::Envelope(envelope))
    }
}

/// Why an event wasn't written to the outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The event can't be written as JSON without loss.
    #[error("can't publish {event_type}: {error}")]
    Encode {
        /// The event's type.
        event_type: &'static str,
        /// What can't be written, by path.
        #[source]
        error: EncodeError,
    },
    /// The payload is larger than [`MAX_PAYLOAD_BYTES`].
    #[error(
        "can't publish {event_type}: its payload has {bytes} bytes, the limit is {limit}; put the \
         bulk elsewhere and a reference to it into the event"
    )]
    TooLarge {
        /// The event's type.
        event_type: &'static str,
        /// The payload's size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The event's declared topic isn't a legal Kafka topic name (OBX-3).
    #[error(
        "can't publish {event_type}: topic {topic:?} isn't a legal name: 1 to 249 of a-z A-Z 0-9 . \
         _ -; correct the event's declaration"
    )]
    Topic {
        /// The event's type.
        event_type: &'static str,
        /// The declared topic.
        topic: &'static str,
    },
    /// The event has no key: its aggregate id can't be one (PROD-2).
    #[error("can't publish {event_type}: {error}")]
    Key {
        /// The event's type.
        event_type: &'static str,
        /// Why.
        #[source]
        error: AggregateIdError,
    },
    /// The event can't be written as one of the versions that it supersedes (EVT-3). Nothing was written, neither
    /// of the older version nor of the new one.
    #[error("can't publish: {0}")]
    Version(#[from] VersionError),
    /// An event of this type with this id is in the outbox already. The caller's transaction has
    /// failed.
    #[error(
        "can't publish: an event with the same event id and type is in the outbox already \
         (IDEM-1); publish each envelope once"
    )]
    AlreadyPublished,
    /// The statement failed, and with it the caller's transaction.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Outbox {
    /// An outbox whose events each begin a new trace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An outbox whose events continue this trace (OBS-3): header `traceparent`.
    ///
    /// ```
    /// use factum_event::TraceContext;
    /// use factum_postgres::Outbox;
    ///
    /// let trace = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    /// let outbox = Outbox::new().with_trace(trace.unwrap());
    /// ```
    #[must_use]
    pub fn with_trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Writes one event into the caller's transaction and gives its id.
    ///
    /// # Errors
    /// See [`PublishError`]. After `AlreadyPublished` and `Database` the transaction has failed;
    /// after the others nothing was sent.
    pub async fn publish<E: Event>(
        &self,
        conn: &mut PgConnection,
        what: impl Into<Publication<E>>,
    ) -> Result<EventId, PublishError> {
        let mut rows = Vec::new();
        let id = self.add(&mut rows, what.into())?;
        insert(conn, rows).await?;
        Ok(id)
    }

    /// Writes events into the caller's transaction with one statement, and gives their ids in
    /// order. Relays send the events of one key in this order. Nothing to do for an empty list.
    ///
    /// # Errors
    /// See [`PublishError`]; it is all or nothing.
    pub async fn publish_all<E: Event>(
        &self,
        conn: &mut PgConnection,
        what: Vec<impl Into<Publication<E>>>,
    ) -> Result<Vec<EventId>, PublishError> {
        let mut rows = Vec::new();
        let ids = what
            .into_iter()
            .map(|publication| self.add(&mut rows, publication.into()))
            .collect::<Result<Vec<EventId>, PublishError>>()?;
        if !ids.is_empty() {
            insert(conn, rows).await?;
        }
        Ok(ids)
    }

    /// Adds a row for every version of the event.
    fn add<E: Event>(
        &self,
        rows: &mut Vec<Row>,
        publication: Publication<E>,
    ) -> Result<EventId, PublishError> {
        let envelope = match publication.0 {
            Source::Envelope(envelope) => envelope,
            Source::Occurred(occurred) => occurred.with_id(new_event_id()),
        };
        let trace = self.trace.unwrap_or_else(new_trace).to_string();
        envelope.visit_versions(&mut Versions { rows, trace })?;
        Ok(envelope.id())
    }
}

/// Makes a row of each version of one event.
struct Versions<'a> {
    rows: &'a mut Vec<Row>,
    /// One fact, one trace.
    trace: String,
}

impl VersionVisitor for Versions<'_> {
    type Error = PublishError;

    fn version<E: Event>(&mut self, envelope: &Envelope<E>) -> Result<(), PublishError> {
        let event_type = E::EVENT_TYPE;
        if !is_legal_topic(E::TOPIC) {
            return Err(PublishError::Topic {
                event_type,
                topic: E::TOPIC,
            });
        }
        let key = envelope
            .aggregate_id()
            .map_err(|error| PublishError::Key { event_type, error })?
            .into_string();
        let payload = envelope
            .encode()
            .map_err(|error| PublishError::Encode { event_type, error })?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(PublishError::TooLarge {
                event_type,
                bytes: payload.len(),
                limit: MAX_PAYLOAD_BYTES,
            });
        }
        let event_id = envelope.id();
        let headers = serde_json::json!({
            "event-id": event_id.to_string(),
            "event-type": event_type,
            "traceparent": self.trace,
        });
        self.rows.push(Row {
            event_id,
            event_type,
            aggregate_type: E::AGGREGATE_TYPE,
            topic: E::TOPIC,
            key,
            payload,
            headers: headers.to_string(),
            occurred_at: envelope.occurred_at(),
        });
        Ok(())
    }
}

struct Row {
    event_id: EventId,
    event_type: &'static str,
    aggregate_type: &'static str,
    topic: &'static str,
    /// The aggregate id as text.
    key: String,
    payload: Vec<u8>,
    headers: String,
    occurred_at: OffsetDateTime,
}

async fn insert(conn: &mut PgConnection, rows: Vec<Row>) -> Result<(), PublishError> {
    factum_fault::at(Point::OutboxBefore);
    let mut ids: Vec<Uuid> = Vec::with_capacity(rows.len());
    let mut types: Vec<&str> = Vec::with_capacity(rows.len());
    let mut aggregates: Vec<&str> = Vec::with_capacity(rows.len());
    let mut topics: Vec<&str> = Vec::with_capacity(rows.len());
    let mut keys: Vec<String> = Vec::with_capacity(rows.len());
    let mut payloads: Vec<Vec<u8>> = Vec::with_capacity(rows.len());
    let mut headers: Vec<String> = Vec::with_capacity(rows.len());
    let mut times: Vec<OffsetDateTime> = Vec::with_capacity(rows.len());
    for row in rows {
        ids.push(row.event_id.as_uuid());
        types.push(row.event_type);
        aggregates.push(row.aggregate_type);
        topics.push(row.topic);
        keys.push(row.key);
        payloads.push(row.payload);
        headers.push(row.headers);
        times.push(row.occurred_at);
    }
    // The sort comes before the identity's nextval, so ids follow the given order.
    sqlx::query(
        "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, \
                             payload, headers, occurred_at) \
         SELECT event_id, event_type, aggregate_type, key, topic, key, payload, headers::jsonb, \
                occurred_at \
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], \
                     $7::text[], $8::timestamptz[]) WITH ORDINALITY \
              AS given (event_id, event_type, aggregate_type, topic, key, payload, headers, \
                        occurred_at, place) \
         ORDER BY place",
    )
    .bind(ids)
    .bind(types)
    .bind(aggregates)
    .bind(topics)
    .bind(keys)
    .bind(payloads)
    .bind(headers)
    .bind(times)
    .execute(conn)
    .await
    .map_err(|err| {
        // A trigger on the outbox may meet the constraints of other tables.
        let of_outbox = error::answer(&err).and_then(PgDatabaseError::table) == Some("outbox");
        if of_outbox && error::code(&err) == "23505" {
            PublishError::AlreadyPublished
        } else {
            PublishError::Database(DatabaseError::new("write to the outbox", &err))
        }
    })?;
    factum_fault::at(Point::OutboxAfter);
    Ok(())
}

fn is_legal_topic(topic: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_TOPIC_BYTES).contains(&topic.len())
        && topic.bytes().all(legal)
        && !matches!(topic, "." | "..")
}

fn new_trace() -> TraceContext {
    loop {
        // Refused once in 2^64: an id of zeros.
        if let Some(trace) = TraceContext::new(random(), random(), false) {
            return trace;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_those_of_kafka() {
        assert!(is_legal_topic("orders.confirmed_v-1"));
        assert!(is_legal_topic(&"t".repeat(249)));
        for topic in ["", ".", "..", "a b", "ä", &"t".repeat(250)] {
            assert!(!is_legal_topic(topic), "{topic:?}");
        }
    }
}
