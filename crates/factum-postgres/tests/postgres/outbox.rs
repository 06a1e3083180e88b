use factum_event::{
    AggregateId, AggregateIdError, EncodeError, Event, EventId, Invalid, ObjectReader,
    ObjectWriter, Poison, TraceContext,
};
use factum_postgres::{MAX_PAYLOAD_BYTES, Outbox, PublishError, new_event_id};
use sqlx::{Connection, Row};
use time::OffsetDateTime;
use time::macros::{date, datetime};

use crate::fixture::{Fixture, swallowed};

#[derive(Debug, Clone, PartialEq, factum_macros::Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked
)]
#[event(crate = "factum_event")]
pub(crate) struct OrderConfirmed {
    #[event(aggregate_id)]
    pub(crate) order_id: String,
    pub(crate) note: String,
}

#[derive(Debug, Clone, PartialEq, factum_macros::Event)]
#[event(
    kind = "order.confirmed.v2",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked
)]
#[event(crate = "factum_event")]
struct OrderConfirmedV2 {
    #[event(aggregate_id)]
    order_id: String,
}

pub(crate) fn order(id: &str) -> OrderConfirmed {
    OrderConfirmed {
        order_id: id.to_owned(),
        note: "ü".to_owned(),
    }
}

const AT: OffsetDateTime = datetime!(2026-11-30 12:00:00.123456 +3);

#[tokio::test]
async fn a_published_event_is_a_row_of_the_callers_transaction() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let id = Outbox::new()
        .publish(&mut tx, order("o-1").occurred_at(AT))
        .await
        .unwrap();
    assert_eq!(
        fixture.count("SELECT count(*) FROM outbox").await,
        0,
        "not before its commit"
    );
    tx.commit().await.unwrap();

    let row = sqlx::query("SELECT *, headers::text AS headers_text FROM outbox")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert_eq!(row.get::<uuid::Uuid, _>("event_id"), id.as_uuid());
    assert_eq!(row.get::<String, _>("event_type"), "order.confirmed.v1");
    assert_eq!(row.get::<String, _>("aggregate_type"), "Order");
    assert_eq!(row.get::<String, _>("aggregate_id"), "o-1");
    assert_eq!(row.get::<String, _>("topic"), "orders.confirmed");
    assert_eq!(row.get::<String, _>("key"), "o-1");
    let payload = order("o-1").occurred_at(AT).with_id(id).encode().unwrap();
    assert_eq!(row.get::<Vec<u8>, _>("payload"), payload);
    assert_eq!(row.get::<OffsetDateTime, _>("occurred_at"), AT);
    assert!((0..64).contains(&row.get::<i16, _>("slot")));
    assert_eq!(row.get::<i32, _>("attempts"), 0);
    for empty in ["not_before", "published_at", "set_aside_at"] {
        assert_eq!(row.get::<Option<OffsetDateTime>, _>(empty), None, "{empty}");
    }

    let headers: serde_json::Value = serde_json::from_str(row.get("headers_text")).unwrap();
    assert_eq!(headers["event-id"], id.to_string());
    assert_eq!(headers["event-type"], "order.confirmed.v1");
    TraceContext::parse(headers["traceparent"].as_str().unwrap()).unwrap();
    assert_eq!(headers.as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn what_is_rolled_back_was_never_published() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let mut tx = conn.begin().await.unwrap();
    Outbox::new()
        .publish(&mut tx, order("o-1").occurred_at(AT))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 0);
}

#[tokio::test]
async fn many_are_published_by_one_statement_and_keep_their_order() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let events: Vec<_> = (0..1_000)
        .rev()
        .map(|n| order(&format!("o-{n}")).occurred_at(AT))
        .collect();
    let ids = Outbox::new().publish_all(&mut conn, events).await.unwrap();
    let rows = sqlx::query("SELECT event_id, key FROM outbox ORDER BY id")
        .fetch_all(&mut conn)
        .await
        .unwrap();
    assert_eq!((ids.len(), rows.len()), (1_000, 1_000));
    for (n, (id, row)) in ids.iter().zip(&rows).enumerate() {
        assert_eq!(row.get::<uuid::Uuid, _>(0), id.as_uuid());
        assert_eq!(row.get::<String, _>(1), format!("o-{}", 999 - n));
    }
    assert!(ids.is_sorted(), "one source of ids");
    let nothing: Vec<factum_event::Occurred<OrderConfirmed>> = Vec::new();
    assert!(
        Outbox::new()
            .publish_all(&mut conn, nothing)
            .await
            .unwrap()
            .is_empty()
    );
    // Keys are spread over the slots.
    assert!(
        fixture
            .count("SELECT count(DISTINCT slot) FROM outbox")
            .await
            > 50
    );
}

#[tokio::test]
async fn a_trace_is_continued() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let outbox = Outbox::new().with_trace(TraceContext::parse(trace).unwrap());
    outbox
        .publish(&mut conn, order("o-1").occurred_at(AT))
        .await
        .unwrap();
    let header: String = sqlx::query_scalar("SELECT headers ->> 'traceparent' FROM outbox")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert_eq!(header, trace);
}

#[tokio::test]
async fn an_envelope_keeps_its_id_and_is_published_once_per_version() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let outbox = Outbox::new();
    let id = new_event_id();
    let envelope = order("o-1").occurred_at(AT).with_id(id);
    assert_eq!(
        outbox.publish(&mut conn, envelope.clone()).await.unwrap(),
        id
    );
    let v2 = OrderConfirmedV2 {
        order_id: "o-1".to_owned(),
    }
    .occurred_at(AT)
    .with_id(id);
    assert_eq!(outbox.publish(&mut conn, v2).await.unwrap(), id);

    let err = outbox.publish(&mut conn, envelope).await.unwrap_err();
    assert!(matches!(err, PublishError::AlreadyPublished), "{err:?}");
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 2);
}

#[tokio::test]
async fn an_event_that_cant_be_sent_is_refused_before_any_statement() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let outbox = Outbox::new();

    let large = OrderConfirmed {
        note: "x".repeat(MAX_PAYLOAD_BYTES),
        ..order("canary-4711")
    };
    let err = outbox
        .publish(&mut tx, large.occurred_at(AT))
        .await
        .unwrap_err();
    assert!(
        matches!(err, PublishError::TooLarge { bytes, limit: MAX_PAYLOAD_BYTES, .. }
        if bytes > MAX_PAYLOAD_BYTES)
    );
    assert!(!err.to_string().contains("canary"), "{err}");

    let err = outbox
        .publish(&mut tx, order("").occurred_at(AT))
        .await
        .unwrap_err();
    assert!(matches!(err, PublishError::Key { .. }), "{err:?}");

    let nul = OrderConfirmed {
        note: "canary-4711\0".to_owned(),
        ..order("o-1")
    };
    let err = outbox
        .publish(&mut tx, nul.occurred_at(AT))
        .await
        .unwrap_err();
    assert!(matches!(err, PublishError::Encode { .. }), "{err:?}");
    assert!(!err.to_string().contains("canary"), "{err}");

    let err = outbox
        .publish(&mut tx, BadTopic.occurred_at(AT))
        .await
        .unwrap_err();
    assert!(
        matches!(
            err,
            PublishError::Topic {
                topic: "no such topic",
                ..
            }
        ),
        "{err:?}"
    );

    // All or nothing.
    let batch = vec![order("o-1").occurred_at(AT), order("").occurred_at(AT)];
    outbox.publish_all(&mut tx, batch).await.unwrap_err();

    // The transaction is as sound as before.
    outbox
        .publish(&mut tx, order("o-1").occurred_at(AT))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 1);
}

#[derive(Debug, factum_macros::Event)]
#[event(
    kind = "order.shipped.v1",
    aggregate = "Order",
    topic = "orders.shipped",
    unlocked,
    validate = leaves_before_it_arrives,
    crate = "factum_event"
)]
struct OrderShipped {
    #[event(aggregate_id)]
    order_id: String,
    #[event(pattern = "[A-Z]{3}-[0-9]{4}")]
    parcel: String,
    left_on: time::Date,
    arrives_on: time::Date,
}

fn leaves_before_it_arrives(shipped: &OrderShipped) -> Result<(), Invalid> {
    if shipped.left_on <= shipped.arrives_on {
        Ok(())
    } else {
        Err(Invalid::new("arrivesOn", "a day not before `leftOn`"))
    }
}

#[tokio::test]
async fn an_event_that_breaks_a_constraint_is_not_published() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let outbox = Outbox::new();
    let shipped = |parcel: &str, arrives_on| OrderShipped {
        order_id: "o-1".to_owned(),
        parcel: parcel.to_owned(),
        left_on: date!(2026 - 11 - 30),
        arrives_on,
    };

    for (bad, text) in [
        (
            shipped("canary-4711", date!(2026 - 12 - 01)),
            "can't publish order.shipped.v1: $.parcel breaks the rule `pattern`: expected text that \
             matches `[A-Z]{3}-[0-9]{4}` as a whole; mend the value before publishing",
        ),
        (
            shipped("ABC-4711", date!(2026 - 11 - 29)),
            "can't publish order.shipped.v1: $.arrivesOn breaks the rule `validate`: expected a day not \
             before `leftOn`; mend the value before publishing",
        ),
    ] {
        let err = outbox
            .publish(&mut tx, bad.occurred_at(AT))
            .await
            .unwrap_err();
        assert!(
            matches!(
                err,
                PublishError::Encode {
                    error: EncodeError::Invalid { .. },
                    ..
                }
            ),
            "{err:?}"
        );
        assert_eq!(err.to_string(), text);
        assert!(!format!("{err:?}").contains("4711"), "{err:?}");
    }
    // Nothing was sent, and the transaction is as sound as before.
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(rows, 0);
    let good = shipped("ABC-4711", date!(2026 - 12 - 01));
    outbox.publish(&mut tx, good.occurred_at(AT)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 1);
}

#[tokio::test]
async fn a_failed_statement_is_described_without_values() {
    let fixture = Fixture::empty().await;
    let mut conn = fixture.connect().await;
    let event = order("canary-4711").occurred_at(AT);
    let err = Outbox::new()
        .publish(&mut conn, event.clone())
        .await
        .unwrap_err();
    let text = format!("{err} {err:?}");
    assert!(
        text.contains("can't write to the outbox: SQLSTATE 42P01"),
        "{text}"
    );
    assert!(text.contains("factum migrate up"), "{text}");
    assert!(!text.contains("canary"), "{text}");

    // In a transaction that had failed before.
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let mut tx = conn.begin().await.unwrap();
    swallowed(&mut tx).await;
    let err = Outbox::new().publish(&mut tx, event).await.unwrap_err();
    assert!(err.to_string().contains("25P02"), "{err}");
}

/// What the derive would refuse.
struct BadTopic;

impl Event for BadTopic {
    const EVENT_TYPE: &'static str = "order.confirmed.v1";
    const AGGREGATE_TYPE: &'static str = "Order";
    const TOPIC: &'static str = "no such topic";
    fn contract() -> factum_event::Contract {
        unreachable!("nobody asks for it")
    }

    fn aggregate_id(&self) -> Result<AggregateId, AggregateIdError> {
        AggregateId::new("o-1")
    }
    fn write_fields(&self, _: &mut ObjectWriter<'_>) -> Result<(), EncodeError> {
        Ok(())
    }
    fn read_fields(_: &ObjectReader<'_>) -> Result<Self, Poison> {
        Ok(Self)
    }
}

#[test]
fn case_56_ids_of_one_process_ascend_from_whatever_thread() {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                (0..10_000)
                    .map(|_| new_event_id())
                    .collect::<Vec<EventId>>()
            })
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        let ids = thread.join().unwrap();
        assert!(ids.is_sorted());
        all.extend(ids);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 40_000);
}
