use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use factum_event::EventId;
use factum_postgres::{
    Database, DatabaseSettings, Dedup, DedupVerdict, Session, Window, maintain, migration,
    new_event_id,
};
use factum_testing::TestDatabase;
use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long a test waits for what must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A database of the test's own with Factum's tables.
pub(crate) struct Fixture {
    pub(crate) db: Database,
    pub(crate) database: TestDatabase,
}

impl Fixture {
    /// With a small window: each partition costs a test some milliseconds.
    pub(crate) async fn new() -> Self {
        Self::of(Window {
            keep_days: 2,
            ahead_days: 2,
        })
        .await
    }

    pub(crate) async fn of(window: Window) -> Self {
        let fixture = Self::empty().await;
        migration::up(&fixture.db).await.unwrap();
        maintain(&fixture.db, &window, OffsetDateTime::now_utc())
            .await
            .unwrap();
        fixture
            .sql("CREATE TABLE effect (event_id uuid, note text)")
            .await;
        fixture
    }

    pub(crate) async fn empty() -> Self {
        let database = factum_testing::database();
        let db = Database::connect(&settings(&database)).await.unwrap();
        Self { db, database }
    }

    /// A connection to look on with.
    pub(crate) async fn connect(&self) -> PgConnection {
        self.database.connect().await
    }

    pub(crate) async fn sql(&self, sql: impl Into<String>) {
        let sql = AssertSqlSafe(sql.into());
        sqlx::raw_sql(sql)
            .execute(&mut self.connect().await)
            .await
            .unwrap();
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.connect().await)
            .await
            .unwrap()
    }

    pub(crate) async fn effects(&self) -> i64 {
        self.count("SELECT count(*) FROM effect").await
    }

    pub(crate) async fn processed(&self) -> i64 {
        self.count("SELECT count(*) FROM processed_event").await
    }

    /// A session with an open transaction that holds the dedup rows of `ids`.
    pub(crate) async fn deduped(&self, consumer: &str, ids: &[EventId]) -> (Session, Dedup) {
        let mut session = Session::open(&self.db).await.unwrap();
        session.begin().await.unwrap();
        let dedup = session.dedup(consumer, ids).await.unwrap();
        (session, dedup)
    }

    /// Handles the ids as a consumer does: an effect for each fresh one, then guard and COMMIT.
    pub(crate) async fn handle(&self, consumer: &str, ids: &[EventId]) -> Vec<DedupVerdict> {
        let (mut session, dedup) = self.deduped(consumer, ids).await;
        for (id, verdict) in ids.iter().zip(&dedup.verdicts) {
            if *verdict == DedupVerdict::Fresh {
                effect(session.conn(), *id).await;
            }
        }
        session.commit(dedup.xid).await.unwrap();
        session.close().await;
        dedup.verdicts
    }

    /// Waits until some backend of this database waits for a lock.
    pub(crate) async fn until_one_waits_for_a_lock(&self) {
        let mut conn = self.connect().await;
        factum_testing::eventually(LIMIT, "a backend that waits for a lock", async || {
            sqlx::query_scalar(
                "SELECT count(*) > 0 FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(&mut conn)
            .await
            .unwrap()
        })
        .await;
    }

    /// A way to the server that, once mute, swallows its answer and then hangs up. It runs on the
    /// test's own thread: an answer is never there at the poll that sent the question.
    pub(crate) async fn through_a_proxy(&self, mute: Arc<AtomicBool>) -> DatabaseSettings {
        let url = self.database.url().to_owned();
        let (login, rest) = url.split_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) =
                    TcpStream::connect(&server).await.unwrap().into_split();
                let mute = Arc::clone(&mute);
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_client, &mut to_server).await },
                );
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                        if mute.load(Ordering::SeqCst)
                            || to_client.write_all(&buffer[..read]).await.is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        patient(&format!("{login}@127.0.0.1:{port}/{database}"))
    }
}

/// Waits that end early on a busy machine are no failures: what a test wants short, it says.
pub(crate) fn settings(database: &TestDatabase) -> DatabaseSettings {
    patient(database.url())
}

fn patient(url: &str) -> DatabaseSettings {
    DatabaseSettings {
        acquire_timeout: LIMIT,
        lock_timeout: LIMIT,
        ..DatabaseSettings::new(url.into())
    }
}

pub(crate) fn ids<const N: usize>() -> [EventId; N] {
    std::array::from_fn(|_| new_event_id())
}

/// What a handler does.
pub(crate) async fn effect(conn: &mut PgConnection, id: EventId) {
    sqlx::query("INSERT INTO effect (event_id) VALUES ($1)")
        .bind(id.as_uuid())
        .execute(conn)
        .await
        .unwrap();
}

/// What a handler types.
pub(crate) async fn typed(conn: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

/// An SQL error that a handler swallows.
pub(crate) async fn swallowed(conn: &mut PgConnection) {
    sqlx::raw_sql("SELECT 1 FROM no_such_table")
        .execute(conn)
        .await
        .unwrap_err();
}

pub(crate) fn unix_ms(time: OffsetDateTime) -> u64 {
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap()
}
