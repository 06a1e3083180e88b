//! Parked keys and events: what is stored, in what order, and who excludes whom.

use std::time::Duration;

use factum_event::EventId;
use factum_postgres::DedupVerdict::{Duplicate, Fresh, OutOfWindow, Parked};
use factum_postgres::{
    DueKey, ErrorKind, ParkedRecord, Parking, Session, due_keys, new_event_id, parked_counts,
};

use crate::fixture::Fixture;

const CONSUMER: &str = "billing";
const TOPIC: &str = "orders.confirmed";

type Headers = Vec<(String, Option<Vec<u8>>)>;

fn record<'a>(offset: i64, key: &'a [u8], id: EventId, headers: &'a Headers) -> ParkedRecord<'a> {
    ParkedRecord {
        topic: TOPIC,
        partition: 0,
        offset,
        key,
        keyless: false,
        value: b"\x00\xff{}",
        headers,
        event_id: id,
        event_type: "order.confirmed.v1",
    }
}

fn due(key: &[u8]) -> DueKey {
    DueKey {
        topic: TOPIC.to_owned(),
        key: key.to_vec(),
    }
}

fn at_once(attempts: u32) -> Parking<'static> {
    Parking {
        attempts,
        max_attempts: 8,
        wait: Some(Duration::ZERO),
        error: "not yet",
    }
}

async fn park(session: &mut Session, record: &ParkedRecord<'_>, parking: &Parking<'_>) -> bool {
    session.begin().await.unwrap();
    let xid = session.transaction_id().await.unwrap();
    let now = time::OffsetDateTime::now_utc();
    let added = session.park_key(CONSUMER, record, parking, now).await;
    session.commit(xid).await.unwrap();
    added.unwrap()
}

#[tokio::test]
async fn bytes_headers_and_order_are_kept() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    let headers: Headers = vec![
        ("a".to_owned(), Some(b"\x00\xfe".to_vec())),
        ("b".to_owned(), None),
        ("a".to_owned(), Some(Vec::new())),
    ];
    let one: Headers = vec![("c".to_owned(), Some(b"1".to_vec()))];
    assert!(
        park(
            &mut session,
            &record(7, b"k\xff", new_event_id(), &headers),
            &at_once(1)
        )
        .await
    );
    session.begin().await.unwrap();
    let ids = [new_event_id(), new_event_id(), new_event_id()];
    let key = b"k\xff".as_slice();
    // The ids' order isn't the records': theirs counts.
    let rows = [
        record(8, key, ids[2], &one),
        record(9, key, ids[0], &none),
        record(10, key, ids[1], &headers),
    ];
    let events: Vec<(EventId, &[u8])> = rows.iter().map(|row| (row.event_id, row.key)).collect();
    let dedup = session.dedup_unless_parked(CONSUMER, TOPIC, &events).await;
    let dedup = dedup.unwrap();
    assert_eq!(dedup.verdicts, [Parked, Parked, Parked]);
    let behind = session
        .park_behind(CONSUMER, TOPIC, &rows, Some(10))
        .await
        .unwrap();
    assert_eq!((behind.added, behind.full), (3, false));
    session.commit(dedup.xid).await.unwrap();
    let head = session.parked_events(CONSUMER, &due(key), 9).await;
    let head = head.unwrap().unwrap();
    let offsets: Vec<i64> = head.events.iter().map(|e| e.offset).collect();
    assert_eq!(offsets, [7, 8, 9, 10]);
    let kept: Vec<&Headers> = head.events.iter().map(|e| &e.headers).collect();
    assert_eq!(kept, [&headers, &one, &none, &headers]);
    assert!(head.events.iter().all(|e| e.value == b"\x00\xff{}"));
    assert!(head.events[0].first_failed_at.is_some() && head.events[1].first_failed_at.is_none());
    assert_eq!(fixture.processed().await, 0);
}

#[tokio::test]
async fn one_statement_tells_fresh_duplicate_parked_and_out_of_window() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    let [handled, waiting, fresh] = [new_event_id(), new_event_id(), new_event_id()];
    fixture.handle(CONSUMER, &[handled]).await;
    let none = Headers::new();
    park(
        &mut session,
        &record(1, b"p", new_event_id(), &none),
        &at_once(1),
    )
    .await;
    let old: EventId = "01700000-0000-7000-8000-000000000001".parse().unwrap();
    session.begin().await.unwrap();
    let events = [
        (handled, b"a".as_slice()),
        (waiting, b"p"),
        (old, b"a"),
        (handled, b"p"),
        (fresh, b"a"),
    ];
    let dedup = session.dedup_unless_parked(CONSUMER, TOPIC, &events).await;
    let dedup = dedup.unwrap();
    assert_eq!(
        dedup.verdicts,
        [Duplicate, Parked, OutOfWindow, Parked, Fresh]
    );
    // Of the events of a parked key the one that was handled doesn't wait.
    let rows = [
        record(2, b"p", waiting, &none),
        record(3, b"p", handled, &none),
    ];
    let behind = session
        .park_behind(CONSUMER, TOPIC, &rows, Some(10))
        .await
        .unwrap();
    assert_eq!(behind.processed, [false, true]);
    assert_eq!(behind.added, 1);
    session.commit(dedup.xid).await.unwrap();
    // Another topic and another consumer know nothing of it.
    session.begin().await.unwrap();
    let events = [(new_event_id(), b"p".as_slice())];
    let dedup = session
        .dedup_unless_parked(CONSUMER, "other", &events)
        .await;
    assert_eq!(dedup.unwrap().verdicts, [Fresh]);
    session.rollback().await.unwrap();
    session.begin().await.unwrap();
    let dedup = session
        .dedup_unless_parked("shipping", TOPIC, &events)
        .await;
    assert_eq!(dedup.unwrap().verdicts, [Fresh]);
}

#[tokio::test]
async fn the_limit_of_a_key_counts_what_waits_already() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    park(
        &mut session,
        &record(1, b"p", new_event_id(), &none),
        &at_once(1),
    )
    .await;
    for (offsets, full) in [(2..=3, false), (2..=4, true)] {
        session.begin().await.unwrap();
        let rows: Vec<ParkedRecord<'_>> = offsets
            .map(|offset| record(offset, b"p", new_event_id(), &none))
            .collect();
        let behind = session
            .park_behind(CONSUMER, TOPIC, &rows, Some(3))
            .await
            .unwrap();
        assert_eq!(behind.full, full);
        session.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_key_is_freed_neither_under_a_lane_nor_with_events_behind_it() {
    let fixture = Fixture::new().await;
    let mut lane = Session::open(&fixture.db).await.unwrap();
    let mut retrier = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    park(
        &mut lane,
        &record(1, b"p", new_event_id(), &none),
        &at_once(1),
    )
    .await;
    let key = due(b"p");
    // An event waits.
    retrier.begin().await.unwrap();
    assert!(retrier.lock_parked_key(CONSUMER, &key).await.unwrap());
    assert!(!retrier.free_parked_key(CONSUMER, &key).await.unwrap());
    retrier.rollback().await.unwrap();
    // A lane knows the key as parked: the retrier doesn't wait, it passes by.
    lane.begin().await.unwrap();
    let events = [(new_event_id(), b"p".as_slice())];
    let dedup = lane.dedup_unless_parked(CONSUMER, TOPIC, &events).await;
    assert_eq!(dedup.unwrap().verdicts, [Parked]);
    retrier.begin().await.unwrap();
    assert!(!retrier.lock_parked_key(CONSUMER, &key).await.unwrap());
    retrier.rollback().await.unwrap();
    // So does one that parks a first failure of a key that is parked already.
    lane.rollback().await.unwrap();
    lane.begin().await.unwrap();
    let now = time::OffsetDateTime::now_utc();
    let again = record(2, b"p", new_event_id(), &none);
    assert!(
        lane.park_key(CONSUMER, &again, &at_once(9), now)
            .await
            .unwrap()
    );
    retrier.begin().await.unwrap();
    assert!(!retrier.lock_parked_key(CONSUMER, &key).await.unwrap());
    retrier.rollback().await.unwrap();
    lane.rollback().await.unwrap();
}

#[tokio::test]
async fn a_lane_does_not_wait_for_a_retriers_handler() {
    let fixture = Fixture::new().await;
    let mut lane = Session::open(&fixture.db).await.unwrap();
    let mut retrier = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    let first = new_event_id();
    park(&mut lane, &record(1, b"p", first, &none), &at_once(1)).await;
    let head = retrier.parked_events(CONSUMER, &due(b"p"), 1).await;
    let head = head.unwrap().unwrap();
    retrier.begin().await.unwrap();
    assert!(
        retrier
            .claim_parked(CONSUMER, &due(b"p"), &head)
            .await
            .unwrap()
    );
    // Its handler runs. The lane queues the next event and the same one again, and commits.
    let next = new_event_id();
    lane.begin().await.unwrap();
    let events = [(first, b"p".as_slice()), (next, b"p")];
    let dedup = lane.dedup_unless_parked(CONSUMER, TOPIC, &events).await;
    let dedup = dedup.unwrap();
    let rows = [record(1, b"p", first, &none), record(2, b"p", next, &none)];
    let behind = lane
        .park_behind(CONSUMER, TOPIC, &rows, Some(9))
        .await
        .unwrap();
    assert_eq!(behind.added, 1);
    lane.commit(dedup.xid).await.unwrap();
    retrier.rollback().await.unwrap();
}

#[tokio::test]
async fn a_claim_finds_out_what_another_retrier_did() {
    let fixture = Fixture::new().await;
    let mut one = Session::open(&fixture.db).await.unwrap();
    let mut two = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    park(
        &mut one,
        &record(1, b"p", new_event_id(), &none),
        &at_once(1),
    )
    .await;
    let key = due(b"p");
    let head = two.parked_events(CONSUMER, &key, 1).await.unwrap().unwrap();
    assert_eq!(
        due_keys(&fixture.db, CONSUMER, 9).await.unwrap(),
        std::slice::from_ref(&key)
    );
    // It has it.
    one.begin().await.unwrap();
    let xid = one.transaction_id().await.unwrap();
    assert!(one.claim_parked(CONSUMER, &key, &head).await.unwrap());
    two.begin().await.unwrap();
    assert!(!two.claim_parked(CONSUMER, &key, &head).await.unwrap());
    two.rollback().await.unwrap();
    // It failed with it: the attempts are others, though the event is the same and due.
    one.park_again(CONSUMER, &key, &head, &at_once(2))
        .await
        .unwrap();
    one.commit(xid).await.unwrap();
    two.begin().await.unwrap();
    assert!(!two.claim_parked(CONSUMER, &key, &head).await.unwrap());
    two.rollback().await.unwrap();
    let head = two.parked_events(CONSUMER, &key, 1).await.unwrap().unwrap();
    assert_eq!(head.attempts, 2);
    // It holds it.
    two.begin().await.unwrap();
    let xid = two.transaction_id().await.unwrap();
    assert!(two.claim_parked(CONSUMER, &key, &head).await.unwrap());
    let hold = Parking {
        attempts: 3,
        max_attempts: 8,
        wait: None,
        error: "still",
    };
    two.park_again(CONSUMER, &key, &head, &hold).await.unwrap();
    two.commit(xid).await.unwrap();
    assert_eq!(due_keys(&fixture.db, CONSUMER, 9).await.unwrap(), []);
    let counts = parked_counts(&fixture.db, CONSUMER, 9).await.unwrap();
    assert_eq!((counts.events, counts.keys, counts.held), (1, 1, 1));
    let held = one.parked_events(CONSUMER, &key, 1).await.unwrap().unwrap();
    one.begin().await.unwrap();
    assert!(!one.claim_parked(CONSUMER, &key, &held).await.unwrap());
    one.rollback().await.unwrap();
}

#[tokio::test]
async fn parking_needs_an_open_transaction() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    let none = Headers::new();
    let row = record(1, b"p", new_event_id(), &none);
    let now = time::OffsetDateTime::now_utc();
    let err = session
        .park_key(CONSUMER, &row, &at_once(1), now)
        .await
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Other);
    session
        .park_behind(CONSUMER, TOPIC, &[row], Some(1))
        .await
        .unwrap_err();
    session
        .lock_parked_key(CONSUMER, &due(b"p"))
        .await
        .unwrap_err();
}
