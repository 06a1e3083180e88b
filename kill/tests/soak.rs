//! However a soak ends, nothing of it is left.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Far beyond what a busy machine needs.
const LIMIT: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited too long for {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A program that is killed with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended before, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that have `dir` in their environment: the servers, the services, and what they started.
fn processes_in(dir: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("this is Linux");
    let has_it = |process: &fs::DirEntry| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(dir)
    };
    processes.filter_map(Result::ok).filter(has_it).count()
}

#[test]
fn an_interrupted_soak_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().expect("a directory");
    // As root, the servers run as another user: as open as /tmp.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).expect("it is ours");
    let logs = tempfile::tempdir().expect("a directory");
    let child = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--orders", "10000", "--seed", "7", "--json", "--logs"])
        .arg(logs.path())
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut program = Program(child);
    let mark = scratch.path().to_string_lossy().into_owned();
    wait_for("all services", || {
        let ended = program.0.try_wait().expect("it is ours");
        assert_eq!(ended, None, "it ended by itself");
        fs::read_dir(logs.path()).expect("it is ours").count() == 6
    });
    assert!(processes_in(&mark) > 6, "they are seen");
    let pid = Pid::from_raw(program.0.id().try_into().expect("a process id"));
    kill(pid, Signal::SIGINT).expect("it runs");
    wait_for("its end", || {
        program.0.try_wait().expect("it is ours").is_some()
    });
    let status = program.0.wait().expect("it is ours");
    assert_eq!(status.code(), Some(130));
    wait_for("its processes to end", || processes_in(&mark) == 0);
    wait_for("its directories to go", || {
        fs::read_dir(scratch.path()).expect("it is ours").count() == 0
    });
}

#[test]
fn a_soak_that_is_too_short_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--orders", "9999"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("10000"), "{said}");
}
