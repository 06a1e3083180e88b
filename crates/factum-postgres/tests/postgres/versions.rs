//! An event that supersedes others, in the outbox.

use factum_event::{ConversionError, Event, EventId, TraceContext};
use factum_postgres::{Outbox, PublishError};
use sqlx::Row;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::fixture::Fixture;

#[derive(Debug, Clone, factum_macros::Event)]
#[event(
    kind = "order.shipped.v1",
    aggregate = "Order",
    topic = "orders.shipped-old",
    unlocked
)]
#[event(crate = "factum_event")]
struct OrderShippedV1 {
    #[event(aggregate_id)]
    order_id: String,
    parcels: u8,
}

#[derive(Debug, Clone, factum_macros::Event)]
#[event(
    kind = "order.shipped.v2",
    aggregate = "Order",
    topic = "orders.shipped",
    unlocked,
    supersedes = OrderShippedV1
)]
#[event(crate = "factum_event")]
struct OrderShippedV2 {
    #[event(aggregate_id)]
    order_id: String,
    parcels: u32,
}

#[derive(Debug, Clone, factum_macros::Event)]
#[event(
    kind = "order.shipped.v3",
    aggregate = "Order",
    topic = "orders.shipped",
    unlocked,
    supersedes = OrderShippedV2
)]
#[event(crate = "factum_event")]
struct OrderShipped {
    #[event(aggregate_id)]
    order_id: String,
    parcels: u32,
    carrier: String,
}

impl From<OrderShippedV1> for OrderShippedV2 {
    fn from(v1: OrderShippedV1) -> Self {
        OrderShippedV2 {
            order_id: v1.order_id,
            parcels: v1.parcels.into(),
        }
    }
}

impl TryFrom<&OrderShippedV2> for OrderShippedV1 {
    type Error = ConversionError;
    fn try_from(v2: &OrderShippedV2) -> Result<Self, ConversionError> {
        let parcels = v2.parcels.try_into();
        Ok(OrderShippedV1 {
            order_id: v2.order_id.clone(),
            parcels: parcels.map_err(|_| ConversionError::new("parcels", "at most 255"))?,
        })
    }
}

impl From<OrderShippedV2> for OrderShipped {
    fn from(v2: OrderShippedV2) -> Self {
        OrderShipped {
            order_id: v2.order_id,
            parcels: v2.parcels,
            carrier: "unknown".to_owned(),
        }
    }
}

impl From<&OrderShipped> for OrderShippedV2 {
    fn from(v3: &OrderShipped) -> Self {
        OrderShippedV2 {
            order_id: v3.order_id.clone(),
            parcels: v3.parcels,
        }
    }
}

const AT: OffsetDateTime = datetime!(2026-11-30 12:00:00.123456 UTC);

fn shipped(order: &str, parcels: u32) -> OrderShipped {
    OrderShipped {
        order_id: order.to_owned(),
        parcels,
        carrier: "canary".to_owned(),
    }
}

/// Event id, type, topic, key and trace of each row, in the order in which relays send them.
async fn rows(fixture: &Fixture) -> Vec<(EventId, String, String, String, String)> {
    let rows = sqlx::query(
        "SELECT event_id::text, event_type, topic, key, headers->>'traceparent', headers->>'event-type' \
         FROM outbox ORDER BY id",
    )
    .fetch_all(&mut fixture.connect().await)
    .await
    .unwrap();
    rows.iter()
        .map(|row| {
            assert_eq!(row.get::<String, _>(1), row.get::<String, _>(5));
            (
                row.get::<String, _>(0).parse().unwrap(),
                row.get(1),
                row.get(2),
                row.get(3),
                row.get(4),
            )
        })
        .collect()
}

#[tokio::test]
async fn listing_fault_07_every_version_is_a_row_with_one_id_the_newest_first() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let trace: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        .parse()
        .unwrap();
    let ids = Outbox::new()
        .with_trace(trace)
        .publish_all(
            &mut conn,
            vec![
                shipped("o-1", 1).occurred_at(AT),
                shipped("o-2", 2).occurred_at(AT),
            ],
        )
        .await
        .unwrap();
    let [first, second] = ids[..] else {
        panic!("an id per fact, not per row: {ids:?}")
    };
    let mut expected = Vec::new();
    for (id, key) in [(first, "o-1"), (second, "o-2")] {
        for (kind, topic) in [
            ("order.shipped.v3", "orders.shipped"),
            ("order.shipped.v2", "orders.shipped"),
            ("order.shipped.v1", "orders.shipped-old"),
        ] {
            expected.push((
                id,
                kind.to_owned(),
                topic.to_owned(),
                key.to_owned(),
                trace.to_string(),
            ));
        }
    }
    assert_eq!(rows(&fixture).await, expected);
    let times = "SELECT count(*) FROM outbox WHERE occurred_at = '2026-11-30 12:00:00.123456Z'";
    assert_eq!(fixture.count(times).await, 6);
}

#[tokio::test]
async fn the_versions_of_one_fact_begin_one_trace() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    Outbox::new()
        .publish(&mut conn, shipped("o-1", 1).occurred_at(AT))
        .await
        .unwrap();
    let traces = "SELECT count(DISTINCT headers->>'traceparent') FROM outbox";
    assert_eq!(fixture.count(traces).await, 1);
}

#[tokio::test]
async fn what_the_old_version_cant_say_is_an_error_and_nothing_is_written() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let good = shipped("o-1", 1).occurred_at(AT);
    let bad = shipped("o-2", 256).occurred_at(AT);
    let error = Outbox::new()
        .publish_all(&mut conn, vec![good.clone(), bad])
        .await
        .unwrap_err();
    assert!(matches!(error, PublishError::Version(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "can't publish: order.shipped.v2 can't be written as order.shipped.v1, which it supersedes: `parcels` has no \
         counterpart: expected at most 255; mend the event or the conversion"
    );
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 0);
    // The transaction is sound.
    Outbox::new().publish(&mut conn, good).await.unwrap();
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 3);
}

#[tokio::test]
async fn a_fact_is_published_once_in_whatever_version() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let v3 = shipped("o-1", 1)
        .occurred_at(AT)
        .with_id(factum_postgres::new_event_id());
    Outbox::new().publish(&mut conn, v3.clone()).await.unwrap();
    let v2 = OrderShippedV2::from(v3.event())
        .occurred_at(AT)
        .with_id(v3.id());
    let again = Outbox::new().publish(&mut conn, v3).await.unwrap_err();
    assert!(matches!(again, PublishError::AlreadyPublished), "{again:?}");
    let beside = Outbox::new().publish(&mut conn, v2).await.unwrap_err();
    assert!(
        matches!(beside, PublishError::AlreadyPublished),
        "{beside:?}"
    );
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 3);
}
