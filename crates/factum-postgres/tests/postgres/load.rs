//! Writers at work beside maintenance, and whether one of them ever waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use factum_postgres::{Database, DatabaseSettings, Session, new_event_id};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, settings};

/// `pg_stat_activity` shows the writers under this name.
const WRITER: &str = "writer";

/// A load that goes on until it is stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Written>>,
    watch: JoinHandle<Vec<String>>,
}

/// What a load has done.
#[derive(Debug, Default, Clone)]
pub(crate) struct Written {
    /// Transactions.
    pub(crate) transactions: u32,
    /// The longest of them.
    pub(crate) longest: Duration,
    /// Who was seen to wait for a lock, and what the one before it in the queue did.
    pub(crate) waits: Vec<String>,
}

impl Load {
    /// Two consumers that handle an event and publish one in each transaction, and a relay that marks what they publish.
    pub(crate) async fn start(fixture: &Fixture) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let db = Database::connect(&DatabaseSettings {
            application_name: WRITER.to_owned(),
            ..settings(&fixture.database)
        })
        .await
        .unwrap();
        let writers = (0..2)
            .map(|consumer| tokio::spawn(consume(db.clone(), consumer, stop.clone())))
            .collect();
        let watch = tokio::spawn(watch(fixture.connect().await, stop.clone()));
        Load {
            stop,
            writers,
            watch,
        }
    }

    pub(crate) async fn stop(self) -> Written {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Written {
            waits: self.watch.await.unwrap(),
            ..Written::default()
        };
        for writer in self.writers {
            let one = writer.await.unwrap();
            all.transactions += one.transactions;
            all.longest = all.longest.max(one.longest);
        }
        all
    }
}

async fn consume(db: Database, consumer: usize, stop: Arc<AtomicBool>) -> Written {
    let name = format!("load-{consumer}");
    let mut session = Session::open(&db).await.unwrap();
    let mut written = Written::default();
    while !stop.load(Ordering::SeqCst) {
        let begun_at = Instant::now();
        let id = new_event_id();
        session.begin().await.unwrap();
        let dedup = session.dedup(&name, &[id]).await.unwrap();
        sqlx::query(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
             VALUES ($1, 't', 'A', 'live', 'live', $2, '', now())",
        )
        .bind(id.as_uuid())
        .bind(&name)
        .execute(session.conn())
        .await
        .unwrap();
        session.commit(dedup.xid).await.unwrap();
        session.begin().await.unwrap();
        let xid = session.transaction_id().await.unwrap();
        sqlx::query("UPDATE outbox SET published_at = clock_timestamp() WHERE event_id = $1")
            .bind(id.as_uuid())
            .execute(session.conn())
            .await
            .unwrap();
        session.commit(xid).await.unwrap();
        written.transactions += 1;
        written.longest = written.longest.max(begun_at.elapsed());
    }
    session.close().await;
    written
}

/// Looks as often as it can who of the writers waits for a lock.
async fn watch(mut conn: sqlx::PgConnection, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut waits = BTreeSet::new();
    while !stop.load(Ordering::SeqCst) {
        let seen: Vec<String> = sqlx::query_scalar(
            "SELECT left(w.query, 80) || ' waits for ' || coalesce(left(b.query, 80), '?') \
             FROM pg_stat_activity w, unnest(pg_blocking_pids(w.pid)) AS blocking \
             LEFT JOIN pg_stat_activity b ON b.pid = blocking \
             WHERE w.datname = current_database() AND w.application_name = $1 \
               AND w.wait_event_type = 'Lock' \
               AND w.wait_event <> 'extend'",
        )
        .bind(WRITER)
        .fetch_all(&mut conn)
        .await
        .unwrap();
        waits.extend(seen);
        tokio::task::yield_now().await;
    }
    waits.into_iter().collect()
}
