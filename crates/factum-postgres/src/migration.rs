//! Factum's tables, made and brought up to date.
//!
//! Forward only. [`up`] may run in every instance of every service at once: an advisory lock lets
//! one work and the others find nothing to do. [`sql`] prints the same statements for a migration
//! tool of your own; `up` then finds them applied.
//!
//! Tables, in the first schema of the `search_path`: `outbox`, `relay_lease`, `relay_member`, `processed_event`
//! (its partitions are [`maintain`](crate::maintain)'s), `dead_letter`, `event_reader`, `parked_key`, `parked_event`,
//! `dead_letter_group`, `dead_letter_delta`, `instance`, `replay_run`, `replay_item`, `audit`, `outbound_call`,
//! `processed_foreign_event`, `maintenance`, `factum_migration`.

use std::fmt::Write;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;

use crate::connection::millis;
use crate::database::Database;
use crate::error::{self, DatabaseError};
use crate::schema::DEDUP_FAULT;

/// Advisory lock "factum", migrations.
const LOCK: i64 = 0x6661_6374_756d_0001;

/// How long to wait for another instance's migration, and at most for one statement; three times
/// as long for everything.
const LIMIT: Duration = Duration::from_secs(120);

/// SQLSTATE of our own: raised where `processed_event` has a key that doesn't deduplicate.
const WRONG_DEDUP: &str = "FTM02";

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "base",
        sql: include_str!("../migrations/0001_base.sql"),
    },
    Migration {
        version: 2,
        name: "event_reader",
        sql: include_str!("../migrations/0002_event_reader.sql"),
    },
    Migration {
        version: 3,
        name: "parking",
        sql: include_str!("../migrations/0003_parking.sql"),
    },
    Migration {
        version: 4,
        name: "outbox_record",
        sql: include_str!("../migrations/0004_outbox_record.sql"),
    },
    Migration {
        version: 5,
        name: "replay",
        sql: include_str!("../migrations/0005_replay.sql"),
    },
    Migration {
        version: 6,
        name: "outbound_call",
        sql: include_str!("../migrations/0006_outbound_call.sql"),
    },
    Migration {
        version: 7,
        name: "relay_member",
        sql: include_str!("../migrations/0007_relay_member.sql"),
    },
    Migration {
        version: 8,
        name: "retention",
        sql: include_str!("../migrations/0008_retention.sql"),
    },
    Migration {
        version: 9,
        name: "relay_wake",
        sql: include_str!("../migrations/0009_relay_wake.sql"),
    },
];

const TABLE: &str = "CREATE TABLE IF NOT EXISTS factum_migration (\n    \
    version    integer     PRIMARY KEY,\n    \
    name       text        NOT NULL,\n    \
    applied_at timestamptz NOT NULL DEFAULT now()\n);\n";

/// A migration that [`up`] has just applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number, from 1.
    pub version: i32,
    /// Its name.
    pub name: &'static str,
}

/// A migration that this version of Factum knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Its number, from 1.
    pub version: i32,
    /// Its name.
    pub name: &'static str,
    /// When it was applied; `None` while it is pending.
    pub applied_at: Option<OffsetDateTime>,
}

/// Why the tables weren't brought up to date. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// There is a `processed_event` that doesn't deduplicate as it must (IDEM-2, listing fault 2):
    /// with it, events would be handled twice, or not at all.
    #[error(
        "IDEM-2: the table processed_event exists and {fault}; rename it (ALTER TABLE \
         processed_event RENAME TO processed_event_old), migrate again, and copy the rows of the \
         dedup window over"
    )]
    WrongProcessedEvent {
        /// What is wrong with it.
        fault: String,
    },
    /// A table of that name exists and isn't Factum's.
    #[error(
        "the relation {table} exists and wasn't made by Factum's migrations; rename it, or give \
         Factum a schema of its own (options=-csearch_path=factum in DATABASE_URL)"
    )]
    TableExists {
        /// Its name.
        table: String,
    },
    /// A statement failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Applies what is pending, all of it or nothing, and tells what it applied.
///
/// # Errors
/// See [`MigrationError`].
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database)
/// #     -> Result<(), factum_postgres::migration::MigrationError> {
/// for migration in factum_postgres::migration::up(&db).await? {
///     println!("applied {} {}", migration.version, migration.name);
/// }
/// # Ok(()) }
/// ```
pub async fn up(db: &Database) -> Result<Vec<Applied>, MigrationError> {
    const WHAT: &str = "run the migrations";
    let mut held = db.hold().await?;
    // Dropped, not given back: the limits set here are the migration's own, and an error leaves
    // its transaction to the server to roll back.
    held.answered_within(LIMIT * 3, apply)
        .await
        .map_err(|err| refused(WHAT, &err))
}

async fn apply(conn: &mut PgConnection) -> Result<Vec<Applied>, sqlx::Error> {
    // Usually there is nothing to do, and a role without the right to create tables may say so.
    let pending = read_status(conn)
        .await?
        .iter()
        .any(|status| status.applied_at.is_none());
    if !pending {
        return Ok(Vec::new());
    }
    let limit = millis(LIMIT);
    let begin = format!(
        "SET lock_timeout = {limit}; SET statement_timeout = {limit}; \
         SET idle_in_transaction_session_timeout = {limit}; \
         BEGIN ISOLATION LEVEL READ COMMITTED; \
         SELECT pg_advisory_xact_lock({LOCK}); {TABLE}"
    );
    sqlx::raw_sql(AssertSqlSafe(begin))
        .execute(&mut *conn)
        .await?;
    let known = sqlx::query_scalar::<_, i32>("SELECT version FROM factum_migration")
        .fetch_all(&mut *conn)
        .await?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS {
        if !known.contains(&migration.version) {
            sqlx::raw_sql(AssertSqlSafe(script(migration)))
                .execute(&mut *conn)
                .await?;
            applied.push(Applied {
                version: migration.version,
                name: migration.name,
            });
        }
    }
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    Ok(applied)
}

/// Every migration that this version knows, and when each was applied.
///
/// # Errors
/// A statement failed. A database without Factum's tables is no error: everything is pending.
pub async fn status(db: &Database) -> Result<Vec<MigrationStatus>, MigrationError> {
    const WHAT: &str = "read the state of the migrations";
    let mut held = db.hold().await?;
    let status = held
        .answered(read_status)
        .await
        .map_err(|err| DatabaseError::new(WHAT, &err))?;
    held.give_back();
    Ok(status)
}

pub(crate) async fn read_status(
    conn: &mut PgConnection,
) -> Result<Vec<MigrationStatus>, sqlx::Error> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('factum_migration') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await?;
    let mut known: Vec<(i32, OffsetDateTime)> = Vec::new();
    if exists {
        for row in sqlx::query("SELECT version, applied_at FROM factum_migration")
            .fetch_all(conn)
            .await?
        {
            known.push((row.try_get(0)?, row.try_get(1)?));
        }
    }
    Ok(MIGRATIONS
        .iter()
        .map(|migration| MigrationStatus {
            version: migration.version,
            name: migration.name,
            applied_at: known
                .iter()
                .find(|(version, _)| *version == migration.version)
                .map(|(_, applied_at)| *applied_at),
        })
        .collect())
}

/// All migrations as one SQL script, for a migration tool of your own. It begins and commits
/// nothing; run it once, in a transaction.
///
/// ```
/// assert!(factum_postgres::migration::sql().contains("CREATE TABLE outbox"));
/// ```
#[must_use]
pub fn sql() -> String {
    sql_above(0)
}

/// The migrations above that version as one SQL script, for a database that has the others already.
///
/// ```
/// let script = factum_postgres::migration::sql_above(1);
/// assert!(script.contains("CREATE TABLE event_reader") && !script.contains("CREATE TABLE outbox"));
/// ```
#[must_use]
pub fn sql_above(version: i32) -> String {
    let mut text = TABLE.to_owned();
    let missing = MIGRATIONS
        .iter()
        .filter(|migration| migration.version > version);
    for migration in missing {
        text.push('\n');
        text.push_str(&script(migration));
    }
    text
}

/// One migration: the check that comes before it, its statements, its row.
fn script(migration: &Migration) -> String {
    let Migration { version, name, sql } = migration;
    let mut text = format!("-- Factum migration {version}: {name}\n");
    if *version == 1 {
        // Writing to a String can't fail.
        let _ = write!(
            text,
            "DO $factum$\n\
             DECLARE\n    \
                 fault text := ({DEDUP_FAULT});\n\
             BEGIN\n    \
                 IF fault IS NOT NULL THEN\n        \
                     RAISE EXCEPTION 'IDEM-2: the table processed_event exists and %', fault\n        \
                     USING ERRCODE = '{WRONG_DEDUP}', HINT = 'Rename it, then migrate again.';\n    \
                 END IF;\n\
             END\n\
             $factum$;\n\n"
        );
    }
    text.push_str(sql);
    let _ = write!(
        text,
        "\nINSERT INTO factum_migration (version, name) VALUES ({version}, '{name}');\n"
    );
    text
}

fn refused(what: &'static str, err: &sqlx::Error) -> MigrationError {
    // Both messages are made of names and of our own words.
    let message = error::answer(err).map_or("", |err| err.message());
    match error::code(err) {
        WRONG_DEDUP => MigrationError::WrongProcessedEvent {
            fault: message
                .split_once("exists and ")
                .map_or(message, |(_, fault)| fault)
                .to_owned(),
        },
        "42P07" => MigrationError::TableExists {
            table: message
                .split('"')
                .nth(1)
                .unwrap_or("of the migration")
                .to_owned(),
        },
        _ => MigrationError::Database(DatabaseError::new(what, err)),
    }
}
