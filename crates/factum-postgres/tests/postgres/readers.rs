use factum_postgres::{EventReader, Reading, ReadingConsumer, event_readers, record_readers};
use time::OffsetDateTime;
use time::macros::datetime;

use crate::fixture::Fixture;

fn reading<'a>(event_type: &'a str, taken_as: &'a str) -> Reading<'a> {
    Reading {
        event_type,
        taken_as,
        newest: "order.confirmed.v2",
        topic: "orders.confirmed",
        taken: 0,
        duplicates: 0,
        last_taken_at: None,
    }
}

const V1: &str = "order.confirmed.v1";
const V2: &str = "order.confirmed.v2";
const AT: OffsetDateTime = datetime!(2026-06-01 12:00:00.123456 UTC);

fn consumer(group: &'static str) -> ReadingConsumer<'static> {
    ReadingConsumer {
        name: "billing-orders",
        group,
        retry_horizon: std::time::Duration::from_secs(4023),
        foreign_days: Some(30),
    }
}

async fn read(fixture: &Fixture) -> Vec<EventReader> {
    event_readers(&fixture.db).await.unwrap()
}

#[tokio::test]
async fn what_a_consumer_takes_adds_up() {
    let fixture = Fixture::new().await;
    let both = [reading(V1, V2), reading(V2, V2)];
    record_readers(&fixture.db, &consumer("billing-orders"), &both)
        .await
        .unwrap();
    let first = read(&fixture).await;
    let told: Vec<_> = first
        .iter()
        .map(|r| {
            (
                r.event_type.as_str(),
                r.taken_as.as_str(),
                r.taken,
                r.last_taken_at,
            )
        })
        .collect();
    assert_eq!(told, [(V1, V2, 0, None), (V2, V2, 0, None)]);
    assert_eq!(first[0].declared_at, first[0].seen_at);

    // Some effects, then a time without any: the last one stays known.
    let some = [Reading {
        taken: 5,
        duplicates: 2,
        last_taken_at: Some(AT),
        ..reading(V1, V2)
    }];
    for readings in [&some[..], &both, &some] {
        record_readers(&fixture.db, &consumer("billing-renamed"), readings)
            .await
            .unwrap();
    }
    let [v1, v2] = &read(&fixture).await[..] else {
        panic!("a row per type of records")
    };
    assert_eq!(
        (v1.taken, v1.duplicates, v1.last_taken_at),
        (10, 4, Some(AT))
    );
    assert_eq!((v2.taken, v2.last_taken_at), (0, None));
    assert_eq!(v1.consumer_group, "billing-renamed");
    assert_eq!(
        (v1.retry_horizon.as_secs(), v1.foreign_days),
        (4023, Some(30))
    );
    assert_eq!(v1.declared_at, first[0].declared_at);
    assert!(v1.seen_at > first[0].seen_at);
}

#[tokio::test]
async fn code_of_another_generation_has_rows_of_its_own() {
    let fixture = Fixture::new().await;
    let old = [Reading {
        newest: V1,
        ..reading(V1, V1)
    }];
    for readings in [&old[..], &[reading(V1, V2), reading(V2, V2)]] {
        record_readers(&fixture.db, &consumer("billing-orders"), readings)
            .await
            .unwrap();
    }
    assert_eq!(read(&fixture).await.len(), 3);
}

#[tokio::test]
async fn instances_that_speak_at_once_dont_deadlock() {
    let fixture = Fixture::new().await;
    let running: Vec<_> = (0..8)
        .map(|instance| {
            let db = fixture.db.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let one = |kind| Reading {
                        taken: 1,
                        ..reading(kind, V2)
                    };
                    let mut both = [one(V1), one(V2)];
                    if instance % 2 == 0 {
                        both.reverse();
                    }
                    record_readers(&db, &consumer("billing-orders"), &both)
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for one in running {
        one.await.unwrap();
    }
    let taken: Vec<u64> = read(&fixture).await.iter().map(|r| r.taken).collect();
    assert_eq!(taken, [160, 160]);
}
