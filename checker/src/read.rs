//! Collecting the facts from the broker and the database, without moving anything.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use uuid::Uuid;

use crate::facts::{
    Body, BusinessRow, Call, CallState, DeadLetter, Effect, Facts, Label, Parked, Partition,
    Position, Record, Topic, Unsent,
};
use crate::history::{History, TopicRun};

/// How long an answer of the broker, and the next record of a topic that is read, may take.
const BROKER_LIMIT: Duration = Duration::from_secs(30);

/// How long connecting to the database and reading all tables may take: some million rows.
const DATABASE_LIMIT: Duration = Duration::from_secs(300);

/// The longest single wait for the next record.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// The header by which a poison record is known.
const LABEL: &str = "input-id";

/// The table of dead letters.
const DEAD_LETTERS: &str = "dead_letter";

/// The table of what is parked.
const PARKED: &str = "parked_event";

/// The table of the keys that are parked.
const PARKED_KEYS: &str = "parked_key";

/// The table of what is to be sent.
const OUTBOX: &str = "outbox";

/// The table of calls.
const CALLS: &str = "outbound_call";

/// PostgreSQL's codes for a table and for a column that is not there.
const NOT_THERE: [&str; 2] = ["42P01", "42703"];

/// Why there are no facts. No text has the database's URL or a value of a record in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// The history speaks of something that is not there: correct the history.
    History(String),
    /// `DATABASE_URL` or `KAFKA_BROKERS` is not what it should be: correct it.
    Setting(String),
    /// The database or the broker did not answer, or no longer has what is needed for a verdict.
    Unavailable(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::History(text) | ReadError::Setting(text) | ReadError::Unavailable(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// Collects the facts of a run from the brokers (`host:port`, separated by commas, without encryption)
/// and the database, which must be the primary. Blocks its thread, within named limits.
///
/// # Errors
///
/// See [`ReadError`].
pub fn read(history: &History, database_url: &str, brokers: &str) -> Result<Facts, ReadError> {
    // Before anything is asked, and waited for. The parser's own text may quote parts of the URL.
    let options: PgConnectOptions = database_url.parse().map_err(|_| {
        ReadError::Setting(
            "DATABASE_URL is no URL of a PostgreSQL database: \
             postgres://user:password@host:5432/database"
                .to_owned(),
        )
    })?;
    let is_address = |entry: &str| {
        let (host, port) = entry.trim().rsplit_once(':').unwrap_or_default();
        !host.is_empty() && port.parse::<u16>().is_ok()
    };
    if !brokers.split(',').all(is_address) {
        return Err(ReadError::Setting(
            "KAFKA_BROKERS is no list of host:port, separated by commas".to_owned(),
        ));
    }
    let broker = Broker { brokers };
    // The order of these four makes the verdict sound while the run goes on. What happens, happens in
    // the order: record in the source topic, database commit (effects, dead letter, parked, outbox), and only
    // then the committed offset on one side and the derived record on the other. So a cause is looked
    // for after its consequence was seen:
    //
    // 1. The committed offsets. The records before them were finished before we look at the
    //    database, so each must be finished there; and they are in the source topic that we read last.
    //    Read later, an offset could cover work that the older snapshot can't show.
    let committed = broker.committed(&history.consumer, &history.source.topic)?;
    // 2. The derived topic. A record in it was sent after its effect was committed, so the snapshot
    //    must show that effect. Read later, it could hold an event whose effect is newer than the
    //    snapshot. Nothing is concluded from a record that is not there yet.
    let derived = match &history.derived {
        Some(run) => broker.topic(run)?,
        None => Topic::default(),
    };
    // 3. The database, in one snapshot: an event's effects, its dead letter and its leaving the parked ones
    //    commit together, so a half of them is never a matter of time. The other system's book was read
    //    before: a call stands in the table before it is sent.
    let tables = database(history, options)?;
    // 4. The source topic. Every dead letter of the snapshot was a record before, and so is found.
    let mut source = broker.topic(&history.source)?;
    for (number, partition) in &mut source.partitions {
        partition.committed = committed.get(number).copied();
    }
    Ok(Facts {
        effects: tables.effects,
        dead_letters: tables.dead_letters,
        parked: tables.parked,
        parked_keys: tables.parked_keys,
        calls: tables.calls,
        business: tables.business,
        unsent: tables.unsent,
        source,
        derived,
    })
}

/// What the database holds.
struct Tables {
    effects: Vec<Vec<Effect>>,
    dead_letters: Vec<DeadLetter>,
    parked: Vec<Parked>,
    parked_keys: Vec<String>,
    calls: Vec<Call>,
    business: Vec<BusinessRow>,
    unsent: Vec<Unsent>,
}

fn database(history: &History, options: PgConnectOptions) -> Result<Tables, ReadError> {
    let unavailable = |what: String| ReadError::Unavailable(format!("the database: {what}"));
    let options = options.application_name("factum-checker");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unavailable(format!("no runtime to ask it with: {error}")))?;
    runtime.block_on(async {
        tokio::time::timeout(DATABASE_LIMIT, snapshot(history, &options))
            .await
            .unwrap_or_else(|_| {
                let limit = DATABASE_LIMIT.as_secs();
                Err(unavailable(format!("no answer within {limit} s")))
            })
    })
}

/// Reads all tables as they are at one moment.
async fn snapshot(history: &History, options: &PgConnectOptions) -> Result<Tables, ReadError> {
    let failed = |error: sqlx::Error| ReadError::Unavailable(format!("the database: {error}"));
    let mut connection = options.connect().await.map_err(failed)?;
    let mut tx = connection
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await
        .map_err(failed)?;
    let mut effects = Vec::with_capacity(history.effects.len());
    for table in &history.effects {
        effects.push(effects_in(&mut tx, table).await?);
    }
    let of = |table: &'static str| {
        move |error: sqlx::Error| {
            ReadError::Unavailable(format!("the database, table {table}: {error}"))
        }
    };
    let letters: Vec<(String, i32, i64, String, bool)> = sqlx::query_as(
        "SELECT topic, partition, record_offset, reason, state = 'replayed' FROM dead_letter \
         WHERE consumer = $1 ORDER BY topic, partition, record_offset",
    )
    .bind(&history.consumer)
    .fetch_all(&mut *tx)
    .await
    .map_err(of(DEAD_LETTERS))?;
    let parked: Vec<(i64, Uuid, String, i32, i64)> = sqlx::query_as(
        "SELECT id, event_id, topic, partition, record_offset FROM parked_event \
         WHERE consumer = $1 ORDER BY id",
    )
    .bind(&history.consumer)
    .fetch_all(&mut *tx)
    .await
    .map_err(of(PARKED))?;
    let keys: Vec<Vec<u8>> = sqlx::query_scalar(
        "SELECT key FROM parked_key WHERE consumer = $1 AND topic = $2 ORDER BY key",
    )
    .bind(&history.consumer)
    .bind(&history.source.topic)
    .fetch_all(&mut *tx)
    .await
    .map_err(of(PARKED_KEYS))?;
    let calls: Vec<(i64, Uuid, String, String, String)> = match history.calls {
        None => Vec::new(),
        Some(_) => sqlx::query_as(
            "SELECT id, event_id, step, idempotency_key, state FROM outbound_call \
             WHERE consumer = $1 ORDER BY id",
        )
        .bind(&history.consumer)
        .fetch_all(&mut *tx)
        .await
        .map_err(of(CALLS))?,
    };
    let (mut business, mut unsent) = (Vec::new(), Vec::new());
    if let Some(table) = &history.business {
        business = business_rows(&mut tx, table).await?;
        unsent = unsent_rows(&mut tx, &history.source.topic)
            .await
            .map_err(of(OUTBOX))?;
    }
    tx.rollback().await.map_err(failed)?;
    // The facts are there; how the session ends changes nothing about them.
    let _ = connection.close().await;
    let dead_letters = letters
        .into_iter()
        .map(
            |(topic, partition, offset, reason, is_replayed)| DeadLetter {
                topic,
                position: Position { partition, offset },
                reason,
                is_replayed,
            },
        )
        .collect();
    let parked = parked
        .into_iter()
        .map(|(id, event_id, topic, partition, offset)| Parked {
            id,
            event_id,
            topic,
            position: Position { partition, offset },
        })
        .collect();
    let call = |(id, event_id, step, key, state): (i64, Uuid, String, String, String)| {
        Ok(Call {
            id,
            event_id,
            step,
            key,
            state: call_state(&state)?,
        })
    };
    Ok(Tables {
        effects,
        dead_letters,
        parked,
        parked_keys: keys
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect(),
        calls: calls
            .into_iter()
            .map(call)
            .collect::<Result<_, ReadError>>()?,
        business,
        unsent,
    })
}

async fn business_rows(
    connection: &mut PgConnection,
    table: &str,
) -> Result<Vec<BusinessRow>, ReadError> {
    // Safe: a history's tables are plain lower-case identifiers. The quotes are for reserved words.
    let sql = AssertSqlSafe(format!(
        "SELECT event_id, account::text, seq::bigint FROM \"{table}\""
    ));
    let rows: Result<Vec<(Uuid, String, i64)>, sqlx::Error> =
        sqlx::query_as(sql).fetch_all(connection).await;
    let rows = rows.map_err(|error| not_read("business", table, &error))?;
    let row = |(event_id, account, seq)| BusinessRow {
        event_id,
        account,
        seq,
    };
    Ok(rows.into_iter().map(row).collect())
}

async fn unsent_rows(
    connection: &mut PgConnection,
    topic: &str,
) -> Result<Vec<Unsent>, sqlx::Error> {
    let rows: Vec<(i64, Uuid)> = sqlx::query_as(
        "SELECT id, event_id FROM outbox WHERE published_at IS NULL AND topic = $1 ORDER BY id",
    )
    .bind(topic)
    .fetch_all(connection)
    .await?;
    let row = |(id, event_id)| Unsent { id, event_id };
    Ok(rows.into_iter().map(row).collect())
}

/// Why a table that the history names can't be read.
fn not_read(kind: &str, table: &str, error: &sqlx::Error) -> ReadError {
    let is_missing = error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| NOT_THERE.contains(&code.as_ref()));
    let text = format!("the database, {kind} table {table}: {error}");
    if is_missing {
        ReadError::History(text)
    } else {
        ReadError::Unavailable(text)
    }
}

/// A state that nobody knows must not pass for another one.
fn call_state(state: &str) -> Result<CallState, ReadError> {
    match state {
        "pending" | "answered" => Ok(CallState::Open),
        "done" => Ok(CallState::Done),
        "set_aside" | "unknown" | "resolved" => Ok(CallState::InDoubt),
        _ => Err(ReadError::Unavailable(format!(
            "the database, table {CALLS}: a state that this checker does not know"
        ))),
    }
}

async fn effects_in(connection: &mut PgConnection, table: &str) -> Result<Vec<Effect>, ReadError> {
    // Safe: a history's tables are plain lower-case identifiers. The quotes are for reserved words.
    let sql = AssertSqlSafe(format!(
        "SELECT id::bigint, event_id, account::text, seq::bigint FROM \"{table}\" ORDER BY id"
    ));
    let rows: Result<Vec<(i64, Uuid, String, i64)>, sqlx::Error> =
        sqlx::query_as(sql).fetch_all(connection).await;
    let rows = rows.map_err(|error| not_read("effect", table, &error))?;
    let effect = |(id, event_id, account, seq)| Effect {
        id,
        event_id,
        account,
        seq,
    };
    Ok(rows.into_iter().map(effect).collect())
}

struct Broker<'a> {
    brokers: &'a str,
}

/// The first and the next offset of a partition.
struct Range {
    low: i64,
    high: i64,
}

impl Broker<'_> {
    /// A client that never joins its group, moves no offset and creates no topic.
    fn client(&self, group: &str) -> Result<BaseConsumer, ReadError> {
        ClientConfig::new()
            .set("bootstrap.servers", self.brokers)
            .set("client.id", "factum-checker")
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("allow.auto.create.topics", "false")
            // Records that go while we read must not be skipped in silence.
            .set("auto.offset.reset", "error")
            .create()
            .map_err(|error| ReadError::Setting(format!("KAFKA_BROKERS: {error}")))
    }

    /// The group's committed offset in each partition that has one.
    fn committed(&self, group: &str, topic: &str) -> Result<BTreeMap<i32, i64>, ReadError> {
        let what = format!("the offsets of group {group} in {topic}");
        let failed = |error: &KafkaError| unanswered(&what, error);
        let deadline = Instant::now() + BROKER_LIMIT;
        let client = self.client(group)?;
        let partitions = partitions(&client, topic, deadline)?;
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut asked = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            asked.add_partition(topic, partition);
        }
        let told = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match client.committed_offsets(asked.clone(), left) {
                Ok(told) => break told,
                // After a broker's failure the group's coordinator is somewhere else, soon.
                Err(error) if is_passing(&error) && !left.is_zero() => {
                    let _ = client.poll(POLL_WAIT);
                }
                Err(error) => return Err(failed(&error)),
            }
        };
        let mut committed = BTreeMap::new();
        for element in told.elements() {
            element.error().map_err(|error| failed(&error))?;
            if let Offset::Offset(offset) = element.offset() {
                committed.insert(element.partition(), offset);
            }
        }
        Ok(committed)
    }

    /// The topic from the run's begin to where it ends now. One that is not there is empty.
    fn topic(&self, run: &TopicRun) -> Result<Topic, ReadError> {
        let deadline = Instant::now() + BROKER_LIMIT;
        // No group has this name, and none comes to be: nobody joins or commits.
        let client = self.client(&format!("factum-checker-{}", Uuid::now_v7()))?;
        let mut ranges = BTreeMap::new();
        for partition in partitions(&client, &run.topic, deadline)? {
            let range = range(&client, &run.topic, partition, deadline)?;
            ranges.insert(partition, range);
        }
        covers(run, &ranges)?;
        let mut records = records(&client, run, &ranges, deadline)?;
        records.sort_by_key(|record| record.position);
        let partition = |(number, range): (i32, Range)| {
            let partition = Partition {
                end: range.high,
                committed: None,
            };
            (number, partition)
        };
        Ok(Topic {
            partitions: ranges.into_iter().map(partition).collect(),
            records,
        })
    }
}

fn unanswered(what: &str, error: &KafkaError) -> ReadError {
    ReadError::Unavailable(format!("the broker, {what}: {error}"))
}

/// Whether it may be better in a moment; librdkafka connects anew by itself.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::Resolve
                | Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::NetworkException
                | Code::NotCoordinator
                | Code::CoordinatorNotAvailable
                | Code::CoordinatorLoadInProgress
                | Code::WaitingForCoordinator
                | Code::NotLeaderForPartition
                | Code::LeaderNotAvailable
                | Code::OffsetNotAvailable
        )
    )
}

/// The topic's partitions; none if it is not there.
fn partitions(
    client: &BaseConsumer,
    topic: &str,
    deadline: Instant,
) -> Result<Vec<i32>, ReadError> {
    let failed = |error: &KafkaError| unanswered(&format!("the partitions of {topic}"), error);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let metadata = client
            .fetch_metadata(Some(topic), left)
            .map_err(|error| failed(&error))?;
        let Some(told) = metadata.topics().iter().find(|told| told.name() == topic) else {
            return Ok(Vec::new());
        };
        let error = match told.error().map(Code::from) {
            None => return Ok(told.partitions().iter().map(|p| p.id()).collect()),
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Ok(Vec::new()),
            Some(code) => KafkaError::MetadataFetch(code),
        };
        if !is_passing(&error) || left.is_zero() {
            return Err(failed(&error));
        }
        let _ = client.poll(POLL_WAIT);
    }
}

fn range(
    client: &BaseConsumer,
    topic: &str,
    partition: i32,
    deadline: Instant,
) -> Result<Range, ReadError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match client.fetch_watermarks(topic, partition, left) {
            Ok((low, high)) => return Ok(Range { low, high }),
            Err(error) if is_passing(&error) && !left.is_zero() => {
                let _ = client.poll(POLL_WAIT);
            }
            Err(error) => {
                return Err(unanswered(
                    &format!("the end of {topic}/{partition}"),
                    &error,
                ));
            }
        }
    }
}

/// Whether the topic still has the whole run: without it there is no verdict.
fn covers(run: &TopicRun, ranges: &BTreeMap<i32, Range>) -> Result<(), ReadError> {
    let topic = &run.topic;
    for (partition, begin) in &run.begin.0 {
        let end = ranges.get(partition).map_or(0, |range| range.high);
        if *begin > end {
            return Err(ReadError::History(format!(
                "the history has the run begin at {topic}/{partition}@{begin}, \
                 and the partition ends at {end}"
            )));
        }
    }
    for (partition, range) in ranges {
        let begin = run.begin.of(*partition);
        if range.low > begin {
            return Err(ReadError::Unavailable(format!(
                "the broker has dropped records of the run: {topic}/{partition} begins at \
                 {} now, the run at {begin}",
                range.low
            )));
        }
    }
    Ok(())
}

fn records(
    client: &BaseConsumer,
    run: &TopicRun,
    ranges: &BTreeMap<i32, Range>,
    deadline: Instant,
) -> Result<Vec<Record>, ReadError> {
    let what = format!("the records of {}", run.topic);
    let failed = |error: &KafkaError| unanswered(&what, error);
    // What each partition still owes: its end as it was when we were asked. A run that goes on would
    // never let us catch up.
    let mut owed: BTreeMap<i32, i64> = BTreeMap::new();
    let mut assignment = TopicPartitionList::new();
    for (partition, range) in ranges {
        let begin = run.begin.of(*partition);
        if begin < range.high {
            owed.insert(*partition, range.high);
            assignment
                .add_partition_offset(&run.topic, *partition, Offset::Offset(begin))
                .map_err(|error| failed(&error))?;
        }
    }
    client.assign(&assignment).map_err(|error| failed(&error))?;
    let mut records = Vec::new();
    let mut complaint = None;
    let mut deadline = deadline;
    // Only the last record ends a partition, never the client's word that there is none left: right
    // after a broker's failure the new leader may not tell of the last ones yet. So a transaction's
    // marker at the end would cost the whole limit; nobody here writes transactions.
    while !owed.is_empty() {
        if Instant::now() > deadline {
            let error: Option<KafkaError> = complaint;
            return Err(ReadError::Unavailable(format!(
                "the broker, {what}: {} partitions not read to their end, and nothing came for {} s{}",
                owed.len(),
                BROKER_LIMIT.as_secs(),
                error.map_or_else(String::new, |error| format!("; last: {error}"))
            )));
        }
        match client.poll(POLL_WAIT) {
            None => {}
            Some(Ok(message)) => {
                // A long topic takes its time, as long as something comes.
                deadline = Instant::now() + BROKER_LIMIT;
                let Some(end) = owed.get(&message.partition()).copied() else {
                    continue;
                };
                if message.offset() < end {
                    records.push(record(&message));
                }
                if message.offset() + 1 >= end {
                    owed.remove(&message.partition());
                }
            }
            Some(Err(error)) if is_passing(&error) => complaint = Some(error),
            Some(Err(error)) => return Err(failed(&error)),
        }
    }
    Ok(records)
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let label = message
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == LABEL))
        .map(|header| header.value.unwrap_or_default());
    Record {
        position: Position {
            partition: message.partition(),
            offset: message.offset(),
        },
        key: message
            .key()
            .and_then(|key| std::str::from_utf8(key).ok())
            .map(str::to_owned),
        label: Label::parse(label),
        body: Body::parse(message.payload()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Begin;

    fn covered(begins: &[(i32, i64)], low: i64, high: i64) -> Result<(), ReadError> {
        let run = TopicRun {
            topic: "posted".to_owned(),
            begin: Begin(begins.iter().copied().collect()),
        };
        covers(&run, &BTreeMap::from([(0, Range { low, high })]))
    }

    #[test]
    fn a_topic_that_holds_the_whole_run_is_judged() {
        assert_eq!(covered(&[(0, 3)], 0, 9), Ok(()));
        assert_eq!(covered(&[(0, 3)], 3, 3), Ok(()));
        assert_eq!(covered(&[], 0, 0), Ok(()));
        // Nothing of a partition that is not there.
        assert_eq!(covered(&[(0, 3), (1, 0)], 0, 9), Ok(()));
    }

    #[test]
    fn a_topic_that_has_lost_its_beginning_is_not_judged() {
        for (begins, low) in [(&[(0, 3)][..], 4), (&[], 1)] {
            let refused = covered(begins, low, 9);
            assert!(
                matches!(refused, Err(ReadError::Unavailable(_))),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_history_of_another_topic_is_refused() {
        for begins in [&[(0, 10)][..], &[(1, 1)]] {
            let refused = covered(begins, 0, 9);
            assert!(matches!(refused, Err(ReadError::History(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_call_s_state_is_known_or_refused() {
        for (state, expected) in [
            ("pending", CallState::Open),
            ("answered", CallState::Open),
            ("done", CallState::Done),
            ("set_aside", CallState::InDoubt),
            ("unknown", CallState::InDoubt),
            ("resolved", CallState::InDoubt),
        ] {
            assert_eq!(call_state(state), Ok(expected));
        }
        assert!(call_state("lost").is_err());
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        assert!(is_passing(&KafkaError::MessageConsumption(
            Code::NotCoordinator
        )));
        assert!(!is_passing(&KafkaError::MessageConsumption(
            Code::AutoOffsetReset
        )));
        assert!(!is_passing(&KafkaError::MetadataFetch(
            Code::TopicAuthorizationFailed
        )));
        assert!(!is_passing(&KafkaError::Canceled));
    }
}
