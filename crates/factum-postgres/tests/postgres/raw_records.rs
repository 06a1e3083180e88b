use std::time::Duration;

use factum_event::Event as _;
use factum_postgres::{
    ClaimLimit, Lease, Outbox, OutboxRow, RawRecord, RecordPurpose, RelayStore, RowRecord, Session,
};
use time::macros::datetime;

use crate::fixture::Fixture;
use crate::outbox::order;

fn record<'a>(key: Option<&'a [u8]>, headers: &'a [(String, Option<Vec<u8>>)]) -> RawRecord<'a> {
    RawRecord {
        purpose: RecordPurpose::Retry,
        topic: "orders.confirmed.retry-1m",
        key,
        value: None,
        headers,
        event_type: "order.confirmed.v1",
    }
}

async fn write(fixture: &Fixture, records: &[RawRecord<'_>]) {
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.begin().await.unwrap();
    let xid = session.transaction_id().await.unwrap();
    for record in records {
        session.send_record(record).await.unwrap();
    }
    session.commit(xid).await.unwrap();
    session.close().await;
}

const LIMIT: ClaimLimit = ClaimLimit {
    rows: 100,
    bytes: 1_000_000,
};

/// In the order of the ids.
async fn claim(store: &RelayStore, lease: &Lease, held_keys: &[String]) -> Vec<OutboxRow> {
    let rows = store.claim(lease, &lease.slots(), LIMIT, held_keys).await;
    let mut rows = rows.unwrap();
    rows.sort_by_key(|row| row.id);
    rows
}

fn store(fixture: &Fixture) -> RelayStore {
    let minute = Duration::from_secs(60);
    RelayStore::new(fixture.db.clone(), "relay".to_owned(), minute)
}

#[tokio::test]
async fn a_raw_record_is_claimed_byte_for_byte_and_the_same_twice_is_two() {
    let fixture = Fixture::new().await;
    let headers = [
        ("event-id".to_owned(), Some(b"\x00\xff".to_vec())),
        ("twice".to_owned(), None),
        ("twice".to_owned(), Some(Vec::new())),
    ];
    let whole = RawRecord {
        value: Some(b"{\x00\xff}"),
        ..record(Some(b"\x00\xff"), &headers)
    };
    let bare = RawRecord {
        purpose: RecordPurpose::DeadLetter,
        event_type: "",
        ..record(None, &[])
    };
    let empty = RawRecord {
        value: Some(b""),
        ..record(Some(b""), &[])
    };
    // The unique key of events, (event_id, event_type), is not in the way of the same record again.
    write(&fixture, &[whole, bare, empty, whole]).await;

    let store = store(&fixture);
    let lease = store.join().await.unwrap();
    let rows = claim(&store, &lease, &[]).await;
    let raw = |key: Option<&[u8]>, headers: &[(String, Option<Vec<u8>>)], tombstone| {
        Some(RowRecord {
            key: key.map(<[u8]>::to_vec),
            headers: headers.to_vec(),
            tombstone,
        })
    };
    let found: Vec<_> = rows.iter().map(|row| row.record.clone()).collect();
    assert_eq!(
        found,
        [
            raw(Some(b"\x00\xff"), &headers, false),
            raw(None, &[], true),
            raw(Some(b""), &[], false),
            raw(Some(b"\x00\xff"), &headers, false),
        ]
    );
    assert_eq!(rows[0].payload, b"{\x00\xff}");
    assert_eq!(rows[0].topic, "orders.confirmed.retry-1m");
}

/// A retry whose topic was deleted holds up the next retry of its key, and nothing else.
#[tokio::test]
async fn a_held_raw_record_holds_up_no_event_of_its_key() {
    let fixture = Fixture::new().await;
    let letter = RawRecord {
        purpose: RecordPurpose::DeadLetter,
        ..record(Some(b"A-1"), &[])
    };
    let retry = record(Some(b"A-1"), &[]);
    write(&fixture, &[retry, letter, retry, record(Some(b"B-1"), &[])]).await;
    let event = order("A-1").occurred_at(datetime!(2026-11-30 12:00 UTC));
    Outbox::new()
        .publish(&mut fixture.connect().await, event)
        .await
        .unwrap();

    let store = store(&fixture);
    let lease = store.join().await.unwrap();
    let rows = claim(&store, &lease, &[]).await;
    assert_eq!(rows.len(), 5);
    let held = [rows[0].key.clone()];
    let left = claim(&store, &lease, &held).await;
    let ids: Vec<i64> = left.iter().map(|row| row.id).collect();
    assert_eq!(ids, [rows[1].id, rows[3].id, rows[4].id]);
}

#[tokio::test]
async fn a_raw_record_goes_with_its_transaction() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.send_record(&record(None, &[])).await.unwrap_err();
    session.begin().await.unwrap();
    session.send_record(&record(None, &[])).await.unwrap();
    session.rollback().await.unwrap();
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 0);
}
