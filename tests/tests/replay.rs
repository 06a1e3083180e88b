//! Replays: plans that a consumer's own service checks, and runs that it carries out. The plans are made by the SQL
//! that the command uses.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use factum::sqlx::{self, Connection as _, Row as _};
use factum::{
    Consumer, Envelope, Event, EventId, Handler, HandlerError, Retry, Service, Tx, new_event_id,
};
use factum_testing::eventually;
use factum_tests::{Entry, LIMIT, On, Running, Scene, effects_of, entry_on_topic, envelope};
use tokio::sync::Semaphore;

/// What of a run the tests look at.
#[derive(Debug, PartialEq)]
struct Run {
    state: String,
    /// The items' states by offset.
    items: Vec<String>,
    stop_cause: Option<String>,
}

/// The command's part: plans, starts, pauses.
trait Replays {
    async fn run_sql(&self, sql: &'static str, run: i64);
    async fn letter<E: Entry>(&self, consumer: &str, offset: i64, envelope: &Envelope<E>);
    async fn plan(&self, consumer: &str) -> i64;
    async fn checked(&self, run: i64) -> Vec<String>;
    async fn begin(&self, run: i64);
    async fn look(&self, run: i64) -> Run;
    async fn until(&self, run: i64, state: &str) -> Run;
    async fn texts(&self, sql: &'static str) -> Vec<String>;

    /// A plan that is checked, and then run to its end.
    async fn replay(&self, consumer: &str) -> Run {
        let run = self.plan(consumer).await;
        self.checked(run).await;
        self.begin(run).await;
        self.until(run, "done").await
    }
}

impl Replays for Scene {
    async fn run_sql(&self, sql: &'static str, run: i64) {
        let mut conn = self.database.connect().await;
        sqlx::query(sql).bind(run).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    /// A letter of an event that never came through Kafka.
    async fn letter<E: Entry>(&self, consumer: &str, offset: i64, envelope: &Envelope<E>) {
        let mut conn = self.database.connect().await;
        sqlx::query(
            "INSERT INTO dead_letter (consumer, topic, partition, record_offset, key, value, event_id, event_type, \
                                      reason, error, attempts) \
             VALUES ($1, $2, 0, $3, $4, $5, $6, $7, 'permanent', 'as the test wants it', 1)",
        )
        .bind(consumer)
        .bind(E::TOPIC)
        .bind(offset)
        .bind(envelope.account().as_bytes())
        .bind(envelope.encode().unwrap())
        .bind(envelope.id().as_uuid())
        .bind(E::EVENT_TYPE)
        .execute(&mut conn)
        .await
        .unwrap();
        conn.close().await.unwrap();
    }

    async fn plan(&self, consumer: &str) -> i64 {
        let mut conn = self.database.connect().await;
        let run = sqlx::query_scalar(
            "WITH run AS ( \
               INSERT INTO replay_run (consumer, rate, created_by, good_until) \
               VALUES ($1, 1000, 'test', clock_timestamp() + interval '15 minutes') RETURNING id), \
             items AS ( \
               INSERT INTO replay_item (run_id, dead_letter_id, key, topic, partition, record_offset) \
               SELECT run.id, l.id, l.key, l.topic, l.partition, l.record_offset \
               FROM run, dead_letter l WHERE l.consumer = $1 AND l.state = 'open') \
             SELECT id FROM run",
        )
        .bind(consumer)
        .fetch_one(&mut conn)
        .await
        .unwrap();
        conn.close().await.unwrap();
        run
    }

    async fn checked(&self, run: i64) -> Vec<String> {
        self.until(run, "planned").await.items
    }

    async fn begin(&self, run: i64) {
        let sql =
            "UPDATE replay_run SET state = 'running', started_at = clock_timestamp() WHERE id = $1";
        self.run_sql(sql, run).await;
    }

    async fn look(&self, run: i64) -> Run {
        let mut conn = self.database.connect().await;
        let row = sqlx::query(
            "SELECT state, stop_cause, ARRAY(SELECT state FROM replay_item WHERE run_id = $1 \
                                             ORDER BY topic, partition, record_offset) \
             FROM replay_run WHERE id = $1",
        )
        .bind(run)
        .fetch_one(&mut conn)
        .await
        .unwrap();
        conn.close().await.unwrap();
        Run {
            state: row.get(0),
            stop_cause: row.get(1),
            items: row.get(2),
        }
    }

    async fn until(&self, run: i64, state: &str) -> Run {
        eventually(LIMIT, &format!("a run that is {state}"), async || {
            self.look(run).await.state == state
        })
        .await;
        self.look(run).await
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        let mut conn = self.database.connect().await;
        let texts = sqlx::query_scalar(sql).fetch_all(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        texts
    }
}

/// A handler that can be mended while it runs.
#[derive(Clone)]
struct Mendable {
    consumer: &'static str,
    broken: Arc<AtomicBool>,
    /// An event with the note `gate` waits here.
    gate: Arc<Semaphore>,
    waiting: Arc<AtomicBool>,
}

impl Mendable {
    fn of(consumer: &'static str) -> Mendable {
        Mendable {
            consumer,
            broken: Arc::new(AtomicBool::new(true)),
            gate: Arc::new(Semaphore::new(0)),
            waiting: Arc::new(AtomicBool::new(false)),
        }
    }

    fn mend(&self) {
        self.broken.store(false, Ordering::SeqCst);
    }

    fn consumer<E: Entry>(&self) -> Consumer {
        Consumer::named(self.consumer)
            .handler::<E>(self.clone())
            .retry(Retry::pause_partition().attempts(1))
    }
}

impl<E: Entry> Handler<E> for Mendable {
    async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
        )
        .bind(self.consumer)
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        match event.note() {
            "bad" if self.broken.load(Ordering::SeqCst) => {
                Err(HandlerError::permanent("the handler has a fault"))
            }
            "gate" => {
                self.waiting.store(true, Ordering::SeqCst);
                self.gate.acquire().await.expect("the gate stays").forget();
                Ok(())
            }
            "commit" => {
                sqlx::raw_sql("COMMIT").execute(tx.conn()).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A stage with `n` letters of one key, and a service whose handler is broken.
async fn stage<E: Entry>(consumer: &'static str, note: &str, n: u64) -> (Scene, Mendable) {
    let scene = Scene::new::<E>(On::Embedded, 1).await;
    for seq in 1..=n {
        let event = envelope(E::entry("a", seq, note));
        scene.letter(consumer, seq as i64, &event).await;
    }
    (scene, Mendable::of(consumer))
}

fn all(n: usize, state: &str) -> Vec<String> {
    vec![state.to_owned(); n]
}

entry_on_topic!(case_45, "t.replay.case-45");
#[tokio::test(flavor = "multi_thread")]
async fn case_45_a_replay_reaches_the_consumer_that_failed_and_no_other() {
    let scene = Scene::new::<case_45::Posted>(On::Embedded, 1).await;
    let [failing, second, third] = ["test-failing", "test-second", "test-third"].map(Mendable::of);
    second.mend();
    third.mend();
    let running = scene.start([
        failing.consumer::<case_45::Posted>(),
        second.consumer::<case_45::Posted>(),
        third.consumer::<case_45::Posted>(),
    ]);
    scene
        .produce(0, &[case_45::Posted::entry("a", 1, "bad")])
        .await;
    for name in [second.consumer, third.consumer] {
        scene.await_effects(name, &effects_of("a", 1)).await;
    }
    eventually(LIMIT, "the dead letter", async || {
        scene.dead_letters(failing.consumer).await == ["permanent"]
    })
    .await;
    failing.mend();
    let run = scene.replay(failing.consumer).await;
    assert_eq!(run.items, ["handled"]);
    // Another event comes through all three: had the replay produced one, it would lie before it.
    scene
        .produce(0, &[case_45::Posted::entry("a", 2, "")])
        .await;
    for name in [failing.consumer, second.consumer, third.consumer] {
        scene.await_effects(name, &effects_of("a", 2)).await;
        scene
            .await_committed(name, case_45::Posted::TOPIC, 0, 2)
            .await;
    }
    running.stop().await;
    assert_eq!(scene.count("SELECT count(*) FROM outbox").await, 0);
    let letter = scene.texts("SELECT state FROM dead_letter").await;
    assert_eq!(letter, ["replayed"]);
}

entry_on_topic!(case_10, "t.replay.case-10");
#[tokio::test(flavor = "multi_thread")]
async fn case_10_outside_the_window_a_replay_is_refused_unless_it_is_accepted_by_name() {
    let (scene, handler) = stage::<case_10::Posted>("test-case-10", "", 1).await;
    let name = handler.consumer;
    let running = scene.start([handler.consumer::<case_10::Posted>()]);
    // The partition of the event's day goes; younger ones stay.
    eventually(LIMIT, "the dedup window", async || {
        scene
            .count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'processed_event'::regclass")
            .await
            > 30
    })
    .await;
    scene
        .execute(
            "DO $$ DECLARE gone text := 'processed_event_' || \
               to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD'); \
             BEGIN EXECUTE 'ALTER TABLE processed_event DETACH PARTITION ' || gone; \
                   EXECUTE 'DROP TABLE ' || gone; END $$",
        )
        .await;
    let run = scene.replay(name).await;
    assert_eq!(run.items, ["out_of_window"], "left out");
    assert!(scene.effects(name).await.is_empty());
    assert_eq!(scene.dead_letters(name).await, ["permanent"], "as it was");

    // Two plans see the letter open; it has one effect all the same.
    let accepting = [scene.plan(name).await, scene.plan(name).await];
    for run in accepting {
        let sql = "UPDATE replay_run SET accept_outside_window = true WHERE id = $1";
        scene.run_sql(sql, run).await;
        assert_eq!(scene.checked(run).await, ["out_of_window"]);
    }
    scene.begin(accepting[0]).await;
    let run = scene.until(accepting[0], "done").await;
    assert_eq!(run.items, ["handled"]);
    assert_eq!(scene.effects(name).await, effects_of("a", 1));
    scene.begin(accepting[1]).await;
    let run = scene.until(accepting[1], "done").await;
    assert_eq!(run.items, ["gone"]);
    assert_eq!(scene.effects(name).await, effects_of("a", 1), "once");
    let remembered = scene.count("SELECT count(*) FROM processed_event").await;
    assert_eq!(remembered, 0, "there is no partition for its dedup row");
    running.stop().await;
}

entry_on_topic!(strict, "t.replay.decoder");
mod lenient {
    use factum::Event;

    /// The next build's: `note` may be missing.
    #[derive(Debug, Clone, PartialEq, Event)]
    #[event(
        kind = "account.posted.v1",
        aggregate = "Account",
        topic = "t.replay.decoder",
        unlocked
    )]
    pub(crate) struct Posted {
        #[event(aggregate_id)]
        pub(crate) account: String,
        #[event(range(min = 0, max = 9_007_199_254_740_991))]
        pub(crate) seq: u64,
        pub(crate) note: Option<String>,
    }

    impl factum_tests::Entry for Posted {
        fn entry(account: &str, seq: u64, note: &str) -> Self {
            let (account, note) = (account.to_owned(), Some(note.to_owned()));
            Posted { account, seq, note }
        }
        fn account(&self) -> &str {
            &self.account
        }
        fn seq(&self) -> u64 {
            self.seq
        }
        fn note(&self) -> &str {
            self.note.as_deref().unwrap_or_default()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_43_poison_is_replayed_once_a_build_can_decode_it() {
    let scene = Scene::new::<strict::Posted>(On::Embedded, 1).await;
    let handler = Mendable::of("test-decoder");
    let value = |seq: u64, rest: &str| {
        format!(
            r#"{{"eventId":"{}","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","seq":{seq}{rest}}}"#,
            new_event_id()
        )
    };
    let values = [
        value(1, ""),
        "{not json".to_owned(),
        value(3, r#","note":"""#),
    ];
    let values: Vec<_> = values.iter().map(|v| Some(v.as_bytes())).collect();
    scene.produce_raw::<strict::Posted>(0, &values).await;
    let builder = |build: &str| Service::builder(scene.config(&[])).build(build);
    let old = Running::start(builder("1.4.2").consumer(handler.consumer::<strict::Posted>()));
    let name = handler.consumer;
    scene.await_effects(name, &["a:3".to_owned()]).await;
    let letters = "SELECT concat_ws(' ', reason, path, path_group, build, state, attempts) FROM dead_letter ORDER BY record_offset";
    let poison = [
        "missing_field $.note $.note 1.4.2 open 1",
        "malformed_json $ $ 1.4.2 open 1",
    ];
    assert_eq!(scene.texts(letters).await, poison);
    let original = "SELECT encode(value, 'hex') FROM dead_letter ORDER BY record_offset";
    let original_bytes = scene.texts(original).await;
    // By the build that can't decode them nothing is replayed.
    let run = scene.replay(name).await;
    assert_eq!(run.items, all(2, "undecodable"));
    assert_eq!(scene.texts(letters).await, poison, "left as they were");
    // A plan of the new build that the old one carries out sets them aside again.
    let stale = scene.plan(name).await;
    scene.checked(stale).await;
    scene
        .run_sql(
            "UPDATE replay_item SET state = 'ready' WHERE run_id = $1",
            stale,
        )
        .await;
    scene.begin(stale).await;
    assert_eq!(scene.until(stale, "done").await.items, all(2, "failed"));
    let again = [
        "missing_field $.note $.note 1.4.2 open 2",
        "malformed_json $ $ 1.4.2 open 2",
    ];
    assert_eq!(scene.texts(letters).await, again);
    assert_eq!(
        scene
            .texts("SELECT detail FROM replay_item WHERE state = 'failed' ORDER BY record_offset")
            .await,
        ["missing_field at $.note", "malformed_json at $"]
    );
    old.stop().await;

    let new = Running::start(builder("1.5.0").consumer(handler.consumer::<lenient::Posted>()));
    let run = scene.replay(name).await;
    assert_eq!(run.items, ["handled", "undecodable"]);
    scene
        .await_effects(name, &["a:1".to_owned(), "a:3".to_owned()])
        .await;
    let after = [
        "missing_field $.note $.note 1.4.2 replayed 2",
        "malformed_json $ $ 1.4.2 open 2",
    ];
    assert_eq!(scene.texts(letters).await, after);
    assert_eq!(scene.texts(original).await, original_bytes);
    let open = "SELECT reason || ' ' || open || '/' || replayed FROM \
        (SELECT reason, sum(open) AS open, sum(replayed) AS replayed FROM \
          (SELECT reason, open, replayed FROM dead_letter_group UNION ALL \
           SELECT reason, open, replayed FROM dead_letter_delta) AS e GROUP BY reason) AS g ORDER BY 1";
    let expected = ["malformed_json 1/0", "missing_field 0/1"];
    assert_eq!(scene.texts(open).await, expected);
    new.stop().await;
}

entry_on_topic!(duplicate, "t.replay.duplicate");
#[tokio::test(flavor = "multi_thread")]
async fn what_was_handled_before_is_reported_as_a_duplicate() {
    let scene = Scene::new::<duplicate::Posted>(On::Embedded, 1).await;
    let handler = Mendable::of("test-duplicate");
    let name = handler.consumer;
    let known = envelope(duplicate::Posted::entry("a", 1, ""));
    let later = envelope(duplicate::Posted::entry("a", 2, ""));
    scene.letter(name, 101, &known).await;
    scene.letter(name, 102, &later).await;
    let running = scene.start([handler.consumer::<duplicate::Posted>()]);
    let produce = async |event: &Envelope<duplicate::Posted>| {
        let value = event.encode().unwrap();
        scene
            .produce_raw::<duplicate::Posted>(0, &[Some(&value)])
            .await;
    };
    produce(&known).await;
    scene.await_effects(name, &effects_of("a", 1)).await;
    let run = scene.plan(name).await;
    assert_eq!(scene.checked(run).await, ["duplicate", "ready"]);
    // Between the check and the run the second one is handled, too.
    produce(&later).await;
    scene.await_effects(name, &effects_of("a", 2)).await;
    scene.begin(run).await;
    let run = scene.until(run, "done").await;
    assert_eq!(run.items, all(2, "was_duplicate"));
    assert_eq!(
        scene.effects(name).await,
        effects_of("a", 2),
        "no second effect"
    );
    let states = scene.texts("SELECT state FROM dead_letter").await;
    assert_eq!(states, all(2, "replayed"));
    running.stop().await;
}

entry_on_topic!(failing, "t.replay.failing");
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_again_is_reported_and_its_letter_stays_open() {
    let (scene, handler) = stage::<failing::Posted>("test-failing", "bad", 2).await;
    let name = handler.consumer;
    scene
        .letter(name, 3, &envelope(failing::Posted::entry("b", 1, "")))
        .await;
    let running = scene.start([handler.consumer::<failing::Posted>()]);
    let run = scene.replay(name).await;
    assert_eq!(run.items, ["failed", "failed", "handled"]);
    assert_eq!(scene.effects(name).await, ["b:1"]);
    let letters = "SELECT concat_ws(' ', state, attempts, reason, error) FROM dead_letter ORDER BY record_offset";
    let letters = scene.texts(letters).await;
    assert_eq!(letters[0], letters[1]);
    assert!(letters[0].starts_with("open 2 permanent"), "{letters:?}");
    let detail = scene
        .texts("SELECT detail FROM replay_item WHERE state = 'failed'")
        .await;
    assert!(
        detail.iter().all(|d| d.contains("the handler has a fault")),
        "{detail:?}"
    );
    // Mended, the same letters are replayed by another run.
    handler.mend();
    assert_eq!(scene.replay(name).await.items, all(2, "handled"));
    running.stop().await;
    let mut expected = effects_of("a", 2);
    expected.insert(0, "b:1".to_owned());
    assert_eq!(scene.effects(name).await, expected);
}

entry_on_topic!(hopeless, "t.replay.hopeless");
#[tokio::test(flavor = "multi_thread")]
async fn ten_failures_in_a_row_stop_a_run() {
    let (scene, handler) = stage::<hopeless::Posted>("test-hopeless", "bad", 9).await;
    let name = handler.consumer;
    // A success ends a row.
    scene
        .letter(name, 10, &envelope(hopeless::Posted::entry("b", 1, "")))
        .await;
    for offset in 11..=22 {
        let event = envelope(hopeless::Posted::entry("c", 1, "bad"));
        scene.letter(name, offset, &event).await;
    }
    let running = scene.start([handler.consumer::<hopeless::Posted>()]);
    let run = scene.plan(name).await;
    scene.checked(run).await;
    scene.begin(run).await;
    let run = scene.until(run, "stopped").await;
    let mut expected = all(9, "failed");
    expected.push("handled".to_owned());
    expected.extend(all(10, "failed"));
    expected.extend(all(2, "ready"));
    assert_eq!(run.items, expected);
    assert_eq!(run.stop_cause.as_deref(), Some("10 failures in a row"));
    running.stop().await;
}

entry_on_topic!(paused, "t.replay.paused");
#[tokio::test(flavor = "multi_thread")]
async fn a_run_pauses_after_so_many_and_goes_on() {
    let (scene, handler) = stage::<paused::Posted>("test-paused", "", 5).await;
    let name = handler.consumer;
    let running = scene.start([handler.consumer::<paused::Posted>()]);
    let run = scene.plan(name).await;
    scene.checked(run).await;
    scene
        .run_sql("UPDATE replay_run SET first = 2 WHERE id = $1", run)
        .await;
    scene.begin(run).await;
    let tried = scene.until(run, "paused").await;
    let mut expected = all(2, "handled");
    expected.extend(all(3, "ready"));
    assert_eq!(tried.items, expected);
    scene.begin(run).await;
    assert_eq!(scene.until(run, "done").await.items, all(5, "handled"));
    assert_eq!(
        scene.effects(name).await,
        effects_of("a", 5),
        "in the order of the offsets"
    );
    running.stop().await;
}

entry_on_topic!(obeyed, "t.replay.obeyed");
#[tokio::test(flavor = "multi_thread")]
async fn pause_and_stop_are_obeyed_between_two_items() {
    let (scene, handler) = stage::<obeyed::Posted>("test-obeyed", "gate", 3).await;
    let running = scene.start([handler.consumer::<obeyed::Posted>()]);
    let run = scene.plan(handler.consumer).await;
    scene.checked(run).await;
    scene.begin(run).await;
    for state in ["paused", "stopped"] {
        eventually(LIMIT, "a handler at the gate", async || {
            handler.waiting.swap(false, Ordering::SeqCst)
        })
        .await;
        // The command doesn't wait for the handler.
        match state {
            "paused" => {
                scene
                    .run_sql("UPDATE replay_run SET state = 'paused' WHERE id = $1", run)
                    .await;
            }
            _ => {
                scene
                    .run_sql("UPDATE replay_run SET state = 'stopped' WHERE id = $1", run)
                    .await;
            }
        }
        let handled = scene.effects(handler.consumer).await.len() + 1;
        handler.gate.add_permits(1);
        eventually(LIMIT, "the end of the item", async || {
            scene.effects(handler.consumer).await.len() == handled
        })
        .await;
        assert_eq!(scene.look(run).await.state, state);
        if state == "paused" {
            scene.begin(run).await;
        }
    }
    // A later run takes what is left, and nothing else.
    handler.gate.add_permits(1);
    let rest = scene.replay(handler.consumer).await;
    assert_eq!(rest.items, ["handled"]);
    let stopped = scene.look(run).await;
    assert_eq!(stopped.items, ["handled", "handled", "ready"]);
    assert_eq!(scene.effects(handler.consumer).await, effects_of("a", 3));
    running.stop().await;
}

entry_on_topic!(rated, "t.replay.rated");
#[tokio::test(flavor = "multi_thread")]
async fn a_run_keeps_to_its_rate() {
    let (scene, handler) = stage::<rated::Posted>("test-rated", "", 21).await;
    let running = scene.start([handler.consumer::<rated::Posted>()]);
    let run = scene.plan(handler.consumer).await;
    scene
        .run_sql("UPDATE replay_run SET rate = 10 WHERE id = $1", run)
        .await;
    scene.checked(run).await;
    scene.begin(run).await;
    scene.until(run, "done").await;
    let millis = scene
        .count("SELECT (extract(epoch FROM max(at) - min(at)) * 1000)::bigint FROM replay_item")
        .await;
    // Twenty intervals of a tenth of a second, of which at most one and a bit may be caught up.
    assert!(millis >= 1_800, "21 items took {millis} ms");
    running.stop().await;
}

entry_on_topic!(ended, "t.replay.ended");
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_commits_stops_the_run_before_the_consumer_ends() {
    let (scene, handler) = stage::<ended::Posted>("test-ended", "commit", 2).await;
    let name = handler.consumer;
    let running = scene.start([handler.consumer::<ended::Posted>()]);
    let run = scene.plan(name).await;
    scene.checked(run).await;
    scene.begin(run).await;
    let error = running.ended().await.expect_err("the consumer stops");
    assert!(error.to_string().contains("typed COMMIT"), "{error}");
    let run = scene.look(run).await;
    assert_eq!(run.state, "stopped", "or it would end every consumer");
    assert!(run.stop_cause.unwrap().contains("typed COMMIT"));
    // What the handler committed stands, and counts as handled.
    assert_eq!(run.items, ["handled", "ready"]);
    assert_eq!(scene.effects(name).await, effects_of("a", 1));
    assert_eq!(scene.count("SELECT count(*) FROM processed_event").await, 1);
    // Started anew it goes on with its topics.
    let running = scene.start([handler.consumer::<ended::Posted>()]);
    scene.produce(0, &[ended::Posted::entry("b", 1, "")]).await;
    eventually(LIMIT, "an effect", async || {
        scene.effects(name).await.contains(&"b:1".to_owned())
    })
    .await;
    running.stop().await;
}

entry_on_topic!(shared, "t.replay.shared");
#[tokio::test(flavor = "multi_thread")]
async fn of_several_processes_one_carries_a_run_out_and_another_goes_on() {
    let (scene, handler) = stage::<shared::Posted>("test-shared", "", 120).await;
    let start = || scene.start([handler.consumer::<shared::Posted>()]);
    let mut running = vec![start(), start(), start()];
    let run = scene.plan(handler.consumer).await;
    scene
        .run_sql("UPDATE replay_run SET rate = 40 WHERE id = $1", run)
        .await;
    scene.checked(run).await;
    scene.begin(run).await;
    // Two of the three end on the way: one of them may be the one that is at it.
    for share in [30, 60] {
        eventually(LIMIT, "a part of the items", async || {
            scene.effects(handler.consumer).await.len() >= share
        })
        .await;
        running.remove(0).stop().await;
    }
    assert_eq!(scene.until(run, "done").await.items, all(120, "handled"));
    for running in running {
        running.stop().await;
    }
    let effects = scene.effects(handler.consumer).await;
    assert_eq!(effects, effects_of("a", 120), "once each, in order");
}

entry_on_topic!(killed, "t.killed");

/// The consumer `test-killed` in a process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene) -> Process {
        Process::start_with(scene, None)
    }

    /// One that dies at a fault point, if one is given.
    fn start_with(scene: &Scene, fault: Option<String>) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_account-service"))
            .envs(fault.map(|fault| ("FAULT_POINT", fault)))
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .stdin(Stdio::null())
            .spawn()
            .expect("the service's binary starts");
        Process(child)
    }
}

impl Drop for Process {
    /// SIGKILL: no destructor, no last word.
    fn drop(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_at_any_point_of_a_replay_loses_and_doubles_nothing() {
    use factum_fault::Point;
    const NAME: &str = "test-killed";
    const EVENTS: u64 = 60;
    let refused = |seq: u64| seq.is_multiple_of(5);
    let scene = Scene::new::<killed::Posted>(On::Embedded, 1).await;
    for seq in 1..=EVENTS {
        let note = if refused(seq) { "refuse" } else { "" };
        let event = envelope(killed::Posted::entry("a", seq, note));
        scene.letter(NAME, seq as i64, &event).await;
    }
    let run = scene.plan(NAME).await;
    let first = Process::start(&scene);
    scene.checked(run).await;
    drop(first);
    scene.begin(run).await;
    // The consumer's topic is empty: every point is the replay's.
    for point in [
        Point::ReplayClaimBefore,
        Point::BeginBefore,
        Point::BeginAfter,
        Point::ReplayClaimAfter,
        Point::DedupBefore,
        Point::DedupAfter,
        Point::HandleBefore,
        Point::HandleAfter,
        Point::ReplaySettleBefore,
        Point::ReplaySettleAfter,
        Point::CommitBefore,
        Point::CommitAfter,
    ] {
        let mut process = Process::start_with(&scene, Some(format!("{point} kill 4")));
        eventually(LIMIT, &format!("death at {point}"), async || {
            process.0.try_wait().expect("it can be asked").is_some()
        })
        .await;
    }
    assert_eq!(scene.look(run).await.state, "running", "it died on the way");
    let _process = Process::start(&scene);
    let items = scene.until(run, "done").await.items;
    let expected = |seq| if refused(seq) { "failed" } else { "handled" };
    assert_eq!(items, (1..=EVENTS).map(expected).collect::<Vec<_>>());
    let mut effects = effects_of("a", EVENTS);
    effects.retain(|effect| !refused(effect[2..].parse().expect("its number")));
    assert_eq!(scene.effects(NAME).await, effects, "once each, in order");
    let attempts = "SELECT DISTINCT concat_ws(' ', state, attempts) FROM dead_letter ORDER BY 1";
    assert_eq!(scene.texts(attempts).await, ["open 2", "replayed 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_goes_on_with_its_run() {
    const NAME: &str = "test-killed";
    let scene = Scene::new::<killed::Posted>(On::Embedded, 1).await;
    let mut ids: Vec<EventId> = Vec::new();
    for seq in 1..=60 {
        // Every twentieth waits inside of its transaction, until the test lets it go.
        let note = if seq % 20 == 0 { "hold" } else { "" };
        let event = envelope(killed::Posted::entry("a", seq, note));
        ids.push(event.id());
        scene.letter(NAME, seq as i64, &event).await;
    }
    let mut holder = scene.database.connect().await;
    sqlx::query("SELECT pg_advisory_lock(42)")
        .execute(&mut holder)
        .await
        .unwrap();
    let waiting = async || {
        scene
            .count(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            )
            .await
    };
    let run = scene.plan(NAME).await;
    let process = Process::start(&scene);
    scene.checked(run).await;
    scene.begin(run).await;
    eventually(LIMIT, "the first handler that waits", async || {
        waiting().await == 1
    })
    .await;
    drop(process);
    let effects = scene.effects(NAME).await;
    assert_eq!(effects, effects_of("a", 19), "the open one is rolled back");
    let process = Process::start(&scene);
    eventually(LIMIT, "the same handler again", async || {
        waiting().await == 1
    })
    .await;
    assert_eq!(scene.effects(NAME).await, effects);
    holder.close().await.unwrap();
    // And once more wherever it is.
    eventually(LIMIT, "further effects", async || {
        scene.effects(NAME).await.len() > 25
    })
    .await;
    drop(process);
    let _process = Process::start(&scene);
    assert_eq!(scene.until(run, "done").await.items, all(60, "handled"));
    let effects = scene.effects(NAME).await;
    assert_eq!(effects, effects_of("a", 60), "once each, in order");
    let states = scene.count("SELECT count(*) FROM dead_letter WHERE state = 'replayed'");
    assert_eq!(states.await, 60);
    let remembered = scene.count("SELECT count(*) FROM processed_event").await;
    assert_eq!(remembered, ids.len() as i64);
}

entry_on_topic!(alive, "t.replay.alive");
#[tokio::test(flavor = "multi_thread")]
async fn a_process_says_that_it_lives_until_it_ends() {
    let scene = Scene::new::<alive::Posted>(On::Embedded, 2).await;
    let handler = Mendable::of("test-alive");
    let builder = Service::builder(scene.config(&[("FACTUM_BUILD", "1.5.0")]));
    let running = Running::start(builder.consumer(handler.consumer::<alive::Posted>()));
    let alive = "SELECT concat_ws(' ', service, build, consumers, process_id > 0) FROM instance \
        WHERE seen_at > clock_timestamp() - interval '20 seconds'";
    eventually(LIMIT, "its row", async || {
        !scene.texts(alive).await.is_empty()
    })
    .await;
    assert_eq!(scene.texts(alive).await, ["test 1.5.0 {test-alive} t"]);
    // It says so again and again, with what its consumers hold.
    let lanes =
        "SELECT state #>> '{consumers,test-alive,lanes}' FROM instance WHERE seen_at > started_at";
    eventually(LIMIT, "both lanes", async || {
        scene.texts(lanes).await == ["2"]
    })
    .await;
    running.stop().await;
    assert_eq!(scene.count("SELECT count(*) FROM instance").await, 0);
}

entry_on_topic!(locked, "t.replay.locked");
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_cant_be_written_holds_nothing_up() {
    let scene = Scene::new::<locked::Posted>(On::Embedded, 1).await;
    let handler = Mendable::of("test-locked");
    let mut holder = scene.database.connect().await;
    let mut lock = holder.begin().await.unwrap();
    // Nor does a table of replays that doesn't answer.
    sqlx::raw_sql("LOCK TABLE instance, replay_run IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let patient = [("FACTUM_DATABASE_LOCK_TIMEOUT_SECONDS", "60")];
    let running = scene.start_with(&patient, [handler.consumer::<locked::Posted>()]);
    scene.produce(0, &[locked::Posted::entry("a", 1, "")]).await;
    scene
        .await_effects(handler.consumer, &effects_of("a", 1))
        .await;
    eventually(
        LIMIT,
        "a look at the replays and a heartbeat that wait",
        async || {
            scene
                .count(
                    "SELECT count(DISTINCT relation) FROM pg_locks WHERE NOT granted \
                 AND relation IN ('instance'::regclass, 'replay_run'::regclass)",
                )
                .await
                == 2
        },
    )
    .await;
    let asked = std::time::Instant::now();
    running.stop().await;
    // Far below the deadline, at which it would be cut off.
    let took = asked.elapsed();
    assert!(took.as_millis() < 4_500, "the end took {took:?}");
    lock.rollback().await.unwrap();
    holder.close().await.unwrap();
}
