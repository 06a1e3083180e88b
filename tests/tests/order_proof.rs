//! The order proof: handlers that fail, at random and at some keys for long, three consumers that are killed on the
//! way, and per key exactly the published order of effects.
//!
//! `FACTUM_TEST_SOAK=1` makes it 100,000 events of 1,000 keys, with keys that fail for minutes, in some 10 minutes.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use factum::Event as _;
use factum::sqlx::{self, Connection as _, PgConnection};
use factum_testing::eventually;
use factum_tests::trouble::Trouble;
use factum_tests::{Entry as _, On, Scene, entry_on_topic};

entry_on_topic!(proof, "t.order-proof");

const CONSUMER: &str = "test-order-proof";
/// So many that the embedded broker keeps all records of the long run.
const PARTITIONS: u32 = 12;
const PROCESSES: usize = 3;

/// How much of it.
struct Size {
    accounts: u64,
    events_of_account: u64,
    /// So many events of each account are published at once; then the effects of half of them are waited for.
    portion: u64,
    /// A process is killed in each of so many portions.
    kill_every: u64,
    /// The longest that everything fails for an account.
    trouble: Duration,
    /// The longest that the consumers may take for a portion, and for what is left in the end.
    limit: Duration,
}

const SHORT: Size = Size {
    accounts: 200,
    events_of_account: 50,
    portion: 5,
    kill_every: 2,
    trouble: Duration::from_secs(12),
    limit: Duration::from_secs(120),
};

const SOAK: Size = Size {
    accounts: 1_000,
    events_of_account: 100,
    portion: 4,
    kill_every: 1,
    trouble: Duration::from_mins(4),
    limit: Duration::from_mins(15),
};

/// One of the consumers. It is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene, trouble: &Trouble, concurrency: u32) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_failing-service"));
        trouble.describe(&mut command);
        let child = command
            .env("PROOF_CONSUMER", CONSUMER)
            .env("PROOF_CONCURRENCY", concurrency.to_string())
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .env("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "5000")
            .env("KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS", "300")
            // Each failure is a line.
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .spawn()
            .expect("the service's binary starts");
        Process(child)
    }

    /// SIGKILL: no destructor, no last word.
    fn kill(&mut self) {
        let ended = self.0.try_wait().expect("its state can be asked for");
        assert_eq!(ended, None, "a consumer ended by itself");
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

#[tokio::test(flavor = "multi_thread")]
async fn failures_keep_the_order_of_their_key() {
    prove(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_keep_the_order_of_their_key_with_sixteen_handlers_at_once() {
    prove(16).await;
}

async fn prove(concurrency: u32) {
    let is_soak = std::env::var_os("FACTUM_TEST_SOAK").is_some_and(|value| value == "1");
    let size = if is_soak { SOAK } else { SHORT };
    let scene = Scene::new::<proof::Posted>(On::Embedded, PARTITIONS).await;
    let trouble = Trouble {
        seed: fastrand::u64(..),
        begin: SystemTime::now(),
        lasts: size.trouble,
    };
    let proof = Proof {
        conn: scene.database.connect().await,
        scene,
        size,
        trouble,
        concurrency,
    };
    proof.run().await;
}

struct Proof {
    scene: Scene,
    size: Size,
    trouble: Trouble,
    /// Handlers of a process that run at once.
    concurrency: u32,
    conn: PgConnection,
}

impl Proof {
    fn start(&self) -> Process {
        Process::start(&self.scene, &self.trouble, self.concurrency)
    }

    async fn run(mut self) {
        let mut processes: Vec<Process> = (0..PROCESSES).map(|_| self.start()).collect();
        let (mut kills, mut most_parked) = (0, 0);
        let portions = self.size.events_of_account / self.size.portion;
        for portion in 0..portions {
            self.publish(portion).await;
            let events = self.size.portion * self.size.accounts;
            let before = portion * events;
            if portion % self.size.kill_every == 0 {
                // At a moment in the midst of the work: by what is done, not by the clock.
                self.reach(before / 2 + fastrand::u64(..events / 4)).await;
                let victim = fastrand::usize(..processes.len());
                processes[victim].kill();
                processes[victim] = self.start();
                kills += 1;
            }
            self.reach((before + events) / 2).await;
            most_parked = most_parked.max(self.count("SELECT count(*) FROM parked_key").await);
        }
        let total = self.size.accounts * self.size.events_of_account;
        self.reach(total).await;
        self.settle().await;

        let seed = self.trouble.seed;
        assert!(kills >= 5, "only {kills} kills");
        // Else nothing was proved. A tenth of the accounts is in trouble.
        assert!(
            most_parked >= self.size.accounts as i64 / 50,
            "never more than {most_parked} keys were parked (seed {seed})"
        );
        let found = self.found().await;
        let expected = Found {
            effects: total as i64,
            events: total as i64,
            places: total as i64,
            out_of_order: 0,
            dead_letters: 0,
        };
        assert_eq!(found, expected, "seed {seed}");
        self.scene
            .broker
            .assert_nothing_dropped(&[proof::Posted::TOPIC])
            .await;
        for process in &mut processes {
            process.kill();
        }
        self.conn.close().await.expect("a connection can be closed");
    }

    /// The next events of each account, in its partition.
    async fn publish(&self, portion: u64) {
        for partition in 0..PARTITIONS {
            let first = portion * self.size.portion + 1;
            let mut events = Vec::new();
            for seq in first..first + self.size.portion {
                for account in
                    (u64::from(partition)..self.size.accounts).step_by(PARTITIONS as usize)
                {
                    events.push(proof::Posted::entry(&format!("account-{account}"), seq, ""));
                }
            }
            self.scene.produce(partition as i32, &events).await;
        }
    }

    async fn reach(&mut self, effects: u64) {
        let limit = self.size.limit;
        let what = format!("{effects} effects (seed {})", self.trouble.seed);
        let conn = &mut self.conn;
        eventually(limit, &what, async || {
            count(conn, "SELECT count(*) FROM effect").await >= effects as i64
        })
        .await;
    }

    /// Waits until nothing is parked and everything is read.
    async fn settle(&mut self) {
        let limit = self.size.limit;
        let seed = self.trouble.seed;
        let (conn, broker) = (&mut self.conn, &self.scene.broker);
        eventually(limit, &format!("nothing parked (seed {seed})"), async || {
            let sql = "SELECT (SELECT count(*) FROM parked_key) + (SELECT count(*) FROM parked_event)";
            count(conn, sql).await == 0
        })
        .await;
        let ends = broker.end_offsets(proof::Posted::TOPIC).await;
        eventually(limit, &format!("all offsets (seed {seed})"), async || {
            broker.committed(CONSUMER, proof::Posted::TOPIC).await == ends
        })
        .await;
    }

    async fn count(&mut self, sql: &'static str) -> i64 {
        count(&mut self.conn, sql).await
    }

    async fn found(&mut self) -> Found {
        let (effects, events, places, out_of_order, dead_letters) = sqlx::query_as(
            "SELECT count(*), count(DISTINCT event_id), count(DISTINCT (account, seq)),
                    count(*) FILTER (WHERE seq <> nth), (SELECT count(*) FROM dead_letter)
               FROM (SELECT event_id, account, seq, row_number() OVER (PARTITION BY account ORDER BY id) AS nth
                       FROM effect) AS effect",
        )
        .fetch_one(&mut self.conn)
        .await
        .expect("the effects can be read");
        Found {
            effects,
            events,
            places,
            out_of_order,
            dead_letters,
        }
    }
}

/// What came out of it.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    effects: i64,
    events: i64,
    /// Of an account, each its number.
    places: i64,
    /// Effects that don't stand where their number says within their account.
    out_of_order: i64,
    dead_letters: i64,
}

async fn count(conn: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql)
        .fetch_one(conn)
        .await
        .expect("a count")
}
