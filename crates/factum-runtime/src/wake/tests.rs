//! A relay's rests, on PostgreSQL. A sleeping relay looks by itself only once in `NEVER` here: what wakes it is told.

use factum_postgres::{DatabaseSettings, migration, switch_relay_wake};
use factum_testing::{TestDatabase, eventually};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(1);

struct Stage {
    database: TestDatabase,
    wake: Wake,
    stop: CancellationToken,
    listener: JoinHandle<()>,
}

impl Stage {
    async fn new() -> Stage {
        let database = factum_testing::database();
        let db = Database::connect(&DatabaseSettings::new(database.url().into()))
            .await
            .expect("a database");
        migration::up(&db).await.expect("tables");
        switch_relay_wake(&db, true).await.expect("the trigger");
        let (mut wake, listener) = Wake::listening("test", db);
        wake.sleeping_poll = NEVER;
        let stop = CancellationToken::new();
        let listener = tokio::spawn(listener.run(stop.clone()));
        Stage {
            database,
            wake,
            stop,
            listener,
        }
    }

    /// Finds nothing, again and again, until a rest would be a sleep.
    async fn falls_asleep(&self) {
        let rests = async {
            while !matches!(*self.wake.writers.borrow(), Writers::Notify(_)) {
                self.wake.rest(Instant::now(), POLL).await;
            }
        };
        timeout(LIMIT, rests).await.expect("the relay falls asleep");
    }

    /// A rest after a claim that has just been made.
    fn sleeps(&self) -> JoinHandle<WokenBy> {
        let (wake, asked_at) = (self.wake.clone(), Instant::now());
        tokio::spawn(async move { wake.rest(asked_at, POLL).await })
    }

    async fn end(self) {
        self.stop.cancel();
        self.listener.await.expect("no panic");
    }
}

async fn woken(rest: JoinHandle<WokenBy>) -> WokenBy {
    timeout(LIMIT, rest)
        .await
        .expect("the relay wakes up")
        .expect("no panic")
}

async fn insert(conn: &mut PgConnection) {
    sqlx::query(
        "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
         VALUES (gen_random_uuid(), 'order.confirmed.v1', 'Order', 'A-1', 't', 'A-1', '{}', now())",
    )
    .execute(conn)
    .await
    .expect("a row");
}

#[tokio::test]
async fn a_row_wakes_a_sleeping_relay_without_a_poll() {
    let stage = Stage::new().await;
    let mut conn = stage.database.connect().await;
    for _ in 0..3 {
        stage.falls_asleep().await;
        let rest = stage.sleeps();
        let mut tx = conn.begin().await.expect("a transaction");
        insert(&mut tx).await;
        tx.commit().await.expect("a commit");
        assert_eq!(woken(rest).await, WokenBy::Notification);
    }
    stage.end().await;
}

#[tokio::test]
async fn a_row_of_before_the_sleep_is_looked_for_once_more() {
    let (sender, writers) = watch::channel(Writers::Silent);
    let mut wake = Wake::new("test", writers);
    wake.sleeping_poll = NEVER;
    let asked_at = Instant::now();
    sender.send_replace(Writers::Notify(Instant::now() + Duration::from_micros(1)));
    // This claim may have missed a row whose writer saw no sleeper. Its rest is short.
    let rest = timeout(LIMIT, wake.rest(asked_at, POLL)).await;
    assert_eq!(rest.expect("no sleep"), WokenBy::Poll);
}

#[tokio::test]
async fn a_listener_whose_connection_is_killed_heals_and_the_relay_polls_meanwhile() {
    let stage = Stage::new().await;
    stage.falls_asleep().await;
    let rest = stage.sleeps();
    // Nor can it connect again for now.
    stage.database.shut_out().await;
    assert_eq!(woken(rest).await, WokenBy::Poll);
    assert_eq!(woken(stage.sleeps()).await, WokenBy::Poll);

    stage.database.let_in().await;
    let mut conn = stage.database.connect().await;
    stage.falls_asleep().await;
    let rest = stage.sleeps();
    insert(&mut conn).await;
    assert_eq!(woken(rest).await, WokenBy::Notification);
    stage.end().await;
}

/// Without this, each of many transactions would notify, and their commits would stand in line.
#[tokio::test]
async fn a_busy_relay_costs_writers_no_notify() {
    let stage = Stage::new().await;
    let mut conn = stage.database.connect().await;
    let oid: i64 = sqlx::query_scalar("SELECT 'outbox'::regclass::oid::bigint")
        .fetch_one(&mut conn)
        .await
        .expect("an oid");
    let channel = format!("factum_outbox_{oid}");
    let mut heard = sqlx::postgres::PgListener::connect(stage.database.url())
        .await
        .expect("a listener");
    heard.listen(&channel).await.expect("it listens");
    stage.falls_asleep().await;
    stage.wake.busy();
    let mut notified = false;
    eventually(LIMIT, "writers that notify nobody", async || {
        notified = *stage.wake.writers.borrow() != Writers::Silent;
        !notified && sleepers(&mut conn).await == 0
    })
    .await;
    for _ in 0..100 {
        insert(&mut conn).await;
        stage.wake.busy();
    }
    sqlx::query("SELECT pg_notify($1, 'the end')")
        .bind(&channel)
        .execute(&mut conn)
        .await
        .expect("a notification of the test's own");
    let first = timeout(LIMIT, heard.recv()).await.expect("in time");
    // Notifications come in the order of their commits.
    assert_eq!(first.expect("a notification").payload(), "the end");

    stage.falls_asleep().await;
    insert(&mut conn).await;
    let next = timeout(LIMIT, heard.recv()).await.expect("in time");
    assert_eq!(next.expect("a notification").payload(), "");
    stage.end().await;
}

async fn sleepers(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::integer::oid \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .bind(0x6661_6374)
    .fetch_one(conn)
    .await
    .expect("the locks")
}
