//! The command on a real PostgreSQL and a broker: what it prints, and its exit codes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use factum_testing::{TestBroker, TestDatabase};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use uuid::Uuid;

/// How long a request to the broker may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

const CONSUMER: &str = "ledger";

/// The columns that a history promises, and those of Factum's table that matter here.
const TABLES: &str = "
    CREATE TABLE debit (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, account text, seq bigint);
    CREATE TABLE credit (LIKE debit INCLUDING IDENTITY);
    CREATE TABLE dead_letter (
        consumer text, topic text, partition integer, record_offset bigint, reason text,
        state text NOT NULL DEFAULT 'open',
        UNIQUE (consumer, topic, partition, record_offset));
    CREATE TABLE parked_key (consumer text, topic text, key bytea);
    CREATE TABLE parked_event (
        id bigint GENERATED ALWAYS AS IDENTITY, consumer text, topic text, partition integer,
        record_offset bigint, event_id uuid);
    CREATE TABLE outbound_call (
        id bigint GENERATED ALWAYS AS IDENTITY, consumer text, event_id uuid, step text,
        idempotency_key text, state text);
    CREATE TABLE outbox (
        id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, topic text, published_at timestamptz);
    CREATE TABLE entry (event_id uuid, account text, seq bigint);
";

fn id(number: u128) -> String {
    Uuid::from_u128(0x0197_a3c0_0000_7000_8000_0000_0000_0000 + number).to_string()
}

fn event(event: u128, seq: i64, cause: Option<u128>) -> String {
    json!({ "eventId": id(event), "account": "account-1", "seq": seq, "cause": cause.map(id) })
        .to_string()
}

/// A run that has ended well: an earlier run's records, two events, one of them sent twice, and poison.
struct Stage {
    broker: TestBroker,
    database: TestDatabase,
    history: PathBuf,
    source: String,
    derived: String,
}

impl Stage {
    async fn set(name: &str, broker: TestBroker) -> Stage {
        let stage = Stage {
            broker,
            database: factum_testing::database(),
            history: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json")),
            source: format!("checker.{name}.posted"),
            derived: format!("checker.{name}.booked"),
        };
        stage.broker.create_topic(&stage.source, 2).await;
        stage.broker.create_topic(&stage.derived, 1).await;
        let foreign = event(90, 1, None);
        let (first, second) = (event(1, 1, None), event(2, 2, None));
        stage.send(
            &stage.source,
            &[
                (&foreign, None),
                (&first, None),
                ("poison {", Some(id(3))),
                (&second, None),
                (&first, None),
            ],
        );
        let answers = [event(11, 1, Some(1)), event(12, 2, Some(2))];
        let sent: Vec<(&str, Option<String>)> = answers
            .iter()
            .map(|answer| (answer.as_str(), None))
            .collect();
        stage.send(&stage.derived, &sent);
        stage.send(&stage.derived, &sent[1..]);
        stage.commit(5);
        stage.execute(TABLES).await;
        for table in ["debit", "credit"] {
            stage.book(table, 1, 1).await;
            stage.book(table, 2, 2).await;
        }
        stage
            .execute(&format!(
                "INSERT INTO dead_letter VALUES ('{CONSUMER}', '{0}', 0, 2, 'malformed'), \
                 ('another', '{0}', 0, 1, 'malformed')",
                stage.source
            ))
            .await;
        stage.write(&stage.sound_history().to_string());
        stage
    }

    fn sound_history(&self) -> Value {
        json!({
            "consumer": CONSUMER,
            "source": { "topic": self.source, "begin": { "0": 1 } },
            "derived": { "topic": self.derived, "begin": { "0": 0 } },
            "effects": ["debit", "credit"],
            "input": [
                { "id": id(1), "key": "account-1", "seq": 1, "fate": "effect" },
                { "id": id(2), "key": "account-1", "seq": 2, "fate": "effect" },
                { "id": id(3), "key": "account-1", "fate": "dead-letter" },
            ],
        })
    }

    fn write(&self, history: &str) {
        std::fs::write(&self.history, history).expect("the history is written");
    }

    /// Appends records to partition 0, each a value and the header of poison.
    fn send(&self, topic: &str, records: &[(&str, Option<String>)]) {
        let producer = self.producer();
        for (value, label) in records {
            send(&producer, topic, value, label.as_deref());
        }
        flush(&producer);
    }

    fn commit(&self, offset: i64) {
        self.commit_as(&self.member(), offset);
    }

    fn commit_as(&self, consumer: &BaseConsumer, offset: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(&self.source, 0, Offset::Offset(offset))
            .expect("an offset");
        consumer
            .commit(&offsets, CommitMode::Sync)
            .expect("the offset is committed");
    }

    async fn execute(&self, sql: &str) {
        let mut connection = self.database.connect().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .expect("a test's SQL runs");
    }

    async fn book(&self, table: &str, event: u128, seq: i64) {
        let id = id(event);
        let values = format!("VALUES ('{id}', 'account-1', {seq})");
        self.execute(&format!(
            "INSERT INTO {table} (event_id, account, seq) {values}"
        ))
        .await;
    }

    /// What a service does, as fast as it goes: record, transaction, then derived event and offset.
    /// Gives the number of inputs handled.
    async fn live(&self, must_end: &AtomicBool) -> u32 {
        let producer = self.producer();
        let consumer = self.member();
        let mut connection = self.database.connect().await;
        for n in 0..LIVE_INPUTS {
            if must_end.load(Ordering::Acquire) {
                return n;
            }
            let offset = 5 + i64::from(n);
            let id = live_id(n);
            let body = |event: &str| {
                json!({ "eventId": event, "account": "account-1", "seq": n, "cause": id })
                    .to_string()
            };
            let is_event = n % 2 == 0;
            let statement = if is_event {
                send(&producer, &self.source, &body(&id), None);
                format!(
                    "BEGIN; \
                     INSERT INTO debit (event_id, account, seq) VALUES ('{id}', 'account-1', {n}); \
                     INSERT INTO credit (event_id, account, seq) VALUES ('{id}', 'account-1', {n}); \
                     COMMIT"
                )
            } else {
                send(&producer, &self.source, "poison {", Some(&id));
                format!(
                    "INSERT INTO dead_letter \
                     VALUES ('{CONSUMER}', '{}', 0, {offset}, 'malformed')",
                    self.source
                )
            };
            flush(&producer);
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
                .execute(&mut connection)
                .await
                .expect("a test's SQL runs");
            if is_event {
                send(
                    &producer,
                    &self.derived,
                    &body(&live_id(LIVE_INPUTS + n)),
                    None,
                );
                flush(&producer);
            }
            self.commit_as(&consumer, offset + 1);
        }
        LIVE_INPUTS
    }

    fn producer(&self) -> BaseProducer {
        ClientConfig::new()
            .set("bootstrap.servers", self.broker.bootstrap())
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .create()
            .expect("a producer")
    }

    /// A client that commits for the consumer.
    fn member(&self) -> BaseConsumer {
        ClientConfig::new()
            .set("bootstrap.servers", self.broker.bootstrap())
            .set("group.id", CONSUMER)
            .create()
            .expect("a consumer")
    }

    fn command(&self, phase: &str) -> Command {
        let mut command = command();
        command
            .arg("--history")
            .arg(&self.history)
            .args(["--phase", phase, "--json"])
            .env("DATABASE_URL", self.database.url())
            .env("KAFKA_BROKERS", self.broker.bootstrap());
        command
    }

    fn check(&self, phase: &str) -> Ended {
        ended(&mut self.command(phase))
    }
}

fn send(producer: &BaseProducer, topic: &str, value: &str, label: Option<&str>) {
    let mut record = BaseRecord::to(topic)
        .partition(0)
        .key("account-1")
        .payload(value);
    if label.is_some() {
        let header = Header {
            key: "input-id",
            value: label,
        };
        record = record.headers(OwnedHeaders::new().insert(header));
    }
    producer.send(record).expect("the record is taken");
}

/// The client's own `flush` takes 100 ms at the least, and a live run must be quick.
fn flush(producer: &BaseProducer) {
    let deadline = Instant::now() + LIMIT;
    while producer.in_flight_count() > 0 {
        assert!(Instant::now() < deadline, "the broker has the records");
        producer.poll(Duration::from_millis(1));
    }
}

struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// The last line of stdout.
    fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    fn failed(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{}", self.stderr);
        assert!(self.stderr.contains(says), "{}", self.stderr);
        assert_eq!(self.stdout, "");
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum-checker"));
    command
        .env_remove("DATABASE_URL")
        .env_remove("KAFKA_BROKERS");
    command
}

fn ended(command: &mut Command) -> Ended {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the command runs");
    Ended {
        code: status.code().expect("it ended by itself"),
        stdout: String::from_utf8(stdout).expect("stdout is text"),
        stderr: String::from_utf8(stderr).expect("stderr is text"),
    }
}

fn counts(effects: u32) -> Value {
    json!({
        "input": 3, "effects": effects, "dead_letters": 1, "parked": 0, "calls": 0, "business": 0,
        "source_records": 4, "derived_records": 3,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_judged_by_what_came_out_of_it_on_the_embedded_broker() {
    judged("embedded", factum_testing::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_judged_by_what_came_out_of_it_on_kafka() {
    judged("kafka", factum_testing::kafka()).await;
}

async fn judged(name: &str, broker: TestBroker) {
    let stage = Stage::set(name, broker).await;
    for phase in ["running", "ended"] {
        let clean = stage.check(phase);
        assert_eq!(
            (clean.code, clean.stderr.as_str()),
            (0, ""),
            "{}",
            clean.stdout
        );
        assert_eq!(
            clean.json(),
            json!({ "anomalies": [], "counts": counts(4) })
        );
        assert!(
            clean
                .stdout
                .starts_with("0 anomalies; 3 inputs, 4 effects, ")
        );
    }

    stage.commit(4);
    assert_eq!(stage.check("running").code, 0);
    let stuck = stage.check("ended");
    assert_eq!(stuck.code, 1);
    assert_eq!(stuck.json()["anomalies"][0]["kind"], "stuck");
    stage.commit(5);

    // What waits is told, and what another consumer has waiting is not this one's.
    stage
        .execute(&format!(
            "INSERT INTO parked_event (consumer, topic, partition, record_offset, event_id)
             VALUES ('{CONSUMER}', '{0}', 0, 4, '{1}'), ('another', '{0}', 0, 9, '{1}')",
            stage.source,
            id(1)
        ))
        .await;
    assert_eq!(stage.check("running").code, 0);
    let waiting = stage.check("ended").json();
    assert_eq!(waiting["anomalies"][0]["kind"], "stuck");
    assert_eq!(waiting["counts"]["parked"], 1);
    stage.execute("TRUNCATE parked_event").await;
    stage
        .execute(&format!(
            "INSERT INTO parked_key VALUES ('{CONSUMER}', '{0}', 'account-1'), ('another', '{0}', 'account-1'),
                                           ('{CONSUMER}', 'another', 'account-1')",
            stage.source
        ))
        .await;
    assert_eq!(stage.check("running").code, 0);
    let waiting = stage.check("ended").json();
    assert_eq!(waiting["anomalies"].as_array().map(Vec::len), Some(1));
    assert_eq!(waiting["anomalies"][0]["kind"], "stuck");
    stage.execute("TRUNCATE parked_key").await;

    // Calls, and the other system's book of them.
    let mut history = stage.sound_history();
    history["calls"] = json!({ "steps": ["pay"], "book": { id(1): 1, id(2): 2 } });
    stage.write(&history.to_string());
    stage
        .execute(&format!(
            "INSERT INTO outbound_call (consumer, event_id, step, idempotency_key, state)
             VALUES ('{CONSUMER}', '{0}', 'pay', '{0}', 'done'),
                    ('{CONSUMER}', '{1}', 'pay', '{1}', 'unknown')",
            id(1),
            id(2)
        ))
        .await;
    let charged = stage.check("running").json();
    assert_eq!(charged["anomalies"][0]["kind"], "duplicate");
    assert_eq!(charged["anomalies"].as_array().map(Vec::len), Some(1));
    assert_eq!(charged["counts"]["calls"], 2);

    // The rows that were written with the events, and what waits to be sent.
    let mut history = stage.sound_history();
    history["business"] = json!("entry");
    stage.write(&history.to_string());
    stage
        .execute(&format!(
            "INSERT INTO entry VALUES ('{0}', 'account-1', 1), ('{1}', 'account-1', 2);
             INSERT INTO outbox (event_id, topic, published_at)
             VALUES ('{0}', '{2}', now()), ('{1}', 'another', NULL)",
            id(1),
            id(2),
            stage.source
        ))
        .await;
    let written = stage.check("ended");
    assert_eq!(written.code, 0, "{}", written.stdout);
    assert_eq!(written.json()["counts"]["business"], 2);
    stage.execute("UPDATE outbox SET published_at = NULL").await;
    assert_eq!(stage.check("running").code, 0);
    let waiting = stage.check("ended").json();
    assert_eq!(waiting["anomalies"][0]["kind"], "stuck");
    assert_eq!(waiting["anomalies"].as_array().map(Vec::len), Some(1));
    stage.execute("DELETE FROM entry WHERE seq = 2").await;
    assert_eq!(
        stage.check("running").json()["anomalies"][0]["kind"],
        "lost"
    );

    // A topic that is not there is empty.
    let mut history = stage.sound_history();
    history["derived"] = json!({ "topic": format!("checker.{name}.none"), "begin": {} });
    stage.write(&history.to_string());
    assert_eq!(stage.check("running").code, 0);
    let silent = stage.check("ended").json();
    let kinds = [
        &silent["anomalies"][0]["kind"],
        &silent["anomalies"][1]["kind"],
    ];
    assert_eq!(kinds, ["lost", "lost"]);
    assert_eq!(silent["counts"]["derived_records"], 0);
    stage.write(&stage.sound_history().to_string());

    stage.book("credit", 1, 1).await;
    let doubled = stage.check("running");
    assert_eq!(doubled.code, 1, "{}", doubled.stderr);
    let text = format!("credit has 2 rows of event {} (account-1, seq 1)", id(1));
    assert_eq!(
        doubled.json(),
        json!({ "anomalies": [{ "kind": "duplicate", "text": text }], "counts": counts(5) })
    );
    let first = doubled.stdout.lines().next();
    assert_eq!(first, Some(format!("duplicate: {text}").as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_judged_ends_with_its_code_and_tells_no_secret() {
    let stage = Stage::set("refused", factum_testing::embedded()).await;
    let changed = |pointer: &str, value: Value| {
        let mut history = stage.sound_history();
        *history.pointer_mut(pointer).expect("it is there") = value;
        stage.write(&history.to_string());
        stage.check("ended")
    };
    changed("/input/0/fate", json!("s3cret")).failed(2, "$.input[0].fate: must be ");
    changed("/effects/0", json!("debit; SELECT 1")).failed(2, "$.effects[0]: must be ");
    changed("/effects/0", json!("transfer")).failed(2, "effect table transfer");
    changed("/source/begin/0", json!(6)).failed(2, "checker.refused.posted/0@6");
    changed("/source/begin", json!({ "7": 1 })).failed(2, "checker.refused.posted/7@1");

    stage.write("{ \"consumer\": ");
    stage.check("ended").failed(2, "this is no JSON");
    std::fs::remove_file(&stage.history).expect("it is there");
    stage.check("ended").failed(2, "refused.json");

    stage.write(&stage.sound_history().to_string());
    let mut unset = stage.command("ended");
    ended(unset.env_remove("DATABASE_URL")).failed(2, "DATABASE_URL is not set");
    let mut unset = stage.command("ended");
    ended(unset.env("KAFKA_BROKERS", " ")).failed(2, "KAFKA_BROKERS is not set");
    ended(command().args(["--phase", "ended"])).failed(2, "--history");
    ended(stage.command("later").arg("--json")).failed(2, "--phase");

    // A port that was free a moment ago: nobody answers there.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let mut away = stage.command("ended");
    let url = format!("postgres://factum:s3cret@127.0.0.1:{port}/factum");
    let away = ended(away.env("DATABASE_URL", url));
    away.failed(3, "the database: ");
    assert!(!away.stderr.contains("s3cret"), "{}", away.stderr);
    let mut wrong = stage.command("ended");
    let wrong = ended(wrong.env(
        "DATABASE_URL",
        "postgres://factum:s3cret@127.0.0.1:x/factum",
    ));
    wrong.failed(2, "DATABASE_URL is no URL");
    assert!(!wrong.stderr.contains("s3cret"), "{}", wrong.stderr);
    for table in ["parked_key", "parked_event", "dead_letter"] {
        stage.execute(&format!("DROP TABLE {table}")).await;
        stage.check("ended").failed(3, &format!("table {table}"));
    }
}

/// How many inputs the live run may come to; more than it does, and no more than the embedded broker
/// keeps.
const LIVE_INPUTS: u32 = 10_000;

/// How often the live run is judged. Each time takes long enough for many events to pass.
const LIVE_CHECKS: u32 = 5;

/// In whatever order the facts were read but the right one, this finds anomalies that are none.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_work_is_not_accused() {
    let stage = Stage::set("live", factum_testing::embedded()).await;
    let begin = json!({ "0": 5 });
    let inputs: Vec<Value> = (0..LIVE_INPUTS)
        .map(|n| match n % 2 {
            0 => json!({ "id": live_id(n), "key": "account-1", "seq": n, "fate": "effect" }),
            _ => json!({ "id": live_id(n), "key": "account-1", "fate": "dead-letter" }),
        })
        .collect();
    stage.write(
        &json!({
            "consumer": CONSUMER,
            "source": { "topic": stage.source, "begin": begin },
            "derived": { "topic": stage.derived, "begin": { "0": 3 } },
            "effects": ["debit", "credit"],
            "input": inputs,
        })
        .to_string(),
    );
    stage.execute("TRUNCATE debit, credit, dead_letter").await;
    let stage = Arc::new(stage);
    let (at_work, must_end) = (Arc::clone(&stage), Arc::new(AtomicBool::new(false)));
    let end = Arc::clone(&must_end);
    let work = tokio::spawn(async move { at_work.live(&end).await });
    for _ in 0..LIVE_CHECKS {
        let stage = Arc::clone(&stage);
        let judged = tokio::task::spawn_blocking(move || stage.check("running")).await;
        let judged = judged.expect("the check runs");
        // The run must not stop before it was judged.
        assert!(!work.is_finished());
        assert_eq!(judged.code, 0, "{}{}", judged.stdout, judged.stderr);
    }
    must_end.store(true, Ordering::Release);
    let done = work.await.expect("the run ends well");
    assert!(done > LIVE_CHECKS, "it was at work: {done}");
    // Of the inputs that were never sent, all are lost.
    let counts = &stage.check("ended").json()["counts"];
    assert_eq!(counts["source_records"], done);
    assert_eq!(counts["derived_records"], done.div_ceil(2));
}

/// Ids of the live run, apart from those of the stage.
fn live_id(n: u32) -> String {
    id(1_000_000 + u128::from(n))
}

#[test]
fn help_tells_the_exit_codes_and_gives_an_example() {
    let help = ended(command().arg("--help"));
    assert_eq!(help.code, 0);
    for part in [
        "Exit codes: 0 ",
        "Example:",
        "DATABASE_URL",
        "premature-commit",
    ] {
        assert!(help.stdout.contains(part), "{}", help.stdout);
    }
}
