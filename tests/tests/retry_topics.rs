//! Retries through topics, and dead letters mirrored to a topic (`docs/retry-topics.md`).

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use factum::sqlx::{self, Connection as _, Row as _};
use factum::{
    Consumer, Envelope, Event, Handler, HandlerError, Problem, Retry, Service, ServiceBuilder,
    ServiceError, StartAt, TombstonePolicy, Tx,
};
use factum_testing::{OutgoingRecord, Record, eventually};
use factum_tests::{
    Entry, LIMIT, On, Recorder, Running, Scene, effects_of, entries, entry_on_topic, envelope,
    on_both_brokers,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

on_both_brokers!(
    a_failed_event_is_taken_from_its_retry_topics_until_it_succeeds,
    after_the_last_retry_topic_the_dead_letter_has_the_original_place,
    a_waiting_retry_lane_holds_up_nobody_and_stays_in_its_group,
    a_stop_ends_the_wait_at_once,
    killed_around_the_commit_of_a_retry_there_is_one_effect,
    two_consumers_of_one_database_share_a_retry_topic_and_each_takes_its_own,
    records_of_another_language_are_taken_from_a_retry_topic,
    what_was_sent_to_a_retry_topic_is_not_dropped_when_its_handler_is_gone,
    what_does_not_fit_into_a_retry_topic_is_a_dead_letter,
    case_41_fifty_hops_with_20_kb_of_error_end_in_a_small_record,
    mirrored_dead_letters_are_the_records_byte_for_byte,
    missing_retry_and_mirror_topics_are_named,
);

fn millis(delays: &[u64]) -> Vec<Duration> {
    delays.iter().copied().map(Duration::from_millis).collect()
}

/// A stage with the retry topics of `E` for these delays in milliseconds, and its mirror.
async fn stage<E: Event>(on: On, partitions: u32, delays: &[u64]) -> Scene {
    let scene = Scene::new::<E>(on, partitions).await;
    for topic in retry_topics::<E>(delays) {
        scene.broker.create_topic(&topic, partitions).await;
    }
    let mirror = format!("{}.dlq", E::TOPIC);
    scene.broker.create_topic(&mirror, partitions).await;
    scene
}

/// Their names, for delays that are no whole seconds.
fn retry_topics<E: Event>(delays: &[u64]) -> Vec<String> {
    delays
        .iter()
        .map(|delay| match delay % 1_000 {
            0 => format!("{}.retry-{}s", E::TOPIC, delay / 1_000),
            _ => format!("{}.retry-{delay}ms", E::TOPIC),
        })
        .collect()
}

fn consumer<E: Entry>(name: &'static str, delays: &[u64]) -> (Consumer, Recorder) {
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<E>(recorder.clone())
        .retry(Retry::topics(millis(delays)));
    (consumer, recorder)
}

/// Runs consumers and a relay.
fn start(
    scene: &Scene,
    extra: &[(&str, &str)],
    consumers: impl IntoIterator<Item = Consumer>,
) -> Running {
    let mut builder = Service::builder(scene.config(extra)).relay();
    for consumer in consumers {
        builder = builder.consumer(consumer);
    }
    Running::start(builder)
}

fn text<'a>(record: &'a Record, name: &str) -> &'a str {
    let value = record.header(name).unwrap_or_else(|| panic!("{name}"));
    std::str::from_utf8(value).expect("text")
}

fn time_in(record: &Record, name: &str) -> OffsetDateTime {
    OffsetDateTime::parse(text(record, name), &Rfc3339).expect("RFC 3339")
}

fn names(record: &Record) -> Vec<&str> {
    record.headers.iter().map(|(name, _)| name).collect()
}

/// The bytes of a record as a broker counts them, about.
fn size(record: &Record) -> usize {
    let headers = record.headers.iter();
    headers
        .map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len))
        .sum::<usize>()
        + record.key.as_ref().map_or(0, Vec::len)
        + record.value.as_ref().map_or(0, Vec::len)
}

/// All rows of `dead_letter`.
async fn letters(scene: &Scene) -> Vec<sqlx::postgres::PgRow> {
    let mut connection = scene.database.connect().await;
    let rows = sqlx::query("SELECT * FROM dead_letter ORDER BY id")
        .fetch_all(&mut connection)
        .await
        .expect("dead letters can be read");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    rows
}

fn place(row: &sqlx::postgres::PgRow) -> (String, i32, i64) {
    (
        row.get("topic"),
        row.get("partition"),
        row.get("record_offset"),
    )
}

const RETRY_HEADERS: [&str; 8] = [
    "x-attempt",
    "x-not-before",
    "x-first-failure",
    "x-original-topic",
    "x-original-partition",
    "x-original-offset",
    "x-consumer",
    "x-error",
];

entry_on_topic!(succeeds, "t.retry.succeeds");
async fn a_failed_event_is_taken_from_its_retry_topics_until_it_succeeds(on: On) {
    const DELAYS: [u64; 2] = [200, 700];
    let scene = stage::<succeeds::Posted>(on, 2, &DELAYS).await;
    let name = "test-retry-succeeds";
    let (consumer, recorder) = consumer::<succeeds::Posted>(name, &DELAYS);
    let stats = consumer.stats();
    let running = start(&scene, &[], [consumer]);
    let ids = scene
        .produce(
            1,
            &[
                succeeds::Posted::entry("a", 1, "transient 3"),
                succeeds::Posted::entry("a", 2, ""),
                succeeds::Posted::entry("a", 3, ""),
            ],
        )
        .await;
    scene.await_effects(name, &effects_of("a", 3)).await;
    assert_eq!(
        scene.effects(name).await,
        ["a:2", "a:3", "a:1"],
        "the order of the key is lost: that is the price of this choice"
    );
    scene
        .await_committed(name, succeeds::Posted::TOPIC, 1, 3)
        .await;
    running.stop().await;
    assert_eq!(recorder.calls_of(ids[0]), 3);
    assert_eq!((stats.sent_to_retry(), stats.retries()), (2, 2));
    assert!(letters(&scene).await.is_empty());

    // What a plain client finds in the topics: the record as it was, and what it has behind it.
    let published = scene.broker.records(succeeds::Posted::TOPIC).await;
    let mut not_before = Vec::new();
    for (topic, attempt) in retry_topics::<succeeds::Posted>(&DELAYS)
        .iter()
        .zip(["1", "2"])
    {
        let records = scene.broker.records(topic).await;
        assert_eq!(records.len(), 1, "{topic}");
        let record = &records[0];
        assert_eq!(
            (&record.key, &record.value),
            (&published[0].key, &published[0].value)
        );
        assert_eq!(names(record), RETRY_HEADERS);
        assert_eq!(text(record, "x-attempt"), attempt);
        assert_eq!(text(record, "x-original-topic"), succeeds::Posted::TOPIC);
        assert_eq!(text(record, "x-original-partition"), "1");
        assert_eq!(text(record, "x-original-offset"), "0");
        assert_eq!(text(record, "x-consumer"), name);
        assert_eq!(text(record, "x-error"), "not yet");
        not_before.push((
            time_in(record, "x-first-failure"),
            time_in(record, "x-not-before"),
        ));
    }
    assert_eq!(not_before[0].0, not_before[1].0, "the first failure stays");
    assert!(not_before[0].1 - not_before[0].0 >= Duration::from_millis(199));
    assert!(not_before[1].1 - not_before[0].1 >= Duration::from_millis(699));
    let mut connection = scene.database.connect().await;
    let handled: OffsetDateTime =
        sqlx::query_scalar("SELECT processed_at FROM processed_event WHERE event_id = $1")
            .bind(ids[0].as_uuid())
            .fetch_one(&mut connection)
            .await
            .unwrap();
    connection.close().await.unwrap();
    assert!(handled >= not_before[1].1, "not before its time");
}

entry_on_topic!(exhausted, "t.retry.exhausted");
async fn after_the_last_retry_topic_the_dead_letter_has_the_original_place(on: On) {
    const DELAYS: [u64; 2] = [100, 300];
    let scene = stage::<exhausted::Posted>(on, 2, &DELAYS).await;
    let name = "test-retry-exhausted";
    let (consumer, recorder) = consumer::<exhausted::Posted>(name, &DELAYS);
    let running = start(&scene, &[], [consumer]);
    let entry = |seq, note| exhausted::Posted::entry("a", seq, note);
    let ids = scene
        .produce(
            1,
            &[entry(1, ""), entry(2, "always"), entry(3, "permanent")],
        )
        .await;
    // And poison, on its way back from a retry: its consumer was rolled back to a version that can't read it.
    let retry = &retry_topics::<exhausted::Posted>(&DELAYS)[0];
    let headers = [
        ("own", Some(&b"\xff"[..])),
        ("x-attempt", Some(b"1")),
        (
            "x-original-topic",
            Some(exhausted::Posted::TOPIC.as_bytes()),
        ),
        ("x-original-partition", Some(b"1")),
        ("x-original-offset", Some(b"77")),
        ("x-consumer", Some(name.as_bytes())),
    ];
    scene
        .broker
        .send(&[OutgoingRecord {
            topic: retry,
            key: None,
            value: Some(b"{"),
            headers: headers.to_vec(),
            partition: None,
        }])
        .await;
    eventually(LIMIT, "three dead letters", async || {
        letters(&scene).await.len() == 3
    })
    .await;
    running.stop().await;

    let published = scene.broker.records(exhausted::Posted::TOPIC).await;
    let letters = letters(&scene).await;
    let of = |reason: &str| {
        let mut found = letters
            .iter()
            .filter(|row| row.get::<String, _>("reason") == reason);
        (found.next().expect("a letter"), found.next().is_none())
    };
    let own_place = |offset| (exhausted::Posted::TOPIC.to_owned(), 1, offset);
    let (letter, alone) = of("attempts_exhausted");
    assert!(alone);
    assert_eq!(place(letter), own_place(1));
    assert_eq!(letter.get::<i32, _>("attempts"), 3);
    assert_eq!(letter.get::<String, _>("error"), "never");
    assert_eq!(letter.get::<Option<Vec<u8>>, _>("key"), published[1].key);
    assert_eq!(
        letter.get::<Option<Vec<u8>>, _>("value"),
        published[1].value
    );
    assert!(letter.get::<Vec<String>, _>("header_names").is_empty());
    let seen = |name| letter.get::<OffsetDateTime, _>(name);
    assert!(seen("last_seen") - seen("first_seen") >= Duration::from_millis(390));
    assert_eq!(recorder.calls_of(ids[1]), 3);

    let (letter, _) = of("permanent");
    assert_eq!(place(letter), own_place(2));
    assert_eq!(letter.get::<i32, _>("attempts"), 1);
    let (letter, _) = of("malformed_json");
    assert_eq!(place(letter), own_place(77));
    assert_eq!(letter.get::<i32, _>("attempts"), 2);
    assert_eq!(letter.get::<Vec<String>, _>("header_names"), ["own"]);
}

entry_on_topic!(waiting, "t.retry.waiting");
async fn a_waiting_retry_lane_holds_up_nobody_and_stays_in_its_group(on: On) {
    // Nine seconds of waiting, and at most six between two polls.
    const DELAYS: [u64; 1] = [9_000];
    let scene = stage::<waiting::Posted>(on, 1, &DELAYS).await;
    let name = "test-retry-waiting";
    let (consumer, _) = consumer::<waiting::Posted>(name, &DELAYS);
    let consumer = consumer.handler_timeout(Duration::from_secs(5));
    let stats = consumer.stats();
    let running = start(
        &scene,
        &[("KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS", "6000")],
        [consumer],
    );
    let failing = [waiting::Posted::entry("a", 1, "transient 2")];
    scene.produce(0, &failing).await;
    let retry = &retry_topics::<waiting::Posted>(&DELAYS)[0];
    eventually(LIMIT, "the record in its retry topic", async || {
        scene.broker.end_offsets(retry).await.get(&0) == Some(&1)
    })
    .await;
    // The lane takes it, and waits; meanwhile everything else flows, with no transaction open.
    eventually(LIMIT, "the waiting record", async || stats.received() == 2).await;
    scene.produce(0, &entries::<waiting::Posted>("b", 20)).await;
    scene.await_effects(name, &effects_of("b", 20)).await;
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(scene.count(open).await, 0);
    assert_eq!(scene.effects(name).await.len(), 20, "a:1 is not due yet");
    let mut all = effects_of("b", 20);
    all.extend(effects_of("a", 1));
    scene.await_effects(name, &all).await;
    running.stop().await;
    assert_eq!(stats.evictions(), 0);
    assert_eq!(stats.received(), 22, "nothing came twice");
}

entry_on_topic!(stopped, "t.retry.stopped");
async fn a_stop_ends_the_wait_at_once(on: On) {
    const DELAYS: [u64; 1] = [600_000];
    let scene = Scene::new::<stopped::Posted>(on, 1).await;
    let retry = format!("{}.retry-10m", stopped::Posted::TOPIC);
    scene.broker.create_topic(&retry, 1).await;
    let name = "test-retry-stopped";
    let (consumer, _) = consumer::<stopped::Posted>(name, &DELAYS);
    let stats = consumer.stats();
    // Who doesn't end the wait is cut off after 24 seconds.
    let running = start(
        &scene,
        &[("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "30")],
        [consumer],
    );
    scene
        .produce(0, &[stopped::Posted::entry("a", 1, "always")])
        .await;
    eventually(LIMIT, "the waiting record", async || stats.received() == 2).await;
    let asked = Instant::now();
    running.stop().await;
    assert!(
        asked.elapsed() < Duration::from_secs(15),
        "{:?}",
        asked.elapsed()
    );
    let unmoved = scene.broker.committed(name, &retry).await;
    assert!(unmoved.get(&0).is_none_or(|offset| *offset == 0));
}

entry_on_topic!(killed, "t.retry.killed");

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_retry-service"))
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .env("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "5000")
            .env("KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS", "300")
            .stdin(Stdio::null())
            .spawn()
            .expect("the service's binary starts");
        Process(child)
    }

    /// SIGKILL: no destructor, no last word.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn killed_around_the_commit_of_a_retry_there_is_one_effect(on: On) {
    const CONSUMER: &str = "test-retry-killed";
    let scene = stage::<killed::Posted>(on, 2, &[100, 200]).await;
    // The transaction that writes the retry waits for lock 42, its row being written.
    scene
        .execute(
            "CREATE TABLE broken (); INSERT INTO broken DEFAULT VALUES;
             CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END $$;
             CREATE TRIGGER hold AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    let mut holder = scene.database.connect().await;
    sqlx::query("SELECT pg_advisory_lock(42)")
        .execute(&mut holder)
        .await
        .unwrap();
    scene.produce(0, &[killed::Posted::entry("a", 1, "")]).await;
    let waiting = async || {
        scene
            .count(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            )
            .await
    };
    let rows = "SELECT count(*) FROM outbox WHERE purpose = 'retry' AND topic LIKE '%.retry-100ms'";

    // Before COMMIT: nothing of the retry stands, and the offset has not moved, though another partition's has: all that
    // have are committed together.
    let process = Process::start(&scene);
    eventually(LIMIT, "the row of the retry", async || waiting().await > 0).await;
    let skipped = br#"{"eventType":"account.unheard.v1"}"#;
    scene
        .produce_raw::<killed::Posted>(1, &[Some(skipped)])
        .await;
    scene
        .await_committed(CONSUMER, killed::Posted::TOPIC, 1, 1)
        .await;
    process.kill();
    let moved = scene
        .broker
        .committed(CONSUMER, killed::Posted::TOPIC)
        .await;
    assert!(!moved.contains_key(&0), "{moved:?}");
    eventually(LIMIT, "the end of the dead transaction", async || {
        waiting().await == 0
    })
    .await;
    assert_eq!(scene.count(rows).await, 0);
    holder.close().await.unwrap();

    // Right after COMMIT, before the offset, which follows up to a second later. Should it have been faster, another
    // event is tried.
    let mut proved = false;
    let mut seq = 1;
    while !proved && seq < 10 {
        let before = scene.count(rows).await;
        let process = Process::start(&scene);
        eventually(LIMIT, "the retry", async || {
            scene.count(rows).await > before
        })
        .await;
        process.kill();
        let moved = scene
            .broker
            .committed(CONSUMER, killed::Posted::TOPIC)
            .await;
        proved = moved.get(&0).is_none_or(|offset| *offset < seq);
        if !proved {
            seq += 1;
            let another = killed::Posted::entry("a", seq.unsigned_abs(), "");
            scene.produce(0, &[another]).await;
        }
    }
    assert!(proved, "no kill came between COMMIT and the offset");

    // Mended: the event succeeds, and both records that the crash left of it are repeats.
    scene.execute("DELETE FROM broken").await;
    let process = Process::start(&scene);
    scene
        .await_committed(CONSUMER, killed::Posted::TOPIC, 0, seq)
        .await;
    let first = &retry_topics::<killed::Posted>(&[100, 200])[0];
    eventually(LIMIT, "everything sent and read", async || {
        let unsent = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
        // A partition that had no record has no committed offset.
        let mut sent = scene.broker.end_offsets(first).await;
        sent.retain(|_, end| *end > 0);
        scene.count(unsent).await == 0 && scene.broker.committed(CONSUMER, first).await == sent
    })
    .await;
    process.kill();
    // An event that was given up before it was mended would be a letter: two topics, and many kills.
    let effects = scene.effects(CONSUMER).await;
    let mut distinct = effects.clone();
    distinct.dedup();
    assert_eq!(effects, distinct, "no effect twice");
    let letters = letters(&scene).await.len() as i64;
    assert_eq!(effects.len() as i64 + letters, seq, "none is lost");
    assert!(effects.contains(&format!("a:{seq}")));
}

entry_on_topic!(shared, "t.retry.shared");
async fn two_consumers_of_one_database_share_a_retry_topic_and_each_takes_its_own(on: On) {
    const DELAYS: [u64; 1] = [200];
    let scene = stage::<shared::Posted>(on, 1, &DELAYS).await;
    let (first, called_first) = consumer::<shared::Posted>("test-retry-first", &DELAYS);
    let (second, called_second) = consumer::<shared::Posted>("test-retry-second", &DELAYS);
    // A batch that fails in part calls its other events' handlers again.
    let (first, second) = (first.batch_limit(1), second.batch_limit(1));
    let stats = [first.stats(), second.stats()];
    let running = start(&scene, &[], [first, second]);
    let ids = scene
        .produce(
            0,
            &[
                shared::Posted::entry("a", 1, "transient 2"),
                shared::Posted::entry("b", 1, "always"),
            ],
        )
        .await;
    for name in ["test-retry-first", "test-retry-second"] {
        scene.await_effects(name, &effects_of("a", 1)).await;
    }
    eventually(
        LIMIT,
        "a letter of each, and all records read",
        async || {
            letters(&scene).await.len() == 2 && stats.iter().all(|stats| stats.received() == 6)
        },
    )
    .await;
    eventually(LIMIT, "the others' records skipped", async || {
        stats.iter().all(|stats| stats.of_others() == 2)
    })
    .await;
    running.stop().await;
    for recorder in [called_first, called_second] {
        assert_eq!(recorder.calls_of(ids[0]), 2, "its own retry alone");
        assert_eq!(recorder.calls_of(ids[1]), 2);
    }
    for letter in letters(&scene).await {
        assert_eq!(place(&letter), (shared::Posted::TOPIC.to_owned(), 0, 1));
    }
}

entry_on_topic!(foreign, "t.retry.foreign");
async fn records_of_another_language_are_taken_from_a_retry_topic(on: On) {
    const DELAYS: [u64; 2] = [300, 500];
    let scene = stage::<foreign::Posted>(on, 1, &DELAYS).await;
    let name = "test-retry-foreign";
    let topics = retry_topics::<foreign::Posted>(&DELAYS);
    let value = |account: &str, note: &str| {
        envelope(foreign::Posted::entry(account, 1, note))
            .encode()
            .unwrap()
    };
    // As a service in Node or Java writes them: what it knows, in lower case, and nothing of Factum's own.
    let values = [
        value("bare", ""),
        value("whole", ""),
        value("late", ""),
        value("others", ""),
        value("fails", "always"),
    ];
    let whole = [
        ("x-attempt", Some(&b"1"[..])),
        ("x-not-before", Some(b"2026-06-01T12:00:00.123+02:00")),
        ("x-original-topic", Some(foreign::Posted::TOPIC.as_bytes())),
        ("x-original-partition", Some(b"0")),
        ("x-original-offset", Some(b"41")),
    ];
    // A clock that is wrong by centuries: nobody waits longer than the topic's delay.
    let late = [("x-not-before", Some(&b"2626-06-01T12:00:00Z"[..]))];
    let others = [("x-consumer", Some(&b"mailing-account-posted"[..]))];
    let headers = [&[][..], &whole, &late, &others, &[]];
    let batch: Vec<OutgoingRecord<'_>> = values
        .iter()
        .zip(headers)
        .map(|(value, headers)| OutgoingRecord {
            topic: &topics[0],
            key: Some(b"a"),
            value: Some(value),
            headers: headers.to_vec(),
            partition: None,
        })
        .collect();
    scene.broker.send(&batch).await;
    let (consumer, _) = consumer::<foreign::Posted>(name, &DELAYS);
    let stats = consumer.stats();
    let running = start(&scene, &[], [consumer]);
    let expected = ["bare", "whole", "late"].map(|account| format!("{account}:1"));
    scene.await_effects(name, &expected).await;
    eventually(LIMIT, "the letter", async || {
        letters(&scene).await.len() == 1
    })
    .await;
    running.stop().await;
    assert_eq!(stats.of_others(), 1);
    // Who says no place of its own has the one where Factum met it.
    let letter = &letters(&scene).await[0];
    assert_eq!(place(letter), (topics[0].clone(), 0, 4));
    assert_eq!(letter.get::<i32, _>("attempts"), 3);
    let hops = scene.broker.records(&topics[1]).await;
    assert_eq!(hops.len(), 1);
    assert_eq!(text(&hops[0], "x-attempt"), "2");
    assert_eq!(text(&hops[0], "x-original-topic"), topics[0]);
}

entry_on_topic!(gone, "t.retry.gone");
entry_on_topic!(stays, "t.retry.gone", "account.closed.v1", Closed);
async fn what_was_sent_to_a_retry_topic_is_not_dropped_when_its_handler_is_gone(on: On) {
    const DELAYS: [u64; 1] = [100];
    let scene = stage::<gone::Posted>(on, 1, &DELAYS).await;
    let name = "test-retry-gone";
    let retry = &retry_topics::<gone::Posted>(&DELAYS)[0];
    let value = envelope(gone::Posted::entry("a", 1, "")).encode().unwrap();
    let record = |headers: &[(&'static str, Option<&'static [u8]>)]| OutgoingRecord {
        topic: retry,
        key: Some(b"a"),
        value: Some(&value),
        headers: headers.to_vec(),
        partition: None,
    };
    let sent = [
        record(&[("x-consumer", Some(b"test-retry-gone"))]),
        record(&[]),
    ];
    scene.broker.send(&sent).await;
    let (consumer, _) = consumer::<stays::Closed>(name, &DELAYS);
    let stats = consumer.stats();
    let running = start(&scene, &[], [consumer]);
    scene.await_committed(name, retry, 0, 2).await;
    running.stop().await;
    // What nobody of this name sent is skipped, as in the topic itself (EVT-3).
    assert_eq!(scene.dead_letters(name).await, ["unknown_type"]);
    assert_eq!(stats.unknown(), 1);
}

entry_on_topic!(full, "t.retry.full");
async fn what_does_not_fit_into_a_retry_topic_is_a_dead_letter(on: On) {
    const DELAYS: [u64; 1] = [100];
    let scene = stage::<full::Posted>(on, 1, &DELAYS).await;
    let name = "test-retry-full";
    let value = envelope(full::Posted::entry("a", 1, "always"))
        .encode()
        .unwrap();
    // A broker's client sends 64 at most, and a retry has eight of its own.
    let record = OutgoingRecord {
        topic: full::Posted::TOPIC,
        key: Some(b"a"),
        value: Some(&value),
        headers: vec![("own", None); 57],
        partition: None,
    };
    scene.broker.send(&[record]).await;
    let (consumer, _) = consumer::<full::Posted>(name, &DELAYS);
    let running = start(&scene, &[], [consumer]);
    scene.await_committed(name, full::Posted::TOPIC, 0, 1).await;
    running.stop().await;
    let letter = &letters(&scene).await[0];
    assert_eq!(letter.get::<String, _>("reason"), "attempts_exhausted");
    assert_eq!(letter.get::<i32, _>("attempts"), 1);
    let error: String = letter.get("error");
    assert!(error.contains("too large for a retry topic"), "{error}");
    assert!(error.ends_with("never"), "{error}");
    assert_eq!(scene.count("SELECT count(*) FROM outbox").await, 0);
}

entry_on_topic!(case_41, "t.retry.case-41");

/// Fails with 20 kB of text.
struct Verbose;

impl Handler<case_41::Posted> for Verbose {
    async fn handle(
        &self,
        _: &Envelope<case_41::Posted>,
        _: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        Err(HandlerError::transient("at a.b.c(d.rs:1) ".repeat(1_200)))
    }
}

async fn case_41_fifty_hops_with_20_kb_of_error_end_in_a_small_record(on: On) {
    const DELAYS: [u64; 8] = [5, 10, 15, 20, 25, 30, 35, 40];
    const ROUNDS: usize = 6;
    let scene = stage::<case_41::Posted>(on, 1, &DELAYS).await;
    let name = "test-case-41";
    let consumer = Consumer::named(name)
        .handler::<case_41::Posted>(Verbose)
        .retry(Retry::topics(millis(&DELAYS)))
        .mirror_dead_letters();
    let running = start(&scene, &[], [consumer]);
    let mirror = format!("{}.dlq", case_41::Posted::TOPIC);
    scene
        .produce(0, &[case_41::Posted::entry("a", 1, "")])
        .await;
    // Eight hops, one into the mirror; from there a tool of somebody's sends it back with all its headers.
    for round in 1..=ROUNDS {
        eventually(LIMIT, "the mirrored letter", async || {
            scene.broker.end_offsets(&mirror).await.get(&0) == Some(&(round as i64))
        })
        .await;
        let mirrored = scene.broker.records(&mirror).await;
        let last = &mirrored[round - 1];
        assert_eq!(text(last, "x-attempt"), "9");
        assert_eq!(text(last, "x-original-offset"), (round - 1).to_string());
        assert_eq!(text(last, "x-reason"), "attempts_exhausted");
        if round < ROUNDS {
            let back = OutgoingRecord {
                topic: case_41::Posted::TOPIC,
                key: last.key.as_deref(),
                value: last.value.as_deref(),
                headers: last.headers.iter().collect(),
                partition: None,
            };
            scene.broker.send(&[back]).await;
        }
    }
    running.stop().await;
    let mut hops = 0;
    let mut topics = retry_topics::<case_41::Posted>(&DELAYS);
    topics.push(mirror);
    for (place, topic) in topics.iter().enumerate() {
        let records = scene.broker.records(topic).await;
        assert_eq!(records.len(), ROUNDS, "{topic}");
        hops += records.len();
        let sizes: Vec<usize> = records.iter().map(size).collect();
        assert!(
            sizes.iter().all(|size| *size < 10_000),
            "{topic}: {sizes:?}"
        );
        let mut found = names(&records[ROUNDS - 1]);
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count, "{topic}: a header is appended");
        let last = &records[ROUNDS - 1];
        assert_eq!(text(last, "x-attempt"), (place + 1).to_string());
        assert_eq!(text(last, "x-original-topic"), case_41::Posted::TOPIC);
        assert_eq!(text(last, "x-original-offset"), (ROUNDS - 1).to_string());
    }
    assert_eq!(hops, 54);
}

entry_on_topic!(mirrored, "t.retry.mirrored");
async fn mirrored_dead_letters_are_the_records_byte_for_byte(on: On) {
    let scene = stage::<mirrored::Posted>(on, 1, &[]).await;
    let name = "test-mirrored";
    let consumer = Consumer::named(name)
        .handler::<mirrored::Posted>(Recorder::of(name))
        .retry(Retry::pause_partition().attempts(1))
        .tombstones(TombstonePolicy::DeadLetter)
        .mirror_dead_letters();
    let permanent = envelope(mirrored::Posted::entry("a", 1, "permanent"))
        .encode()
        .unwrap();
    let wrong = envelope(mirrored::Posted::entry("a", 1, ""))
        .encode()
        .unwrap();
    let wrong = String::from_utf8(wrong)
        .unwrap()
        .replace(r#""seq":1"#, r#""seq":"canary""#);
    let own = [
        ("own", Some(&b"\xff\0"[..])),
        ("own", None),
        ("", Some(b"")),
        ("x-reason", Some(b"of an earlier time")),
    ];
    let record = |key, value| OutgoingRecord {
        topic: mirrored::Posted::TOPIC,
        key,
        value,
        headers: own.to_vec(),
        partition: Some(0),
    };
    let sent: [OutgoingRecord<'_>; 5] = [
        record(None, Some(b"{\xff not json")),
        record(Some(b"\xff\0"), None),
        record(Some(b"a"), Some(&permanent)),
        record(Some(b""), Some(b"")),
        record(None, Some(wrong.as_bytes())),
    ];
    let reasons = [
        "not_utf8",
        "tombstone",
        "permanent",
        "empty",
        "invalid_field",
    ];
    scene.broker.send(&sent).await;
    let running = start(&scene, &[], [consumer]);
    let mirror = format!("{}.dlq", mirrored::Posted::TOPIC);
    eventually(LIMIT, "the mirrored letters", async || {
        scene.broker.end_offsets(&mirror).await.get(&0) == Some(&5)
    })
    .await;
    running.stop().await;
    let copies = scene.broker.records(&mirror).await;
    let letters = letters(&scene).await;
    assert_eq!(letters.len(), 5);
    for (offset, sent) in sent.iter().enumerate() {
        // Records without a key have no order among each other.
        let copy = copies
            .iter()
            .find(|copy| text(copy, "x-original-offset") == offset.to_string())
            .expect("a copy of each");
        assert_eq!(
            (copy.key.as_deref(), copy.value.as_deref()),
            (sent.key, sent.value)
        );
        assert!(copy.headers.iter().take(3).eq(own[..3].iter().copied()));
        let letter = &letters[offset];
        assert_eq!(letter.get::<i64, _>("record_offset"), offset as i64);
        assert_eq!(text(copy, "x-reason"), letter.get::<String, _>("reason"));
        assert_eq!(text(copy, "x-error"), letter.get::<String, _>("error"));
        let path = copy
            .header("x-path")
            .map(|path| String::from_utf8(path.to_vec()).unwrap());
        assert_eq!(path, letter.get::<Option<String>, _>("path"));
        assert_eq!(text(copy, "x-consumer"), name);
        assert_eq!(text(copy, "x-original-topic"), mirrored::Posted::TOPIC);
        assert_eq!(text(copy, "x-original-partition"), "0");
        assert_eq!(text(copy, "x-attempt"), "1");
        assert_eq!(text(copy, "x-reason"), reasons[offset]);
        let values = copy.headers.iter().skip(3).filter_map(|(_, value)| value);
        let mut values = values.map(String::from_utf8_lossy);
        assert!(
            values.all(|value| !value.contains("canary")),
            "no value in a header"
        );
    }
}

/// Starts, expects a refusal, and gives what the checks found.
async fn refused(service: ServiceBuilder) -> Vec<Problem> {
    let started = service.run_until(std::future::pending());
    match tokio::time::timeout(LIMIT, started).await {
        Ok(Err(ServiceError::Start(problems))) => problems,
        other => panic!("expected a refused start, found {other:?}"),
    }
}

entry_on_topic!(unmade, "t.retry.unmade");
async fn missing_retry_and_mirror_topics_are_named(on: On) {
    let scene = Scene::new::<unmade::Posted>(on, 2).await;
    let delays = [Duration::from_mins(1), Duration::from_mins(10)];
    let retrying = || {
        Consumer::named("test-unmade")
            .handler::<unmade::Posted>(Recorder::of("test-unmade"))
            .retry(Retry::topics(delays))
            .mirror_dead_letters()
    };
    let problems = refused(Service::builder(scene.config(&[])).consumer(retrying())).await;
    let missing = [
        ("t.retry.unmade.dlq", "mirrors its dead letters to it"),
        ("t.retry.unmade.retry-10m", "retries through it"),
        ("t.retry.unmade.retry-1m", "retries through it"),
    ];
    assert_eq!(problems.len(), missing.len(), "{problems:#?}");
    for (problem, (topic, why)) in problems.iter().zip(missing) {
        assert_eq!(problem.rule(), "CFG-4");
        assert_eq!(
            problem.what(),
            format!("the topic `{topic}` does not exist")
        );
        assert!(
            problem.place().contains("consumer `test-unmade`"),
            "{problem}"
        );
        assert!(problem.place().contains(why), "{problem}");
        assert!(problem.mend().contains(".create_topics(4)"), "{problem}");
    }
    let nothing = Consumer::named("test-unmade")
        .handler::<unmade::Posted>(Recorder::of("test-unmade"))
        .retry(Retry::topics([]));
    let problems = refused(Service::builder(scene.config(&[])).consumer(nothing)).await;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert_eq!(problems[0].rule(), "RTRY-1");

    let latest = Consumer::named("test-unmade")
        .handler::<unmade::Posted>(Recorder::of("test-unmade"))
        .start_at(StartAt::Latest)
        .retry(Retry::topics(delays));
    let problems = refused(Service::builder(scene.config(&[])).consumer(latest)).await;
    assert_eq!(problems[0].rule(), "CONS-4", "{problems:#?}");
    assert!(problems[0].what().contains("could be skipped"));

    // They are this service's own: it makes them where it may (CFG-5). The embedded broker can't.
    if on == On::Kafka {
        let service = Service::builder(scene.config(&[]))
            .consumer(retrying())
            .create_topics(3);
        let running = Running::start(service.relay());
        let entry = |seq, note| unmade::Posted::entry("a", seq, note);
        scene
            .produce(0, &[entry(1, "permanent"), entry(2, "")])
            .await;
        scene
            .await_effects("test-unmade", &["a:2".to_owned()])
            .await;
        let mirrored = "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL";
        eventually(LIMIT, "a record in the new mirror", async || {
            scene.count(mirrored).await == 1
        })
        .await;
        running.stop().await;
        for (topic, _) in missing {
            assert_eq!(scene.broker.end_offsets(topic).await.len(), 3, "{topic}");
        }
        // Another's topic stays as it is.
        let read = scene.broker.end_offsets(unmade::Posted::TOPIC).await;
        assert_eq!(read.len(), 2);
    }
}
