//! The servers, and a fresh database for each run of a contender.

use std::collections::HashSet;
use std::future::Future;

use anyhow::{Context as _, Result, ensure};
use factum::{Database, DatabaseSettings, Window, maintain, migration};
use factum_testing::TestDatabase;
use factum_testing::kafka::KafkaServer;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use time::OffsetDateTime;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::effect;
use crate::exactness::Deviation;
use crate::meter;

/// What the server is told besides: to keep what it acknowledged, as in production, and to note when each
/// transaction was committed.
const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("track_commit_timestamp", "on"),
];

/// PostgreSQL and Kafka, private ones; dropped, they and their data are gone.
#[derive(Debug)]
pub(crate) struct Stage {
    runtime: Runtime,
    postmaster: u32,
    postgres_version: String,
    kafka: KafkaServer,
    postgres: PostgresServer,
}

impl Stage {
    /// Starts both servers.
    pub(crate) fn start() -> Result<Stage> {
        let runtime = Runtime::new().context("starting a runtime")?;
        let postgres = PostgresServer::start_with(&PostgresBinaries::find()?, SETTINGS)?;
        let url = postgres.url();
        let (postmaster, postgres_version, fsync) = runtime.block_on(async {
            let mut conn = PgConnection::connect(&url).await?;
            let told: (i32, String, String) = sqlx::query_as(
                "SELECT pg_backend_pid(), current_setting('server_version'), current_setting('fsync')",
            )
            .fetch_one(&mut conn)
            .await?;
            let postmaster = meter::parent_of(u32::try_from(told.0)?)?;
            anyhow::Ok((postmaster, told.1, told.2))
        })?;
        ensure!(fsync == "on", "the server runs with fsync {fsync}");
        let kafka = KafkaServer::start()?;
        Ok(Stage {
            runtime,
            postmaster,
            postgres_version,
            kafka,
            postgres,
        })
    }

    pub(crate) fn brokers(&self) -> String {
        self.kafka.bootstrap()
    }

    /// The server's first process.
    pub(crate) fn postmaster(&self) -> u32 {
        self.postmaster
    }

    pub(crate) fn postgres_version(&self) -> &str {
        &self.postgres_version
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A database with Factum's tables and the table of effects.
    pub(crate) fn database(&self) -> Result<TestDatabase> {
        let database = TestDatabase::create(self.postgres.url())?;
        self.block_on(async {
            let db =
                Database::connect(&DatabaseSettings::new(database.url().to_owned().into())).await?;
            migration::up(&db).await?;
            maintain(&db, &Window::default(), OffsetDateTime::now_utc()).await?;
            db.close().await;
            let mut conn = PgConnection::connect(database.url()).await?;
            sqlx::raw_sql(effect::TABLE).execute(&mut conn).await?;
            conn.close().await?;
            anyhow::Ok(())
        })?;
        Ok(database)
    }

    /// Writes everything to disk, so that no run pays for what came before it.
    pub(crate) fn settle(&self, database: &TestDatabase) -> Result<()> {
        self.block_on(async {
            let mut conn = PgConnection::connect(database.url()).await?;
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut conn).await?;
            sqlx::raw_sql("CHECKPOINT").execute(&mut conn).await?;
            conn.close().await?;
            Ok(())
        })
    }

    /// Whether each expected event has exactly one effect and one dedup row, and nothing else has.
    pub(crate) fn check_effects(
        &self,
        database: &TestDatabase,
        consumer: &str,
        expected: &HashSet<Uuid>,
    ) -> Result<()> {
        let (effects, dedup, letters) = self.block_on(async {
            let mut conn = PgConnection::connect(database.url()).await?;
            let effects: Vec<Uuid> = sqlx::query_scalar("SELECT event_id FROM effect")
                .fetch_all(&mut conn)
                .await?;
            // Rows of another consumer would be foreign ones.
            let dedup: Vec<(String, Uuid)> =
                sqlx::query_as("SELECT consumer_group, event_id FROM processed_event")
                    .fetch_all(&mut conn)
                    .await?;
            let letters: i64 = sqlx::query_scalar("SELECT count(*) FROM dead_letter")
                .fetch_one(&mut conn)
                .await?;
            anyhow::Ok((effects, dedup, letters))
        })?;
        ensure!(letters == 0, "not exact: {letters} dead letters");
        let effects = Deviation::of(expected, effects);
        ensure!(effects.is_exact(), "not exact: of the effects {effects}");
        let dedup = Deviation::of(
            expected,
            dedup.into_iter().map(
                |(group, id)| {
                    if group == consumer { id } else { Uuid::nil() }
                },
            ),
        );
        ensure!(dedup.is_exact(), "not exact: of the dedup rows {dedup}");
        Ok(())
    }

    /// The one value that a statement of ours gives.
    pub(crate) fn ask(&self, database: &TestDatabase, sql: &str) -> Result<i64> {
        self.block_on(async {
            let mut conn = PgConnection::connect(database.url()).await?;
            Ok(sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(&mut conn)
                .await?)
        })
    }
}
