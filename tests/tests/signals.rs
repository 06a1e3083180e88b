//! A service in a process of its own, asked to stop by signals, and one that can't start.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use factum::Event as _;
use factum::sqlx::{self, Connection as _, PgConnection};
use factum_testing::eventually;
use factum_tests::{Entry as _, LIMIT, On, Scene, effects_of, entry_on_topic};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

entry_on_topic!(killed, "t.killed");

/// The consumer of `account-service`.
const CONSUMER: &str = "test-killed";
/// Its handler waits for this advisory lock when the event's note is `hold`.
const LOCK: &str = "SELECT pg_advisory_lock(42)";

/// The service, and what it has written to stderr.
struct Process {
    child: Child,
    words: Arc<Mutex<String>>,
}

impl Process {
    fn start(scene: &Scene, deadline_seconds: &str) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_account-service"))
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .env("FACTUM_SHUTDOWN_DEADLINE_SECONDS", deadline_seconds)
            .env("RUST_LOG", "factum_runtime=info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the service's binary starts");
        let words = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let heard = Arc::clone(&words);
        // It ends with the pipe.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut heard = heard.lock().expect("no poison");
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        Process { child, words }
    }

    /// Waits until it says that.
    async fn says(&self, what: &str) {
        eventually(LIMIT, what, async || self.words().contains(what)).await;
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id is a pid_t");
        kill(Pid::from_raw(id), signal).expect("the process is there");
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(LIMIT, "the end of the process", async || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        })
        .await;
        status.expect("eventually waited for it")
    }

    fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be waited for")
            .is_none()
    }

    fn words(&self) -> String {
        self.words.lock().expect("no poison").clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service whose handler is in the middle of its transaction, and the connection that holds it there.
async fn held(deadline_seconds: &str) -> (Scene, PgConnection, Process) {
    let scene = Scene::new::<killed::Posted>(On::Embedded, 1).await;
    let mut holder = scene.database.connect().await;
    sqlx::query(LOCK)
        .execute(&mut holder)
        .await
        .expect("a free lock");
    scene
        .produce(0, &[killed::Posted::entry("a", 1, "hold")])
        .await;
    let process = Process::start(&scene, deadline_seconds);
    eventually(LIMIT, "the handler's last statement", async || {
        waiting(&scene).await > 0
    })
    .await;
    (scene, holder, process)
}

/// How many sessions of this test's database wait for an advisory lock.
async fn waiting(scene: &Scene) -> i64 {
    scene
        .count(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .await
}

async fn a_signal_lets_the_handler_finish(signal: Signal) {
    let (scene, holder, mut process) = held("40").await;
    process.signal(signal);
    process.says("stopping").await;
    holder
        .close()
        .await
        .expect("the lock's connection can be closed");
    let status = process.ended().await;
    assert_eq!(status.code(), Some(0), "{}", process.words());
    assert_eq!(scene.effects(CONSUMER).await, effects_of("a", 1));
    let committed = scene
        .broker
        .committed(CONSUMER, killed::Posted::TOPIC)
        .await;
    assert_eq!(committed.get(&0), Some(&1), "the offset went along");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_the_handler_finish() {
    a_signal_lets_the_handler_finish(Signal::SIGTERM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigint_lets_the_handler_finish() {
    a_signal_lets_the_handler_finish(Signal::SIGINT).await;
}

async fn a_second_signal_ends_at_once(first: Signal, second: Signal, code: i32) {
    let (scene, holder, mut process) = held("300").await;
    process.signal(first);
    // Two signals of one kind that wait together are one: the second is repeated until it counts.
    let mut status = None;
    eventually(Duration::from_secs(20), "the end at once", async || {
        process.signal(second);
        status = process.child.try_wait().expect("a child can be waited for");
        status.is_some()
    })
    .await;
    let status = status.expect("eventually waited for it");
    assert_eq!(status.code(), Some(code), "{status:?}");
    assert_eq!(scene.effects(CONSUMER).await, Vec::<String>::new());
    holder
        .close()
        .await
        .expect("the lock's connection can be closed");

    // Nothing is lost: the next start handles the event.
    let mut process = Process::start(&scene, "40");
    scene.await_effects(CONSUMER, &effects_of("a", 1)).await;
    process.signal(Signal::SIGTERM);
    assert_eq!(process.ended().await.code(), Some(0), "{}", process.words());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_ends_at_once() {
    a_second_signal_ends_at_once(Signal::SIGTERM, Signal::SIGTERM, 143).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigint_after_sigterm_ends_at_once() {
    a_second_signal_ends_at_once(Signal::SIGTERM, Signal::SIGINT, 130).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_cuts_a_handler_off() {
    let (scene, holder, mut process) = held("2").await;
    assert!(process.is_running());
    process.signal(Signal::SIGTERM);
    let status = process.ended().await;
    assert!(status.code().is_some(), "it ended by itself: {status:?}");
    holder
        .close()
        .await
        .expect("the lock's connection can be closed");
    assert_eq!(scene.effects(CONSUMER).await, Vec::<String>::new());
}

/// The exit code of a service that can't start, and the text that a person sees then.
#[tokio::test(flavor = "multi_thread")]
async fn case_36_a_missing_topic_ends_the_process_with_an_error() {
    let scene = Scene {
        database: factum_tests::migrated_database().await,
        broker: factum_testing::embedded(),
    };
    let mut process = Process::start(&scene, "10");
    let status = process.ended().await;
    process.says("mend:").await;
    let words = process.words();
    assert_eq!(status.code(), Some(1), "{words}");
    assert!(
        words.contains(
            "Error: the service does not start: 1 problem\n\n\
             error[CFG-4]: the topic `t.killed` does not exist\n  where: "
        ),
        "{words}"
    );
    assert!(words.contains("\n  mend:  create it: "), "{words}");
}
