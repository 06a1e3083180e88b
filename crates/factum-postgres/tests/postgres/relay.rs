use std::time::{Duration, Instant};

use factum_event::Event;
use factum_postgres::{ClaimLimit, Lease, Outbox, OutboxRow, RelayStore, SLOTS};
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

/// Whatever waits, of all slots held.
async fn claim(store: &RelayStore, lease: &Lease) -> Vec<OutboxRow> {
    claim_some(store, lease, 100, &[]).await
}

/// In the order of the ids.
async fn claim_some(
    store: &RelayStore,
    lease: &Lease,
    rows: u32,
    held_keys: &[&str],
) -> Vec<OutboxRow> {
    let held_keys: Vec<String> = held_keys.iter().map(|key| (*key).to_owned()).collect();
    let mut rows = store
        .claim(lease, &lease.slots(), limit(rows), &held_keys)
        .await
        .unwrap();
    rows.sort_by_key(|row| row.id);
    rows
}

fn limit(rows: u32) -> ClaimLimit {
    ClaimLimit {
        rows,
        bytes: 1_000_000,
    }
}

fn keys(rows: &[OutboxRow]) -> Vec<&str> {
    rows.iter().map(|row| row.key.as_str()).collect()
}

#[tokio::test]
async fn a_claim_gives_unpublished_rows_in_order_and_whole() {
    let fixture = Fixture::new().await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.join().await.unwrap();
    assert_eq!(lease.slots().len(), usize::from(SLOTS));
    assert!(lease.slots().into_iter().eq(0..64));
    assert_eq!((lease.share(), lease.relays(), lease.surplus()), (64, 1, 0));

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

    assert_eq!(claim_some(&store, &lease, 2, &[]).await.len(), 2);
    assert_eq!(
        keys(&claim_some(&store, &lease, 100, &["a"]).await),
        ["b", "c"]
    );
    let slot_of_a = [rows[0].slot];
    let of_a = store.claim(&lease, &slot_of_a, limit(100), &[]).await;
    assert_eq!(keys(&of_a.unwrap()), ["a", "a"], "of this slot alone");

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
    let lease = store.join().await.unwrap();
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
async fn case_16_one_relay_has_a_slot_at_a_time_and_a_stale_one_does_nothing() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a", "a", "a"]).await;
    // Relay 1 claims A1 and A2, and is stopped.
    let short = Duration::from_millis(300);
    let (one, two) = (
        store(&fixture, "one", short),
        store(&fixture, "two", MINUTE),
    );
    let old = one.join().await.unwrap();
    let claimed = claim_some(&one, &old, 2, &[]).await;
    assert_eq!(claimed.len(), 2);
    let slot = claimed[0].slot;
    let mut new = two.join().await.unwrap();
    assert_eq!(new.token(slot), None, "relay 2 must not send A3");

    // The lease ends by itself.
    factum_testing::eventually(LIMIT, "the end of the lease", async || {
        two.renew(&mut new).await.unwrap();
        new.token(slot).is_some()
    })
    .await;
    assert!(
        Instant::now() >= old.expires_at(),
        "and not before relay 1 knew of it"
    );
    assert!(new.token(slot) > old.token(slot));
    assert_eq!(claim(&two, &new).await.len(), 3);

    // Relay 1 goes on where it was: all in vain.
    let mut old = old;
    assert!(claim(&one, &old).await.is_empty());
    assert_eq!(one.mark_published(&old, &[claimed[0].id]).await.unwrap(), 0);
    assert_eq!(
        one.record_failure(&old, claimed[0].id, "late")
            .await
            .unwrap(),
        0
    );
    one.set_aside(&old, claimed[0].id, "late").await.unwrap();
    one.give_back(&mut old.clone(), &old.slots()).await.unwrap();
    let change = one.renew(&mut old).await.unwrap();
    assert_eq!(change.lost.len(), 64);
    assert_eq!(old.token(slot), None);
    one.leave(old).await.unwrap();
    assert_eq!(claim(&two, &new).await.len(), 3);
    assert!(two.renew(&mut new).await.unwrap().lost.is_empty());
}

/// What each may have: 64 in as equal parts as can be.
#[tokio::test]
async fn relays_that_start_at_once_share_the_slots_fairly_whatever_their_number() {
    for number in [1, 2, 3, 5, 7, 8] {
        let fixture = Fixture::new().await;
        let stores: Vec<_> = (0..number)
            .map(|n| store(&fixture, &format!("relay-{n}"), MINUTE))
            .collect();
        let asking: Vec<_> = stores
            .iter()
            .cloned()
            .map(|store| tokio::spawn(async move { store.join().await.unwrap() }))
            .collect();
        let mut leases = Vec::new();
        for asking in asking {
            leases.push(asking.await.unwrap());
        }
        // Who has too many gives them back, who has too few takes some: at most two rounds until all have theirs.
        let mut rounds = 0;
        while leases
            .iter()
            .any(|lease| lease.relays() != number || lease.slots().len() != lease.share())
        {
            for (store, lease) in stores.iter().zip(&mut leases) {
                store.renew(lease).await.unwrap();
                let surplus = lease
                    .slots()
                    .split_off(lease.slots().len() - lease.surplus());
                store.give_back(lease, &surplus).await.unwrap();
            }
            rounds += 1;
            assert!(rounds <= 3, "{number} relays don't come to rest");
        }
        let mut held: Vec<i16> = leases.iter().flat_map(Lease::slots).collect();
        held.sort_unstable();
        assert!(held.into_iter().eq(0..64), "each slot once");
        let sizes: Vec<usize> = leases.iter().map(|lease| lease.slots().len()).collect();
        let (least, most) = (64 / number, 64_usize.div_ceil(number));
        assert!(
            sizes.iter().all(|size| (least..=most).contains(size)),
            "{sizes:?}"
        );

        // One leaves, and the others take what was its own.
        let (store, lease) = (&stores[0], leases.remove(0));
        store.leave(lease).await.unwrap();
        for (store, lease) in stores[1..].iter().zip(&mut leases) {
            store.renew(lease).await.unwrap();
            assert_eq!(lease.relays(), number - 1);
        }
        let held: usize = leases.iter().map(|lease| lease.slots().len()).sum();
        assert!(number == 1 || held == 64, "{held} slots are held");
    }
}

/// Tokens are the slots' own: a slot that changes hands fences its former holder off that slot alone.
#[tokio::test]
async fn a_slot_that_was_given_back_is_lost_and_the_others_are_not() {
    let fixture = Fixture::new().await;
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    publish(
        &fixture,
        &keys.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let (one, two) = (
        store(&fixture, "one", MINUTE),
        store(&fixture, "two", MINUTE),
    );
    let mut first = one.join().await.unwrap();
    let claimed = claim(&one, &first).await;
    let stale = first.clone();
    let mut second = two.join().await.unwrap();
    assert!(second.slots().is_empty() && second.share() == 32);
    one.renew(&mut first).await.unwrap();
    assert_eq!(first.surplus(), 32);
    let given: Vec<i16> = (32..64).collect();
    one.give_back(&mut first, &given).await.unwrap();
    two.renew(&mut second).await.unwrap();
    assert_eq!(second.slots(), given);

    let ids = |upper: bool| -> Vec<i64> {
        let of_part = claimed.iter().filter(|row| (row.slot >= 32) == upper);
        of_part.map(|row| row.id).collect()
    };
    let (lower, upper) = (ids(false), ids(true));
    assert!(!lower.is_empty() && !upper.is_empty());
    let marked = one
        .mark_published(&stale, &[&lower[..], &upper].concat())
        .await;
    assert_eq!(marked.unwrap(), lower.len() as u64, "what it still holds");
    let theirs: Vec<i64> = claim(&two, &second)
        .await
        .iter()
        .map(|row| row.id)
        .collect();
    assert_eq!(theirs, upper);
}

/// The answer to a renewal is lost with its connection: the slots are taken, and the relay does not know. Without a
/// mend they would stand still until the lease ends.
#[tokio::test]
async fn slots_that_were_taken_by_a_lost_answer_are_taken_again() {
    let fixture = Fixture::new().await;
    let store = store(&fixture, "relay", MINUTE);
    let unheard = store.join().await.unwrap();
    let heard = store.join().await.unwrap();
    assert_eq!(heard.slots().len(), 64);
    assert!(heard.token(7) > unheard.token(7));
    // What was begun under the older tokens is fenced off, though the owner is the same.
    publish(&fixture, &["a"]).await;
    assert!(claim(&store, &unheard).await.is_empty());
    let rows = claim(&store, &heard).await;
    let id = rows[0].id;
    assert_eq!(store.mark_published(&unheard, &[id]).await.unwrap(), 0);
    assert_eq!(store.mark_published(&heard, &[id]).await.unwrap(), 1);
}

/// A release of the time before members, while it is replaced one by one: it takes all slots at once or none, and the
/// lease's row decides between it and us.
#[tokio::test]
async fn an_older_relay_and_a_newer_one_never_hold_the_same_slot() {
    const OLD: &str = "WITH free AS ( \
                           SELECT slot, token FROM relay_lease \
                           WHERE expires_at <= clock_timestamp() ORDER BY slot FOR UPDATE \
                       ) \
                       UPDATE relay_lease AS l \
                       SET owner = 'old', token = (SELECT max(token) + 1 FROM free), \
                           expires_at = clock_timestamp() + interval '1 h' \
                       FROM free \
                       WHERE l.slot = free.slot AND (SELECT count(*) FROM free) = 64";
    let fixture = Fixture::new().await;
    let store = store(&fixture, "new", MINUTE);
    let mut lease = store.join().await.unwrap();
    store.give_back(&mut lease, &[3]).await.unwrap();
    let of_old = "SELECT count(*) FROM relay_lease WHERE owner = 'old'";
    fixture.sql(OLD).await;
    assert_eq!(
        fixture.count(of_old).await,
        0,
        "one free slot is not enough"
    );
    store.leave(lease).await.unwrap();
    fixture.sql(OLD).await;
    assert_eq!(fixture.count(of_old).await, 64);
    let mut lease = store.join().await.unwrap();
    assert!(lease.slots().is_empty());
    fixture
        .sql("UPDATE relay_lease SET expires_at = '-infinity' WHERE owner = 'old'")
        .await;
    store.renew(&mut lease).await.unwrap();
    assert_eq!(lease.slots().len(), 64);
}

#[tokio::test]
async fn a_renewed_lease_lasts_and_an_expired_one_claims_nothing() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a"]).await;
    let mut lease = store(&fixture, "relay", Duration::from_millis(1))
        .join()
        .await
        .unwrap();
    let store = store(&fixture, "relay", MINUTE);
    factum_testing::eventually(LIMIT, "the end of the lease", async || {
        claim(&store, &lease).await.is_empty()
    })
    .await;
    // Nobody took it meanwhile.
    let before = Instant::now();
    let change = store.renew(&mut lease).await.unwrap();
    assert!(change.lost.is_empty() && change.taken.is_empty());
    assert!(lease.expires_at() >= before + MINUTE - Duration::from_secs(5));
    assert_eq!(claim(&store, &lease).await.len(), 1);
}

/// Rows of megabytes: a claim ends where its bytes are used up, in the middle of a slot if need be, and with a row larger than
/// all of them it still has one.
#[tokio::test]
async fn a_claim_is_limited_in_bytes_too() {
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
             SELECT gen_random_uuid(), 't', 'Order', 'o', 'orders', 'k' || (n % 3), \
                    convert_to(repeat('x', 1000), 'UTF8'), now() FROM generate_series(1, 30) AS n",
        )
        .await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.join().await.unwrap();
    let claim = async |bytes| {
        let limit = ClaimLimit { rows: 100, bytes };
        store
            .claim(&lease, &lease.slots(), limit, &[])
            .await
            .unwrap()
    };
    assert_eq!(claim(1).await.len(), 1);
    assert_eq!(claim(10_000).await.len(), 10);
    assert_eq!(
        claim(10_001).await.len(),
        11,
        "the row that reaches it is taken"
    );
    assert_eq!(claim(1_000_000).await.len(), 30);
    let taken = claim(15_000).await;
    for key in ["k0", "k1", "k2"] {
        let of_key: Vec<i64> = taken
            .iter()
            .filter(|row| row.key == key)
            .map(|row| row.id)
            .collect();
        let first = i64::from(key[1..].parse::<i32>().unwrap());
        let from = if first == 0 { 3 } else { first };
        let expected: Vec<i64> = (0..).map(|n| from + 3 * n).take(of_key.len()).collect();
        assert_eq!(of_key, expected, "the first of the key");
    }
}

#[tokio::test]
async fn failures_are_counted_and_a_hopeless_row_is_set_aside_in_sight() {
    let fixture = Fixture::new().await;
    publish(&fixture, &["a", "a", "b"]).await;
    let store = store(&fixture, "relay", MINUTE);
    let lease = store.join().await.unwrap();
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
    let lease = store.join().await.unwrap();
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
    let lease = store.join().await.unwrap();
    assert_eq!(claim(&store, &lease).await.len(), 100);
    // A server reports its statistics at the latest when it ends the connection.
    fixture.db.close().await;
    let mut conn = fixture.connect().await;
    factum_testing::eventually(LIMIT, "the claim in the statistics", async || {
        let read: i64 = sqlx::query_scalar(
            "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes \
             WHERE indexrelname = 'outbox_unpublished'",
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
