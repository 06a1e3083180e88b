//! Are the rules kept on a live system? What `factum doctor` checks (IDEM-2, OBX-X3, CONS-5).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use factum_kafka::{KafkaSettings, TopicSettings, topic_settings};
use factum_postgres::doctor::{
    Facts, Maintenance, OpenTransaction, Replication, Server, Sessions, Table, facts,
};
use factum_postgres::status::{self, COUNTED, ConsumerStatus, OutboxStatus, Status};
use factum_postgres::{Database, DatabaseError, EventReader, check_schema, event_readers};
use time::OffsetDateTime;

use crate::horizon::{Horizon, Memory};

/// How long the brokers may take.
const KAFKA_LIMIT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Partitions for fewer days than these are a warning: maintenance makes seven.
const DAYS_AHEAD: i64 = 3;
/// Maintenance looks every minute.
const MAINTENANCE_SILENT: Duration = Duration::from_secs(15 * 60);
/// A row that waits for longer than this waits for something: a relay sends within milliseconds.
const OUTBOX_OLD: Duration = Duration::from_secs(60);
const OUTBOX_STANDS: Duration = Duration::from_secs(10 * 60);
/// Dead rows that a vacuum should have taken: so many, and so great a part of the table.
const DEAD_ROWS: i64 = 50_000;
const DEAD_PART: i64 = 5;
/// WAL that an idle replication slot may retain before it is a failure.
const RETAINED_MUCH: i64 = 1 << 30;
/// Clocks that differ by more.
const CLOCK_OFF: Duration = Duration::from_secs(2);
const CLOCK_WRONG: Duration = Duration::from_secs(60);
/// What a consumer says that hasn't been there for so long counts no more.
const READER_GONE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All is well.
    Ok,
    /// It works, and somebody should look.
    Warning,
    /// A promise doesn't hold, or soon won't.
    Failed,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// A stable name, such as `window`.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found, with numbers.
    pub what: String,
    /// Where: a table, a setting, a session; empty if all is well.
    pub place: String,
    /// Why it matters; empty if all is well.
    pub why: &'static str,
    /// What to do; empty if all is well.
    pub mend: String,
}

impl Check {
    fn ok(name: &'static str, what: impl Into<String>) -> Check {
        Check {
            name,
            verdict: Verdict::Ok,
            what: what.into(),
            place: String::new(),
            why: "",
            mend: String::new(),
        }
    }

    fn bad(
        verdict: Verdict,
        name: &'static str,
        place: impl Into<String>,
        what: impl Into<String>,
        why: &'static str,
        mend: impl Into<String>,
    ) -> Check {
        Check {
            name,
            verdict,
            what: what.into(),
            place: place.into(),
            why,
            mend: mend.into(),
        }
    }
}

/// What to look at.
#[derive(Debug, Clone, Copy)]
pub struct Examination<'a> {
    /// The brokers; `None` leaves everything about topics out.
    pub kafka: Option<&'a KafkaSettings>,
    /// A transaction that has been open for longer is told.
    pub open_for: Duration,
}

/// Looks at the database, and at the brokers, and judges. The worst checks come first.
///
/// Each query has two seconds; one that is cut is a warning.
///
/// # Errors
/// No connection, or a statement failed otherwise than for its time. Brokers that can't be reached are a failed check.
pub async fn examine(
    db: &Database,
    examination: &Examination<'_>,
) -> Result<Vec<Check>, DatabaseError> {
    let problems = check_schema(db).await?;
    let mut checks: Vec<Check> = problems
        .iter()
        .map(|problem| {
            let text = problem.to_string();
            let (what, mend) = text.split_once("; ").unwrap_or((&text, ""));
            Check::bad(
                Verdict::Failed,
                "schema",
                "the database's tables",
                what,
                "Factum relies on its tables as they were made",
                mend,
            )
        })
        .collect();
    if !checks.is_empty() {
        // Everything else reads those tables.
        return Ok(checks);
    }
    checks.push(Check::ok(
        "schema",
        "tables, keys and indexes are as they should be",
    ));
    let before = OffsetDateTime::now_utc();
    let facts = facts(db, examination.open_for).await?;
    let status = status::status(db).await?;
    let readers = event_readers(db).await?;
    let after = OffsetDateTime::now_utc();

    checks.push(clock(before, facts.at, after));
    window(&status, &facts, &mut checks);
    horizons(examination.kafka, &status, &facts, &readers, &mut checks).await;
    maintenance(facts.maintenance.as_deref(), &readers, &mut checks);
    outbox(status.outbox.as_ref(), &mut checks);
    match &facts.sessions {
        Some(found) => sessions(found, &mut checks),
        None => checks.push(cut("sessions")),
    }
    match &facts.replication {
        Some(found) => replication(found, &mut checks),
        None => checks.push(cut("replication")),
    }
    match &facts.tables {
        Some(found) => tables(found, &mut checks),
        None => checks.push(cut("tables")),
    }
    match facts.server {
        Some(found) => server(found, &mut checks),
        None => checks.push(cut("server")),
    }
    consumers(&status, &mut checks);
    checks.sort_by_key(|check| std::cmp::Reverse(check.verdict));
    Ok(checks)
}

fn cut(name: &'static str) -> Check {
    Check::bad(
        Verdict::Warning,
        name,
        "the database",
        "unknown: it took longer than 2 s and was cut",
        "a look must never become the trouble that it looks for",
        "look again when the database has less to do",
    )
}

fn clock(before: OffsetDateTime, database: OffsetDateTime, after: OffsetDateTime) -> Check {
    // Anywhere between the question and the answer is right.
    let off = if database < before {
        before - database
    } else if database > after {
        database - after
    } else {
        time::Duration::ZERO
    }
    .unsigned_abs();
    if off <= CLOCK_OFF {
        return Check::ok("clock", "the database's clock and this machine's agree");
    }
    Check::bad(
        if off > CLOCK_WRONG {
            Verdict::Failed
        } else {
            Verdict::Warning
        },
        "clock",
        "this machine and the database's",
        format!("their clocks differ by {:.0} s", off.as_secs_f64()),
        "ids hold the time at which they were made: with a clock that is far off they lie outside of the dedup window",
        "let both follow a time server (chrony, ntpd)",
    )
}

fn window(status: &Status, facts: &Facts, checks: &mut Vec<Check>) {
    let Some(window) = &status.window else {
        checks.push(cut("window"));
        return;
    };
    if window.days_ahead < DAYS_AHEAD {
        checks.push(Check::bad(
            Verdict::Failed,
            "window",
            "processed_event",
            format!(
                "partitions stand ready for {} d only; maintenance makes them for 7",
                window.days_ahead
            ),
            "on the first day without a partition every consumer stands still",
            "find out why no service does the maintenance (its log says so), or run `factum migrate up`",
        ));
    } else {
        checks.push(Check::ok(
            "window",
            format!(
                "processed_event goes {} d back and has partitions for {} d ahead",
                window.days_back, window.days_ahead
            ),
        ));
    }
    if let Some(Some(oldest)) = facts.oldest_open_letter {
        let age = (facts.at - oldest).whole_days();
        if age >= window.days_back {
            checks.push(Check::bad(
                Verdict::Warning,
                "dead letters",
                "dead_letter",
                format!(
                    "the oldest open one is {age} d old, and the dedup window goes {} d back",
                    window.days_back
                ),
                "a replay from outside of the window must be accepted by name: nobody knows whether the event was handled",
                "replay or discard what is open (`factum dlq list`) before it leaves the window",
            ));
        }
    }
}

async fn horizons(
    kafka: Option<&KafkaSettings>,
    status: &Status,
    facts: &Facts,
    readers: &[EventReader],
    checks: &mut Vec<Check>,
) {
    let Some(kafka) = kafka else {
        checks.push(Check::bad(
            Verdict::Warning,
            "topics",
            "the environment",
            "not looked at: KAFKA_BROKERS is not set",
            "the dedup window must be longer than topics keep their records",
            "set KAFKA_BROKERS and its kin, as the services have them",
        ));
        return;
    };
    let readers: Vec<&EventReader> = readers
        .iter()
        .filter(|reader| (facts.at - reader.seen_at).unsigned_abs() < READER_GONE)
        .collect();
    let mut topics: Vec<&str> = readers.iter().map(|reader| reader.topic.as_str()).collect();
    topics.sort_unstable();
    topics.dedup();
    if topics.is_empty() {
        checks.push(Check::ok("topics", "no consumer has read a topic lately"));
        return;
    }
    let found = match topic_settings(kafka, &topics, KAFKA_LIMIT).await {
        Ok(found) => found,
        Err(error) => {
            checks.push(Check::bad(
                Verdict::Failed,
                "topics",
                format!("Kafka at {}", kafka.brokers),
                error.to_string(),
                "nobody knows whether the dedup window is longer than topics keep their records",
                "start Kafka, correct KAFKA_BROKERS and its kin, or give the user the right DescribeConfigs",
            ));
            return;
        }
    };
    let days = status
        .window
        .as_ref()
        .map_or(0, |window| u32::try_from(window.days_back).unwrap_or(0));
    checks.extend(compared(
        &readers,
        &found,
        days,
        replays(facts.maintenance.as_deref()),
    ));
    checks.extend(copies(&found));
    for topic in topics.iter().filter(|topic| !found.contains_key(**topic)) {
        checks.push(Check::bad(
            Verdict::Failed,
            "topics",
            format!("Kafka at {}", kafka.brokers),
            format!("the topic `{topic}` does not exist"),
            "a consumer of it gets nothing",
            "create it, or if the consumer is gone wait until it is forgotten, a week after its last word",
        ));
    }
}

/// For how long replays are made: the longest of what the services say.
fn replays(maintenance: Option<&[Maintenance]>) -> Duration {
    let told = maintenance
        .unwrap_or_default()
        .iter()
        .filter_map(|service| {
            let (_, days) = service
                .settings
                .iter()
                .find(|(name, _)| name == "FACTUM_REPLAY_HORIZON_DAYS")?;
            days.parse::<u32>().ok()
        });
    DAY * told.max().unwrap_or(7)
}

fn compared(
    readers: &[&EventReader],
    topics: &BTreeMap<String, TopicSettings>,
    window_days: u32,
    replays: Duration,
) -> Vec<Check> {
    // The longest retries and the fewest days of each consumer and topic: it has a row for each type and build.
    let mut pairs: BTreeMap<(&str, &str), (Duration, Option<u32>)> = BTreeMap::new();
    for reader in readers {
        let (retries, foreign) = pairs
            .entry((&reader.consumer, &reader.topic))
            .or_insert((reader.retry_horizon, reader.foreign_days));
        *retries = (*retries).max(reader.retry_horizon);
        *foreign = match (*foreign, reader.foreign_days) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    let mut checks = Vec::new();
    let mut sound = 0;
    for ((consumer, topic), (retries, foreign)) in pairs {
        let Some(settings) = topics.get(topic) else {
            continue;
        };
        let horizon = Horizon {
            topic,
            retention: settings.retention,
            retries,
            replays,
        };
        let memories = [
            Some(Memory::Window { days: window_days }),
            foreign.map(|days| Memory::Foreign { days }),
        ];
        for memory in memories.into_iter().flatten() {
            match horizon.compare(memory) {
                Ok(()) => sound += 1,
                Err(short) => checks.push(Check::bad(
                    Verdict::Failed,
                    "horizon",
                    format!("consumer `{consumer}`, topic `{topic}`"),
                    short.what,
                    short.why,
                    short.mend,
                )),
            }
        }
    }
    if checks.is_empty() && sound > 0 {
        checks.push(Check::ok(
            "horizon",
            format!("the dedup window of {window_days} d is longer than any topic, its retries and replays"),
        ));
    }
    checks
}

fn copies(topics: &BTreeMap<String, TopicSettings>) -> Vec<Check> {
    let bad: Vec<Check> = topics
        .iter()
        .filter(|(_, settings)| settings.copies < 3 || settings.min_in_sync < 2)
        .map(|(topic, settings)| {
            Check::bad(
                Verdict::Warning,
                "copies",
                format!("topic `{topic}`"),
                format!(
                    "{} of each partition, min.insync.replicas={}",
                    match settings.copies {
                        1 => "1 copy".to_owned(),
                        copies => format!("{copies} copies"),
                    },
                    settings.min_in_sync
                ),
                "an acknowledged record is lost with the disk of one broker",
                "in production three copies and min.insync.replicas=2: kafka-reassign-partitions.sh, kafka-configs.sh",
            )
        })
        .collect();
    if bad.is_empty() && !topics.is_empty() {
        return vec![Check::ok(
            "copies",
            "three copies of each topic at least, two of them in sync",
        )];
    }
    bad
}

fn maintenance(found: Option<&[Maintenance]>, readers: &[EventReader], checks: &mut Vec<Check>) {
    let Some(found) = found else {
        checks.push(cut("maintenance"));
        return;
    };
    let living: Vec<&Maintenance> = found
        .iter()
        .filter(|service| service.ago <= MAINTENANCE_SILENT)
        .collect();
    if living.is_empty() {
        if found.is_empty() && readers.is_empty() {
            checks.push(Check::ok("maintenance", "no service has run here yet"));
            return;
        }
        let last = found.iter().map(|service| service.ago).min();
        checks.push(Check::bad(
            Verdict::Warning,
            "maintenance",
            "table maintenance",
            match last {
                Some(ago) => format!("nobody has done it for {} min", ago.as_secs() / 60),
                None => "nobody has done it yet".to_owned(),
            },
            "the tables grow, and consumers stop a week later for want of a partition",
            "let one service of this database run with .maintenance(true), which is the default",
        ));
        return;
    }
    let mut values: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for service in &living {
        for (name, value) in &service.settings {
            values
                .entry(name)
                .or_default()
                .push((&service.service, value));
        }
    }
    for (name, told) in &values {
        let (_, first) = told[0];
        if told.iter().any(|(_, value)| *value != first) {
            let mut what = format!("{name} differs:");
            for (service, value) in told {
                let _ = write!(what, " {service} {value},");
            }
            what.pop();
            checks.push(Check::bad(
                Verdict::Warning,
                "maintenance",
                "the services of this database",
                what,
                "whoever comes first deletes, so that the shortest of them holds",
                "set it alike everywhere, or let one service alone do the maintenance",
            ));
        }
    }
    let mut kept = String::from("kept:");
    for (name, told) in &values {
        let short = name.trim_start_matches("FACTUM_").to_lowercase();
        let _ = write!(kept, " {short}={},", told[0].1);
    }
    kept.pop();
    checks.push(Check::ok("maintenance", kept));
}

fn capped(n: i64) -> String {
    match n {
        n if n > COUNTED => format!("{COUNTED}+"),
        n => n.to_string(),
    }
}

fn outbox(found: Option<&OutboxStatus>, checks: &mut Vec<Check>) {
    let Some(outbox) = found else {
        checks.push(cut("outbox"));
        return;
    };
    let before = checks.len();
    if let Some(oldest) = outbox.oldest.filter(|oldest| *oldest > OUTBOX_OLD) {
        checks.push(Check::bad(
            if oldest > OUTBOX_STANDS {
                Verdict::Failed
            } else {
                Verdict::Warning
            },
            "outbox",
            "outbox",
            format!(
                "{} rows wait, the oldest for {} s; {} slots stopped",
                capped(outbox.unpublished),
                oldest.as_secs(),
                outbox.stopped_slots.len()
            ),
            "events reach no consumer",
            "is a relay running (`factum relay`), and is Kafka there? Its log says why a row fails",
        ));
    }
    if outbox.set_aside > 0 {
        checks.push(Check::bad(
            Verdict::Warning,
            "outbox",
            "outbox",
            format!("{} rows were set aside", capped(outbox.set_aside)),
            "they were given up, and stay until somebody has looked: retention deletes published rows alone",
            "run SELECT id, topic, last_error FROM outbox WHERE set_aside_at IS NOT NULL, mend the cause, then UPDATE outbox \
             SET set_aside_at = NULL, attempts = 0 of those rows",
        ));
    }
    if checks.len() == before {
        checks.push(Check::ok(
            "outbox",
            format!("{} rows wait, none for long", capped(outbox.unpublished)),
        ));
    }
}

fn sessions(found: &Sessions, checks: &mut Vec<Check>) {
    let Sessions {
        open,
        hidden,
        detach_pending,
        prepared,
        ..
    } = found;
    checks.extend(
        open.iter()
            .map(|session| open_transaction(session, detach_pending)),
    );
    for gid in prepared {
        checks.push(Check::bad(
            Verdict::Warning,
            "sessions",
            format!("the prepared transaction {gid}"),
            "it was prepared and neither committed nor rolled back",
            "it holds its locks and keeps vacuum from cleaning, also over a restart",
            format!("ask who made it, then ROLLBACK PREPARED '{gid}'"),
        ));
    }
    if open.is_empty() && prepared.is_empty() {
        let mut what = String::from("no transaction is open for long");
        if *hidden > 0 {
            let _ = write!(
                what,
                "; {hidden} sessions of other roles can't be seen (GRANT pg_read_all_stats lets this role see them)"
            );
        }
        checks.push(Check::ok("sessions", what));
    }
}

fn open_transaction(session: &OpenTransaction, detach_pending: &[String]) -> Check {
    let idle = session.state.starts_with("idle in transaction");
    let mut what = format!(
        "{} for {} s, since {}",
        match idle {
            true => "idle in transaction",
            false => "a transaction has been open",
        },
        session.age.as_secs(),
        moment(session.since),
    );
    if session.holds_vacuum {
        what.push_str("; vacuum can't clean what was deleted since");
    }
    if !session.locks.is_empty() {
        let _ = write!(what, "; it holds locks on {}", session.locks.join(", "));
    }
    if session.locks.iter().any(|table| table == "processed_event") {
        match detach_pending {
            [] => {
                what.push_str("; old partitions of processed_event can't be dropped until it ends");
            }
            pending => {
                let _ = write!(
                    what,
                    "; {} waits to be dropped until it ends",
                    pending.join(", ")
                );
            }
        }
    }
    if !session.blocks.is_empty() {
        let pids: Vec<String> = session.blocks.iter().map(i32::to_string).collect();
        let _ = write!(what, "; process {} waits for it", pids.join(", "));
    }
    Check::bad(
        // A session at work comes to its end; one that waits for its client may never.
        match session.blocks.is_empty() {
            true => Verdict::Warning,
            false => Verdict::Failed,
        },
        "sessions",
        format!(
            "process {} of `{}`, role {}",
            session.pid, session.application, session.role
        ),
        what,
        "claims of the relay walk over rows that vacuum can't take, and old partitions stay",
        format!(
            "end it where it began, or SELECT pg_terminate_backend({}); against the next one: \
             idle_in_transaction_session_timeout",
            session.pid
        ),
    )
}

fn moment(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!(
        "{}T{:02}:{:02}:{:02}Z",
        at.date(),
        at.hour(),
        at.minute(),
        at.second()
    )
}

fn megabytes(bytes: i64) -> i64 {
    bytes / (1024 * 1024)
}

fn replication(found: &Replication, checks: &mut Vec<Check>) {
    let before = checks.len();
    for slot in &found.slots {
        let drop = format!(
            "start its reader, or SELECT pg_drop_replication_slot('{}') if nobody needs it",
            slot.name
        );
        if slot.status == "lost" {
            checks.push(Check::bad(
                Verdict::Warning,
                "replication",
                format!("the replication slot {}", slot.name),
                "the WAL that its reader needs is gone",
                "its reader can't go on, and has to begin anew",
                drop,
            ));
        } else if !slot.active {
            checks.push(Check::bad(
                if slot.retained > RETAINED_MUCH {
                    Verdict::Failed
                } else {
                    Verdict::Warning
                },
                "replication",
                format!("the replication slot {}", slot.name),
                format!(
                    "nobody reads from it, and it retains {} MB of WAL",
                    megabytes(slot.retained)
                ),
                "it retains more with every write, until the disk is full and the database stands still",
                drop,
            ));
        }
    }
    if !found.slots.is_empty() && found.limit_mb.is_none() {
        checks.push(Check::bad(
            Verdict::Warning,
            "replication",
            "max_slot_wal_keep_size",
            "there are replication slots, and no limit on the WAL that they retain",
            "one whose reader is away fills the disk",
            "run ALTER SYSTEM SET max_slot_wal_keep_size = '50GB', by the size of the disk; then SELECT pg_reload_conf()",
        ));
    }
    if checks.len() == before {
        checks.push(Check::ok(
            "replication",
            match found.slots.len() {
                0 => "no replication slots".to_owned(),
                slots => format!("{slots} replication slots, all of them read, with a limit"),
            },
        ));
    }
}

fn tables(found: &[Table], checks: &mut Vec<Check>) {
    let before = checks.len();
    for table in found {
        if table.autovacuum_off {
            checks.push(Check::bad(
                Verdict::Failed,
                "vacuum",
                format!("table {}", table.name),
                "autovacuum is switched off for it",
                "it grows without end, and every claim of a relay gets slower",
                format!("run ALTER TABLE {} RESET (autovacuum_enabled)", table.name),
            ));
        }
        if table.dead > DEAD_ROWS && table.dead > (table.live + table.dead) / DEAD_PART {
            checks.push(Check::bad(
                Verdict::Warning,
                "vacuum",
                format!("table {}", table.name),
                format!(
                    "{} dead rows beside {} living ones, {} MB with indexes",
                    table.dead,
                    table.live,
                    megabytes(table.bytes)
                ),
                "every statement that walks its indexes walks over them (public case 22)",
                format!(
                    "end the transactions that this command names, if any; else VACUUM {}",
                    table.name
                ),
            ));
        }
        for index in &table.invalid_indexes {
            checks.push(Check::bad(
                Verdict::Failed,
                "indexes",
                format!("table {}", table.name),
                format!(
                    "the index {index} is invalid: its CREATE INDEX CONCURRENTLY failed half-way"
                ),
                "no query uses it, and every write pays for it",
                format!("REINDEX INDEX CONCURRENTLY {index}"),
            ));
        }
    }
    if checks.len() == before {
        let bytes: i64 = found.iter().map(|table| table.bytes).sum();
        checks.push(Check::ok(
            "vacuum",
            format!(
                "{} tables, {} MB beside processed_event, no dead rows to speak of, no invalid index",
                found.len(),
                megabytes(bytes)
            ),
        ));
    }
}

fn server(found: Server, checks: &mut Vec<Check>) {
    if !found.autovacuum {
        checks.push(Check::bad(
            Verdict::Failed,
            "vacuum",
            "the server's settings",
            "autovacuum or track_counts is off",
            "tables grow without end, and every claim of a relay gets slower",
            "run ALTER SYSTEM RESET autovacuum; ALTER SYSTEM RESET track_counts; SELECT pg_reload_conf()",
        ));
    }
    let of = format!(
        "{} of {} connections are in use",
        found.connections, found.max_connections
    );
    if found.connections * 10 > found.max_connections * 9 {
        checks.push(Check::bad(
            Verdict::Warning,
            "connections",
            "max_connections",
            of,
            "a service that starts, or one more lane, gets none",
            "lower FACTUM_DATABASE_MAX_CONNECTIONS of the services, or raise max_connections",
        ));
    } else {
        checks.push(Check::ok("connections", of));
    }
}

fn consumers(status: &Status, checks: &mut Vec<Check>) {
    let Some(consumers) = &status.consumers else {
        checks.push(cut("consumers"));
        return;
    };
    let before = checks.len();
    for consumer in consumers {
        let ConsumerStatus {
            consumer: name,
            parked_keys,
            held_keys,
            dead_letters,
            ..
        } = consumer;
        if *held_keys > 0 {
            checks.push(Check::bad(
                Verdict::Failed,
                "consumers",
                format!("consumer `{name}`"),
                format!("{} keys are held", capped(*held_keys)),
                "nothing of these keys is handled until a person decides; no retention deletes what is parked",
                format!("factum parked list --consumer {name}"),
            ));
        } else if *parked_keys > COUNTED {
            checks.push(Check::bad(
                Verdict::Warning,
                "consumers",
                format!("consumer `{name}`"),
                format!("{} keys are parked", capped(*parked_keys)),
                "something that its handler needs is away, or every event fails",
                format!("factum parked list --consumer {name}"),
            ));
        }
        if *dead_letters > 0 {
            checks.push(Check::bad(
                Verdict::Warning,
                "consumers",
                format!("consumer `{name}`"),
                format!("{dead_letters} dead letters are open"),
                "these events had no effect; nothing deletes them, unless FACTUM_OPEN_DEAD_LETTERS_KEEP_DAYS is set",
                format!("factum dlq list --consumer {name}"),
            ));
        }
    }
    if checks.len() == before {
        checks.push(Check::ok(
            "consumers",
            format!(
                "{} consumers, no dead letter open, no key held",
                consumers.len()
            ),
        ));
    }
}
