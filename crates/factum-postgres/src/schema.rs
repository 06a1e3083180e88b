use std::fmt;

use sqlx::{PgConnection, Row};

use crate::database::Database;
use crate::error::DatabaseError;
use crate::migration;
use crate::partition::{self, Bounds};
use crate::relay::SLOTS;

/// Something about the tables with which Factum would lose or double events, or stand still.
///
/// The text names the rule, what is wrong, and what to run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaProblem {
    /// A migration of this version isn't applied.
    MigrationPending {
        /// Its number.
        version: i32,
        /// Its name.
        name: &'static str,
    },
    /// A table isn't there, though the migrations are applied.
    MissingTable {
        /// Its name.
        table: &'static str,
    },
    /// A column isn't there, or has another type.
    MissingColumn {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The type that it must have.
        data_type: &'static str,
    },
    /// `processed_event` doesn't deduplicate, or can't drop its old rows (IDEM-2).
    NoRealDedup {
        /// What is wrong with it.
        fault: String,
    },
    /// `processed_event` has a DEFAULT partition: what lands there is never dropped, and blocks
    /// new partitions for good (public case 37).
    DefaultPartition {
        /// Its name.
        partition: String,
    },
    /// No partition of `processed_event` takes today's ids: every consumer would wait.
    NoPartitionForToday,
    /// A table has no unique key of exactly these columns.
    MissingUniqueKey {
        /// The table.
        table: &'static str,
        /// The columns.
        columns: &'static str,
    },
    /// `relay_lease` lacks slots: no relay can hold them, and their rows are never sent.
    MissingSlots,
    /// The outbox spreads its keys over other slots than relays share, so rows would never be sent, or out of their key's
    /// order.
    OtherSlots {
        /// What is wrong, and where.
        fault: String,
    },
    /// The outbox has no partial index on its unpublished rows (OBX-X3).
    MissingPartialIndex {
        /// The index.
        index: &'static str,
    },
}

impl SchemaProblem {
    /// The id of the rule that is broken.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::MissingTable {
                table: "processed_event",
            }
            | Self::MissingColumn {
                table: "processed_event",
                ..
            }
            | Self::MissingTable {
                table: "processed_foreign_event" | "maintenance",
            }
            | Self::MissingColumn {
                table: "processed_foreign_event" | "maintenance",
                ..
            }
            | Self::NoRealDedup { .. }
            | Self::DefaultPartition { .. }
            | Self::NoPartitionForToday => "IDEM-2",
            Self::MissingTable {
                table: "dead_letter",
            }
            | Self::MissingColumn {
                table: "dead_letter",
                ..
            }
            | Self::MissingUniqueKey {
                table: "dead_letter",
                ..
            } => "RTRY-5",
            Self::MissingTable {
                table: "event_reader",
            }
            | Self::MissingColumn {
                table: "event_reader",
                ..
            }
            | Self::MissingUniqueKey {
                table: "event_reader",
                ..
            } => "EVT-3",
            Self::MissingUniqueKey { .. } => "IDEM-1",
            Self::MissingSlots | Self::OtherSlots { .. } => "OBX-2",
            Self::MigrationPending { .. }
            | Self::MissingTable { .. }
            | Self::MissingColumn { .. }
            | Self::MissingPartialIndex { .. } => "OBX-X3",
        }
    }
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule())?;
        match self {
            Self::MigrationPending { version, name } => {
                write!(
                    f,
                    "migration {version} ({name}) isn't applied; run `factum migrate up`"
                )
            }
            Self::MissingTable { table } => write!(
                f,
                "table {table} is missing though its migration is applied; was it dropped, or does \
                 the search_path name another schema? `factum migrate sql` prints its statement"
            ),
            Self::MissingColumn {
                table,
                column,
                data_type,
            } => write!(
                f,
                "table {table} has no column {column} of type {data_type}; run `ALTER TABLE {table} \
                 ADD COLUMN {column} {data_type}`, or compare with `factum migrate sql`"
            ),
            Self::NoRealDedup { fault } => write!(
                f,
                "table processed_event {fault}; run `ALTER TABLE processed_event RENAME TO \
                 processed_event_old`, then the statement of `factum migrate sql`, and copy the \
                 rows of the dedup window over"
            ),
            Self::DefaultPartition { partition } => write!(
                f,
                "processed_event has the DEFAULT partition {partition}, which blocks new \
                 partitions and is never dropped; run `ALTER TABLE processed_event DETACH \
                 PARTITION {partition}`"
            ),
            Self::NoPartitionForToday => f.write_str(
                "processed_event has no partition for today, so no event can be handled; run the \
                 maintenance (any running service does, or factum_postgres::maintain)",
            ),
            Self::MissingUniqueKey { table, columns } => write!(
                f,
                "table {table} has no unique key of exactly ({columns}); run `ALTER TABLE {table} \
                 ADD UNIQUE ({columns})`"
            ),
            Self::MissingSlots => f.write_str(
                "relay_lease lacks some of its 64 slots, so nothing of those is sent; run `INSERT \
                 INTO relay_lease (slot) SELECT generate_series(0, 63) ON CONFLICT DO NOTHING`",
            ),
            Self::OtherSlots { fault } => write!(
                f,
                "{fault}; the number of slots is fixed, and relays share 64. Stop all relays, publish or remove \
                 what is in the outbox, and make the table anew as `factum migrate sql` prints it"
            ),
            Self::MissingPartialIndex { index } => {
                let columns = match *index {
                    CLAIM_INDEX => "(id) WHERE published_at IS NULL AND set_aside_at IS NULL",
                    _ => "(slot, id) WHERE published_at IS NULL",
                };
                write!(
                    f,
                    "the outbox has no partial index on its unpublished rows, so every poll of a \
                     relay reads the published ones too; run `CREATE INDEX CONCURRENTLY {index} ON \
                     outbox {columns}`"
                )
            }
        }
    }
}

/// How `outbox.slot` comes from the key, as PostgreSQL prints it: the record of how many slots the table has.
const SLOT_OF_KEY: &str = "((hashtextextended(key, (0)::bigint) & (63)::bigint))::smallint";
const SLOT_INDEX: &str = "outbox_unpublished";
const CLAIM_INDEX: &str = "outbox_claim";

/// A scalar expression: what is wrong with an existing `processed_event`, or NULL. Part of the
/// migration's script too.
pub(crate) const DEDUP_FAULT: &str = "\
SELECT CASE
        WHEN to_regclass('processed_event') IS NULL THEN NULL
        WHEN pg_get_partkeydef(to_regclass('processed_event')) IS DISTINCT FROM 'RANGE (event_id)'
        THEN 'isn''t partitioned by RANGE (event_id): with a key that holds any other partition \
column, one event gives as many rows as it is delivered, and without partitions old rows can''t \
be dropped'
        WHEN NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = to_regclass('processed_event')
              AND i.indisunique AND i.indisvalid AND i.indimmediate
              AND i.indpred IS NULL AND i.indnkeyatts = 2
              AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
                   FROM pg_attribute a
                   WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey::int2[]))
                  = ARRAY['consumer_group', 'event_id'])
        THEN 'has no unique key of exactly (consumer_group, event_id): with less, a second \
consumer never sees the event, with more, duplicates are handled again'
        WHEN EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = to_regclass('processed_event')
              AND i.indisunique AND i.indnkeyatts = 1)
        THEN 'has a unique key of one column: a second consumer would never see the event'
    END";

/// What must be there: table, column, type as `format_type` names it.
const COLUMNS: &[(&str, &[(&str, &str)])] = &[
    (
        "outbox",
        &[
            ("id", "bigint"),
            ("slot", "smallint"),
            ("event_id", "uuid"),
            ("event_type", "text"),
            ("aggregate_type", "text"),
            ("aggregate_id", "text"),
            ("topic", "text"),
            ("key", "text"),
            ("payload", "bytea"),
            ("headers", "jsonb"),
            ("occurred_at", "timestamp with time zone"),
            ("created_at", "timestamp with time zone"),
            ("not_before", "timestamp with time zone"),
            ("published_at", "timestamp with time zone"),
            ("attempts", "integer"),
            ("last_error", "text"),
            ("set_aside_at", "timestamp with time zone"),
            ("purpose", "text"),
            ("record_key", "bytea"),
            ("header_names", "text[]"),
            ("header_values", "bytea[]"),
            ("tombstone", "boolean"),
        ],
    ),
    (
        "relay_lease",
        &[
            ("slot", "smallint"),
            ("owner", "text"),
            ("token", "bigint"),
            ("expires_at", "timestamp with time zone"),
        ],
    ),
    (
        "relay_member",
        &[
            ("owner", "text"),
            ("joined_at", "timestamp with time zone"),
            ("expires_at", "timestamp with time zone"),
        ],
    ),
    (
        "processed_event",
        &[
            ("consumer_group", "text"),
            ("event_id", "uuid"),
            ("processed_at", "timestamp with time zone"),
        ],
    ),
    (
        "dead_letter",
        &[
            ("id", "bigint"),
            ("consumer", "text"),
            ("topic", "text"),
            ("partition", "integer"),
            ("record_offset", "bigint"),
            ("key", "bytea"),
            ("value", "bytea"),
            ("header_names", "text[]"),
            ("header_values", "bytea[]"),
            ("event_id", "uuid"),
            ("event_type", "text"),
            ("reason", "text"),
            ("path", "text"),
            ("error", "text"),
            ("attempts", "integer"),
            ("first_seen", "timestamp with time zone"),
            ("last_seen", "timestamp with time zone"),
            ("state", "text"),
            ("state_at", "timestamp with time zone"),
            ("payload_bytes", "bigint"),
            ("path_group", "text"),
            ("build", "text"),
        ],
    ),
    (
        "event_reader",
        &[
            ("consumer", "text"),
            ("event_type", "text"),
            ("taken_as", "text"),
            ("newest", "text"),
            ("topic", "text"),
            ("consumer_group", "text"),
            ("declared_at", "timestamp with time zone"),
            ("seen_at", "timestamp with time zone"),
            ("taken", "bigint"),
            ("duplicates", "bigint"),
            ("last_taken_at", "timestamp with time zone"),
            ("retry_seconds", "bigint"),
            ("foreign_days", "integer"),
        ],
    ),
    (
        "processed_foreign_event",
        &[
            ("consumer_group", "text"),
            ("event_id", "uuid"),
            ("processed_at", "timestamp with time zone"),
            ("keep_until", "timestamp with time zone"),
        ],
    ),
    (
        "maintenance",
        &[
            ("service", "text"),
            ("settings", "jsonb"),
            ("ran_at", "timestamp with time zone"),
        ],
    ),
];

/// Everything that is wrong with the tables, by table; empty when a service may start.
///
/// Run it after [`migration::up`] and a first [`maintain`](crate::maintain).
///
/// # Errors
/// A statement failed.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// for problem in factum_postgres::check_schema(&db).await? {
///     eprintln!("{problem}");
/// }
/// # Ok(()) }
/// ```
pub async fn check_schema(db: &Database) -> Result<Vec<SchemaProblem>, DatabaseError> {
    let mut held = db.hold().await?;
    let problems = held
        .answered(check)
        .await
        .map_err(|err| DatabaseError::new("check Factum's tables", &err))?;
    held.give_back();
    Ok(problems)
}

async fn check(conn: &mut PgConnection) -> Result<Vec<SchemaProblem>, sqlx::Error> {
    let mut problems = Vec::new();
    let pending: Vec<_> = migration::read_status(conn)
        .await?
        .into_iter()
        .filter(|status| status.applied_at.is_none())
        .map(|status| SchemaProblem::MigrationPending {
            version: status.version,
            name: status.name,
        })
        .collect();
    let migrated = pending.is_empty();
    problems.extend(pending);

    for &(table, columns) in COLUMNS {
        let rows = sqlx::query(
            "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a \
             WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped",
        )
        .bind(table)
        .fetch_all(&mut *conn)
        .await?;
        if rows.is_empty() {
            // A pending migration says so already.
            if migrated {
                problems.push(SchemaProblem::MissingTable { table });
            }
            continue;
        }
        let mut found: Vec<(String, String)> = Vec::with_capacity(rows.len());
        for row in rows {
            found.push((row.try_get(0)?, row.try_get(1)?));
        }
        for &(column, data_type) in columns {
            if !found
                .iter()
                .any(|(name, of_type)| name == column && of_type == data_type)
            {
                problems.push(SchemaProblem::MissingColumn {
                    table,
                    column,
                    data_type,
                });
            }
        }
        match table {
            "outbox" => {
                check_indexes(conn, &mut problems).await?;
                check_unique(conn, table, "event_id, event_type", &mut problems).await?;
            }
            "relay_lease" => check_slots(conn, &mut problems).await?,
            "processed_event" => check_dedup(conn, &mut problems).await?,
            "dead_letter" => {
                let columns = "consumer, topic, partition, record_offset";
                check_unique(conn, table, columns, &mut problems).await?;
            }
            "event_reader" => {
                let columns = "consumer, event_type, taken_as, newest";
                check_unique(conn, table, columns, &mut problems).await?;
            }
            "processed_foreign_event" => {
                let columns = "consumer_group, event_id";
                check_unique(conn, table, columns, &mut problems).await?;
            }
            "maintenance" => check_unique(conn, table, "service", &mut problems).await?,
            _ => {}
        }
    }
    Ok(problems)
}

async fn check_unique(
    conn: &mut PgConnection,
    table: &'static str,
    columns: &'static str,
    problems: &mut Vec<SchemaProblem>,
) -> Result<(), sqlx::Error> {
    // In whatever order.
    let there: bool = sqlx::query_scalar(
        "SELECT EXISTS ( \
             SELECT FROM pg_index i \
             WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid \
               AND i.indimmediate AND i.indpred IS NULL \
               AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) \
                    FROM pg_attribute a \
                    WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey::int2[])) \
                 = (SELECT array_agg(c ORDER BY c) FROM unnest(string_to_array($2, ', ')) c))",
    )
    .bind(table)
    .bind(columns)
    .fetch_one(conn)
    .await?;
    if !there {
        problems.push(SchemaProblem::MissingUniqueKey { table, columns });
    }
    Ok(())
}

async fn check_slots(
    conn: &mut PgConnection,
    problems: &mut Vec<SchemaProblem>,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE slot BETWEEN 0 AND $1 - 1), \
                count(*) FILTER (WHERE slot NOT BETWEEN 0 AND $1 - 1), \
                (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef AS d \
                 JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
                 WHERE a.attrelid = to_regclass('outbox') AND a.attname = 'slot' AND a.attgenerated = 's') \
         FROM relay_lease",
    )
    .bind(i32::from(SLOTS))
    .fetch_one(conn)
    .await?;
    let (held, others): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if held < i64::from(SLOTS) {
        problems.push(SchemaProblem::MissingSlots);
    }
    if others > 0 {
        problems.push(SchemaProblem::OtherSlots {
            fault: format!("relay_lease has {others} slots beyond 0 to 63"),
        });
    }
    let spread: Option<String> = row.try_get(2)?;
    if spread.as_deref() != Some(SLOT_OF_KEY) {
        let found = spread.map_or_else(
            || "isn't generated".to_owned(),
            |found| format!("is generated as {found}"),
        );
        problems.push(SchemaProblem::OtherSlots {
            fault: format!("the column slot of the table outbox {found}, not as {SLOT_OF_KEY}"),
        });
    }
    Ok(())
}

async fn check_indexes(
    conn: &mut PgConnection,
    problems: &mut Vec<SchemaProblem>,
) -> Result<(), sqlx::Error> {
    // By shape, not by name: an index of another name serves as well.
    let rows = sqlx::query(
        "SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(n, o) \
                      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n \
                      ORDER BY k.o), \
                pg_get_expr(i.indpred, i.indrelid) \
         FROM pg_index i \
         WHERE i.indrelid = to_regclass('outbox') AND i.indisvalid AND i.indpred IS NOT NULL",
    )
    .fetch_all(conn)
    .await?;
    let mut found: Vec<(Vec<String>, String)> = Vec::with_capacity(rows.len());
    for row in rows {
        found.push((row.try_get(0)?, row.try_get(1)?));
    }
    for (index, columns) in [
        (SLOT_INDEX, &["slot", "id"][..]),
        (CLAIM_INDEX, &["id"][..]),
    ] {
        let there = found
            .iter()
            .any(|(of, only)| of == columns && only.contains("published_at IS NULL"));
        if !there {
            problems.push(SchemaProblem::MissingPartialIndex { index });
        }
    }
    Ok(())
}

async fn check_dedup(
    conn: &mut PgConnection,
    problems: &mut Vec<SchemaProblem>,
) -> Result<(), sqlx::Error> {
    if let Some(fault) = sqlx::query_scalar::<_, Option<String>>(DEDUP_FAULT)
        .fetch_one(&mut *conn)
        .await?
    {
        problems.push(SchemaProblem::NoRealDedup { fault });
        return Ok(());
    }
    let partitions = partition::list(conn).await?;
    for partition in &partitions {
        if partition.bounds == Bounds::Default {
            problems.push(SchemaProblem::DefaultPartition {
                partition: partition.name.clone(),
            });
        }
    }
    let today = factum_event::EventId::floor(crate::event_id::now_unix_millis()).as_uuid();
    if !partitions
        .iter()
        .any(|p| !p.detach_pending && p.bounds.holds(today))
    {
        problems.push(SchemaProblem::NoPartitionForToday);
    }
    Ok(())
}
