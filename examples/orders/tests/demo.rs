//! The demo as a program: a small run, wrong uses, and that an end of any kind leaves nothing behind.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use factum::sqlx::{self, Connection as _, PgConnection};
use factum_testing::kafka::KafkaServer;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The pause between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders-demo"));
    command
        .args(args)
        .env_remove("FACTUM_DEMO_DATABASE_URL")
        .env_remove("FACTUM_DEMO_BROKERS");
    command
}

#[test]
fn a_small_run_has_no_anomaly() {
    let output = demo(&["--orders", "300", "--seed", "1", "--json"])
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stdout}{stderr}");
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let figure = |name: &str| last[name].as_u64().unwrap();
    // One of 300 orders can't be billed.
    assert_eq!(figure("events"), 300 + 299, "{last}");
    assert_eq!(figure("effects"), 2 * 299, "{last}");
    assert_eq!(figure("anomalies"), 0, "{last}");
    assert_eq!(figure("kills"), 4, "{last}");
    assert!(
        figure("set_aside") > 2 * 16,
        "every poison in both topics, and the order: {last}"
    );
    assert!(figure("duplicates") >= 6, "{last}");
    assert!(last["events_per_second"].as_f64().unwrap() > 0.0, "{last}");
    // Every record has an outcome: effect, stopped, set aside, or one of 4 x 3 strangers in each topic.
    assert_eq!(
        figure("deliveries"),
        figure("effects") + figure("duplicates") + figure("set_aside") + 24
    );
}

#[test]
fn a_wrong_use_is_told() {
    for (args, part) in [
        (&["--orders", "0"][..], "0 is not in 1..="),
        (&["--orders", "100001"], "FACTUM_DEMO_BROKERS"),
        (&["--orders", "99999999999999999999"], "--orders"),
        (&["--seed", "x"], "--seed"),
        (&["--order", "1"], "--orders"),
    ] {
        let output = demo(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn given_servers_are_used_and_left_as_they_were() {
    let kafka = KafkaServer::start().unwrap();
    let postgres = PostgresServer::start(&PostgresBinaries::find().unwrap()).unwrap();
    let run = || {
        demo(&["--orders", "100", "--seed", "1", "--json"])
            .env("FACTUM_DEMO_DATABASE_URL", postgres.url())
            .env("FACTUM_DEMO_BROKERS", kafka.bootstrap())
            .output()
            .unwrap()
    };
    let output = run();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stderr.contains(&kafka.bootstrap()), "{stderr}");

    // The topics hold records now, so the next run would count them: it refuses.
    let output = run();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("--delete --topic orders.confirmed"),
        "{stderr}"
    );

    // Neither run has left its database.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let left: Vec<String> = runtime.block_on(async {
        let mut conn = PgConnection::connect(&postgres.url()).await.unwrap();
        sqlx::query_scalar(
            "SELECT datname::text FROM pg_database WHERE datname LIKE 'factum_demo_%'",
        )
        .fetch_all(&mut conn)
        .await
        .unwrap()
    });
    assert!(left.is_empty(), "{left:?}");
}

/// A run that is under way, with a mark in the environment of all its processes and a directory of
/// its own for temporary files.
struct UnderWay {
    demo: Child,
    mark: String,
    directory: TempDir,
}

impl UnderWay {
    fn start() -> UnderWay {
        let directory = TempDir::new().unwrap();
        // As root, PostgreSQL runs as another user, who must be able to tidy up here as in /tmp.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let mark = format!("ORDERS_DEMO_TEST={}", directory.path().display());
        let mut demo = demo(&["--orders", "20000"])
            .env("TMPDIR", directory.path())
            .env("ORDERS_DEMO_TEST", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Once something was killed, all processes run.
        let told = BufReader::new(demo.stderr.take().unwrap());
        let killed = told
            .lines()
            .map_while(Result::ok)
            .any(|line| line.starts_with("killed"));
        assert!(killed, "the demo ended early: {:?}", demo.wait());
        UnderWay {
            demo,
            mark,
            directory,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.demo.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    /// The demo's end, within the limit.
    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.demo.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the demo does not end");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Processes with the mark, by id and name.
    fn processes(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                // What ends meanwhile can't be read, and needn't.
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == self.mark.as_bytes())
            })
            .map(|entry| {
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                format!("{} {}", entry.file_name().display(), name.trim_end())
            })
            .collect()
    }

    fn leaves_nothing(&self) {
        let start = Instant::now();
        loop {
            let processes = self.processes();
            let files: Vec<_> = fs::read_dir(self.directory.path()).unwrap().collect();
            if processes.is_empty() && files.is_empty() {
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "left behind: {processes:?} {files:?}"
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let mut run = UnderWay::start();
    // The shell that guards, the services, PostgreSQL and its keeper.
    let processes = run.processes();
    for name in ["orders-demo", "orders", "billing", "mailer", "postgres"] {
        let there = processes
            .iter()
            .any(|process| process.ends_with(&format!(" {name}")));
        assert!(there, "{name} is not among {processes:?}");
    }
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code(), Some(130));
    run.leaves_nothing();
}

#[test]
fn a_demo_that_is_killed_leaves_nothing_behind() {
    let mut run = UnderWay::start();
    run.signal(Signal::SIGKILL);
    assert_eq!(run.end().code(), None);
    run.leaves_nothing();
}
