//! The trigger that wakes relays, and the connection that hears it.

use std::time::Duration;

use factum_postgres::{Database, RelayListener, relay_wake_is_on, switch_relay_wake};
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection};

use crate::fixture::Fixture;

const LIMIT: Duration = Duration::from_secs(60);
const INSERT: &str = "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
     VALUES (gen_random_uuid(), 'order.confirmed.v1', 'Order', 'A-1', 't', 'A-1', '{}', now())";

/// Hears all that is sent on the outbox's channel.
struct Heard {
    channel: String,
    listener: PgListener,
}

impl Heard {
    async fn new(fixture: &Fixture) -> Heard {
        let oid = fixture
            .count("SELECT 'outbox'::regclass::oid::bigint")
            .await;
        let channel = format!("factum_outbox_{oid}");
        let mut listener = PgListener::connect(fixture.database.url()).await.unwrap();
        listener.listen(&channel).await.unwrap();
        Heard { channel, listener }
    }

    /// How many were sent before now: notifications come in the order of their commits, so one of the test's own is the
    /// last.
    async fn so_far(&mut self, conn: &mut PgConnection) -> usize {
        sqlx::query("SELECT pg_notify($1, 'the end')")
            .bind(&self.channel)
            .execute(conn)
            .await
            .unwrap();
        let mut count = 0;
        loop {
            let next = tokio::time::timeout(LIMIT, self.listener.recv()).await;
            if next.expect("in time").unwrap().payload() == "the end" {
                return count;
            }
            count += 1;
        }
    }
}

async fn insert(conn: &mut PgConnection) {
    sqlx::raw_sql(INSERT).execute(conn).await.unwrap();
}

async fn sleeper(db: &Database) -> RelayListener {
    let mut listener = RelayListener::connect(db).await.unwrap();
    listener.sleep().await.unwrap();
    listener
}

#[tokio::test]
async fn a_trigger_that_nobody_asked_for_is_off() {
    let fixture = Fixture::new().await;
    assert!(!relay_wake_is_on(&fixture.db).await.unwrap());
    let mut heard = Heard::new(&fixture).await;
    let mut conn = fixture.connect().await;
    let _sleeper = sleeper(&fixture.db).await;
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 0);

    assert!(switch_relay_wake(&fixture.db, true).await.unwrap());
    assert!(!switch_relay_wake(&fixture.db, true).await.unwrap());
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 1);
    assert!(switch_relay_wake(&fixture.db, false).await.unwrap());
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 0);
}

#[tokio::test]
async fn only_commits_notify_and_only_while_a_relay_sleeps() {
    let fixture = Fixture::new().await;
    switch_relay_wake(&fixture.db, true).await.unwrap();
    let mut heard = Heard::new(&fixture).await;
    let mut conn = fixture.connect().await;
    let mut listener = RelayListener::connect(&fixture.db).await.unwrap();
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 0, "nobody sleeps");

    listener.sleep().await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    insert(&mut tx).await;
    insert(&mut tx).await;
    tx.rollback().await.unwrap();
    assert_eq!(heard.so_far(&mut conn).await, 0, "nothing was committed");
    let mut tx = conn.begin().await.unwrap();
    insert(&mut tx).await;
    insert(&mut tx).await;
    tx.commit().await.unwrap();
    assert_eq!(heard.so_far(&mut conn).await, 1, "one for a transaction");
    tokio::time::timeout(LIMIT, listener.notified())
        .await
        .expect("in time")
        .unwrap();

    listener.wake().await.unwrap();
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 0, "it is awake");
    // The writers' look at the lock leaves none behind: else no relay could sleep any more.
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(fixture.count(left).await, 0);

    let sleepers = (sleeper(&fixture.db).await, sleeper(&fixture.db).await);
    insert(&mut conn).await;
    assert_eq!(heard.so_far(&mut conn).await, 1);
    drop(sleepers);
    factum_testing::eventually(LIMIT, "sleepers that are gone", async || {
        fixture.count(left).await == 0
    })
    .await;
    insert(&mut conn).await;
    assert_eq!(
        heard.so_far(&mut conn).await,
        0,
        "a dead relay costs nobody a NOTIFY"
    );
}
