//! Relays in processes of their own that share the slots: they come, stop, are stopped, and die.

use std::collections::{BTreeMap, HashSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use factum::Event as _;
use factum::sqlx::{self, Connection as _, PgConnection};
use factum_testing::eventually;
use factum_tests::{LIMIT, On, Scene, entry_on_topic, on_both_brokers};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

on_both_brokers!(
    case_16_a_relay_that_is_stopped_with_rows_in_its_hands_keeps_its_slots_and_then_marks_nothing,
    case_18_three_relays_that_start_at_once_send_each_row_once,
);

/// How long the slots of a dead relay wait.
const LEASE: Duration = Duration::from_secs(3);

/// A relay. It is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene, lease: Duration) -> Process {
        Process::start_with(scene, lease, &[])
    }

    fn start_with(scene: &Scene, lease: Duration, extra: &[(&str, &str)]) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_relay-service"))
            .env("RELAY_LEASE_MS", lease.as_millis().to_string())
            .env("RELAY_CLAIM_LIMIT", "40")
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .envs(extra.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the relay's binary starts");
        Process(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).expect("a process id is a pid_t"))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the process is there");
    }

    /// Waits until SIGSTOP has stopped it.
    async fn stopped(&self) {
        let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG;
        eventually(LIMIT, "the relay is stopped", async || {
            matches!(
                waitpid(self.pid(), Some(flags)).expect("it is our child"),
                WaitStatus::Stopped(..)
            )
        })
        .await;
    }

    /// SIGTERM, and its end in good order.
    async fn end(mut self) {
        self.signal(Signal::SIGTERM);
        let mut status = None;
        eventually(LIMIT, "the end of the relay", async || {
            status = self.0.try_wait().expect("it is our child");
            status.is_some()
        })
        .await;
        assert!(status.is_some_and(|status| status.success()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The outbox, written as any language writes it: the payload is the row's number.
struct Table {
    conn: PgConnection,
    topic: &'static str,
    rows: usize,
    keys: usize,
}

impl Table {
    async fn of(scene: &Scene, topic: &'static str, keys: usize) -> Table {
        Table {
            conn: scene.database.connect().await,
            topic,
            rows: 0,
            keys,
        }
    }

    async fn write(&mut self, rows: usize) {
        sqlx::query(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
             SELECT gen_random_uuid(), 'account.posted.v1', 'Account', key, $1, key, convert_to(n::text, 'UTF8'), now() \
             FROM generate_series($2, $3) AS n, LATERAL (SELECT 'key-' || (n % $4) AS key) AS of_row ORDER BY n",
        )
        .bind(self.topic)
        .bind(self.rows as i64)
        .bind((self.rows + rows) as i64 - 1)
        .bind(self.keys as i64)
        .execute(&mut self.conn)
        .await
        .unwrap();
        self.rows += rows;
    }

    async fn number(&mut self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(&mut self.conn)
            .await
            .unwrap()
    }

    async fn published(&mut self, at_least: usize) {
        eventually(LIMIT, "the rows are published", async || {
            let published = "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL";
            self.number(published).await >= at_least as i64
        })
        .await;
    }

    /// Waits until so many relays share all slots as evenly as can be.
    async fn shared_by(&mut self, relays: i64) {
        eventually(LIMIT, "all slots are shared evenly", async || {
            let (holders, least, most, all): (i64, Option<i64>, Option<i64>, Option<i64>) = sqlx::query_as(
                "SELECT count(*), min(slots), max(slots), sum(slots)::bigint FROM ( \
                     SELECT count(*) AS slots FROM relay_lease WHERE expires_at > clock_timestamp() GROUP BY owner) AS of_owner",
            )
            .fetch_one(&mut self.conn)
            .await
            .unwrap();
            holders == relays && all == Some(64) && least >= most.map(|most| most - 1)
        })
        .await;
    }

    /// What a consumer with dedup sees of each key: all its rows, in order.
    async fn assert_in_order(&self, scene: &Scene) {
        let mut firsts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut met = HashSet::new();
        for record in scene.broker.records(self.topic).await {
            let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
            let number: usize = text(record.value).parse().unwrap();
            if met.insert(number) {
                firsts.entry(text(record.key)).or_default().push(number);
            }
        }
        for key in 0..self.keys {
            let expected: Vec<usize> = (key..self.rows).step_by(self.keys).collect();
            assert_eq!(firsts[&format!("key-{key}")], expected, "key {key}");
        }
    }
}

entry_on_topic!(many, "t.relays.many");
#[tokio::test(flavor = "multi_thread")]
async fn one_to_eight_relays_keep_the_order_of_each_key_while_they_come_stop_and_die() {
    let scene = Scene::new::<many::Posted>(On::Embedded, 6).await;
    let mut table = Table::of(&scene, many::Posted::TOPIC, 150).await;
    let mut relays = Vec::new();
    for number in 1..=8 {
        table.write(600).await;
        relays.push(Process::start(&scene, LEASE));
        // In the midst of the work, by what is done and not by the clock.
        table.published(table.rows / 2).await;
        if number % 4 == 0 {
            table.shared_by(number).await;
        }
    }
    // Three die at once, with rows in their hands.
    table.write(2_000).await;
    for mut relay in relays.drain(..3) {
        relay.0.kill().expect("it runs");
        relay.0.wait().expect("it ends");
    }
    table.write(600).await;
    // One is stopped, until the others have its slots.
    let stopped = relays.remove(0);
    stopped.signal(Signal::SIGSTOP);
    stopped.stopped().await;
    table.write(600).await;
    table.shared_by(4).await;
    table.write(600).await;
    stopped.signal(Signal::SIGCONT);
    table.shared_by(5).await;
    table.write(600).await;
    for relay in relays.drain(..2) {
        relay.end().await;
    }
    table.write(600).await;
    table.published(table.rows).await;
    table.shared_by(3).await;
    for relay in relays {
        relay.end().await;
    }
    stopped.end().await;
    table.assert_in_order(&scene).await;
    scene
        .broker
        .assert_nothing_dropped(&[many::Posted::TOPIC])
        .await;
    assert_eq!(
        table.number("SELECT count(*) FROM relay_member").await,
        3,
        "the dead, until they are forgotten"
    );
}

entry_on_topic!(held, "t.relays.held");
async fn case_16_a_relay_that_is_stopped_with_rows_in_its_hands_keeps_its_slots_and_then_marks_nothing(
    on: On,
) {
    let scene = Scene::new::<held::Posted>(on, 1).await;
    let mut table = Table::of(&scene, held::Posted::TOPIC, 1).await;
    let mut sent = 0;
    // With rows claimed and not sent, and with rows acknowledged and not marked.
    for (point, sent_by_it) in [("claim.after stop 1", 0), ("mark.before stop 1", 2)] {
        table.write(3).await;
        let extra = [("FAULT_POINT", point), ("RELAY_CLAIM_LIMIT", "2")];
        let first = Process::start_with(&scene, LEASE, &extra);
        first.stopped().await;
        let second = Process::start(&scene, LEASE);
        // As long as the first one's lease lasts, the third row is nobody's.
        let lasts = "SELECT count(*) FROM relay_lease WHERE expires_at > clock_timestamp() AND owner = ( \
                         SELECT owner FROM relay_member ORDER BY joined_at LIMIT 1)";
        eventually(LIMIT, "the second relay waits for slots", async || {
            table.number("SELECT count(*) FROM relay_member").await == 2
        })
        .await;
        let records = scene.broker.records(held::Posted::TOPIC).await.len();
        // Both were asked for in this order: what was there then was there while the lease lasted.
        if table.number(lasts).await > 0 {
            assert_eq!(
                records,
                sent + sent_by_it,
                "{point}: relay 2 sent before its turn"
            );
        }
        table.published(table.rows).await;
        let marks = "SELECT md5(string_agg(published_at::text, ',' ORDER BY id)) FROM outbox";
        let before: String = sqlx::query_scalar(marks)
            .fetch_one(&mut table.conn)
            .await
            .unwrap();
        first.signal(Signal::SIGCONT);
        // It has its share of the slots again, and then ends with nothing in its hands.
        table.shared_by(2).await;
        first.end().await;
        second.end().await;
        let after: String = sqlx::query_scalar(marks)
            .fetch_one(&mut table.conn)
            .await
            .unwrap();
        assert_eq!(
            before, after,
            "{point}: the first relay marked what was no longer its own"
        );
        let records = scene.broker.records(held::Posted::TOPIC).await.len();
        sent += 3 + sent_by_it;
        assert_eq!(
            records, sent,
            "{point}: what the first relay held is sent by the second alone"
        );
        table.assert_in_order(&scene).await;
    }
}

entry_on_topic!(failed, "t.relays.failed");
async fn case_18_three_relays_that_start_at_once_send_each_row_once(on: On) {
    let scene = Scene::new::<failed::Posted>(on, 4).await;
    let mut table = Table::of(&scene, failed::Posted::TOPIC, 100).await;
    table.write(1_000).await;
    sqlx::query("UPDATE outbox SET attempts = 3, last_error = 'the topic was not there'")
        .execute(&mut table.conn)
        .await
        .unwrap();
    // None loses a slot for being slow: that would be a reason to send again.
    let lease = Duration::from_secs(30);
    let relays: Vec<Process> = (0..3).map(|_| Process::start(&scene, lease)).collect();
    table.published(1_000).await;
    table.shared_by(3).await;
    for relay in relays {
        relay.end().await;
    }
    let records = scene.broker.records(failed::Posted::TOPIC).await;
    assert_eq!(records.len(), 1_000, "each was sent once");
    table.assert_in_order(&scene).await;
    table.conn.close().await.unwrap();
}
