//! Processes that die by SIGKILL, and a member that its group throws out.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{Consumer, Event as _, Retry};
use factum_testing::eventually;
use factum_tests::{
    Entry as _, LIMIT, On, Recorder, Scene, effects_of, entry_on_topic, on_both_brokers,
};

on_both_brokers!(
    case_03_killed_before_and_after_commit,
    case_28_an_evicted_member_moves_no_offset_and_comes_back,
);

entry_on_topic!(killed, "t.killed");

const CONSUMER: &str = "test-killed";

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_account-service"))
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            // The killed member's partitions are free after five seconds. (Below three, the embedded
            // broker throws a member out while it is still joining.)
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

async fn case_03_killed_before_and_after_commit(on: On) {
    let scene = Scene::new::<killed::Posted>(on, 1).await;

    // Between the handler's last statement and COMMIT, twice in a row.
    let mut holder = scene.database.connect().await;
    sqlx::query("SELECT pg_advisory_lock(42)")
        .execute(&mut holder)
        .await
        .unwrap();
    scene
        .produce(
            0,
            &[
                killed::Posted::entry("a", 1, ""),
                killed::Posted::entry("a", 2, "hold"),
            ],
        )
        .await;
    let waiting = async || {
        scene
            .count(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            )
            .await
    };
    for _ in 0..2 {
        let process = Process::start(&scene);
        eventually(LIMIT, "the handler's last statement", async || {
            waiting().await > 0
        })
        .await;
        process.kill();
        // The first event may have come in a batch of its own, before.
        assert!(
            !scene.effects(CONSUMER).await.contains(&"a:2".to_owned()),
            "the held transaction was not committed"
        );
        // The dead process's backend ends by itself, or its lock would hold up the next one.
        eventually(LIMIT, "the end of the dead transaction", async || {
            waiting().await == 0
        })
        .await;
    }
    holder.close().await.unwrap();
    let process = Process::start(&scene);
    scene
        .await_committed(CONSUMER, killed::Posted::TOPIC, 0, 2)
        .await;
    process.kill();
    assert_eq!(scene.effects(CONSUMER).await, effects_of("a", 2));

    // Right after COMMIT, before the offset: killed the moment the effect is there. Offsets follow
    // up to a second later; should one have been faster, the round proves nothing: another is run.
    let mut seq = 2;
    let mut proved = false;
    while !proved && seq < 12 {
        seq += 1;
        scene
            .produce(0, &[killed::Posted::entry("a", seq, "")])
            .await;
        let process = Process::start(&scene);
        eventually(LIMIT, "the effect", async || {
            scene.effects(CONSUMER).await.len() as u64 == seq
        })
        .await;
        process.kill();
        let committed = scene
            .broker
            .committed(CONSUMER, killed::Posted::TOPIC)
            .await;
        proved = committed.get(&0).copied().unwrap_or(0) < seq as i64;
    }
    assert!(
        proved,
        "the process never died between COMMIT and the offset"
    );
    let process = Process::start(&scene);
    scene
        .await_committed(CONSUMER, killed::Posted::TOPIC, 0, seq as i64)
        .await;
    process.kill();
    assert_eq!(
        scene.effects(CONSUMER).await,
        effects_of("a", seq),
        "the repeat had no effect"
    );
}

entry_on_topic!(evicted, "t.evicted");
async fn case_28_an_evicted_member_moves_no_offset_and_comes_back(on: On) {
    let scene = Scene::new::<evicted::Posted>(on, 2).await;
    let name = "test-evicted";
    let recorder = Recorder::of(name);
    let consumer = || {
        Consumer::named(name)
            .handler::<evicted::Posted>(recorder.clone())
            // Below max.poll.interval.ms, as the start check demands…
            .handler_timeout(Duration::from_secs(5))
            .retry(
                Retry::pause_partition()
                    .attempts(20)
                    .first_delay(Duration::from_millis(50)),
            )
    };
    // …but a rebalance waits for a whole batch: fifteen seconds here, and the group waits six.
    let settings = [
        ("KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS", "6000"),
        ("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "25"),
    ];
    let slow = |account: &str| -> Vec<evicted::Posted> {
        (1..=15)
            .map(|seq| evicted::Posted::entry(account, seq, "slow"))
            .collect()
    };
    let a = scene.produce(0, &slow("a")).await;
    let b = scene.produce(1, &slow("b")).await;
    let first = consumer();
    let stats = first.stats();
    let first = scene.start_with(&settings, [first]);
    // The first batch may be one event, with which a rebalance is quickly done; the second is all the rest.
    eventually(LIMIT, "both partitions in their second batch", async || {
        recorder.calls_of(a[1]) > 0 && recorder.calls_of(b[1]) > 0
    })
    .await;
    let second = scene.start_with(&settings, [consumer()]);
    eventually(LIMIT, "the eviction", async || stats.evictions() > 0).await;
    let mut expected = effects_of("a", 15);
    expected.extend(effects_of("b", 15));
    scene.await_effects(name, &expected).await;
    scene
        .produce(0, &[evicted::Posted::entry("a", 16, "")])
        .await;
    scene
        .produce(1, &[evicted::Posted::entry("b", 16, "")])
        .await;
    expected.extend(["a:16".to_owned(), "b:16".to_owned()]);
    scene.await_effects(name, &expected).await;
    scene
        .await_committed(name, evicted::Posted::TOPIC, 0, 16)
        .await;
    scene
        .await_committed(name, evicted::Posted::TOPIC, 1, 16)
        .await;
    first.stop().await;
    second.stop().await;
}
