use std::time::{Duration, Instant};

use factum_event::Event;
use factum_postgres::{Lease, Outbox, OutboxRow, RelayStore, SLOTS};
use sqlx::Connection;
use time::macros::datetime;

use crate::fixture::{Fixture, LIMIT};
use crate::outbox::order;

const MINUTE: Duration = Duration::from_secs(60);

fn store(fixture: &Fixture, owner: &str, lease: Duration) -> RelayStore {
    RelayStore::new(fixture.db.clone(), owner.to_owned(), lease)
}

async fn publish(fixture: &Fixture, keys: &[&str]) {
    let events = keys
        .iter()
        .map(|key| order(key).occurred_at(datetime!(2026-11-30 12:00 UTC)))
        .collect();
    Outbox::new()
        .publish_all::<crate::outbox::OrderConfirmed>(&mut fixture.connect().await, events)
        .await
        .unwrap();
}

async fn claim(store: &RelayStore, lease: &Lease) -> Vec<OutboxRow> {
    store.claim(lease, 100, &[]).await.unwrap()
}

fn keys(rows: &[OutboxRow]) -> Vec<&str> {
    rows.iter().map(|row| row.key.as_str()).collect()
}

#[tokio::test]
async fn a_claim_gives_unpublished_rows_in_order_and_whole() {
    let fixture = Fixture::new().await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.acquire().await.unwrap().unwrap();
    assert_eq!(lease.slots().len(), usize::from(SLOTS));
    assert!(lease.slots().iter().copied().eq(0..64));

    publish(&fixture, &["a", "b", "a", "c"]).await;
    let rows = claim(&store, &lease).await;
    assert_eq!(keys(&rows), ["a", "b", "a", "c"]);
    assert!(rows.is_sorted_by_key(|row| row.id));
    assert_eq!(rows[0].topic, "orders.confirmed");
    assert_eq!(rows[0].event_type, "order.confirmed.v1");
    let id = rows[0].event_id.to_string();
    assert!(
        rows[0]
            .headers
            .contains(&("event-id".to_owned(), id.clone()))
    );
    assert!(String::from_utf8_lossy(&rows[0].payload).contains(&id));

    assert_eq!(
        keys(&store.claim(&lease, 2, &[]).await.unwrap()),
        ["a", "b"]
    );
    let held = ["a".to_owned()];
    assert_eq!(
        keys(&store.claim(&lease, 100, &held).await.unwrap()),
        ["b", "c"]
    );

    let marked = store
        .mark_published(&lease, &[rows[0].id, rows[1].id])
        .await
        .unwrap();
    assert_eq!(marked, 2);
    assert_eq!(keys(&claim(&store, &lease).await), ["a", "c"]);
    // Once.
    assert_eq!(
        store.mark_published(&lease, &[rows[0].id]).await.unwrap(),
        0
    );
    assert_eq!(store.mark_published(&lease, &[]).await.unwrap(), 0);
    let published = "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL";
    assert_eq!(fixture.count(published).await, 2);
}

#[tokio::test]
async fn case_14_a_row_that_commits_late_is_published_too() {
    let fixture = Fixture::new().await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.acquire().await.unwrap().unwrap();
    let at = datetime!(2026-11-30 12:00 UTC);

    let mut late = fixture.connect().await;
    let mut tx = late.begin().await.unwrap();
    Outbox::new()
        .publish(&mut tx, order("late").occurred_at(at))
        .await
        .unwrap();
    publish(&fixture, &["early"]).await;

    let rows = claim(&store, &lease).await;
    assert_eq!(keys(&rows), ["early"]);
    store.mark_published(&lease, &[rows[0].id]).await.unwrap();
    tx.commit().await.unwrap();

    let later = claim(&store, &lease).await;
    assert_eq!(keys(&later), ["late"]);
    assert!(later[0].id < rows[0].id, "the lower id came later");
    store.mark_published(&lease, &[later[0].id]).await.unwrap();
    let unpublished = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
    assert_eq!(fixture.count(unpublished).await, 0);
}

#[tokio::test]
async fn case_16_one_relay_at_a_time_and_a_stale_one_does_nothing() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a", "a", "a"]).await;
    // Relay 1 claims A1 and A2, and is stopped.
    let short = Duration::from_millis(300);
    let (one, two) = (
        store(&fixture, "one", short),
        store(&fixture, "two", MINUTE),
    );
    let old = one.acquire().await.unwrap().unwrap();
    let claimed = one.claim(&old, 2, &[]).await.unwrap();
    assert_eq!(claimed.len(), 2);
    assert!(
        two.acquire().await.unwrap().is_none(),
        "relay 2 must not send A3"
    );

    // The lease ends by itself.
    let mut lease = None;
    factum_testing::eventually(LIMIT, "the end of the lease", async || {
        lease = two.acquire().await.unwrap();
        lease.is_some()
    })
    .await;
    let mut new = lease.unwrap();
    assert!(
        Instant::now() >= old.expires_at(),
        "and not before relay 1 knew of it"
    );
    assert!(new.token() > old.token());
    assert_eq!(two.claim(&new, 10, &[]).await.unwrap().len(), 3);

    // Relay 1 goes on where it was: all in vain.
    let mut old = old;
    assert!(one.claim(&old, 10, &[]).await.unwrap().is_empty());
    assert_eq!(one.mark_published(&old, &[claimed[0].id]).await.unwrap(), 0);
    assert_eq!(
        one.record_failure(&old, claimed[0].id, "late")
            .await
            .unwrap(),
        0
    );
    one.set_aside(&old, claimed[0].id, "late").await.unwrap();
    assert!(!one.renew(&mut old).await.unwrap());
    one.release(old).await.unwrap();
    assert_eq!(two.claim(&new, 10, &[]).await.unwrap().len(), 3);
    assert!(two.renew(&mut new).await.unwrap());
}

#[tokio::test]
async fn of_many_relays_that_start_at_once_one_gets_the_lease() {
    let fixture = Fixture::new().await;
    for round in 1..=5 {
        let stores: Vec<_> = (0..8)
            .map(|n| store(&fixture, &format!("relay-{n}"), MINUTE))
            .collect();
        let asking: Vec<_> = stores
            .iter()
            .cloned()
            .map(|store| tokio::spawn(async move { store.acquire().await.unwrap() }))
            .collect();
        let mut leases = Vec::new();
        for (store, asking) in stores.iter().zip(asking) {
            leases.extend(asking.await.unwrap().map(|lease| (store, lease)));
        }
        assert_eq!(leases.len(), 1);
        let (store, lease) = leases.remove(0);
        assert_eq!((lease.slots().len(), lease.token()), (64, round));
        // Released, it is free at once.
        store.release(lease).await.unwrap();
    }
}

#[tokio::test]
async fn a_renewed_lease_lasts_and_an_expired_one_claims_nothing() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a"]).await;
    let mut lease = store(&fixture, "relay", Duration::from_millis(1))
        .acquire()
        .await
        .unwrap()
        .unwrap();
    let store = store(&fixture, "relay", MINUTE);
    factum_testing::eventually(LIMIT, "the end of the lease", async || {
        store.claim(&lease, 10, &[]).await.unwrap().is_empty()
    })
    .await;
    // Nobody took it meanwhile.
    let before = Instant::now();
    assert!(store.renew(&mut lease).await.unwrap());
    assert!(lease.expires_at() >= before + MINUTE - Duration::from_secs(5));
    assert_eq!(store.claim(&lease, 10, &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn failures_are_counted_and_a_hopeless_row_is_set_aside_in_sight() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a", "a", "b"]).await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.acquire().await.unwrap().unwrap();
    let rows = claim(&store, &lease).await;
    let first = rows[0].id;
    assert_eq!(
        store
            .record_failure(&lease, first, "too large")
            .await
            .unwrap(),
        1
    );
    let long = format!("{}\0", "ä".repeat(5_000));
    assert_eq!(store.record_failure(&lease, first, &long).await.unwrap(), 2);
    assert_eq!(
        claim(&store, &lease).await.len(),
        3,
        "it stays in its place"
    );

    store
        .set_aside(&lease, first, "message too large")
        .await
        .unwrap();
    assert_eq!(
        keys(&claim(&store, &lease).await),
        ["a", "b"],
        "the key flows again"
    );
    let seen = "SELECT count(*) FROM outbox WHERE set_aside_at IS NOT NULL \
                AND published_at IS NULL AND last_error = 'message too large' AND attempts = 2";
    assert_eq!(fixture.count(seen).await, 1);
}

#[tokio::test]
async fn a_row_of_another_language_is_claimed_when_it_is_due() {
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, \
                                 payload, headers, occurred_at, not_before) \
             SELECT gen_random_uuid(), 'order.confirmed.v1', 'Order', 'o', 'orders', k, '{}', \
                    '{\"x-attempt\": 3, \"gone\": null}', now(), now() + wait \
             FROM (VALUES ('due', NULL), ('past', interval '-1 s'), ('future', interval '1 h')) \
                  AS given (k, wait)",
        )
        .await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.acquire().await.unwrap().unwrap();
    let rows = claim(&store, &lease).await;
    assert_eq!(keys(&rows), ["due", "past"]);
    assert_eq!(rows[0].headers, [("x-attempt".to_owned(), "3".to_owned())]);
}

#[tokio::test]
async fn a_claim_reads_no_more_than_it_returns_however_long_the_backlog() {
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, \
                                 payload, occurred_at, published_at) \
             SELECT gen_random_uuid(), 't', 'Order', 'o', 'orders', 'k' || n, '{}', now(), \
                    CASE WHEN n <= 20000 THEN now() END \
             FROM generate_series(1, 40000) AS n; \
             ANALYZE outbox",
        )
        .await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.acquire().await.unwrap().unwrap();
    assert_eq!(store.claim(&lease, 100, &[]).await.unwrap().len(), 100);
    // A server reports its statistics at the latest when it ends the connection.
    fixture.db.close().await;
    let mut conn = fixture.connect().await;
    factum_testing::eventually(LIMIT, "the claim in the statistics", async || {
        let read: i64 = sqlx::query_scalar(
            "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes \
             WHERE indexrelname = 'outbox_claim'",
        )
        .fetch_one(&mut conn)
        .await
        .unwrap();
        // A sequential scan would leave it at 0 for ever.
        (100..=1_000).contains(&read)
    })
    .await;
    let scanned = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'outbox'";
    assert!(fixture.count(scanned).await < 100_000);
}
