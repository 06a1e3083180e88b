use std::time::Duration;

use factum_event::EventId;
use sqlx::{AssertSqlSafe, PgConnection};
use time::{Date, OffsetDateTime};

use crate::connection::millis;
use crate::database::Database;
use crate::error::{self, DatabaseError, ErrorKind};
use crate::partition::{self, Bounds, Partition};

/// The dedup window, in whole days of UTC. Ids outside of it are
/// [`OutOfWindow`](crate::DedupVerdict::OutOfWindow).
///
/// Keep it longer than the topics' retention plus the horizons of retry and replay: what comes
/// back after its partition was dropped is refused (listing fault 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Days before today that stay.
    pub keep_days: u32,
    /// Days after today that are made ahead, so that a service that stands still over a weekend
    /// finds its partitions (listing fault 3). Fewer than 2 count as 2.
    pub ahead_days: u32,
}

impl Default for Window {
    /// 30 days back, 7 ahead.
    fn default() -> Self {
        Self {
            keep_days: 30,
            ahead_days: 7,
        }
    }
}

/// What one run of [`maintain`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// `false`: another instance is at it, and nothing was done here.
    pub leader: bool,
    /// Partitions made.
    pub created: Vec<String>,
    /// Partitions dropped.
    pub dropped: Vec<String>,
    /// Partitions that are due but whose lock wasn't granted within 5 s: a transaction has been
    /// open for longer. The next run goes on with them; no writer waits meanwhile.
    pub postponed: Vec<String>,
}

/// Advisory lock "factum", maintenance.
const LOCK: i64 = 0x6661_6374_756d_0002;

/// How long maintenance waits for a lock. It holds up no one while it waits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// At most for one statement, and for one run.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

const LIMIT: Duration = Duration::from_secs(600);

const WHAT: &str = "maintain the dedup window";

/// At most so many days in one window: a partition each.
const MAX_DAYS: u32 = 3_660;

/// Marks the partitions that maintenance made, so that it drops no table of anyone else's.
const COMMENT: &str = "Factum: one day of processed_event";

/// Makes partitions of `processed_event` ahead of time and drops those wholly older than the
/// window. One instance does it, the others find the advisory lock taken. Run it at the start, and
/// then every hour or so.
///
/// Writers don't notice: a partition is made as a table and then attached, which needs no
/// exclusive lock on `processed_event`, and goes by `DETACH CONCURRENTLY` before it is dropped. A
/// detach that a crash left half-done is finished by the next run.
///
/// The first run makes the whole window. Later runs make days after the youngest partition only:
/// what was dropped once stays outside, because nobody knows any more what was handled there.
/// Raising `keep_days` therefore takes effect as time passes.
///
/// # Errors
/// A statement failed; what was done before it stays. [`ErrorKind::Other`] when
/// `processed_event` has a DEFAULT partition (public case 37), which must go first.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// use factum_postgres::{Window, maintain};
/// use time::OffsetDateTime;
///
/// let report = maintain(&db, &Window::default(), OffsetDateTime::now_utc()).await?;
/// for partition in &report.created {
///     println!("made {partition}");
/// }
/// # Ok(()) }
/// ```
pub async fn maintain(
    db: &Database,
    window: &Window,
    now: OffsetDateTime,
) -> Result<MaintenanceReport, DatabaseError> {
    let mut held = db.hold().await?;
    let report = tokio::time::timeout(LIMIT, run(held.conn(), window, now))
        .await
        .unwrap_or_else(|_| {
            Err(DatabaseError::plain(
                ErrorKind::Unavailable,
                WHAT,
                format!("it wasn't done after {LIMIT:?}"),
                "the next run goes on with it",
            ))
        })?;
    // Closed, not given back: that frees the advisory lock, and the time limits set here are
    // maintenance's own.
    held.close().await;
    Ok(report)
}

async fn run(
    conn: &mut PgConnection,
    window: &Window,
    now: OffsetDateTime,
) -> Result<MaintenanceReport, DatabaseError> {
    let failed = |err: sqlx::Error| DatabaseError::new(WHAT, &err);

    let set_up = format!(
        "SET lock_timeout = {}; SET statement_timeout = {}",
        millis(LOCK_TIMEOUT),
        millis(STATEMENT_TIMEOUT),
    );
    sqlx::raw_sql(AssertSqlSafe(set_up))
        .execute(&mut *conn)
        .await
        .map_err(failed)?;
    let leader: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
        .bind(LOCK)
        .fetch_one(&mut *conn)
        .await
        .map_err(failed)?;
    let mut report = MaintenanceReport {
        leader,
        ..MaintenanceReport::default()
    };
    if !leader {
        return Ok(report);
    }

    // Beside the table, wherever the search_path leads.
    let schema: Option<String> = sqlx::query_scalar(
        "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = to_regclass('processed_event')",
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed)?;
    let Some(schema) = schema else {
        return Err(DatabaseError::plain(
            ErrorKind::Other,
            WHAT,
            "the table processed_event is missing",
            "run the migrations (`factum migrate up`)",
        ));
    };
    let partitions = partition::list(conn).await.map_err(failed)?;
    if let Some(default) = partitions.iter().find(|p| p.bounds == Bounds::Default) {
        return Err(DatabaseError::plain(
            ErrorKind::Other,
            WHAT,
            format!(
                "processed_event has the DEFAULT partition {} (IDEM-2)",
                default.name
            ),
            "detach it: it blocks new partitions and is never dropped",
        ));
    }
    let today = Day::of(now.to_offset(time::UtcOffset::UTC).date());
    let oldest = today.back(window.keep_days.min(MAX_DAYS));
    let newest = today.on(window.ahead_days.clamp(2, MAX_DAYS));

    for day in days_to_make(&partitions, oldest, newest) {
        create(conn, &schema, day).await.map_err(failed)?;
        report.created.push(day.name());
    }
    // The oldest first: if one has to wait, the rest is younger.
    for partition in partitions.iter().filter(|p| is_older(p, oldest)) {
        match detach(conn, partition).await {
            Ok(()) => {}
            // One detach at a time: the others must wait with it (55000 says so).
            Err(err) if matches!(error::code(&err), "55P03" | "55000") => {
                report.postponed.push(partition.name.clone());
                continue;
            }
            Err(err) => return Err(failed(err)),
        }
    }
    for name in leftovers(conn, &schema, oldest).await.map_err(failed)? {
        match drop_table(conn, &name).await {
            Ok(()) => report.dropped.push(name.1),
            Err(err) if error::code(&err) == "55P03" => report.postponed.push(name.1),
            Err(err) => return Err(failed(err)),
        }
    }
    Ok(report)
}

/// A day of UTC, by its number since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Day(u64);

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl Day {
    fn of(date: Date) -> Self {
        let days = date.to_julian_day() - time::macros::date!(1970 - 01 - 01).to_julian_day();
        Self(u64::try_from(days).unwrap_or(0))
    }

    fn back(self, days: u32) -> Self {
        Self(self.0.saturating_sub(u64::from(days)))
    }

    fn on(self, days: u32) -> Self {
        Self(self.0 + u64::from(days))
    }

    /// The smallest id of the day.
    fn floor(self) -> EventId {
        EventId::floor(self.0 * DAY_MS)
    }

    fn name(self) -> String {
        let seconds = i64::try_from(self.0 * DAY_MS / 1000).unwrap_or(0);
        let date = OffsetDateTime::from_unix_timestamp(seconds)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
            .date();
        format!(
            "processed_event_{:04}{:02}{:02}",
            date.year(),
            u8::from(date.month()),
            date.day()
        )
    }
}

fn days_to_make(partitions: &[Partition], oldest: Day, newest: Day) -> Vec<Day> {
    let top = partitions
        .iter()
        .filter_map(|partition| match partition.bounds {
            Bounds::Range { upper, .. } => Some(upper.unwrap_or(uuid::Uuid::max())),
            Bounds::Default => None,
        });
    let top = top.max().unwrap_or(uuid::Uuid::nil());
    (oldest.0..=newest.0)
        .map(Day)
        .filter(|day| day.floor().as_uuid() >= top)
        .collect()
}

/// Whether every id that it takes is older than the window.
fn is_older(partition: &Partition, oldest: Day) -> bool {
    match partition.bounds {
        Bounds::Range {
            upper: Some(upper), ..
        } => {
            // An unreadable bound is an empty range from nil to nil; it's not ours to drop.
            !upper.is_nil() && upper <= oldest.floor().as_uuid()
        }
        Bounds::Range { upper: None, .. } | Bounds::Default => false,
    }
}

/// `CREATE TABLE … PARTITION OF` would lock out every writer; attaching doesn't.
async fn create(conn: &mut PgConnection, schema: &str, day: Day) -> Result<(), sqlx::Error> {
    let (from, to) = (day.floor(), day.on(1).floor());
    let name = quoted(schema, &day.name());
    let parent = quoted(schema, "processed_event");
    let sql = format!(
        "CREATE TABLE {name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS); \
         COMMENT ON TABLE {name} IS '{COMMENT}'; \
         ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ('{from}') TO ('{to}')"
    );
    // Several statements in one simple query are one transaction.
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

async fn detach(conn: &mut PgConnection, partition: &Partition) -> Result<(), sqlx::Error> {
    let how = if partition.detach_pending {
        "FINALIZE"
    } else {
        "CONCURRENTLY"
    };
    let name = quoted(&partition.schema, &partition.name);
    // Alone in its query: CONCURRENTLY runs in no transaction.
    let sql = format!("ALTER TABLE processed_event DETACH PARTITION {name} {how}");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// Tables that were partitions: our comment on them, a name older than the window, no parent.
async fn leftovers(
    conn: &mut PgConnection,
    schema: &str,
    oldest: Day,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT n.nspname::text, c.relname::text \
         FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'r' AND NOT c.relispartition \
           AND c.relname ~ '^processed_event_[0-9]{8}$' AND c.relname::text < $1 \
           AND n.nspname = $3 AND obj_description(c.oid, 'pg_class') = $2 \
         ORDER BY 2",
    )
    .bind(oldest.name())
    .bind(COMMENT)
    .bind(schema)
    .fetch_all(conn)
    .await
}

async fn drop_table(
    conn: &mut PgConnection,
    (schema, name): &(String, String),
) -> Result<(), sqlx::Error> {
    let sql = format!("DROP TABLE {}", quoted(schema, name));
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

fn quoted(schema: &str, name: &str) -> String {
    let quote = |part: &str| format!("\"{}\"", part.replace('"', "\"\""));
    format!("{}.{}", quote(schema), quote(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(from: Day, to: Day) -> Partition {
        Partition {
            schema: "public".to_owned(),
            name: from.name(),
            bounds: Bounds::Range {
                lower: Some(from.floor().as_uuid()),
                upper: Some(to.floor().as_uuid()),
            },
            detach_pending: false,
        }
    }

    #[test]
    fn a_day_has_a_name_and_a_floor() {
        let day = Day::of(time::macros::date!(2026 - 11 - 30));
        assert_eq!(day.name(), "processed_event_20261130");
        assert_eq!(day.floor().unix_millis() % DAY_MS, 0);
        assert_eq!(day.on(1).name(), "processed_event_20261201");
    }

    #[test]
    fn the_first_run_makes_the_window_and_later_runs_only_what_is_younger() {
        let today = Day::of(time::macros::date!(2026 - 11 - 30));
        let (oldest, newest) = (today.back(3), today.on(2));
        assert_eq!(days_to_make(&[], oldest, newest).len(), 6);
        let grown = [
            partition(today.back(1), today),
            partition(today, today.on(1)),
        ];
        assert_eq!(
            days_to_make(&grown, oldest, newest),
            [today.on(1), today.on(2)],
            "neither older days nor gaps are filled"
        );
    }

    #[test]
    fn only_what_lies_wholly_before_the_window_is_older() {
        let oldest = Day::of(time::macros::date!(2026 - 11 - 01));
        assert!(is_older(&partition(oldest.back(2), oldest), oldest));
        assert!(!is_older(&partition(oldest.back(1), oldest.on(1)), oldest));
        assert!(!is_older(&partition(oldest, oldest.on(1)), oldest));
    }

    #[test]
    fn names_from_the_catalogue_are_quoted() {
        assert_eq!(quoted("s", "a\"b"), "\"s\".\"a\"\"b\"");
    }
}
