//! However a task ends, no process, port or directory of its servers is left.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Far beyond what a busy machine needs.
const LIMIT: Duration = Duration::from_secs(120);

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// `cargo xtask services`, whose servers' directories are in a place of its own.
struct Task {
    child: Child,
    scratch: TempDir,
}

impl Task {
    fn services(only: &str) -> Task {
        let scratch = tempfile::tempdir().unwrap();
        // As root, the servers run as another user: as open as /tmp.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["services", "--only", only, "--json"])
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Task { child, scratch }
    }

    /// Waits for the last line: the servers run now.
    fn answer(&mut self) -> serde_json::Value {
        let stdout = BufReader::new(self.child.stdout.take().unwrap());
        let line = stdout
            .lines()
            .map(Result::unwrap)
            .find(|line| line.starts_with('{'));
        serde_json::from_str(&line.expect("the servers start")).unwrap()
    }

    fn server_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.scratch.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the task does not end");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn wait_until_nothing_is_left(&self) {
        wait_for("the directories to go", || self.server_dirs().is_empty());
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The server that the keeper of this directory runs.
fn server_in(dir: &Path) -> i32 {
    fs::read_to_string(dir.join("pid"))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn is_alive(pid: i32) -> bool {
    // A zombie has a process id and nothing else.
    kill(Pid::from_raw(pid), None).is_ok()
        && fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
            !stat.rsplit(')').next().unwrap().starts_with(" Z")
        })
}

fn port_of(address: &str) -> u16 {
    let port = address.rsplit(':').next().unwrap();
    port.split('/').next().unwrap().parse().unwrap()
}

/// Ends a running task by `signal`, and sees that its server is gone.
fn ends_with_everything(only: &str, key: &str, signal: Signal) -> ExitStatus {
    let mut task = Task::services(only);
    let answer = task.answer();
    let port = port_of(answer[key].as_str().unwrap());
    let dirs = task.server_dirs();
    assert_eq!(dirs.len(), 1, "{dirs:?}");
    let server = server_in(&dirs[0]);
    assert!(is_alive(server) && TcpStream::connect(("127.0.0.1", port)).is_ok());

    task.signal(signal);
    let status = task.end();
    task.wait_until_nothing_is_left();
    assert!(!is_alive(server), "the server outlived the task");
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the port is still served"
    );
    status
}

#[test]
fn ctrl_c_ends_postgres() {
    let status = ends_with_everything("postgres", "database_url", Signal::SIGINT);
    assert_eq!(status.code(), Some(130));
}

#[test]
fn sigterm_ends_postgres() {
    let status = ends_with_everything("postgres", "database_url", Signal::SIGTERM);
    assert_eq!(status.code(), Some(130));
}

#[test]
fn sigkill_ends_postgres_too() {
    ends_with_everything("postgres", "database_url", Signal::SIGKILL);
}

#[test]
fn sigkill_ends_kafka_too() {
    ends_with_everything("kafka", "brokers", Signal::SIGKILL);
}

#[test]
fn ctrl_c_ends_a_server_that_is_still_starting() {
    let mut task = Task::services("kafka");
    // Its directory is there, and Java is formatting it: seconds before the first answer.
    wait_for("the settings", || {
        task.server_dirs()
            .iter()
            .any(|dir| dir.join("server.properties").exists())
    });
    task.signal(Signal::SIGINT);
    assert_eq!(task.end().code(), Some(130));
    task.wait_until_nothing_is_left();
}

#[test]
fn wrong_usage_is_told_from_failure() {
    for arguments in [
        &["test", "--only", "no-such-step"][..],
        &["services", "--only", "mysql"],
        &["services", "--only", "kafka", "--postgres", "15"],
        &["conformance", "no/such/file.json"],
        &["demo", "--orders", "0"],
        &["no-such-task"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
}
