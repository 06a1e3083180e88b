//! What `factum doctor` looks at in a database: facts, each by a bounded query; what they mean is judged elsewhere.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::bounded;
use crate::database::Database;
use crate::error::DatabaseError;
use crate::partition;

/// What was found. A part that is `None` took longer than two seconds and was cut.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Facts {
    /// The server's clock.
    pub at: OffsetDateTime,
    /// Transactions that have been open for long, the oldest first; 20 at most.
    pub sessions: Option<Sessions>,
    /// Replication slots, and how much WAL each of them retains.
    pub replication: Option<Replication>,
    /// Factum's tables, by name.
    pub tables: Option<Vec<Table>>,
    /// The server's limits.
    pub server: Option<Server>,
    /// Who does the maintenance, by service.
    pub maintenance: Option<Vec<Maintenance>>,
    /// When the oldest open dead letter was first seen.
    pub oldest_open_letter: Option<Option<OffsetDateTime>>,
}

/// Transactions that have been open for long.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Sessions {
    /// The oldest first.
    pub open: Vec<OpenTransaction>,
    /// Sessions of other roles that this role may not look at.
    pub hidden: i64,
    /// Partitions whose `DETACH CONCURRENTLY` has begun and waits for a transaction's end.
    pub detach_pending: Vec<String>,
    /// Prepared transactions that have been open for long, by their global ids.
    pub prepared: Vec<String>,
}

/// A session with an open transaction. Its statement isn't read: it may hold values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenTransaction {
    /// The server's process.
    pub pid: i32,
    /// `application_name`.
    pub application: String,
    /// The role.
    pub role: String,
    /// `active`, `idle in transaction` or the like.
    pub state: String,
    /// Since when.
    pub since: OffsetDateTime,
    /// For how long.
    pub age: Duration,
    /// Whether it keeps vacuum from taking rows that were deleted since.
    pub holds_vacuum: bool,
    /// Factum's tables that it holds a lock on; 10 at most.
    pub locks: Vec<String>,
    /// Processes that wait for it; 20 at most.
    pub blocks: Vec<i32>,
}

/// Replication slots.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Replication {
    /// By name; 20 at most.
    pub slots: Vec<ReplicationSlot>,
    /// `max_slot_wal_keep_size` in MB; `None`: a slot may retain as much as the disk holds.
    pub limit_mb: Option<i64>,
}

/// A replication slot.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReplicationSlot {
    /// Its name.
    pub name: String,
    /// Whether somebody reads from it now.
    pub active: bool,
    /// Bytes of WAL that it retains.
    pub retained: i64,
    /// `wal_status`: `lost` means that its reader can't go on.
    pub status: String,
}

/// A table of Factum's.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Rows, as the statistics have them.
    pub live: i64,
    /// Rows that a vacuum has still to take, as the statistics have them.
    pub dead: i64,
    /// Bytes, with indexes.
    pub bytes: i64,
    /// Whether autovacuum is switched off for it.
    pub autovacuum_off: bool,
    /// Indexes that a failed `CREATE INDEX CONCURRENTLY` left behind.
    pub invalid_indexes: Vec<String>,
}

/// The server's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// `max_connections`, less those that are reserved.
    pub max_connections: i64,
    /// Connections of clients now.
    pub connections: i64,
    /// Whether autovacuum runs.
    pub autovacuum: bool,
}

/// A service that does the maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintenance {
    /// The service.
    pub service: String,
    /// What it keeps for how long, by the settings' names.
    pub settings: Vec<(String, String)>,
    /// How long ago it last looked.
    pub ago: Duration,
}

/// Looks at everything. `open_for` is how long a transaction must be open to be told.
///
/// # Errors
/// No connection, or a statement failed otherwise than for its time.
pub async fn facts(db: &Database, open_for: Duration) -> Result<Facts, DatabaseError> {
    let at = bounded::read(db, "read the time", async |conn| {
        sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(conn)
            .await
    })
    .await?;
    Ok(Facts {
        at,
        sessions: bounded::read_or_cut(db, "look for open transactions", async |conn| {
            sessions(conn, open_for).await
        })
        .await?,
        replication: bounded::read_or_cut(db, "look at replication slots", replication).await?,
        tables: bounded::read_or_cut(db, "look at Factum's tables", tables).await?,
        server: bounded::read_or_cut(db, "look at the server's limits", server).await?,
        maintenance: bounded::read_or_cut(db, "look for the maintenance", maintenance).await?,
        oldest_open_letter: bounded::read_or_cut(
            db,
            "look at the oldest dead letter",
            async |conn| {
                sqlx::query_scalar(
                    "SELECT min(first_at) FROM dead_letter_group WHERE open > 0 AND consumer <> ''",
                )
                .fetch_one(conn)
                .await
            },
        )
        .await?,
    })
}

async fn sessions(conn: &mut PgConnection, open_for: Duration) -> Result<Sessions, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, ''), \
                a.xact_start, extract(epoch FROM clock_timestamp() - a.xact_start)::float8, \
                a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL, \
                ARRAY(SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
                      WHERE l.pid = a.pid AND l.locktype = 'relation' \
                        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                        AND c.relkind IN ('r', 'p') AND NOT c.relispartition \
                        AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('outbox')) \
                      ORDER BY 1 LIMIT 10), \
                ARRAY(SELECT w.pid FROM pg_stat_activity w \
                      WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' \
                        AND a.pid = ANY(pg_blocking_pids(w.pid)) ORDER BY 1 LIMIT 20) \
         FROM pg_stat_activity a \
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() \
           AND a.xact_start <= clock_timestamp() - make_interval(secs => $1) \
           AND a.backend_type = 'client backend' \
         ORDER BY a.xact_start LIMIT 20",
    )
    .bind(open_for.as_secs_f64())
    .fetch_all(&mut *conn)
    .await?;
    let open = |row: &PgRow| {
        let age: f64 = row.try_get(5)?;
        Ok(OpenTransaction {
            pid: row.try_get(0)?,
            application: row.try_get(1)?,
            role: row.try_get(2)?,
            state: row.try_get(3)?,
            since: row.try_get(4)?,
            age: Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default(),
            holds_vacuum: row.try_get(6)?,
            locks: row.try_get(7)?,
            blocks: row.try_get(8)?,
        })
    };
    let open = rows.iter().map(open).collect::<Result<_, sqlx::Error>>()?;
    // The server shows nothing but their existence.
    let hidden = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND backend_type IS NULL",
    )
    .fetch_one(&mut *conn)
    .await?;
    let prepared = sqlx::query_scalar(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() \
           AND prepared <= clock_timestamp() - make_interval(secs => $1) ORDER BY prepared LIMIT 20",
    )
    .bind(open_for.as_secs_f64())
    .fetch_all(&mut *conn)
    .await?;
    let pending = partition::list(conn).await?.into_iter();
    Ok(Sessions {
        open,
        hidden,
        detach_pending: pending
            .filter(|partition| partition.detach_pending)
            .map(|partition| partition.name)
            .collect(),
        prepared,
    })
}

async fn replication(conn: &mut PgConnection) -> Result<Replication, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT slot_name::text, active, \
                greatest(coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                                                       ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0)::bigint, \
                coalesce(wal_status, '') \
         FROM pg_replication_slots WHERE NOT temporary ORDER BY 3 DESC, 1 LIMIT 20",
    )
    .fetch_all(&mut *conn)
    .await?;
    let slot = |row: &PgRow| {
        Ok(ReplicationSlot {
            name: row.try_get(0)?,
            active: row.try_get(1)?,
            retained: row.try_get(2)?,
            status: row.try_get(3)?,
        })
    };
    let slots = rows.iter().map(slot).collect::<Result<_, sqlx::Error>>()?;
    let limit: i64 = sqlx::query_scalar(
        "SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'",
    )
    .fetch_one(conn)
    .await?;
    Ok(Replication {
        slots,
        limit_mb: (limit >= 0).then_some(limit),
    })
}

async fn tables(conn: &mut PgConnection) -> Result<Vec<Table>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT c.relname::text, coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), pg_total_relation_size(c.oid), \
                coalesce('autovacuum_enabled=off' = ANY(c.reloptions) OR 'autovacuum_enabled=false' = ANY(c.reloptions), false), \
                ARRAY(SELECT ic.relname::text FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid \
                      WHERE i.indrelid = c.oid AND NOT i.indisvalid ORDER BY 1) \
         FROM unnest(ARRAY['audit', 'dead_letter', 'dead_letter_delta', 'dead_letter_group', 'event_reader', 'instance', \
                           'outbound_call', 'outbox', 'parked_event', 'parked_key', 'processed_foreign_event', \
                           'relay_lease', 'replay_item', 'replay_run']) AS of (name) \
         JOIN pg_class c ON c.oid = to_regclass(of.name) \
         LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid \
         ORDER BY 1",
    )
    .fetch_all(conn)
    .await?;
    let table = |row: &PgRow| {
        Ok(Table {
            name: row.try_get(0)?,
            live: row.try_get(1)?,
            dead: row.try_get(2)?,
            bytes: row.try_get(3)?,
            autovacuum_off: row.try_get(4)?,
            invalid_indexes: row.try_get(5)?,
        })
    };
    rows.iter().map(table).collect()
}

async fn server(conn: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint, \
                (SELECT count(*) FROM pg_stat_activity WHERE coalesce(backend_type, 'client backend') = 'client backend'), \
                current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean",
    )
    .fetch_one(conn)
    .await?;
    Ok(Server {
        max_connections: row.try_get(0)?,
        connections: row.try_get(1)?,
        autovacuum: row.try_get(2)?,
    })
}

async fn maintenance(conn: &mut PgConnection) -> Result<Vec<Maintenance>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT service, settings::text, extract(epoch FROM clock_timestamp() - ran_at)::float8 \
         FROM maintenance ORDER BY service LIMIT 100",
    )
    .fetch_all(conn)
    .await?;
    let one = |row: &PgRow| {
        let settings: String = row.try_get(1)?;
        let settings: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&settings).unwrap_or_default();
        let ago: f64 = row.try_get(2)?;
        Ok(Maintenance {
            service: row.try_get(0)?,
            settings: settings
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())))
                .collect(),
            ago: Duration::try_from_secs_f64(ago.max(0.0)).unwrap_or_default(),
        })
    };
    rows.iter().map(one).collect()
}
